"""Progress for people, on standard error and only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trainplan.command.printing import err
from trainplan.profiling.base.errors import printable
from trainplan.profiling.base.quantities import format_bytes
from trainplan.solvers.core.result import Point
from trainplan.tabular import cell_text

HEARD: ContextVar[Callable[[str], object]] = ContextVar("HEARD", default=lambda text: None)  # is told of progress, too


def searching(text: str) -> AbstractContextManager[Any]:
    """Progress of a search: a callback for points, or for (method, point)."""

    def shown(*event: Any) -> dict[str, Any]:
        point: Point = event[-1]
        prefix = f"{text} {event[0]}" if len(event) > 1 else text
        return {"description": f"{prefix}: best {cell_text('_ns', point.objective)}, bound {cell_text('_ns', point.bound)}"}

    return _live(text, shown)


def trying() -> AbstractContextManager[Any]:
    """Progress of a search over batch sizes: a callback for (planner, point)."""

    def shown(planner: Any, point: Any) -> dict[str, Any]:
        rate = f"{point.throughput:.2f} samples/s" if point.throughput else "does not fit"
        return {"description": f"{planner.label}: batch {point.batch}, {rate}"}

    return _live("planning", shown)


def trials(text: str) -> AbstractContextManager[Any]:
    """Progress of trials: a callback for the reports of their processes."""

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        subject = f"{text} rank {event['plan'] + 1}"
        if "step" not in event:
            return {"description": f"{subject}: {event['status']}"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{subject}: step {step}"}

    return _live(text, shown)


def sweeping(text: str) -> AbstractContextManager[Any]:
    """Progress of a frontier: a callback for each method and its point."""
    return _live(text, lambda name, point: {"description": f"{text}: {name}, {format_bytes(point.memory_bytes)}"})


def working(text: str) -> AbstractContextManager[Any]:
    """Progress of measuring or running: a callback for reports of the processes."""

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        if "of" in event:
            return {"total": event["of"], "completed": event["done"], "description": f"{text}: {event['shape']}"}
        if "step" not in event:
            return {"description": f"{text}: comparing with one process"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{text}: step {step}, loss {event['loss']:.4f}"}

    return _live(text, shown)


@contextmanager
def measuring(wanted: bool) -> Iterator[Any]:
    """Progress of measuring, or of estimating; no callback where nothing is measured."""
    with working("measuring" if wanted else "estimating") as progress:
        yield progress if wanted else None


def planning() -> AbstractContextManager[Any]:
    """Progress of planning: a callback for what is begun, for points of the search, and for reports of measuring."""
    doing = "planning"

    def shown(event: Any) -> dict[str, Any]:
        nonlocal doing
        if isinstance(event, str):
            doing = event
            return {"total": None, "completed": 0, "description": doing}
        if isinstance(event, Point):
            return {"description": f"{doing}: best {cell_text('_ns', event.objective)}, bound {cell_text('_ns', event.bound)}"}
        return {"total": event["of"], "completed": event["done"], "description": f"{doing}: {event['shape']}"}

    return _live(doing, shown)


@contextmanager
def _live(text: str, shown: Callable[..., dict[str, Any]]) -> Iterator[Any]:
    """A bar on a terminal, and the callback that changes it. shown: what of the bar an event changes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(text, total=None)

        def update(*event: Any) -> None:
            changes = _printable(shown(*event))
            progress.update(task, **changes)
            HEARD.get()(changes.get("description", text))

        yield update


def _printable(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: printable(value) if isinstance(value, str) else value for name, value in changes.items()}
