"""Which part of a request, and of all plans that a problem could make, its instances cover."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from trainplan.formulations.plan.request import Request


class RequestScope(ABC):
    """Which part of a request, and of all plans that a problem could make, its instances cover."""

    @abstractmethod
    def unsupported_reason(self, request: Request) -> str | None:
        """Why the instances of a request leave out something that another problem may state, in words; None where they leave
        out nothing."""

    @abstractmethod
    def clipped_request(self, request: Request) -> Request:
        """The request reduced to the options and the memory that its optimizer and its runtime allow, as its instances have it.
        Raises InputError where they allow none."""

    @abstractmethod
    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """The plans that a request and the cost model leave out, as texts of the command's options; nothing is proven about
        them."""

    @abstractmethod
    def unusual_costs_reason(self, request: Request) -> str | None:
        """Why plans of a request have other costs than is usual for its devices, so that they do not compare with plans that
        have the usual ones, in words; None where they have the usual ones, or the user requested others."""

    @abstractmethod
    def outside(self, instance: Any, narrower: Any, left_out: str) -> Any | None:
        """The solutions of an instance that a narrower one lacks, as an instance: the best of both is the best of the whole
        instance.

        narrower: an instance of the same request with the constraint of the parameter `left_out` in addition. None where it
        lacks nothing; the whole instance where the two cannot be distinguished.
        """
