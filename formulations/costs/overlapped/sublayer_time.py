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
from dataclasses import dataclass, replace

from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.torch_rings import merged_ring_ns
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.derived_costs import shared_operators
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import (
    LAYER_KINDS,
    Attention,
    FeedForward,
    HeadShare,
    Operator,
    Sublayer,
    TokenShare,
    attention_of,
    why_not_shared,
)
from trainplan.profiling.models.sublayers.parallel import ParallelBlock

# An adapter next to a product, in either pass: its input is read, its result written and added, in kernels of their own. Its
# products have so few columns that they take what memory does. Assumed.
ADAPTER_READS, ADAPTER_WRITES = 1, 2
# Devices with this recipe multiply 8-bit matrices in either order of their numbers, so that a tensor with one scale factor
# needs no transposed copy (`nvte_is_non_tn_fp8_gemm_supported`, Transformer Engine 2.20).
READING_BOTH_ORDERS = "nvfp4"
CONTENTION = (
    0.25  # part of a collective's time that it adds to kernels in parallel with it, assumed; 0.13 to 0.3 by Galvatron-BMW
)


@dataclass(frozen=True)
class UnitTimes:
    """Times of one sub-layer for one micro-batch on one rank, in ns.

    Attributes:
        forward_ns, backward_ns: kernels of both passes.
        recompute_ns: kernels and collectives that the backward pass runs again, if it does not run the whole forward pass
            again.
        collectives_ns, backward_collectives_ns: collectives of the forward and of the backward pass that no kernel hides.
    """

    forward_ns: float
    backward_ns: float
    recompute_ns: float
    collectives_ns: float
    backward_collectives_ns: float

    @property
    def forward_with_collectives_ns(self) -> float:
        """The time in ns of the forward pass, with its collectives that no kernel hides."""
        return self.forward_ns + self.collectives_ns


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
    part, shared = splittable(part, layout.tp), _shares_tokens(part, layout)
    work = _kernels(part, layout)
    layered = part.kind in LAYER_KINDS
    forward = sum(_kernel_ns(operator, layout, kind, layered, False) for operator in work)
    backward = sum(_kernel_ns(operator, layout, kind, layered, True) for operator in work)
    matrices = [operator for operator in work if operator.m and not operator.core]
    gradients = sum(_kernel_ns(operator, layout, kind, layered, True) for operator in matrices) / 2
    products = sum(_kernel_ns(operator, layout, kind, layered, False) for operator in matrices)
    core = sum(_kernel_ns(operator, layout, kind, layered, False) for operator in _cores(part, layout))
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
    return layout.sequence_parallel and layout.tp > 1 and why_not_shared(part, layout.tp) is None


def _kernels(part: Sublayer, layout: RunLayout) -> list[Operator]:
    """The kernels of a sub-layer's forward pass for one micro-batch on one rank. part: the sub-layer, with at least as many
    key heads as tensor-parallel ranks. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    tp, micro = layout.tp, layout.micro
    operators = shared_operators(TokenShare(part, tp), micro) if _shares_tokens(part, layout) else part.operators(micro, tp)
    if layout.framework.fuses_passes:
        operators = _with_fused_passes(part, operators)
    if layout.framework.joins_products:
        operators = _joined(operators)
    return [_on_share(operator, layout) for operator in operators]


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


def _kernel_ns(operator: Operator, layout: RunLayout, kind: DeviceKind, layered: bool, backward: bool) -> float:
    """The time in ns of a kernel. operator: the kernel's sizes. kind: the kind of device. layered: whether the kernel belongs
    to a transformer layer, for which the layout states the precision separately. backward: True for the backward pass,
    False for the forward pass. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    base = layout.base
    if not operator.m:
        passes = layout.framework.memory_passes if layered else layout.framework.loss_passes
        passes = 1.0 if layout.held.in_place and not layered else passes  # of a loss that one kernel computes
        return operator_ns(replace(operator, touched_bytes=int(operator.touched_bytes * passes)), kind, base, 2, backward)
    if layout.frozen and layered and not operator.core:
        numbers = operator.m * operator.count * (ADAPTER_READS * operator.k + ADAPTER_WRITES * operator.n)
        adapter_ns = operator_ns(Operator(touched_bytes=numbers * DTYPE_BYTES[base]), kind, base, DTYPE_BYTES[base])
        return adapter_ns + _product_ns(operator, layout, kind, layered, backward)
    return _product_ns(operator, layout, kind, layered, backward)


def _product_ns(operator: Operator, layout: RunLayout, kind: DeviceKind, layered: bool, backward: bool) -> float:
    """The time in ns of a matrix multiplication, or of an attention core, with the casts of its operands to low precision.
    operator: its sizes. kind: the kind of device. layered: whether it belongs to a transformer layer, for which the layout
    states the precision separately. backward: True for the backward pass, False for the forward pass. layout: how the run
    is laid out on its devices: degrees, batch, precision and framework.
    """
    base, recipe = layout.base, layout.recipe
    if backward and layout.frozen and not operator.core:
        operator = replace(operator, backward=operator.backward / 2)  # no gradients of weights
    if operator.core or not layered or recipe is None:
        precision: Precision = layout.precision if (layered and not operator.core) or layout.precision == "tfloat32" else base
        rate = layout.framework.attention_rate if operator.core in ("scores", "values") else 1.0
        return operator_ns(operator, kind, precision, DTYPE_BYTES[base], backward) / rate
    written = operator.m * (operator.n if backward else operator.k) * operator.count
    transposes = recipe.block > 0 or READING_BOTH_ORDERS not in kind.recipes
    streaming = Operator(touched_bytes=round(written * recipe.cast_bytes(DTYPE_BYTES[base], transposes)))
    product = operator_ns(operator, kind, recipe.precision, recipe.operand_bytes, backward) / recipe.product_rate
    return product + operator_ns(streaming, kind, base, DTYPE_BYTES[base])


def _cores(part: Sublayer, layout: RunLayout) -> list[Operator]:
    """The attention cores (softmax of scores times values) of a sub-layer on one rank, as kernels; empty for a sub-layer
    without attention. part: the sub-layer. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    if (attention := attention_of(part)) is None:
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
        return sum(_kernel_ns(operator, layout, kind, False, False) for operator in head_work)
    streaming = sum(_kernel_ns(operator, layout, kind, True, False) for operator in work if not operator.m)
    again = 0.0
    if recompute.operations:
        products = sum(_kernel_ns(operator, layout, kind, True, False) for operator in work if operator.m and not operator.core)
        again += streaming + products / 2
    if not recompute.operations:
        again += sum(_kernel_ns(operator, layout, kind, True, False) for operator in _recomputed_modules(part, layout, work))
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
    again = 0.0 if layout.framework.keeps_gathered else gathered
    return (gathered + one, (gathered, again + one)) if shared else (both, (0.0, both))


def _ring_ns(part: Sublayer, layout: RunLayout, links: Links) -> float:
    """The time in ns to send an attention's keys and values around the ring of context-parallel ranks; 0 for other sub-layers,
    without context parallelism, and where ranks exchange heads. part: the sub-layer. layout: how the run is laid out on its
    devices: degrees, batch, precision and framework. links: bandwidths and latencies of a device's links.
    """
    attention = attention_of(part)
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
