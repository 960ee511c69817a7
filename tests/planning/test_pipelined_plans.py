"""Plans of several stages: their memory against their programs, their gradients against one process, and large clusters."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.launch.processes import run_plans
from trainplan.formulations.plan.plan import load_plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import Model, load_model

import trainplan as tp
from tests.helpers.plans import BERT, GPT2, LLAMA, SCHEDULES, UNTIED
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others
from trainplan.planning.presets import OTHERWISE
from trainplan.planning.result import PlanningResult

GPT2_SIZES = {"n_embd": 256, "n_head": 4, "n_inner": 1024, "n_positions": 128, "n_layer": 5, "vocab_size": 3001}
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 5, "vocab_size": 3001}
LLAMA_SIZES = {"intermediate_size": 704, "num_key_value_heads": 2, "head_dim": 64}
MODELS = {
    "tied": load_model("gpt2", 96, "float32").with_fields(**GPT2_SIZES),
    "untied": load_model("gpt2", 96, "float32").with_fields(**GPT2_SIZES, tie_word_embeddings=False),
    "bert": load_model("bert-large", 96, "float32").with_fields(**SIZES, intermediate_size=1024),
    "llama": load_model("llama2-7b", 96, "float32").with_fields(**SIZES, **LLAMA_SIZES),
}
CPU = load_cluster("cpu-4")


def make_plan(model: Model, cluster: Cluster, batch: int, memory: int | None = None, **options: Any) -> PlanningResult:
    """The answer of `plan` in the problem `pipeline`, whose memory by stage these tests hold programs to."""
    return tp.plan(like=OTHERWISE, model=model, cluster=cluster, batch=batch, memory=memory, **options)


def holds(found: PlanningResult, ranks: int) -> None:
    """The program of every rank keeps what the plan promises, and the plan the memory."""
    assert found.plan is not None
    assert found.plan.predicted is not None
    assert found.result.status == "optimal"
    assert len(found.walk_bytes) == ranks
    assert found.result.evaluation is not None
    assert max(found.walk_bytes) == found.plan.predicted.most_bytes
    assert max(found.walk_bytes) <= found.result.evaluation["peak_bytes"] <= found.plan.memory_bytes
    size = ranks // len(found.plan.stages)
    for stage, costs in enumerate(found.result.evaluation["stages"]):
        assert max(found.walk_bytes[stage * size : (stage + 1) * size]) <= costs["peak_bytes"]


@pytest.mark.long
def test_programs_of_several_stages_never_need_more_than_their_plans_say() -> None:
    """60 random models, batches, memories, numbers of stages and micro-batches, schedules and granularities."""
    rng, ratios, seen = random.Random(7), [], set()
    for _ in range(60):
        name = rng.choice(list(MODELS))
        model = MODELS[name].with_fields(**{layers_of(MODELS[name]): rng.randint(3, 6)})
        if rng.random() < 0.3:
            model = model.in_dtype("float64")
        stages, micro_batches = rng.choice([2, 4]), rng.choice([1, 2, 4, 8])
        options: dict[str, Any] = {
            "pipeline": stages,
            "micro_batches": micro_batches,
            "schedule": rng.choice(SCHEDULES),
            "by_unit": rng.random() < 0.5,
        }
        batch = micro_batches * rng.choice([1, 2, 4]) * (4 // stages)
        most = make_plan(model, CPU, batch, 2**40, **options)
        least = make_plan(model, CPU, batch, 1000, **options).result.reason
        assert least is not None
        assert len(most.instance.configurations) == 1
        assert most.result.evaluation is not None
        ample = most.result.evaluation["peak_bytes"]
        memory = round(least.least_memory_bytes + rng.choice([0, 0.3, 0.8]) * (ample - least.least_memory_bytes))
        found = make_plan(model, CPU, batch, memory, **options)
        holds(found, 4)
        assert found.plan is not None
        assert (len(found.plan.stages), found.plan.schedule) == (stages, options["schedule"])
        assert found.plan.stage_sizes[0] == 4 // stages
        if model.tied:
            assert found.plan.units[0].name == "embedding"
        ratios.append(max(found.walk_bytes) / found.result.evaluation["peak_bytes"])  # type: ignore[index]
        seen.add((name, stages, options["schedule"]))
    ratios.sort()
    print(f"memory walk over prediction: least {ratios[0]:.2%}, median {ratios[len(ratios) // 2]:.2%}")
    assert len({name for name, _, _ in seen}) == 4
    assert {(stages, schedule) for _, stages, schedule in seen} == {(s, o) for s in (2, 4) for o in SCHEDULES}
    assert ratios[len(ratios) // 2] > 0.8


def layers_of(model: Model) -> str:
    return "n_layer" if "n_layer" in model.config else "num_hidden_layers"


def test_the_best_number_of_stages_is_found() -> None:
    """Without a number all are tried: the best is at least as good as each alone, and costs what it costs alone."""
    model = MODELS["tied"]
    options: dict[str, Any] = {"micro_batches": 4, "schedule": "1f1b"}
    every = make_plan(model, CPU, 16, 2**40, **options)
    alone = {stages: make_plan(model, CPU, 16, 2**40, pipeline=stages, **options) for stages in (1, 2, 4)}
    for found in (every, *alone.values()):
        holds(found, 4)
        assert found.instance.devices == 4
    assert every.result.objective == min(found.result.objective for found in alone.values())  # type: ignore[type-var]


def test_plans_of_several_stages_run() -> None:
    """Tied and untied, both schedules, two and four stages, tight memory and none: gradients of one process, in one start."""
    found = []
    cases = [
        (GPT2, 2, "1f1b"),
        (GPT2, 4, "gpipe"),
        (UNTIED, 2, "gpipe"),
        (BERT, 4, "1f1b"),
        (LLAMA, 2, "1f1b"),
        (GPT2, 4, "1f1b"),
    ]
    for number, (model, stages, schedule) in enumerate(cases):
        options: dict[str, Any] = {"pipeline": stages, "micro_batches": 4, "schedule": schedule, "by_unit": number % 2 == 1}
        least = make_plan(model, CPU, 16, 1000, **options).result.reason
        assert least is not None
        planned = make_plan(model, CPU, 16, least.least_memory_bytes if number % 3 else 2**40, **options)
        holds(planned, 4)
        assert planned.plan is not None
        found.append(planned.plan)
    for plan, report in zip(found, run_plans(found, steps=2), strict=True):
        assert report.gradient_difference is not None
        assert report.gradient_difference < 1e-12, plan
        assert report.loss_difference is not None
        assert report.loss_difference < 1e-12
        assert report.losses[1] < report.losses[0]


def test_a_plan_of_several_stages_survives_its_file() -> None:
    found = make_plan(MODELS["bert"], CPU, 8, pipeline=2, micro_batches=4, schedule="gpipe").plan
    assert found is not None
    again = load_plan(found.model_dump(mode="json"))
    assert again == found
    assert [stage.ranks for stage in again.stages] == [[0, 1], [2, 3]]


@pytest.mark.long
@pytest.mark.parametrize(("cluster", "devices"), first_and_others([("a100-64", 64), ("h200-1024", 128)]))
def test_large_clusters(cluster: str, devices: int) -> None:
    """BERT-xHuge in four stages or more: the first rank of every stage keeps the memory that its plan says."""
    given = part(load_cluster(cluster), devices)
    model = load_model("bert-xhuge", 512)
    found = make_plan(model, given, devices, pipeline=8, micro_batches=8)
    plan = found.plan
    assert plan is not None
    assert plan.predicted is not None
    assert (plan.world, len(plan.stages), plan.stage_sizes[0]) == (devices, 8, devices // 8)
    walks = found.walk_bytes
    assert len(walks) == devices
    assert found.result.evaluation is not None
    assert max(walks) <= found.result.evaluation["peak_bytes"] <= plan.memory_bytes
    assert found.result.status == "optimal"


def part(cluster: Cluster, devices: int) -> Cluster:
    """A given number of devices of a cluster of equal nodes."""
    nodes, whole = cluster.nodes[0], cluster.islands[-1]
    count = devices // nodes.devices
    islands = [whole.changed(devices=devices)] if count > 1 else []
    return cluster.changed(nodes=[nodes.changed(count=count)], islands=islands)


def test_stages_that_cannot_be_are_reported() -> None:
    for options, refusal in (
        ({"pipeline": 3}, ("pipeline", 3, (1, 2, 4))),
        ({"pipeline": 8}, ("pipeline", 8, (1, 2, 4))),
        ({"pipeline": 0}, ("pipeline", 0, 1)),
        ({"pipeline": 2, "micro_batches": 3}, ("batch", (8, 3), "--micro-batches")),
        ({"micro_batches": 0}, ("micro_batches", 0, 1)),
        ({"space": "all"}, ("space", "all", ("full", "dp+tp", "dp+pp", "3d"))),
        ({"space": "dp", "micro_batches": 8}, ("batch", (8, "dp"), 4)),
    ):
        with refused(*refusal):
            make_plan(MODELS["tied"], CPU, 8, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        tp.plan(model="gpt2", cluster="cpu-4", batch=8, memory="2GiB", pipeline=5)
    assert "\n" not in str(caught.value)


def test_compiled_programs_pass_their_checks() -> None:
    found = make_plan(MODELS["llama"], CPU, 8, pipeline=4, micro_batches=2).plan
    assert found is not None
    programs = compile_plan(found)
    assert check(programs) == []
    assert [program.rank for program in programs] == [0, 1, 2, 3]
    assert all(memory_walk(program).peak_bytes > 0 for program in programs)
