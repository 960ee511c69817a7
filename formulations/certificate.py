"""The interface by which claims about the solutions of an instance are proven without any solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trainplan.formulations.plan.request import Request


class Certificate(ABC):
    """Lower bounds on the objective of any solution of a problem's instance, recomputed from evidence without trusting a
    solver. An instance holds the costs and limits of one planning question.

    Solvers gather the evidence (`Methods.evidence` of `solvers.core.method_registry`), which is written into the plan's
    file.
    """

    @abstractmethod
    def checked_bound_ns(self, instance: Any, proof: Mapping[str, Any] | None) -> int:
        """A lower bound, in ns, on the objective of every solution of an instance, computed here from the evidence; a bound
        that is merely stated in the evidence is not trusted.

        instance: the problem's costs and limits. proof: the evidence that a solver gathered, in its JSON file format; with
        None, the weaker bound that follows from the instance alone. Raises ValueError if the proof belongs to another
        instance, or proves less than it claims.
        """

    @abstractmethod
    def any_schedule_bound_ns(self, instance: Any, solution: Any) -> int | None:
        """A lower bound, in ns, on the step of a solution's stages and strategies under every possible order of forward and
        backward passes, whatever memory the order needs; None if no such bound is known.
        """

    @abstractmethod
    def settled_options(self, instance: Any, request: Request) -> dict[str, Any]:
        """The options of a request (values of the problem's parameters, by name) with every choice fixed to the value that the
        instance has, so that building instances from them gives this instance alone. They are stored with the evidence, and
        `check` builds the instance from them again.
        """
