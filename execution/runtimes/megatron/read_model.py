"""The model that Megatron-LM's arguments describe, as fields of the Hugging Face configuration of a family with the same
layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """The error for arguments of Megatron-LM that describe a model of no known family; callers catch it if the user names
    the model."""


# Arguments, fields of configurations that say the same, and what the argument is called in notes.
SIZES = {
    "--num-attention-heads": ("num_attention_heads", "n_head"),
    "--ffn-hidden-size": ("intermediate_size", "n_inner"),
    "--num-query-groups": ("num_key_value_heads",),
    "--vocab-size": ("vocab_size",),
}


def differences_from_model(keys: KeyReader, layers: int, name: str, fields: Mapping[str, Any] | None) -> list[str]:
    """Lines on how the arguments differ from the model that the user names. layers: number of layers by the arguments. name:
    the model's name. fields: the Hugging Face configuration that the arguments describe, if any. keys: gives the values of the
    file's keys, and records which keys have been read. Raises InputError if they describe a model of another size."""
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
    """Arguments of Megatron-LM, with GPT-2's tokenizer added if its own programs use it by default, because only a
    vocabulary file is given (`args_defaults` of `pretrain_gpt.py`). program: the program's path. values, sources: the
    arguments and their sources by name. Returns values and sources."""
    name = program.rsplit("/", 1)[-1]
    if name not in DEFAULTED or "--tokenizer-type" in values or "--vocab-file" not in values:
        return values, sources
    default = {"--tokenizer-type": "GPT2BPETokenizer"}
    return {**values, **default}, {**sources, **dict.fromkeys(default, f"default of {name}")}


def vocabulary(keys: KeyReader) -> dict[str, int]:
    """The size of the vocabulary before padding, as a field of a Hugging Face configuration: {"vocab_size": N}; empty if the
    arguments do not say it. keys: gives the values of the file's keys, and records which keys have been read."""
    size, tokenizer = keys.whole("--vocab-size"), keys.text("--tokenizer-type")
    padded, extra = keys.whole("--padded-vocab-size"), keys.whole("--extra-vocab-size", least=0)
    if padded is not None:
        return {"vocab_size": padded}
    if size is not None:
        size += extra or 0
        return {"vocab_size": size + (tokenizer == NULL)}
    return {"vocab_size": TOKENIZERS[tokenizer]} if tokenizer in TOKENIZERS else {}


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """The transformer layers that Megatron-LM's arguments describe. count: number of layers. hidden: hidden size. heads: number
    of attention heads. width: width of a head. groups: number of groups of queries; None without grouped-query attention.
    inner: inner width of the feed-forward network. positions: largest number of positions. kind: kind of positions, such as
    rope. norm, epsilon: kind and epsilon of the norms. base, percent, interleaved: base, rotated share of a head, and
    interleaving of rotary positions. scaled, factor: whether, and by how much, rotary positions are stretched. gated, squared:
    whether the activation is gated, and whether it is squared. biased: whether matrices have biases. query_bias: whether the
    matrices of queries, keys and values have biases. normed: whether queries and keys are normed. window: number of positions
    that attention sees; None for all. tied: whether embedding and head share a matrix. attention_drop, hidden_drop:
    probabilities of dropout."""

    count: int
    hidden: int
    heads: int
    width: int
    groups: int | None
    inner: int
    positions: int | None
    kind: str
    norm: str
    epsilon: float
    base: int | None
    percent: float
    interleaved: bool
    scaled: bool
    factor: float
    gated: bool
    squared: bool
    biased: bool
    query_bias: bool
    normed: bool
    window: int | None
    tied: bool
    attention_drop: float
    hidden_drop: float

    @property
    def plain(self) -> bool:
        """Whether layers have LayerNorm, biases, no grouped queries, and an activation that is neither gated nor squared."""
        ungated = not self.gated and not self.squared
        return self.norm == "LayerNorm" and ungated and self.biased and self.groups in (None, self.heads)


def model_fields(keys: KeyReader, layers: int) -> dict[str, Any] | None:
    """The fields of a Hugging Face configuration of the model that Megatron-LM's arguments describe, without the vocabulary;
    None if the arguments leave the model to a checkpoint. layers: number of layers. keys: gives the values of the file's keys,
    and records which keys have been read. Raises InputError (`Unlike`) if no family has such layers."""
    described = _described(keys, layers)
    if described is None:
        return None
    return _plain_family(keys, described) or _rotary_family(keys, described)


def _described(keys: KeyReader, layers: int) -> _Layers | None:
    """The layers that Megatron-LM's arguments describe; None if they leave the model to a checkpoint. layers: number of layers.
    keys: gives the values of the file's keys, and records which keys have been read."""
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
    return _Layers(
        count=layers, hidden=hidden, heads=heads, width=width or hidden // heads, groups=groups,
        inner=inner or (4 * hidden if not gated else int(4 * hidden * 2 / 3 / 64) * 64), positions=positions, kind=kind,
        norm=norm, epsilon=epsilon, base=base, percent=percent, interleaved=interleaved, scaled=scaled, factor=factor,
        gated=gated, squared=squared, biased=biased, query_bias=query_bias, normed=normed, window=window, tied=tied,
        attention_drop=attention_drop, hidden_drop=hidden_drop,
    )  # fmt: skip


def _plain_family(keys: KeyReader, described: _Layers) -> dict[str, Any] | None:
    """The fields of a Hugging Face configuration of GPT-2, BLOOM or GPT-NeoX, if one of these families has the described
    layers; otherwise None. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    (`Unlike`) if GPT-2 would have heads of another width."""
    hidden, layers, heads, inner = described.hidden, described.count, described.heads, described.inner
    positions, epsilon, tied = described.positions, described.epsilon, described.tied
    attention_drop, hidden_drop = described.attention_drop, described.hidden_drop
    if described.kind == "learned_absolute" and described.plain:
        if described.width != hidden // heads:
            fix = f"give {hidden // heads}, hidden size over heads"
            raise _unlike(keys, "--kv-channels", f"is {described.width}", fix)
        return {
            "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": inner,
            "n_positions": positions, "layer_norm_epsilon": epsilon, "tie_word_embeddings": tied,
            "activation_function": "gelu_new", "embd_pdrop": hidden_drop, "resid_pdrop": hidden_drop,
            "attn_pdrop": attention_drop,
        }  # fmt: skip
    if not described.plain or described.width * heads != hidden:
        return None
    if described.kind == "alibi" and inner == 4 * hidden:
        return {
            "model_type": "bloom", "hidden_size": hidden, "n_layer": layers, "n_head": heads, "layer_norm_epsilon": epsilon,
            "seq_length": positions, "hidden_dropout": hidden_drop, "attention_dropout": attention_drop,
        }  # fmt: skip
    if described.kind == "rope" and not described.normed:
        return {
            "model_type": "gpt_neox", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": inner, "max_position_embeddings": positions, "tie_word_embeddings": tied,
            "attention_dropout": attention_drop, "use_parallel_residual": False, "layer_norm_eps": epsilon,
            "rotary_pct": described.percent, "rotary_emb_base": described.base, "hidden_act": "gelu",
            "hidden_dropout": hidden_drop,
        }  # fmt: skip
    return None


def _rotary_family(keys: KeyReader, described: _Layers) -> dict[str, Any]:
    """The fields of a Hugging Face configuration of the family with rotary positions and no biases, such as Llama or Qwen, that
    has the described layers. keys: gives the values of the file's keys, and records which keys have been read. Raises
    InputError (`Unlike`) if there is none."""
    hidden, heads, width, kind, norm = described.hidden, described.heads, described.width, described.kind, described.norm
    if kind != "rope" or described.biased:
        name = "--position-embedding-type" if kind != "rope" else "--disable-bias-linear"
        fix = "give --position-embedding-type rope and --disable-bias-linear, or say which model it is by --model"
        raise _unlike(keys, name, f"is {shown(kind if kind != 'rope' else 'not given')}, with {norm}", fix)
    common: dict[str, Any] = {
        "hidden_size": hidden, "num_hidden_layers": described.count, "num_attention_heads": heads,
        "num_key_value_heads": described.groups or heads, "intermediate_size": described.inner,
        "max_position_embeddings": described.positions, "tie_word_embeddings": described.tied,
        "attention_dropout": described.attention_drop,
    }  # fmt: skip
    rotated = {"rope_theta": float(described.base or 10000)}
    percent = described.percent
    if norm == "LayerNorm" and described.squared:
        return {
            **common, **rotated, "model_type": "nemotron", "head_dim": width, "norm_eps": described.epsilon,
            "partial_rotary_factor": percent,
        }  # fmt: skip
    if norm != "RMSNorm" or not described.gated:
        fix = "give RMSNorm with --swiglu, LayerNorm with --squared-relu, or say which model it is by --model"
        raise _unlike(keys, "--normalization", f"is {shown(norm)}, {'gated' if described.gated else 'not gated'}", fix)
    common |= {**rotated, "head_dim": width, "rms_norm_eps": described.epsilon}
    if described.interleaved or percent < 1:
        if width * heads != hidden or described.normed:
            raise _unlike(keys, "--rotary-percent", f"is {percent:g}", "leave it out, or say which model it is by --model")
        bias = described.query_bias
        return {"model_type": "glm", **common, "partial_rotary_factor": percent, "attention_bias": bias, "pad_token_id": None}
    if described.normed:
        return {"model_type": "qwen3", **common, "attention_bias": False}
    if described.query_bias:
        del common["head_dim"]
        return {"model_type": "qwen2", **common}
    if described.window:
        return {"model_type": "mistral", **common, "sliding_window": described.window}
    if described.scaled:
        stretched = {"rope_type": "llama3", "factor": described.factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        common["rope_scaling"] = {**stretched, "original_max_position_embeddings": 8192}
    return {"model_type": "llama", **common}


def _normalization(keys: KeyReader) -> str:
    """The kind of norms as Megatron-LM spells it, in whichever case the argument is written. keys: gives the values of the
    file's keys, and records which keys have been read."""
    norm = keys.text("--normalization")
    return NORMS.get(norm.lower(), norm)


def _window(keys: KeyReader) -> int | None:
    """Number of positions that each position attends to, including itself; None for all before it. keys: gives the values of
    the file's keys, and records which keys have been read. Raises InputError for a key or value that is invalid or that no plan
    can have."""
    before, sliding = keys.text("--window-size"), keys.whole("--sliding-window")  # the second is Pai-Megatron-Patch's
    if not before:
        return sliding
    number = before.strip("()").split(",")[0].strip()
    if not number.isdecimal():
        raise keys.error("--window-size", f"is {shown(before)}", "give how many positions before and after, such as 4095,0")
    return int(number) + 1


def _unlike(keys: KeyReader, key: str, problem: str, fix: str) -> Unlike:
    """Build the error for an argument that no family of models matches. key: the argument. problem: what is wrong. fix: what to
    give. keys: gives the values of the file's keys, and records which keys have been read."""
    return Unlike(keys.where, key, problem, fix)
