"""Samples longer than the positions that a model's configuration names."""

from __future__ import annotations

from pathlib import Path

import trainplan as tp
from tests.helpers.refusals import refused

LONG = """[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = {tokens}
[parallelism]
context_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
SCRIPT = """python pretrain_gpt.py --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} \\
  --seq-length 32768 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 16 --bf16 --swiglu \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""


def titan(folder: Path, tokens: int, flavor: str = "8B") -> Path:
    file = folder / "long.toml"
    file.write_text(LONG.format(tokens=tokens, flavor=flavor))
    return file


def test_torchtitan_takes_samples_beyond_rotary_positions(tmp_path: Path) -> None:
    """As on a model whose configuration names as many; and a note says so."""
    run = tp.import_run(titan(tmp_path, 32768), cluster="h100-64", search=False)
    assert any("beyond the model's 8192" in note for note in run.configuration.notes)
    named = tp.import_run(titan(tmp_path, 32768), cluster="h100-64", model="llama3.1-8b", search=False)
    assert not any("beyond" in note for note in named.configuration.notes)
    assert run.judged.step_ns == named.judged.step_ns
    assert run.plan.planned_model().tokens == 32768


def test_a_flavour_that_is_not_shipped_takes_them_too(tmp_path: Path) -> None:
    run = tp.import_run(titan(tmp_path, 262144, "1B"), cluster="h100-64", search=False)
    assert run.plan.planned_model().tokens == 262144


def test_a_script_with_a_named_model_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.format(layers=32, hidden=4096, heads=32))
    run = tp.import_run(file, cluster="h100:8x2", model="llama3-8b", search=False)
    assert any("beyond the model's 8192" in note for note in run.configuration.notes)


def test_learned_positions_end_with_their_table_by_the_key_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.format(layers=12, hidden=768, heads=12))
    with refused("--seq-length", where=file, problem=32768, fix=(1, 1024, "n_positions", "gpt2")):
        tp.import_run(file, cluster="h100-8", model="gpt2", search=False)
