"""Time of a step where states or activations are on the host: copies over the link between a device and its host, and the
optimizer's step at the rate of the host's memory.

Nothing hides the copies. For each micro-batch activations go to the host and come back, parameters come twice, for the forward
and for the backward pass, and under ZeRO's stages 2 and 3 gradients leave as they are reduced; else they leave once a step.
Where the host steps the optimizer, new parameters come back once a step unless they stay there. All devices of the run that are
on one node share the host's memory.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.costs.overlapped.analytic_memory import kept_on_host_bytes
from trainplan.formulations.costs.overlapped.analytic_step import (
    OPTIMIZER_BYTES,
    StreamsStep,
    chunks_of,
    parameters_of,
    stepped_parameters,
)
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import Host
from trainplan.profiling.models.model import Model


def with_host(step: StreamsStep, model: Model, layout: RunLayout, host: Host, devices: int) -> StreamsStep:
    """The step with the time added for copies to the host and back, and for the optimizer's step on the host; the step
    unchanged if nothing is on the host.

    step: the times of the step without the host. host: the host and its link to a device. devices: the number of the run's
    devices on one node, which share its host. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    if not layout.on_host:
        return step
    chunks, element, micro = chunks_of(model, layout), DTYPE_BYTES[layout.base], layout.micro_batches
    copied = optimizer = 0.0
    for rank in range(layout.pp):
        mine = chunks[rank :: layout.pp]
        moved = 0.0
        if "activations" in layout.on_host:
            moved += 2 * micro * sum(kept_on_host_bytes(chunk, layout) for chunk in mine)
        share = sum(parameters_of(model, chunk, layout) for chunk in mine) * element / layout.sharing
        if "parameters" in layout.on_host:
            moved += 2 * micro * share
        if "optimizer" in layout.on_host and not layout.frozen:
            leave = micro if layout.zero >= 2 and not layout.reduces_last else 1
            moved += share * leave + share * ("parameters" not in layout.on_host)
            stepped = stepped_parameters(model, mine, layout)
            optimizer = max(optimizer, stepped * OPTIMIZER_BYTES * devices / host.memory_bytes_per_s * 1e9)
        copied = max(copied, moved / host.link.bandwidth_bytes_per_s * 1e9)
    stepping = max(optimizer, step.optimizer_ns) if "optimizer" in layout.on_host else step.optimizer_ns
    return replace(step, optimizer_ns=stepping, copies_ns=copied)
