"""What copies between device and host mean, and what they must find: the whole input of their unit, of the same step."""

from __future__ import annotations

from trainplan.execution.analysis.verify.interpreter import Hidden, Interpreter, Rule, fault_at
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction


def _copy(run: Interpreter, rank: int, head: Instruction) -> None:
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


COPIED: dict[Op, Rule] = {**{op: _copy for op in Op if op.spec.copied}, Op.DROP_HIDDEN: _drop_hidden}
