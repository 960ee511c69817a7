"""What a row leaves open of ZeRO's stage and of recomputation, chosen so that the run fits: it ran, unless the row says that it
ran out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.layout import Held, RecomputePolicy, RunLayout
from trainplan.profiling.clusters.kinds import reserve_bytes
from trainplan.profiling.clusters.sheets import DeviceSheet
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import MUON_ZERO

MEMORY_ERROR = 0.05  # of peaks


def limit_bytes(described: DeviceSheet) -> int:
    """What a run may use of a device's memory, as plans may: without the driver's context, buffers of communicators, and what
    fragmentation loses."""
    return described.memory_bytes - reserve_bytes(described)


def close(peak_bytes: float, limit: float) -> bool:
    """Whether a peak is so near to what a run may use that its error decides."""
    return abs(peak_bytes / limit - 1) <= MEMORY_ERROR


def fits(peak_bytes: float, described: DeviceSheet) -> bool:
    """Whether a device has so much memory for a run."""
    return peak_bytes <= limit_bytes(described)


def fitted(
    model: Model,
    layout: RunLayout,
    described: DeviceSheet,
    open_stage: bool,
    open_recompute: bool,
    held: Callable[[RunLayout], Held],
) -> tuple[int, RecomputePolicy]:
    """The ZeRO stage and the recomputation with which a run fits that is otherwise laid out so: those of the layout if it does,
    or if it does not with any others that are open to it. held: what its trainer holds alongside."""
    for stage, recompute in _choices(layout, open_stage, open_recompute):
        run = replace(layout, zero=stage, recompute=recompute)
        if fits(max(each.peak_bytes for each in run_memory(model, replace(run, held=held(run)))), described):
            return stage, recompute
    return layout.zero, layout.recompute


def _choices(layout: RunLayout, open_stage: bool, open_recompute: bool) -> Iterator[tuple[int, RecomputePolicy]]:
    """Stages and recomputation, the layout's first, in the order in which one tries them: states shared as far as the framework
    has it by itself (Megatron-Core its optimizer's), since that costs little; then selective and full recomputation; at last
    parameters shared where that is not what the framework usually does."""
    megatron = layout.framework.pads > 1
    usual, last = [layout.zero], []
    if open_stage and layout.dp * layout.cp > 1:
        stages = [stage for stage in MUON_ZERO if layout.optimizer == "muon"] or range(4)
        lacked = {"PyTorch FSDP": (1,), "DeepSpeed": (2,) * (layout.pp > 1)}.get(layout.framework.name.partition(",")[0], ())
        higher = [stage for stage in stages if stage > layout.zero and (stage < 3 or layout.pp == 1) and stage not in lacked]
        usual += [stage for stage in higher if stage == 1 or not megatron]
        last = [stage for stage in higher if stage == 3 and megatron]
    ways = [layout.recompute]
    if open_recompute:
        selective = RecomputePolicy(attention=True) if megatron else RecomputePolicy(operations=True)
        ways += [way for way in (selective, RecomputePolicy(layers=1.0)) if way != layout.recompute]
    for stages_tried in (usual, last):
        for way in ways:
            yield from ((stage, way) for stage in stages_tried)


def in_words(recompute: RecomputePolicy) -> str:
    """What is computed again, of the ways that are tried."""
    if recompute.layers:
        return "full"
    return "selective-op" if recompute.operations else "selective" if recompute.attention else "none"
