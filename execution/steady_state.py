"""The steady state of a pipeline: from a rank's program of a few micro-batches to that of many.

Under 1F1B-Flush a rank runs one forward and one backward pass in turn once its pipeline is full. Let a *round* be what it
issues from after the first computation of one backward pass to that of the next; where p devices have several stages each, to
that of the pass p micro-batches later, since p of them go through one stage after the other. No buffer of a micro-batch
outlives the rounds that it is in flight, and what an instruction waits for lies a round back at most. So from the first round
that equals the one before it except for the numbers of its micro-batches, samples and instructions, to the last one that ends
before the last micro-batch begins its backward pass (which also reduces gradients), all rounds are one round, *moved*.

So the program of many micro-batches follows from one of few: copies of a round are inserted after its last whole round, and the
numbers of micro-batches and instructions after them are moved up accordingly. Nothing that a check or the memory analysis looks
at changes: after each inserted round the same buffers are held, under other names, and each lane has come equally far; so a
fault, or a peak, of the long program is one of the short.
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
    """Number of micro-batches of a short program of this plan from which programs of any length can be built: enough for every
    rank to issue two equal rounds (one forward and one backward pass in turn) in the pipeline's steady state, after all
    micro-batches that run in halves. A program is one rank's instructions for a training step."""
    if plan.chunks > 1:
        return (2 + STEADY) * plan.depth  # two rounds fill the pipeline
    return len(plan.stages) + plan.sliced + STEADY


def micro_batches_of_round(plan: Plan) -> int:
    """Number of micro-batches that one round of the pipeline's steady state covers: 1, or under interleaved schedules the
    number of devices along the pipeline."""
    return plan.depth if plan.chunks > 1 else 1


@dataclass(frozen=True, eq=False)
class Rounds:
    """A program of many micro-batches in compact form. A round is the stretch of instructions that a rank issues again and
    again in the pipeline's steady state: one forward and one backward pass (of p micro-batches each, if p devices have several
    stages each). `few` is the program of a few micro-batches; its instructions with indices from `begin` to `end` (exclusive)
    are one round, and the whole program repeats them `count` more times after index `end`, each time for later micro-batches.

    samples: samples per micro-batch. size: micro-batches per round. With count 0 the whole program is `few` as it is.
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
        """Find instruction `number` of the whole program in `few`: returns (its index in `few`, the end, exclusive, of the run
        of consecutive instructions of `few` that follow it in the whole program, too)."""
        size, past = self.end - self.begin, number - self.end
        if past < 0:
            return number, self.end
        if past < self.count * size:
            return self.begin + past % size, self.end
        return number - self.count * size, len(self.few.instructions)

    @property
    def issued(self) -> tuple[Instruction, ...]:
        """For every instruction of the whole program, in issue order, the instruction of `few` that it is a copy of; the
        copies differ only in the numbers of micro-batches, samples and instructions."""
        few = self.few.instructions
        return few[: self.end] + few[self.begin : self.end] * self.count + few[self.end :]

    @cached_property
    def whole(self) -> Program:
        """The whole program, with the instructions of all rounds written out; computed once."""
        return _prolonged(self) if self.count else self.few


def in_rounds(program: Program, micro_batches: int, samples: int, size: int = 1) -> Rounds | None:
    """The compact form of a program of `micro_batches` micro-batches, extended from a `program` of fewer micro-batches by
    repeating its last whole round (one forward and one backward pass of the steady state). samples: samples per micro-batch.
    size: micro-batches per round. None if the program cannot be extended so: its last whole round does not equal the round
    before it (apart from numbers of micro-batches), it has too few rounds, or the missing micro-batches are no multiple of
    `size`. A program is one rank's instructions for a training step."""
    first: dict[int, int] = {}
    for position, instruction in enumerate(program.instructions):
        if instruction.op is Op.BACKWARD and instruction.micro_batch is not None:
            first.setdefault(instruction.micro_batch, position + 1)
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
    """The whole program of a compact form, with every instruction and buffer of the repeated rounds written out."""
    program, begin, end, missing = rounds.few, rounds.begin, rounds.end, rounds.count
    instructions, buffers = program.instructions, dict(program.buffers)
    move, issued = Move(rounds.samples), list(instructions[:end])
    parts = [(number, instructions[begin:end]) for number in range(1, missing + 1)] + [(missing, instructions[end:])]
    for number, part in parts:
        later = number * rounds.size
        issued += [move(instruction, later, number * (end - begin)) for instruction in part]
        for instruction in part:
            for name in instruction.writes:
                buffers[move.name(name, later)] = program.buffers[name]
    micro_batches = program.micro_batches + missing * rounds.size
    return replace(program, micro_batches=micro_batches, buffers=buffers, instructions=tuple(issued))


class Move:
    """Shifts instructions of a program to later micro-batches (names of buffers, ids of samples) and to later positions in the
    program (indices in `waits`). A unit is a sub-layer of the model. samples: samples per micro-batch, by which ids of samples
    grow."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._split: dict[str, tuple[str, int] | None] = {}

    def __call__(self, instruction: Instruction, micro_batches: int, positions: int) -> Instruction:
        """The instruction as it is `micro_batches` micro-batches and `positions` instructions later."""
        i, name = instruction, self.name
        fields: dict[str, Any] = {
            "reads": tuple([name(read, micro_batches) for read in i.reads]),
            "writes": tuple([name(write, micro_batches) for write in i.writes]),
            "frees": tuple([name(free, micro_batches) for free in i.frees]),
        }
        if i.micro_batch is not None:
            fields["micro_batch"] = i.micro_batch + micro_batches
        if i.after or i.marks:
            fields["after"] = tuple([name(mark, micro_batches) for mark in i.after])
            fields["marks"] = tuple([name(mark, micro_batches) for mark in i.marks])
        if i.waits:
            fields["waits"] = tuple([index + positions for index in i.waits])
        if i.args:
            later = micro_batches * self._samples
            fields["args"] = {key: value if key == "tokens" else _later(value, later) for key, value in i.args.items()}
        if i.grouped:
            fields["grouped"] = tuple(self(message, micro_batches, positions) for message in i.grouped)
        return i.changed(**fields)

    def name(self, name: str, micro_batches: int) -> str:
        """The name of the buffer of the same kind and unit, `micro_batches` micro-batches later: 'hidden.4.0' with 2 ->
        'hidden.4.2'. The same name if the buffer belongs to no micro-batch, as 'parameter.4'."""
        if name not in self._split:
            head, dot, number = name.rpartition(".")
            self._split[name] = (f"{head}.", int(number)) if dot and head not in UNIT_BUFFERS else None
        split = self._split[name]
        return name if split is None else f"{split[0]}{split[1] + micro_batches}"


def _later(value: Any, samples: int) -> Any:
    """An instruction's argument with `samples` added to every integer in it, in tuples of any depth: ((0, 1), 'x') with 4 ->
    ((4, 5), 'x')."""
    if isinstance(value, tuple):
        return tuple([_later(item, samples) for item in value])
    return value + samples if type(value) is int else value
