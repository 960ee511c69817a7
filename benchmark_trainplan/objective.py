"""The objective of the benchmark: the step of a plan, checked without trainplan's own code."""

import math

from benchopt import BaseObjective
from benchopt.stopping_criterion import NoCriterion

from trainplan.libraries.checking import checker


class Objective(BaseObjective):
    """The time of one training step, in ns, of a solution of an instance of the library; smaller is better.

    Results have `value`, the step over the best known one (1 is as good as the best known), `step_ns`, `bound_ns` (the lower
    bound that the method has proven), `gap` (to that bound, a fraction) and `violations`, the number of constraints that the
    final solution breaks as the checker finds them.
    """

    name = "step"
    min_benchopt_version = "1.10"
    requirements = ["pip::trainplan"]
    parameters = {}
    sampling_strategy = "callback"
    stopping_criterion = NoCriterion()
    test_dataset_name = "library"

    def set_data(self, entry):
        """entry: the library's entry, as the dict of its JSON file, with its instance."""
        self.entry = entry
        self.checks = checker().PROBLEMS[entry["problem"]]

    def get_objective(self):
        """The entry, for the solvers."""
        return {"entry": self.entry}

    def evaluate_result(self, step_ns, bound_ns, solution):
        """Measure a result.

        step_ns: the step that the method states, in ns; None if it has no solution. bound_ns: the lower bound that it states,
        or None. solution: the solution in its file format; None while the method still searches. A solution replaces the stated
        step by the one that the checker computes.
        """
        violations = 0
        if solution is not None:
            found = self.checks.evaluate(self.entry["instance"], solution)
            step_ns, violations = found.value, len(found.violations)
        best_ns = (self.entry.get("upper_bound") or {}).get("value")
        ratio = step_ns / best_ns if step_ns and best_ns else math.nan
        gap = 1 - bound_ns / step_ns if step_ns and bound_ns else math.nan
        return {"value": ratio, "step_ns": step_ns, "bound_ns": bound_ns, "gap": gap, "violations": violations}

    def get_one_result(self):
        """The best known solution of the entry, as a result."""
        best = self.entry["upper_bound"]
        return {"step_ns": best["value"], "bound_ns": None, "solution": best["solution"]}
