"""Prints simulated steps, trial runs, throughputs and reports of runs for people, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import Any, cast

from trainplan.command.printing import line, pairs, table
from trainplan.command.render import plan_table
from trainplan.execution.analysis.timing.simulate import LANE_OF, Lanes
from trainplan.formulations.joint.options import cost_words
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy_words import strategy_words
from trainplan.plan_words import own_numbers, whose_numbers
from trainplan.planning.proof import proof_of
from trainplan.planning.throughput import Throughput
from trainplan.planning.trials import Trials
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.quantities import format_bytes, format_count, format_time, plural
from trainplan.validation.fitting import fit_words

MOST_STEPS = 20  # steps that a report prints; of more, the first and the last ones


def simulated(simulation: Simulation) -> None:
    """Print a simulated step: a row for each device of one pipeline, then the step's time, the bubble (idle share) and the
    critical path.

    If the simulation has no timeline, as for the plan of another runtime, only its predicted step and performance are printed.
    """
    timeline, critical = simulation.timeline, simulation.critical
    if timeline is None or critical is None:
        row = ("step", format_time(simulation.step_ns) + _whose(simulation))
        pairs([("plan", simulation.name), row, *_facts(simulation), *_performance(simulation)])
        return
    count, work, last = len(timeline.devices), timeline.work, any(simulation.syncs_ns)
    rows = []
    for device in range(count):
        its_stages, busy = range(device, work.stages, count), timeline.busy_ns[device]
        forward, backward = (sum(times[stage] for stage in its_stages) for times in (work.forward_ns, work.backward_ns))
        times = (forward, backward, busy, timeline.time_ns - busy)
        holds = "; ".join(simulation.stages[stage] for stage in its_stages)
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
        step = f"{format_time(simulation.step_ns)}, gradients and optimizer included{_whose(simulation)}"
        if simulation.software:
            step += "; passes and iteration are of trainplan's programs of this plan"
        lines.insert(2, ("step", step))
    pairs([*lines, *_facts(simulation), *_performance(simulation)])


def _facts(simulation: Simulation) -> list[tuple[str, str]]:
    """Rows (label, text) on a simulation: the source of the cluster's numbers, unless it is data sheets; and, of a plan, the
    predicted memory of the fullest device, and whether it fits. Empty if neither applies."""
    whose = "" if simulation.cluster is None else simulation.cluster.whose_numbers
    rows = [("cluster", whose)] * bool(whose)
    if simulation.judged is None or simulation.plan is None:
        return rows
    whole = format_bytes(simulation.plan.memory_bytes)
    rows.append(("memory", f"peak {format_bytes(max(simulation.peak_bytes))} of {whole}"))
    return [*rows, *([] if (probability := simulation.fit_probability) is None else [("fits", fit_words(probability))])]


def _whose(simulation: Simulation) -> str:
    """A phrase, after a comma, that says which runtime a simulation's step and memory are of; empty for an instance."""
    if simulation.plan is None or simulation.judged is None:
        return ""
    own = own_numbers(simulation.plan, simulation.judged.time.backend)
    return f", {whose_numbers(simulation.plan) if simulation.software else own}"


def _performance(simulation: Simulation) -> list[tuple[str, str]]:
    """Rows (label, text) on a simulation's tokens/s, MFU, bubble and memory; an empty list if these are not known."""
    return [] if simulation.performance is None else simulation.performance.summary()


def _path(events: Sequence[Any]) -> str:
    """The devices that a critical path runs through as a text: passes on devices 0, 0, 1, 2 give "devices 0 (x2) > 1 > 2"; the
    middle of a long path is left out.

    events: the forward and backward passes of the path, in order.
    """
    visits = [(device, len(list(group))) for device, group in groupby(event.device for event in events)]
    texts = [f"{device}" if passes == 1 else f"{device} (x{passes})" for device, passes in visits]
    return "devices " + " > ".join(texts if len(texts) <= 24 else [*texts[:12], "...", *texts[-11:]])


def tried(trials: Trials, scale_down: int) -> None:
    """Print the trial runs of plans, a row each in the order of the predicted steps, with the measured steps, and mark the
    fastest.

    scale_down: about how many times smaller than the planned model the model is that ran; 1 if it is the planned model.
    """
    rows = []
    for trial in trials.trials:
        plan = trials.plans[trial.index]
        units = ", ".join(str(stage.last_unit - stage.first_unit + 1) for stage in plan.stages)
        shares = plan.batch.shares or [plan.batch.micro_batches]
        count = plural(shares[0], "micro-batch") if len(shares) == 1 else f"{'/'.join(map(str, shares))} micro-batches"
        times = ("-", "-") if trial.step_ns is None else (format_time(trial.step_ns), f"{trial.spread:.1%}")
        mark = " <- fastest" if trial.index == trials.best else ""
        strategy = f"{plural(len(plan.stages), 'stage')} of {strategy_words(plan.units[0].strategy)}; {count}"
        step = "-" if plan.predicted is None else format_time(plan.predicted.step_ns)
        rows.append([str(trial.index + 1), strategy, units, step, *times, trial.status + mark])
    table(("rank", "strategy", "sub-layers of stages", "predicted", "measured", "spread", "status"), rows)
    scaled = f"for the whole model; what ran is about {scale_down} times smaller, so that another may be its fastest"
    pairs([("predicted", scaled)] if scale_down > 1 else [])
    pairs([(f"rank {trial.index + 1}", trial.message) for trial in trials.trials if trial.message])
    if not trials.plans and trials.planned is not None:
        pairs([row for row in trials.planned.result.summary(flags=True) if row[0] != "problem"])


def throughputs(searches: Sequence[Throughput]) -> None:
    """Print for each planner, a row each, the batch size with the largest throughput and the plan for it."""
    rows = []
    for search in searches:
        tries = [str(len(search.points)), f"{search.seconds:.2f}"]
        if search.best is None:
            rows.append([search.planner.label, "OOM", *["-"] * 5, *tries])
            continue
        found = search.best.result.evaluation or {}
        layers = ", ".join(str(stage["last"] - stage["first"] + 1) for stage in found["stages"])
        numbers = [f"{search.best.throughput:.2f}", str(search.best.batch), str(found["pipeline"]), str(found["micro_batches"])]
        rows.append([search.planner.label, *numbers, layers, search.best.result.status, *tries])
    names = ("samples/s", "batch", "pipeline", "micro-batches", "layers of stages", "status", "tried", "seconds")
    table(("planner", *names), rows)
    for search in searches:
        if search.interrupted:
            line(f"{search.planner.label} was interrupted: larger batches, and planners after it, were not tried")


def run_report(plan: Plan, report: Any, scale_down: int) -> None:
    """Print a plan, its predicted step and memory, and the measurements of a run of it: losses, step times, peak memory and the
    comparison with one process.

    report: the run's `RunReport`. scale_down: about how many times smaller than the planned model the model is that ran; 1 if
    it is the planned model.
    """
    plan_table(plan)
    rows = []
    if plan.predicted:
        scaled = " (of the planned model)" if scale_down > 1 else ""
        software = plan.predicted.software
        whose = f", as {software} overlaps, which does not run here" if software else ""
        rows.append(("predicted time", f"{format_time(plan.predicted.step_ns)} a step{scaled}{whose}"))
        if report.runtime == "program" and LANE_OF[cast(Lanes, plan.predicted.backend)] is not LANE_OF[report.backend]:
            rows.append(("", f"of the back-end {plan.predicted.backend}; this run's back-end is {report.backend}"))
        rows.append(("predicted memory", f"{format_bytes(plan.predicted.most_bytes)} peak{scaled}"))
    if (claim := plan.claim) is not None and claim.bound_ns is not None and claim.gap is not None:
        text = f"{format_time(claim.objective_ns)} ({claim.problem}, {cost_words(claim.cost_model)}, {claim.method})"
        rows.append(("solver's objective", f"{text}: {proof_of(claim)}"))
    by = "torch" if report.runtime == "torch" else f"its program, {report.backend} back-end"
    rows.append(("ran", f"{report.model} in {report.dtype} on {report.world} processes, by {by}, {report.device}"))
    if report.why_program is not None:
        rows.append(("", f"not by torch: {report.why_program}"))
    of_this = report.runtime == "program" or report.predicted_by == "dry run"
    named = "prediction" if report.predicted_by == "memory walk" else report.predicted_by
    for name, peaks, about in (
        (named, report.predicted_peak_bytes, "of this run" if of_this else "of its program"),
        ("allocated", report.peak_bytes, "measured"),
    ):
        if peaks:
            over = max(peaks) > plan.memory_bytes
            fits = f", more than the plan's limit of {format_bytes(plan.memory_bytes)}" if over else ""
            rows.append((name, f"peak {format_bytes(max(peaks))}, {about}{fits}"))
    steps = list(enumerate(zip(report.losses, report.step_seconds, strict=True), start=report.first_step))
    for number, (loss, seconds) in steps if len(steps) <= MOST_STEPS else [steps[0], *steps[1 - MOST_STEPS :]]:
        rows.append((f"step {number}", f"loss {loss:.9f}, {seconds:.3f} s"))
    if report.evaluations:
        last = max(report.evaluations)
        rows.append(("evaluation", f"loss {report.evaluations[last]:.9f} after step {last}"))
    if report.ended:
        text = f"by SIGTERM after step {report.first_step + len(report.losses) - 1}; go on with --resume"
        rows.append(("ended", text))
    if plan.predicted and steps and scale_down == 1 and report.dtype == plan.planned_model().dtype:
        took, planned_ns = median(report.step_seconds), plan.predicted.step_ns
        ratio = f"{took * 1e9 / planned_ns:.3g} times the predicted time (profile {plan.predicted.profile_origin})"
        rate = plan.batch.global_samples * plan.planned_model().tokens / took
        rows.append(("median step", f"{took:.3f} s, {format_count(rate)} tokens/s, {ratio}"))
    if report.gradient_difference is not None:
        rows.append(("gradients", f"largest relative difference to one process {report.gradient_difference:.2e}"))
        rows.append(("parameters", f"largest difference after step {steps[-1][0]} {report.parameter_difference:.2e}"))
    pairs(rows)
    if report.instructions is not None:
        _instruction_times(report)


def _instruction_times(report: Any) -> None:
    """Print the predicted and the measured time of a run's instructions by kind, summed over all ranks, and the step that the
    simulation gives with these times, next to the measured median step.

    report: the run's `RunReport`, with `instructions`.
    """
    rows = [
        (instruction.kind, str(instruction.count), instruction.predicted_ns, instruction.measured_ns)
        for instruction in report.instructions
    ]
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
