"""The order of H3T's step: one micro-batch through all units, segment by segment, instead of passes of any number of
micro-batches.

All ranks are one sharded-data group, and the states of all units are on the host (see `host_offload`, which issues the
operations). Instructions are issued in the order of the authors' published simulator; the table of
`formulations/memory_switches/simulation.py` has it segment by segment, with the same names as here.

P(j): copy in the shard of unit j (where it is prefetched lazily), then all-gather its parameters; P(0) comes before all. The
loss belongs to the last forward segment; the gradients of a tied matrix, and the loss, are reduced at the end of the tail.

Order that does not follow from data is set by marks. A segment's communication and copies come after the computation of the
segment before; what an economical backward segment issues after its computation, after a mark that comes right before that.
Where `segment_sync` is on, and before the optimizer, all lanes wait for all. A computation waits for its data and for nothing
else: an offload delays nothing but the drop of what it copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainplan.execution.compile.host_offload import Residences
from trainplan.execution.instruction_spec import STREAMS, Stream
from trainplan.execution.instructions import Op
from trainplan.execution.program import MARK, MicroBatchPart, Program
from trainplan.formulations.plan.switches import Switches

STEP = MicroBatchPart(0)
PARALLEL_LANES: tuple[Stream, ...] = ("communication", "copy")


@dataclass
class SwitchCompiler(Residences):
    """Builds the program of one rank for H3T's step: one micro-batch through all units (sub-layers, known by index), with model
    states on the host and, per unit, seven memory switches (H3T is the published method that chooses them). The step is divided
    into segments, one per unit and direction; a segment computes one unit while it communicates and copies for the units before
    and after it. To issue an instruction is to append it to the program. A lane is a queue of instructions (compute,
    communication, copy, host); a mark is a name by which an instruction on one lane can wait for one on another.

    switches: the memory switches of each unit, such as whether its gathered parameters are freed between passes (partition),
    its input is offloaded, and whether its segments are economical: they save memory by fetching what the next unit needs
    later. Copies to and from the host share one lane, as in the authors' simulator."""

    lane_out: ClassVar[Stream] = "copy"
    switches: tuple[Switches, ...] = field(kw_only=True)
    _last: dict[Stream, int] = field(default_factory=dict)  # index of each lane's latest instruction
    _before: dict[Stream, int] = field(default_factory=dict)  # index that a lane's next instruction must come after

    def program(self) -> Program:
        """Issue the whole step, segment by segment, and return it as the rank's program."""
        for unit in self.units:
            self.place_states(unit)
        self.input(STEP)
        self._fetch(0)
        for unit in self.units:
            self._forward(unit)
        self._turn()
        for unit in reversed(self.units):
            self._backward(unit)
        self._tail()
        for unit in self.units:
            self._optimizer(unit)
        self._copy_shard_back(self.last)
        return self.finished()

    # Segments

    def _forward(self, unit: int) -> None:
        """Issue the forward segment of this unit: its computation, the fetching of the next unit's parameters, the offload of
        its input, and the freeing of what the unit before no longer needs."""
        self._begin(unit)
        if unit > 0:
            self._release(unit - 1)
        switches = self.switches[unit]
        if unit < self.last and not switches.eco_forward:
            self._fetch(unit + 1)
        if switches.offload_hidden:
            self.offload_hidden(unit, STEP, _hidden(unit))
        if unit < self.last and switches.eco_forward:
            self._fetch(unit + 1)
        self.compute_forward(unit, STEP, _hidden(unit), (_gathered(unit),))
        if unit == self.last:
            self.loss(STEP)

    def _turn(self) -> None:
        """Issue the segment between the last forward and the first backward segment: the last unit's buffers are freed and
        fetched again."""
        self._begin(self.last)
        self._release(self.last)
        if self.switches[self.last].partition:
            self._fetch(self.last)
        self._prefetch_hidden(self.last)

    def _backward(self, unit: int) -> None:
        """Issue the backward segment of this unit: its computation, the reduction of the gradient of the unit after it, and
        the fetching of what the unit before it needs."""
        self._begin(unit)
        if unit < self.last:
            self._reshard(unit + 1)
            self.scatter_gradient(unit + 1, STEP, adds=False)
        eco = self.switches[unit].eco_backward
        if self.own_lane and unit > 0 and self.switches[unit - 1].partition:
            self._prefetch_shard(unit - 1)
        if not self.own_lane and unit < self.last:
            self.offload_gradient(unit + 1, STEP)
        if not eco:
            self._prepare(unit)
        weights = _gathered(unit)
        incoming = self.output_gradient(unit, STEP)
        self.recompute(unit, STEP, (weights,))
        if eco:
            self.issue(Op.MARK, unit, STEP, reads=(*self.backward_reads(unit, STEP), incoming, weights))
            self._hold(PARALLEL_LANES)
        gradient = self.buffer(f"whole-gradient.{unit}", self.buffers[weights])
        self.compute_backward(unit, STEP, (incoming, weights), (gradient,), (incoming,))
        if eco:
            self._prepare(unit)

    def _prepare(self, unit: int) -> None:
        """Issue what the next backward segment needs (parameters and input of the unit before this one), in parallel with this
        unit's computation; whether this unit's segment is economical decides the order."""
        before, partition = unit - 1, unit > 0 and self.switches[unit - 1].partition
        late = self.own_lane and self.switches[unit].eco_backward
        if unit > 0 and not late:
            self._prefetch_hidden(before)
        if partition and not self.own_lane:
            self._prefetch_shard(before)
        if partition:
            self._all_gather(before)
        if self.own_lane and unit < self.last:
            self.offload_gradient(unit + 1, STEP)
        if unit > 0 and late:
            self._prefetch_hidden(before)

    def _tail(self) -> None:
        """Issue the segment after the last backward segment: the reduction and offload of the first unit's gradient, the
        reduction of tied gradients, and the sum of the loss."""
        self._begin(0)
        self._reshard(0)
        self.scatter_gradient(0, STEP, adds=False)
        self.offload_gradient(0, STEP)
        everyone = tuple(range(self.world))
        if self.model.tied:
            both = ("host-gradient.0", f"host-gradient.{self.last}")
            size = self.model.tied_elements * self.model.element_bytes
            table = self.buffer("host-tied", size, persistent=True)
            self.issue(Op.REDUCE_TIED, reads=both, writes=(*both, table), group=everyone, message_bytes=size)
        self.reduce(Op.REDUCE_LOSS, None, None, "loss", everyone)

    def _optimizer(self, unit: int) -> None:
        """Issue the optimizer's segment of this unit: its step on the host, in parallel with the copy of the new parameters of
        the unit before it to the device."""
        if unit == 0 or self.switches[unit].segment_sync:
            self._synchronise(unit)
        if unit > 0:
            self._copy_shard_back(unit - 1)
        self.host_step(unit)

    def _copy_shard_back(self, unit: int) -> None:
        """Issue the copy of this unit's new parameters from the host to the device; nothing if they are copied before each use
        anyway."""
        if not self.lazily(unit):
            self.prefetch_shard(unit, STEP)

    # Order

    def issue(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> None:
        """Issue an instruction about a unit and a part (micro-batch or half), with the other fields of `Instruction`; if its
        lane was made to wait for an instruction of the compute lane, as at the beginning of a segment, it comes after that one.
        """
        super().issue(op, unit, part, **fields)
        lane, index = self.issued[-1].stream, len(self.issued) - 1
        if (before := self._before.pop(lane, None)) is not None:
            self.issued[index] = self.issued[index].changed(after=(self._mark(before),))
        self._last[lane] = index

    def _mark(self, index: int) -> str:
        """The name of a mark that is set once the issued instruction with this index is done; the mark is added to the
        instruction."""
        name = f"{MARK}{index}"
        self.issued[index] = self.issued[index].changed(marks=(name,))
        return name

    def _hold(self, lanes: Iterable[Stream]) -> None:
        """Make the next instruction on each of these lanes wait for the latest instruction of the compute lane."""
        self._before.update(dict.fromkeys(lanes, self._last["compute"]))

    def _begin(self, unit: int) -> None:
        """Begin a segment of this unit: its communication and copies wait for the computation of the segment before or, if the
        unit's switch says so, all lanes wait for each other."""
        if self.switches[unit].segment_sync:
            self._synchronise(unit)
        self._hold(PARALLEL_LANES)

    def _synchronise(self, unit: int) -> None:
        """Issue an instruction at which all lanes wait for each other, before a segment of this unit."""
        others = tuple(self._mark(index) for lane, index in self._last.items() if lane != "compute")
        self.issue(Op.SYNCHRONISE, unit, after=others)
        self._hold(lane for lane in STREAMS if lane != "compute")

    # Operations

    def _fetch(self, unit: int) -> None:
        """Issue the copy of this unit's shard of parameters to the device, if it is not there, and the all-gather of its
        parameters."""
        self._prefetch_shard(unit)
        self._all_gather(unit)

    def _prefetch_shard(self, unit: int) -> None:
        """Issue the copy of this unit's shard of parameters to the device; nothing if it lives there from step to step."""
        if self.lazily(unit):
            self.prefetch_shard(unit, STEP)

    def _all_gather(self, unit: int) -> None:
        """Issue the all-gather of this unit's parameters."""
        self.gather_parameters(unit, STEP, freed=self.shard_in_passing(unit))

    def _release(self, unit: int) -> None:
        """Issue the freeing of this unit's gathered parameters and input, as far as its switches free or offload them between
        its forward and its backward pass."""
        if self.switches[unit].partition:
            self._reshard(unit)
        if self.switches[unit].offload_hidden:
            self.drop_hidden(unit, STEP, _hidden(unit))

    def _reshard(self, unit: int) -> None:
        """Issue the freeing of this unit's gathered parameters."""
        self.issue(Op.RESHARD, unit, STEP, frees=(_gathered(unit),))

    def _prefetch_hidden(self, unit: int) -> None:
        """Issue the copy of this unit's input from the host back to the device; nothing if it is not offloaded."""
        if self.switches[unit].offload_hidden:
            self.prefetch_hidden(unit, STEP)


def _hidden(unit: int) -> str:
    """The name of the buffer that holds the input of the unit (sub-layer) with this index."""
    return f"hidden.{unit}.{STEP}"


def _gathered(unit: int) -> str:
    """The name of the buffer that holds the gathered parameters of the unit (sub-layer) with this index."""
    return f"gathered.{unit}"
