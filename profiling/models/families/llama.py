"""Llama, with rotary positions, RMS norms, gated feed-forward networks and grouped queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, RotaryScaling, TokenEmbedding


def llama(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Llama configuration, with the rotary base and what stretches the angles wherever files have them."""
    hidden, heads = fields.size("hidden_size", 4096), fields.size("num_attention_heads", 32)
    layers, positions = fields.layers("num_hidden_layers", such_as=32), fields.size("max_position_embeddings", 4096)
    if fields.config.get("num_key_value_heads") is None:
        fix = f"{heads} are taken, as many as num_attention_heads; give it where they are fewer"
        caution(fields.where, f"{fields.part}num_key_value_heads", "is missing", fix)
    kv_heads = fields.count("num_key_value_heads", heads)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if fields.config.get("head_dim") is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads))
    if width % 2:
        raise fields.fail("head_dim", f"is {width}", "give an even number: rotary positions turn pairs")
    vocabulary, inner = fields.size("vocab_size", 32000), fields.size("intermediate_size", 11008)
    activation = fields.activation("hidden_act", "silu")
    theta, scaling = _rotation(fields, positions)
    fields.note("rope_interleaved")
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    tied = fields.flag("tie_word_embeddings", False)
    common = fields.common(fields.share("rms_norm_eps", 1e-6))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": "rms"}
    attention = Attention(
        **common,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        causal=True,
        bias=bias,
        out_bias=bias,
        rotary=theta,
        scaling=scaling,
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
    )
    ffn = FeedForward(**common, inner=inner, activation=activation, gated=True, bias=inner_bias)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, padding=fields.padding(vocabulary))
    head = LanguageHead(**common, vocabulary=vocabulary)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), tied


def _rotation(fields: Fields, positions: int) -> tuple[float, RotaryScaling | None]:
    """The base of the rotary angles, at `rope_theta` or within `rope_parameters` (transformers 5) or `rope_scaling` (before),
    and what stretches them, which is read as `rope_scaling`.

    None where nothing does, which `dynamic` is up to the most positions, or where no program has it: of the kinds that are not
    in `EXECUTED_ROTATIONS`, and of a rotation of a part of each head. These are refused where a plan runs. Raises InputError.
    """
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise fields.fail(name, f"is {shown(value)}", 'give null, or an object such as {"rope_type": "default"}')
        _check_rope(fields, name, value or {}, rope)
        rope |= value or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROTATIONS:
        raise fields.fail("rope_parameters.rope_type", f"is {shown(kind)}", f"give one of: {', '.join(ROTATIONS)}")
    if kind != "default" or rope.get("partial_rotary_factor", 1) != 1:
        fields.read["rope_scaling"] = rope
    if rope.get("rope_theta") is not None:
        fields.config = {**fields.config, "rope_theta": rope["rope_theta"]}
    return fields.share("rope_theta", 10000.0, most=1e12), _scaling(fields, rope, kind, positions)


def _scaling(fields: Fields, rope: Mapping[str, Any], kind: str, positions: int) -> RotaryScaling | None:
    def number(name: str, default: float | None = None, least: float = 0.0) -> float:
        value: Any = default if rope.get(name) is None else rope[name]
        if type(value) not in (int, float) or not least <= value < math.inf:
            problem = "is missing" if value is None else f"is {shown(value)}"
            raise fields.fail(f"rope_scaling.{name}", problem, f"give a number from {least:g}, such as {EXAMPLES[name]:g}")
        return float(value)

    original = int(number("original_max_position_embeddings", positions, 1.0))
    if kind == "linear":
        return RotaryScaling("linear", number("factor", least=1.0))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise fields.fail("rope_scaling.high_freq_factor", f"is {high:g}", f"give more than low_freq_factor = {low:g}")
        return RotaryScaling("llama3", number("factor", least=1.0), original, low, high)
    if kind == "yarn":
        factor = number("factor", positions / original, 1.0)
        ends = number("beta_slow", 1.0) or 1.0, number("beta_fast", 32.0) or 32.0
        scales = number("mscale", 0.0), number("mscale_all_dim", 0.0)
        first, second = (0.1 * scale * math.log(factor) + 1.0 for scale in (scales if all(scales) else (1.0, 0.0)))
        amplitude = number("attention_factor", first / second)
        return RotaryScaling("yarn", factor, original, *ends, amplitude, bool(rope.get("truncate", True)))
    return None


EXAMPLES = {
    "original_max_position_embeddings": 8192,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_slow": 1.0,
    "beta_fast": 32.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "attention_factor": 1.0,
}


def _check_rope(fields: Fields, name: str, rope: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse misspelt names of a rotation's fields, and values that differ from the field before. Raises InputError."""
    for key, value in rope.items():
        near = [] if key in ROTATION_FIELDS else get_close_matches(str(key), ROTATION_FIELDS, n=1, cutoff=0.75)
        if near:
            raise fields.fail(
                f"{name}.{key}", f"is {shown(value)}, but a rotation has no such field", f"did you mean {near[0]}?"
            )
        before = other.get(key, other.get({"rope_type": "type", "type": "rope_type"}.get(str(key), ""), value))
        if before != value:
            fix = f"give {shown(before)}, as rope_scaling has it, or leave one of them out"
            raise fields.fail(f"{name}.{key}", f"is {shown(value)}", fix)


ROTATION_FIELDS = names(
    """
    rope_type type rope_theta factor original_max_position_embeddings partial_rotary_factor attention_factor beta_fast
    beta_slow short_factor long_factor low_freq_factor high_freq_factor mscale mscale_all_dim truncate finetuned
    """
)
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
EXECUTED_ROTATIONS = ("default", "linear", "dynamic", "yarn", "llama3")
# As of transformers' LlamaConfig; the last ones are of its earlier versions, and of the files of SmolLM2.
FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act
    max_position_embeddings rms_norm_eps pretraining_tp rope_parameters attention_bias attention_dropout mlp_bias head_dim
    rope_theta rope_scaling rope_interleaved is_llama_config
    """
)
FAMILY = Family(llama, {**USUAL_SIZES, "width": "head_dim"}, FIELDS)
