"""The joint problem by a runtime's own prediction: against every plan of small spaces, predicted one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.runtime_least import candidates, least_predicted_ns
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import problem
from trainplan.formulations.runtimes import predict
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers.sizes import one_in
from trainplan.inputs import request_of
from trainplan.planning.certify import with_evidence

JOINT = problem("joint")
RUNTIMES = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate")
PIPELINED = RUNTIMES[:3]
CLUSTERS = ("h100:4", "h100:2x2", "a100:4", "b200:2x2")


def small(draw: random.Random, layers: int) -> Model:
    """A model of a few layers, of sizes that matter to time and memory."""
    width = draw.choice([1024, 2048, 4096])
    return load_model(draw.choice(["llama3-8b", "qwen3-8b"]), draw.choice([512, 2048]), "bfloat16").with_fields(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=draw.choice([2, 3]) * width,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=width // 16,
        vocab_size=draw.choice([8192, 64000]),
    )


def drawn(seed: int) -> tuple[Request, str]:
    """A request of a few devices, some with several schedules or with recomputation of modules, and the cluster's name."""
    draw = random.Random(seed)
    runtime = RUNTIMES[seed % len(RUNTIMES)]
    cluster = draw.choice(CLUSTERS)
    options: dict[str, Any] = {"batch": draw.choice([4, 8])}
    if runtime in PIPELINED:
        options["schedule"] = draw.choice(["1f1b", "all"])
    if runtime.startswith("megatron"):
        options["modules"] = draw.random() < 0.5
        options["recompute_first"] = draw.choice([None, None, "any"])
    model = small(draw, draw.choice([2, 3, 4]))
    return request_of(JOINT.parameters, "joint", model=model, cluster=cluster, for_=runtime, memory="70GiB", **options), cluster


def solutions(instance: Instance) -> Iterator[Solution]:
    """Every plan of an instance."""
    for index, choice in candidates(instance):
        configuration = instance.configurations[index]
        allowed = [l for l in range(1, instance.length) if instance.cuttable[l - 1]]
        cuts = combinations(allowed, configuration.stages - 1) if configuration.cuts is None else [configuration.cuts]
        yield from (Solution(index, tuple(cut), choice) for cut in cuts)


def compare(seed: int) -> None:
    """Search the space of a drawn request with memory for all, some or none of its plans, and predict all of its plans."""
    request, cluster = drawn(seed)
    whole, draw = JOINT.instance(request), random.Random(seed)
    assert whole.runtime is not None
    plans = {solution: whole.runtime.predicted(whole, solution) for solution in solutions(whole)}
    known = {solution: numbers for solution, numbers in plans.items() if not isinstance(numbers, str)}
    assert known
    solution = draw.choice(sorted(known, key=str))
    told = predict(JOINT.plan(whole, solution, request), load_cluster(cluster), str(request.options["for_"]))
    assert not isinstance(told, str)
    assert (known[solution][0], max(known[solution][1])) == (told.step_ns, told.most_bytes)
    peaks = sorted({max(peaks) for _, peaks in known.values()})
    for limit in (peaks[-1], peaks[len(peaks) // 3], peaks[0], peaks[0] - 1):
        instance = whole.with_memory(limit)
        fitting = [step for step, held in known.values() if max(held) <= limit]
        found = solve(instance, "exact")
        if not fitting:
            assert found.status == "infeasible", (seed, found)
            continue
        assert found.objective == min(fitting), (seed, limit, found.objective, min(fitting))
        assert found.bound is not None and found.bound <= min(fitting), (seed, found.bound, min(fitting))
        assert found.status == "optimal" or found.statistics["left"], (seed, found)
        assert least_predicted_ns(instance) <= min(fitting)
        chosen = JOINT.load_solution(found.solution)
        assert not JOINT.violations(instance, chosen)
        assert JOINT.evaluate(instance, chosen).peak_bytes == max(known[chosen][1])


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_the_least_prediction_that_fits_and_bounds_every_one(seed: int) -> None:
    compare(seed)


def test_stages_of_a_plan_for_torchtitan_may_share_parameters() -> None:
    """FSDP inside pipelines is in the space of torchtitan, and pipelines of Megatron-LM have copies or ZeRO-1 only."""
    stages = {}
    for runtime in ("torchtitan", "megatron"):
        model = small(random.Random(1), 4)
        request = request_of(JOINT.parameters, "joint", model=model, cluster="h100:2x2", for_=runtime, batch=8)
        instance = JOINT.instance(request)
        strategies = [
            configuration.tables[0].units[0].options[0].strategy
            for configuration in instance.configurations
            if configuration.stages > 1
        ]
        stages[runtime] = {strategy.zero_stage for strategy in strategies if strategy is not None}
    assert 3 in stages["torchtitan"]
    assert stages["megatron"] == {0, 1}


def test_a_plan_for_a_runtime_is_checked_by_the_runtime_s_own_numbers() -> None:
    """The claim is about the predicted step, and the check proves it again; more is refuted."""
    model = small(random.Random(2), 4)
    found = tp.plan(model=model, cluster="h100:2x2", batch=8, for_="megatron", memory="40GiB", comparisons=False)
    assert found.plan is not None and found.plan.predicted is not None and found.plan.claim is not None
    assert found.plan.claim.objective_ns == found.plan.predicted.step_ns == found.step_ns
    plan = with_evidence(found).plan
    assert plan is not None and plan.claim is not None and plan.claim.evidence is not None
    checked = tp.check(plan)
    assert not checked.violations and checked.claim.bound_ns == plan.claim.objective_ns
    more = plan.claim.evidence.changed(bound_ns=plan.claim.objective_ns + 1)
    assert tp.check(plan.changed(claim=plan.claim.changed(evidence=more))).violations


@pytest.mark.long
@pytest.mark.parametrize("block", range(4))
def test_the_search_agrees_with_every_plan_of_many_small_requests(block: int) -> None:
    """Of 400 requests that are drawn, one in seven, so that each of the five runtimes is met; `make test-all` has all."""
    for seed in one_in(7, range(100, 500))[block::4]:
        compare(seed)
