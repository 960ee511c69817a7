"""One screen on a training run that was read from a file: whether it fits, what runs, how fast that is, how close to the best
possible, what to change, what was assumed, and what to do next. Its rows are those of a plan's screen."""

from __future__ import annotations

from trainplan.formulations.runtimes import title
from trainplan.imported_runs.assess import LEAST_GAIN, Change, JudgedRun
from trainplan.plan_words import layouts, run_words, whose_numbers
from trainplan.planning.proof import proof
from trainplan.profiling.base.quantities import format_share, format_time, plural
from trainplan.screens.others import difference, shortage
from trainplan.screens.plan import Row, stopped_lines
from trainplan.screens.predicted import memory_words, parts_of, speed_words
from trainplan.screens.stages import stage_lines
from trainplan.validation.fitting import tight_words
from trainplan.validation.predict import Prediction

MOST_CHANGES, MOST_OTHERS = 4, 3
TOOLS = {"llama-factory": "LLaMA-Factory", "nemo": "NeMo"}  # tools that are no runtimes of plans, where written otherwise


def run_screen(judged: JudgedRun, measured: list[str]) -> list[Row]:
    """The rows of the terminal screen on a training run that was read from a file (launch script or configuration), in order;
    a row is a label and its lines.

    judged: the run with its prediction and the plans found for it. measured: texts on what a log of the run states, and how
    far the prediction differs from it.
    """
    rows: list[Row] = [
        ("FITS" if judged.fits or judged.close else "FITS NOT", [_memory(judged)]),
        ("RUN", [_subject(judged), run_words(judged.plan), *layouts(judged.plan)]),
        ("STAGES", stage_lines(judged.plan)),
        ("SPEED", _speed(judged)),
        ("MEASURED", [[text] for text in measured]),
        ("BEST?", [_proof(judged), *_found(judged)]),
        ("STOPPED", stopped_lines_of_run(judged)),
        ("CHANGE", [_changes(judged)]),
        ("WHY NOT", [_others(judged)]),
        ("ASSUMED", _assumed(judged)),
        ("NEXT", _next(judged)),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def _tool(judged: JudgedRun) -> str:
    """The name, as users write it, of the tool (such as Megatron-LM) that the run's file configures. judged: the run, its
    prediction, and the plans found for it.
    """
    name = judged.configuration.tool or judged.configuration.runtime
    return TOOLS.get(name) or title(name)


def _memory(judged: JudgedRun) -> list[str]:
    """The run's predicted peak memory per GPU for the screen, with a warning if it is close to the limit: a list of texts that
    are printed with dots between them. judged: the run, its prediction, and the plans found for it.
    """
    run = judged.framework if isinstance(judged.framework, Prediction) else None
    words = memory_words(judged.plan, parts_of(run, judged.performance))
    return [*words, *[tight_words(judged.fit_probability)] * judged.close]


def _subject(judged: JudgedRun) -> list[str]:
    """The run itself, for the screen: its file and tool, the model, and the number of GPUs, as texts that are printed with
    dots between them. judged: the run, its prediction, and the plans found for it.
    """
    model, configuration = judged.plan.planned_model(), judged.configuration
    return [f"{configuration.where} ({_tool(judged)})", f"{model.name}, {model.dtype}", plural(judged.plan.world, "GPU")]


def _speed(judged: JudgedRun) -> list[list[str]]:
    """Lines for the screen on the run's predicted step, throughput and MFU; if its tool cannot be predicted, a second line
    states why. A line is a list of texts that are printed with dots between them. judged: the run, its prediction, and the
    plans found for it.
    """
    run = judged.framework
    if isinstance(run, Prediction):
        known = run.step_low_s is not None and run.step_high_s is not None
        likely = (run.step_low_s * 1e9, run.step_high_s * 1e9) if known else None  # type: ignore[operator]
        return [speed_words(judged.step_ns, judged.performance, likely), [whose_numbers(judged.plan)]]
    words = speed_words(judged.step_ns, judged.performance, None)
    return [words, [f"of trainplan's own step model, not as {judged.configuration.software} overlaps: {run}"]]


def _proof(judged: JudgedRun) -> list[str]:
    """For the screen, how much slower than the best possible plan the run is at most, or why there is no bound to compare
    with, as texts that are printed with dots between them; empty if no plans were searched. judged: the run, its prediction,
    and the plans found for it.
    """
    if judged.best is None:
        return []
    if judged.no_gap:
        return [f"no bound: {judged.no_gap}"]
    own = "" if isinstance(judged.framework, str) or judged.by_prediction else ", by the solver's step model"
    how = "independent check: trainplan plan ... -o plan.json, then trainplan check plan.json"
    unchecked = judged.bound_ns is not None and judged.checked_ns is None
    return [f"{proof(judged.measured_ns, judged.bound_ns, judged.checked_ns, judged.bound_of)}{own}", *[how] * unchecked]


def _found(judged: JudgedRun) -> list[list[str]]:
    """Lines for the screen on the best known plan for the run's own tool, and on the best known plan for any runtime if that
    is faster; empty if no plans were searched. A line is a list of texts that are printed with dots between them. judged: the
    run, its prediction, and the plans found for it.
    """
    if judged.best is None:
        return []
    lines, found, runtime = list[list[str]](), judged.found, _tool(judged)
    if found is None:
        lines.append([f"no plan for {runtime} is known that fits"])
    elif found.source == "run":
        lines.append([f"no faster plan for {runtime} is known, by the prediction of this run"])
    else:
        gain = f" ({format_share(1 - found.step_ns / judged.step_ns)} faster)" if judged.fits else ", which fits"
        lines.append([f"best known for {runtime}: {format_time(found.step_ns)}{gain}", *run_words(found.plan)])
    any_runtime_ns, own_ns = judged.best_walk_ns, judged.judged.step_ns
    if any_runtime_ns is not None and not judged.no_gap and any_runtime_ns < (1 - LEAST_GAIN) * own_ns:
        share = format_share(1 - any_runtime_ns / own_ns)
        lines.append([f"best known in any runtime: {share} faster, by the solver's step model"])
    return lines


def stopped_lines_of_run(judged: JudgedRun) -> list[list[str]]:
    """Lines for the screen with the reason why a search for better plans ended early, such as the time limit, and what would
    find more; empty if no search did. A line is a list of texts that are printed with dots between them. judged: the run, its
    prediction, and the plans found for it.
    """
    searches = [search for search in (judged.within, judged.best) if search is not None and search.result.stopped]
    if not searches:
        return []
    lines, more = stopped_lines(searches[0]), ["a longer --time-limit may find a faster plan"]
    if judged.plan.depth > 1 and judged.by_prediction:
        more.append(f"plan ... --for {judged.configuration.runtime} is done sooner: it searches 1F1B alone")
    return [*lines, more] if searches[0].result.stopped == "time limit" else lines


def _changes(judged: JudgedRun) -> list[str]:
    """For the screen, the single changes of the run's settings that save the most time, or that no single change helps, as
    texts that are printed with dots between them; empty if no plans were searched. judged: the run, its prediction, and the
    plans found for it.
    """
    if judged.best is None:
        return []
    texts = [f"{change.what}: {_step(change, judged)}" for change in judged.changes[:MOST_CHANGES]]
    none = "no single change gains 0.1 %" if judged.fits else "no single change makes it fit"
    return texts or [none]


def _step(change: Change, judged: JudgedRun) -> str:
    """The run's step time after a change as text; if the run fits into memory without the change, with the share of time that
    the change saves. judged: the run, its prediction, and the plans found for it.
    """
    step_ns = judged.step_ns * (1 - change.share)
    return format_time(step_ns) + f" ({format_share(change.share)} faster)" * judged.fits


def _others(judged: JudgedRun) -> list[str]:
    """For the screen, variants of the run: the memory of the fastest variant that does not fit, and the steps of the next best
    variants that fit, as texts that are printed with dots between them. judged: the run, its prediction, and the plans found
    for it.
    """
    plan, short, fitting = judged.plan, list[str](), list[str]()
    own, named = run_words(plan), set[str]()
    for other in judged.others:
        name = difference(own, run_words(other.plan))
        if not name or name in named:
            continue
        named.add(name)
        if (other.peak_bytes or 0) > plan.memory_bytes:
            cluster = None if judged.best is None else judged.best.request.cluster
            short += [] if short else [shortage(name, other.plan, other.peak_bytes or 0, cluster)]
        elif judged.fits:
            fitting.append(f"{name}: {format_time(judged.step_ns * (1 - other.share))}")
    return [*short[:1], *fitting[:MOST_OTHERS]]


def _assumed(judged: JudgedRun) -> list[list[str]]:
    """Lines for the screen on assumptions about the run: the cluster's numbers, notes of the program that read the file, and
    keys of the file that were ignored. A line is a list of texts that are printed with dots between them. judged: the run, its
    prediction, and the plans found for it.
    """
    configuration, lines = judged.configuration, list[str]()
    lines += [f"cluster: {judged.numbers}"] * bool(judged.numbers)
    lines += configuration.notes
    lines += [f"unknown key, left out: {text}" for text in configuration.unknown]
    count = len(configuration.unread)
    lines += [f"{plural(count, 'key')} of the file {'have' if count > 1 else 'has'} no effect on speed"] * bool(count)
    return [[text] for text in lines]


def _next(judged: JudgedRun) -> list[list[str]]:
    """Lines for the screen with the commands to continue with. A line is a list of texts that are printed with dots between
    them. judged: the run, its prediction, and the plans found for it.
    """
    more = "--details says more"
    if judged.best is None:
        return [["leave --no-search out for bound, best plan and changes", more]]
    better = judged.found is not None and judged.found.source != "run"
    first = "--best-output best.json keeps the best plan known" if better else "-o plan.json keeps the run as a plan"
    return [[f"import-run ... {first}"], [more, "--values says where each value comes from"]]
