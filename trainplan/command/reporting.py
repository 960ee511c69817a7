"""`trainplan report`: a plan as one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars
from trainplan.command.options import Command, Outcome, flag, output, takes, word
from trainplan.command.printing import line
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.limits import TIME_LIMIT_S


def command(name: str, words: Sequence[str]) -> Command:
    """The command."""
    return report


@takes(
    [
        word("plan", Path, "A plan file, as `plan -o` writes it."),
        output("Write the page here, such as report.html."),
        flag("profile", Path | None, "The profile that the plan was made from, if it was."),
        flag("compare", bool, "Search for the best plan with one strategy and by each paper's planner, too.", False),
        flag("time_limit", float, "Seconds to try other strategies, and for each planner.", TIME_LIMIT_S),
    ]
)
def report(plan: Path, output: Path | None, profile: Path | None, compare: bool, time_limit: float) -> Outcome:
    """Write a plan's report: one HTML page that needs no other file, with the plan by stage and unit, a timeline of the step
    that can be zoomed, memory by time and by kind, where time and memory go, bound and gap, and the comparison."""
    if output is None:
        raise InputError("command line", "--output", "is missing", "give a file, such as -o report.html")
    with bars.planning() as progress:
        page = api.report(plan, profile=profile, compare=compare, time_limit=time_limit, progress=progress)
    files: dict[str, Callable[[], Any]] = {"output": lambda: page}
    return Outcome({"plan": str(plan), "report": str(output), "bytes": len(page.encode())}, _show, files)


def _show() -> None:
    line("open it in a browser; it needs no network")
