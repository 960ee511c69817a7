"""The comparison of several solution methods on one instance."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from trainplan.solvers.core.result import Result
from trainplan.tabular import Tabular


class _Pair(NamedTuple):
    """The two lists of a comparison of solving methods: a result for each method, and a text for each contradiction between
    methods.
    """

    results: list[Result]
    contradictions: list[str]


class Comparison(Tabular, _Pair):
    """Results of several solving methods on one instance.

    results: one for each method. contradictions: a text for every contradiction between two methods, such as a bound above
    another method's objective. instance: the instance's name.
    """

    instance: str = ""
    headings: ClassVar = {
        "method": "method",
        "status": "status",
        "time_ns": "time",
        "bound_ns": "lower bound",
        "gap": "gap",
        "above": "above best",
        "seconds": "seconds",
    }
    drawn_by = "trainplan.pictures.comparisons:draw_comparison"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each method: `instance` (its name), `method`, `status`, `time_ns`, `bound_ns`, `gap`, `peak_bytes`,
        `seconds`, and `above`: the method's time over the best method's, minus 1.
        """
        best = min((result.objective for result in self.results if result.objective is not None), default=None)
        rows = []
        for result in self.results:
            above = None if result.objective is None or not best else result.objective / best - 1
            rows.append({"instance": self.instance, "method": result.method, **result.row(), "above": above})
        return rows

    @property
    def unfinished(self) -> list[str]:
        """The names of the methods that an interrupt ended; the methods after these were not run."""
        return [result.method for result in self.results if result.stopped == "interrupt"]

    def notes(self) -> list[str]:
        """Lines for people below the table: why nothing fits, which methods were interrupted, and contradictions between
        methods."""
        reasons = [str(result.reason) for result in self.results if result.reason]
        ended = [f"{name} was interrupted; methods after it were not run" for name in self.unfinished]
        return [*reasons[:1], *ended, *(f"contradiction: {text}" for text in self.contradictions)]
