"""The tensors that a rank holds from step to step, and the collectives that it takes part in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from trainplan.execution.analysis.memory.host_slots import host_slots
from trainplan.execution.program import Instruction, Program
from trainplan.execution.run.transport import Direct, Transport
from trainplan.execution.run.unit_state import UnitState, empty_storage, host_tensor, make_unit

Groups = dict[tuple[int, ...], Any]


class RowSelections:
    """The rows (samples) that each instruction of a program takes from a buffer: a slice if they are consecutive, else an
    index tensor. They are prepared before the first step: an index tensor that is built within a step would be copied to a GPU
    from memory that is not pinned, which halts the thread that issues the step until all earlier work is done."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._instructions = program.instructions  # kept alive, so that their ids stay theirs
        messages = [message for instruction in program.instructions for message in instruction.messages]
        selecting = [i for i in messages if i.op.spec.selects_rows and "rows" in i.args]
        self._rows = {id(i): _as_index(_row_indices(i), device) for i in selecting}

    def of(self, instruction: Instruction, source: Tensor) -> Tensor:
        """A copy of those rows of `source` that an instruction of the program takes."""
        rows = self._rows[id(instruction)]
        if isinstance(rows, slice):
            return source[rows].clone(memory_format=torch.contiguous_format)
        return source.index_select(0, rows)


def _row_indices(instruction: Instruction) -> list[int]:
    """The indices of the rows (samples) that an instruction takes: in the whole batch or, if it reads blocks of samples, in
    these blocks one after the other."""
    wanted = instruction.args["rows"]
    if "blocks" not in instruction.args:
        return list(wanted)
    index_of = {row: index for index, row in enumerate(row for block in instruction.args["blocks"] for row in block)}
    return [index_of[row] for row in wanted]


def _as_index(indices: Sequence[int], device: torch.device) -> slice | Tensor:
    """Indices of rows as a slice, if they are consecutive, else as an index tensor on `device`."""
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return slice(first, first + len(indices))
    return torch.tensor(indices, device=device)


@dataclass
class RankState:
    """The tensors that one rank holds from step to step. A unit is a sub-layer of the model; a buffer is a piece of memory that
    the program knows by name.

    program: the rank's instructions for a step. groups: torch's process group by set of ranks. seed: the seed of initial
    parameters and dropout. device: where the rank computes. tokens: the whole batch, (samples, sequence + 1). release_s:
    seconds for which a collective's handle is still held after it is done, so that gloo's thread releases it first (torch's
    profiler does not see memory go that this thread is the last to release). transport: moves tensors between ranks.

    Derived: units: by index, the state of each of the rank's units. host: memory of host buffers by name. values: the contents
    of buffers, by name. rows: which samples instructions select. loss: the rank's loss so far.
    """

    program: Program
    groups: Groups
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tokens: Tensor = field(default_factory=lambda: torch.empty(0))
    release_s: float = 0.0
    transport: Transport = field(default_factory=Direct)

    def __post_init__(self) -> None:
        self.model = self.program.model
        self.rank, self.index_in_stage = self.program.rank, self.program.index_in_stage
        self.units = {unit: make_unit(self.program, unit, self.seed, self.device) for unit in self.program.units}
        if self.program.shares_table:  # one matrix: gradients of both uses go to the embedding's buffer
            self.units[self.program.units[-1]].views["logits.weight"] = self.units[0].views["tokens.weight"]
        slots = host_slots(self.program)
        memory = [host_tensor(size, torch.uint8, self.device) for size in slots.sizes]
        self.host = {name: memory[slot] for name, slot in slots.slot_of.items()}
        if "host-tied" in self.program.buffers:
            self.host["host-tied"] = host_tensor(self.program.buffers["host-tied"], torch.uint8, self.device)
        self.values: dict[str, Any] = {}
        self.rows = RowSelections(self.program, self.device)
        self.loss = torch.zeros(1, dtype=torch.float64, device=self.device)

    def unit(self, instruction: Instruction) -> UnitState:
        """The state of the unit that an instruction is about."""
        assert instruction.unit is not None
        return self.units[instruction.unit]

    def free(self, name: str) -> None:
        """Release the memory of the buffer called `name`."""
        kind, number = name.split(".")[:2]
        if kind == "gathered":
            empty_storage(self.units[int(number)].whole)
        elif kind == "parameter":
            empty_storage(self.units[int(number)].flat_shard)
        elif kind == "whole-gradient":
            self.units[int(number)].gradients.drop()
        elif kind == "gradient" and not self.units[int(number)].partitioned:
            self.units[int(number)].gradients.drop()  # views of its buffer, as above
        self.values.pop(name, None)

    def collective(self, function: Callable[..., Any], instruction: Instruction, *tensors: Tensor | list[Tensor]) -> None:
        """Run `function`, a collective of torch.distributed, over the instruction's group of ranks, and wait until it is done.
        tensors: the result first (written to), the input last."""
        self.finish(self.transport.collective(function, self.groups[instruction.group], tensors))

    def finish(self, works: list[Any]) -> None:
        """Wait for operations that torch.distributed has begun. works: their handles."""
        for work in works:
            work.wait()
        if self.release_s:
            time.sleep(self.release_s)
