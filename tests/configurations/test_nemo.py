"""NeMo 1's YAML: its numbers and names as OmegaConf and NeMo take them, and what its GPT pretraining does not train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

MODEL = {
    "micro_batch_size": 1, "global_batch_size": 8, "num_layers": 40, "hidden_size": 2560, "ffn_hidden_size": 6912,
    "num_attention_heads": 20, "num_query_groups": 20, "encoder_seq_length": 4096, "max_position_embeddings": 4096,
    "position_embedding_type": "rope", "normalization": "rmsnorm", "activation": "fast-swiglu", "bias": False,
    "share_embeddings_and_output_weights": False, "megatron_amp_O2": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "override_vocab_size": 151936, "tokenizer": {"type": "Qwen/Qwen1.5-4B"}, "optim": {"name": "distributed_fused_adam"},
}  # fmt: skip


def of(folder: Path, name: str = "megatron_qwen2", **more: Any) -> RunConfiguration:
    value = {"name": name, "trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"}, "model": {**MODEL, **more}}
    (folder / "a.yaml").write_text(yaml.safe_dump(value))
    return read(folder / "a.yaml")


def test_numbers_and_norms_are_what_nemo_takes(tmp_path: Path) -> None:
    """`1e6` is a number to OmegaConf and a text to PyYAML; norms may be written in capitals."""
    for base in (1_000_000, 1000000.0, "1e6", "1.0e+6"):
        made = of(tmp_path, rotary_base=base, normalization="RMSNorm").config
        assert made is not None and made["rope_theta"] == 1_000_000 and made["model_type"] in ("llama", "qwen2", "mistral")


def test_a_vocabulary_and_biases_of_queries_are_the_files(tmp_path: Path) -> None:
    """override_vocab_size is the size as it is trained, whatever the tokenizer."""
    plain, biased = of(tmp_path), of(tmp_path, qkv_bias=True)
    assert plain.config is not None and biased.config is not None
    assert plain.config["vocab_size"] == 151936 and plain.vocabulary_multiple == 1
    assert (plain.config["model_type"], biased.config["model_type"]) == ("llama", "qwen2")


@pytest.mark.parametrize(
    ("name", "more", "field", "problem", "fix"),
    [
        ("megatron_mamba", {}, "name", "megatron_mamba", "megatron_gpt"),
        ("megatron_gpt_hyena", {}, "name", "megatron_gpt_hyena", "megatron_gpt"),
        ("megatron_llama_distill", {}, "name", "megatron_llama_distill", "megatron_gpt"),
        ("megatron_gpt", {"mamba_ssm_ngroups": 8}, "model.mamba_ssm_ngroups", "8", "dense"),
        ("megatron_gpt", {"kd_teacher_restore_from_path": "x.nemo"}, "model.kd_teacher_restore_from_path", "x.nemo", "dense"),
        (
            "megatron_gpt",
            {"normalization": "layernorm", "activation": "swiglu"},
            "model.normalization",
            "LayerNorm",
            ("RMSNorm", "model.activation", "--model"),
        ),
    ],
)
def test_other_models_are_refused_by_the_files_own_fields(
    tmp_path: Path, name: str, more: dict[str, Any], field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        of(tmp_path, name, **more)
    assert of(tmp_path, "vitals_gpt_retrospective").pp == 1


TUNED = {
    "trainer": {"devices": 8, "num_nodes": 2, "precision": "bf16-mixed"},
    "model": {
        "restore_from_path": "/models/llama2-7b.nemo", "tensor_model_parallel_size": 2, "sequence_parallel": True,
        "megatron_amp_O2": True, "peft": {"peft_scheme": "none"}, "optim": {"name": "distributed_fused_adam"},
        "data": {"train_ds": {"global_batch_size": 128, "micro_batch_size": 1, "max_seq_length": 4096}},
    },
}  # fmt: skip


def test_fine_tuning_is_of_the_model_that_is_named(tmp_path: Path) -> None:
    """Its file has the layout and the samples; the model's sizes are in the .nemo file that it starts from."""
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(TUNED))
    with refused("model.restore_from_path", problem="/models/llama2-7b.nemo", fix="--model NAME"):
        read(path)
    judged = tp.import_run(path, model="llama2-7b", cluster="h100:8x2", search=False)
    assert (judged.plan.batch.global_samples, judged.plan.batch.micro_batches) == (128, 16)
    strategy, model = judged.plan.units[1].strategy, judged.plan.planned_model()
    assert (strategy.degree("tp"), strategy.data_degree, strategy.zero_stage) == (2, 8, 1)
    assert (model.name, model.sequence, judged.configuration.buffers.attention) == ("llama2-7b", 4096, None)
    assert judged.configuration.unread == ()
    notes = " ".join(judged.configuration.notes)
    assert "padded to the longest of each batch" in notes and "--attention eager" in notes
    assert not any(setting.key == "model.normalization" for setting in judged.configuration.taken)


@pytest.mark.parametrize(
    ("path", "value", "field", "problem", "fix"),
    [
        ("peft.peft_scheme", "lora", "model.peft.peft_scheme", "lora", "none"),
        ("data.train_ds.packed_sequence", True, "model.data.train_ds.packed_sequence", "true", "false"),
    ],
)
def test_other_fine_tuning_is_refused(tmp_path: Path, path: str, value: Any, field: str, problem: Facts, fix: Facts) -> None:
    data = yaml.safe_load(yaml.safe_dump(TUNED))
    *tables, name = path.split(".")
    inner = data["model"]
    for table in tables:
        inner = inner[table]
    inner[name] = value
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(data))
    with refused(field, problem=problem, fix=fix):
        read(tmp_path / "a.yaml", user=UserSettings(model="llama2-7b"))
