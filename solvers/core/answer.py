"""The answer to a request: the best of the instances that a problem makes of it, and what is proven of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainplan.solvers.core.result import Result


@dataclass(frozen=True)
class Answer:
    """instance: the one whose solution is best. result: of the method on it. solution: None where nothing was found.

    objective_ns, bound_ns: what is claimed of the solution, and of all solutions of all instances: the claim's numbers, in the
    problem's own terms (which may count more than `result` does). alternatives: a row for each instance that was tried.
    """

    instance: Any
    result: Result
    solution: Any
    objective_ns: int | None
    bound_ns: int | None
    alternatives: tuple[dict[str, Any], ...] = field(default_factory=tuple)

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective."""
        if self.objective_ns is None or self.bound_ns is None:
            return None
        return (self.objective_ns - self.bound_ns) / self.objective_ns if self.objective_ns else 0.0

    @property
    def status(self) -> str:
        """`optimal` where the bound meets the objective within the tolerance that was asked for; else the method's status."""
        if self.gap is None:
            return self.result.status if self.objective_ns is None else "feasible"
        return "optimal" if self.gap <= self.result.tolerance else "feasible"


# A searcher is called with a problem's instances, a method's name, and the keyword arguments of `solvers.core.solve.solve`.
Searcher = Callable[..., Answer]


def best_answer(instances: Sequence[Any], method: str, **arguments: Any) -> Answer:
    """Solve the instances one after the other; the best solution counts, and the least of their bounds."""
    raise NotImplementedError
