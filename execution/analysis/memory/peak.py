"""Peak memory of a rank: how many bytes of its device it holds after each instruction, from the program alone."""

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
    """Memory of a rank over one step, in bytes.

    peak_bytes: the most that its device holds. during_bytes: what it holds while each instruction runs, workspace included.
    host_bytes: set aside on the host, for all steps. backend: the back-end that holds the buffers. outside_program_bytes: the
    part of the device's bytes that is held all the time and is no buffer of the program.
    """

    peak_bytes: int
    during_bytes: tuple[int, ...]
    host_bytes: int
    backend: Backend
    outside_program_bytes: int = 0

    def with_extra(self, size: int) -> Walk:
        """The memory of a device that holds `size` bytes more all the time."""
        during = tuple(held + size for held in self.during_bytes)
        return Walk(self.peak_bytes + size, during, self.host_bytes, self.backend, self.outside_program_bytes + size)


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Follow a program in issue order, and add up the bytes of its buffers as the back-end holds them.

    Memory that a lane allocates while a computation that was issued before still runs counts from where it was issued. So it
    does for a GPU's allocator, to which the host issues in that order; threads on the CPU may hold it in parallel with that
    computation.
    """
    held = zip(program.instructions, _held(program, backend), strict=True)
    during = tuple(total + instruction.workspace_bytes for instruction, (_, total) in held)
    return Walk(max(during), during, host_bytes(program), backend)


def peak_buffers(program: Program, walk: Walk) -> dict[str, int]:
    """Bytes of what the device holds at the first peak of a program: its buffers by name, `workspace`, and `copies` for bytes
    outside the program."""
    index = walk.during_bytes.index(walk.peak_bytes)
    live, _ = next(islice(_held(program, walk.backend), index, None))
    copies = {"copies": walk.outside_program_bytes} if walk.outside_program_bytes else {}
    return {**live, "workspace": program.instructions[index].workspace_bytes, **copies}


def held_parts(
    program: Program, backend: Backend, part_of: Callable[[str], str], parts: Iterable[str]
) -> Iterator[dict[str, int]]:
    """Bytes that the device holds while each instruction runs, by part, `workspace` included; always the same dict, updated.

    part_of: the part that a buffer belongs to, by its name. parts: all of them. The sums are the bytes of `memory_walk`.
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
    """For each instruction, the buffers that the device holds while it runs, workspace apart: bytes by name, in a dict that is
    updated, and their sum."""
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


def _immediate_frees(program: Program) -> Frees:
    """Buffers are given back right after the instruction that frees them."""
    return Frees(((),) * len(program.instructions), tuple(i.frees for i in program.instructions), ())


def _when_compute_waits(program: Program) -> Frees:
    """When lanes run in parallel, a buffer that another lane than compute frees is surely gone only when the compute lane waits
    for that lane, directly or through others, or when the buffer is written again."""
    return deferred_frees(program, "compute")


_FREES: dict[Backend, Callable[[Program], Frees]] = {
    "serial": _immediate_frees,
    "fused": _when_compute_waits,
    "threads": _when_compute_waits,
    "streams": deferred_frees,
}
