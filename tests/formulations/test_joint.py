"""The joint problem: the cost of its solutions is that of the simulations of their plans' programs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.prediction import compiled_plan
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.formulations.joint.cost_tables import JointCosts
from trainplan.formulations.joint.definition import PROBLEM
from trainplan.formulations.joint.enumeration import cuts_of
from trainplan.formulations.joint.evaluation import evaluate, malformed
from trainplan.formulations.joint.problem import Configuration, DeviceGroup, Instance, Schedule, ScheduleName, Solution
from trainplan.formulations.joint.search_space import Space
from trainplan.formulations.joint.simulation import StageTimes, ends_ns, graph_of
from trainplan.formulations.joint.tables import HostPart
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.models.model import Model
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Profile

import trainplan as tp
from tests.helpers.plans import BERT, GPT2, LLAMA, UNTIED

CPU = load_cluster("cpu-4")
EVERY: dict[str, Any] = {"hybrid": True, "recompute": ("none", "modules", "full")}  # what spaces have on request, on devices
MODELS = (GPT2, UNTIED, BERT, LLAMA)
NETWORKS = (
    Network(islands=[Island(devices=64, bandwidth_bytes_per_s=3.3e9, latency_ns=977)]),
    Network(
        islands=[
            Island(devices=2, bandwidth_bytes_per_s=9e10, latency_ns=31),
            Island(devices=4, bandwidth_bytes_per_s=7e9, latency_ns=513),
            Island(devices=64, bandwidth_bytes_per_s=3.3e8, latency_ns=7777, shared_by=4, node_bytes_per_s=9e8),
        ]
    ),
)
# Nodes of three devices: degrees of 3, and stages of whole nodes or a part of one.
THREES = Network(
    islands=[
        Island(devices=3, bandwidth_bytes_per_s=9e10, latency_ns=31),
        Island(devices=48, bandwidth_bytes_per_s=3.3e8, latency_ns=777, shared_by=3, node_bytes_per_s=9e8),
    ]
)


@pytest.fixture(autouse=True)
def every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are simulated: where one stands for others, messages between shards of unequal sizes come too early."""
    monkeypatch.setattr(compiled_plan, "FEW_RANKS", 64)


def degrees_of(model: Model, world: int) -> list[int]:
    """Tensor-parallel degrees that a model's sub-layers run on."""
    return [t for t in divisors(world) if all(part.runs_on(t) for part in model.sublayers.values())]


def profile_of(model: Model, world: int, batch: int, network: Network) -> Profile:
    """Estimated for all shapes of a model on a given number of devices with these links."""
    sizes = [batch // m for m in divisors(batch)]
    made = obtain_profile(model, CPU, sizes, divisors(world), devices=4, degrees=degrees_of(model, world))
    return made.changed(devices=world, network=network)


def instance_of(rng: random.Random, world: int, space: Space, network: Network) -> tuple[Instance, Profile, Request]:
    """A random instance of any model and batch."""
    model = rng.choice(MODELS)
    batch = world * rng.choice([1, 2, 4]) * rng.choice([1, 1, 3])
    profile = profile_of(model, world, batch, network)
    instance = JointCosts(profile, space, degrees_of(model, world)).instance(batch, 2**40)
    return instance, profile, Request(model, None, batch, profile=profile)


def random_solution(rng: random.Random, instance: Instance, indices: Sequence[int] | None = None) -> Solution:
    """Any configuration, cuts and options that may stand next to each other."""
    index = rng.choice(indices or range(len(instance.configurations)))
    configuration = instance.configurations[index]
    cuts = rng.choice(list(cuts_of(instance, configuration)))
    tables = configuration.tables[0]
    while True:
        choice = tuple(rng.randrange(len(tables.units[unit.kind].options)) for unit in instance.units)
        if not (faults := malformed(instance, solution := Solution(index, cuts, choice))):
            return solution
        assert all("may not follow" in fault for fault in faults)


def compare(rng: random.Random, world: int, space: Space, network: Network, solutions: int) -> None:
    """A few solutions of one instance against the analyses of their plans' programs."""
    instance, profile, request = instance_of(rng, world, space, network)
    for _ in range(solutions):
        solution = random_solution(rng, instance)
        evaluation, plan = evaluate(instance, solution), PROBLEM.plan(instance, solution, request)
        judged = judge(plan, profile, backend="serial")
        assert judged.step_ns == evaluation.time_ns
        group_of = {rank: x for x, stage in enumerate(plan.stages[: plan.depth]) for rank in stage.ranks}
        for rank, peak in enumerate(judged.peak_bytes):
            chunks = range(group_of[rank], len(plan.stages), plan.depth)
            assert peak <= max(evaluation.stages[x].peak_bytes for x in chunks)
            assert judged.host_bytes[rank] <= sum(evaluation.stages[x].host_bytes for x in chunks)


@pytest.mark.parametrize("seed", range(40))
def test_objectives_are_steps_of_the_simulation(seed: int) -> None:
    """To the nanosecond on one lane a rank: any strategies, ZeRO stages, shared tokens and recomputed modules, cuts, depths and
    micro-batches, tables tied across stages, kinds of link. No rank's programs need more than the memory of its stage."""
    rng = random.Random(seed)
    schedules: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
    compare(rng, rng.choice([1, 2, 4, 8]), Space(schedules=schedules, **EVERY), rng.choice(NETWORKS), 4)


HOSTS: tuple[HostPart, ...] = ("optimizer", "parameters", "hidden")
CHUNKED: dict[str, Any] = {"schedules": ("interleaved",), "depths": [2, 4], "most_chunks": 4}
ON_HOST: tuple[dict[str, Any], ...] = (
    {"host": HOSTS, "hybrid": True},
    {"host": HOSTS, "schedules": ("gpipe",)},
    {"host": HOSTS, **CHUNKED},
    {"host": HOSTS[:1], "recompute": ("none",), "zero": (0, 3)},
    {"host": HOSTS[2:], "recompute": ("full",), "by_unit": False},
    {"host": HOSTS, "recompute": ("full",), "micro_batches": [1], "depths": [1], "zero": (3,)},
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("space", ON_HOST, ids=str)
def test_steps_with_states_on_the_host_are_those_of_the_simulation(space: dict[str, Any], seed: int) -> None:
    """Copies and the host's optimizer, one after the other; and no host needs more than is stated."""
    rng = random.Random(seed)
    worlds = [2, 4] if "interleaved" in space.get("schedules", ()) else [1, 2, 4]
    compare(rng, rng.choice(worlds), Space(**space), rng.choice(NETWORKS), 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_all_options_are_those_of_the_analyses(seed: int) -> None:
    rng = random.Random(seed)
    any_space: dict[str, Any] = {**EVERY, **rng.choice([*ON_HOST, {"most_sliced": 2}, CHUNKED, {}])}
    threes = rng.random() < 0.2 and "interleaved" not in any_space.get("schedules", ())
    world = rng.choice([3, 6]) if threes else rng.choice([2, 4] if "depths" in any_space else [1, 2, 4, 8])
    compare(rng, world, Space(**any_space), rng.choice([NETWORKS[0], THREES] if threes else NETWORKS), 4)


@pytest.mark.parametrize("seed", range(20))
def test_sliced_steps_are_those_of_the_simulation(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([2, 4, 8]), Space(schedules=("1f1b",), most_sliced=3, **EVERY), rng.choice(NETWORKS), 4)


@pytest.mark.parametrize("seed", range(20))
def test_interleaved_steps_are_those_of_the_simulation(seed: int) -> None:
    rng = random.Random(seed)
    compare(
        rng,
        rng.choice([2, 4]),
        Space(schedules=("interleaved",), depths=[2, 4], most_chunks=4, **EVERY),
        rng.choice(NETWORKS),
        4,
    )


@pytest.mark.parametrize("seed", range(20))
def test_steps_on_any_number_of_devices_are_those_of_the_simulation(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([3, 6, 12]), Space(schedules=("1f1b", "gpipe"), **EVERY), rng.choice([NETWORKS[0], THREES]), 3)


@pytest.mark.parametrize("seed", range(8))
def test_units_of_whole_layers_are_their_sub_layers_together(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([1, 2, 4]), Space(by_unit=False, **EVERY), rng.choice(NETWORKS), 4)


@pytest.mark.parametrize("seed", range(60))
def test_ends_in_arrays_are_those_pass_by_pass(seed: int) -> None:
    """Ends are those of 1F1B and GPipe, with any times, also where the last micro-batch's backward pass takes longer."""
    rng = random.Random(seed)
    count, scale = rng.randint(1, 6), rng.choice([3, 1000])
    groups = (DeviceGroup((1,)),) * count
    configuration = Configuration(
        schedule=Schedule(rng.choice(["1f1b", "gpipe"])),
        micro_batches=rng.randint(1, 9),
        device_groups=groups,
        links=(0,) * (count - 1),
        make_tables=lambda: (),
    )
    stages = [StageTimes(*(rng.randint(0, scale) for _ in range(7))) for _ in range(count)]
    stages[0] = replace(stages[0], message_forward_ns=0)
    stages[-1] = replace(stages[-1], message_backward_ns=0)

    graph = graph_of(configuration)
    ends = graph.ends_ns(lambda duration: sum(getattr(stages[x], name) for name, x in duration))
    assert ends_ns(configuration, stages) == [ends[index] for index in graph.last]


@pytest.mark.parametrize(
    "requested",
    [
        {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "2GiB"},
        {"model": "bert-large", "dtype": "float32", "cluster": "rtx-titan-8", "batch": 16, "memory": "6GiB"},
        {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "pipeline": 4, "sliced": 3},
        {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "schedule": "gpipe", "pipeline": 2, "by_unit": False},
        {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "900MiB", "modules": True, "zero": "1,2", "hybrid": True},
        {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "400MiB", "host": "all", "micro_batches": 4},
    ],
    ids=str,
)
def test_plans_take_what_is_claimed(requested: dict[str, Any]) -> None:
    """The claim of a plan is what its programs take by the time simulation, and so does the step that is simulated anew."""
    found = tp.plan(**requested, sequence=128, like="joint", gap=0.01, time_limit=60.0)
    plan = found.plan
    assert plan is not None and plan.claim is not None and plan.predicted is not None
    assert plan.claim.objective_ns == plan.predicted.step_ns == tp.simulate(plan, cluster=requested["cluster"]).step_ns
    assert max(plan.predicted.peak_bytes) <= plan.memory_bytes
