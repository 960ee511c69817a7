"""Static checks: all that can be wrong with a set of programs, found without starting a process.

- fields: all of the right type and in their ranges, and ranks that agree on the world, the model and the stages;
- operands: every operation takes its own kinds of buffers, in the right order, on its own lane, and frees them;
- groups: every operation is over the ranks that hold what it gathers or sums, or have what it sends or receives;
- sizes: the bytes of buffers, messages and workspaces are those that follow from the model, the strategies and the samples;
- races: two accesses of one buffer, at least one a change, that no chain of lane order and waits puts in order, and a
  synchronisation that some lane does not wait for, or the other way round;
- lifetimes: a buffer read before it is written, used after it is freed, or never freed;
- posts: receives of one sender that are posted in another order than they come in, or are posted and never received;
- meanings: all ranks are run together on what the values *mean*: which samples, which partial sums, which shards. On the way
  every collective must find the same operation, message and group at the head of every member's queue, and every send its
  receive, so that the order in which each rank issues its communication ends; and at each optimizer step every gradient must
  hold each sample exactly once.

Ranks whose programs differ in groups and samples alone are of one kind: except for groups and meanings, one of them stands for
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from trainplan.execution.analysis.verify.buffer_sizes import sizes, states
from trainplan.execution.analysis.verify.operands import operands
from trainplan.execution.analysis.verify.semantics import meanings
from trainplan.execution.analysis.verify.structure import malformed, misplaced
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.instruction_spec import Stream
from trainplan.execution.instructions import Op
from trainplan.execution.program import Clocks, Instruction, Program, layout_unit
from trainplan.formulations.plan.strategy import COPIES, gather_ranks, piece_peers


@gc_paused()
def check(programs: Sequence[Program]) -> list[str]:
    """Check a plan's programs, one per rank, without running them: fields, operands, sizes, lifetimes of buffers, races
    between lanes, groups of ranks, and whether together they compute the model's gradients. Returns the faults as lines of
    text that name rank and instruction; empty if the programs are sound. A lane is a queue of instructions that run in order.
    """
    return misplaced(programs) or program_faults(programs) or meanings(programs)


def program_faults(programs: Sequence[Program]) -> list[str]:
    """Faults of the programs' instructions, each program checked without the others, as lines of text; empty if there are none.
    Programs that are equal up to groups and samples are checked only once."""
    wrong_form, wrong_operands, wrong = list[str](), list[str](), list[str]()
    for program in _kinds(programs):  # all of one program together: they parse the same names
        if faults := malformed(program):  # what comes after relies on what comes before
            wrong_form += faults
        elif faults := operands(program):
            wrong_operands += faults
        else:
            wrong += (*sizes(program), *races(program), *lifetimes(program), *posts(program))
    if wrong_form or wrong_operands:
        return wrong_form or wrong_operands
    return [fault for program in programs for fault in (*states(program), *groups(program))] + wrong


def _kinds(programs: Sequence[Program]) -> list[Program]:
    """One program of each kind: programs are of one kind if they are equal up to groups of ranks and ids of samples. A program
    is one rank's instructions for a training step."""
    kinds: list[Program] = []
    for program in programs:
        if not any(_alike(program, other) for other in kinds):
            kinds.append(program)
    return kinds


_shape = attrgetter(
    *("op", "unit", "micro_batch", "half", "reads", "writes", "frees", "message_bytes", "workspace_bytes", "waits", "lane"),
    *("after", "marks"),
)


def _alike(a: Program, b: Program) -> bool:
    """Whether two programs are equal up to groups of ranks and ids of samples. A program is one rank's instructions for a
    training step."""
    names = ("units", "micro_batches", "persistent", "buffers")
    if any(getattr(a, name) != getattr(b, name) for name in names) or len(a.instructions) != len(b.instructions):
        return False
    return all(i is j or _alike_instructions(i, j) for i, j in zip(a.instructions, b.instructions, strict=True))


def _alike_instructions(i: Instruction, j: Instruction) -> bool:
    """Whether two instructions are equal up to groups of ranks and ids of samples."""
    if not type(i) is type(j) is Instruction or _shape(i) != _shape(j):
        return False
    if not all(type(value) is tuple for value in (i.group, j.group, i.grouped, j.grouped)):
        return False
    if len(i.group) != len(j.group) or len(i.grouped) != len(j.grouped) or type(i.args) is not dict:
        return False
    if i.args is not j.args and (i.args or j.args) and _kind(i.args) != _kind(j.args):
        return False
    return all(_alike_instructions(*messages) for messages in zip(i.grouped, j.grouped, strict=True))


def _kind(value: Any) -> Any:
    """An instruction's argument with ids of samples replaced by their number, so that arguments of different ranks compare
    equal."""
    if type(value) is dict:
        return {name: _kind(argument) for name, argument in value.items()}
    if type(value) is not tuple:
        return value
    types = set(map(type, value))
    return list(map(_kind, value)) if tuple in types else (len(value), types)


def races(program: Program) -> list[str]:
    """Races in a program, as lines of text, empty if there are none: pairs of instructions that access one buffer, at least
    one of which writes or frees it, and that are ordered neither by a lane (a queue of instructions) nor by waits; and
    synchronisations that do not order all lanes."""
    faults = []
    clocks, writer = Clocks(), dict[str, int]()
    readers: dict[str, list[int]] = {}
    last: dict[Stream, int] = {}
    synchronised: int | None = None
    for position, instruction in enumerate(program.instructions):
        stream = instruction.stream
        for index in instruction.waits:
            if index >= position:
                faults.append(f"rank {program.rank}: {instruction} waits for a later instruction")
            else:
                clocks.wait(stream, index)
        changed = set(instruction.changes)
        for name in {*instruction.needs, *changed}:
            before = [writer[name]] if name in writer else []
            before += readers.get(name, []) if name in changed else []
            for index in before:
                if not clocks.done(stream, index):
                    other = program.instructions[index]
                    faults.append(f"rank {program.rank}: {instruction} and {other} race for {name}")
        joined = list(last.values()) if instruction.op is Op.SYNCHRONISE else []
        joined += [] if synchronised is None else [synchronised]
        for index in joined:
            if not clocks.done(stream, index):
                faults.append(f"rank {program.rank}: {instruction} does not wait for {program.instructions[index]}")
        for name in instruction.needs:
            readers.setdefault(name, []).append(position)
        for name in changed:
            writer[name], readers[name] = position, []
        clocks.issue(stream)
        last[stream] = position
        synchronised = position if instruction.op is Op.SYNCHRONISE else synchronised
    return faults


def lifetimes(program: Program) -> list[str]:
    """Faults in the lifetimes of a program's buffers, as lines of text, empty if there are none: reads of buffers that are not
    allocated, marks (names used for order alone) that nothing has set, and buffers that outlive the step. A program is one
    rank's instructions for a training step."""
    faults, live, marked = [], set(program.persistent), set[str]()
    for instruction in program.instructions:
        for name in instruction.after:
            if name not in marked:
                faults.append(f"rank {program.rank}: {instruction} comes after {name}, which is not there")
        marked.update(instruction.marks)
        for name in instruction.reads:
            if name not in live:
                faults.append(f"rank {program.rank}: {instruction} reads {name}, which is not there")
        for name in instruction.writes:
            if name in live and name not in program.persistent and name not in instruction.reads:
                faults.append(f"rank {program.rank}: {instruction} writes {name}, which is still held")
        live.update(instruction.writes)
        for name in instruction.frees:
            if name not in live or name in program.persistent:
                faults.append(f"rank {program.rank}: {instruction} frees {name}, which is not there to free")
            live.discard(name)
    return faults + [f"rank {program.rank}: {name} is never freed" for name in sorted(live - program.persistent)]


def posts(program: Program) -> list[str]:
    """Faults of a program's posted receives (buffers announced before their message is received), as lines of text, empty if
    there are none: posts without a receive, and receives from one sender in another order than their posts, since a message
    goes to whichever was posted first. A program is one rank's instructions for a training step."""
    senders = {m.writes[0]: m.group for i in program.instructions for m in i.messages if m.op is Op.RECEIVE}
    waiting, faults = dict[tuple[int, ...], list[str]](), list[str]()
    for instruction in program.instructions:
        for i in instruction.messages:
            if i.op is Op.POST_RECEIVE:
                waiting.setdefault(senders.get(i.writes[0], ()), []).append(i.writes[0])
            elif i.op is Op.RECEIVE:
                posted = waiting.get(i.group, [])
                if posted[:1] == [*i.reads]:
                    del posted[:1]
                else:
                    faults.append(
                        f"rank {program.rank}: {i} of {i.writes[0]} comes where {', '.join(posted) or 'none'} is posted"
                    )
    never = [name for names in waiting.values() for name in names]
    return faults + [f"rank {program.rank}: {name} is posted, and never received" for name in never]


def groups(program: Program) -> list[str]:
    """Faults of a program's groups, as lines of text, empty if there are none: instructions over other ranks than their
    operation requires."""
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
    """Whether an instruction that moves rows between ranks or stages moves hidden states (True) or their gradients (False);
    False for any other instruction."""
    return bool(i.op.spec.group_axis in ("rows", "stage") and (*i.reads, *i.writes)[0].startswith("hidden"))


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as words for a line of text: (0, 1) -> 'ranks 0, 1', () -> 'no ranks'."""
    return f"ranks {', '.join(map(str, ranks))}" if ranks else "no ranks"


def _elsewhere(program: Program, i: Instruction) -> tuple[int, ...]:
    """The ranks with which a message `i` may be exchanged if the other stage has another number of ranks than this one: all
    ranks of that stage. Empty if both stages have equally many: the peer is then given."""
    assert i.unit is not None
    if program.strategies[i.unit - 1].group == program.strategies[i.unit].group:
        return ()
    return program.ranks_of(i.unit if i.unit not in program.units else i.unit - 1)


def _members(program: Program, op: Op, unit: int | None, forward: bool) -> tuple[int, ...]:
    """The ranks that an operation must be over, ascending; empty if it is of this rank alone. unit: index of the unit
    (sub-layer) that it is about; None for operations of the whole step. forward: whether it moves hidden states, not their
    gradients."""
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
    return tuple(ranks[other] for other in strategies[unit].peers(index, *(COPIES if axis == "copies" else (axis,))))
