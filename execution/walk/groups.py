"""Which ranks take part in each operation: those that hold what it gathers or sums, each once."""

from __future__ import annotations

from trainplan.execution.program import Instruction, Op, Program
from trainplan.formulations.strategies import Paradigm, gather_ranks

ALONG: dict[Op, Paradigm] = {  # those that differ along one level of the unit's strategy
    Op.ALL_REDUCE: "tp",
    Op.GATHER_STATISTICS: "tp",
    Op.REDUCE_REPLICATED: "tp",
    Op.GATHER_PARAMETERS: "sdp",
    Op.REDUCE_SCATTER_GRADIENTS: "sdp",
    Op.ALL_REDUCE_GRADIENTS: "dp",
}


def groups(program: Program) -> list[str]:
    """Instructions with ranks that are not those of their operation."""
    faults, by_role = [], dict[tuple[Op, int | None, bool], tuple[int, ...]]()
    for instruction in program.instructions:
        for i in instruction.messages:
            role = (i.op, i.unit, _is_forward(i))
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


def _members(program: Program, op: Op, unit: int | None, forward: bool) -> tuple[int, ...]:
    rank, place, strategies = program.rank, program.place, program.strategies
    size, begin = strategies[0].group, rank - place
    if op is Op.REDUCE_LOSS:
        return tuple(range(program.world))
    if op is Op.REDUCE_TIED:  # all copies of the matrix: of the first unit and of the last
        return tuple(sorted({*range(size), *range(program.world - size, program.world)}))
    if op in (Op.SEND, Op.RECEIVE):
        return tuple(sorted((rank, rank + size if (op is Op.SEND) == forward else rank - size)))
    if unit is None:
        return ()
    if op is Op.GATHER_SLICE:
        before = unit - 1 if forward else unit + 1
        return tuple(begin + other for other in gather_ranks(strategies[before], strategies[unit], place))
    return tuple(begin + other for other in strategies[unit].peers(place, ALONG[op])) if op in ALONG else ()
