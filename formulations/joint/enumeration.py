"""Every solution of a tiny instance, one after the other: what brute force looks at."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import combinations, pairwise, product
from math import comb, prod

from trainplan.formulations.joint.evaluation import evaluate, malformed, over_memory
from trainplan.formulations.joint.problem import Configuration, Instance, Solution

EVERY = 512  # solutions between two moments to look at the clock


def solution_count(instance: Instance) -> int:
    """The number of cuts and choices in all configurations, whatever memory they need."""
    return sum(_count(instance, configuration) for configuration in instance.configurations)


def _count(instance: Instance, configuration: Configuration) -> int:
    ways = 1 if configuration.cuts is not None else comb(sum(instance.cuttable), configuration.stages - 1)
    kinds = range(len(configuration.tables))
    return ways * prod(
        max(len(configuration.tables[kind].units[unit.kind].options) for kind in kinds) for unit in instance.units
    )


def cuts_of(instance: Instance, configuration: Configuration) -> Iterator[tuple[int, ...]]:
    """Every way to cut the units into the stages of a configuration, in lexicographic order."""
    possible = [place for place, free in enumerate(instance.cuttable, 1) if free]
    for cuts in combinations(possible, configuration.stages - 1):
        if configuration.cuts in (None, cuts):
            yield cuts


def solutions(instance: Instance) -> Generator[Solution | None, None, None]:
    """Every solution, whatever memory it needs, unless it links options that do not agree; None to look at the clock."""
    looked = 0
    for place, configuration in enumerate(instance.configurations):
        for cuts in cuts_of(instance, configuration):
            stages = [x for x, (first, end) in enumerate(pairwise((0, *cuts, instance.length))) for _ in range(first, end)]
            options = [range(len(instance.table(configuration, x, l).options)) for l, x in enumerate(stages)]
            for choice in product(*options):
                looked += 1
                if looked % EVERY == 0:
                    yield None
                solution = Solution(place, cuts, choice)
                if not malformed(instance, solution):
                    yield solution


def improving(instance: Instance) -> Generator[Solution | None, None, None]:
    """The solutions that fit and take less time than those before them; None to look at the clock."""
    best: int | None = None
    for solution in solutions(instance):
        if solution is None:
            yield None
            continue
        evaluation = evaluate(instance, solution)
        if (best is None or evaluation.time_ns < best) and not over_memory(instance, solution, evaluation):
            best = evaluation.time_ns
            yield solution
