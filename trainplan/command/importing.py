"""`trainplan import-run`: predicts and judges a run from another runtime's launch file, configuration or log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.api.requests import PlanRequest, SearchOptions
from trainplan.command import bars, options, render
from trainplan.command.ending import tell
from trainplan.command.import_experts import outcome_of_experts
from trainplan.command.options import Command, Outcome, command_with, flag, options_of, output, panel, word
from trainplan.command.printing import pairs, table
from trainplan.command.validating import CALIBRATED, show_calibration
from trainplan.execution.launch_files.experts import RunOfExperts
from trainplan.execution.launch_files.logs.steps import LoggedRun, RanOut
from trainplan.execution.launch_files.run_configuration import TakenValue
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.imported_runs.assess import Change, JudgedRun
from trainplan.imported_runs.to_plan import RUNTIMES
from trainplan.plan_words import whose_numbers
from trainplan.planning.proof import proof, status_text
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.screens.run import run_screen, stopped_lines_of_run
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.validation.alongside import HELD
from trainplan.validation.calibrate import table_text
from trainplan.validation.fitting import tight_words
from trainplan.validation.own_runs import Calibration
from trainplan.validation.predict import Prediction

SMALLER = 0.9  # devices with less than this share of another's memory are not of its kind
MOST_CHANGES, MOST_RANKS, MOST_KEYS = 8, 16, 4  # that are printed one by one
DEFAULT = "default of"  # begins the source of a value that no file states
FRAGMENTATION = (
    "of the caching allocator: not counted, except for 2 % that the default reserve has for it; "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes it less"
)


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `import-run`. name, words: unused; the modules of all commands have a
    function of this signature."""
    return import_run


@command_with(
    [
        word(
            "file",
            Path | None,
            "A script or log (- for standard input), recipe (.py), .toml, .json or .yaml of the tool that trains.",
            None,
        )
    ],
    panel(
        "What the file cannot say",
        [
            flag("cluster", str | None, options.CLUSTER_HELP, values=options.cluster_names),
            flag("model", str | None, options.MODEL_HELP + " [default: the file's]", values=options.SPECIAL["model"].values),
            *options_of(api.import_run, "batch", "micro_batch", "sequence"),
            *options_of(PlanRequest, "dtype"),
            flag("line", str | None, "A command line that starts training, in place of a file.", names=("--command",)),
            *options_of(api.import_run, "recompute", "loss", "attention"),
            flag(
                "settings",
                list[str] | None,
                "NAME=VALUE, a script variable; 1=VALUE, its first parameter; section.key=VALUE, a key of a file; repeatable.",
                names=("--set",),
            ),
            flag(
                "ignored",
                list[str] | None,
                "A key that is not read and changes nothing of the run; may be repeated.",
                names=("--ignore",),
            ),
            flag("log", Path | None, "The log of the run that the file starts, for its measured step and memory."),
            flag("runtime", str | None, f"{', '.join(RUNTIMES)}. [default: by the file]"),
            *options_of(PlanRequest, "memory", "reserve"),
        ],
    ),
    panel(
        options.SEARCHING,
        [
            flag(
                "search",
                bool,
                "Look for the lower bound, the best plans and changes.",
                True,
                names=("--search/--no-search",),
            ),
            *options_of(SearchOptions, "gap"),
            flag("time_limit", float, "Seconds of all searches; reading, predicting and checking come on top.", TIME_LIMIT_S),
        ],
    ),
    [
        output("Write the plan that the file runs here."),
        flag("values", bool, "Print every value that was taken, and where it comes from.", False),
        flag("details", bool, "Print everything that is known of the run, in place of the screen.", False),
        flag(
            "best_output",
            Path | None,
            "Write the best plan known for the runtime here, if it is better than the run.",
        ),
        CALIBRATED,
    ],
)
def import_run(
    file: Path | None,
    settings: list[str] | None,
    ignored: list[str] | None,
    values: bool,
    details: bool,
    calibrated_output: Path | None,
    **given: Any,
) -> Outcome:
    """How good is what I run now? A configuration becomes a plan, with its predicted step and the memory of each rank; with
    it come the lower bound of the joint problem, the best plan with and without the runtime's limits, and what to change first.
    """
    try:
        with bars.planning() as progress:
            judged = api.import_run(
                file, variables=_variables(settings or []), ignored=ignored or (), progress=progress, **given
            )
    except RunOfExperts as error:
        return outcome_of_experts(error, values)
    for key in judged.configuration.unknown:
        tell(f"trainplan: warning: {judged.configuration.where}: {key} is no key that is documented; it is left out")
    files = {"output": lambda: judged.plan.model_dump_json(indent=2) + "\n"}
    if (found := judged.found) is not None and judged.best is not None and found.source != "run":
        files["best_output"] = lambda: found.plan.model_dump_json(indent=2) + "\n"
    show = partial(_show if details else _screen, judged, values)
    content, code = judged.to_dict(), options.FINE if judged.fits else options.INFEASIBLE
    if calibrated_output is None:
        return Outcome(content, show, files, code)
    corrected = api.calibrate(judged, calibrated=calibrated_output, write=False)
    files["calibrated_output"] = partial(table_text, corrected.table)
    return Outcome(content | {"calibrated": corrected.to_dict()}, partial(_shown_with, show, corrected), files, code)


def _shown_with(show: Callable[[], None], found: Calibration) -> None:
    """Print what `show` prints, then the correction of efficiencies by own runs."""
    show()
    show_calibration(found)


def _variables(settings: Sequence[str]) -> dict[str, str]:
    """The values of the option `--set NAME=VALUE` by name: ["TP=8", "1=gpt"] gives {"TP": "8", "1": "gpt"}.

    A name is a script's variable, a key of a configuration such as model.layers, or the number of a script's positional
    parameter. Raises InputError for a text of another form.
    """
    variables = {}
    for text in settings:
        name, sign, value = text.partition("=")
        if not (name.replace(".", "_").isidentifier() or name.isdecimal()) or not sign:
            raise InputError(
                COMMAND_LINE,
                "--set",
                f"is {text!r}",
                "give NAME=VALUE, such as TP=8, or 1=VALUE for a script's positional parameter",
            )
        variables[name] = value
    return variables


def _screen(judged: JudgedRun, values: bool) -> None:
    """Print the short answer of `import-run`.

    judged: the run, with its prediction and the better plans that were found. values: also print every value that was taken
    from the run's file, as a table.
    """
    measured = [] if judged.logged is None else [text for _, text in _measured(judged.logged)]
    if judged.configuration.ran_out is not None:
        measured.append(f"out of memory: {_ran_out(judged.configuration.ran_out, judged)}")
    render.rows_of_screen(run_screen(judged, measured))
    if values:
        _show_values(judged.configuration.taken)


def _show(judged: JudgedRun, values: bool) -> None:
    """Print the long answer of `import-run --details`: everything that is known of the run.

    judged: the run, with its prediction and the better plans that were found. values: also print every value that was taken
    from the run's file, as a table.
    """
    configuration, plan = judged.configuration, judged.plan
    model = plan.planned_model()
    whose = [("cluster", judged.numbers)] * bool(judged.numbers)
    file = f"{configuration.where}, of {configuration.tool or configuration.runtime}"
    pairs([("file", file), ("model", f"{model.name}, {model.dtype}"), *whose])
    render.plan_table(plan)
    verdict = f": {tight_words(judged.fit_probability)}" if judged.close else ": does not fit" * (not judged.fits)
    rows = [
        ("predicted time", _step(judged)),
        ("predicted memory", f"{_ranks(judged)}, of {format_bytes(plan.memory_bytes)}{verdict}"),
    ]
    if not isinstance(judged.framework, str):
        rows += _of_memory(judged.framework)
    if judged.close or not judged.fits:
        rows.append(("fragmentation", FRAGMENTATION))
    if judged.logged is not None:
        rows += _measured(judged.logged)
    if configuration.ran_out is not None:
        rows.append(("out of memory", _ran_out(configuration.ran_out, judged)))
    rows += _searches(judged)
    rows += [("search stopped", "; ".join(texts)) for texts in stopped_lines_of_run(judged)]
    rows += [("taken otherwise", text) for text in configuration.notes]
    rows += [("ignored (no effect on speed)", _grouped(configuration.unread))] * bool(configuration.unread)
    rows += [("unknown key", text) for text in configuration.unknown]
    pairs([row for row in rows if row[1]])
    if values:
        _show_values(configuration.taken)
    if judged.changes:
        cells = [[change.what, f"{-change.share:+.2%}", _memory(change)] for change in judged.changes[:MOST_CHANGES]]
        count = plural(len(judged.changes), "single change")
        table(("change", "step", "memory"), cells, f"what to change first, of {count} that would gain", ("change",))
    elif judged.best is not None:
        pairs([("change", "no single change would gain")])


def _show_values(taken: Sequence[TakenValue]) -> None:
    """Print every value that a run's plan was made of: first a table of the values that a file states, with the file and the
    line; then, a line for each tool, the values that are the tool's defaults.

    taken: the values, each with its key and its source; the source of a tool's default begins with the text DEFAULT.
    """
    written = [value for value in taken if not value.source.startswith(DEFAULT)]
    rows = [[value.key, str(value.value), value.source] for value in written]
    table(("key", "value", "from"), rows, "values that were taken", ("key", "value", "from"))
    for source in dict.fromkeys(value.source for value in taken if value not in written):
        pairs([(source, ", ".join(f"{value.key} {value.value}" for value in taken if value.source == source))])


def _step(judged: JudgedRun) -> str:
    """The predicted step time of a run as a text, and how it was predicted: as the run's runtime overlaps communication, then
    with the prediction's interval; or, if that overlap is not known, by trainplan's own cost model."""
    framework, step = judged.framework, f"{format_time(judged.step_ns)} a step"
    if isinstance(framework, str):
        overlapped = judged.plan.predicted is not None and judged.plan.predicted.cost_model == "streams"
        how = "with overlap (cost model streams)" if overlapped else "without overlap"
        return f"{step}, predicted {how}; not as {judged.configuration.software} overlaps: {framework}"
    between = f"{framework.step_low_s:.4g} to {framework.step_high_s:.4g} s"
    return f"{step} ({between}), {whose_numbers(judged.plan)}"


def _of_memory(framework: Prediction) -> list[tuple[str, str]]:
    """Rows (label, text) on the predicted memory of a run's fullest device: its parts (parameters, activations and so on) at
    the moment of its peak, and the values that were assumed for it.

    framework: the prediction of the run as its own framework trains. Returns an empty list if it has no memory.
    """
    memory, laid = framework.memory, framework.laid
    if memory is None or laid is None:
        return []
    parts = ", ".join(f"{name} {format_bytes(round(size))}" for name, size in memory.parts.items() if size)
    taken = [("taken for memory", f"{name}: {laid.assumed[name]}") for name in HELD if name in laid.assumed]
    return [(f"in {memory.moment}", parts), *taken]


def _searches(judged: JudgedRun) -> list[tuple[str, str]]:
    """Rows (label, text) on the searches for plans that are better than a run; an empty list if nothing was searched.

    The rows are: the best plan that the run's runtime can run, by that runtime's prediction; and the proof, how much faster
    than the run any plan can be at most, by the same prediction. If the runtime is not predicted, before them the best plan of
    all, compared with the run by simulation of both plans' programs.
    """
    best, found, rows = judged.best, judged.found, list[tuple[str, str]]()
    if best is None:
        return []
    simulated_only = isinstance(judged.framework, str)
    if judged.best_walk_ns == judged.judged.step_ns:
        rows.append(("best plan", "what runs: no plan is known that takes less, simulated alike"))
    elif not judged.by_prediction:
        rows.append(_searched("best plan", best, judged.judged.step_ns, "" if simulated_only else "both simulated alike"))
    label = f"best in {judged.configuration.runtime}"
    if found is None:
        rows.append((label, "none is known that fits"))
    elif found.source == "run":
        rows.append((label, "what runs: no plan is known that is predicted to take less"))
    else:
        step = f"{format_time(found.step_ns)} a step ({found.step_ns / judged.step_ns - 1:+.2%})"
        rows.append((label, f"{step}: {_shape(found.plan)}"))
    if judged.no_gap:
        return [*rows, ("proof", f"none: {judged.no_gap}")]
    if judged.bound_ns is None:
        return rows
    text = proof(judged.measured_ns, judged.bound_ns, judged.checked_ns)
    source = best.result.bound_source or "the search"
    if simulated_only or judged.by_prediction:
        rows.append(("proven lower bound", f"{format_time(judged.bound_ns)}, by {source}"))
        text += f", of {judged.bound_of}" * judged.by_prediction
    else:
        why = f"no bound is of the predicted time, since {judged.configuration.software} overlaps otherwise"
        text += f", by the solver's step model; {why}"
    return [*rows, ("proof", text), ("search space", _under(best))]


def _grouped(keys: Sequence[str]) -> str:
    """The names of configuration keys (`keys`) as one text, separated by commas. If a table of the configuration, such as
    `logging` of `logging.steps`, has more than MOST_KEYS keys, they are counted as `logging.* (9 keys)`."""
    tables = Counter(key.split(".")[0] for key in keys if "." in key)
    shown = []
    for key in keys:
        table = key.split(".")[0]
        shown.append(f"{table}.* ({tables[table]} keys)" if tables[table] > MOST_KEYS else key)
    return ", ".join(dict.fromkeys(shown))


def _ranks(judged: JudgedRun) -> str:
    """The predicted peak memory of the fullest rank of each pipeline stage of a run, as a text; of more than MOST_RANKS stages,
    only the first ones."""
    peaks, plan = judged.peak_bytes, judged.plan
    texts = [f"{format_bytes(max(peaks[rank] for rank in stage.ranks))}" for stage in plan.stages[: plan.depth]]
    shown = ", ".join(texts[:MOST_RANKS]) + (", .." if len(texts) > MOST_RANKS else "")
    return shown if len(texts) == 1 else f"{shown} on the ranks of stages 0 to {len(texts) - 1}"


def _measured(logged: LoggedRun) -> list[tuple[str, str]]:
    """Rows (label, text) on the step time and the peak memory that the log of a run measured, each with the relative error of
    the prediction. The row of memory is missing if the log states no memory."""
    error = logged.predicted_s / logged.step_s - 1
    text = f"{logged.step_s:.4g} s a step in the log ({logged.log.of('line')}); predicted {error:+.1%} of it"
    rows = [("measured time", text)]
    if logged.peaks:
        kind = "reserved" if logged.log.reserved else "allocated"
        measured, predicted = max((measured, predicted) for _, measured, predicted in logged.peaks)
        text = f"{format_bytes(measured)} {kind} at most in the log; predicted {predicted / max(measured, 1) - 1:+.1%} of it"
        rows.append(("measured memory", text))
    return rows


def _ran_out(ran_out: RanOut, judged: JudgedRun) -> str:
    """A text on how a run ended that was out of memory: the bytes that it requested, already had, and could have in all, and
    the peak that was predicted for it.

    ran_out: these bytes, from the run's log. judged: the run. If it was predicted to fit on devices with as much memory as the
    log's, the text adds that the log refutes this.
    """
    wanted, peak = ran_out.tried_bytes + (ran_out.allocated_bytes or 0), max(judged.peak_bytes)
    text = f"the run ended so: it asked for {format_bytes(ran_out.tried_bytes)}"
    if ran_out.allocated_bytes is not None:
        text += f" more than the {format_bytes(ran_out.allocated_bytes)} that it had"
    if ran_out.capacity_bytes is not None:
        text += f", of {format_bytes(ran_out.capacity_bytes)}"
    if ran_out.allocated_bytes is not None:
        text += f"; predicted {format_bytes(peak)}, {peak / max(wanted, 1) - 1:+.1%} of what it asked for in all"
    smaller = ran_out.capacity_bytes is not None and ran_out.capacity_bytes < SMALLER * judged.plan.memory_bytes
    if smaller:
        return text + "; the cluster's devices have more memory than the log's"
    return text + "; the log refutes that it fits" * judged.fits


def _memory(change: Change) -> str:
    """The predicted peak memory of a run's plan after a change, as a text; "-" if none is predicted."""
    if change.peak_bytes is not None:
        return format_bytes(change.peak_bytes)
    return "-" if change.plan.predicted is None else format_bytes(change.plan.predicted.most_bytes)


def _searched(label: str, answer: PlanningResult, step_ns: int, how: str) -> tuple[str, str]:
    """A row (label, text) on the best plan that a search found, with its step compared with the run's; or on why the search has
    no plan.

    Args:
        label: the row's label, returned unchanged.
        answer: the search's answer.
        step_ns: the step of the run's own plan, which the step of the found plan is divided by.
        how: empty if both steps are predicted as the run is; else the other way of prediction, as a text: then only the ratio
            of the steps is stated, not the times.
    """
    if answer.plan is None or answer.step_ns is None:
        return label, f"none: {answer.result.status}"
    share = f"{answer.step_ns / step_ns - 1:+.2%}"
    step = f"{share} a step, {how}" if how else f"{format_time(answer.step_ns)} a step ({share})"
    return label, f"{step}: {_shape(answer.plan)}; {status_text(answer.answer.status, answer.answer.gap)}"


def _shape(plan: Plan) -> str:
    """A plan's number of stages, number of micro-batches and strategies as a text, such as "2 stages, 8 micro-batches, tp2,
    dp4"."""
    return f"{plural(plan.depth, 'stage')}, {plural(plan.batch.micro_batches, 'micro-batch')}, {_strategies(plan)}"


def _strategies(plan: Plan) -> str:
    """The strategy of all units (sub-layers) of a plan as a text; if units differ, the number of different strategies and an
    example."""
    names = list(dict.fromkeys(in_words(str(unit)) for unit in plan.units))
    return names[0] if len(names) == 1 else f"{len(names)} strategies, such as {names[len(names) // 2]}"


def _under(answer: PlanningResult) -> str:
    """The restrictions that were set on the search space of an answer (such as "--tp 2"), as a text; "no restriction" if there
    are none."""
    return ", ".join(answer.restrictions) or "no restriction"
