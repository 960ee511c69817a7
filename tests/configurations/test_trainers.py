"""Files of axolotl, LLaMA-Factory, transformers and Accelerate, most of them examples of these tools, as plans; and whose file
one is."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.documents import read_document
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.axolotl import reader as axolotl_reader
from trainplan.execution.runtimes.llama_factory import reader as llama_factory_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.profiling.base.errors import InputError, shown

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.detect import MARKS, tool_of
from trainplan.imported_runs.to_plan import read

HERE = Path(__file__).parent / "trainers"
# Of each file: model, strategy of a layer, samples of a step on 16 devices, micro-batches, tokens, masters, host, loss.
READ: dict[str, tuple[Any, ...]] = {
    "axolotl-hsdp-tp.yaml": ("llama3.1-8b", "dp2-sdp4-tp2", 8, 1, 2048, None, False, "fused"),
    "axolotl-72b.yml": ("qwen2.5-72b", "sdp16-ckpt", 256, 1, 8096, None, False, "fused"),
    "axolotl-liger-offload.yaml": ("llama3.1-8b", "sdp16-ckpt", 128, 4, 4096, None, True, "fused"),
    "llamafactory-zero3.yaml": ("qwen3-4b", "sdp16-ckpt", 32, 2, 2048, "float32", False, "full"),
    "llamafactory-launched.yaml": ("qwen3-8b", "dp16-ckpt", 128, 1, 2048, "float32", False, "full"),
    "llamafactory-fp8.yaml": ("llama3-8b", "sdp16-ckpt", 128, 8, 1024, "float32", False, "full"),
}


TRL = """model_name_or_path: Qwen/Qwen3-8B
dataset_name: trl-lib/Capybara
max_length: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
bf16: true
packing: true
use_liger_kernel: true
attn_implementation: kernels-community/flash-attn2
fsdp: full_shard auto_wrap
"""
WRAPPED = "fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"


def judged(path: Path, **more: Any) -> Any:
    return tp.import_run(path, **{"cluster": "h100:8x2", "search": False, **more})


@pytest.mark.parametrize("name", READ)
def test_examples_of_trainers_become_the_plans_that_they_run(name: str) -> None:
    run = judged(HERE / name, variables={"accelerate": "none"} if name == "llamafactory-launched.yaml" else None)
    plan, made = run.plan, run.configuration
    layer = next(unit for unit in plan.units if unit.name.endswith("ffn"))
    assert (
        plan.planned_model().name, str(layer.strategy), plan.batch.global_samples, plan.batch.micro_batches,
        made.sequence, plan.precision.master, plan.uses_host, made.buffers.loss,
    ) == READ[name]  # fmt: skip
    assert made.unknown == () and made.dtype == "bfloat16" == plan.planned_model().dtype
    sources = {setting.key: setting.source for setting in made.taken}
    key = "micro_batch_size" if name.startswith("axolotl") else "per_device_train_batch_size"
    line = next(n for n, text in enumerate((HERE / name).read_text().splitlines(), 1) if text.startswith(key))
    assert sources[key].endswith(f"{name}:{line}")


def test_axolotl_shares_no_states_without_fsdp(tmp_path: Path) -> None:
    """As its own code has it, which raises."""
    values = {"base_model": "some-org/some-8b", "sequence_len": 8192, "micro_batch_size": 1, "dp_shard_size": 4}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**values, "tensor_parallel_size": 2}))
    with refused("dp_shard_size", problem="4", fix="fsdp_config"):
        judged(tmp_path / "a.yaml", model="llama3-8b", cluster="h100:8")


@pytest.mark.parametrize("model", [None, "llama3-8b"])
def test_a_mixture_of_experts_is_refused_by_the_files_key(tmp_path: Path, model: str | None) -> None:
    path = tmp_path / "mixture.yml"
    text = (HERE / "axolotl-72b.yml").read_text()
    path.write_text(text.replace("Qwen/Qwen2.5-72B", "mistralai/Mixtral-8x7B-v0.1", 1))
    with refused("base_model", where=path, problem=("mistralai/Mixtral-8x7B-v0.1", "experts", 8, 2), fix="dense"):
        judged(path, model=model)


def test_a_batch_that_the_file_denies_is_refused() -> None:
    with refused("--batch", problem=(32, 16), fix=256):
        judged(HERE / "axolotl-72b.yml", batch=32)


def test_axolotl_cuts_samples_and_layers() -> None:
    run = judged(HERE / "axolotl-tp-cp.yaml", cluster="h100:8")
    assert {str(unit.strategy) for unit in run.plan.units} == {"sdp2-cp2-tp2"} and run.plan.batch.global_samples == 2


@pytest.mark.parametrize(
    ("name", "field", "problem", "fix"),
    [
        ("axolotl-8bit.yaml", "optimizer", "paged_adamw_8bit", "adamw_torch"),
        ("axolotl-lora.yml", "adapter", "lora", "false"),
        ("axolotl-dpo.yaml", "rl", "dpo", "false"),
        ("llamafactory-lora.yaml", "finetuning_type", "lora", "full"),
        ("llamafactory-galore.yaml", "use_galore", "true", "false"),
        ("llamafactory-1.yaml", "", ("LLaMA-Factory", "1", "dist_config"), ("Megatron-LM", "torchtitan")),
    ],
)
def test_runs_that_are_not_planned_are_refused_by_their_key(name: str, field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix) as error:
        read(HERE / name)
    assert "\n" not in error.value.command_text


def test_what_accelerate_launches_may_be_a_file_of_its_own() -> None:
    """LLaMA-Factory's example says so in a comment, and so do TRL's: without it, nothing is reported about several devices."""
    with refused("", where=HERE / "llamafactory-launched.yaml", fix=("--set accelerate=FILE", "--set accelerate=none")):
        judged(HERE / "llamafactory-launched.yaml")
    assert judged(HERE / "llamafactory-launched.yaml", cluster="h200:1").plan.world == 1
    both = read(HERE / "llamafactory-launched.yaml", user=UserSettings({"accelerate": "accelerate-fsdp2.yaml"}))
    assert (both.zero, both.micro_samples, both.sequence, both.devices) == (3, 8, 2048, 2)
    assert both.recomputed.of == "full" and both.precision.master == "float32"


def test_what_accelerate_launches_says_the_same_of_batches(tmp_path: Path) -> None:
    """DeepSpeed's part of Accelerate's file, whose accumulation transformers holds against its own."""
    launched: dict[str, Any] = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 16}
    launched["deepspeed_config"] = {"zero_stage": 3, "gradient_accumulation_steps": 8}
    (tmp_path / "zero3.yaml").write_text(yaml.safe_dump(launched))
    (tmp_path / "sft.yaml").write_text(TRL.replace("fsdp: full_shard auto_wrap\n", ""))
    run = judged(tmp_path / "sft.yaml", variables={"accelerate": "zero3.yaml"})
    assert (run.configuration.zero, run.plan.batch.micro_batches) == (3, 8)
    assert run.configuration.recomputed.of == "full" and not any("recomputed" in note for note in run.configuration.notes)
    (tmp_path / "zero3.yaml").write_text(yaml.safe_dump({**launched, "deepspeed_config": {"gradient_accumulation_steps": 1}}))
    with refused("gradient_accumulation_steps", problem=("8", "1", "zero3.yaml")):
        judged(tmp_path / "sft.yaml", variables={"accelerate": "zero3.yaml"})


ACCELERATE = {
    "accelerate-fsdp2.yaml": (3, None, None, 1, "bfloat16", ()),
    "accelerate-fsdp.yaml": (3, None, None, 1, "bfloat16", ()),
    "accelerate-tp-hsdp.yaml": (3, 2, 2, 2, "bfloat16", ()),
    "accelerate-offload.yaml": (3, None, None, 1, "bfloat16", ("optimizer", "parameters")),
}


@pytest.mark.parametrize("name", ACCELERATE)
def test_files_of_accelerate(name: str) -> None:
    made = read(HERE / name)
    copies = None if made.copies == 1 else made.copies
    assert (made.zero, copies, made.shard, made.tp, made.dtype, made.host) == ACCELERATE[name]
    assert made.unknown == ()


def test_accelerate_fills_in_what_deepspeeds_file_leaves_open(tmp_path: Path) -> None:
    """Stage 2 where none is stated; mixed_precision where the file has "auto"; what both say, unlike, is refused."""

    def written(more: dict[str, Any], ds: Any = None) -> Path:
        path = tmp_path / "a.yaml"
        values = {"distributed_type": "DEEPSPEED", "num_processes": 8, **more}
        if ds is not None:
            (tmp_path / "ds.json").write_text(json.dumps(ds))
            values["deepspeed_config"] = {"deepspeed_config_file": "ds.json"}
        path.write_text(yaml.safe_dump(values))
        return path

    inner = read(written({"mixed_precision": "bf16", "deepspeed_config": {"gradient_accumulation_steps": 4}}))
    assert (inner.zero, inner.accumulation, inner.dtype, inner.precision.master) == (2, 4, "bfloat16", "float32")
    zero = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    assert read(written({"mixed_precision": "fp16"}, zero)).dtype == "float16"
    assert read(written({}, zero)).dtype == "bfloat16"
    with refused("bf16.enabled", problem=("true", "mixed_precision", "false"), fix='"auto"'):
        read(written({"mixed_precision": "fp16"}, {**zero, "bf16": {"enabled": True}}))
    with refused("deepspeed_config.deepspeed_config_file", problem="gone.json", fix="a.yaml"):
        read(written({"deepspeed_config": {"deepspeed_config_file": "gone.json"}}))
    with refused("deepspeed_config.zero_stage", problem="2", fix="deepspeed_config_file"):
        read(written({"deepspeed_config": {"deepspeed_config_file": "ds.json", "zero_stage": 2}}))
    with refused("deepspeed_config.zero_stage", problem="4", fix=("0", "1", "2", "3")):
        read(written({"mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 4}}))


@pytest.mark.parametrize(
    ("text", "field", "problem", "fix"),
    [
        ("distributed_type: MEGATRON_LM\nmixed_precision: bf16", "distributed_type", "MEGATRON_LM", "Megatron-LM"),
        ("distributed_type: FSDP\nnum_processes: 8", "dtype", "mixed_precision", ("bfloat16", "mixed_precision")),
        (
            "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_auto_wrap_policy: NO_WRAP",
            "fsdp_config.fsdp_auto_wrap_policy",
            "NO_WRAP",
            "TRANSFORMER_BASED_WRAP",
        ),
        (
            "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2",
            "fsdp_config.fsdp_auto_wrap_policy",
            ("NO_WRAP", "1.15"),
            "TRANSFORMER_BASED_WRAP",
        ),
        (
            "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_reshard_after_forward: true",
            "fsdp_config.fsdp_reshard_after_forward",
            "true",
            ("FULL_SHARD", "SHARD_GRAD_OP"),
        ),
        ("distributed_type: TPU\nmixed_precision: bf16", "distributed_type", "TPU", ("MULTI_GPU", "FSDP", "DEEPSPEED")),
        (
            "distributed_type: MULTI_NPU\nmixed_precision: bf16",
            "distributed_type",
            "MULTI_NPU",
            ("MULTI_GPU", "FSDP", "DEEPSPEED"),
        ),
        ("mixed_precision: bf16\nnum_processes: 8", "distributed_type", (), ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")),
        (
            "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config: {backend: MSAMP, opt_level: O2}",
            "fp8_config.backend",
            "MSAMP",
            ("TE", "AO"),
        ),
        (
            "compute_environment: AMAZON_SAGEMAKER\nmixed_precision: bf16",
            "compute_environment",
            "AMAZON_SAGEMAKER",
            "LOCAL_MACHINE",
        ),
    ],
)
def test_what_accelerate_leaves_open_is_requested(tmp_path: Path, text: str, field: str, problem: Facts, fix: Facts) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with refused(field, problem=problem, fix=fix):
        read(tmp_path / "a.yaml")


def test_tables_of_accelerate_are_read_as_its_launcher_reads_them(tmp_path: Path) -> None:
    """Names within them may lack fsdp_, dynamo_ or fp8_, and tables of another kind are left alone."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "distributed_type: FSDP\nmixed_precision: fp8\nnum_processes: 8\nfp8_config: {fp8_backend: AO}\n"
        "dynamo_config: {backend: INDUCTOR}\nmegatron_lm_config: {megatron_lm_tp_degree: 2}\n"
        "deepspeed_config: {zero_stage: 3}\nfsdp_config: {sharding_strategy: SHARD_GRAD_OP, transformer_layer_cls_to_wrap: X,\n"
        "  auto_wrap_policy: TRANSFORMER_BASED_WRAP, activation_checkpointing: 'true'}\n"
    )
    made = read(path)
    assert (made.zero, made.recomputed.of, made.recipe, made.flags, made.tp) == (2, "full", "fp8-current", "compile", 1)
    assert made.unknown == () and {"deepspeed_config.zero_stage", "megatron_lm_config.megatron_lm_tp_degree"} <= set(
        made.unread
    )
    sources = {setting.key: setting.source for setting in made.taken}
    assert sources["fsdp_config.fsdp_sharding_strategy"] == f"{path}:8"
    path.write_text("distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {sharding_strategy: HALF}\n")
    with refused("fsdp_config.sharding_strategy", problem="HALF", fix=("FULL_SHARD", "SHARD_GRAD_OP")):
        read(path)
    path.write_text("distributed_type: DEEPSPEED\nmixed_precision: bf16\nfsdp_config: {fsdp_sharding_strategy: 1}\n")
    assert read(path).zero == 2


def test_no_distribution_starts_one_process(tmp_path: Path) -> None:
    """As TRL's single_gpu.yaml, which has num_processes: 8 and is started by simple_launcher."""
    (tmp_path / "a.yaml").write_text("distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 8\n")
    made = read(tmp_path / "a.yaml")
    assert made.devices == 1 and any("NO starts one process" in note for note in made.notes)


def test_files_of_early_versions_of_accelerate_say_the_same(tmp_path: Path) -> None:
    """`fp16` and `dynamo_backend`, which its own process_config makes of them today."""
    path, text = tmp_path / "a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\n"
    path.write_text(text + "fp16: true\ndynamo_backend: INDUCTOR\n")
    early = read(path)
    path.write_text(text + "mixed_precision: fp16\ndynamo_config: {dynamo_backend: INDUCTOR}\n")
    assert (early.dtype, early.flags) == (read(path).dtype, read(path).flags) == ("float16", "compile")
    path.write_text(text + "fp16: true\nmixed_precision: bf16\ndynamo_backend: 'NO'\n")
    assert (read(path).dtype, read(path).flags) == ("bfloat16", "")


def test_arguments_that_ask_for_no_precision_take_that_of_what_is_launched(tmp_path: Path) -> None:
    """As transformers' TrainingArguments take ACCELERATE_MIXED_PRECISION; without it the dtype is requested."""
    run = {"model_name_or_path": "mistral-7b", "per_device_train_batch_size": 1, "max_length": 512, "output_dir": "x"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**run, "gradient_checkpointing": True, "learning_rate": 1e-5}))
    for kind in ("MULTI_GPU", "FSDP", "DEEPSPEED"):
        for precision, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            text = f"distributed_type: {kind}\nnum_processes: 8\nmixed_precision: {precision}\n"
            (tmp_path / "a.yaml").write_text(text + WRAPPED * (kind == "FSDP"))
            made = read(tmp_path / "run.yaml", user=UserSettings(variables={"accelerate": str(tmp_path / "a.yaml")}))
            assert made.dtype == dtype
            assert any(setting.key == "bf16" and "mixed_precision of" in setting.source for setting in made.taken)
    with refused("dtype", fix=("bfloat16", "float32", "bf16")):
        read(tmp_path / "run.yaml", user=UserSettings(variables={"accelerate": "none"}))


def test_no_mixed_precision_is_float32_unless_the_program_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\nmixed_precision: no\nnum_processes: 8\n" + WRAPPED)
    plain = read(tmp_path / "a.yaml")
    assert plain.dtype == "float32" and any("give --dtype bfloat16" in note for note in plain.notes)
    half = read(tmp_path / "a.yaml", user=UserSettings(dtype="bfloat16"))
    assert (half.dtype, half.precision.master) == ("bfloat16", "float32")


def test_arguments_of_transformers_as_yaml(tmp_path: Path) -> None:
    """As TRL's scripts take them."""
    (tmp_path / "sft.yaml").write_text(TRL)
    run = judged(tmp_path / "sft.yaml")
    assert {str(unit.strategy) for unit in run.plan.units if unit.name.endswith("ffn")} == {"sdp16-ckpt"}
    assert (run.plan.batch.global_samples, run.plan.batch.micro_batches) == (256, 8)
    assert run.configuration.buffers.attention == "flash" and run.configuration.buffers.loss == "fused"
    cases: tuple[tuple[tuple[str, str], str, Facts, Facts], ...] = (
        (("packing: true", "use_peft: true"), "use_peft", "true", "false"),
        (("packing: true", "num_generations: 8"), "num_generations", 8, "false"),
        (("bf16: true\n", ""), "dtype", (), ("bfloat16", "float32", "bf16")),
        (("gradient_checkpointing: true\n", ""), "recompute", (), ("full", "none", "gradient_checkpointing")),
        (("packing: true", "optim: adafactor"), "optim", "adafactor", "adamw_torch"),
        (("use_liger_kernel: true", "loss_type: sigmoid"), "loss_type", "sigmoid", ("nll", "chunked_nll", "dft")),
    )
    for change, field, problem, fix in cases:
        (tmp_path / "other.yaml").write_text(TRL.replace(*change))
        with refused(field, problem=problem, fix=fix):
            read(tmp_path / "other.yaml")


def test_words_of_the_loss_and_of_kernels_reach_the_prediction(tmp_path: Path) -> None:
    """TRL's loss by chunks and axolotl's cut cross-entropy need less than all logits; parameters as they are loaded, less."""
    peaks = {}
    for change in ("use_liger_kernel: true", "loss_type: nll", "loss_type: chunked_nll"):
        (tmp_path / "sft.yaml").write_text(TRL.replace("use_liger_kernel: true", change))
        peaks[change] = max(judged(tmp_path / "sft.yaml").peak_bytes)
    assert peaks["loss_type: nll"] > max(peaks["loss_type: chunked_nll"], peaks["use_liger_kernel: true"])
    (tmp_path / "sft.yaml").write_text(TRL.replace("fsdp: full_shard auto_wrap", "dtype: bfloat16"))
    made = read(tmp_path / "sft.yaml", user=UserSettings({"accelerate": "none"}))
    assert made.precision.master is None and any("no float32 masters" in note for note in made.notes)


def test_a_deepspeed_file_is_filled_in_by_the_trainers_arguments(tmp_path: Path) -> None:
    """As transformers does it, which raises where both say something else."""
    text = TRL.replace("fsdp: full_shard auto_wrap", "deepspeed: ds.json")
    (tmp_path / "sft.yaml").write_text(text)
    with refused("deepspeed", problem="ds.json", fix="sft.yaml"):
        read(tmp_path / "sft.yaml")
    auto = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    auto |= {"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}}
    (tmp_path / "ds.json").write_text(json.dumps(auto))
    made = read(tmp_path / "sft.yaml")
    assert (made.zero, made.micro_samples, made.accumulation, made.dtype) == (2, 2, 8, "bfloat16")
    assert made.buffers.reduce_elements == 200_000_000 and made.recomputed.of == "full"
    (tmp_path / "ds.json").write_text(json.dumps({**auto, "gradient_accumulation_steps": 4}))
    with refused("gradient_accumulation_steps", problem=("4", "gradient_accumulation_steps", "8"), fix='"auto"'):
        read(tmp_path / "sft.yaml")


def test_yaml_is_read_as_pyyaml_reads_it(tmp_path: Path) -> None:
    """`no` is false, 8_192 a number, anchors stand for what they name; no file makes a traceback."""
    path = tmp_path / "a.yaml"
    path.write_text("a: no\nb: 8_192\nc: &x {d: on}\ne: *x\n2: z\n")
    assert read_document(path) == {"a": False, "b": 8192, "c": {"d": True}, "e": {"d": True}, "2": "z"}
    bomb = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40))
    for text in (
        "a: [",
        "a: &a [*a]",
        "? [1]\n: 2",
        "a: !!python/object:os.system {}",
        "a: 2024-13-45",
        "a: 1\n---\nb: 2",
        bomb,
    ):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            read(path)
        assert "\n" not in error.value.command_text


@pytest.mark.parametrize("depth", [90, 300, 900, 5000])
def test_deep_files_are_refused_in_one_line(tmp_path: Path, depth: int) -> None:
    (tmp_path / "a.json").write_text('{"zero_optimization": ' * depth + "1" + "}" * depth)
    with pytest.raises(InputError) as error:
        read(tmp_path / "a.json")
    assert "\n" not in error.value.command_text


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "..", "", "/dev/null"])
def test_names_that_no_file_has_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    values = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": name}}
    (tmp_path / "a.json").write_text(json.dumps(values))
    with refused("deepspeed_config.deepspeed_config_file", problem=shown(name), fix="a.json"):
        read(tmp_path / "a.json")


OTHERS = {
    "torchtune": {"model": {"_component_": "torchtune.models.llama3.llama3_8b"}, "batch_size": 2},
    "OLMo-core": {"model": {"_CLASS_": "TransformerConfig"}, "train_module": {}},
    "veRL": {"actor_rollout_ref": {"model": {}}, "trainer": {"nnodes": 1}},
    "NeMo": {"run": {"results_dir": "x", "name": "y"}, "trainer": {"num_nodes": 1}, "exp_manager": {}},
    "Lightning": {"trainer": {"max_epochs": 1}, "model": {"class_path": "x.Y"}},
    "nanotron": {"parallelism": {"dp": 2, "pp": 1, "tp": 2}, "tokens": {"micro_batch_size": 1}, "model": {}},
    "GPT-NeoX": {"pipe_parallel_size": 1, "model_parallel_size": 2, "zero_optimization": {"stage": 1}},
    "LLM Foundry": {"max_seq_len": 2048, "train_loader": {}, "fsdp_config": {"sharding_strategy": "FULL_SHARD"}},
    "OLMo": {"model": {"d_model": 4096}, "global_train_batch_size": 8, "fsdp": {"precision": "mixed"}},
    "fairseq": {"common": {"fp16": True}, "optimization": {"update_freq": [1]}, "task": {"_name": "lm"}},
    "LitGPT": {"checkpoint_dir": "x", "train": {"global_batch_size": 8, "micro_batch_size": 1}},
    "ms-swift": {"model": "Qwen/Qwen3-8B", "train_type": "full", "per_device_train_batch_size": 1},
    "MaxText": {"base_emb_dim": 4096, "per_device_batch_size": 4},
    "Levanter": {"model": {"type": "llama"}, "trainer": {"mp": "p=f32,c=bf16", "train_batch_size": 8}},
    "mergekit": {"merge_method": "slerp", "base_model": "x", "slices": []},
    "Kubernetes": {"apiVersion": "v1", "kind": "Pod", "spec": {}},
}


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("tool", OTHERS)
def test_files_of_other_tools_are_refused_by_name(tmp_path: Path, tool: str, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    path.write_text(json.dumps(OTHERS[tool]))
    fix = {"veRL": "reinforcement learning", "Kubernetes": "--command"}.get(tool, ("Megatron-LM", "torchtitan", "axolotl"))
    with refused("", where=path, problem=tool, fix=fix):
        read(path)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize(
    ("value", "problem", "fix"),
    [
        ({"lr": 1e-4, "epochs": 3}, ("lr", "epochs"), ("Megatron-LM", "axolotl")),
        ({}, "empty", ("Megatron-LM", "axolotl")),
        ([], "[]", "object"),
        (3, 3, "object"),
        ({"model": {"layers": 4}}, "model", ("Megatron-LM", "axolotl")),
        ({"optimizer": {"type": "Adam"}}, "optimizer", ("Megatron-LM", "axolotl")),
    ],
)
def test_a_file_of_no_tool_is_never_taken_for_one(tmp_path: Path, suffix: str, value: Any, problem: Facts, fix: Facts) -> None:
    path = tmp_path / f"run{suffix}"
    path.write_text(json.dumps(value))
    for runtime in (None, "accelerate", "deepspeed", "axolotl"):
        with refused("", where=path, problem=problem, fix=fix):
            read(path, runtime)


def test_a_runtime_that_the_keys_deny_is_refused() -> None:
    with refused("runtime", problem=("accelerate", "axolotl")):
        read(HERE / "axolotl-72b.yml", "accelerate")


def test_a_models_configuration_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    with refused("", where=tmp_path / "config.json", problem=("model", "run"), fix="--model"):
        read(tmp_path / "config.json")


def test_the_command_prints_no_step_of_a_file_that_does_not_fit_the_options() -> None:
    """The file's sequence and layout are not those of the command: one line, and no prediction."""
    options = ("--cluster", "h100:1", "--batch", "16", "--sequence", "2048", "--no-search")
    done = call("import-run", HERE / "axolotl-72b.yml", *options)
    assert done.returncode == 2 and "of axolotl, has 8096" in done.stderr and done.stdout == ""


def test_every_mark_tells_its_own_tool() -> None:
    """No mark is hidden by one before it."""
    assert {tool_of(value) for value in OTHERS.values()} == set(OTHERS) <= {mark.tool for mark in MARKS}


READERS = {
    "accelerate": accelerate_reader.read,
    "axolotl": axolotl_reader.read,
    "llama-factory": llama_factory_reader.read,
    "transformers": transformers_reader.read,
}
BASES: dict[str, dict[str, Any]] = {
    "accelerate": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_processes": 8,
        "fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    },
    "axolotl": {
        "base_model": "Qwen/Qwen3-8B",
        "sequence_len": 2048,
        "fsdp_version": 2,
        "fsdp_config": {"offload_params": False},
    },
    "llama-factory": {"model_name_or_path": "Qwen/Qwen3-8B", "finetuning_type": "full", "bf16": True},
    "transformers": {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 1, "bf16": True},
}
DEGREES = [f"parallelism_config.parallelism_config_{name}_size" for name in ("dp_shard", "dp_replicate", "tp", "cp", "sp")]
OWN = {
    "accelerate": [*accelerate_reader.KINDS, "distributed_type", "num_processes", "deepspeed_config", "num_machines", *DEGREES],
    "axolotl": [
        *axolotl_reader.REFUSED,
        *axolotl_reader.ATTENTION,
        *axolotl_reader.NAMES.values(),
        "plugins",
        "chunked_cross_entropy",
        "batch_size",
    ],
    "llama-factory": [
        *llama_factory_reader.REFUSED,
        *llama_factory_reader.NAMES.values(),
        "stage",
        "cutoff_len",
        "flash_attn",
        "pure_bf16",
    ],
    "transformers": [*transformers_reader.REFUSED, *transformers_reader.NAMES.values(), "max_length", "torch_dtype"],
}
SHARED = ["fsdp", "fsdp_config", "deepspeed", "fsdp_version", "gradient_checkpointing", "dp_shard_size", "attn_implementation"]
FSDP = [
    "version",
    "sharding_strategy",
    "reshard_after_forward",
    "auto_wrap_policy",
    "offload_params",
    "activation_checkpointing",
]
WRONG = st.sampled_from(
    [
        None,
        True,
        False,
        "auto",
        "full",
        "x",
        "1",
        "12",
        -1,
        0,
        1,
        2,
        0.5,
        float("nan"),
        10**30,
        [],
        [1],
        ["offload"],
        {},
        {"a": 1},
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(READERS)), st.data())
def test_wrong_values_at_any_key_are_read_or_refused_in_one_line(tool: str, data: st.DataObject) -> None:
    chosen = data.draw(st.dictionaries(st.sampled_from([*OWN[tool], *SHARED]), WRONG, max_size=3))
    inner = data.draw(st.dictionaries(st.sampled_from([*FSDP, *(f"fsdp_{name}" for name in FSDP)]), WRONG, max_size=2))
    values = {**BASES[tool], **({"fsdp_config": inner} if inner else {}), **chosen}
    try:
        made = made_of(tool, values)
    except InputError as error:
        assert "\n" not in error.command_text
    else:
        assert made.dtype in ("bfloat16", "float16", "float32") and made.zero in (0, 1, 2, 3)


def made_of(tool: str, values: dict[str, Any]) -> RunConfiguration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return READERS[tool](path, UserSettings(recompute="full" if tool == "transformers" else None))


def test_a_name_that_is_not_shipped_asks_for_the_model(tmp_path: Path) -> None:
    """And takes what --model says; a shipped name of other sizes is not overruled."""
    path = tmp_path / "a.yaml"
    text = (HERE / "axolotl-hsdp-tp.yaml").read_text()
    path.write_text(text.replace("meta-llama/Llama-3.1-8B", "some-org/some-8b"))
    with refused("model", problem="some-org/some-8b", fix="config.json"):
        judged(path)
    assert judged(path, model="llama3-8b").plan.planned_model().name == "llama3-8b"
    with refused("base_model", problem=("32", "qwen2.5-72b", "80"), fix="--model"):
        judged(HERE / "axolotl-hsdp-tp.yaml", model="qwen2.5-72b")


COMMAND = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True"
LENGTH = "--gradient_checkpointing --max_length 4096 --output_dir out --packing"


@pytest.mark.parametrize(
    ("length", "message"),
    [("--block_size 2048", ""), ("--packing", ""), ("--max_length 2048", "are padded"), ("", "how samples are cut or padded")],
)
def test_how_samples_are_padded_is_reported_as_it_is(tmp_path: Path, length: str, message: str) -> None:
    """run_clm.py fills whole blocks, by --block_size."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 run_clm.py {COMMAND} --gradient_checkpointing --output_dir out {length}\n")
    notes = [note for note in read(path).notes if "samples are" in note]
    assert [message in note for note in notes] == [True] * bool(message)


def test_commands_of_the_trainer_are_read_with_what_launches_them(tmp_path: Path) -> None:
    """DeepSpeed's file by an argument, alongside or written by the script; Accelerate's by its launcher; or copies."""
    engine = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(engine))
    (tmp_path / "fsdp.yaml").write_text((HERE / "accelerate-fsdp.yaml").read_text())
    path = tmp_path / "run.sh"

    def made(text: str, **stated: Any) -> RunConfiguration:
        path.write_text(text)
        return read(path, None, UserSettings(**stated))

    deepspeed = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {COMMAND} {LENGTH}"
    run = made(deepspeed)
    assert (run.zero, run.devices, run.micro_samples, run.accumulation, run.sequence) == (3, 8, 2, 4, 4096)
    assert run.model == "Qwen/Qwen3-8B" and run.dtype == "bfloat16" and run.recomputed.of == "full"
    assert any(setting.key == "per_device_train_batch_size" and setting.source.endswith("run.sh:1") for setting in run.taken)
    assert (
        made("cat <<E > z2.json\n" + '{"zero_optimization": {"stage": 2}}' + f"\nE\n{deepspeed.replace('ds.j', 'z2.j')}").zero
        == 2
    )
    shared = made(f"accelerate launch --config_file fsdp.yaml sft.py {COMMAND} {LENGTH}")
    alone = accelerate_reader.read(tmp_path / "fsdp.yaml", UserSettings(dtype="bfloat16"))
    assert (shared.zero, shared.devices, shared.micro_samples) == (alone.zero, alone.devices, 2)
    assert made(f"torchrun --nproc_per_node 8 sft.py {COMMAND} {LENGTH}").zero == 0
    assert "zero" in made(f"accelerate launch sft.py {COMMAND} {LENGTH}").undecided
    for text, named in (
        (f"accelerate launch --use_fsdp sft.py {COMMAND} {LENGTH}", "config_file"),
        (f"torchrun sft.py {COMMAND} {LENGTH} --use_lora True", "use_lora"),
        (f"torchrun sft.py {COMMAND} {LENGTH} --per_device_train_batch_size $MBS", "set MBS="),
        (f"torchrun sft.py {COMMAND} {LENGTH.replace('--gradient_checkpointing', '')}", "recompute"),
    ):
        with pytest.raises(InputError, match=named):
            made(text)
    assert made(f"torchrun sft.py {COMMAND} {LENGTH[24:]}", recompute="full").recomputed.of == "full"


def test_options_of_accelerate_launch_win_over_its_file(tmp_path: Path) -> None:
    """As in `_validate_launch_command`; `--values` names them."""
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump({**FSDP_FILE, "num_machines": 1}))
    path = tmp_path / "run.sh"

    def made(options: str) -> RunConfiguration:
        path.write_text(f"accelerate launch --config_file fsdp.yaml {options} sft.py {COMMAND} {LENGTH}")
        return read(path)

    assert (made("").devices, made("").zero, made("").host) == (8, 3, ())
    more = made("--num_processes 32 --num-machines=4 --fsdp_reshard_after_forward false --fsdp_offload_params true")
    assert (more.devices, more.zero, more.host) == (32, 2, ("optimizer", "parameters"))
    sources = {setting.key: setting.source for setting in more.taken}
    assert sources["num_processes"] == f"--num_processes of accelerate launch ({path}:1)"
    hybrid = made("--num_processes 16 --num_machines 2 --fsdp_version 1 --fsdp_sharding_strategy HYBRID_SHARD")
    assert (hybrid.devices, hybrid.shard) == (16, 8)
    engine = made("--use_deepspeed --zero_stage 3 --offload_optimizer_device cpu")
    assert (engine.runtime, engine.zero, engine.host) == ("deepspeed", 3, ("optimizer",))
    assert made("--num_processes $WORLD").devices is None  # whatever the cluster has
    with refused("--fsdp_offload_params", problem="accelerate launch", fix="--set NAME=VALUE"):
        made("--fsdp_offload_params $OFFLOAD")
    with refused("fsdp_config.fsdp_auto_wrap_policy", problem="NO_WRAP", fix="TRANSFORMER_BASED_WRAP"):
        made("--fsdp_auto_wrap_policy NO_WRAP")


SINGLE = {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 1, "gradient_checkpointing": True}
SINGLE |= {"bf16": True, "max_length": 2048, "packing": True, "learning_rate": 1e-5}
FSDP_FILE = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8}
FSDP_FILE |= {"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
COPIES_FILE = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 8}


def trained(folder: Path, launched: Any = None, **keys: Any) -> RunConfiguration:
    """The configuration that is read from transformers' arguments, with the file that Accelerate is launched with."""
    (folder / "launched.yaml").write_text(yaml.safe_dump(launched))
    values = {key: value for key, value in {**SINGLE, **keys}.items() if value is not None}
    (folder / "sft.yaml").write_text(yaml.safe_dump(values))
    return read(folder / "sft.yaml", user=UserSettings({"accelerate": "none" if launched is None else "launched.yaml"}))


@pytest.mark.parametrize(
    ("keys", "launched", "wanted"),
    [
        ({}, None, ("bfloat16", "float32")),
        ({"dtype": "bfloat16"}, None, ("bfloat16", None)),
        ({"dtype": "auto"}, None, ("bfloat16", None)),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, None, ("bfloat16", None)),
        ({"dtype": "bfloat16"}, COPIES_FILE, ("bfloat16", None)),
        ({"dtype": "bfloat16"}, FSDP_FILE, ("bfloat16", "float32")),
        ({"dtype": "bfloat16", "fsdp": "full_shard auto_wrap"}, None, ("bfloat16", "float32")),
        ({"dtype": "bfloat16", "bf16": False}, None, ("bfloat16", None)),
        ({"dtype": "bfloat16", "bf16": False, "fsdp": "full_shard auto_wrap"}, None, ("bfloat16", None)),
        ({"bf16": False}, FSDP_FILE, ("bfloat16", "float32")),
        ({"bf16": False}, None, ("float32", None)),
    ],
)
def test_masters_are_what_is_loaded_or_what_fsdp_widens(keys: Any, launched: Any, wanted: Any, tmp_path: Path) -> None:
    """Accelerate widens for FSDP in mixed precision alone; where transformers' bf16 is off, its own precision holds, else that
    of the loaded parameters."""
    made = trained(tmp_path, launched, **keys)
    assert (made.dtype, made.precision.master) == wanted
    assert any("no float32 masters" in note for note in made.notes) == (wanted == ("bfloat16", None))
    assert any("dtype is not given" in note for note in made.notes) == (not keys)


@pytest.mark.parametrize(
    ("keys", "field", "problem", "fix"),
    [
        ({"fp16": True}, "fp16", ("true", "bf16"), ()),
        ({"max_seq_length": 4096}, "max_seq_length", ("4096", "max_length", "2048"), ()),
        ({"bf16": False, "tf32": True}, "tf32", "true", "false"),
    ],
)
def test_arguments_that_deny_one_another_are_refused(
    keys: dict[str, Any], field: str, problem: Facts, fix: Facts, tmp_path: Path
) -> None:
    with refused(field, problem=problem, fix=fix):
        trained(tmp_path, **keys)


def test_losses_that_no_file_says_are_open_to_the_option(tmp_path: Path) -> None:
    """TRL's own default has changed: all logits are counted, which is reported, unless --loss says otherwise."""
    open_, nll = trained(tmp_path), trained(tmp_path, loss_type="nll")
    assert open_.buffers.loss is None and any("loss_type is not given" in note for note in open_.notes)
    assert nll.buffers.loss == "full" and not any("loss_type" in note for note in nll.notes)
    trained(tmp_path)
    given: dict[str, Any] = {"cluster": "h200:8", "variables": {"accelerate": "none"}}
    full, chunked = judged(tmp_path / "sft.yaml", **given), judged(tmp_path / "sft.yaml", loss="chunked", **given)
    assert max(full.peak_bytes) - max(chunked.peak_bytes) > 2e9


def test_checkpoints_of_trl_on_the_host_are_reported(tmp_path: Path) -> None:
    assert any("activation_offloading" in note for note in trained(tmp_path, activation_offloading=True).notes)


def test_layers_are_wrapped_as_transformers_5_does_by_itself_or_as_its_word_says(tmp_path: Path) -> None:
    """`--values` names whose word it is; without one a note says what versions before 5 do."""
    key = "fsdp_config.fsdp_auto_wrap_policy"
    for words, source, stated in (
        ("full_shard", "default of transformers 5", True),
        ("full_shard auto_wrap", "auto_wrap of fsdp (", False),
    ):
        made = trained(tmp_path, fsdp=words)
        assert [setting.source.startswith(source) for setting in made.taken if setting.key == key] == [True]
        assert any("fsdp has no auto_wrap" in note for note in made.notes) == stated
    with refused("fsdp_config.auto_wrap_policy", problem="NO_WRAP", fix="TRANSFORMER_BASED_WRAP"):
        trained(tmp_path, fsdp=True, fsdp_config={"auto_wrap_policy": "NO_WRAP"})
    assert trained(tmp_path, fsdp="no_shard", fsdp_config={"auto_wrap_policy": "NO_WRAP"}).zero == 0  # nothing is gathered


@pytest.mark.parametrize("inline", [True, False])
def test_checkpointing_of_fsdp_is_what_its_key_says(inline: bool, tmp_path: Path) -> None:
    """In the arguments or in the file of `accelerate launch`; an option that denies it is refused."""
    again = {**FSDP_FILE["fsdp_config"], "fsdp_activation_checkpointing": True}
    given: dict[str, Any] = (
        {"fsdp": True, "fsdp_config": again} if inline else {"launched": {**FSDP_FILE, "fsdp_config": again}}
    )
    assert trained(tmp_path, gradient_checkpointing=None, **given).recomputed.of == "full"
    for name in ("sft.yaml", *(() if inline else ("launched.yaml",))):
        stated_settings = UserSettings({} if inline else {"accelerate": "launched.yaml"}, recompute="none")
        with refused("recompute", problem=("none", "activation_checkpointing")):
            read(tmp_path / name, user=stated_settings)
    with refused("recompute", fix=("full", "none", "gradient_checkpointing")):
        trained(tmp_path, FSDP_FILE, gradient_checkpointing=None)


@pytest.mark.parametrize(("backend", "flags"), [("INDUCTOR", "compile"), ("NO", ""), ("EAGER", "")])
def test_accelerate_compiles_where_its_file_says_so(backend: str, flags: str, tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump({**FSDP_FILE, "dynamo_config": {"dynamo_backend": backend}}))
    assert read(path).flags == flags


@pytest.mark.parametrize(
    ("keys", "field", "problem", "fix"),
    [
        ({"bits": 4}, "bits", "4", "16"),
        ({"lora_enable": True}, "lora_enable", "true", "false"),
        ({"q_lora": True}, "q_lora", "true", "false"),
    ],
)
def test_adapters_by_the_keys_of_scripts_are_refused(
    keys: dict[str, Any], field: str, problem: Facts, fix: Facts, tmp_path: Path
) -> None:
    with refused(field, problem=problem, fix=fix):
        trained(tmp_path, **keys)
    trained(tmp_path, **{key: 16 if key == "bits" else False for key in keys})


@pytest.mark.parametrize(
    "keys",
    [{"attn_implementation": "flash_attention_2"}, {"model_init_kwargs": {"attn_implementation": "kernels/flash-attn2"}}],
)
def test_flash_attention_is_refused_on_devices_that_it_has_no_kernels_for(keys: dict[str, Any], tmp_path: Path) -> None:
    """torch's own attention has fused kernels there, which transformers takes by default; eager attention keeps its scores."""
    half = {"bf16": None, "fp16": True, "gradient_checkpointing": False, "model_name_or_path": "llama3.2-1b"}
    given: dict[str, Any] = {"cluster": "v100-32gb:8", "variables": {"accelerate": "none"}}
    trained(tmp_path, **half, **keys)
    with refused(re.compile(r".*attn_implementation"), problem=("FlashAttention", "V100"), fix=("sdpa", "eager")):
        judged(tmp_path / "sft.yaml", **given)
    assert judged(tmp_path / "sft.yaml", **{**given, "cluster": "a100:8"}).configuration.buffers.attention == "flash"
    peaks = []
    for name in (None, "sdpa", "eager"):
        trained(tmp_path, **half, attn_implementation=name)
        peaks.append(max(judged(tmp_path / "sft.yaml", **given).peak_bytes))
    assert peaks[0] == peaks[1] < peaks[2] - 5 * 16 * 32 * 2048**2


@pytest.mark.parametrize("keys", [{"max_prompt_length": 512}, {"ref_model": "some-org/some-8b"}, {"desirable_weight": 1.0}])
def test_keys_of_other_steps_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    ((key, value),) = keys.items()
    with refused(key, problem=value, fix="false"):
        trained(tmp_path, **keys)


def test_programs_of_other_steps_are_refused(tmp_path: Path) -> None:
    """Their arguments may be those of any training."""
    path = tmp_path / "run.sh"
    for program in ("trl/scripts/dpo.py", "run_grpo.py", "reward_modeling.py", "train-orpo.py"):
        path.write_text(f"torchrun --nproc_per_node 8 {program} {COMMAND} {LENGTH}")
        with refused("", problem=program, fix="next-token prediction"):
            read(path)
    path.write_text(f"torchrun --nproc_per_node 8 examples/sft_prompts.py {COMMAND} {LENGTH}")
    assert read(path).sequence == 4096


@pytest.mark.parametrize(
    ("cluster", "layout"), [("h100:4x4", "dp4-sdp4-ckpt"), ("h100:8x2", "dp2-sdp8-ckpt"), ("h100:4", "sdp4-ckpt")]
)
def test_hybrid_sharding_is_within_the_nodes_of_the_devices(cluster: str, layout: str, tmp_path: Path) -> None:
    """As of FSDP1, whose process groups are of the devices of a node, unless Accelerate's file counts its machines."""
    trained(tmp_path, fsdp="hybrid_shard auto_wrap")
    run = judged(tmp_path / "sft.yaml", cluster=cluster)
    assert layout in {str(unit.strategy) for unit in run.plan.units}
    config = {**FSDP_FILE["fsdp_config"], "fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD"}
    (tmp_path / "fsdp.yaml").write_text(
        yaml.safe_dump({**FSDP_FILE, "num_processes": 16, "num_machines": 4, "fsdp_config": config})
    )
    assert read(tmp_path / "fsdp.yaml").shard == 4
