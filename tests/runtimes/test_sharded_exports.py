"""Exports to DeepSpeed and Accelerate: every key is documented, and what is imported again is the plan."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.plans import plan_of
from tests.helpers.sizes import first_and_others
from tests.runtimes.test_exporting import not_exported
from tests.runtimes.test_importing import same_as

# DeepSpeed's page on the JSON configuration, and runtime/zero/config.py of 0.19: what we may write, and of which type.
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "gradient_clipping": float,
    "steps_per_print": int,
    "wall_clock_breakdown": bool,
    "bf16": {"enabled": bool},
    "fp16": {"enabled": bool},
    "data_types": {"grad_accum_dtype": str},
    "communication_data_type": str,
    "optimizer": {"type": str, "params": {"lr": float, "betas": list, "eps": float, "weight_decay": float}},
    "zero_optimization": {
        "stage": int,
        "overlap_comm": bool,
        "offload_optimizer": {"device": str, "pin_memory": bool},
        "offload_param": {"device": str, "pin_memory": bool},
    },
}
# `accelerate config` of 1.15: ClusterConfig, the options of `accelerate launch` for FSDP2 and for its parallelism.
FSDP_TEXTS = ("auto_wrap_policy", "transformer_layer_cls_to_wrap", "state_dict_type")
FSDP_FLAGS = ("reshard_after_forward", "activation_checkpointing", "cpu_ram_efficient_loading", "offload_params")
TEXTS = ("compute_environment", "distributed_type", "mixed_precision", "main_training_function", "rdzv_backend")
ACCELERATE: dict[str, Any] = {
    **dict.fromkeys(TEXTS, str),
    **dict.fromkeys(("num_machines", "num_processes", "machine_rank"), int),
    **dict.fromkeys(("same_network", "use_cpu"), bool),
    "fsdp_config": {
        "fsdp_version": int,
        **dict.fromkeys((f"fsdp_{name}" for name in FSDP_TEXTS), str),
        **dict.fromkeys((f"fsdp_{name}" for name in FSDP_FLAGS), bool),
    },
    "parallelism_config": {f"parallelism_config_{name}_size": int for name in ("dp_replicate", "dp_shard", "tp", "cp")},
}


def checked_keys(values: dict[str, Any], table: dict[str, Any], where: str = "") -> None:
    """Every key is in the table, with a value of its type: the targets let some misspelt ones pass."""
    for key, value in values.items():
        assert key in table, f"{where}{key}"
        if isinstance(table[key], dict):
            checked_keys(value, table[key], f"{where}{key}.")
        else:
            assert type(value) is table[key], f"{where}{key}"


def random_plan(rng: random.Random, runtime: str) -> Plan:
    """One strategy for all units on one stage, as the runtime has them."""
    model = load_model(rng.choice(["llama3-8b", "gpt2-xl", "qwen3-8b", "mistral-7b"]), 512, "bfloat16")
    hybrid = ["dp2-sdp4", "dp2-sdp4-zero2"] if runtime == "accelerate" else ["sdp8-zero1"]
    text = rng.choice(["sdp8", "sdp8-zero2", "dp8", *hybrid]) + rng.choice(["", "-ckpt"])
    micro = rng.choice([1, 4])
    plan = plan_of(model, [text] * len(model.units), 8, 8 * micro * rng.choice([1, 2]), micro)
    return plan.changed(memory_bytes=2**47, precision={"master": "float32"})


def on_host(plan: Plan, parameters: str) -> Plan:
    """The plan with the optimizer's states on the host, and the parameters there or not."""
    content = plan.model_dump() | {"precision": {}, "nvlink": True, "backend": "streams"}
    for unit in content["units"]:
        states = {"optimizer": "host", "gradients": "host", "parameters": parameters}
        unit["states"], unit["order"] = {**unit["states"], **states}, {}
    return load_plan(content)


@pytest.mark.parametrize("seed", first_and_others(range(16), stride=2))
@pytest.mark.parametrize("runtime", ["deepspeed", "accelerate"])
def test_every_key_is_documented_and_the_plan_comes_back(tmp_path: Path, runtime: str, seed: int) -> None:
    plan = random_plan(random.Random(seed), runtime)
    exported = tp.export(plan, runtime)
    write_export(exported, tmp_path)
    name, table = {"deepspeed": ("ds_config.json", DEEPSPEED), "accelerate": ("accelerate.yaml", ACCELERATE)}[runtime]
    text = (tmp_path / name).read_text()
    checked_keys(json.loads(text) if runtime == "deepspeed" else yaml.safe_load(text), table)
    requested: dict[str, Any] = {"model": "gpt2-xl" if plan.planned_model().family == "gpt2" else plan.planned_model().name}
    if runtime == "accelerate":
        requested |= {
            "batch": plan.batch.global_samples,
            "micro_batch": plan.batch.global_samples // plan.batch.micro_batches // 8,
        }
    elif plan.units[1].strategy.ckpt:
        requested["recompute"] = "full"
    again = json.loads((tmp_path / "run.json").read_text())
    assert again["recompute"] == plan.units[1].strategy.ckpt and again["sequence"] == 512
    if runtime == "accelerate" and plan.units[1].strategy.degree("sdp") == 1 and again["recompute"]:
        requested["recompute"] = "full"
    run = tp.import_run(tmp_path / name, cluster="h100:8", sequence=512, search=False, memory=2**47, **requested)
    assert run.configuration.unknown == ()
    wanted = exported.plan
    assert wanted is not None
    if wanted.precision.gradients == "float32" and runtime == "accelerate":  # its file has no dtype of gradients
        wanted = wanted.changed(precision=run.plan.precision)
    same_as(wanted, run.plan)
    for script in ("launch.sh", "slurm.sh"):
        assert subprocess.run(["bash", "-n", tmp_path / script], check=False).returncode == 0
    compile((tmp_path / "train.py").read_text(), "train.py", "exec")


def test_accelerates_own_class_reads_the_file(tmp_path: Path) -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    write_export(tp.export(random_plan(random.Random(3), "accelerate"), "accelerate"), tmp_path)
    config = arguments.ClusterConfig.from_yaml_file(tmp_path / "accelerate.yaml")
    assert config.num_processes == 8 and config.mixed_precision == "bf16"


@pytest.mark.parametrize("gradients", ["model", "float32"])
def test_deepspeed_starts_copies_in_half_precision_and_comes_back_alike(tmp_path: Path, gradients: str) -> None:
    """In stage 0 it raises NotImplementedError for bfloat16 parameters with float32 gradients: stage 1 it is, which is
    reported."""
    model = load_model("gpt2-345m", 256, "bfloat16")
    plan = plan_of(model, ["dp4"] * len(model.units), 4, 8, 2).changed(memory_bytes=2**47)
    exported = tp.export(plan.changed(precision={"master": "float32", "gradients": gradients}), "deepspeed")
    write_export(exported, tmp_path)
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 1
    assert config["data_types"]["grad_accum_dtype"] == {"model": "bf16", "float32": "fp32"}[gradients]
    assert any("dp4: the optimizer's states are sharded (stage 1)" in line for line in exported.left_out)
    run = tp.import_run(tmp_path / "ds_config.json", cluster="h100:4", model="gpt2-345m", sequence=256, search=False)
    assert exported.plan is not None
    assert [unit.strategy for unit in run.plan.units] == [unit.strategy for unit in exported.plan.units]
    whole = load_model("gpt2-345m", 256, "float32")
    exported = tp.export(plan_of(whole, ["dp4"] * len(whole.units), 4, 8, 2).changed(memory_bytes=2**47), "deepspeed")
    assert exported.settings["config"]["zero_optimization"]["stage"] == 0  # of one dtype, which it starts


@pytest.mark.parametrize("parameters", ["device", "host"])
def test_states_on_the_host_are_offloaded(tmp_path: Path, parameters: str) -> None:
    model = load_model("gpt2-345m", 256, "bfloat16")
    plan = on_host(plan_of(model, ["sdp4"] * len(model.units), 4, 8, 2).changed(memory_bytes=2**47), parameters)
    exported = tp.export(plan, "deepspeed")
    write_export(exported, tmp_path)
    zero = json.loads((tmp_path / "ds_config.json").read_text())["zero_optimization"]
    assert (
        zero["stage"] == 3
        and zero["offload_optimizer"]["device"] == "cpu"
        and ("offload_param" in zero) == (parameters == "host")
    )
    run = tp.import_run(tmp_path / "ds_config.json", cluster="h100:4", model="gpt2-345m", sequence=256, search=False)
    assert [unit.states for unit in run.plan.units] == [unit.states for unit in plan.units]


def test_what_they_cannot_run_is_refused_with_what_they_can() -> None:
    model = load_model("llama3-8b", 512, "bfloat16")
    two = plan_of(model, ["dp2"] * len(model.units), 4, 8, 2, [33])
    tensor = plan_of(model, ["dp2-tp2"] * len(model.units), 4, 8, 2)
    first = plan_of(model, ["sdp4-zero1"] * len(model.units), 4, 8, 2)
    hybrid = plan_of(model, ["dp2-sdp2"] * len(model.units), 4, 8, 2)
    not_exported(two, "deepspeed", "stages", 2, "--for deepspeed")
    not_exported(tensor, "accelerate", "units[0].strategy", "dp2-tp2", "--for accelerate")
    not_exported(first, "accelerate", "units[0].states.zero", 1, (3, "Accelerate"))
    not_exported(hybrid, "deepspeed", "units[0].strategy", "dp2-sdp2", "--hybrid")
    small = hybrid.changed(memory_bytes=2**30)
    not_exported(small, "accelerate", "memory_bytes", ("1 GiB", "35.15 GiB"), ("--for", "--reserve"))
