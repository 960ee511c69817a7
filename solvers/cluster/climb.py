"""Better strategies by exchanging devices, for where bounds and nested placements do not meet soon.

Every degrees' start is Algorithm 1's placement, with cuts within memory. The most promising climb: devices of two ranks, or
all devices of two stages, change places, layers are assigned anew, and what is no worse stays. After each round the better
half climbs on, twice as long. What does not fit counts by the bytes that are missing, and only then by its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.cluster_strategy.makes import Case
from trainplan.formulations.cluster_strategy.problem import Instance, Solution, evaluate
from trainplan.solvers.cluster.placements import node_order
from trainplan.solvers.cluster.starts import best_cuts, shared
from trainplan.solvers.core.search import Search

CLIMBERS = 8
MOVES = 50  # of each in the first round
STAGES = 0.2  # of the moves exchange two stages

Cost = tuple[int, int]


@dataclass
class _Climber:
    """Where one is: its strategy, and what that costs."""

    case: Case
    solution: Solution
    cost: Cost


def climb(instance: Instance, search: Search, stop: Callable[[], bool]) -> None:
    """Report what is better than known, until every round is done or `stop` says so."""
    generator = np.random.default_rng(search.seed)
    climbers = []
    for degrees in instance.degrees():
        case = Case(instance, degrees, reduced=True)
        climbers.append(_at(case, node_order(instance), search))
        if stop():
            return
    if search.best is not None:
        climbers.append(_at(Case(instance, search.best.degrees, reduced=True), search.best.placement, search))
    climbers, moves = _best(climbers, CLIMBERS), MOVES
    while climbers and len(instance.class_kinds) > 1:
        for place, climber in enumerate(climbers):
            for _ in range(moves):
                if stop():
                    return
                moved = _moved(climber.solution, instance, generator)
                following = _at(climber.case, moved, search)
                if following.cost <= climber.cost:
                    climber = climbers[place] = following
        climbers, moves = _best(climbers, len(climbers) // 2), 2 * moves


def _best(climbers: list[_Climber], count: int) -> list[_Climber]:
    return sorted(climbers, key=lambda climber: climber.cost)[:count]


def _at(case: Case, placement: tuple[int, ...], search: Search) -> _Climber:
    """With the best layers for a placement, which is reported."""
    placed = case.instance.placed(case.degrees, placement)
    solution = shared(case, placed, best_cuts(case, placed))
    found = evaluate(case.instance, solution)
    missing = sum(max(0, stage.peak_bytes - stage.limit_bytes) for stage in found.stages)
    cost = (missing if case.instance.within_memory else 0, found.time_ns)
    if not cost[0] and (search.objective is None or found.time_ns < search.objective):
        search.report(solution)
    return _Climber(case, solution, cost)


def _moved(solution: Solution, instance: Instance, generator: np.random.Generator) -> tuple[int, ...]:
    """Two stages' devices exchanged, or two devices of different classes."""
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
