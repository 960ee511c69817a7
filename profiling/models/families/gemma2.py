"""Gemma 2: norms before and after attention and feed-forward network, soft-capped scores and logits, a sliding window in every
second layer.

Its files store each norm's weights less 1; trainplan's models keep the weights that norms multiply by. Gradients are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation

HEAD_WIDTH = 256  # in files without the field; also the number whose root divides scores


def gemma2(fields: Fields, sandwich: bool = True) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Gemma 2 model: soft-capped scores and logits, and a sliding window in every second
    layer.

    sandwich: whether it has norms also after attention and feed-forward network. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes = decoder(fields, width=HEAD_WIDTH)
    window = sliding_window(fields, missing=4096)
    windows = layer_windows(fields, sizes.layers, window, [i % 2 == 0 for i in range(sizes.layers)])
    rotary = rotation(fields, sizes.positions, sizes.tokens, sizes.width)
    caps = {name: soft_cap(fields, name, default) for name, default in SOFT_CAPS.items()}
    return gemma_chain(fields, sizes, windows, dict.fromkeys(windows, rotary), caps, sandwich=sandwich)


def gemma_chain(
    fields: Fields,
    sizes: Decoder,
    windows: Sequence[int],
    rotary: Mapping[int, Mapping[str, Any]],
    caps: Mapping[str, float],
    normed_heads: bool = False,
    sandwich: bool = True,
) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Gemma 2 or 3 model from its sizes, windows and rotary positions.

    windows: each layer's sliding window in tokens, 0 for none. rotary: keyword arguments of attention for rotary positions,
    by window. caps: soft caps of scores and logits, by field name. normed_heads: whether queries and keys have norms.
    sandwich: whether there are norms also after attention and feed-forward network. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    fields.absent("use_bidirectional_attention")
    bias, divisor = fields.flag("attention_bias", False), fields.count("query_pre_attn_scalar", HEAD_WIDTH)
    common = {"bias": bias, "out_bias": bias, "sandwich": sandwich, "normed_heads": normed_heads, "scale": divisor**-0.5}
    common |= {"softcap": caps["attn_logit_softcapping"]}
    common |= {"attention_dropout": fields.dropout("attention_dropout", default=0.0)}
    attentions = {size: sizes.attention(sliding=size, **common, **rotary[size]) for size in rotary}
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    ffn = sizes.feed_forward(activation=activation, gated=True, bias=False, sandwich=sandwich)
    padding = fields.padding(sizes.vocabulary, default=0)
    embedding = sizes.embedding(padding=padding, scale=math.sqrt(sizes.hidden))
    head = sizes.head(softcap=caps["final_logit_softcapping"])
    blocks = [{"attention": attentions[window], "ffn": ffn} for window in windows]
    return sizes.varied(blocks, embedding, head), fields.flag("tie_word_embeddings", True)


def soft_cap(fields: Fields, name: str, default: float | None) -> float:
    """Read a soft cap, the limit c of c tanh(x / c), from a field; 0 for none, if it is null, or absent with a default of
    None.

    Raises InputError for other values than null and numbers above 0. fields: the configuration; fields that are read are
    recorded in it.
    """
    value = fields.config.get(name, default)
    fields.read[name] = value
    if value is None:
        return 0.0
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise fields.fail(name, f"is {shown(value)}", "give null, or a number above 0, such as 30")
    return float(value)


SOFT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
# As of transformers' Gemma2Config; the last ones are of its earlier versions.
FIELDS = USUAL_FIELDS | names(
    """
    hidden_activation rms_norm_eps attention_bias query_pre_attn_scalar sliding_window layer_types final_logit_softcapping
    attn_logit_softcapping use_bidirectional_attention hidden_act cache_implementation sliding_window_size
    """
)
FAMILY = Family(gemma2, SIZES, FIELDS)
