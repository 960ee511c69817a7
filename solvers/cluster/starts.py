"""Good strategies with given degrees, from which the exact search starts: those of nested placements."""

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
    """Yields strategies on every nested placement: with the cuts of the path, and with the best cuts for the slowest pipeline
    at each stage.

    path: a pipeline whose cuts are tried, or None. stop: whether to end.
    """
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
    """The best cuts for a pipeline with the slowest group at each stage and an even share; where none fit the memory, the best
    without it."""
    times, moves = placed.layer_ns.max(axis=1), placed.transfer_ns.max(axis=1)
    answer = None
    if case.instance.within_memory:
        limits = tuple(placed.limits_bytes.min(axis=1).tolist())
        answer = assign(times, moves, case.even_share, case.first_layers(limits))
    answer = answer or assign(times, moves, case.even_share)
    assert answer is not None
    return tuple(map(int, answer[1]))


def shared(case: DegreeCase, placed: Placed, cuts: tuple[int, ...]) -> Solution:
    """The strategy whose shares of the batch make the slowest pipeline's time T_i least; shares are even where no others are
    allowed."""
    degrees = case.degrees
    shares: Sequence[int] = case.instance.even_shares(degrees.dp, degrees.mbs) or ()
    if len(case.share_choices) > 1:
        times = placed.stage_ns(cuts)
        shares = best_shares(case.micro_batches, times.max(axis=0), times.sum(axis=0) + placed.sent_ns(cuts).sum(axis=0))
    return Solution(degrees, tuple(map(int, placed.placement)), cuts, tuple(map(int, shares)))


def best_shares(micro_batches: int, slowest: Integers, through: Integers) -> list[int]:
    """The shares gas_i of at least 1 with the least max_i (gas_i - 1) slowest_i + through_i, found by bisection of that time.

    slowest, through: for each pipeline, the time in ns of its slowest stage, and of one micro-batch through all stages.
    """
    rest, pairs = micro_batches - len(through), list(zip(through.tolist(), slowest.tolist(), strict=True))

    def more(time: int) -> list[int]:
        """For each pipeline, the number of micro-batches after its first that it ends by this time."""
        return [min(rest, (time - start) // stage) if stage else rest for start, stage in pairs]

    low, high = max(start for start, _ in pairs), max(start + rest * stage for start, stage in pairs)
    time = low + bisect_left(range(low, high), rest, key=lambda end: sum(more(end)))
    shares = more(time)
    over = sum(shares) - rest
    for i, share in enumerate(shares):
        shares[i] = 1 + share - min(over, share)
        over -= min(over, share)
    return shares


def _nested(case: DegreeCase, path: Path | None) -> Iterator[tuple[int, ...]]:
    """Yields placements of devices in the order of their classes on ranks in any nesting of stages, pipelines and tmp ranks.

    Classes are in the order of the path, or in any order; placements that differ by devices of one class only are given one
    time.
    """
    instance, degrees = case.instance, case.degrees
    sizes = (degrees.pp, degrees.dp, degrees.tmp)
    seen: set[bytes] = set()
    for order in [_along(instance, path), *_orders(instance)]:
        devices = np.array([device for c in order for device in case.instance.members[c]])
        for nesting in permutations(range(3)):
            grid = devices.reshape([sizes[axis] for axis in nesting]).transpose(np.argsort(nesting))
            # Where a table is tied, first and last stage next to each other: the first class's last devices come to the end.
            for shift in range(degrees.pp if instance.tied_bytes else 1):
                placement = np.roll(grid, shift, axis=0).reshape(-1)
                classes = instance.classes[placement].tobytes()
                if classes not in seen:
                    seen.add(classes)
                    yield tuple(placement.tolist())


def _along(instance: Instance, path: Path | None) -> list[int]:
    """Classes in the order in which the path enters their orbits, and then the other ones."""
    remaining = dict(enumerate(orbits(instance)))
    order = []
    for orbit in path.visits if path is not None else ():
        following = next((c for c, other in remaining.items() if other == orbit), None)
        if following is not None:
            order.append(following)
            del remaining[following]
    return [*order, *remaining]


def _orders(instance: Instance) -> list[tuple[int, ...]]:
    """Orders of classes, without those that only exchange whole equal classes: first orders with one orbit's classes
    together."""
    alike = orbits(instance)
    return list(dict.fromkeys(islice(chain(_together(alike), _every(alike)), 2 * MOST_ORDERS)))[:MOST_ORDERS]


def _together(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields orders with all classes of one orbit in a row, at evenly spaced positions among the others."""
    everyone, kinds = range(len(alike)), sorted(set(alike))
    for orbit in kinds if len(kinds) > 1 else ():
        members, others = ([c for c in everyone if (alike[c] == orbit) == wanted] for wanted in (True, False))
        indices = np.linspace(0, len(others), min(len(others) + 1, MOST_ORDERS // len(kinds))).round().astype(int)
        yield from ((*others[:index], *members, *others[index:]) for index in indices)


def _every(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields all orders of classes, in which those of one orbit keep theirs."""
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
