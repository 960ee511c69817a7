"""The optimum that plans of Galvatron's engine can be compared with, and the reason why nothing fits.

The iteration time rises with the stages' times C_i without synchronisation, except for the synchronisation that is not hidden,
which is at least 0. So the least such times of the stages of the even partition give a lower bound for a configuration
(`silent_bound`).
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
    """Find the best plan over all configurations (numbers of stages and micro-batches with their cost tables) of the instance,
    with layers split evenly into stages, and prove a lower bound of the iteration time.

    search: limits of the run, and the best solution so far, which is written to: plans are reported to it as they are found.
    The Outcome has in `bound` the lower bound in ns, which is the minimum over lower bounds of all configurations; for
    configurations that were not solved before the time ran out, it is a quickly computed one. `infeasible` is True if no plan
    fits into memory. The method has no options.
    """
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
    """A lower bound in ns of the iteration time of a configuration (cost tables for a number of stages and micro-batches),
    from times without gradient synchronisation.

    silent_ns: for every stage, a lower bound in ns of its time for one micro-batch without gradient synchronisation. The
    result is a lower bound because the iteration time does not fall when one of these times rises, and synchronisation that
    is not hidden is only added to it.
    """
    return iteration_ns(replace(configuration, ends_ns=(0, 0)), silent_ns, [0] * len(silent_ns))


def _quick_bound(instance: Instance, configuration: Configuration) -> int:
    """A quickly computed lower bound in ns of the iteration time of a configuration (cost tables for a number of stages and
    micro-batches) with layers split evenly into stages: every layer takes its fastest strategy, whatever memory it needs.
    instance: layers with the cost tables of all configurations.
    """
    silent_ns = (configuration.tables.time_ns - configuration.tables.sync_ns).min(axis=1)
    spans = spans_of_sizes(even_partition(instance.layers, configuration.stages))
    return silent_bound(configuration, [int(sum(silent_ns[k] for k in instance.layer_kinds[a : b + 1])) for a, b in spans])


def _stages(instance: Instance, configuration: Configuration, tables: Tables, weight: int = 1) -> list[StageInstance]:
    """Split the choice of strategies into one small problem per stage of the even partition: choose strategies of the stage's
    layers within the device's memory.

    instance: layers with the cost tables of all configurations. configuration: numbers of stages and micro-batches. tables:
    cost tables of the layers. weight: the number of micro-batches whose time is counted; exactly one of them synchronises
    gradients.
    """
    return [
        instance.span(tables, first, last, configuration.in_flight(number), (weight, 1))
        for number, (first, last) in enumerate(spans_of_sizes(even_partition(instance.layers, configuration.stages)))
    ]


def _configuration_bound(instance: Instance, index: int, search: Search) -> int | None:
    """A lower bound in ns of the iteration time of one configuration (cost tables for a number of stages and micro-batches),
    given by its index in the instance; None if a stage does not fit into memory, or no choice was found for it in time.
    search: limits of the run, and the best solution so far, which is written to.

    The stages' times are minimised twice: without and with gradient synchronisation. Without a pipeline the iteration time is
    the larger of m C and m C + G - e, and so is the bound: m is the number of micro-batches, C the time of one micro-batch, G
    the synchronisation, e the time of embedding and head.
    """
    configuration = instance.configurations[index]
    counted, alone = configuration.counted.tables, configuration.stages == 1
    silent = replace(counted, time_ns=counted.time_ns - counted.sync_ns, sync_ns=0 * counted.sync_ns)
    bound, partition = 0, even_partition(instance.layers, configuration.stages)
    weight = configuration.micro_batches if alone else 1
    for tables in (silent, counted):
        optima = [_exact(stage, search) for stage in _stages(instance, configuration, tables, weight)]
        sums, choices = [optimum[0] for optimum in optima if optimum], [optimum[1] for optimum in optima if optimum]
        if len(sums) < len(optima):
            return None
        search.report(Solution(index, partition, sum(choices, ())))
        if tables is silent:
            bound = silent_bound(configuration, [total // weight for total in sums])
            if search.objective is not None and bound >= search.objective:
                break
        elif alone:
            bound = max(bound, sums[0] - sum(configuration.ends_ns))
    return bound


def _exact(stage: StageInstance, search: Search) -> tuple[int, tuple[int, ...]] | None:
    """Choose the strategies for the layers of one stage exactly, within the time that `search`, the limits of the run, has
    left.

    Returns the least time of the stage in ns (or, if time ran out, a lower bound of it) and the best strategies found, as one
    index per layer; None if no choice was found.
    """
    inner = search.inner(judge(stage))
    label_setting(stage, inner)
    if inner.best is None or inner.objective is None:
        return None
    proven = inner.objective if inner.bound is None else min(inner.bound, inner.objective)
    return proven, tuple(int(s) for s in inner.best)


def explain(instance: Instance) -> Infeasibility | None:
    """Explain to users why no solution of the instance fits into memory, by the example of the solution that needs the least
    memory.
    """
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
