"""Run plans on local processes: training steps, their losses and times, and the comparison with one process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trainplan.execution.checks import check
from trainplan.execution.compile import compile_plan
from trainplan.execution.memory import BACKENDS, Backend, memory_walk
from trainplan.formulations.plan import Plan
from trainplan.profiling.errors import InputError
from trainplan.profiling.models import Model
from trainplan.profiling.processes import Report, run_workers

MOST_PROCESSES = 64
EXECUTED_DTYPES = ("float32", "float64")
# Fields of a configuration that change results, and that torch_units does not follow.
UNEXECUTED = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "rope_scaling")
RELEASE_S = 0.004  # gloo's thread lets go of a collective's tensors well within it
EXECUTED_FAMILIES = ("gpt2", "bert", "llama")  # one stream of tokens, and a language head


@dataclass(frozen=True)
class RunReport:
    """What running a plan gave.

    losses: of every step. step_seconds: of every step, the slowest rank's. predicted_peak_bytes: by rank, from the memory
    walk; peak_bytes: by rank, what torch allocated (None where not asked for). gradient_difference: largest difference of any
    gradient of the first step against one process, relative to the largest gradient of its unit; parameter_difference:
    largest absolute difference of any parameter after the last step; loss_difference: of any step's loss.
    """

    model: str
    dtype: str
    world: int
    backend: Backend
    losses: list[float]
    step_seconds: list[float]
    predicted_peak_bytes: list[int]
    peak_bytes: list[int] | None
    gradient_difference: float | None
    parameter_difference: float | None
    loss_difference: float | None


def run_plans(
    plans: list[Plan],
    *,
    model: Model | None = None,
    steps: int = 3,
    backend: Backend = "serial",
    seed: int = 0,
    compare: bool = True,
    measure_memory: bool = False,
    progress: Report | None = None,
    timeout: float = float("inf"),
) -> list[RunReport]:
    """Run plans of one world size one after the other, all in one start of its processes.

    model: the model to run in place of the plans' own (see `Model.scaled`). Every set of programs passes the static checks
    first. Raises InputError for bad arguments, WorkerError when a process fails.
    """
    if steps < 1:
        raise InputError("command line", "--steps", f"is {steps}", "give 1 or more")
    if backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {backend!r}", f"give one of: {', '.join(BACKENDS)}")
    if not 0 <= seed < 2**31:
        raise InputError("command line", "--seed", f"is {seed}", "give 0 to 2147483647")
    if plans[0].world > MOST_PROCESSES:
        fix = f"run plans of up to {MOST_PROCESSES} devices on one machine"
        raise InputError("plan", "world", f"is {plans[0].world}", fix)
    if measure_memory and backend != "serial":
        raise InputError(
            "command line", "--measure-memory", f"goes with {backend!r}", "give --backend serial: one thread is seen"
        )
    world = plans[0].world
    assert all(plan.world == world for plan in plans)
    jobs = []
    for plan in plans:
        own = model or plan.planned_model()
        programs = compile_plan(plan, own)
        if faults := check(programs):
            raise AssertionError(f"the compiler made an unsound program: {faults[0]}")
        jobs.append({"programs": programs})
    job = {"jobs": jobs, "steps": steps, "backend": backend, "seed": seed, "compare": compare, "memory": measure_memory}
    ranks = run_workers("trainplan.execution.run:run_rank", world, job, progress=progress, timeout=timeout)
    reports = []
    for place, plan_job in enumerate(jobs):
        programs, first = plan_job["programs"], ranks[0][place]
        reports.append(
            RunReport(
                model=programs[0].model.name,
                dtype=programs[0].model.dtype,
                world=world,
                backend=backend,
                losses=first["losses"],
                step_seconds=[max(times) for times in zip(*(rank[place]["seconds"] for rank in ranks), strict=True)],
                predicted_peak_bytes=[memory_walk(program, backend).peak_bytes for program in programs],
                peak_bytes=[rank[place]["peak_bytes"] for rank in ranks] if measure_memory else None,
                gradient_difference=first["gradient_difference"],
                parameter_difference=first["parameter_difference"],
                loss_difference=first["loss_difference"],
            )
        )
    return reports


def run_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> list[dict[str, Any]]:
    """Body of one rank: all plans of the job, one after the other."""
    import torch.distributed as dist
    from trainplan.execution.executor import Executor, make_groups
    from trainplan.execution.reference import batch_tokens

    groups = make_groups([program for plan in job["jobs"] for program in plan["programs"]])
    everyone = dist.new_group(list(range(world)))
    results = []
    for number, plan in enumerate(job["jobs"]):
        program = plan["programs"][rank]
        executor = Executor(program, groups, seed=job["seed"])
        executor.tokens = batch_tokens(program.model, program.samples, job["seed"])
        losses, seconds = [], []
        gradients: dict[int, Any] = {}
        for step in range(job["steps"]):
            dist.barrier(everyone)
            started = time.perf_counter()
            losses.append(executor.step(job["backend"]))
            seconds.append(time.perf_counter() - started)
            report({"plan": number, "step": step + 1, "steps": job["steps"], "loss": losses[-1], "seconds": seconds[-1]})
            if step == 0 and job["compare"]:
                gradients = {unit: executor.gradient_of(unit).clone() for unit in program.units}
        parameters = {unit: executor.parameter_of(unit) for unit in program.units}
        differences: dict[str, Any] = dict.fromkeys(("gradient_difference", "parameter_difference", "loss_difference"))
        if job["compare"]:
            report({"plan": number, "comparing": True})
            differences = _differences(rank, world, everyone, plan["programs"], gradients, parameters, losses, job)
        peak = None
        if job["memory"]:
            peak = sum(program.buffers[name] for name in program.persistent)
            peak += _allocated(executor)
        results.append({"losses": losses, "seconds": seconds, "peak_bytes": peak, **differences})
    return results


def _allocated(executor: Any) -> int:
    from trainplan.profiling.allocations import PeakMemory

    executor.release_s = RELEASE_S
    with PeakMemory() as memory:
        executor.step("serial")
    return memory.peak_bytes


def _differences(
    rank: int,
    world: int,
    everyone: Any,
    programs: list[Any],
    gradients: dict[int, Any],
    parameters: dict[int, Any],
    losses: list[float],
    job: Any,
) -> dict[str, float | None]:
    """Rank 0 runs the model alone and compares every rank's shards, one rank at a time, with slices of its own."""
    import torch
    import torch.distributed as dist
    from trainplan.execution.reference import Reference, batch_tokens
    from trainplan.profiling import torch_units

    whole: list[list[dict[str, Any]]] = []
    result = {"gradient_difference": 0.0, "parameter_difference": 0.0, "loss_difference": 0.0}
    model = programs[0].model
    if rank == 0:
        reference, tokens = Reference(model, job["seed"]), batch_tokens(model, programs[0].samples, job["seed"])
        for step in range(job["steps"]):
            result["loss_difference"] = max(result["loss_difference"], abs(reference.step(tokens) - losses[step]))
            if step == 0:
                whole.append([{name: value.grad.clone() for name, value in unit.items()} for unit in reference.parameters])
        whole.append([{name: value.detach() for name, value in unit.items()} for unit in reference.parameters])

    for source in range(world):
        place = programs[source].place
        for position in programs[source].units:
            for which, own in enumerate((gradients, parameters)):
                if source:
                    if rank == source:
                        dist.send(own[position], dst=0, group=everyone)
                    if rank:
                        continue
                strategy, part = programs[source].strategies[position], model.units[position].sublayer
                shard = torch_units.Shard(strategy.degree("tp"), strategy.index(place, "tp"))
                specification = {parameter.name: parameter for parameter in part.parameters()}
                if rank == 0:
                    layout = torch_units.flat_layout(part, shard)
                    flat = torch.cat(
                        [torch_units.sharded(specification[n], whole[which][position][n], shard).flatten() for n, *_ in layout]
                    )
                    piece = -(-flat.numel() // strategy.degree("sdp"))
                    start = strategy.index(place, "sdp") * piece
                    expected = flat[start : start + piece]
                    if source:
                        found = torch.empty(piece, dtype=flat.dtype)
                        dist.recv(found, src=source, group=everyone)
                    else:
                        found = own[position]
                    difference = float((found[: len(expected)] - expected).abs().max()) if len(expected) else 0.0
                    if which == 0:
                        difference /= max(float(value.abs().max()) for value in whole[0][position].values())
                    name = ("gradient_difference", "parameter_difference")[which]
                    result[name] = max(result[name], difference)
    return {name: value if rank == 0 else None for name, value in result.items()}
