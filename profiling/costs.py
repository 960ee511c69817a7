"""Cost primitives: what a collective costs on a link, and what two things cost that overlap.

Ring algorithms (Galvatron-BMW, Section III-A; Patarasuk and Yuan, 2009): with message M and n ranks each device sends and
receives (n-1)/n M for an all-gather or a reduce-scatter and twice that for an all-reduce, in n-1 steps a phase.
"""

from __future__ import annotations

from trainplan.profiling.clusters import Island

PHASES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


def ring_ns(operation: str, message_bytes: float, ranks: int, link: Island) -> float:
    """Nanoseconds of a ring collective of `message_bytes` (the whole message, gathered or reduced) over `ranks` devices."""
    phases = PHASES[operation]
    steps = phases * (ranks - 1)
    return steps * (message_bytes / ranks / link.bandwidth_bytes_per_s * 1e9 + link.latency_ns)


def overlapped_ns(x_ns: float, y_ns: float, slowdown: float) -> float:
    """Time of `x` and `y` run at once when both are `slowdown` times slower while they overlap (Galvatron-BMW, Section V)."""
    return max(x_ns, y_ns) + (slowdown - 1) * min(x_ns, y_ns)
