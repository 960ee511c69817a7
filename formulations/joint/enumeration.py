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
    """The number of binary variables that the integer models (MILP, CP-SAT) of all configurations (schedule, number of
    micro-batches and device groups) have together: about one for each unit (sub-layer or layer), stage and option.
    instance: the configurations to choose from, with costs and memory limits.
    """
    count = 0
    for configuration in instance.configurations:
        stages = 1 if configuration.cuts is not None else configuration.stages  # fixed cuts leave each unit its stage
        tables = [instance.table(configuration, x, l) for x in range(stages) for l in range(instance.length)]
        count += sum(len(table.options) for table in tables)
    return count


def solution_count(instance: Instance) -> int:
    """The number of solutions (cuts into stages, and an option for every unit (sub-layer or layer)) in all configurations
    (schedule, number of micro-batches and device groups) together, whatever memory they need and whether or not
    neighbouring options agree. instance: the configurations to choose from, with costs and memory limits.
    """
    return sum(_count(instance, configuration) for configuration in instance.configurations)


def _count(instance: Instance, configuration: Configuration) -> int:
    """The number of solutions (cuts into stages, and an option for every unit (sub-layer or layer)) in one configuration
    (schedule, number of micro-batches and device groups), whatever memory they need. instance: the configurations to choose
    from, with costs and memory limits. configuration: one schedule, number of micro-batches and division into device
    groups, with the costs of all options.
    """
    partitions = 1 if configuration.cuts is not None else comb(sum(instance.cuttable), configuration.stages - 1)
    kinds = range(len(configuration.tables))
    return partitions * prod(
        max(len(configuration.tables[kind].units[unit.kind].options) for kind in kinds) for unit in instance.units
    )


def cuts_of(instance: Instance, configuration: Configuration) -> Iterator[tuple[int, ...]]:
    """Every partition of the units (sub-layers or layers) into the stages of a configuration (schedule, number of
    micro-batches and device groups), in lexicographic order; each is the tuple of the first units of all stages but the
    first. A single one where the configuration fixes its cuts. instance: the configurations to choose from, with costs and
    memory limits.
    """
    if configuration.cuts is not None:
        yield configuration.cuts
        return
    possible = [index for index, free in enumerate(instance.cuttable, 1) if free]
    yield from combinations(possible, configuration.stages - 1)


def solutions(instance: Instance) -> Generator[Solution | None, None, None]:
    """Every solution whose neighbouring units (sub-layers or layers) have options that may follow each other, whatever memory
    it needs. Yields None after every CLOCK_INTERVAL choices, so that the caller can check the time limit. instance: the
    configurations to choose from, with costs and memory limits.
    """
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
    """Solutions for brute force, each with a shorter step than all before: the feasible solution with the shortest step of
    each batch of solutions, if it improves. Yields None for every other batch, so that the caller can check the time limit.
    For a configuration (schedule, number of micro-batches and device groups) that cannot be evaluated in batches, each
    solution is a batch of its own. instance: the configurations to choose from, with costs and memory limits.
    """
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
    """For each batch of solutions of one configuration (schedule, number of micro-batches and device groups), the step in ns
    and the solution of the feasible one with the shortest step; None for a batch in which none is feasible.
    configuration_index: the index of the configuration. instance: the configurations to choose from, with costs and memory
    limits.
    """
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
    """For each solution of one configuration (schedule, number of micro-batches and device groups), the pair of its step in ns
    and the solution; None for an infeasible one, and from time to time, so that the caller can check the time limit.
    configuration_index: the index of the configuration. instance: the configurations to choose from, with costs and memory
    limits.
    """
    alone = instance.only([configuration_index])
    for solution in solutions(alone):
        evaluation = None if solution is None else evaluate(alone, solution)
        if solution is None or evaluation is None or over_memory(alone, solution, evaluation):
            yield None
        else:
            yield evaluation.time_ns, replace(solution, configuration=configuration_index)
