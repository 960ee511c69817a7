"""Collects what one rank issues, in order: instructions, and the buffers that they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from trainplan.execution.compile.ranks import PlannedRank
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, MicroBatchPart, Program, with_waits


@dataclass
class InstructionBuilder(PlannedRank):
    """A rank of a plan with the buffers and instructions that have been issued for it. buffers: bytes by name. persistent:
    names of buffers that live from step to step. issued: in order."""

    buffers: dict[str, int] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)
    issued: list[Instruction] = field(default_factory=list)

    @classmethod
    def at(cls, rank: PlannedRank, **fields: Any) -> Self:
        """A builder for a rank. fields: those that only the subclass has."""
        placed = (rank.model, rank.strategies, rank.stages, rank.groups, rank.batch, rank.rank, rank.sliced)
        fields |= {"most_micro_batches": rank.most_micro_batches, "planned": rank.planned, "precision": rank.precision}
        fields["optimizer"] = rank.optimizer
        return cls(*placed, **fields)

    def program(self) -> Program:
        """Issue everything that the rank does in one step, and return it as a program."""
        raise NotImplementedError

    def issue(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> None:
        """Append an instruction. part: the micro-batch or half that it is about. fields: the other fields of `Instruction`."""
        self.issued.append(self.instruction(op, unit, part, **fields))

    def instruction(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> Instruction:
        """An instruction, not yet appended. The samples that it is about are added to its arguments, unless these name them
        already."""
        micro_batch, half = part or (None, None)
        instruction = Instruction(op, unit, micro_batch, half, **fields)
        if op.spec.names_samples and instruction.args.keys() <= {AGAIN}:
            instruction.args.update(self.samples_of(instruction))
        return instruction

    def buffer(self, name: str, size: int, persistent: bool = False) -> str:
        """Declare a buffer of `size` bytes, and return its name. persistent: whether it lives from step to step."""
        self.buffers[name] = size
        if persistent:
            self.persistent.add(name)
        return name

    def finished(self) -> Program:
        """The rank's program, of all that has been issued."""
        return Program(
            self.rank,
            self.world,
            self.stages,
            tuple(self.groups),
            self.index_in_stage,
            self.units,
            self.model,
            self.strategies,
            self.batch.global_samples,
            self.micro_batches,
            self.buffers,
            frozenset(self.persistent),
            with_waits(self.issued),
            self.precision,
            self.optimizer,
        )

    def reduce(
        self, op: Op, unit: int | None, part: MicroBatchPart | None, name: str, group: tuple[int, ...], size: int | None = None
    ) -> None:
        """Issue a collective that replaces a buffer's content, such as its sum over a group. size: bytes that take part, where
        that is not the whole buffer."""
        size = self.buffers[name] if size is None else size
        self.issue(op, unit, part, reads=(name,), writes=(name,), group=group, message_bytes=size)
