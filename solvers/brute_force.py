"""Every solution, one after the other: the judge of tiny instances."""

from __future__ import annotations

from functools import cache
from itertools import combinations, count, pairwise, product
from math import comb, prod

from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import evaluate
from trainplan.formulations.pipeline.problem import Configuration, Solution, even_partition, iteration_ns, stage_costs
from trainplan.formulations.pipeline.problem import Instance as PipelineInstance
from trainplan.solvers.search import Outcome, Search, Unsuited

LARGEST = 2_000_000
EVERY = 4096  # solutions between two looks at the clock

Stages = list[tuple[int, int, tuple[int, ...]]]


def brute_force(instance: StageInstance | PipelineInstance, search: Search) -> Outcome:
    """The optimum of an instance with at most two million solutions. Raises Unsuited for a larger one."""
    known = _solutions(instance)
    if known > LARGEST:
        shown = f"{known:.3g}" if known < 10**300 else "over 1e300"
        raise Unsuited(
            "command line", "--method", f"is 'brute-force' for {shown} choices", "give 'exact'; brute force takes 2e6"
        )
    try:
        if isinstance(instance, PipelineInstance):
            _each_solution(instance, search)
        else:
            _each_choice(instance, search)
    except TimeoutError:
        return Outcome(message="time ran out")
    if search.objective is None:
        return Outcome(infeasible=True, bound_source="enumeration of all choices")
    search.report(bound=search.objective)
    return Outcome(bound=search.objective, bound_source="enumeration of all choices")


def _solutions(instance: StageInstance | PipelineInstance) -> int:
    if not isinstance(instance, PipelineInstance):
        return prod(instance.options)
    cuts = instance.layers - 1
    return sum(
        comb(cuts, given.stages - 1) * len(given.tables.strategies) ** instance.layers for given in instance.configurations
    )


def _each_choice(instance: StageInstance, search: Search) -> None:
    for number, choice in enumerate(product(*(range(options) for options in instance.options))):
        _look(number, search)
        result = evaluate(instance, choice)
        if result.peak_bytes <= instance.memory_bytes and (search.objective is None or result.time_ns < search.objective):
            search.report(choice)


def _each_solution(instance: PipelineInstance, search: Search) -> None:
    number = count()
    for place, given in enumerate(instance.configurations):

        @cache
        def stages(stage: int, first: int, end: int, given: Configuration = given) -> Stages:
            """Time, synchronisation and choice of every way to run a stage in the memory; one choice of equal ones."""
            found = {}
            for choice in product(range(len(given.tables.strategies)), repeat=end - first):
                _look(next(number), search)
                costs = stage_costs(instance, given, stage, first, choice)
                if costs.peak_bytes <= instance.memory_bytes:
                    found[costs.time_ns, costs.sync_ns] = choice
            return [(*costs, choice) for costs, choice in found.items()]

        for cuts in combinations(range(1, instance.layers), given.stages - 1):
            spans = list(pairwise((0, *cuts, instance.layers)))
            sizes = tuple(end - first for first, end in spans)
            if given.iteration == "published" and sizes != even_partition(instance.layers, given.stages):
                continue
            for plan in product(*(stages(stage, *span) for stage, span in enumerate(spans))):
                _look(next(number), search)
                times, syncs, choices = zip(*plan, strict=True)
                time = iteration_ns(given, times, syncs)
                if search.objective is None or time < search.objective:
                    search.report(Solution(place, sizes, sum(choices, ())))


def _look(number: int, search: Search) -> None:
    if number % EVERY == 0 and search.out_of_time():
        raise TimeoutError
