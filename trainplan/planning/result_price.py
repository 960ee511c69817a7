"""The price of a constraint: by how much the least step is longer with it, by what is proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.profiling.base.quantities import format_share, format_time
from trainplan.solvers.core.answer import Answer


@dataclass(frozen=True)
class Price:
    """The price of a constraint of a request.

    Attributes:
        constraint: as the command's options say it.
        without: the answer to the request without it, with no larger objective than with it; None where the time was up.
        predicted_ns: of the constraint to a runtime, the predicted step of that answer's plan, which is the one that `plan`
            without the constraint says of it.
    """

    constraint: str
    without: Answer | None
    predicted_ns: int | None = None

    @property
    def steps_ns(self) -> tuple[int | None, int | None]:
        """The bound on the least step without the constraint, and the best such step that is known; None for either where
        nothing is known."""
        return (None, None) if self.without is None else (self.without.bound_ns, self.without.objective_ns)

    def share(self, constrained: Answer) -> tuple[float, float | None] | None:
        """The least and the most by which the least step is longer with the constraint, as a share of the step without it, by
        the proofs of both: one number twice where both are proven optimal, None for the most where it has no limit. None where
        there is no plan with it, or none without it. constrained: the answer with it."""
        bound, best = self.steps_ns
        if best is None or constrained.objective_ns is None:
            return None
        least = 0.0 if constrained.bound_ns is None else max(0.0, constrained.bound_ns / best - 1)
        return least, None if not bound else constrained.objective_ns / bound - 1

    def text(self, constrained: Answer) -> str:
        """The price for people: a single number only where both steps are proven."""
        (bound, best), share = self.steps_ns, self.share(constrained)
        if self.without is None:
            return "the time was up"
        if best is None:
            return f"no plan without it, either: {self.without.result.status}"
        without = f"{format_time(best)} a step without it"
        if bound != best:
            without = f"{'less than' if bound is None else f'{format_time(bound)} to'} {without}"
        if share is None:
            return without
        least, most = share
        if most is None and not least:
            return f"at most {format_time(best)} a step without it; nothing more was proven in the time for prices"
        if least == most:
            return f"{format_share(least)}: {without}"
        if most is None:
            return f"at least {format_share(least)}: {without}, by the bounds of both"
        between = f"{format_share(least)} to {format_share(most)}" if least else f"up to {format_share(most)}"
        return f"{between}: {without}, by the bounds of both"

    def to_dict(self, constrained: Answer) -> dict[str, Any]:
        """The price as plain values. constrained: the answer with the constraint."""
        bound, best = self.steps_ns
        known = {"constraint": self.constraint, "bound_ns": bound, "step_ns": best, "share": self.share(constrained)}
        return {**known, "predicted_ns": self.predicted_ns}
