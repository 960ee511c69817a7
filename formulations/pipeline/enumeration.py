"""Every plan of a tiny instance, one after the other, for brute force."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import combinations, pairwise, product
from math import comb

from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.pipeline.problem import Solution, evaluate_stage

EVERY = 4096  # plans between two moments to look at the clock

Split = Callable[[int, int], tuple[int, ...]]  # layers of each stage, of a number of layers and of stages
StageChoices = list[tuple[int, int, tuple[int, ...]]]  # time, synchronisation and choice of a stage


def plan_count(instance: Instance, split: Split | None = None) -> int:
    """The number of plans of an instance: partitions into stages times choices of options, over all configurations. split: a
    function from the numbers of layers and of stages to the numbers of layers of each stage, which is then the only partition;
    None for all partitions."""
    return sum(
        (1 if split else comb(instance.layers - 1, configuration.stages - 1))
        * len(configuration.tables.strategies) ** instance.layers
        for configuration in instance.configurations
    )


def plans(
    instance: Instance,
    configurations: Sequence[Configuration],
    split: Split | None,
    iteration_ns: Callable[[int, Sequence[int], Sequence[int]], int],
) -> Iterator[Solution | None]:
    """Every plan of an instance that fits into memory and takes less time than all plans before it; None from time to time, so
    that the caller can check the time limit.

    Args:
        instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under
            each strategy, and the memory limit.
        configurations: the instance's configurations (numbers of stages and micro-batches), with the tables of costs that
            the objective uses.
        split: if given, the only partition that is tried: takes the numbers of layers and of stages, returns the numbers of
            layers of each stage.
        iteration_ns: returns the time of a step in ns, given the index of a configuration, the time of each stage for a
            micro-batch, and the synchronisation within each of these times.
    """
    best, visited = float("inf"), 0
    for index, configuration in enumerate(configurations):
        choices_of: dict[tuple[int, int, int], StageChoices] = {}
        for cuts in combinations(range(1, instance.layers), configuration.stages - 1):
            stages = [(number, *span) for number, span in enumerate(pairwise((0, *cuts, instance.layers)))]
            sizes = tuple(end - first for _, first, end in stages)
            if split and sizes != split(instance.layers, configuration.stages):
                continue
            for stage in stages:
                if stage not in choices_of:
                    choices_of[stage] = yield from _stage_choices(instance, configuration, *stage)
            for plan in product(*(choices_of[stage] for stage in stages)):
                visited += 1
                if visited % EVERY == 0:
                    yield None
                times, syncs, choices = zip(*plan, strict=True)
                time = iteration_ns(index, times, syncs)
                if time < best:
                    best = time
                    yield Solution(index, sizes, sum(choices, ()))


def _stage_choices(
    instance: Instance, configuration: Configuration, stage: int, first: int, end: int
) -> Generator[None, None, StageChoices]:
    """Every choice of options for the layers of one stage that fits into memory, as (time in ns, synchronisation in ns within
    it, choice); of choices with equal times only one. Yields None from time to time, so that the caller can check the time
    limit.

    stage: the stage's index. first: its first layer. end: the layer after its last. configuration: numbers of stages and
    micro-batches, with the layers' costs. instance: the configurations (numbers of stages and micro-batches) to choose
    from, with the costs of layers under each strategy, and the memory limit.
    """
    choices = {}
    options = range(len(configuration.tables.strategies))
    for visited, choice in enumerate(product(options, repeat=end - first)):
        if visited % EVERY == 0:
            yield None
        costs = evaluate_stage(instance, configuration, stage, first, choice)
        if costs.peak_bytes <= instance.memory_bytes:
            choices[costs.time_ns, costs.sync_ns] = choice
    return [(*times, choice) for times, choice in choices.items()]
