"""When the memory of a buffer may be given back where lanes are CUDA streams.

There the host decides on memory while it issues, ahead of what the device does: as soon as the allocator has a tensor's memory
back, it hands it to whatever the host issues next on the stream that allocated it. So a tensor that lane A allocated and lane B
reads last may only be given back after A waits, by lane order and waits, for that reader. Nothing needs `record_stream`, which
would leave the moment to the device.

Of an instruction f that frees a buffer, and the lane A of the buffer's first writer:

- f is on A: right after f. Whatever A does next comes after f, and f after every other use of the buffer (see checks.races);
- else: with the earliest k > f on A such that f is surely done before k begins: after A has been made to wait for what k waits
  for, and before k runs, which may use that memory already;
- without such a k: at the end of the step, when all lanes have ended.

Computations may wait for their data alone, and never again for the lane that offloads inputs or reduces gradients (in ZeRO's
stage 2 they need nothing else of it): what it frees would stay for the whole step. So k waits for f at the latest when, since
f, the compute lane has gone on by LAG units: for memory's sake, and late enough to delay it only where the other lane falls
back by a whole segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.execution.instruction_spec import Stream
from trainplan.execution.program import Clocks, Program

LAG = 2  # units


@dataclass(frozen=True)
class Frees:
    """The points of a rank's program at which each buffer's memory is given back to the allocator. before, after: one tuple
    per instruction, in issue order: names of buffers to give back after its waits and before it runs, and after it has run.
    at_end: names to give back at the end of the step. waits: one tuple per instruction: indices of instructions that it waits
    for in addition to its own waits, so that memory is given back in time; empty: no instruction does."""

    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]
    at_end: tuple[str, ...]
    waits: tuple[tuple[int, ...], ...] = ()


@dataclass
class _Free:
    """A buffer that the program has freed but that is not yet given back to the allocator. lane: the lane (queue of
    instructions) that allocated it. freed: the index of the instruction that freed it. computed: the number of units
    (sub-layers) that the compute lane had gone through by then."""

    lane: Stream
    freed: int
    computed: int


def deferred_frees(program: Program, owner: Stream | None = None) -> Frees:
    """Find when each buffer that the program frees can be given back to the allocator if lanes are CUDA streams: only after
    the lane that allocated it is ordered after its last reader. A program is one rank's instructions for a training step. A
    lane is a queue of instructions that run in order.

    owner: the lane that owns all memory, or None: each buffer belongs to the lane of its first writer. With an owner, a buffer
    that is written again before it could be given back keeps its memory; without one, that raises AssertionError.
    """
    clocks, allocated, free = Clocks(), dict[str, Stream](), dict[str, _Free]()
    waits, before, after = list[tuple[int, ...]](), list[tuple[str, ...]](), list[tuple[str, ...]]()
    unit, computed = None, 0
    for position, instruction in enumerate(program.instructions):
        stream = instruction.stream
        if stream == "compute" and instruction.unit != unit:
            unit, computed = instruction.unit, computed + 1
        for index in instruction.waits:
            clocks.wait(stream, index)
        extra_waits = []
        if owner is None:
            overdue = {buffer.freed for buffer in free.values() if buffer.lane == stream and computed - buffer.computed >= LAG}
            for index in sorted(overdue, reverse=True):
                if not clocks.done(stream, index):
                    clocks.wait(stream, index)
                    extra_waits.append(index)
        covered = [name for name, buffer in free.items() if buffer.lane == stream and clocks.done(stream, buffer.freed)]
        for name in covered:
            del free[name]
        for name in instruction.writes:
            assert owner or name not in free, f"{instruction} writes {name} anew before its memory can be given back"
            free.pop(name, None)
            allocated.setdefault(name, owner or stream)
        lanes = {name: allocated.pop(name) for name in instruction.frees}
        free.update({name: _Free(lane, position, computed) for name, lane in lanes.items() if lane != stream})
        waits.append(tuple(extra_waits))
        before.append(tuple(covered))
        after.append(tuple(name for name, lane in lanes.items() if lane == stream))
        clocks.issue(stream)
    return Frees(tuple(before), tuple(after), tuple(free), tuple(waits))
