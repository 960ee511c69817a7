"""What verbs list: plain lists that notebooks show as tables, and that have frames."""

from __future__ import annotations

from typing import Any, ClassVar

from trainplan.planning.result import Planned
from trainplan.planning.throughput import Throughput
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.entries import Entry
from trainplan.tabular import Tabular


class Plans(Tabular, list[Planned | InputError]):
    """Answers of several presets to one request, the shortest step first; the errors of those that it does not suit, last."""

    headings: ClassVar = {
        "like": "preset",
        "status": "status",
        "step_ns": "step",
        "peak_bytes": "peak memory",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "strategy": "strategy",
        "gap": "gap",
    }

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each answer, as of `Planned.frame`, with why there is none where there is none."""
        return [
            dict.fromkeys(self.headings) | {"like": "-", "status": str(each)} if isinstance(each, InputError) else each.as_row()
            for each in self
        ]


class ComparedPlans(Tabular, list[dict[str, Any]]):
    """Rows of plans, the shortest predicted step first."""

    headings: ClassVar = {
        "name": "plan",
        "step_ns": "step",
        "tokens_per_s_per_device": "tokens/s a device",
        "peak_bytes": "peak memory",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "bound_ns": "proven lower bound",
        "gap": "gap",
    }

    def rows(self) -> list[dict[str, Any]]:
        """The rows themselves, as of `planned.plan_row`."""
        return list(self)


class Throughputs(Tabular, list[Throughput]):
    """Planners with the batch size of their largest throughput."""

    headings: ClassVar = {"planner": "planner", "batch": "batch", "samples_per_s": "samples/s", "seconds": "seconds"}
    drawn_by = "trainplan.pictures.charts:draw_throughput"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each batch size of each planner: planner, batch, samples_per_s (0 where nothing fits), and best, whether
        it is the planner's largest; seconds: of all its searches."""
        return [
            {
                "planner": each.planner.label,
                "batch": point.batch,
                "samples_per_s": point.throughput,
                "best": point is each.best,
                "seconds": each.seconds,
            }
            for each in self
            for point in each.points
        ]


class Methods(Tabular, tuple[Entry, ...]):
    """The methods for a problem; `exact` stands for the first one."""

    headings: ClassVar = {"method": "method", "proves": "proves optimality", "about": "what it is", "options": "options"}

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each method: method, proves, about, options."""
        return [
            {"method": each.name, "proves": each.proves, "about": each.about, "options": ", ".join(map(str, each.options))}
            for each in self
        ]
