"""Good strategies with given degrees, for the exact search to start from: nested placements."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, permutations

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase, orbits
from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.placement_costs import Integers, Placed
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.solvers.assignment.sweep import assign
from trainplan.solvers.cluster.one_pipeline import Path

MOST_ORDERS = 24


def starts(case: DegreeCase, path: Path | None, stop: Callable[[], bool]) -> Iterator[Solution]:
    """On every nested placement: the cuts of the path, and the best for the slowest of its pipelines at each stage."""
    instance, degrees = case.instance, case.degrees
    for placement in _nested(case, path):
        if stop():
            return
        placed = instance.placed(degrees, placement)
        if path is not None:
            yield shared(case, placed, path.cuts)
        if path is None or degrees.pp > 1:
            yield shared(case, placed, best_cuts(case, placed))


def best_cuts(case: DegreeCase, placed: Placed) -> tuple[int, ...]:
    """The best for a pipeline with the slowest group at each stage and an even share; whatever its memory where none fit."""
    times, moves = placed.layer_ns.max(axis=1), placed.transfer_ns.max(axis=1)
    answer = None
    if case.instance.within_memory:
        limits = tuple(placed.limits_bytes.min(axis=1).tolist())
        answer = assign(times, moves, case.even_share, case.first_layers(limits))
    answer = answer or assign(times, moves, case.even_share)
    assert answer is not None
    return tuple(map(int, answer[1]))


def shared(case: DegreeCase, placed: Placed, cuts: tuple[int, ...]) -> Solution:
    """With the shares that make the slowest pipeline's T_i least: even ones where no others are allowed."""
    degrees = case.degrees
    shares: Sequence[int] = case.instance.even_shares(degrees.dp, degrees.mbs) or ()
    if len(case.share_choices) > 1:
        times = placed.stage_ns(cuts)
        shares = best_shares(case.micro_batches, times.max(axis=0), times.sum(axis=0) + placed.sent_ns(cuts).sum(axis=0))
    return Solution(degrees, tuple(map(int, placed.placement)), cuts, tuple(map(int, shares)))


def best_shares(micro_batches: int, slowest: Integers, once: Integers) -> list[int]:
    """gas_i of at least 1 with the least max_i (gas_i - 1) slowest_i + once_i, found by bisection of that time."""
    rest, pairs = micro_batches - len(once), list(zip(once.tolist(), slowest.tolist(), strict=True))

    def more(time: int) -> list[int]:
        """Of each pipeline, the micro-batches beside its first with which it ends by then."""
        return [min(rest, (time - start) // each) if each else rest for start, each in pairs]

    low, high = max(start for start, _ in pairs), max(start + rest * each for start, each in pairs)
    time = low + bisect_left(range(low, high), rest, key=lambda end: sum(more(end)))
    shares = more(time)
    over = sum(shares) - rest
    for i, share in enumerate(shares):
        shares[i] = 1 + share - min(over, share)
        over -= min(over, share)
    return shares


def _nested(case: DegreeCase, path: Path | None) -> Iterator[tuple[int, ...]]:
    """Devices in the order of their classes, these as on the path or in any order, on ranks in any nesting of stages,
    pipelines and tmp ranks; placements that differ by devices of one class are given once."""
    instance, degrees = case.instance, case.degrees
    sizes = (degrees.pp, degrees.dp, degrees.tmp)
    seen: set[bytes] = set()
    for order in [_along(instance, path), *_orders(instance)]:
        devices = np.array([device for c in order for device in case.instance.members[c]])
        for nesting in permutations(range(3)):
            grid = devices.reshape([sizes[axis] for axis in nesting]).transpose(np.argsort(nesting))
            # Where a table is tied, first and last stage side by side: the last ones of the first class come to the end.
            for shift in range(degrees.pp if instance.tied_bytes else 1):
                placement = np.roll(grid, shift, axis=0).reshape(-1)
                classes = instance.classes[placement].tobytes()
                if classes not in seen:
                    seen.add(classes)
                    yield tuple(placement.tolist())


def _along(instance: Instance, path: Path | None) -> list[int]:
    """Classes in the order in which the path comes to their orbits, and then those that it does not come to."""
    left = dict(enumerate(orbits(instance)))
    order = []
    for orbit in path.visits if path is not None else ():
        following = next((c for c, other in left.items() if other == orbit), None)
        if following is not None:
            order.append(following)
            del left[following]
    return [*order, *left]


def _orders(instance: Instance) -> list[tuple[int, ...]]:
    """Classes in any order, up to exchanges of whole classes: those of one orbit together first, anywhere among the others."""
    alike = orbits(instance)
    return list(dict.fromkeys(islice(chain(_together(alike), _every(alike)), 2 * MOST_ORDERS)))[:MOST_ORDERS]


def _together(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The classes of one orbit, all in a row, at places among the others that are evenly spaced."""
    everyone, kinds = range(len(alike)), sorted(set(alike))
    for orbit in kinds if len(kinds) > 1 else ():
        members, others = ([c for c in everyone if (alike[c] == orbit) == wanted] for wanted in (True, False))
        indices = np.linspace(0, len(others), min(len(others) + 1, MOST_ORDERS // len(kinds))).round().astype(int)
        yield from ((*others[:index], *members, *others[index:]) for index in indices)


def _every(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All orders of classes, of which those of one orbit keep theirs."""
    members = {orbit: [c for c, other in enumerate(alike) if other == orbit] for orbit in dict.fromkeys(alike)}
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        taken = waiting.pop()
        if len(taken) == len(alike):
            yield taken
            continue
        used = Counter(alike[c] for c in taken)
        following = [those[used[orbit]] for orbit, those in members.items() if used[orbit] < len(those)]
        waiting += [(*taken, c) for c in sorted(following, reverse=True)]
