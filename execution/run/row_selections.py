"""Which rows of a batch, or of a buffer, the instructions of a program take: prepared before the first step.

An index tensor that is built from numbers within a step would be copied to a GPU from memory that is not pinned, which halts
the thread that issues the step until all earlier work is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from trainplan.execution.program import Instruction, Program


class RowSelections:
    """The rows that each instruction of a program takes: a slice where they are consecutive, else an index tensor."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._instructions = program.instructions  # kept alive, so that their ids stay theirs
        messages = [message for instruction in program.instructions for message in instruction.messages]
        selecting = [i for i in messages if i.op.spec.selects_rows and "rows" in i.args]
        self._rows = {id(i): _as_index(_row_indices(i), device) for i in selecting}

    def of(self, instruction: Instruction, source: Tensor) -> Tensor:
        """A copy of the rows that an instruction of the program takes of its source."""
        rows = self._rows[id(instruction)]
        if isinstance(rows, slice):
            return source[rows].clone(memory_format=torch.contiguous_format)
        return source.index_select(0, rows)


def _row_indices(instruction: Instruction) -> list[int]:
    """Indices of the rows that an instruction takes: in the whole batch, or in the blocks that it reads, one after the
    other."""
    wanted = instruction.args["rows"]
    if "blocks" not in instruction.args:
        return list(wanted)
    index_of = {row: index for index, row in enumerate(row for block in instruction.args["blocks"] for row in block)}
    return [index_of[row] for row in wanted]


def _as_index(indices: Sequence[int], device: torch.device) -> slice | Tensor:
    """Indices as a slice, where they are consecutive, else as an index tensor."""
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return slice(first, first + len(indices))
    return torch.tensor(indices, device=device)
