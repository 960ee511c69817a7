"""`trainplan plan`, and its aliases for single presets: place, partition, switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from trainplan import api
from trainplan.api.requests import SearchOptions
from trainplan.command import bars, nearby, options, render
from trainplan.command.options import Command, Outcome, exit_code, flag, flags_of, options_of, output, panel, takes, value_of
from trainplan.formulations.plan.plan import plan_text
from trainplan.pictures import drawn
from trainplan.planning.certify import with_evidence
from trainplan.planning.every_runtime import SECONDS, RuntimePlan
from trainplan.planning.presets import DEFAULT, MIXED, OTHERWISE, PRESETS, Preset, default_parameters, preset
from trainplan.planning.result import Planned
from trainplan.profiling.base.errors import InputError
from trainplan.screens.plan import screen
from trainplan.solvers.core.limits import TIME_LIMIT_S

ALL = "all"
Table = Callable[[], tuple[Sequence[RuntimePlan], float]]
LIKE_HELP = (
    f"A preset ({', '.join(PRESETS)}), a problem, or '{ALL}' to compare all presets. "
    f"[default: {DEFAULT}; where it does not take what is asked for, {OTHERWISE}, on devices of several kinds {MIXED}, and the "
    "answer says why]"
)
OUTPUTS = panel(
    options.OUTPUT,
    [
        output("Write the plan here."),
        flag("uniform_output", Path | None, "Write the best plan with one strategy for all sub-layers here."),
        flag("save_profile", Path | None, "Write the profile used here."),
        options.PICTURE,
        flag("details", bool, "Print everything that is known of the plan, in place of the screen.", False),
    ],
)
ABOUT = """The plan is compiled, checked and simulated for time and memory before it is written. --details also gives the
best plan with one strategy for all sub-layers, and how much slower that is.

MFU is model FLOPs / (step time x peak FLOP/s of all devices in the model's dtype); model FLOPs are those of three forward
passes, recomputation left out. The bubble is the share of the devices' time in which nothing of theirs runs; communication is
exposed where no computation hides it."""
EVERY_RUNTIME = f"""Without --for and --like, the best plan of every runtime follows: the searches for these have
{SECONDS:.0f} s together, or what is left of --time-limit, and what they leave open is marked."""
BACKEND = panel(options.SEARCHING, options_of(SearchOptions, "jobs", "backend"))


def command(name: str, words: Sequence[str]) -> Command:
    """The command of that name with the options of its preset."""
    like = value_of("--like", words, "") if name == "plan" else name
    return _plans() if like == ALL else _plan(preset(like) if like else None, name)


def _plan(chosen: Preset | None, verb: str) -> Command:
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)]) if verb == "plan" else []

    def plan(
        output: Path | None = None, details: bool = False, devices: str | None = None, what_if: str | None = None, **values: Any
    ) -> Outcome:
        values, began = options.from_words(values) | {"like": None if chosen is None else chosen.name}, perf_counter()
        with bars.planning() as progress:
            near = nearby.Near.of(devices, what_if, values, progress)
            if near.answer is None:
                return near.outcome()
            answer = near.answer if output is None else _certified(near.answer, progress)
        code = exit_code(answer.result) if answer.needed_bytes is None else options.INFEASIBLE
        table = cache(partial(_by_runtime, answer, values.get("time_limit"), began))
        show = partial(render.planned, answer) if details or verb != "plan" else partial(_shown, answer, near, output, table)
        return Outcome(partial(_content, answer, near, table), show, _files(answer), code)

    after = f"\n\n{EVERY_RUNTIME}" if chosen is None else ""
    plan.__doc__ = f"{(chosen or preset(DEFAULT)).about}\n\n{ABOUT}{after}"
    parameters = default_parameters() if chosen is None else chosen.parameters
    around = nearby.OPTIONS if verb == "plan" else []
    return takes(options.WORDS, like, options.REQUEST, around, flags_of(parameters), options.SEARCH, BACKEND, OUTPUTS)(plan)


def _plans() -> Command:
    @takes(
        options.WORDS, panel(options.SUBJECT, [flag("like", str, LIKE_HELP, ALL)]), options.REQUEST, options.SEARCH[2:], OUTPUTS
    )
    def plan(output: Path | None = None, details: bool = False, **values: Any) -> Outcome:
        """The plans of all presets for one request, judged alike, the shortest predicted step first."""
        values = options.from_words(values)
        del values["like"], details  # all that is known of several plans is in their table
        with bars.planning() as progress:
            answers = api.plans(progress=progress, measuring=progress, **values)
            best = next((answer for answer in answers if isinstance(answer, Planned) and answer.plan is not None), None)
            if best is not None and output is not None:
                certified = _certified(best, progress)
                answers, best = type(answers)(certified if answer is best else answer for answer in answers), certified
        content = [answer.command_text if isinstance(answer, InputError) else answer.to_dict() for answer in answers]
        show = partial(render.plans, answers)
        return Outcome(content, show, {}, options.INFEASIBLE) if best is None else Outcome(content, show, _files(best))

    return plan


def _by_runtime(answer: Planned, limit: float | None, began: float) -> tuple[Sequence[RuntimePlan], float]:
    """The best plan of every runtime, and the seconds that were left for them: of the time limit, where one was given."""
    seconds = SECONDS if limit in (None, TIME_LIMIT_S) else max(0.0, limit - (perf_counter() - began))
    with bars.planning() as progress:
        return api.by_runtime(answer, seconds, progress), seconds


def _shown(answer: Planned, near: nearby.Near, plan_file: Path | None, table: Table) -> None:
    """The screen of an answer at once, with what is near its request; and then, where nothing near it was asked for, the best
    plan of every runtime, once they are found or the time is up."""
    render.rows_of_screen(near.rows(screen(answer, plan_file)))
    if near.sizes is None and near.told is None:
        render.runtimes(*table())


def _content(answer: Planned, near: nearby.Near, table: Table) -> dict[str, Any]:
    """All of an answer, what is near its request, and the best plan of every runtime."""
    return {**answer.to_dict(), **near.to_dict(), "runtimes": [row.to_dict() for row in table()[0]]}


def _certified(answer: Planned, progress: Callable[[Any], None]) -> Planned:
    """The answer with evidence of its claim, for its file."""
    return with_evidence(answer, progress)


def _files(answer: Planned) -> dict[str, Callable[[], Any]]:
    """What there is to write of an answer: its plan, its profile, and its problem's picture of it, else the plan's."""
    files: dict[str, Callable[[], Any]] = {}
    if (plan := answer.plan) is not None:
        files["output"] = lambda: plan_text(plan)
    uniform = answer.plan if answer.uniform is None else answer.uniform.plan
    if uniform is not None and uniform.one_strategy is not None:
        files["uniform_output"] = lambda: plan_text(uniform)
    if answer.request.obtained:
        files["save_profile"] = lambda: answer.request.obtained[0].model_dump_json(indent=1) + "\n"
    solution, drawing = answer.answer.solution, answer.problem.picture
    if solution is not None and drawing is not None:
        files["picture"] = partial(drawn(drawing), answer.instance, solution)
    elif answer.plan is not None:
        files["picture"] = partial(api.draw_plan, answer.plan, answer.performance)
    return files
