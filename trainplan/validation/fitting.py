"""Whether a run fits into memory, with a probability; and the ZeRO stage and the recomputation of a measured run that leaves
them open, chosen so that the run fits: it ran, unless its file says that it was out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log
from statistics import NormalDist
from typing import Literal

from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.framework_memory import MEGATRON_ERROR, OTHER_ERROR
from trainplan.formulations.costs.overlapped.layout import Framework, Held, RecomputePolicy, RunLayout
from trainplan.profiling.clusters.kinds import reserve_bytes
from trainplan.profiling.clusters.sheets import DeviceSheet
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OPTIMIZERS
from trainplan.validation.frameworks import framework_of
from trainplan.validation.rows import Run

Fit = Literal["yes", "tight", "no"]
SURE = 0.9  # probability from which an answer is yes; below 1 - SURE it is no


def limit_bytes(described: DeviceSheet) -> int:
    """Bytes of a device's memory that a training run may use: all of its memory except for the driver's context,
    communicators' buffers and fragmentation. described: the device's data sheet. Plans have the same limit.
    """
    return described.memory_bytes - reserve_bytes(described)


def peak_error(framework: Framework) -> float:
    """The relative standard error of predicted peaks of a framework's runs."""
    if framework.memory.peak_error is not None:
        return framework.memory.peak_error
    return MEGATRON_ERROR if framework.pads > 1 else OTHER_ERROR


def software_error(software: str | None) -> float:
    """The relative standard error of predicted peaks by the name of the software that runs a plan, as its framework's record
    has it; None, or an empty name, for trainplan's own programs.
    """
    return peak_error(framework_of(Run(id="", model="", gpu="", gpus=1, framework=software))) if software else MEGATRON_ERROR


def fit_probability(peak_bytes: float, limit: float, error: float) -> float:
    """The probability, 0 to 1, that a run whose peak is predicted fits into a device's memory: that its real peak, which is
    distributed log-normally about the predicted one, is at most the limit. peak_bytes: the predicted peak. limit: the bytes of
    memory that a run may use. error: the relative standard error of the prediction.
    """
    return NormalDist().cdf(log(limit / peak_bytes) / error) if peak_bytes > 0 else 1.0


def fit_of(probability: float) -> Fit:
    """Whether a run fits into memory, by the probability (0 to 1) that it does: `yes` or `no` from 90 % certainty on, between
    them `tight`.
    """
    return "yes" if probability >= SURE else "tight" if probability > 1 - SURE else "no"


def tight_words(probability: float) -> str:
    """A few words for people on a run that may fit or not. probability: the probability, 0 to 1, that it fits."""
    return f"tight: {100 * probability:.0f} % likely to fit"


def fit_words(probability: float) -> str:
    """Whether a run fits, as a few words for people. probability: the probability, 0 to 1, that it fits."""
    answer = fit_of(probability)
    if answer == "tight":
        return tight_words(probability)
    likely = "over 99" if probability > 0.99 else "under 1" if probability < 0.01 else f"{100 * probability:.0f}"
    return f"{answer}: {likely} % likely to fit"


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
