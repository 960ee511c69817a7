"""The model that Megatron-LM's arguments describe, as fields of the Hugging Face configuration of a family with the same
layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.model import load_model

GPT2_VOCABULARY = 50257
DEFAULTED = ("pretrain_gpt.py", "pretrain_mamba.py")
TOKENIZERS = {"GPT2BPETokenizer": GPT2_VOCABULARY}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}  # Megatron-DeepSpeed has these in small letters
NULL = "NullTokenizer"  # which adds a token of its own


class Unlike(InputError):
    """Arguments that describe a model of no known family; a model that the user names may stand for it."""


# Arguments, fields of configurations that say the same, and what the argument is called in notes.
SIZES = {
    "--num-attention-heads": ("num_attention_heads", "n_head"),
    "--ffn-hidden-size": ("intermediate_size", "n_inner"),
    "--num-query-groups": ("num_key_value_heads",),
    "--vocab-size": ("vocab_size",),
}


def differences_from_model(keys: KeyReader, layers: int, name: str, fields: Mapping[str, Any] | None) -> list[str]:
    """Notes on how the arguments differ from the named model. fields: the configuration that the arguments describe, if any.
    Raises InputError if they describe another model."""
    model = load_model(name)
    for key, value, theirs in (
        ("--num-layers", layers, model.layers),
        ("--hidden-size", keys.whole("--hidden-size"), model.config.get("hidden_size", model.config.get("n_embd"))),
    ):
        if None not in (value, theirs) and value != theirs:
            raise keys.error(key, f"is {value}, and {model.name} has {theirs}", "give the model that runs by --model")
    notes = []
    for key, names in SIZES.items():
        value = keys.whole(key, None)
        theirs = next((model.config[field] for field in names if model.config.get(field) is not None), None)
        if value is not None and theirs is not None and value != theirs:
            notes.append(f"{key} {value}: the plan has {theirs}, as {model.name}")
    if fields is not None and {"gpt2"} & {fields.get("model_type"), model.family} and fields.get("model_type") not in (
        None, model.family,
    ):  # fmt: skip
        notes.append(f"layers as of {fields['model_type']} by the arguments: the plan's are those of {model.name}")
    return notes


def with_tokenizer(
    program: str, values: Mapping[str, Any], sources: Mapping[str, str]
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Arguments and their sources, with the tokenizer that Megatron-LM's own programs use if only a vocabulary file is given
    (`args_defaults` of `pretrain_gpt.py`)."""
    name = program.rsplit("/", 1)[-1]
    if name not in DEFAULTED or "--tokenizer-type" in values or "--vocab-file" not in values:
        return values, sources
    default = {"--tokenizer-type": "GPT2BPETokenizer"}
    return {**values, **default}, {**sources, **dict.fromkeys(default, f"default of {name}")}


def vocabulary(keys: KeyReader) -> dict[str, int]:
    """The configuration field with the size of the vocabulary before padding; empty if the arguments do not say it."""
    size, tokenizer = keys.whole("--vocab-size"), keys.text("--tokenizer-type")
    padded, extra = keys.whole("--padded-vocab-size"), keys.whole("--extra-vocab-size", least=0)
    if padded is not None:
        return {"vocab_size": padded}
    if size is not None:
        size += extra or 0
        return {"vocab_size": size + (tokenizer == NULL)}
    return {"vocab_size": TOKENIZERS[tokenizer]} if tokenizer in TOKENIZERS else {}


def model_fields(keys: KeyReader, layers: int) -> dict[str, Any] | None:
    """The fields of a Hugging Face configuration, except for the vocabulary; None if the arguments leave the model to a
    checkpoint. Raises InputError (`Unlike`) if no family has such layers."""
    hidden, heads, tokens = (keys.whole(f"--{name}") for name in ("hidden-size", "num-attention-heads", "seq-length"))
    inner, width = keys.whole("--ffn-hidden-size"), keys.whole("--kv-channels")
    groups = keys.whole("--num-query-groups") if keys.flag("--group-query-attention") else None
    keys.whole("--num-query-groups", None)  # of no bearing without
    positions, norm = keys.whole("--max-position-embeddings", tokens), _normalization(keys)
    epsilon, base = keys.number("--norm-epsilon"), keys.whole("--rotary-base")
    kind = keys.text("--position-embedding-type").replace("rotary", "rope")
    kind = "rope" if keys.flag("--use-rotary-position-embeddings") else kind
    percent, interleaved = keys.number("--rotary-percent"), keys.flag("--rotary-interleaved")
    scaled, factor = keys.flag("--use-rope-scaling"), keys.number("--rope-scaling-factor")
    gated, squared = keys.flag("--swiglu"), keys.flag("--squared-relu")
    biased, query_bias = not keys.flag("--disable-bias-linear"), keys.flag("--add-qkv-bias")
    normed, window = keys.flag("--qk-layernorm"), _window(keys)
    tied = not keys.flag("--untie-embeddings-and-output-weights")
    attention_drop, hidden_drop = keys.number("--attention-dropout"), keys.number("--hidden-dropout")
    if hidden is None or heads is None:
        return None
    inner = inner or (4 * hidden if not gated else int(4 * hidden * 2 / 3 / 64) * 64)
    common: dict[str, Any] = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups or heads, "intermediate_size": inner, "max_position_embeddings": positions,
        "tie_word_embeddings": tied, "attention_dropout": attention_drop,
    }  # fmt: skip
    width = width or hidden // heads
    if kind == "learned_absolute" and norm == "LayerNorm" and not gated and not squared and biased and groups in (None, heads):
        if width != hidden // heads:
            raise _unlike(keys, "--kv-channels", f"is {width}", f"give {hidden // heads}, hidden size over heads")
        return {
            "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": inner,
            "n_positions": positions, "layer_norm_epsilon": epsilon, "tie_word_embeddings": tied,
            "activation_function": "gelu_new", "embd_pdrop": hidden_drop, "resid_pdrop": hidden_drop,
            "attn_pdrop": attention_drop,
        }  # fmt: skip
    plain = norm == "LayerNorm" and not gated and not squared and biased and groups in (None, heads) and width * heads == hidden
    if kind == "alibi" and plain and inner == 4 * hidden:
        return {
            "model_type": "bloom", "hidden_size": hidden, "n_layer": layers, "n_head": heads, "layer_norm_epsilon": epsilon,
            "seq_length": positions, "hidden_dropout": hidden_drop, "attention_dropout": attention_drop,
        }  # fmt: skip
    if kind == "rope" and plain and not normed:
        return {
            "model_type": "gpt_neox", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": inner, "max_position_embeddings": positions, "tie_word_embeddings": tied,
            "attention_dropout": attention_drop, "use_parallel_residual": False, "layer_norm_eps": epsilon,
            "rotary_pct": percent, "rotary_emb_base": base, "hidden_act": "gelu", "hidden_dropout": hidden_drop,
        }  # fmt: skip
    if kind != "rope" or biased:
        name = "--position-embedding-type" if kind != "rope" else "--disable-bias-linear"
        fix = "give --position-embedding-type rope and --disable-bias-linear, or say which model it is by --model"
        raise _unlike(keys, name, f"is {shown(kind if kind != 'rope' else 'not given')}, with {norm}", fix)
    rotated = {"rope_theta": float(base or 10000)}
    if norm == "LayerNorm" and squared:
        return {
            **common, **rotated, "model_type": "nemotron", "head_dim": width, "norm_eps": epsilon,
            "partial_rotary_factor": percent,
        }  # fmt: skip
    if norm != "RMSNorm" or not gated:
        fix = "give RMSNorm with --swiglu, LayerNorm with --squared-relu, or say which model it is by --model"
        raise _unlike(keys, "--normalization", f"is {shown(norm)}, {'gated' if gated else 'not gated'}", fix)
    common |= {**rotated, "head_dim": width, "rms_norm_eps": epsilon}
    if interleaved or percent < 1:
        if width * heads != hidden or normed:
            raise _unlike(keys, "--rotary-percent", f"is {percent:g}", "leave it out, or say which model it is by --model")
        return {
            "model_type": "glm", **common, "partial_rotary_factor": percent, "attention_bias": query_bias, "pad_token_id": None
        }  # fmt: skip
    if normed:
        return {"model_type": "qwen3", **common, "attention_bias": False}
    if query_bias:
        del common["head_dim"]
        return {"model_type": "qwen2", **common}
    if window:
        return {"model_type": "mistral", **common, "sliding_window": window}
    if scaled:
        stretched = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        common["rope_scaling"] = {**stretched, "original_max_position_embeddings": 8192}
    return {"model_type": "llama", **common}


def _normalization(keys: KeyReader) -> str:
    """The kind of norms as Megatron-LM spells it, whatever the case."""
    norm = keys.text("--normalization")
    return NORMS.get(norm.lower(), norm)


def _window(keys: KeyReader) -> int | None:
    """Number of positions that each position attends to, including itself; None for all before it. Raises InputError."""
    before, sliding = keys.text("--window-size"), keys.whole("--sliding-window")  # the second is Pai-Megatron-Patch's
    if not before:
        return sliding
    number = before.strip("()").split(",")[0].strip()
    if not number.isdecimal():
        raise keys.error("--window-size", f"is {shown(before)}", "give how many positions before and after, such as 4095,0")
    return int(number) + 1


def _unlike(keys: KeyReader, key: str, problem: str, fix: str) -> Unlike:
    """The error for an argument that no family of models matches."""
    return Unlike(keys.where, key, problem, fix)
