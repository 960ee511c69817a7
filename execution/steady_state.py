"""Pipelines in rounds: from a rank's program of a few micro-batches to that of many.

Under 1F1B-Flush a rank runs one forward and one backward pass in turn once its pipeline is full. Let a *round* be what it
issues from after the first computation of one backward pass to that of the next; where p devices have several stages each, to
that of the pass p micro-batches later, since p of them go through one stage after the other. No buffer of a micro-batch
outlives the rounds that it is in flight, and what an instruction waits for lies a round back at most. So from the first round
that equals the one before it but for the numbers of its micro-batches, samples and instructions, to the last one that ends
before the last micro-batch begins its backward pass (which also reduces gradients), all rounds are one round, *moved*.

A program of few micro-batches thus tells that of many: rounds are put in after its last whole one, and what follows is moved
by as many. Nothing that a check or the memory walk looks at changes: after each round that is put in, the same buffers are
held, under other names, and each lane has come equally far; so a fault, or a peak, of the long program is one of the short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.instructions import Op
from trainplan.execution.program import UNIT_BUFFERS, Instruction, Program
from trainplan.formulations.plan.plan import Plan

STEADY = 4  # rounds of the short program beyond those in which micro-batches fill the pipeline or come in halves; the first
# is like no other, since it writes the gradients that all others add to


def few_micro_batches(plan: Plan) -> int:
    """Micro-batches that are enough for every rank's program to have two equal rounds, after all that come in halves."""
    if plan.chunks > 1:
        return (2 + STEADY) * plan.depth  # two rounds fill the pipeline
    return len(plan.stages) + plan.sliced + STEADY


def micro_batches_of_round(plan: Plan) -> int:
    """How many micro-batches a round has."""
    return plan.depth if plan.chunks > 1 else 1


@dataclass(frozen=True, eq=False)
class Rounds:
    """A program that issues some of its instructions many times over: those of `few`, a program of few micro-batches, and
    behind its instruction number `end` those from `begin` on `count` times more, moved by a round each time.

    samples: of one micro-batch; size: micro-batches of a round. With no more than `few`, it is that program as it is.
    """

    few: Program
    samples: int = 1
    begin: int = 0
    end: int = 0
    count: int = 0
    size: int = 1

    def __len__(self) -> int:
        """The number of instructions of the whole program."""
        return len(self.few.instructions) + self.count * (self.end - self.begin)

    def stretch(self, number: int) -> tuple[int, int]:
        """Where instruction `number` of the whole program stands in `few`, and up to where those behind it stand there, too."""
        size, behind = self.end - self.begin, number - self.end
        if behind < 0:
            return number, self.end
        if behind < self.count * size:
            return self.begin + behind % size, self.end
        return number - self.count * size, len(self.few.instructions)

    @property
    def issued(self) -> tuple[Instruction, ...]:
        """Of every instruction of the whole program, the one of `few` that it is but for micro-batch and samples."""
        few = self.few.instructions
        return few[: self.end] + few[self.begin : self.end] * self.count + few[self.end :]

    @cached_property
    def whole(self) -> Program:
        """The program with all its instructions."""
        return _prolonged(self) if self.count else self.few


def in_rounds(program: Program, micro_batches: int, samples: int, size: int = 1) -> Rounds | None:
    """The program of so many micro-batches, from one of fewer; None if the last whole round of that one is not the one before
    it, moved. samples: of one micro-batch; size: micro-batches of a round."""
    first: dict[int, int] = {}
    for place, instruction in enumerate(program.instructions):
        if instruction.op is Op.BACKWARD and instruction.micro_batch is not None:
            first.setdefault(instruction.micro_batch, place + 1)
    forward = max((i.micro_batch or 0 for i in program.instructions[: first.get(0, 0)] if i.op is not Op.BACKWARD), default=0)
    # Its round begins the forward pass of the last micro-batch but one, at most.
    last = (program.micro_batches - size - 1 - forward) // size * size
    if last < 2 * size or (micro_batches - program.micro_batches) % size:
        return None
    before, begin, end = (first[micro_batch] for micro_batch in (last - 2 * size, last - size, last))
    move = Move(samples)
    moved = [move(i, size, begin - before) for i in program.instructions[before:begin]]
    repeats = moved == list(program.instructions[begin:end])
    near = all(index >= begin for i in program.instructions[end:] for index in i.waits)
    count = (micro_batches - program.micro_batches) // size
    return Rounds(program, samples, begin, end, count, size) if repeats and near else None


@gc_paused()
def _prolonged(rounds: Rounds) -> Program:
    program, begin, end, missing = rounds.few, rounds.begin, rounds.end, rounds.count
    instructions, buffers = program.instructions, dict(program.buffers)
    move, made = Move(rounds.samples), list(instructions[:end])
    parts = [(number, instructions[begin:end]) for number in range(1, missing + 1)] + [(missing, instructions[end:])]
    for number, part in parts:
        later = number * rounds.size
        made += [move(instruction, later, number * (end - begin)) for instruction in part]
        for instruction in part:
            for name in instruction.writes:
                buffers[move.name(name, later)] = program.buffers[name]
    micro_batches = program.micro_batches + missing * rounds.size
    return replace(program, micro_batches=micro_batches, buffers=buffers, instructions=tuple(made))


class Move:
    """What becomes of instructions so many micro-batches and places later. samples: of one micro-batch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._split: dict[str, tuple[str, int] | None] = {}

    def __call__(self, instruction: Instruction, micro_batches: int, places: int) -> Instruction:
        """The same instruction so much later."""
        i, name = instruction, self.name
        fields: dict[str, Any] = {
            "reads": tuple([name(read, micro_batches) for read in i.reads]),
            "writes": tuple([name(write, micro_batches) for write in i.writes]),
            "frees": tuple([name(free, micro_batches) for free in i.frees]),
        }
        if i.micro_batch is not None:
            fields["micro_batch"] = i.micro_batch + micro_batches
        if i.after or i.marks:
            fields["after"] = tuple([name(each, micro_batches) for each in i.after])
            fields["marks"] = tuple([name(mark, micro_batches) for mark in i.marks])
        if i.waits:
            fields["waits"] = tuple([index + places for index in i.waits])
        if i.args:
            later = micro_batches * self._samples
            fields["args"] = {key: value if key == "tokens" else _later(value, later) for key, value in i.args.items()}
        if i.grouped:
            fields["grouped"] = tuple(self(message, micro_batches, places) for message in i.grouped)
        return i.changed(**fields)

    def name(self, name: str, micro_batches: int) -> str:
        """The buffer of the same kind and unit, so many micro-batches later; the same one, if it is of no micro-batch."""
        if name not in self._split:
            head, dot, number = name.rpartition(".")
            self._split[name] = (f"{head}.", int(number)) if dot and head not in UNIT_BUFFERS else None
        split = self._split[name]
        return name if split is None else f"{split[0]}{split[1] + micro_batches}"


def _later(value: Any, samples: int) -> Any:
    """Ids of samples, in tuples of any depth, so many further on; other arguments as they are."""
    if isinstance(value, tuple):
        return tuple([_later(each, samples) for each in value])
    return value + samples if type(value) is int else value
