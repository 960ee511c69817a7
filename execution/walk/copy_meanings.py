"""What copies between device and host mean, and what they must find: the unit's own, whole, and of the same step."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.program import Instruction, Op
from trainplan.execution.walk.interpreter import Hidden, Interpreter, Rule, fault_at


def _copy(run: Interpreter, rank: int, head: Instruction, source: str, target: str) -> None:
    """The one buffer that is read becomes the one that is written. source, target: their kinds."""
    if [name.split(".")[:2] for name in (*head.reads, *head.writes)] != [[kind, str(head.unit)] for kind in (source, target)]:
        raise fault_at(rank, head, f"copies {', '.join(head.reads)} to {', '.join(head.writes)}")
    run.values[rank][head.writes[0]] = run.value(rank, head.reads[0])


def _prefetch_shard(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    _copy(run, ranks[0], heads[0], "host-parameter", "parameter")


def _offload_hidden(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    _copy(run, rank, head, "hidden", "host-hidden")
    value = run.value(rank, head.reads[0])
    if not isinstance(value, Hidden) or (value.stage, value.boundary) != ("hidden", head.unit) or not value.whole():
        raise fault_at(rank, head, f"copies {head.reads[0]}, which is not the whole input of its unit")


def _drop_hidden(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    (copy,), (name,) = head.reads, head.frees
    if run.value(rank, copy) != run.value(rank, name):
        raise fault_at(rank, head, f"drops {name}, of which {copy} is no copy")


def _prefetch_hidden(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    _copy(run, ranks[0], heads[0], "host-hidden", "input")


def _offload_gradient(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    _copy(run, ranks[0], heads[0], "gradient", "host-gradient")


COPIED: dict[Op, Rule] = {
    Op.PREFETCH_SHARD: _prefetch_shard,
    Op.OFFLOAD_HIDDEN: _offload_hidden,
    Op.DROP_HIDDEN: _drop_hidden,
    Op.PREFETCH_HIDDEN: _prefetch_hidden,
    Op.OFFLOAD_GRADIENT: _offload_gradient,
}
