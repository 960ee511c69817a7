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
    """A moment in the course of a search: the best objective and bound in ns that were known `seconds` after the start.

    source: the method or solver that had just improved one of them.
    """

    seconds: float
    objective: int | None
    bound: int | None
    source: str | None = None


@dataclass(frozen=True)
class Infeasibility:
    """The reason why no solution fits the memory: the least memory in bytes of any choice, the layer whose pass needs it, and
    advice what to change.

    memory_bytes: the memory limit of a device. least_memory_bytes: the least peak of any choice, or of the best known one.
    peak_layer, peak_layer_name, peak_pass: where that peak occurs. state_bytes, activation_bytes: the two parts of the peak,
    which users see under the names `parts`. advice: texts for users, each with one change that would help. bound_bytes: a lower
    bound on the peak of any choice, given only if least_memory_bytes is not proven to be the least."""

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
        """The reason as text, with Python's arguments in its advice."""
        return as_arguments(self.command_text)

    @property
    def command_text(self) -> str:
        """The reason as one sentence for users of the command line: its advice names options such as --memory. `str` of this
        object names Python's arguments instead."""
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
    """The reason, with standard advice, why nothing fits into a memory limit that all devices share.

    limit_bytes: the limit. least_bytes: the least peak memory of any known choice; state_bytes: the part of that peak that
    model states take, the rest being activations. layer, layer_name: index and name of the layer whose backward pass has the
    peak. advice: a further text of advice, in addition to raising the limit. bound_bytes: a lower bound on the peak of any
    choice, if least_bytes is not proven to be the least; else None."""
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
    """A text for a memory peak and where it occurs, such as "2.5 GiB, backward pass of layer3". peak_bytes: the peak. layer:
    name of the layer whose backward pass has it, or None; peak_ns: the time of the peak in ns from the beginning of the step,
    named instead if layer is None."""
    moment = "" if peak_ns is None else f"{format_time(peak_ns)} into the step"
    return f"{format_bytes(peak_bytes)}, " + (f"backward pass of {layer}" if layer else moment)


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """The relative gap (objective - bound) / objective as a fraction. objective: the time in ns of a solution. bound: a lower
    bound in ns on all solutions. None if one of them is None, 0 if the objective is 0."""
    if objective is None or bound is None:
        return None
    return (objective - bound) / objective if objective else 0.0


@in_one_line
@dataclass(frozen=True)
class Result:
    """The checked outcome of one method on one instance.

    status: `optimal` only where the bound meets the objective on the integers, or within `tolerance`, the relative gap that the
    caller accepts; `feasible`: there is a solution, not proven optimal; `infeasible`: proven, with a reason where one is known;
    `unknown`: no solution found; `failed`: the method raised an error, or its answer contradicts the checks (see `message`).
    objective: nanoseconds of the solution, recomputed by the problem's `evaluate`. bound: lower bound in ns on all solutions;
    bound_source: the method that proved it. gap: (objective - bound) / objective. solution: the solution in its file format;
    solution_source: the method or solver that found it first, possibly the fast one that another method began from. evaluation:
    time and memory of the solution. build_seconds, solve_seconds: time that counts towards a limit; import_seconds: time for
    importing packages and starting processes, which does not. stopped: the reason why the method ended early, such as "time
    limit"; None if it was not stopped."""

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
        """The result as a dict of JSON values: every field of this class under its own name, such as `status`, `objective` and
        `bound` (both in ns), `gap` (a fraction), `solution` (a dict in its file format) and `evaluation` (a dict of times and
        bytes); None for what is unknown."""
        return json.loads(json.dumps(asdict(self)))

    def row(self) -> dict[str, Any]:
        """The numbers of this result as one row of a table that compares methods: status, time_ns, bound_ns, gap (a fraction),
        peak_bytes, and seconds of building and solving; a value that is not known is None."""
        peak = self.evaluation.get("peak_bytes") if self.evaluation else None
        numbers = {"time_ns": self.objective, "bound_ns": self.bound, "gap": self.gap, "peak_bytes": peak}
        return {"status": self.status, **numbers, "seconds": self.build_seconds + self.solve_seconds}

    def run_rows(self) -> list[tuple[str, str]]:
        """The lines of `summary` about the run itself, as pairs (label, text): the seconds that it took, and the reason why it
        was stopped, if it was."""
        seconds = f"{self.build_seconds:.3f} build, {self.solve_seconds:.3f} solve, plus {self.import_seconds:.3f} imports"
        article = "an" if self.stopped == "interrupt" else "the"
        return [("seconds", seconds), *([("stopped by", f"{article} {self.stopped}")] if self.stopped else [])]

    def summary(self, *, flags: bool = False) -> list[tuple[str, str]]:
        """The result as the lines that users see, each a pair (label, text). flags: name options of the command line (such as
        --memory) instead of Python's arguments in advice."""
        rows = [("problem", self.problem), ("method", self.method), ("status", self.status)]
        if self.objective is not None:
            by = f", by {self.solution_source}" if self.solution_source not in (None, self.method) else ""
            rows.append(("time", f"{format_time(self.objective)}{by}"))
        if self.bound is not None:
            rows.append(("lower bound", f"{format_time(self.bound)}, by {self.bound_source}"))
        if self.gap is not None:
            requested = f" (asked for: {format_gap(self.tolerance)})" if self.tolerance else ""
            rows.append(("gap", f"{format_gap(self.gap)}{requested}"))
        if (costs := self.evaluation) and "peak_bytes" in costs:
            rows.append(("peak memory", peak_text(costs["peak_bytes"], costs.get("peak_layer_name"), costs.get("peak_ns"))))
        rows += self.run_rows()
        texts = {"reason": self.reason.command_text if self.reason else None, "message": self.message}
        rows += [(label, text if flags else as_arguments(text)) for label, text in texts.items() if text]
        return rows + [("violation", text) for text in self.violations]

    def __str__(self) -> str:
        """The lines of `summary` as text."""
        return "\n".join(f"{label:<12} {text}" for label, text in self.summary())

    def __rich__(self) -> Any:
        """The lines of `summary` as a table of the rich library."""
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        """The lines of `summary` as an HTML table, for notebooks."""
        return html_table(self.summary())
