"""Run configurations from Megatron-LM's resolved arguments, which its log prints between two marked lines
(`megatron/training/arguments.py`, `_print_args`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.execution.launch_files.logs.lines import bare, first, last, mapping_at, value_of
from trainplan.execution.launch_files.logs.text import ARGUMENTS, ARGUMENTS_END, ENGINE, mark
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.megatron import reader as megatron_reader
from trainplan.execution.runtimes.megatron.older_versions import engine_of_values
from trainplan.execution.runtimes.megatron.programs import refuse_others
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.families.fields import names

ARGUMENT = re.compile(r"(?:^|\s)(\w+) \.{2,} ?(.*)$|^\s*(\w{40,})  ?\.? ?([^\s.].*)$")
NEOX = re.compile(r"\.{3,}(?:default|updated)$|\}(?:default|updated)$")
PADDED = mark("padded vocab", r"padded vocab \(size: (\d+)\).*\(new size: (\d+)\)")
CUT = "give the log from the start of the run to its first step, or what starts the run"
BUILT = mark("building ", r"^\W*(?:\w+\W+)?building (\w+) model \.\.\.")
# Names of Megatron-LM's arguments that its log has under another name.
RENAMED = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "fp8_param": "--fp8-param-gather",
    "layernorm_epsilon": "--norm-epsilon",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
}
# Printed as what they say, given as what they deny.
NEGATED = {
    "add_bias_linear": "--disable-bias-linear",
    "use_bias": "--disable-bias-linear",  # of epfLLM's, as is the next
    "tie_embed_logits": "--untie-embeddings-and-output-weights",
    "torch_fsdp2_reshard_after_forward": "--torch-fsdp2-no-reshard-after-forward",
}
MEMBER = re.compile(r"[A-Z]\w*\.(\w+)$")  # of an enumeration
POSITIONS = {  # of 2022 and 2023
    "PositionEmbeddingType.absolute": "learned_absolute",
    "PositionEmbeddingType.rotary": "rope",
}
DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
# Arguments that bear on nothing while what they belong to is off, by the start of their names: printed all the same.
SWITCHED = {
    "num_experts": ("moe_", "expert_", "num_moe_", "inference_moe_"),
    "multi_latent_attention": (
        "q_lora_",
        "kv_lora_",
        "qk_head_dim",
        "qk_pos_emb_",
        "v_head_dim",
        "rotary_scaling_",
        "mscale",
        "mla_",
    ),
    "use_megatron_fsdp": ("megatron_fsdp_", "fsdp_", "data_parallel_sharding_", "outer_dp_sharding_", "init_model_with_meta_"),
    "use_torch_fsdp2": ("torch_fsdp2_",),
    "optimizer_cpu_offload": ("optimizer_offload_", "use_torch_optimizer_for_cpu_", "overlap_cpu_optimizer_", "pin_cpu_"),
    "cpu_offloading": ("cpu_offloading_",),
    "fine_grained_activation_offloading": ("offload_modules", "activation_offload_", "delta_offload_", "min_offloaded_"),
    "mtp_num_layers": ("mtp_",),
    "enable_cuda_graph": ("cuda_graph_",),
    "first_last_layers_bf16": ("num_layers_at_",),
    "retro_add_retriever": ("retro_",),
    "enable_mhc_connections": ("mhc_",),
    "use_mup": ("mup_",),
    "use_rope_scaling": ("rope_scaling_",),
    "deepspeed": ("deepspeed_", "zero_", "ds_"),
    "linear_attention_freq": ("linear_",),
    "use_precision_aware_optimizer": ("main_grads_dtype", "main_params_dtype", "exp_avg_"),
}
# Of models that are no decoders of text, of checkpoints, of what is printed, of inference: of no bearing on a training step.
ELSEWHERE = tuple(
    names(
        """
        bert_ biencoder_ block_data_ data_sharding adlr_ async_ckpt_ async_strategy data_per_class_ dist_ckpt_
        enable_one_logger error_injection_ exit_ ft_ head_lr_mult lion_ mlp_chunks_for_prefill null_tokenizer_ short_seq_prob
        strict_fsdp_ use_gloo_ wgrad_deferral_ ckpt_ classes_fraction dataloader_ dino_ dsa_ eval_ encoder_seq_length
        fault_ fim_ gdp_ grpo_ gtp_ ict_ img_ indexer_ inference_ inprocess_ kitchen_attention_ langrl_ log_
        logits_load_decode_ logits_load_ignore_ logits_load_kd_ logits_load_msc_
        logits_load_prefetch_ logits_save_dtype logits_save_top_ lr_
        mamba_ mask_ non_persistent_ patch_dim perform_rl_ qk_clip_ relative_attention_ retriever_ rl_ save_
        straggler_ swin_ tensorboard_ tokenizer_ use_checkpoint_ use_tokenizer_ vision_ wandb_ yarn_ one_logger_
        flight_recorder_ data_parallel_random_ data_parallel_size transformer_pipeline_model_parallel_size num_channels
        num_classes query_in_block_ params_dtype use_contiguous_ scatter_gather_ bias_ masked_softmax_
        gradient_accumulation_fusion gradient_reduce_div_ async_tensor_ barrier_ align_ overlap_p2p_ tp_comm_bulk_
        tp_comm_split_ tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_bootstrap_ apply_rope_fusion create_attention_mask_
        fp8_wgrad consumed_ skipped_ padded_vocab_size pad_vocab_size add_position_embedding
        standalone_embedding_ _is_ tensor_parallel_num_weight_shards local_rank world_size rank use_layer_wise_
        max_seqlen_per_ use_cpu_initialization use_mamba_ app_tag_ batch_invariant_backend
        vocab_extra_ids glu_linear_ softmax_type sft_ decrease_batch_ num_speculative_
        hybrid_attention_ratio hybrid_mlp_ratio offset_sampling_ sample_rate replication_ refit_ result_ profile_
        use_dist_ckpt
        """
    )
)


def printed_at(lines: Sequence[str], where: str) -> tuple[int, int] | None:
    """The indices of the two lines of a log between which Megatron-LM last printed its arguments; None if it printed none.
    where: the log, for errors. Raises InputError if the beginning or the end is cut off."""
    begins, ends = ([n for n, line in enumerate(lines) if mark.part in line and mark.pattern.search(line)]
                    for mark in (ARGUMENTS, ARGUMENTS_END))  # fmt: skip
    if not begins and not ends:
        return None
    if not begins or len([end for end in ends if end > begins[-1]]) > 1:
        raise InputError(f"{where}:{ends[-1] + 1}", "", "has the end of arguments without their beginning", CUT)
    if not ends or begins[-1] > ends[-1]:
        raise InputError(f"{where}:{begins[-1] + 1}", "", "has arguments that do not end", CUT)
    return begins[-1], ends[-1]


def of_megatron(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration of the arguments that Megatron-LM last printed in a log; None if it printed none. lines: the log.
    For Megatron-DeepSpeed, DeepSpeed's own configuration in the log is read, too. where: the file, for errors. user: the
    settings that the user gives in addition to the file. Raises InputError for logs of GPT-NeoX, whose names mean other things.
    """
    if (around := printed_at(lines, where)) is None:
        return None
    begin, end = around
    if any(NEOX.search(line.rstrip()) for line in lines[begin + 1 : end]):
        fix = "give arguments of Megatron-LM by --command, of the same sizes"
        raise InputError(f"{where}:{begin + 1}", "", "is a log of GPT-NeoX, whose configuration is not read", fix)
    printed: dict[str, tuple[Any, str]] = {}
    for number in range(begin + 1, end):
        match = ARGUMENT.search(bare(lines[number])) or ARGUMENT.search(lines[number])
        if match:
            printed[match[1] or match[3]] = (value_of(match[2] if match[1] else match[4]), f"{where}:{number + 1}")
    data, at = None, where
    if printed.get("deepspeed", (None, ""))[0] is True and (found := last(ENGINE, lines)) is not None:
        data, at = mapping_at(lines, found[0], found[1][1]), f"{where}:{found[0] + 1}"
        if data is None:
            raise InputError(at, "", "has a configuration that does not end", CUT)
    if (built := first(BUILT, lines, end)) is not None and not built[1][1].upper().startswith("GPT"):
        problem = f"is a run of {built[1][1]}, and plans are of decoders of text"
        raise InputError(f"{where}:{built[0] + 1}", "", problem, "give the log of one")
    padded = first(PADDED, lines, end)
    if padded is not None:  # what the tool makes of the vocabulary after its arguments
        printed["padded_vocab_size"] = int(padded[1][2]), f"{where}:{padded[0] + 1}"
    return of_printed(printed, where, user, data, at)


def of_printed(
    printed: Mapping[str, tuple[Any, str]],
    where: str,
    user: UserSettings,
    engine: Mapping[str, Any] | None = None,
    at: str = "",
) -> RunConfiguration:
    """The run configuration of the arguments that Megatron-LM prints after it has resolved its defaults.

    printed: each argument's value and its source, by the name that Megatron-LM's code uses. engine: for Megatron-DeepSpeed,
    DeepSpeed's configuration as nested tables; None for other runs. at: the file and line at which that is printed. where: the
    file, for errors. user: the settings that the user gives in addition to the file. Raises InputError for a key or value that
    is invalid or that no plan can have.
    """
    values, sources = _arguments(printed)
    on = {"--" + name.replace("_", "-"): True for name, (value, _) in printed.items() if value is True}
    refuse_others("", {**on, **values}, where, {})
    size, line = printed.get("padded_vocab_size", (None, ""))
    if isinstance(size, int) and size > 0:
        values |= {"--vocab-size": str(size), "--make-vocab-size-divisible-by": "1"}
        values.pop("--tokenizer-type", None)
        sources["--vocab-size"] = sources["--make-vocab-size-divisible-by"] = line
    world = printed.get("world_size", (None, ""))[0]
    held = None if engine is None else engine_of_values(engine, at, user, values)
    return megatron_reader.of_values(values, where, user, world if isinstance(world, int) else None, sources, None, held)


def _arguments(printed: Mapping[str, tuple[Any, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Turn printed arguments into arguments as a command would give them, without those that are off: {"num_layers": (24,
    "log:7")} -> {"--num-layers": "24"}, {"--num-layers": "log:7"}. printed: each argument's value and its source, by the
    name that Megatron-LM's code uses. Returns the values and the sources, by argument."""
    off = tuple(
        start
        for switch, starts in SWITCHED.items()
        if printed.get(switch, (None, ""))[0] in (None, False, "none")
        for start in starts
    )
    values, sources = dict[str, Any](), dict[str, str]()
    if printed.get("use_rms_norm", (None, ""))[0] is True:
        printed = {**printed, "normalization": ("RMSNorm", printed["use_rms_norm"][1]), "use_rms_norm": (None, "")}
    if (groups := printed.get("num_attention_heads_kv", (None, "")))[0] is not None:
        printed = {
            **printed,
            "num_query_groups": groups,
            "group_query_attention": (True, groups[1]),
            "num_attention_heads_kv": (None, ""),
        }
    off += () if "muon" in str(printed.get("optimizer", ("", ""))[0]) else ("muon_",)
    layers = printed.get("num_layers", (None, ""))[0]
    taught = any(printed.get(name, (None, ""))[0] for name in ("mos", "kd"))  # by another model, of Megatron-DeepSpeed
    if printed.get("num_layers_per_virtual_pipeline_stage", (None, ""))[0] is not None:
        off = (*off, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    for name, (value, source) in printed.items():
        if name in NEGATED:
            key, value = NEGATED[name], not value
        elif name != "tokenizer_type" and (
            name.startswith((*off, *ELSEWHERE))
            or (name.endswith("_teacher") and not taught)
            or (name == "encoder_num_layers" and value == layers)
        ):
            continue
        else:
            key = RENAMED.get(name, "--" + name.replace("_", "-"))
        if value is None or value is False or value in ("", [], ()):
            continue
        sources[key] = source
        if isinstance(value, list):
            values[key] = " ".join(map(str, value))
        elif isinstance(value, tuple):
            values[key] = ",".join(map(str, value))
        else:
            text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
            if (member := MEMBER.match(text)) is not None:
                text = POSITIONS.get(text, member[1])
            values[key] = True if value is True else DTYPES.get(text, text)
    return values, sources
