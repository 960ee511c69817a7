"""Plans whose units have unlike layouts under overlap: against brute force by the simulation of programs, and how they run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.prediction.overlap import plain_layout, predict_overlapped
from trainplan.formulations.joint.definition import unlike_layout_bounds
from trainplan.formulations.joint.enumeration import solution_count, solutions
from trainplan.formulations.joint.evaluation import malformed
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.plan.plan import load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import problem
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import Model, load_model

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.sizes import one_in
from trainplan.inputs import request_of

JOINT = problem("joint")
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
LLAMA = load_model("llama3-8b", 128, "bfloat16").with_fields(
    num_hidden_layers=1, hidden_size=256, intermediate_size=512, vocab_size=2048, **HEADS
)
GPT2 = load_model("gpt2", 128, "bfloat16").with_fields(n_layer=1, n_embd=256, n_head=4, vocab_size=4096)  # with a shared table
DEEPER = LLAMA.with_fields(num_hidden_layers=2)
MOST = 64  # solutions of a tiny instance
QUICK, BLOCKS = range(24, 31), 6


@dataclass(frozen=True)
class Tiny:
    """A request so small that every plan of it is simulated: a model, a cluster, a batch, and options of the problem."""

    model: Model
    cluster: str
    batch: int
    options: dict[str, Any]

    def request(self, **more: Any) -> Request:
        options = {"layouts": "unit", "memory_tables": "least", **self.options, **more}
        return request_of(JOINT.parameters, "joint", model=self.model, cluster=self.cluster, batch=self.batch, **options)

    def plan(self, **more: Any) -> Any:
        return tp.plan(
            model=self.model,
            cluster=self.cluster,
            batch=self.batch,
            comparisons=False,
            **{"gap": 0.0, **self.options, **more},
        )


def tiny(seed: int) -> Tiny:
    """A random tiny request with few enough solutions."""
    draw = random.Random(seed)
    while True:
        model = draw.choice([LLAMA, GPT2, DEEPER]).with_fields(vocab_size=draw.choice([512, 2048, 8192]))
        options: dict[str, Any] = {
            "zero": draw.choice(["0,3", "0,1", "1,3", "2,3", "0,2", "0", "3"]),
            "forbid": draw.choice([["ckpt", "sp"], ["ckpt"], ["sp"], ["tp2", "tp4"], ["ckpt", "sp", "tp4"]]),
            "micro_batches": draw.choice([1, 2, 4]),
            "pipeline": draw.choice([1, 1, 2]),
            "schedule": draw.choice(["1f1b", "gpipe"]),
            "by_unit": draw.choice([True, False]),
        }
        if draw.random() < 0.5:
            options["memory"] = f"{draw.choice([20, 24, 28, 32, 40, 60])}MiB"
        cluster = draw.choice(["h100:2", "l40s:1x2", "a100:2", "l40s:2x2", "h100:2x2", "rtx3090:2"])
        chosen = Tiny(model, cluster, draw.choice([2, 4, 8]), options)
        try:
            instance = JOINT.instance(chosen.request())
        except tp.InputError:
            continue
        if 4 <= solution_count(instance) <= MOST:
            return chosen


def held_to_brute_force(seed: int) -> bool:
    """Checks one tiny request; returns whether its fastest plan is faster than every plan of one layout."""
    chosen = tiny(seed)
    request = chosen.request()
    instance = JOINT.instance(request)
    limit, steps, alike = request.with_margin(0).limit_bytes, list[int](), list[int]()
    for solution in solutions(instance):
        if solution is None:
            continue
        plan = JOINT.plan(instance, solution, request)
        judged = predict_overlapped(plan, load_cluster(chosen.cluster), checked=False)
        step_ns, peak_bytes = judged.step_ns, max(judged.peak_bytes)
        claimed = JOINT.evaluate(instance, solution)
        assert claimed.objective <= step_ns, (seed, solution)
        if peak_bytes <= limit:
            assert claimed.peak_bytes <= limit, (seed, solution)  # memory tables of the least exclude no plan that fits
            steps.append(step_ns)
            alike += [step_ns] * (len({plain_layout(unit.strategy) for unit in plan.units}) == 1)
    answer = chosen.plan(layouts="unit")
    assert (answer.plan is None) == (not steps), (seed, chosen)
    if answer.plan is None:
        return False
    assert answer.step_ns == min(steps), (seed, chosen)
    assert answer.answer.bound_ns <= answer.step_ns
    return not alike or answer.step_ns < min(alike)


def test_the_fastest_of_all_plans_is_found() -> None:
    """Of every tiny instance all plans are simulated."""
    assert sum(map(held_to_brute_force, QUICK)) > 0


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_fastest_of_all_plans_is_found_in_many_instances(block: int) -> None:
    """Of 300 instances that are drawn, one in five; `make test-all` has all. In some of them the fastest plan has several
    layouts, as it has among those of `make test`."""
    for seed in one_in(5, range(300))[block::BLOCKS]:
        held_to_brute_force(seed)


CASES = [
    (DEEPER, "h100:2x2", {}),
    (GPT2, "l40s:4", {"modules": True}),
    (DEEPER, "l40s:2x4", {"hybrid": True, "gradients": "float32", "schedule": "gpipe"}),
    (DEEPER, "a100:4", {"by_unit": False}),
    pytest.param(DEEPER, "h100:8x4", {"hybrid": True}, marks=pytest.mark.long),
    pytest.param(DEEPER, "l40s:4x8", {}, marks=pytest.mark.long),  # where rings are long
    pytest.param(GPT2, "a100:4x4", {"hybrid": True, "modules": True}, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("model", "cluster", "options"), CASES)
def test_bounds_hold_for_random_plans(model: Model, cluster: str, options: dict[str, Any]) -> None:
    """The objective, each of the lower bounds of which it is a mean, and the least memory."""
    chosen = Tiny(model, cluster, load_cluster(cluster).devices, options)
    request, draw = chosen.request(), random.Random(1)
    instance, single = JOINT.instance(request), unlike_layout_bounds(request)
    tried = [solution for index in range(len(instance.configurations)) for solution in drawn(instance, index, 3, draw)]
    for solution in draw.sample(tried, 8):
        plan = JOINT.plan(instance, solution, request)
        judged, claimed = predict_overlapped(plan, load_cluster(cluster)), JOINT.evaluate(instance, solution)
        bounds = [JOINT.evaluate(bound, solution).objective for bound in single]
        assert claimed.objective <= max(bounds) <= judged.step_ns, plan.units
        assert claimed.peak_bytes <= max(judged.peak_bytes), plan.units


def drawn(instance: Instance, index: int, count: int, draw: random.Random) -> list[Solution]:
    """Random solutions of a configuration whose neighbouring units may follow each other."""
    configuration, found = instance.configurations[index], list[Solution]()
    tables = configuration.tables[0]
    while len(found) < count:
        cuts = tuple(sorted(draw.sample(range(1, instance.length), configuration.stages - 1)))
        choice = [draw.randrange(len(tables.units[unit.kind].options)) for unit in instance.units]
        solution = Solution(index, cuts, tuple(choice))
        found += [solution] * (not malformed(instance, solution))
    return found


def test_upper_bounds_of_memory_hold_for_random_plans() -> None:
    chosen, draw = Tiny(DEEPER, "h100:2x2", 8, {"memory_tables": "most"}), random.Random(2)
    request = chosen.request(memory_tables="most")
    instance = JOINT.instance(request)
    tried = [solution for index in range(len(instance.configurations)) for solution in drawn(instance, index, 1, draw)]
    for solution in tried[:10]:
        judged = predict_overlapped(JOINT.plan(instance, solution, request), load_cluster(chosen.cluster), checked=False)
        assert max(judged.peak_bytes) <= JOINT.evaluate(instance, solution).peak_bytes


def test_a_plan_of_unlike_layouts_is_checked_and_runs(tmp_path: Path) -> None:
    """Its table of tokens is split, whose gradients are most of the bytes between slow nodes; the gradients are those of one
    process."""
    options = {"zero": "0,1", "forbid": ["ckpt", "sp"], "micro_batches": 1, "pipeline": 1}
    chosen = Tiny(GPT2.with_fields(vocab_size=16384), "l40s:2x2", 8, options)
    one, answer = chosen.plan(), chosen.plan(layouts="unit")
    assert answer.step_ns < 0.95 * one.step_ns and answer.uniform is not None and answer.uniform.step_ns == one.step_ns
    assert len({plain_layout(unit.strategy) for unit in answer.plan.units}) > 1
    path = answer.save(tmp_path / "plan.json")
    checked = tp.check(path)
    assert not checked.violations and "layouts" in load_plan(path).claim.evidence.options
    simulated = tp.simulate(path, cluster=chosen.cluster, cost_model="streams")
    assert simulated.judged is not None and simulated.judged.step_ns == answer.step_ns
    assert tp.simulate(path).judged.step_ns == answer.step_ns  # from the durations that it carries
    report = tp.run(path, steps=1, scale_down=16, dtype="float64")
    assert report.gradient_difference is not None and report.gradient_difference < 1e-12


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        ({"cluster": "rtx-titan-8"}, ("unit", "executed"), "streams"),
        ({"cp": "1,2"}, ("unit", "--cp"), "one"),
        ({"precision": "fp8"}, ("unit", "--precision"), "one"),
        ({"optimizer": "muon"}, ("unit", "--optimizer"), "one"),
        ({"schedule": "all"}, ("unit", "--schedule"), "1f1b"),
        ({"for_": "megatron"}, ("unit", "megatron"), "trainplan"),
        ({"one_strategy": True}, ("unit", "--one-strategy"), ()),
    ],
)
def test_what_unlike_layouts_do_not_have_is_refused(options: dict[str, Any], problem: Any, fix: Any) -> None:
    with refused("layouts", problem=problem, fix=fix):
        tp.plan(model=LLAMA, batch=8, like="joint", layouts="unit", **{"cluster": "h100:2", **options})
