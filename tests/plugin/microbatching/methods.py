"""The methods of the solvers of micro-batching: no method of their own, and the reason why nothing fits."""

from __future__ import annotations

from trainplan.solvers.core.method_registry import Methods
from trainplan.solvers.core.result import Infeasibility

from microbatching.definition import Instance

METHODS = Methods(explain="microbatching.methods:explain")


def explain(instance: Instance) -> Infeasibility | None:
    least = min(candidate.peak_bytes for candidate in instance.candidates)
    if least <= instance.memory_bytes:
        return None
    return Infeasibility(instance.memory_bytes, least, 0, "the stage", 0, least, (f"give {least} bytes",))
