"""The memory that a screen says a plan needs that does not fit: the least of all numbers of its micro-batches."""

from __future__ import annotations

from trainplan.formulations.plan.plan import Plan

import trainplan as tp
from trainplan.inputs import cluster_of
from trainplan.screens.others import shortage
from trainplan.screens.predicted import gib

LINE = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 4096 --ffn-hidden-size 14336
--num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0
--hidden-dropout 0 --vocab-size 32000 --global-batch-size 64 --use-distributed-optimizer --bf16 --micro-batch-size""".replace(
    "\n", " "
)


def run(micro_batch: int) -> tuple[Plan, int]:
    """The plan of a run, and its predicted peak. micro_batch: the samples of a micro-batch on a rank."""
    read = tp.import_run(line=f"{LINE} {micro_batch}", cluster="h100:8", search=False)
    return read.plan, max(read.peak_bytes)


def test_what_needs_too_much_is_the_least_of_all_micro_batches() -> None:
    """Where one sample in each would fit, the micro-batches are named, as where the devices are not known."""
    (small, least), (large, most) = run(1), run(4)
    cluster = cluster_of("h100:8")
    assert least < most
    tight, between = (large.changed(memory_bytes=size) for size in (least - 2**30, least + 2**30))
    assert shortage("TP1", tight, most, cluster) == f"TP1: needs {gib(least)} GiB"
    named = f"TP1 in 2 micro-batches: needs {gib(most)} GiB"
    assert shortage("TP1", between, most, cluster) == shortage("TP1", tight, most, None) == named
    tight = small.changed(memory_bytes=least - 2**30)
    assert shortage("TP1", tight, least, None) == f"TP1: needs {gib(least)} GiB"
    assert shortage("2 micro-batches", tight, most, cluster) == f"2 micro-batches: needs {gib(most)} GiB"
