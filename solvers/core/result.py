"""The result of a method on an instance, and its presentation to users."""

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
    """The best objective and bound, in ns, known `seconds` after the start. source: the method or solver that has just improved
    one of them."""

    seconds: float
    objective: int | None
    bound: int | None
    source: str | None = None


@dataclass(frozen=True)
class Infeasibility:
    """Why nothing fits: the least memory in bytes of any choice, the layer whose pass needs it, and what to change.

    memory_bytes: the limit. least_memory_bytes: the least peak of any choice. state_bytes, activation_bytes: its two parts,
    which users see under the names `parts`. bound_bytes: given where the least of all is not known: then no choice needs less
    than this, and least_memory_bytes is what one known choice needs.
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
        """The reason as text, with the command's options (such as --memory) in its advice; `str` names Python's arguments
        instead."""
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
    """Why nothing fits into a memory limit that all devices share, with standard advice.

    limit_bytes: the limit. least_bytes: the least peak of any known choice, state_bytes of it model states. layer, layer_name:
    where it occurs. advice: what to change other than the limit. bound_bytes: as in `Infeasibility`.
    """
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
    """Text of a memory peak in bytes and where it occurs: the layer in whose backward pass, or else the time in the step,
    whichever is given."""
    moment = "" if peak_ns is None else f"{format_time(peak_ns)} into the step"
    return f"{format_bytes(peak_bytes)}, " + (f"backward pass of {layer}" if layer else moment)


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """The relative gap (objective - bound) / objective; None where one of them is missing, 0 where the objective is 0."""
    if objective is None or bound is None:
        return None
    return (objective - bound) / objective if objective else 0.0


@in_one_line
@dataclass(frozen=True)
class Result:
    """The checked outcome of one method on one instance.

    status: `optimal` only where the bound meets the objective on the integers, or within `tolerance`, the relative gap that the
    caller accepts; `feasible`: there is a solution, not proven optimal; `infeasible`: proven, with a reason where one is known;
    `unknown`: no solution found; `failed`: the method broke, or its answer did not stand up to the checks (see `message`).
    objective: nanoseconds of the solution, recomputed by the problem's `evaluate`. bound: lower bound in ns on all solutions;
    bound_source: the method that proved it. gap: (objective - bound) / objective. solution: the solution in its file format;
    solution_source: the method or solver that found it first, possibly the fast one that another method began from. evaluation:
    time and memory of the solution. build_seconds, solve_seconds: time that counts towards a limit; import_seconds: time for
    importing packages and starting processes, which does not. stopped: what ended the method before it was done, if anything
    did.
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
        """All fields under their own names, as plain JSON values."""
        return json.loads(json.dumps(asdict(self)))

    def row(self) -> dict[str, Any]:
        """The numbers that tables show: status, time_ns, bound_ns, gap, peak_bytes, seconds."""
        peak = self.evaluation.get("peak_bytes") if self.evaluation else None
        numbers = {"time_ns": self.objective, "bound_ns": self.bound, "gap": self.gap, "peak_bytes": peak}
        return {"status": self.status, **numbers, "seconds": self.build_seconds + self.solve_seconds}

    def run_rows(self) -> list[tuple[str, str]]:
        """The lines of `summary` about the run itself, as (label, text): the seconds it took, and what stopped it."""
        seconds = f"{self.build_seconds:.3f} build, {self.solve_seconds:.3f} solve, plus {self.import_seconds:.3f} imports"
        article = "an" if self.stopped == "interrupt" else "the"
        return [("seconds", seconds), *([("stopped by", f"{article} {self.stopped}")] if self.stopped else [])]

    def summary(self, *, flags: bool = False) -> list[tuple[str, str]]:
        """The lines that users see, as (label, text). flags: name the command's options, not Python's arguments."""
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
