"""Times of kernels: products in the run's precision, with the casts of their operands, and passes over memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import Operator

# An adapter next to a product, in either pass: its input is read, its result written and added, in kernels of their own. Its
# products have so few columns that they take what memory does. Assumed.
ADAPTER_READS, ADAPTER_WRITES = 1, 2
# Devices with this recipe multiply 8-bit matrices in either order of their numbers, so that a tensor with one scale factor
# needs no transposed copy (`nvte_is_non_tn_fp8_gemm_supported`, Transformer Engine 2.20).
READING_BOTH_ORDERS = "nvfp4"
# Part of a collective's time that it adds to kernels in parallel with it, assumed; 0.13 to 0.3 by Galvatron-BMW.
CONTENTION = 0.25


@dataclass(frozen=True)
class UnitTimes:
    """Times of one sub-layer for one micro-batch on one rank, in ns.

    Attributes:
        forward_ns, backward_ns: kernels of both passes.
        recompute_ns: kernels and collectives that the backward pass runs again, if it does not run the whole forward pass
            again.
        collectives_ns, backward_collectives_ns: collectives of the forward and of the backward pass that no kernel hides.
        exchange_ns: of experts whose exchange runs in parallel with another micro-batch's passes, its time in either pass,
            which is not among the collectives.
    """

    forward_ns: float
    backward_ns: float
    recompute_ns: float
    collectives_ns: float
    backward_collectives_ns: float
    exchange_ns: float = 0.0

    @property
    def forward_with_collectives_ns(self) -> float:
        """The time in ns of the forward pass, with its collectives that no kernel hides."""
        return self.forward_ns + self.collectives_ns


def kernel_ns(operator: Operator, layout: RunLayout, kind: DeviceKind, layered: bool, backward: bool) -> float:
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
