"""Recipes of products and dtypes of gradients on their way through other runtimes: exported in their words, and read back."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from tests.runtimes.test_megatron_export import read_back
from trainplan.imported_runs.to_plan import read

FILES = {
    "megatron": "launch.sh",
    "megatron-bridge": "bridge.yaml",
    "torchtitan": "torchtitan.toml",
    "deepspeed": "ds_config.json",
}
MEGATRON: dict[str, dict[str, Any]] = {  # what its arguments are for each recipe
    "fp8": {"fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "fp8-current": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
    "fp8-blockwise": {"fp8_format": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
LAUNCH = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --bf16 --vocab-size 50304 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --use-distributed-optimizer"
)
SHORT = load_model("llama3-8b", 2048, "bfloat16").with_fields(num_hidden_layers=8)  # a quarter of its layers
BY_NAME = ("torchtitan", "deepspeed")  # whose files do not state the number of layers


def planned(runtime: str, **options: Any) -> Plan:
    model = "llama3-8b" if runtime in BY_NAME else SHORT
    requested: dict[str, Any] = {"model": model, "cluster": "b200:8", "batch": 64, "sequence": 2048, "comparisons": False}
    plan = tp.plan(**requested, for_=runtime, gap=0.05, forbid=["ckpt"], **options).plan
    assert plan is not None
    return plan


def exported(plan: Plan, runtime: str, folder: Path) -> Path:
    write_export(tp.export(plan, runtime), folder)
    return folder / FILES[runtime]


@pytest.mark.parametrize(
    ("runtime", "recipe"),
    [
        *((runtime, recipe) for runtime in FILES for recipe in ("model", *RUNTIMES[runtime].recipes)),
    ],
)
@pytest.mark.parametrize("gradients", ["model", "float32"])
def test_what_is_exported_is_read_back(runtime: str, recipe: str, gradients: str, tmp_path: Path) -> None:
    """With the same units, states and step. (torchtitan has gradients in float32 alone, and is planned with these.)"""
    plan = planned(runtime, precision=recipe, gradients=gradients, zero="3" if runtime in ("torchtitan", "deepspeed") else "1")
    export = tp.export(plan, runtime)
    assert plan.precision.gradients == ("float32" if runtime == "torchtitan" else gradients)
    options = {"batch": 64, "sequence": 2048, "model": "llama3-8b"} if runtime == "deepspeed" else {}
    back = tp.import_run(exported(plan, runtime, tmp_path), cluster="b200:8", search=False, **options)
    assert [unit.precision for unit in back.plan.units] == [unit.precision for unit in plan.units]
    assert back.plan.precision == (export.plan or plan).precision
    assert not back.configuration.unknown and not any("takes longer" in note for note in back.configuration.notes)
    if recipe != "model":
        assert back.step_ns == plan.predicted.step_ns  # type: ignore[union-attr]
        assert max(back.peak_bytes) == max(plan.predicted.peak_bytes)  # type: ignore[union-attr]


def test_torchtitan_is_reported_to_reduce_gradients_in_float32_where_the_plan_does_not() -> None:
    requested: dict[str, Any] = {"model": "llama3-8b", "cluster": "b200:8", "batch": 64, "sequence": 2048, "comparisons": False}
    plan = tp.plan(**requested, gap=0.05, forbid=["ckpt"], zero="3", pipeline=1, one_strategy=True, tp=1).plan
    assert plan is not None and plan.precision.gradients == "model"
    export = tp.export(plan, "torchtitan")
    assert any("gradients are reduced in float32" in line for line in export.left_out)
    assert export.plan is not None and export.plan.precision.gradients == "float32"


@pytest.mark.parametrize("recipe", list(MEGATRON))
@pytest.mark.parametrize("gradients", ["model", "float32"])
def test_megatron_gets_both_settings(recipe: str, gradients: str, tmp_path: Path) -> None:
    plan = planned("megatron", precision=recipe, gradients=gradients, zero="1", tp=2)
    exported(plan, "megatron", tmp_path)
    got = vars(read_back(tmp_path))
    about = {name: got[name] for name in got if name.startswith(("fp8", "fp4", "reuse"))}
    assert {name: value for name, value in about.items() if value not in (None, False)} == MEGATRON[recipe]
    assert (got["grad_reduce_in_bf16"], got["accumulate_allreduce_grads_in_fp32"]) == (
        gradients == "model",
        gradients != "model",
    )
    copies = planned("megatron", precision=recipe, zero="0", tp=2)
    words = tp.export(copies, "megatron").settings["precision"]
    assert "--fp8-param-gather" not in words, "which needs the distributed optimizer"


def test_bridge_gets_both_settings(tmp_path: Path) -> None:
    stated = yaml.safe_load(
        exported(planned("megatron-bridge", precision="mxfp8", zero="1"), "megatron-bridge", tmp_path).read_text()
    )
    about = {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "grad_reduce_in_fp32": True}
    assert about.items() <= stated["mixed_precision"].items()
    wide = planned("megatron-bridge", precision="nvfp4", gradients="model", zero="1")
    stated = tp.export(wide, "megatron-bridge").settings["config"]["mixed_precision"]
    assert {
        "fp4": "e2m1",
        "fp4_recipe": "nvfp4",
        "grad_reduce_in_fp32": False,
    }.items() <= stated.items() and "fp8" not in stated


def test_torchtitan_is_recognised_by_its_converters() -> None:
    """In its 0.3 there is no converter of whole tensors; 0.2 compiles no MXFP8 with tensor parallelism."""
    current = tp.export(planned("torchtitan", precision="fp8-current", zero="3", tp=1), "torchtitan")
    assert current.settings["toml"]["model"]["converters"] == ["quantize.linear.float8"]
    assert current.settings["toml"]["quantize.linear.float8"] == {"recipe_name": "tensorwise", "filter_fqns": ["output"]}
    assert "torchtitan_config.py" not in current.files and any("0.3 scales rows" in line for line in current.left_out)
    for degree, compiled in ((1, True), (2, False)):
        mx = tp.export(planned("torchtitan", precision="mxfp8", zero="3", tp=degree), "torchtitan")
        assert mx.settings["toml"]["model"]["converters"] == ["quantize.linear.mx"]
        assert ("compile" in mx.settings["toml"], any("torch.compile" in line for line in mx.left_out)) == (
            compiled,
            not compiled,
        )
        module = ast.parse(mx.files["torchtitan_config.py"])
        assert f"MXFP8LinearConverter.Config(fqns=['layers'], model_compile_enabled={compiled})" in ast.unparse(module)


@pytest.mark.parametrize(
    ("runtime", "recipe", "fix"),
    [
        ("deepspeed", "fp8", ("model",)),
        ("torch", "mxfp8", ("model",)),
        ("trainplan", "fp8", ("model",)),
        ("torchtitan", "nvfp4", ("model", "fp8-current", "mxfp8")),
    ],
)
def test_runtimes_refuse_recipes_by_name(runtime: str, recipe: str, fix: tuple[str, ...]) -> None:
    with refused("precision", problem=recipe, fix=(runtime, *fix)):
        planned(runtime, precision=recipe)


def test_exports_refuse_recipes_by_name() -> None:
    plan = planned("megatron", precision="nvfp4", zero="0", tp=1)
    with refused("units[1].precision", problem="nvfp4", fix=("'model'", "torchtitan")):
        tp.export(plan, "torchtitan")
    mixed = plan.changed(units=[*plan.units[:1], plan.units[1].changed(precision="mxfp8"), *plan.units[2:]])
    with refused("units[2].precision", problem="nvfp4", fix=("'mxfp8'", "Megatron-LM")):
        tp.export(mixed, "megatron")
    head = plan.changed(units=[*plan.units[:-1], plan.units[-1].changed(precision="nvfp4")])
    with refused("units[17].precision", problem="nvfp4", fix=("'model'", "Megatron-LM")):
        tp.export(head, "megatron")


@pytest.mark.parametrize(
    ("words", "recipe", "noted"),
    [
        ("--fp8-format hybrid", "fp8", "--fp8-param-gather"),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather", "fp8-current", ""),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8-blockwise", ""),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --first-last-layers-bf16", "mxfp8", "first and last layers"),
        ("--fp4-format e2m1", "nvfp4", ""),
        ("--fp8-recipe tensorwise", None, ""),
    ],
)
def test_arguments_are_read(words: str, recipe: str | None, noted: str, tmp_path: Path) -> None:
    path = tmp_path / "arguments"
    path.write_text(f"{LAUNCH} {words}")
    configuration = read(path)
    assert configuration.recipe == recipe and not configuration.unknown
    assert [noted in note for note in configuration.notes] == [True] * bool(noted)


@pytest.mark.parametrize(
    ("words", "field", "problem", "fix"),
    [
        (
            "--fp8-format hybrid --fp8-recipe custom",
            "--fp8-recipe",
            "custom",
            ("tensorwise", "delayed", "mxfp8", "blockwise"),
        ),
        ("--fp8-format hybrid --fp4-format e2m1", "--fp4-format", ("e2m1", "--fp8-format"), ()),
    ],
)
def test_arguments_that_no_plan_has_are_refused(words: str, field: str, problem: Facts, fix: Facts, tmp_path: Path) -> None:
    path = tmp_path / "arguments"
    path.write_text(f"{LAUNCH} {words}")
    with refused(field, problem=problem, fix=fix):
        read(path)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("bf16_mixed", None),
        ("bf16-with-fp8-delayed-scaling-mixed", "fp8"),
        ("bf16_with_fp8_current_scaling_mixed", "fp8-current"),
        ("nemotron_h_bf16_with_fp8_current_scaling_mixed", "fp8-current"),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", "fp8-blockwise"),
        ("fp16_with_fp8_subchannel_scaling_mixed", "fp8-blockwise"),
        ("bf16_with_mxfp8_mixed", "mxfp8"),
        ("bf16_with_nvfp4_mixed", "nvfp4"),
    ],
)
def test_names_of_megatron_bridge_are_read(name: str, recipe: str | None, tmp_path: Path) -> None:
    path = exported(planned("megatron-bridge", zero="1"), "megatron-bridge", tmp_path)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "mixed_precision": name}))
    configuration = read(path)
    assert configuration.recipe == recipe and configuration.dtype == ("float16" if name.startswith("fp16") else "bfloat16")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "mixed_precision": "bf16_with_fp7_mixed"}))
    with refused(
        "mixed_precision",
        problem="bf16_with_fp7_mixed",
        fix=("bf16_mixed", "fp16_mixed", "bf16_with_fp8_current_scaling_mixed"),
    ):
        read(path)


@pytest.mark.parametrize(
    ("backend", "recipe"),
    [("fp8_config:\n  backend: TE\n", "fp8"), ("fp8_config:\n  backend: AO\n", "fp8-current"), ("", "fp8")],
)
def test_accelerates_back_ends_are_read(backend: str, recipe: str, tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: fp8\n{backend}")
    assert read(path).recipe == recipe


def test_a_run_without_a_price_of_its_recipe_says_so(tmp_path: Path) -> None:
    """On devices without the recipe, and where nothing is known of their kernels by classes."""
    path = tmp_path / "arguments"
    path.write_text(f"{LAUNCH} --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather")
    with refused("--fp8-recipe", problem=("mxfp8", "H100-SXM5"), fix=("fp8", "fp8-current", "fp8-blockwise")):
        tp.import_run(path, cluster="h100:8", search=False)
    run = tp.import_run(path, cluster="a100-16", search=False)
    assert any("the plan's are in bfloat16, which takes longer" in note for note in run.configuration.notes)
    assert {unit.precision for unit in run.plan.units} == {"model"}
    priced = tp.import_run(path, cluster="b200:8", gap=0.05, time_limit=5)
    assert priced.best is not None and priced.within is not None and priced.gap is not None
    assert {unit.precision for unit in priced.best.plan.units[1:-1]} == {"mxfp8"}  # type: ignore[union-attr]
    assert priced.best.answer.bound_ns is not None and priced.best.answer.bound_ns <= priced.step_ns


def test_the_nearest_plan_keeps_what_the_runtime_has() -> None:
    """The recipe where there is one, and the dtype of gradients everywhere."""
    requested: dict[str, Any] = {"model": "llama3-8b", "cluster": "b200:8", "batch": 64, "sequence": 2048, "comparisons": False}
    answer = tp.certify(tp.plan(**requested, precision="nvfp4", gradients="float32", zero="3", gap=0.05))
    assert answer.plan is not None
    for runtime, recipe in (("megatron", "nvfp4"), ("torchtitan", "model"), ("deepspeed", "model")):
        found = tp.nearest_plan(answer.plan, runtime)
        assert found is not None and found.plan is not None
        assert {unit.precision for unit in found.plan.units[1:-1]} == {recipe}
        assert found.plan.precision.gradients == "float32"
