"""Gemma 2: norms before and behind the matrices, soft-capped scores and logits, every second layer within a window.

Its files keep the weights of norms less 1; trainplan's are the weights that norms work with. Gradients are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation

HEAD_WIDTH = 256  # and the number whose root divides scores, of files without these fields


def gemma2(fields: Fields, sandwich: bool = True) -> tuple[list[Unit], bool]:
    """The chain of a Gemma 2 configuration. sandwich: with norms behind the matrices, too."""
    sizes = decoder(fields, width=HEAD_WIDTH)
    window = sliding_window(fields, missing=4096)
    windows = layer_windows(fields, sizes.layers, window, [i % 2 == 0 for i in range(sizes.layers)])
    turning = rotation(fields, sizes.positions, sizes.tokens, sizes.width)
    caps = {name: soft_cap(fields, name, default) for name, default in SOFT_CAPS.items()}
    return gemma_chain(fields, sizes, windows, dict.fromkeys(windows, turning), caps, sandwich=sandwich)


def gemma_chain(
    fields: Fields,
    sizes: Decoder,
    windows: Sequence[int],
    turning: Mapping[int, Mapping[str, Any]],
    caps: Mapping[str, float],
    normed_heads: bool = False,
    sandwich: bool = True,
) -> tuple[list[Unit], bool]:
    """The chain of a Gemma. windows: of each layer. turning: the rotation's keyword arguments, by window. caps: of scores and
    logits, by the fields' names. sandwich: with norms behind the matrices, too."""
    fields.absent("use_bidirectional_attention")
    bias, divisor = fields.flag("attention_bias", False), fields.count("query_pre_attn_scalar", HEAD_WIDTH)
    common = {"bias": bias, "out_bias": bias, "sandwich": sandwich, "normed_heads": normed_heads, "scale": divisor**-0.5}
    common |= {"softcap": caps["attn_logit_softcapping"]}
    common |= {"attention_dropout": fields.dropout("attention_dropout", default=0.0)}
    attentions = {each: sizes.attention(sliding=each, **common, **turning[each]) for each in turning}
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    ffn = sizes.feed_forward(activation=activation, gated=True, bias=False, sandwich=sandwich)
    padding = fields.padding(sizes.vocabulary, default=0)
    embedding = sizes.embedding(padding=padding, scale=math.sqrt(sizes.hidden))
    head = sizes.head(softcap=caps["final_logit_softcapping"])
    blocks = [{"attention": attentions[window], "ffn": ffn} for window in windows]
    return sizes.varied(blocks, embedding, head), fields.flag("tie_word_embeddings", True)


def soft_cap(fields: Fields, name: str, default: float | None) -> float:
    """The c of c tanh(x / c); 0 where the configuration says null, or nothing by default."""
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
