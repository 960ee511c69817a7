"""`trainplan plan`, its aliases for single presets (place, partition, switch), and `fit`.

`plan` can also answer requests near the given one: other numbers of devices (`--devices`), other numbers of the cluster
(`--what-if`), and another batch.
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
from trainplan.command.options import (
    Command,
    Outcome,
    command_with,
    exit_code,
    flag,
    flags_of,
    options_of,
    output,
    panel,
    value_of,
)
from trainplan.formulations.plan.plan import plan_text
from trainplan.pictures import drawn
from trainplan.planning.certify import with_evidence
from trainplan.planning.every_runtime import SECONDS, RuntimePlan
from trainplan.planning.fewest_devices import Sizes, numbers_of
from trainplan.planning.presets import DEFAULT, MIXED, OTHERWISE, PRESETS, Preset, default_parameters, preset
from trainplan.planning.result import PlanningResult
from trainplan.planning.what_if import CHANGES, BetterBatch, WhatIf, better_batch, factors_of
from trainplan.prediction.training_costs import CostRates, TrainingCosts
from trainplan.profiling.base.errors import InputError
from trainplan.screens.fit import fit_screen
from trainplan.screens.near import batch_rows, costs_rows, sizes_rows, what_if_rows, with_rows
from trainplan.screens.others import equal_plans
from trainplan.screens.plan import Row, screen
from trainplan.solvers.core.limits import TIME_LIMIT_S

ALL = "all"
COSTS = ("price", "tokens", "pue", "watts")  # options from which the costs of a training follow
Table = Callable[[], tuple[Sequence[RuntimePlan], float]]  # gives the best plan of each runtime, and the seconds for these
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
    """Return the function that typer runs for one of the commands `plan`, `fit`, `place`, `partition` and `switch`, with the
    options of the preset that it plans by.

    name: the command's name. words: the command line, without the program's name; for `plan`, its option `--like` names the
    preset.
    """
    if name == "fit":
        return _fit(words)
    like = value_of("--like", words, "") if name == "plan" else name
    return _plans() if like == ALL else _plan(preset(like) if like else None, name)


def _plan(chosen: Preset | None, verb: str) -> Command:
    """Return the function that typer runs for a command that makes one plan.

    chosen: the preset that plans; None if `--like` is not given, so that the request decides. verb: the command's name; `plan`
    alone also has the options --like, --devices and --what-if.
    """
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)]) if verb == "plan" else []

    def plan(
        output: Path | None = None, details: bool = False, devices: str | None = None, what_if: str | None = None, **values: Any
    ) -> Outcome:
        rates = CostRates(**{name: values.pop(name) for name in COSTS if name in values})
        values, began = options.from_words(values) | {"like": None if chosen is None else chosen.name}, perf_counter()
        with bars.planning() as progress:
            near = Near.of(devices, what_if, values, progress, rates)
            if near.answer is None:
                return near.outcome()
            answer = near.answer if output is None else _certified(near.answer, progress)
        code = exit_code(answer.result) if answer.needed_bytes is None else options.INFEASIBLE
        table = cache(partial(_by_runtime, answer, values.get("time_limit"), began))
        show = partial(_details, answer, near) if details or verb != "plan" else partial(_shown, answer, near, output, table)
        return Outcome(partial(_content, answer, near, table), show, _files(answer), code)

    after = f"\n\n{EVERY_RUNTIME}" if chosen is None else ""
    plan.__doc__ = f"{(chosen or preset(DEFAULT)).about}\n\n{ABOUT}{after}"
    parameters = default_parameters() if chosen is None else chosen.parameters
    around = NEAR_OPTIONS if verb == "plan" else []
    groups = (options.WORDS, like, options.REQUEST, around, flags_of(parameters), options.SEARCH, BACKEND, OUTPUTS)
    return command_with(*groups)(plan)


def _plans() -> Command:
    """Return the function that typer runs for `plan --like all`, which makes a plan by every preset."""

    @command_with(
        options.WORDS, panel(options.SUBJECT, [flag("like", str, LIKE_HELP, ALL)]), options.REQUEST, options.SEARCH[2:], OUTPUTS
    )
    def plan(output: Path | None = None, details: bool = False, **values: Any) -> Outcome:
        """The plans of all presets for one request, judged alike, the shortest predicted step first."""
        values = options.from_words(values)
        del values["like"], details  # there are no details of several plans beyond their table
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
    """The best plan for each runtime (Megatron-LM, torchtitan and so on), to be shown below the plan for a request, and the
    seconds that the searches for these plans had together.

    answer: the answer to the request. limit: the command's time limit in seconds, or None; if the user gave one, the searches
    have only what is left of it. began: when the command began, by `time.perf_counter`.
    """
    seconds = SECONDS if limit in (None, TIME_LIMIT_S) else max(0.0, limit - (perf_counter() - began))
    with bars.planning() as progress:
        return api.by_runtime(answer, seconds, progress), seconds


def _shown(answer: PlanningResult, near: Near, plan_file: Path | None, table: Table) -> None:
    """Print the short answer to a request, with the answers to requests near it (other numbers of devices, a changed cluster,
    another batch).

    plan_file: where the plan was written; None if it was not. table: finds the best plan for each runtime and the seconds that
    the searches had; called and printed last, unless `--devices` or `--what-if` was given.
    """
    render.rows_of_screen(near.rows(screen(answer, plan_file)))
    if near.sizes is None and near.what_if is None:
        render.runtimes(*table())


def _details(answer: PlanningResult, near: Near) -> None:
    """Print the whole answer to a request, and the costs of a training if they were requested. near: has these costs."""
    render.planned(answer)
    if near.costs is not None:
        render.rows_of_screen(costs_rows(near.costs))


def _content(answer: PlanningResult, near: Near, table: Table) -> dict[str, Any]:
    """The JSON-ready dict that `plan --json` prints: the fields of the answer, the answers to requests near it (`devices`,
    `what_if`, `better_batch`, if there are any), `costs` of a training if they were requested, `equal`, other layouts that are
    as fast within what is known, and `runtimes`, the best plan for each runtime. near: the answers to requests near this one.
    table: a function that finds the best plans for the runtimes, and the seconds of the searches."""
    return {
        **answer.to_dict(),
        **near.to_dict(),
        "equal": equal_plans(answer),
        "runtimes": [row.to_dict() for row in table()[0]],
    }


def _certified(answer: PlanningResult, progress: Callable[[Any], None]) -> PlanningResult:
    """The answer with evidence of its lower bound, which anyone can check without a solver; it goes into the plan's file.
    progress: called with reports of progress, as `bars.planning` takes them."""
    return with_evidence(answer, progress)


def _files(answer: PlanningResult) -> dict[str, Callable[[], Any]]:
    """The files that `plan` can write of an answer: by option, a function that makes the file's text or its matplotlib Figure.

    The options are output (the plan), uniform_output (the best plan with one strategy for all sub-layers), save_profile and
    picture; an option is missing if the answer has nothing for it. The picture is drawn by the answer's problem, if it has a
    drawing of its own, else from the plan.
    """
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
        *options_of(CostRates, *COSTS),
    ],
)


@dataclass(frozen=True)
class Near:
    """The plan for a request, and the answers to requests near it: other numbers of devices, other numbers of the cluster,
    another batch.

    Attributes:
        answer: the plan for the request; None if no number of devices is known on which something fits.
        sizes: plans on the fewest devices and on more of them (`--devices`); None if not requested.
        what_if: the changes that other numbers of the cluster make (`--what-if`); None if not requested.
        batch: another batch that trains faster; None if none was found.
        costs: time, money and energy of a training with the plan; None if not requested.
    """

    answer: PlanningResult | None
    sizes: Sizes | None = None
    what_if: WhatIf | None = None
    batch: BetterBatch | None = None
    costs: TrainingCosts | None = None

    @classmethod
    def of(
        cls,
        devices: str | None,
        what_if: str | None,
        values: Mapping[str, Any],
        progress: Callable[[Any], None],
        rates: CostRates,
    ) -> Near:
        """Plan a request, and the requests near it that the options `--devices` and `--what-if` state; also look for a batch
        that trains faster.

        Args:
            devices: the text of `--devices`, such as "16-512"; None if it is not given.
            what_if: the text of `--what-if`, such as "network=1.2"; None if it is not given.
            values: the arguments of `api.plan`.
            progress: called with reports of progress, as `bars.planning` takes them.
            rates: price, tokens to train on, and power, from which the costs of a training follow.

        Raises:
            InputError: for bad arguments; for a bad text of these two options before anything is planned.
        """
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
        changed = None
        if factors is not None and not answer.interrupted:
            changed = api.what_if(answer, factors, time_limit=values["time_limit"], progress=progress)
        took = 0.0 if answer.spent is None else answer.spent.seconds
        left = took if values["time_limit"] is None else min(took, values["time_limit"] - took)
        batch = better_batch(answer, left, progress) if left > 0 else None
        return cls(answer, sizes, changed, batch, answer.training_costs(rates) if rates.given else None)

    def outcome(self) -> Outcome:
        """The outcome of the command if there is no plan, since no number of devices is known on which something fits: exit
        code 1 if it is proven that nothing fits, else 3."""
        assert self.sizes is not None
        rows, proven = sizes_rows(self.sizes)[0], self.sizes.proven
        code = options.INFEASIBLE if proven else options.STOPPED
        return Outcome(self.to_dict(), lambda: render.rows_of_screen(rows), {}, code)

    def rows(self, screen: list[Row]) -> list[Row]:
        """The rows of the plan's short answer together with rows on the requests near it. screen: the rows of the answer alone,
        each a label and its lines of text."""
        first, last = ([], []) if self.sizes is None else sizes_rows(self.sizes)
        last = [*last, *([] if self.what_if is None else what_if_rows(self.what_if))]
        last += [] if self.batch is None else batch_rows(self.batch)
        return with_rows(screen, first, [*last, *([] if self.costs is None else costs_rows(self.costs))])

    def to_dict(self) -> dict[str, Any]:
        """The answers near the request as a JSON-ready dict: `devices` (plans on other numbers of devices), `what_if` (effects
        of other numbers of the cluster), `better_batch` (another batch that trains faster) and `costs` (of a training); each
        entry is left out if it was not requested or not found."""
        near = {"devices": self.sizes, "what_if": self.what_if, "better_batch": self.batch, "costs": self.costs}
        return {name: found.to_dict() for name, found in near.items() if found is not None}


def _fit(words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `fit`. words: its command line, from which its answer makes the
    command line of `plan` to go on with."""
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)])
    request = [option for option in options.REQUEST if option.name != "measure"]  # what may not fit is not measured

    @command_with(options.WORDS, like, request, flags_of(default_parameters()))
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
    """The command line of `trainplan plan` that has the words of a command line of `trainplan fit`, quoted for a shell, without
    `--json`.

    For example ["fit", "gpt2", "h100:8", "--json"] gives "trainplan plan gpt2 h100:8".
    """
    kept = [word for word in words if word not in ("--json",)]
    index = kept.index("fit") if "fit" in kept else -1
    return "trainplan plan " + shlex.join(kept[index + 1 :])
