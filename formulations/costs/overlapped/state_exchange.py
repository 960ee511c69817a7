"""Parameters of a rank, those of routed experts apart, and the collectives by which ranks share their states.

Experts are divided among ep ranks, each of them among etp ranks, and their states are shared among the edp ranks that hold the
same; all else is divided among tp ranks and shared among dp x cp.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.models.model import Unit
from trainplan.profiling.models.sublayers import Experts, Sublayer

BUCKET, BUCKET_OF_A_RANK = 40e6, 1e6  # parameters


def rank_parameters(part: Sublayer, layout: RunLayout) -> tuple[int, int]:
    """Two numbers of a sub-layer's parameters on one rank: of all but routed experts, and of routed experts. layout: how the
    run is laid out on its devices."""
    return _rank_parameters(part, layout.tp, layout.experts.ep, layout.experts.etp)


@lru_cache(maxsize=4096)
def _rank_parameters(part: Sublayer, tp: int, ep: int, etp: int) -> tuple[int, int]:
    """The numbers that `rank_parameters` returns; kept, since searches ask again."""
    if not isinstance(part, Experts):
        return part.parameter_count(part.degree(tp)), 0
    routed = sum(prod(parameter.shard_shape(etp, 0)) // ep for parameter in part.parameters() if parameter.routed)
    return sum(prod(parameter.shard_shape(tp, 0)) for parameter in part.parameters() if not parameter.routed), routed


def routed_parameters(units: Iterable[Unit], layout: RunLayout) -> int:
    """The number of parameters of routed experts that one rank holds of some units. layout: how the run is laid out on its
    devices."""
    return sum(rank_parameters(unit.sublayer, layout)[1] for unit in units)


def buckets_of(parameters: float, layout: RunLayout) -> float:
    """The number of buckets, as a fraction, in which a device's parameters are reduced and gathered. Buckets have the size that
    the framework states, or else that of Megatron-Core's: a million parameters for each data-parallel rank, so that latency is
    a small part, and at least BUCKET.
    parameters: the number of the device's parameters. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework.
    """
    if layout.framework.bucket_bytes:
        return parameters * DTYPE_BYTES[layout.base] / layout.framework.bucket_bytes
    return parameters / max(BUCKET, BUCKET_OF_A_RANK * layout.dp * layout.cp)


def gathered_bytes(layout: RunLayout, layered: bool = True) -> float:
    """Bytes of a parameter where data-parallel ranks gather parameters: those of the model's dtype, or of the products' recipe
    if the framework gathers in few bits. Megatron-Core's `--fp8-param-gather` gathers in 8 bits where a scale factor is of a
    whole tensor; with factors of blocks it gathers in the model's dtype, and casts then (`reuse_grad_buf_for_mxfp8_param_ag`).
    So does FSDP2 with float8 (`enable_fsdp_float8_all_gather` needs the recipe of whole tensors).

    layered: whether the parameter is of a transformer layer; others are never in few bits. layout: how the run is laid out on
    its devices: degrees, batch, precision and framework.
    """
    recipe = layout.recipe
    if layered and recipe is not None and not recipe.block and layout.framework.shards_in_bits:
        return recipe.operand_bytes
    return DTYPE_BYTES[layout.base]


def states_exchange_ns(
    parameters: float, ranks: int, stride: int, sharing: int, layout: RunLayout, links: Links
) -> tuple[float, float]:
    """Two times in ns: to reduce the gradients of some parameters over the ranks that hold them, and to gather them after the
    optimizer's step.

    parameters: their number on one rank. ranks, stride: the number of ranks that hold the same, and the distance of their
    numbers. sharing: of these, the number that share one copy of the states. layout: how the run is laid out on its devices.
    links: bandwidths and latencies of a device's links.
    """
    size, numbers = parameters * layout.framework.gradient_bytes, parameters * gathered_bytes(layout)
    times, gather = max(1.0, buckets_of(parameters, layout)), 0.0
    if layout.zero:
        gather = links.collective_ns(1, numbers, sharing, stride, times) + sharing * layout.framework.broadcast_ns
    if layout.sums_gradients:
        return links.collective_ns(2, size, ranks, stride, times), gather
    reduce = links.collective_ns(1, size, sharing, stride, times)
    return reduce + links.collective_ns(2, size / sharing, ranks // sharing, stride * sharing, times), gather


def block_exchange_ns(
    parameters: int, routed: int, layout: RunLayout, links: Links, layered: bool
) -> tuple[float, float, float]:
    """Three times in ns for a block under fully sharded data parallelism: to gather its parameters, to reduce its gradients
    over the ranks that share them, and to sum these over copies.

    parameters: the number of the block's parameters on one rank. routed: of these, the number that is of routed experts.
    layered: whether the block is a transformer layer. layout: how the run is laid out on its devices. links: bandwidths and
    latencies of a device's links.
    """
    parts = [(parameters - routed, layout.sharing, layout.copies, layout.tp)]
    if routed:
        stride = layout.experts.ep * layout.experts.etp
        parts.append((routed, layout.expert_sharing, layout.edp // layout.expert_sharing, stride))
    gather = reduce = copied = 0.0
    for count, sharing, copies, stride in parts:
        gather += links.collective_ns(1, count * gathered_bytes(layout, layered), sharing, stride)
        size = 0 if layout.frozen else count * layout.framework.gradient_bytes
        reduce += links.collective_ns(1, size, sharing, stride)
        copied += links.collective_ns(2, size / sharing, copies, stride * sharing)
    return gather, reduce, copied
