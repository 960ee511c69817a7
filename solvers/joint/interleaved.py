"""Interleaved configurations: all solutions of tiny ones; of others, unless none of their choices fits, bounds and plans of
`fixed_cuts` where cuts are fixed, else a few plans, with the closed form as their bound.

Chunks of one site share its memory, moment by moment, so stages cannot be bounded one by one as those of other schedules can.
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

TINY = 20_000  # solutions that are all looked at
MOST_PASSES = 20_000  # of a pipeline that is simulated pass by pass


def interleaved(instance: Instance, configuration_index: int, bound: float, search: Search) -> float:
    """Report the plans of a configuration that are tried; what is proven of it: infinite where all have been, else the bound
    that is known. Raises TimeoutError."""
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
