"""What copies between device and host mean, and what they must find: the unit's own, whole, and of the same step."""

from __future__ import annotations

from trainplan.execution.program import Instruction, Op
from trainplan.execution.walk.interpreter import Hidden, Interpreter, Rule, fault_at

# The kinds of the one buffer that is read and of the one that is written.
KINDS = {
    Op.PREFETCH_SHARD: ("host-parameter", "parameter"),
    Op.OFFLOAD_HIDDEN: ("hidden", "host-hidden"),
    Op.PREFETCH_HIDDEN: ("host-hidden", "input"),
    Op.OFFLOAD_GRADIENT: ("gradient", "host-gradient"),
}


def _copy(run: Interpreter, rank: int, head: Instruction) -> None:
    names = (*head.reads, *head.writes)
    if [name.split(".")[:2] for name in names] != [[kind, str(head.unit)] for kind in KINDS[head.op]]:
        raise fault_at(rank, head, f"copies {', '.join(head.reads)} to {', '.join(head.writes)}")
    value = run.value(rank, head.reads[0])
    if head.op is Op.OFFLOAD_HIDDEN:
        hidden = isinstance(value, Hidden) and (value.stage, value.boundary) == ("hidden", head.unit)
        if not hidden or not value.whole():
            raise fault_at(rank, head, f"copies {head.reads[0]}, which is not the whole input of its unit")
    run.values[rank][head.writes[0]] = value


def _drop_hidden(run: Interpreter, rank: int, head: Instruction) -> None:
    (copy,), (name,) = head.reads, head.frees
    if run.value(rank, copy) != run.value(rank, name):
        raise fault_at(rank, head, f"drops {name}, of which {copy} is no copy")


COPIED: dict[Op, Rule] = {**dict.fromkeys(KINDS, _copy), Op.DROP_HIDDEN: _drop_hidden}
