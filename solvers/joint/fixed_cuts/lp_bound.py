"""A lower bound for a configuration with fixed cuts, of any schedule: a linear program over longest paths and moments of
memory.

With the cuts fixed, the length of any one path through the passes (`critical_path`), and the bytes that a device group holds at
any one moment of its order while some unit of a stage runs, are sums over units and boundaries (`priced_chain`). For weights w
>= 0 of paths, which add up to 1, and prices y >= 0 of moments q with memory limits M_q, every solution within the memory has

    step >= sum_r w_r path_r + sum_q y_q (memory_q - M_q)   >=   its least over all choices, a shortest path along the units.

Proof: the step is no shorter than any path, and the memory's terms are at most 0. Weights and prices come from a linear program
over mixtures of the choices known so far, stage by stage; its solution gives a new choice, and with that new paths and moments.
Choices near the memory limit are then made to fit, one device group after the other, simulated, and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import highspy
import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.critical_path import Path, Times, longest_path
from trainplan.solvers.joint.fixed_cuts.device_group_memory import COLUMNS, HOST, Row, Sizes, group_memories, host_row
from trainplan.solvers.joint.fixed_cuts.priced_chain import NAMES, Chain, Choice, Multipliers
from trainplan.solvers.joint.stages.option_tables import Floats

OVER = 1e3  # steps: the cost in the linear program of exceeding the memory by all of it
EXACT = 1e-12  # the share by which sums of floats may be off

PathKey = bytes
RowKey = tuple[int, int]  # device group and row; -1 and a stage for its host


@dataclass(frozen=True, eq=False)
class KnownChoice:
    """A choice of options that the linear program has. choice: (L,), the option of each unit (sub-layer). times: a dict from
    the name of each stage time (such as forward_ns) to (p,), in ns. sizes: the bytes that it needs. step_ns: its simulated step
    time in ns."""

    choice: Choice
    times: Mapping[str, Integers]
    sizes: Sizes
    step_ns: int


class Relaxation:
    """A lower bound for one configuration (number of stages and micro-batches, with a schedule) with fixed cuts, by a linear
    program that is extended step by step. A choice is one option for each of the L units (sub-layers) of the p stages; a path
    is a chain of passes through the schedule, no longer than the step; a row is the memory of a device group at one moment, or
    of a stage's host.

    choices, paths, rows: the choices, paths and rows that the linear program has so far. best: the fastest choice so far that
    fits the memory, or None. bound: the lower bound in ns shown so far."""

    def __init__(self, instance: Instance, configuration_index: int, bound: float) -> None:
        """instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
        configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's
        index in the instance. bound: a lower bound in ns that is known already."""
        self.configuration_index, self.bound = configuration_index, bound
        self.chain = Chain(instance, configuration_index)
        self.configuration = configuration = self.chain.configuration
        group = configuration.device_groups[0]
        self.tied_ns = 0 if configuration.tied is None else configuration.tied.reduce_ns
        self.host_bytes = instance.host_limit_bytes(group)
        self.group_memories = group_memories(self.chain, instance.limit_bytes(group))
        self.fullest = [memory.row(memory.fullest) for memory in self.group_memories]
        self.choices: list[KnownChoice] = []
        self.best: KnownChoice | None = None  # of those that fit
        self.paths: dict[PathKey, Path] = {}
        self.rows: dict[RowKey, Row] = {}

    # Choices

    def sizes(self, choice: Choice) -> Sizes:
        """The bytes that a choice of options needs, for every unit and every message. choice: (L,), the option of each unit."""
        return Sizes.of(self.chain, choice)

    def take(self, choice: Choice) -> bool:
        """Add a choice to the linear program, with its longest path and, for each device group, the row of memory that it
        exceeds most; returns whether some path or row is new. choice: (L,), the option of each unit."""
        sizes, times, row_count, fits = self.sizes(choice), self.chain.times(choice), len(self.rows), True
        for group, (memory, excess) in enumerate(zip(self.group_memories, self.excess(sizes), strict=True)):
            worst = int(excess.argmax())
            if excess[worst] > 0:
                fits = False
                self.rows.setdefault((group, worst), memory.row(worst))
        for stage, most_bytes in self._full_hosts(sizes):
            fits = False
            self.rows.setdefault((-1, stage), host_row(self.chain, stage, most_bytes))
        step_ns, new = self._take_path(times)
        self.choices.append(KnownChoice(choice, times, sizes, round(step_ns)))
        if fits and (self.best is None or self.choices[-1].step_ns < self.best.step_ns):
            self.best = self.choices[-1]
        return new or len(self.rows) > row_count

    def take_mixture(self, shares: Floats) -> bool:
        """Add to the linear program the longest path at the stage times of a mixture of its K known choices; returns whether
        the path is new. shares: (K, p), the share of each choice in each stage."""
        shared = {name: (shares * np.stack([known.times[name] for known in self.choices])).sum(axis=0) for name in NAMES}
        return self._take_path(shared)[1]

    def _take_path(self, times: Times) -> tuple[float, bool]:
        """Add the longest path at given stage times to the paths. times: a dict from the name of each stage time (such as
        forward_ns) to (p,), in ns. Returns the path's length in ns, and whether it is new."""
        path = longest_path(self.configuration, times, self.tied_ns)
        new = path.key not in self.paths
        self.paths.setdefault(path.key, path)
        return path.length_ns(times), new

    def excess(self, sizes: Sizes) -> list[Integers]:
        """For each device group, (R,), the bytes by which a choice exceeds the group's memory at each of its R fullest moments;
        negative if it fits. sizes: the bytes of the choice."""
        return [memory.excess(sizes) for memory in self.group_memories]

    def _full_hosts(self, sizes: Sizes) -> list[tuple[int, int]]:
        """The stages that need more memory of their hosts than there is: pairs of the stage's index and the limit in bytes;
        empty if hosts have no limit. sizes: the bytes of a choice of options."""
        if self.host_bytes is None:
            return []
        stages = np.flatnonzero(np.add.reduceat(sizes.columns[HOST], self.chain.starts) > self.host_bytes)
        return [(stage, self.host_bytes) for stage in stages.tolist()]

    def over(self, choice: Choice) -> NDArray[np.bool_]:
        """For each device group, (groups,), True if a choice of options exceeds the group's memory at some moment, or the host
        memory of one of its stages."""
        sizes = self.sizes(choice)
        over = np.array([bool((excess > 0).any()) for excess in self.excess(sizes)])
        for stage, _ in self._full_hosts(sizes):
            over[stage % len(self.group_memories)] = True
        return over

    # Bounds

    def least(self, weights: Mapping[PathKey, float], prices: Mapping[RowKey, float]) -> Choice:
        """Compute the Lagrangian bound at given weights of paths and prices of memory, and raise `bound` to it if it is larger;
        return the choice that minimises this bound's weighted sum of times and priced memory.

        weights: a dict from each path's key to its weight; weights add up to 1. prices: a dict from the key of each row of
        memory to its price in ns per byte."""
        times = self.weighted(weights)
        constant = sum(weight * self.paths[key].constant_ns for key, weight in weights.items())
        constant -= sum(price * self.rows[key].most_bytes for key, price in prices.items())
        value, choice = self.chain.least(priced(times, [(self.rows[key], price) for key, price in prices.items()]))
        self.bound = max(self.bound, float(np.floor(value + constant - EXACT * (value + abs(constant)) - 1)))
        return choice

    def weighted(self, weights: Mapping[PathKey, float]) -> dict[str, Floats]:
        """For each stage time, how many times it occurs on the paths, weighted by the paths' weights: a dict from the name of
        each stage time to (p,). weights: a dict from each path's key to its weight."""
        return {
            name: np.asarray(sum(weight * self.paths[key].counts[name] for key, weight in weights.items())) for name in NAMES
        }

    def solve(self, scale_ns: float) -> tuple[dict[PathKey, float], dict[RowKey, float], Floats]:
        """Solve the linear program over mixtures of the K known choices. Returns the weight of each path (by key, adding up to
        1), the price in ns per byte of each row of memory (by key), and the share of each choice in each stage, (K, p).

        scale_ns: about the length of a step in ns, by which times are scaled.
        """
        starts, count, stages = self.chain.starts, len(self.choices), self.chain.stages
        paths, rows = list(self.paths.values()), list(self.rows.values())
        times = {name: np.stack([known.times[name] for known in self.choices]) for name in NAMES}
        by_path = np.stack([sum(path.counts[name] * times[name] for name in NAMES) for path in paths]) / scale_ns
        by_row = np.zeros((len(rows), count, stages))
        for number, row in enumerate(rows):
            sums = [np.add.reduceat(known.sizes.by_unit(row), starts) for known in self.choices]
            by_row[number] = np.array(sums) / row.most_bytes
        # Columns: the step, the share of the memory that is exceeded, and shares of choices in stages. The last rows say that
        # stages mix choices alike in the states at the cut between them.
        below, agreed = len(paths) + len(rows), self._agreement()
        matrix = np.zeros((below + stages + len(agreed), 2 + count * stages))
        matrix[: len(paths), 0], matrix[: len(paths), 2:] = 1, -by_path.reshape(len(paths), -1)
        matrix[len(paths) : below, 1], matrix[len(paths) : below, 2:] = -1, by_row.reshape(len(rows), count * stages)
        matrix[below : below + stages, 2:] = np.tile(np.eye(stages), count)
        matrix[below + stages :, 2:] = agreed
        equal = np.concatenate([np.ones(stages), np.zeros(len(agreed))])
        lower = np.concatenate([[path.constant_ns / scale_ns for path in paths], np.full(len(rows), -inf), equal])
        upper = np.concatenate([np.full(len(paths), inf), np.ones(len(rows)), equal])
        values, duals = solve_program(matrix, lower, upper, np.concatenate([[1, OVER], np.zeros(count * stages)]))
        weights = np.maximum(duals[: len(paths)], 0.0) if duals[: len(paths)].max() > 0 else np.ones(len(paths))
        weights = weights / weights.sum()
        prices = np.maximum(-duals[len(paths) : below], 0.0) * scale_ns
        return (
            {path.key: float(weight) for path, weight in zip(paths, weights, strict=True) if weight > 0},
            {key: float(price) / self.rows[key].most_bytes for key, price in zip(self.rows, prices, strict=True) if price > 0},
            values[2:].reshape(count, stages),
        )

    def _agreement(self) -> Floats:
        """The equations that tie stages together in the linear program: at each cut, and for each pair of interface states
        (layouts of activations before and after the cut) but one, the choices with this pair have equal shares in the stage
        before the cut and in the stage after it.

        Returns the left sides, which must be 0: (equations, K * p), over the shares of the K known choices in the p stages."""
        chain, rows = self.chain, list[Floats]()
        for x, first in enumerate(chain.starts[1:].tolist()):
            pairs: dict[tuple[int, int], list[int]] = {}
            for number, known in enumerate(self.choices):
                leave = int(chain.tables[first - 1].leave[known.choice[first - 1]])
                enter = int(chain.tables[first].enter[known.choice[first]])
                pairs.setdefault((leave, enter), []).append(number)
            for numbers in list(pairs.values())[1:]:
                row = np.zeros((len(self.choices), chain.stages))
                row[numbers, x], row[numbers, x + 1] = 1, -1
                rows.append(row.ravel())
        return np.array(rows).reshape(len(rows), len(self.choices) * chain.stages)

    def solution(self, choice: Choice) -> Solution:
        """Translate a choice of options into a solution of the instance. choice: (L,), the option of each unit."""
        assert self.configuration.cuts is not None
        return Solution(self.configuration_index, self.configuration.cuts, self.chain.options(choice))


def priced(times: Mapping[str, Floats], rows: list[tuple[Row, float]]) -> Multipliers:
    """Combine weights of times and prices of memory into the weights of all times and bytes in a Lagrangian sum along the chain
    of units (sub-layers). times: a dict from the name of each stage time (such as forward_ns) to (p,), the weight of each
    stage's time. rows: pairs of a row of memory (a linear expression of the units' bytes) and its price in ns per byte."""
    length = len(rows[0][0].entering) if rows else 0
    units = {name: np.zeros(length) for name in (COLUMNS if rows else ())}
    entering, returning = np.zeros(length), np.zeros(length)
    for row, price in rows:
        for name, factor in row.factors.items():
            units[name] += price * factor
        entering += price * row.entering
        returning += price * row.returning
    return Multipliers(times, units, entering, returning)


def solve_program(matrix: Floats, lower: Floats, upper: Floats, cost: Floats) -> tuple[Floats, Floats]:
    """Solve the linear program: minimise cost x subject to lower <= matrix x <= upper, x >= 0, by HiGHS. matrix: (rows,
    columns). lower, upper: (rows,), infinite for no limit. cost: (columns,). Returns the optimal x, (columns,), and the dual
    value of each row, (rows,)."""
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    rows, columns = matrix.shape
    row, column = np.nonzero(matrix)
    starts = np.searchsorted(row, np.arange(rows + 1))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, np.zeros(columns), np.full(columns, highspy.kHighsInf)
    model.row_lower_ = np.where(np.isfinite(lower), lower, -highspy.kHighsInf)
    model.row_upper_ = np.where(np.isfinite(upper), upper, highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_ = starts.astype(np.int32), column.astype(np.int32)
    model.a_matrix_.value_ = matrix[row, column]
    highs.passModel(model)
    highs.run()
    solution = highs.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)
