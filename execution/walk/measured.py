"""What instructions took in a run, waiting left out, for the time walk.

All ranks of a run read one clock. In a collective nobody waits longer than the last member that comes takes; the walk itself
takes the least of their times. A send waits for its receive to begin, and a receive for its send: the time of either counts
from when the other one has come to it. A receive's counts from the end of a send, which the walk has let pass by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from trainplan.execution.program import POINT_TO_POINT, Instruction, Op, Program

Span = tuple[int, int]  # when an instruction began and ended, in ns


class MeasuredCosts:
    """Durations of these programs' instructions: of each the median of what it took in several steps, without waiting.

    spans: by step and program, those of all instructions, in issue order.
    """

    def __init__(self, programs: Sequence[Program], spans: Sequence[Sequence[Sequence[Span]]]) -> None:
        self._programs = programs  # so that no other instruction can take the place of one of theirs
        self._times: dict[int, int] = {}
        steps = [_without_waiting(programs, step) for step in spans]
        for program, *times in zip(programs, *steps, strict=True):
            for instruction, *each in zip(program.instructions, *times, strict=True):
                self._times[id(instruction)] = int(median(each))

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """What an instruction of these programs took, in whole ns."""
        return self._times[id(instruction)]


def _without_waiting(programs: Sequence[Program], spans: Sequence[Sequence[Span]]) -> list[list[int]]:
    """What the instructions of each program took in one step."""
    arrivals: dict[tuple[Op, int, int], list[int]] = defaultdict(list)
    for program, of_program in zip(programs, spans, strict=True):
        for instruction, (start, end) in zip(program.instructions, of_program, strict=True):
            for op, sender, receiver in _messages(program, instruction):
                arrivals[op, sender, receiver].append(end if instruction.op is Op.SEND else start)
    moments = {key: iter(values) for key, values in arrivals.items()}
    return [
        [
            max(0, end - max([start, *(next(moments[_ANSWER[op], a, b]) for op, a, b in _messages(program, instruction))]))
            for instruction, (start, end) in zip(program.instructions, of_program, strict=True)
        ]
        for program, of_program in zip(programs, spans, strict=True)
    ]


_ANSWER = {Op.SEND: Op.RECEIVE, Op.RECEIVE: Op.SEND}


def _messages(program: Program, instruction: Instruction) -> list[tuple[Op, int, int]]:
    """Sends and receives of an instruction, each with its sender and its receiver."""
    if instruction.op not in POINT_TO_POINT:
        return []
    pairs = [(message.op, *(rank for rank in message.group if rank != program.rank)) for message in instruction.messages]
    return [(op, *((program.rank, peer) if op is Op.SEND else (peer, program.rank))) for op, peer in pairs]
