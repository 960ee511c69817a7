"""Memory of imported runs: what options, files, models and devices say of it, and that rows of the same runs say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.shipped import locate

import trainplan as tp
from tests.helpers.refusals import refused
from tests.validation.test_trainers_memory import DENSE, ZERO_3
from tests.validation.test_words import predicted
from trainplan.imported_runs.assess import JudgedRun
from trainplan.validation.alongside import KERNELS
from trainplan.validation.predict import Prediction

SCRIPT = """torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 12 --hidden-size 1280 --num-attention-heads 20 \\
 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --fp16 --vocab-size 50257
"""
FP16 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def _imported(path: Path, cluster: str, **options: Any) -> JudgedRun:
    return tp.import_run(path, cluster=cluster, search=False, **options)


def _peak(run: JudgedRun) -> float:
    assert isinstance(run.framework, Prediction) and run.framework.memory is not None
    return run.framework.memory.peak_bytes


def test_attention_of_imported_runs_is_what_the_option_the_model_or_the_device_has(tmp_path: Path) -> None:
    """Five bytes a score where Megatron-LM keeps them: probabilities, and mask and result of their dropout."""
    script = tmp_path / "launch.sh"
    script.write_text(SCRIPT)
    fused, old = _imported(script, "a100:1"), _imported(script, "v100-32gb:1")
    scores = 5 * 4 * 20 * 1024**2 * 12
    assert _peak(old) - _peak(fused) == pytest.approx(scores, rel=0.02)
    assert _peak(_imported(script, "a100:1", attention="eager")) == _peak(old)
    assert _peak(_imported(script, "v100-32gb:1", attention="flash")) == _peak(fused)
    with refused("attention", problem="slow", fix=("eager", "flash")):
        _imported(script, "a100:1", attention="slow")
    config = json.loads(Path(locate("models", "llama3.2-1b", "model", "a shipped model")).read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "eager"}))
    (tmp_path / "plain.json").write_text(json.dumps(config))
    (tmp_path / "ds.json").write_text(json.dumps(FP16))
    given: dict[str, Any] = {"cluster": "h100:8", "sequence": 1024}
    eager, plain = (_imported(tmp_path / "ds.json", model=tmp_path / f"{name}.json", **given) for name in ("config", "plain"))
    layers = 16 * 32 * 1024**2 * 6 + 16 * 1024 * 2 * 24 * 64 * 2 - 16 * 1024 * 32 * 4  # keys and values of all heads, no sums
    assert _peak(eager) - _peak(plain) == pytest.approx(layers, rel=0.01)
    assert [setting.value for setting in eager.configuration.taken if setting.key == "attention"] == ["eager"]


def test_losses_of_imported_runs_are_what_the_option_says(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(FP16))
    given: dict[str, Any] = {"model": "llama3.2-1b", "sequence": 8192, "cluster": "h100:8", "recompute": "full"}
    full, chunked = (_imported(tmp_path / "ds.json", loss=loss, **given) for loss in (None, "chunked"))
    assert _peak(full) - _peak(chunked) > 0.5 * 12 * 8192 * 128256
    with refused("loss", problem="none", fix=("full", "chunked", "fused")):
        _imported(tmp_path / "ds.json", loss="none", **given)


def test_an_imported_run_does_not_fit_where_the_framework_s_step_does_not(tmp_path: Path) -> None:
    """24.6 GiB by the analysis of programs, which copy no gradients; 28.3 GiB as DeepSpeed steps."""
    (tmp_path / "ds.json").write_text(json.dumps(FP16))
    given: dict[str, Any] = {"model": "llama2-7b", "sequence": 1024, "recompute": "full"}
    run = _imported(tmp_path / "ds.json", "v100-32gb:8", **given)
    assert not run.fits and run.close and max(run.judged.peak_bytes) < run.plan.memory_bytes < _peak(run)
    row = predicted(**DENSE, gpu="V100 32GB", fsdp="ZeRO-2", precision="fp16", framework="DeepSpeed", note="no overlap_comm")
    assert row.memory is not None and row.memory.peak_bytes == pytest.approx(_peak(run), rel=1e-6)


def test_states_on_the_host_are_of_imported_runs_what_they_are_of_rows(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    values = {**FP16, "fp16": {"enabled": False}, "bf16": {"enabled": True}, "zero_optimization": zero}
    (tmp_path / "ds.json").write_text(json.dumps(values))
    run = _imported(tmp_path / "ds.json", "h100:8", model="llama2-7b", sequence=1024, recompute="full")
    row = predicted(**ZERO_3, note="offload_param, offload_optimizer")
    assert row.memory is not None and row.memory.peak_bytes == pytest.approx(_peak(run), rel=1e-6)
    assert isinstance(run.framework, Prediction) and run.framework.step_s == pytest.approx(row.step_s, rel=0.02)


def test_words_of_kernels_in_files_are_those_of_notes(tmp_path: Path) -> None:
    """DeepSpeed's own AdamW is fused unless it is torch's, transformers' default from version 5 on is; of its arguments `optim`
    and Liger's kernels."""
    given: dict[str, Any] = {"model": "llama2-7b", "sequence": 1024, "recompute": "full"}
    own = {"type": "AdamW", "params": {"lr": 1e-4}}
    for optimizer, temporaries in ((None, 0), (own, 0), ({"type": "AdamW", "params": {"torch_adam": True}}, 1)):
        values = FP16 if optimizer is None else {**FP16, "optimizer": optimizer}
        (tmp_path / "ds.json").write_text(json.dumps(values))
        run = _imported(tmp_path / "ds.json", "h100:8", **given)
        assert isinstance(run.framework, Prediction) and run.framework.laid is not None
        assert run.framework.laid.layout.held.temporaries == temporaries and not run.framework.laid.assumed
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    lines = ["model_name_or_path: llama2-7b", "bf16: true", "deepspeed: ds.json", "per_device_train_batch_size: 1"]
    lines += ["gradient_accumulation_steps: 2", "max_length: 1024", "gradient_checkpointing: true", "learning_rate: 1e-5"]
    for optim, liger, temporaries in (("adamw_torch", "false", 1), ("adamw_torch_fused", "true", 0)):
        text = "\n".join([*lines, f"optim: {optim}", f"use_liger_kernel: {liger}"])
        (tmp_path / "train.yaml").write_text(text + "\n")
        run = _imported(tmp_path / "train.yaml", "h100:8", model="llama2-7b", sequence=1024)
        assert isinstance(run.framework, Prediction) and run.framework.laid is not None
        layout = run.framework.laid.layout
        assert (layout.held.temporaries, layout.framework.composed) == (temporaries, liger == "false")


AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}


def test_files_of_one_run_have_one_answer(tmp_path: Path) -> None:
    """Precision by "auto" or by name: 16 bytes of states a parameter, then in the step gradients as one tensor and in float32,
    of the eighth that a rank steps; nothing for kernels, which are fused whoever's they are."""
    zero = {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto"}
    files: list[dict[str, Any]] = [
        {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
        {"bf16": {"enabled": True}},
        {"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}},
        {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
    ]
    runs = []
    for values in files:
        (tmp_path / "ds.json").write_text(json.dumps(AUTO | values | {"zero_optimization": zero}))
        given: dict[str, Any] = {"model": "llama3-8b", "sequence": 2048, "recompute": "full", "micro_batch": 1, "batch": 16}
        runs.append(_imported(tmp_path / "ds.json", "a100:8", **given))
    assert len({(run.step_ns, max(run.peak_bytes)) for run in runs}) == 1
    assert isinstance(runs[0].framework, Prediction) and (memory := runs[0].framework.memory) is not None
    shard, bucket = 8_030_261_248 / 8, 4096**2
    assert memory.standing_bytes == pytest.approx(16 * shard, rel=0.01)
    assert memory.copies_bytes == pytest.approx((2 + 4) * min(shard, 1e9) + 2 * bucket, rel=1e-3)


OPTIM = {"adamw_torch": 1, "adamw_torch_fused": 0, "adamw_apex_fused": 0, "paged_adamw_32bit": 0}
TRAINED = {"model_name_or_path": "llama2-7b", "bf16": True, "per_device_train_batch_size": 1, "max_length": 1024}
TRAINED |= {"gradient_accumulation_steps": 2, "gradient_checkpointing": True, "packing": True, "learning_rate": 1e-5}


@pytest.mark.parametrize("beneath", ["deepspeed", "launched", "fsdp", "copies"])
@pytest.mark.parametrize("optim", OPTIM)
def test_kernels_of_the_step_are_those_of_optim(beneath: str, optim: str, tmp_path: Path) -> None:
    """Whatever shares states: the root of second moments in float32 where torch's kernels for lists step."""
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    launched = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 2}}
    (tmp_path / "accelerate.yaml").write_text(json.dumps(launched))
    keys: dict[str, Any] = {"deepspeed": {"deepspeed": "ds.json"}, "fsdp": {"fsdp": "full_shard auto_wrap"}}.get(beneath, {})
    (tmp_path / "train.yaml").write_text(json.dumps(TRAINED | {"optim": optim} | keys))
    variables = {"launched": {"accelerate": "accelerate.yaml"}, "copies": {"accelerate": "none"}}.get(beneath)
    run = _imported(tmp_path / "train.yaml", "h200:8", variables=variables)
    assert isinstance(run.framework, Prediction) and run.framework.laid is not None
    assert run.framework.laid.layout.held.temporaries == OPTIM[optim]
    assert KERNELS not in run.framework.laid.assumed


def test_copies_of_the_trainer_are_those_of_accelerate(tmp_path: Path) -> None:
    """One run, by the trainer's arguments and by the file of `accelerate launch`: parameters in float32 under autocast."""
    (tmp_path / "train.yaml").write_text(json.dumps(TRAINED))
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n")
    given: dict[str, Any] = {"model": "llama2-7b", "sequence": 1024, "recompute": "full", "micro_batch": 1, "batch": 16}
    alone = _imported(tmp_path / "accelerate.yaml", "h200:8", **given)
    for launched in ("none", "accelerate.yaml"):
        run = _imported(tmp_path / "train.yaml", "h200:8", variables={"accelerate": launched})
        assert (run.step_ns, run.peak_bytes) == (alone.step_ns, alone.peak_bytes)
        assert isinstance(run.framework, Prediction) and run.framework.laid is not None
        assert run.framework.laid.layout.held.autocast and run.framework.laid.layout.framework.composed


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_imported_runs_of_deepspeed_are_predicted_as_their_rows(stage: int, tmp_path: Path) -> None:
    values = {**FP16, "fp16": {"enabled": False}, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    (tmp_path / "ds.json").write_text(json.dumps(values))
    run = _imported(tmp_path / "ds.json", "h100:8", model="llama2-7b", sequence=1024, recompute="full")
    note = "adamw_torch_fused" + ", no overlap_comm" * (stage in (1, 2))  # which the file leaves off
    row = predicted(**ZERO_3 | {"fsdp": None, "zero": stage, "note": note})
    assert row.memory is not None and row.memory.peak_bytes == pytest.approx(_peak(run), rel=1e-6)
    assert isinstance(run.framework, Prediction) and run.framework.step_s == pytest.approx(row.step_s)


@pytest.mark.parametrize(
    ("kind", "keys", "fsdp"),
    [
        ("FSDP", {"fsdp_version": 2}, "FSDP2"),
        ("FSDP", {"fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, "SHARD_GRAD_OP"),
        ("FSDP", {"fsdp_version": 2, "fsdp_offload_params": True}, "FSDP2, cpu offload"),
        ("MULTI_GPU", {}, "DDP"),
    ],
)
def test_imported_runs_of_accelerate_are_predicted_as_their_rows(
    kind: str, keys: dict[str, Any], fsdp: str, tmp_path: Path
) -> None:
    """Gradients of FSDP are as wide as its parameters; what it offloads is on the host in both."""
    lines = [f"distributed_type: {kind}", "num_processes: 8", "mixed_precision: bf16", "fsdp_config:" * bool(keys)]
    keys = keys | ({"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"} if kind == "FSDP" else {})
    lines += [f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in keys.items()]
    (tmp_path / "accelerate.yaml").write_text("\n".join(filter(None, lines)) + "\n")
    given: dict[str, Any] = {"model": "llama2-7b", "sequence": 1024, "recompute": "full", "micro_batch": 1, "batch": 16}
    run = _imported(tmp_path / "accelerate.yaml", "h100:8", **given)
    row = predicted(**ZERO_3 | {"framework": "Accelerate", "fsdp": fsdp})
    assert row.memory is not None and row.memory.peak_bytes == pytest.approx(_peak(run), rel=1e-6)
    assert isinstance(run.framework, Prediction) and run.framework.step_s == pytest.approx(row.step_s, rel=0.02)
