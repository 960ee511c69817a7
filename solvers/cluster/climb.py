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
STAGES = 0.2  # of the moves exchange two stages

Cost = tuple[int, int]


class Climber:
    """A local search over strategies with the same degrees: the current strategy, at first with the given placement, and its
    cost (bytes missing, nanoseconds).

    assignments: cost, cuts and shares of placements, by the classes of their devices.
    """

    def __init__(self, case: DegreeCase, placement: tuple[int, ...]) -> None:
        self.case = case
        self.assignments: dict[bytes, tuple[Cost, tuple[int, ...], tuple[int, ...]]] = {}
        self.solution, self.cost = self.assigned(placement)

    def assigned(self, placement: tuple[int, ...]) -> tuple[Solution, Cost]:
        """The strategy with the best layers for a placement, and its cost."""
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
        """Exchange devices at random, and keep the result unless it is worse."""
        solution, cost = self.assigned(_moved(self.solution, self.case.instance, generator))
        if cost <= self.cost:
            self.solution, self.cost = solution, cost


def climb(instance: Instance, search: Search, stop: Callable[[], bool]) -> None:
    """Report strategies that are better than the best known, until every round is done or `stop` returns true."""
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
    """The climbers of least cost, `count` of them."""
    return sorted(climbers, key=lambda climber: climber.cost)[:count]


def _report(climber: Climber, search: Search) -> None:
    """Report the climber's current strategy, if it fits and is the best so far."""
    missing, time_ns = climber.cost
    if not missing and search.betters(time_ns):
        search.report(climber.solution)


def _moved(solution: Solution, instance: Instance, generator: np.random.Generator) -> tuple[int, ...]:
    """A placement with the devices of two stages exchanged, or two devices of different classes, at random."""
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
