"""`trainplan plan`, its aliases for single presets (place, partition, switch), and `fit`; with what is near a request:
`plan --devices` and `plan --what-if`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from trainplan import api
from trainplan.api.requests import SearchOptions
from trainplan.command import bars, options, render
from trainplan.command.options import Command, Outcome, exit_code, flag, flags_of, options_of, output, panel, takes, value_of
from trainplan.formulations.plan.plan import plan_text
from trainplan.pictures import drawn
from trainplan.planning.certify import with_evidence
from trainplan.planning.every_runtime import SECONDS, RuntimePlan
from trainplan.planning.fewest_devices import Sizes, numbers_of
from trainplan.planning.presets import DEFAULT, MIXED, OTHERWISE, PRESETS, Preset, default_parameters, preset
from trainplan.planning.result import PlanningResult
from trainplan.planning.what_if import CHANGES, BetterBatch, WhatIf, better_batch, factors_of
from trainplan.profiling.base.errors import InputError
from trainplan.screens.fit import fit_screen
from trainplan.screens.near import batch_rows, sizes_rows, what_if_rows, with_rows
from trainplan.screens.plan import Row, screen
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
    if name == "fit":
        return _fit(words)
    like = value_of("--like", words, "") if name == "plan" else name
    return _plans() if like == ALL else _plan(preset(like) if like else None, name)


def _plan(chosen: Preset | None, verb: str) -> Command:
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)]) if verb == "plan" else []

    def plan(
        output: Path | None = None, details: bool = False, devices: str | None = None, what_if: str | None = None, **values: Any
    ) -> Outcome:
        values, began = options.from_words(values) | {"like": None if chosen is None else chosen.name}, perf_counter()
        with bars.planning() as progress:
            near = Near.of(devices, what_if, values, progress)
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
    around = NEAR_OPTIONS if verb == "plan" else []
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
            best = next((answer for answer in answers if isinstance(answer, PlanningResult) and answer.plan is not None), None)
            if best is not None and output is not None:
                certified = _certified(best, progress)
                answers, best = type(answers)(certified if answer is best else answer for answer in answers), certified
        content = [answer.command_text if isinstance(answer, InputError) else answer.to_dict() for answer in answers]
        show = partial(render.plans, answers)
        return Outcome(content, show, {}, options.INFEASIBLE) if best is None else Outcome(content, show, _files(best))

    return plan


def _by_runtime(answer: PlanningResult, limit: float | None, began: float) -> tuple[Sequence[RuntimePlan], float]:
    """The best plan of every runtime, and the seconds that were left for them: of the time limit, where one was given."""
    seconds = SECONDS if limit in (None, TIME_LIMIT_S) else max(0.0, limit - (perf_counter() - began))
    with bars.planning() as progress:
        return api.by_runtime(answer, seconds, progress), seconds


def _shown(answer: PlanningResult, near: Near, plan_file: Path | None, table: Table) -> None:
    """The screen of an answer at once, with what is near its request; and then, where nothing near it was asked for, the best
    plan of every runtime, once they are found or the time is up."""
    render.rows_of_screen(near.rows(screen(answer, plan_file)))
    if near.sizes is None and near.told is None:
        render.runtimes(*table())


def _content(answer: PlanningResult, near: Near, table: Table) -> dict[str, Any]:
    """The answer as plain values, with what is near its request and the best plan of every runtime."""
    return {**answer.to_dict(), **near.to_dict(), "runtimes": [row.to_dict() for row in table()[0]]}


def _certified(answer: PlanningResult, progress: Callable[[Any], None]) -> PlanningResult:
    """The answer with evidence of its claim, for its file."""
    return with_evidence(answer, progress)


def _files(answer: PlanningResult) -> dict[str, Callable[[], Any]]:
    """The files that can be written of an answer, by option: its plans, its profile, and its problem's picture of it, else the
    plan's."""
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


NEAR_OPTIONS = panel(
    options.SUBJECT,
    [
        flag(
            "devices",
            str | None,
            "Plan on the fewest devices on which something fits: any, or a range such as 16-512; CLUSTER says the kind, such "
            "as h100.",
        ),
        flag(
            "what_if",
            str | None,
            f"Say what other numbers of the cluster would change, such as network=1.2 for 20 % more; of {', '.join(CHANGES)}.",
        ),
    ],
)


@dataclass(frozen=True)
class Near:
    """The plan for a request, and what is near it. answer: None where no number of devices is known that would do."""

    answer: PlanningResult | None
    sizes: Sizes | None = None
    told: WhatIf | None = None
    batch: BetterBatch | None = None

    @classmethod
    def of(cls, devices: str | None, what_if: str | None, values: Mapping[str, Any], progress: Callable[[Any], None]) -> Near:
        """The answers to a request. Raises InputError: for what is near it before it is planned."""
        factors = None if what_if is None else factors_of(what_if)
        sizes = None
        if devices is None:
            answer = api.plan(progress=progress, measuring=progress, **values)
        else:
            numbers_of(devices)
            if values["cluster"] is None:
                raise InputError("command line", "--cluster", "is missing", "give the kind of device, such as h100")
            kept = {name: value for name, value in values.items() if name != "measure" or value}
            sizes = api.plan_sizes(devices=devices, progress=progress, **kept)
            if sizes.first is None:
                return cls(None, sizes)
            answer = sizes.first
        told = None
        if factors is not None and not answer.interrupted:
            told = api.what_if(answer, factors, time_limit=values["time_limit"], progress=progress)
        took = 0.0 if answer.spent is None else answer.spent.seconds
        left = took if values["time_limit"] is None else min(took, values["time_limit"] - took)
        batch = better_batch(answer, left, progress) if left > 0 else None
        return cls(answer, sizes, told, batch)

    def outcome(self) -> Outcome:
        """Where no number of devices is known that would do."""
        assert self.sizes is not None
        rows, proven = sizes_rows(self.sizes)[0], self.sizes.proven
        code = options.INFEASIBLE if proven else options.STOPPED
        return Outcome(self.to_dict(), lambda: render.rows_of_screen(rows), {}, code)

    def rows(self, screen: list[Row]) -> list[Row]:
        """The rows of the plan's screen with what is near it."""
        first, last = ([], []) if self.sizes is None else sizes_rows(self.sizes)
        last = [*last, *([] if self.told is None else what_if_rows(self.told))]
        return with_rows(screen, first, [*last, *([] if self.batch is None else batch_rows(self.batch))])

    def to_dict(self) -> dict[str, Any]:
        """What is near the request as plain values; nothing of what was not asked for or found."""
        near = {"devices": self.sizes, "what_if": self.told, "better_batch": self.batch}
        return {name: found.to_dict() for name, found in near.items() if found is not None}


def _fit(words: Sequence[str]) -> Command:
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)])
    request = [option for option in options.REQUEST if option.name != "measure"]  # what may not fit is not measured

    @takes(options.WORDS, like, request, flags_of(default_parameters()))
    def fit(**values: Any) -> Outcome:
        """Say whether a model fits on a cluster, and the least memory of a GPU that a plan of it needs; nothing is searched for
        speed.

        The memory is that of `plan`: predicted by the programs of the plan, with --for as that runtime holds it. Exit code 0
        where something fits, 1 where it is proven that nothing does, 3 where neither is known."""
        values = options.from_words(values)
        with bars.planning() as progress:
            found = api.fit(progress=progress, **values)
        code = {True: options.FINE, False: options.INFEASIBLE, None: options.STOPPED}[found.fits]
        rows = fit_screen(found, values["batch"] is not None, _plan_command(words))
        return Outcome(found.to_dict(), lambda: render.rows_of_screen(rows), {}, code)

    return fit


def _plan_command(words: Sequence[str]) -> str:
    """`plan` of the same words."""
    kept = [word for word in words if word not in ("--json",)]
    index = kept.index("fit") if "fit" in kept else -1
    return "trainplan plan " + shlex.join(kept[index + 1 :])
