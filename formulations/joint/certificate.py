"""What can be checked of a bound without trusting the solver that has it: from prices alone, in whole numbers.

The evidence has, for every configuration, a step V that it claims to be impossible, and the prices of memory by which this can
be seen. The check needs tables and evidence, nothing else, and shares no code with any solver:

1. For every span of units, each number n of micro-batches in flight that the evidence lists, and each price w, the least u of a
   stage (both passes of a micro-batch, with the cheapest messages) is at least

       min over choices of  u + w ( sum state + n sum (kept + held) + work of the last unit - E )

   a shortest path along the units by interface states. Likewise the least u + g, g what comes once. Numbers in flight between
   two of the list have at least the bound of the smaller one. Times are scaled by `SCALE`, so that prices are whole numbers.
2. With S and H the least sums of u of the stages after and before a span, a step up to V needs, of every stage x of P with
   w = P - 1 - x and m micro-batches,

       1F1B, w < m      H + (m - w) u + max( 2 S, S + w u / 2, w u ) <= V        the paths of micro-batches through x
       1F1B, w >= m     H + max( m u, S + (m + 1) u / 2 ) <= V
       GPipe            H + m u + S <= V

   where the first stage's u counts with its g, in H and in its own row, by the least p u + g for p = 1 and p = m - w (or m of
   GPipe), by which the row rises with u. Stages that break it go; where then no partition is left, V is impossible.
3. Of one stage, the step is m u + g, and bounded likewise. Of schedules with halves or chunks the bound is m times an even
   share of the least u, and the least that the first unit adds.

A bound by such evidence is weaker than the solver's own, which solves stages exactly; both are worth telling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.evaluation import Evaluation
from trainplan.formulations.joint.problem import Configuration, Instance, uncounted
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, OptionTable

SCALE = 2**16  # parts of a nanosecond in which prices times bytes are counted
FAR = np.int64(2**60)  # more than anything that is compared; four of them can be added
ROUNDS = 3


@dataclass(frozen=True)
class ConfigurationEvidence:
    """impossible_ns: no plan of the configuration has a step up to it, -1 where nothing is claimed beyond the closed form.
    prices: of a byte, in SCALEths of a nanosecond; depths: numbers of micro-batches in flight, ascending, from the least."""

    impossible_ns: int
    prices: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What a bound rests on, of all configurations in their order. instance: the digest of the instance."""

    instance: str
    configurations: tuple[ConfigurationEvidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its file format."""
        rows = [
            {"impossible_ns": each.impossible_ns, "prices": list(each.prices), "depths": list(each.depths)}
            for each in self.configurations
        ]
        return {"format": "joint-evidence", "version": 1, "scale": SCALE, "instance": self.instance, "configurations": rows}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Evidence:
        """The evidence of a file. Raises ValueError where it is none."""
        if record.get("format") != "joint-evidence" or record.get("version") != 1 or record.get("scale") != SCALE:
            raise ValueError("no evidence of the joint problem in version 1")
        rows = [
            ConfigurationEvidence(int(row["impossible_ns"]), tuple(map(int, row["prices"])), tuple(map(int, row["depths"])))
            for row in record["configurations"]
        ]
        return cls(str(record["instance"]), tuple(rows))


def checked_bound_ns(instance: Instance, evidence: Evidence) -> int:
    """The bound on the simulated step of any plan of the instance that the evidence proves, in ns.

    Raises ValueError where the evidence is of another instance, or claims what it does not prove.
    """
    if instance.step != "simulated":
        raise ValueError(f"the step is {instance.step!r}; evidence is of simulated ones")
    if evidence.instance != instance.digest:
        raise ValueError("the evidence is of another instance")
    if len(evidence.configurations) != len(instance.configurations):
        raise ValueError("the evidence does not have one entry for each configuration")
    if why := uncounted(instance):
        raise ValueError(f"the instance has {why}, which evidence does not count")
    bounds = []
    for place, (configuration, claim) in enumerate(zip(instance.configurations, evidence.configurations, strict=True)):
        bound = closed_form_ns(instance, configuration)
        if claim.impossible_ns >= bound:
            if possible(instance, configuration, claim):
                raise ValueError(f"configurations[{place}] may have a step of {claim.impossible_ns} ns by this evidence")
            bound = claim.impossible_ns + 1
        bounds.append(bound)
    return min(bounds)


# The closed form


def _whole(table: OptionTable, sliced: bool) -> Integers:
    """u of each option, where it is less for halves with these."""
    if not sliced or table.halved is None:
        return table.forward_ns + table.backward_ns
    halves = table.halved.forward_ns.sum(axis=0)
    u: Integers = np.minimum(table.forward_ns, halves) + np.minimum(table.backward_ns, table.halved.backward_ns)
    return u


def closed_form_ns(instance: Instance, configuration: Configuration) -> int:
    """No plan of the configuration has a shorter step.

    Proof: some site runs m passes of an even share of the least u at least, or of the largest unit; stage 0 ends last, and then
    adds what its first unit adds at least.
    """
    kinds = [configuration.tables[kind].units for kind in {site.kind for site in configuration.sites}]
    sliced = configuration.schedule.sliced > 0
    least = [min(int(_whole(units[unit.kind], sliced).min()) for units in kinds) for unit in instance.units]
    firsts = [units[instance.units[0].kind] for units in kinds]
    more = min(int((first.last_ns + first.reduce_ns + first.optimizer_ns).min()) for first in firsts)
    if instance.step != "simulated":
        more = 0
    if configuration.tied is not None and (once := configuration.tied.once) is not None:
        least[-1] = min(least[-1], int(_whole(once, sliced).min()))
        if instance.length == 1:
            more = 0
    sites = len(configuration.sites)
    return configuration.micro_batches * max(-(-sum(least) // sites), max(least)) + more


# Spans


def possible(instance: Instance, configuration: Configuration, claim: ConfigurationEvidence) -> bool:
    """Whether this evidence leaves a plan of the configuration with a step up to the one that it claims to be impossible."""
    schedule = configuration.schedule
    if schedule.sliced or schedule.chunks > 1 or not claim.prices or not claim.depths or min(claim.prices) < 0:
        return True
    if len({site.kind for site in configuration.sites}) > 1:
        return True
    in_flight = [configuration.in_flight(x) for x in range(configuration.stages)]
    depths = claim.depths
    if not 1 <= depths[0] <= min(in_flight) or depths[-1] > max(in_flight) or list(depths) != sorted(depths):
        return True
    if configuration.stages == 1:
        return least_single_ns(instance, configuration, claim.prices) <= claim.impossible_ns
    return PriceCheck(instance, configuration, claim).possible(claim.impossible_ns)


def least_single_ns(instance: Instance, configuration: Configuration, prices: Sequence[int]) -> int:
    """No plan of a configuration of one stage has a shorter step: the least m u + g by the best of these prices, whatever the
    last unit's options allow of a table that both ends share."""
    depth, none = configuration.in_flight(0), [[0]] * len(configuration.tables[configuration.sites[0].kind].boundaries)
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
    """The least p u + g of the spans that begin the model, by length less one, by the best of these prices, along the units by
    interface states, in Python's integers. out: by kind of boundary, what a span that ends there receives backward at least, by
    how it is left (the last state's, where there are fewer)."""
    kinds, tied = configuration.tables[configuration.sites[0].kind], configuration.tied
    shared = 0 if tied is None else tied.reduce_ns
    limit = min(instance.limit_bytes(site) for site in configuration.sites)
    best = [0] * longest
    for price in prices:
        left: dict[int, int] = {}
        for l in range(longest):
            tables = [(kinds.units[instance.units[l].kind], shared)]
            if l == instance.length - 1 and tied is not None and tied.once is not None:
                tables.append((tied.once, 0))
            final = l == instance.length - 1
            entered = _entered_single(kinds.boundaries[instance.boundary_kinds[l - 1]], left, p) if l else None
            behind, left, ends = [0] if final else out[instance.boundary_kinds[l]], {}, list[int]()
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
                    crossing = behind[min(state, len(behind) - 1)]
                    if crossing < FAR:
                        ending = SCALE * (p * (int(table.turn_ns[s]) + int(crossing)) + more)
                        ends.append(cost + ending + p * price * work)
            least = min(ends, default=None)
            best[l] = int(FAR) if least is None else max(best[l], -(-(least - p * price * limit) // SCALE))
    return best


def _entered_single(boundary: Boundary, left: dict[int, int], m: int) -> dict[int, int]:
    """The least up to and into a unit, by how it is entered, from the least by how the unit before is left."""
    entered: dict[int, int] = {}
    ahead, back = boundary.relayout_forward_ns, boundary.relayout_backward_ns
    for state, cost in left.items():
        for into in range(ahead.shape[1]):
            there, again = int(ahead[state, into]), int(back[state, into])
            if there < FORBIDDEN and again < FORBIDDEN:
                value = cost + SCALE * m * (there + again)
                entered[into] = min(value, entered.get(into, value))
    return entered


class PriceCheck:
    """One configuration of several stages, for steps up to the claim's.

    u: (depths, L, lengths), the least u of spans by first unit and length less one, FAR where nothing
    fits or there is no such span; total: by weight p, the least p u + g of spans as the first stage, (lengths,)."""

    def __init__(self, instance: Instance, configuration: Configuration, claim: ConfigurationEvidence) -> None:
        self.instance, self.configuration, self.claim = instance, configuration, claim
        self.kinds = configuration.tables[configuration.sites[0].kind]
        self.units, self.stages, self.m = instance.length, configuration.stages, configuration.micro_batches
        self.kind_of = np.array([unit.kind for unit in instance.units], np.intp)
        self.boundary_of = np.array(instance.boundary_kinds, np.intp)
        self.memory = min(instance.limit_bytes(site) for site in configuration.sites)
        self.states = 1 + max(int(max(table.enter.max(), table.leave.max())) for table in self.kinds.units)
        least = [int((table.forward_ns + table.backward_ns).min()) for table in self.kinds.units]
        self.sums = np.concatenate([[0], np.cumsum([least[kind] for kind in self.kind_of])])
        self.longest = self._longest(claim.impossible_ns)
        self._crossings()
        prices = np.array(claim.prices, np.int64)
        prices = prices[prices <= self._largest_price()]  # fewer prices show less, and nothing wrong
        if not len(prices):
            prices = np.zeros(1, np.int64)
        self.u = np.stack([self._spans(depth, prices) for depth in claim.depths])
        rise = self.m - self.stages + 1 if self.stages - 1 < self.m else 1
        self.weights = sorted({1, self.m if configuration.schedule.name == "gpipe" else rise})
        depth, out = configuration.in_flight(0), [[int(time) for time in times] for times in self.out]
        self.total = [
            np.array(least_from_first_ns(instance, configuration, claim.prices, p, depth, self.longest, out), np.int64)
            for p in self.weights
        ]

    def _largest_price(self) -> int:
        """The largest price with which sums fit into 64 bits. Raises ValueError where not even times do."""
        times, sizes = [0], [self.memory]
        for table in self.kinds.units:
            columns = table.forward_ns, table.backward_ns, table.last_ns, table.reduce_ns, table.optimizer_ns
            ends = table.head_ns, table.tail_ns, table.turn_ns
            times.append(sum(int(column.max()) for column in (*columns, *ends)))
            sizes.append(int((self._memory(table, self.claim.depths[-1]) + table.work_bytes).max()))
        crossing = max((int(matrix[matrix < FAR].max(initial=0)) for matrix in (*self.moves, *self.into, *self.out)), default=0)
        room = int(FAR) // (self.longest + 2) - SCALE * (max(times) + crossing)
        if room <= 0:
            raise ValueError("times of this instance are too large to be checked in 64 bits")
        return room // max(sizes)

    def _longest(self, limit: int) -> int:
        """No span of more units has m u up to the limit."""
        ends = np.searchsorted(self.sums, self.sums[:-1] + limit // self.m, side="right") - 1
        return int(max(1, min(self.units - self.stages + 1, (ends - np.arange(self.units)).max())))

    def _memory(self, table: OptionTable, depth: int) -> Integers:
        return table.state_bytes + depth * (table.kept_bytes + table.held_bytes)

    def _crossings(self) -> None:
        """By kind of boundary, FAR where states do not agree: re-layout inside a stage (states, states); the cheapest that a
        stage receives forward, by how it is entered, and backward, by how it is left, over any link."""
        self.moves, self.into, self.out = [], [], []
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
            for place, times in enumerate((ahead + back, ahead + sent, back + returned)):
                whole[place, :rows, :columns] = np.where(apart, FAR, times)
            self.moves.append(whole[0])
            self.into.append(whole[1].min(axis=0))
            self.out.append(whole[2].min(axis=1))

    def _spans(self, depth: int, prices: Integers) -> Integers:
        """(L, lengths): the least u, rounded up to whole nanoseconds; the largest of all prices."""
        best = np.full((self.units, self.longest), FAR)
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
                cost = SCALE * time + prices[:, None] * self._memory(table, depth)
                through = np.minimum(entered[here][:, :, table.enter] + cost, FAR)
                last = SCALE * table.turn_ns + prices[:, None] * table.work_bytes
                behind = self._behind(unit[here])[:, None, table.leave]
                ending[here] = np.minimum(through + last + behind, FAR).min(axis=2)
                for state in np.unique(table.leave):
                    reached[here, :, state] = through[:, :, table.leave == state].min(axis=2)
            bounds = -(-(ending - prices * np.int64(self.memory)) // SCALE)
            best[first, length] = np.where(ending >= FAR, FAR, np.maximum(bounds, 0)).max(axis=1)
        return best

    def _begun(self, prices: int) -> Integers:
        """(L, prices, states): what a stage receives that begins with each unit, by how it is entered."""
        entered = np.zeros((self.units, prices, self.states), np.int64)
        for boundary, times in enumerate(self.into):
            scaled = np.where(times >= FAR, FAR, SCALE * np.where(times >= FAR, 0, times))
            entered[1 + np.flatnonzero(self.boundary_of == boundary)] = scaled
        return entered

    def _entered(self, reached: Integers, unit: Integers, prices: int) -> Integers:
        """(N, prices, states): the least up to and into each unit, by how it is entered."""
        entered = np.full((len(unit), prices, self.states), FAR)
        for boundary, moves in enumerate(self.moves):
            here = np.flatnonzero(self.boundary_of[unit - 1] == boundary)
            if len(here):
                scaled = np.where(moves >= FAR, FAR, SCALE * np.where(moves >= FAR, 0, moves))
                entered[here] = np.minimum(reached[here][:, :, :, None] + scaled, FAR).min(axis=2)
        return entered

    def _behind(self, unit: Integers) -> Integers:
        """(N, states): what a stage receives backward that ends with each unit, by how it is left."""
        behind = np.zeros((len(unit), self.states), np.int64)
        for place, last in enumerate(unit.tolist()):
            if last < self.units - 1:
                times = self.out[self.boundary_of[last]]
                behind[place] = np.where(times >= FAR, FAR, SCALE * np.where(times >= FAR, 0, times))
        return behind

    # Partitions

    def possible(self, limit: int) -> bool:
        """Whether any partition is left, by rounds of least sums from the last stage to the first and back."""
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
        depth = self.configuration.in_flight(x)
        return max(row for row, each in enumerate(self.claim.depths) if each <= depth)

    def _arcs(self, x: int) -> Integers:
        """(L, lengths): u of spans as a stage, FAR where they cannot be it."""
        u = self.u[self._row(x)].copy()
        first, length = np.indices(u.shape)
        end = first + length + 1
        cuttable = np.array([True, *self.instance.cuttable, True])
        good = (end <= self.units) & cuttable[first] & cuttable[np.minimum(end, self.units)]
        good &= (end == self.units) == (x == self.stages - 1)
        good &= (first == 0) == (x == 0)
        if self.configuration.cuts is not None:
            borders = (0, *self.configuration.cuts, self.units)
            good &= (first == borders[x]) & (end == borders[x + 1])
        return np.where(good, u, FAR)

    def _extend(self, before: list[Integers], x: int, mask: Integers, limit: int) -> None:
        u = np.where(mask, self._arcs(x), FAR)
        if x == 0:
            u[0] = np.where(u[0] >= FAR, FAR, np.maximum(u[0], self.total[0]))
        reached = np.where((u >= FAR) | (before[x][: self.units, None] >= FAR), FAR, u + before[x][: self.units, None])
        first, length = np.indices(u.shape)
        np.minimum.at(before[x + 1], np.minimum(first + length + 1, self.units).ravel(), reached.ravel())

    def _masks(self, before: Sequence[Integers], limit: int) -> list[Integers] | None:
        after = np.full(self.units + 1, FAR)
        after[self.units] = 0
        masks = []
        for x in reversed(range(self.stages)):
            u, w, m = self._arcs(x), self.stages - 1 - x, self.m
            first, length = np.indices(u.shape)
            s = after[np.minimum(first + length + 1, self.units)]
            there = (u < FAR) & (s < FAR) & (before[x][first] < FAR)
            u, s = np.where(there, u, 0), np.where(there, s, 0)
            if self.configuration.schedule.name == "gpipe":
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


# Any schedule


def any_schedule_ns(configuration: Configuration, evaluation: Evaluation) -> int:
    """No order of the passes of these stages with these options has a shorter step, whatever memory it needs: passes of whole
    micro-batches, unless the schedule slices some, with one thing at a time on each device.

    Proof: stage x begins no earlier than micro-batch 0's, or any one's, forward passes through the stages before it allow; then
    its devices run m passes each way; its last backward pass is followed by those of the same micro-batch on the stages before
    x and by what stage 0 adds at last, and by what stage x adds itself. Of chunks on one site, each alone, and all of their
    passes together.
    """
    m, stages = configuration.micro_batches, [stage.times for stage in evaluation.stages]
    forward = [each.forward_ns + each.message_forward_ns for each in stages]
    backward = [each.backward_ns + each.message_backward_ns for each in stages]
    if configuration.schedule.sliced:  # whole or in halves, the cheaper of both
        halves = [each.first_half_ns + each.second_half_ns + 2 * each.message_half_ns for each in stages]
        forward = [min(pair) for pair in zip(forward, halves, strict=True)]
        backs = [each.halved_backward_ns + each.message_backward_ns for each in stages]
        backward = [min(pair) for pair in zip(backward, backs, strict=True)]
    ends = [each.reduce_ns + each.optimizer_ns for each in stages]
    ends[0] += evaluation.tied_ns
    if len(stages) > 1:
        ends[-1] += evaluation.tied_ns
    sites, bounds = len(configuration.sites), []
    head = [0] if configuration.schedule.sliced else [sum(forward[:x]) for x in range(len(stages))]
    for x in range(len(stages)):
        begins = head[x] if x < len(head) else 0
        work = begins + m * (forward[x] + backward[x])
        bounds += [work + sum(backward[:x]) + ends[0], work + ends[x]]
    for site in range(sites):
        mine = range(site, len(stages), sites)
        begins = head[site] if site < len(head) else 0
        work = begins + sum(m * (forward[x] + backward[x]) for x in mine)
        bounds += [work + sum(backward[:site]) + ends[0], work + sum(ends[x] for x in mine)]
    return max(bounds)
