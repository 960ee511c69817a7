"""The memory walk: how many bytes of its device a rank holds after each instruction, from the program alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from trainplan.execution.program import Clocks, Instruction, Program, on_host
from trainplan.execution.walk.frees import Frees, deferred_frees

Backend = Literal["serial", "fused", "threads", "streams"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True)
class Walk:
    """Peak bytes of a rank's device, the instruction at which it is reached, and the bytes of what lives from step to step.

    held_bytes: while each instruction runs, its workspace included. host_bytes: set aside on the host, for all steps.
    """

    peak_bytes: int
    at: Instruction
    persistent_bytes: int
    held_bytes: tuple[int, ...]
    host_bytes: int


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Walk a program in issue order, with buffers held as the back-end holds them.

    What a lane makes while a computation that was issued before it still runs counts from where it was issued. So does a GPU's
    allocator, to whom the host issues in that order; threads on the CPU may come to hold it beside that computation.
    """
    live = {name: program.buffers[name] for name in program.persistent if not on_host(name)}
    persistent = held = sum(live.values())
    frees, during = _FREES[backend](program), list[int]()
    for place, instruction in enumerate(program.instructions):
        held -= sum(live.pop(name, 0) for name in frees.before[place])
        for name in instruction.writes:
            if name not in live and not on_host(name):
                live[name] = program.buffers[name]
                held += live[name]
        during.append(held + instruction.workspace_bytes)
        held -= sum(live.pop(name, 0) for name in frees.after[place])
    peak = max(during)
    return Walk(peak, program.instructions[during.index(peak)], persistent, tuple(during), program.host_bytes)


def _at_once(program: Program) -> Frees:
    return Frees(((),) * len(program.instructions), tuple(i.frees for i in program.instructions), ())


def _once_computations_wait(program: Program) -> Frees:
    """Where lanes run beside each other, what another one than compute frees is surely gone only once the compute lane waits
    for it, directly or through others, or once it is written again."""
    clocks, before, after = Clocks(), list[tuple[str, ...]](), list[tuple[str, ...]]()
    later: dict[str, int] = {}
    for place, instruction in enumerate(program.instructions):
        for index in instruction.waits:
            clocks.wait(instruction.stream, index)
        gone = [name for name, index in later.items() if instruction.stream == "compute" and clocks.done("compute", index)]
        for name in (*gone, *instruction.writes):
            later.pop(name, None)
        beside = instruction.stream != "compute"
        later.update(dict.fromkeys(instruction.frees if beside else (), place))
        before.append(tuple(gone))
        after.append(() if beside else instruction.frees)
        clocks.issue(instruction.stream)
    return Frees(tuple(before), tuple(after), tuple(later))


_FREES: dict[Backend, Callable[[Program], Frees]] = {
    "serial": _at_once,
    "fused": _once_computations_wait,
    "threads": _once_computations_wait,
    "streams": deferred_frees,
}
