"""The back-end `streams`: a CUDA stream for each lane of a program, and an event where one lane waits for another.

- The calling thread issues what the device does, in issue order. An instruction's stream is made to wait for the events of
  those that it waits for; the thread itself goes on.
- The host lane has a thread of its own, which waits for these events itself, so that its optimizer delays no issuing. What
  waits for it on the device is issued after it is done. The processor's work on another lane (a sum of gradients that lie on
  the host) is done in between by the calling thread, when that lane's stream has come so far.
- Memory is given back as `deferred_frees` says. Collectives are waited for on their lane's stream, and so keep their order.

A step ends with all lanes: afterwards the host may read whatever it has written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import cuda
from trainplan.execution.analysis.memory.deferred_frees import deferred_frees
from trainplan.execution.program import Instruction, Program
from trainplan.execution.run.threads import Lanes

HOST, ISSUED = "host", "issued"


class CudaStreams:
    """Runs a rank's program on a GPU, step after step, with one CUDA stream for each lane (queue of instructions) of the
    program. The calling thread issues the instructions in order; a stream waits for the events of instructions that its next
    one depends on."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._instructions = program.instructions
        self._frees = deferred_frees(program)
        self._waits = [(*i.waits, *extra) for i, extra in zip(program.instructions, self._frees.waits, strict=True)]
        self._device = device
        self._streams = {lane: lane_stream(device, lane) for lane in sorted({i.stream for i in self._instructions} - {HOST})}
        waited = {index for waits in self._waits for index in waits if self._instructions[index].stream != HOST}
        self._events = {index: cuda.Event() for index in sorted(waited)}
        lanes = [HOST if instruction.stream == HOST else ISSUED for instruction in self._instructions]
        self._lanes = Lanes(self._waits, lanes, here=ISSUED)

    def step(self, run: Callable[[Instruction], None], free: Callable[[str], None]) -> None:
        """Run every instruction of the program: `run` executes one, `free` gives a buffer back to the allocator by its name.
        Everything is done on return. The step begins after the work that is already on the current stream."""
        current = cuda.current_stream(self._device)
        for stream in self._streams.values():
            stream.wait_stream(current)
        self._lanes.step(lambda index: self._instruction(index, run, free))
        for stream in self._streams.values():
            stream.synchronize()
        for name in self._frees.at_end:
            free(name)

    def _instruction(self, index: int, run: Callable[[Instruction], None], free: Callable[[str], None]) -> None:
        """Issue instruction number `index` on its stream, which is made to wait for the instructions that it depends on; an
        instruction of the host lane is run at once. run: executes it. free: gives buffers back by name, before and after it."""
        instruction = self._instructions[index]
        stream = self._streams.get(instruction.stream)
        if stream is None:
            cuda.set_device(self._device)  # of this thread
        for waited in self._waits[index]:
            if (event := self._events.get(waited)) is None:
                continue  # the host's: done before this is called
            if stream is None:
                event.synchronize()
            else:
                stream.wait_event(event)
        for name in self._frees.before[index]:
            free(name)
        if stream is None:
            run(instruction)
        else:
            if instruction.by_processor:
                stream.synchronize()
            with cuda.stream(stream):
                run(instruction)
            if index in self._events:
                self._events[index].record(stream)
        for name in self._frees.after[index]:
            free(name)


@cache
def lane_stream(device: torch.device, lane: str) -> cuda.Stream:
    """The CUDA stream of the lane with this name on a device. All programs share it, so that memory which one program leaves
    to the allocator on this stream serves the next. A program is one rank's instructions for a training step. A lane is a
    queue of instructions that run in order."""
    return cuda.Stream(device)
