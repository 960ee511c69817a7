"""The reason for users where no cuts of a chain into stages fit the memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.schedule.stage_memory import Memory
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.profiling.base.quantities import enough_bytes
from trainplan.solvers.assignment.sweep import assign
from trainplan.solvers.core.result import Infeasibility


def explain(instance: AssignmentInstance | PartitionInstance) -> Infeasibility | None:
    """The reason, for users, why no cuts of layers into stages fit the memory; None if some do, or the instance has no memory
    limit.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits.

    It describes the fullest stage under the cuts with which the memory limits are exceeded by as little as possible."""
    in_flight = [instance.in_flight(i) for i in range(instance.stages)]
    if (memory := instance.memory) is None or _fitting(memory, in_flight, 0) is not None:
        return None
    limits, layers = memory.limit_bytes, len(memory.state_bytes)
    most = range(memory.peak_bytes(0, layers, max(in_flight)))
    more = bisect_left(most, True, key=lambda excess: _fitting(memory, in_flight, excess) is not None)
    cuts = _fitting(memory, in_flight, more)
    assert cuts is not None
    spans = list(pairwise((0, *cuts, layers)))
    peaks = [memory.peak_bytes(*span, many) for span, many in zip(spans, in_flight, strict=True)]
    worst = memory.fullest_stage(peaks)
    (first, end), peak, limit, many = spans[worst], peaks[worst], int(limits[worst]), in_flight[worst]
    states = int(memory.state_bytes[first:end].sum())
    alike = bool((limits == limits[0]).all())
    advice = [f"give every stage {enough_bytes(peak)} or more" if alike else f"give every stage {enough_bytes(more)} more"]
    if many > 1 and states <= limit:
        advice.append(f"take smaller micro-batches: stage {worst} holds {many} at once")
    if len(spans) < layers:
        advice.append("use more stages")
    layer = memory.peak_layer(first, end)
    name = f"{instance.name_of(layer)} in stage {worst}"
    return Infeasibility(limit, peak, layer, name, states, peak - states, tuple(advice))


def _fitting(memory: Memory, in_flight: Sequence[int], more: int) -> tuple[int, ...] | None:
    """Cuts of layers into pipeline stages (first layer of every stage but the first) with which every stage fits its memory
    limit raised by `more` bytes; None if there are none. memory: the layers' bytes and the stages' limits. in_flight: for each
    stage, micro-batches in flight."""
    k, layers = len(in_flight), len(memory.state_bytes)
    windows = memory.with_limits(memory.limit_bytes + more).first_layers(in_flight)
    answer = assign(np.zeros((k, layers), np.int64), np.zeros((k - 1, layers - 1), np.int64), 1, windows)
    return None if answer is None else answer[1]
