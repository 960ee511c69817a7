"""Plans: made for a request, simulated, compared, tried, run and exported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from inspect import signature, unwrap
from typing import Any, Unpack

from trainplan.api.listed import ComparedPlans, Plans, Throughputs
from trainplan.api.requests import Keywords, PlanRequest, SearchOptions, asked_at_once, keywords_of
from trainplan.execution.launch.choose_executor import runtime_of
from trainplan.execution.launch.memory_check import check_predicted
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport
from trainplan.execution.lowering.checkpoints import checkpoints_of
from trainplan.execution.run.settings import check_seconds, check_settings, gpus
from trainplan.execution.training.settings import training_of
from trainplan.execution.training.texts import tokenize
from trainplan.explanation import differences, explain
from trainplan.formulations.joint.options import GRADIENTS
from trainplan.formulations.joint.runtime_capabilities import FOR, with_gradients
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.pipeline.batches import LARGEST_BATCH, MOST_MICRO_BATCHES, BatchInstances
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import constraints_of
from trainplan.formulations.schedule.orders import Schedule
from trainplan.inputs import FilePath, check_spelling, cluster_of, memory_of, model_of, profile_of, request_of
from trainplan.planning.certify import certify
from trainplan.planning.compare_planners import ALIKE, Rivals, rivals
from trainplan.planning.constraint_costs import priced
from trainplan.planning.every_runtime import by_runtime
from trainplan.planning.fewest_devices import Sizes, sized
from trainplan.planning.fit import Fit, fitted
from trainplan.planning.planner import planned
from trainplan.planning.presets import (
    DEFAULT,
    MIXED,
    OPTIMUM,
    OTHERWISE,
    PLANNERS,
    PRESETS,
    Preset,
    check_method,
    choices_of,
    planner,
    preset,
    refused_by_default,
)
from trainplan.planning.result import Planned, plan_row, row_rank
from trainplan.planning.throughput import search_throughput
from trainplan.planning.trials import Trials, best_plans, runnable, try_plans
from trainplan.planning.what_if import what_if
from trainplan.prediction.chrome_trace import chrome_trace
from trainplan.prediction.predict import plan_profile
from trainplan.prediction.simulate import simulate
from trainplan.profiling.base.arguments import check_arguments, checked
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import Source, name_of_source
from trainplan.profiling.base.torchrun_worker import launched
from trainplan.profiling.base.watchdog import STALL_S
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.registry import method as method_named

STEP_S = 600.0  # that a step of a run may take, as an example

__all__ = [
    "PlanRequest",
    "SearchOptions",
    "by_runtime",
    "certify",
    "chrome_trace",
    "compare_planners",
    "compare_plans",
    "differences",
    "explain",
    "fit",
    "partition",
    "place",
    "plan",
    "plan_sizes",
    "plans",
    "run",
    "simulate",
    "switch",
    "throughput",
    "tokenize",
    "trial",
    "what_if",
]


@asked_at_once
@checked
def plan(
    request: PlanRequest | None = None,
    *,
    search: SearchOptions | None = None,
    like: str | None = None,
    model: FilePath | Model | None = None,
    cluster: FilePath | Cluster | None = None,
    batch: int | None = None,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: FilePath | Profile | None = None,
    measure: bool = False,
    method: str = "exact",
    backend: str | None = None,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    seed: int = 0,
    cold: bool = False,
    solver_memory: str | int | None = None,
    jobs: int | None = None,
    beside: bool = True,
    incumbents: Sequence[Plan] = (),
    progress: Callable[[Any], None] | None = None,
    measuring: Callable[[dict[str, Any]], None] | None = None,
    **choices: Unpack[Keywords],
) -> Planned:
    """The best plan for a request, with its prediction and the solver's objective and proof.

    Where no preset is named, the joint problem is solved; what that does not take is planned as galvatron-bmw, on devices of
    several kinds as amp, and `instead` of the answer says why. The best plan with one strategy for all sub-layers is in
    `uniform`, what constraints cost in `prices`; tokens/s, MFU, bubble and memory are in `performance`.

    Args:
        request: what to plan for, as one object; keywords given with it take the place of its fields.
        search: how to search, likewise.
        like: a preset (joint, galvatron-bmw, amp, autopipe, h3t) or a problem (default: see above).
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        batch: samples of one step, over all devices.
        memory: of one device, such as "8GiB", or a number of bytes (default: what is usable of the cluster's).
        reserve: what stays free of it, in place of the cluster's own.
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: of the model, such as "bf16" (default: the config's, else half precision).
        profile: numbers made earlier, which may stand in for model and cluster.
        measure: measure the model on this machine, rather than estimate it from shapes.
        method: a name of `methods` of the planned problem, which it never changes; `exact` is the best proven one.
        backend: of `run`, on which the plan must fit, too.
        time_limit: seconds until searches end.
        gap: relative gap at which to stop.
        seed: of the method.
        cold: MILP and CP-SAT do not begin from the plan of a fast method.
        solver_memory: what the method may take, such as "8GiB".
        jobs: processes that search, which change nothing in the answer (default: 1).
        beside: look for the best plan with one strategy, and for the prices of constraints, too.
        incumbents: plans, of whatever preset, that the search begins from (joint).
        progress: called with a text that names what is begun, and with a `Point` (seconds, objective, bound, in ns) for each
            better plan or bound, such as `progress=print`.
        measuring: called with the reports of measuring.
        **choices: what is fixed, of what the preset chooses, as the fields of `PlanRequest` say it, and options of the method.
            Of joint: constraints, whose costs are in `prices` (pipeline, micro_batches, schedule, zero, tp, dp, sdp, forbid,
            one_strategy, tp_in_node, cuts, recompute_first, for_), and what else there is to choose from (sliced, chunks,
            by_unit, hybrid, sequence_parallel, modules, host, gradients, optimizer, cost_model, cp, cp_exchange, precision,
            memory_tables). Of galvatron-bmw: pipeline, micro_batches, schedule, space, by_unit, takeaway3. Of amp, autopipe and
            h3t: see `place`, `partition` and `switch`.

    Returns:
        The answer; its `plan` is None where nothing fits, or nothing was found, and its `result` says why.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    asked: dict[str, Any] = {"model": model, "cluster": cluster, "batch": batch, "memory": memory, "reserve": reserve}
    asked |= {"sequence": sequence, "dtype": dtype, "profile": profile, "measure": measure, "measuring": measuring}
    chosen, made, fixed, instead = _chosen(like, method, asked, dict(choices))
    limits: dict[str, Any] = {"gap": gap, "seed": seed, "progress": progress, "cold": cold, "solver_memory": solver_memory}
    settings = {name: value for name, value in fixed.items() if name not in {parameter.name for parameter in chosen.parameters}}
    if jobs is not None:
        settings |= _processes(chosen, method, jobs)
    clock = Clock()
    began = clock()
    starts: dict[str, Any] = {"beside": beside, "incumbents": incumbents}
    best = planned(made, chosen, method, backend=backend, time_limit=time_limit, **starts, **limits, **settings)
    best = replace(best, instead=instead)
    if not beside or made.measured or not (constraints := _constraints(chosen, asked, fixed)):
        return best  # without what was fixed, other shapes would have to be measured
    took = clock() - began
    relaxed = {name: (text, partial(_without, name, chosen, method, asked, fixed)) for name, text in constraints.items()}
    searching = {name: limits[name] for name in ("gap", "seed", "cold", "solver_memory")} | settings
    left = None if time_limit is None else time_limit - took
    return priced(best, relaxed, method, took, left, progress=progress, **searching)


def _chosen(
    like: str | None, method: str, asked: Mapping[str, Any], choices: Mapping[str, Any]
) -> tuple[Preset, Request, dict[str, Any], str | None]:
    """The preset that plans what is asked for, the request, the choices that it takes, and, where no preset was named, why it
    is not the default one. Raises InputError."""
    choices = {name: value for name, value in choices.items() if value is not None}
    instead = refused_by_default(choices) if like is None else None
    chosen = preset(like or (OTHERWISE if instead else DEFAULT))
    if like is None:
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
    made = _request(chosen, method, asked, choices)
    if like is None and instead is None and (instead := chosen.problem.unsuited(made)) is not None:
        mixed = made.cluster is not None and len(made.cluster.used_kinds) > 1
        chosen = preset(MIXED if mixed else OTHERWISE)
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
        made = _request(chosen, method, asked, choices)
    return chosen, made, choices, instead


def _processes(chosen: Preset, method: str, jobs: int) -> dict[str, int]:
    """The option of a method for a number of processes. Raises InputError where it has none, or not so many."""
    options = {option.name: option for option in method_named(chosen.problem_name, method).options}
    if "jobs" not in options:
        problem, fix = f"is {jobs}, and {chosen.name} with --method {method} searches in one process", "leave it out"
        raise InputError("command line", "--jobs", problem, fix)
    most = options["jobs"].most
    if not 1 <= jobs <= (most or jobs):
        raise InputError("command line", "--jobs", f"is {jobs}", f"give 1 to {most}, or leave it out for 1")
    return {"jobs": jobs}


def _constraints(chosen: Preset, asked: Mapping[str, Any], choices: Mapping[str, Any]) -> dict[str, str]:
    """The constraints that a request sets, by argument, as the command's options say them."""
    texts = constraints_of(chosen.problem, choices)
    if chosen.problem.constraints and asked["reserve"] is not None:
        texts["reserve"] = f"--reserve {asked['reserve']}"
    return texts


def _without(name: str, chosen: Preset, method: str, asked: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """What is asked of a preset, one argument left out, or at the value that leaves nothing out. Raises InputError.

    Without its runtime, gradients keep the dtype that they have in it: what is computed stays the same.
    """
    kept = [{key: value for key, value in each.items() if key != name} for each in (asked, choices)]
    if name == FOR.name:
        kept[1][GRADIENTS.name] = with_gradients(_request(chosen, method, asked, choices)).precision.gradients
    if name in chosen.problem.widest:
        kept[1][name] = chosen.problem.widest[name]
    return _request(chosen, method, *kept)


def _request(chosen: Preset, method: str, asked: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """What is asked of a preset. Raises InputError."""
    names, options = {parameter.name for parameter in chosen.parameters}, method_options(chosen, method)
    check_spelling(choices, [*signature(unwrap(plan)).parameters, *names], options, chosen.name)
    fixed = {name: value for name, value in choices.items() if name in names}
    return request_of(chosen.parameters, chosen.name, fixed=chosen.fixed, **asked, **fixed)


def method_options(chosen: Preset, method: str) -> list[str]:
    """The names of the options of a method of the preset's problem."""
    return [option.name for option in method_named(chosen.problem_name, method).options]


def fit(
    *,
    like: str | None = None,
    model: FilePath | Model | None = None,
    cluster: FilePath | Cluster | None = None,
    batch: int | None = None,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: FilePath | Profile | None = None,
    progress: Callable[[Any], None] | None = None,
    **choices: Any,
) -> Fit:
    """Whether a model fits on a cluster, and the least memory of a GPU that a plan needs, without a search for speed.

    Args:
        like: as of `plan`.
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        batch: samples of one step, over all devices (default: one for each device).
        memory: as of `plan`.
        reserve: as of `plan`.
        sequence: as of `plan`.
        dtype: as of `plan`.
        profile: as of `plan`.
        progress: as of `plan`.
        **choices: as of `plan`; with for_, memory is that of the runtime.

    Returns:
        The answer. `fits` is True where a plan is known that fits, False where it is proven that none does; `peak_bytes` is the
            peak of the plan of the least memory, `leanest`; no plan's programs need less than `bound_bytes`. Where nothing
            fits, `answer` says what would do.

    Raises:
        InputError: as of `plan`.
    """
    asked: dict[str, Any] = {"model": model, "cluster": cluster, "batch": batch, "memory": memory, "reserve": reserve}
    asked |= {"sequence": sequence, "dtype": dtype, "profile": profile, "measure": False, "measuring": None}
    chosen, made, _, instead = _chosen(like, "exact", asked, choices)
    request = made if batch is not None else replace(made, batch=made.origin.devices)
    found = fitted(request, chosen, progress)
    return replace(found, answer=replace(found.answer, instead=instead))


def plan_sizes(
    *,
    cluster: str | Cluster,
    devices: str = "any",
    progress: Callable[[Any], None] | None = None,
    like: str | None = None,
    **request: Any,
) -> Sizes:
    """The plan on the fewest devices of a kind on which something fits, and, made quickly, on twice and four times as many.

    Tried are parts of a node in powers of two, then whole nodes, each proven too small before the next one.

    Args:
        cluster: a kind such as "h100", or nodes of it such as "h100:8", of which only what a node is counts.
        devices: "any", or a range such as "16-512".
        progress: as of `plan`.
        like: as of `plan`.
        **request: as of `plan`, without cluster.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`, and for a range of devices that is none.
    """
    check_arguments(plan, request)
    names = ("model", "batch", "memory", "reserve", "sequence", "dtype", "profile")
    method = request.get("method", "exact")
    asked = {name: request.get(name) for name in names} | {"measure": False, "measuring": None}
    if request.get("profile") is not None or request.get("measure"):
        problem = "needs numbers of any number of devices, and a profile is of those that it was made for"
        raise InputError("command line", "--devices", problem, "leave out --profile and --measure")
    choices = {name: value for name, value in request.items() if name not in signature(unwrap(plan)).parameters}

    def request_on(each: Cluster) -> tuple[Request, Preset]:
        chosen, made, _, _ = _chosen(like, method, {**asked, "cluster": each}, choices)
        return made, chosen

    return sized(
        request_on,
        lambda each: plan(like=like, cluster=each, progress=progress, **request),
        cluster,
        devices,
        progress=progress,
    )


def place(request: PlanRequest | None = None, *, search: SearchOptions | None = None, **keywords: Any) -> Planned:
    """`plan` on a cluster of mixed devices: degrees, placement, micro-batches and layers of stages (AMP).

    Args:
        request: as of `plan`.
        search: as of `plan`.
        **keywords: as of `plan`, whose choices here are uneven_shares, recompute, tied, ignore_memory and by_unit.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(request, search=search, **{**keywords, "like": "place"})


def partition(request: PlanRequest | None = None, *, search: SearchOptions | None = None, **keywords: Any) -> Planned:
    """`plan` of a pipeline cut at any sub-layer, its first micro-batches sliced (AutoPipe).

    Args:
        request: as of `plan`.
        search: as of `plan`.
        **keywords: as of `plan`, whose choices here are pipeline, micro_batches, dp, tp, recompute, ignore_memory, by_unit,
            sliced and objective.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(request, search=search, **{**keywords, "like": "partition"})


def switch(request: PlanRequest | None = None, *, search: SearchOptions | None = None, **keywords: Any) -> Planned:
    """`plan` of memory switches for every sub-layer, states on the host (H3T).

    Args:
        request: as of `plan`.
        search: as of `plan`.
        **keywords: as of `plan`.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(request, search=search, **{**keywords, "like": "switch"})


def plans(
    like: Sequence[str] | None = None,
    request: PlanRequest | None = None,
    *,
    search: SearchOptions | None = None,
    **keywords: Any,
) -> Plans:
    """The plans of several presets for one request, the shortest step first, all with overlap.

    Args:
        like: names of presets (default: all).
        request: as of `plan`.
        search: as of `plan`.
        **keywords: as of `plan`.

    Returns:
        A list of answers, with `frame()`; a preset that the request does not suit gives its InputError, with its name, last.

    Raises:
        InputError: for an argument of a wrong type.
    """
    asked = {**keywords_of(request, search), **keywords}
    check_arguments(plan, asked)
    answers: list[Planned | InputError] = []
    for name in like or PRESETS:
        try:
            chosen = {parameter.name for parameter in preset(name).parameters}
            alike = {choice: value for choice, value in ALIKE.items() if choice in chosen}
            answer = plan(**{**alike, **asked, "like": name})
            answers.append(answer)
        except InputError as error:
            answers.append(InputError(error.where, error.command_field, f"{error.problem} (for {name})", error.fix))
            continue
        if answer.interrupted:
            break

    def rank(answer: Planned | InputError) -> tuple[bool, int]:
        row = None if isinstance(answer, InputError) else answer.row
        return (True, 1) if row is None else row_rank(row)

    return Plans(sorted(answers, key=rank))


def compare_plans(sources: Iterable[Plan | Source]) -> ComparedPlans:
    """Any plans alongside each other, as they are predicted, the shortest step first.

    Args:
        sources: plans, their files, or dicts.

    Returns:
        A list of dicts, with `frame()`: a row for each plan, as of `planned.plan_row`.

    Raises:
        InputError: for a file that is no plan.
    """
    rows = []
    for number, source in enumerate(sources):
        rows.append(plan_row(name_of_source(source, f"plan {number}"), load_plan(source)))
    return ComparedPlans(sorted(rows, key=row_rank))


def compare_planners(
    request: PlanRequest | None = None,
    *,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
    **keywords: Any,
) -> Rivals:
    """What each paper's planner loses on a model and a cluster against the joint optimum.

    All plans are predicted alike, without overlap, which is the step that the joint problem minimises. Of the choices, a
    planner gets those of its own among pipeline, micro_batches, dp and tp, and its row says what it was planned without.

    Args:
        request: as of `plan`, with the choices of joint, such as host or schedule; not like, which is each planner's own.
        gap: relative gap at which the joint problem may stop.
        time_limit: seconds for each planner.
        progress: called with the name of each planner.
        **keywords: as of `plan`, without like, method, backend, `beside` and incumbents.

    Returns:
        A list of planners, with `frame()` and `picture()`: the joint optimum first, and last once more, begun from their
            plans.

    Raises:
        InputError: where the request does not suit the joint problem.
    """
    asked = {**keywords_of(request, None), **keywords}
    check_arguments(plan, asked)
    for name in ("like", "method", "backend", "beside", "incumbents"):
        if asked.get(name) is not None:
            fix = "leave it out: each planner has its own"
            raise InputError("command line", "--" + name, f"is {asked[name]!r}", fix)
    return rivals(plan, asked, gap=gap, time_limit=time_limit, progress=progress)[0]


def trial(
    plans: Iterable[Plan | Source] | None = None,
    request: PlanRequest | None = None,
    *,
    like: str = "place",
    top: int = 5,
    steps: int = 10,
    warmup: int = 3,
    scale_down: int = 1,
    run_dtype: str | None = None,
    backend: str = "serial",
    device: str = "cpu",
    timeout: float = 600.0,
    stall_timeout: float = STALL_S,
    seed: int = 0,
    running: Any = None,
    **keywords: Any,
) -> Trials:
    """Run plans for some steps each on this machine, and pick the fastest. One that fails is a result like others.

    Args:
        plans: any plans of one model and number of devices (default: the best that the preset has for the request).
        request: as of `plan`, where no plans are given.
        like: the preset that plans.
        top: how many of its best plans are tried.
        steps: that are timed, of each plan.
        warmup: steps before them.
        scale_down: run a model with the same units, about that many times smaller.
        run_dtype: run in this one.
        backend: serial, fused, threads or streams.
        device: cpu (gloo) or cuda (NCCL).
        timeout: seconds for each plan.
        stall_timeout: as of `run`.
        seed: of the search, of parameters and samples.
        running: called with a dict for each step, such as {"plan": 0, "step": 1, "steps": 10}.
        **keywords: as of `plan`, where no plans are given.

    Returns:
        The plans and what each took, with `best`, `frame()` and `picture()`.

    Raises:
        InputError: for plans that do not run, or of several models.
        MissingExtra: where torch is not installed.
    """
    settings = {"steps": steps, "warmup": warmup, "backend": backend, "device": device, "timeout": timeout, "seed": seed}
    settings["stall_timeout"] = stall_timeout
    first = None
    if plans is not None:
        chosen = [load_plan(each) for each in plans]
    elif find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    else:
        asked = {**keywords_of(request, None), **keywords}
        if (model := asked.get("model")) is not None:  # before it is planned, which may take long
            profile = profile_of(asked.get("profile"))
            runnable(model_of(model, asked.get("sequence"), asked.get("dtype"), profile), run_dtype, "model", "--run-dtype")
        first = plan(**{"like": like, "seed": seed, **asked})
        if first.plan is None or first.interrupted:
            return Trials((), (), first)
        runnable(first.plan.planned_model(), run_dtype, "model", "--run-dtype")
        chosen = best_plans(first, top, seed)
    return try_plans(chosen, scale_down=scale_down, dtype=run_dtype, planned=first, progress=running, **settings)


def throughput(
    *,
    model: FilePath | Model,
    cluster: FilePath | Cluster,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    planners: Sequence[str] | None = None,
    space: str = "full",
    schedule: Schedule = "1f1b",
    sequence: int | None = None,
    dtype: str | None = None,
    step: int = 8,
    largest_batch: int = LARGEST_BATCH,
    most_micro_batches: int = MOST_MICRO_BATCHES,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    progress: Callable[[Any, Any], None] | None = None,
) -> Throughputs:
    """Throughput over batch sizes of planners by name, under the paper's cost model, from estimates.

    Args:
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        memory: of every device, as of `build`.
        reserve: what stays free of it, as of `build`.
        planners: names, such as galvatron-bmw and optimum (default: all).
        space: strategies of the planner `optimum`.
        schedule: of the planner `optimum`.
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: of the model, such as "bf16".
        step: by how much batch sizes rise.
        largest_batch: the largest of them.
        most_micro_batches: of a step.
        time_limit: seconds of each search, which is of one planner and batch size.
        gap: relative gap at which each search may stop.
        progress: called with (planner, point).

    Returns:
        A list of planners with what they found for each batch size, with `frame()` and `picture()`.

    Raises:
        InputError: where no batch size suits.
    """
    the_cluster = cluster_of(cluster, reserve)
    the_model = model_of(model, sequence, dtype, cluster=the_cluster)
    memory_bytes = memory_of(memory, reserve) or the_cluster.usable_bytes
    for option, value in (("--step", step), ("--largest-batch", largest_batch), ("--most-micro-batches", most_micro_batches)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give 1 to 1048576")
    batches = BatchInstances(the_model, the_cluster, step=step, most_micro_batches=most_micro_batches)
    searches = Throughputs()
    for chosen in [planner(name, space, schedule) for name in planners or [*PLANNERS, OPTIMUM]]:
        notify = (lambda point, chosen=chosen: progress(chosen, point)) if progress else None
        limits: dict[str, Any] = {"largest_batch": largest_batch, "time_limit": time_limit, "gap": gap}
        searches.append(search_throughput(batches, chosen, memory_bytes, **limits, progress=notify))
        if searches[-1].interrupted:
            break
    return searches


def run(
    source: Plan | Source,
    *,
    model: FilePath | None = None,
    scale_down: int = 1,
    dtype: str | None = None,
    steps: int = 3,
    backend: str = "serial",
    device: str = "cpu",
    transport: str = "direct",
    seed: int = 0,
    compare: bool | None = None,
    measure_memory: bool = False,
    measure: bool = False,
    cluster: FilePath | Cluster | None = None,
    profile: FilePath | Profile | None = None,
    stall_timeout: float = STALL_S,
    by: str | None = None,
    checkpoint: FilePath | None = None,
    checkpoint_every: int | None = None,
    resume: FilePath | None = None,
    data: FilePath | None = None,
    learning_rate: float | None = None,
    rate_schedule: str | None = None,
    warmup: int | None = None,
    rate_steps: int | None = None,
    least_rate: float | None = None,
    betas: tuple[float, float] | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    evaluate: FilePath | None = None,
    evaluate_every: int | None = None,
    evaluate_batches: int | None = None,
    metrics: FilePath | None = None,
    weights: FilePath | None = None,
    save_weights: FilePath | None = None,
    step_timeout: float | None = None,
    force: bool = False,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> RunReport:
    """Run a plan on local processes; warns where it needs more memory than it was made for.

    What this machine cannot hold is refused before anything is made, by the plan's own prediction of all ranks.

    Started by torchrun, on one node or several, the process is one rank of its group, and starts none. Arguments of training,
    from `data` to `save_weights`, are of torch, not of programs.

    Args:
        source: a plan, its file, or a dict.
        model: a config.json that the plan must be for.
        scale_down: run a model with the same units, about that many times smaller.
        dtype: run in this one.
        steps: training steps; with `resume`, those before it included.
        backend: serial, fused, threads or streams.
        device: cpu (gloo) or cuda (NCCL).
        transport: direct, or staged through the host's memory, so that ranks may share a GPU.
        seed: of parameters and samples.
        compare: also run on one process and compare gradients (default: without data).
        measure_memory: what each rank allocates.
        measure: what the instructions of each kind take, alongside what the plan or a profile predicts.
        cluster: where instructions are measured, the devices that a profile is estimated on, which is in the report with the
            measured times in it, for the next `plan` or `simulate`.
        profile: likewise, one made earlier.
        stall_timeout: a rank that is stopped (SIGSTOP) for so many seconds ends the run, and so do ranks that for so long
            neither get on, nor use a processor, nor wait for a disk. A step may take longer.
        by: torch, for FSDP2, DTensor, checkpointing and pipelining of torch itself; program, for the plan's own instructions
            (default: torch where it carries the plan, nothing is to be measured, and back-end and transport are those by
            default).
        checkpoint: a folder for checkpoints, written by torch while the steps that follow run. With it, a SIGTERM ends the run
            after its step with one (`ended` in the report).
        checkpoint_every: steps between checkpoints; there is one after the last step, too.
        resume: such a folder, whose last checkpoint the run begins with, under any plan and number of devices.
        data: a file of tokens, as `tokenize` writes it, from which each step takes other samples, in an order that depends on
            the seed alone; without it, samples are made up of the seed, the same in every step.
        learning_rate: its largest value (default: 0.001), to which it rises linearly.
        rate_schedule: how it falls then: constant, cosine or linear.
        warmup: steps in which it rises.
        rate_steps: the step at which it is least (default: `steps`).
        least_rate: the least.
        betas: AdamW's.
        weight_decay: of matrices and tables alone (default: 0.01, of all parameters, as programs have it).
        clip: the global norm to which larger gradients are scaled down.
        evaluate: a file of tokens whose first batches give a loss without dropout.
        evaluate_every: steps between evaluations; there is one after the last step, too.
        evaluate_batches: how many batches (default: 10).
        metrics: a file that gets a JSON line for each step: `step`, `loss`, `grad_norm`, `learning_rate`, `seconds`,
            `tokens_per_second`, `memory_bytes`, and `evaluation_loss` where it was evaluated.
        weights: a folder of Hugging Face's (safetensors) that has the first values of the parameters.
        save_weights: a new folder for the last ones, with their `config.json`.
        step_timeout: seconds after which a rank that is in one step still, evaluation and checkpoint included, ends.
        force: run what this machine is not predicted to hold all the same.
        progress: called with a dict for each step, such as {"step": 1, "steps": 3, "loss": 10.8}.

    Returns:
        Losses, seconds and memory of the steps, and what was compared.

    Raises:
        InputError: for a plan that does not run so.
        WorkerError: where a process fails.
        MissingExtra: where torch is not installed.
    """
    asked_training = {
        "data": data,
        "learning_rate": learning_rate,
        "rate_schedule": rate_schedule,
        "warmup": warmup,
        "rate_steps": rate_steps,
        "least_rate": least_rate,
        "betas": betas,
        "weight_decay": weight_decay,
        "clip": clip,
        "evaluate": evaluate,
        "evaluate_every": evaluate_every,
        "evaluate_batches": evaluate_batches,
        "metrics": metrics,
        "weights": weights,
        "save_weights": save_weights,
    }
    compare = data is None if compare is None else compare
    options: dict[str, Any] = {"steps": steps, "backend": backend, "device": device, "seed": seed, "compare": compare}
    options |= {"transport": transport}
    options |= {"measure_memory": measure_memory, "measure": measure, "progress": progress, "stall_timeout": stall_timeout}
    the_plan, where = load_plan(source), name_of_source(source, "plan")
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    the_model = the_plan.planned_model()
    if model is not None and (other := load_model(model)).digest != the_model.digest:
        fix = f"give the config of {the_model.name!r}, or plan for {other.name!r}"
        problem_text = f"is {the_model.digest!r}, but {os.fspath(model)} has {other.digest!r}"
        raise InputError(where, "model_digest", problem_text, fix)
    run_model = runnable(the_model, dtype, where).scaled(scale_down)
    check_settings([the_plan], steps, backend, device, seed, stall_timeout, transport)
    if not force and scale_down == 1 and run_model.dtype == the_model.dtype:
        check_predicted(where, the_plan, gpus(the_plan, device, transport), launched())
    base = None
    if cluster is not None or profile is not None:
        base = _profile_to_measure(the_plan, run_model, measure, cluster, profile)
    asked: dict[str, Any] = {"backend": backend, "transport": transport, "measure": measure, "measure_memory": measure_memory}
    kept = {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume, "step_timeout": step_timeout}
    only = [flag_of(name) for name, value in {**asked_training, **kept}.items() if value is not None]
    choice = runtime_of(by, the_plan, run_model, where=where, training=only, **asked)
    options |= {"runtime": choice.runtime}
    if choice.runtime == "torch":
        training = training_of(the_plan, run_model, steps, asked_training, resume is not None)
        kept_of = (checkpoint, checkpoint_every, resume, training.data)
        checkpoints = checkpoints_of(the_plan, run_model, seed, steps, *kept_of)
        if step_timeout is not None:
            check_seconds("--step-timeout", step_timeout, STEP_S)
        options |= {"training": training, "checkpoints": checkpoints, "step_timeout": step_timeout}
    report = run_plans([the_plan], model=run_model, where=where, profile=base, force=force, **options)[0]
    return replace(report, why_program=choice.why)


def _profile_to_measure(
    the_plan: Plan, model: Model, measure: bool, cluster: FilePath | Cluster | None, profile: FilePath | Profile | None
) -> Profile:
    """The profile with the shapes of a plan that measured times go into. Raises InputError."""
    option = "--profile" if cluster is None else "--cluster"
    if not measure:
        raise InputError("command line", option, "is given without --measure", "give both, or neither")
    if model.shape() != the_plan.planned_model().in_dtype(model.dtype).shape():
        raise InputError("command line", option, "is given with --scale-down", "measure the plan's own model for a profile")
    the_cluster = None if cluster is None else cluster_of(cluster)
    return plan_profile(the_plan, Request(model, the_cluster, the_plan.batch.global_samples, profile=profile_of(profile)))
