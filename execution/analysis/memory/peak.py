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
    """The result of analysing the memory of one rank's program over one step, in bytes. peak_bytes: the most that its device
    holds. during_bytes: held while each instruction runs, in issue order, workspace included. host_bytes: set aside on the host
    for all steps. backend: the way in which the executor runs lanes (`serial`, `fused`, `threads` or `streams`), which decides
    when freed buffers are given back. outside_program_bytes: the part of the device's bytes that is held all the time and is no
    buffer of the program."""

    peak_bytes: int
    during_bytes: tuple[int, ...]
    host_bytes: int
    backend: Backend
    outside_program_bytes: int = 0

    def with_extra(self, size: int) -> Walk:
        """This analysis for a device that holds `size` bytes more all the time, outside the program's buffers."""
        during = tuple(held + size for held in self.during_bytes)
        return Walk(self.peak_bytes + size, during, self.host_bytes, self.backend, self.outside_program_bytes + size)


def memory_walk(program: Program, backend: Backend = "serial") -> Walk:
    """Analyse the memory of one rank's program over a step: follow its instructions in issue order, and add up the bytes of the
    buffers that are allocated. backend: the way in which the executor runs lanes (`serial`, `fused`, `threads` or `streams`),
    which decides when freed buffers are given back.

    Memory that one lane (queue of instructions) allocates while an earlier computation still runs counts from where it is
    issued, as it does for a GPU's allocator, to which the host issues in that order. Threads on the CPU may hold more, in
    parallel with that computation.
    """
    held = zip(program.instructions, _held(program, backend), strict=True)
    during = tuple(total + instruction.workspace_bytes for instruction, (_, total) in held)
    return Walk(max(during), during, host_bytes(program), backend)


def peak_buffers(program: Program, walk: Walk) -> dict[str, int]:
    """Bytes that the device holds at a program's first peak, by the name of the buffer, plus the entries `workspace`
    (temporaries of the instruction that runs then) and, if there are any, `copies` (bytes outside the program). walk: the
    result of `memory_walk` for this program."""
    index = walk.during_bytes.index(walk.peak_bytes)
    live, _ = next(islice(_held(program, walk.backend), index, None))
    copies = {"copies": walk.outside_program_bytes} if walk.outside_program_bytes else {}
    return {**live, "workspace": program.instructions[index].workspace_bytes, **copies}


def held_parts(
    program: Program, backend: Backend, part_of: Callable[[str], str], parts: Iterable[str]
) -> Iterator[dict[str, int]]:
    """For each instruction of a program, in issue order, the bytes that the device holds while it runs, by part (such as
    parameters or activations). Yields the same dict every time, updated: copy it to keep it. The sum over parts is
    `during_bytes` of `memory_walk`.

    backend: the executor's back-end, which decides when freed buffers are given back. part_of: gives the part that a buffer
    belongs to by the buffer's name; it is also called with 'workspace', for temporaries. parts: the names of all parts, the
    keys of the dict.
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
    """For each instruction of a program, in issue order: (bytes by name of the buffers that the device holds while it runs,
    their sum); temporaries (workspace) are not included. backend: the executor's back-end, which decides when freed buffers are
    given back. The dict is the same one every time, updated."""
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
    """The points at which each buffer is given back to the allocator if that happens right after the instruction that frees
    it, as on the executor's back-end `serial`, which runs one instruction after the other."""
    return Frees(((),) * len(program.instructions), tuple(i.frees for i in program.instructions), ())


def _when_compute_waits(program: Program) -> Frees:
    """The points at which each buffer is given back to the allocator if lanes run in parallel and threads share one memory. A
    buffer that is freed on another lane than compute is certainly gone only when the compute lane waits for that lane,
    directly or through others, or when the buffer is written again. A lane is a queue of instructions that run in order."""
    return deferred_frees(program, "compute")


_FREES: dict[Backend, Callable[[Program], Frees]] = {
    "serial": _immediate_frees,
    "fused": _when_compute_waits,
    "threads": _when_compute_waits,
    "streams": deferred_frees,
}
