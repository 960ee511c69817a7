"""Instructions that one rank issues for a unit's parameters, gradients and optimizer.

The unit's ZeRO stage determines which of its states the ranks of a sharded-data group share. In stage 3 parameters are gathered
for every pass, and gradients scattered in every micro-batch. Where parameters are whole on every rank (stages 1 and 2), each
steps its slice of them, and gathers the other slices after the optimizer's step. Where gradients are whole, too (stage 1), they
are scattered once, after the last micro-batch: the rank's slice of them then holds the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import MARK, MicroBatchPart
from trainplan.formulations.plan.strategy import COPIES
from trainplan.profiling.models.optimizers import moments_of


def needing(name: str, after: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The fields `reads` and `after` of an instruction that reads the buffer `name` and begins once everything in `after` is
    available. Buffers in `after` become reads; marks (names used for order alone) become the field `after`."""
    marks = tuple(item for item in after if item.startswith(MARK))
    return {"reads": (name, *(item for item in after if item not in marks)), "after": marks}


@dataclass
class UnitStates(InstructionBuilder):
    """Issues (appends to the rank's program) the all-gathers of a unit's parameters, the sums of its gradients and its
    optimizer step, on whole states or shards. A unit is a sub-layer of the model, known by its index; a part is a micro-batch
    or half of one; buffers are known by name; a mark is a name that stands for "this instruction is done", for order alone."""

    def place_states(self, unit: int, on: str = "") -> None:
        """Declare the buffers of a unit's parameters, gradients, moments and master copies, or of the rank's shards of them,
        which live from step to step. on: a prefix of their names, "host-" for buffers on the host."""
        strategy, element, shard = self.strategies[unit], self.model.element_bytes, self.shard_elements(unit)
        whole, stepped = shard * strategy.degree("sdp"), self.precision.stepped_bytes(element)
        elements = self.stepped_elements(unit)
        sizes = {
            "parameter": (shard if strategy.shares_parameters else whole) * element,
            "gradient": (shard if strategy.shares_gradients else whole) * self.gradient_bytes,
            "moments": moments_of(self.optimizer, elements, self.muon_parameter_count(unit)) * stepped,
        }
        if self.precision.master is not None:
            sizes["master"] = elements * stepped
        for name, size in sizes.items():
            self.buffer(f"{on}{name}.{unit}", size, persistent=True)
        self.buffer("loss", 8, persistent=True)

    def marked(self, name: str) -> str:
        """The name of a mark that is set by the latest issued instruction that writes the buffer `name`; the mark is added to
        it."""
        mark = f"{MARK}{name}"
        index = next(index for index in reversed(range(len(self.issued))) if name in self.issued[index].writes)
        if mark not in self.issued[index].marks:
            self.issued[index] = self.issued[index].changed(marks=(*self.issued[index].marks, mark))
        return mark

    def gradient_buffer(self, unit: int) -> str:
        """The buffer in which a backward pass leaves a unit's gradient: the gradient itself or, if the rank keeps only a shard
        of it, a temporary of the whole gradient, which is declared."""
        strategy = self.strategies[unit]
        if not strategy.shares_gradients:
            return f"gradient.{unit}"
        return self.buffer(f"whole-gradient.{unit}", self.gradient_shard_bytes(unit) * strategy.degree("sdp"))

    def gathers(self, unit: int) -> bool:
        """Whether a unit's parameters are sharded over ranks (ZeRO stage 3), so that they have to be gathered before a pass."""
        return self.strategies[unit].shares_parameters

    def gathered(self, unit: int, part: MicroBatchPart, after: str) -> str:
        """The buffer of a unit's whole parameters; if they are sharded, their all-gather is issued, to begin once the buffer
        `after` is available."""
        return self.gather_parameters(unit, part, after=(after,)) if self.gathers(unit) else f"parameter.{unit}"

    def gather_parameters(
        self, unit: int, part: MicroBatchPart, after: tuple[str, ...] = (), freed: tuple[str, ...] = ()
    ) -> str:
        """Issue the all-gather of a unit's sharded parameters, to begin once the buffers and marks in `after` are available;
        returns the buffer of the whole parameters. freed: buffers to free after it."""
        shard, group = f"parameter.{unit}", self.peers(unit, "sdp")
        size = self.buffers[shard] * len(group)
        name = self.buffer(f"gathered.{unit}", size)
        fields: dict[str, Any] = {**needing(shard, after), "writes": (name,), "frees": freed}
        self.issue(Op.GATHER_PARAMETERS, unit, part, **fields, group=group, message_bytes=size)
        return name

    def scatter_gradient(self, unit: int, part: MicroBatchPart, adds: bool) -> None:
        """Issue the reduce-scatter of a unit's whole gradient over the ranks that share it; each rank gets its shard of the
        sum. adds: whether the sum is added to what the shard holds already (from earlier micro-batches)."""
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
        """The buffers of a unit's parameters that are freed after a use; empty if they are not gathered. last: whether it is
        the last use in the step; unused here, for subclasses."""
        return (f"gathered.{unit}",) if self.strategies[unit].shares_parameters else ()

    def reduce_gradients(self, unit: int) -> None:
        """Issue the reductions of a unit's gradient that come once in a step, after the last micro-batch: all-reduce of
        replicated parameters over tensor-parallel ranks, reduce-scatter of whole gradients to the shards that the optimizer
        works on, all-reduce over data-parallel ranks."""
        strategy, gradient, last = self.strategies[unit], f"gradient.{unit}", MicroBatchPart(self.micro_batches - 1)
        if not strategy.shares_gradients:
            self._reduce_replicated(unit, last, gradient)
            if strategy.gathers_updates:
                self.reduce(Op.REDUCE_SCATTER_GRADIENTS, unit, last, gradient, self.peers(unit, "sdp"))
        if strategy.copies > 1:
            group, size = self.peers(unit, *COPIES), self.gradient_shard_bytes(unit)
            self.reduce(Op.ALL_REDUCE_GRADIENTS, unit, None, gradient, group, size)

    def step(self, unit: int) -> None:
        """Issue the optimizer's step on a unit's parameters or the rank's shard of them and, if every rank keeps whole
        parameters but steps only a shard (ZeRO stages 1 and 2), the all-gather of the shards that the other ranks have stepped.
        """
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
        """Issue the all-reduce, over tensor-parallel ranks, of those gradients in the buffer `gradient` whose parameters all
        of these ranks hold; nothing if there are none."""
        size = self.model.units[unit].sublayer.replicated_count * self.gradient_bytes
        if self.strategies[unit].degree("tp") > 1 and size:
            self.reduce(Op.REDUCE_REPLICATED, unit, part, gradient, self.peers(unit, "tp"), size)
