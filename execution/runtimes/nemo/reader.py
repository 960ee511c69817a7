"""Reader of NeMo 1: the configuration of its GPT pre-training, as in `megatron_gpt_config.yaml` (NeMo 1.23 to 2.0) and as its
log prints it under "Experiment configuration"; and of its fine-tuning (`megatron_gpt_finetuning_config.yaml`), which starts
from a .nemo file that holds the model. The keys of its `model` correspond to Megatron-LM's arguments, and are read as these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings, flattened
from trainplan.execution.launch_files.settings import read_with_settings
from trainplan.execution.runtimes.megatron import reader as megatron_reader
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.fields import names

DEFAULTS = "default of NeMo 1.23"
# Arguments of Megatron-LM, and NeMo's names of them where these are not the same.
ARGUMENTS = {
    f"--{name.replace('_', '-')}": f"model.{name}"
    for name in names(
        """
        micro_batch_size global_batch_size rampup_batch_size tensor_model_parallel_size pipeline_model_parallel_size
        context_parallel_size expert_model_parallel_size max_position_embeddings num_layers hidden_size ffn_hidden_size
        num_attention_heads kv_channels num_query_groups hidden_dropout attention_dropout make_vocab_size_divisible_by
        rotary_base sequence_parallel moe_router_topk cpu_offloading
        """
    )
} | {
    "--seq-length": "model.encoder_seq_length",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--norm-epsilon": "model.layernorm_epsilon",
    "--rotary-percent": "model.rotary_percentage",
    "--recompute-granularity": "model.activations_checkpoint_granularity",
    "--recompute-method": "model.activations_checkpoint_method",
    "--recompute-num-layers": "model.activations_checkpoint_num_layers",
    "--num-experts": "model.num_moe_experts",
    "--add-qkv-bias": "model.qkv_bias",
    "--overlap-grad-reduce": "model.optim.overlap_grad_sync",
    "--overlap-param-gather": "model.optim.overlap_param_sync",
    "--tp-comm-overlap": "model.ub_tp_comm_overlap",
    "--tokenizer-type": "model.tokenizer.type",
    "--position-embedding-type": "model.position_embedding_type",
}
FIELDS = {  # which say more than one argument
    "--normalization": "model.normalization", "--swiglu": "model.activation", "--squared-relu": "model.activation",
    "--disable-bias-linear": "model.bias", "--fp8-format": "model.fp8", "--bf16": "trainer.precision",
    "--untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights", "--fp16": "trainer.precision",
    "--use-distributed-optimizer": "model.optim.name",
}  # fmt: skip
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
ACTIVATIONS = {"gelu": None, "swiglu": "--swiglu", "fast-swiglu": "--swiglu", "squared-relu": "--squared-relu"}
PRECISIONS = {"bf16": "--bf16", "bf16-mixed": "--bf16", "16": "--fp16", "16-mixed": "--fp16", "32": "", "32-true": ""}
SHARING = ("distributed_fused_adam", "mcore_distributed_optim")
STEPPED = ("fused_adam", "megatron_fused_adam", "adam", "adamw", *SHARING)
# Fields that bear on the run and values of them that plans have.
REFUSED: Mapping[str, tuple[str, ...]] = {
    "model.fsdp": ("false",),
    "model.transformer_block_type": ("pre_ln",),
    "model.headscale": ("false",),
    "model.openai_gelu": ("false", "true"),
    "model.fp32_residual_connection": ("false",),
    "model.num_micro_batches_with_partial_activation_checkpoints": ("none",),
    "model.activations_checkpoint_layers_per_pipeline": ("none",),
    "model.drop_layers": ("[]",),
    "model.peft.peft_scheme": ("none", "null"),
    "trainer.accumulate_grad_batches": ("1",),
}
KNOWN = known_keys(__file__)
# Names of configurations, and fields, of models that are no dense decoders, and of other trainings.
OTHERS = re.compile(r"(?:^|_)(?:mamba|griffin|hyena|bert|bart|retro|m?t5|ul2|distill|nmt|neva|clip|vit|mimo)(?:_|$)")
STATES = re.compile(r"model\.(?:mamba_|hybrid_|hyena|griffin|recurrent|kd_|encoder\.|decoder\.)")
TRAINED = "model.data.train_ds."  # of fine-tuning
SAMPLES = {
    "model.global_batch_size": "global_batch_size",
    "model.micro_batch_size": "micro_batch_size",
    "model.encoder_seq_length": "max_seq_length",
}
FLASH = ("transformer_engine", "use_flash_attention")
OF_FILE = (*FLASH, "normalization", "activation", "bias", "share_embeddings_and_output_weights")  # what a .nemo file has
PADDED = "samples are padded to the longest of each batch: the plan's are all as long as the longest; more time"
WHOLE = re.compile(r"\d+(?:\.0*)?(?:[eE]\+?\d+)?")  # as OmegaConf, unlike PyYAML, reads numbers
REFERENCE = re.compile(r"\$\{(\.?)([\w.]+)\}")


def is_one(data: Any) -> bool:
    """Whether the value in a YAML file is the configuration of NeMo's GPT pre-training or fine-tuning."""
    model = data.get("model") if isinstance(data, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(data.get("trainer"), Mapping):
        return False
    return "micro_batch_size" in model or _tuned(flattened(data))


def _tuned(values: Mapping[str, Any]) -> bool:
    """Whether a NeMo configuration is one of fine-tuning, in which the model's sizes are in the .nemo file that it starts
    from. values: the configuration's values by dotted key."""
    return "model.restore_from_path" in values and any(key.startswith(TRAINED) for key in values)


def _of_tuning(values: dict[str, Any], where: str, user: UserSettings) -> dict[str, Any]:
    """The values of a fine-tuning configuration by dotted key, with batch and sequence under the keys that pre-training has for
    them. values: changed in place and returned. where: the file, for errors. user: the settings that the user gives in addition
    to the file. Raises InputError if neither file nor user gives the model."""
    if values.get("model.num_layers") is None and user.model is None:
        problem = f"is {shown(values['model.restore_from_path'])}: fine-tuning, whose model is in that file alone"
        raise InputError(where, "model.restore_from_path", problem, "give the model by --model NAME")
    for key, name in SAMPLES.items():
        if (value := values.pop(f"{TRAINED}{name}", None)) is not None:
            values[key] = value
    return values


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a YAML file of NeMo. user: the settings that the user gives in addition to the file. Raises
    InputError for a key or value that is invalid or that no plan can have."""
    data, sources = read_with_settings(path, user)
    return of_tables(data, str(path), user, sources)


def of_tables(
    data: Any, where: str, user: UserSettings, sources: Mapping[str, str] | None = None, padded: int | None = None
) -> RunConfiguration:
    """The run configuration of NeMo's nested tables. data: the tables. sources: the file and line of each key; None to state
    the file alone. padded: the size of the padded vocabulary as a log states it; None without a log. where: the file, for
    errors. user: the settings that the user gives in addition to the file. Raises InputError for a key or value that is invalid
    or that no plan can have."""
    if not is_one(data):
        raise InputError(where, "", f"holds {shown(data)}", "give trainer and model, as NeMo's GPT pretraining has them")
    values, sources = _resolved(flattened(data)), dict(sources or {})
    notes, tuned = list[str](), _tuned(values)
    if tuned:
        values = _of_tuning(values, where, user)
        sources |= {key: at for key, name in SAMPLES.items() if (at := sources.get(f"{TRAINED}{name}")) is not None}
    keys = KeyReader(where, values, sources=sources, defaults=DEFAULTS, ignored=user.ignored)
    for key, neutral in REFUSED.items():
        keys.refuse(key, neutral, "the plan's programs have no such thing")
    if tuned:
        keys.get("model.restore_from_path")
        keys.refuse(f"{TRAINED}packed_sequence", ("false",), "samples of plans are not packed")
        notes += [] if keys.flag(f"{TRAINED}pad_to_max_length") else [PADDED]
    if OTHERS.search(called := str(values.get("name") or "")):
        raise keys.error("name", f"is {shown(called)}, which is no dense decoder of text", "give one, as megatron_gpt is")
    for key, value in values.items():
        if STATES.match(key) and value is not None:
            raise keys.error(key, f"is {shown(value)}, of layers that are not planned", "give a dense decoder of text")
    made_of = {name: value for name, value in _arguments(keys, notes) if value not in (None, False)}
    own = keys.whole("model.override_vocab_size")
    if (padded := own if padded is None else padded) is not None:
        made_of |= {"--vocab-size": str(padded), "--make-vocab-size-divisible-by": "1"}
        made_of.pop("--tokenizer-type", None)
    devices = (keys.whole("trainer.devices", 1) or 1) * (keys.whole("trainer.num_nodes", 1) or 1)
    try:
        run = megatron_reader.of_values(made_of, where, user, devices)
    except InputError as error:
        raise megatron_reader.in_fields(error, ARGUMENTS | FIELDS) from None
    kernels = [keys.flag(f"model.{name}") for name in FLASH]
    attention: Literal["eager", "flash"] | None = "flash" if any(kernels) else "eager"
    taken = keys.taken
    if tuned:
        taken = tuple(value for value in taken if value.source != DEFAULTS or value.key.removeprefix("model.") not in OF_FILE)
        if not any(f"model.{name}" in values for name in FLASH):
            attention = None
            notes.append("attention is as the .nemo file has it: taken as flash; where it keeps scores, give --attention eager")
    unread, unknown = keys.left(KNOWN)
    keyed = {name: ARGUMENTS.get(key, key) for name, key in run.keys.items()} | {"dtype": "trainer.precision"}
    return replace(
        run, tool="NeMo", software="NeMo", keys=keyed, notes=(*notes, *run.notes), unread=unread, unknown=unknown,
        taken=taken, buffers=replace(run.buffers, attention=attention),
    )  # fmt: skip


def _arguments(keys: KeyReader, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Translate NeMo's keys into the equivalent arguments of Megatron-LM, as pairs of name and value. notes: a list to which
    lines on how the plan differs from the run are appended. keys: gives the values of the file's keys, and records which keys
    have been read. Raises InputError for a key or value that is invalid or that no plan can have."""
    for name, field in ARGUMENTS.items():
        value = keys.get(field)
        if isinstance(value, float | str) and WHOLE.fullmatch(str(value)):
            value = int(float(value))
        yield name, " ".join(map(str, value)) if isinstance(value, list) else value if value is True else _text(value)
    yield "--group-query-attention", keys.get("model.num_query_groups") is not None
    if isinstance(norm := keys.values.get("model.normalization"), str):
        keys.values["model.normalization"] = norm.lower()  # as NeMo takes it
    norm = keys.text("model.normalization", "layernorm", NORMS)
    activation = ACTIVATIONS[keys.text("model.activation", "gelu", ACTIVATIONS)]
    yield "--normalization", NORMS[norm]
    if activation is not None:
        yield activation, True
    yield "--disable-bias-linear", not keys.flag("model.bias", True)
    yield "--untie-embeddings-and-output-weights", not keys.flag("model.share_embeddings_and_output_weights", True)
    precision = str(keys.get("trainer.precision") or "32")
    if precision not in PRECISIONS:
        raise keys.error("trainer.precision", f"is {shown(precision)}", f"give one of {', '.join(PRECISIONS)}")
    half = PRECISIONS[precision]
    masters = keys.flag("model.megatron_amp_O2")
    if half:
        yield half, True
        if not masters:
            notes.append(
                "parameters in float32 under autocast (no megatron_amp_O2): planned in half precision with float32 masters"
            )
    if keys.flag("model.fp8"):
        yield "--fp8-format", "hybrid" if keys.flag("model.fp8_hybrid") else "e4m3"
    optimizer = keys.text("model.optim.name", "fused_adam", STEPPED)
    yield "--use-distributed-optimizer", optimizer in SHARING
    summed = keys.get("model.optim.grad_sync_dtype")
    if half == "--bf16" and optimizer == "distributed_fused_adam" and summed in (None, "bf16", "bfloat16"):
        yield "--grad-reduce-in-bf16", True


def _text(value: Any) -> Any:
    """A value of NeMo's configuration as a text, as arguments of a command have it: 8 -> "8". None and booleans are returned
    unchanged."""
    return value if value is None or isinstance(value, bool) else str(value)


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace references between keys in a NeMo configuration by the values that they refer to, such as
    `${.encoder_seq_length}` for a key of the same section; other expressions stay as they are. values: by dotted key."""
    resolved = dict(values)
    for key, value in values.items():
        match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            name = f"{key.rpartition('.')[0]}.{match[2]}" if match[1] else match[2]
            resolved[key] = values.get(name, value)
    return resolved
