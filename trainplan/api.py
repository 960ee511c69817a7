"""The public verbs, the same as the command's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from trainplan.batches import (
    LARGEST_BATCH,
    MOST_MICRO_BATCHES,
    VARIANTS,
    Batches,
    Throughput,
    search_throughput,
    variant,
)
from trainplan.building import Instance, amp_instance, build
from trainplan.execution.run.processes import EXECUTED_DTYPES, EXECUTED_FAMILIES, UNEXECUTED, run_plans
from trainplan.exporting import export
from trainplan.formulations.cluster_strategy import problem as cluster_strategy
from trainplan.formulations.layer_strategies import problem as layer_strategies
from trainplan.formulations.memory_switches import problem as memory_switches
from trainplan.formulations.pipeline import problem as pipeline_problem
from trainplan.formulations.pipeline import published
from trainplan.formulations.pipeline.problem import Schedule
from trainplan.formulations.pipeline_partition import problem as pipeline_partition
from trainplan.formulations.plan import Plan, load_plan
from trainplan.formulations.stage_assignment import problem as stage_assignment
from trainplan.inputs import cluster_of, memory_of, model_of, profile_of
from trainplan.partitioning import PartitionPlan
from trainplan.partitioning import partition as partition_model
from trainplan.pictures.charts import draw_profile, draw_throughput
from trainplan.pictures.lanes import draw_frontier, draw_switches
from trainplan.pictures.placement import draw_placement, draw_placements
from trainplan.pictures.timeline import draw_timeline, draw_timelines
from trainplan.placing import PlacedPlan
from trainplan.placing import place as place_strategy
from trainplan.planning import Planned, make_plan
from trainplan.profiling.base.errors import InputError, MissingExtra, shown
from trainplan.profiling.base.files import Record, Source, read_data
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.detect import detect
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.imports import import_profile
from trainplan.profiling.measure.measure import measure
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile
from trainplan.simulating import Simulation, check_schedule, in_chunks, simulated_instance, simulated_plan
from trainplan.solvers.core.registry import PROBLEMS, Entry, problem
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import compare as compare_methods
from trainplan.solvers.core.solve import solve as solve_instance
from trainplan.switch_limits import switch_frontier
from trainplan.switching import SwitchPlan
from trainplan.switching import switch as switch_model
from trainplan.trace import chrome_trace
from trainplan.trials import Trials, try_best

__all__ = [
    "InputError",
    "build",
    "check",
    "chrome_trace",
    "compare",
    "detect",
    "draw_frontier",
    "draw_placement",
    "draw_placements",
    "draw_profile",
    "draw_switches",
    "draw_throughput",
    "draw_timeline",
    "draw_timelines",
    "export",
    "import_profile",
    "load",
    "methods",
    "partition",
    "place",
    "plan",
    "profile",
    "run",
    "schema",
    "simulate",
    "solve",
    "switch",
    "switch_frontier",
    "throughput",
    "trial",
]


MOST_TRIALS = 100


@dataclass(frozen=True)
class Checked:
    """What `check` found: time and memory of a solution, and every constraint that it breaks, in words.

    peak_layer_name, peak_ns: where in the model, or when in the step, the peak is, whichever the problem tells.
    """

    problem: str
    objective: int | None
    peak_bytes: int | None
    peak_layer_name: str | None
    peak_ns: int | None
    memory_bytes: int | None
    violations: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load(source: Instance | Source) -> Instance:
    """An instance from a file's path or a dict in its format (an Instance is given back). Raises InputError."""
    if isinstance(source, Instance):
        return source
    value = source if isinstance(source, Mapping) else read_data(source)
    where = "instance" if isinstance(source, Mapping) else os.fspath(source)
    if not isinstance(value, Mapping):
        raise InputError(where, "", f"holds {shown(value)}", "give a JSON object")
    if "problem" not in value:
        raise InputError(where, "problem", "is missing", f"give one of: {', '.join(PROBLEMS)}")
    name = value["problem"]
    if not isinstance(name, str) or name not in PROBLEMS:
        raise InputError(where, "problem", f"is {shown(name)}", f"give one of: {', '.join(PROBLEMS)}")
    return problem(name).definition().load(value, where)


def profile(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    rows: Sequence[int] = (1, 2, 4),
    tp: Sequence[int] | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    measured: bool = False,
    **options: Any,
) -> Profile:
    """The profile of a model on a cluster for these rows (samples on one device) and tensor-parallel degrees.

    tp: default all degrees up to 8 that the model and the cluster allow. measured: on this machine, with options as of
    `profiling.measure.measure`; else estimated from shapes. Raises InputError.
    """
    the_model, the_cluster = model_of(model, sequence, dtype), cluster_of(cluster)
    possible = the_model.tp_degrees(min(the_cluster.devices, 2**10))
    degrees = [t for t in possible if t <= 8] if tp is None else list(tp)
    for t in degrees:
        if t not in possible:
            told = f"give degrees among {', '.join(map(str, possible))}"
            raise InputError("command line", "--tp", f"is {t}", told)
    if not rows or min(rows) < 1 or max(rows) > 2**20:
        raise InputError("command line", "--rows", f"is {list(rows)}", "give whole numbers from 1, such as 1,2,4")
    shapes = [(t, r) for t in degrees for r in sorted(set(rows))]
    if measured:
        return measure(the_model, the_cluster, shapes, **options)
    return estimate_shapes(the_model, the_cluster, shapes)


def solve(instance: Instance | Source, method: str = "exact", **options: Any) -> Result:
    """Solve an instance (or its file, or a dict) with one method; options as of `solvers.solve.solve`. Raises InputError."""
    return solve_instance(load(instance), method, **options)


def check(instance: Instance | Source, solution: Result | Source | Sequence[int]) -> Checked:
    """Check a solution (a file, a dict, or a Result's) against an instance. Raises InputError for malformed files.

    For an instance of Galvatron's published engine a plan file of that engine will do as well.
    """
    instance = load(instance)
    definition = problem(instance.problem).definition()
    if isinstance(solution, Result):
        if solution.solution is None:
            raise InputError("solution", "", f"is a result without one ({solution.status})", "solve the instance first")
        solution = solution.solution
    fields = {pipeline_partition.NAME: "cuts", memory_switches.NAME: "switches"}
    field = fields.get(instance.problem, "choice")
    source = solution if isinstance(solution, str | os.PathLike | Mapping) else {field: list(solution)}
    content = source if isinstance(source, Mapping) else read_data(source)
    is_plan = isinstance(content, Mapping) and "pp_deg" in content
    choice = _engine_plan(source, instance) if is_plan else definition.load_solution(source)
    broken = tuple(definition.violations(instance, choice))
    limit = None if isinstance(instance, stage_assignment.Instance | pipeline_partition.Instance) else instance.memory_bytes
    try:
        found = definition.describe(instance, choice)
    except ValueError:
        return Checked(instance.problem, None, None, None, None, limit, broken)
    peak = {name: found.get(name) for name in ("peak_bytes", "peak_layer_name", "peak_ns")}
    return Checked(instance.problem, found["time_ns"], **peak, memory_bytes=limit, violations=broken)


def _engine_plan(source: Source, instance: Instance) -> pipeline_problem.Solution:
    """A plan of Galvatron's published engine as a solution. Raises InputError."""
    where = "plan" if isinstance(source, Mapping) else os.fspath(source)
    if not isinstance(instance, pipeline_problem.Instance) or instance.provenance.get("cost_model") != published.NAME:
        fix = "give an instance that --engine-files made"
        raise InputError(where, "", "is a plan of Galvatron's engine, and the instance is not of its cost model", fix)
    try:
        return published.read_plan(source, instance)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("instance", "provenance", "lacks what the engine was told", "build the instance again") from None


def compare(
    instance: Instance | Source,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = 30,
    seed: int = 0,
    progress: Any = None,
) -> tuple[list[Result], list[str]]:
    """Results of several methods on one instance, and every contradiction between them (there should be none)."""
    return compare_methods(
        load(instance),
        methods,
        time_limit=time_limit,
        seed=seed,
        progress=progress,
    )


def methods(problem_name: str = "layer-strategies") -> tuple[Entry, ...]:
    """The methods for a problem; `exact` stands for the first one."""
    return problem(problem_name).methods


def schema(name: str = "layer-strategies") -> dict[str, Any]:
    """The JSON Schema of a file format. Raises InputError."""
    formats: dict[str, type[Record]] = {
        "layer-strategies": layer_strategies.InstanceRecord,
        "layer-strategies-solution": layer_strategies.SolutionRecord,
        "pipeline": pipeline_problem.InstanceRecord,
        "pipeline-solution": pipeline_problem.SolutionRecord,
        "stage-assignment": stage_assignment.InstanceRecord,
        "stage-assignment-solution": stage_assignment.SolutionRecord,
        "pipeline-partition": pipeline_partition.InstanceRecord,
        "pipeline-partition-solution": pipeline_partition.SolutionRecord,
        "memory-switches": memory_switches.InstanceRecord,
        "memory-switches-solution": memory_switches.SolutionRecord,
        "cluster-strategy": cluster_strategy.InstanceRecord,
        "cluster-strategy-solution": cluster_strategy.SolutionRecord,
        "plan": Plan,
        "profile": Profile,
        "cluster": Cluster,
    }
    if name not in formats:
        raise InputError("command line", "format", f"is {name!r}", f"give one of: {', '.join(formats)}")
    return formats[name].model_json_schema()


def plan(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    batch: int,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    measure: bool = False,
    **options: Any,
) -> Planned:
    """The fastest plan within the memory, with its certificate; options as of `planning.make_plan`. Raises InputError."""
    given = profile_of(profile)
    the_model, the_cluster = model_of(model, sequence, dtype, given), cluster_of(cluster)
    memory_bytes = memory_of(memory, the_cluster.memory_bytes)
    return make_plan(the_model, the_cluster, batch, memory_bytes, profile=given, measured=measure, **options)


def place(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    batch: int,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    measure: bool = False,
    method: str = "exact",
    uneven_shares: bool = False,
    recompute: bool = False,
    by_unit: bool = False,
    ignore_memory: bool = False,
    measuring: Any = None,
    **options: Any,
) -> PlacedPlan:
    """Degrees, placement, micro-batch size, layer assignment and shares on a cluster, mixed or not, and the plan of them.

    dp and tmp are powers of two: plans have no others yet.
    uneven_shares: pipelines may take different numbers of micro-batches; recompute: every layer is; ignore_memory: as AMP does;
    options: as of `solve`. Raises InputError.
    """
    given = profile_of(profile)
    instance, found, the_model = amp_instance(
        model,
        cluster,
        batch,
        memory,
        sequence,
        dtype,
        given,
        uneven_shares=uneven_shares,
        recompute=recompute,
        by_unit=by_unit,
        ignore_memory=ignore_memory,
        powers_of_two=True,
        measured=measure,
        measuring=measuring,
    )
    assert the_model is not None
    return place_strategy(the_model, instance, found, solve_instance(instance, method, **options))


def partition(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    batch: int,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    measure: bool = False,
    **options: Any,
) -> PartitionPlan:
    """A pipeline cut at sub-layers, every one laid out alike, its first micro-batches sliced (AutoPipe), and the plan of it.

    options: as of `partitioning.partition`, and of the method. Raises InputError.
    """
    given = profile_of(profile)
    the_model, the_cluster = model_of(model, sequence, dtype, given), cluster_of(cluster)
    limit = None if memory is None else memory_of(memory, 0)
    return partition_model(the_model, the_cluster, batch, memory_bytes=limit, profile=given, measured=measure, **options)


def switch(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    batch: int,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    measure: bool = False,
    **options: Any,
) -> SwitchPlan:
    """Memory switches of every sub-layer (H3T), all devices one sharded-data group, and the plan of them.

    options: as of `switching.switch`, and of the method. Raises InputError.
    """
    given = profile_of(profile)
    the_model, the_cluster = model_of(model, sequence, dtype, given), cluster_of(cluster)
    limit = None if memory is None else memory_of(memory, 0)
    return switch_model(the_model, the_cluster, batch, memory_bytes=limit, profile=given, measured=measure, **options)


def simulate(
    source: Plan | Instance | Source,
    *,
    solution: Result | Source | Sequence[int] | None = None,
    schedule: str | None = None,
    chunks: int = 1,
    sliced: int | str | None = None,
    cluster: str | os.PathLike[str] | Cluster | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    measure: bool = False,
    method: str | None = None,
    measuring: Any = None,
    **chosen: Any,
) -> Simulation:
    """A step of a plan, or of a partition of a pipeline-partition instance, pass by pass, with its critical path.

    schedule: 1f1b, gpipe or interleaved-1f1b (default: the plan's own, 1f1b for an instance). sliced: micro-batches whose first
    passes come in halves, or 'least', the fewest with all of the gain, or 'algorithm-2', AutoPipe's count (default: the plan's,
    or none). cluster, profile, measure: where a plan's times come from (default: the plan's own).
    An instance: solution: its cuts (default: those that `method` finds; chosen: as of `solve`); chunks: stages on each of its
    devices, for interleaved-1f1b; then they are cut for the least largest stage unless a method is named. Raises InputError.
    """
    check_schedule(schedule or "1f1b", chunks)
    found = source if isinstance(source, Plan | Instance) else _plan_or_instance(source)
    given = profile_of(profile)
    if isinstance(found, Plan):
        if found.switches() is not None:
            fix = "`solve` its memory-switches instance: --picture draws the step on its lanes"
            raise InputError("plan", "units[0].switches", "are given: its lanes are no pipeline's", fix)
        for option, value in (("--solution", solution), ("--chunks", None if chunks == 1 else chunks), ("--method", method)):
            if value is not None:
                raise InputError("command line", option, "is given", "leave it out: a plan says how it is cut")
        on = None if cluster is None else cluster_of(cluster)
        source_of_times = {"measured": measure, "measuring": measuring}
        return simulated_plan(found, on, given, schedule=schedule, sliced=sliced, **source_of_times)
    if not isinstance(found, pipeline_partition.Instance):
        fix = f"give a plan, or an instance of {pipeline_partition.NAME}"
        raise InputError("instance", "problem", f"is {found.problem!r}", fix)
    for option, is_given in (("--cluster", cluster), ("--profile", profile), ("--measure", measure or None)):
        if is_given is not None:
            raise InputError("command line", option, "is given", "leave it out: an instance has its times")
    instance = in_chunks(found, chunks)
    where = os.fspath(solution) if isinstance(solution, str | os.PathLike) else "solution"
    cuts = _cuts(instance, solution, method, chunks, chosen)
    return simulated_instance(instance, cuts, where, schedule=schedule or "1f1b", sliced=sliced or 0, chunks=chunks)


def _plan_or_instance(source: Source) -> Plan | Instance:
    content = source if isinstance(source, Mapping) else read_data(source)
    if isinstance(content, Mapping) and "problem" in content:
        return load(source)
    if isinstance(content, Mapping) and "format" not in content:
        where = "source" if isinstance(source, Mapping) else os.fspath(source)
        raise InputError(where, "", "is neither a plan nor an instance", "give a plan's file, or an instance's")
    return load_plan(source)


def _cuts(
    instance: pipeline_partition.Instance,
    solution: Result | Source | Sequence[int] | None,
    method: str | None,
    chunks: int,
    chosen: Mapping[str, Any],
) -> pipeline_partition.Solution:
    """Those given, or those that a method finds. Raises InputError."""
    if solution is None:
        method = method or ("exact" if chunks == 1 else "algorithm-1")
        result = solve_instance(instance, method, **chosen)
        if result.solution is None:
            raise InputError("instance", "memory", str(result.reason or result.message or result.status), "give a --solution")
        return pipeline_partition.load_solution(result.solution)
    if method is not None:
        raise InputError("command line", "--method", f"is {method!r}", "leave it out: the solution is given")
    if isinstance(solution, Result):
        if solution.solution is None:
            raise InputError("solution", "", f"is a result without one ({solution.status})", "solve the instance first")
        solution = solution.solution
    given = solution if isinstance(solution, str | os.PathLike | Mapping) else {"cuts": list(solution)}
    return pipeline_partition.load_solution(given)


def trial(
    *,
    top: int = 5,
    steps: int = 10,
    warmup: int = 3,
    scale_down: int = 1,
    run_dtype: str | None = None,
    backend: Any = "serial",
    device: Any = "cpu",
    timeout: float = 600.0,
    method: str = "amp",
    seed: int = 0,
    running: Any = None,
    **options: Any,
) -> Trials:
    """Run the `top` best strategies that a method finds for `steps` steps each on this machine, and pick the fastest (AMP,
    Algorithm 1); options as of `place`. A strategy that fails or runs out of memory is a result like others.

    warmup: steps before those that are timed. scale_down: run a model with the same units, about that many times smaller.
    run_dtype: run in this one. device: cpu (gloo) or cuda (NCCL). timeout: seconds for each strategy. Raises InputError.
    """
    if not 1 <= top <= MOST_TRIALS:
        raise InputError("command line", "--top", f"is {top}", f"give 1 to {MOST_TRIALS}")
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    found = place(method=method, seed=seed, **options)
    running_as = runnable(found.model, run_dtype, "model").scaled(scale_down)
    more = solve_instance(found.instance, "amp", seed=seed, top=top)
    chosen = {"steps": steps, "warmup": warmup, "backend": backend, "device": device, "timeout": timeout, "seed": seed}
    return try_best(found, more, top, model=running_as, progress=running, **chosen)


def throughput(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    memory: str | int | None = None,
    planners: Sequence[str] | None = None,
    space: str = "full",
    schedule: Schedule = "1f1b",
    sequence: int | None = None,
    dtype: str | None = None,
    step: int = 8,
    largest_batch: int = LARGEST_BATCH,
    most_micro_batches: int = MOST_MICRO_BATCHES,
    progress: Any = None,
) -> list[Throughput]:
    """Throughput over batch sizes of planners by name (default: all), under the paper's cost model, from estimates.

    space, schedule: of the planner `optimum`. progress: called with (planner, point). Raises InputError.
    """
    the_model, the_cluster = model_of(model, sequence, dtype), cluster_of(cluster)
    memory_bytes = memory_of(memory, the_cluster.memory_bytes)
    for option, value in (("--step", step), ("--largest-batch", largest_batch), ("--most-micro-batches", most_micro_batches)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give 1 to 1048576")
    batches = Batches(the_model, the_cluster, step=step, most_micro_batches=most_micro_batches)
    chosen = [variant(name, space, schedule) for name in planners or [*VARIANTS, "optimum"]]
    found = []
    for planner in chosen:
        notify = (lambda point, planner=planner: progress(planner, point)) if progress else None
        found.append(search_throughput(batches, planner, memory_bytes, largest_batch=largest_batch, progress=notify))
    return found


def run(
    source: Plan | Source,
    *,
    model: str | os.PathLike[str] | None = None,
    steps: int = 3,
    scale_down: int = 1,
    dtype: str | None = None,
    backend: Any = "serial",
    device: Any = "cpu",
    seed: int = 0,
    compare: bool = True,
    measure_memory: bool = False,
    progress: Any = None,
) -> Any:
    """Run a plan on local processes; an `execution.run.RunReport`. Raises InputError, WorkerError.

    model: a config.json that the plan must be for. scale_down: run a model with the same units, about that many times
    smaller. dtype: run in this one. device: cpu or cuda. compare: also run on one process and compare gradients.
    """
    the_plan = source if isinstance(source, Plan) else load_plan(source)
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    planned = the_plan.planned_model()
    if model is not None and (found := load_model(model)).digest != planned.digest:
        where = "plan" if isinstance(source, Plan | Mapping) else os.fspath(source)
        fix = f"give the config of {planned.name!r}, or plan for {found.name!r}"
        raise InputError(where, "model_digest", f"is {planned.digest!r}, but {os.fspath(model)} has {found.digest!r}", fix)
    where = "plan" if isinstance(source, Plan | Mapping) else os.fspath(source)
    planned = runnable(planned, dtype, where)
    return run_plans(
        [the_plan],
        model=planned.scaled(scale_down),
        steps=steps,
        backend=backend,
        device=device,
        seed=seed,
        compare=compare,
        measure_memory=measure_memory,
        progress=progress,
    )[0]


def runnable(model: Model, dtype: str | None, where: str) -> Model:
    """The model as its plans run, in this dtype (default: its own). Raises InputError where they do not."""
    if (wanted := dtype or model.dtype) not in EXECUTED_DTYPES:
        raise InputError("command line", "--dtype", f"is {wanted!r}", f"give one of: {', '.join(EXECUTED_DTYPES)}")
    if model.family not in EXECUTED_FAMILIES:
        fix = f"give a plan of one of: {', '.join(EXECUTED_FAMILIES)}"
        raise InputError(where, "model.config.model_type", f"is {model.family!r}, which does not run yet", fix)
    for name in UNEXECUTED:
        if name in model.config:
            raise InputError("plan", f"model.config.{name}", f"is {shown(model.config[name])}", "leave it out to run a plan")
    return model.in_dtype(wanted)
