"""Qwen 2 and 2.5: biases of queries, keys and values, and a sliding window in the upper layers where it is used."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def qwen2(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Qwen 2 or 2.5 configuration."""
    sizes = decoder(fields)
    return qwen_chain(fields, sizes, bias=True, out_bias=False, normed_heads=False)


def qwen_chain(fields: Fields, sizes: Decoder, bias: bool, out_bias: bool, normed_heads: bool) -> tuple[list[Unit], bool]:
    """The chain of a dense Qwen with or without biases, and norms of queries and keys."""
    window, first = 0, sizes.layers
    if fields.flag("use_sliding_window", False):
        window, first = sliding_window(fields, missing=4096), fields.count("max_window_layers", 28, least=0)
    windows = layer_windows(fields, sizes.layers, window, [i >= first for i in range(sizes.layers)])
    dropped = fields.dropout("attention_dropout", default=0.0)
    turning = rotation(fields, sizes.positions, sizes.tokens, sizes.width)
    common = {"bias": bias, "out_bias": out_bias, "normed_heads": normed_heads, "attention_dropout": dropped, **turning}
    by_window = {each: sizes.attention(sliding=each, **common) for each in set(windows)}
    ffn = sizes.feed_forward(activation=fields.activation("hidden_act", "silu"), gated=True, bias=False)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    blocks = [{"attention": by_window[each], "ffn": ffn} for each in windows]
    return sizes.varied(blocks, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' Qwen2Config; the last ones are of its earlier versions.
FIELDS = USUAL_FIELDS | names(
    """
    hidden_act rms_norm_eps use_sliding_window sliding_window max_window_layers layer_types use_mrope
    """
)
FAMILY = Family(qwen2, SIZES, FIELDS)
