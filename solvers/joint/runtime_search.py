"""The best plan for a runtime by the runtime's own prediction, with a lower bound of the prediction of every plan."""

from __future__ import annotations

from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.runtime_least import LeastPrediction
from trainplan.solvers.core.search import CUTOFF, Outcome, Search

SOURCE = "bounds of the runtime's prediction over all cuts"
PREDICTED = "the runtime's prediction of every plan that the bounds leave"
UNKNOWN = "no plan can be predicted as this runtime runs it"


def runtime_search(instance: Instance, search: Search) -> Outcome:
    """Find the plan with the shortest step that the instance's runtime is predicted to take, among those that fit into memory
    as the runtime is predicted to hold it. instance: the configurations to choose from, with a runtime. search: the run's
    limits and options, and its best solution so far, to which better ones are reported."""

    def found(solution: Solution) -> None:
        search.report(solution, source=PREDICTED)

    def proven(bound_ns: int) -> None:
        search.report(bound=bound_ns if search.objective is None else min(bound_ns, search.objective), source=SOURCE)

    least = LeastPrediction(instance, search.target, search.out_of_time, found, proven)
    least.run()
    if search.best is None and least.nothing_left and search.options.get(CUTOFF) is None:
        message = None if least.counts["candidates"] else UNKNOWN
        return Outcome(infeasible=True, message=message, statistics=least.counts)
    bound = least.bound_ns or None
    if bound is not None and search.objective is not None:
        bound = min(bound, search.objective)
    return Outcome(search.best, bound, SOURCE, statistics=least.counts)
