"""cluster-strategy one (pp, dp, tmp) and micro-batch size at a time, as the models state it."""

from __future__ import annotations

from collections.abc import Callable

from trainplan.formulations.cluster_strategy.makes import cases
from trainplan.formulations.cluster_strategy.problem import Instance
from trainplan.formulations.problem import Part
from trainplan.solvers.cluster.bounds import bounded_cases
from trainplan.solvers.core.search import Unsuited


def parts(instance: Instance, out_of_time: Callable[[], bool]) -> list[Part]:
    """A part for each Degrees, with a bound. Raises Unsuited where a group may have too many makes to state."""
    if not all(case.statable for case in cases(instance)):
        problem = "states every group of devices, and this cluster has too many kinds of them"
        raise Unsuited("command line", "--method", problem, "give 'exact'")
    return [Part(case, bound) for case, bound in bounded_cases(instance, out_of_time)]
