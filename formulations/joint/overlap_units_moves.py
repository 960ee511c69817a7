"""Solutions near a given one, and all solutions of a small instance, for searches of plans whose units have unlike layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
from trainplan.formulations.joint.batch_evaluation import ChoiceBatch
from trainplan.formulations.joint.enumeration import BATCH_SIZE, cuts_of
from trainplan.formulations.joint.evaluation import evaluate, malformed, over_memory
from trainplan.formulations.joint.problem import Instance, Solution

Found = tuple[int, Solution]  # a solution with its objective in ns


def neighbours(instance: Instance, solution: Solution) -> Iterator[Solution]:
    """Solutions in which some units have another option, the same in all of them: in every stage a number of first or of last
    units (1, 2, 4, ... or all, embedding and head with or without), embedding and head, or all units of one kind. Units that do
    not have the option keep theirs. instance: the configurations to choose from. solution: the solution to begin from."""
    configuration = instance.configurations[solution.configuration]
    stage_of = [x for x, (first, last) in enumerate(solution.spans()) for _ in range(first, last + 1)]
    indices = [
        {option.name: s for s, option in enumerate(instance.table(configuration, x, l).options)} for l, x in enumerate(stage_of)
    ]
    seen = {solution.choice}
    for block in _blocks(instance, solution):
        for name in dict.fromkeys(name for l in block for name in indices[l]):
            chosen = {l: indices[l][name] for l in block if name in indices[l]}
            choice = tuple(chosen.get(l, s) for l, s in enumerate(solution.choice))
            if choice not in seen:
                seen.add(choice)
                yield replace(solution, choice=choice)


def _blocks(instance: Instance, solution: Solution) -> Iterator[list[int]]:
    """Lists of indices of units that may change together, see `neighbours`."""
    ends = {0, instance.length - 1}
    yield sorted(ends)
    for kind in dict.fromkeys(unit.kind for unit in instance.units):
        yield [l for l, unit in enumerate(instance.units) if unit.kind == kind]
    for left_out in (ends, set[int]()):
        spans = [[l for l in range(first, last + 1) if l not in left_out] for first, last in solution.spans()]
        longest, count = max(map(len, spans)), 1
        while count < 2 * longest:
            yield [l for span in spans for l in span[:count]]
            yield [l for span in spans for l in span[max(0, len(span) - count) :]]
            count *= 2


def better_neighbours(
    instance: Instance, solution: Solution, below_ns: int, stop: Callable[[], bool] = lambda: False
) -> list[Found]:
    """The neighbours of a solution that fit into memory and have an objective below `below_ns` ns, the least first. stop:
    called before each evaluation; when it returns True, those found until then are returned. instance: the configurations to
    choose from. solution: the solution whose neighbours are looked at."""
    found = list[Found]()
    for other in neighbours(instance, solution):
        if stop():
            break
        if malformed(instance, other):
            continue
        evaluation = evaluate(instance, other)
        if evaluation.time_ns < below_ns and not over_memory(instance, other, evaluation):
            found.append((evaluation.time_ns, other))
    return sorted(found, key=lambda pair: pair[0])


def tidied(instance: Instance, solution: Solution) -> Solution:
    """The solution in which units of one kind in one stage have the same options as often, but equal ones next to each other,
    those that are most frequent last; the solution itself where that does not fit or has a larger objective."""
    choice = list(solution.choice)
    for first, last in solution.spans():
        for kind in {instance.units[l].kind for l in range(first, last + 1)}:
            units = [l for l in range(first, last + 1) if instance.units[l].kind == kind]
            often = Counter(choice[l] for l in units)
            for l, option in zip(units, sorted((choice[l] for l in units), key=lambda s: (often[s], s)), strict=True):
                choice[l] = option
    other = replace(solution, choice=tuple(choice))
    if malformed(instance, other):
        return solution
    evaluation = evaluate(instance, other)
    worse = evaluation.time_ns > evaluate(instance, solution).time_ns or over_memory(instance, other, evaluation)
    return solution if worse else other


def every_solution_below(instance: Instance, below_ns: int) -> list[Found]:
    """All solutions of an instance that fit into memory and have an objective below `below_ns` ns, the least first; for small
    instances whose configurations can be evaluated in batches."""
    found = list[Found]()
    for index, configuration in enumerate(instance.configurations):
        for cuts in cuts_of(instance, configuration):
            stages = [x for x, (first, end) in enumerate(pairwise((0, *cuts, instance.length))) for _ in range(first, end)]
            sizes = [len(instance.table(configuration, x, l).options) for l, x in enumerate(stages)]
            for start in range(0, prod(sizes), BATCH_SIZE):
                numbers = np.arange(start, min(start + BATCH_SIZE, prod(sizes)))
                choices = np.stack(np.unravel_index(numbers, sizes), axis=1)
                steps, fits = ChoiceBatch(instance, configuration, cuts, choices).steps_ns()
                for chosen in np.flatnonzero(fits & (steps < below_ns)):
                    found.append((int(steps[chosen]), Solution(index, cuts, tuple(choices[chosen].tolist()))))
    return sorted(found, key=lambda pair: pair[0])
