"""Frameworks: the settings with which each decides time and memory of a step where a run or plan does not state them.

- Megatron-LM of 2022, by Korthikanti et al. (2022): unfused attention with dropout; all-reduces of the backward pass overlap
  with the gradients of weights.
- Megatron-Core, by the defaults of its arguments: vocabularies are padded to 128 for each tensor-parallel rank, gradients are
  in fp32, and messages of interleaved stages overlap with passes; reductions and gathering overlap by flags, with Muon (core
  0.16) neither does. Transformer Engine copies offloaded activations on a stream of their own (`analytic_offload`) and
  joins products and passes (`sublayer_time`).
- NeMo, by its recipes: distributed optimizer with both overlaps; tensor-parallel overlap with sequence parallelism; gradients
  in bf16.
- PyTorch FSDP (torchtitan, Composer): gathers one block in advance, and reduces gradients during the backward pass of the next
  block, in fp32 or in the parameters' dtype. Attention is that of torch's `scaled_dot_product_attention` or of the package
  flash-attn, both FlashAttention-2's kernels. DTensor keeps the tokens that tensor-parallel ranks gather for a product.
- torchtitan in addition: FSDP2, with its copies; in pipelines parameters stay whole, and gradients are reduced at their end
  (`analytic_shards`); context parallelism is torch's (`torch_rings`); by float8 per tensor, tokens are gathered in 8 bits
  (`Float8ColwiseParallel`, `PrepareFloat8ModuleInput` of `torchao/float8/float8_tensor_parallel.py`).
- nanotron (0.4 and 0.5): stages are cut by cost (`analytic_pipeline.costed_stages`); torch's DistributedDataParallel reduces
  buckets of 25 MB (its `bucket_cap_mb`) by an all-reduce or, with ZeRO-1, a reduce-scatter; updated parameters are gathered
  after the step (`analytic_shards`); the loss is made of several kernels on logits in fp32, 52 bytes of each
  (`cast_to_fp32` of `models/llama.py`, `_ShardedCrossEntropy` of `parallel/tensor_parallel/functional.py`). Queries, keys and
  values are of one product, and so are both up-projections.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.costs.overlapped.framework_memory import NANOTRON_LOGIT_BYTES, NANOTRON_MEMORY, TORCHTITAN_MEMORY
from trainplan.formulations.costs.overlapped.kernel_time import CONTENTION
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName

MEGATRON = Framework(
    "Megatron-Core",
    overlaps_messages=True,
    overlaps_tensor_backward=True,
    pads=128,
    logit_bytes=6,
    loss_passes=3.0,
    copies_alongside=True,
    joins_products=True,
    fuses_passes=True,
    gathers_in_bits=True,
    contention=CONTENTION,
)
# Its flags --overlap-grad-reduce and --overlap-param-gather set, as recipes have them.
OVERLAPPED = replace(MEGATRON, overlaps_gradients=True, overlaps_parameters=True)
# With Muon, Megatron-Core gathers updated parameters after its step (`LayerWiseDistributedOptimizer`, core 0.16, 2026).
MUON = replace(OVERLAPPED, overlaps_parameters=False)

MEGATRON_2022 = replace(
    MEGATRON,
    name="Megatron-LM of 2022",
    overlaps_messages=False,
    fused_attention=False,
    drops=True,
    copies_alongside=False,
)
# Of FlashAttention-2's kernels over cuDNN's, by architecture. On an H100, FlashAttention-3, about as fast as cuDNN's, takes a
# 1.5th to a 2.0th of their time forward, and a 1.5th to a 1.75th backward (Shah et al., 2024, section 4.1): in the middle, by
# the products of both passes, 0.60. On Blackwell, torchtitan and torch since 2.9 call cuDNN's (`_init_backend` of
# `models/attention.py`, `check_prefer_cudnn_attention` of `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`).
FLASH_2_RATES = {"hopper": 0.6}
ADDED_BYTES = 10  # of a gradient in bfloat16 that is read, and of its sum in fp32 that is read and written
SLICE_NS = 20_000  # the host's, for slicing, laying out and copying back a tensor's part of one rank in Python; fitted
LOCAL_BYTES = 64 * 2**20  # what Megatron-Core's own layers hold in addition to Transformer Engine's
# Host times of Megatron-LM's functional tests, whose layers are so small that the host's launches decide the step. With these
# two numbers the mean error over 20 of the tests is 10 %.
ISSUE_NS, TESTS_ENDS_NS = 2_600_000, 20_000_000
NEMO = replace(
    MEGATRON,
    name="NeMo",
    overlaps_gradients=True,
    overlaps_parameters=True,
    tensor_overlap=0.7,
    gradient_bytes=2,
    shards_in_bits=True,
)
# Transformer Engine's loss is read twice, written in place, then scaled (`common/triton/cross_entropy.py`), 5 passes where
# torch's takes 6.
TE_LOSS_PASSES = 5 / 6
# Megatron-Core's own fused loss: a copy in fp32, exponentials and their gradient in one compiled kernel.
FUSED_LOSS_PASSES, FUSED_LOGIT_BYTES = 1.5, 14
# By its performance recipes, which choose Transformer Engine's loss (`_benchmark_common` of `perf_recipes/_common.py`, August
# 2026); what a file of it says is in a run's words (`execution.runtimes.megatron_bridge.capabilities`).
BRIDGE = replace(NEMO, name="Megatron-Bridge", loss_passes=TE_LOSS_PASSES)
# Bytes for each logit in torch's loss: log-softmax and its two gradients in fp32 (tests/validation/test_trainers_memory.py).
FSDP = Framework(
    "PyTorch FSDP",
    overlaps_gradients=True,
    overlaps_parameters=True,
    memory_passes=2.0,
    logit_bytes=12,
    attention="flash-2",
    merges_rings=True,
    keeps_gathered=True,
    contention=CONTENTION,
)
COMPOSER = replace(FSDP, name="Composer", loss_passes=1.5, logit_bytes=4)  # with its fused cross-entropy
COMPILED = replace(FSDP, name="PyTorch FSDP, compiled", memory_passes=1.0, loss_passes=1.5, logit_bytes=8)
XLA = replace(COMPILED, attention="cudnn", merges_rings=False, keeps_gathered=False)
TORCHTITAN = replace(
    FSDP,
    name="PyTorch FSDP, torchtitan",
    copies_gathered=True,
    stays_whole=True,
    gathers_in_bits=True,
    gathers_blocks=False,
    accumulated_bytes=ADDED_BYTES,
    memory=TORCHTITAN_MEMORY,
)
TORCHTITAN_COMPILED = replace(
    TORCHTITAN, name="PyTorch FSDP, torchtitan compiled", memory_passes=1.0, loss_passes=1.5, logit_bytes=8
)
# Updated shards are broadcast by each rank in turn.
INTERNEVO = replace(
    FSDP,
    name="InternEvo",
    memory_passes=1.5,
    gradient_bytes=2,
    overlaps_parameters=False,
    broadcast_ns=3_000_000,
    logit_bytes=8,
    merges_rings=False,
    keeps_gathered=False,
)
# Gradients are summed and sent in the model's dtype (`get_data_types` of `runtime/engine.py`).
DEEPSPEED = replace(
    FSDP,
    name="DeepSpeed",
    memory_passes=1.5,
    gradient_bytes=2,
    shards_halves=True,
    composed=True,
    merges_rings=False,
    keeps_gathered=False,
)
NANOTRON = replace(
    OVERLAPPED,
    name="nanotron",
    copies_alongside=False,
    fuses_passes=False,
    gathers_in_bits=False,
    pads=1,
    overlaps_messages=False,
    overlaps_parameters=False,
    attention="flash-2",
    loss_passes=4.3,
    accumulated_bytes=ADDED_BYTES,
    bucket_bytes=25 * 2**20,
    costs_stages=True,
    slice_ns=SLICE_NS,
    gathered_bytes=12,
    logit_bytes=NANOTRON_LOGIT_BYTES,
    memory=NANOTRON_MEMORY,
)


def planned_framework(optimizer: OptimizerName, gradient_bytes: int) -> Framework:
    """The framework whose behaviour (overlap, padding, memory) trainplan assumes when it costs a plan that names no runtime:
    Megatron-Core with overlapped reduction of gradients and, except under Muon, overlapped gathering of parameters. The
    slowdown of kernels alongside the collectives of sharded states is the cluster's own, which the costs of its programs have.

    optimizer: the optimizer's name, such as `adamw`. gradient_bytes: bytes per gradient element, as the plan states.
    """
    return replace(MUON if OPTIMIZERS[optimizer].whole_matrices else OVERLAPPED, gradient_bytes=gradient_bytes, contention=0.0)
