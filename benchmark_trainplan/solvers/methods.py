"""The solvers of the benchmark: every method that trainplan has, the papers' planners among them."""

from benchopt import BaseSolver
from trainplan.formulations.problem import BUILT_IN

import trainplan as tp


class Solver(BaseSolver):
    """A method of trainplan by its name; instances of problems that do not have the method are skipped. MILP and CP-SAT begin
    without the plan of a fast method.

    time_limit: seconds that the method may take.
    """

    name = "trainplan"
    requirements = ["pip::trainplan"]
    parameters = {
        "method": sorted({method.name for problem in BUILT_IN for method in tp.methods(problem)} - {"brute-force"}),
        "time_limit": [10],
    }
    test_config = {"method": "milp", "time_limit": 10}

    def skip(self, entry):
        """Whether the entry's problem lacks the method, and a reason."""
        names = ["exact", *(method.name for method in tp.methods(entry["problem"]))]
        return (False, None) if self.method in names else (True, f"{self.method} is no method of {entry['problem']}")

    def set_objective(self, entry):
        """entry: the library's entry, as the dict of its JSON file, with its instance."""
        self.instance = tp.load(entry["instance"])
        self.found = {"step_ns": None, "bound_ns": None, "solution": None}

    def warm_up(self):
        """Import the method and start its solver's process, so that neither is measured."""
        tp.solve(self.instance, self.method, time_limit=0.01)

    def run(self, callback):
        """Solve the instance, with a call of `callback` at every better solution or bound, and after the last."""

        def progress(point):
            if point.objective is not None:
                self.found = {"step_ns": point.objective, "bound_ns": point.bound, "solution": None}
                callback()

        limits = {"time_limit": self.time_limit, "gap": 0.0, "seed": self.get_seed(use_repetition=True) % 2**31}
        result = tp.solve(self.instance, self.method, progress=progress, cold=True, **limits)
        self.found = {"step_ns": result.objective, "bound_ns": result.bound, "solution": result.solution}
        callback()

    def get_result(self):
        """The best solution and bound until now: `step_ns`, `bound_ns`, and `solution` once the search has ended."""
        return self.found
