"""NeMo 1's YAML: its numbers and names as OmegaConf and NeMo take them, and what its GPT pretraining does not train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.profiling.base.errors import InputError

from trainplan.configurations.configuration import Configuration
from trainplan.configurations.planned import read

MODEL = {
    "micro_batch_size": 1, "global_batch_size": 8, "num_layers": 40, "hidden_size": 2560, "ffn_hidden_size": 6912,
    "num_attention_heads": 20, "num_query_groups": 20, "encoder_seq_length": 4096, "max_position_embeddings": 4096,
    "position_embedding_type": "rope", "normalization": "rmsnorm", "activation": "fast-swiglu", "bias": False,
    "share_embeddings_and_output_weights": False, "megatron_amp_O2": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "override_vocab_size": 151936, "tokenizer": {"type": "Qwen/Qwen1.5-4B"}, "optim": {"name": "distributed_fused_adam"},
}  # fmt: skip


def of(folder: Path, name: str = "megatron_qwen2", **more: Any) -> Configuration:
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
    ("name", "more", "said"),
    [
        ("megatron_mamba", {}, "name is 'megatron_mamba', which is no dense decoder"),
        ("megatron_gpt_hyena", {}, "which is no dense decoder"),
        ("megatron_llama_distill", {}, "which is no dense decoder"),
        ("megatron_gpt", {"mamba_ssm_ngroups": 8}, "model.mamba_ssm_ngroups is 8, of layers that are not planned"),
        ("megatron_gpt", {"kd_teacher_restore_from_path": "x.nemo"}, "of layers that are not planned"),
        ("megatron_gpt", {"normalization": "layernorm", "activation": "swiglu"}, "^[^:]*: model.normalization"),
    ],
)
def test_other_models_are_refused_by_the_files_own_fields(tmp_path: Path, name: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        of(tmp_path, name, **more)
    assert of(tmp_path, "vitals_gpt_retrospective").pp == 1
