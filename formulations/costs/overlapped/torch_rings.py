"""Time of torch's context parallelism beyond the attention's cores: merging the results of a ring's steps, and the gradients of
keys and values on their way.

Counted in `torch/distributed/tensor/experimental/_attention.py` of torch 2.6, with its defaults `convert_to_f32`,
`enable_load_balance` and the rotation by all-gather, for the rank that merges whole results (the last one):

- Forward (`_templated_ring_attention`, `_SDPAMerger`): each step's result is copied to fp32. All but the first are merged in
  three kernels, `out - block_out`, its product with a sigmoid, and the difference of `out` and this. The end is copied back.
  Keys and values are gathered whole, in parallel with the first step alone.
- Backward (`_templated_ring_attention_backward`): keys and values are gathered again. Each step adds the gradient of queries to
  a sum in fp32, and those of keys and values to sums that go around the ring in fp32, concatenated for it. They leave after a
  step's kernels, so that the last exchange is in parallel with nothing. FlashAttention-2's backward kernels
  (`dot_do_o` and `convert_dQ`) also clear and read a sum of the queries' gradients in fp32, and read results and their
  gradients, at every step.

Keys are repeated for each head of queries before (`repeat_kv` of torchtitan's models).
"""

from __future__ import annotations

from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import Operator, Sublayer, attention_of

FULL = 4  # bytes of a number in fp32


def merged_bytes(ranks: int, element_bytes: int) -> tuple[int, int]:
    """Bytes read and written beyond attention's cores for each number of queries that a rank has, in the forward and in the
    backward pass of a ring of `ranks` ranks. element_bytes: bytes of a number of the model's dtype."""
    copied = element_bytes + FULL
    concatenated = 2 * 2 * element_bytes  # of keys and values, read and written
    forward = (ranks + 1) * copied + (ranks - 1) * (8 * FULL + concatenated)
    keys = 2 * (2 * FULL + element_bytes + 2 * FULL)  # added to, and concatenated
    kernels = FULL + copied + 2 * element_bytes  # sums cleared and read, results and gradients read
    queries = 2 * FULL + element_bytes
    return forward, ranks * (queries + keys + kernels) + (ranks - 1) * concatenated


def merged_ring_ns(
    part: Sublayer, layout: RunLayout, kind: DeviceKind, around_ns: float, core_ns: float
) -> tuple[float, float]:
    """The time in ns that a ring of torch's context parallelism adds to the forward and to the backward pass of an attention.

    part: the attention. layout: how the run is laid out on its devices: degrees, batch, precision and framework. kind: the
    kind of device. around_ns: the time to send all keys and values around in the model's dtype. core_ns: the attention's core
    in the forward pass.
    """
    attention = attention_of(part)
    assert attention is not None
    element_bytes, ranks = DTYPE_BYTES[layout.base], layout.cp
    numbers = layout.micro * -(-attention.tokens // ranks) * attention.heads // layout.tp * attention.width
    forward, backward = (
        operator_ns(Operator(touched_bytes=numbers * size), kind, layout.base, element_bytes)
        for size in merged_bytes(ranks, element_bytes)
    )
    last = around_ns * FULL / element_bytes / (ranks - 1)
    step = core_ns / ranks
    return forward + max(0.0, around_ns - step), backward + max(0.0, around_ns - 2.5 * step) + last
