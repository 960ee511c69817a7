"""Memory that each training framework holds in its own way, beyond what fused kernels and ZeRO's stages need, with the place
in its code.

- Megatron-Core (core 0.12 to 0.16), the default: gathers inputs of products again in the backward pass (`backward` of
  `LinearWithGradAccumulationAndAsyncCommunication`), has one kernel for SwiGLU (`fusions/fused_bias_swiglu.py`), and sums
  gradients in place (`main_grad`). With `--defer-embedding-wgrad-compute` the last pipeline rank keeps inputs and gradients of
  the head's product of all micro-batches (`drain_embedding_wgrad_compute`). Its functional tests drop hidden states of any
  model (`--hidden-dropout`, by default 0.1).
- nanotron (v0.5, `src/nanotron`): inputs of products split by columns are kept as gathered (`parallel/tensor_parallel/
  functional.py`; `tp_recompute_allgather` came later). SiLU's result is kept next to its product with the gate
  (`GLUActivation` of `models/llama.py`). On their way to attention, queries, keys and values are copied (`forward` of
  `CausalSelfAttention`: by heads, then keys joined with values), and its measured peaks are those of keeping these copies,
  though no kernel's backward pass needs them. Each backward pass makes gradients in the model's dtype, which are then added to
  their sums in fp32 (`FP32GradientAccumulator`); without ZeRO, DistributedDataParallel has buckets for them. The loss holds
  fp32 logits twice (`forward` of `_ShardedCrossEntropy`).
- torchtitan (2024-12, f6a9daa): blocks that pipelines use are not resharded after their forward pass (`apply_fsdp`:
  `reshard_after_forward = False` with pipelines), and gradients are summed whole, in `reduce_dtype`, until the last micro-batch
  (`to_accumulated_grad_if_needed` of FSDP2). `PrepareModuleInput` gathers the inputs of attention and network once for all
  their products, which keep them and each make a gradient of them. torch's `PipelineStage` allocates a buffer for each message
  of a step (`_prepare_forward_infra`, `_create_grad_recv_info`) and keeps logits (`output_chunks`) until
  `clear_runtime_states`. Until 2025 the loss was not compiled (`train.py`: `turning off for now`); over tensor-parallel ranks
  it is that of `loss_parallel` (`_nll_loss_and_log_softmax_backward`). torchao's `Float8Linear` keeps its operands in the
  model's dtype and casts them again (`matmul_with_hp_or_float8_args`). It reports what its allocator has reserved
  (`max_reserved` of `metrics.py`), not what is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FrameworkMemory:
    """Memory that a training framework holds beyond what fused kernels and ZeRO's stages need.

    Attributes:
        keeps_gathered: whether inputs of products that are split by columns stay gathered over tensor-parallel ranks until
            their backward pass, where these ranks split tokens.
        keeps_activation: whether a gated network keeps its activation's result next to the product with the gate.
        copies_heads: whether an attention keeps queries, keys and values by heads, and keys joined with values, in addition to
            what its core keeps.
        half_gradients: whether a backward pass makes whole gradients in the model's dtype that are added to their sums
            afterwards.
        whole_in_pipelines: whether, under ZeRO stage 3 in pipelines, parameters, and sums of gradients, stay whole for the
            whole step.
        holds_messages: whether a pipeline allocates buffers for the messages of all micro-batches of a step, keeps the
            gradients of what it received, and on its last rank the logits, until the step's end.
        wide_operands: whether products in few bits keep their operands in the model's dtype.
        drops_hidden: whether hidden states are dropped even where the model's configuration has no dropout.
        defers_head: whether the last rank of a pipeline computes the gradients of the head's weights after its last
            micro-batch.
        peak_error: the relative standard error of predicted peaks, on runs of sources that nothing was fitted to; None if no
            run of the framework states its peak.
        fragmented: what the allocator reserves at the peak beyond what is allocated, as a share of that, where the framework
            prints what is reserved.
    """

    keeps_gathered: bool = False
    keeps_activation: bool = False
    copies_heads: bool = False
    half_gradients: bool = False
    whole_in_pipelines: bool = False
    holds_messages: bool = False
    wide_operands: bool = False
    drops_hidden: bool = False
    defers_head: bool = False
    fragmented: float = 0.0
    peak_error: float | None = None


# Of torchtitan: FSDP's collectives run on streams of their own, whose blocks the allocator gives to no other stream. Fitted to
# 10 peaks: 10 to 15 % where any one job is left out.
FRAGMENTED = 0.12

# Predicted peaks are off by 4 % (38 runs of Megatron-Core), 7 % (13 of nanotron) and 6 % (10 of torchtitan) in the root of the
# mean square; a little more is assumed of runs that were not seen.
MEGATRON_ERROR, NANOTRON_ERROR, TORCHTITAN_ERROR = 0.05, 0.08, 0.08
OTHER_ERROR = 0.1  # of frameworks whose runs state no peaks, assumed

MEGATRON_MEMORY = FrameworkMemory()
NANOTRON_MEMORY = FrameworkMemory(
    keeps_gathered=True, keeps_activation=True, copies_heads=True, half_gradients=True, peak_error=NANOTRON_ERROR
)
TORCHTITAN_MEMORY = FrameworkMemory(
    keeps_gathered=True,
    whole_in_pipelines=True,
    holds_messages=True,
    wide_operands=True,
    fragmented=FRAGMENTED,
    peak_error=TORCHTITAN_ERROR,
)
# Bytes for each logit at the peak of the loss: in nanotron logits in fp32, and these less their maximum; in torch's loss that
# is not compiled log-softmax and its two gradients in fp32; where tensor-parallel ranks share the vocabulary, log-softmax, the
# gradient of the targets, exponentials and their sum.
NANOTRON_LOGIT_BYTES, UNCOMPILED_LOGIT_BYTES, SHARED_LOGIT_BYTES = 8, 12, 16
