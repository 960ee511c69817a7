"""The registered methods of layer-strategies."""

from __future__ import annotations

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, entry, proving

GRANULARITY = Option("granularity_bytes", most=None)
ON_A_GRID = "Algorithm 3 on a memory grid, by default of 1000 steps or 10 a layer"

METHODS = Methods(
    (
        proving("label-setting", "chain.label_setting", "exact DP with dominance and bounds"),
        *MODELS,
        entry("galvatron-dp", "chain.galvatron_dp", ON_A_GRID, GRANULARITY),
    ),
    explain="trainplan.solvers.chain.least_memory:explain",
    cheap_bound="trainplan.solvers.chain.heuristic:cheap_bound",
    first_plan="trainplan.solvers.chain.heuristic:first_plan",
)
