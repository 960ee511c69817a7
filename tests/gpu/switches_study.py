"""Plans with memory switches on the GPUs of this machine: their steps and peaks beside what was predicted.

`python -m tests.gpu.switches_study` measures a profile, predicts each plan's step from it alone, runs the plan on streams and
serially, and writes the figures to `measured/`, by GPU and date. No plan has a part in the profile.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from trainplan.execution.run.processes import Device, run_plans
from trainplan.execution.walk.memory import Backend
from trainplan.formulations.memory_switches import costs
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate
from trainplan.formulations.memory_switches.switches import ALL_ON, Switches, combinations
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind, Host, Nodes
from trainplan.profiling.clusters.network import Island, Link
from trainplan.profiling.measure.measure import measure
from trainplan.profiling.models.model import Model, load_model

from tests.execution.switch_plans import switch_plan

STORED = Path(__file__).with_name("measured")
MODEL = load_model("gpt2", 512, "float32")
ROWS = 8
RANDOM_PLANS = 8
WARM_UP_STEPS, STEPS = 3, 5
OFFLOADED = Switches(ckpt=True, offload_hidden=True, partition=True, lazy_prefetch=True)
UNIFORM = {
    "none": Switches(),
    "ckpt": Switches(ckpt=True),
    "offloaded": OFFLOADED,
    "offloaded, synchronised": replace(OFFLOADED, segment_sync=True),
    "all": ALL_ON,
}


def name_of(device: Device) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def cluster_of(devices: int, device: Device) -> Cluster:
    """GPUs of this machine with NVLink; all its rates are measured."""
    memory = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 2**32
    kind = DeviceKind(name=name_of(device), memory_bytes=memory, flops_per_s={"float32": 1e13}, memory_bytes_per_s=1e12)
    host = Host(memory_bytes=2**36, memory_bytes_per_s=1e11, link=Link(bandwidth_bytes_per_s=1e10), shares_bus=False)
    islands = [Island(devices=devices, bandwidth_bytes_per_s=1e11)] if devices > 1 else []
    return Cluster(name="this", kinds=[kind], nodes=[Nodes(kind=kind.name, devices=devices, islands=islands, host=host)])


def switches_of(units: int) -> dict[str, list[Switches]]:
    """By name, those of every unit: the same in all units, or any in each."""
    rng, any_of = random.Random(17), combinations(forced=False)
    found = {name: [each] * units for name, each in UNIFORM.items()}
    return found | {f"random {number}": [rng.choice(any_of) for _ in range(units)] for number in range(RANDOM_PLANS)}


def step_ns(seconds: Sequence[float]) -> int:
    return round(statistics.median(seconds[WARM_UP_STEPS:]) * 1e9)


def study(
    devices: int,
    model: Model = MODEL,
    rows: int = ROWS,
    device: Device = "cuda",
    backends: Sequence[Backend] = ("serial", "streams"),
) -> dict[str, Any]:
    """Of each plan: what was predicted, and on each back-end the median step, and most bytes of the fullest device."""
    batch, chosen = rows * devices, switches_of(len(model.units))
    cluster = cluster_of(devices, device)
    profile = measure(model, cluster, [(1, rows)], device=device)
    instance = costs.build(profile, batch, cluster.memory_bytes, synchronisation="free")
    plans = [switch_plan(model, devices, switches, samples=batch) for switches in chosen.values()]
    ran = {
        backend: run_plans(
            plans, device=device, backend=backend, steps=WARM_UP_STEPS + STEPS, compare=False, measure_memory=True
        )
        for backend in backends
    }
    found: dict[str, Any] = {}
    for place, (name, switches) in enumerate(chosen.items()):
        found[name] = {"switches": [str(each) for each in switches], **predicted(instance, switches)}
        for backend, reports in ran.items():
            report = reports[place]
            assert report.peak_bytes is not None
            found[name][backend] = {
                "step_ns": step_ns(report.step_seconds),
                "walk_bytes": max(report.predicted_peak_bytes),
                "peak_bytes": max(report.peak_bytes),
            }
    return {
        "date": date.today().isoformat(),
        "gpu": name_of(device),
        "devices": devices,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "model": model.name,
        "batch": batch,
        "plans": found,
    }


def predicted(instance: Instance, switches: Sequence[Switches]) -> dict[str, int]:
    """The simulated step; and how long computing, and copying before the optimizer, take by themselves."""
    step = evaluate(instance, Solution(tuple(switches)))
    before = [operation for operation in step.timeline if operation.end_ns <= step.phases_ns[1]]
    busy = {lane: sum(o.end_ns - o.start_ns for o in before if o.lane == lane) for lane in ("compute", "copy")}
    return {
        "predicted_ns": step.time_ns,
        "simulated_bytes": step.peak_bytes,
        "computing_ns": busy["compute"],
        "copying_ns": busy["copy"],
    }


def store(found: dict[str, Any]) -> Path:
    STORED.mkdir(exist_ok=True)
    gpu = "-".join(found["gpu"].lower().split())
    path = STORED / f"switches-{gpu}-{found['devices']}-{found['date']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


if __name__ == "__main__":
    for count in (1 << level for level in range(torch.cuda.device_count().bit_length())):
        print(store(study(count)))
