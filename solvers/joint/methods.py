"""The methods of the joint problem."""

from __future__ import annotations

from dataclasses import replace

from trainplan.solvers.core.entries import MODELS, Methods, Option, proving
from trainplan.solvers.core.search import CUTOFF

DECOMPOSED = "bounds on all spans, a master over suffixes of stages, exact stages and fronts where it uses them"

LARGEST_JOBS = 1024
OPTIONS = (Option("jobs", most=LARGEST_JOBS), Option(CUTOFF))

METHODS = Methods(
    (
        replace(proving("decomposition", "joint.exact", DECOMPOSED, *OPTIONS), starts=True),
        *MODELS,
    ),
    explain="trainplan.solvers.joint.least_memory:explain",
    cheap_bound="trainplan.solvers.joint.quick:cheap_bound",
    first_plan="trainplan.solvers.joint.quick:first_plan",
    fits="trainplan.solvers.joint.least_memory:fits",
    leanest="trainplan.solvers.joint.least_memory:leanest",
    evidence="trainplan.solvers.joint.evidence:evidence",
)
