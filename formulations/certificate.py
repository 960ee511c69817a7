"""How claims about the solutions of an instance are proven without any solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trainplan.formulations.plan.request import Request


class Certificate(ABC):
    """Bounds that are followed without any solver. The evidence of them is gathered by solvers (`Methods.evidence` of
    `solvers.core.method_registry`) and written into the plan's file."""

    @abstractmethod
    def checked_bound_ns(self, instance: Any, proof: Mapping[str, Any] | None) -> int:
        """The nanoseconds that no solution of an instance is below, as a proof shows, or without one as the instance shows.

        proof: the evidence of solvers in its file format, or None. Raises ValueError where the proof is of another instance, or
        shows less than it claims.
        """

    @abstractmethod
    def any_schedule_bound_ns(self, instance: Any, solution: Any) -> int | None:
        """The nanoseconds that no step with the stages and strategies of a solution is below, whatever its order of passes and
        whatever memory that needs; None where no such bound is known."""

    @abstractmethod
    def settled_options(self, instance: Any, request: Request) -> dict[str, Any]:
        """The options of a request in which this one of its instances is the only one, as the evidence states them."""
