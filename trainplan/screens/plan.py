"""One screen on a planned request: whether it fits, what to run, how fast that is, how close to the best possible, which other
plans there are, and what to do next. `PlanningResult.summary` has the details."""

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
from trainplan.formulations.runtimes import BY_PROGRAMS, FOLDERS, RUNTIMES, short_title
from trainplan.imported_runs.assess import LEAST_GAIN, neighbour_runs
from trainplan.plan_words import NOTHING_AGAIN, OF_OWN, layouts, run_words, whose_numbers
from trainplan.planning.every_runtime import OWN, RuntimePlan
from trainplan.planning.presets import DEFAULT
from trainplan.planning.proof import how_to_check, proof_of
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.planning.result_price import Price
from trainplan.prediction.metrics import PARTS, Performance
from trainplan.profiling.base.quantities import format_gap, format_share, format_time
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.sheets import sheet, sheets
from trainplan.screens.equal import Layout, equal_lines, equal_rows
from trainplan.screens.stages import stage_lines
from trainplan.validation.fitting import fit_of, tight_words
from trainplan.validation.predict import GIB, Prediction

Row = tuple[str, list[list[str]]]  # a label and its lines; the pieces of a line are printed with dots between them
MOST_OTHERS = 3  # other plans that fit which the screen names
CAUSES = {"optimizer": "optimizer states"}


def screen(answer: PlanningResult, plan_file: Path | None = None) -> list[Row]:
    """The rows of the terminal screen that answers a planning request, in order; a row is a label and its lines.

    answer: the planned request, with its plan if there is one. plan_file: the file that the plan is written to, which the
    suggested next commands name; None if it is not written.
    """
    if answer.plan is None or answer.step_ns is None:
        return rows_without_plan(answer)
    others = _others(answer)
    rows: list[Row] = [
        ("FITS", [[*memory_words(answer.plan, parts_of(answer.run, answer.performance)), *_tight(answer)]]),
        ("RUN", [run_words(answer.plan), *layouts(answer.plan)]),
        ("STAGES", stage_lines(answer.plan)),
        ("SPEED", [speed_words(answer.step_ns, answer.performance, likely_ns(answer)), [whose_numbers(answer.plan)]]),
        ("BEST?", [*_proof(answer), others.faster]),
        ("WHY NOT", [others.why_not]),
        ("EQUAL", equal_lines(answer.step_ns, others.fitting)),
        ("STOPPED", stopped_lines(answer)),
        ("ASSUMED", assumption_lines(answer)),
        ("NEXT", _next(answer, plan_file)),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def runtime_cells(rows: Sequence[RuntimePlan]) -> list[tuple[list[str], list[str]]]:
    """The table that compares runtimes: headings first, then one row per runtime that has a plan.

    A row is two lists: the cells (name, step, MFU, peak in GiB, and how far the plan may be from the runtime's best), and the
    words of the plan's layout. rows: the answers for all runtimes.
    """
    cells = [(["runtime", "step", "MFU", "peak", "within"], ["layout"])]
    for row in rows:
        if row.answer is None or row.answer.plan is None or row.step_ns is None:
            continue
        reached = row.answer.performance
        mfu = "" if reached is None or reached.mfu is None else f"{reached.mfu:.0%}".replace("%", " %")
        peak = "" if row.peak_bytes is None else gib(row.peak_bytes)
        if row.gap is None or (row.stopped and not row.gap):
            within = "open"
        else:
            within = "open: " * bool(row.stopped) + format_gap(row.gap)
        words = [word for word in run_words(row.answer.plan) if word != NOTHING_AGAIN]
        first = next(index for index, word in enumerate(words) if "micro-batch" in word)
        layout = [" ".join(words[:first])] * (first > 0) + words[first:]
        cells.append(([row.name, format_time(row.step_ns), mfu, peak, within], layout))
    return cells


def runtime_notes(rows: Sequence[RuntimePlan], seconds: float) -> list[list[str]]:
    """Lines below the table that compares runtimes: the meaning of its cells, why runtimes have no plan, and unfinished
    searches. A line is a list of texts that are printed with dots between them.

    rows: the answers for all runtimes. seconds: the time limit of each search.
    """
    limit = next(
        (gib(row.answer.plan.memory_bytes) for row in rows if row.answer is not None and row.answer.plan is not None), ""
    )
    notes = [[f"peak: of {limit} GiB a GPU", "within: of the runtime's best plan (solver)"]]
    own = next((row.answer.plan for row in rows if row.runtime == OWN and row.answer is not None), None)
    notes += [] if own is None else [[f"{OWN}: {whose_numbers(own).replace(OF_OWN, 'its')}"]]
    lacking = [row for row in rows if not row.found and row.stopped is None]
    for why in dict.fromkeys(row.why for row in lacking):
        notes.append([f"{', '.join(row.name for row in lacking if row.why == why)}: {why}"])
    if unpredicted := [row.name for row in rows if row.found and RUNTIMES[row.runtime].unpredicted]:
        notes.append([f"{', '.join(unpredicted)}: {BY_PROGRAMS}"])
    stopped = [row for row in rows if row.stopped is not None]
    if stopped:
        names = ", ".join(f"{row.name} ({row.why})" if row.why else row.name for row in stopped)
        timed = f"{seconds:.2g} s were up: give a longer --time-limit, or {FOR.flag} {stopped[-1].runtime}"
        notes.append([f"open: {names}", timed if any(row.stopped == "time limit" for row in stopped) else "interrupted"])
    return notes


def _tight(answer: PlanningResult) -> list[str]:
    """A text for the screen if the error of predicted peaks decides whether the plan fits; an empty list if not. answer: the
    planned request, with its plan.
    """
    probability = answer.fit_probability
    return [tight_words(probability)] if probability is not None and fit_of(probability) == "tight" else []


def memory_words(plan: Plan, parts: Mapping[str, float]) -> list[str]:
    """A plan's peak memory per GPU, for the screen, as texts that are printed with dots between them: the peak, the limit, the
    stage that has the peak, and its largest part.

    parts: the peak of the fullest device in bytes, by part, such as "activations".
    """
    if plan.predicted is None:
        return ["by the solver's count; no prediction: trainplan cannot run plans of this model yet"]
    most, limit = max(plan.predicted.peak_bytes), plan.memory_bytes
    margin = free_words(limit - most) if most <= limit else f"{gib(most - limit)} too much"
    return [f"{gib(most)} of {gib(limit)} GiB ({margin}){most_held(plan, parts)}"]


def most_held(plan: Plan, parts: Mapping[str, float]) -> str:
    """A phrase to follow the size of a plan's peak: the stage that has it, and its largest part; empty if the plan has no
    prediction.

    parts: the peak of the fullest device in bytes, by part, such as "activations".
    """
    if plan.predicted is None:
        return ""
    peaks, text = plan.predicted.peak_bytes, ""
    rank = peaks.index(max(peaks))
    if plan.depth > 1:
        text += f" on stage {next(number for number, stage in enumerate(plan.stages) if rank in stage.ranks)}"
    if parts:
        name = max(parts, key=lambda part: parts[part])
        text += f", most of it {name} ({gib(parts[name])} GiB)"
    return text


def parts_of(run: Prediction | None, own: Performance | None) -> dict[str, float]:
    """The peak memory of the fullest device in bytes, by part, such as "activations"; empty if there is no prediction.

    run: the prediction for the plan's runtime, if it is not trainplan's own; used if it is given. own: the prediction of the
    plan's own programs, used otherwise.
    """
    if run is not None and run.memory is not None:
        return {CAUSES.get(name, name): size for name, size in run.memory.parts.items()}
    if own is None:
        return {}
    stage = max(own.stages, key=lambda memory: memory.peak_bytes)
    return {CAUSES.get(name, name): getattr(stage, f"{name}_bytes") for name in PARTS}


def speed_words(step_ns: int, reached: Performance | None, likely: tuple[float, float] | None) -> list[str]:
    """Step time, tokens/s and MFU for the screen, as texts that are printed with dots between them. reached: has tokens/s and
    MFU; None omits them. likely: the interval in ns in which a measured step probably lies; None omits it.
    """
    words = [f"{format_time(step_ns)} a step"]
    if reached is not None:
        words.append(f"{tokens(reached.tokens_per_s_per_device)} tokens/s a GPU")
        words += [] if reached.mfu is None else [f"MFU {reached.mfu:.0%}".replace("%", " %")]
    if likely is not None:
        words[-1] += f" (likely {_rounded(likely[0])} to {_rounded(likely[1])})"
    return words


def likely_ns(answer: PlanningResult) -> tuple[float, float] | None:
    """The interval (lowest, highest) in ns that is meant to contain 80 % of measured steps of the answer's plan; None if the
    error of the devices' kernel times is not known.
    """
    run, cluster, plan = answer.run, answer.request.cluster, answer.plan
    if run is not None and run.step_low_s is not None and run.step_high_s is not None:
        return run.step_low_s * 1e9, run.step_high_s * 1e9
    if cluster is None or plan is None or answer.step_ns is None or len(cluster.used_kinds) != 1:
        return None
    recipe = recipe_of(plan)
    precision: Any = recipe.precision if recipe else plan.planned_model().dtype
    reached = cluster.used_kinds[0].reached("matrix-product", precision)
    if reached is None:
        return None
    named = next((name for name in sheets() if sheet(name).name == cluster.used_kinds[0].name), None)
    known = None if named is None else shipped_efficiencies().step_error(named, plan.world, precision, OWN)
    error = max(reached.error, known or 0.0)
    return answer.step_ns / (1 + error), answer.step_ns * (1 + error)


def _proof(answer: PlanningResult) -> list[list[str]]:
    """Lines for the screen on how close to the best possible the plan is proven to be, how to check that without a solver, and
    how much time each constraint of the request costs. A line is a list of texts that are printed with dots between them.
    answer: the request, with the plan found for it, if any.
    """
    claim = None if answer.plan is None else answer.plan.claim
    if claim is None:
        return []
    words = [proof_of(claim, compared_with(answer), whole=not answer.evidence_of)]
    return [words, [how_to_check(claim)] * bool(how_to_check(claim)), *_prices(answer)]


def compared_with(answer: PlanningResult) -> str:
    """A phrase for the set of plans that the answer's plan is proven against, such as "any plan for Megatron-LM with --tp 8".

    If a runtime other than trainplan's own predicts the step, and the search was not by that prediction, the phrase adds that
    the proof is about the solver's step model.
    """
    runtime, words = answer.request.options.get(FOR.name), ["any plan"]
    if answer.preset.name != DEFAULT:
        words.append(f"like {answer.preset.name}")
    words += [] if runtime is None else [f"for {short_title(runtime)}"]
    constraints = [text for name, text in constraints_of(answer.problem, answer.request.options).items() if name != FOR.name]
    words += [f"with {' '.join(constraints)}"] * bool(constraints)
    return " ".join(words) + ", by the solver's step model" * _of_own_programs(answer)


def _of_own_programs(answer: PlanningResult) -> bool:
    """Whether a plan was searched by the steps of trainplan's own programs although another runtime is predicted to run it.
    answer: the request, with the plan found for it, if any.
    """
    predicted = None if answer.plan is None else answer.plan.predicted
    return predicted is not None and bool(predicted.software) and not predicted_by_runtime(answer.instance)


def _prices(answer: PlanningResult) -> list[list[str]]:
    """One line per constraint of the request (such as --tp 8) for which trainplan knows, or tried to find out, how much time
    it costs. A line is a list of texts that are printed with dots between them. answer: the request, with the plan found for
    it, if any.
    """
    return [line for price in answer.prices if (line := _priced(price, answer))]


def _priced(price: Price, answer: PlanningResult) -> list[str]:
    """The line on how much time one constraint of the request costs: how much faster the best plan without the constraint is
    or may be. answer: the request, with the plan found for it, if any. price: the result of planning without it. Empty if
    nothing can be stated. A line is a list of texts that are printed with dots between them.
    """
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
    step = "" if _of_own_programs(answer) else f" {format_time(best)} a step:"  # by another prediction: only shares compare
    return [f"{without}{step} {format_share(known)} faster{within}"]


def _in_any_runtime(price: Price, answer: PlanningResult) -> list[str]:
    """The line on how much time the choice of the runtime costs: how much faster the best known plan of any runtime is,
    compared by predicted steps. answer: the request, with the plan found for it, if any. price: the result of planning for any
    runtime. A line is a list of texts that are printed with dots between them.
    """
    assert answer.step_ns is not None
    wide = answer.plan is not None and answer.plan.precision.gradients == "float32"  # as in the search over all runtimes
    words, best = "in any runtime" + " (float32 gradients)" * wide, price.predicted_ns
    if best is None:
        return [f"{words}: not known in the time"]
    gain = 1 - best / answer.step_ns
    if gain < LEAST_GAIN:
        return [f"{words}: nothing faster is known"]
    return [f"{words} {format_time(best)} or less, {format_share(gain)} faster"]


@dataclass(frozen=True)
class _Others:
    """Texts for the screen on plans that differ from the answer's plan in one decision, with the steps that are predicted for
    the answer's runtime.

    faster: the plan that fits and is predicted to be faster, although it is worse by the solver's objective; at most one.
    why_not: the memory of the fastest plan that does not fit, and the steps of the next best plans that fit.
    fitting: all of these plans that fit, by what differs, with their predicted steps in ns.
    """

    faster: list[str]
    why_not: list[str]
    fitting: list[Layout]


def _others(answer: PlanningResult) -> _Others:
    """Find plans to compare the answer's plan with, and describe them: the best plan with one layout for all units
    (sub-layers), and plans that differ from it in one option of the runtime.
    """
    plan, runtime, uniform = answer.plan, answer.request.options.get(FOR.name), answer.uniform
    assert plan is not None and answer.step_ns is not None
    alike = list[str]()
    if uniform is not None and uniform.plan is not None and uniform.step_ns is not None:
        alike = [f"one layout for all ({' '.join(run_words(uniform.plan)[:-1])}): {format_time(uniform.step_ns)}"]
    if runtime is None or plan.runs_by is None:
        return _Others([], alike, [])
    own, named, faster = run_words(plan), set[str](), list[str]()
    fitting, short, layouts = list[str](), list[str](), list[Layout]()
    for _, other, step_ns, peak_bytes in neighbour_runs(runtime, plan, answer.request):
        name = difference(own, run_words(other))
        if not name or name in named:
            continue
        named.add(name)
        if peak_bytes > plan.memory_bytes:
            short.append(f"{name}: needs {gib(peak_bytes)} GiB")
            continue
        layouts.append((name, step_ns))
        if step_ns < (1 - LEAST_GAIN) * answer.step_ns:
            faster.append(f"{name} would take {format_time(step_ns)} by this prediction: the search goes by its own step model")
        else:
            fitting.append(f"{name}: {format_time(step_ns)}")
    return _Others(faster[:1], [*alike, *short[:1], *fitting[:MOST_OTHERS]], layouts)


def equal_plans(answer: PlanningResult) -> list[dict[str, Any]]:
    """Plans that differ from the answer's plan in one decision, fit, and are predicted to be as fast within what is known, as
    JSON-ready dicts with `layout` (what differs) and `step_ns`. answer: the request, with the plan found for it, if any.
    """
    if answer.plan is None or answer.step_ns is None:
        return []
    return equal_rows(answer.step_ns, _others(answer).fitting)


def difference(own: Sequence[str], words: Sequence[str]) -> str:
    """The words of another plan's layout that are not in the layout of the user's plan, as text, such as `TP8 PP1`; empty if
    the layouts are equal.

    own, words: the words of the layout of the user's plan and of the other plan, as `run_words` gives them. The data-parallel
    degree and the number of micro-batches follow from the rest, and are omitted if anything else differs.
    """
    new = [word for word in words if word not in own]
    lost = [f"{name}1" for name in ("TP", "PP", "CP") if _has(name, own) and not _has(name, words)]
    chosen = lost + [word for word in new if not word.startswith("DP") and "micro-batch" not in word]
    if not chosen and "nothing recomputed" not in new:
        chosen = new
    return " ".join(chosen) or "without SP" * ("SP" in own and "SP" not in words)


def _has(name: str, words: Iterable[str]) -> bool:
    """Whether one of the words is the abbreviation of a kind of parallelism (such as TP) followed by a degree, as in TP8."""
    return any(re.fullmatch(rf"{name}\d+", word) for word in words)


def stopped_lines(answer: PlanningResult) -> list[list[str]]:
    """A line for the screen with the reason why the search ended early, such as the time limit; no line if the search was
    completed. A line is a list of texts that are printed with dots between them. answer: the request, with the plan found for
    it, if any.
    """
    stopped = answer.result.stopped
    if stopped is None:
        return []
    article = "an" if stopped == "interrupt" else "the"
    return [[f"by {article} {stopped}, before the search was done: this is the best known until then"]]


def assumption_lines(answer: PlanningResult) -> list[list[str]]:
    """Lines for the screen on the assumptions that an answer depends on and that the request does not state, such as the
    sequence length. A line is a list of texts that are printed with dots between them.
    """
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
    runtime = request.options.get(FOR.name)
    if runtime in FOLDERS and RUNTIMES[runtime].unpredicted:
        lines.append(f"{short_title(runtime)}: {BY_PROGRAMS}")
    return [[line] for line in lines]


def _next(answer: PlanningResult, plan_file: Path | None) -> list[list[str]]:
    """Lines for the screen with the commands to continue with. A line is a list of texts that are printed with dots between
    them. answer: the request, with the plan found for it, if any. plan_file: the file that the plan is written to; None if it
    is not written.
    """
    runtime = answer.request.options.get(FOR.name)
    if plan_file is None:
        return [["give -o plan.json to keep the plan, to export, run or explain it", "--details says more"]]
    target = runtime if runtime and runtime != "trainplan" else "torch"
    first = f"trainplan export {plan_file} --to {target} -o run" if runtime else f"trainplan run {plan_file} --steps 3"
    return [[first], [f"trainplan explain {plan_file}", f"report {plan_file} -o report.html", "plan ... --details"]]


def other_runtime(request: Request) -> str | None:
    """The name of the runtime that a request wants plans for; None if it names no runtime, or trainplan's own."""
    runtime = request.options.get(FOR.name)
    return None if runtime in (None, OWN) else str(runtime)


def proven_words(request: Request) -> str:
    """The word "proven" for a proof that nothing fits; if the request is for a runtime other than trainplan's own, followed by
    the remark that the proof is about the memory of trainplan's own programs.
    """
    return "proven" + ", by what trainplan's own programs hold" * (other_runtime(request) is not None)


def rows_without_plan(answer: PlanningResult) -> list[Row]:
    """The rows of the screen for a request without a plan: the reason, what would be needed, and what to change. A row is a
    label and its lines. answer: the request, with the plan found for it, if any.
    """
    result, reason = answer.result, answer.result.reason
    needs = list[str]()
    if answer.needed_bytes is not None:
        needs.append(f"{gib(answer.needed_bytes)} GiB a GPU")
    if answer.needed_devices is not None:
        needs.append(f"{answer.needed_devices} GPUs (with fewer nothing fits, {proven_words(answer.request)})")
    elif (unknown := answer.needed_devices_unknown) is not None and unknown.startswith("more than"):
        needs.append(f"{unknown.replace('; ', ' GPUs (')})" if "; " in unknown else f"{unknown} GPUs")
    if result.status != "infeasible":
        why = result.message or f"{result.method} found no plan, and has not proven that there is none"
        stopped = [("STOPPED", lines)] if (lines := stopped_lines(answer)) else []
        return [("OPEN", [[why]]), *stopped] + ([("NEEDS", [[" or ".join(needs)]])] if needs else [])
    limit = answer.request.with_margin(0).limit_bytes
    rows: list[Row] = [("FITS NOT", [[f"no plan fits into {gib(limit)} GiB a GPU ({proven_words(answer.request)})"]])]
    rows += [("NEEDS", [[" or ".join(needs)]])] if needs else []
    if reason is None:
        return rows
    sizes = zip((reason.state_bytes, reason.activation_bytes), reason.parts, strict=True)
    what = " and ".join(f"{gib(size)} GiB of {name}" for size, name in sizes)
    rows.append(("WHY", [[f"the leanest plan has {what} at the {reason.peak_pass} pass of {reason.peak_layer_name}"]]))
    others = [text for text in reason.advice if not text.startswith(("give --memory", "free "))]
    return rows + [("WAYS OUT", [[text] for text in others])] * bool(others)


def free_words(size: float) -> str:
    """Format a number of free bytes as text in GiB, without the unit: `2.3 free`, `102 free`."""
    return f"{size / GIB:.2g} free" if size < 99.5 * GIB else f"{size / GIB:.0f} free"


def gib(size: float) -> str:
    """Format a size in bytes as text in GiB without the unit, with three digits: `7.25`, `104`."""
    return f"{size / GIB:.3g}" if size < 100 * GIB else f"{size / GIB:.0f}"


def tokens(rate: float) -> str:
    """Format tokens per second as text, in whole tokens from a hundred on: `1,022`, `33.6`."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _rounded(time_ns: float) -> str:
    """Format a time in ns as text with its unit, in whole units from ten on: `9.5 s`, `125 ms`."""
    value, unit = format_time(time_ns).split()
    return f"{float(value):.0f} {unit}" if float(value) >= 10 else f"{float(value):.2g} {unit}"
