"""Llama, with rotary positions, RMS norms, gated feed-forward networks and grouped queries."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding


def llama(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Llama configuration, with the rotary base at `rope_theta` or within `rope_parameters`."""
    hidden, heads = fields.count("hidden_size", 4096), fields.count("num_attention_heads", 32)
    layers, positions = fields.layers("num_hidden_layers", 32), fields.count("max_position_embeddings", 2048)
    kv_heads = fields.count("num_key_value_heads", heads)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if fields.config.get("head_dim") is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads))
    if width % 2:
        raise fields.fail("head_dim", f"is {width}", "give an even number: rotary positions turn pairs")
    vocabulary, inner = fields.count("vocab_size", 32000), fields.count("intermediate_size", 11008)
    activation = fields.activation("hidden_act", "silu")
    rope = fields.config.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    theta = fields.share("rope_theta", rope.get("rope_theta") or 10000.0, most=1e12)
    fields.note("rope_scaling")
    if rope.get("rope_type", "default") != "default":
        fields.read["rope_scaling"] = dict(rope)
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    tied = fields.flag("tie_word_embeddings", False)
    common = fields.common(fields.dropout("attention_dropout", default=0.0), fields.share("rms_norm_eps", 1e-6))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": "rms"}
    attention = Attention(
        **common, heads=heads, kv_heads=kv_heads, width=width, causal=True, bias=bias, out_bias=bias, rotary=theta
    )
    ffn = FeedForward(**common, inner=inner, activation=activation, gated=True, bias=inner_bias)
    embedding, head = TokenEmbedding(**common, vocabulary=vocabulary), LanguageHead(**common, vocabulary=vocabulary)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), tied


FAMILY = Family(llama, {**USUAL_SIZES, "width": "head_dim"})
