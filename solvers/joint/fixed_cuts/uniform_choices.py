"""Configurations with fixed cuts whose units must all choose the same option: there are as few choices as options, and all that
matter are evaluated. All units have equally many options, and boundaries forbid every pair of different ones.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
from trainplan.formulations.joint.evaluation import evaluate, over_memory, shares_table, stage_bytes, stage_times, tables_of
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.stage_memory import peaks
from trainplan.formulations.joint.tables import FORBIDDEN
from trainplan.solvers.core.search import Search


def agreeing_choices(configuration: Configuration) -> int | None:
    """The number of choices of options in a configuration (number of stages and micro-batches, with a schedule) with fixed cuts
    whose units (sub-layers) must all choose the same option, such as a tensor-parallel degree for the whole model; None if its
    cuts are not fixed, or units may choose different options."""
    if configuration.cuts is None:
        return None
    units = [unit for tables in configuration.tables for unit in tables.units]
    count = len(units[0].options)
    boundaries = [boundary for tables in configuration.tables for boundary in tables.boundaries]
    if count == 1 or not boundaries or any(len(unit.options) != count for unit in units):
        return None
    own, same = np.arange(count), np.eye(count, dtype=bool)
    if not all(np.array_equal(unit.enter, own) and np.array_equal(unit.leave, own) for unit in units):
        return None
    for boundary in boundaries:
        apart = np.maximum(boundary.relayout_forward_ns, boundary.relayout_backward_ns) >= FORBIDDEN
        if not np.array_equal(apart, ~same):
            return None
    return count


def best_agreeing(
    instance: Instance, configuration_index: int, below: float, search: Search | None = None
) -> tuple[int, Solution] | None:
    """The best plan of a configuration (number of stages and micro-batches, with a schedule) with fixed cuts whose units
    (sub-layers) must all choose the same option: its step time in ns, and the solution; None if no plan that fits has a step
    shorter than `below` ns.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: gives the time limit, after which TimeoutError is raised; None for no limit. A choice is skipped
    without simulation if none of its stage times is shorter than in a choice that fits, since its step cannot be shorter."""
    configuration = instance.configurations[configuration_index]
    cuts, count = configuration.cuts, len(configuration.tables[0].units[0].options)
    assert cuts is not None
    timed, tied_ns = [], 0 if configuration.tied is None else configuration.tied.reduce_ns
    for s in range(count):
        solution = Solution(configuration_index, cuts, (s,) * instance.length)
        once = shares_table(configuration, solution.choice)
        tables = tables_of(instance, configuration, solution, once)
        stages = [stage_times(instance, configuration, solution, tables, x) for x in range(configuration.stages)]
        rows = [(*astuple(stage), 0 if once else tied_ns) for stage in stages]
        timed.append((np.array(rows, np.int64), tables, solution))
        if search is not None:
            search.check_time()
    best: tuple[int, Solution] | None = None
    fitting = list[np.ndarray]()
    for times, tables, solution in sorted(timed, key=lambda candidate: int(candidate[0].sum())):
        if any((times >= other).all() for other in fitting):
            continue
        if search is not None:
            search.check_time()
        sizes = [stage_bytes(instance, configuration, solution, tables, x) for x in range(configuration.stages)]
        limits = [instance.limit_bytes(configuration.device_group(x)) for x in range(configuration.stages)]
        if any(most > limit for (most, _), limit in zip(peaks(configuration, sizes), limits, strict=True)):
            continue
        evaluation = evaluate(instance, solution)
        if over_memory(instance, solution, evaluation):
            continue
        fitting.append(times)
        if evaluation.time_ns < (below if best is None else best[0]):
            best = evaluation.time_ns, solution
    return best
