"""Static checks: what can be wrong with a set of programs, found without starting a process.

- races: two accesses of one buffer, at least one a change, that no chain of lane order and waits puts in order, and a
  synchronisation that some lane does not wait for, or the other way round;
- lifetimes: a buffer read before it is written, used after it is freed, or never freed;
- meanings: all ranks are run together on what the values *mean*: which samples, which partial sums, which shards. On the way
  every collective must find the same operation, message and group at the head of every member's queue, and every send its
  receive, so that the order in which each rank issues its communication ends; and at each optimizer step every gradient must
  hold each sample once.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.program import Clocks, Op, Program, Stream
from trainplan.execution.walk.meanings import meanings


def check(programs: Sequence[Program]) -> list[str]:
    """Every fault found, in words that name rank and instruction; empty for sound programs."""
    faults = [fault for program in programs for fault in (*races(program), *lifetimes(program))]
    return faults or meanings(programs)


def races(program: Program) -> list[str]:
    """Pairs of conflicting accesses that are not ordered by lane order and waits, and lanes that do not synchronise."""
    faults = []
    clocks, writer = Clocks(), dict[str, int]()
    readers: dict[str, list[int]] = {}
    last: dict[Stream, int] = {}
    synchronised: int | None = None
    for place, instruction in enumerate(program.instructions):
        stream = instruction.stream
        for index in instruction.waits:
            if index >= place:
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
            readers.setdefault(name, []).append(place)
        for name in changed:
            writer[name], readers[name] = place, []
        clocks.issue(stream)
        last[stream] = place
        synchronised = place if instruction.op is Op.SYNCHRONISE else synchronised
    return faults


def lifetimes(program: Program) -> list[str]:
    """Reads of what is not there, marks that nothing has set, and buffers that outlive the step."""
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
