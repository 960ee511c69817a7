"""Local search for better strategies by exchanging devices, for instances where bounds and nested placements do not meet soon.

For every degrees, the search starts from Algorithm 1's placement, with cuts within the memory. The most promising climb:
devices of two ranks, or all devices of two stages, are exchanged, layers are assigned anew, and the new strategy is kept if it
is no worse. After each round the better half climbs on, twice as long. Strategies that do not fit are compared by the bytes
that are missing, and only then by their time.

A move changes the groups of two devices only; the costs of all other groups are known (see `placed`), and so are those of a
whole placement that differs from an earlier one by devices of one class. A strategy that is better than all before is reported,
and so judged by `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.solvers.cluster.placements import node_order
from trainplan.solvers.cluster.starts import best_cuts, shared
from trainplan.solvers.core.search import Search

CLIMBERS = 8
MOVES = 50  # of each in the first round
STAGES = 0.2  # the share of moves that exchange two stages

Cost = tuple[int, int]


class Climber:
    """A local search over strategies with the same degrees of parallelism, from a given placement of devices on: the current
    strategy, and its cost (bytes of memory missing, nanoseconds).

    case: the instance with one choice of degrees of parallelism. assignments: cost, cuts and shares of the batch for each
    placement met, keyed by the classes of its devices in rank order (devices of one class are interchangeable)."""

    def __init__(self, case: DegreeCase, placement: tuple[int, ...]) -> None:
        self.case = case
        self.assignments: dict[bytes, tuple[Cost, tuple[int, ...], tuple[int, ...]]] = {}
        self.solution, self.cost = self.assigned(placement)

    def assigned(self, placement: tuple[int, ...]) -> tuple[Solution, Cost]:
        """The strategy with the best cuts and shares of the batch for a placement (the device of every rank), and its cost
        (bytes of memory missing, nanoseconds)."""
        instance, degrees = self.case.instance, self.case.degrees
        key = instance.classes[list(placement)].tobytes()
        if key not in self.assignments:
            placed = instance.placed(degrees, placement)
            solution = shared(self.case, placed, best_cuts(self.case, placed))
            missing = 0
            if instance.within_memory:
                over = placed.peak_bytes(solution.cuts, solution.shares) - placed.limits_bytes
                missing = int(np.maximum(0, over.max(axis=1)).sum())
            cost = missing, placed.time_ns(solution.cuts, solution.shares)
            self.assignments[key] = cost, solution.cuts, solution.shares
        cost, cuts, shares = self.assignments[key]
        return Solution(degrees, placement, cuts, shares), cost

    def move(self, generator: np.random.Generator) -> None:
        """Try one random change of the placement (exchange two devices, or all devices of two stages), and keep the new
        strategy unless its cost is higher. generator: the source of random choices."""
        solution, cost = self.assigned(_moved(self.solution, self.case.instance, generator))
        if cost <= self.cost:
            self.solution, self.cost = solution, cost


def climb(instance: Instance, search: Search, stop: Callable[[], bool]) -> None:
    """Local search for strategies on a cluster, in rounds over all degrees of parallelism: strategies that are better than the
    best known are reported to the search, until all rounds are done or `stop` returns True. The search's seed decides all
    random choices.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far."""
    generator = np.random.default_rng(search.seed)
    climbers, possible = list[Climber](), list(instance.degrees())
    for degrees in possible:
        if stop():
            return
        climbers.append(Climber(DegreeCase(instance, degrees, reduced=True), node_order(instance)))
        _report(climbers[-1], search)
    if search.best is not None and search.best.degrees in possible:  # with even shares alone, some are not
        climbers.append(Climber(DegreeCase(instance, search.best.degrees, reduced=True), search.best.placement))
        _report(climbers[-1], search)
    climbers, moves = _best(climbers, CLIMBERS), MOVES
    while climbers and len(instance.class_kinds) > 1:
        for climber in climbers:
            for _ in range(moves):
                if stop():
                    return
                climber.move(generator)
                _report(climber, search)
        climbers, moves = _best(climbers, len(climbers) // 2), 2 * moves


def _best(climbers: list[Climber], count: int) -> list[Climber]:
    """The local searches (climbers) whose current strategies have the least cost (bytes of memory missing, then nanoseconds),
    at most `count` of them, the best first. climbers: all local searches."""
    return sorted(climbers, key=lambda climber: climber.cost)[:count]


def _report(climber: Climber, search: Search) -> None:
    """Report the current strategy of a local search (climber) to the run's search, if it fits the memory and is the best so
    far.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    missing, time_ns = climber.cost
    if not missing and search.betters(time_ns):
        search.report(climber.solution)


def _moved(solution: Solution, instance: Instance, generator: np.random.Generator) -> tuple[int, ...]:
    """A random change of a strategy's placement, as the new device of every rank: all devices of two stages are exchanged, or
    two devices of different classes (devices of one class are interchangeable). solution: the strategy, which is not changed.
    generator: the source of random choices.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    degrees, placement = solution.degrees, np.array(solution.placement)
    if degrees.pp > 1 and generator.random() < STAGES:
        a, b = generator.choice(degrees.pp, 2, replace=False)
        rows = placement.reshape(degrees.pp, -1)
        rows[[a, b]] = rows[[b, a]]
    else:
        classes = instance.classes[placement]
        a = int(generator.integers(len(placement)))
        b = int(generator.choice(np.flatnonzero(classes != classes[a])))
        placement[[a, b]] = placement[[b, a]]
    return tuple(map(int, placement))
