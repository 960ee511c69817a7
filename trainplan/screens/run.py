"""How good a run is, on one screen, in the rows of a plan's: whether it fits, what runs, how fast that is, how near to the
best, what to change, what was assumed, and what to do next."""

from __future__ import annotations

from trainplan.imported_runs.assess import LEAST_GAIN, Change, JudgedRun
from trainplan.plan_words import layouts, run_words
from trainplan.planning.proof import proof
from trainplan.profiling.base.quantities import format_share, format_time, plural
from trainplan.screens.plan import Row, difference, gib, memory_words, parts_of, speed_words
from trainplan.validation.predict import Prediction

MOST_CHANGES, MOST_OTHERS = 4, 3
TOOLS = {
    "megatron": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "axolotl": "axolotl",
    "llama-factory": "LLaMA-Factory",
    "nemo": "NeMo",
}


def judged_screen(judged: JudgedRun, measured: list[str]) -> list[Row]:
    """The rows of the screen, in order. measured: what a log says of the run, and how far the prediction is from that."""
    rows: list[Row] = [
        ("FITS" if judged.fits else "FITS NOT", [_memory(judged)]),
        ("RUN", [_subject(judged), run_words(judged.plan), *layouts(judged.plan)]),
        ("SPEED", _speed(judged)),
        ("MEASURED", [[text] for text in measured]),
        ("BEST?", [_proof(judged), *_found(judged)]),
        ("CHANGE", [_changes(judged)]),
        ("WHY NOT", [_others(judged)]),
        ("ASSUMED", _assumed(judged)),
        ("NEXT", _next(judged)),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def _tool(judged: JudgedRun) -> str:
    name = judged.configuration.tool or judged.configuration.runtime
    return TOOLS.get(name, name)


def _memory(judged: JudgedRun) -> list[str]:
    run = judged.framework if isinstance(judged.framework, Prediction) else None
    words = memory_words(judged.plan, parts_of(run, judged.performance))
    close = "close: may not fit"
    return [*words, *[close] * judged.close]


def _subject(judged: JudgedRun) -> list[str]:
    model, configuration = judged.plan.planned_model(), judged.configuration
    return [f"{configuration.where} ({_tool(judged)})", f"{model.name}, {model.dtype}", plural(judged.plan.world, "GPU")]


def _speed(judged: JudgedRun) -> list[list[str]]:
    run = judged.framework
    if isinstance(run, Prediction):
        known = run.step_low_s is not None and run.step_high_s is not None
        likely = (run.step_low_s * 1e9, run.step_high_s * 1e9) if known else None  # type: ignore[operator]
        return [speed_words(judged.step_ns, judged.performance, likely)]
    words = speed_words(judged.step_ns, judged.performance, None)
    return [words, [f"of trainplan's own step model, not as {judged.configuration.software} overlaps: {run}"]]


def _proof(judged: JudgedRun) -> list[str]:
    """How far the run is at most from any plan, by what the bound is of; or why no bound is held against it."""
    if judged.best is None:
        return []
    if judged.no_gap:
        return [f"no bound: {judged.no_gap}"]
    own = "" if isinstance(judged.framework, str) else ", by the solver's step model"
    how = "independent check: trainplan plan ... -o plan.json, then trainplan check plan.json"
    unchecked = judged.bound_ns is not None and judged.checked_ns is None
    return [f"{proof(judged.measured_ns, judged.bound_ns, judged.checked_ns, 'any plan')}{own}", *[how] * unchecked]


def _found(judged: JudgedRun) -> list[list[str]]:
    """The best plan that is known of the runtime, as the run is predicted; and what is known of any runtime."""
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
    walk_ns = judged.best_walk_ns
    if walk_ns is not None and not judged.no_gap and walk_ns < (1 - LEAST_GAIN) * judged.judged.step_ns:
        share = format_share(1 - walk_ns / judged.judged.step_ns)
        lines.append([f"best known in any runtime: {share} faster, by the solver's step model"])
    return lines


def _changes(judged: JudgedRun) -> list[str]:
    if judged.best is None:
        return []
    texts = [f"{change.what}: {_step(change, judged)}" for change in judged.changes[:MOST_CHANGES]]
    none = "no single change gains 0.1 %" if judged.fits else "no single change makes it fit"
    return texts or [none]


def _step(change: Change, judged: JudgedRun) -> str:
    step_ns = judged.step_ns * (1 - change.share)
    return format_time(step_ns) + f" ({format_share(change.share)} faster)" * judged.fits


def _others(judged: JudgedRun) -> list[str]:
    """What the fastest change that does not fit needs, and the steps of the next best that do."""
    plan, short, fitting = judged.plan, list[str](), list[str]()
    own, seen = run_words(plan), set[str]()
    for other in judged.others:
        name = difference(own, run_words(other.plan))
        if not name or name in seen:
            continue
        seen.add(name)
        if (other.peak_bytes or 0) > plan.memory_bytes:
            short.append(f"{name}: needs {gib(other.peak_bytes or 0)} GiB")
        elif judged.fits:
            fitting.append(f"{name}: {format_time(judged.step_ns * (1 - other.share))}")
    return [*short[:1], *fitting[:MOST_OTHERS]]


def _assumed(judged: JudgedRun) -> list[list[str]]:
    """What was taken otherwise than the file says, or is not known of it."""
    configuration, lines = judged.configuration, list[str]()
    lines += [f"cluster: {judged.numbers}"] * bool(judged.numbers)
    lines += configuration.notes
    lines += [f"unknown key, left out: {text}" for text in configuration.unknown]
    count = len(configuration.unread)
    lines += [f"{plural(count, 'key')} of the file {'have' if count > 1 else 'has'} no effect on speed"] * bool(count)
    return [[text] for text in lines]


def _next(judged: JudgedRun) -> list[list[str]]:
    more = "--details says more"
    if judged.best is None:
        return [["leave --no-search out for bound, best plan and changes", more]]
    better = judged.found is not None and judged.found.source != "run"
    first = "--best-output best.json keeps the best plan known" if better else "-o plan.json keeps the run as a plan"
    return [[f"import-run ... {first}"], [more, "--values says where each value comes from"]]
