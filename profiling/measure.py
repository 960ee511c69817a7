"""Measured profiles: every sub-layer on as many local processes as will run it, all at once, and the links between them.

All processes time the same shape at the same moment, since they share the machine when they train. A repeat counts with its
slowest process, and the median of the repeats is kept with its spread. Links: all-reduces of several sizes over groups of 2,
4, ... neighbours, fitted to steps x (latency + bytes / bandwidth).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from trainplan.profiling.clusters import Cluster, Island
from trainplan.profiling.costs import PHASES
from trainplan.profiling.models import Model
from trainplan.profiling.processes import Report, run_workers
from trainplan.profiling.profiles import Profile, UnitCost, needed_shapes

MESSAGE_BYTES = (2**16, 2**20, 2**23)
LARGEST_SPREAD = 0.05
MOST_REPEATS = 15


def measure(
    model: Model,
    cluster: Cluster,
    rows: int,
    *,
    budget_seconds: float = 60,
    seed: int = 0,
    progress: Report | None = None,
) -> Profile:
    """Measure `model` with `rows` samples at once on `cluster.devices` local CPU processes.

    budget_seconds: time for the repeats of all shapes together; each shape is repeated until its spread is below 5 %, at
    least three times. Raises WorkerError when a process fails.
    """
    shapes = needed_shapes(model, cluster.devices, rows)
    job = {"model": model, "shapes": shapes, "budget": budget_seconds / (len(shapes) + 2), "seed": seed}
    found = run_workers("trainplan.profiling.measure:measure_rank", cluster.devices, job, progress=progress)[0]
    units = [
        UnitCost(kind=kind, tp=tp, rows=local, origin="measured", **numbers)
        for (kind, tp, local), numbers in zip(shapes, found["units"], strict=True)
    ]
    return Profile(
        model=model.shape(),
        device=cluster.device.name,
        devices=cluster.devices,
        memory_bytes=cluster.device.memory_bytes,
        islands=found["islands"] or cluster.islands,
        links_origin="measured" if found["islands"] else "estimated",
        optimizer_ns_per_parameter=found["optimizer_ns_per_parameter"],
        optimizer_origin="measured",
        units=units,
    )


def measure_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Body of one measuring process."""
    model, shapes = job["model"], job["shapes"]
    units = []
    for number, (kind, tp, rows) in enumerate(shapes):
        report({"shape": f"{kind} tp{tp}", "done": number, "of": len(shapes) + 2})
        units.append(_measure_unit(world, model, kind, tp, rows, job["budget"], job["seed"]))
    report({"shape": "links", "done": len(shapes), "of": len(shapes) + 2})
    islands = _measure_links(rank, world, job["budget"])
    report({"shape": "optimizer", "done": len(shapes) + 1, "of": len(shapes) + 2})
    return {"units": units, "islands": islands, "optimizer_ns_per_parameter": _measure_optimizer(world, job["budget"])}


def _slowest(world: int, values: Sequence[float]) -> list[float]:
    """Element-wise maximum over the processes."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(list(values), dtype=torch.float64)
    if world > 1:
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.tolist()


def _repeat(world: int, budget: float, run: Any) -> list[list[float]]:
    """Timings of `run()` (seconds of its parts), one warm-up apart, until their sum's spread is small or the budget ends."""
    import torch.distributed as dist

    started, found = time.perf_counter(), []
    for number in range(MOST_REPEATS + 1):
        dist.barrier()
        parts = _slowest(world, [*run(), time.perf_counter() - started])
        if number:
            found.append(parts[:-1])
        # All processes decide on the same shared numbers.
        if len(found) >= 3 and (parts[-1] > budget or _spread([sum(part) for part in found]) < LARGEST_SPREAD):
            break
    return found


def _spread(values: Sequence[float]) -> float:
    """Half-width of the middle half, relative to the median."""
    lower, middle, upper = statistics.quantiles(values, n=4)
    return (upper - lower) / 2 / middle if middle else 0.0


def _measure_unit(world: int, model: Model, kind: Any, tp: int, rows: int, budget: float, seed: int) -> dict[str, Any]:
    import torch
    from trainplan.profiling import torch_units
    from trainplan.profiling.allocations import PeakMemory

    shard = torch_units.Shard(tp, 0)
    whole = torch_units.whole_parameters(model, kind, seed)
    parameters = {p.name: torch_units.sharded(p, whole[p.name], shard).clone().requires_grad_() for p in model.parameters(kind)}
    del whole
    for value in parameters.values():
        value.grad = torch.zeros_like(value)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.vocabulary, (rows, model.sequence), generator=generator)
    shape = (rows, model.sequence, model.hidden)
    hidden = torch.randn(shape, generator=generator).to(torch_units.DTYPES[model.dtype])

    def given() -> torch.Tensor:
        return tokens if kind == "embedding" else hidden.detach().requires_grad_()

    gradient = torch.randn_like(torch_units.forward(model, kind, parameters, given(), shard).detach())

    def once() -> list[float]:
        x, start = given(), time.perf_counter()
        y = torch_units.forward(model, kind, parameters, x, shard)
        middle = time.perf_counter()
        y.backward(gradient)
        return [middle - start, time.perf_counter() - middle]

    times = _repeat(world, budget, once)
    x = given()
    held: dict[int, int] = {}
    known = {value.untyped_storage().data_ptr() for value in (*parameters.values(), x)}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = torch_units.forward(model, kind, parameters, x, shard)
    kept, output = sum(held.values()), y.nbytes
    del y, x
    x = given()
    with PeakMemory() as memory:
        with memory.phase("forward"):
            y = torch_units.forward(model, kind, parameters, x, shard)
        edge = torch.autograd.graph.get_gradient_edge(y)
        del y
        with memory.phase("backward"):
            torch.autograd.backward([edge], [gradient])
    incoming = 0 if kind == "embedding" else model.boundary_bytes(rows)
    peaks = memory.phase_peak_bytes
    return {
        "forward_ns": round(statistics.median(part[0] for part in times) * 1e9),
        "backward_ns": round(statistics.median(part[1] for part in times) * 1e9),
        "kept_bytes": kept,
        "forward_workspace_bytes": max(0, peaks.get("forward", 0) - kept - output),
        "backward_workspace_bytes": max(0, peaks.get("backward", 0) - kept - incoming),
        "spread": round(_spread([sum(part) for part in times]), 4),
    }


def _measure_links(rank: int, world: int, budget: float) -> list[Island]:
    """An island for each group size 2, 4, ... up to all; every group of one size is busy at once."""
    import torch
    import torch.distributed as dist

    islands, size = [], 2
    while size <= world:
        groups = [dist.new_group(list(range(start, start + size))) for start in range(0, world, size)]
        group, points = groups[rank // size], []
        for message in MESSAGE_BYTES:
            data = torch.zeros(message // 4)

            def once(data: torch.Tensor = data, group: Any = group) -> list[float]:
                start = time.perf_counter()
                dist.all_reduce(data, group=group)
                return [time.perf_counter() - start]

            times = _repeat(world, budget / 6, once)
            steps = PHASES["all-reduce"] * (size - 1)
            points.append((message / size, statistics.median(part[0] for part in times) / steps))
        islands.append(_fitted(size, points))
        size *= 2
    return islands


def _fitted(devices: int, points: list[tuple[float, float]]) -> Island:
    """Latency and bandwidth from (bytes, seconds) of a ring step: the slope by the two largest sizes, never negative."""
    (x1, y1), (x2, y2) = points[-2:]
    slope = max((y2 - y1) / (x2 - x1), 1e-15)
    latency = max(0.0, points[0][1] - slope * points[0][0])
    return Island(devices=devices, bandwidth_bytes_per_s=1 / slope, latency_ns=round(latency * 1e9))


def _measure_optimizer(world: int, budget: float) -> float:
    import torch

    count = 2_000_000
    value = torch.zeros(count, requires_grad=True)
    value.grad = torch.ones(count)
    optimizer = torch.optim.AdamW([value], fused=True)

    def once() -> list[float]:
        start = time.perf_counter()
        optimizer.step()
        return [time.perf_counter() - start]

    times = _repeat(world, budget, once)
    return statistics.median(part[0] for part in times) / count * 1e9
