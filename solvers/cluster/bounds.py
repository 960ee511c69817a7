"""Lower bounds for cluster-strategy with given degrees: one pipeline, followed through the cluster.

T = max_i T_i + max D is at least T_i + D_i of any one pipeline i, D_i being the slowest all-reduce that this pipeline's own
devices take part in. So the least of (gas_i - 1) M + S + D over all that a single pipeline may meet is a bound; S is the time
of one micro-batch through all stages, M the slowest stage. Three things are kept of the rest of the cluster:

  nodes     A group that lies in one class (see makes) with data-parallel groups of a kind of link q takes at least tmp u(q) of
            that class's devices for its stage: each of its tmp devices has a data-parallel group of its own, with at least
            u(q) devices of that class, the fewest of any make with such a link (where the tmp groups differ in q, the one with
            the least u(q) will do for all: it needs no more devices, and its D is no more). So a run of stages in one class
            ends when its devices are used up, and the next transfer leaves the class. That it may come back is left open.
  slow      With any weights w of devices, some pipeline has at least its share ceil(sum w / d) of the weight. Weights are the
            ranks of the kinds by speed, so one that is followed has to visit slow devices. With even shares T >= T_i + D_i for
            that pipeline. With uneven ones, let n(v) be the most micro-batches with which a pipeline of weight v or more stays
            below a time T: where no weights of all pipelines with the right sum have n of all micro-batches together, no
            strategy stays below T.
  memory    of the pipeline's own groups.

Groups in several classes are taken at the best: each device has the fastest transfer to any of the group that it may meet,
and the fastest all-reduce of any data-parallel group with a device of its class; the slowest of the group's devices counts.
Between such a group and one in a single class, some device's transfer is to another class.

The least is found by a dynamic program over stages, D_j(node, weight, end), under caps on M and D; a node is the type of the
group, its link q and the devices used of its class. The caps are swept by branch and bound over boxes of (M, D): S under the
upper corner bounds the box, together with M and D of its lower corner; boxes are halved until none is below the best path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import count, product
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.makes import Case, orbits
from trainplan.formulations.cluster_strategy.placed import Integers
from trainplan.formulations.cluster_strategy.problem import Instance
from trainplan.profiling.base.errors import InputError

Flags = np.ndarray[Any, np.dtype[np.bool_]]

FAR = np.int64(2**60)
MOST_PAIRS = 40_000  # of groups that a pipeline may come from and go to; beyond, no pipeline is followed
MOST_STATES = 20_000  # nodes times weights; beyond, weights are left out


@dataclass(frozen=True)
class _Type:
    """Groups that cost the same. size: devices of the class, 0 for groups in several classes. inner: their link within it.
    sync: for groups in several classes, their least D by its place among `syncs`."""

    profile: int
    weight: int
    size: int
    inner: int
    sync: int


@dataclass(frozen=True)
class Path:
    """A pipeline's way: M, S, D, where its stages begin, and the orbits of the classes that it comes to, one after another."""

    slowest: int
    once: int
    sync: int
    cuts: tuple[int, ...]
    visits: tuple[int, ...]

    def time_ns(self, micro_batches: int) -> int:
        return (micro_batches - 1) * self.slowest + self.once + self.sync


def quick_ns(case: Case) -> int:
    """A time that no strategy beats: every layer at its fastest, the slowest stage no faster than an even share of them or
    than any one layer. Some pipeline has no less than an even share of the batch."""
    given = case.degrees
    fastest = case.instance.tables[given.tmp, given.mbs].layer_ns[case.instance.class_kinds].min(axis=0)
    slowest = max(int(fastest.max()), -(-int(fastest.sum()) // given.pp))
    return (-(-case.micro_batches // given.dp) - 1) * slowest + int(fastest.sum())


def followed(case: Case, stop: Callable[[], bool]) -> Followed | None:
    """None where the groups are too many to follow, or time runs out before their transfers are known."""
    if not case.enumerable:
        return None
    try:
        return Followed(case, stop)
    except TooLong:
        return None


class TooLong(Exception):
    """The groups of devices are too many, or time has run out."""


def bounded_cases(instance: Instance, stop: Callable[[], bool]) -> list[tuple[Case, int]]:
    """Every Degrees of an instance, with a bound."""
    found = []
    for given in instance.degrees():
        case = Case(instance, given, reduced=True)
        one = followed(case, stop)
        bound = quick_ns(case) if one is None else one.bound(None, stop)[0]
        found.append((Case(instance, given), bound))
    return found


class Followed:
    """One pipeline of a reduced case. Raises TooLong."""

    def __init__(self, case: Case, stop: Callable[[], bool] = lambda: False) -> None:
        assert case.reduced
        self.case, instance = case, case.instance
        given = case.degrees
        self.layers, self.stages = instance.layers, given.pp
        slowest = case.micro_batches * float(case.layer_ns.sum(axis=1, dtype=np.float64).max())
        if (step := slowest + given.pp * float(case.transfer_ns.max()) + float(case.sync_ns.max())) > FAR // 4:
            raise InputError("instance", "network", f"makes steps take {step:.3g} ns", "give faster links")
        speed = instance.tables[given.tmp, given.mbs].layer_ns.sum(axis=1)
        ranks = {int(value): place for place, value in enumerate(sorted({int(speed[k]) for k in instance.class_kinds}))}
        self.rank = [ranks[int(speed[kind])] for kind in instance.class_kinds]
        self.whole_weight = sum(rank * size for rank, size in zip(self.rank, case.counts, strict=True))
        self.most_weight = min(self.whole_weight, max(self.rank) * given.pp * given.tmp)
        self._nodes(stop)

    def _nodes(self, stop: Callable[[], bool]) -> None:
        """The types of groups, their nodes, and the transfers between nodes."""
        case, alike = self.case, orbits(self.case.instance)
        syncs, known = list(case.sync_ns), {row.tobytes(): q for q, row in enumerate(case.sync_ns)}
        types: dict[_Type, set[frozenset[int]]] = {}  # with the orbits of their devices
        for make, profile in zip(case.groups, case.profile_of, strict=True):
            held = [c for c, taken in enumerate(make) if taken]
            weight = sum(make[c] * self.rank[c] for c in held)
            if len(held) == 1:
                kind = _Type(profile, weight, case.counts[held[0]], int(case.link_of[held[0], held[0]]), -1)
            else:
                row = np.max([self._least_syncs[alike[c]] for c in held], axis=0)
                if row.tobytes() not in known:
                    known[row.tobytes()] = len(syncs)
                    syncs.append(row)
                kind = _Type(profile, weight, 0, -1, known[row.tobytes()])
            types.setdefault(kind, set()).add(frozenset(alike[c] for c in held))
        self.syncs = np.stack(syncs)
        nodes: list[tuple[_Type, int, int, int]] = []  # type, link q, devices per stage, devices used
        for kind, sets in types.items():
            nodes += [
                (kind, q, each, used)
                for q, each in (self._rings(kind, frozenset().union(*sets)) if kind.size else [(kind.sync, 0)])
                for used in (range(each, kind.size + 1) if each else [0])
            ]
        if sum(map(len, types.values())) ** 2 > MOST_PAIRS:
            raise TooLong
        moves: dict[tuple[_Type, _Type], Integers | None] = {}
        for one, other in product(types, types):
            if stop():
                raise TooLong
            moves[one, other] = self._between(one, other, types)
        rows, edges = [], []
        for target, (kind, _, each, used) in enumerate(nodes):
            for source, (other, _, _, before) in enumerate(nodes):
                if kind == other and kind.size and before + each == used and kind.inner >= 0:
                    edges.append((target, source))
                    rows.append(case.transfer_ns[kind.inner])
                if used == each and (move := moves[other, kind]) is not None:
                    edges.append((target, source))
                    rows.append(move)
        self.orbits = [min(frozenset().union(*types[kind])) for kind, *_ in nodes]
        self.kinds = [kind for kind, *_ in nodes]
        self.rings = [q for _, q, *_ in nodes]
        self.first = [used == each for _, _, each, used in nodes]
        self.targets, self.sources = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
        self.moves = np.zeros((len(edges), self.layers + 1), np.int64)
        if edges and self.layers > 1:
            self.moves[:, 1:-1] = rows
        self.heads, self.begins = np.unique(self.targets, return_index=True)

    @cached_property
    def _least_syncs(self) -> dict[int, Integers]:
        """By orbit: D of a data-parallel group with a device of it, at the best: (L + 1, L + 1)."""
        case, alike = self.case, orbits(self.case.instance)
        rings: dict[int, set[int]] = {}
        for make, q in zip(case.replicas, case.ring_of, strict=True):
            for orbit, taken in zip(alike, make, strict=True):
                if taken:
                    rings.setdefault(orbit, set()).add(q)
        return {orbit: case.sync_ns[sorted(own)].min(axis=0) for orbit, own in rings.items()}

    def _between(self, before: _Type, after: _Type, types: dict[_Type, set[frozenset[int]]]) -> Integers | None:
        """The transfer between groups of two types, at the best, unless they stay in one class; None where there are none.

        Where one group lies in one class and the other in several, some device of the other is of another class.
        """
        apart = bool(before.size and after.size)
        found = []
        for own in types[before]:
            for other in types[after]:
                forth = [_least([self._link(a, b, apart) for b in other]) for a in own]
                back = [_least([self._link(a, b, apart) for a in own]) for b in other]
                if bool(before.size) != bool(after.size):
                    forth.append(_least([self._link(a, b, True) for a in own for b in other]))
                rows = [row for row in forth + back if row is not None]
                if len(rows) == len(forth + back):
                    found.append(np.max(rows, axis=0))
        return _least(found)

    def _link(self, a: int, b: int, apart: bool) -> Integers | None:
        """The fastest transfer between devices of two orbits; apart: of different classes."""
        if (a, b, apart) not in self._links:
            links = self.case.link_of[np.ix_(self._classes[a], self._classes[b])]
            known = sorted(set(links[(links >= 0) & ~(apart & (self._classes[a][:, None] == self._classes[b]))].tolist()))
            self._links[a, b, apart] = self.case.transfer_ns[known].min(axis=0) if known else None
        return self._links[a, b, apart]

    @cached_property
    def _links(self) -> dict[tuple[int, int, bool], Integers | None]:
        return {}

    @cached_property
    def _classes(self) -> dict[int, Integers]:
        """Of every orbit."""
        alike = np.array(orbits(self.case.instance))
        return {orbit: np.flatnonzero(alike == orbit) for orbit in sorted(set(alike.tolist()))}

    def _rings(self, kind: _Type, alike: frozenset[int]) -> list[tuple[int, int]]:
        """Kinds of link q of data-parallel groups with devices of one class, and how many of these a stage then takes."""
        case, least = self.case, dict[int, int]()
        for make, q in zip(case.replicas, case.ring_of, strict=True):
            for c, orbit in enumerate(orbits(case.instance)):
                if make[c] and orbit in alike:
                    least[q] = min(least.get(q, kind.size + 1), make[c] * case.degrees.tmp)
        known = {q: each for q, each in least.items() if each <= kind.size}

        def beaten(q: int) -> bool:
            return any(
                known[p] <= known[q]
                and (case.sync_ns[p] <= case.sync_ns[q]).all()
                and ((known[p] < known[q]) or (case.sync_ns[p] < case.sync_ns[q]).any() or p < q)
                for p in known
                if p != q
            )

        return [(q, each) for q, each in known.items() if not beaten(q)]

    @cached_property
    def costs(self) -> Integers:
        """Time of layers [first, end) in every profile, FAR where there are none: (profiles, L + 1, L + 1)."""
        sums = self.case.times
        found = sums[:, None, :] - sums[:, :, None]
        return np.where(np.tri(self.layers + 1, dtype=bool).T & ~np.eye(self.layers + 1, dtype=bool), found, FAR)

    def bound(self, cutoff: int | None, stop: Callable[[], bool]) -> tuple[int, Path | None]:
        """No strategy is below it, and a path that is as good; no path where none is below the cutoff.

        With uneven shares some pipeline, of any weight, has no less than an even share.
        """
        case = self.case
        if len(case.share_choices) == 1:
            return self.least(case.share_choices[0], -(-self.whole_weight // case.degrees.dp), cutoff, stop)
        return self.least(-(-case.micro_batches // case.degrees.dp), 0, cutoff, stop)

    def closed(self, time_ns: int, stop: Callable[[], bool]) -> bool:
        """Whether surely no strategy with uneven shares stays below a time.

        most[w] is the most micro-batches of pipelines whose weights add up to w, after so many pipelines.
        """
        case = self.case
        alone: list[int] = []
        for weight in range(self.most_weight + 1):
            low, high = 0, alone[-1] if alone else max(case.share_choices)
            while low < high:
                middle = (low + high + 1) // 2
                if self.least(middle, weight, time_ns, stop, first=True)[1] is None:
                    if stop():
                        return False
                    high = middle - 1
                else:
                    low = middle
            alone.append(low)
        never = -case.micro_batches * case.degrees.dp
        each = np.array([own or never for own in alone], np.int64)
        most = np.full(self.whole_weight + 1, never)
        most[0] = 0
        for _ in range(case.degrees.dp):
            most = np.array(
                [
                    max(int(most[max(0, whole - weight)]) + int(own) for weight, own in enumerate(each))
                    for whole in range(self.whole_weight + 1)
                ]
            )
        return int(most[-1]) < case.micro_batches

    def least(
        self, micro_batches: int, weight: int, cutoff: int | None, stop: Callable[[], bool], first: bool = False
    ) -> tuple[int, Path | None]:
        """A bound on (gas - 1) M + S + D of any pipeline of at least that weight, and its path where it is the least; no path
        where the least is at or above the cutoff, or the search was stopped. first: any path below the cutoff will do."""
        weight = weight if len(self.kinds) * (weight + 1) <= MOST_STATES else 0
        slow, syncs = np.unique(self.costs[self.costs < FAR]), np.unique(self.syncs)
        best, path = FAR if cutoff is None else np.int64(cutoff), None
        rounds, ties = micro_batches - 1, count()
        waiting = [(0, 0, next(ties), 0, len(slow) - 1, 0, len(syncs) - 1)]  # bound, least S, -, from and to M, from and to D
        while waiting:
            bound, floor, _, low, high, lower, upper = heappop(waiting)
            if bound >= best:
                break
            if stop():
                return int(bound), None
            # a cap above what the best one leaves is no cap
            high = min(high, int(np.searchsorted(slow * rounds, best - floor - syncs[lower])) - 1) if rounds else high
            upper = min(upper, int(np.searchsorted(syncs, best - floor - rounds * slow[low])) - 1)
            if high < low or upper < lower:
                continue
            found = self._path(micro_batches, int(slow[high]), int(syncs[upper]), weight)
            if found is None:
                continue
            if found.time_ns(micro_batches) < best:
                best, path = np.int64(found.time_ns(micro_batches)), found
                if first:
                    break
            reached, synced = int(np.searchsorted(slow, found.slowest)), int(np.searchsorted(syncs, found.sync))
            if reached <= low and synced <= lower:
                continue  # the path is as good as the box's lower corner
            if rounds * int(slow[reached] - slow[low]) >= int(syncs[synced] - syncs[lower]) or synced <= lower:
                middle = (low + reached) // 2
                parts = [(low, middle, lower, upper), (middle + 1, high, lower, upper)]
            else:
                middle = (lower + synced) // 2
                parts = [(low, high, lower, middle), (low, high, middle + 1, upper)]
            for low, high, lower, upper in parts:
                bound = rounds * int(slow[low]) + found.once + int(syncs[lower])
                if bound < best:
                    heappush(waiting, (bound, found.once, next(ties), low, high, lower, upper))
        return int(best), path

    def _path(self, micro_batches: int, cap: int, sync_cap: int, weight: int) -> Path | None:
        """The least S of a pipeline whose stages keep within the caps and which has the weight."""
        layers = self.layers
        allowed = np.where(self.costs <= cap, self.costs, FAR)
        synced = self.syncs <= sync_cap
        sums = np.full((len(self.kinds), weight + 1, layers + 1), FAR)
        for node, first in enumerate(self.first):
            if first:
                sums[node, min(weight, self.kinds[node].weight), 0] = 0
        entered, steps = [sums], []
        left: list[Integers] = []
        for stage in range(self.stages):
            if stage:
                sums = self._entered(left[-1], weight)
                entered.append(sums)
            step = self._allowed(allowed, synced, min(micro_batches, self.stages - stage))
            steps.append(step)
            after = np.empty_like(sums)
            for node, (kind, q) in enumerate(zip(self.kinds, self.rings, strict=True)):
                after[node] = (sums[node][:, :, None] + step[kind.profile, q]).min(axis=1)
            left.append(np.minimum(after, FAR))
        node = int(left[-1][:, weight, layers].argmin())
        once = int(left[-1][node, weight, layers])
        return None if once >= FAR else self._back(entered, left, steps, node, weight, once)

    def _allowed(
        self, allowed: Integers, synced: np.ndarray[Any, np.dtype[np.bool_]], ahead: int
    ) -> dict[tuple[int, int], Integers]:
        """Time of [first, end) by profile and link, FAR where a cap or the memory forbids it."""
        fits = {}
        for f, q in set(zip((kind.profile for kind in self.kinds), self.rings, strict=True)):
            row = np.where(synced[q], allowed[f], FAR)
            if self.case.instance.within_memory:
                row = np.where(self._peaks(ahead) <= self.case.limits_bytes[f], row, FAR)
            fits[f, q] = row
        return fits

    def _peaks(self, ahead: int) -> Integers:
        if ahead not in self._known_peaks:
            self._known_peaks[ahead] = self.case.peak_bytes(ahead)
        return self._known_peaks[ahead]

    @cached_property
    def _known_peaks(self) -> dict[int, Integers]:
        return {}

    def _entered(self, left: Integers, weight: int) -> Integers:
        """S before a stage, by its node, from that after the stage before it."""
        found = np.full_like(left, FAR)
        if not len(self.targets):
            return found
        found[self.heads] = np.minimum.reduceat(left[self.sources] + self.moves[:, None, :], self.begins, axis=0)
        moved = np.full_like(left, FAR)
        for node, kind in enumerate(self.kinds):
            for before in range(weight + 1):
                after = min(weight, before + kind.weight)
                moved[node, after] = np.minimum(moved[node, after], found[node, before])
        return np.minimum(moved, FAR)

    def _back(
        self,
        entered: list[Integers],
        left: list[Integers],
        steps: list[dict[tuple[int, int], Integers]],
        node: int,
        weight: int,
        once: int,
    ) -> Path:
        heaviest, end, slowest, sync, cuts, visits = weight, self.layers, 0, 0, [], []
        for stage in reversed(range(self.stages)):
            kind, q = self.kinds[node], self.rings[node]
            first = int((entered[stage][node, weight] + steps[stage][kind.profile, q][:, end]).argmin())
            slowest = max(slowest, int(self.costs[kind.profile, first, end]))
            sync = max(sync, int(self.syncs[q, first, end]))
            if self.first[node] and kind.size:
                visits.append(self.orbits[node])
            if stage:
                cuts.append(first)
                own = np.flatnonzero(self.targets == node)
                before = [v for v in range(heaviest + 1) if min(heaviest, v + kind.weight) == weight]
                sums = left[stage - 1][self.sources[own]][:, before, first] + self.moves[own, first][:, None]
                edge, column = np.unravel_index(sums.argmin(), sums.shape)
                node, weight, end = int(self.sources[own[edge]]), before[column], first
        return Path(slowest, once, sync, tuple(reversed(cuts)), tuple(reversed(visits)))


def _least(rows: Sequence[Integers | None]) -> Integers | None:
    known = [row for row in rows if row is not None]
    return np.min(known, axis=0) if known else None
