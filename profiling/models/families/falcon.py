"""Falcon: attention and feed-forward network in parallel, with one key head for all queries (7B) or for groups of them (40B,
180B)."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation
from trainplan.profiling.models.sublayers import ParallelBlock, Sublayer


def falcon(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Falcon model: a block is one unit if its attention and feed-forward network read the
    same input, else two.

    In the new architecture both halves have norms of their own, unless `num_ln_in_parallel_attn` is 1; in the old one both
    read the same norm's result. Models with ALiBi (Falcon-RW) are planned but do not run: their scores are scaled after the
    slopes.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 4544), fields.size("num_attention_heads", 71)
    layers, vocabulary = fields.layers("num_hidden_layers", such_as=32), fields.size("vocab_size", 65024)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    new, many = fields.flag("new_decoder_architecture", False), not fields.flag("multi_query", True)
    kv_heads = fields.count("num_kv_heads", heads) if new or many else 1
    if new:
        fields.divisor("num_kv_heads", kv_heads, "num_attention_heads", heads)
    side_by_side, bias = fields.flag("parallel_attn", True) or new, fields.flag("bias", False)
    norms = fields.count("num_ln_in_parallel_attn", 2, most=2) if new else 1
    inner, activation = fields.count("ffn_hidden_size", 4 * hidden), fields.activation("activation", "gelu")
    positions, tied = fields.count("max_position_embeddings", 2048), fields.flag("tie_word_embeddings", True)
    sloped = bool(fields.config.get("alibi"))
    fields.note("alibi", "hidden_dropout")
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    kv_heads = heads if many and not new else kv_heads
    sizes = Decoder(hidden, heads, kv_heads, hidden // heads, layers, positions, vocabulary, inner, common)
    positional = {"alibi": 8.0} if sloped else rotation(fields, positions, sizes.tokens, sizes.width)
    attention = sizes.attention(bias=bias, out_bias=bias, **positional)
    ffn = sizes.feed_forward(activation=activation, bias=bias)
    parts: dict[str, Sublayer] = {"attention": attention, "ffn": ffn}
    if side_by_side:
        parts = {"block": ParallelBlock(**common, attention=attention, feed_forward=ffn, shared_norm=norms == 1)}
    return sizes.uniform(parts, sizes.embedding()), tied


# As of transformers' FalconConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    vocab_size hidden_size num_hidden_layers num_attention_heads num_ln_in_parallel_attn layer_norm_epsilon hidden_dropout
    attention_dropout num_kv_heads alibi new_decoder_architecture multi_query parallel_attn bias max_position_embeddings
    rope_parameters ffn_hidden_size activation
    rope_theta rope_scaling apply_residual_connection_post_layernorm
    """
)
# As of the code that its files came with at first.
ALIASES = {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_head_kv": "num_kv_heads"}
FAMILY = Family(falcon, {}, FIELDS, ALIASES)
