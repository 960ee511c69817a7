"""The price of a constraint: by how much the least step is longer with it than without it, as far as that is proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.profiling.base.quantities import format_share, format_time
from trainplan.solvers.core.answer import Answer

LEAST_GAIN = 0.001  # of a step, below which no gain is reported


@dataclass(frozen=True)
class Price:
    """The price of one constraint of a request: how much longer the shortest step is with it than without it.

    Attributes:
        constraint: the constraint as the command's options write it, such as `--pipeline 4`.
        without: the solver's answer to the request without the constraint, whose objective is no larger than with it; None
            if the time was up.
        predicted_ns: only for the constraint to one runtime: the predicted step, without that constraint, of the plan that
            was found.
    """

    constraint: str
    without: Answer | None
    predicted_ns: int | None = None

    @property
    def steps_ns(self) -> tuple[int | None, int | None]:
        """Two times in ns for the request without the constraint: a lower bound on the shortest step, and the shortest step
        that is known; None for what is not known.
        """
        return (None, None) if self.without is None else (self.without.bound_ns, self.without.objective_ns)

    def share(self, constrained: Answer) -> tuple[float, float | None] | None:
        """The least and the most by which the constraint may lengthen the shortest step, as fractions of the step without it
        (0.1 is 10%).

        Both follow from the lower bounds and the best steps of the two answers, with and without the constraint: they are equal
        if both answers are proven optimal; the most is None if there is no lower bound without the constraint. Returns None if
        no plan is known with the constraint, or none without it. constrained: the answer with the constraint."""
        bound, best = self.steps_ns
        if best is None or constrained.objective_ns is None:
            return None
        least = 0.0 if constrained.bound_ns is None else max(0.0, constrained.bound_ns / best - 1)
        return least, None if not bound else constrained.objective_ns / bound - 1

    def text(self, constrained: Answer) -> str:
        """The price as a text for people: a single percentage if both steps are proven optimal, otherwise a range or why it is
        not known. constrained: the answer with the constraint."""
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

    def predicted_text(self, step_ns: int | None) -> str:
        """The price of the constraint to one runtime as a text for people, by predicted steps: how much faster the plan is that
        was found without it. step_ns: the predicted step with the constraint; None if there is no plan with it."""
        if self.predicted_ns is None or step_ns is None:
            return "not known in the time"
        if (gain := 1 - self.predicted_ns / step_ns) < LEAST_GAIN:
            return "nothing faster is known without it, by predicted steps"
        return f"{format_share(gain)}: {format_time(self.predicted_ns)} a step or less without it, as predicted"

    def to_dict(self, constrained: Answer) -> dict[str, Any]:
        """The price as a JSON-ready dict. Keys: `constraint`, as the command's options write it; `step_ns`, the shortest known
        step without the constraint, and `bound_ns`, a lower bound on that step, both None if `without` is None; `share`, a pair
        (least, most), a list in JSON: by what fraction of the step without the constraint (0.1 is 10%) the constraint makes the
        step longer, at least and at most; `predicted_ns`, the attribute of that name.

        In `share`, most is None if no upper limit is proven; instead of the pair there is None if no plan is known with the
        constraint, or none without it (also if `without` is None). constrained: the solver's answer to the request with the
        constraint."""
        bound, best = self.steps_ns
        known = {"constraint": self.constraint, "bound_ns": bound, "step_ns": best, "share": self.share(constrained)}
        return {**known, "predicted_ns": self.predicted_ns}
