"""Checks, in 64-bit integers, whether prices of memory leave a pipeline with a step up to a limit possible (points 1 and 2 of
`certificates.check`).

u: both passes of a micro-batch in a span of units as a stage; g: the work after its last micro-batch; m: micro-batches. Spans
that begin the model are bounded separately: whole pipelines of one stage, and first stages with their g.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.certificates.file import FAR, SCALE, ConfigurationEvidence
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, OptionTable
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import by_order

ROUNDS = 3


class TooLarge(ValueError):
    """The sums of an instance's times do not fit into 64 bits, so that its bound cannot be checked."""


class PriceCheck:
    """Checks, for one configuration of several stages (schedule, number of micro-batches and device groups), that no plan has
    a step within a claimed limit, by lower bounds that count bytes of memory at a price.

    A unit is a sub-layer or layer that has one option; a span is a range of consecutive units that may be a stage, and its
    length a number of units. A price is parts of a nanosecond per byte. An interface state, numbered from 0, says how ranks
    share the hidden states between two units. FAR marks what is impossible. L is the number of units, S the number of
    options of a kind of unit; the axis `lengths` has an entry for each length.

    slow: by kind of unit, whether an option alone takes longer than the limit. u: (depths, L, lengths), the least time in
    ns of both passes of a micro-batch in a span of units, by number of micro-batches in flight, first unit and length less
    one. total: for each weight p, (lengths,), the least p u + g of spans as the first stage, g being the work after the
    last micro-batch. moves, into, out: costs of boundaries by kind.
    """

    def __init__(self, instance: Instance, configuration: Configuration, claim: ConfigurationEvidence) -> None:
        self.instance, self.configuration, self.claim = instance, configuration, claim
        self.kinds = configuration.tables[configuration.device_groups[0].kind]
        self.units, self.stages, self.m = instance.length, configuration.stages, configuration.micro_batches
        self.kind_of = np.array([unit.kind for unit in instance.units], np.intp)
        self.boundary_of = np.array(instance.boundary_kinds, np.intp)
        self.memory = min(instance.limit_bytes(group) for group in configuration.device_groups)
        self.states = 1 + max(int(max(table.enter.max(), table.leave.max())) for table in self.kinds.units)
        least = [int((table.forward_ns + table.backward_ns).min()) for table in self.kinds.units]
        self.sums = np.concatenate([[0], np.cumsum([least[kind] for kind in self.kind_of])])
        self.longest = self._longest(claim.impossible_ns)
        self.slow = [self._slow(table, own) for table, own in zip(self.kinds.units, least, strict=True)]
        self._crossings()
        prices = np.array(claim.prices, np.int64)
        prices = prices[prices <= self._largest_price()]  # fewer prices show less, and nothing wrong
        if not len(prices):
            prices = np.zeros(1, np.int64)
        self.u = np.stack([self._spans(depth, prices) for depth in claim.depths])
        rise = self.m - self.stages + 1 if self.stages - 1 < self.m else 1
        self.weights = sorted({1, by_order(configuration.schedule.name, gpipe=self.m, one_f_one_b=rise)})
        depth, out = configuration.in_flight(0), [[int(time) for time in times] for times in self.out]
        self.total = [
            np.array(least_from_first_ns(instance, configuration, claim.prices, p, depth, self.longest, out), np.int64)
            for p in self.weights
        ]

    def _slow(self, table: OptionTable, least: int) -> NDArray[np.bool_]:
        """(S,): whether each of the S options of a kind of unit makes every step longer than the limit: all micro-batches pass
        the unit one after the other, and a single micro-batch passes all other units, too. table: the options. least: the least
        time in ns of both passes of a micro-batch in a unit of the kind.
        """
        others = int(self.sums[-1]) - least if self.m == 1 else 0
        slow: NDArray[np.bool_] = self.m * (table.forward_ns + table.backward_ns) > self.claim.impossible_ns - others
        return slow

    def _largest_price(self) -> int:
        """The largest price of a byte for which sums fit into 64 bits. Raises TooLarge where times alone do not fit."""
        times, sizes = [0], [self.memory]
        for table, slow in zip(self.kinds.units, self.slow, strict=True):
            time = table.forward_ns + table.backward_ns + table.head_ns + table.tail_ns + table.turn_ns
            times.append(int(time[~slow].max(initial=0)))
            sizes.append(int((self._memory(table, self.claim.depths[-1]) + table.work_bytes)[~slow].max(initial=0)))
        crossing = max((int(matrix[matrix < FAR].max(initial=0)) for matrix in (*self.moves, *self.into, *self.out)), default=0)
        host_limit = int(FAR) // (self.longest + 2) - SCALE * (max(times) + crossing)
        if host_limit <= 0:
            raise TooLarge("times of this instance are too large to be checked in 64 bits")
        return host_limit // max(sizes)

    def _longest(self, limit: int) -> int:
        """The largest number of consecutive units through which all micro-batches can pass one after the other within a limit.
        limit: a time in ns.
        """
        ends = np.searchsorted(self.sums, self.sums[:-1] + limit // self.m, side="right") - 1
        return int(max(1, min(self.units - self.stages + 1, (ends - np.arange(self.units)).max())))

    def _memory(self, table: OptionTable, depth: int) -> Integers:
        """(S,): the bytes that each of the S options of a unit holds during the whole step and for `depth` micro-batches in
        flight. table: the options.
        """
        return table.state_bytes + depth * (table.kept_bytes + table.held_bytes)

    def _crossings(self) -> None:
        """Set the attributes `moves`, `into` and `out`, one array for each kind of boundary, in ns. moves: (states, states),
        re-layouts inside a stage, forward and backward. into: (states,), the least re-layout and message forward into a stage,
        by the state after the boundary. out: (states,), the least re-layout and message back, by the state before the boundary.
        FAR where neighbouring units may not have the two states."""
        self.moves, self.into, self.out = [], [], []
        most = self.claim.impossible_ns // self.m  # all micro-batches cross, one after the other
        links = sorted(set(self.configuration.links))
        for boundary in self.kinds.boundaries:
            rows, columns = (min(self.states, size) for size in boundary.relayout_forward_ns.shape)
            ahead, back = (matrix[:rows, :columns] for matrix in (boundary.relayout_forward_ns, boundary.relayout_backward_ns))
            apart = (ahead >= FORBIDDEN) | (back >= FORBIDDEN)
            sent, returned = (
                matrix[links][:, :rows, :columns].min(axis=0)
                for matrix in (boundary.message_forward_ns, boundary.message_backward_ns)
            )
            whole = np.full((3, self.states, self.states), FAR)
            for index, times in enumerate((ahead + back, ahead + sent, back + returned)):
                whole[index, :rows, :columns] = np.where(apart | (times > most), FAR, times)
            self.moves.append(whole[0])
            self.into.append(whole[1].min(axis=0))
            self.out.append(whole[2].min(axis=1))

    def _spans(self, depth: int, prices: Integers) -> Integers:
        """(L, lengths): a lower bound, in whole ns, on the time of both passes of a micro-batch in each span of units that fits
        into memory, by first unit and length less one: the largest bound over all prices. depth: the number of micro-batches in
        flight. prices: the prices of a byte."""
        best, ended = np.full((self.units, self.longest), FAR), self._ended()
        reached = np.zeros((0, len(prices), self.states), np.int64)  # by first unit: up to a unit, by how it is left
        for length in range(self.longest):
            first = np.arange(self.units - length)
            unit = first + length
            entered = self._entered(reached[: len(first)], unit, len(prices)) if length else self._begun(len(prices))
            reached = np.full((len(first), len(prices), self.states), FAR)
            ending = np.full((len(first), len(prices)), FAR)
            for kind, table in enumerate(self.kinds.units):
                here = np.flatnonzero(self.kind_of[unit] == kind)
                if not len(here):
                    continue
                time = table.forward_ns + table.backward_ns
                time = time + (table.head_ns + table.tail_ns if not length else 0)
                slow = self.slow[kind]
                cost = SCALE * np.where(slow, 0, time) + prices[:, None] * np.where(slow, 0, self._memory(table, depth))
                through = np.minimum(entered[here][:, :, table.enter] + np.where(slow, FAR, cost), FAR)
                last = SCALE * np.where(slow, 0, table.turn_ns) + prices[:, None] * np.where(slow, 0, table.work_bytes)
                after = ended[unit[here]][:, None, table.leave]
                ending[here] = np.minimum(through + last + after, FAR).min(axis=2)
                for state in np.unique(table.leave):
                    reached[here, :, state] = through[:, :, table.leave == state].min(axis=2)
            bounds = -(-(ending - prices * np.int64(self.memory)) // SCALE)
            best[first, length] = np.where(ending >= FAR, FAR, np.maximum(bounds, 0)).max(axis=1)
        return best

    def _begun(self, prices: int) -> Integers:
        """(L, prices, states): the cost of the message to a stage that begins with each unit, by the interface state in which
        the unit is entered. prices: the number of prices, over which the cost is repeated."""
        entered = np.zeros((self.units, prices, self.states), np.int64)
        for boundary, times in enumerate(self.into):
            scaled = np.where(times >= FAR, FAR, SCALE * np.where(times >= FAR, 0, times))
            entered[1 + np.flatnonzero(self.boundary_of == boundary)] = scaled
        return entered

    def _entered(self, reached: Integers, unit: Integers, prices: int) -> Integers:
        """(N, prices, states): the least cost of spans up to and into each of N units, by the interface state in which the unit
        is entered. reached: (N, prices, states), the least cost up to the unit before, by the state in which that unit is left.
        unit: (N,), the indices of the units. prices: the number of prices."""
        entered = np.full((len(unit), prices, self.states), FAR)
        for boundary, moves in enumerate(self.moves):
            here = np.flatnonzero(self.boundary_of[unit - 1] == boundary)
            if len(here):
                scaled = np.where(moves >= FAR, FAR, SCALE * np.where(moves >= FAR, 0, moves))
                entered[here] = np.minimum(reached[here][:, :, :, None] + scaled, FAR).min(axis=2)
        return entered

    def _ended(self) -> Integers:
        """(L, states): the cost of the message back to a stage that ends with each unit, by the interface state in which the
        unit is left."""
        after = np.zeros((self.units, self.states), np.int64)
        for boundary, times in enumerate(self.out):
            scaled = np.where(times >= FAR, FAR, SCALE * np.where(times >= FAR, 0, times))
            after[:-1][self.boundary_of == boundary] = scaled
        return after

    # Partitions

    def possible(self, limit: int) -> bool:
        """Whether some partition of the units into stages may have a step of up to `limit` ns. Spans that cannot be a stage
        are removed repeatedly, each time with the sums of the stages before and after them; False once no partition is
        left.
        """
        before = [np.full(self.units + 1, FAR) for _ in range(self.stages + 1)]
        before[0][0] = 0
        for x in range(self.stages):
            self._extend(before, x, np.ones((self.units, self.longest), bool), limit)
        for _ in range(ROUNDS):
            masks = self._masks(before, limit)
            if masks is None:
                return False
            sharper = [np.full(self.units + 1, FAR) for _ in range(self.stages + 1)]
            sharper[0][0] = 0
            for x in range(self.stages):
                self._extend(sharper, x, masks[x], limit)
            if sharper[-1][self.units] >= FAR:
                return False
            before = sharper
        return True

    def _row(self, x: int) -> int:
        """The index in `u` (times of spans by number of micro-batches in flight) that applies to stage `x`: that of the largest
        listed number which the stage is certain to have in flight."""
        depth = self.configuration.in_flight(x)
        return max(row for row, listed in enumerate(self.claim.depths) if listed <= depth)

    def _arcs(self, x: int) -> Integers:
        """(L, lengths): the time in ns of both passes of a micro-batch in every span of units as stage `x`, by first unit and
        length less one; FAR where the span cannot be this stage."""
        u = self.u[self._row(x)].copy()
        first, length = np.indices(u.shape)
        end = first + length + 1
        cuttable = np.array([True, *self.instance.cuttable, True])
        good = (end <= self.units) & cuttable[first] & cuttable[np.minimum(end, self.units)]
        good &= (end == self.units) == (x == self.stages - 1)
        good &= (first == 0) == (x == 0)
        if self.configuration.cuts is not None:
            edges = (0, *self.configuration.cuts, self.units)
            good &= (first == edges[x]) & (end == edges[x + 1])
        return np.where(good, u, FAR)

    def _extend(self, before: list[Integers], x: int, mask: Integers, limit: int) -> None:
        """Update, in place, `before[x + 1]`: the least sums of the times of both passes over stages 0 to `x`, from the sums
        over the stages before x and the spans that may be stage x.

        before: for each number of stages, (L + 1,), the least sums by the first unit after these stages; written to. x: the
        stage's index. mask: (L, lengths), the spans that may be stage x. limit: unused.
        """
        u = np.where(mask, self._arcs(x), FAR)
        if x == 0:
            u[0] = np.where(u[0] >= FAR, FAR, np.maximum(u[0], self.total[0]))
        reached = np.where((u >= FAR) | (before[x][: self.units, None] >= FAR), FAR, u + before[x][: self.units, None])
        first, length = np.indices(u.shape)
        np.minimum.at(before[x + 1], np.minimum(first + length + 1, self.units).ravel(), reached.ravel())

    def _masks(self, before: Sequence[Integers], limit: int) -> list[Integers] | None:
        """For each stage, (L, lengths): whether a span of units may be that stage in a step up to a limit in ns; None if no
        partition into stages is possible. before: for each stage, (L + 1,), the least sums of the times of the stages before
        it, by the stage's first unit."""
        after = np.full(self.units + 1, FAR)
        after[self.units] = 0
        masks = []
        for x in reversed(range(self.stages)):
            u, w, m = self._arcs(x), self.stages - 1 - x, self.m
            first, length = np.indices(u.shape)
            s = after[np.minimum(first + length + 1, self.units)]
            there = (u < FAR) & (s < FAR) & (before[x][first] < FAR)
            u, s = np.where(there, u, 0), np.where(there, s, 0)
            if by_order(self.configuration.schedule.name, gpipe=True, one_f_one_b=False):
                need = 2 * (m * u + s)
            elif w < m:
                need = 2 * (m - w) * u + np.maximum(np.maximum(4 * s, 2 * s + w * u), 2 * w * u)
            else:
                need = np.maximum(2 * m * u, 2 * s + (m + 1) * u)
            need = need + 2 * np.where(there, before[x][first], 0)
            if x == 0:  # and its g: the row rises by p with u at least, as the least p u + g less p u falls
                u_0 = self.u[self._row(0), 0]
                rises = [total - p * u_0 for p, total in zip(self.weights, self.total, strict=True)]
                need[0] += 2 * np.where(there[0], np.maximum(np.max(rises, axis=0), 0), 0)
            mask = there & (need <= 2 * limit)
            masks.append(mask)
            here = np.full(self.units + 1, FAR)
            here[: self.units] = np.where(mask, u + s, FAR).min(axis=1)
            after = here
            if (after >= FAR).all():
                return None
        return masks[::-1] if after[0] < FAR else None


def least_single_ns(instance: Instance, configuration: Configuration, prices: Sequence[int]) -> int:
    """A lower bound in ns on the step of every plan of a configuration (schedule, number of micro-batches and device groups)
    with one stage: the least m u + g by the best of several prices of memory, where m is the number of micro-batches, u the
    time of both passes of one, and g the work after the last one. prices: prices of a byte, in parts of a nanosecond (SCALE
    of them make one). instance: the configurations to choose from, with costs and memory limits.
    """
    depth, none = configuration.in_flight(0), [[0]] * len(configuration.tables[configuration.device_groups[0].kind].boundaries)
    return least_from_first_ns(instance, configuration, prices, configuration.micro_batches, depth, instance.length, none)[-1]


def least_from_first_ns(
    instance: Instance,
    configuration: Configuration,
    prices: Sequence[int],
    p: int,
    depth: int,
    longest: int,
    out: Sequence[Sequence[int]],
) -> list[int]:
    """For each span of units (sub-layers or layers) that begins the model, by its number of units less one, a lower bound in
    ns of p u + g by the best of several prices of memory; u is the time of both passes of a micro-batch, and g the work
    after the last one. Computed unit by unit, by interface state (how ranks share hidden states), in Python's unbounded
    integers. prices: prices of a byte, in parts of a nanosecond. p: the weight of u. depth: the number of micro-batches in
    flight. longest: the largest number of units of a span. out: by kind of boundary and interface state, the least time of
    re-layout and message that a span that ends there receives backward; states beyond the list have its last entry.
    instance: the configurations to choose from, with costs and memory limits. configuration: one schedule, number of
    micro-batches and division into device groups, with the costs of all options.
    """
    kinds, tied = configuration.tables[configuration.device_groups[0].kind], configuration.tied
    shared = 0 if tied is None else tied.reduce_ns
    limit = min(instance.limit_bytes(group) for group in configuration.device_groups)
    best = [0] * longest
    for price in prices:
        left: dict[int, int] = {}
        for l in range(longest):
            tables = [(kinds.units[instance.units[l].kind], shared)]
            if l == instance.length - 1 and tied is not None and tied.once is not None:
                tables.append((tied.once, 0))
            final = l == instance.length - 1
            entered = _entered_single(kinds.boundaries[instance.boundary_kinds[l - 1]], left, p) if l else None
            after, left, ends = [0] if final else out[instance.boundary_kinds[l]], {}, list[int]()
            for table, more in tables:
                time = p * (table.forward_ns + table.backward_ns) + table.last_ns + table.reduce_ns + table.optimizer_ns
                time = time + (p * (table.head_ns + table.tail_ns) if not l else 0)
                memory = table.state_bytes + depth * (table.kept_bytes + table.held_bytes)
                for s in range(len(table.options)):
                    before = 0 if entered is None else entered.get(int(table.enter[s]))
                    if before is None:
                        continue
                    cost, state = before + SCALE * int(time[s]) + p * price * int(memory[s]), int(table.leave[s])
                    left[state] = min(cost, left.get(state, cost))
                    work = max(int(table.work_forward_bytes[s]), int(table.work_backward_bytes[s]))
                    crossing = after[min(state, len(after) - 1)]
                    if crossing < FAR:
                        ending = SCALE * (p * (int(table.turn_ns[s]) + int(crossing)) + more)
                        ends.append(cost + ending + p * price * work)
            least = min(ends, default=None)
            best[l] = int(FAR) if least is None else max(best[l], -(-(least - p * price * limit) // SCALE))
    return best


def _entered_single(boundary: Boundary, left: dict[int, int], m: int) -> dict[int, int]:
    """The least cost up to and into a unit (sub-layer or layer), by the interface state (how ranks share hidden states) in
    which it is entered, in parts of a nanosecond (SCALE of them make one). left: the least cost up to the unit before, by the
    state in which that unit is left. m: the number of times that the boundary is crossed, once for each micro-batch."""
    entered: dict[int, int] = {}
    ahead, back = boundary.relayout_forward_ns, boundary.relayout_backward_ns
    for state, cost in left.items():
        for into in range(ahead.shape[1]):
            there, again = int(ahead[state, into]), int(back[state, into])
            if there < FORBIDDEN and again < FORBIDDEN:
                value = cost + SCALE * m * (there + again)
                entered[into] = min(value, entered.get(into, value))
    return entered
