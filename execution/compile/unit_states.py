"""What one rank issues for a unit's parameters, gradients and optimizer.

What the ranks of a sharded-data group share of a unit's states is said by its ZeRO stage. Of all three, parameters are gathered
for every pass, and gradients scattered in every micro-batch. Where parameters are whole on every rank (stages 1 and 2), each
steps its slice of them, and gathers the others' once, behind the optimizer. Where gradients are whole, too (stage 1), they are
scattered once, after the last micro-batch: the rank's slice of them then holds the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import MARK, MicroBatchPart
from trainplan.profiling.models.optimizers import moments_of


def needing(name: str, after: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What an instruction reads that needs a buffer, and begins once what is in `after` is there, buffers and marks."""
    marks = tuple(each for each in after if each.startswith(MARK))
    return {"reads": (name, *(each for each in after if each not in marks)), "after": marks}


@dataclass
class UnitStates(InstructionBuilder):
    """Where a unit's states are, whole or in shards, and what brings them together, sums and steps them."""

    def place_states(self, unit: int, on: str = "") -> None:
        """Declare a unit's parameters, gradients, moments and master copy, or the rank's shards of them, which live from step
        to step. on: "host-" for those that lie there."""
        strategy, element, shard = self.strategies[unit], self.model.element_bytes, self.shard_elements(unit)
        whole, stepped = shard * strategy.degree("sdp"), self.precision.stepped_bytes(element)
        elements = self.stepped_elements(unit)
        sizes = {
            "parameter": (shard if strategy.shares_parameters else whole) * element,
            "gradient": (shard if strategy.shares_gradients else whole) * self.gradient_bytes,
            "moments": moments_of(elements, self.stepped_by_muon(unit)) * stepped,
        }
        if self.precision.master is not None:
            sizes["master"] = elements * stepped
        for name, size in sizes.items():
            self.buffer(f"{on}{name}.{unit}", size, persistent=True)
        self.buffer("loss", 8, persistent=True)

    def marked(self, name: str) -> str:
        """A mark that is set once a buffer is written, by the latest instruction that does so."""
        mark = f"{MARK}{name}"
        place = next(place for place in reversed(range(len(self.issued))) if name in self.issued[place].writes)
        if mark not in self.issued[place].marks:
            self.issued[place] = self.issued[place].changed(marks=(*self.issued[place].marks, mark))
        return mark

    def gradient_buffer(self, unit: int) -> str:
        """The buffer to which a backward pass leaves a unit's gradient: whole for a while, where a rank keeps a shard of it."""
        strategy = self.strategies[unit]
        if not strategy.shares_gradients:
            return f"gradient.{unit}"
        return self.buffer(f"whole-gradient.{unit}", self.gradient_shard_bytes(unit) * strategy.degree("sdp"))

    def gathers(self, unit: int) -> bool:
        """Whether a unit's parameters are not whole before a pass."""
        return self.strategies[unit].shares_parameters

    def gathered(self, unit: int, part: MicroBatchPart, after: str) -> str:
        """The buffer of a unit's whole parameters; gathered first where they are sharded, once `after` is there."""
        return self.gather_parameters(unit, part, after=(after,)) if self.gathers(unit) else f"parameter.{unit}"

    def gather_parameters(
        self, unit: int, part: MicroBatchPart, after: tuple[str, ...] = (), freed: tuple[str, ...] = ()
    ) -> str:
        """Gather a unit's sharded parameters, once what is in `after` is there, buffers and marks; the buffer of the whole."""
        shard, group = f"parameter.{unit}", self.peers(unit, "sdp")
        size = self.buffers[shard] * len(group)
        name = self.buffer(f"gathered.{unit}", size)
        fields: dict[str, Any] = {**needing(shard, after), "writes": (name,), "frees": freed}
        self.issue(Op.GATHER_PARAMETERS, unit, part, **fields, group=group, message_bytes=size)
        return name

    def scatter_gradient(self, unit: int, part: MicroBatchPart, adds: bool) -> None:
        """The sum of a unit's gradients, whole for a while, each rank's shard to that rank. adds: to what its shard holds
        already."""
        whole, shard, group = f"whole-gradient.{unit}", f"gradient.{unit}", self.peers(unit, "sdp")
        size = self.buffers[whole]
        self.issue(
            Op.REDUCE_SCATTER_GRADIENTS,
            unit,
            part,
            reads=(whole, shard) if adds else (whole,),
            writes=(shard,),
            frees=(whole,),
            group=group,
            message_bytes=size,
            workspace_bytes=size // len(group) if adds else 0,
        )

    def freed_parameters(self, unit: int, last: bool) -> tuple[str, ...]:
        """What goes of a unit's parameters once they have been used. last: for the last time in the step."""
        return (f"gathered.{unit}",) if self.strategies[unit].shares_parameters else ()

    def reduce_gradients(self, unit: int) -> None:
        """What is reduced once a step, after the last micro-batch: replicated parts, whole gradients whose shards the optimizer
        works on, and the sum over data-parallel ranks."""
        strategy, gradient, last = self.strategies[unit], f"gradient.{unit}", MicroBatchPart(self.micro_batches - 1)
        if not strategy.shares_gradients:
            self._reduce_replicated(unit, last, gradient)
            if strategy.gathers_updates:
                self.reduce(Op.REDUCE_SCATTER_GRADIENTS, unit, last, gradient, self.peers(unit, "sdp"))
        if strategy.degree("dp") > 1:
            self.reduce(Op.ALL_REDUCE_GRADIENTS, unit, None, gradient, self.peers(unit, "dp"), self.gradient_shard_bytes(unit))

    def step(self, unit: int) -> None:
        """The optimizer's step on a unit's shard, and the other ranks' new parameters where each keeps the whole."""
        parameter = f"parameter.{unit}"
        master = (f"master.{unit}",) if self.precision.master is not None else ()
        self.issue(
            Op.OPTIMIZER_STEP,
            unit,
            reads=(f"gradient.{unit}",),
            writes=(parameter, f"moments.{unit}", *master),
            workspace_bytes=self.step_workspace_bytes(unit),
        )
        if self.strategies[unit].gathers_updates:
            self.reduce(Op.GATHER_UPDATED, unit, None, parameter, self.peers(unit, "sdp"))

    def _reduce_replicated(self, unit: int, part: MicroBatchPart, gradient: str) -> None:
        """Gradients of parameters that all tensor-parallel ranks hold."""
        size = self.model.units[unit].sublayer.replicated_count * self.gradient_bytes
        if self.strategies[unit].degree("tp") > 1 and size:
            self.reduce(Op.REDUCE_REPLICATED, unit, part, gradient, self.peers(unit, "tp"), size)
