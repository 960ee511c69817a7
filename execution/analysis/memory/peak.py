"""The memory walk: how many bytes of its device a rank holds after each instruction, from the program alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from trainplan.execution.analysis.memory.deferred_frees import Frees, deferred_frees
from trainplan.execution.analysis.memory.host_slots import host_bytes
from trainplan.execution.program import Program, on_host

Backend = Literal["serial", "fused", "threads", "streams"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True)
class Walk:
    """Bytes of a rank's device: the most of the step, and those while each instruction runs, its workspace included.

    host_bytes: set aside on the host, for all steps. backend: the one that holds the buffers.
    outside_program_bytes: of all these, what
    is held all the time and is no buffer of the program.
    """

    peak_bytes: int
    during_bytes: tuple[int, ...]
    host_bytes: int
    backend: Backend
    outside_program_bytes: int = 0

    def beside(self, size: int) -> Walk:
        """The same walk on a device that holds so many bytes more."""
        during = tuple(each + size for each in self.during_bytes)
        return Walk(self.peak_bytes + size, during, self.host_bytes, self.backend, self.outside_program_bytes + size)


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Walk a program in issue order, with buffers held as the back-end holds them.

    What a lane makes while a computation that was issued before it still runs counts from where it was issued. So does a GPU's
    allocator, to whom the host issues in that order; threads on the CPU may come to hold it beside that computation.
    """
    held = zip(program.instructions, _held(program, backend), strict=True)
    during = tuple(total + instruction.workspace_bytes for instruction, (_, total) in held)
    return Walk(max(during), during, host_bytes(program), backend)


def peak_buffers(program: Program, walk: Walk) -> dict[str, int]:
    """The bytes of what the device holds at the first peak of a program's walk: its buffers by name, `workspace`, and `copies`
    of weights beside them."""
    index = walk.during_bytes.index(walk.peak_bytes)
    live, _ = next(islice(_held(program, walk.backend), index, None))
    copies = {"copies": walk.outside_program_bytes} if walk.outside_program_bytes else {}
    return {**live, "workspace": program.instructions[index].workspace_bytes, **copies}


def held_parts(
    program: Program, backend: Backend, part_of: Callable[[str], str], parts: Iterable[str]
) -> Iterator[dict[str, int]]:
    """What the device holds while each instruction runs, `workspace` included: bytes by part, in a dict that then changes.

    part_of: the part that a buffer belongs to, by its name. The sums are the bytes of `memory_walk`.
    """
    part = {name: part_of(name) for name in (*program.buffers, "workspace")}
    sizes, before = dict.fromkeys(parts, 0), dict[str, int]()
    for instruction, (live, _) in zip(program.instructions, _held(program, backend), strict=True):
        for name in before.keys() - live.keys():
            sizes[part[name]] -= before[name]
        for name in live.keys() - before.keys():
            sizes[part[name]] += live[name]
        before = dict(live)
        sizes[part["workspace"]] += instruction.workspace_bytes
        yield sizes
        sizes[part["workspace"]] -= instruction.workspace_bytes


def _held(program: Program, backend: Backend) -> Iterator[tuple[dict[str, int], int]]:
    """What the device holds while each instruction runs, workspace apart: bytes by buffer, in a dict that then changes, and in
    all."""
    live = {name: program.buffers[name] for name in program.persistent if not on_host(name)}
    total, frees = sum(live.values()), _FREES[backend](program)
    for index, instruction in enumerate(program.instructions):
        total -= sum(live.pop(name, 0) for name in frees.before[index])
        for name in instruction.writes:
            if name not in live and not on_host(name):
                live[name] = program.buffers[name]
                total += live[name]
        yield live, total
        total -= sum(live.pop(name, 0) for name in frees.after[index])


def _at_once(program: Program) -> Frees:
    return Frees(((),) * len(program.instructions), tuple(i.frees for i in program.instructions), ())


def _when_compute_waits(program: Program) -> Frees:
    """Where lanes run beside each other, what another one than compute frees is surely gone only once the compute lane waits
    for it, directly or through others, or once it is written again."""
    return deferred_frees(program, "compute")


_FREES: dict[Backend, Callable[[Program], Frees]] = {
    "serial": _at_once,
    "fused": _when_compute_waits,
    "threads": _when_compute_waits,
    "streams": deferred_frees,
}
