"""Measured profiles: times and memory of every sub-layer on processes of this machine, of the links between them, of copies, of
the optimizer, and of overlap.

The work is a list of tasks. The result of every finished task is kept in a journal, so that an interrupted measurement
continues where it stopped; that a sub-layer does not fit in memory is a result as well. Links are measured by collectives of
several sizes over groups of 2, 4, ... neighbours, and fitted to steps x (latency + bytes / bandwidth), with the fit's error.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.lines import fitted_copies, fitted_link
from trainplan.profiling.base.processes import WorkerError, run_workers
from trainplan.profiling.base.progress import Report
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.costs import PHASES
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.measure.journal import Journal
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import (
    HostCosts,
    Number,
    Profile,
    Rate,
    Shape,
    UnitCost,
)

MESSAGE_BYTES = (2**12, 2**16, 2**20, 2**23, 2**25)
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "p2p")
COPIED_BYTES = (2**20, 2**22, 2**24, 2**26)  # larger than caches, for the most part
MOST_PROCESSES = 16

Task = dict[str, Any]


def measure(
    model: Model,
    cluster: Cluster,
    shapes: Sequence[tuple[int, int]],
    *,
    device: str = "cpu",
    budget_seconds: float = 60,
    spread: float = 0.05,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Profile:
    """Measure `model` on local processes, one for each device of `cluster`, at most 16 on a CPU; the result is its profile.

    Args:
        model: the model whose sub-layers are measured.
        cluster: the cluster that the profile is for. What exceeds this machine, such as larger groups, is estimated.
        shapes: the (tensor-parallel degree, rows) to measure; rows are samples of a micro-batch on one device.
        device: `cpu`, or `cuda` for this machine's GPUs, with one process per GPU.
        budget_seconds: the time for the repeats of all tasks together; a task is repeated at least three times, until its
            spread is below `spread`.
        spread: the relative spread to reach: half the width of the middle half of the repeats over their median.
        seed: the seed of random parameters and inputs.
        journal: a file in which finished tasks are kept, to resume from.
        progress: called with an event for every task that starts.

    Returns:
        The profile.

    Raises:
        InputError: for options out of range, or if no sub-layer fits in memory.
        MissingExtra: without torch.
        WorkerError: if a process fails.
    """
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "measuring")
    if not budget_seconds > 0 or not 0 < spread < 1:
        field, value = ("--spread", spread) if budget_seconds > 0 else ("--budget", budget_seconds)
        raise InputError("command line", field, f"is {value}", "give seconds above 0, and a spread between 0 and 1")
    if not 0 <= seed < 2**31:
        raise InputError("command line", "--seed", f"is {seed}", f"give a whole number from 0 to {2**31 - 1}")
    model = model.fused()
    world = min(_local_devices(device), cluster.devices)
    tasks = _tasks(model, shapes, world)
    identity = _identity(model, cluster, device, world, seed)
    keeper = Journal(journal, identity, spread)
    job = {
        "model": model,
        "device": device,
        "memory_bytes": cluster.memory_bytes,
        "seed": seed,
        "of": len(tasks),
        "budget": budget_seconds,
        "spread": spread,
    }
    _run(job, tasks, world, keeper, progress)
    return _assembled(model, cluster, shapes, tasks, keeper.results, world, identity)


def _local_devices(device: str) -> int:
    """The largest number of processes with which this machine can measure: its GPUs, or at most 16 processes on a CPU. Raises
    InputError for an unknown or missing device.

    device: "cpu" or "cuda".
    """
    if device == "cpu":
        return MOST_PROCESSES
    if device != "cuda":
        raise InputError("command line", "--device", f"is {device!r}", "give 'cpu' or 'cuda'")
    import torch

    if not torch.cuda.is_available():
        raise InputError("command line", "--device", "is 'cuda', but torch finds no GPU", "give cpu, or estimate the profile")
    return torch.cuda.device_count()


def _tasks(model: Model, shapes: Sequence[tuple[int, int]], world: int) -> list[Task]:
    """List the tasks of a measurement, in the order to run them, as dicts with a kind (sublayer, collective, copies, optimizer
    or overlap), a unique title and the fields that the kind needs.

    shapes: pairs of a tensor-parallel degree and a number of samples, with which every sub-layer is measured. world: number
    of processes.
    """
    tasks: list[Task] = []
    for tp, rows in sorted(set(shapes)):
        for name in model.sublayers:
            title = f"{name} tp{tp} rows {rows}"
            tasks.append({"kind": "sublayer", "title": title, "sublayer": name, "tp": tp, "rows": rows})
    for size in sorted({*(1 << i for i in range(1, world.bit_length())), world} - {1}):
        for operation in OPERATIONS:
            for message in MESSAGE_BYTES:
                title = f"{operation} of {size}, {message} bytes"
                tasks.append(
                    {"kind": "collective", "title": title, "operation": operation, "devices": size, "message_bytes": message}
                )
    for message in COPIED_BYTES:
        tasks.append({"kind": "copies", "title": f"host copies, {message} bytes", "message_bytes": message})
    tasks += [{"kind": "optimizer", "title": f"optimizer on the {where}", "where": where} for where in ("device", "host")]
    if world > 1:
        tasks.append({"kind": "overlap", "title": "overlap"})
    return tasks


def _identity(model: Model, cluster: Cluster, device: str, world: int, seed: int) -> str:
    """A digest, 16 hexadecimal digits, of everything that must be equal for results of an earlier measurement to be used
    again: model, cluster, device, number of processes (world), seed, torch's version and number of cores.
    """
    import torch

    machine = [device, world, seed, torch.__version__, os.cpu_count()]
    parts = [model.shape(), cluster.model_dump(mode="json"), *machine]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _run(job: dict[str, Any], tasks: list[Task], world: int, keeper: Journal, progress: Report | None) -> None:
    """Run all measuring tasks that have no result in the journal yet, and write each result to the journal.

    If the system killed a process twice while it measured a sub-layer, that sub-layer is recorded as out of memory. job:
    values that all tasks share, such as the model. tasks: all tasks. world: number of processes. keeper: the journal.
    progress: called with an event for every task that starts; None for no reports. Raises InputError for a journal that
    cannot be written, and WorkerError if a process fails.
    """
    killed: set[str] = set()
    while waiting := [(number, task) for number, task in enumerate(tasks) if task["title"] not in keeper.results]:
        running: list[int] = []
        failures: list[InputError] = []

        def follow(event: dict[str, Any], running: list[int] = running, failures: list[InputError] = failures) -> None:
            """Handle an event of rank 0: keep the result of a finished task, or note and report the one that starts."""
            if "finished" in event:
                try:
                    keeper.add(tasks[event["finished"]]["title"], event["result"])
                except InputError as error:
                    failures.append(error)
            else:
                running[:] = [event["started"]]
                if progress:
                    progress({"shape": event["shape"], "done": event["started"], "of": event["of"]})

        def position_text(rank: int, position: tuple[int, ...]) -> str:
            """The task that a rank is at, in words, for errors."""
            return f"measuring {tasks[position[2] - 1]['title']}" if position[2] else ""

        try:
            backend = "cpu:gloo,cuda:nccl" if job["device"] == "cuda" else "gloo"
            target = "trainplan.profiling.measure.tasks:measure_rank"
            run_workers(
                target, world, {**job, "tasks": waiting}, progress=follow, describe_position=position_text, backend=backend
            )
        except WorkerError as error:
            task = tasks[running[0]] if running else {}
            if error.code != -signal.SIGKILL or task.get("kind") != "sublayer":
                raise
            if task["title"] in killed:
                keeper.add(task["title"], {"out_of_memory": True})
            killed.add(task["title"])
        if failures:
            raise failures[0]


def _assembled(
    model: Model,
    cluster: Cluster,
    shapes: Sequence[tuple[int, int]],
    tasks: list[Task],
    results: dict[str, Any],
    world: int,
    identity: str,
) -> Profile:
    """Build the profile from the results of a measurement, with estimates for everything that was not measured.

    shapes: the pairs (tensor-parallel degree, samples) that were to be measured. tasks: all tasks. results: their results by
    title. world: number of processes. identity: the measurement's digest, for the provenance. Raises InputError if no
    sub-layer fitted in memory.
    """
    base = estimate_shapes(model, _rated(cluster, model.dtype), sorted(set(shapes)))
    kind = cluster.used_kinds[0].name
    done = [(task, results[task["title"]]) for task in tasks]

    def finished(work: str, field: str) -> list[tuple[Task, Any]]:
        """Tasks of one kind whose result has a field, with their results."""
        return [(task, result) for task, result in done if task["kind"] == work and field in result]

    def shape_of(task: Task) -> dict[str, Any]:
        """The fields of a profile's entry that a sub-layer's task determines."""
        return {"sublayer": task["sublayer"], "device": kind, "tp": task["tp"], "rows": task["rows"]}

    failed = [Shape(**shape_of(task)) for task, _ in finished("sublayer", "out_of_memory")]
    costs = [
        UnitCost(**shape_of(task) | {name: _number(*value) for name, value in result.items()})
        for task, result in finished("sublayer", "forward_ns")
    ]
    if not costs:
        problem = f"{len(failed)} shapes did not fit in {cluster.memory_bytes} bytes, and no other was asked for"
        raise InputError("command line", "--rows", problem, "give fewer rows, or a cluster with more memory")
    islands = _islands(finished("collective", "seconds"), cluster, world)
    optimizer = {
        task["where"]: _rate(result["ns_per_parameter"], result["spread"])
        for task, result in finished("optimizer", "ns_per_parameter")
    }
    elsewhere = [entry for entry in base.costs if entry.device != kind]  # on kinds that this machine has none of
    update: dict[str, Any] = {
        "costs": costs + elsewhere,
        "out_of_memory": failed,
        "network": Network(islands=islands) if islands else base.network,
        "host": _host(finished("copies", "to_host"), optimizer.get("host"), base.host),
        "optimizer_ns_per_parameter": optimizer.get("device", base.optimizer_ns_per_parameter),
        "provenance": {"measured": f"{world} processes", "identity": identity},
    }
    for _, result in finished("overlap", "compute"):
        for side in ("compute", "communication"):
            update[f"{side}_slowdown"] = _rate(result[side], result["spread"])
    return base.changed(**update)


def _rated(cluster: Cluster, dtype: Any) -> Cluster:
    """A copy of the cluster in which every kind of device has a rate of matrix multiplications in the dtype, so that estimates
    can be made for it. A missing rate becomes the kind's lowest rate; measured times later replace the estimates that depend
    on it.
    """
    kinds = [kind.changed(flops_per_s={dtype: min(kind.flops_per_s.values()), **kind.flops_per_s}) for kind in cluster.kinds]
    return cluster.changed(kinds=kinds)


def _number(value: float, spread: float) -> Number:
    """Make a profile's entry for a measured number of nanoseconds or bytes: the rounded value, its relative spread, and the
    origin `measured`.
    """
    return Number(value=max(0, round(value)), origin="measured", spread=round(spread, 4))


def _rate(value: float, spread: float) -> Rate:
    """Make a profile's entry for a measured rate or ratio: the value, its relative spread, and the origin `measured`."""
    return Rate(value=value, origin="measured", spread=round(spread, 4))


def _islands(done: list[tuple[Task, Any]], cluster: Cluster, world: int) -> list[Island]:
    """Build the islands (groups of devices with their link) of a profile's network, with links fitted to measured collectives,
    for each group size and operation.

    The link fitted to all-reduces is used for operations that were not measured. done: tasks of collectives with their
    results. cluster: its links are added for groups of more than `world` devices. world: number of processes. Empty if
    nothing could be fitted.
    """
    points: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for task, result in done:
        size, operation = task["devices"], task["operation"]
        steps = 1 if operation == "p2p" else PHASES[operation] * (size - 1)
        piece = result["message_bytes"] if operation == "p2p" else result["message_bytes"] / size
        points.setdefault((size, operation), []).append((piece, result["seconds"] / steps))
    islands = []
    for (size, operation), pairs in sorted(points.items()):
        if len(pairs) < 2:
            continue
        group: Any = {"devices": size, "operation": operation, "origin": "measured"}
        islands.append(Island(**group, **fitted_link(pairs)))
        if operation == "all-reduce":
            islands.append(islands[-1].changed(operation=None))
    if not islands or cluster.devices == world:
        return islands
    # Wider groups than were measured keep the cluster's own links.
    return [*islands, *(i for i in cluster.network.islands if i.devices > world)] if cluster.matrix is None else []


def _host(copies: list[tuple[Task, Any]], optimizer: Rate | None, estimated: HostCosts | None) -> HostCosts | None:
    """Build a profile's record of the host: rates of copies to and from the device, and the time of the optimizer on the host,
    as measured.

    copies: tasks of copies with their results. optimizer: measured time per parameter on the host; None if not measured.
    estimated: returned if copies or optimizer were not measured; None if the cluster describes no host.
    """
    if len(copies) < 2 or optimizer is None:
        return estimated
    there, back = ([(task["message_bytes"], result[name]) for task, result in copies] for name in ("to_device", "to_host"))
    to_device, to_host, latency_ns = fitted_copies(there, back)
    return HostCosts(
        to_device_bytes_per_s=_rate(*to_device),
        to_host_bytes_per_s=_rate(*to_host),
        latency_ns=_number(*latency_ns),
        optimizer_ns_per_parameter=optimizer,
        shares_bus=estimated is not None and estimated.shares_bus,
    )
