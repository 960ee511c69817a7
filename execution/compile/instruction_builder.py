"""What a rank issues, in order: instructions, and the buffers that they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from trainplan.execution.compile.ranks import PlannedRank
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, MicroBatchPart, Program, with_waits


@dataclass
class InstructionBuilder(PlannedRank):
    """The buffers and instructions of a rank, as they are issued."""

    buffers: dict[str, int] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)
    issued: list[Instruction] = field(default_factory=list)

    @classmethod
    def at(cls, rank: PlannedRank, **fields: Any) -> Self:
        """The compiler of a rank. fields: those of the compiler alone."""
        placed = (rank.model, rank.strategies, rank.stages, rank.groups, rank.batch, rank.rank, rank.sliced)
        fields |= {"most_micro_batches": rank.most_micro_batches, "planned": rank.planned, "precision": rank.precision}
        fields["optimizer"] = rank.optimizer
        return cls(*placed, **fields)

    def program(self) -> Program:
        """Issue all that the rank does in one step."""
        raise NotImplementedError

    def issue(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> None:
        """The next instruction."""
        self.issued.append(self.instruction(op, unit, part, **fields))

    def instruction(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> Instruction:
        """An instruction with the samples that it speaks of, unless its arguments tell them."""
        micro_batch, half = part or (None, None)
        made = Instruction(op, unit, micro_batch, half, **fields)
        if op.spec.names_samples and made.args.keys() <= {AGAIN}:
            made.args.update(self.samples_of(made))
        return made

    def buffer(self, name: str, size: int, persistent: bool = False) -> str:
        """Declare a buffer of so many bytes, and give its name back. persistent: it lives from step to step."""
        self.buffers[name] = size
        if persistent:
            self.persistent.add(name)
        return name

    def finished(self) -> Program:
        """What has been issued, as the rank's program."""
        return Program(
            self.rank,
            self.world,
            self.stages,
            tuple(self.groups),
            self.place,
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
        """The sum of a buffer over a group in its place, or what else a collective makes of it there. size: bytes that take
        part, where that is not all of it."""
        size = self.buffers[name] if size is None else size
        self.issue(op, unit, part, reads=(name,), writes=(name,), group=group, message_bytes=size)
