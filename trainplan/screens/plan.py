"""One screen on a planned request: whether it fits, what to run, how fast that is, how close to the best possible, which other
plans there are, and what to do next. `PlanningResult.summary` has the details."""

from __future__ import annotations

from pathlib import Path

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import BY_PROGRAMS, FOLDERS, RUNTIMES, short_title
from trainplan.plan_words import layouts, run_words, whose_numbers
from trainplan.planning.every_runtime import OWN
from trainplan.planning.result import PlanningResult
from trainplan.screens.equal import equal_lines
from trainplan.screens.others import other_plans
from trainplan.screens.predicted import gib, likely_ns, memory_words, parts_of, speed_words
from trainplan.screens.proven import proof_lines
from trainplan.screens.stages import stage_lines
from trainplan.validation.fitting import fit_of, tight_words

Row = tuple[str, list[list[str]]]  # a label and its lines; the pieces of a line are printed with dots between them


def screen(answer: PlanningResult, plan_file: Path | None = None) -> list[Row]:
    """The rows of the terminal screen that answers a planning request, in order; a row is a label and its lines.

    answer: the planned request, with its plan if there is one. plan_file: the file that the plan is written to, which the
    suggested next commands name; None if it is not written.
    """
    if answer.plan is None or answer.step_ns is None:
        return rows_without_plan(answer)
    others = other_plans(answer)
    rows: list[Row] = [
        ("FITS", [[*memory_words(answer.plan, parts_of(answer.run, answer.performance)), *_tight(answer)]]),
        ("RUN", [run_words(answer.plan), *layouts(answer.plan)]),
        ("STAGES", stage_lines(answer.plan)),
        ("SPEED", [speed_words(answer.step_ns, answer.performance, likely_ns(answer)), [whose_numbers(answer.plan)]]),
        ("BEST?", [*proof_lines(answer), others.faster]),
        ("WHY NOT", [others.why_not]),
        ("EQUAL", equal_lines(answer.step_ns, others.fitting)),
        ("STOPPED", stopped_lines(answer)),
        ("ASSUMED", assumption_lines(answer)),
        ("NEXT", _next(answer, plan_file)),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def _tight(answer: PlanningResult) -> list[str]:
    """A text for the screen if the error of predicted peaks decides whether the plan fits; an empty list if not. answer: the
    planned request, with its plan.
    """
    probability = answer.fit_probability
    return [tight_words(probability)] if probability is not None and fit_of(probability) == "tight" else []


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
    runs_here = runtime is None or (answer.plan is not None and bool(layouts(answer.plan)))  # exports have one layout
    target = other_runtime(answer.request) or "torch"
    first = f"trainplan run {plan_file} --steps 3" if runs_here else f"trainplan export {plan_file} --to {target} -o run"
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
