"""Collects what one rank issues, in order: instructions, and the buffers that they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from trainplan.execution.compile.ranks import PlannedRank
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, MicroBatchPart, Program, with_waits


@dataclass
class InstructionBuilder(PlannedRank):
    """A rank of a plan, with the buffers and instructions that have been issued for it so far; to issue an instruction is to
    append it. buffers: bytes by the buffer's name. persistent: names of buffers that live from step to step. issued:
    instructions, in order."""

    buffers: dict[str, int] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)
    issued: list[Instruction] = field(default_factory=list)

    @classmethod
    def at(cls, rank: PlannedRank, **fields: Any) -> Self:
        """A builder of this class for a rank. fields: the fields that only the subclass has."""
        placed = (rank.model, rank.strategies, rank.stages, rank.groups, rank.batch, rank.rank, rank.sliced)
        fields |= {"most_micro_batches": rank.most_micro_batches, "planned": rank.planned, "precision": rank.precision}
        fields["optimizer"] = rank.optimizer
        return cls(*placed, **fields)

    def program(self) -> Program:
        """Issue everything that the rank does in one step, and return it as a program. Subclasses define it."""
        raise NotImplementedError

    def issue(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> None:
        """Append an instruction. unit: index of the unit (sub-layer) that it is about. part: the micro-batch or half that it is
        about. Both are None for instructions of the whole step. fields: the other fields of `Instruction`."""
        self.issued.append(self.instruction(op, unit, part, **fields))

    def instruction(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> Instruction:
        """Make an instruction, without appending it. unit: index of the unit (sub-layer) that it is about. part: the
        micro-batch or half that it is about. Both are None for instructions of the whole step. fields: the other fields of
        `Instruction`; ids of samples are added to `args` if the operation names samples and they are not given."""
        micro_batch, half = part or (None, None)
        instruction = Instruction(op, unit, micro_batch, half, **fields)
        if op.spec.names_samples and instruction.args.keys() <= {AGAIN}:
            instruction.args.update(self.samples_of(instruction))
        return instruction

    def buffer(self, name: str, size: int, persistent: bool = False) -> str:
        """Declare a buffer called `name` of `size` bytes, and return its name. persistent: whether it lives from step to
        step."""
        self.buffers[name] = size
        if persistent:
            self.persistent.add(name)
        return name

    def finished(self) -> Program:
        """The rank's program, made of everything that has been issued, with the waits between its instructions filled in."""
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
        """Issue the collective `op` that replaces the content of the buffer `name`, for instance by its sum over the ranks in
        `group`. unit: index of the unit (sub-layer); None for an operation of the whole step. part: micro-batch or half; None
        for an operation of the whole step. size: bytes that take part; None for the whole buffer."""
        size = self.buffers[name] if size is None else size
        self.issue(op, unit, part, reads=(name,), writes=(name,), group=group, message_bytes=size)
