"""Which part of a request, and of all plans that a problem could make, its instances cover."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from trainplan.formulations.plan.request import Request


class RequestScope(ABC):
    """The part of a user's request, and of all conceivable plans, that a problem's instances cover.

    An instance holds the numbers that a solver searches; a request holds the user's model, cluster, batch and options.
    """

    @abstractmethod
    def unsupported_reason(self, request: Request) -> str | None:
        """The reason, in words, why this problem cannot express a request fully, so that another problem should be used; None
        if it can.
        """

    @abstractmethod
    def clipped_request(self, request: Request) -> Request:
        """The request with its options and memory reduced to what the requested optimizer and runtime allow; instances are
        built from it. Raises InputError if they allow nothing."""

    @abstractmethod
    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """Texts that name the plans which a request's options, its devices' links and the cost model exclude from the search,
        such as `--pipeline 4`. A lower bound proves nothing about excluded plans. cost_model: the name of the instances' cost
        model."""

    @abstractmethod
    def unusual_costs_reason(self, request: Request) -> str | None:
        """The reason, in words, why a request is planned with another cost model than the requested devices usually have, so
        that its times do not compare with those of usual plans; None if the cost model is the usual one, or if the user
        chose it.
        """

    @abstractmethod
    def outside(self, instance: Any, narrower: Any, left_out: str) -> Any | None:
        """The solutions of an instance that a user's constraint excludes, as an instance of their own, so that the best plan
        without the constraint is the better of this instance's best solution and the best solution with the constraint.

        instance: the instance without the constraint. narrower: the instance of the same request with the constraint.
        left_out: the parameter name of the constraint. Returns None if the constraint excludes nothing, and the whole
        `instance` if the excluded solutions cannot be separated.
        """
