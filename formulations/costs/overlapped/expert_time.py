"""Time of a unit of experts for one micro-batch on one rank: norm, router, exchange, grouped products, shared experts.

The exchange of tokens stands in the lane of computations, except for what runs alongside it: shared experts of the same
micro-batch (Megatron-Core's `--moe-shared-expert-overlap`), or, where passes of two micro-batches run in parallel
(`--overlap-moe-expert-parallel-comm`, torchtitan's DualPipeV), both passes of a stage (`analytic_step.chunk_ns`). What is
hidden takes a part of its time from the kernels alongside.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.costs.overlapped.expert_exchange import dispatched_ns, gathered_ns
from trainplan.formulations.costs.overlapped.expert_work import (
    activation_ns,
    permuted_ns,
    products_ns,
    routed_of,
    router_ns,
    streamed_ns,
)
from trainplan.formulations.costs.overlapped.kernel_time import CONTENTION, UnitTimes, kernel_ns
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.sublayers import Experts, Operator

NORM_PASSES, RESIDUAL_PASSES = 2, 3  # over the hidden states: read and written; read twice and written
BACKWARD_PASSES = 1.5  # of a norm or an activation, over its forward pass


def expert_times(part: Experts, layout: RunLayout, kind: DeviceKind, links: Links) -> UnitTimes:
    """The times of a unit of experts for one micro-batch on the rank with most tokens. part: the unit. layout: how the run is
    laid out on its devices: degrees, batch, precision and framework. kind: the kind of device. links: bandwidths and latencies
    of a device's links. Raises KeyError for a precision for which the kind of device has no rate."""
    recompute = layout.recompute
    hidden = routed_of(part, layout).tokens * part.hidden * DTYPE_BYTES[layout.base]
    norm = streamed_ns(NORM_PASSES * hidden, layout, kind)
    residual = streamed_ns(RESIDUAL_PASSES * hidden, layout, kind)
    moved, activation = 2 * permuted_ns(part, layout, kind), activation_ns(part, layout, kind)
    around = [_dense_ns(part, layout, kind, backward) for backward in (False, True)]
    shared = [_shared_ns(part, layout, kind, backward) for backward in (False, True)]
    forward = norm + residual + moved + activation + around[0] + products_ns(part, layout, kind, False)
    backward = BACKWARD_PASSES * (norm + activation) + residual + moved + around[1] + products_ns(part, layout, kind, True)
    exchange = exchanged_ns(part, layout, links)
    gathered = _shared_collective_ns(part, layout, links)
    apart = exchange * layout.experts.exchange_alongside
    shown, shown_backward = (_shown_ns(exchange - apart, own, layout) for own in shared)
    again = norm * recompute.norms + activation * recompute.experts_activation
    if recompute.shared_experts:
        again += shared[0] + gathered / 2
    if recompute.experts:
        again = forward - residual + shared[0] + exchange + gathered
    return UnitTimes(
        forward + shared[0],
        backward + shared[1],
        again,
        shown + gathered,
        shown_backward + gathered + gathered / 2,
        apart,
    )


def exchanged_ns(part: Experts, layout: RunLayout, links: Links) -> float:
    """The time in ns of all exchanges of one pass of a unit of experts, hidden or not: to the experts and back, each with what
    ranks that share an expert's width gather or sum. part: the unit. layout: how the run is laid out on its devices. links:
    bandwidths and latencies of a device's links."""
    element, routed = DTYPE_BYTES[layout.base], routed_of(part, layout)
    sent = layout.experts.dispatched_bytes or element
    there = dispatched_ns(routed, layout.experts, links, sent) + gathered_ns(routed, layout.experts, links, sent)
    back = dispatched_ns(routed, layout.experts, links, element) + gathered_ns(routed, layout.experts, links, element)
    return there + back


def _shown_ns(exchange: float, shared: float, layout: RunLayout) -> float:
    """The part of an exchange's time that shared experts of the same micro-batch do not hide, with the time by which what is
    hidden slows kernels. exchange: its whole time. shared: the time of the shared experts' kernels, both in ns. layout: how the
    run is laid out on its devices.
    """
    return alongside_ns(exchange, shared * layout.experts.shared_alongside)


def alongside_ns(exchange: float, kernels: float) -> float:
    """The time in ns that an exchange adds to kernels that run alongside it: the part of it that is longer than they are, and
    what they lose to it meanwhile. exchange, kernels: their times in ns."""
    hidden = min(exchange, kernels)
    return exchange - hidden + CONTENTION * hidden


def _dense_ns(part: Experts, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns of the router and of the projections to and from the experts' latent, on the rank's own tokens. part: the
    unit. layout: how the run is laid out on its devices. kind: the kind of device. backward: whether it is the backward pass.
    """
    share = layout.cp * layout.border_ranks
    projections = [_on_share(operator, share) for operator in part.latent_operators(layout.micro)]
    latent = sum(kernel_ns(operator, layout, kind, True, backward) for operator in projections)
    return router_ns(part, layout, kind, backward) + latent


def _shared_ns(part: Experts, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns of the shared experts' kernels on one tensor-parallel rank; 0 without them. Arguments as of
    `_dense_ns`."""
    operators = [_on_share(operator, layout.cp) for operator in part.shared_operators(layout.micro, layout.tp)]
    return sum(kernel_ns(operator, layout, kind, True, backward) for operator in operators)


def _on_share(operator: Operator, share: int) -> Operator:
    """A kernel reduced to the tokens of one of `share` ranks that divide them. operator: the kernel for all tokens."""
    if share == 1:
        return operator
    return replace(operator, m=-(-operator.m // share), touched_bytes=operator.touched_bytes // share)


def _shared_collective_ns(part: Experts, layout: RunLayout, links: Links) -> float:
    """The time in ns in which tensor-parallel ranks gather tokens for the shared experts and scatter their results; 0 without
    shared experts or with one rank. part: the unit. layout: how the run is laid out on its devices. links: bandwidths and
    latencies of a device's links."""
    if not part.shared_inner or layout.tp == 1:
        return 0.0
    hidden = layout.micro * part.tokens / layout.cp * part.hidden * DTYPE_BYTES[layout.base]
    return links.collective_ns(2, hidden, layout.tp, 1)
