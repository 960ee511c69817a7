"""`trainplan explain`: why a plan is as it is, or what two plans differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from trainplan import api
from trainplan.command import options, render_plans
from trainplan.command.options import Command, Outcome, flag, takes, word
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.limits import TIME_LIMIT_S


def command(name: str, words: Sequence[str]) -> Command:
    """The command."""
    return explain


@takes(
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
        rows, parted = api.compare_plans([plan, other]), api.differences(plan, other)
        content = {"plans": rows, "differences": [asdict(each) for each in parted]}
        return Outcome(content, partial(render_plans.two_plans, rows, parted, (str(plan), str(other))))
    explained = api.explain(plan, profile=profile, time_limit=TIME_LIMIT_S if time_limit is None else time_limit)
    code = options.FINE if explained.complete else options.STOPPED
    return Outcome(explained.to_dict(), partial(render_plans.explained, explained), code=code)
