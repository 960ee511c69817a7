"""Products in fewer bits and gradients in float32 as options of the joint problem: what plans say, take and hold."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.execution.prediction.evaluate_plan import predict_from_saved_costs
from trainplan.execution.prediction.overlap import layout_of, predict_overlapped
from trainplan.execution.runtimes.export_common import ENDS
from trainplan.formulations.joint.within_runtime import with_gradients
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import problem
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.api import plan_verbs

SMALL: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 4096}
LLAMA = load_model("llama3-8b", 256, "bfloat16").with_fields(**SMALL, num_attention_heads=8, num_key_value_heads=4, head_dim=64)
CLUSTER = load_cluster("b200:8")
LAYOUTS: dict[str, dict[str, Any]] = {
    "copies": {"zero": "0", "tp": 2, "pipeline": 1},
    "zero1": {"zero": "1", "tp": 2, "pipeline": 2, "cuts": ["block2.attention"]},
    "zero3": {"zero": "3", "tp": 1, "pipeline": 1},
}


def planned(layout: dict[str, Any], **options: Any) -> Plan:
    answer = tp.plan(
        model=LLAMA,
        cluster=CLUSTER,
        batch=32,
        memory="60GiB",
        comparisons=False,
        micro_batches=4,
        forbid=["ckpt"],
        **layout,
        **options,
    )
    assert answer.plan is not None and answer.plan.predicted is not None and answer.step_ns is not None
    assert answer.answer.bound_ns is not None and answer.answer.bound_ns <= answer.step_ns
    return answer.plan


def weights_of(plan: Plan, tp: int, stage: int) -> list[int]:
    """Numbers of the weights of a rank's sub-layers between embedding and head."""
    units = plan.planned_model().units[plan.stages[stage].first_unit : plan.stages[stage].last_unit + 1]
    return [unit.sublayer.parameter_count(unit.sublayer.degree(tp)) for unit in units if unit.kind not in ENDS]


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_a_plan_has_its_recipe_and_holds_copies_of_its_weights(layout: str, name: str) -> None:
    """Compared with the same plan in the model's dtype each rank holds the copies of its layers' weights that the recipe has,
    in analyses and tables alike; ZeRO-3 of the two that are gathered. It takes less time, and carries what it takes."""
    plain, plan = planned(LAYOUTS[layout]), planned(LAYOUTS[layout], precision=name)
    assert {unit.precision for unit in plan.units if unit.name not in ENDS} == {name}
    assert {unit.precision for unit in plan.units if unit.name in ENDS} == {"model"}
    assert plan.strategies() == plain.strategies() and plan.predicted is not None and plain.predicted is not None
    assert layout_of(plan).recipe is RECIPES[name]
    zero, degree = plan.units[0].strategy.zero_stage, plan.units[0].strategy.degree("tp")
    for stage in range(len(plan.stages)):
        weights = weights_of(plan, degree, stage)
        held = sum(weights) if zero < 3 else sum(sorted(weights)[-2:])
        more = held * RECIPES[name].copied_bytes(2, in_place=zero > 0)
        rank = plan.stages[stage].ranks[0]
        assert plan.predicted.peak_bytes[rank] - plain.predicted.peak_bytes[rank] == pytest.approx(more, abs=1)
        assert plan.claim is not None and plain.claim is not None
    carried = predict_from_saved_costs(plan, plan.predicted.durations)
    assert (carried.step_ns, list(carried.peak_bytes)) == (plan.predicted.step_ns, plan.predicted.peak_bytes)
    assert carried.step_ns == predict_overlapped(plan, CLUSTER).step_ns
    assert load_plan(plan.model_dump(mode="json")) == plan


@pytest.mark.parametrize("name", ["fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_tables_have_as_much_memory_as_analyses(layout: str, name: str) -> None:
    """The memory that a solution needs more by the problem's tables is what its plan holds more, rounded up unit by unit."""
    joint, peaks, analysed = problem("joint"), [], []
    for options in ({}, {"precision": name}):
        plan = planned(LAYOUTS[layout], **options)
        instance = tp.build(
            "joint", model=LLAMA, cluster=CLUSTER, batch=32, memory="60GiB", micro_batches=4, **LAYOUTS[layout], **options
        )
        wide = plan.changed(units=[unit.changed(precision="model") for unit in plan.units])
        peaks.append(joint.evaluate(instance, joint.refinement.solution_of_plan(instance, wide)).peak_bytes)
        analysed.append(max(plan.predicted.peak_bytes))  # type: ignore[union-attr]
    assert peaks[1] - peaks[0] == pytest.approx(analysed[1] - analysed[0], abs=len(LLAMA.units))


@pytest.mark.parametrize("cost_model", ["streams", "executed"])
@pytest.mark.parametrize("layout", ["copies", "zero1", "zero3"])
def test_gradients_in_float32_take_twice_the_bytes(layout: str, cost_model: str) -> None:
    """For each number 4 bytes are kept and reduced, not 2: by the plan, the layout that the lanes have, and the
    simulations."""
    plain, wide = (planned(LAYOUTS[layout], gradients=word, cost_model=cost_model) for word in ("model", "float32"))
    assert (plain.precision.gradients, wide.precision.gradients) == ("model", "float32")
    assert [layout_of(plan).framework.gradient_bytes for plan in (plain, wide)] == [2, 4]
    assert plain.predicted is not None and wide.predicted is not None
    assert wide.predicted.step_ns > plain.predicted.step_ns
    more = max(wide.predicted.peak_bytes) - max(plain.predicted.peak_bytes)
    strategy = wide.units[0].strategy
    numbers = sum(weights_of(wide, strategy.degree("tp"), 0)) // (strategy.degree("sdp") if strategy.shares_gradients else 1)
    assert more >= 2 * numbers, "those of its layers, and of the embedding"


def test_gradients_in_float32_need_masters_unless_all_is_in_float32() -> None:
    requested: dict[str, Any] = {"model": LLAMA, "cluster": CLUSTER, "batch": 32, "gradients": "float32"}
    whole = {**requested, "model": load_model("gpt2", 256, "float32").with_fields(n_layer=2), "comparisons": False}
    plans = [tp.plan(**{**whole, "gradients": word}).plan for word in ("float32", "model")]
    assert plans[0] is not None and plans[1] is not None and plans[0].content == plans[1].content
    with refused("gradients", problem="float32", fix="float32"):
        tp.plan(**{**requested, "model": load_model("gpt2", 256, "float64")}, cost_model="executed")
    with refused("gradients", problem=("float32", "host"), fix=("model", "--host")):
        tp.plan(**requested, cost_model="executed", host="all")


def test_products_that_a_recipe_cannot_cut_into_blocks_are_left_out() -> None:
    """With 4 tensor-parallel ranks one has 320 numbers of the feed-forward network, no blocks of 128."""
    model = LLAMA.with_fields(intermediate_size=1280)
    requested: dict[str, Any] = {"model": model, "cluster": CLUSTER, "batch": 32, "memory": "60GiB", "pipeline": 1}
    degrees = {}
    for name in ("mxfp8", "fp8-blockwise"):
        instance = tp.build("joint", **requested, precision=name)
        options = (option for configuration in instance.configurations for option in configuration.tables[0].units[1].options)
        degrees[name] = {option.strategy.degree("tp") for option in options if option.strategy is not None}
    assert degrees == {"mxfp8": {1, 2, 4}, "fp8-blockwise": {1, 2}}
    with refused("precision", problem=("fp8-blockwise", 128), fix=("model", "--tp", "--micro-batches")):
        tp.plan(**requested, precision="fp8-blockwise", tp=4)


def test_nvfp4_is_of_models_in_bfloat16() -> None:
    half = load_model("llama3-8b", 256, "float16").with_fields(**SMALL)
    requested: dict[str, Any] = {"model": half, "cluster": CLUSTER, "batch": 32, "memory": "60GiB"}
    with refused("precision", problem=("nvfp4", "bfloat16", "float16"), fix="--dtype bfloat16"):
        tp.plan(**requested, precision="nvfp4")
    plan = tp.plan(**requested, precision="mxfp8", comparisons=False).plan
    assert plan is not None and plan.units[1].precision == "mxfp8"


def test_files_that_say_fp8_are_read() -> None:
    """As they were written before there were other recipes."""
    plan = planned(LAYOUTS["copies"], precision="fp8").model_dump(mode="json")
    assert [unit.get("precision") for unit in plan["units"]] == [None, *["fp8"] * 8, None]
    assert load_plan(plan).units[1].precision == "fp8"
    plan["units"][1]["precision"] = "fp7"
    with refused("units[1].precision", problem="fp7", fix="mxfp8"):
        load_plan(plan)


@pytest.mark.parametrize(
    ("runtime", "dtype", "requested", "gradients"),
    [
        ("megatron", "bfloat16", None, "float32"),  # megatron/training/arguments.py: unless --grad-reduce-in-bf16 is given
        ("megatron", "bfloat16", "model", "model"),
        ("megatron", "float16", None, "model"),
        ("megatron", "float16", "float32", "float32"),
        ("megatron", "float32", None, "model"),
        ("megatron-bridge", "bfloat16", None, "float32"),  # MixedPrecisionConfig.grad_reduce_in_fp32
        ("torchtitan", "bfloat16", "model", "float32"),  # mixed_precision_reduce takes nothing else
        ("accelerate", "bfloat16", None, "model"),
        (None, "bfloat16", None, "model"),
    ],
)
def test_gradients_are_in_the_dtype_of_the_runtime(
    runtime: str | None, dtype: str, requested: str | None, gradients: str
) -> None:
    model = load_model("llama3-8b", 256, dtype).with_fields(**SMALL, num_attention_heads=8, num_key_value_heads=4, head_dim=64)
    request = Request(model, CLUSTER, 32, options={"for_": runtime, "gradients": requested})
    assert with_gradients(request).precision.gradients == gradients


def test_without_its_runtime_a_plan_is_priced_with_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the runtime would seem to cost what the wider gradients do."""
    seen = list[Request]()
    monkeypatch.setattr(plan_verbs, "priced", lambda best, relaxed, *_, **__: seen.append(relaxed["for_"][1]()) or best)
    answer = tp.plan(model=LLAMA, cluster=CLUSTER, batch=32, for_="megatron", pipeline=1, gap=0.5)
    assert answer.plan is not None and answer.plan.precision.gradients == "float32"
    assert [(entry.options["for_"], entry.options["gradients"]) for entry in seen] == [(None, "float32")]


def test_megatrons_export_holds_and_says_the_gradients_of_its_plan() -> None:
    for requested, flag in ((None, "--accumulate-allreduce-grads-in-fp32"), ("model", "--grad-reduce-in-bf16")):
        answer = tp.plan(
            model=LLAMA, cluster=CLUSTER, batch=32, for_="megatron", gradients=requested, gap=0.5, comparisons=False
        )
        assert answer.plan is not None and answer.plan.predicted is not None
        exported = tp.export(answer.plan, "megatron")
        assert flag in exported.settings["precision"]
        assert exported.settings["peak_bytes"] == answer.plan.predicted.most_bytes
