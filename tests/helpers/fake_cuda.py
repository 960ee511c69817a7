"""A simulated CUDA device with streams, events and an allocator that a test can inspect, in place of torch.cuda.

The device runs the operations of its streams in a random order that streams and events allow, and lags after the calls that
issue them by a random amount; an operation begins and ends at different moments. Its allocator reuses memory as soon as it may:
the block that was freed last on a stream is the first that the stream's next tensor gets.

`Machine` runs programs on it, and finds three kinds of fault, the first where it happens, the others where it could happen:
- content: when an operation begins or ends, a block that it reads does not hold the content that was written for it;
- order: two operations access a block, at least one of them changes it, and no chain of streams, events and waits of a thread
  orders them. Accesses before and after the block was freed and allocated again count alike;
- free: a block is freed, and its stream has not been made to wait for every operation that used it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, on_host
from trainplan.execution.run import threads
from trainplan.execution.run.cuda_streams import CudaStreams

Clock = dict[int, int]  # by stream, and by thread (numbers below 0): how many of its operations are known to be done


def _merge(clock: Clock, other: Clock) -> None:
    """Adds to a clock everything that another one knows to be done."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


class Event:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.recorded, self.reached = cuda, 0, 0
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        with self.cuda.lock:
            self.recorded += 1
            self.clock = dict(stream.clock)
            stream.queue.append(("record", self, self.recorded))
            self.cuda.progress()

    def synchronize(self) -> None:
        """Wait until the device has reached the event; at once where it was never recorded, as CUDA does."""
        with self.cuda.lock:
            wanted = self.recorded
            _merge(self.cuda.thread_clock, self.clock)
        while self.reached < wanted:
            with self.cuda.lock:
                self.cuda.advance()


class Stream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.number = cuda, len(cuda.streams)
        self.queue: deque[tuple[str, Any, Any]] = deque()
        self.clock: Clock = {}
        cuda.streams.append(self)

    def wait_event(self, event: Event) -> None:
        with self.cuda.lock:
            _merge(self.clock, event.clock)
            self.queue.append(("wait", event, event.recorded))

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.cuda)
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        event = Event(self.cuda)
        event.record(self)
        event.synchronize()

    def put(self, begin: Callable[[], None], end: Callable[[], None]) -> Clock:
        """Issue an operation, given as its begin and its end; returns the clock of everything that is done when it is done."""
        _merge(self.clock, self.cuda.thread_clock)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        self.queue.append(("operation", begin, end))
        self.cuda.progress()
        return dict(self.clock)


class FakeCuda:
    """The part of torch.cuda that `execution.run.cuda_streams` uses.

    eagerness: the average number of steps that the device makes between two calls.
    """

    def __init__(self, rng: random.Random, eagerness: float) -> None:
        self.rng, self.eagerness = rng, eagerness
        self.lock = threading.RLock()
        self.streams: list[Stream] = []
        self._current = threading.local()
        self._default = Stream(self)
        self._speed: dict[int, float] = {}
        self._handed_on: Clock = {}
        self._steps = 0
        self._clocks_of_done: dict[int, Clock] = {}
        self._threads = 0

    def Stream(self, device: object) -> Stream:
        return Stream(self)

    def Event(self) -> Event:
        return Event(self)

    def set_device(self, device: object) -> None: ...

    def current_stream(self, device: object = None) -> Stream:
        return getattr(self._current, "stream", self._default)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current_stream(), stream
        yield
        self._current.stream = before

    @property
    def thread_clock(self) -> Clock:
        """The clock of the calling thread: operations that it has waited for, or that were known when it got its work."""
        if not hasattr(self._current, "clock"):
            self._current.clock, self._current.steps = {}, 0
        if self._current.steps < self._steps:
            _merge(self._current.clock, self._handed_on)
            self._current.steps = self._steps
        return self._current.clock

    @property
    def thread(self) -> int:
        """The number of the calling thread."""
        if not hasattr(self._current, "number"):
            self._threads += 1
            self._current.number = -1 - self._threads
        return int(self._current.number)

    def hand_on(self) -> None:
        """Let threads that begin work from now on know what the calling thread knows to be done."""
        self._handed_on, self._steps = dict(self.thread_clock), self._steps + 1

    def threads_progress(self) -> type[threads._Progress]:
        """The class by which threads wait for each other's instructions: a thread that has waited for one knows everything
        that was known to the other thread when that instruction was done."""
        cuda = self

        class Progress(threads._Progress):
            def done(self, index: int) -> None:
                with cuda.lock:
                    cuda._clocks_of_done[index] = dict(cuda.thread_clock)
                super().done(index)

            def reaches(self, indices: Sequence[int]) -> bool:
                reached = super().reaches(indices)
                with cuda.lock:
                    for index in indices if reached else ():
                        _merge(cuda.thread_clock, cuda._clocks_of_done[index])
                return reached

        return Progress

    def progress(self) -> None:
        for _ in range(int(self.rng.expovariate(1.0) * self.eagerness)):
            self.advance()

    @property
    def idle(self) -> bool:
        return not any(stream.queue for stream in self.streams)

    def advance(self) -> None:
        """One step of the device: a random stream whose next operation may run begins or ends it. Streams differ in speed."""
        ready = [s for s in self.streams if s.queue and (s.queue[0][0] != "wait" or s.queue[0][1].reached >= s.queue[0][2])]
        if not ready:
            assert self.idle, "the device is stuck"
            return
        speeds = [self._speed.setdefault(stream.number, self.rng.choice([0.01, 1.0, 30.0])) for stream in ready]
        (stream,) = self.rng.choices(ready, speeds)
        kind, what, more = stream.queue.popleft()
        if kind == "record":
            what.reached = max(what.reached, more)
        elif kind == "operation":
            what()
            stream.queue.appendleft(("end", more, None))
        elif kind == "end":
            what()


@dataclass
class Access:
    """An operation's access to a block.

    Attributes:
        who: the instruction, in words.
        changes: whether it writes to the block.
        stream: the stream of the device, or the thread of the processor (below 0), that does it.
        count: its number among the operations there.
    """

    who: str
    changes: bool
    stream: int = 0
    count: int = 0

    def before(self, clock: Clock) -> bool:
        return clock.get(self.stream, 0) >= self.count


@dataclass
class Block:
    stream: int
    content: str = ""
    accesses: list[Access] = field(default_factory=list)


class Machine:
    """Runs a program on a simulated device, with the names of buffers in place of their values.

    Attributes:
        faults: the faults that were found, in words.
        reused: how many blocks were allocated that had been freed before.
        peaks: for each step, the most bytes of the device that were allocated at once.
    """

    by_processor = staticmethod(lambda instruction: instruction.by_processor or instruction.stream == "host")

    def __init__(self, cuda: FakeCuda, program: Program) -> None:
        self.cuda, self.buffers = cuda, program.buffers
        self.faults: list[str] = []
        self.reused = 0
        self.peaks: list[int] = []
        self._bytes = program.persistent_bytes
        self._free: dict[int, list[Block]] = {}
        self._versions: dict[str, int] = {}
        self._held: dict[str, Block] = {name: Block(-1) for name in sorted(program.persistent)}
        for name, block in self._held.items():
            block.content = self._content(name)

    def step(self, streams: CudaStreams) -> None:
        """Run one step of the program, after an operation of the current stream that changes all persistent buffers."""
        device = tuple(sorted(name for name in self._held if not on_host(name)))
        begin, end, accesses = self._operation(Instruction(Op.MARK, reads=device, writes=device))
        stream = self.cuda.current_stream()
        clock = stream.put(begin, end)
        self._ordered(accesses, clock, stream.number, clock[stream.number])
        self.cuda.hand_on()
        self.peaks.append(self._bytes)
        streams.step(self.run, self.free)
        assert self.cuda.idle, "the step has ended, and the device has not"

    def run(self, instruction: Instruction) -> None:
        by_processor = self.by_processor(instruction)
        if by_processor:
            time.sleep(self.cuda.rng.uniform(0, 0.0005))
        with self.cuda.lock:
            begin, end, accesses = self._operation(instruction)
            if not by_processor:
                stream = self.cuda.current_stream()
                clock = stream.put(begin, end)
                self._ordered(accesses, clock, stream.number, clock[stream.number])
                return
            clock, thread = self.cuda.thread_clock, self.cuda.thread
            self._ordered(accesses, clock, thread, clock.get(thread, 0) + 1)
            begin()
        time.sleep(self.cuda.rng.uniform(0, 0.0005))
        with self.cuda.lock:
            self.cuda.progress()
            end()
            clock[thread] = clock.get(thread, 0) + 1

    def free(self, name: str) -> None:
        with self.cuda.lock:
            if on_host(name):
                return
            block = self._held.pop(name)
            clock = dict(self.cuda.streams[block.stream].clock)
            _merge(clock, self.cuda.thread_clock)
            for access in block.accesses:
                if not access.before(clock):
                    self.faults.append(f"free: {name} is given back, and its stream does not wait for {access.who}")
            self._free.setdefault(block.stream, []).append(block)
            self._bytes -= self.buffers[name]

    def _content(self, name: str) -> str:
        return f"{name} of version {self._versions.setdefault(name, 0)}"

    def _operation(self, instruction: Instruction) -> tuple[Callable[[], None], Callable[[], None], list[tuple[Block, Access]]]:
        who = str(instruction)
        read = [(self._held[name], self._content(name)) for name in instruction.reads]
        written = []
        for name in instruction.writes:
            if name not in self._held:
                self._held[name] = self._allocated(name)
            self._versions[name] = self._versions.get(name, 0) + 1
            written.append((self._held[name], self._content(name)))
        changed = [block for block, _ in written]
        only_read = [(block, content) for block, content in read if all(block is not other for other in changed)]

        def begin() -> None:
            for block, content in read:
                if block.content != content:
                    self.faults.append(f"content: {who} begins to read {content} and finds {block.content}")
            for block in changed:
                block.content = f"half of what {who} writes"

        def end() -> None:
            for block, content in only_read:
                if block.content != content:
                    self.faults.append(f"content: {who} reads {content} and ends with {block.content}")
            for block, content in written:
                if block.content != f"half of what {who} writes":
                    self.faults.append(f"content: {who} writes {content} over {block.content}")
                block.content = content

        accesses = [(block, Access(who, True)) for block in changed] + [(block, Access(who, False)) for block, _ in only_read]
        return begin, end, accesses

    def _allocated(self, name: str) -> Block:
        if on_host(name):
            return Block(-1)
        stream = self.cuda.current_stream().number
        self._bytes += self.buffers[name]
        self.peaks[-1] = max(self.peaks[-1], self._bytes)
        if self._free.get(stream):
            self.reused += 1
            return self._free[stream].pop()
        return Block(stream)

    def _ordered(self, accesses: list[tuple[Block, Access]], clock: Clock, stream: int, count: int) -> None:
        """Record accesses to blocks by an operation, and a fault for each earlier conflicting access that may not be done yet.

        clock: the operations that are done when this one begins. stream, count: where it runs, and its number there.
        """
        for block, access in accesses:
            access.stream, access.count = stream, count
            for other in block.accesses:
                if (access.changes or other.changes) and not other.before(clock):
                    self.faults.append(f"order: {access.who} does not wait for {other.who}")
            block.accesses.append(access)
