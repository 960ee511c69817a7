"""The table of methods that solve memory-switches."""

from __future__ import annotations

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, entry, proving

TABLE_OPTIONS = Option("version", ("pruned", "basic")), Option("levels")
RANDOM = "the paper's Algorithm 1: the best of many, or the last that fits, as published"

METHODS = Methods(
    (
        proving("label-setting", "switches.exact", "exact DP with dominance and bounds"),
        *MODELS,
        entry("h3t-dp", "switches.h3t_dp", "the paper's DP on a memory grid, Algorithm 4 or 3", *TABLE_OPTIONS),
        entry("h3t-greedy", "switches.h3t", "the paper's Algorithm 2"),
        entry("random", "switches.h3t", RANDOM, Option("samples"), Option("answer", ("best", "last"))),
        entry("manual", "switches.h3t", "the best combination for all layers alike"),
        entry("zero-2", "switches.h3t", "ZeRO-2 with host optimizer and recomputation"),
        entry("zero-3", "switches.h3t", "ZeRO-3 with host optimizer and recomputation"),
    ),
    explain="trainplan.solvers.switches.exact:explain",
    fits="trainplan.solvers.switches.exact:fits",
    at_least_memory="trainplan.solvers.switches.exact:at_least_memory",
    cheap_bound="trainplan.solvers.switches.heuristic:cheap_bound",
    first_plan="trainplan.solvers.switches.heuristic:first_plan",
)
