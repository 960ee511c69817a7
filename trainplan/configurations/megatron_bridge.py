"""Megatron-Bridge: a YAML file with the sections of its ConfigContainer, as `export --to megatron-bridge` and its own
`--config-file` have them.

Fields as of megatron-bridge 0.3.1 (2026). They say what Megatron-LM's arguments say (`FIELDS` of the export), so that a file is
read as these; where the defaults of its classes are others, they are written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.configurations import megatron
from trainplan.configurations.configuration import Configuration, Keys, Said, flattened
from trainplan.configurations.documented_bridge import SECTIONS, TABLES
from trainplan.configurations.megatron_model import NULL
from trainplan.execution.exports.megatron_bridge import FIELDS
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data

# Of fields that no export has, what Megatron-LM calls them.
OTHERS = {
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--num-experts": "model.num_moe_experts",
    "--mtp-num-layers": "model.mtp_num_layers",
    "--multi-latent-attention": "model.multi_latent_attention",
    "--cpu-offloading": "model.cpu_offloading",
    "--rampup-batch-size": "train.rampup_batch_size",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "--first-last-layers-bf16": "mixed_precision.first_last_layers_bf16",
}
ARGUMENTS = {**{name: fields[0] for name, fields in FIELDS.items()}, **OTHERS}
DEFAULTS: dict[str, Any] = {  # where Megatron-LM's arguments have others
    "model.seq_length": 1024,
    "model.rope_scaling_factor": 1.0,
    "mixed_precision.grad_reduce_in_fp32": True,
    "mixed_precision.fp8_recipe": "tensorwise",
}
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
LETTERS = {"embedding": "E", "decoder": "t", "loss": "L"}
DOCUMENTED = frozenset(f"{section}.{field}" for section, fields in SECTIONS.items() for field in fields)


def is_one(data: Any) -> bool:
    """Whether a file's value has the sections of a ConfigContainer."""
    return isinstance(data, Mapping) and all(isinstance(data.get(name), Mapping) for name in ("model", "train"))


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a YAML file. Raises InputError."""
    return of_sections(read_data(path), str(path), said)


def of_sections(data: Any, where: str, said: Said) -> Configuration:
    """The configuration of a ConfigContainer's sections. Raises InputError."""
    if not is_one(data):
        raise InputError(where, "", f"holds {shown(data)}", "give sections such as model and train, of a ConfigContainer")
    values = {**DEFAULTS, **_precision(data.get("mixed_precision"), where), **flattened(data)}
    keys = Keys(where, values, defaults="default of Megatron-Bridge 0.3", ignored=said.ignored)
    keys.get("mixed_precision")  # a name, whose fields are among the values
    words = list(_words(keys))
    try:
        made = megatron.of_arguments(words, where, said)
    except InputError as error:
        field = ARGUMENTS.get(error.command_field, error.command_field)
        raise InputError(error.where, field, error.problem, _in_fields(error.fix)) from None
    unread, unknown = keys.left(DOCUMENTED, TABLES)
    unknown = tuple(key for key in unknown if not key.split(" ")[0].rpartition(".")[2].startswith("_"))  # its own marks
    keyed = {name: ARGUMENTS.get(key, key) for name, key in made.keys.items()}
    written = {ARGUMENTS.get(each.key) for each in made.taken} & {each.key for each in keys.taken}
    defaults = tuple(
        replace(each, key=ARGUMENTS[each.key]) for each in made.taken if ARGUMENTS.get(each.key) not in (None, *written)
    )
    taken = (*keys.taken, *defaults)
    return replace(made, runtime="megatron-bridge", keys=keyed, unread=unread, unknown=unknown, taken=taken)


def _precision(said: Any, where: str) -> dict[str, Any]:
    """The fields of a recipe of precisions that is named, such as `bf16_mixed`. Raises InputError."""
    if said is None or isinstance(said, Mapping):
        return {}
    match = NAMED.fullmatch(said.replace("-", "_")) if isinstance(said, str) else None
    if match is None or (scaling := match[3] or "") not in SCALINGS:
        fix = "give bf16_mixed, fp16_mixed, one such as bf16_with_fp8_current_scaling_mixed, or a table of fields"
        raise InputError(where, "mixed_precision", f"is {shown(said)}", fix)
    fields = {match[2]: True, **(SCALINGS["fp8_subchannel_scaling"] if match[1] == "nanov2_" else SCALINGS[scaling])}
    return {"mixed_precision": None, **{f"mixed_precision.{name}": value for name, value in fields.items()}}


def _words(keys: Keys) -> Iterator[str]:
    """What Megatron-LM's scripts would be given. Raises InputError."""
    yield from _model_words(keys)
    for fields in FIELDS.values():
        for field in fields[1:]:
            keys.get(field)
    for name, field in ARGUMENTS.items():
        value = keys.get(field)
        if name in ("--swiglu", "--vocab-size") or value is None or value is False:
            continue
        if isinstance(value, list) and name == "--pipeline-model-parallel-layout":
            value = "|".join("".join(LETTERS.get(str(part), str(part)) for part in stage) for stage in value)
        yield name
        if isinstance(value, list):
            yield from [",".join(map(str, value))] if name == "--window-size" else map(str, value)
        elif value is not True:
            yield str(value)


def _model_words(keys: Keys) -> Iterator[str]:
    """What other fields than its own, or contrary ones, say of an argument."""
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
    for name, field in (
        ("--disable-bias-linear", "model.add_bias_linear"),
        ("--untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights"),
    ):
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


def _in_fields(text: str) -> str:
    """A text with arguments called as the fields are."""
    for name in sorted(ARGUMENTS, key=len, reverse=True):
        text = text.replace(name, ARGUMENTS[name])
    return text
