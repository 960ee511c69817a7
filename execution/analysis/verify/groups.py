"""Which ranks take part in each operation: those that hold what it gathers or sums, each once."""

from __future__ import annotations

from trainplan.execution.program import HEADS_EXCHANGED, OF_WHOLE_KEYS, Instruction, Op, Program, laid_as
from trainplan.formulations.plan.strategy import Paradigm, gather_ranks, piece_peers

ALONG: dict[Op, Paradigm] = {  # those that differ along one level of the unit's strategy
    Op.ALL_REDUCE: "tp",
    Op.GATHER_TOKENS: "tp",
    Op.REDUCE_SCATTER_TOKENS: "tp",
    Op.GATHER_STATISTICS: "tp",
    Op.REDUCE_REPLICATED: "tp",
    Op.GATHER_PARAMETERS: "sdp",
    Op.GATHER_UPDATED: "sdp",
    Op.REDUCE_SCATTER_GRADIENTS: "sdp",
    Op.ALL_REDUCE_GRADIENTS: "dp",
}


def groups(program: Program) -> list[str]:
    """Instructions with ranks that are not those of their operation."""
    faults, by_role = [], dict[tuple[Op, int | None, bool], tuple[int, ...]]()
    for instruction in program.instructions:
        ends = {rank for message in instruction.grouped for rank in message.group}
        if ends and instruction.group != tuple(sorted(ends)):
            faults.append(
                f"rank {program.rank}: {instruction} is over {_ranks(instruction.group)}, not over those of its messages"
            )
        for i in instruction.messages:
            if i.op in (Op.SEND, Op.RECEIVE) and (there := _elsewhere(program, i)):
                if i.group not in {tuple(sorted((program.rank, rank))) for rank in there}:
                    faults.append(f"rank {program.rank}: {i} is over {_ranks(i.group)}, not with one of {_ranks(there)}")
                    break
                continue
            unit = laid_as(i.reads[0]) if i.op is Op.GATHER_TOKENS else i.unit
            role = (i.op, unit, _is_forward(i))
            if role not in by_role:
                by_role[role] = _members(program, *role)
            if i.group != by_role[role]:
                faults.append(f"rank {program.rank}: {i} is over {_ranks(i.group)}, not over {_ranks(by_role[role])}")
                break
    return faults


def _is_forward(i: Instruction) -> bool:
    """Whether what is moved are hidden states, not their gradients."""
    return bool(i.op in (Op.GATHER_SLICE, Op.SEND, Op.RECEIVE) and (*i.reads, *i.writes)[0].startswith("hidden"))


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"ranks {', '.join(map(str, ranks))}" if ranks else "no ranks"


def _elsewhere(program: Program, i: Instruction) -> tuple[int, ...]:
    """The ranks of the other stage of a message, where that is of another size: any of them may be the one that it is with."""
    assert i.unit is not None
    if program.strategies[i.unit - 1].group == program.strategies[i.unit].group:
        return ()
    return program.ranks_of(i.unit if i.unit not in program.units else i.unit - 1)


def _members(program: Program, op: Op, unit: int | None, forward: bool) -> tuple[int, ...]:
    rank, place, strategies = program.rank, program.place, program.strategies
    if op is Op.REDUCE_LOSS:
        return tuple(range(program.world))
    if op is Op.REDUCE_TIED:  # all copies of the matrix: of the first unit and of the last
        return tuple(sorted({*program.groups[0], *program.groups[-1]}))
    if unit is None:
        return ()
    if op in OF_WHOLE_KEYS | HEADS_EXCHANGED:
        return tuple(program.stage_ranks[other] for other in piece_peers(strategies[unit], place, program.model.pieces))
    if op in (Op.SEND, Op.RECEIVE):
        there = program.ranks_of(unit if (op is Op.SEND) == forward else unit - 1)
        return tuple(sorted((rank, there[place])))
    ranks = program.stage_ranks
    if op is Op.GATHER_SLICE:
        before = unit - 1 if forward else unit + 1
        return tuple(ranks[other] for other in gather_ranks(strategies[before], strategies[unit], place))
    return tuple(ranks[other] for other in strategies[unit].peers(place, ALONG[op])) if op in ALONG else ()
