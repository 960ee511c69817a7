"""Which rows of a batch, or of what lies on a rank, the instructions of its program take: made once, before the first step.

An index tensor that is made of numbers in the midst of a step would be copied to a GPU from memory that is not pinned, which
halts the thread that issues the step until all before is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from trainplan.execution.program import Instruction, Program


class RowSelections:
    """The rows that each instruction of a program takes: a slice where they are consecutive, else an index tensor."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._instructions = program.instructions  # so that their ids stay theirs
        each = [message for instruction in program.instructions for message in instruction.messages]
        selecting = [i for i in each if i.op.spec.selects_rows and "rows" in i.args]
        self._rows = {id(i): _as_index(_places(i), device) for i in selecting}

    def of(self, instruction: Instruction, source: Tensor) -> Tensor:
        """A copy of the rows that an instruction of the program takes of its source."""
        rows = self._rows[id(instruction)]
        if isinstance(rows, slice):
            return source[rows].clone(memory_format=torch.contiguous_format)
        return source.index_select(0, rows)


def _places(instruction: Instruction) -> list[int]:
    """Where the rows that an instruction wants lie: in the whole batch, or in the blocks that it reads."""
    wanted = instruction.args["rows"]
    if "blocks" not in instruction.args:
        return list(wanted)
    place = {row: index for index, row in enumerate(row for block in instruction.args["blocks"] for row in block)}
    return [place[row] for row in wanted]


def _as_index(places: Sequence[int], device: torch.device) -> slice | Tensor:
    first = places[0]
    if list(places) == list(range(first, first + len(places))):
        return slice(first, first + len(places))
    return torch.tensor(places, device=device)
