"""Commands that read plan files: `trainplan explain`, `report` and `compare`; and `compare-planners`, the papers' planners
against the joint optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars, options, render, render_plans
from trainplan.command.options import Command, Outcome, command_with, flag, flags_of, output, word
from trainplan.command.printing import line
from trainplan.planning.presets import DEFAULT, PRESETS
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import read_data
from trainplan.solvers.core.limits import TIME_LIMIT_S

METHODS, PLANNERS = "trainplan compare-methods INSTANCE", "trainplan compare-planners MODEL CLUSTER"
# Options that `compare` had in earlier versions, when it also solved instances: by option, the command that has it now.
MOVED = dict.fromkeys(("--method", "--time-limit", "--solver-memory", "--seed", "--cold", "--warm"), METHODS)
MOVED |= dict.fromkeys(("--model", "--cluster", "--batch", "--gap"), PLANNERS)


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for one of the commands `explain`, `report`, `compare` and `compare-planners`.

    name: the command's name. words: the command line, without the program's name. Raises InputError if the words of `compare`
    have an option that it had in earlier versions, when it also solved instances (MOVED).
    """
    if name != "compare":
        return {"explain": explain, "report": report, "compare-planners": compare_planners}[name]
    for option in (text.split("=")[0] for text in words):
        if option in MOVED:
            raise InputError(COMMAND_LINE, option, "is no option of compare, which is of plan files", f"use `{MOVED[option]}`")
    return compare


@command_with(
    [
        word("plan", Path, "A plan file, as `plan -o` writes it."),
        word("other", Path | None, "Another plan of the same model, to compare with the first.", None),
        flag("profile", Path | None, "The profile that the plan was made from, if it was."),
        flag("time_limit", float | None, f"Seconds to try other strategies of single sub-layers. [default: {TIME_LIMIT_S}]"),
    ]
)
def explain(plan: Path, other: Path | None, profile: Path | None, time_limit: float | None) -> Outcome:
    """Say where a plan's time and memory go, what changing a single sub-layer would gain or lose, and what prevents it;
    or, of two plans, their steps and what they differ in."""
    if other is not None:
        if profile is not None or time_limit is not None:
            raise InputError("command line", "other", "is given", "leave out --profile and --time-limit with two plans")
        rows, differences = api.compare_plans([plan, other]), api.differences(plan, other)
        content = {"plans": rows, "differences": [asdict(difference) for difference in differences]}
        return Outcome(content, partial(render_plans.two_plans, rows, differences, (str(plan), str(other))))
    explained = api.explain(plan, profile=profile, time_limit=TIME_LIMIT_S if time_limit is None else time_limit)
    code = options.FINE if explained.complete else options.STOPPED
    return Outcome(explained.to_dict(), partial(render_plans.explained, explained), code=code)


@command_with(
    [
        word("plan", Path, "A plan file, as `plan -o` writes it; or the folder of a study."),
        output("Write the page here, such as report.html."),
        flag("profile", Path | None, "The profile that the plan was made from, if it was."),
        flag("compare", bool, "Search for the best plan with one strategy and by each paper's planner, too.", False),
        flag("time_limit", float, "Seconds to try other strategies, and for each planner.", TIME_LIMIT_S),
    ]
)
def report(plan: Path, output: Path | None, profile: Path | None, compare: bool, time_limit: float) -> Outcome:
    """Write a plan's report: one HTML page that needs no other file, with the plan by stage and unit, a timeline of the step
    that can be zoomed, memory by time and by kind, where time and memory go, bound and gap, and the comparison. Of a study: its
    summary, pictures, failures and cells."""
    if output is None:
        raise InputError("command line", "--output", "is missing", "give a file, such as -o report.html")
    with bars.planning() as progress:
        page = api.report(plan, profile=profile, compare=compare, time_limit=time_limit, progress=progress)
    files: dict[str, Callable[[], Any]] = {"output": lambda: page}
    subject = "study" if plan.is_dir() else "plan"
    return Outcome({subject: str(plan), "report": str(output), "bytes": len(page.encode())}, _show, files)


def _show() -> None:
    """Print the line that tells how to read the report's file: "open it in a browser"."""
    line("open it in a browser; it needs no network")


@command_with(
    [
        word("plans", list[Path], "Plan files, as `plan -o` writes them."),
        flag("log", Path | None, "Of one plan: a log of its run, by Megatron-LM, torchtitan or DeepSpeed."),
    ]
)
def compare(plans: list[Path], log: Path | None) -> Outcome:
    """Hold plans side by side: the steps and the memory that are predicted of them, and what they differ in; or a plan with
    the log of its run.
    """
    if log is not None:
        if len(plans) != 1:
            raise InputError(COMMAND_LINE, "--log", f"is given with {len(plans)} files", "give one plan file")
        logged = api.compare_log(plans[0], log)
        return Outcome(logged.to_dict(), partial(render.logged, logged))
    for source in plans:
        content = read_data(source)
        if isinstance(content, Mapping) and "format" not in content and "problem" in content:
            raise InputError(str(source), "problem", "is of an instance, not of a plan", f"use `{METHODS}`")
    rows = api.compare_plans(plans)
    return Outcome(rows, partial(render_plans.side_by_side, rows))


PLANNING_OPTIONS = [*options.REQUEST[:-1], *flags_of(PRESETS[DEFAULT].parameters)]


@command_with(options.WORDS, PLANNING_OPTIONS, options.panel(options.SEARCHING, [options.EACH_LIMIT, *options.SEARCH[3:6]]))
def compare_planners(**values: Any) -> Outcome:
    """Say what each paper's planner loses on a model and a cluster against the joint optimum.

    All plans are predicted alike, without overlap, which is the step that the joint problem minimises.
    """
    given = {name: value for name, value in options.from_words(values).items() if value not in (None, [])}
    with bars.planning() as progress:
        rivals = api.compare_planners(**given, progress=progress)
    code = options.FINE if any(rival.step_ns is not None for rival in rivals) else options.INFEASIBLE
    code = options.STOPPED if any(rival.stopped == "interrupt" for rival in rivals) else code
    return Outcome([rival.to_dict() for rival in rivals], partial(render.rivals, rivals), {}, code)
