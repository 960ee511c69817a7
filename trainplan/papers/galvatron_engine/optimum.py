"""The optimum that the engine's plans can be held against, and why nothing fits.

The iteration time is monotone in the stages' times C_i without synchronisation, but for the unhidden synchronisation, which is
at least nothing: the least such times of the stages of the even partition bound a configuration (`silent_bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.pipeline.problem import Solution, spans_of_sizes
from trainplan.formulations.strategy_tables import Tables
from trainplan.papers.galvatron_engine.problem import Configuration, Instance, evaluate, even_partition, iteration_ns
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.result import Infeasibility
from trainplan.solvers.core.search import Outcome, Search, judge
from trainplan.solvers.pipeline.memory import reason


def published_optimum(instance: Instance, search: Search) -> Outcome:
    """Optimal over the even partition of every configuration, proved where the bound says so. It has no options."""
    bounds, infeasible, source = list[int](), True, "least own time of every stage"
    quick = [_quick_bound(instance, configuration) for configuration in instance.configurations]
    for index, bound in enumerate(quick):
        if search.objective is None or bound < search.objective:
            proven = _configuration_bound(instance, index, search)
            if search.out_of_time():
                message = "time ran out before every configuration was solved"
                return Outcome(bound=min([*bounds, *quick[index:]]), bound_source=source, message=message)
            if proven is None:
                continue
            bound, infeasible = proven, False
        bounds.append(bound)
    if infeasible:
        return Outcome(infeasible=True, bound_source="least memory over all stages")
    search.report(bound=min(bounds, default=0))
    return Outcome(bound=search.bound, bound_source=source)


def silent_bound(configuration: Configuration, silent_ns: Sequence[int]) -> int:
    """The iteration time of stages of these times without synchronisation: no plan with such stages is below it, since the
    iteration time rises with every such time, and adds what synchronisation is not hidden."""
    return iteration_ns(replace(configuration, ends_ns=(0, 0)), silent_ns, [0] * len(silent_ns))


def _quick_bound(instance: Instance, configuration: Configuration) -> int:
    """`silent_bound` of every layer at its least time without synchronisation, whatever memory it needs."""
    silent_ns = (configuration.tables.time_ns - configuration.tables.sync_ns).min(axis=1)
    spans = spans_of_sizes(even_partition(instance.layers, configuration.stages))
    return silent_bound(configuration, [int(sum(silent_ns[k] for k in instance.layer_kinds[a : b + 1])) for a, b in spans])


def _stages(instance: Instance, configuration: Configuration, tables: Tables, weight: int = 1) -> list[StageInstance]:
    """The stages of the even partition, with `weight` micro-batches of which one synchronises."""
    return [
        instance.span(tables, first, last, configuration.in_flight(number), (weight, 1))
        for number, (first, last) in enumerate(spans_of_sizes(even_partition(instance.layers, configuration.stages)))
    ]


def _configuration_bound(instance: Instance, place: int, search: Search) -> int | None:
    """The bound of one configuration, having reported what reaches it; None where a stage does not fit.

    Two sums are minimised, without and with synchronisation: without a pipeline, the larger of the two bounds is that of the
    larger of two sums, m C and m C + G - e.
    """
    configuration = instance.configurations[place]
    counted, alone = configuration.counted.tables, configuration.stages == 1
    silent = replace(counted, time_ns=counted.time_ns - counted.sync_ns, sync_ns=0 * counted.sync_ns)
    bound, partition = 0, even_partition(instance.layers, configuration.stages)
    weight = configuration.micro_batches if alone else 1
    for tables in (silent, counted):
        optima = [_exact(stage, search) for stage in _stages(instance, configuration, tables, weight)]
        sums, choices = [optimum[0] for optimum in optima if optimum], [optimum[1] for optimum in optima if optimum]
        if len(sums) < len(optima):
            return None
        search.report(Solution(place, partition, sum(choices, ())))
        if tables is silent:
            bound = silent_bound(configuration, [total // weight for total in sums])
            if search.objective is not None and bound >= search.objective:
                break
        elif alone:
            bound = max(bound, sums[0] - sum(configuration.ends_ns))
    return bound


def _exact(stage: StageInstance, search: Search) -> tuple[int, tuple[int, ...]] | None:
    """Least time of a stage, or a bound of it where time ran out, and a choice; None where none was found."""
    inner = search.inner(judge(stage))
    label_setting(stage, inner)
    if inner.best is None or inner.objective is None:
        return None
    proven = inner.objective if inner.bound is None else min(inner.bound, inner.objective)
    return proven, tuple(int(s) for s in inner.best)


def explain(instance: Instance) -> Infeasibility | None:
    """Why no solution fits, in the user's terms; None where one does."""
    best: Solution | None = None
    least = float("inf")
    for index, configuration in enumerate(instance.configurations):
        choice: tuple[int, ...] = ()
        for stage in _stages(instance, configuration, configuration.counted.tables):
            peak, options = least_memory(stage)
            if peak >= least:
                break
            choice += options
        else:
            best = Solution(index, even_partition(instance.layers, configuration.stages), choice)
            least = evaluate(instance, best).peak_bytes
    assert best is not None
    return reason(instance, best, evaluate(instance, best))
