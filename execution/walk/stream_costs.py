"""What instructions take under the cost model `streams`, for the time walk of plans whose layers are all laid out alike.

Computations take what `formulations.streams.units` says of their unit, with what is computed again in the backward pass; the
collectives of tensor-parallel ranks what of them no kernel hides, an equal part for each; messages, gathered parameters,
reduced gradients and the optimizer what their bytes do. The rest is free.
"""

from __future__ import annotations

from trainplan.execution.program import Instruction, Op, Program
from trainplan.execution.walk.costs import stepped_parameters
from trainplan.formulations.streams.layout import RunLayout
from trainplan.formulations.streams.links import Links
from trainplan.formulations.streams.step import optimizer_ns
from trainplan.formulations.streams.units import UnitTimes, unit_times
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Model

SUMS = (Op.ALL_REDUCE, Op.GATHER_TOKENS, Op.REDUCE_SCATTER_TOKENS)
PHASES = {
    Op.GATHER_PARAMETERS: 1,
    Op.GATHER_UPDATED: 1,
    Op.REDUCE_SCATTER_GRADIENTS: 1,
    Op.ALL_REDUCE_GRADIENTS: 2,
    Op.REDUCE_TIED: 2,
}


class StreamsCosts:
    """Durations of instructions by the model, its layout, and the devices and their links. Raises KeyError where the kind of
    device has no rate for a precision."""

    def __init__(self, model: Model, layout: RunLayout, kind: DeviceKind, links: Links) -> None:
        self._model, self._layout, self._kind, self._links = model, layout, kind, links
        self._times = {name: unit_times(part, layout, kind, links) for name, part in model.sublayers.items()}

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """What an instruction takes, in whole ns."""
        if instruction.grouped:
            return sum(self(program, each) for each in instruction.grouped)
        op, unit, size = instruction.op, instruction.unit, instruction.message_bytes
        if op is Op.RECEIVE:
            layout = self._layout  # with shared tokens they are cut over the tensor-parallel ranks already
            parts = 1 if layout.sequence_parallel else layout.tp
            return round(self._links.message_ns(size / parts, layout.dp * layout.tp * layout.cp))
        if op in PHASES:
            stride = instruction.group[1] - instruction.group[0] if len(instruction.group) > 1 else 1
            return round(self._links.collective_ns(PHASES[op], size, len(instruction.group), stride))
        if op is Op.OPTIMIZER_STEP:
            return round(optimizer_ns(stepped_parameters(program, instruction), self._layout, self._kind))
        if unit is None:
            return 0
        return round(self._of_unit(program, op, unit, instruction))

    def _of_unit(self, program: Program, op: Op, unit: int, instruction: Instruction) -> float:
        times = self._times[self._model.key_of(self._model.units[unit])]
        if op in (Op.FORWARD, Op.FORWARD_WITHOUT_GRAPH):
            return times.forward_ns
        if op is Op.RECOMPUTE:
            return times.ahead_ns
        if op is Op.BACKWARD:
            return times.backward_ns + (times.again_ns if program.strategies[unit].modules else 0.0)
        return self._summed(times, unit, instruction) if op in SUMS else 0.0

    def _summed(self, times: UnitTimes, unit: int, instruction: Instruction) -> float:
        """The part of one collective in what those of its pass take."""
        shared, kind = self._layout.sequence_parallel, self._model.units[unit].kind
        back = "gradient" in instruction.reads[0] or "gradient" in (*instruction.writes, "")[0] or instruction.args.get("again")
        ahead, behind = (0 if kind == "head" else 1, 0 if kind == "embedding" else 1)
        if shared:
            ahead, behind = {"embedding": (1, 1), "head": (1, 2)}.get(kind, (2, 3))
        if back:
            return times.backward_gathered_ns / max(1, behind)
        return times.gathered_ns / max(1, ahead)
