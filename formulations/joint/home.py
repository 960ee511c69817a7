"""The functions of the problem, by the names that the protocol of problems gives them."""

from __future__ import annotations

from trainplan.formulations.joint.evaluation import describe, evaluate, violations
from trainplan.formulations.joint.files import load, load_solution, solution_dict

__all__ = ["describe", "evaluate", "load", "load_solution", "solution_dict", "violations"]
