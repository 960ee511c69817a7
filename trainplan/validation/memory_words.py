"""Memory of a measured run by its words: what its framework keeps in its own way, and whose peak was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from trainplan.formulations.costs.overlapped.analytic_memory import RunMemory
from trainplan.formulations.costs.overlapped.framework_memory import (
    SHARED_LOGIT_BYTES,
    TORCHTITAN_MEMORY,
    UNCOMPILED_LOGIT_BYTES,
)
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.validation.rows import Run
from trainplan.validation.words import FUNCTIONAL_TEST, SHARD_GROUP, flag

LOSS_COMPILED_SINCE = 2025  # torchtitan compiles its loss since


def with_memory(framework: Framework, run: Run, year: int | None) -> Framework:
    """Set what a run's words and date say of the memory that its framework keeps in its own way: how torchtitan's loss holds
    logits, and what Megatron-Core's functional tests and its option `--defer-embedding-wgrad-compute` keep. framework: the cost
    model's settings for it, whose field `memory` has the rest. run: a measured run. year: the year of the run, None if it has
    no date.
    """
    if framework.memory == TORCHTITAN_MEMORY:
        uncompiled = framework.logit_bytes >= UNCOMPILED_LOGIT_BYTES or (year is not None and year < LOSS_COMPILED_SINCE)
        loss = SHARED_LOGIT_BYTES if (run.tp or 1) > 1 else UNCOMPILED_LOGIT_BYTES
        logit_bytes = loss if uncompiled else framework.logit_bytes
        return replace(framework, logit_bytes=logit_bytes)
    if framework.pads > 1:
        note = (run.note or "").lower()
        tests, defers = FUNCTIONAL_TEST in note, flag(note, r"defer[_-]embedding[_-]wgrad(?:[_-]compute)?") is True
        return replace(framework, memory=replace(framework.memory, drops_hidden=tests, defers_head=defers))
    return framework


def optimizer_instances(run: Run) -> int:
    """The number of copies of Megatron-Core's distributed optimizer, over which data-parallel ranks are divided
    (`--num-distributed-optimizer-instances`): as a run's note states it, 2 where its note or its test's name states several,
    and else 1; also 1 if the note states the number of ranks that share one copy (`shard group 4`), which is then not divided
    again. run: a measured run.
    """
    if re.search(SHARD_GROUP, (run.note or "").lower()):
        return 1
    text = f"{run.model} {run.note or ''}".lower().replace("_", "-")
    if match := re.search(r"num-distributed-optimizer-instances[ =:]+(\d+)", text):
        return max(1, int(match[1]))
    return 2 if "dist-optimizer-instances" in text else 1


def measured_rank(run: Run, memory: Sequence[RunMemory]) -> RunMemory:
    """The memory of the pipeline rank whose peak a run measured: the last, the first, or the fullest if it does not say.
    memory: of each pipeline rank, in order.
    """
    stated_rank = (run.mem_rank or "").lower()
    if not stated_rank and (match := re.search(r"\b(last|first) rank\b", (run.note or "").lower())):
        stated_rank = match[1]
    if stated_rank in ("last", "first"):
        return memory[-1 if stated_rank == "last" else 0]
    return max(memory, key=lambda rank: rank.peak_bytes)
