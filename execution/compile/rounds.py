"""Pipelines in rounds: from a rank's program of a few micro-batches to that of many.

Under 1F1B-Flush a rank runs one forward and one backward pass in turn once its pipeline is full. Let a *round* be what it
issues from after the first computation of one backward pass to that of the next. No buffer of a micro-batch outlives the
rounds that it is in flight, and what an instruction waits for lies a round back at most. So from the first round that equals
the one before it but for the numbers of its micro-batches, samples and instructions, to the last one that ends before the last
micro-batch begins its backward pass (which also reduces gradients), all rounds are one round, *moved*.

A program of few micro-batches thus tells that of many: rounds are put in after its last whole one, and what follows is moved
by as many. Nothing that a check or the memory walk looks at changes: after each round that is put in, the same buffers are
held, under other names, and each lane has come equally far; so a fault, or a peak, of the long program is one of the short.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainplan.execution.program import UNIT_BUFFERS, Instruction, Op, Program
from trainplan.execution.uncollected import uncollected
from trainplan.formulations.plan import Plan

STEADY = 3  # rounds of the short program beyond those in which micro-batches fill the pipeline or come in halves


def few_micro_batches(plan: Plan) -> int:
    """Micro-batches that are enough for every rank's program to have two equal rounds, after all that come in halves."""
    return len(plan.stages) + plan.sliced + STEADY


def last_round(program: Program, samples: int) -> tuple[int, int] | None:
    """Where the last whole round of a program begins and ends, if it equals the one before it, moved; else None.

    samples: of one micro-batch.
    """
    first: dict[int, int] = {}
    for place, instruction in enumerate(program.instructions):
        if instruction.op is Op.BACKWARD and instruction.micro_batch is not None:
            first.setdefault(instruction.micro_batch, place + 1)
    forward = max((i.micro_batch or 0 for i in program.instructions[: first.get(0, 0)] if i.op is not Op.BACKWARD), default=0)
    last = program.micro_batches - 2 - forward  # its round begins the forward pass of the last micro-batch but one, at most
    if last < 2:
        return None
    before, begin, end = (first[micro_batch] for micro_batch in (last - 2, last - 1, last))
    move = Move(samples)
    moved = [move(i, 1, begin - before) for i in program.instructions[before:begin]]
    repeats = moved == list(program.instructions[begin:end])
    near = all(index >= begin for i in program.instructions[end:] for index in i.waits)
    return (begin, end) if repeats and near else None


@uncollected()
def prolonged(program: Program, micro_batches: int, samples: int, span: tuple[int, int]) -> Program:
    """The program of so many micro-batches, from one of fewer and its last whole round. samples: of one micro-batch."""
    begin, end = span
    missing, instructions, buffers = micro_batches - program.micro_batches, program.instructions, dict(program.buffers)
    move, made = Move(samples), list(instructions[:end])
    parts = [(number, instructions[begin:end]) for number in range(1, missing + 1)] + [(missing, instructions[end:])]
    for number, part in parts:
        made += [move(instruction, number, number * (end - begin)) for instruction in part]
        for instruction in part:
            for name in instruction.writes:
                buffers[move.name(name, number)] = program.buffers[name]
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
            "reads": tuple([name(each, micro_batches) for each in i.reads]),
            "writes": tuple([name(each, micro_batches) for each in i.writes]),
            "frees": tuple([name(each, micro_batches) for each in i.frees]),
        }
        if i.micro_batch is not None:
            fields["micro_batch"] = i.micro_batch + micro_batches
        if i.waits:
            fields["waits"] = tuple([index + places for index in i.waits])
        if i.args:
            fields["args"] = {key: _later(value, micro_batches * self._samples) for key, value in i.args.items()}
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
    return value + samples if isinstance(value, int) else value
