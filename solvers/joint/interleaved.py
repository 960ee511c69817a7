"""Configurations with interleaved stages: all solutions of tiny ones; of others bounds and plans by `fixed_cuts` where cuts are
fixed, and else a few plans, with the closed form as their bound.

Chunks of one device group share its memory, moment by moment, so stages cannot be bounded one by one as those of other
schedules can.
"""

from __future__ import annotations

from math import inf

import numpy as np
from trainplan.formulations.joint.enumeration import improving, solution_count
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.fixed_cuts.search import fixed_cuts
from trainplan.solvers.joint.heuristics import even_plans
from trainplan.solvers.joint.memory_feasibility.interleaved_memory import leanest

TINY = 20_000  # solutions, up to which all are evaluated
MOST_PASSES = 20_000  # of a pipeline that is simulated pass by pass


def interleaved(instance: Instance, configuration_index: int, bound: float, search: Search) -> float:
    """Search a configuration with an interleaved schedule (each device group runs several stages), and report its plans to the
    search. Returns a lower bound in ns on the step times of its plans; infinite if it is proven that no plan other than those
    reported is better than the best plan known.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far, to which better ones are reported.
    bound: the known lower bound in ns. Raises TimeoutError."""
    part, configuration = instance.only([configuration_index]), instance.configurations[configuration_index]
    if solution_count(part) <= TINY:
        for solution in improving(part):
            search.check_time()
            if solution is not None:
                search.report(Solution(configuration_index, solution.cuts, solution.choice))
        return inf
    lean = leanest(instance, configuration_index)
    if lean.bound_bytes > 0:
        return inf
    if lean.excess_bytes <= 0 and search.objective is None:
        search.report(lean.solution)
    apart = configuration.tied is None or configuration.tied.once is None
    if configuration.cuts is not None and configuration.reduction is None and apart:
        return fixed_cuts(instance, configuration_index, bound, search)
    if 2 * configuration.stages * configuration.micro_batches <= MOST_PASSES:
        for solution in even_plans(instance, configuration_index):
            search.check_time()
            search.report(solution)
    return bound if np.isfinite(bound) else inf
