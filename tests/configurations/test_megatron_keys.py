"""Arguments of Megatron-LM that bear on model, memory or precision are read, or named, and never passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.streams.layout import Recompute
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from trainplan.validation.recomputation import recompute_of_words
from trainplan.validation.rows import Run

GIB = 2**30
LLAMA = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 4096 --ffn-hidden-size 14336
--num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0
--hidden-dropout 0 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer""".replace(
    "\n", " "
)
BF16 = f"{LLAMA} --bf16"
AGAIN = "--recompute-granularity full --recompute-method"


def peak_gib(words: str, **said: Any) -> float:
    run = tp.import_run(line=f"{BF16} {words}", cluster="h100:8", search=False, **said)
    assert not isinstance(run.framework, str), run.framework
    return max(run.peak_bytes) / GIB


def test_layers_that_are_recomputed_together_are_all_held_at_once() -> None:
    """One group of all 24 layers holds what a run without recomputation does; groups of five the inputs of five groups."""
    plain = peak_gib("")
    each, five, twelve, all_ = (peak_gib(f"{AGAIN} uniform --recompute-num-layers {count}") for count in (1, 5, 12, 24))
    entry = 8192 * 4096 * 2 / GIB
    assert each + 2 < five < each + 5
    assert plain - 2 < all_ < plain
    layer = (all_ - twelve + entry) / 12  # what is held of one: 12 more of them, and one input instead of two
    assert all_ - five == pytest.approx(19 * layer - 4 * entry)


def test_groups_of_layers_end_with_their_stage() -> None:
    """Of stages of six layers, groups of eight are groups of six."""
    stages = "--pipeline-model-parallel-size 4"
    eight, six = (peak_gib(f"{stages} {AGAIN} uniform --recompute-num-layers {count}") for count in (8, 6))
    assert eight == six


def test_groups_of_layers_without_the_runtime_s_prediction_are_refused() -> None:
    """The walks over programs recompute each layer by itself."""
    line = f"{BF16} {AGAIN} uniform --recompute-num-layers 4".replace("torchrun", "torchrun --nnodes 2")
    with pytest.raises(InputError, match=r"recompute.num.layers is 4, .*; give 1"):
        tp.import_run(line=line, cluster="a100-16", search=False)


def test_groups_of_layers_are_exported_as_they_were_read(tmp_path: Path) -> None:
    run = tp.import_run(line=f"{BF16} {AGAIN} uniform --recompute-num-layers 4", cluster="h100:8", search=False)
    for name, text in tp.export(run.plan, "megatron").files.items():
        (tmp_path / name).write_text(text)
    back = tp.import_run(tmp_path / "launch.sh", cluster="h100:8", search=False)
    assert max(back.peak_bytes) == max(run.peak_bytes)


@pytest.mark.parametrize("words", ["uniform 4", "full (uniform, 4 layers)", "full uniform num-layers 4"])
def test_rows_of_measured_runs_say_groups_of_layers(words: str) -> None:
    assert recompute_of_words(Run(id="row", model="llama3-8b", gpu="h100", gpus=8, recompute=words), {}) == Recompute(
        layers=1.0, group=4
    )
