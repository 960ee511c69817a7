"""Reader of Megatron-Bridge's YAML files with the sections of its ConfigContainer, as `export --to megatron-bridge` and
Megatron-Bridge's own `--config-file` have them.

Fields as of megatron-bridge 0.3.1 (2026). They correspond to arguments of Megatron-LM (see `megatron_bridge.fields`), so that a
file is read as these; defaults of Megatron-Bridge's classes that are different are written out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import written
from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings, flattened
from trainplan.execution.launch_files.settings import with_settings
from trainplan.execution.runtimes.megatron import layouts
from trainplan.execution.runtimes.megatron import reader as megatron_reader
from trainplan.execution.runtimes.megatron.experts import DEFAULTS as OF_EXPERTS
from trainplan.execution.runtimes.megatron.experts import refuse_experts
from trainplan.execution.runtimes.megatron.read_model import NULL
from trainplan.execution.runtimes.megatron_bridge.capabilities import SOFTWARE, TENSOR, stated
from trainplan.execution.runtimes.megatron_bridge.fields import ARGUMENTS, CONTRARY, DEFAULTS, FIELDS, experts_of
from trainplan.execution.runtimes.megatron_bridge.recipes import ARGUMENTS as OF_RECIPES
from trainplan.execution.runtimes.megatron_bridge.recipes import BATCH, SIZED, recipe_values
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.families.fields import names

# Recipes of precisions by name (megatron/bridge/training/mixed_precision.py), and what each sets.
NAMED = re.compile(r"(nemotron_h_|nanov2_)?(bf16|fp16)(?:_with_(\w+))?_mixed")
SCALINGS: dict[str, dict[str, Any]] = {
    "": {},
    "fp8_delayed_scaling": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "fp8_current_scaling": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": True,
        "first_last_layers_bf16": True,
    },
    "fp8_subchannel_scaling": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
# Options of its scripts (scripts/training/run_recipe.py) and the fields that they set; others are called as recipes' arguments.
OPTIONS = {
    "tp": "model.tensor_model_parallel_size", "pp": "model.pipeline_model_parallel_size", "cp": "model.context_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size", "gb": "train.global_batch_size", "mb": "train.micro_batch_size",
    "sl": "model.seq_length", "ms": "train.train_iters", "max_steps": "train.train_iters", "lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr", "warmup_iters": "scheduler.lr_warmup_iters", "save_dir": "checkpoint.save",
    "load_dir": "checkpoint.load", "save_interval": "checkpoint.save_interval", "step_func": "logger.step_func",
    "dataset": "dataset.blend", "pretrained_checkpoint": "checkpoint.pretrained_checkpoint",
    "ep": "model.expert_model_parallel_size",
}  # fmt: skip
NOTHING: Mapping[str, Any] = {}
OURS, GRADIENTS = "default of Megatron-Bridge 0.3", "grad_reduce_in_fp32"
PARTS = frozenset(
    f"model.{name}"
    for name in names(
        """
        gated_linear_unit add_bias_linear share_embeddings_and_output_weights normalization layernorm_epsilon rotary_base
        position_embedding_type rotary_percent rotary_interleaved rope_scaling rope_scaling_factor add_qkv_bias qk_layernorm
        window_size attention_dropout hidden_dropout make_vocab_size_divisible_by
        """
    )
)
WHICH = "its recipe, and no known one is of this model (or name one by --set recipe=NAME)"
MARKS = ("mixed_precision", "validation", "_target_")  # names other than those of sections
OVERLAPPED = ("overlap_grad_reduce", "overlap_param_gather")
EITHER = {  # pairs of fields that turn each other on (`ConfigContainer.validate`)
    "dist.use_megatron_fsdp": "ddp.use_megatron_fsdp", "model.tp_comm_overlap": "comm_overlap.tp_comm_overlap",
    "optimizer.use_distributed_optimizer": "ddp.use_distributed_optimizer",
    "optimizer.overlap_param_gather": "ddp.overlap_param_gather",
}  # fmt: skip
WIDE = ("torch.float32", "float32", "fp32")
# Fields that bear on the run, values of them that plans have, and why no others.
NONE, OFF = ("none", "null"), ("false",)
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "model.expert_tensor_parallel_size": (("1",), "plans have dense models"),
    "model.is_hybrid_model": (OFF, "plans have layers of attention and feed-forward alone"),
    "model.heterogeneous_block_specs": (OFF, "plans have layers all alike"),
    "model.experimental_attention_variant": (NONE, "plans have full attention, or windows"),
    "model.linear_attention_freq": (NONE, "plans have full attention, or windows"),
    "model.window_attn_skip_freq": (NONE, "plans have layers all alike"),
    "model.attention_output_gate": (OFF, "plans have no such matrix multiplication"),
    "model.fine_grained_activation_offloading": (OFF, "plans keep activations on the device"),
    "model.distribute_saved_activations": (OFF, "plans keep activations as layers leave them"),
    "model.num_microbatches_with_partial_activation_checkpoints": (NONE, "plans treat micro-batches alike"),
    "model.hybrid_context_parallel": (OFF, "plans exchange in one way"),
    "model.hierarchical_context_parallel_sizes": (NONE, "plans exchange in one way"),
    "model.fp32_residual_connection": (OFF, "plans keep the residual stream in the model's dtype"),
    "model.mtp_standalone": (OFF, "plans have one head"),
    "model.variable_seq_lengths": (OFF, "plans have samples of one length"),
    "mixed_precision.fp8_dot_product_attention": (OFF, "plans compute attention in the model's dtype"),
    "mixed_precision.fp8_multi_head_attention": (OFF, "plans compute attention in the model's dtype"),
    "ddp.fsdp_double_buffer": (OFF, "plans gather into buffers of their own"),
    "ddp.outer_dp_sharding_strategy": (("no_shard",), "copies are whole between groups"),
    "dist.use_tp_pp_dp_mapping": (OFF, "ranks are numbered data-parallel before pipeline-parallel"),
    "train.decrease_batch_size_if_needed": (OFF, "a plan is of one batch size"),
}
KNOWN = known_keys(__file__)
SECTIONS = KNOWN.sections()


def is_one(data: Any) -> bool:
    """Whether the value in a YAML file is (a part of) Megatron-Bridge's ConfigContainer: it has some of its sections and
    nothing else."""
    if not isinstance(data, Mapping):
        return False
    has = [isinstance(data.get(name), Mapping) for name in ("model", "train")]
    return all(has) or (any(has) and all(name in SECTIONS or f"{name}." in KNOWN.starts or name in MARKS for name in data))


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a YAML file with sections of Megatron-Bridge's ConfigContainer. user: the settings that the user
    gives in addition to the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    whole = [key for key in user.variables if "." in key]  # which may be of a section that the file has by a name
    data, sources = with_settings(read_data(path), str(path), user, sources_of(path), ("recipe", *whole))
    return of_sections(data, str(path), user, sources)


def of_sections(
    data: Any, where: str, user: UserSettings, sources: Mapping[str, str] | None = None, recipe: str | None = None
) -> RunConfiguration:
    """The run configuration of sections of Megatron-Bridge's ConfigContainer. data: the sections, each as a mapping, by name.
    sources: the file and line of each key; None to state the file alone. recipe: the name of the recipe whose values the
    sections override; None if it is not known. where: the file, for errors. user: the settings that the user gives in addition
    to the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    if not is_one(data):
        raise InputError(where, "", f"holds {shown(data)}", "give sections such as model and train, of a ConfigContainer")
    named = data.get("mixed_precision")
    return of_fields({**precision_fields(named, where), **flattened(data)}, where, user, sources, recipe)


def of_overrides(
    words: Sequence[str],
    where: str,
    user: UserSettings,
    recipe: str | None = None,
    below: Mapping[str, Any] = NOTHING,
    lines: Mapping[str, str] = NOTHING,
) -> RunConfiguration:
    """The run configuration of a Megatron-Bridge recipe with overrides in Hydra's spelling, such as
    ``model.tensor_model_parallel_size=2``.

    words: the overrides; `--recipe NAME` among them names the recipe. recipe: the recipe's name if the words do not state it;
    None if it is not known. below: values of a file under keys joined by dots, which the words override. lines: the file and
    line of each of these keys. where: the file, for errors. user: the settings that the user gives in addition to the file.
    Raises InputError for a key or value that is invalid or that no plan can have.
    """
    values, sources, rest = dict(below), dict(lines), list(words)
    while rest:
        word = rest.pop(0)
        name, sign, text = word.partition("=")
        if name.startswith("-"):
            key = name.lstrip("-").replace("-", "_")
            given = text if sign else rest.pop(0) if rest and not rest[0].startswith("-") and "=" not in rest[0] else "true"
            if key == "recipe":
                recipe = given
                continue
            key, text, sign = OPTIONS.get(key, OF_RECIPES.get(key, key)), given, "="
        key = (key if name.startswith("-") else name.lstrip("+")).strip()
        if name.startswith("~") or not sign:
            fix = "give overrides such as model.tensor_model_parallel_size=2"
            raise InputError(where, word, "is no override that is read", fix)
        values[key], sources[key] = written(text), where
    if "mixed_precision" in values:
        values = {**precision_fields(values["mixed_precision"], where), **values, "mixed_precision": None}
    return of_fields(values, where, user, sources, recipe)


def of_fields(
    fields: Mapping[str, Any],
    where: str,
    user: UserSettings,
    sources: Mapping[str, str] | None = None,
    recipe: str | None = None,
    replaced: Collection[str] = (),
) -> RunConfiguration:
    """The run configuration of fields of Megatron-Bridge's ConfigContainer, named by section and key, such as model.num_layers.

    where: the file, for errors. sources: the file and line of each field; None to state the file alone. recipe: the recipe that
    the fields override; empty if they are a whole ConfigContainer; None if it is not known. replaced: sections that replace the
    recipe's sections completely. user: the settings that the user gives in addition to the file. Raises InputError for a key or
    value that is invalid or that no plan can have.
    """
    settings = {key: written(text) for key, text in user.variables.items() if "." in key}
    given = {**fields, **settings}
    base = recipe_values(given, where, user, recipe, replaced)
    own = any(given.get(f"mixed_precision.{name}") for name in ("bf16", "fp16"))  # a precision in place of the recipe's
    precision = {} if own else precision_fields(base.fields.get("mixed_precision"), where)
    based = {**precision, **base.fields, "mixed_precision": None}
    values = {**DEFAULTS, **based, **{key: value for key, value in given.items() if value is not None or key not in based}}
    values |= {key: None for key in given if given[key] is None and key != "mixed_precision"}
    recipes = base.sources.get("mixed_precision", "")
    origin = {**dict.fromkeys(DEFAULTS, OURS), **{key: recipes for key in based if key not in base.fields}, **base.sources}
    origin |= {**(sources or {}), **dict.fromkeys(settings, "--set")}
    for name in OVERLAPPED:  # which it sets of what it is given
        if values.get(f"comm_overlap.{name}") is not None:
            values[f"ddp.{name}"] = values[f"comm_overlap.{name}"]
    turned = list[str]()
    for one, other in EITHER.items():
        for on, off in ((one, other), (other, one)):
            if values.get(on) and given.get(off) is False:
                turned.append(f"{off} is false, and {on} ({origin.get(on, OURS)}) turns it on: give false for both")
        if values.get(one) and not values.get(other):
            values[other], origin[other] = True, origin.get(one, OURS)
    if not any(values.get(f"mixed_precision.{name}") for name in ("bf16", "fp16")):  # then the model says it alone
        values |= {f"mixed_precision.{name}": values[f"model.{name}"] for name in ("bf16", "fp16") if f"model.{name}" in values}
        values |= {f"mixed_precision.{GRADIENTS}": values[f"ddp.{GRADIENTS}"]} if f"ddp.{GRADIENTS}" in values else {}
    keys = KeyReader(where, values, sources=origin, defaults=OURS, ignored=user.ignored)
    for key in ("model.bf16", "model.fp16", f"ddp.{GRADIENTS}", *EITHER, *(f"comm_overlap.{name}" for name in OVERLAPPED)):
        keys.get(key)  # which others override, or which override others
    keys.get("mixed_precision")  # a name, whose fields are among the values
    refuse_experts(keys, None, "Megatron-Bridge", experts_of(values), OF_EXPERTS)
    if not (recipe or user.variables.get("recipe")) and all(given.get(key) is None for key in SIZED):
        _refuse_unnamed_mixture(keys, given)
    _refuse(keys)
    words = list(_words(keys))
    try:
        run = megatron_reader.of_arguments(words, where, user)
    except InputError as error:
        raise megatron_reader.in_fields(error, ARGUMENTS) from None
    unread, unknown = keys.left(KNOWN)
    unknown = tuple(key for key in unknown if not key.split(" ")[0].rpartition(".")[2].startswith("_"))  # its own marks
    keyed = {name: ARGUMENTS.get(key, key) for name, key in run.keys.items()} | {"dtype": "mixed_precision"}
    from_file = {ARGUMENTS.get(value.key) for value in run.taken} & {value.key for value in keys.taken}
    defaults = tuple(
        replace(value, key=ARGUMENTS[value.key]) for value in run.taken if ARGUMENTS.get(value.key) not in (None, *from_file)
    )
    taken = (*keys.taken, *defaults)
    if base.model is not None:  # whose parts are not those that defaults describe
        taken = tuple(value for value in taken if value.key not in PARTS or not value.source.startswith("default"))
    if base.unknown:  # which recipe has them
        unsaid: dict[str, Any] = {field: None for key, field in BATCH.items() if values.get(key) is None}
        run = replace(run, undecided=dict.fromkeys(unsaid, WHICH), **unsaid)
        taken = tuple(value for value in taken if value.key not in BATCH or values[value.key] is not None)
    kept = [word for word in run.flags.split() if word != TENSOR or run.sequence_parallel]  # else it turns that off
    return replace(
        run, runtime="megatron-bridge", software=SOFTWARE, flags=stated(kept), model=base.model, keys=keyed,
        notes=(*run.notes, *base.notes, *turned), unread=unread, unknown=unknown, taken=taken,
    )  # fmt: skip


def _refuse_unnamed_mixture(keys: KeyReader, given: Mapping[str, Any]) -> None:
    """Raise InputError if overrides of a recipe that nobody has named set something of experts, so that the recipe's model is a
    mixture of experts, whichever model the user names. given: the file's own values. keys: gives the values of the file's keys,
    and records which keys have been read."""
    for key, value in given.items():
        if key.startswith("model.moe_") and value not in (None, False) and key not in keys.ignored:
            fix = f"name its recipe by --set recipe=NAME, or say that it changes nothing by --ignore {key}"
            raise keys.error(key, f"is {shown(value)}, of a mixture of experts", fix)


def _refuse(keys: KeyReader) -> None:
    """Check that no field of a Megatron-Bridge file asks for a feature that plans do not have, and that fields do not
    contradict each other. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for the first that does."""
    for key in keys.values:
        if key.partition(".")[0] == "peft" and keys.values[key] not in (None, False):
            has = key.partition(".")[2] or shown(keys.values[key])
            raise keys.error("peft", f"has {has}", "leave it out: adapters are not planned")
    for key, (neutral, why) in REFUSED.items():
        keys.refuse(key, neutral, why)
    for name in ("fp8", "fp4"):
        if (alone := keys.get(f"model.{name}")) not in (None, keys.get(f"mixed_precision.{name}")):
            fix = f"give mixed_precision.{name}, which sets it"
            raise keys.error(f"model.{name}", f"is {shown(alone)}", fix)
    aware = keys.flag("optimizer.use_precision_aware_optimizer")
    for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if aware:
            keys.refuse(f"optimizer.{name}", WIDE, "plans keep the optimizer's states in float32")
        keys.get(f"optimizer.{name}")  # of no bearing without
    tokens = keys.get("model.seq_length")
    for key in ("dataset.seq_length", "dataset.sequence_length"):
        if keys.values.get(key) is not None and key in keys.sources and keys.get(key) != tokens:
            raise keys.error(key, f"is {shown(keys.get(key))}, and model.seq_length is {shown(tokens)}", "give both alike")


def precision_fields(value: Any, where: str) -> dict[str, Any]:
    """The fields that a named precision of Megatron-Bridge, such as `bf16_mixed`, sets: {"mixed_precision.bf16": True, ..};
    empty if the value is a table of fields or None. value: the file's `mixed_precision`. where: the file, for errors. Raises
    InputError for an unknown name."""
    if value is None or isinstance(value, Mapping):
        return {}
    match = NAMED.fullmatch(value.replace("-", "_")) if isinstance(value, str) else None
    if match is None or (scaling := match[3] or "") not in SCALINGS:
        fix = "give bf16_mixed, fp16_mixed, one such as bf16_with_fp8_current_scaling_mixed, or a table of fields"
        raise InputError(where, "mixed_precision", f"is {shown(value)}", fix)
    fields = {match[2]: True, **(SCALINGS["fp8_subchannel_scaling"] if match[1] == "nanov2_" else SCALINGS[scaling])}
    return {"mixed_precision": None, **{f"mixed_precision.{name}": value for name, value in fields.items()}}


def _words(keys: KeyReader) -> Iterator[str]:
    """Translate the fields of a Megatron-Bridge file into the equivalent arguments of Megatron-LM's scripts, as words of a
    command. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for values
    without an equivalent."""
    yield from _model_words(keys)
    for fields in FIELDS.values():
        for field in fields[1:]:
            keys.get(field)
    for name, field in ARGUMENTS.items():
        value = keys.get(field)
        if name in ("--swiglu", "--vocab-size") or value is None or value is False:
            continue
        if isinstance(value, list) and name == "--pipeline-model-parallel-layout":
            value = layouts.of_lists(value)
        yield name
        if isinstance(value, list):
            yield from [",".join(map(str, value))] if name == "--window-size" else map(str, value)
        elif value is not True:
            yield str(value)


def _model_words(keys: KeyReader) -> Iterator[str]:
    """Arguments of Megatron-LM, as words of a command, that follow from several fields of a Megatron-Bridge file or from a
    field with the opposite meaning. keys: gives the values of the file's keys, and records which keys have been read. Raises
    InputError for an activation that plans do not have."""
    gated, activation = keys.flag("model.gated_linear_unit"), keys.get("model.activation_func")
    function = str(activation or keys.get("model.activation_func._target_") or "gelu").rpartition(".")[2]
    if (gated, function) not in ((True, "silu"), (False, "gelu"), (False, "squared_relu")):
        fix = "give silu where model.gated_linear_unit is true, gelu or squared_relu where it is not"
        raise keys.error("model.activation_func", f"is {function!r}", fix)
    if function != "gelu":
        yield "--swiglu" if gated else "--squared-relu"
    hidden, heads = keys.whole("model.hidden_size"), keys.whole("model.num_attention_heads")
    if hidden is not None and keys.whole("model.ffn_hidden_size") is None:
        yield from ("--ffn-hidden-size", str(4 * hidden))
    if keys.whole("model.num_query_groups", heads) != heads:
        yield "--group-query-attention"
    for name, field in CONTRARY.items():
        if not keys.flag(field, True):
            yield name
    wide = keys.flag("mixed_precision.grad_reduce_in_fp32", True)
    yield "--accumulate-allreduce-grads-in-fp32" if wide else "--grad-reduce-in-bf16"
    made_up = keys.text("tokenizer.tokenizer_type", "") == NULL
    size, written = keys.whole("tokenizer.vocab_size"), keys.whole("model.vocab_size")
    if size is not None and made_up:
        yield from ("--vocab-size", str(size), "--tokenizer-type", NULL)
    elif written is not None:
        yield from ("--vocab-size", str(written), "--make-vocab-size-divisible-by", "1")
