"""Plans: made for a request, simulated, compared, tried, run and exported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from trainplan.asking import FilePath, cluster_of, memory_of, model_of, request_of
from trainplan.execution.exports.common import Export
from trainplan.execution.exports.registry import exporter
from trainplan.execution.run.processes import RunReport, run_plans
from trainplan.formulations.pipeline.batches import LARGEST_BATCH, MOST_MICRO_BATCHES, BatchInstances
from trainplan.formulations.plan import Plan, load_plan
from trainplan.formulations.step.schedules import Schedule
from trainplan.planning import Planned, plan_row, planned
from trainplan.presets import DEFAULT, OPTIMUM, PLANNERS, PRESETS, planner, preset
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import Source
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.simulating import Simulation, simulate_source
from trainplan.throughputs import Throughput, search_throughput
from trainplan.trace import chrome_trace
from trainplan.trials import Trials, best_plans, runnable, try_plans

__all__ = [
    "chrome_trace",
    "compare_plans",
    "export",
    "partition",
    "place",
    "plan",
    "plans",
    "run",
    "simulate",
    "switch",
    "throughput",
    "trial",
]

REQUEST = {"model", "cluster", "batch", "memory", "sequence", "dtype", "profile", "measure", "measuring"}


def plan(
    *,
    like: str = DEFAULT,
    method: str = "exact",
    backend: str | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Any = None,
    **request: Any,
) -> Planned:
    """The best plan for a request, predicted by the walks over its programs, with the solver's claim. Raises InputError.

    like: a preset (`presets.PRESETS`) or a problem. request: as of `build`, with the preset's parameters, which
    `trainplan plan --like NAME --help` lists; and the method's own options. backend: of `run`, on which the plan must fit,
    too. time_limit: seconds in all. gap: relative gap at which to stop.
    """
    chosen = preset(like)
    names = {parameter.name for parameter in chosen.parameters} | REQUEST
    asked = {name: value for name, value in request.items() if name in names}
    options = {name: value for name, value in request.items() if name not in names}
    made = request_of(chosen.parameters, chosen.name, fixed=chosen.fixed, **asked)
    limits = {"time_limit": time_limit, "gap": gap, "seed": seed, "progress": progress}
    return planned(made, chosen, method, backend=backend, **limits, **options)


def place(**request: Any) -> Planned:
    """`plan` on a cluster of mixed devices: degrees, placement, micro-batches and layers of stages (AMP)."""
    return plan(like="place", **request)


def partition(**request: Any) -> Planned:
    """`plan` of a pipeline cut at any sub-layer, its first micro-batches sliced (AutoPipe)."""
    return plan(like="partition", **request)


def switch(**request: Any) -> Planned:
    """`plan` of memory switches for every sub-layer, states on the host (H3T)."""
    return plan(like="switch", **request)


def plans(like: Sequence[str] | None = None, **request: Any) -> list[Planned | InputError]:
    """The plans of several presets (default: all) for one request, judged alike, the shortest predicted step first.

    A preset that the request does not suit gives its error, behind the others.
    """
    answers: list[Planned | InputError] = []
    for name in like or PRESETS:
        try:
            answers.append(plan(like=name, **request))
        except InputError as error:
            answers.append(error)

    def rank(answer: Planned | InputError) -> tuple[int, int]:
        step = None if isinstance(answer, InputError) or answer.plan is None else answer.plan.predicted
        return (1, 0) if step is None else (0, step.step_ns)

    return sorted(answers, key=rank)


def compare_plans(sources: Iterable[Plan | Source]) -> list[dict[str, Any]]:
    """Any plans side by side, as the walks predict them, the shortest step first: a row each, as of `planning.plan_row`."""
    rows = []
    for number, source in enumerate(sources):
        the_plan, where = _loaded(source)
        rows.append(plan_row(f"plan {number}" if isinstance(source, Plan | Mapping) else where, the_plan))
    return sorted(rows, key=lambda row: (row["step_ns"] is None, row["step_ns"] or 0))


def simulate(source: Any, **options: Any) -> Simulation:
    """A step of any plan, or of a partition of a pipeline-partition instance, with its timeline and critical path.

    A plan's step is what the time walk over its programs says. schedule: 1f1b, gpipe or interleaved-1f1b (default: the plan's
    own, 1f1b for an instance). sliced: micro-batches whose first passes come in halves, or 'least', the fewest with all of the
    gain, or 'algorithm-2', AutoPipe's count (default: the plan's, or none). cluster, profile, measure: where a plan's times
    come from (default: the plan carries them). An instance: solution: its cuts (default: those that `method` finds, with
    options as of `solve`); chunks: stages on each of its devices, for interleaved-1f1b. Raises InputError.
    """
    return simulate_source(source, **options)


def trial(
    plans: Iterable[Plan | Source] | None = None,
    *,
    like: str = "place",
    top: int = 5,
    steps: int = 10,
    warmup: int = 3,
    scale_down: int = 1,
    run_dtype: str | None = None,
    backend: Any = "serial",
    device: Any = "cpu",
    timeout: float = 600.0,
    seed: int = 0,
    running: Any = None,
    **request: Any,
) -> Trials:
    """Run plans for `steps` steps each on this machine, and pick the fastest. One that fails is a result like others.

    plans: any plans of one model and number of devices (default: the `top` best that the preset `like` has for the request,
    which is as of `plan`). warmup: steps before those that are timed. scale_down: run a model with the same units, about that
    many times smaller. run_dtype: run in this one. device: cpu (gloo) or cuda (NCCL). timeout: seconds for each plan. Raises
    InputError.
    """
    settings = {"steps": steps, "warmup": warmup, "backend": backend, "device": device, "timeout": timeout, "seed": seed}
    first = None
    if plans is not None:
        chosen = [_loaded(each)[0] for each in plans]
    elif find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    else:
        first = plan(like=like, seed=seed, **request)
        if first.plan is None:
            return Trials((), (), first)
        runnable(first.plan.planned_model(), run_dtype, "model")
        chosen = best_plans(first, top, seed)
    return try_plans(chosen, scale_down=scale_down, dtype=run_dtype, planned=first, progress=running, **settings)


def throughput(
    *,
    model: FilePath | Model,
    cluster: FilePath | Cluster,
    memory: str | int | None = None,
    planners: Sequence[str] | None = None,
    space: str = "full",
    schedule: Schedule = "1f1b",
    sequence: int | None = None,
    dtype: str | None = None,
    step: int = 8,
    largest_batch: int = LARGEST_BATCH,
    most_micro_batches: int = MOST_MICRO_BATCHES,
    progress: Callable[[Any, Any], None] | None = None,
) -> list[Throughput]:
    """Throughput over batch sizes of planners by name (default: all), under the paper's cost model, from estimates.

    space, schedule: of the planner `optimum`. progress: called with (planner, point). Raises InputError.
    """
    the_model, the_cluster = model_of(model, sequence, dtype), cluster_of(cluster)
    memory_bytes = memory_of(memory) or the_cluster.memory_bytes
    for option, value in (("--step", step), ("--largest-batch", largest_batch), ("--most-micro-batches", most_micro_batches)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give 1 to 1048576")
    batches = BatchInstances(the_model, the_cluster, step=step, most_micro_batches=most_micro_batches)
    searches = []
    for chosen in [planner(name, space, schedule) for name in planners or [*PLANNERS, OPTIMUM]]:
        notify = (lambda point, chosen=chosen: progress(chosen, point)) if progress else None
        searches.append(search_throughput(batches, chosen, memory_bytes, largest_batch=largest_batch, progress=notify))
    return searches


def run(
    source: Plan | Source,
    *,
    model: FilePath | None = None,
    scale_down: int = 1,
    dtype: str | None = None,
    **options: Any,
) -> RunReport:
    """Run a plan on local processes. Raises InputError, WorkerError; warns where it needs more memory than it was made for.

    model: a config.json that the plan must be for. scale_down: run a model with the same units, about that many times
    smaller. dtype: run in this one. options: as of `execution.run.processes.run_plans`: steps (default: 3), backend, device
    (cpu or cuda), seed, compare (also run on one process and compare gradients; default: true), measure_memory, record (walk
    the step by the times that its instructions take here, too), progress.
    """
    the_plan, where = _loaded(source)
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    the_model = the_plan.planned_model()
    if model is not None and (other := load_model(model)).digest != the_model.digest:
        fix = f"give the config of {the_model.name!r}, or plan for {other.name!r}"
        problem_text = f"is {the_model.digest!r}, but {os.fspath(model)} has {other.digest!r}"
        raise InputError(where, "model_digest", problem_text, fix)
    return run_plans([the_plan], model=runnable(the_model, dtype, where).scaled(scale_down), where=where, **options)[0]


def export(source: Plan | Source, to: str) -> Export:
    """A plan in the words of another runtime. Raises InputError.

    What the runtime cannot say is refused where it would change what is computed, or where work lies; where it costs time or
    memory alone it is named in `left_out`. The modules of `execution.exports` tell which is which for each runtime.
    """
    return exporter(to)(*_loaded(source))


def _loaded(source: Plan | Source) -> tuple[Plan, str]:
    """A plan, and what errors call it: its file, if it comes from one."""
    where = os.fspath(source) if isinstance(source, str | os.PathLike) else "plan"
    return source if isinstance(source, Plan) else load_plan(source), where
