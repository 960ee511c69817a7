"""All solutions of a small instance, one after the other or in batches, for brute force."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import comb, prod

import numpy as np
from trainplan.formulations.joint.batch_evaluation import ChoiceBatch, supports_batching
from trainplan.formulations.joint.evaluation import evaluate, malformed, over_memory
from trainplan.formulations.joint.problem import Configuration, Instance, Solution

CLOCK_INTERVAL = 512  # solutions between two looks at the clock
BATCH_SIZE = 4096  # choices that are evaluated together


def binary_variables(instance: Instance) -> int:
    """The number of binary variables of the models of all configurations together: one for each unit, stage and option."""
    count = 0
    for configuration in instance.configurations:
        stages = 1 if configuration.cuts is not None else configuration.stages  # fixed cuts leave each unit its stage
        tables = [instance.table(configuration, x, l) for x in range(stages) for l in range(instance.length)]
        count += sum(len(table.options) for table in tables)
    return count


def solution_count(instance: Instance) -> int:
    """The number of cuts and choices in all configurations, whatever memory they need."""
    return sum(_count(instance, configuration) for configuration in instance.configurations)


def _count(instance: Instance, configuration: Configuration) -> int:
    """The number of cuts and choices in one configuration, whatever memory they need."""
    partitions = 1 if configuration.cuts is not None else comb(sum(instance.cuttable), configuration.stages - 1)
    kinds = range(len(configuration.tables))
    return partitions * prod(
        max(len(configuration.tables[kind].units[unit.kind].options) for kind in kinds) for unit in instance.units
    )


def cuts_of(instance: Instance, configuration: Configuration) -> Iterator[tuple[int, ...]]:
    """Every partition of the units into the stages of a configuration, as the first units of the stages after the first, in
    lexicographic order: a single one where the configuration fixes its cuts."""
    if configuration.cuts is not None:
        yield configuration.cuts
        return
    possible = [index for index, free in enumerate(instance.cuttable, 1) if free]
    yield from combinations(possible, configuration.stages - 1)


def solutions(instance: Instance) -> Generator[Solution | None, None, None]:
    """Every solution, whatever memory it needs, whose neighbouring options agree. Yields None now and then, so that the caller
    can look at the clock."""
    count = 0
    for index, configuration in enumerate(instance.configurations):
        for cuts in cuts_of(instance, configuration):
            stages = [x for x, (first, end) in enumerate(pairwise((0, *cuts, instance.length))) for _ in range(first, end)]
            options = [range(len(instance.table(configuration, x, l).options)) for l, x in enumerate(stages)]
            for choice in product(*options):
                count += 1
                if count % CLOCK_INTERVAL == 0:
                    yield None
                solution = Solution(index, cuts, choice)
                if not malformed(instance, solution):
                    yield solution


def improving(instance: Instance) -> Generator[Solution | None, None, None]:
    """The best feasible solution of each batch of choices, if its step is shorter than those of all earlier ones. Yields None
    in place of others, so that the caller can look at the clock. Where choices cannot be evaluated in batches, each is a batch
    of its own."""
    best: int | None = None
    for index, configuration in enumerate(instance.configurations):
        batches = _best_by_batch(instance, index) if supports_batching(configuration) else _one_by_one(instance, index)
        for found in batches:
            if found is not None and (best is None or found[0] < best):
                best = found[0]
                yield found[1]
            else:
                yield None


Found = tuple[int, Solution] | None


def _best_by_batch(instance: Instance, configuration_index: int) -> Iterator[Found]:
    """The step in ns and the solution of the best feasible choice of each batch; None for a batch without one."""
    configuration = instance.configurations[configuration_index]
    for cuts in cuts_of(instance, configuration):
        stages = [x for x, (first, end) in enumerate(pairwise((0, *cuts, instance.length))) for _ in range(first, end)]
        sizes = [len(instance.table(configuration, x, l).options) for l, x in enumerate(stages)]
        for start in range(0, prod(sizes), BATCH_SIZE):
            numbers = np.arange(start, min(start + BATCH_SIZE, prod(sizes)))
            choices = np.stack(np.unravel_index(numbers, sizes), axis=1)
            steps, fits = ChoiceBatch(instance, configuration, cuts, choices).steps_ns()
            if not fits.any():
                yield None
                continue
            least = int(np.where(fits, steps, np.iinfo(np.int64).max).argmin())
            yield int(steps[least]), Solution(configuration_index, cuts, tuple(choices[least].tolist()))


def _one_by_one(instance: Instance, configuration_index: int) -> Iterator[Found]:
    """The step in ns and the solution of every feasible solution; None for each infeasible one."""
    alone = instance.only([configuration_index])
    for solution in solutions(alone):
        evaluation = None if solution is None else evaluate(alone, solution)
        if solution is None or evaluation is None or over_memory(alone, solution, evaluation):
            yield None
        else:
            yield evaluation.time_ns, replace(solution, configuration=configuration_index)
