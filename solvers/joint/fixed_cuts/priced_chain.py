"""The units of a configuration with fixed cuts as one chain: weighted sums of its numbers, and the choice of the least sum.

Where the cuts are fixed, a stage's times, and a device group's memory at a moment, are sums over its units and boundaries. So
is any weighted sum of them, and its least value over all choices is a shortest path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Instance
from trainplan.formulations.joint.tables import FORBIDDEN, TIMES, Boundary, OptionTable
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.stages.option_tables import Floats, Indices, undominated_options

# Times of a stage, by the names of `StageTimes`: those of units, and those of boundaries.
FORWARD, BACKWARD, LAST, REDUCE, OPTIMIZER = "forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns"
INTO, BACK = "message_forward_ns", "message_backward_ns"
NAMES = (FORWARD, BACKWARD, LAST, REDUCE, OPTIMIZER, INTO, BACK)
OF_UNITS = (FORWARD, BACKWARD, LAST, REDUCE, OPTIMIZER)

Choice = Indices  # (L,): the option of each unit, by its index in the reduced table


@dataclass(frozen=True, eq=False)
class Multipliers:
    """The weight of each number of a solution in a sum.

    times: for each name of a time, (p,), the weight of each stage's. units: for each name of a column in bytes, (L,), the
    weight of each unit's. entering, returning: (L,), the weights of the bytes of one message in each direction over the
    boundary before each unit.
    """

    times: Mapping[str, Floats]
    units: Mapping[str, Floats]
    entering: Floats
    returning: Floats


class Chain:
    """The chain of one configuration of an instance with its fixed cuts, on device groups of one kind."""

    def __init__(self, instance: Instance, configuration_index: int) -> None:
        configuration = instance.configurations[configuration_index]
        assert configuration.cuts is not None
        self.instance, self.configuration = instance, configuration
        tables = configuration.tables[configuration.device_groups[0].kind]
        self.units, self.stages = instance.length, configuration.stages
        self.starts = np.array([0, *configuration.cuts], np.intp)
        self.ends = np.append(self.starts[1:], self.units) - 1
        self.stage_of = np.repeat(np.arange(self.stages), self.ends - self.starts + 1)
        kinds = [unit.kind for unit in instance.units]
        indices = {kind: undominated_options(tables.units[kind]) for kind in set(kinds)}
        reduced = {kind: tables.units[kind].keep(indices[kind].tolist()) for kind in indices}
        self.indices: list[Indices] = [indices[kind] for kind in kinds]
        self.tables: list[OptionTable] = [reduced[kind] for kind in kinds]
        self.boundaries: list[Boundary] = [tables.boundaries[kind] for kind in instance.boundary_kinds]

    def options(self, choice: Choice) -> tuple[int, ...]:
        """A choice as indices of the formulation's options."""
        return tuple(int(self.indices[l][s]) for l, s in enumerate(choice))

    def column(self, name: str, choice: Choice) -> Integers:
        """(L,): a column of the options of a choice."""
        return np.array([getattr(table, name)[s] for table, s in zip(self.tables, choice, strict=True)], np.int64)

    def crossed(self, choice: Choice, matrices: Sequence[Integers | None]) -> Integers:
        """(L,): for each unit, the entry that a choice has in the matrix of the boundary before it; 0 before the first unit.
        matrices: one for each boundary, None for zeros."""
        values = np.zeros(self.units, np.int64)
        for l, matrix in enumerate(matrices, 1):
            if matrix is not None:
                values[l] = matrix[self.tables[l - 1].leave[choice[l - 1]], self.tables[l].enter[choice[l]]]
        return values

    @cached_property
    def crossings(self) -> dict[str, list[Integers | None]]:
        """For each name of a time, the matrices of all boundaries that it counts, for the stage after the boundary or before it
        (see `times`)."""
        nothing: list[Integers | None] = [None] * (self.units - 1)
        forward, backward, into, back = (list(nothing) for _ in range(4))
        cut = set(self.starts.tolist())
        for l, boundary in enumerate(self.boundaries, 1):
            if l not in cut or boundary.relayout_at_cut:
                forward[l - 1], backward[l - 1] = boundary.relayout_forward_ns, boundary.relayout_backward_ns
            if l in cut:
                link = self.configuration.links[self.stage_of[l] - 1]
                into[l - 1], back[l - 1] = boundary.message_forward_ns[link], boundary.message_backward_ns[link]
        return {FORWARD: forward, BACKWARD: backward, INTO: into, BACK: back}

    def times(self, choice: Choice) -> dict[str, Integers]:
        """The times in ns of each stage under a choice, (p,) by name."""
        times = {name: np.add.reduceat(self.column(name, choice), self.starts) for name in OF_UNITS}
        times[FORWARD] += self.column("head_ns", choice)[self.starts]
        times[BACKWARD] += self.column("tail_ns", choice)[self.starts] + self.column("turn_ns", choice)[self.ends]
        crossed = {name: self.crossed(choice, matrices) for name, matrices in self.crossings.items()}
        times[FORWARD] += np.add.reduceat(crossed[FORWARD], self.starts)
        times[INTO] = np.add.reduceat(crossed[INTO], self.starts)
        # Backward, a cut's re-layout and message belong to the stage before it.
        for name in (BACKWARD, BACK):
            before = np.append(crossed[name][1:], 0)
            times[name] = times.get(name, 0) + np.add.reduceat(before, self.starts)
        return times

    def least(self, prices: Multipliers) -> tuple[float, Choice]:
        """The least weighted sum over all choices, and a choice that has it."""
        costs, crossed = self._unit_costs(prices), self._boundary_costs(prices)
        values, trail = costs[0], list[tuple[Indices, Floats]]()
        for l in range(1, self.units):
            # The cheapest option that leaves in each state, then the best of these for each state that is entered.
            order, starts, states = self._by_leave[l - 1]
            least = np.full(crossed[l - 1].shape[0], np.inf)
            least[states] = np.minimum.reduceat(values[order], starts)
            sums = crossed[l - 1] + least[:, None]
            from_state, enter = sums.argmin(axis=0), self.tables[l].enter
            trail.append((from_state, values))
            values = costs[l] + sums[from_state[enter], enter]
        choice = [int(values.argmin())]
        for l in range(self.units - 1, 0, -1):
            from_state, before = trail[l - 1]
            state = from_state[self.tables[l].enter[choice[-1]]]
            choice.append(int(np.where(self.tables[l - 1].leave == state, before, np.inf).argmin()))
        return float(values.min()), np.array(choice[::-1], np.intp)

    @cached_property
    def _by_leave(self) -> list[tuple[Indices, Indices, Indices]]:
        """For each unit, its options sorted by the interface state in which they leave, the first position of each state, and
        the states."""
        by_table: dict[int, tuple[Indices, Indices, Indices]] = {}
        for table in self.tables:
            if id(table) not in by_table:
                order = np.argsort(table.leave, kind="stable")
                states, starts = np.unique(table.leave[order], return_index=True)
                by_table[id(table)] = order, starts, states
        return [by_table[id(table)] for table in self.tables]

    def _unit_costs(self, prices: Multipliers) -> list[Floats]:
        """For each unit, (S,), the weighted cost of each option."""
        times, names = prices.times, tuple(prices.units)
        weights = np.zeros((self.units, len(OF_UNITS) + 3 + len(names)))
        for index, name in enumerate(OF_UNITS):
            weights[:, index] = times[name][self.stage_of]
        first, last = self.starts, self.ends
        weights[first, len(OF_UNITS)], weights[first, len(OF_UNITS) + 1] = times[FORWARD], times[BACKWARD]
        weights[last, len(OF_UNITS) + 2] = times[BACKWARD]
        for index, name in enumerate(names, len(OF_UNITS) + 3):
            weights[:, index] = prices.units[name]
        costs: list[Floats] = [np.zeros(0)] * self.units
        for units, table in self._alike:
            columns = np.stack([getattr(table, name) for name in (*OF_UNITS, "head_ns", "tail_ns", "turn_ns", *names)])
            for unit, row in zip(units.tolist(), weights[units] @ columns, strict=True):
                costs[unit] = row
        return costs

    @cached_property
    def _alike(self) -> list[tuple[Indices, OptionTable]]:
        """The units of each kind with the table of their options."""
        tables = {id(table): table for table in self.tables}
        indices = [id(table) for table in self.tables]
        return [(np.array([l for l, index in enumerate(indices) if index == key], np.intp), tables[key]) for key in tables]

    def _boundary_costs(self, prices: Multipliers) -> list[Floats]:
        """For each boundary, its weighted cost by the interface states before and after it; infinite where these disagree."""
        before, after = self.stage_of[:-1], self.stage_of[1:]
        by_name = {FORWARD: after, INTO: after, BACKWARD: before, BACK: before}
        weights = [prices.times[name][stages] for name, stages in by_name.items()]
        if len(prices.entering):
            weights += [prices.entering[1:], prices.returning[1:]]
        stacked = np.stack(weights, axis=1)
        costs: list[Floats] = [np.zeros((0, 0))] * (self.units - 1)
        for indices, matrices, forbidden in self._crossings:
            values = np.tensordot(stacked[indices], matrices[: stacked.shape[1]], axes=1)
            values[:, forbidden] = np.inf
            for index, value in zip(indices.tolist(), values, strict=True):
                costs[index] = value
        return costs

    @cached_property
    def _crossings(self) -> list[tuple[Indices, Floats, NDArray[np.bool_]]]:
        """Groups of equal boundaries: their indices; re-layouts and messages in ns in each direction, and messages in bytes,
        (6, C, D), in the order of `_boundary_costs`; and whether states disagree, (C, D)."""
        groups: dict[tuple[int, int], list[int]] = {}
        cut = set(self.starts.tolist())
        for index, boundary in enumerate(self.boundaries):
            link = self.configuration.links[self.stage_of[index]] if index + 1 in cut else -1
            groups.setdefault((id(boundary), link), []).append(index)
        found = []
        for indices in groups.values():
            boundary, first = self.boundaries[indices[0]], indices[0]
            shape = boundary.relayout_forward_ns.shape
            crossed = [self.crossings[name][first] for name in (FORWARD, INTO, BACKWARD, BACK)]
            crossed += [boundary.message_forward_bytes, boundary.message_backward_bytes] if first + 1 in cut else [None, None]
            matrices = np.stack([np.zeros(shape) if one is None else one.astype(np.float64) for one in crossed])
            forbidden = np.maximum(boundary.relayout_forward_ns, boundary.relayout_backward_ns) >= FORBIDDEN
            found.append((np.array(indices, np.intp), matrices, forbidden))
        return found

    def longest_ns(self) -> int:
        """A time that no step exceeds: all passes one after the other, each unit under its slowest option, each boundary with
        its slowest pair of states."""
        units = sum(int(sum(getattr(table, name) for name in TIMES).max()) for table in self.tables)
        matrices = [matrix for crossing in self.crossings.values() for matrix in crossing if matrix is not None]
        return self.configuration.micro_batches * (
            units + sum(int(matrix[matrix < FORBIDDEN].max(initial=0)) for matrix in matrices)
        )
