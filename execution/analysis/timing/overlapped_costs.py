"""Durations of instructions under the cost model `streams`, for simulations of plans.

Computations take what `costs.overlapped` gives for their unit, with what is recomputed in the backward pass; the collectives of
tensor-parallel ranks what of them no kernel hides, in equal parts; messages, gathered parameters, reduced gradients and the
optimizer what follows from their bytes, with a share of the latency of a bucket. Messages of interleaved stages travel in
parallel with passes, on a lane of their own, and take nothing where the framework has them so. Updated parameters, which
programs gather at the end of a step, take what the forward passes of the next one do not hide. Keys and values that
context-parallel ranks exchange travel in parallel with attention's cores: what these do not hide is in the computations' times,
as are cores and exchanges of heads by themselves. Inputs of units travel to the host and back in parallel with all else. Where
neighbouring units have unlike layouts, computations wait for the all-gathers that bring hidden states from one into the other.
The rest is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trainplan.execution.analysis.timing.profiled_costs import is_backward, stepped_parameters, within_unit
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.costs.overlapped.analytic_step import exposed_gather_ns
from trainplan.formulations.costs.overlapped.instruction_costs import InstructionCosts, SublayerTimes
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Model


class StreamsCosts:
    """Durations in ns of a plan's instructions under the cost model that overlaps communication with computation (`streams`).
    Called with a program and an instruction of it. Raises KeyError if the kind of device has no rate for a precision."""

    def __init__(
        self, model: Model, layout: RunLayout, kind: DeviceKind, links: Links, of_units: Sequence[RunLayout] = ()
    ) -> None:
        """layout: the layout that all units (sub-layers) have, or that of the first one. of_units: the layout of every unit,
        in model order, if they are not all equal; else empty."""
        prices = cache(InstructionCosts)
        sublayers = SublayerTimes(model, kind, links)
        self._prices = prices(sublayers, layout)
        self._of_units = [prices(sublayers, own) for own in of_units]
        self._shown: dict[int, float] = {}  # by rank, see `_part_shown`

    def _prices_of(self, unit: int | None) -> InstructionCosts:
        """The times of instructions in the layout of the unit with index `unit`; of no unit, in that of the first one."""
        return self._prices if unit is None or not self._of_units else self._of_units[unit]

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """The duration of an instruction, in whole ns."""
        if instruction.grouped:
            return sum(self(program, message) for message in instruction.grouped)
        op, unit, size, prices = instruction.op, instruction.unit, instruction.message_bytes, self._prices_of(instruction.unit)
        spec = op.spec
        if spec.is_free:
            return 0
        if spec.transfer == "p2p":
            return self._prices_of(_sender(instruction)).message_ns(size)
        if op is Op.GATHER_SLICE or (op is Op.GATHER_TOKENS and not within_unit(instruction)):
            return prices.relayout_ns(size, instruction.group)
        if spec.among_replicas:
            time = self._collective(instruction)
            return round(time * self._part_shown(program)) if op is Op.GATHER_UPDATED else time
        if op in (Op.OFFLOAD_HIDDEN, Op.PREFETCH_HIDDEN):
            return prices.copy_ns(size)
        if spec.steps == "moments":
            assert unit is not None
            return prices.optimizer_ns(prices.model.key_of(prices.model.units[unit]), stepped_parameters(program, instruction))
        return 0 if unit is None else self._of_unit(program, unit, instruction)

    def _collective(self, instruction: Instruction) -> int:
        """The duration in ns of a collective among data-parallel replicas (parameters, gradients, loss)."""
        group = instruction.group
        stride = group[1] - group[0] if len(group) > 1 else 1
        phases, prices = 2 if instruction.op.spec.transfer == "all-reduce" else 1, self._prices_of(instruction.unit)
        if instruction.unit is None:
            return prices.collective_ns(phases, instruction.message_bytes, len(group), stride)
        name = prices.model.key_of(prices.model.units[instruction.unit])
        in_turn = instruction.op in (Op.GATHER_PARAMETERS, Op.REDUCE_SCATTER_GRADIENTS) and prices.layout.zero >= 2
        if in_turn:
            return prices.in_layer_ns(name, instruction.message_bytes, len(group), stride)
        if instruction.op is Op.REDUCE_SCATTER_GRADIENTS and prices.layout.sums_gradients:
            phases = 2
        return prices.bucketed_ns(name, phases, instruction.message_bytes, len(group), stride)

    def _of_unit(self, program: Program, unit: int, instruction: Instruction) -> int:
        """The duration in ns of an instruction on the unit (sub-layer) with index `unit`: a computation, or a collective of
        its tensor-parallel ranks; 0 for other instructions."""
        prices, model, spec = self._prices_of(unit), self._prices.model, instruction.op.spec
        name, kind = model.key_of(model.units[unit]), model.units[unit].kind
        if spec.pass_time == "forward_ns":
            return prices.forward_ns(name)
        if spec.pass_time == "recompute_ns":
            return prices.recompute_ns(name)
        if spec.pass_time == "backward_ns":
            return prices.backward_ns(name, program.strategies[unit].modules)
        if not spec.sums_partials:
            return 0
        return prices.sum_ns(name, kind, is_backward(instruction))

    def _part_shown(self, program: Program) -> float:
        """The fraction (0 to 1) of the time of a rank's gathers of updated parameters that forward passes of the next step do
        not overlap. Cached per rank."""
        if program.rank in self._shown:
            return self._shown[program.rank]
        prices = self._prices
        total = sum(
            self._collective(instruction) for instruction in program.instructions if instruction.op is Op.GATHER_UPDATED
        )
        units = prices.model.units
        forward = [
            sum(
                self._prices_of(unit).times(prices.model.key_of(units[unit])).forward_with_collectives_ns * prices.jitter
                for unit in chunk
            )
            for chunk in program.chunks
        ]
        self._shown[program.rank] = exposed_gather_ns(total, forward, prices.layout) / total
        return self._shown[program.rank]


def _sender(message: Instruction) -> int | None:
    """The index of the unit in whose layout a message between stages was sent. Messages are named by the unit after the cut:
    hidden states come from the unit before it, their gradients from that unit itself.
    """
    moved = (message.writes or message.reads)[0]
    return message.unit if message.unit is None or not moved.startswith("hidden") else message.unit - 1
