"""What families share that are a Llama with other names, or with one more switch: the chain of such a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation
from trainplan.profiling.models.sublayers import ParallelBlock, Sublayer

Chain = tuple[list[Unit], bool]
OF_LLAMA3 = {  # as of classes of transformers whose rotation is stretched so, by a factor, where a file says nothing
    "rope_type": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
STILL: dict[str, Any] = {"rotary": 0.0, "scaling": None, "rotary_width": 0}  # of layers without positions


def layered(
    fields: Fields,
    sizes: Decoder,
    attention: Mapping[str, Any],
    ffn: Mapping[str, Any],
    turning: Mapping[str, Any],
    *,
    windows: Sequence[int] | None = None,
    turned: Sequence[bool] | None = None,
    side_by_side: bool = False,
    embedding: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    tied: bool = False,
    padding: int | None = None,
) -> Chain:
    """The chain of a decoder, of keyword arguments of its parts, and whether its head is tied.

    windows, turned: of each layer its sliding window, and whether its heads turn (default: none; all). side_by_side: attention
    and feed-forward network read one norm's result. tied, padding: where the configuration does not say.
    """
    if "attention_dropout" not in attention:
        attention = {"attention_dropout": fields.dropout("attention_dropout", default=0.0), **attention}
    pairs = list(zip(windows or [0] * sizes.layers, turned or [True] * sizes.layers, strict=True))
    network = sizes.feed_forward(**ffn)
    parts: dict[tuple[int, bool], dict[str, Sublayer]] = {}
    for window, turns in dict.fromkeys(pairs):
        placed = turning if turns else STILL
        own = sizes.attention(sliding=window, **attention, **placed)
        parts[window, turns] = {"attention": own, "ffn": network}
        if side_by_side:
            block = ParallelBlock(**sizes.common, attention=own, feed_forward=network, shared_norm=True)
            parts[window, turns] = {"block": block}
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary, padding), **(embedding or {}))
    units = sizes.varied([parts[pair] for pair in pairs], table, sizes.head(**(head or {})))
    return units, fields.flag("tie_word_embeddings", tied)


def turning_of(fields: Fields, sizes: Decoder, **options: Any) -> dict[str, Any]:
    """The rotation of a configuration's heads, of options of `rotation`."""
    return rotation(fields, sizes.positions, sizes.tokens, sizes.width, **options)


def stretched_turning(fields: Fields, sizes: Decoder, base: float, factor: float) -> dict[str, Any]:
    """The same in families whose rotation is stretched, by so much, unless a file says otherwise."""
    said = fields.config.get("rope_parameters") or fields.config.get("rope_scaling")
    if not said:
        fields.config = {**fields.config, "rope_scaling": {**OF_LLAMA3, "factor": factor}}
    turning = turning_of(fields, sizes, base=base)
    fields.read.setdefault("rope_scaling", {"rope_type": "default"})
    return turning


def gated(fields: Fields, bias: bool, **options: Any) -> dict[str, Any]:
    """A gated feed-forward network."""
    return {"activation": fields.activation("hidden_act", "silu"), "gated": True, "bias": bias, **options}


def plain(fields: Fields, sizes: Decoder, bias: bool, out_bias: bool, ffn_bias: bool, **options: Any) -> Chain:
    """A Llama with these biases."""
    turning = options.pop("turning", None) or turning_of(fields, sizes, base=options.pop("base", 10000.0))
    inside = {"bias": bias, "out_bias": out_bias, **options.pop("attention", {})}
    return layered(fields, sizes, inside, gated(fields, ffn_bias), turning, **options)


def described(build: Callable[[Fields], Chain], more: str = "", aliases: Mapping[str, str] | None = None) -> Family:
    """A family with the usual fields, and more of them: as of transformers' class of its name, or of the code that its
    publishers' files come with."""
    usual = USUAL_FIELDS | names("hidden_act pretraining_tp")
    return Family(build, SIZES, usual | names(more), aliases or {})
