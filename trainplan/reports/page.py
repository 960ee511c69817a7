"""The report of a plan as one HTML page: the plan, its prediction, and what its claim proves, put into a template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from shlex import quote
from typing import Any

from markupsafe import Markup

from trainplan.explanation import Explained, explain
from trainplan.formulations.joint.options import cost_words
from trainplan.formulations.plan.plan import Claim, Plan
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.runtimes import devices_of
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.pictures.layout import DARK, HOLDS, STRATEGIES
from trainplan.pictures.plans import KINDS
from trainplan.plan_words import SHAPE, layouts, strategy_as_run, whose_numbers
from trainplan.planning.compare_planners import PlannerResult
from trainplan.planning.proof import proof
from trainplan.prediction.metrics import PARTS, Performance, performance, stage_shares
from trainplan.prediction.simulate import simulate
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.reports.memory import COLUMNS, HIGH, stage_curves
from trainplan.reports.runtime import ByRuntime, by_runtime
from trainplan.reports.steps import drawn_step
from trainplan.reports.templates import template, text_of
from trainplan.validation.fitting import fit_words
from trainplan.verification import CheckedClaim, check_claim

MOST_RUNS = 48  # pieces of a stage, beyond which its map has no letters
MOST_PROCESSES = 16  # ranks of a plan that a machine without GPUs runs on a smaller model
LOW = 0.5  # share of the limit; a lower peak is drawn against itself and not against the limit, so that it can be seen
Compared = Sequence[PlannerResult]


def page(
    plan: Plan, profile: Profile | None, time_limit: float | None, compared: Compared = (), plan_file: str = "plan.json"
) -> str:
    """Generate the HTML page of the report of a plan. Raises InputError for plans of models that trainplan cannot turn into
    programs.

    profile: the profile that the plan was made from, if any. time_limit: seconds for finding how much a change of a single
    sub-layer's strategy would cost. compared: results of other planners, the plan's own problem first. plan_file: the name of
    the plan's file in the commands that the page suggests.
    """
    simulation = simulate(plan)
    prediction = simulation.judged
    assert prediction is not None
    evidence, cluster = None if plan.claim is None else plan.claim.evidence, devices_of(plan)
    perf = performance(plan, prediction, cluster)
    checked, theirs = check_claim(plan, profile), by_runtime(plan, simulation, cluster)
    try:
        explained: Explained | None = explain(plan, profile=profile, time_limit=time_limit, simulation=simulation)
        unexplained = ""
    except InputError as error:
        explained, unexplained = None, error.command_text
    curves = stage_curves(plan, prediction)
    peak = max(prediction.peak_bytes)
    most = max(plan.memory_bytes, peak, *simulation.peak_bytes)
    top = most if peak > LOW * plan.memory_bytes else round(1.2 * peak)
    return template("page.html").render(
        plan=plan,
        title=f"{plan.planned_model().name}: {format_time(simulation.step_ns)} a step",
        css=Markup(_colours() + text_of("page.css")),
        script=Markup(text_of("page.js")),
        step=_embedded(drawn_step(plan, prediction)),
        head=_head(plan, simulation, perf, cluster, checked, theirs),
        made_by=f"trainplan {version('trainplan')}",
        command=f"trainplan report {quote(plan_file)}{' --compare' * bool(compared)} -o report.html",
        following=following(plan, plan_file),
        kinds=list(KINDS),
        parts=PARTS,
        theirs=theirs,
        own=f"Of {SHAPE}",
        strategies=_strategies(plan),
        rows=_stages(plan),
        memory=perf.stages,
        curves=[(curve, curve.areas(top)) for curve in curves],
        columns=COLUMNS,
        high=HIGH,
        limit_y=None if top < plan.memory_bytes else f"{HIGH - HIGH * plan.memory_bytes / top:.2f}",
        most=most,
        top=top,
        step_ns=prediction.step_ns,
        predicted_ns=simulation.step_ns,
        shares=stage_shares(plan, prediction),
        explained=explained,
        unexplained=unexplained,
        claim=plan.claim,
        costs=None if plan.claim is None else cost_words(plan.claim.cost_model),
        evidence=evidence,
        checked=checked,
        compared=compared,
        proven="" if plan.claim is None else _proof(plan.claim, checked),
    )


def following(plan: Plan, plan_file: str) -> list[tuple[str, str]]:
    """Commands to continue with after a report, as pairs (command, description of what it does). plan_file: the name of the
    plan's file in them.
    """
    name = quote(plan_file)
    target = "torch" if plan.runs_by is None else plan.runs_by.name
    small = (
        f"trainplan run {name} --scale-down 16",
        "runs the plan on processes of this machine, on a model some 16 times smaller",
    )
    nearest = " --nearest" * bool(layouts(plan))  # exports have one layout for all sub-layers
    what = f"the files that start {'its nearest plan of one layout' if nearest else 'it'} with {target}"
    return [
        (f"trainplan export {name} --to {target}{nearest} -o run", what),
        *([small] if plan.runs_by is None and plan.world <= MOST_PROCESSES else []),
        (f"trainplan explain {name}", "where time and memory go, and what changing one sub-layer would do"),
        (f"trainplan check {name}", "follows the proof of the lower bound again, without a solver"),
        (f"trainplan simulate {name} --trace trace.json", "a trace of the step for https://ui.perfetto.dev"),
    ]


def _embedded(value: Any) -> Markup:
    """Format a value as JSON that can be put into an HTML script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _colours() -> str:
    """The colours of the page's pictures as CSS variables, for its style sheet."""
    lines = [f"--{name}:{colour}" for name, colour in (*KINDS.items(), *((f"part-{p}", HOLDS[p]) for p in PARTS))]
    return f":root{{{';'.join(lines)}}}\n"


def _head(
    plan: Plan,
    simulation: Simulation,
    perf: Performance,
    cluster: Cluster | None,
    checked: CheckedClaim | None,
    theirs: ByRuntime | None,
) -> list[tuple[str, str]]:
    """The facts at the top of the page as pairs (label, text): model, cluster, batch, predicted step, memory, proof.

    simulation: the simulated step. perf: the predicted throughput, MFU and memory. cluster: the cluster that the plan was
    made for; None if unknown. checked: the result of checking the plan's certificate; None if it has none. theirs: the
    prediction as another runtime runs the plan; its shares of time come before those of trainplan's own programs.
    """
    model, batch, claim = plan.planned_model(), plan.batch, plan.claim
    origin = "" if plan.predicted is None else plan.predicted.profile_origin
    where = cluster.name if cluster is not None else origin.removeprefix("estimated on ") or "not named in the plan"
    stages = plural(len(plan.stages), "stage") + (f", {SCHEDULES[plan.schedule].title}" if len(plan.stages) > 1 else "")
    facts = [
        ("model", f"{model.name}, {model.dtype}"),
        ("cluster", f"{where}; {plural(plan.world, 'device')}"),
        ("batch", f"{plural(batch.global_samples, 'sample')} a step in {plural(batch.micro_batches, 'micro-batch')}"),
        ("sequence", plural(model.sequence_tokens, "token")),
        ("stages", stages),
        ("predicted step", format_time(simulation.step_ns)),
        *((label, text) for label, text in perf.summary() if label != "device time"),
        ("device time", (theirs is not None and theirs.shares) or dict(perf.summary())["device time"]),
        (
            "memory",
            f"{format_bytes(max(simulation.peak_bytes))} on the fullest device, limit {format_bytes(plan.memory_bytes)}",
        ),
    ]
    if simulation.fit_probability is not None:
        facts.append(("fits", fit_words(simulation.fit_probability)))
    if simulation.software:
        drawn = "the timeline and curves below are of trainplan's programs of this plan"
        facts.append(("predicted", f"{whose_numbers(simulation.plan or plan)}; {drawn}"))
    elif whose := whose_numbers(plan):
        facts.append(("predicted", whose))
    if claim is not None:
        facts.append(("proof", _proof(claim, checked)))
    return [*facts, ("certificate", _certificate(checked))]


def _proof(claim: Claim, checked: CheckedClaim | None) -> str:
    """How close to the best possible step a plan is proven to be, as text.

    claim: the objective and lower bound that the solver states. checked: the result of checking the certificate of that lower
    bound; None if there is no certificate.
    """
    followed = None if checked is None or checked.faults or checked.unchecked is not None else checked.bound_ns
    return proof(claim.objective_ns, claim.bound_ns, followed)


def _certificate(checked: CheckedClaim | None) -> str:
    """Whether the certificate (the proof of the plan's lower bound) was checked, and the verdict, as text. checked: the result
    of checking it; None if there is none.
    """
    if checked is None:
        return "none in the plan, so nothing was checked"
    if checked.unchecked is not None or checked.faults or not checked.objective_ns or checked.bound_ns is None:
        return checked.verdict
    return "checked now, without any solver"


def _strategies(plan: Plan) -> dict[str, Mapping[str, Any]]:
    """How each strategy of a plan is shown on the page: dicts by the strategy's name, in order of first use, with the
    strategy's letter, its colours, and the number of units (sub-layers) that have it.
    """
    names = [strategy_as_run(plan, unit) for unit in plan.units]
    strategies: dict[str, Mapping[str, Any]] = {}
    for index, name in enumerate(dict.fromkeys(names)):
        colour = STRATEGIES[index % len(STRATEGIES)]
        letter = (chr(65 + index // 26 - 1) if index >= 26 else "") + chr(65 + index % 26)
        strategies[name] = {
            "letter": letter,
            "colour": colour,
            "ink": "#fff" if colour in DARK else "#000",
            "count": names.count(name),
        }
    return strategies


def _stages(plan: Plan) -> list[dict[str, Any]]:
    """For each pipeline stage, the data that the page's template reads: its ranks, the rows of its table, and the pieces of
    its map, each of which is a number of consecutive units (sub-layers) with one strategy. plan: a training plan, with its
    stages and strategies.
    """
    widest = max(stage.last_unit - stage.first_unit + 1 for stage in plan.stages)
    stages = []
    for number, stage in enumerate(plan.stages):
        units = plan.units[stage.first_unit : stage.last_unit + 1]
        names, labels = [unit.name for unit in units], [strategy_as_run(plan, unit) for unit in units]
        pieces: list[dict[str, Any]] = []
        for name, label in zip(names, labels, strict=True):
            if not pieces or pieces[-1]["strategy"] != label:
                pieces.append({"strategy": label, "first": name, "count": 0})
            pieces[-1] |= {"last": name, "count": pieces[-1]["count"] + 1}
        for piece in pieces:
            piece["units"] = span(piece["first"], piece["last"])
        stages.append(
            {
                "number": number,
                "ranks": _ranks(stage.ranks),
                "units": span(names[0], names[-1]),
                "rows": [(text, count, strategy) for _, text, count, strategy in runs(names, labels)],
                "pieces": pieces,
                "letters": len(pieces) <= MOST_RUNS,
                "spare": widest - len(units),
            }
        )
    return stages


def _ranks(ranks: Sequence[int]) -> str:
    """Format ranks as text: the first and the last, and their number if some between them are missing: `0 .. 6 (4 of them)`."""
    text = span(str(ranks[0]), str(ranks[-1]))
    return f"{text} ({len(ranks)} of them)" if len(ranks) != ranks[-1] - ranks[0] + 1 else text
