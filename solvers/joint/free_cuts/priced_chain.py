"""The units of a configuration with free cuts as one chain: least sums of its numbers at prices, over cuts and options at once.

At prices of each stage's times and memory, the cost of a solution is a sum over its units, boundaries and cuts. Its least value
over all cuts and options is a shortest path along the units by stage and interface state. All stages, and several sets of
prices, are computed together, a unit at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Instance
from trainplan.formulations.joint.tables import FORBIDDEN
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.priced_chain import BACK, BACKWARD, FORWARD, INTO, LAST, NAMES, OPTIMIZER, REDUCE
from trainplan.solvers.joint.stages.option_tables import Floats, Indices, stage_tables

Booleans = NDArray[np.bool_]
COLUMNS = (FORWARD, BACKWARD, LAST, REDUCE, OPTIMIZER)


@dataclass(frozen=True, eq=False)
class FreePrices:
    """K sets of prices of the numbers of the p stages, for a weighted sum over a pipeline; each array is (K, p). times: a dict
    from the name of each stage time (such as forward_ns) to the weights of the stages' times. memory: the price in ns of a byte
    of the stage's memory while its last unit's pass runs. host: the price of a byte on its host."""

    times: Mapping[str, Floats]
    memory: Floats
    host: Floats


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A pipeline: the stage of each of L units (sub-layers), (L,), and the option of each unit, (L,), as an index among the
    options that are not dominated."""

    stages: Indices
    options: Indices

    @property
    def cuts(self) -> tuple[int, ...]:
        """The pipeline's cuts: the first unit of every stage but the first."""
        return tuple((np.flatnonzero(np.diff(self.stages)) + 1).tolist())

    @property
    def key(self) -> bytes:
        """A key for sets of pipelines, made of the stages and options of all units: equal keys mean equal pipelines."""
        return self.stages.tobytes() + self.options.tobytes()


@dataclass(frozen=True, eq=False)
class PrefixSums:
    """The least priced sums of everything before each unit (sub-layer) is entered, two arrays (L units, K sets of prices, p
    stages, E interface states), by the unit's stage and the state (layout of activations) in which it is entered. inner: if it
    is not its stage's first unit; first: if it is."""

    inner: Floats
    first: Floats


@dataclass(frozen=True, eq=False)
class SuffixSums:
    """The least priced sums of everything after each unit (sub-layer), two arrays (L units, K sets of prices, p stages, D
    interface states), by the unit's stage and the state (layout of activations) in which it is left. inner: if it is not its
    stage's last unit; last: if it is."""

    inner: Floats
    last: Floats


class FreeChain:
    """The L units (sub-layers) of one configuration (number of stages and micro-batches, with a schedule) with one stage on
    each of p equal device groups, whose cuts are free, as a chain. A pipeline assigns each unit a stage and an option; at given
    prices of its times and memory, its cost is a sum over units, boundaries and cuts, whose least value is a shortest path. An
    interface state is the layout of the activations in which a unit is entered (E states) or left (D states).

    kinds, boundaries: the kind of each unit and of each boundary between units. in_flight: for each stage, its number of
    micro-batches in flight. links: for each cut, the index of its kind of link. begins: (L, p), whether a unit may be the first
    one of a stage."""

    def __init__(self, instance: Instance, configuration_index: int) -> None:
        configuration = instance.configurations[configuration_index]
        assert configuration.schedule.chunks == 1 and not configuration.schedule.sliced
        self.instance, self.configuration = instance, configuration
        self.units, self.stages = instance.length, configuration.stages
        self.tables = stage_tables(configuration.tables[configuration.device_groups[0].kind])
        self.kinds = np.array([unit.kind for unit in instance.units], np.intp)
        self.boundaries = np.array(instance.boundary_kinds, np.intp)
        self.in_flight = np.array([configuration.in_flight(x) for x in range(self.stages)], np.float64)
        self.links = np.array(configuration.links, np.intp)
        self.begins = np.zeros((self.units, self.stages), bool)  # whether a unit may be a stage's first one
        self.begins[0, 0] = True
        self.begins[1:, 1:] = np.array(instance.cuttable, bool)[:, None]
        if configuration.cuts is not None:
            fixed = np.zeros_like(self.begins)
            fixed[[0, *configuration.cuts], np.arange(self.stages)] = True
            self.begins &= fixed

    # Tables

    @cached_property
    def _columns(self) -> list[Floats]:
        """The costs of the S options of each kind of unit as floats, (12, S). The rows are: five times in ns; bytes of the
        whole step, of each micro-batch in flight, and on the host; the additional forward and backward time as a stage's first
        unit; the additional backward time, and the bytes of work, as its last one."""
        stacked = []
        for kind in self.tables.kinds:
            times = [getattr(kind.table, name)[kind.indices] for name in COLUMNS]
            ends = [getattr(kind.table, name)[kind.indices] for name in ("head_ns", "tail_ns", "turn_ns")]
            stacked.append(np.stack([*times, kind.state, kind.kept + kind.held, kind.host, *ends, kind.work]).astype(float))
        return stacked

    @cached_property
    def _crossings(self) -> tuple[Floats, Floats, Floats, Floats, Booleans]:
        """The costs of each kind of boundary (Q kinds) by interface states, D before and E after it: re-layouts forward and
        backward, (Q, D, E), and messages forward and backward, (Q, links, D, E), in ns as floats, 0 for forbidden pairs of
        states; and which pairs are forbidden, (Q, D, E).
        """
        crossings = self.tables.crossings
        shape = (0, self.tables.states_out, self.tables.states_in)
        forward, backward = (
            np.stack([getattr(crossing, name) for crossing in crossings]) if crossings else np.zeros(shape, np.int64)
            for name in ("forward_ns", "backward_ns")
        )
        messages = [
            np.stack([getattr(crossing, name) for crossing in crossings])
            if crossings
            else np.zeros((0, 1, *shape[1:]), np.int64)
            for name in ("message_forward_ns", "message_backward_ns")
        ]
        apart = (forward >= FORBIDDEN) | (backward >= FORBIDDEN)
        there, back = (np.where(apart, 0, matrix).astype(float) for matrix in (forward, backward))
        into, out = (np.where(apart[:, None], 0, matrix).astype(float) for matrix in messages)
        return there, back, into, out, apart

    def unit_costs(self, prices: FreePrices) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """The costs of the S options of each kind of unit at K sets of prices of times and memory: three lists of arrays (K, p,
        S), by set of prices and stage: the cost of an option, its additional cost if the unit is a stage's first one, and if it
        is a stage's last one."""
        times, memory = prices.times, prices.memory
        weights = np.stack([*(times[name] for name in COLUMNS), memory, memory * self.in_flight, prices.host], axis=-1)
        first = np.stack([times[FORWARD], times[BACKWARD]], axis=-1)
        last = np.stack([times[BACKWARD], memory], axis=-1)
        costs = [weights @ columns[:8] for columns in self._columns]
        return costs, [first @ columns[8:10] for columns in self._columns], [last @ columns[10:] for columns in self._columns]

    def boundary_costs(self, prices: FreePrices) -> tuple[Floats, Floats]:
        """The costs of each kind of boundary (Q kinds) at K sets of prices: (Q, K, p, D, E) inside each stage, and (Q, K, p -
        1, D, E) between each stage and the next; infinite for forbidden pairs of interface states."""
        there, back, into, out, apart = self._crossings
        forward, backward = (prices.times[name][..., None, None] for name in (FORWARD, BACKWARD))
        inside = forward * there[:, None, None] + backward * back[:, None, None]
        across = forward[:, 1:] * there[:, None, None] + backward[:, :-1] * back[:, None, None]
        sent, returned = (matrix[:, self.links].swapaxes(0, 1)[:, :, None] for matrix in (into, out))  # (p - 1, Q, 1, D, E)
        across = across + (
            prices.times[INTO][:, 1:, None, None] * sent.transpose(1, 2, 0, 3, 4)
            + prices.times[BACK][:, :-1, None, None] * returned.transpose(1, 2, 0, 3, 4)
        )
        where = np.broadcast_to(apart[:, None, None], inside.shape)
        inside[where] = np.inf
        across[where[:, :, 1:]] = np.inf
        return inside, across

    # Shortest paths

    def before(self, prices: FreePrices, begins: Booleans | None = None) -> tuple[PrefixSums, Floats]:
        """Forward pass of the shortest-path search along the chain. Returns the least priced sums of everything before each
        unit is entered, and (K,), the least priced sums of whole pipelines.

        prices: K sets of prices. begins: (L, p), whether a unit may be the first one of a stage; None takes the
        configuration's."""
        begins = self.begins if begins is None else begins
        costs, first_costs, last_costs = self.unit_costs(prices)
        inside, across = self.boundary_costs(prices)
        tables, shape = self.tables, prices.memory.shape
        plain = not any(cost.any() for cost in first_costs)
        cells = [
            [tables.by_cell(kind, cost) for kind, cost in enumerate(by_kind)]
            for by_kind in (
                costs,
                [a + b for a, b in zip(costs, last_costs, strict=True)],
                [a + b for a, b in zip(costs, first_costs, strict=True)],
                [a + b + c for a, b, c in zip(costs, first_costs, last_costs, strict=True)],
            )
        ]
        inner = np.full((self.units, *shape, tables.states_in), np.inf)
        first = np.full((self.units, *shape, tables.states_in), np.inf)
        if begins[0, 0]:
            first[0, :, 0] = 0.0
        left = ended = np.zeros(0)
        for l in range(self.units):
            if l:
                boundary = self.boundaries[l - 1]
                inner[l] = (left[..., :, None] + inside[boundary]).min(axis=-2)
                if begins[l].any():
                    into = (ended[:, :-1, :, None] + across[boundary]).min(axis=-2)
                    first[l, :, 1:] = np.where(begins[l, 1:, None], into, np.inf)
            kind = self.kinds[l]
            if plain:
                reached = np.minimum(inner[l], first[l])[..., tables.cell_enter]
                left = tables.by_leave(reached + cells[0][kind])
                ended = tables.by_leave(reached + cells[1][kind])
            else:
                reached, begun = inner[l][..., tables.cell_enter], first[l][..., tables.cell_enter]
                left = tables.by_leave(np.minimum(reached + cells[0][kind], begun + cells[2][kind]))
                ended = tables.by_leave(np.minimum(reached + cells[1][kind], begun + cells[3][kind]))
        return PrefixSums(inner, first), ended[:, -1].min(axis=-1)

    def after(self, prices: FreePrices, begins: Booleans | None = None) -> SuffixSums:
        """Backward pass of the shortest-path search along the chain. Returns the least priced sums of everything after each
        unit. The additional cost of a unit that is its stage's last one is not included.

        prices: K sets of prices. begins: (L, p), whether a unit may be the first one of a stage; None takes the
        configuration's."""
        begins = self.begins if begins is None else begins
        costs, first_costs, last_costs = self.unit_costs(prices)
        inside, across = self.boundary_costs(prices)
        shape, states = prices.memory.shape, self.tables.states_out
        inner = np.full((self.units, *shape, states), np.inf)
        last = np.full((self.units, *shape, states), np.inf)
        last[-1, :, -1] = 0.0
        for l in reversed(range(1, self.units)):
            number, boundary = self.kinds[l], self.boundaries[l - 1]
            kind = self.tables.kinds[number]
            after = costs[number] + np.minimum(inner[l][..., kind.leave], last[l][..., kind.leave] + last_costs[number])
            inner[l - 1] = (inside[boundary] + self._by_enter(number, after)[..., None, :]).min(axis=-1)
            if begins[l].any():
                entered = self._by_enter(number, after + first_costs[number])[:, 1:]
                back = (across[boundary] + entered[..., None, :]).min(axis=-1)
                last[l - 1, :, :-1] = np.where(begins[l, 1:, None], back, np.inf)
        return SuffixSums(inner, last)

    def _by_enter(self, number: int, values: Floats) -> Floats:
        """For each interface state, the least value of the options of one kind of unit that are entered in it. values: (.., S),
        one per option of the kind (S options). Returns (.., E), infinite for a state in which no option is entered. number: the
        kind of unit.
        """
        order, starts, states = self._entered[number]
        least = np.full((*values.shape[:-1], self.tables.states_in), np.inf)
        least[..., states] = np.minimum.reduceat(values[..., order], starts, axis=-1)
        return least

    @cached_property
    def _entered(self) -> list[tuple[Indices, Indices, Indices]]:
        """For each kind of unit, its options sorted by the interface state in which they are entered, the first position of
        each state in that order, and the states."""
        found = []
        for kind in self.tables.kinds:
            order = np.argsort(kind.enter, kind="stable")
            states, starts = np.unique(kind.enter[order], return_index=True)
            found.append((order, starts, states))
        return found

    def least(self, prices: FreePrices, begins: Booleans | None = None, which: int = 0) -> tuple[float, Pipeline | None]:
        """The least sum of weighted times and priced memory over all cuts and options, and a pipeline that has it; infinite and
        None if no options of neighbouring units agree on the interface state between them.

        begins: (L, p), whether a unit may be the first one of a stage; None takes the configuration's. prices: K sets of
        prices. which: the index of the set to use."""
        before, values = self.before(prices, begins)
        if not np.isfinite(values[which]):
            return np.inf, None
        costs, first_costs, last_costs = self.unit_costs(prices)
        inside, across = self.boundary_costs(prices)
        x, stages, options = self.stages - 1, [], []
        after, ends = np.zeros(self.tables.states_out), True
        for l in reversed(range(self.units)):
            kind = self.tables.kinds[self.kinds[l]]
            cost = costs[self.kinds[l]][which, x] + after[kind.leave]
            if ends:
                cost = cost + last_costs[self.kinds[l]][which, x]
            inner = before.inner[l, which, x, kind.enter] + cost
            begun = before.first[l, which, x, kind.enter] + cost + first_costs[self.kinds[l]][which, x]
            begins_here = bool(begun.min() <= inner.min())
            s = int((begun if begins_here else inner).argmin())
            stages.append(x)
            options.append(s)
            if l:
                matrix = (
                    across[self.boundaries[l - 1], which, x - 1] if begins_here else inside[self.boundaries[l - 1], which, x]
                )
                after, ends = matrix[:, kind.enter[s]], begins_here
                x -= begins_here
        return float(values[which]), Pipeline(np.array(stages[::-1], np.intp), np.array(options[::-1], np.intp))

    # Pipelines

    @cached_property
    def _offsets(self) -> Indices:
        """For each kind of unit, the index of its first option in the arrays that hold the options of all kinds of unit, one
        kind after the other."""
        counts = [len(kind.indices) for kind in self.tables.kinds]
        return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)

    @cached_property
    def _all(self) -> dict[str, Integers]:
        """The columns of the options of all kinds of units, by name; in each column the options of all kinds stand one kind
        after the other."""
        kinds = self.tables.kinds
        names = (*COLUMNS, "head_ns", "tail_ns", "turn_ns")
        columns = {name: np.concatenate([getattr(kind.table, name)[kind.indices] for kind in kinds]) for name in names}
        own = ("indices", "enter", "leave", "state", "kept", "held", "work", "host")
        return columns | {name: np.concatenate([getattr(kind, name) for kind in kinds]) for name in own}

    def column(self, name: str, pipeline: Pipeline) -> Integers:
        """One number of each unit's option in a pipeline, (L,). name: the number's name, such as "forward_ns" or "kept"."""
        values: Integers = self._all[name][self._offsets[self.kinds] + pipeline.options]
        return values

    def times(self, pipeline: Pipeline) -> dict[str, Integers]:
        """The times of a pipeline's p stages: a dict from the name of each stage time (such as forward_ns) to (p,), in ns."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(pipeline.stages)) + 1])
        times = {name: np.add.reduceat(self.column(name, pipeline), starts) for name in COLUMNS}
        ends = np.append(starts[1:], self.units) - 1
        times[FORWARD] += self.column("head_ns", pipeline)[starts]
        times[BACKWARD] += self.column("tail_ns", pipeline)[starts] + self.column("turn_ns", pipeline)[ends]
        times[INTO], times[BACK] = np.zeros((2, self.stages), np.int64)
        leave, enter = self.column("leave", pipeline)[:-1], self.column("enter", pipeline)[1:]
        crossings = self.tables.crossings
        for l, (boundary, out, into) in enumerate(zip(self.boundaries.tolist(), leave, enter, strict=True), 1):
            before, after = int(pipeline.stages[l - 1]), int(pipeline.stages[l])
            times[FORWARD][after] += crossings[boundary].forward_ns[out, into]
            times[BACKWARD][before] += crossings[boundary].backward_ns[out, into]
            if before != after:
                link = self.links[before]
                times[INTO][after] = crossings[boundary].message_forward_ns[link, out, into]
                times[BACK][before] = crossings[boundary].message_backward_ns[link, out, into]
        return times

    def memory(self, pipeline: Pipeline) -> Floats:
        """The memory in bytes of a device of each stage of a pipeline while the stage's last unit's pass runs, (p,): a lower
        bound on the stage's peak."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(pipeline.stages)) + 1])
        state, kept, held = (np.add.reduceat(self.column(name, pipeline), starts) for name in ("state", "kept", "held"))
        ends = np.append(starts[1:], self.units) - 1
        total: Floats = state + self.in_flight * (kept + held) + self.column("work", pipeline)[ends]
        return total

    def host(self, pipeline: Pipeline) -> Integers:
        """The bytes that each stage of a pipeline holds on its host, (p,)."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(pipeline.stages)) + 1])
        return np.add.reduceat(self.column("host", pipeline), starts)

    def choice(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Translate a pipeline's options into the instance's numbering: for each unit, the index of its option in the
        instance's table."""
        return tuple(self.column("indices", pipeline).tolist())


def stacked(prices: Sequence[FreePrices]) -> FreePrices:
    """Join several sets of prices of stage times and memory into one object, along the axis of sets. prices: objects of K1, K2,
    .. sets; the result has their sum."""
    return FreePrices(
        {name: np.concatenate([price.times[name] for price in prices]) for name in NAMES},
        np.concatenate([price.memory for price in prices]),
        np.concatenate([price.host for price in prices]),
    )
