"""The model of a file on devices: the dtype that both have, and what is advised where the file leaves something open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.imported_runs.to_plan import read

SIZES = """--num-layers 4 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 --seq-length 1024
--max-position-embeddings 1024 --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear
--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 16"""
MEGATRON = f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(SIZES.split())}"
AXOLOTL = """base_model: meta-llama/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 2
optimizer: adamw_torch
sample_packing: true
"""
LLAMAFACTORY = """model_name_or_path: meta-llama/Llama-3.2-1B
stage: pt
do_train: true
finetuning_type: full
cutoff_len: 2048
packing: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
"""
DEEPSPEED = '{"bfloat16": {"enabled": true}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}'
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n'
BRIDGE = """model: {num_layers: 4, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, seq_length: 1024,
  position_embedding_type: rope, gated_linear_unit: true, activation_func: torch.nn.functional.silu, normalization: RMSNorm,
  add_bias_linear: false, share_embeddings_and_output_weights: false}
train: {micro_batch_size: 1, global_batch_size: 16}
"""
NEMO = """trainer: {devices: 8, num_nodes: 1, precision: bf16}
model: {micro_batch_size: 1, global_batch_size: 16, encoder_seq_length: 1024, max_position_embeddings: 4096, num_layers: 32,
  hidden_size: 4096, ffn_hidden_size: 11008, num_attention_heads: 32, normalization: rmsnorm, activation: fast-swiglu,
  position_embedding_type: rope, share_embeddings_and_output_weights: false, bias: false, megatron_amp_O2: true,
  optim: {name: distributed_fused_adam}}
"""


def judged(folder: Path, name: str, text: str, **more: Any) -> Any:
    path = folder / name
    path.write_text(text)
    return tp.import_run(path, **{"cluster": "v100-32gb:8", "search": False, **more})


@pytest.mark.parametrize("cluster", ["v100:8", "p100:8"])
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize(
    ("name", "text", "key", "fix"),
    [
        ("run.sh", f"{MEGATRON} --vocab-size 32000 --bf16", "--bf16", "--fp16"),
        ("run.yml", f"{AXOLOTL}bf16: true\n", "bf16", "fp16: true"),
        ("lf.yaml", f"{LLAMAFACTORY}pure_bf16: true\n", "pure_bf16", "fp16: true"),
        ("ds.json", DEEPSPEED, "bfloat16.enabled", "fp16.enabled: true"),
        ("nemo.yaml", NEMO, "trainer.precision", "16-mixed"),
        ("titan.toml", TITAN, "training.mixed_precision_param", "float32"),
        (
            "bridge.yaml",
            f"{BRIDGE}mixed_precision: bf16_mixed\ntokenizer: {{tokenizer_type: NullTokenizer, vocab_size: 31999}}\n",
            "mixed_precision",
            "fp16_mixed",
        ),
    ],
)
def test_a_dtype_that_devices_lack_is_refused_by_the_files_key(
    tmp_path: Path, name: str, text: str, key: str, fix: str, cluster: str, dtype: str | None
) -> None:
    """Whether or not another one is given on the command line, which the file denies."""
    more: dict[str, Any] = {"model": "llama2-7b"} if name in ("nemo.yaml", "ds.json") else {}
    more |= {"sequence": 1024, "recompute": "full"} if name == "ds.json" else {}
    with refused(key, where=tmp_path / name, problem=("bfloat16", f"Tesla {cluster[:4].upper()}"), fix=(fix, "devices")):
        judged(tmp_path, name, text, cluster=cluster, dtype=dtype, **more)


def test_what_is_advised_for_devices_without_bfloat16_runs(tmp_path: Path) -> None:
    for name, text in (
        ("run.sh", f"{MEGATRON} --vocab-size 32000 --fp16"),
        ("run.yml", f"{AXOLOTL}fp16: true\n"),
        (
            "bridge.yaml",
            f"{BRIDGE}mixed_precision: fp16_mixed\ntokenizer: {{tokenizer_type: NullTokenizer, vocab_size: 31999}}\n",
        ),
    ):
        assert judged(tmp_path, name, text).plan.planned_model().dtype == "float16"


@pytest.mark.parametrize(("cluster", "dtype"), [("v100-32gb:8", "float16"), ("h100:8", "bfloat16")])
@pytest.mark.parametrize("line", ["bf16: auto\n", ""])
def test_a_half_precision_that_is_left_open_is_that_of_the_devices(tmp_path: Path, cluster: str, dtype: str, line: str) -> None:
    run = judged(tmp_path, "run.yml", AXOLOTL + line, cluster=cluster)
    assert run.plan.planned_model().dtype == dtype
    if not line:
        assert judged(tmp_path, "run.yml", AXOLOTL + "bf16: auto\n", cluster=cluster).step_ns == run.step_ns


def test_deepspeeds_auto_is_the_half_precision_of_the_devices(tmp_path: Path) -> None:
    text = json.dumps(
        {
            **{name: {"enabled": "auto"} for name in ("bf16", "fp16")},
            "zero_optimization": {"stage": 2},
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
        }
    )
    for cluster, dtype in (("v100-32gb:8", "float16"), ("h100:8", "bfloat16")):
        run = judged(tmp_path, "ds.json", text, cluster=cluster, model="llama3.2-1b", sequence=1024, recompute="full")
        assert run.plan.planned_model().dtype == dtype


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("run.sh", f"{MEGATRON} --bf16", ("--vocab-size 32000", "--padded-vocab-size 32000")),
        ("bridge.yaml", f"{BRIDGE}mixed_precision: bf16_mixed\n", ("model.vocab_size 32000",)),
    ],
)
def test_the_vocabulary_is_requested_by_a_key_that_the_file_may_have(
    tmp_path: Path, name: str, text: str, keys: tuple[str, ...]
) -> None:
    with refused("model", problem=(tmp_path / name).as_posix(), fix=("config.json", *(key.split(" ")[0] for key in keys))):
        judged(tmp_path, name, text, cluster="h100:8")
    for key in keys:
        stated = f"{text} {key}" if name == "run.sh" else text.replace("{num_layers", "{vocab_size: 32000, num_layers")
        assert judged(tmp_path, name, stated, cluster="h100:8").plan.planned_model().vocabulary == 32000


def test_nemos_vocabulary_is_that_of_a_model(tmp_path: Path) -> None:
    with refused("model", problem=("nemo.yaml", "tokenizer"), fix="config.json") as error:
        judged(tmp_path, "nemo.yaml", NEMO, cluster="h100:8")
    assert "vocab" not in error.value.fix, "its file has no key of it"
    assert read(tmp_path / "nemo.yaml").tool == "NeMo"
    assert judged(tmp_path, "nemo.yaml", NEMO, cluster="h100:8", model="llama2-7b").plan.planned_model().name == "llama2-7b"
