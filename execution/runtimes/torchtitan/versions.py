"""Translation of torchtitan's keys of other versions to those of 0.2; and torchtitan's models by name and flavour.

From the history of `torchtitan/config_manager.py` (April 2024 to July 2025), of `torchtitan/config/job_config.py` (to February
2026) and, before these, of `train_configs` (February to April 2024):

- degrees stood in [training] and [experimental] until 18 March 2025, when [parallelism] came;
- data_parallel_degree (of FSDP, or of DDP by data_parallel_type) became replicate and shard degrees on 10 September 2024;
- sequence_parallel_degree was renamed tensor_parallel_degree on 25 March 2024;
- a pipeline had as many micro-batches as stages (pipeline_parallel_microbatches) until 7 April 2025, then micro-batches of
pipeline_parallel_microbatch_size samples; and layers were divided into stages without a weight of embedding and head until
15 April 2025;
- 8 bits were fp8_linear, enable_fp8_linear, enable_float8_linear and, from 15 February 2025 on, a converter;
- batch_size became local_batch_size on 5 June 2025, training.compile compile.enable on 20 August 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.shipped import shipped

# Keys of earlier versions by today's key.
EARLIER: dict[str, tuple[str, ...]] = {
    "parallelism.tensor_parallel_degree": ("training.tensor_parallel_degree", "training.sequence_parallel_degree"),
    "parallelism.pipeline_parallel_degree": ("experimental.pipeline_parallel_degree", "training.pipeline_parallel_degree"),
    "parallelism.data_parallel_replicate_degree": ("training.data_parallel_replicate_degree",),
    "parallelism.data_parallel_shard_degree": ("training.data_parallel_shard_degree",),
    "parallelism.context_parallel_degree": ("experimental.context_parallel_degree",),
    "parallelism.disable_loss_parallel": ("training.disable_loss_parallel",),
    "parallelism.fsdp_reshard_after_forward": ("training.fsdp_reshard_after_forward",),
    "training.local_batch_size": ("training.batch_size",),
    "compile.enable": ("training.compile",),
    **{
        f"parallelism.{name}": (f"experimental.{name}",)
        for name in (
            "pipeline_parallel_split_points",
            "pipeline_parallel_schedule",
            "pipeline_parallel_schedule_csv",
            "pipeline_parallel_microbatches",
            "context_parallel_rotate_method",
            "enable_async_tensor_parallel",
            "enable_compiled_autograd",
        )
    },
    **{
        f"quantize.linear.{kind}.{name}": (f"quantize.dense.{kind}.{name}", f"{kind}.{name}", *more)
        for kind, name, *more in (
            ("float8", "recipe_name"),
            ("float8", "filter_fqns"),
            ("float8", "emulate"),
            ("float8", "precompute_float8_dynamic_scale_for_fsdp", "training.precompute_float8_dynamic_scale_for_fsdp"),
            (
                "float8",
                "enable_fsdp_float8_all_gather",
                "training.enable_fsdp_float8_all_gather",
                "training.enable_fsdp_fp8_all_gather",
            ),
            ("mx", "recipe_name"),
            ("mx", "filter_fqns"),
            ("mx", "mxfp8_dim1_cast_kernel_choice"),
        )
    },
}
EIGHT_BITS = (
    "float8.enable_float8_linear",
    "training.enable_float8_linear",
    "training.enable_fp8_linear",
    "training.fp8_linear",
)
SCALINGS = ("scaling_type_input", "scaling_type_weight", "scaling_type_grad_output")
# Sections of degrees in versions before [parallelism].
BEFORE = ("training.", "experimental.")
# Keys of versions before April 2024 only, whose code decided what is recomputed.
FIRST = ("training.sequence_parallel_degree", "training.enable_selective_ac", "training.checkpoint_interval")
# Months before which versions had keys, by what they were.
UNTIL = (
    ("April 2024", FIRST),
    ("September 2024", ("training.data_parallel_degree", "training.data_parallel_type")),
)
LATER = (("June 2025", ("training.batch_size",)), ("August 2025", ("training.compile",)))
NORMS = ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm")
ATTENTIONS = ("_flex_attn", "_flex", "_varlen_attn", "_varlen", "_sdpa")  # ends of flavours whose sizes are the same
# Models of which no flavour is dense.
MIXTURES = ("deepseek_v2", "deepseek_v3", "llama4", "gpt_oss", "kimi_k2_7")
OTHERS = ("flux", "vlm", "llama3-siglip2", "qwen3_5")  # which make or read pictures, or have other layers
# Flavours that are no shipped models: hidden size, layers, heads, groups, inner size, vocabulary.
SIZES: dict[str, dict[str, tuple[int, int, int, int, int, int]]] = {
    "llama": {
        "llama2-271M": (1024, 16, 8, 8, 2816, 32000),
        "llama2-1B": (2048, 18, 16, 16, 5632, 32000),
        "llama2-26B": (5120, 80, 40, 40, 13824, 32000),
        "llama3-1B": (2048, 16, 32, 8, 8192, 128256),
        "llama3-3B": (3072, 28, 24, 8, 8192, 128256),
    },
    "qwen3": {
        "qwen3-0.6B": (1024, 28, 16, 8, 3072, 151936),
        "qwen3-1.7B": (2048, 28, 16, 8, 6144, 151936),
        "qwen3-4B": (2560, 36, 32, 8, 9728, 151936),
        "qwen3-14B": (5120, 40, 40, 8, 17408, 151936),
    },
}
TIED = ("llama3-1B", "llama3-3B", "qwen3-0.6B", "qwen3-1.7B", "qwen3-4B")


def as_today(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a torchtitan file of any version under the keys of version 0.2; and, for keys that are named differently
    in the file, the file's key by that of 0.2. values: by the file's dotted keys. where: the file. Raises InputError if a
    file has a key of two versions with different values."""
    result, written = dict(values), dict[str, str]()

    def take(key: str, old: str, value: Any) -> None:
        if key in result and result[key] != value:
            problem = f"is {shown(values[old])}, and {written.get(key, key)} is {shown(result[key])}"
            raise InputError(where, old, problem, "leave one of the two out: they are one key of two versions")
        result[key], written[key] = value, old

    if "activation_checkpoint.mode" not in values and (old := next((key for key in FIRST if key in values), None)):
        fix = "say by mode in [activation_checkpoint], full, selective or none, what the code of that time recomputes"
        raise InputError(where, "activation_checkpoint.mode", f"is missing, and {old} is a key of before April 2024", fix)
    for key, earlier in EARLIER.items():
        for old in earlier:
            if old in values:
                result.pop(old)
                take(key, old, values[old])
    if (old := "training.data_parallel_degree") in values:
        kind = result.pop("training.data_parallel_type", "fsdp")
        if kind not in ("fsdp", "ddp"):
            raise InputError(where, "training.data_parallel_type", f"is {shown(kind)}", "give fsdp or ddp")
        copied = kind == "ddp"
        if copied and result[old] == -1:
            raise InputError(where, old, "is -1, of ddp", "give the number of data-parallel ranks, which the file leaves open")
        take(f"parallelism.data_parallel_{'replicate' if copied else 'shard'}_degree", old, result.pop(old))
        if copied:
            result["parallelism.data_parallel_shard_degree"] = 1
    elif result.pop("training.data_parallel_type", "fsdp") != "fsdp":
        fix = "give training.data_parallel_degree, the number of data-parallel ranks"
        raise InputError(where, "training.data_parallel_type", f"is {shown(values['training.data_parallel_type'])}", fix)
    if (old := "training.enable_loss_parallel") in values:
        take("parallelism.disable_loss_parallel", old, result.pop(old) is False)
    for old in EIGHT_BITS:
        if old in values and (on := result.pop(old)) not in (False, "", None):
            if on not in (True, "dynamic"):
                raise InputError(where, old, f"is {shown(on)}", "give dynamic: plans for it have no other scaling")
            take("model.converters", old, ["float8"])
    for kind in SCALINGS:
        for old in (f"float8.{kind}", f"training.float8_{kind}"):
            if result.pop(old, "dynamic") != "dynamic":
                raise InputError(where, old, f"is {shown(values[old])}", "give dynamic: plans for it have no other scaling")
    return result, written


def version_of(values: Mapping[str, Any], written: Mapping[str, str]) -> str:
    """The version of torchtitan whose defaults apply to keys that a file leaves out: the earliest version that has the
    file's keys, such as "before April 2025", otherwise "0.2". values: under the file's own keys. written: the file's key by
    the key of 0.2, if they differ."""
    degrees = [old for key, old in written.items() if key.startswith("parallelism.") and old.startswith(BEFORE)]
    for month, keys in (*UNTIL, ("March 2025", degrees), *LATER):
        if any(key in values for key in keys):
            return f"before {month}"
    return "0.2"


def before_parallelism(values: Mapping[str, Any], written: Mapping[str, str]) -> bool:
    """Whether a torchtitan file is of the versions before 7 April 2025, whose pipelines by default had as many micro-batches
    as stages. values: under the file's own keys. written: the file's key by the key of 0.2, if they differ."""
    layout = (old for key, old in written.items() if key.startswith("parallelism."))
    return "parallelism.pipeline_parallel_microbatches" in values or any(old.startswith(BEFORE) for old in layout)


def model_of(name: str, flavour: str) -> tuple[str | None, dict[str, Any] | None]:
    """The name of the shipped model for torchtitan's name and flavour of a model, such as llama3 and 8B, or else the fields
    of its Hugging Face configuration. Both are None if the sizes are the user's own, or differ by version, as those of
    debugmodel."""
    wanted = f"{name}-{flavour}"
    wanted = next((wanted.removesuffix(end) for end in ATTENTIONS if wanted.endswith(end)), wanted)
    found = next((shipped_name for shipped_name in shipped("models") if shipped_name.lower() == wanted.lower()), None)
    if found is not None:
        return found, None
    for kind, sizes in SIZES.items():
        if wanted in sizes:
            hidden, layers, heads, groups, inner, vocabulary = sizes[wanted]
            return None, {
                "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": groups, "intermediate_size": inner, "vocab_size": vocabulary,
                "max_position_embeddings": 131072, "tie_word_embeddings": wanted in TIED,
                "head_dim": 128 if kind == "qwen3" else hidden // heads,
            }  # fmt: skip
    return None, None
