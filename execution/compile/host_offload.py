"""Where a unit's model states and its input are, and what brings them to the device and back.

The optimizer of a unit works on the device or on the host. On the host it has the rank's shards of parameters, gradients and
moments there. The device then has

- of the parameters: a copy that lives from step to step, and gets the new values after the optimizer's step; or nothing but
  what is copied in before each use (`lazily`), and freed after it;
- of the gradient: the sum over the micro-batches, from the first one's backward pass on. It is offloaded once, after the last
  one's reductions (after the sum of both gradients of a tied matrix, too), and the host steps as soon as it has it.

Parameters that are kept whole are brought in, and gathered, once a step, before the first micro-batch's forward pass, and freed
after the last one's backward pass; all others before and after each pass. Nothing is brought in for one computation alone that
waits for another: what is copied in comes when the unit's input or its output's gradient is available, or one unit ahead.

A unit's input may be on the host from its forward pass to the backward pass of the same micro-batch, in one buffer per
micro-batch. It comes back to another buffer on the device: the lanes that free the two are not those that wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainplan.execution.compile.unit_passes import UnitPasses
from trainplan.execution.compile.unit_states import needing
from trainplan.execution.instruction_spec import Stream
from trainplan.execution.instructions import Op
from trainplan.execution.program import MicroBatchPart


@dataclass
class Residences(UnitPasses):
    """Builds a rank's program with units (sub-layers) whose model states and inputs may be on the host between their uses. A
    unit's states are its parameters, gradients and optimizer moments; if its optimizer works on the host, they live there. To
    issue an instruction is to append it to the program. unit: a unit's index; part: a micro-batch or half of one.

    own_lane: whether copies have lanes (queues of instructions) of their own; if not, they run on the lane of communication.
    """

    lane_out: ClassVar[Stream] = "copy-out"  # of copies to the host
    own_lane: bool = field(kw_only=True)
    _whole: set[int] = field(default_factory=set)  # units whose parameters stay whole for the rest of the step
    _stepped: list[int] = field(default_factory=list)  # units that the host has stepped, in order

    def issue(self, op: Op, unit: int | None = None, part: MicroBatchPart | None = None, **fields: Any) -> None:
        """Issue an instruction about a unit and a part, with the other fields of `Instruction`; copies are put on the lane
        (queue) that this plan has for them."""
        if op.spec.is_copy and not self.own_lane:
            fields["lane"] = "communication"
        elif op.spec.kind == "copy-out":
            fields["lane"] = self.lane_out
        super().issue(op, unit, part, **fields)

    def steps_on_host(self, unit: int) -> bool:
        """Whether the optimizer of this unit works on the host, whose memory then holds parameters, gradients and moments."""
        return self.planned[unit].states.optimizer == "host"

    def lazily(self, unit: int) -> bool:
        """Whether this unit's parameters are copied to the device before each use, instead of living there from step to
        step."""
        return self.planned[unit].states.parameters == "host"

    def offloads(self, unit: int) -> bool:
        """Whether this unit's input is moved to the host after its forward pass, until its backward pass."""
        return self.planned[unit].activations.hidden == "host"

    def place_states(self, unit: int, on: str = "") -> None:
        """Declare the buffers of this unit's parameters, gradients and moments on the device or, if its optimizer works on the
        host, on the host; then also the device's copy of parameters and its gradient buffer. on: a prefix of the buffers' names
        if the optimizer works on the device ('' for device buffers); otherwise unused."""
        if not self.steps_on_host(unit):
            super().place_states(unit, on)
            return
        super().place_states(unit, "host-")
        size = self.buffers[f"host-parameter.{unit}"]
        self.buffer(f"parameter.{unit}", size, persistent=not self.lazily(unit))
        self.buffer(f"gradient.{unit}", size)

    # What the passes of a unit need

    def gathers(self, unit: int) -> bool:
        """Whether this unit's whole parameters still have to be brought to the device before its next pass: copied from the
        host or gathered over ranks."""
        return unit not in self._whole and (self.lazily(unit) or super().gathers(unit))

    def gathered(self, unit: int, part: MicroBatchPart, after: str) -> str:
        """Issue what brings this unit's whole parameters to the device (a copy from the host, an all-gather) as far as needed,
        to begin once the buffer `after` is available; returns the buffer of the whole parameters."""
        sharded = super().gathers(unit)
        name = f"gathered.{unit}" if sharded else f"parameter.{unit}"
        if not self.gathers(unit):
            return name
        if self.lazily(unit):
            self.prefetch_shard(unit, part, (after,))
        if sharded:
            self.gather_parameters(unit, part, (after,), self.shard_in_passing(unit))
        if self.planned[unit].states.kept_whole:
            self._whole.add(unit)
        return name

    def shard_in_passing(self, unit: int) -> tuple[str, ...]:
        """The buffer of this unit's shard of parameters, if it is on the device only to be gathered from; empty if it stays on
        the device."""
        return (f"parameter.{unit}",) if self.lazily(unit) else ()

    def freed_parameters(self, unit: int, last: bool) -> tuple[str, ...]:
        """The buffers of this unit's parameters to free after a use; empty if they stay. last: whether it is the last use in
        the step."""
        if self.planned[unit].states.kept_whole and not last:
            return ()
        if super().gathers(unit):
            return (f"gathered.{unit}",)
        return self.shard_in_passing(unit)

    def begin_forward(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Issue the copy of this unit's input (the buffer `source`) to the host, in parallel with the forward computation;
        nothing if its input is not offloaded."""
        if self.offloads(unit):
            self.offload_hidden(unit, part, source)

    def end_forward(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Issue the freeing of this unit's input on the device (the buffer `source`), once it has been copied and used;
        nothing if its input is not offloaded."""
        if self.offloads(unit):
            self.drop_hidden(unit, part, source)

    def bring_input(self, unit: int, micro_batch: int, after: str) -> None:
        """Issue the copy of this unit's offloaded input of a micro-batch back to the device, once the buffer `after` is
        available; nothing if that has been issued one unit ahead."""
        for part in self.parts(micro_batch) if self.offloads(unit) else ():
            if f"prefetched.{unit}.{part}" not in self.buffers:
                self.prefetch_hidden(unit, part, (after,))

    def input_of(self, unit: int, part: MicroBatchPart) -> str:
        """The buffer of this unit's input on the device: the one that came back from the host, if it was offloaded, else the
        original."""
        returned = f"prefetched.{unit}.{part}"
        return returned if returned in self.buffers else super().input_of(unit, part)

    # The end of the step

    def reduce_gradients(self, unit: int) -> None:
        """Issue the reductions of this unit's gradient that come once in a step; then, if its optimizer works on the host, the
        copy of the gradient there and the optimizer's step."""
        super().reduce_gradients(unit)
        if not self.reduces_tied(unit):
            self.step_on_host(unit)

    def reduces_tied(self, unit: int) -> bool:
        """Whether this unit has its own copy of a tied matrix (embedding and head). The gradients of both copies are then
        summed at the end, before the optimizer's step."""
        return self.model.tied and not self.shares_table and unit in (0, self.last)

    def step_on_host(self, unit: int) -> None:
        """Issue the copy of this unit's gradient to the host and the optimizer's step there; nothing if its optimizer works on
        the device."""
        if self.steps_on_host(unit):
            self.offload_gradient(unit, MicroBatchPart(self.micro_batches - 1))
            self.host_step(unit)

    def host_step(self, unit: int) -> None:
        """Issue the optimizer's step on this unit's parameters on the host."""
        changed = (f"host-parameter.{unit}", f"host-moments.{unit}")
        self.issue(Op.HOST_OPTIMIZER_STEP, unit, reads=(f"host-gradient.{unit}",), writes=changed)
        self._stepped.append(unit)

    def copy_back(self) -> None:
        """Issue the copies of new parameters from the host to the device, in the order of their optimizer steps. The sum of
        the loss must come after: otherwise it would be delayed, since the thread that issues to a device waits here for the
        host."""
        for unit in self._stepped:
            if not self.lazily(unit):
                self.prefetch_shard(unit, MicroBatchPart(self.micro_batches - 1))

    # Copies

    def prefetch_shard(self, unit: int, part: MicroBatchPart, after: tuple[str, ...] = ()) -> None:
        """Issue the copy of this unit's shard of parameters from the host to the device, once the buffers and marks (names
        used for order alone) in `after` are available."""
        self._copy(Op.PREFETCH_SHARD, unit, part, f"host-parameter.{unit}", f"parameter.{unit}", after)

    def offload_gradient(self, unit: int, part: MicroBatchPart) -> None:
        """Issue the move of this unit's gradient from the device to the host."""
        gradient = f"gradient.{unit}"
        self._copy(Op.OFFLOAD_GRADIENT, unit, part, gradient, f"host-{gradient}", freed=(gradient,))

    def offload_hidden(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Issue the copy of this unit's input (the buffer `source`) to the host."""
        self._copy(Op.OFFLOAD_HIDDEN, unit, part, source, f"host-hidden.{unit}.{part}")

    def drop_hidden(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Issue the freeing of this unit's input on the device (the buffer `source`), after it has been copied to the host."""
        self.issue(Op.DROP_HIDDEN, unit, part, reads=(f"host-hidden.{unit}.{part}",), frees=(source,))

    def prefetch_hidden(self, unit: int, part: MicroBatchPart, after: tuple[str, ...] = ()) -> None:
        """Issue the move of this unit's offloaded input back to the device, once the buffers and marks (names used for order
        alone) in `after` are available."""
        copy = f"host-hidden.{unit}.{part}"
        self._copy(Op.PREFETCH_HIDDEN, unit, part, copy, f"prefetched.{unit}.{part}", after, (copy,))

    def _copy(
        self,
        op: Op,
        unit: int,
        part: MicroBatchPart,
        source: str,
        target: str,
        after: tuple[str, ...] = (),
        freed: tuple[str, ...] = (),
    ) -> None:
        """Issue the copy `op` from the buffer `source` to the buffer `target` between device and host, once the buffers and
        marks (names used for order alone) in `after` are available. freed: buffers to free after it."""
        size = self.buffers[source]
        self.buffers.setdefault(target, size)
        self.issue(op, unit, part, **needing(source, after), writes=(target,), frees=freed, message_bytes=size)
