"""The methods of the joint problem."""

from __future__ import annotations

from dataclasses import replace

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, proving
from trainplan.solvers.core.search import CUTOFF

DECOMPOSED = "bounds on all spans, a master over suffixes of stages, exact stages and fronts where it uses them"

LARGEST_JOBS = 1024
OPTIONS = (Option("jobs", most=LARGEST_JOBS), Option(CUTOFF))

METHODS = Methods(
    (
        replace(proving("decomposition", "joint.branch_and_bound", DECOMPOSED, *OPTIONS), starts=True),
        *MODELS,
    ),
    explain="trainplan.solvers.joint.memory_feasibility.minimum_memory:explain",
    cheap_bound="trainplan.solvers.joint.heuristics:cheap_bound",
    first_plan="trainplan.solvers.joint.heuristics:first_plan",
    fits="trainplan.solvers.joint.memory_feasibility.minimum_memory:fits",
    leanest="trainplan.solvers.joint.memory_feasibility.minimum_memory:leanest",
    evidence="trainplan.solvers.joint.certificate_search:evidence",
)
