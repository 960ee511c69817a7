"""The interface by which claims about the solutions of an instance are proven without any solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trainplan.formulations.plan.request import Request


class Certificate(ABC):
    """Bounds on an instance that are recomputed from evidence, without trusting a solver.

    Solvers gather the evidence (`Methods.evidence` of `solvers.core.method_registry`), which is written into the plan's file.
    """

    @abstractmethod
    def checked_bound_ns(self, instance: Any, proof: Mapping[str, Any] | None) -> int:
        """A number of nanoseconds that no solution of an instance is below, as a proof shows; without a proof, as the instance
        shows.

        proof: the evidence of solvers in its file format, or None. Raises ValueError where the proof belongs to another
        instance, or shows less than it claims.
        """

    @abstractmethod
    def any_schedule_bound_ns(self, instance: Any, solution: Any) -> int | None:
        """A number of nanoseconds that no step with a solution's stages and strategies is below, whatever its order of passes
        and whatever memory that needs; None where no such bound is known."""

    @abstractmethod
    def settled_options(self, instance: Any, request: Request) -> dict[str, Any]:
        """The request's options narrowed so that the given instance is the only one of the request, as evidence states them."""
