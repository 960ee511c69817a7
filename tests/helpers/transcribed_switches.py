"""A second implementation of the step with memory switches, one number at a time, to compare the vectorised simulation with.

Operations are issued in the order that the simulation's module docstring states. Memory at a point is the sum of the buffers
alive there; each buffer has the points at which its life begins and ends. A point is a pair of a time in ns and the number of
the segment, which orders what happens at one time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from trainplan.formulations.memory_switches.problem import Instance, Solution
from trainplan.formulations.plan.switches import Switches

Point = tuple[int, int]


@dataclass
class Transcribed:
    """One simulated step of an instance with the switches of each layer.

    Attributes:
        instance: the instance.
        switches: the switches of each layer.
        operations: (lane, operation, layer, start in ns, end in ns) in order of issue.
        buffers: (bytes, first point, point of the end).
        clock: by lane, when it is free again, in ns.
        end_of: by operation and layer, its end in ns.
        begun: by kind of buffer and layer, the point at which a buffer that is still alive began.
        number_of_segment: the current segment.
        time_ns: the time of the step.
    """

    instance: Instance
    switches: tuple[Switches, ...]
    operations: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    buffers: list[tuple[int, Point, Point]] = field(default_factory=list)
    clock: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("compute", "communication", "copy", "host"), 0))
    end_of: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    begun: dict[tuple[str, int], Point] = field(default_factory=dict)
    number_of_segment: int = 0
    time_ns: int = 0

    def __post_init__(self) -> None:
        self.last = self.instance.layers - 1
        self.begin("hidden", 0, 0)
        self.run()
        self.time_ns = max(self.clock.values())
        for i, switches in enumerate(self.switches):
            if not switches.lazy_prefetch:
                self.buffers.append((self.number("partitioned_parameter_bytes", i), (0, 0), (2**62, 0)))  # it stays

    def number(self, name: str, i: int) -> int:
        return int(self.instance[name][i])

    def held(self, point: Point) -> int:
        return sum(size for size, begin, end in self.buffers if begin <= point < end)

    def held_from(self, moment: int) -> int:
        """The bytes that are held just after a time in ns, when everything at that time has happened."""
        return self.held((moment, self.number_of_segment))

    @property
    def peak_bytes(self) -> int:
        return max(self.held(begin) for _, begin, _ in self.buffers)

    # Operations and buffers

    def lane(self, name: str) -> str:
        return "communication" if name == "copy" and not self.instance.nvlink else name

    def begin(self, what: str, i: int, moment: int) -> None:
        assert (what, i) not in self.begun
        self.begun[what, i] = self.point(moment)

    def point(self, moment: int) -> Point:
        return moment, self.number_of_segment

    def free(self, what: str, i: int, size: str, moment: int) -> None:
        self.buffers.append((self.number(size, i), self.begun.pop((what, i)), self.point(moment)))

    def operation(self, lane: str, what: str, i: int, time: str, *after: int) -> tuple[int, int]:
        lane = self.lane(lane)
        start = max(self.clock[lane], *after, 0)
        end = self.clock[lane] = start + self.number(time, i)
        if lane == "compute":
            self.clock = {name: max(moment, start) for name, moment in self.clock.items()}
        self.operations.append((lane, what, i, start, end))
        self.end_of[what, i] = end
        return start, end

    def synchronise(self, on: bool) -> None:
        if on:
            self.clock = dict.fromkeys(self.clock, max(self.clock.values()))

    def segment(self, i: int) -> None:
        self.number_of_segment += 1
        self.synchronise(self.switches[i].segment_sync)
        for name in ("communication", "copy"):
            self.clock[name] = max(self.clock[name], self.clock["compute"])

    # Operations of single layers

    def prefetch_shard(self, i: int) -> None:
        if self.switches[i].lazy_prefetch:
            start, _ = self.operation("copy", "prefetch shard", i, "prefetch_parameter_ns")
            self.begin("shard", i, start)

    def all_gather(self, i: int) -> None:
        start, end = self.operation("communication", "all-gather", i, "all_gather_ns", self.end_of["prefetch shard", i])
        self.begin("gathered", i, start)
        if self.switches[i].lazy_prefetch:
            self.free("shard", i, "partitioned_parameter_bytes", end)

    def reshard(self, i: int) -> None:
        self.free("gathered", i, "gathered_parameter_bytes", self.clock["communication"])

    def drop_hidden(self, i: int) -> None:
        if self.switches[i].offload_hidden:
            self.free("hidden", i, "input_bytes", self.clock[self.lane("copy")])

    def prefetch_hidden(self, i: int) -> None:
        if self.switches[i].offload_hidden:
            start, _ = self.operation("copy", "prefetch hidden", i, "prefetch_hidden_ns")
            self.begin("hidden", i, start)

    def scatter(self, i: int) -> None:
        start, end = self.operation("communication", "reduce-scatter", i, "reduce_scatter_ns")
        self.begin("part of gradient", i, start)
        self.free("gradient", i, "gathered_gradient_bytes", end)

    def offload_gradient(self, i: int) -> None:
        _, end = self.operation("copy", "offload gradient", i, "offload_gradient_ns", self.end_of["reduce-scatter", i])
        self.free("part of gradient", i, "partitioned_gradient_bytes", end)

    def compute(self, what: str, i: int, kind: str, leaves: int) -> tuple[int, int]:
        """Issue a computation of a layer, and return its start and end in ns.

        what: the operation. kind: the prefix of its fields in the instance. leaves: the bytes of its peak that become buffers
        of their own; the rest is workspace, which is freed at its end.
        """
        ready = self.end_of["all-gather", i], self.end_of["prefetch hidden", i]
        start, end = self.operation("compute", what, i, f"{kind}_ns", *ready)
        self.buffers.append((self.number(f"{kind}_peak_bytes", i) - leaves, self.point(start), self.point(end)))
        return start, end

    # Segments

    def run(self) -> None:
        n, on = self.instance.layers, self.switches
        self.prefetch_shard(0)
        self.all_gather(0)
        for i in range(n):
            self.forward(i)
        self.segment(self.last)
        if on[self.last].partition:
            self.reshard(self.last)
        self.drop_hidden(self.last)
        if on[self.last].partition:
            self.prefetch_shard(self.last)
            self.all_gather(self.last)
        self.prefetch_hidden(self.last)
        for i in reversed(range(n)):
            self.backward(i)
        self.segment(0)
        self.reshard(0)
        self.scatter(0)
        self.offload_gradient(0)
        assert not self.begun
        self.synchronise(True)
        for i in range(n):
            self.synchronise(on[i].segment_sync)
            if i:
                self.copy_back(i - 1)
            self.operation("host", "optimizer", i, "optimizer_ns")
        self.copy_back(n - 1)

    def copy_back(self, i: int) -> None:
        if not self.switches[i].lazy_prefetch:
            self.operation("copy", "prefetch shard", i, "prefetch_parameter_ns", self.end_of["optimizer", i])

    def forward(self, i: int) -> None:
        own = self.switches[i]
        self.segment(i)
        if i and self.switches[i - 1].partition:
            self.reshard(i - 1)
        if i:
            self.drop_hidden(i - 1)

        def fetch_next() -> None:
            if i < self.last:
                self.prefetch_shard(i + 1)
                self.all_gather(i + 1)

        if not own.eco_forward:
            fetch_next()
        if own.offload_hidden:
            self.operation("copy", "offload hidden", i, "offload_hidden_ns")
        if own.eco_forward:
            fetch_next()
        output, graph = self.number("output_bytes", i), self.number("graph_bytes", i)
        if own.ckpt:
            start, _ = self.compute("forward without graph", i, "forward_without_graph", output)
        else:
            start, _ = self.compute("forward", i, "forward", output + graph)
            self.begin("graph", i, start)
        self.begin("hidden", i + 1, start)

    def backward(self, i: int) -> None:
        own, before = self.switches[i], self.switches[i - 1] if i else None
        nvlink, eco = self.instance.nvlink, own.eco_backward
        self.segment(i)
        if i < self.last:
            self.reshard(i + 1)
            self.scatter(i + 1)

        def gather() -> None:
            if before and before.partition:
                self.all_gather(i - 1)

        def shard() -> None:
            if before and before.partition:
                self.prefetch_shard(i - 1)

        def hidden() -> None:
            if before:
                self.prefetch_hidden(i - 1)

        def gradient() -> None:
            if i < self.last:
                self.offload_gradient(i + 1)

        first, early, late = (
            ([shard], [hidden, gather, gradient], [gather, gradient, hidden])
            if nvlink
            else ([gradient], [hidden, shard, gather], [hidden, shard, gather])
        )
        for step in first + ([] if eco else early):
            step()
        output, graph = self.number("output_bytes", i), self.number("graph_bytes", i)
        if own.ckpt:
            recomputed, _ = self.compute("recompute", i, "forward", graph)  # its output is freed at once
            self.begin("graph", i, recomputed)
        start, end = self.compute("backward", i, "backward", self.number("input_bytes", i) if i else 0)
        self.begin("gradient", i, start)
        self.free("graph", i, "graph_bytes", end)
        self.free("hidden", i, "input_bytes", end)
        if i == self.last:  # the last output becomes its own gradient
            self.buffers.append((output, self.begun.pop(("hidden", i + 1)), self.point(end)))
        else:
            self.free("gradient of hidden", i + 1, "input_bytes", end)
        if i:
            self.begin("gradient of hidden", i, start)
        for step in late if eco else []:
            step()


def transcribed(instance: Instance, solution: Solution) -> Transcribed:
    """The simulated step of a solution of an instance."""
    return Transcribed(instance, solution.switches)
