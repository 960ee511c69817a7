"""The registered methods of pipeline-partition."""

from __future__ import annotations

from dataclasses import replace

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, entry, proving

BOUNDED_STAGES = "bounds from micro-batches followed through one stage, the rest simulated"
READING = Option("reading", ("paper", "published"))

METHODS = Methods(
    (
        replace(proving("branch-and-bound", "partition.exact", BOUNDED_STAGES), starts=True),
        *MODELS,
        entry("autopipe", "partition.autopipe", "AutoPipe's master-stage heuristic", READING),
        entry("algorithm-1", "partition.autopipe", "the least largest stage, AutoPipe's start"),
        entry("megatron", "partition.planners", "even numbers of Transformer layers"),
        entry("piper", "partition.planners", "the least time per sample, between layers"),
        entry("dapple", "partition.planners", "DAPPLE's pivot-stage latency, between layers"),
    ),
    explain="trainplan.solvers.assignment.memory:explain",
    cheap_bound="trainplan.solvers.partition.heuristic:cheap_bound",
    first_plan="trainplan.solvers.partition.heuristic:first_plan",
)
