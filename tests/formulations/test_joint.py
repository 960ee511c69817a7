"""The joint problem: what its solutions cost is what the walks say of their plans' programs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from trainplan.execution.judge import judge
from trainplan.formulations.joint.costs import JointCosts
from trainplan.formulations.joint.definition import PROBLEM
from trainplan.formulations.joint.enumeration import cuts_of
from trainplan.formulations.joint.evaluation import evaluate, malformed
from trainplan.formulations.joint.problem import Instance, ScheduleName, Solution
from trainplan.formulations.joint.space import Space
from trainplan.formulations.request import Request
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile

from tests.execution.plans import BERT, GPT2, LLAMA, UNTIED

CPU = load_cluster("cpu-4")
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


def degrees_of(model: Model, world: int) -> list[int]:
    """Tensor-parallel degrees that a model's sub-layers run on."""
    return [t for t in divisors(world) if all(part.runs_on(t) for part in model.sublayers.values())]


def profile_of(model: Model, world: int, batch: int, network: Network) -> Profile:
    """Estimated for all shapes of a model on so many devices with these links."""
    sizes = [batch // m for m in divisors(batch)]
    made = obtain_profile(model, CPU, sizes, divisors(world), devices=4, degrees=degrees_of(model, world))
    return made.changed(devices=world, network=network)


def instance_of(rng: random.Random, world: int, space: Space, network: Network) -> tuple[Instance, Profile, Request]:
    """Of any model and batch."""
    model = rng.choice(MODELS)
    batch = world * rng.choice([1, 2, 4]) * rng.choice([1, 1, 3])
    profile = profile_of(model, world, batch, network)
    instance = JointCosts(profile, space, degrees_of(model, world)).instance(batch, 2**40)
    return instance, profile, Request(model, None, batch, profile=profile)


def random_solution(rng: random.Random, instance: Instance, places: Sequence[int] | None = None) -> Solution:
    """Any configuration, cuts and options."""
    place = rng.choice(places or range(len(instance.configurations)))
    configuration = instance.configurations[place]
    cuts = rng.choice(list(cuts_of(instance, configuration)))
    tables = configuration.tables[0]
    solution = Solution(place, cuts, tuple(rng.randrange(len(tables.units[unit.kind].options)) for unit in instance.units))
    assert not malformed(instance, solution)
    return solution


def compare(rng: random.Random, world: int, space: Space, network: Network, solutions: int) -> None:
    """A few solutions of one instance against the walks over their plans' programs."""
    instance, profile, request = instance_of(rng, world, space, network)
    for _ in range(solutions):
        solution = random_solution(rng, instance)
        evaluation, plan = evaluate(instance, solution), PROBLEM.plan(instance, solution, request)
        judged = judge(plan, profile)
        assert judged.step_ns == evaluation.time_ns
        site_of = {rank: x for x, stage in enumerate(plan.stages[: plan.depth]) for rank in stage.ranks}
        for rank, peak in enumerate(judged.peak_bytes):
            chunks = range(site_of[rank], len(plan.stages), plan.depth)
            assert peak <= max(evaluation.stages[x].peak_bytes for x in chunks)


@pytest.mark.parametrize("seed", range(40))
def test_objectives_are_steps_of_the_time_walk(seed: int) -> None:
    """To the nanosecond on one lane a rank: any strategies, cuts, depths and micro-batches, tables tied across stages, links
    of several kinds. No rank's programs need more than the memory of its stage."""
    rng = random.Random(seed)
    schedules: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
    compare(rng, rng.choice([1, 2, 4, 8]), Space(schedules=schedules), rng.choice(NETWORKS), 4)


@pytest.mark.parametrize("seed", range(20))
def test_sliced_steps_are_those_of_the_time_walk(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([2, 4, 8]), Space(schedules=("1f1b",), most_sliced=3), rng.choice(NETWORKS), 4)


@pytest.mark.parametrize("seed", range(20))
def test_interleaved_steps_are_those_of_the_time_walk(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([2, 4]), Space(schedules=("interleaved",), depths=[2, 4], most_chunks=4), rng.choice(NETWORKS), 4)


@pytest.mark.parametrize("seed", range(20))
def test_steps_on_any_number_of_devices_are_those_of_the_time_walk(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([3, 6, 12]), Space(schedules=("1f1b", "gpipe")), rng.choice([NETWORKS[0], THREES]), 3)


@pytest.mark.parametrize("seed", range(8))
def test_units_of_whole_layers_are_their_sub_layers_together(seed: int) -> None:
    rng = random.Random(seed)
    compare(rng, rng.choice([1, 2, 4]), Space(by_unit=False), rng.choice(NETWORKS), 4)
