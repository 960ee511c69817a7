"""What a method gives back, and what users see of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainplan.profiling.base.display import html_table, in_one_line, rich_table
from trainplan.profiling.base.errors import as_arguments
from trainplan.profiling.base.quantities import enough_bytes, format_bytes, format_gap, format_time

Status = Literal["optimal", "feasible", "infeasible", "unknown", "failed"]
Stop = Literal["time limit", "memory limit", "model size", "interrupt"]


@dataclass(frozen=True)
class Point:
    """Best objective and bound known after `seconds`. source: the method or solver that has just bettered one of them."""

    seconds: float
    objective: int | None
    bound: int | None
    source: str | None = None


@dataclass(frozen=True)
class Infeasibility:
    """Why nothing fits: the least memory of any choice, the layer whose pass needs it, and what to change.

    bound_bytes: no choice needs less, where the least of all is not known; then least_memory_bytes is that of some choice.
    """

    memory_bytes: int
    least_memory_bytes: int
    peak_layer: int
    peak_layer_name: str
    state_bytes: int
    activation_bytes: int
    advice: tuple[str, ...]
    peak_pass: Literal["forward", "backward"] = "backward"
    parts: tuple[str, str] = ("model states", "activations")  # what state_bytes and activation_bytes are
    bound_bytes: int | None = None

    def __str__(self) -> str:
        return as_arguments(self.command_text)

    @property
    def command_text(self) -> str:
        """The reason with the command's options in its advice; `str` names Python's arguments."""
        states, others = self.parts
        least = "the least that would do is"
        if self.bound_bytes is not None:
            least = f"each needs at least {format_bytes(self.bound_bytes)}, and one needs"
        return (
            f"no choice fits into {format_bytes(self.memory_bytes)}: {least} "
            f"{format_bytes(self.least_memory_bytes)}, at the {self.peak_pass} pass of "
            f"{self.peak_layer_name} ({format_bytes(self.state_bytes)} {states}, "
            f"{format_bytes(self.activation_bytes)} {others}); " + "; or ".join(self.advice)
        )


def short_of_memory(
    limit_bytes: int,
    least_bytes: int,
    layer: int,
    layer_name: str,
    state_bytes: int,
    advice: str,
    bound_bytes: int | None = None,
) -> Infeasibility:
    """Why nothing fits into one limit of all devices. advice: what to change other than the limit; bound_bytes: see there."""
    more, over = (
        f"give --memory of at least {enough_bytes(least_bytes)} (the instance's memory_bytes)",
        least_bytes - limit_bytes,
    )
    texts = [more, advice]
    if over * 20 < limit_bytes:
        texts.append(f"free {format_bytes(over)} elsewhere on the device")
    activations = least_bytes - state_bytes
    parts = state_bytes, activations, tuple(texts)
    return Infeasibility(limit_bytes, least_bytes, layer, layer_name, *parts, bound_bytes=bound_bytes)


def peak_text(peak_bytes: int, layer: str | None, peak_ns: int | None) -> str:
    """The peak and its place: the layer in whose backward pass it is, or when in the step, whichever the problem tells."""
    moment = "" if peak_ns is None else f"{format_time(peak_ns)} into the step"
    return f"{format_bytes(peak_bytes)}, " + (f"backward pass of {layer}" if layer else moment)


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """(objective - bound) / objective; None where one of them is missing."""
    if objective is None or bound is None:
        return None
    return (objective - bound) / objective if objective else 0.0


@in_one_line
@dataclass(frozen=True)
class Result:
    """The outcome of one method on one instance.

    status: `optimal` only where the bound meets the objective on the integers, or within `tolerance`, a relative gap that the
    caller asked for; `feasible`: both are given; `infeasible`: proven, with a reason where one is known; `unknown`: no solution
    found; `failed`: the method broke, or its answer did not stand up to the checks (see `message`).
    objective: recomputed by the problem's `evaluate`. bound: no solution is below it; bound_source says who says so.
    gap: (objective - bound) / objective. solution: the solution in its file format; solution_source: the method or solver that
    has it first, which may be the fast one that another began from. evaluation: time and memory of it.
    build_seconds, solve_seconds: what counts towards a limit; import_seconds: importing packages and starting processes, apart.
    stopped: what ended the method before it was done, if anything did.
    """

    problem: str
    method: str
    status: Status
    objective: int | None
    bound: int | None
    gap: float | None
    solution: dict[str, Any] | None
    build_seconds: float
    solve_seconds: float
    history: tuple[Point, ...]
    seed: int
    versions: dict[str, str]
    instance_hash: str
    bound_source: str | None = None
    tolerance: float = 0.0
    evaluation: dict[str, Any] | None = None
    violations: tuple[str, ...] = ()
    reason: Infeasibility | None = None
    message: str | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    import_seconds: float = 0.0
    solution_source: str | None = None
    stopped: Stop | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields under their own names, as plain values."""
        return json.loads(json.dumps(asdict(self)))

    def row(self) -> dict[str, Any]:
        """The numbers of it that tables have: status, time_ns, bound_ns, gap, peak_bytes, seconds."""
        peak = self.evaluation.get("peak_bytes") if self.evaluation else None
        numbers = {"time_ns": self.objective, "bound_ns": self.bound, "gap": self.gap, "peak_bytes": peak}
        return {"status": self.status, **numbers, "seconds": self.build_seconds + self.solve_seconds}

    def run_rows(self) -> list[tuple[str, str]]:
        """Of `summary`, what the run took and what stopped it."""
        seconds = f"{self.build_seconds:.3f} build, {self.solve_seconds:.3f} solve, plus {self.import_seconds:.3f} imports"
        article = "an" if self.stopped == "interrupt" else "the"
        return [("seconds", seconds), *([("stopped by", f"{article} {self.stopped}")] if self.stopped else [])]

    def summary(self, *, flags: bool = False) -> list[tuple[str, str]]:
        """Label and text of each line that people want to see. flags: name the command's options, not Python's arguments."""
        rows = [("problem", self.problem), ("method", self.method), ("status", self.status)]
        if self.objective is not None:
            by = f", by {self.solution_source}" if self.solution_source not in (None, self.method) else ""
            rows.append(("time", f"{format_time(self.objective)}{by}"))
        if self.bound is not None:
            rows.append(("lower bound", f"{format_time(self.bound)}, by {self.bound_source}"))
        if self.gap is not None:
            asked = f" (asked for: {format_gap(self.tolerance)})" if self.tolerance else ""
            rows.append(("gap", f"{format_gap(self.gap)}{asked}"))
        if (costs := self.evaluation) and "peak_bytes" in costs:
            rows.append(("peak memory", peak_text(costs["peak_bytes"], costs.get("peak_layer_name"), costs.get("peak_ns"))))
        rows += self.run_rows()
        texts = {"reason": self.reason.command_text if self.reason else None, "message": self.message}
        rows += [(label, text if flags else as_arguments(text)) for label, text in texts.items() if text]
        return rows + [("violation", text) for text in self.violations]

    def __str__(self) -> str:
        return "\n".join(f"{label:<12} {text}" for label, text in self.summary())

    def __rich__(self) -> Any:
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        return html_table(self.summary())
