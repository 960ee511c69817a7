"""Progress bars on standard error, drawn only on a terminal.

Each function is a context manager for one kind of work. It gives the callback for that work's progress reports, which updates
the bar, and passes the bar's text on to `LISTENER`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trainplan.command.ending import tell
from trainplan.command.printing import err
from trainplan.profiling.base.errors import printable
from trainplan.profiling.base.quantities import format_bytes
from trainplan.solvers.core.result import Point
from trainplan.tabular import cell_text

LINE_S = 30.0  # between two lines about a study where there is no terminal
# Called with the text of every progress report, also where no bar is drawn.
LISTENER: ContextVar[Callable[[str], object]] = ContextVar("LISTENER", default=lambda text: None)


def searching(text: str) -> AbstractContextManager[Any]:
    """A progress bar for searches of solvers: a context manager that yields the callback to report progress to.

    The callback takes (point), or (method's name, point) if several methods search; a point has the best objective and the best
    lower bound so far, in ns. text: what the bar shows before them.
    """

    def shown(*event: Any) -> dict[str, Any]:
        point: Point = event[-1]
        prefix = f"{text} {event[0]}" if len(event) > 1 else text
        return {"description": f"{prefix}: best {cell_text('_ns', point.objective)}, bound {cell_text('_ns', point.bound)}"}

    return _live(text, shown)


def trying() -> AbstractContextManager[Any]:
    """A progress bar for a search over batch sizes: a context manager that yields the callback to report progress to.

    The callback takes (planner, point) for every batch size that was tried; a point has the batch size, and the largest
    throughput of a plan for it in samples/s, which is 0 if no plan fits.
    """

    def shown(planner: Any, point: Any) -> dict[str, Any]:
        rate = f"{point.throughput:.2f} samples/s" if point.throughput else "does not fit"
        return {"description": f"{planner.label}: batch {point.batch}, {rate}"}

    return _live("planning", shown)


def trials(text: str) -> AbstractContextManager[Any]:
    """A progress bar for trial runs of plans: a context manager that yields the callback to report progress to.

    The callback takes a dict with "plan", the plan's index, and either "status", a text, or "step" and "steps", the number of
    the step that has ended and the number of steps. text: what the bar shows before them.
    """

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        subject = f"{text} rank {event['plan'] + 1}"
        if "step" not in event:
            return {"description": f"{subject}: {event['status']}"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{subject}: step {step}"}

    return _live(text, shown)


def sweeping(text: str) -> AbstractContextManager[Any]:
    """A progress bar for solving one instance under several memory limits: a context manager that yields the callback to report
    progress to.

    The callback takes (method's name, point), where the point has the memory limit that was solved, in bytes. text: what the
    bar shows before them.
    """
    return _live(text, lambda name, point: {"description": f"{text}: {name}, {format_bytes(point.memory_bytes)}"})


def working(text: str) -> AbstractContextManager[Any]:
    """A progress bar for measuring a profile or running a plan: a context manager that yields the callback to report progress
    to.

    The callback takes a dict. While a profile is measured it has "shape" (a text), "done" and "of" (numbers of shapes); while a
    plan runs, "step", "steps" and "loss"; without a step, it reports that the run is compared with one process. text: what the
    bar shows before them.
    """

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        if "of" in event:
            return {"total": event["of"], "completed": event["done"], "description": f"{text}: {event['shape']}"}
        if "step" not in event:
            return {"description": f"{text}: comparing with one process"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{text}: step {step}, loss {event['loss']:.4f}"}

    return _live(text, shown)


def studying(text: str) -> AbstractContextManager[Any]:
    """A progress bar for a study: a context manager that yields the callback to report progress to.

    The callback takes a `trainplan.studies.pace.Progress`. Without a terminal, its line is printed as well, at most once in
    LINE_S seconds. text: what the bar shows before it.
    """
    printed = time.monotonic()

    def shown(progress: Any) -> dict[str, Any]:
        nonlocal printed
        if not err.is_terminal and time.monotonic() - printed >= LINE_S:
            printed = time.monotonic()
            tell(f"{text}: {progress}")
        return {"total": progress.total, "completed": progress.done, "description": f"{text}: {progress}"}

    return _live(text, shown)


@contextmanager
def measuring(wanted: bool) -> Iterator[Any]:
    """A progress bar for obtaining a profile, which is measured if `wanted`, else estimated.

    A context manager that yields the callback for reports of measuring (dicts with "shape", "done" and "of"), or None if the
    profile is estimated.
    """
    with working("measuring" if wanted else "estimating") as progress:
        yield progress if wanted else None


def planning() -> AbstractContextManager[Any]:
    """A progress bar for planning: a context manager that yields the callback to report progress to.

    The callback takes either a text, which names the part of the work that begins; a `Point` of the search, with its best
    objective and lower bound in ns; or, while a profile is measured, a dict with "shape", "done" and "of".
    """
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
    """A progress bar on standard error, drawn on a terminal only: a context manager that yields the callback that updates it.

    text: the bar's text at the beginning. shown: is called with the callback's arguments, and returns the changes of the bar as
    keywords of rich's `Progress.update` (description, completed, total). LISTENER is called with every description, also if no
    bar is drawn.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(text, total=None)

        def update(*event: Any) -> None:
            changes = _printable(shown(*event))
            progress.update(task, **changes)
            LISTENER.get()(changes.get("description", text))

        yield update


def _printable(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes of a progress bar (keywords of rich's `Progress.update`) with control characters in their texts escaped."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in changes.items()}
