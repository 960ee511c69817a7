"""Tables and progress for people. Data goes to standard output, progress to standard error and only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from statistics import median
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trainplan.checking import Checked, CheckedClaim, CheckedPlan
from trainplan.command.printing import err, line, pairs, table
from trainplan.execution.walk.time import LANE_OF
from trainplan.formulations.plan import Plan
from trainplan.formulations.problem import Table as Rows
from trainplan.formulations.problem import problem_of
from trainplan.formulations.request import Request
from trainplan.formulations.runs import runs
from trainplan.formulations.step.schedules import SCHEDULE_NAMES
from trainplan.frontiers import FrontierPoint
from trainplan.performance import PARTS, Performance
from trainplan.planned import Planned
from trainplan.profiling.base.errors import printable
from trainplan.profiling.base.quantities import format_bytes, format_count, format_time, plural
from trainplan.profiling.models.model import Model
from trainplan.profiling.summary import reached
from trainplan.rivals import Rival
from trainplan.simulating import Simulation
from trainplan.solvers.core.entries import Entry
from trainplan.solvers.core.result import Point, Result, peak_text
from trainplan.throughputs import Throughput
from trainplan.trials import Trials

MOST_ROWS = 12  # of a table of alternatives
FORMATS: dict[str, Callable[[Any], str]] = {
    "_ns": format_time,
    "_bytes": format_bytes,
    "gap": "{:.3%}".format,
    "_per_s": format_count,
    "_per_device": format_count,
}


def tables(made: Sequence[Rows]) -> None:
    """Tables of a problem, long ones cut."""
    for each in made:
        table(each.columns, each.rows[:MOST_ROWS] if len(each.rows) > 3 * MOST_ROWS else each.rows, each.title or None)


def solved(instance: Any, result: Result) -> None:
    """The tables of a solution, then the result."""
    if result.solution is not None:
        problem = problem_of(instance)
        tables(problem.tables(instance, problem.load_solution(result.solution)))
    pairs(result.summary(flags=True))


def comparison(results: Sequence[Result], contradictions: Sequence[str]) -> None:
    """What several methods gave, and what contradicts."""
    best = min((r.objective for r in results if r.objective is not None), default=None)
    rows = []
    for r in results:
        above = None if r.objective is None or not best else r.objective / best - 1
        numbers = {"time_ns": r.objective, "bound_ns": r.bound, "gap": r.gap, "above_gap": above}
        cells = [_cell(name, value) for name, value in numbers.items()]
        rows.append([r.method, r.status, *cells, f"{r.build_seconds + r.solve_seconds:.3f}"])
    table(("method", "status", "time", "lower bound", "gap", "above best", "seconds"), rows)
    reasons = [r.reason.command_text for r in results if r.reason]
    for text in [*reasons[:1], *(f"contradiction: {text}" for text in contradictions)]:
        line(text)


def frontier(points: Sequence[FrontierPoint]) -> None:
    """What methods found under each memory limit."""
    rows = []
    for point in points:
        r = point.result
        cells = [_cell(name, value) for name, value in {"time_ns": r.objective, "bound_ns": r.bound, "gap": r.gap}.items()]
        seconds = f"{r.build_seconds + r.solve_seconds:.3f}"
        rows.append([r.method, format_bytes(point.memory_bytes), r.status, *cells, seconds])
    table(("method", "memory", "status", "time", "lower bound", "gap", "seconds"), rows)


def lifted(layers: Mapping[str, Sequence[int]]) -> str:
    """The peaks that a profile has below what its layers leave behind. layers: by peak, those where it is so."""
    peaks = ", ".join(f"{name} of {plural(len(places), 'layer')}" for name, places in layers.items())
    return f"{peaks}, from below to what the layer leaves behind"


def methods(problem: str, entries: Sequence[Entry]) -> None:
    """The methods for a problem."""
    rows = []
    for place, entry in enumerate(entries):
        options = ", ".join(map(str, entry.options)) or "-"
        name = f"{entry.name} (= exact)" if place == 0 else entry.name
        rows.append([name, "yes" if entry.proves else "no", entry.about, options])
    table(("method", "proves", "about", "options"), rows, problem)


def checked(check: Checked | CheckedPlan) -> None:
    """What a check found: time, memory, violations."""
    if isinstance(check, CheckedPlan):
        pairs([*_programs(check), *_violations(check.violations)])
        return
    rows = [("problem", check.problem)]
    if check.objective is not None:
        rows.append(("time", format_time(check.objective)))
    if check.peak_bytes is not None:
        rows.append(("peak memory", peak_text(check.peak_bytes, check.peak_layer_name, check.peak_ns)))
    if check.memory_bytes is not None:
        rows.append(("memory limit", f"{format_bytes(check.memory_bytes)} ({check.memory_bytes} bytes)"))
    pairs([*rows, *_violations(check.violations)])


def _violations(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [("violation", text) for text in texts] or [("violations", "none")]


def _programs(check: CheckedPlan) -> list[tuple[str, str]]:
    """What was checked of a plan, and the memory of its fullest device."""
    each = "each rank's" if check.programs == check.ranks else "one of each class of equal ranks"
    rows = [
        ("plan", f"{check.model} on {plural(check.ranks, 'rank')}"),
        ("checked", f"{plural(check.programs, 'program')} ({each}), {check.instructions:,} instructions"),
    ]
    if check.peak_bytes is not None:
        rows.append(("peak memory", f"{format_bytes(check.peak_bytes)} ({check.peak_bytes} bytes) on rank {check.peak_rank}"))
    if check.host_bytes:
        rows.append(("on the host", f"{format_bytes(check.host_bytes)} ({check.host_bytes} bytes)"))
    rows.append(("memory limit", f"{format_bytes(check.memory_bytes)} ({check.memory_bytes} bytes)"))
    return [*rows, *([] if check.claim is None else _claim(check.claim))]


def _claim(claim: CheckedClaim) -> list[tuple[str, str]]:
    """What a claim says, and what of it was checked."""
    said = "none" if claim.claimed_bound_ns is None else f"{format_time(claim.claimed_bound_ns)}, by {claim.claimed_source}"
    rows = [("bound of claim", f"{said} (said by the solver, not checked)")]
    if claim.objective_ns is not None:
        rows.append(("claimed step", f"{format_time(claim.objective_ns)} of {claim.problem}, evaluated again"))
    if claim.bound_ns is not None and claim.objective_ns:
        how = "by prices of memory, followed in whole numbers" if claim.evidence else "in closed form, without evidence"
        gap = 1 - claim.bound_ns / claim.objective_ns
        rows.append(("checked bound", f"{format_time(claim.bound_ns)}, {how}: gap {gap:.4%}"))
        if claim.evidence and claim.weak_bound_ns is not None:
            rows.append(("weaker bound", f"{format_time(claim.weak_bound_ns)}, in closed form, without evidence"))
    return [*rows, ("verdict", claim.verdict)]


def plan_table(plan: Plan) -> None:
    """The strategy of every unit, and the switches that are on, stage by stage, runs of equal ones as one row."""
    rows = []
    for number, stage in enumerate(plan.stages):
        units = plan.units[stage.first_unit : stage.last_unit + 1]
        ranks = f"{stage.ranks[0]} .. {stage.ranks[-1]}" if len(stage.ranks) > 1 else str(stage.ranks[0])
        for first, names, count, strategy in runs([unit.name for unit in units], list(map(str, units))):
            rows.append([*(["", ""] if first else [str(number), ranks]), names, str(count), strategy])
    table(("stage", "ranks", "units", "count", "strategy"), rows)
    plan_facts(plan)


def plan_facts(plan: Plan) -> None:
    """What a plan has beside units and stages: micro-batches, schedule, placement."""
    batch, schedule = plan.batch, SCHEDULE_NAMES[plan.schedule]
    halves = f", {plan.sliced} sliced" if plan.sliced else ""
    stages = f"{len(plan.stages)} stages, {schedule}{halves}" if len(plan.stages) > 1 else "1 stage"
    counts = plural(batch.micro_batches, "micro-batch")
    if batch.shares is not None:
        counts = f"{', '.join(map(str, batch.shares))} micro-batches of the pipelines"
    facts = [("step", f"{batch.global_samples} samples in {counts}, {stages}")]
    if plan.placement is not None:
        facts.append(("placement", f"rank by rank on devices {', '.join(map(str, plan.placement))}"))
    pairs(facts)


def planned(answer: Planned) -> None:
    """A planned request: what was asked for, the alternatives, the plan, what the walks predict, and what is claimed."""
    plan = answer.plan
    why = "" if answer.instead is None else f", since {answer.instead}"
    rows = [("like", f"{answer.preset.name}{why}"), *_asked(answer.request)]
    for profile in answer.request.obtained[:1]:
        rows += [("profile", profile.origin), *(("reached", text) for text in reached(profile))]
    pairs(rows)
    alternatives(answer)
    if plan is None:
        pairs(answer.summary(flags=True))
        return
    shown = answer.problem.tables(answer.instance, answer.answer.solution)
    tables(shown)
    says_all = any({"strategy", "ranks"} <= set(each.columns) for each in shown)  # what the plan's own table would repeat
    (plan_facts if says_all else plan_table)(plan)
    if answer.performance is not None:
        stage_memory(answer.performance)
    pairs(answer.summary(flags=True))


def _asked(request: Request) -> list[tuple[str, str]]:
    """What is planned, and for which devices; what the request leaves unsaid, as it was taken."""
    model, described = request.model.name if request.model else request.origin.name, request.described_model
    taken = [] if described is None else [("sequence", _sequence(described)), ("dtype", described.dtype)]
    devices = f"{plural(request.origin.devices, 'device')} of {_memory(request)}"
    return [("model", model), *taken, ("cluster", f"{request.cluster_name}, {devices}")]


def _sequence(model: Model) -> str:
    """The tokens of a sample, and where their number comes from."""
    tokens = plural(model.sequence_tokens, "token")
    if not model.vocabulary:
        return f"{tokens} of an image"
    return tokens if model.sequence else f"{tokens}, the most that the model allows (--sequence changes it)"


def _memory(request: Request) -> str:
    """The memory of each device that is planned with, beside all of it where some is in reserve."""
    limit, whole = request.with_margin(0).limit_bytes, request.origin.memory_bytes
    reserved = request.memory_bytes is None and limit < whole
    return f"{format_bytes(whole)}, {format_bytes(limit)} usable each" if reserved else f"{format_bytes(limit)} each"


def stage_memory(performance: Performance) -> None:
    """What holds the memory of every stage's fullest device at its peak."""
    table(("stage", *PARTS, "peak"), performance.memory_rows(), "memory of the fullest device of each stage, at its peak")


def alternatives(answer: Planned) -> None:
    """What else was tried, best first."""
    rows = answer.answer.alternatives
    if len(rows) < 2:
        return
    columns = [name for name in rows[0] if name != "cuts"]
    cells = [[_cell(name, row[name]) for name in columns] for row in rows[:MOST_ROWS]]
    names = [name.removesuffix("_ns").replace("_", "-") for name in columns]
    table(names, cells, f"{len(rows)} alternatives, the best first")
    if len(rows) > MOST_ROWS:
        line(f"and {len(rows) - MOST_ROWS} more (--json has all)")


def _cell(name: str, value: Any) -> str:
    """A value as its name says: a time, bytes, a share, a rate."""
    form = next((form for end, form in FORMATS.items() if name.endswith(end)), str)
    return "-" if value is None else form(value)


def plans(answers: Sequence[Any]) -> None:
    """The plans of several presets side by side, and why others have none."""
    made = [answer for answer in answers if isinstance(answer, Planned)]
    pairs([row for answer in made[:1] for row in _asked(answer.request)])
    plan_rows([answer.row for answer in made if answer.row is not None])
    uniform = [(answer.preset.name, dict(answer.summary())["one strategy"]) for answer in made if answer.plan]
    pairs([(f"{name}, one strategy", text) for name, text in uniform])
    rows = [
        (answer.preset.name, dict(answer.summary(flags=True)).get("reason", answer.result.message or answer.result.status))
        for answer in made
        if not answer.plan
    ]
    pairs([*rows, *(("not suited", answer.command_text) for answer in answers if not isinstance(answer, Planned))])


def plan_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Plans side by side: their steps all on the lanes of `streams`, and as each is predicted; beside it what is claimed."""
    times = ("step, streams", "step", "back-end", "samples/s", "tokens/s/device")
    columns = ("plan", *times, "memory", "stages", "micro-batches", "claim", "bound", "gap")
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    table((*columns, "problem"), [[*row, f"{problem}, {costs}"] for *row, problem, costs in cells])


def rivals(found: Sequence[Rival]) -> None:
    """The papers' planners beside the joint optimum."""
    rows = []
    for each in found:
        numbers = {"step_ns": each.step_ns, "peak_bytes": each.peak_bytes, "stages": each.stages, "count": each.micro_batches}
        cells = [_cell(name, value) for name, value in numbers.items()]
        cells += ["-" if share is None else f"{share:+.3%}" for share in (each.above,)]
        seconds = f"{each.seconds:.2f}" + ("" if each.whole_seconds is None else f", with theirs {each.whole_seconds:.2f}")
        cells += ["-" if each.gap is None else f"{each.gap:.3%}", seconds]
        rows.append([each.planner, *cells])
    columns = ("planner", "step", "memory", "stages", "micro-batches", "above", "gap to bound", "seconds")
    table(columns, rows, "steps by the walks, one lane a device; above the joint optimum, and above its bound")
    pairs([(each.planner, text) for each in found if (text := each.why or each.outside)])


def simulated(simulation: Simulation) -> None:
    """A row for every device, then the step and its critical path."""
    timeline, critical = simulation.timeline, simulation.critical
    if timeline is None or critical is None:
        pairs([("plan", simulation.name), ("step", format_time(simulation.step_ns)), *_performance(simulation)])
        return
    count, work, last = len(timeline.devices), timeline.work, any(simulation.syncs_ns)
    rows = []
    for device in range(count):
        mine, busy = range(device, work.stages, count), timeline.busy_ns[device]
        times = (sum(work.forward_ns[x] for x in mine), sum(work.backward_ns[x] for x in mine), busy, timeline.time_ns - busy)
        holds = "; ".join(simulation.stages[x] for x in mine)
        ends = [format_time(simulation.syncs_ns[device])] * last
        rows.append([str(device), holds, *map(format_time, times), str(simulation.in_flight[device]), *ends])
    table(("device", "holds", "forward", "backward", "busy", "idle", "in flight", *["at the end"] * last), rows)
    schedule = simulation.schedule + (f", {simulation.chunks} stages a device" if simulation.chunks > 1 else "")
    halves = f", {simulation.sliced} sliced" if simulation.sliced else ""
    lines = [
        ("pipeline", f"{simulation.name}: {schedule}, {plural(simulation.micro_batches, 'micro-batch')}{halves}"),
        ("iteration", format_time(timeline.time_ns)),
        ("start-up", format_time(timeline.startup_ns)),
        ("bubble", f"{timeline.bubble:.1%} of all devices' time in the iteration"),
        ("master stage", f"{critical.master} ({simulation.stages[critical.master]})"),
        ("critical path", f"{len(critical.path)} passes: {_path(critical.path)}"),
    ]
    if last or simulation.judged is not None:
        step = f"{format_time(simulation.step_ns)}, gradients and optimizer included"
        lines.insert(2, ("step", step))
    pairs([*lines, *_performance(simulation)])


def _performance(simulation: Simulation) -> list[tuple[str, str]]:
    return [] if simulation.performance is None else simulation.performance.summary()


def _path(events: Sequence[Any]) -> str:
    """The devices that a path is on, one after the other, with the number of passes on each."""
    visits = [(device, len(list(group))) for device, group in groupby(event.device for event in events)]
    texts = [f"{device}" if passes == 1 else f"{device} (x{passes})" for device, passes in visits]
    return "devices " + " > ".join(texts if len(texts) <= 24 else [*texts[:12], "...", *texts[-11:]])


def tried(trials: Trials, scale_down: int) -> None:
    """Plans by their predicted step, beside what they took."""
    rows = []
    for trial in trials.trials:
        plan = trials.plans[trial.place]
        units = ", ".join(str(stage.last_unit - stage.first_unit + 1) for stage in plan.stages)
        shares = plan.batch.shares or [plan.batch.micro_batches]
        count = plural(shares[0], "micro-batch") if len(shares) == 1 else f"{'/'.join(map(str, shares))} micro-batches"
        times = ("-", "-") if trial.step_ns is None else (format_time(trial.step_ns), f"{trial.spread:.1%}")
        mark = " <- fastest" if trial.place == trials.best else ""
        strategy = f"{len(plan.stages)} x {plan.units[0].strategy}, {count}"
        step = "-" if plan.predicted is None else format_time(plan.predicted.step_ns)
        rows.append([str(trial.place + 1), strategy, units, step, *times, trial.status + mark])
    table(("rank", "strategy", "units of stages", "predicted", "measured", "spread", "status"), rows)
    scaled = f"for the whole model; what ran is about {scale_down} times smaller, so that another may be its fastest"
    pairs([("predicted", scaled)] if scale_down > 1 else [])
    pairs([(f"rank {trial.place + 1}", trial.message) for trial in trials.trials if trial.message])
    if not trials.plans and trials.planned is not None:
        pairs([row for row in trials.planned.result.summary(flags=True) if row[0] != "problem"])


def throughputs(planners: Sequence[Throughput]) -> None:
    """The best batch size of each planner."""
    rows = []
    for each in planners:
        tries = [str(len(each.points)), f"{each.seconds:.2f}"]
        if each.best is None:
            rows.append([each.planner.label, "OOM", *["-"] * 5, *tries])
            continue
        seen = each.best.result.evaluation or {}
        layers = ", ".join(str(stage["last"] - stage["first"] + 1) for stage in seen["stages"])
        numbers = [f"{each.best.throughput:.2f}", str(each.best.batch), str(seen["pipeline"]), str(seen["micro_batches"])]
        rows.append([each.planner.label, *numbers, layers, each.best.result.status, *tries])
    names = ("samples/s", "batch", "pipeline", "micro-batches", "layers of stages", "status", "tried", "seconds")
    table(("planner", *names), rows)


def run_report(plan: Plan, report: Any, scale_down: int) -> None:
    """A plan, what was predicted of it, and what running it gave."""
    plan_table(plan)
    rows = []
    if plan.predicted:
        scaled = " (of the planned model)" if scale_down > 1 else ""
        rows.append(("predicted time", f"{format_time(plan.predicted.step_ns)} a step{scaled}"))
        if report.runtime == "program" and LANE_OF[plan.predicted.backend] is not LANE_OF[report.backend]:
            rows.append(("", f"on the lanes of {plan.predicted.backend}; this run's back-end is {report.backend}"))
        rows.append(("predicted memory", f"{format_bytes(plan.predicted.most_bytes)} peak{scaled}"))
    if (claim := plan.claim) is not None and claim.bound_ns is not None and claim.gap is not None:
        text = f"{format_time(claim.objective_ns)} of {claim.problem}, costs {claim.cost_model}, at least"
        rows.append(("claim", f"{text} {format_time(claim.bound_ns)}, gap {claim.gap:.4%} ({claim.status}, {claim.method})"))
    by = "torch" if report.runtime == "torch" else f"its program, {report.backend} back-end"
    rows.append(("ran", f"{report.model} in {report.dtype} on {report.world} processes, by {by}, {report.device}"))
    if report.why_program is not None:
        rows.append(("", f"not by torch: {report.why_program}"))
    for name, peaks, about in (
        ("memory walk", report.predicted_peak_bytes, "of this run" if report.runtime == "program" else "of its program"),
        ("allocated", report.peak_bytes, "measured"),
    ):
        if peaks:
            over = max(peaks) > plan.memory_bytes
            fits = f", more than the plan's limit of {format_bytes(plan.memory_bytes)}" if over else ""
            rows.append((name, f"{format_bytes(max(peaks))} at most on any rank, {about}{fits}"))
    for number, (loss, seconds) in enumerate(zip(report.losses, report.step_seconds, strict=True), start=1):
        rows.append((f"step {number}", f"loss {loss:.9f}, {seconds:.3f} s"))
    if plan.predicted and scale_down == 1 and report.dtype == plan.planned_model().dtype:
        took, planned_ns = median(report.step_seconds), plan.predicted.step_ns
        ratio = f"{took * 1e9 / planned_ns:.3g} times the predicted time (profile {plan.predicted.profile_origin})"
        rate = plan.batch.global_samples * plan.planned_model().tokens / took
        rows.append(("median step", f"{took:.3f} s, {format_count(rate)} tokens/s, {ratio}"))
    if report.gradient_difference is not None:
        rows.append(("gradients", f"largest relative difference to one process {report.gradient_difference:.2e}"))
        rows.append(("parameters", f"largest difference after step {len(report.losses)} {report.parameter_difference:.2e}"))
    pairs(rows)
    if report.instructions is not None:
        _instruction_times(report)


def _instruction_times(report: Any) -> None:
    """What the instructions of each kind were predicted to take and took, and what that makes of a step."""
    rows = [(each.kind, str(each.count), each.predicted_ns, each.measured_ns) for each in report.instructions]
    predicted = None if report.predicted_seconds is None else report.predicted_seconds * 1e9
    rows.append(("step, by these times", "1", predicted, report.walked_seconds * 1e9))
    rows.append(("step, median", "1", predicted, median(report.step_seconds) * 1e9))
    cells = [
        [
            kind,
            count,
            format_time(expected) if expected else "-",
            format_time(took),
            f"{took / expected:.2f}" if expected else "-",
        ]
        for kind, count, expected, took in rows
    ]
    table(("instructions of all ranks", "count", "predicted", "measured", "ratio"), cells, left=("instructions of all ranks",))


def searching(text: str) -> AbstractContextManager[Any]:
    """Progress of a search: a callback for points, or for (method, point)."""

    def shown(*event: Any) -> dict[str, Any]:
        point: Point = event[-1]
        prefix = f"{text} {event[0]}" if len(event) > 1 else text
        return {"description": f"{prefix}: best {_cell('_ns', point.objective)}, bound {_cell('_ns', point.bound)}"}

    return _live(text, shown)


def trying() -> AbstractContextManager[Any]:
    """Progress of a search over batch sizes: a callback for (planner, point)."""

    def shown(planner: Any, point: Any) -> dict[str, Any]:
        rate = f"{point.throughput:.2f} samples/s" if point.throughput else "does not fit"
        return {"description": f"{planner.label}: batch {point.batch}, {rate}"}

    return _live("planning", shown)


def trials(text: str) -> AbstractContextManager[Any]:
    """Progress of trials: a callback for the reports of their processes."""

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        subject = f"{text} rank {event['plan'] + 1}"
        if "step" not in event:
            return {"description": f"{subject}: {event['status']}"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{subject}: step {step}"}

    return _live(text, shown)


def sweeping(text: str) -> AbstractContextManager[Any]:
    """Progress of a frontier: a callback for each method and its point."""
    return _live(text, lambda name, point: {"description": f"{text}: {name}, {format_bytes(point.memory_bytes)}"})


def working(text: str) -> AbstractContextManager[Any]:
    """Progress of measuring or running: a callback for reports of the processes."""

    def shown(event: dict[str, Any]) -> dict[str, Any]:
        if "of" in event:
            return {"total": event["of"], "completed": event["done"], "description": f"{text}: {event['shape']}"}
        if "step" not in event:
            return {"description": f"{text}: comparing with one process"}
        step, steps = event["step"], event["steps"]
        return {"total": steps, "completed": step, "description": f"{text}: step {step}, loss {event['loss']:.4f}"}

    return _live(text, shown)


@contextmanager
def measuring(wanted: bool) -> Iterator[Any]:
    """Progress of measuring, or of estimating; no callback where nothing is measured."""
    with working("measuring" if wanted else "estimating") as progress:
        yield progress if wanted else None


def planning() -> AbstractContextManager[Any]:
    """Progress of planning: a callback for what is begun, for points of the search, and for reports of measuring."""
    doing = "planning"

    def shown(event: Any) -> dict[str, Any]:
        nonlocal doing
        if isinstance(event, str):
            doing = event
            return {"total": None, "completed": 0, "description": doing}
        if isinstance(event, Point):
            return {"description": f"{doing}: best {_cell('_ns', event.objective)}, bound {_cell('_ns', event.bound)}"}
        return {"total": event["of"], "completed": event["done"], "description": f"{doing}: {event['shape']}"}

    return _live(doing, shown)


@contextmanager
def _live(text: str, shown: Callable[..., dict[str, Any]]) -> Iterator[Any]:
    """A bar on a terminal, and the callback that changes it. shown: what of the bar an event changes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda *event: progress.update(task, **_printable(shown(*event)))


def _printable(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: printable(value) if isinstance(value, str) else value for name, value in changes.items()}
