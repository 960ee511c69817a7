"""Time of a step where states or activations are on the host: copies over the link between a device and its host, and the
optimizer's step at the rate of the host's memory.

Nothing hides the copies of model states. For each micro-batch parameters come twice, for the forward and for the backward pass,
and under ZeRO's stages 2 and 3 gradients leave as they are reduced; else they leave once a step. Where the host steps the
optimizer, new parameters come back once a step unless they stay there. All devices of the run that are on one node share the
host's memory.

Activations go to the host and come back for each micro-batch. Where the framework copies them on the stream of the kernels
(`torch.autograd.graph.save_on_cpu`, DeepSpeed's `cpu_checkpointing`), nothing hides these copies either. Megatron-Core has
Transformer Engine copy them on a stream of their own (`get_cpu_offload_context`, `pytorch/cpu_offload.py`,
2.20): with n of a stage's L layers on the host, layer i leaves as soon as it is computed and must have left when layer L - n +
i begins; it comes back from when the backward pass of layer L - 1 - n + i begins. Kernels wait only for copies that are late.
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
    bytes_per_ns = host.link.bandwidth_bytes_per_s / 1e9
    copied = optimizer = 0.0
    for rank in range(layout.pp):
        mine = chunks[rank :: layout.pp]
        moved = late_ns = 0.0
        if "activations" in layout.on_host:
            leaving = sum(kept_on_host_bytes(chunk, layout) for chunk in mine)
            if layout.framework.copies_alongside:
                layers = sum(chunk.layers for chunk in mine)
                hosted = sum(layout.hosted_layers(chunk.layers) for chunk in mine)
                forward_ns = step.forward_ns / max(1, layers * micro)
                backward_ns = (step.computing_ns - step.forward_ns) / max(1, layers * micro)
                copy_ns = leaving / max(1, hosted) / bytes_per_ns
                late_ns = micro * late_copies_ns(layers, hosted, copy_ns, forward_ns, backward_ns)
            else:
                moved += 2 * micro * leaving
        share = sum(parameters_of(model, chunk, layout) for chunk in mine) * element / layout.sharing
        if "parameters" in layout.on_host:
            moved += 2 * micro * share
        if "optimizer" in layout.on_host and not layout.frozen:
            leave = micro if layout.zero >= 2 and not layout.reduces_last else 1
            moved += share * leave + share * ("parameters" not in layout.on_host)
            stepped = stepped_parameters(model, mine, layout)
            optimizer = max(optimizer, stepped * OPTIMIZER_BYTES * devices / host.memory_bytes_per_s * 1e9)
        copied = max(copied, moved / bytes_per_ns + late_ns)
    stepping = max(optimizer, step.optimizer_ns) if "optimizer" in layout.on_host else step.optimizer_ns
    return replace(step, optimizer_ns=stepping, copies_ns=copied)


def late_copies_ns(layers: int, hosted: int, copy_ns: float, forward_ns: float, backward_ns: float) -> float:
    """The time in ns that kernels of one micro-batch wait for copies of activations that a stream of its own makes, in the
    order of Transformer Engine's `DefaultOffloadSynchronizer`.

    layers: the number of a device's transformer layers. hosted: the number of these whose activations are on the host, the
    first ones, at most all but one. copy_ns: the time to copy one layer's activations, in either direction. forward_ns,
    backward_ns: kernels of one layer.
    """
    clock = copies = 0.0
    left: list[float] = []
    for layer in range(layers):
        if 0 <= (due := layer - (layers - hosted)) < len(left):
            clock = max(clock, left[due])
        clock += forward_ns
        if layer < hosted:
            copies = max(copies, clock) + copy_ns
            left.append(copies)
    late, clock, copies = clock - layers * forward_ns, 0.0, 0.0
    back: dict[int, float] = {}
    for layer in reversed(range(layers)):
        if 0 <= (coming := layer - (layers - 1 - hosted)) < hosted:
            copies = max(copies, clock) + copy_ns
            back[coming] = copies
        clock = max(clock, back.get(layer, 0.0)) + backward_ns
    return late + clock - layers * backward_ns
