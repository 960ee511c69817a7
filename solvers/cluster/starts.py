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
    """Yield strategies with given degrees of parallelism, as first solutions of the exact method. Placements put devices in the
    order of their classes on ranks, in any nesting of stages, pipelines and tensor-parallel ranks; each is yielded with the
    cuts of a given pipeline, and with the best cuts for a pipeline that has the slowest group of devices at each stage.

    case: the instance with one choice of degrees of parallelism. path: the cheapest single pipeline, whose cuts are tried, or
    None. stop: returns whether to end."""
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
    """The cuts (first layer of every stage but the first) with the least time (Eq. 5 of AMP) for a pipeline that has the
    slowest group of devices at each stage and an even share of the batch, among the cuts that fit the memory; if none fit,
    among all cuts. case: the instance with one choice of degrees of parallelism. placed: the costs of a placement.
    """
    times, moves = placed.layer_ns.max(axis=1), placed.transfer_ns.max(axis=1)
    answer = None
    if case.instance.within_memory:
        limits = tuple(placed.limits_bytes.min(axis=1).tolist())
        answer = assign(times, moves, case.even_share, case.first_layers(limits))
    answer = answer or assign(times, moves, case.even_share)
    assert answer is not None
    return tuple(map(int, answer[1]))


def shared(case: DegreeCase, placed: Placed, cuts: tuple[int, ...]) -> Solution:
    """Complete a strategy of given placement and cuts by the shares of the batch (numbers of micro-batches of the pipelines)
    that make the slowest pipeline's time least; shares are even if the instance allows no others. case: the instance with one
    choice of degrees of parallelism. placed: the costs of the placement. cuts: the first layer of every stage but the first."""
    degrees = case.degrees
    shares: Sequence[int] = case.instance.even_shares(degrees.dp, degrees.mbs) or ()
    if len(case.share_choices) > 1:
        times = placed.stage_ns(cuts)
        shares = best_shares(case.micro_batches, times.max(axis=0), times.sum(axis=0) + placed.sent_ns(cuts).sum(axis=0))
    return Solution(degrees, tuple(map(int, placed.placement)), cuts, tuple(map(int, shares)))


def best_shares(micro_batches: int, slowest: Integers, through: Integers) -> list[int]:
    """The numbers of micro-batches of all pipelines, at least 1 each, with which the last pipeline to end does so as early as
    possible; found by bisection of that time.

    micro_batches: the total to divide among the pipelines. slowest, through: (pipelines,), the time in ns of each pipeline's
    slowest stage, and of one micro-batch through all of its stages; with n micro-batches a pipeline takes (n - 1) slowest +
    through."""
    rest, pairs = micro_batches - len(through), list(zip(through.tolist(), slowest.tolist(), strict=True))

    def more(time: int) -> list[int]:
        """The number of micro-batches after its first that each pipeline ends by this time in ns."""
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
    """Yield placements (the device of every rank) that put devices in the order of their classes on ranks in any nesting of
    stages, pipelines and tensor-parallel ranks. Classes are in the order in which `path` enters them, and in other orders.

    Devices of one class are interchangeable: of placements that differ only by exchanging such devices, one is yielded. case:
    the instance with one choice of degrees of parallelism. path: a single pipeline, or None."""
    instance, degrees = case.instance, case.degrees
    sizes = (degrees.pp, degrees.dp, degrees.tmp)
    known: set[bytes] = set()
    for order in [_along(instance, path), *_orders(instance)]:
        devices = np.array([device for c in order for device in case.instance.members[c]])
        for nesting in permutations(range(3)):
            grid = devices.reshape([sizes[axis] for axis in nesting]).transpose(np.argsort(nesting))
            # Where a table is tied, first and last stage next to each other: the first class's last devices come to the end.
            for shift in range(degrees.pp if instance.tied_bytes else 1):
                placement = np.roll(grid, shift, axis=0).reshape(-1)
                classes = instance.classes[placement].tobytes()
                if classes not in known:
                    known.add(classes)
                    yield tuple(placement.tolist())


def _along(instance: Instance, path: Path | None) -> list[int]:
    """All classes of devices in an order to fill ranks with: first as the path (a single pipeline) enters them, then the
    others. path: None for no pipeline.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    remaining = dict(enumerate(orbits(instance)))
    order = []
    for orbit in path.visits if path is not None else ():
        following = next((c for c, other in remaining.items() if other == orbit), None)
        if following is not None:
            order.append(following)
            del remaining[following]
    return [*order, *remaining]


def _orders(instance: Instance) -> list[tuple[int, ...]]:
    """Up to MOST_ORDERS orders of all device classes to fill ranks with. An orbit is a set of classes that are equal as a
    whole; orders that differ only by exchanging classes of one orbit are given only once, and orders in which each orbit's
    classes are consecutive come first.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    alike = orbits(instance)
    return list(dict.fromkeys(islice(chain(_together(alike), _every(alike)), 2 * MOST_ORDERS)))[:MOST_ORDERS]


def _together(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield orders of all device classes in which the classes of one orbit (a set of classes that are equal as a whole) are
    consecutive, at evenly spaced positions among the other classes. alike: the orbit of each class."""
    everyone, kinds = range(len(alike)), sorted(set(alike))
    for orbit in kinds if len(kinds) > 1 else ():
        members, others = ([c for c in everyone if (alike[c] == orbit) == wanted] for wanted in (True, False))
        indices = np.linspace(0, len(others), min(len(others) + 1, MOST_ORDERS // len(kinds))).round().astype(int)
        yield from ((*others[:index], *members, *others[index:]) for index in indices)


def _every(alike: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all orders of the device classes in which the classes of one orbit (equal as a whole) keep their order among
    themselves. alike: the orbit of each class. (0, 0, 2) -> (0, 1, 2), (0, 2, 1), (2, 0, 1)."""
    members = {orbit: [c for c, other in enumerate(alike) if other == orbit] for orbit in dict.fromkeys(alike)}
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        taken = waiting.pop()
        if len(taken) == len(alike):
            yield taken
            continue
        used = Counter(alike[c] for c in taken)
        following = [classes[used[orbit]] for orbit, classes in members.items() if used[orbit] < len(classes)]
        waiting += [(*taken, c) for c in sorted(following, reverse=True)]
