"""cluster-strategy one (pp, dp, tmp) and micro-batch size at a time, as the models state it."""

from __future__ import annotations

from collections.abc import Callable

from trainplan.formulations.cluster_strategy.group_compositions import Case, cases
from trainplan.formulations.cluster_strategy.problem import Instance
from trainplan.formulations.problem import Subproblem
from trainplan.profiling.base.errors import TooLarge
from trainplan.solvers.cluster.bounds import even_stages_ns, one_pipeline_ns
from trainplan.solvers.cluster.one_pipeline import followed


def subproblems(instance: Instance, out_of_time: Callable[[], bool]) -> list[Subproblem]:
    """A part for each Degrees, with a bound. Raises TooLarge where a group may have too many makes to state."""
    if not all(case.statable for case in cases(instance)):
        raise TooLarge("instance", "", "has too many kinds of groups of devices to state each of them", "give --method exact")
    bounded = []
    for degrees in instance.degrees():
        case = Case(instance, degrees, reduced=True)
        pipelines = followed(case, out_of_time)
        bound = even_stages_ns(case) if pipelines is None else one_pipeline_ns(pipelines, None, out_of_time)[0]
        bounded.append(Subproblem(Case(instance, degrees), bound))
    return bounded
