"""Step time against memory: what methods for memory switches find under a row of limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.memory_switches.problem import Instance
from trainplan.planning import LARGEST_MEMORY
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.registry import problem
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

LIMITS = 12  # of a frontier
SLOW = ("milp", "cpsat", "brute-force")


@dataclass(frozen=True)
class FrontierPoint:
    """What one method found under one memory limit."""

    memory_bytes: int
    result: Result

    def to_dict(self) -> dict[str, Any]:
        return {"memory_bytes": self.memory_bytes, "result": self.result.to_dict()}


def switch_frontier(
    instance: Instance,
    limits: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = 30,
    seed: int = 0,
    progress: Callable[[str, FrontierPoint], None] | None = None,
) -> list[FrontierPoint]:
    """Every method under every memory limit, method by method; the instance's own limit does not count.

    limits: bytes of one device, rising (default: twelve, from the least that anything fits into to what the shortest step
    needs). methods: names (default: all but the MILP, CP-SAT and brute force). time_limit: seconds for each. progress: called
    with the method and what it found. Raises InputError.
    """
    names = list(methods) if methods is not None else [name for name in _names(instance) if name not in SLOW]
    limits = memory_limits(instance) if limits is None else limits
    for limit in limits:
        if not 0 < limit <= LARGEST_MEMORY:
            raise InputError("limits", "", f"hold {limit}", "give bytes of one device, above 0")
    found = []
    for name in names:
        for limit in limits:
            result = solve(replace(instance, memory_bytes=limit), name, time_limit=time_limit, seed=seed)
            found.append(FrontierPoint(limit, result))
            if progress:
                progress(name, found[-1])
    return found


def _names(instance: Instance) -> list[str]:
    return [entry.name for entry in problem(instance.problem).methods]


def memory_limits(instance: Instance, count: int = LIMITS) -> list[int]:
    """Bytes from the least that anything fits into to what the shortest of all steps needs, evenly spaced."""
    reason = problem(instance.problem).explainer()(replace(instance, memory_bytes=1))
    ample = solve(replace(instance, memory_bytes=LARGEST_MEMORY), "exact")
    assert reason is not None and ample.evaluation is not None
    least, most = reason.least_memory_bytes, ample.evaluation["peak_bytes"]
    return [least + (most - least) * step // (count - 1) for step in range(count)]
