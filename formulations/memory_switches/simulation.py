"""The step of a chain of layers with memory switches, simulated on its lanes; many choices of switches at a time.

Lanes: `compute`; `communication` (all-gather and reduce-scatter); `copy` (to and from the host, one after the other, as the
published simulator makes prefetches and offloads wait for each other); `host` (the optimizer). Without NVLink communication and
copies share one lane. An operation starts when its lane is free and what it waits for is done. After a computation has started
at t, no operation issued after it starts before t. The order of issue is that of the authors' published simulator; P(j): copy
in the shard of layer j (where it is prefetched lazily), then all-gather its parameters.

    forward i     [synchronise], reshard i-1, drop hidden i-1; unless economical P(i+1); offload hidden i;
                  if economical P(i+1); compute i
    turn          [synchronise], reshard N-1, drop hidden N-1; P(N-1) if partitioned; prefetch hidden N-1
    backward i    [synchronise], reshard i+1; reduce-scatter i+1; then
      NVLink      prefetch shard i-1; unless economical: prefetch hidden i-1, all-gather i-1, offload gradient i+1;
                  recompute and backward i; if economical: all-gather i-1, offload gradient i+1, prefetch hidden i-1
      without     offload gradient i+1; unless economical: prefetch hidden i-1, prefetch shard i-1, all-gather i-1;
                  recompute and backward i; if economical: those three
    tail          [synchronise], reshard 0, reduce-scatter 0, offload gradient 0
    optimizer i   [synchronise], copy shard i-1 back to the device (unless lazy), host step i; at the end that of N-1

Before all of these, P(0). No communication of a segment starts before the computation of the one before has ended. Brackets:
where the layer's `segment_sync` is on, all lanes wait for all; turn and tail take it from layers N-1 and 0.

Memory holds, from the start of what allocates to the end of what is last to need it: shards (the whole step, or lazily from
their copy to the end of the all-gather), gathered parameters (until resharded: at the next segment where partitioned, else
after the backward pass), hidden states (offloaded ones until dropped, and again from their prefetch), graphs, gradients of
hidden states, whole gradients (until scattered), their shards (until offloaded), and the workspace of each computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.instance import Timed
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.switches import SWITCHES, SwitchName

LANES = ("compute", "communication", "copy", "host")
Booleans = NDArray[np.bool_]
LayerNumbers = Mapping[str, Integers]  # of every number of a layer, by its name in the file format


@dataclass(frozen=True)
class Operation:
    """An operation of a layer that a lane of the device runs. lane: `compute`, `communication`, `copy` or `host`. what: the
    operation's name, such as `all-gather`. layer: the index of the layer. start_ns, end_ns: when it runs, from the
    beginning of the step.
    """

    lane: str
    what: str
    layer: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """A simulated step.

    Attributes:
        time_ns: its end.
        peak_bytes: the most bytes held; peak_ns: when that is first reached.
        resident_bytes: bytes of the shards that stay for the whole step.
        phases_ns: when forward pass, backward pass and optimizer end.
        timeline: all operations, in order of issue.
        memory: pairs of a moment in ns and the bytes held from then on, by time.
    """

    time_ns: int
    peak_bytes: int
    peak_ns: int
    resident_bytes: int
    phases_ns: tuple[int, int, int]
    timeline: tuple[Operation, ...]
    memory: tuple[tuple[int, int], ...]


def simulate(
    columns: LayerNumbers, nvlink: bool, switches: Booleans, check_time: Callable[[], None] = lambda: None
) -> tuple[Integers, Integers]:
    """Simulate the step for K choices of switches at once. Returns two arrays (K,): the time in ns and the peak bytes of each.

    columns: by field name of a layer in instance files (such as `forward_ns`), the numbers of the N layers. nvlink: whether
    communication and copies to the host have a lane each. switches: (K, N, 7), whether each switch is on, in the order of
    `SWITCHES`. check_time: called for every layer and pass; an exception that it raises is passed on.
    """
    step = SimulatedStep(columns, nvlink, switches)
    step.whole(check_time)
    return step.time_ns, step.resident_bytes + step.most_held()[0]


def simulate_one(columns: LayerNumbers, nvlink: bool, switches: Booleans) -> Evaluation:
    """The simulated step of one choice of switches, with its timeline and its memory over time.

    columns: by field name of a layer in instance files (such as `forward_ns`), the numbers of the N layers. nvlink: whether
    communication and copies to the host have a lane each. switches: (1, N, 7), whether each switch is on, in the order of
    `SWITCHES`.
    """
    step = SimulatedStep(columns, nvlink, switches)
    forward, backward, optimizer = (int(moment[0]) for moment in step.whole())
    timeline = [
        Operation(lane, what, layer, int(start[0]), int(end[0])) for lane, what, layer, start, end, on in step.done if on[0]
    ]
    (most,), (moment,) = step.most_held()
    resident = int(step.resident_bytes[0])
    return Evaluation(
        time_ns=optimizer,
        peak_bytes=resident + int(most),
        peak_ns=int(moment),
        resident_bytes=resident,
        phases_ns=(forward, backward, optimizer),
        timeline=tuple(timeline),
        memory=step.memory(),
    )


@dataclass
class SimulatedStep:
    """K simulations at the same time: of whole steps, or of segments that begin when all lanes are done. A lane (compute,
    communication, copy, host) runs its operations one after the other in the order in which they are issued; a segment is
    the part of the step for one layer and pass. Methods that issue operations write to `done` and `changes`.

    Attributes:
        columns: by field name of a layer in instance files (such as `forward_ns`), the numbers of the N layers: (N,), or
            (N, K) if the simulations are of different layers.
        nvlink: whether communication and copies to the host have a lane each.
        switches: (K, N, 7), whether each switch is on.
        done: every operation in order of issue: lane, name, layer, start, end, and in which simulations it runs.
        changes: every change of memory: segment, moment and bytes.
        segment: the number of the segment that is being issued, by which changes at one moment are ordered.
    """

    columns: LayerNumbers
    nvlink: bool
    switches: Booleans
    done: list[tuple[str, str, int, Integers, Integers, Booleans]] = field(default_factory=list)
    changes: list[tuple[int, Integers, Integers]] = field(default_factory=list)
    segment: int = 0

    def __post_init__(self) -> None:
        self.count, self.layers = self.switches.shape[:2]
        self.clocks = {lane: np.zeros(self.count, np.int64) for lane in LANES}
        self.lane_of = dict(zip(LANES, LANES, strict=True)) | ({} if self.nvlink else {"copy": "communication"})
        zero, self.always = np.zeros(self.count, np.int64), np.ones(self.count, bool)
        self.zero = zero
        # When a shard, whole parameters or hidden states are there, a gradient is scattered, a shard has been stepped.
        self.shard, self.gathered, self.hidden, self.scattered, self.stepped = ([zero] * self.layers for _ in range(5))

    def on(self, layer: int, name: SwitchName) -> Booleans:
        """(K,): in which simulations a layer has a switch on. layer: the layer's index. name: the switch."""
        column: Booleans = self.switches[:, layer, SWITCHES.index(name)]
        return column

    def number(self, name: str, layer: int) -> Any:
        """The value that a layer has for a number of the file format, such as `forward_ns`: an integer; an array (K,) where the
        simulations are of different layers.
        """
        return self.columns[name][layer]

    @property
    def time_ns(self) -> Integers:
        """(K,): the time in ns at which all lanes are done, in each simulation."""
        latest: Integers = reduce(np.maximum, self.clocks.values())
        return latest

    def whole(self, check_time: Callable[[], None] = lambda: None) -> tuple[Integers, Integers, Integers]:
        """Simulate the whole step. Returns three arrays (K,), the moments in ns at which forward pass, backward pass and
        optimizer end. check_time: called for every layer and pass; an exception that it raises is passed on."""
        self.change(self.clocks["compute"], self.number("input_bytes", 0))
        self.head()
        for i in range(self.layers):
            check_time()
            self.segment += 1
            self.forward(i)
        forward = self.time_ns
        self.segment += 1
        self.turn()
        for i in reversed(range(self.layers)):
            check_time()
            self.segment += 1
            self.backward(i)
        self.segment += 1
        self.tail()
        backward = self.time_ns
        self.finish(backward)
        for i in range(self.layers):
            self.optimizer(i)
        self.copy_back(self.layers - 1)
        return forward, backward, self.time_ns

    # Segments

    def head(self) -> None:
        """Issue the operations before the first forward segment: the fetch of the first layer's parameters."""
        self._prefetch_shard(0, self.always)
        self._all_gather(0, self.always)

    def forward(self, i: int) -> None:
        """Issue the forward segment of layer `i`: its computation, and the copies and gathers that overlap it."""
        self._begin(i)
        if i:
            self._release(i - 1)
        eco, ckpt = self.on(i, "eco_forward"), self.on(i, "ckpt")
        if i + 1 < self.layers:
            self._fetch(i + 1, ~eco)
        self._run("copy", "offload hidden", i, "offload_hidden_ns", self.on(i, "offload_hidden"))
        if i + 1 < self.layers:
            self._fetch(i + 1, eco)
        output, graph = self.number("output_bytes", i), self.number("graph_bytes", i)
        self._compute("forward without graph", i, "forward_without_graph", output, ckpt)
        self._compute("forward", i, "forward", output + graph, ~ckpt)

    def turn(self) -> None:
        """Issue the segment between forward and backward pass, in which the last layer's parameters and input are fetched
        again."""
        last = self.layers - 1
        self._begin(last)
        self._release(last)
        self._fetch(last, self.on(last, "partition"))
        self._prefetch_hidden(last, self.always)

    def backward(self, i: int) -> None:
        """Issue the backward segment of layer `i`: its computation, the reduction of the next layer's gradients, and fetches
        for the layer before."""
        self._begin(i)
        eco, ckpt = self.on(i, "eco_backward"), self.on(i, "ckpt")
        if i + 1 < self.layers:
            self._reshard(i + 1, self.always)
            self._reduce_scatter(i + 1)
        self._prepare_early(i, ~eco)
        output, graph = self.number("output_bytes", i), self.number("graph_bytes", i)
        self._compute("recompute", i, "forward", graph, ckpt)  # its output is not needed, and goes at once
        gradient = self.number("input_bytes", i) * (i > 0)
        left = gradient - graph - self.number("input_bytes", i) - output
        start = self._compute("backward", i, "backward", left, self.always)
        self.change(start, self.number("gathered_gradient_bytes", i))
        self._prepare_late(i, eco)

    def tail(self) -> None:
        """Issue the segment after the backward pass, in which the first layer's gradient goes to the host."""
        self._begin(0)
        self._reshard(0, self.always)
        self._reduce_scatter(0)
        self._offload_gradient(0, self.always)

    def optimizer(self, i: int) -> None:
        """Issue the optimizer's step of layer `i` on the host, after the copy of the new shard of the layer before."""
        self._synchronise(self.on(i, "segment_sync"))
        if i:
            self.copy_back(i - 1)
        _, self.stepped[i], _ = self._run("host", "optimizer", i, "optimizer_ns", self.always)

    def copy_back(self, i: int) -> None:
        """Issue the copy of layer `i`'s new shard of parameters to the device, unless it is prefetched lazily."""
        self._run("copy", "prefetch shard", i, "prefetch_parameter_ns", ~self.on(i, "lazy_prefetch"), self.stepped[i])

    def finish(self, moment: Integers) -> None:
        """Make all lanes of every simulation wait until a moment. moment: (K,), in ns."""
        self.clocks = {lane: np.maximum(clock, moment) for lane, clock in self.clocks.items()}

    def _begin(self, i: int) -> None:
        """Begin a segment of layer `i`. In the simulations in which the layer's switch `segment_sync` is on, all lanes wait
        for each other; in all others, collectives and copies wait for the computations issued before.
        """
        self._synchronise(self.on(i, "segment_sync"))
        for lane in ("communication", "copy"):
            self.clocks[lane] = np.maximum(self.clocks[lane], self.clocks["compute"])

    def _synchronise(self, on: Booleans) -> None:
        """Make all lanes wait for each other in those simulations in which `on` is True. on: (K,)."""
        self.finish(np.where(on, self.time_ns, 0))

    def _release(self, i: int) -> None:
        """Free what the forward pass of layer `i` no longer needs: gathered parameters and an offloaded input, as its switches
        say."""
        self._reshard(i, self.on(i, "partition"))
        self.change(self.clocks[self.lane_of["copy"]], -self.number("input_bytes", i), self.on(i, "offload_hidden"))

    def _prepare_early(self, i: int, now: Booleans) -> None:
        """Issue the fetches that the backward pass of layer `i` issues before it computes. now: (K,), the simulations in which
        that backward pass is not economical (switch `eco_backward` off)."""
        if self.nvlink and i:
            self._prefetch_shard(i - 1, self.on(i - 1, "partition"))
            self._prefetch_hidden(i - 1, now)
            self._all_gather(i - 1, now & self.on(i - 1, "partition"))
        if i + 1 < self.layers:
            self._offload_gradient(i + 1, now if self.nvlink else self.always)
        if not self.nvlink and i:
            self._prefetch_hidden(i - 1, now)
            self._fetch(i - 1, now & self.on(i - 1, "partition"))

    def _prepare_late(self, i: int, now: Booleans) -> None:
        """Issue the fetches that the backward pass of layer `i` issues after its computation. now: (K,), the simulations in
        which that backward pass is economical (switch `eco_backward` on)."""
        if self.nvlink:
            if i:
                self._all_gather(i - 1, now & self.on(i - 1, "partition"))
            if i + 1 < self.layers:
                self._offload_gradient(i + 1, now)
        if i:
            self._prefetch_hidden(i - 1, now)
        if not self.nvlink and i:
            self._fetch(i - 1, now & self.on(i - 1, "partition"))

    # Operations

    def _fetch(self, i: int, on: Booleans) -> None:
        """Copy the shard of layer `i` to the device, where it is prefetched lazily, and gather its parameters. on: (K,), the
        simulations that do so."""
        self._prefetch_shard(i, on)
        self._all_gather(i, on)

    def _prefetch_shard(self, i: int, on: Booleans) -> None:
        """Copy the shard of layer `i` to the device where it is prefetched lazily. on: (K,), the simulations that do so."""
        on = on & self.on(i, "lazy_prefetch")
        start, end, on = self._run("copy", "prefetch shard", i, "prefetch_parameter_ns", on)
        self.change(start, self.number("partitioned_parameter_bytes", i), on)
        self.shard[i] = np.where(on, end, self.shard[i])

    def _all_gather(self, i: int, on: Booleans) -> None:
        """Gather the parameters of layer `i` from their shards; a lazily prefetched shard is freed at the end. on: (K,), the
        simulations that do so."""
        start, end, on = self._run("communication", "all-gather", i, "all_gather_ns", on, self.shard[i])
        self.change(start, self.number("gathered_parameter_bytes", i), on)
        self.change(end, -self.number("partitioned_parameter_bytes", i), on & self.on(i, "lazy_prefetch"))
        self.gathered[i] = np.where(on, end, self.gathered[i])

    def _reshard(self, i: int, on: Booleans) -> None:
        """Free the gathered parameters of layer `i`. on: (K,), the simulations that do so."""
        self.change(self.clocks["communication"], -self.number("gathered_parameter_bytes", i), on)

    def _prefetch_hidden(self, i: int, on: Booleans) -> None:
        """Copy the input of layer `i` back to the device where it was offloaded. on: (K,), the simulations that do so."""
        start, end, on = self._run("copy", "prefetch hidden", i, "prefetch_hidden_ns", on & self.on(i, "offload_hidden"))
        self.change(start, self.number("input_bytes", i), on)
        self.hidden[i] = np.where(on, end, self.hidden[i])

    def _reduce_scatter(self, i: int) -> None:
        """Reduce the gradients of layer `i` over all devices, to the shard of one device, in all simulations."""
        start, end, _ = self._run("communication", "reduce-scatter", i, "reduce_scatter_ns", self.always)
        self.change(start, self.number("partitioned_gradient_bytes", i))
        self.change(end, -self.number("gathered_gradient_bytes", i))
        self.scattered[i] = end

    def _offload_gradient(self, i: int, on: Booleans) -> None:
        """Copy the shard of layer `i`'s gradients to the host. on: (K,), the simulations that do so."""
        _, end, on = self._run("copy", "offload gradient", i, "offload_gradient_ns", on, self.scattered[i])
        self.change(end, -self.number("partitioned_gradient_bytes", i), on)

    def _compute(self, what: str, i: int, kind: str, left: Any, on: Booleans) -> Integers:
        """Issue a computation of layer `i` on the lane `compute`, with its change of memory; returns its start in ns, (K,).

        what: its name in the timeline. kind: the prefix of the names in `columns` of its time and its peak bytes, such as
        `forward`. left: bytes held after it minus bytes held before it. on: (K,), the simulations that run it.
        """
        ready = np.maximum(self.gathered[i], self.hidden[i])
        start, end, on = self._run("compute", what, i, f"{kind}_ns", on, ready)
        peak = self.number(f"{kind}_peak_bytes", i)
        self.change(start, peak, on)
        self.change(end, left - peak, on)
        return start

    def _run(
        self, lane: str, what: str, layer: int, time: str, on: Booleans, after: Integers | None = None
    ) -> tuple[Integers, Integers, Booleans]:
        """Run an operation on a lane; returns its start and end in ns, (K,) each, and `on`.

        what: its name in the timeline.
        layer: the index of the layer.
        time: the name of its time in `columns`.
        on: (K,), the simulations that run it.
        after: (K,), when what it waits for is done; None if it waits for its lane only.
        """
        always = on is self.always
        if not always and not np.count_nonzero(on):
            return self.zero, self.zero, on
        lane = self.lane_of[lane]
        start = self.clocks[lane] if after is None else np.maximum(self.clocks[lane], after)
        end = start + self.number(time, layer)
        self.clocks[lane] = end if always else np.where(on, end, self.clocks[lane])
        if lane == "compute":
            begun = start if always else np.where(on, start, 0)
            for other in LANES:
                self.clocks[other] = np.maximum(self.clocks[other], begun)
        self.done.append((lane, what, layer, start, end, on))
        return start, end, on

    # Memory

    def change(self, time: Integers, size: Any, on: Booleans | None = None) -> None:
        """Record that `size` more bytes (fewer if negative) are held from a moment on. time: (K,), the moment in ns in each
        simulation. on: (K,), the simulations in which that is so; None for all.
        """
        if on is None:
            self.changes.append((self.segment, time, self.zero + size))
        elif on is self.always or np.count_nonzero(on):
            self.changes.append((self.segment, time, size * on))

    @property
    def resident_bytes(self) -> Integers:
        """(K,): the bytes of the shards that stay on the device for the whole step, since they are not prefetched lazily."""
        stays = ~self.switches[:, :, SWITCHES.index("lazy_prefetch")]
        total: Integers = (stays * self.columns["partitioned_parameter_bytes"]).sum(axis=1)
        return total

    def most_held(self) -> tuple[Integers, Integers]:
        """Two arrays (K,): the most bytes held at any moment, without shards that stay for the whole step, and the moment in ns
        when that is first reached.

        Changes at one moment are ordered: those of earlier segments come first (or a segment without length would need no
        memory), and what ends before what begins.
        """
        segments, *columns = zip(*self.changes, strict=True)
        times, sizes = (np.concatenate(column).reshape(len(column), -1) for column in columns)
        issued = np.lexsort(((sizes > 0).any(axis=1), segments))
        times, sizes = times[issued], sizes[issued]
        order = np.argsort(times, axis=0, kind="stable")
        level = np.cumsum(np.take_along_axis(sizes, order, axis=0), axis=0)
        fullest = level.argmax(axis=0)[None]
        moments = np.take_along_axis(times, order, axis=0)
        return np.take_along_axis(level, fullest, axis=0)[0], np.take_along_axis(moments, fullest, axis=0)[0]

    def memory(self) -> tuple[tuple[int, int], ...]:
        """The memory of the first simulation over time: pairs (moment in ns, bytes held from then on), ascending."""
        level = int(self.resident_bytes[0])
        levels = {0: level}
        for time, size in sorted((int(time[0]), int(size[0])) for _, time, size in self.changes if size[0]):
            level += size
            levels[time] = level
        return tuple(levels.items())
