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
    """The weights of a solution's times and bytes in a weighted sum over p stages and L units (sub-layers).

    times: a dict from the name of each stage time (such as forward_ns) to (p,), the weight of each stage's time. units: a dict
    from the name of a kind of bytes (such as kept_bytes) to (L,), the weight of each unit's bytes. entering, returning: (L,),
    the weights of the bytes of one message, forward and backward, over the boundary before each unit."""

    times: Mapping[str, Floats]
    units: Mapping[str, Floats]
    entering: Floats
    returning: Floats


class Chain:
    """The L units (sub-layers) of one configuration (number of stages and micro-batches, with a schedule) with fixed cuts, on
    device groups of one kind, as a chain. A choice is one option per unit, (L,), by its index among the options that are not
    dominated. An interface state is the layout of the activations in which a unit is entered or left.

    starts, ends: (p,), the first and last unit of each stage. stage_of: (L,), the stage of each unit. indices: for each unit,
    the indices of its remaining options in the instance's table. tables: for each unit, the table of these options. boundaries:
    between neighbouring units."""

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
        """Translate a choice into the instance's numbering: for each unit, the index of its option in the instance's table,
        which also has dominated options."""
        return tuple(int(self.indices[l][s]) for l, s in enumerate(choice))

    def column(self, name: str, choice: Choice) -> Integers:
        """One number of each unit's option under a choice, (L,). name: the name of the number in the tables of options, such as
        "forward_ns".
        """
        return np.array([getattr(table, name)[s] for table, s in zip(self.tables, choice, strict=True)], np.int64)

    def crossed(self, choice: Choice, matrices: Sequence[Integers | None]) -> Integers:
        """For each unit, the entry of a matrix of the boundary before it at the interface states of a choice, (L,); 0 before
        the first unit. matrices: one for each boundary, (states before, states after), None for zeros."""
        values = np.zeros(self.units, np.int64)
        for l, matrix in enumerate(matrices, 1):
            if matrix is not None:
                values[l] = matrix[self.tables[l - 1].leave[choice[l - 1]], self.tables[l].enter[choice[l]]]
        return values

    @cached_property
    def crossings(self) -> dict[str, list[Integers | None]]:
        """The times that boundaries between units add to stages: a dict from the name of each stage time concerned to one
        matrix per boundary, (states before, states after) in ns by interface states; None for a boundary that adds nothing."""
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
        """The times of the p stages under a choice: a dict from the name of each stage time (such as forward_ns) to (p,), in
        ns."""
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
        """The least weighted sum of times and bytes over all choices, by dynamic programming along the units, and a choice that
        has it, (L,). prices: the weights of all times and bytes."""
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
        """For each unit, its options sorted by the interface state in which they are left, the first position of each state in
        that order, and the states."""
        by_table: dict[int, tuple[Indices, Indices, Indices]] = {}
        for table in self.tables:
            if id(table) not in by_table:
                order = np.argsort(table.leave, kind="stable")
                states, starts = np.unique(table.leave[order], return_index=True)
                by_table[id(table)] = order, starts, states
        return [by_table[id(table)] for table in self.tables]

    def _unit_costs(self, prices: Multipliers) -> list[Floats]:
        """For each unit, (S options,), the weighted cost of each option without boundaries. prices: the weights of times and
        bytes."""
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
        """Groups of units that share one table of options: the indices of the units, and the table."""
        tables = {id(table): table for table in self.tables}
        indices = [id(table) for table in self.tables]
        return [(np.array([l for l, index in enumerate(indices) if index == key], np.intp), tables[key]) for key in tables]

    def _boundary_costs(self, prices: Multipliers) -> list[Floats]:
        """For each boundary, its weighted cost, (states before, states after); infinite for pairs of interface states that are
        forbidden. prices: the weights of times and bytes."""
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
        """Groups of equal boundaries between units, with D interface states before and E after. For each group: the boundaries'
        indices; their costs, (6, D, E): re-layout forward, message forward, re-layout backward and message backward in ns, and
        the message forward and backward in bytes; and which pairs of states are forbidden, (D, E)."""
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
        """An upper bound in ns on every step: all passes one after the other, each unit with its slowest option, each boundary
        with its slowest pair of interface states."""
        units = sum(int(sum(getattr(table, name) for name in TIMES).max()) for table in self.tables)
        matrices = [matrix for crossing in self.crossings.values() for matrix in crossing if matrix is not None]
        return self.configuration.micro_batches * (
            units + sum(int(matrix[matrix < FORBIDDEN].max(initial=0)) for matrix in matrices)
        )
