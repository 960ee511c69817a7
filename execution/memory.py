"""The memory walk: how many bytes a rank holds after each instruction, from the program alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainplan.execution.program import Instruction, Program

Backend = Literal["serial", "fused"]
BACKENDS: tuple[Backend, ...] = ("serial", "fused")


@dataclass(frozen=True)
class Walk:
    """Peak bytes of a rank, the instruction at which it is reached, and the bytes of what lives from step to step."""

    peak_bytes: int
    at: Instruction
    persistent_bytes: int


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Walk a program in issue order.

    On the fused back-end communication runs beside compute: what it frees counts as held until the compute stream next waits
    for it, since only then is it surely gone.
    """
    live = {name: program.buffers[name] for name in program.persistent}
    persistent = held = sum(live.values())
    peak, at = -1, program.instructions[0]
    later: list[tuple[int, tuple[str, ...]]] = []

    def free(names: tuple[str, ...]) -> int:
        return sum(live.pop(name, 0) for name in names)

    for place, instruction in enumerate(program.instructions):
        if instruction.stream == "compute" and instruction.waits:
            done = max(instruction.waits)
            held -= sum(free(names) for index, names in later if index <= done)
            later = [(index, names) for index, names in later if index > done]
        for name in instruction.writes:
            if name not in live:
                live[name] = program.buffers[name]
                held += live[name]
        if held + instruction.workspace_bytes > peak:
            peak, at = held + instruction.workspace_bytes, instruction
        if backend == "fused" and instruction.stream == "communication":
            later.append((place, instruction.frees))
        else:
            held -= free(instruction.frees)
    return Walk(peak, at, persistent)
