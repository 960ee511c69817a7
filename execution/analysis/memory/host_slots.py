"""Where offloaded hidden states lie on the host: in slots, which are set aside before the first step.

A slot serves one buffer after the other of its size, so that a stage needs as many slots for a unit as it has micro-batches in
flight. The instruction that fills a slot again comes, by lane order and waits, after the one that freed it: no lane can read
hidden states of another micro-batch instead of its own.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from trainplan.execution.program import Clocks, Program, on_host


class HostSlots(NamedTuple):
    """The slots of memory on the host that a program's offloaded hidden states share. slot_of: index of the slot of each host
    buffer that does not live from step to step, by name. sizes: bytes of each slot."""

    slot_of: dict[str, int]
    sizes: tuple[int, ...]


def host_slots(program: Program) -> HostSlots:
    """Assign each offloaded buffer of hidden states of a program to a slot of host memory. A slot serves one buffer after
    another of the same size; it is used again only by an instruction that is ordered after the one that freed it."""
    indices, sizes, clocks = dict[str, int](), list[int](), Clocks()
    free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by size: slots, and the instruction that freed each
    for number, instruction in enumerate(program.instructions):
        for index in instruction.waits:
            clocks.wait(instruction.stream, index)
        for name in instruction.writes:
            if on_host(name) and name not in program.persistent:
                size = program.buffers[name]
                ready = next((slot for slot in free[size] if clocks.done(instruction.stream, slot[1])), None)
                if ready is None:
                    indices[name] = len(sizes)
                    sizes.append(size)
                else:
                    indices[name] = ready[0]
                    free[size].remove(ready)
        for name in instruction.frees:
            if name in indices:
                free[program.buffers[name]].append((indices[name], number))
        clocks.issue(instruction.stream)
    return HostSlots(indices, tuple(sizes))


def host_bytes(program: Program) -> int:
    """Bytes of the host's memory that a rank sets aside: parameters, gradients and moments kept there, and the slots of
    offloaded hidden states."""
    states = sum(program.buffers[name] for name in program.persistent if on_host(name))
    offloads = any(on_host(name) for name in program.buffers.keys() - program.persistent)
    return states + (sum(host_slots(program).sizes) if offloads else 0)
