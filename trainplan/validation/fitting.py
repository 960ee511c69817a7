"""The ZeRO stage and the recomputation of a measured run that leaves them open, chosen so that the run fits into memory: it
ran, unless its file says that it was out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.layout import Held, RecomputePolicy, RunLayout
from trainplan.profiling.clusters.kinds import reserve_bytes
from trainplan.profiling.clusters.sheets import DeviceSheet
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OPTIMIZERS

MEMORY_ERROR = 0.05  # relative error of predicted peaks


def limit_bytes(described: DeviceSheet) -> int:
    """Bytes of a device's memory that a training run may use: all of its memory except for the driver's context,
    communicators' buffers and fragmentation. described: the device's data sheet. Plans have the same limit.
    """
    return described.memory_bytes - reserve_bytes(described)


def close(peak_bytes: float, limit: float) -> bool:
    """Whether a predicted peak (bytes) is so close to the memory limit (bytes), on either side, that the prediction's usual
    error decides whether the run fits.
    """
    return abs(peak_bytes / limit - 1) <= MEMORY_ERROR


def fits(peak_bytes: float, described: DeviceSheet) -> bool:
    """Whether a predicted peak in bytes is within the part of a device's memory that a run may use. described: the device's
    data sheet.
    """
    return peak_bytes <= limit_bytes(described)


def fitted(
    model: Model,
    layout: RunLayout,
    described: DeviceSheet,
    open_stage: bool,
    open_recompute: bool,
    held: Callable[[RunLayout], Held],
) -> tuple[int, RecomputePolicy]:
    """Choose the ZeRO stage and the recomputation with which a measured run fits into memory, if it does not specify them.

    Args:
        model: the model that the run trains.
        layout: the run's degrees of parallelism, batch, sharding and recomputation.
        described: the device's data sheet.
        open_stage: whether the run does not specify the stage, so that it may be chosen.
        open_recompute: whether the run does not specify recomputation, so that it may be chosen.
        held: computes, for a configuration, the memory that the trainer holds in addition to model states and activations.

    Returns:
        The ZeRO stage and the recomputation: those of `layout` if the run fits with them, or if it fits with no others either;
        else the first pair that fits. Pairs are tried in this order: with the recomputation of `layout` all ZeRO stages from
        the least (with Megatron, not yet a higher stage 3), the same stages with selective recomputation, then with full
        recomputation, and at last, with Megatron, stage 3.
    """
    for stage, recompute in _choices(layout, open_stage, open_recompute):
        run = replace(layout, zero=stage, recompute=recompute)
        if fits(max(rank.peak_bytes for rank in run_memory(model, replace(run, held=held(run)))), described):
            return stage, recompute
    return layout.zero, layout.recompute


def _choices(layout: RunLayout, open_stage: bool, open_recompute: bool) -> Iterator[tuple[int, RecomputePolicy]]:
    """Yield pairs of ZeRO stage and recomputation in the order in which people try them when a run does not fit into memory,
    beginning with the pair of the configuration `layout`.

    First come stages that the framework offers without extensions (of Megatron-Core only the sharded optimizer), since they
    cost little; then selective and full recomputation; at last sharded parameters in frameworks that do not usually shard them.
    open_stage, open_recompute: whether the stage and the recomputation may differ from those of `layout`."""
    megatron = layout.framework.pads > 1
    usual, last = [layout.zero], []
    if open_stage and layout.dp * layout.cp > 1:
        stages = OPTIMIZERS[layout.optimizer].zero
        lacked = {"PyTorch FSDP": (1,), "DeepSpeed": (2,) * (layout.pp > 1)}.get(layout.framework.name.partition(",")[0], ())
        higher = [stage for stage in stages if stage > layout.zero and (stage < 3 or layout.pp == 1) and stage not in lacked]
        usual += [stage for stage in higher if stage == 1 or not megatron]
        last = [stage for stage in higher if stage == 3 and megatron]
    policies = [layout.recompute]
    if open_recompute:
        selective = RecomputePolicy(attention=True) if megatron else RecomputePolicy(operations=True)
        policies += [policy for policy in (selective, RecomputePolicy(layers=1.0)) if policy != layout.recompute]
    for stages_tried in (usual, last):
        for policy in policies:
            yield from ((stage, policy) for stage in stages_tried)


def in_words(recompute: RecomputePolicy) -> str:
    """The name of a recomputation policy: "full", "selective-op", "selective" or "none". recompute: the policy."""
    if recompute.layers:
        return "full"
    return "selective-op" if recompute.operations else "selective" if recompute.attention else "none"
