"""Qwen 2 and 2.5: biases of queries, keys and values, and an optional sliding window in the upper layers."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def qwen2(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Qwen 2 or 2.5 model: a Llama with biases on queries, keys and values.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    return qwen_chain(fields, sizes, bias=True, out_bias=False, normed_heads=False)


def qwen_chain(fields: Fields, sizes: Decoder, bias: bool, out_bias: bool, normed_heads: bool) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a dense Qwen 2 or 3 model, with sliding windows in its upper layers if the
    configuration has them.

    sizes: the model's sizes, read before. bias: whether queries, keys and values have a bias. out_bias: whether attention's
    output projection has one. normed_heads: whether queries and keys have norms. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    window, first = 0, sizes.layers
    if fields.flag("use_sliding_window", False):
        window, first = sliding_window(fields, missing=4096), fields.count("max_window_layers", 28, least=0)
    windows = layer_windows(fields, sizes.layers, window, [i >= first for i in range(sizes.layers)])
    dropped = fields.dropout("attention_dropout", default=0.0)
    rotary = rotation(fields, sizes.positions, sizes.tokens, sizes.width)
    common = {"bias": bias, "out_bias": out_bias, "normed_heads": normed_heads, "attention_dropout": dropped, **rotary}
    by_window = {window_size: sizes.attention(sliding=window_size, **common) for window_size in set(windows)}
    ffn = sizes.feed_forward(activation=fields.activation("hidden_act", "silu"), gated=True, bias=False)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    blocks = [{"attention": by_window[window_size], "ffn": ffn} for window_size in windows]
    return sizes.varied(blocks, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' Qwen2Config; the last ones are of its earlier versions.
FIELDS = USUAL_FIELDS | names(
    """
    hidden_act rms_norm_eps use_sliding_window sliding_window max_window_layers layer_types use_mrope
    """
)
FAMILY = Family(qwen2, SIZES, FIELDS)
