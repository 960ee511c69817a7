"""The kernels of a unit of experts on one rank, with their times: router, permutations, grouped products, activation."""

from __future__ import annotations

from trainplan.formulations.costs.overlapped.expert_exchange import Routed
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import Experts, Operator

TILE = 128  # rows that a block of a product's kernel computes: of each expert's last block half are empty in the mean
CLAMPED = 4  # passes over what is clamped and joined, or has biases added and is joined
LOGIT_BYTES = 4  # of a router's, which are in fp32
ROUTER_PASSES = 8  # over the logits: softmax or sigmoid, top-k, map of rows, and the balancing loss; assumed
ACCUMULATED = 2  # a sum of gradients is read and written by the product that adds to it


def routed_of(part: Experts, layout: RunLayout) -> Routed:
    """A rank's tokens where they enter a unit of experts. layout: how the run is laid out on its devices."""
    return Routed.of(part, layout.micro * part.tokens / layout.cp / layout.border_ranks)


def rows_of(part: Experts, layout: RunLayout) -> float:
    """Rows of the products of the fullest rank's experts for one micro-batch: copies of tokens. part: the unit. layout: how the
    run is laid out on its devices."""
    return routed_of(part, layout).tokens * part.chosen * layout.experts.etp * layout.experts.fill


def streamed_ns(touched_bytes: float, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns of a kernel that reads and writes `touched_bytes` bytes. layout: how the run is laid out on its devices.
    kind: the kind of device."""
    return operator_ns(Operator(touched_bytes=round(touched_bytes)), kind, layout.base, DTYPE_BYTES[layout.base])


def router_ns(part: Experts, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns of a router's product and of the choice of experts. part: the unit. layout: how the run is laid
    out on its devices. kind: the kind of device. backward: whether the backward pass is meant."""
    tokens = routed_of(part, layout).tokens
    product = Operator(m=max(1, round(tokens)), n=part.experts, k=part.hidden)
    product_ns = operator_ns(product, kind, layout.base, DTYPE_BYTES[layout.base], backward)
    return product_ns + streamed_ns(tokens * part.experts * LOGIT_BYTES * ROUTER_PASSES, layout, kind)


def permuted_ns(part: Experts, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns in which a rank's tokens are ordered by their experts before they are sent, and again, by the experts of
    the rank, where they arrive; the same for results on their way back. part: the unit. layout: how the run is laid
    out on its devices. kind: the kind of device.

    A plain all-to-all sends ordered copies (`permute`, then `sort_chunks_by_idxs` where a rank has several experts, of
    Megatron-Core's `moe_utils.py`). An exchange of single copies makes the copies on arrival.
    """
    routed, rows, experts = routed_of(part, layout), rows_of(part, layout), layout.experts
    if experts.dispatcher == "deduplicated" and experts.ep > 1:
        came = routed.tokens * routed.visited(experts.ep)
        return streamed_ns((came + rows) * part.width * DTYPE_BYTES[layout.base], layout, kind)
    sorted_again = 2 * rows * (experts.ep > 1 and part.experts > experts.ep)
    moved = routed.tokens * (1 + part.chosen) + sorted_again
    return streamed_ns(moved * part.width * DTYPE_BYTES[layout.base], layout, kind)


def activation_ns(part: Experts, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns of the activation of a rank's rows, with its gate and the router's probabilities in one kernel
    (`weighted_bias_swiglu_impl` of Megatron-Core); 0 where products' kernels do it. Experts with biases (gpt-oss) clamp both
    halves, join them again, and add biases expert by expert, in kernels of their own (`weighted_bias_quick_geglu_impl`, and
    `_apply_bias` of `TEGroupedMLP`).

    part: the unit. layout: how the run is laid out on its devices. kind: the kind of device.
    """
    if layout.experts.fused:
        return 0.0
    inner = part.inner / layout.experts.etp
    numbers = (part.ups + 1) * inner + part.bias * (CLAMPED * part.ups * inner + CLAMPED * part.width)
    return streamed_ns(rows_of(part, layout) * numbers * DTYPE_BYTES[layout.base], layout, kind)


def products_ns(part: Experts, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns of both products of a rank's experts: of the forward pass, or of the gradients of inputs and weights.
    part: the unit. layout: how the run is laid out on its devices. kind: the kind of device. Raises KeyError for a
    precision for which the kind of device has no rate."""
    etp = layout.experts.etp
    sizes = ((part.ups * part.inner // etp, part.width), (part.width, part.inner // etp))
    return sum(grouped_ns(part, n, k, layout, kind, backward) for n, k in sizes)


def grouped_ns(part: Experts, n: int, k: int, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns of one product of all experts of a rank, each of its rows by its own (k, n) matrix, with the casts of
    operands to few bits.

    One grouped kernel fills the device with the blocks of all experts; what it loses are the empty rows of each expert's last
    block, the more the fewer rows an expert has, the empty columns of the last block, and the start of each sum over few k.
    Without it the experts' products follow each other. In the backward pass each weight's gradient is added to its sum, which
    few rows do not hide.

    n, k: columns of the result, and of the rows. Other arguments as of `products_ns`.
    """
    experts, recipe, base = max(1, part.experts // layout.experts.ep), layout.recipe, layout.base
    precision: Precision = layout.precision if recipe is None else recipe.precision
    rows, rates = rows_of(part, layout), layout.experts.rates
    rows_each = rows / experts
    element = DTYPE_BYTES[base] if recipe is None else recipe.operand_bytes
    if not layout.experts.grouped:
        alone = Operator(m=max(1, round(rows_each)), n=n, k=k)
        return experts * operator_ns(alone, kind, precision, element, backward) + _cast_ns(
            part, rows, n, k, layout, kind, backward
        )
    reached, work = kind.reached("matrix-product", precision), 2.0 if backward else 1.0
    value, half = (reached.value, reached.half_size) if reached else (kind.efficiency, kind.half_size)
    share = value * rows / (rows + half) * n / (n + TILE / 2) * k / (k + half) * rows_each / (rows_each + TILE / 2)
    share *= rates.grouped if recipe is None else rates.grouped_in_bits * recipe.product_rate
    computing = work * 2 * rows * n * k / (kind.flops_per_s[precision] * share) * 1e9
    moved = work * (rows * (n + k) + experts * n * k) * element
    moved += ACCUMULATED * experts * n * k * layout.framework.gradient_bytes * (backward and not layout.frozen)
    return max(computing, streamed_ns(moved, layout, kind)) + _cast_ns(part, rows, n, k, layout, kind, backward)


def _cast_ns(part: Experts, rows: float, n: int, k: int, layout: RunLayout, kind: DeviceKind, backward: bool) -> float:
    """The time in ns in which the rows of a product (backward: the gradients of its results) are cast to few bits; 0 without a
    recipe. Arguments as of `grouped_ns`; rows: their number."""
    if layout.recipe is None or (layout.experts.fused and k != part.width):
        return 0.0
    numbers = rows * (n if backward else k)
    return streamed_ns(numbers * layout.recipe.cast_bytes(DTYPE_BYTES[layout.base]), layout, kind)
