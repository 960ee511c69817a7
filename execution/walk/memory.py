"""The memory walk: how many bytes of its device a rank holds after each instruction, from the program alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from trainplan.execution.program import Program, on_host
from trainplan.execution.walk.frees import Frees, deferred_frees

Backend = Literal["serial", "fused", "threads", "streams"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True)
class Walk:
    """Bytes of a rank's device: the most of the step, and those while each instruction runs, its workspace included.

    host_bytes: set aside on the host, for all steps.
    """

    peak_bytes: int
    during_bytes: tuple[int, ...]
    host_bytes: int


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Walk a program in issue order, with buffers held as the back-end holds them.

    What a lane makes while a computation that was issued before it still runs counts from where it was issued. So does a GPU's
    allocator, to whom the host issues in that order; threads on the CPU may come to hold it beside that computation.
    """
    live = {name: program.buffers[name] for name in program.persistent if not on_host(name)}
    total, frees, during = sum(live.values()), _FREES[backend](program), list[int]()
    for place, instruction in enumerate(program.instructions):
        total -= sum(live.pop(name, 0) for name in frees.before[place])
        for name in instruction.writes:
            if name not in live and not on_host(name):
                live[name] = program.buffers[name]
                total += live[name]
        during.append(total + instruction.workspace_bytes)
        total -= sum(live.pop(name, 0) for name in frees.after[place])
    return Walk(max(during), tuple(during), program.host_bytes)


def _at_once(program: Program) -> Frees:
    return Frees(((),) * len(program.instructions), tuple(i.frees for i in program.instructions), ())


def _once_computations_wait(program: Program) -> Frees:
    """Where lanes run beside each other, what another one than compute frees is surely gone only once the compute lane waits
    for it, directly or through others, or once it is written again."""
    return deferred_frees(program, "compute")


_FREES: dict[Backend, Callable[[Program], Frees]] = {
    "serial": _at_once,
    "fused": _once_computations_wait,
    "threads": _once_computations_wait,
    "streams": deferred_frees,
}
