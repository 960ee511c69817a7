"""The fused back-end: compute on the calling thread, everything else as one FIFO in issue order on a second (NCCL's order)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainplan.execution.program import Instruction
from trainplan.execution.run.threads import run_lanes


def run_fused(instructions: Sequence[Instruction], run: Callable[[Instruction], None]) -> None:
    """Run each instruction once those that it waits for are done, on the two threads."""
    lanes = ["compute" if instruction.stream == "compute" else "beside" for instruction in instructions]
    waits = [instruction.waits for instruction in instructions]
    run_lanes(waits, lanes, lambda place: run(instructions[place]), here="compute")
