"""Arguments of Megatron-LM that affect the model, parallelism, memory or precision and that no plan has.

An argument is refused if the run would have another model or another memory than the plan; it is noted if the difference is
small, or in time only. Names, choices and defaults as of `megatron/training/arguments.py` and of the classes that it derives
arguments from (core 0.16, 2026); those of DeepSpeed's activation checkpointing as of Megatron-DeepSpeed (2024).
"""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.execution.runtimes.megatron.experts import refuse_experts
from trainplan.profiling.base.errors import shown

DENSE_ONLY = "plans have dense models"
NONE, OFF, WIDE = ("none",), ("false",), ("fp32", "float32")
ALIKE = "plans have layers all alike"
WHOLE_STATES = "plans have states of the optimizer in float32"
# Values that plans have, and why no others.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "--outer-dp-sharding-strategy": (("no_shard",), "plans shard within one group alone"),
    "--expert-model-parallel-size": (("1",), "the run has no experts (--num-experts)"),
    "--encoder-num-layers": (("0",), DENSE_ONLY),
    "--mtp-num-layers": (("0",), DENSE_ONLY),
    "--multi-latent-attention": (OFF, "the plan's programs have no such thing"),
    "--cpu-offloading": (OFF, "the plan's programs have no such thing"),
    "--optimizer-cpu-offload": (OFF, "the plan's programs have no such thing"),
    "--heterogeneous-layers-config-path": (NONE, ALIKE),
    "--heterogeneous-layers-config-encoded-json": (NONE, ALIKE),
    "--yaml-cfg": (NONE, "a plan is of the arguments of the command, where what it says belongs"),
    "--use-mp-args-from-checkpoint-args": (OFF, "give the sizes of tensor and pipeline parallelism as arguments"),
    "--fp32-residual-connection": (OFF, "plans keep the residual stream in the model's dtype"),
    "--embedding-weights-in-fp32": (OFF, "plans have all weights in the model's dtype"),
    "--fp16-lm-cross-entropy": (OFF, "plans have the loss in float32"),
    "--checkpoint-in-cpu": (OFF, "plans keep activations on the device"),
    "--exp-avg-dtype": (WIDE, WHOLE_STATES),
    "--exp-avg-sq-dtype": (WIDE, WHOLE_STATES),
    "--main-params-dtype": (WIDE, WHOLE_STATES),
    "--main-grads-dtype": (WIDE, "with --use-precision-aware-optimizer plans sum gradients in float32"),
    "--megatron-fsdp-main-params-dtype": (WIDE, WHOLE_STATES),
    "--muon-scalar-optimizer": (("adam",), "plans step by AdamW what Muon does not"),
    "--te-precision-config-file": (NONE, "plans have layers all of one precision"),
    "--kitchen-config-file": (NONE, "plans have no such matrix multiplications"),
    "--kitchen-recipe-number": (NONE, "plans have no such matrix multiplications"),
    "--use-kitchen": (OFF, "plans have no such matrix multiplications"),
    "--quant-recipe": (NONE, "plans have no such matrix multiplications"),
    "--enable-autocast": (OFF, "plans have weights in the dtype of matrix multiplications"),
    "--mlp-chunks-for-training": (("1",), "plans pass feed-forward networks in one piece"),
    "--enable-mhc-connections": (OFF, "plans have one residual stream"),
    "--quick-geglu": (OFF, "plans have SwiGLU, or one matrix multiplication before the activation"),
    "--logits-load-dir": (NONE, "plans have no distillation"),
    "--logits-save-dir": (NONE, "plans have no distillation"),
    "--data-efficiency-curriculum-learning": (OFF, "plans have samples of one length"),
    "--decrease-batch-size-if-needed": (OFF, "a plan is of one batch size"),
}
# With more than one tensor-parallel rank: what is kept for recomputation is dealt to them.
DEALT = ("--distribute-saved-activations", "--distribute-checkpointed-activations", "--partition-activations")
# Arguments that stand alone, what they do, and what the plan has instead.
NOTED = {
    "--use-precision-aware-optimizer": "float32 copies without the bits that weights have: the plan's are whole; it has more "
    "memory",
    "--fsdp-double-buffer": "gathered parameters in two buffers that stay: the plan frees them; it has less memory",
    "--defer-embedding-wgrad-compute": "gradients of the head's weights after the passes, inputs kept till then: the plan has "
    "them at once; it has less memory",
    "--delay-wgrad-compute": "gradients of weights after those of activations: the plan has them together; it has less memory",
    "--no-bias-swiglu-fusion": "SwiGLU by several kernels: the plan has one; it has less memory and less time",
    "--no-bias-gelu-fusion": "biases and GELU by several kernels: the plan has one; it has less memory and less time",
    "--no-gradient-accumulation-fusion": "gradients of weights added up by kernels of their own: the plan has that in the "
    "products; it has less memory and less time",
    "--no-fp8-wgrad": "gradients of weights in more than 8 bits: the plan has them in 8; it has less time",
    "--reset-attention-mask": "attention within documents: the plan has it over whole samples; it has more time",
    "--enable-cuda-graph": "captured graphs, which hold memory of their own: the plan has none; it has less memory",
    "--external-cuda-graph": "captured graphs, which hold memory of their own: the plan has none; it has less memory",
    "--keep-fp8-transpose-cache": "transposed weights in 8 bits that stay: the plan frees them; it has less memory",
    "--use-checkpoint-args": "arguments of a checkpoint, which go before those given: the plan has those given",
}
# The same where there are several tensor-parallel ranks.
TENSOR_NOTED = {
    "--no-async-tensor-model-parallel-allreduce": "tensor-parallel collectives before the matrix multiplications that could "
    "hide them: the plan has them alongside; it has less time",
}
# The same with Megatron's FSDP, which buffers that are registered with NCCL make it keep (`nccl_ub`).
REGISTERED = (
    "gathered parameters in two buffers that are registered with NCCL, and stay: the plan frees them; it has less memory"
)
FSDP_NOTED = dict.fromkeys(("--use-nccl-ub", "--nccl-ub"), REGISTERED)
FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
GPT_SPEC = "megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_with_transformer_engine_spec"


def refuse(keys: KeyReader, devices: int | None = None) -> None:
    """Check that no argument of Megatron-LM asks for a feature that plans do not have, such as a mixture of experts. devices:
    number of devices that the launcher starts, if known. keys: gives the values of the file's keys, and records which keys have
    been read. Raises InputError for the first that does; for a mixture of experts, with all that was read of it."""
    refuse_experts(keys, devices)
    for key in keys.values:
        if key.startswith("--moe-"):
            keys.get(key)  # of a model without experts: it bears on nothing
    if keys.flag("--use-bnb-optimizer"):
        raise keys.error(
            "--use-bnb-optimizer", "is given: Adam with states of 8 bits", "leave it out: plans have AdamW or Muon"
        )
    for key, (neutral, why) in REFUSED.items():
        if neutral is OFF and key in keys.values and key not in keys.ignored and keys.flag(key):
            raise keys.error(key, "is given", f"leave it out: {why}")
        keys.refuse(key, neutral, why)
    _refuse_spec(keys)
    if keys.flag("--fp16") and keys.flag("--bf16"):
        raise keys.error("--bf16", "is given, and --fp16", "give one of the two")


def refuse_mapping(keys: KeyReader, tp: int, pp: int, chunks: int) -> None:
    """Check arguments of Megatron-LM that contradict plans only with certain degrees of parallelism. tp, pp: numbers of tensor-
    and pipeline-parallel ranks. chunks: pipeline stages per rank. keys: gives the values of the file's keys, and records which
    keys have been read. Raises InputError for the first that does."""
    for key in DEALT:
        if key in keys.values and keys.flag(key) and tp > 1:
            fix = "leave it out, or give --sequence-parallel: plans keep the inputs of layers whole on each rank"
            raise keys.error(key, "is given", fix)
    mapping = "--use-tp-pp-dp-mapping"
    if mapping in keys.values and keys.flag(mapping) and pp > 1:
        raise keys.error(mapping, "is given", "leave it out: plans number data-parallel ranks before pipeline stages")
    for name in ("--microbatch-group-size-per-virtual-pipeline-stage", "--microbatch-group-size-per-vp-stage"):
        group = keys.whole(name)
        if group is not None and chunks > 1 and group != pp:
            raise keys.error(name, f"is {group}", f"give {pp}, the pipeline's size: plans pass as many in turn")


def small_differences(keys: KeyReader, tp: int) -> list[str]:
    """Lines on arguments of Megatron-LM by which the run differs slightly from the plan. tp: number of tensor-parallel ranks,
    since some arguments matter only with several. keys: gives the values of the file's keys, and records which keys have been
    read."""
    every = NOTED | TENSOR_NOTED | FSDP_NOTED
    given = {key: text for key, text in every.items() if key in keys.values and keys.flag(key)}
    sharded = any(keys.flag(name) for name in FSDP)
    less = {*(() if tp > 1 else TENSOR_NOTED), *(() if sharded else FSDP_NOTED)}
    return [f"{text} ({key})" for key, text in given.items() if key not in less]


def _refuse_spec(keys: KeyReader) -> None:
    """Check that `--spec` names no other layers than those of Megatron Core's GPT model, unless a layer pattern describes the
    layers. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError if it does."""
    spec = str(keys.get("--spec") or "")
    if spec not in ("", GPT_SPEC) and keys.get("--hybrid-layer-pattern") is None:
        fix = "leave it out: plans have the layers that the other arguments describe"
        raise keys.error("--spec", f"is {shown(spec)}, whose layers are not known", fix)
