"""The registered methods of stage-assignment."""

from __future__ import annotations

from trainplan.solvers.core.method_registry import MODELS, Methods, entry, proving

METHODS = Methods(
    (
        proving("sweep", "assignment.sweep", "shortest paths under falling caps on the largest stage"),
        *MODELS,
        entry("amp-dp", "assignment.amp_dp", "the paper's table of Eq. 6-8, blind to memory"),
        entry("uniform-layers", "assignment.even_stages", "even numbers of layers, Megatron's default"),
        entry("uniform-parameters", "assignment.even_stages", "the least largest number of parameters, DeepSpeed's"),
    ),
    explain="trainplan.solvers.assignment.memory:explain",
    cheap_bound="trainplan.solvers.assignment.heuristic:cheap_bound",
    first_plan="trainplan.solvers.assignment.heuristic:first_plan",
)
