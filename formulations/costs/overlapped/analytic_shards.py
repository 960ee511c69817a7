"""Kernels and host's times with which frameworks move sharded states, beyond the collectives themselves.

- FSDP2 (`torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`, torch 2.6) copies gathered parameters out of the buffer of
  their all-gather (`foreach_all_gather_copy_out`), and gradients, in the dtype in which they are reduced, into that of their
  reduce-scatter (`chunk_cat` in `foreach_reduce`): both on the stream of the passes.
- In pipelines, torchtitan keeps parameters whole after they were gathered (`reshard_after_forward` is `not pp_enabled` in
  `apply_fsdp`), so that the first forward pass of each stage waits for its all-gathers, one stage after the other. Gradients
  are reduced after a stage's last backward pass (`backward_maybe_with_nosync` of `torch/distributed/pipelining/stage.py`, since
  torch 2.5), until then added to sums in fp32.
- nanotron (0.4, 0.5) adds gradients to sums in fp32 in kernels of their own (`fp32_accum_hook` of
  `optim/gradient_accumulator.py`). After the step, it gathers slices of every tensor (`_all_gather_params` of `optim/zero.py`),
  which `all_gather_coalesced` of `distributed.py` lays out in a buffer for each rank and copies back one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainplan.formulations.costs.overlapped.analytic_fsdp import Block, first_forward_ns
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Unit
from trainplan.profiling.models.sublayers import LAYER_KINDS


def touched_ns(touched_bytes: float, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns of kernels that read and write `touched_bytes` bytes of a device's memory. layout: how the run is laid out
    on its devices: degrees, batch, precision and framework. kind: the kind of device."""
    reached = kind.reached("memory", layout.base)
    return touched_bytes / (kind.memory_bytes_per_s * (reached.value if reached else 1.0)) * 1e9


def accumulated_ns(parameters: float, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns, in each micro-batch, of kernels that add gradients to their sums; 0 where the products of gradients add,
    where adapters alone are trained, and where each micro-batch's gradients are reduced at once.

    parameters: the number of parameters of the device's part. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework. kind: the kind of device.
    """
    if layout.frozen or (layout.zero >= 2 and layout.pp == 1):
        return 0.0
    return touched_ns(parameters * layout.framework.accumulated_bytes, layout, kind)


def copied_ns(parameters: float, layout: RunLayout, kind: DeviceKind) -> tuple[float, float]:
    """The times in ns of the copies of a block's parameters and gradients that its forward and its backward pass wait for in
    one micro-batch; 0 where the framework copies neither. parameters: the number of the block's parameters. layout: how the run
    is laid out on its devices: degrees, batch, precision and framework. kind: the kind of device.
    """
    if not layout.framework.copies_gathered or layout.sharing == 1:
        return 0.0, 0.0
    element = DTYPE_BYTES[layout.base]
    out = touched_ns(2 * parameters * element, layout, kind)
    reduced = 0 if layout.frozen else element + layout.framework.gradient_bytes
    return out, out * (layout.zero == 3) + touched_ns(parameters * reduced, layout, kind)


def tensors_of(units: Iterable[Unit]) -> int:
    """The number of parameter tensors of units as frameworks hold them whose products of one input share a matrix: two matrices
    and a norm of each sub-layer of a layer, the table of the embedding, and the norm and matrix of the head."""
    return sum(3 if unit.kind in LAYER_KINDS else 1 + (unit.kind == "head") for unit in units)


def sliced_ns(tensors: int, parameters: float, layout: RunLayout, kind: DeviceKind) -> float:
    """The time in ns, after the optimizer's step, to gather parameters as slices of tensors, beyond their collective; 0 where
    they are gathered in one piece.

    tensors: the number of tensors of the device. parameters: the number of their elements. layout: how the run is laid out on
    its devices: degrees, batch, precision and framework. kind: the kind of device.
    """
    if layout.zero != 1 or layout.sharing == 1:
        return 0.0
    slices = tensors * layout.sharing * layout.framework.slice_ns
    return slices + touched_ns(parameters * layout.framework.gathered_bytes, layout, kind)


def whole_stages_ns(stages: Sequence[Sequence[Block]], devices: int) -> tuple[float, tuple[float, ...]]:
    """The times in ns that sharded states add to a pipeline whose parameters stay whole: of all first forward passes together,
    beyond the passes themselves, and for each device of the reductions after its last backward pass.

    stages: the blocks of each stage, in pipeline order; stage s is on device s modulo `devices`, the number of devices.
    """
    gathers = sum(first_forward_ns(blocks) - sum(block.forward_ns for block in blocks) for blocks in stages)
    reductions = tuple(
        sum(block.reduce_ns + block.copies_ns for blocks in stages[device::devices] for block in blocks)
        for device in range(devices)
    )
    return gathers, reductions
