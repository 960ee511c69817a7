"""Plans with memory switches on one GPU, and what was predicted of them by a profile in which none of them has a part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from trainplan.formulations.memory_switches import costs
from trainplan.formulations.memory_switches.problem import Instance, Solution
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.switches import ALL_ON, Switches
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind, Host, Nodes
from trainplan.profiling.clusters.network import Link
from trainplan.profiling.measure.measure import measure
from trainplan.profiling.models.model import Model, load_model

from tests.gpu.parts import Settings, name_of
from tests.helpers.switch_instances import any_combinations, simulated_step
from tests.helpers.switch_plans import switch_plan

OFFLOADED = Switches(ckpt=True, offload_hidden=True, partition=True, lazy_prefetch=True)
UNIFORM = {
    "none": Switches(),
    "ckpt": Switches(ckpt=True),
    "offloaded": OFFLOADED,
    "offloaded, synchronised": replace(OFFLOADED, segment_sync=True),
    "all": ALL_ON,
}
RANDOM_PLANS = 8


class Prediction(NamedTuple):
    """The simulated step of a plan and its peak; and how long computing, and copying before the optimizer, take alone."""

    step_ns: int
    peak_bytes: int
    computing_ns: int
    copying_ns: int


def model_of(settings: Settings) -> tuple[Model, int]:
    """The model that is studied, and the samples of a step."""
    if settings.quick:
        return load_model("gpt2", 64, "float32").with_fields(n_layer=2, n_embd=128, n_head=4, n_inner=512, vocab_size=512), 2
    return load_model("gpt2", 512, "float32"), 8


def plans_of(model: Model, samples: int, quick: bool) -> dict[str, Plan]:
    """By name, plans whose units all switch alike, and ones that switch at random."""
    rng, any_of = random.Random(17), any_combinations()
    chosen = {name: [value] * len(model.units) for name, value in UNIFORM.items()}
    for number in range(1 if quick else RANDOM_PLANS):
        chosen[f"random {number}"] = [rng.choice(any_of) for _ in model.units]
    return {name: switch_plan(model, 1, switches, samples=samples) for name, switches in chosen.items()}


def cluster_of(settings: Settings) -> Cluster:
    """This machine's first device; all its rates are measured."""
    memory = torch.cuda.get_device_properties(0).total_memory if settings.device == "cuda" else 2**32
    kind = DeviceKind(
        name=name_of(settings.device), memory_bytes=memory, flops_per_s={"float32": 1e13}, memory_bytes_per_s=1e12
    )
    host = Host(memory_bytes=2**36, memory_bytes_per_s=1e11, link=Link(bandwidth_bytes_per_s=1e10), shares_bus=False)
    return Cluster(name="this", kinds=[kind], nodes=[Nodes(kind=kind.name, devices=1, islands=[], host=host)])


def instance_of(model: Model, samples: int, settings: Settings) -> Instance:
    """The problem of these switches, by a profile measured here."""
    cluster = cluster_of(settings)
    profile = measure(model, cluster, [(1, samples)], device=settings.device)
    return costs.build(profile, samples, cluster.memory_bytes)


def predicted(instance: Instance, switches: Sequence[Switches]) -> Prediction:
    """The step and peak of switches by H3T's simulator."""
    step = simulated_step(instance, Solution(tuple(switches)))
    before = [operation for operation in step.timeline if operation.end_ns <= step.phases_ns[1]]
    busy = {lane: sum(o.end_ns - o.start_ns for o in before if o.lane == lane) for lane in ("compute", "copy")}
    return Prediction(step.time_ns, step.peak_bytes, busy["compute"], busy["copy"])
