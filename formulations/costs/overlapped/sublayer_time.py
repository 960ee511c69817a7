"""Time of one micro-batch on one rank in each unit of a model: kernels by the roofline of `profiling.estimate`, and the tensor-
and context-parallel collectives that no kernel hides.

Products of transformer layers are in the run's precision, all else (attention cores, head, embedding) in its base dtype. By a
recipe of 8 or 4 bits every operand is first cast: read as often as the recipe requires, and written in few bits, and again
transposed for the backward pass where the device or the recipe needs it (`profiling.clusters.recipes`). Transformer Engine,
which Megatron-Core calls, has one product for queries, keys and values and one for both up-projections of a gated network, so
that their input is cast once (`LayerNormLinear`), one kernel for a norm, and gathers over sequence-parallel ranks what it has
cast (`gather_along_first_dim` in `pytorch/distributed.py`, 2.20); Megatron-Core has one kernel for a gated activation
(`fusions/fused_bias_swiglu.py`).

Context-parallel ranks have an equal share of each sample's tokens. They send keys and values around a ring (Liu et al., 2023)
in parallel with the attention's cores; or they exchange heads (Jacobs et al., 2023): before the core queries, keys and values
by an all-to-all, after it the results by another one, and backward the gradients of both, none of them hidden by kernels. Each
all-to-all reads and writes all numbers once before it, to order them by rank, and once after it. Where the core is recomputed
by itself, heads are exchanged again, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainplan.formulations.costs.overlapped.expert_time import expert_times
from trainplan.formulations.costs.overlapped.kernel_time import CONTENTION, UnitTimes, kernel_ns
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.torch_rings import merged_ring_ns
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.derived_costs import shared_operators
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import (
    LAYER_KINDS,
    Attention,
    Experts,
    FeedForward,
    HeadShare,
    LatentAttention,
    Operator,
    Sublayer,
    TokenShare,
    attention_of,
    why_not_shared,
)
from trainplan.profiling.models.sublayers.parallel import ParallelBlock


def splittable(part: Sublayer, tp: int) -> Sublayer:
    """The sub-layer in the form in which `tp` tensor-parallel ranks run it: an attention with fewer key heads than ranks gets
    as many key heads as ranks, since ranks then hold copies of key heads; other sub-layers are returned unchanged. part:
    the sub-layer.
    """
    if isinstance(part, Attention) and part.kv_heads < tp:
        return replace(part, kv_heads=tp)
    if isinstance(part, ParallelBlock) and part.attention.kv_heads < tp:
        return replace(part, attention=replace(part.attention, kv_heads=tp))
    return part


def unit_times(part: Sublayer, layout: RunLayout, kind: DeviceKind, links: Links) -> UnitTimes:
    """The times of one sub-layer for one micro-batch on one rank. part: the sub-layer. layout: the run's degrees, precision and
    recomputation. kind: the kind of device. links: its links to other devices. Raises KeyError for a precision for which the
    kind of device has no rate."""
    if isinstance(part, Experts):
        return expert_times(part, layout, kind, links)
    part, shared = splittable(part, layout.tp), _shares_tokens(part, layout)
    work = _kernels(part, layout)
    layered = part.kind in LAYER_KINDS
    forward = sum(kernel_ns(operator, layout, kind, layered, False) for operator in work)
    backward = sum(kernel_ns(operator, layout, kind, layered, True) for operator in work)
    matrices = [operator for operator in work if operator.m and not operator.core]
    gradients = sum(kernel_ns(operator, layout, kind, layered, True) for operator in matrices) / 2
    products = sum(kernel_ns(operator, layout, kind, layered, False) for operator in matrices)
    core = sum(kernel_ns(operator, layout, kind, layered, False) for operator in _cores(part, layout))
    recompute = _recompute_ns(part, layout, kind, work, core)
    gathered, (back, hideable) = _tensor_ns(part, layout, links, shared)
    gathered -= min(gathered, products) * layout.framework.tensor_overlap
    if layout.framework.overlaps_tensor_backward:
        hideable = max(0.0, hideable - gradients) + CONTENTION * min(hideable, gradients)
    back -= min(back, gradients) * layout.framework.tensor_overlap
    if isinstance(part, FeedForward) and layout.recompute.network:
        recompute += gathered
    around, exchanged = _ring_ns(part, layout, links), _exchanged_ns(part, layout, kind, links)
    recompute += exchanged * (layout.recompute.attention and not layout.recompute.operations)
    ring, ring_backward = max(0.0, around - core), max(0.0, 2 * around - 2.5 * core)
    if layout.framework.merges_rings and around:
        ring, ring_backward = merged_ring_ns(part, layout, kind, around, core)
    return UnitTimes(
        forward + exchanged + ring,
        backward + exchanged + ring_backward,
        recompute,
        gathered,
        back + hideable,
    )


def supports_recipe(part: Sublayer, layout: RunLayout) -> bool:
    """Whether the sizes of all matrix multiplications of a sub-layer are multiples that the layout's low-precision recipe
    requires; True without a recipe, and for embedding and head. part: the sub-layer. layout: how the run is laid out on its
    devices: degrees, batch, precision and framework.
    """
    if layout.recipe is None or part.kind not in LAYER_KINDS:
        return True
    products = [kernel for kernel in _kernels(splittable(part, layout.tp), layout) if kernel.m and not kernel.core]
    return all(size % layout.recipe.multiple == 0 for product in products for size in (product.m, product.n, product.k))


def _shares_tokens(part: Sublayer, layout: RunLayout) -> bool:
    """Whether tensor-parallel ranks split the tokens of a sub-layer between matrix multiplications (sequence parallelism).
    part: the sub-layer. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    shareable = isinstance(part, LatentAttention) or why_not_shared(part, layout.tp) is None
    return layout.sequence_parallel and layout.tp > 1 and shareable


def _kernels(part: Sublayer, layout: RunLayout) -> list[Operator]:
    """The kernels of a sub-layer's forward pass for one micro-batch on one rank. part: the sub-layer, with at least as many
    key heads as tensor-parallel ranks. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    tp, micro = layout.tp, layout.micro
    shared = _shares_tokens(part, layout)
    if isinstance(part, LatentAttention):
        operators = _latent_operators(part, micro, tp, shared)
    else:
        operators = shared_operators(TokenShare(part, tp), micro) if shared else part.operators(micro, tp)
    if layout.framework.fuses_passes:
        operators = _with_fused_passes(part, operators)
    if layout.framework.joins_products:
        operators = _joined(operators)
    return [_on_share(operator, layout) for operator in operators]


def _latent_operators(part: LatentAttention, micro: int, tp: int, shared: bool) -> list[Operator]:
    """The kernels of a latent attention's forward pass on one of `tp` tensor-parallel ranks. Where these share tokens, each
    computes norms and latents of its own tokens, and the latents are gathered (Megatron-Core's `MLASelfAttention`, whose
    down-projections every rank has). micro: samples. shared: whether the ranks share tokens."""
    operators = part.operators(micro, tp)
    if not shared:
        return operators
    own, down = replace(part, tokens=part.tokens // tp), len(part.down_operators(1))
    first = part.operators_before + down
    last = len(operators) - 1 - 2 * part.sandwich
    mine = own.operators(micro, tp)
    return mine[:first] + operators[first:last] + mine[last:]


def _joined(operators: Iterable[Operator]) -> list[Operator]:
    """The kernels of a forward pass, with one product in place of several that follow each other and have the same input: of
    queries, keys and values, and of both up-projections of a gated network. operators: the kernels.
    """
    joined: list[Operator] = []
    for operator in operators:
        before = joined[-1] if joined else operator
        alike = joined and operator.m and operator.core is None
        if alike and replace(before, n=operator.n) == operator:
            joined[-1] = replace(before, n=before.n + operator.n)
        else:
            joined.append(operator)
    return joined


def _before(part: Sublayer, layout: RunLayout) -> int:
    """The number of kernels of a sub-layer's forward pass that come before its products: its norm's. part: the sub-layer.
    layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    count = int(getattr(part, "operators_before", 0))
    return min(1, count) if layout.framework.fuses_passes else count


def _with_fused_passes(part: Sublayer, operators: list[Operator]) -> list[Operator]:
    """The kernels of a sub-layer's forward pass, with one kernel for an RMS norm (mean square and scaling), and one for a gated
    activation (activation function and gate). part: the sub-layer. operators: its kernels, in order.
    """
    before = int(getattr(part, "operators_before", 0))
    fused = operators[max(0, before - 1) :]
    if isinstance(part, FeedForward) and part.gated:
        first = next(index for index, operator in enumerate(fused) if operator.m)
        del fused[next(index for index in range(first, len(fused)) if not fused[index].m)]  # the pass without the gate
    return fused


def _on_share(operator: Operator, layout: RunLayout) -> Operator:
    """A kernel reduced to the tokens of one context-parallel rank; an attention core reduced to that rank's heads where ranks
    exchange heads. operator: the kernel for all tokens. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework.
    """
    if layout.cp == 1:
        return operator
    if operator.core and layout.exchanges_heads:
        return replace(operator, count=operator.count // layout.cp)
    return replace(operator, m=-(-operator.m // layout.cp), touched_bytes=operator.touched_bytes // layout.cp)


def _cores(part: Sublayer, layout: RunLayout) -> list[Operator]:
    """The attention cores (softmax of scores times values) of a sub-layer on one rank, as kernels; empty for a sub-layer
    without attention. part: the sub-layer. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    attention = part if isinstance(part, LatentAttention) else attention_of(part)
    if attention is None:
        return []
    return [_on_share(operator, layout) for operator in attention.core_operators(layout.micro, layout.tp)]


def _recompute_ns(part: Sublayer, layout: RunLayout, kind: DeviceKind, work: list[Operator], core_ns: float) -> float:
    """The time in ns of the kernels that a backward pass runs again, where it does not run the whole forward pass again.

    part: the sub-layer. work: the kernels of its forward pass. core_ns: the time of its attention cores. kind: the kind of
    device. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    recompute = layout.recompute
    if part.kind not in LAYER_KINDS:
        head_work = work[_before(part, layout) :] if recompute.loss and part.kind == "head" else []
        return sum(kernel_ns(operator, layout, kind, False, False) for operator in head_work)
    streaming = sum(kernel_ns(operator, layout, kind, True, False) for operator in work if not operator.m)
    again = 0.0
    if recompute.operations:
        products = sum(kernel_ns(operator, layout, kind, True, False) for operator in work if operator.m and not operator.core)
        again += streaming + products / 2
    if not recompute.operations:
        again += sum(kernel_ns(operator, layout, kind, True, False) for operator in _recomputed_modules(part, layout, work))
    if recompute.attention and not recompute.operations:
        again += core_ns
    return again


def _recomputed_modules(part: Sublayer, layout: RunLayout, work: list[Operator]) -> list[Operator]:
    """The kernels of norms and of the feed-forward network that the layout recomputes. part: the sub-layer. work: the kernels
    of its forward pass. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    recompute, again = layout.recompute, list[Operator]()
    network = part.feed_forward if isinstance(part, ParallelBlock) else part
    if recompute.norms:
        before = part.attention if isinstance(part, ParallelBlock) else part
        twice = isinstance(part, ParallelBlock) and not part.shared_norm
        again += work[: _before(before, layout)] * (1 + twice)
    if isinstance(part, LatentAttention) and recompute.latent:
        again += [_on_share(operator, layout) for operator in part.up_operators(layout.micro, layout.tp)]
    if isinstance(network, FeedForward) and (recompute.network or recompute.activation):
        inner = network.activation_operators(layout.micro, layout.tp)[layout.framework.fuses_passes and network.gated :]
        if recompute.network:
            products = [operator for operator in network.operators(layout.micro, layout.tp) if operator.m]
            inner = inner + (_joined(products) if layout.framework.joins_products else products)
        again += [_on_share(operator, layout) for operator in inner]
    return again


def _tensor_ns(part: Sublayer, layout: RunLayout, links: Links, shared: bool) -> tuple[float, tuple[float, float]]:
    """Times in ns of a sub-layer's collectives of tensor-parallel ranks, as (forward, (before, during)). forward: in the
    forward pass. In the backward pass, before: the collectives that must end before any gradient is computed; during: those
    that may run while gradients of weights are computed.

    shared: whether ranks split the tokens between matrix multiplications (sequence parallelism). part: the sub-layer.
    layout: how the run is laid out on its devices: degrees, batch, precision and framework. links: bandwidths and latencies
    of a device's links.
    """
    if layout.tp == 1:
        return 0.0, (0.0, 0.0)
    hidden = (
        part.output_bytes(layout.micro, 1) / layout.cp if part.kind != "head" else part.input_bytes(layout.micro) / layout.cp
    )
    one = links.collective_ns(1, hidden, layout.tp, 1)
    gathered = links.collective_ns(1, hidden * layout.gathered_share, layout.tp, 1)  # of layers alone
    both = links.collective_ns(2, hidden, layout.tp, 1)
    if part.kind == "embedding":
        return (one, (one, 0.0)) if shared else (both, (0.0, 0.0))
    if part.kind == "head":
        return (one, (0.0, 2 * one)) if shared else (0.0, (0.0, both))
    if isinstance(part, LatentAttention) and shared:
        latents = hidden / part.hidden * (part.query_latent + part.latent + part.turned)
        gathered = links.collective_ns(1, latents, layout.tp, 1)
    again = 0.0 if layout.framework.keeps_gathered else gathered
    return (gathered + one, (gathered, again + one)) if shared else (both, (0.0, both))


def _ring_ns(part: Sublayer, layout: RunLayout, links: Links) -> float:
    """The time in ns to send an attention's keys and values around the ring of context-parallel ranks; 0 for other sub-layers,
    without context parallelism, and where ranks exchange heads. part: the sub-layer. layout: how the run is laid out on its
    devices: degrees, batch, precision and framework. links: bandwidths and latencies of a device's links.
    """
    attention = part if isinstance(part, LatentAttention) else attention_of(part)
    if layout.cp == 1 or layout.exchanges_heads or attention is None:
        return 0.0
    heads = attention.heads if layout.framework.merges_rings else attention.kv_heads  # torch repeats keys for their queries
    width = 2 * heads // min(layout.tp, heads) * attention.width
    size = layout.micro * attention.tokens * width * DTYPE_BYTES[layout.base]
    return links.collective_ns(1, size, layout.cp, layout.tp)


def _exchanged_ns(part: Sublayer, layout: RunLayout, kind: DeviceKind, links: Links) -> float:
    """The time in ns of the all-to-alls by which context-parallel ranks exchange an attention's heads in one pass, with the
    kernels that order numbers by rank and back; 0 if no heads are exchanged. part: the sub-layer. kind: the kind of
    device. layout: how the run is laid out on its devices: degrees, batch, precision and framework. links: bandwidths and
    latencies of a device's links.
    """
    attention = attention_of(part)
    if not layout.exchanges_heads or attention is None:
        return 0.0
    share, element_bytes = HeadShare(attention, layout.tp, layout.cp), DTYPE_BYTES[layout.base]
    total = 0.0
    for size in (share.entering_bytes(layout.micro, element_bytes), share.leaving_bytes(layout.micro, element_bytes)):
        moving = operator_ns(Operator(touched_bytes=2 * size), kind, layout.base, element_bytes)
        total += links.all_to_all_ns(size, layout.cp, layout.tp) + 2 * moving
    return total
