"""`trainplan compare`, plans side by side, and `compare-planners`, the papers' planners beside the joint optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars, options, render, render_plans
from trainplan.command.options import Command, Outcome, flag, flags_of, takes, word
from trainplan.planning.presets import DEFAULT, PRESETS
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import read_data

METHODS, PLANNERS = "trainplan compare-methods INSTANCE", "trainplan compare-planners MODEL CLUSTER"
# Options of `compare` once, when it solved, too; by option the command that has them now.
MOVED = dict.fromkeys(("--method", "--time-limit", "--solver-memory", "--seed", "--cold", "--warm"), METHODS)
MOVED |= dict.fromkeys(("--model", "--cluster", "--batch", "--gap"), PLANNERS)


def command(name: str, words: Sequence[str]) -> Command:
    """The command of that name. Raises InputError for an option of `compare` that another command has now."""
    if name == "compare-planners":
        return compare_planners
    for option in (text.split("=")[0] for text in words):
        if option in MOVED:
            raise InputError(COMMAND_LINE, option, "is no option of compare, which is of plan files", f"use `{MOVED[option]}`")
    return compare


@takes(
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


ASKED = [*options.REQUEST[:-1], *flags_of(PRESETS[DEFAULT].parameters)]


@takes(options.WORDS, ASKED, options.panel(options.SEARCHING, [options.EACH_LIMIT, *options.SEARCH[3:6]]))
def compare_planners(**values: Any) -> Outcome:
    """Say what each paper's planner loses on a model and a cluster against the joint optimum.

    All plans are predicted alike, without overlap, which is the step that the joint problem minimises.
    """
    asked = {name: value for name, value in options.from_words(values).items() if value not in (None, [])}
    with bars.planning() as progress:
        rivals = api.compare_planners(**asked, progress=progress)
    code = options.FINE if any(rival.step_ns is not None for rival in rivals) else options.INFEASIBLE
    code = options.STOPPED if any(rival.stopped == "interrupt" for rival in rivals) else code
    return Outcome([rival.to_dict() for rival in rivals], partial(render.rivals, rivals), {}, code)
