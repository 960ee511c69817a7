"""Every plan of a tiny instance, one after the other: what brute force looks at."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import combinations, pairwise, product
from math import comb

from trainplan.formulations.pipeline.problem import Configuration, Instance, Solution, evaluate_stage

EVERY = 4096  # ways between two moments to look at the clock

Split = Callable[[int, int], tuple[int, ...]]  # layers of each stage, of a number of layers and of stages
Ways = list[tuple[int, int, tuple[int, ...]]]  # time, synchronisation and choice of a stage


def plan_count(instance: Instance, split: Split | None = None) -> int:
    """The number of partitions and choices in all configurations. split: the only partition."""
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
    """Every plan that fits and takes less time than those before it; None is a moment to look at the clock.

    configurations: those of the instance, as its objective counts them. split: the only partition, where not all of them count.
    iteration_ns: time of a plan by the place of its configuration and its stages' times and synchronisation.
    """
    best, looked = float("inf"), 0
    for index, configuration in enumerate(configurations):
        ways: dict[tuple[int, int, int], Ways] = {}
        for cuts in combinations(range(1, instance.layers), configuration.stages - 1):
            stages = [(number, *span) for number, span in enumerate(pairwise((0, *cuts, instance.layers)))]
            sizes = tuple(end - first for _, first, end in stages)
            if split and sizes != split(instance.layers, configuration.stages):
                continue
            for stage in stages:
                if stage not in ways:
                    ways[stage] = yield from _ways(instance, configuration, *stage)
            for plan in product(*(ways[stage] for stage in stages)):
                looked += 1
                if looked % EVERY == 0:
                    yield None
                times, syncs, choices = zip(*plan, strict=True)
                time = iteration_ns(index, times, syncs)
                if time < best:
                    best = time
                    yield Solution(index, sizes, sum(choices, ()))


def _ways(instance: Instance, configuration: Configuration, stage: int, first: int, end: int) -> Generator[None, None, Ways]:
    """Every way to run a stage in the memory; one choice of those that take equal times."""
    choices = {}
    options = range(len(configuration.tables.strategies))
    for looked, choice in enumerate(product(options, repeat=end - first)):
        if looked % EVERY == 0:
            yield None
        costs = evaluate_stage(instance, configuration, stage, first, choice)
        if costs.peak_bytes <= instance.memory_bytes:
            choices[costs.time_ns, costs.sync_ns] = choice
    return [(*times, choice) for times, choice in choices.items()]
