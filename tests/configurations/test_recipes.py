"""Python files that configure a run, read by their syntax trees: recipes of Megatron-Bridge, and torchtitan's registries.

`torchtitan/config_registry-2026-02.py.txt` and `-2026-08.py.txt` are `torchtitan/models/llama3/config_registry.py` of its
commits 9810191bb and b5bcd76c6 (BSD 3-Clause, Meta Platforms).
"""

from __future__ import annotations

import ast
import copy
import random
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.python.objects import ConstructedObject, UnreadExpression
from trainplan.execution.launch_files.python.program import Program
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.megatron_bridge import recipes as megatron_bridge_recipes
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

HERE = Path(__file__).parent / "torchtitan"
OVERRIDE = """train:
  global_batch_size: 16
  micro_batch_size: 1
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
"""
SCRIPT = """import os
from megatron.bridge.recipes.llama import llama32_1b_pretrain_config
from megatron.bridge.training.pretrain import pretrain

TP = int(os.environ.get("TP", 2))

def main() -> None:
    cfg = llama32_1b_pretrain_config()
    cfg.model.tensor_model_parallel_size = TP
    cfg.model.seq_length = 4 * 1024
    cfg.dataset.seq_length = cfg.model.seq_length
    cfg.train.global_batch_size = 16
    cfg.scheduler.lr_warmup_iters = 2
    pretrain(config=cfg, forward_step_func=None)

if __name__ == "__main__":
    main()
"""
FIELDS = (
    "model", "tp", "cp", "pp", "chunks", "samples", "micro_samples", "sequence", "zero", "dtype", "precision", "recipe",
    "recomputed", "sequence_parallel", "optimizer",
)  # fmt: skip


def fields(configuration: RunConfiguration) -> dict[str, Any]:
    return {name: getattr(configuration, name) for name in FIELDS}


def of(folder: Path, text: str, name: str = "run.py", **variables: str) -> RunConfiguration:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return read(path, None, UserSettings({key.replace("__", "."): value for key, value in variables.items()}))


# --- Overrides of Megatron-Bridge's recipes.


def test_overrides_without_sizes_are_of_the_model_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "override.yaml"
    path.write_text(OVERRIDE)
    judged = tp.import_run(path, model="llama3.2-1b", cluster="h100:8", search=False)
    strategy = judged.plan.units[1].strategy
    assert (strategy.degree("tp"), strategy.data_degree, judged.plan.depth) == (2, 4, 1)
    assert judged.plan.batch.global_samples == 16 and judged.plan.batch.micro_batches == 4
    model = judged.plan.planned_model()
    assert (model.name, model.sequence, model.dtype) == ("llama3.2-1b", 4096, "bfloat16")
    sources = {setting.key: setting.source for setting in judged.configuration.taken}
    assert sources["model.tensor_model_parallel_size"] == f"{path}:6" and sources["model.num_layers"] == "--model llama3.2-1b"
    assert sources["mixed_precision.bf16"] == "recipe llama32_1b_pretrain_config of Megatron-Bridge 0.3.1"
    assert any("llama32_1b_pretrain_config" in note for note in judged.configuration.notes)


def test_sequence_and_batch_of_a_recipe_that_nobody_names_are_requested(tmp_path: Path) -> None:
    """No recipe is of this model, and each recipe has its own sequence, batch and micro-batch: none is made up."""
    path, stated = tmp_path / "override.yaml", dict[str, int]()
    path.write_text("model: {tensor_model_parallel_size: 2}\nddp: {use_distributed_optimizer: false}\n")
    for option, value in [("sequence", 4096), ("micro_batch", 1), ("batch", 64)]:
        with refused(option, fix=("override.yaml", "--set recipe=NAME")):
            tp.import_run(path, model="mistral-7b", cluster="h100:8", search=False, **stated)
        stated[option] = value
    judged = tp.import_run(path, model="mistral-7b", cluster="h100:8", search=False, **stated)
    assert (judged.plan.batch.global_samples, judged.plan.batch.micro_batches) == (64, 16)
    assert not any(setting.key.endswith(("batch_size", "seq_length")) for setting in judged.configuration.taken)


def test_a_false_that_another_field_turns_on_is_named(tmp_path: Path) -> None:
    """Bridge turns the distributed optimizer on where either `ddp` or `optimizer` has it, as recipes have."""
    path = tmp_path / "override.yaml"
    path.write_text(OVERRIDE + "ddp: {use_distributed_optimizer: false}\n")
    judged = tp.import_run(path, model="llama3.2-1b", cluster="h100:8", search=False)
    assert judged.plan.units[1].strategy.zero_stage == 1
    note = next(one_note for one_note in judged.configuration.notes if "ddp.use_distributed_optimizer is false" in one_note)
    assert "optimizer.use_distributed_optimizer (recipe" in note and "give false for both" in note
    path.write_text(path.read_text() + "optimizer: {use_distributed_optimizer: false}\n")
    judged = tp.import_run(path, model="llama3.2-1b", cluster="h100:8", search=False)
    assert judged.plan.units[1].strategy.zero_stage == 0
    assert not any("is false, and" in one_note for one_note in judged.configuration.notes)


def test_overrides_without_sizes_or_a_model_say_what_to_give(tmp_path: Path) -> None:
    with refused("model.num_layers", fix=("--model", "--set recipe=llama2_7b_pretrain_config")):
        of(tmp_path, OVERRIDE, "override.yaml")


def test_yaml_script_and_command_line_of_one_recipe_are_one_run(tmp_path: Path) -> None:
    written = of(tmp_path, OVERRIDE, "override.yaml", recipe="llama32_1b")
    script = of(tmp_path, SCRIPT)
    words = ["--recipe", "llama32_1b_pretrain_config", "-tp", "2", "model.seq_length=4096", "++train.global_batch_size=16"]
    overrides = megatron_bridge_reader.of_overrides(words, "command", UserSettings())
    assert fields(written) == fields(script) == fields(overrides)
    assert fields(script)["model"] == "llama3.2-1b"
    line = next(setting.source for setting in script.taken if setting.key == "train.global_batch_size")
    assert line.endswith("run.py:12")


def test_a_recipe_is_what_its_source_sets(tmp_path: Path) -> None:
    """`llama3_70b_pretrain_config` of 0.3.1: TP=4, PP=4, VPP=5, CP=2, SP=True, with communication overlapped."""
    text = "from megatron.bridge.recipes.llama import llama3_70b_pretrain_config as base\ncfg = base()\n"
    made = of(tmp_path, text)
    assert (made.model, made.tp, made.pp, made.chunks, made.cp, made.sequence_parallel) == ("llama3-70b", 4, 4, 5, 2, True)
    assert (made.samples, made.micro_samples, made.sequence, made.zero) == (512, 1, 8192, 1)
    assert "tp-comm-overlap" in made.flags and made.dtype == "bfloat16" and made.precision.gradients == "float32"


@pytest.mark.parametrize("name", megatron_bridge_recipes.recipes())
def test_every_recipe_that_is_known_is_read(tmp_path: Path, name: str) -> None:
    made = of(tmp_path, f"from megatron.bridge.recipes.x import {name}\ncfg = {name}()\n")
    assert made.model is not None and made.dtype == "bfloat16" and made.samples and made.micro_samples
    assert not made.unknown and not {key for key in made.unread if key.startswith("model.")} - {"model.pipeline_dtype"}


def test_arithmetic_on_what_is_known_is_computed(tmp_path: Path) -> None:
    assert "TP = int" in SCRIPT and of(tmp_path, SCRIPT.replace("TP = int", "TP = 2 * int")).tp == 4


# What stands in SCRIPT, what a test writes in its place, and the field, the problem and the fix of the refusal.
LINE, RECIPE = "cfg.scheduler.lr_warmup_iters = 2", "llama32_1b_pretrain_config()"
WRITTEN = ("log", "YAML", "--set recipe=NAME")
OTHERWISE: list[tuple[str, str, str, Facts, Facts]] = [
    (
        'os.environ.get("TP", 2)', 'os.environ["TP"]', "model.tensor_model_parallel_size", "int(os.environ['TP'])",
        "--set model.tensor_model_parallel_size=VALUE",
    ),
    (
        "cfg.train.global_batch_size = 16", "cfg.train.global_batch_size = 16 * nodes", "train.global_batch_size", "16 * nodes",
        "--set train.global_batch_size=VALUE",
    ),
    (
        LINE, "if big: cfg.model.context_parallel_size = 2", "model.context_parallel_size", "big",
        "--set model.context_parallel_size=VALUE",
    ),
    (LINE, "apply(cfg)", "", "apply(cfg)", WRITTEN),
    (LINE, "for x in xs: cfg.model.cp_comm_type = x", "model.cp_comm_type", "xs", "--set model.cp_comm_type=VALUE"),
    (LINE, "cfg.model = make()", "model", "make(..)", "fields"),
    (LINE, "exec('cfg.model.x = 1')", "", "exec", "values"),
    (LINE, "[setattr(cfg.model, k, 1) for k in ks]", "", "setattr(cfg.model, k, 1)", WRITTEN),
    (LINE, "vars(cfg.model)['cp'] = 2", "", "vars(cfg.model)", WRITTEN),
    (LINE, "cfg.model.__dict__['context_parallel_size'] = 2", "", "__dict__", WRITTEN),
    (LINE, "cfg = cfg.clone()", "config", "llama32_1b_pretrain_config.clone", "file"),
    (LINE, "cfg.peft = LoRA(dim=8)", "peft", "dim", "adapters"),
    (LINE, "cfg.model.num_moe_experts = 8", "model.num_moe_experts", ("8", "experts"), "dense"),
    (
        LINE, "cfg.model.fine_grained_activation_offloading = True", "model.fine_grained_activation_offloading", "true",
        "false",
    ),
    (LINE, "cfg.optimizer.optimizer_cpu_offload = True", "optimizer.optimizer_cpu_offload", (), ()),
    (LINE, "cfg.model.rotary_bias = True", "model.rotary_bias", "true", ("--ignore model.rotary_bias", "model.rotary_base")),
    (RECIPE, "llama32_1b_sft_config()", "recipe", "llama32_1b_sft_config", ("llama2_7b_pretrain_config", "fine-tuning")),
    (RECIPE, "mixtral_8x7b_pretrain_config()", "recipe", ("mixtral_8x7b_pretrain_config", "experts", 8, 2), "dense"),
    (RECIPE, "my_own_pretrain_config()", "recipe", "my_own_pretrain_config", ("qwen3_8b_pretrain_config",)),
    (RECIPE, "load(1)", "config", "load", "file"),
    (
        "cfg.dataset.seq_length = cfg.model.seq_length", "cfg.dataset.seq_length = 2048", "dataset.seq_length",
        (2048, "model.seq_length", 4096), (),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "field", "problem", "fix"), OTHERWISE)
def test_what_bears_and_is_computed_or_planned_otherwise_is_refused(
    tmp_path: Path, old: str, new: str, field: str, problem: Facts, fix: Facts
) -> None:
    assert old in SCRIPT
    with refused(field, problem=problem, fix=fix):
        of(tmp_path, SCRIPT.replace(old, new))


def test_settings_say_what_a_file_computes(tmp_path: Path) -> None:
    text = SCRIPT.replace("TP = int", "TP = nodes * int")
    assert of(tmp_path, text, nodes="2").tp == 4
    assert of(tmp_path, text, model__tensor_model_parallel_size="8").tp == 8
    assert of(tmp_path, SCRIPT, TP="4").tp == 4


def test_arguments_of_recipes_before_0_3_are_what_they_set(tmp_path: Path) -> None:
    call = "llama3_8b_pretrain_config(tensor_model_parallel_size=4, sequence_parallel=True, global_batch_size=64, lr=1e-4)"
    made = of(tmp_path, f"from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\nx = {call}\n")
    assert (made.tp, made.sequence_parallel, made.samples, made.cp) == (4, True, 64, 2)
    wide = call.replace("lr=1e-4", "precision_config=MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False)")
    made = of(tmp_path, f"from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\nx = {wide}\n")
    assert (made.dtype, made.precision.gradients) == ("bfloat16", "model")
    again = call.replace("lr=1e-4", "enable_recompute=True")
    text = f"from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\nx = {again}\n"
    with refused("enable_recompute", where=f"{tmp_path / 'run.py'}:2", problem="true", fix="section"):
        of(tmp_path, text)


def test_precisions_are_read_by_name_and_by_field(tmp_path: Path) -> None:
    line = "cfg.scheduler.lr_warmup_iters = 2"
    named = of(tmp_path, SCRIPT.replace(line, 'cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"'))
    made = of(tmp_path, SCRIPT.replace(line, "cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()"))
    assert named.recipe == made.recipe == "fp8-current"
    half = of(tmp_path, SCRIPT.replace(line, "cfg.mixed_precision.grad_reduce_in_fp32 = False"))
    assert half.precision.gradients == "model" and half.dtype == "bfloat16"


def test_sections_instead_of_a_recipes_have_the_defaults_of_their_classes(tmp_path: Path) -> None:
    line = "cfg.scheduler.lr_warmup_iters = 2"
    assert of(tmp_path, SCRIPT).zero == 1
    replaced = "cfg.ddp = DistributedDataParallelConfig(overlap_grad_reduce=True)"  # whose sharing the optimizer turns on again
    assert of(tmp_path, SCRIPT.replace(line, replaced)).zero == 1
    text = """from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
cfg = llama3_70b_pretrain_config()
cfg.model.virtual_pipeline_model_parallel_size = None
"""
    made = of(tmp_path, text)
    assert (made.pp, made.chunks, made.dtype) == (4, 1, "bfloat16")
    text += "cfg.mixed_precision = None\n"  # of the checkpoint's dtype then, and stepped as the optimizer says
    with refused("mixed_precision", fix=("bf16_mixed", "--set mixed_precision.bf16=true")):
        of(tmp_path, text)
    assert of(tmp_path, text, **{"mixed_precision.bf16": "true"}).dtype == "bfloat16"


def test_a_whole_container_stands_on_no_recipe(tmp_path: Path) -> None:
    text = """from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider(load_weights=False)
model.tensor_model_parallel_size = 2
model.seq_length = 2048
cfg = ConfigContainer(
    model=model, train=TrainingConfig(global_batch_size=8, micro_batch_size=1), mixed_precision="bf16_mixed",
)
"""
    made = of(tmp_path, text)
    assert (made.model, made.tp, made.cp, made.zero, made.samples, made.dtype) == ("llama3.2-1b", 2, 1, 0, 8, "bfloat16")
    assert not made.notes
    other = text.replace("meta-llama/Llama-3.2-1B", "me/mine")
    with refused("model", where=f"{tmp_path / 'run.py'}:3", problem="me/mine", fix="--model"):
        of(tmp_path, other)


def test_copies_are_other_configurations(tmp_path: Path) -> None:
    line = "cfg.scheduler.lr_warmup_iters = 2\n"
    text = SCRIPT.replace(line, "old = cfg; cfg = copy.deepcopy(cfg); old.model.tensor_model_parallel_size = 8\n")
    assert of(tmp_path, "import copy\n" + text).tp == 2


def test_a_file_of_several_functions_needs_the_name_of_one(tmp_path: Path) -> None:
    text = """from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
def small():
    cfg = llama3_8b_pretrain_config()
    cfg.train.global_batch_size = 8
    return cfg
def large():
    cfg = small()
    cfg.train.global_batch_size = 64
    return cfg
"""
    with refused("config", problem=2, fix=("--set config=NAME", "small, large")):
        of(tmp_path, text)
    assert [of(tmp_path, text, config=name).samples for name in ("small", "large")] == [8, 64]


def test_files_of_other_tools_are_refused_by_name(tmp_path: Path) -> None:
    nemo = "from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n"
    with refused("", problem=("Python", "NeMo"), fix=("log", "Megatron-LM")):
        of(tmp_path, nemo)
    with refused("", problem=("Python", "run"), fix=("Megatron-Bridge", "torchtitan", "config_registry.py")):
        of(tmp_path, "print(1)\n")
    with refused("", problem=("Python", "invalid syntax", "line 1"), fix="Python"):
        of(tmp_path, "def (:\n")


@pytest.mark.parametrize(
    ("more", "field", "expected"),
    [
        ("comm_overlap:\n  overlap_grad_reduce: false\n", "flags", False),
        ("dist:\n  use_megatron_fsdp: true\nddp:\n  data_parallel_sharding_strategy: optim_grads_params\n", "zero", 3),
        ("ddp:\n  use_distributed_optimizer: false\n", "zero", 1),  # which the recipe's optimizer turns on again
        ("ddp:\n  use_distributed_optimizer: false\noptimizer:\n  use_distributed_optimizer: false\n", "zero", 0),
        ("mixed_precision: fp16_mixed\n", "dtype", "float16"),
        ("mixed_precision:\n  grad_reduce_in_fp32: false\n", "dtype", "bfloat16"),
        ("optimizer:\n  optimizer: dist_muon\n", "optimizer", "muon"),
    ],
)
def test_sections_override_what_a_recipe_sets(tmp_path: Path, more: str, field: str, expected: Any) -> None:
    made = of(tmp_path, OVERRIDE + more, "override.yaml", recipe="llama32_1b")
    value = "--overlap-grad-reduce" in made.flags if field == "flags" else getattr(made, field)
    assert value == expected


@pytest.mark.parametrize(
    ("more", "field", "problem", "fix"),
    [
        ("peft:\n  dim: 8\n", "peft", "dim", "adapters"),
        (
            "optimizer:\n  use_precision_aware_optimizer: true\n  exp_avg_dtype: bf16\n",
            "optimizer.exp_avg_dtype",
            "bf16",
            "torch.float32",
        ),
        (
            "mixed_precision:\n  fp8_dot_product_attention: true\n",
            "mixed_precision.fp8_dot_product_attention",
            "true",
            "false",
        ),
        ("dist:\n  use_tp_pp_dp_mapping: true\n", "dist.use_tp_pp_dp_mapping", "true", "false"),
        ("dataset:\n  sequence_length: 2048\n", "dataset.sequence_length", (2048, "model.seq_length", 4096), ()),
    ],
)
def test_documented_fields_that_no_plan_has_are_refused(
    tmp_path: Path, more: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, where=tmp_path / "override.yaml", problem=problem, fix=fix):
        of(tmp_path, OVERRIDE + more, "override.yaml", recipe="llama32_1b")


# --- Scripts that start a run of torchtitan or Megatron-Bridge.

LAUNCH = """CONFIG_FILE=${CONFIG_FILE:-"./llama3_8b.toml"}
torchrun --nproc_per_node=8 --rdzv_backend c10d --role rank --tee 3 \\
-m torchtitan.train --job.config_file ${CONFIG_FILE} --training.tensor_parallel_degree 2 --training.compile
"""


def test_a_script_of_torchtitan_is_its_file_with_what_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "llama3_8b.toml").write_text((HERE / "llama3_8b-2024-2.toml").read_text())
    made = of(tmp_path, LAUNCH, "run.sh")
    assert (made.runtime, made.model, made.tp, made.flags, made.devices) == ("torchtitan", "llama3-8b", 2, "compile", 8)
    sources = {setting.key: setting.source for setting in made.taken}
    assert sources["training.tensor_parallel_degree"].startswith(f"{tmp_path}/run.sh:")
    assert sources["training.seq_len"].startswith(f"{tmp_path}/llama3_8b.toml:")
    assert of(tmp_path, LAUNCH.replace("--training.compile", "--compile.no-enable"), "run.sh").flags == ""
    with refused("--job.config_file", problem="other.toml", fix="--set section.key=VALUE"):
        of(tmp_path, LAUNCH, "run.sh", CONFIG_FILE="other.toml")
    newer = LAUNCH.replace("--job.config_file ${CONFIG_FILE}", "--module llama3 --config llama3_8b")
    with refused("", problem=("torchtitan", "run.sh:2"), fix=("TOML", "config_registry.py", "--set config=llama3_8b")):
        of(tmp_path, newer, "run.sh")


def test_a_script_of_a_recipe_is_the_recipe_with_what_overrides_it(tmp_path: Path) -> None:
    words = "--recipe llama32_1b_pretrain_config model.seq_length=4096 model.tensor_model_parallel_size=2"
    text = f"torchrun --nproc_per_node 8 scripts/training/run_recipe.py {words} train.global_batch_size=16\n"
    made = of(tmp_path, text, "run.sh")
    assert fields(made) == fields(of(tmp_path, SCRIPT)) and made.devices == 8


# --- torchtitan's registries.


@pytest.mark.parametrize("when", ["2026-02", "2026-08"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3_8b", ("llama3-8b", 1, 1, 8192, None, "modules", "")),
        ("llama3_70b", ("llama3-70b", 8, 8, 8192, None, "full", "")),
        ("llama3_405b", ("llama3-405b", 8, 2, 8192, "fp8-current", "full", "compile")),
    ],
)
def test_registries_are_read_as_their_toml_files_were(tmp_path: Path, when: str, name: str, expected: Any) -> None:
    text = (HERE / f"config_registry-{when}.py.txt").read_text()
    made = of(tmp_path, text, "llama3/config_registry.py", config=name)
    compiled, _, gathered = made.flags.partition(" ")
    found = (made.model, made.tp, made.micro_samples, made.sequence, made.recipe, made.recomputed.of, compiled)
    assert gathered == "enable_fsdp_float8_all_gather" * (name == "llama3_405b" and when == "2026-02")
    assert found == expected and made.accumulation == 1 and not made.unknown
    assert made.buffers.loss == ("chunked" if when == "2026-08" else None)
    old = read(HERE / f"{name}-2025-2.toml")
    for field in ("tp", "cp", "pp", "zero", "sequence", "recomputed", "recipe", "precision", "schedule"):
        assert getattr(made, field) == getattr(old, field), field
    assert compiled == old.flags.partition(" ")[0]


def test_registries_say_which_configurations_they_have(tmp_path: Path) -> None:
    text = (HERE / "config_registry-2026-08.py.txt").read_text()
    with refused("config", problem=14, fix=("--set config=NAME", "llama3_debugmodel", "llama3_debugmodel_varlen_attn")):
        of(tmp_path, text, "llama3/config_registry.py")
    for name, converter in (
        ("llama3_8b_first_85_pct_layers_nvfp4", "NVFP4LinearConverter"),
        ("llama3_debugmodel_float8_emulate_lora", "LoRAConverter"),
    ):
        with refused("converters", problem=converter, fix=("Float8LinearConverter", "MXFP8LinearConverter")):
            of(tmp_path, text, "llama3/config_registry.py", config=name)


def test_batches_in_tokens_are_batches_in_samples(tmp_path: Path) -> None:
    training = "training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096"
    text = f"""from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer
def mine():
    return Trainer.Config(model_spec=model_registry("8B"), {training}, num_tokens_per_train_step=256 * 4096),
        parallelism=ParallelismConfig(pipeline_parallel_degree=2, num_pp_microbatches=4), activation_checkpoint=None)
"""
    made = of(tmp_path, text)
    assert (made.model, made.micro_samples, made.flushed, made.samples, made.sequence) == ("qwen3-8b", 2, 4, 256, 4096)
    assert made.recomputed.of == "none"
    with refused("training.num_tokens_per_microbatch_per_dp_rank", problem=6000, fix="max_context_length = 4096"):
        of(tmp_path, text.replace("2 * 4096", "6000"))
    with refused("training.max_context_length", problem="tokens", fix="--set training.max_context_length=VALUE"):
        of(tmp_path, text.replace("length=4096", "length=tokens"))
    assert of(tmp_path, text.replace("length=4096", "length=tokens"), tokens="8192").micro_samples == 1


# --- No file is run, no wrong value is taken.

NUMBERS = st.integers(-3, 9)
NAMES = ("a", "b", "n")


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """An expression over a few names and fields."""
    kinds = ["number", "name", "field"] + ["sum", "chosen", "call"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "number":
        return str(draw(NUMBERS))
    if kind == "name":
        return draw(st.sampled_from(NAMES))
    if kind == "field":
        return f"cfg.model.{draw(st.sampled_from(NAMES))}"
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if kind == "sum":
        return f"({left} {draw(st.sampled_from(['+', '-', '*', '//']))} {right})"
    if kind == "chosen":
        return f"({left} if {draw(conditions())} else {right})"
    return f"{draw(st.sampled_from(['max', 'min', 'twice', 'unknown']))}({left}, {right})"


@st.composite
def conditions(draw: st.DrawFn) -> str:
    sign = draw(st.sampled_from(["==", "<", ">=", "!="]))
    return f"{draw(st.sampled_from(['a', 'b', 'cfg.model.a', 'unknown(1, 2)']))} {sign} {draw(NUMBERS)}"


@st.composite
def statements(draw: st.DrawFn, depth: int = 2) -> list[str]:
    """Lines that assign, branch, repeat and call."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                ["name", "field", "add", "alias", "copy", "dict", "lambda", "listed", "star", "either", "inner"]
                + ["if", "for", "with"] * (depth > 0)
            )
        )
        value, name = draw(expressions()), draw(st.sampled_from(NAMES))
        inner = ["    " + line for line in draw(statements(depth - 1))] if kind in ("if", "for", "with") else []
        match kind:
            case "name":
                lines.append(f"{name} = {value}")
            case "field":
                lines.append(f"cfg.model.{name} = {value}")
            case "add":
                lines.append(f"cfg.model.{name} {draw(st.sampled_from(['+=', '*=']))} {value}")
            case "alias":
                lines += ["part = cfg.model", f"part.{name} = {value}"]
            case "copy":
                lines += ["other = copy.deepcopy(cfg)", f"other.model.{name} = {value}"]
            case "dict":
                lines += [f"d = {{'a': {value}}}", f"d.update({{'a': {draw(NUMBERS)}}})", f"cfg.model.{name} = d['a']"]
            case "lambda":
                lines += [f"f = lambda c: setattr(c.model, {name!r}, {value})", "f(cfg)"]
            case "listed":
                lines.append(f"[setattr(cfg.model, {name!r}, v) for v in [{value}]]")
            case "star":
                lines.append(f"*rest, cfg.model.{name} = [1, {value}]")
            case "either":
                lines.append(f"unknown(1, 2) > {draw(NUMBERS)} and setattr(cfg.model, {name!r}, {value})")
            case "inner":
                lines += ["def inner():", f"    cfg.model.{name} = {value}", "    return n", f"n = {draw(NUMBERS)}", "inner()"]
            case "if":
                lines += [f"if {draw(conditions())}:", *inner, "else:", f"    cfg.model.{name} = {value}"]
            case "for":
                lines += [f"for n in {draw(st.sampled_from(['range(3)', '[1, 2]', 'many()']))}:", *inner]
            case "with":
                lines += ["try:", *inner, "except ArithmeticError:", f"    cfg.model.{name} = 1"]
    return lines


class Section(types.SimpleNamespace):
    """A section whose fields are 0 until something is assigned to them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


@settings(max_examples=200, deadline=None)
@given(statements(), st.integers(0, 1))
def test_values_are_those_that_python_finds_or_none(lines: list[str], returned: int) -> None:
    """In random programs, which are run here, each value that is read is the one that running finds."""
    head = "import copy\nfrom elsewhere import unknown, many, recipe\ndef twice(x, y):\n    return 2 * x + y\n"
    body = ["cfg = recipe()", "a = b = n = 1", *lines]
    text = head + "def main():\n" + "".join(f"    {line}\n" for line in body) + "    return cfg\ncfg = main()\n"
    cfg = types.SimpleNamespace(model=Section())
    elsewhere = {"unknown": lambda x, y: x * 7 + returned, "many": lambda: range(returned), "recipe": lambda: cfg, "copy": copy}
    names: dict[str, Any] = {**elsewhere}
    try:
        exec(text.replace("from elsewhere import unknown, many, recipe\n", ""), names)
    except ArithmeticError:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.py"
        path.write_text(text)
        program = Program(path, {})
    made = program.values["cfg"]
    if isinstance(made, UnreadExpression):
        return
    assert isinstance(made, ConstructedObject)
    if next(made.changes(), None) is not None:
        return
    model = made.fields.get("model")
    for name, value in {} if not isinstance(model, ConstructedObject) else model.fields.items():
        if not isinstance(value, UnreadExpression | ConstructedObject):
            assert value == getattr(cfg.model, name), text
    if isinstance(model, ConstructedObject) and not model.changed:
        for name in vars(cfg.model):
            assert name in model.fields, text


def mutated(text: str, seed: int) -> str:
    """A file with some of its parts replaced by others of it."""
    chance, tree = random.Random(seed), ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    blocks = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    for _ in range(chance.randint(1, 6)):
        block = chance.choice(blocks)
        index = chance.randrange(len(block))
        match chance.randrange(4):
            case 0 if len(block) > 1:
                del block[index]
            case 1:
                block.insert(index, copy.deepcopy(chance.choice(chance.choice(blocks))))
            case 2:
                parent = chance.choice([node for node in nodes if list(ast.iter_child_nodes(node))])
                for name, value in ast.iter_fields(parent):
                    if isinstance(value, ast.expr):
                        setattr(parent, name, copy.deepcopy(chance.choice(nodes)))
                        break
            case _:
                wrap = ast.If(copy.deepcopy(chance.choice(nodes)), [copy.deepcopy(chance.choice(block))], [])
                block.insert(index, wrap)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return text


@pytest.mark.parametrize("name", ["script", "2026-02", "2026-08"])
def test_mutated_files_are_read_or_refused_in_one_line_and_never_run(tmp_path: Path, name: str) -> None:
    touched = tmp_path / "touched"
    poison = f"import os\nos.system('touch {touched}')\nopen({str(touched)!r}, 'w')\n__import__('os').mkdir({str(touched)!r})\n"
    text = poison + (SCRIPT if name == "script" else (HERE / f"config_registry-{name}.py.txt").read_text())
    path = tmp_path / "llama3" / "run.py"
    path.parent.mkdir()
    read_ones = 0
    for seed in range(300 if name == "script" else 60):
        path.write_text(mutated(text, seed))
        try:
            read(path, None, UserSettings({} if name == "script" else {"config": "llama3_8b"}))
            read_ones += 1
        except InputError as error:
            assert "\n" not in str(error)
    assert read_ones and not touched.exists()


# --- Recipes as the project writes them.

OWN = """import os
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer

def llama3_8b_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.tokenizer.tokenizer_model = "meta-llama/Meta-Llama-3-8B"
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = False
    cfg.train.global_batch_size = 512
    cfg.mixed_precision = "bf16_mixed"
    if int(os.environ.get("USE_FP8", "0")):
        cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    return cfg
"""


def test_a_recipe_on_what_all_have_is_a_recipe(tmp_path: Path) -> None:
    """Fields that the recipe does not set have the common defaults: micro-batches of two, and gradients in float32; the length
    is the model's."""
    made = of(tmp_path, OWN)
    assert (made.model, made.cp, made.samples, made.micro_samples) == ("llama3-8b", 2, 512, 2)
    assert (made.sequence, made.precision.gradients, made.zero) == (8192, "float32", 1)
    taken = {setting.key: setting.source for setting in made.taken}
    assert taken["train.micro_batch_size"].startswith("recipe of pre-training")
    assert taken["model.seq_length"] == "max_position_embeddings of llama3-8b"
    assert taken["mixed_precision.bf16"].endswith("run.py:13")
    assert of(tmp_path, OWN, USE_FP8="1").recipe == "fp8-current"


def test_a_recipe_of_fine_tuning_is_refused_as_one(tmp_path: Path) -> None:
    with refused("recipe", problem="_sft_common", fix=("llama2_7b_pretrain_config", "fine-tuning")):
        of(tmp_path, OWN.replace("_pretrain_common", "_sft_common"))


def test_fields_set_over_a_dictionary_are_set(tmp_path: Path) -> None:
    loop = """    for name, value in {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2}.items():
        setattr(cfg.model, name, value)
"""
    made = of(tmp_path, SCRIPT.replace("    cfg.train", loop + "    cfg.train", 1))
    assert (made.tp, made.pp) == (4, 2)


def test_what_a_recipe_sets_can_be_computed_with(tmp_path: Path) -> None:
    """But not where arguments may have changed it, nor where a section is another one."""
    twice = SCRIPT.replace("global_batch_size = 16", "global_batch_size *= 2")
    assert (
        of(tmp_path, twice).samples
        == 2 * megatron_bridge_recipes.usual("llama32_1b_pretrain_config")["train"]["global_batch_size"]
    )
    argued = twice.replace("pretrain_config()\n    cfg.model", "pretrain_config(global_batch_size=8)\n    cfg.model")
    with refused("train.global_batch_size"):
        of(tmp_path, argued)
    other = twice.replace("cfg.train.global", "cfg.train = TrainingConfig(micro_batch_size=1)\n    cfg.train.global")
    with refused("train.global_batch_size"):
        of(tmp_path, other)


def test_a_recipe_takes_samples_beyond_its_models_positions(tmp_path: Path) -> None:
    longer = SCRIPT.replace("llama32_1b", "llama3_8b").replace("4 * 1024", "64 * 1024")
    file = tmp_path / "run.py"
    file.write_text(longer)
    run = tp.import_run(file, cluster="h100-64", search=False)
    assert run.plan.planned_model().tokens == 65536
    assert any("beyond the model's 8192" in note for note in run.configuration.notes)


def test_a_dictionary_that_others_may_have_changed_is_not_followed(tmp_path: Path) -> None:
    loop = """    values = {"tensor_model_parallel_size": 4}
    load(values)
    for name, value in values.items():
        setattr(cfg.model, name, value)
"""
    text = SCRIPT.replace("    cfg.train", loop + "    cfg.train", 1)
    with refused("", where=f"{tmp_path / 'run.py'}:15", problem="setattr(cfg.model, name, value)", fix=WRITTEN):
        of(tmp_path, text)


def test_a_model_of_the_hub_in_a_container_has_the_precision_that_is_stated(tmp_path: Path) -> None:
    """AutoBridge takes the checkpoint's dtype, which no optimizer has masters for; and either of two switches shares states."""
    text = (
        "from megatron.bridge import AutoBridge\n"
        "from megatron.bridge.training.config import ConfigContainer, OptimizerConfig, TrainingConfig\n"
        "from megatron.bridge.training.pretrain import pretrain\n"
        "model = AutoBridge.from_hf_pretrained('meta-llama/Llama-3.1-8B').to_megatron_provider(load_weights=False)\n"
        "model.seq_length = 4096\n"
        "pretrain(ConfigContainer(model=model, train=TrainingConfig(global_batch_size=32, micro_batch_size=1),\n"
        "    optimizer=OptimizerConfig(use_distributed_optimizer=True){}), None)\n"
    )
    with refused("mixed_precision", fix=("bf16_mixed", "--set mixed_precision.bf16=true")):
        of(tmp_path, text.format(""))
    made = of(tmp_path, text.format(", mixed_precision='bf16_mixed'"))
    assert (made.model, made.dtype, made.precision.master, made.zero) == ("llama3.1-8b", "bfloat16", "float32", 1)
