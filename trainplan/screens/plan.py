"""The answer to a planned request on one screen: whether it fits, what to run, how fast that is, how good, what else there is,
and what to do next. Everything else of an answer is in `PlanningResult.summary`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import constraints_of
from trainplan.imported_runs.assess import LEAST_GAIN, neighbour_runs
from trainplan.plan_words import NOTHING_AGAIN, layouts, run_words
from trainplan.planning.every_runtime import NAMES, OWN, RuntimePlan
from trainplan.planning.presets import DEFAULT
from trainplan.planning.proof import how_to_check, proof_of
from trainplan.planning.result import PlanningResult
from trainplan.planning.result_price import Price
from trainplan.prediction.metrics import PARTS, Performance
from trainplan.profiling.base.quantities import format_gap, format_share, format_time
from trainplan.validation.predict import GIB, Prediction

Row = tuple[str, list[list[str]]]  # a label and its lines, each of pieces that stand between dots
MOST_OTHERS = 3  # other plans that fit, which are written out
CAUSES = {"optimizer": "optimizer states"}


def screen(answer: PlanningResult, plan_file: Path | None = None) -> list[Row]:
    """The rows of the screen, in order. plan_file: where the plan is written, for the commands that come next."""
    if answer.plan is None or answer.step_ns is None:
        return nothing(answer)
    others = _others(answer)
    rows: list[Row] = [
        ("FITS", [memory_words(answer.plan, parts_of(answer.run, answer.performance))]),
        ("RUN", [run_words(answer.plan), *layouts(answer.plan)]),
        ("SPEED", [speed_words(answer.step_ns, answer.performance, likely_ns(answer))]),
        ("BEST?", [*_proof(answer), others.faster]),
        ("WHY NOT", [others.why_not]),
        ("STOPPED", unfinished(answer)),
        ("ASSUMED", assumed(answer)),
        ("NEXT", _next(answer, plan_file)),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def runtime_cells(rows: Sequence[RuntimePlan]) -> list[tuple[list[str], list[str]]]:
    """Of each runtime that has a plan its name, step, MFU, peak in GiB and how far the plan may be from the runtime's best, and
    the words of how it runs; headings come first."""
    cells = [(["runtime", "step", "MFU", "peak", "within"], ["layout"])]
    for row in rows:
        if row.answer is None or row.answer.plan is None or row.step_ns is None:
            continue
        done = row.answer.performance
        mfu = "" if done is None or done.mfu is None else f"{done.mfu:.0%}".replace("%", " %")
        peak = "" if row.peak_bytes is None else gib(row.peak_bytes)
        within = (
            "open"
            if not row.gap and (row.stopped or row.gap is None)
            else "open: " * bool(row.stopped) + format_gap(row.gap or 0)
        )
        words = [word for word in run_words(row.answer.plan) if word != NOTHING_AGAIN]
        first = next(index for index, word in enumerate(words) if "micro-batch" in word)
        layout = [" ".join(words[:first])] * (first > 0) + words[first:]
        cells.append(([row.name, format_time(row.step_ns), mfu, peak, within], layout))
    return cells


def runtime_notes(rows: Sequence[RuntimePlan], seconds: float) -> list[list[str]]:
    """What the cells mean, why runtimes have no plan, and what is open. seconds: that the searches had."""
    limit = next(
        (gib(row.answer.plan.memory_bytes) for row in rows if row.answer is not None and row.answer.plan is not None), ""
    )
    notes = [[f"peak: of {limit} GiB a GPU", "within: of the runtime's best plan (solver)"]]
    lacking = [row for row in rows if not row.found and row.stopped is None]
    for why in dict.fromkeys(row.why for row in lacking):
        notes.append([f"{', '.join(row.name for row in lacking if row.why == why)}: {why}"])
    left = [row for row in rows if row.stopped is not None]
    if left:
        names = ", ".join(f"{row.name} ({row.why})" if row.why else row.name for row in left)
        timed = f"{seconds:.2g} s were up: give a longer --time-limit, or {FOR.flag} {left[-1].runtime}"
        notes.append([f"open: {names}", timed if any(row.stopped == "time limit" for row in left) else "interrupted"])
    return notes


def memory_words(plan: Plan, parts: Mapping[str, float]) -> list[str]:
    """The peak, the limit, where, and what it is of. parts: bytes of it by what they are."""
    if plan.predicted is None:
        return ["by the solver's count; no prediction: trainplan cannot run plans of this model yet"]
    most, limit = max(plan.predicted.peak_bytes), plan.memory_bytes
    left = free_words(limit - most) if most <= limit else f"{gib(most - limit)} too much"
    return [f"{gib(most)} of {gib(limit)} GiB ({left}){most_held(plan, parts)}"]


def most_held(plan: Plan, parts: Mapping[str, float]) -> str:
    """Where a plan's peak is, and what most of it is, to follow its size; empty of plans without a prediction. parts: bytes of
    it by what they are."""
    if plan.predicted is None:
        return ""
    peaks, text = plan.predicted.peak_bytes, ""
    rank = peaks.index(max(peaks))
    if plan.depth > 1:
        text += f" on stage {next(number for number, stage in enumerate(plan.stages) if rank in stage.ranks)}"
    if parts:
        name = max(parts, key=lambda each: parts[each])
        text += f", most of it {name} ({gib(parts[name])} GiB)"
    return text


def parts_of(run: Prediction | None, done: Performance | None) -> dict[str, float]:
    """Of what the peak of the fullest device is, in bytes: by the runtime's prediction, else by the walks."""
    if run is not None and run.memory is not None:
        return {CAUSES.get(name, name): size for name, size in run.memory.parts.items()}
    if done is None:
        return {}
    stage = max(done.stages, key=lambda each: each.peak_bytes)
    return {CAUSES.get(name, name): getattr(stage, f"{name}_bytes") for name in PARTS}


def speed_words(step_ns: int, done: Performance | None, likely: tuple[float, float] | None) -> list[str]:
    """The step, the tokens, what of the peak is reached, and between what a measured step lies, in ns."""
    words = [f"{format_time(step_ns)} a step"]
    if done is not None:
        words.append(f"{tokens(done.tokens_per_s_per_device)} tokens/s a GPU")
        words += [] if done.mfu is None else [f"MFU {done.mfu:.0%}".replace("%", " %")]
    if likely is not None:
        words[-1] += f" (likely {_rounded(likely[0])} to {_rounded(likely[1])})"
    return words


def likely_ns(answer: PlanningResult) -> tuple[float, float] | None:
    """Between what a measured step lies, as is meant to hold of 80 %; None where the error of the kernels is not known."""
    run, cluster, plan = answer.run, answer.request.cluster, answer.plan
    if run is not None and run.step_low_s is not None and run.step_high_s is not None:
        return run.step_low_s * 1e9, run.step_high_s * 1e9
    if cluster is None or plan is None or answer.step_ns is None or len(cluster.used_kinds) != 1:
        return None
    recipe = recipe_of(plan)
    precision: Any = recipe.precision if recipe else plan.planned_model().dtype
    reached = cluster.used_kinds[0].reached("matrix-product", precision)
    return None if reached is None else (answer.step_ns / (1 + reached.error), answer.step_ns * (1 + reached.error))


def _proof(answer: PlanningResult) -> list[list[str]]:
    """How far from the best possible, as a share of the plan's step, by the solver and as it is checked without one; and what
    other requests would bring."""
    claim = None if answer.plan is None else answer.plan.claim
    if claim is None:
        return []
    words = [proof_of(claim, compared_with(answer), whole=not answer.evidence_of)]
    return [words, [how_to_check(claim)] * bool(how_to_check(claim)), *_prices(answer)]


def compared_with(answer: PlanningResult) -> str:
    """Which plans an answer is proven against: those of the problem that was solved, for the runtime and under the constraints
    that were asked for; and by what, where the prediction is another."""
    runtime, words = answer.request.options.get(FOR.name), ["any plan"]
    if answer.preset.name != DEFAULT:
        words.append(f"like {answer.preset.name}")
    words += [] if runtime is None else [f"for {NAMES.get(runtime, runtime)}"]
    constraints = [text for name, text in constraints_of(answer.problem, answer.request.options).items() if name != FOR.name]
    words += [f"with {' '.join(constraints)}"] * bool(constraints)
    software = answer.plan is not None and answer.plan.predicted is not None and answer.plan.predicted.software
    return " ".join(words) + ", by the solver's step model" * bool(software)


def _prices(answer: PlanningResult) -> list[list[str]]:
    return [line for price in answer.prices if (line := _priced(price, answer))]


def _priced(price: Price, answer: PlanningResult) -> list[str]:
    """What there is without a constraint of the request."""
    bound, best = price.steps_ns
    own = answer.answer.objective_ns
    runtime = f"{FOR.flag} {answer.request.options.get(FOR.name)}"
    if price.constraint == runtime:
        return _in_any_runtime(price, answer)
    without = f"without {price.constraint}"
    if best is None or not own:
        return [f"{without}: not known in the time"] if price.without is None else []
    known, most = 1 - best / own, None if bound is None else 1 - bound / own
    if most is not None and most < LEAST_GAIN:
        return [f"{without}: at most 0.1 % faster, proven"]
    limit = "" if most is None else f"at most {format_gap(most)}"
    if known < LEAST_GAIN:
        return [f"{without}: nothing faster is known" + f" ({limit} is possible)" * bool(limit)]
    within = f" ({limit})" * (bool(limit) and best != bound)
    software = answer.plan is not None and answer.plan.predicted is not None and answer.plan.predicted.software
    step = "" if software else f" {format_time(best)} a step:"  # of a prediction that is another, the share alone compares
    return [f"{without}{step} {format_share(known)} faster{within}"]


def _in_any_runtime(price: Price, answer: PlanningResult) -> list[str]:
    """The best plan of all runtimes that is known, by its prediction beside this one's."""
    assert answer.step_ns is not None
    wide = answer.plan is not None and answer.plan.precision.gradients == "float32"  # in which it was searched, too
    words, best = "in any runtime" + " (float32 gradients)" * wide, price.predicted_ns
    if best is None:
        return [f"{words}: not known in the time"]
    gain = 1 - best / answer.step_ns
    if gain < LEAST_GAIN:
        return [f"{words}: nothing faster is known"]
    return [f"{words} {format_time(best)} or less, {format_share(gain)} faster"]


@dataclass(frozen=True)
class _Others:
    """Plans that differ from this one in one decision, as the runtime is predicted to run them.

    faster: what fits and takes less time, though the search, which goes by the solver's objective, has it behind. why_not: what
    the fastest that does not fit needs, and the steps of the next best that do.
    """

    faster: list[str]
    why_not: list[str]


def _others(answer: PlanningResult) -> _Others:
    plan, runtime, uniform = answer.plan, answer.request.options.get(FOR.name), answer.uniform
    assert plan is not None and answer.step_ns is not None
    alike = list[str]()
    if uniform is not None and uniform.plan is not None and uniform.step_ns is not None:
        alike = [f"one layout for all ({' '.join(run_words(uniform.plan)[:-1])}): {format_time(uniform.step_ns)}"]
    if runtime is None or plan.runs_by is None:
        return _Others([], alike)
    own, seen, faster = run_words(plan), set[str](), list[str]()
    fitting, short = list[str](), list[str]()
    for _, other, step_ns, peak_bytes in neighbour_runs(runtime, plan, answer.request):
        name = difference(own, run_words(other))
        if not name or name in seen:
            continue
        seen.add(name)
        if peak_bytes > plan.memory_bytes:
            short.append(f"{name}: needs {gib(peak_bytes)} GiB")
        elif step_ns < (1 - LEAST_GAIN) * answer.step_ns:
            faster.append(f"{name} would take {format_time(step_ns)} by this prediction: the search goes by its own step model")
        else:
            fitting.append(f"{name}: {format_time(step_ns)}")
    return _Others(faster[:1], [*alike, *short[:1], *fitting[:MOST_OTHERS]])


def difference(own: Sequence[str], words: Sequence[str]) -> str:
    """What another plan has that this one has not, without what follows from the rest."""
    new = [word for word in words if word not in own]
    lost = [f"{name}1" for name in ("TP", "PP", "CP") if _has(name, own) and not _has(name, words)]
    chosen = lost + [word for word in new if not word.startswith("DP") and "micro-batch" not in word]
    if not chosen and "nothing recomputed" not in new:
        chosen = new
    return " ".join(chosen) or "without SP" * ("SP" in own and "SP" not in words)


def _has(name: str, words: Iterable[str]) -> bool:
    return any(re.fullmatch(rf"{name}\d+", word) for word in words)


def unfinished(answer: PlanningResult) -> list[list[str]]:
    """What ended the search before it was done."""
    stopped = answer.result.stopped
    article = "an" if stopped == "interrupt" else "the"
    return (
        [] if stopped is None else [[f"by {article} {stopped}, before the search was done: this is the best known until then"]]
    )


def assumed(answer: PlanningResult) -> list[list[str]]:
    """What the request leaves unsaid and the answer depends on, as it was taken."""
    request, lines = answer.request, list[str]()
    model = request.described_model
    if model is not None and model.vocabulary and not model.sequence:
        lines.append(f"{model.sequence_tokens:,} tokens a sample, the most that the model allows (--sequence)")
    if model is not None and model.attention:
        lines.append(f"attention {model.attention}")
    if answer.instead is not None:
        lines.append(f"planned like {answer.preset.name}, since {answer.instead}")
    if request.cluster is not None and request.cluster.whose_numbers:
        lines.append(f"{request.cluster_name} {request.cluster.whose_numbers}")
    return [[line] for line in lines]


def _next(answer: PlanningResult, plan_file: Path | None) -> list[list[str]]:
    """The commands that go on from here."""
    runtime = answer.request.options.get(FOR.name)
    if plan_file is None:
        return [["give -o plan.json to keep the plan, to export, run or explain it", "--details says more"]]
    target = runtime if runtime and runtime != "trainplan" else "torch"
    first = f"trainplan export {plan_file} --to {target} -o run" if runtime else f"trainplan run {plan_file} --steps 3"
    return [[first], [f"trainplan explain {plan_file}", f"report {plan_file} -o report.html", "plan ... --details"]]


def other_runtime(request: Request) -> str | None:
    """The runtime that plans are asked for; None where that is trainplan's own."""
    runtime = request.options.get(FOR.name)
    return None if runtime in (None, OWN) else str(runtime)


def proven(request: Request) -> str:
    """Of what a proof is that nothing fits: it counts what trainplan's own programs hold, whichever runtime a plan is for."""
    return "proven" + ", by what trainplan's own programs hold" * (other_runtime(request) is not None)


def nothing(answer: PlanningResult) -> list[Row]:
    """Why there is no plan, and ways out."""
    result, reason = answer.result, answer.result.reason
    ways = list[str]()
    if answer.needed_bytes is not None:
        ways.append(f"{gib(answer.needed_bytes)} GiB a GPU")
    if answer.needed_devices is not None:
        ways.append(f"{answer.needed_devices} GPUs (with fewer nothing fits, {proven(answer.request)})")
    elif (unknown := answer.needed_devices_unknown) is not None and unknown.startswith("more than"):
        ways.append(f"{unknown.replace('; ', ' GPUs (')})" if "; " in unknown else f"{unknown} GPUs")
    if result.status != "infeasible":
        why = result.message or f"{result.method} found no plan, and has not proven that there is none"
        stopped = [("STOPPED", lines)] if (lines := unfinished(answer)) else []
        return [("OPEN", [[why]]), *stopped] + ([("NEEDS", [[" or ".join(ways)]])] if ways else [])
    limit = answer.request.with_margin(0).limit_bytes
    rows: list[Row] = [("FITS NOT", [[f"no plan fits into {gib(limit)} GiB a GPU ({proven(answer.request)})"]])]
    rows += [("NEEDS", [[" or ".join(ways)]])] if ways else []
    if reason is None:
        return rows
    sizes = zip((reason.state_bytes, reason.activation_bytes), reason.parts, strict=True)
    what = " and ".join(f"{gib(size)} GiB of {name}" for size, name in sizes)
    rows.append(("WHY", [[f"the leanest plan has {what} at the {reason.peak_pass} pass of {reason.peak_layer_name}"]]))
    others = [text for text in reason.advice if not text.startswith(("give --memory", "free "))]
    return rows + [("WAYS OUT", [[text] for text in others])] * bool(others)


def free_words(size: float) -> str:
    """`2.3 free`, `102 free`: of GiB."""
    return f"{size / GIB:.2g} free" if size < 99.5 * GIB else f"{size / GIB:.0f} free"


def gib(size: float) -> str:
    """GiB with four digits at most, without the unit."""
    return f"{size / GIB:.3g}" if size < 100 * GIB else f"{size / GIB:.0f}"


def tokens(rate: float) -> str:
    """`1,022`, `33.6`: whole from a hundred on."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _rounded(time_ns: float) -> str:
    """A time of two or three digits."""
    value, unit = format_time(time_ns).split()
    return f"{float(value):.0f} {unit}" if float(value) >= 10 else f"{float(value):.2g} {unit}"
