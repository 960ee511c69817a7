"""Prints plans, results of solvers and checks for people, as tables and labelled lines on standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainplan.command.printing import aligned, line, pairs, table, wrapped
from trainplan.command.render_plans import side_by_side
from trainplan.execution.launch_files.logs.steps import LoggedRun
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.problem import Table as Rows
from trainplan.formulations.problem import problem_of
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.plan_words import strategy_as_run
from trainplan.planning.compare_methods import Comparison
from trainplan.planning.compare_planners import PlannerComparison
from trainplan.planning.every_runtime import RuntimePlan
from trainplan.planning.memory_frontier import Frontier
from trainplan.planning.proof import proof
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import PARTS, Performance
from trainplan.profiling.base.quantities import format_bytes, format_count, format_time, plural
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.layer_summary import reached
from trainplan.profiling.models.model import Model
from trainplan.screens.plan import Row, screen
from trainplan.screens.runtimes import runtime_cells, runtime_notes
from trainplan.solvers.core.method_registry import Entry
from trainplan.solvers.core.result import Result, peak_text
from trainplan.tabular import cell_text
from trainplan.verification import Checked, CheckedClaim, CheckedPlan

MOST_ROWS = 12  # that a long table is cut to


def tables(of_solution: Sequence[Rows]) -> None:
    """Print the tables that a problem makes of a solution; of a table with more than 3 x MOST_ROWS rows, only the first
    MOST_ROWS."""
    for shown in of_solution:
        table(shown.columns, shown.rows[:MOST_ROWS] if len(shown.rows) > 3 * MOST_ROWS else shown.rows, shown.title or None)


def solved(instance: Any, result: Result) -> None:
    """Print a solver's result: the tables of its solution, if it has one, then its status, objective and lower bound.

    instance: the problem's instance that was solved.
    """
    if result.solution is not None:
        problem = problem_of(instance)
        tables(problem.tables(instance, problem.load_solution(result.solution)))
    pairs(result.summary(flags=True))


def comparison(compared: Comparison) -> None:
    """Print the results of several methods for one instance as a table, then why the instance is infeasible, if it is, and
    every contradiction between the methods' answers."""
    table(tuple(compared.headings.values()), compared.cells())
    reasons = [result.reason.command_text for result in compared.results if result.reason]
    ended = [f"{name} was interrupted; methods after it were not run" for name in compared.unfinished]
    for text in [*reasons[:1], *ended, *(f"contradiction: {text}" for text in compared.contradictions)]:
        line(text)


def frontier(points: Frontier) -> None:
    """Print the result of each method under each memory limit, as a table, and the notes below it."""
    table(tuple(points.headings.values()), points.cells())
    for text in points.notes():
        line(text)


def lifted(layers: Mapping[str, Sequence[int]]) -> str:
    """A text that says of how many layers of a profile the stated peak memory was less than the bytes that the layer keeps, so
    that it was raised to these.

    layers: by the name of the peak, such as forward_peak_bytes, the indices of these layers.
    """
    peaks = ", ".join(f"{name} of {plural(len(indices), 'layer')}" for name, indices in layers.items())
    return f"{peaks}, raised to what the layer keeps"


def methods(problem: str, entries: Sequence[Entry]) -> None:
    """Print the solution methods for a problem as a table. problem: its name, the table's title. entries: the methods; the
    first one is the method that the name `exact` stands for."""
    rows = []
    for index, entry in enumerate(entries):
        options = ", ".join(map(str, entry.options)) or "-"
        name = f"{entry.name} (= exact)" if index == 0 else entry.name
        rows.append([name, "yes" if entry.proves else "no", entry.about, options])
    table(("method", "proves", "about", "options"), rows, problem)


def checked(check: Checked | CheckedPlan) -> None:
    """Print the findings of a check of a solution or of a plan: time, memory, and the constraints that are violated."""
    if isinstance(check, CheckedPlan):
        pairs([*_programs(check), *_violations(check.violations)])
        return
    rows = [("problem", check.problem)]
    if check.objective is not None:
        rows.append(("time", format_time(check.objective)))
    if check.peak_bytes is not None:
        rows.append(("peak memory", peak_text(check.peak_bytes, check.peak_layer_name, check.peak_ns)))
    if check.memory_bytes is not None:
        rows.append(("memory limit", f"{format_bytes(check.memory_bytes)}"))
    pairs([*rows, *_violations(check.violations)])


def _violations(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A row (label, text) for each violated constraint; if `texts` is empty, one row that states that there is none."""
    return [("violation", text) for text in texts] or [("violations", "none")]


def _programs(check: CheckedPlan) -> list[tuple[str, str]]:
    """Rows (label, text) on the check of a plan: the programs of instructions that were checked, one for each rank or for each
    class of equal ranks; the memory that they need; and the plan's claimed lower bound."""
    programs = "each rank's" if check.programs == check.ranks else "one of each class of equal ranks"
    rows = [
        ("plan", f"{check.model} on {plural(check.ranks, 'rank')}"),
        ("checked", f"{plural(check.programs, 'program')} ({programs}), {check.instructions:,} instructions"),
    ]
    if check.stood_in_for:
        rows.append(("stand for", f"{' and '.join(check.stood_in_for)}, which programs do not carry out yet"))
    if check.peak_bytes is not None:
        whose = f", as {check.software} holds it" if check.software else ""
        rows.append(("peak memory", f"{format_bytes(check.peak_bytes)} on rank {check.peak_rank}{whose}"))
    if check.software and check.programs_bytes is not None:
        rows.append(("", f"{format_bytes(check.programs_bytes)} of its programs, which {check.software} does not run"))
    if check.host_bytes:
        rows.append(("on the host", f"{format_bytes(check.host_bytes)}"))
    rows.append(("memory limit", f"{format_bytes(check.memory_bytes)}"))
    claim = check.claim
    if check.step_ns is not None and claim is not None:
        apart = claim.objective_ns is not None and claim.objective_ns != check.step_ns
        proven = "; bound and proof are of the solver's objective" * apart
        rows.append(("predicted step", f"{format_time(check.step_ns)} (as the plan states){proven}"))
    return [*rows, *([] if claim is None else _claim(claim))]


def _claim(claim: CheckedClaim) -> list[tuple[str, str]]:
    """Rows (label, text) on the lower bound of the step that a plan's file claims, and on which parts of the claim a check
    without a solver has confirmed."""
    bound = "none" if claim.claimed_bound_ns is None else format_time(claim.claimed_bound_ns)
    rows = [("proven lower bound", f"{bound} (said by the solver, not checked)")]
    if claim.objective_ns is not None:
        rows.append(("solver's objective", f"{format_time(claim.objective_ns)} ({claim.problem}), evaluated again"))
    if claim.bound_ns is not None and claim.objective_ns:
        followed = "by prices of memory and weighted paths, followed in whole numbers"
        of_runtime = "prediction" in (claim.claimed_source or "")
        how = "by bounds and predictions of all plans, computed again" if of_runtime else "in closed form, without evidence"
        how = followed if claim.evidence else how
        rows.append(("checked bound", f"{format_time(claim.bound_ns)}, {how}"))
        rows.append(("proof", proof(claim.objective_ns, claim.claimed_bound_ns, claim.bound_ns)))
        if claim.evidence and claim.weak_bound_ns is not None:
            rows.append(("weaker bound", f"{format_time(claim.weak_bound_ns)}, in closed form, without evidence"))
    return [*rows, ("verdict", claim.verdict)]


def plan_table(plan: Plan) -> None:
    """Print a plan as a table: stage by stage, a row for each run of consecutive units (sub-layers) with equal strategies;
    below it, the lines of `plan_facts` on micro-batches, schedule and so on."""
    rows = []
    for number, stage in enumerate(plan.stages):
        units = plan.units[stage.first_unit : stage.last_unit + 1]
        ranks = f"{stage.ranks[0]} .. {stage.ranks[-1]}" if len(stage.ranks) > 1 else str(stage.ranks[0])
        for first, names, count, strategy in runs(
            [unit.name for unit in units], [strategy_as_run(plan, unit) for unit in units]
        ):
            rows.append([*(["", ""] if first else [str(number), ranks]), names, str(count), strategy])
    table(("stage", "ranks", "sub-layers", "count", "strategy"), rows)
    plan_facts(plan)


def _on_host(plan: Plan) -> list[str]:
    """The kinds of model states (parameters, gradients, optimizer states) that a plan keeps in host memory for at least one
    unit (sub-layer); an empty list if there are none."""
    kinds = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states"}
    return [text for name, text in kinds.items() if any(getattr(unit.states, name) == "host" for unit in plan.units)]


def plan_facts(plan: Plan) -> None:
    """Print the number of samples of a plan's step, its micro-batches, stages and schedule; and its precision, states in host
    memory, dtype of gradients and placement, unless these are the defaults."""
    batch, schedule = plan.batch, SCHEDULES[plan.schedule].title
    halves = f", {plan.sliced} sliced" if plan.sliced else ""
    stages = f"{len(plan.stages)} stages, {schedule}{halves}" if len(plan.stages) > 1 else "1 stage"
    counts = plural(batch.micro_batches, "micro-batch")
    if batch.shares is not None:
        counts = f"{', '.join(map(str, batch.shares))} micro-batches of the pipelines"
    facts = [("step", f"{batch.global_samples} samples in {counts}, {stages}")]
    if (recipe := recipe_of(plan)) is not None:
        facts.append(("precision", f"matrix multiplications of layers in {recipe.name}: {recipe.about}"))
    if host := _on_host(plan):
        facts.append(("on the host", ", ".join(host)))
    if plan.precision.gradients != "model":
        facts.append(("gradients", f"added up and reduced in {plan.precision.gradients}"))
    if plan.placement is not None:
        facts.append(("placement", f"rank by rank on devices {', '.join(map(str, plan.placement))}"))
    pairs(facts)


def answered(answer: PlanningResult, plan_file: Path | None) -> None:
    """Print the short answer to a planned request. plan_file: where the plan was written; None if it was not."""
    rows_of_screen(screen(answer, plan_file))


def rows_of_screen(rows: Sequence[Row]) -> None:
    """Print the rows of a command's short answer: each is a label and lines, and a line is a list of pieces of text, which are
    joined by dots."""
    for label, lines in rows:
        for number, pieces in enumerate(lines):
            wrapped("" if number else label, pieces, whole=label == "NEXT")


def runtimes(rows: Sequence[RuntimePlan], seconds: float) -> None:
    """Print the best plan for each runtime (Megatron-LM, torchtitan and so on), below the short answer of `plan`; nothing if
    `rows` is empty. seconds: the time that the searches for these plans had together."""
    if rows:
        aligned("RUNTIMES", runtime_cells(rows))
        for note in runtime_notes(rows, seconds):
            wrapped("", note)


def planned(answer: PlanningResult) -> None:
    """Print the whole answer to a planned request (`plan --details`): the request, the alternatives that were searched, the
    plan, its prediction, and the proof of its lower bound; if there is no plan, why."""
    plan = answer.plan
    why = "" if answer.instead is None else f", since {answer.instead}"
    rows = [("like", f"{answer.preset.name}{why}"), *_request_rows(answer.request)]
    for profile in answer.request.obtained[:1]:
        recipe = RECIPES.get(answer.request.options.get("precision", "model"))
        products = None if recipe is None else recipe.precision
        rows += [("profile", profile.origin), *(("reached", text) for text in reached(profile, products))]
    pairs(rows)
    alternatives(answer)
    if plan is None:
        pairs(answer.summary(flags=True))
        return
    shown = answer.problem.tables(answer.instance, answer.answer.solution)
    tables(shown)
    has_strategies = any({"strategy", "ranks"} <= set(drawn.columns) for drawn in shown)
    (plan_facts if has_strategies else plan_table)(plan)  # the plan's table would repeat the problem's
    if answer.performance is not None and not answer.performance.software:  # other runtimes have no memory by part
        stage_memory(answer.performance)
    pairs(answer.summary(flags=True))


def _request_rows(request: Request) -> list[tuple[str, str]]:
    """Rows (label, text) on a request: model, sequence, dtype, attention and cluster, with the values that were taken for what
    the user left out."""
    model, described = request.model.name if request.model else request.origin.name, request.described_model
    taken = [] if described is None else [("sequence", _sequence(described)), ("dtype", described.dtype)]
    taken += [("attention", described.attention)] if described is not None and described.attention else []
    devices = f"{plural(request.origin.devices, 'device')} of {_memory(request)}"
    whose = "" if request.cluster is None else request.cluster.whose_numbers
    return [("model", model), *taken, ("cluster", ", ".join(filter(None, (request.cluster_name, devices, whose))))]


def _sequence(model: Model) -> str:
    """The tokens of a sample of a model as a text, such as "8192 tokens"; it says so if the user did not give the number, so
    that it is the most that the model allows."""
    tokens = plural(model.sequence_tokens, "token")
    if not model.vocabulary:
        return f"{tokens} of an image"
    return tokens if model.sequence else f"{tokens}, the most that the model allows (--sequence changes it)"


def _memory(request: Request) -> str:
    """The memory of a device that plans for a request may use, as a text; if the cluster keeps some in reserve, after the
    device's whole memory."""
    limit, whole = request.with_margin(0).limit_bytes, request.origin.memory_bytes
    reserved = request.memory_bytes is None and limit < whole
    return f"{format_bytes(whole)}, {format_bytes(limit)} usable each" if reserved else f"{format_bytes(limit)} each"


def stage_memory(performance: Performance) -> None:
    """Print the peak memory of each pipeline stage's fullest device by part: parameters, activations and so on."""
    table(("stage", *PARTS, "peak"), performance.memory_rows(), "memory of the fullest device of each stage, at its peak")


def alternatives(answer: PlanningResult) -> None:
    """Print the alternatives that a search compared, such as different numbers of stages, the best first; nothing if it had
    only one."""
    rows = answer.answer.alternatives
    if len(rows) < 2:
        return
    columns = [name for name in rows[0] if name != "cuts"]
    cells = [[cell_text(name, row[name]) for name in columns] for row in rows[:MOST_ROWS]]
    names = [name.removesuffix("_ns").replace("_", "-") for name in columns]
    table(names, cells, f"{len(rows)} alternatives, the best first")
    if len(rows) > MOST_ROWS:
        line(f"and {len(rows) - MOST_ROWS} more (--json has all)")


def plans(answers: Sequence[Any]) -> None:
    """Print the plans of several presets for one request in one table, then why the other presets have no plan.

    answers: for each preset its PlanningResult, or an InputError if the preset does not support the request.
    """
    results = [answer for answer in answers if isinstance(answer, PlanningResult)]
    pairs([row for answer in results[:1] for row in _request_rows(answer.request)])
    side_by_side([answer.row for answer in results if answer.row is not None])
    uniform = [(answer.preset.name, dict(answer.summary())["one strategy"]) for answer in results if answer.plan]
    pairs([(f"{name}, one strategy", text) for name, text in uniform])
    rows = [
        (answer.preset.name, dict(answer.summary(flags=True)).get("reason", answer.result.message or answer.result.status))
        for answer in results
        if not answer.plan
    ]
    rows += [(answer.preset.name, "interrupted: presets after it were not planned") for answer in results if answer.interrupted]
    pairs([*rows, *(("not supported", answer.command_text) for answer in answers if not isinstance(answer, PlanningResult))])


def logged(run: LoggedRun) -> None:
    """Print the step time and the peak memory that the log of a run measured, next to the values that were predicted for its
    plan."""
    error = run.predicted_s / run.step_s - 1
    of = run.log.of("step", "the median of {}")
    measured = f"{run.step_s:.4g} s a step, {of}; {format_count(run.tokens_per_s)} tokens/s"
    pairs(
        [
            ("log", f"of {run.log.runtime}"),
            ("measured", measured),
            ("predicted", f"{run.predicted_s:.4g} s a step ({error:+.1%})"),
        ]
    )
    rows = [
        [
            "the fullest" if rank is None else str(rank),
            format_bytes(measured),
            format_bytes(predicted),
            f"{predicted / measured - 1:+.1%}",
        ]
        for rank, measured, predicted in run.peaks
        if measured
    ]
    title = "peaks of memory" + (", measured: what torch's allocator reserved" if run.log.reserved else "")
    if rows:
        table(("rank", "measured", "predicted", "error"), rows[:MOST_ROWS], title, ("rank",))


def rivals(compared: PlannerComparison) -> None:
    """Print a table of each paper's planner and the joint optimum, a row each: the predicted step and how far it is above the
    optimum and above the optimum's lower bound; then why a planner has no plan or no gap."""
    rows = []
    for rival, cells in zip(compared, compared.cells(), strict=True):
        with_theirs = "" if rival.whole_seconds is None else f", with theirs {rival.whole_seconds:.2f}"
        rows.append([*cells[:-1], f"{rival.seconds:.2f}{with_theirs}"])
    title = "predicted steps, without overlap; above the joint optimum, and above its lower bound"
    table(tuple(compared.headings.values()), rows, title)
    pairs(
        [
            (rival.planner, rival.why or f"no gap to the bound: {rival.outside}")
            for rival in compared
            if rival.why or rival.outside
        ]
    )
