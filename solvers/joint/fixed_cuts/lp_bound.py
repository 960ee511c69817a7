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
    """A choice in the linear program: the times of stages, (p,) by name, the bytes that it needs (sizes), and its simulated
    step."""

    choice: Choice
    times: Mapping[str, Integers]
    sizes: Sizes
    step_ns: int


class Relaxation:
    """The linear program of one configuration with fixed cuts, the choices, paths and rows of memory that it has so far, and
    the lower bound in ns that it has shown."""

    def __init__(self, instance: Instance, configuration_index: int, bound: float) -> None:
        """bound: a lower bound in ns that is known already."""
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
        """The bytes that a choice needs."""
        return Sizes.of(self.chain, choice)

    def take(self, choice: Choice) -> bool:
        """Add a choice to the linear program, with its longest path and, for each device group, the row of memory that it
        exceeds most; returns whether some path or row is new."""
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
        """Add the longest path of a mixture of known choices, whose shares in the stages are (K, p); returns whether the path
        is new."""
        shared = {name: (shares * np.stack([known.times[name] for known in self.choices])).sum(axis=0) for name in NAMES}
        return self._take_path(shared)[1]

    def _take_path(self, times: Times) -> tuple[float, bool]:
        """The length in ns of the longest path at the stages' times, which is added to the paths, and whether it is new."""
        path = longest_path(self.configuration, times, self.tied_ns)
        new = path.key not in self.paths
        self.paths.setdefault(path.key, path)
        return path.length_ns(times), new

    def excess(self, sizes: Sizes) -> list[Integers]:
        """For each device group, the bytes by which each of its rows exceeds its memory (see `DeviceGroupMemory`)."""
        return [memory.excess(sizes) for memory in self.group_memories]

    def _full_hosts(self, sizes: Sizes) -> list[tuple[int, int]]:
        """The stages that need more memory of their hosts than there is, each with the limit in bytes."""
        if self.host_bytes is None:
            return []
        stages = np.flatnonzero(np.add.reduceat(sizes.columns[HOST], self.chain.starts) > self.host_bytes)
        return [(stage, self.host_bytes) for stage in stages.tolist()]

    def over(self, choice: Choice) -> NDArray[np.bool_]:
        """For each device group, whether a choice exceeds its memory at some moment, or that of its host."""
        sizes = self.sizes(choice)
        over = np.array([bool((excess > 0).any()) for excess in self.excess(sizes)])
        for stage, _ in self._full_hosts(sizes):
            over[stage % len(self.group_memories)] = True
        return over

    # Bounds

    def least(self, weights: Mapping[PathKey, float], prices: Mapping[RowKey, float]) -> Choice:
        """Raise the bound by weights of paths, which add up to 1, and prices of rows in ns a byte; returns the choice of the
        least sum."""
        times = self.weighted(weights)
        constant = sum(weight * self.paths[key].constant_ns for key, weight in weights.items())
        constant -= sum(price * self.rows[key].most_bytes for key, price in prices.items())
        value, choice = self.chain.least(priced(times, [(self.rows[key], price) for key, price in prices.items()]))
        self.bound = max(self.bound, float(np.floor(value + constant - EXACT * (value + abs(constant)) - 1)))
        return choice

    def weighted(self, weights: Mapping[PathKey, float]) -> dict[str, Floats]:
        """The weighted count of each stage's times on paths, (p,) by name. weights: of paths."""
        return {
            name: np.asarray(sum(weight * self.paths[key].counts[name] for key, weight in weights.items())) for name in NAMES
        }

    def solve(self, scale_ns: float) -> tuple[dict[PathKey, float], dict[RowKey, float], Floats]:
        """The weights of the paths and the prices in ns a byte of the rows by the linear program over the known choices, and
        the share of each choice in each stage, (K, p). scale_ns: about a step."""
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
        """Rows over the shares of choices in stages, (.., K p): at each cut, and for each pair of interface states around it,
        the share in the stage before equals the share in the stage after."""
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
        """A choice as a solution of the instance."""
        assert self.configuration.cuts is not None
        return Solution(self.configuration_index, self.configuration.cuts, self.chain.options(choice))


def priced(times: Mapping[str, Floats], rows: list[tuple[Row, float]]) -> Multipliers:
    """The multipliers of a chain's numbers for weighted times, and for rows of memory with their prices in ns a byte."""
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
    """The values and the rows' dual values of: minimise cost x subject to lower <= matrix x <= upper, x >= 0.
    Solved by HiGHS."""
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
