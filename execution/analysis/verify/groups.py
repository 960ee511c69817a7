"""Which ranks take part in each operation: those that hold what it gathers or sums."""

from __future__ import annotations

from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, layout_unit
from trainplan.formulations.plan.strategy import gather_ranks, piece_peers


def groups(program: Program) -> list[str]:
    """Faults of a program, as lines of text: instructions over other ranks than their operation needs."""
    faults, by_role = [], dict[tuple[Op, int | None, bool], tuple[int, ...]]()
    for instruction in program.instructions:
        ends = {rank for message in instruction.grouped for rank in message.group}
        if ends and instruction.group != tuple(sorted(ends)):
            faults.append(
                f"rank {program.rank}: {instruction} is over {_ranks(instruction.group)}, not over those of its messages"
            )
        for i in instruction.messages:
            if i.op.spec.group_axis == "stage" and (there := _elsewhere(program, i)):
                if i.group not in {tuple(sorted((program.rank, rank))) for rank in there}:
                    faults.append(f"rank {program.rank}: {i} is over {_ranks(i.group)}, not with one of {_ranks(there)}")
                    break
                continue
            unit = layout_unit(i.reads[0]) if i.op is Op.GATHER_TOKENS else i.unit
            role = (i.op, unit, _is_forward(i))
            if role not in by_role:
                by_role[role] = _members(program, *role)
            if i.group != by_role[role]:
                faults.append(f"rank {program.rank}: {i} is over {_ranks(i.group)}, not over {_ranks(by_role[role])}")
                break
    return faults


def _is_forward(i: Instruction) -> bool:
    """Whether an instruction moves hidden states, not their gradients."""
    return bool(i.op.spec.group_axis in ("rows", "stage") and (*i.reads, *i.writes)[0].startswith("hidden"))


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as words, for faults."""
    return f"ranks {', '.join(map(str, ranks))}" if ranks else "no ranks"


def _elsewhere(program: Program, i: Instruction) -> tuple[int, ...]:
    """The ranks of the other stage of a message, where that has another size, so that the message may be with any of them; else
    empty."""
    assert i.unit is not None
    if program.strategies[i.unit - 1].group == program.strategies[i.unit].group:
        return ()
    return program.ranks_of(i.unit if i.unit not in program.units else i.unit - 1)


def _members(program: Program, op: Op, unit: int | None, forward: bool) -> tuple[int, ...]:
    """The ranks that an operation on a unit must be over. forward: whether it moves hidden states, not gradients."""
    rank, index, strategies, axis = program.rank, program.index_in_stage, program.strategies, op.spec.group_axis
    if axis == "world":
        return tuple(range(program.world))
    if axis == "tied":  # all copies of the matrix: of the first unit and of the last
        return tuple(sorted({*program.groups[0], *program.groups[-1]}))
    if axis is None or unit is None:
        return ()
    ranks = program.stage_ranks
    if axis == "cp":
        return tuple(ranks[other] for other in piece_peers(strategies[unit], index, program.model.pieces))
    if axis == "stage":
        there = program.ranks_of(unit if (op is Op.SEND) == forward else unit - 1)
        return tuple(sorted((rank, there[index])))
    if axis == "rows":
        before = unit - 1 if forward else unit + 1
        return tuple(ranks[other] for other in gather_ranks(strategies[before], strategies[unit], index))
    return tuple(ranks[other] for other in strategies[unit].peers(index, axis))
