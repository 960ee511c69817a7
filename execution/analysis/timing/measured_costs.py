"""Durations of instructions measured in a run, without waiting, for simulations of the step.

All ranks of a run read one clock. In a collective the member that comes last waits for nobody: all members get the shortest of
their times. A send waits for its receive to begin, and a receive for its send: the time of either counts from when both have
begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from trainplan.execution.analysis.timing.simulate import Durations
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program

Span = tuple[int, int]  # when an instruction began and ended, in ns


class MeasuredCosts:
    """Durations in ns of the instructions of given programs, as measured in a run: for each instruction the median over
    several steps of the time that it took, without the time that it waited for other ranks. Called with a program and an
    instruction of it.

    spans: [step][program][instruction] -> (begin, end) in ns, instructions in issue order.
    """

    def __init__(self, programs: Sequence[Program], spans: Sequence[Sequence[Sequence[Span]]]) -> None:
        self._programs = programs  # kept alive, so that ids of instructions stay theirs
        self._times: dict[tuple[int, int], int] = {}  # by rank and instruction: ranks that do the same share instructions
        steps = [_without_waiting(programs, step) for step in spans]
        for program, *times in zip(programs, *steps, strict=True):
            for instruction, *durations in zip(program.instructions, *times, strict=True):
                self._times[program.rank, id(instruction)] = int(median(durations))

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """The duration of an instruction of these programs, in whole ns."""
        return self._times[program.rank, id(instruction)]


@dataclass(frozen=True)
class KindTimes:
    """Time in ns that the instructions of one operation take in a step, summed over all ranks, without waiting. kind: the
    operation's name. count: number of instructions. predicted_ns: None if there is no prediction."""

    kind: str
    count: int
    predicted_ns: int | None
    measured_ns: int


def times_by_kind(programs: Sequence[Program], measured: Durations, predicted: Durations | None) -> list[KindTimes]:
    """Predicted and measured times of these programs' instructions, summed by operation, the longest measured first. measured,
    predicted: give the duration in ns of an instruction of a program; predicted is None if there is no prediction."""
    kinds: dict[Op, list[tuple[Program, Instruction]]] = defaultdict(list)
    for program in programs:
        for instruction in program.instructions:
            kinds[instruction.op].append((program, instruction))

    def total(costs: Durations, issued: list[tuple[Program, Instruction]]) -> int:
        """The sum of the durations of some instructions."""
        return sum(costs(program, instruction) for program, instruction in issued)

    rows = [
        KindTimes(str(op), len(issued), None if predicted is None else total(predicted, issued), total(measured, issued))
        for op, issued in kinds.items()
    ]
    return sorted(rows, key=lambda row: -row.measured_ns)


def _without_waiting(programs: Sequence[Program], spans: Sequence[Sequence[Span]]) -> list[list[int]]:
    """Durations in ns [program][instruction] of one step, without the time in which an instruction waited for other ranks.
    spans: [program][instruction] -> (begin, end) in ns, as measured. All members of a collective get the shortest time of any
    of them; a send or receive is counted from the moment at which both its sender and its receiver have reached it."""
    arrivals: dict[tuple[Op, int, int], list[int]] = defaultdict(list)
    for program, of_program in zip(programs, spans, strict=True):
        for instruction, (start, end) in zip(program.instructions, of_program, strict=True):
            for op, sender, receiver in _messages(program, instruction):
                arrivals[op, sender, receiver].append(end if instruction.op is Op.SEND else start)
    moments = {key: iter(values) for key, values in arrivals.items()}

    def arrived(program: Program, instruction: Instruction) -> Iterator[int]:
        """The times at which the other ends of an instruction's messages came to them."""
        for op, sender, receiver in _messages(program, instruction):
            yield next(moments[Op.RECEIVE if op is Op.SEND else Op.SEND, sender, receiver])

    times = [
        [
            max(0, end - max([start, *arrived(program, instruction)]))
            for instruction, (start, end) in zip(program.instructions, of_program, strict=True)
        ]
        for program, of_program in zip(programs, spans, strict=True)
    ]
    for meeting in _meetings(programs):
        least = min(times[number][index] for number, index in meeting)
        for number, index in meeting:
            times[number][index] = least
    return times


def _meetings(programs: Sequence[Program]) -> Iterable[list[tuple[int, int]]]:
    """The collectives of one step: for each, a list of (index of the program, index of the instruction in it), one pair per
    member. Members are matched by count: the n-th collective over a group on one member is the n-th on all. Groups of one rank
    are left out."""
    meetings: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = defaultdict(list)
    for number, program in enumerate(programs):
        counts: dict[tuple[int, ...], int] = defaultdict(int)
        for index, instruction in enumerate(program.instructions):
            if instruction.op.spec.kind == "collective":
                meetings[instruction.group, counts[instruction.group]].append((number, index))
                counts[instruction.group] += 1
    return [meeting for (group, _), meeting in meetings.items() if len(group) > 1]


def _messages(program: Program, instruction: Instruction) -> list[tuple[Op, int, int]]:
    """The sends and receives that an instruction of this program consists of, as (operation, sender's rank, receiver's rank);
    empty for an instruction that is no message."""
    if instruction.op.spec.kind != "message":
        return []
    pairs = [(message.op, *(rank for rank in message.group if rank != program.rank)) for message in instruction.messages]
    return [(op, *((program.rank, peer) if op is Op.SEND else (peer, program.rank))) for op, peer in pairs]
