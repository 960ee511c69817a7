"""Decoders that are a Llama under other names or with a few switches: the chain of units of such a decoder from keyword
arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, Decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation
from trainplan.profiling.models.sublayers import ParallelBlock, Sublayer

Chain = tuple[list[Unit], bool]  # a model's units in order, and whether the matrix of its head is the embedding's
LLAMA3_SCALING = {  # defaults of classes of transformers that stretch their rotary angles like Llama 3; the factor differs
    "rope_type": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
NO_ROTATION: dict[str, Any] = {"rotary": 0.0, "scaling": None, "rotary_width": 0}  # attention without rotary positions


def layered(
    fields: Fields,
    sizes: Decoder,
    attention: Mapping[str, Any],
    ffn: Mapping[str, Any],
    rotary: Mapping[str, Any],
    *,
    windows: Sequence[int] | None = None,
    rotating: Sequence[bool] | None = None,
    networks: Sequence[Sublayer] | None = None,
    side_by_side: bool = False,
    embedding: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    tied: bool = False,
    padding: int | None = None,
) -> Chain:
    """Build the chain of sub-layers of a decoder from keyword arguments of its parts. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix.

    fields: the configuration, from which dropout, the padding token and tying are read. sizes: the model's sizes, read
    before. attention, ffn, embedding, head: keyword arguments of these parts; rotary: keyword arguments of attention for its
    rotary positions. windows: each layer's sliding window in tokens (None: no windows). rotating: whether each layer has
    rotary positions (None: all have). networks: each layer's feed-forward network or experts, in place of `ffn` (None: all
    layers have the same network). side_by_side: whether attention and feed-forward network read the same norm's result in
    parallel. tied, padding: whether head and embedding share one matrix, and the padding token, if the configuration does not
    state them. Raises InputError for fields that are invalid.
    """
    if "attention_dropout" not in attention:
        attention = {"attention_dropout": fields.dropout("attention_dropout", default=0.0), **attention}
    pairs = list(zip(windows or [0] * sizes.layers, rotating or [True] * sizes.layers, strict=True))
    network = sizes.feed_forward(**ffn)
    mixers = {
        (window, turns): sizes.attention(sliding=window, **attention, **(rotary if turns else NO_ROTATION))
        for window, turns in dict.fromkeys(pairs)
    }
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary, padding), **(embedding or {}))
    last = sizes.head(**(head or {}))
    if side_by_side:
        common = {**sizes.common, "feed_forward": network, "shared_norm": True}
        blocks = {pair: {"block": ParallelBlock(**common, attention=mixer)} for pair, mixer in mixers.items()}
        units = sizes.varied([blocks[pair] for pair in pairs], table, last)
    else:
        units = sizes.patterned([mixers[pair] for pair in pairs], networks or [network] * sizes.layers, table, last)
    return units, fields.flag("tie_word_embeddings", tied)


def rotary_of(fields: Fields, sizes: Decoder, **options: Any) -> dict[str, Any]:
    """Keyword arguments of `Attention` for the rotary positions of a configuration. Raises InputError for invalid fields.

    sizes: the model's sizes, read before. options: further arguments of `rotation`, such as the usual `base` of the angles.
    """
    return rotation(fields, sizes.positions, sizes.tokens, sizes.width, **options)


def stretched_rotary(fields: Fields, sizes: Decoder, base: float, factor: float) -> dict[str, Any]:
    """Keyword arguments of `Attention` for rotary positions that are stretched as in Llama 3 unless the configuration states
    otherwise.

    base: the base of the angles, and factor: the factor by which they are stretched, both used if the file does not state
    them. If the file states no stretching, `rope_scaling` is added to `fields.config`. Raises InputError for invalid fields.
    """
    rope = fields.config.get("rope_parameters") or fields.config.get("rope_scaling")
    if not rope:
        fields.config = {**fields.config, "rope_scaling": {**LLAMA3_SCALING, "factor": factor}}
    rotary = rotary_of(fields, sizes, base=base)
    fields.read.setdefault("rope_scaling", {"rope_type": "default"})
    return rotary


def gated(fields: Fields, bias: bool, **options: Any) -> dict[str, Any]:
    """Keyword arguments of a gated feed-forward network with the configuration's activation (`hidden_act`, default SiLU).

    bias: whether its projections have a bias. options: further keyword arguments, added unchanged. Raises InputError for
    invalid fields.
    """
    return {"activation": fields.activation("hidden_act", "silu"), "gated": True, "bias": bias, **options}


def plain(fields: Fields, sizes: Decoder, bias: bool, out_bias: bool, ffn_bias: bool, **options: Any) -> Chain:
    """Build the chain of sub-layers of a Llama with or without biases: the units in order, and whether the head's matrix is
    the embedding's.

    sizes: the model's sizes, read before. bias: whether queries, keys and values have a bias; out_bias: whether attention's
    output projection has one; ffn_bias: whether the feed-forward network has one. options: further arguments of `layered`,
    and `base`, the base of the rotary angles if the file states none. Raises InputError for fields that are invalid.
    """
    rotary = options.pop("rotary", None) or rotary_of(fields, sizes, base=options.pop("base", 10000.0))
    inside = {"bias": bias, "out_bias": out_bias, **options.pop("attention", {})}
    return layered(fields, sizes, inside, gated(fields, ffn_bias), rotary, **options)


def described(build: Callable[[Fields], Chain], more: str = "", aliases: Mapping[str, str] | None = None) -> Family:
    """Make the entry of the table of families for a family that has the usual fields of decoders, and further ones.

    build: builds the chain of sub-layers from a configuration. more: names of further fields, separated by spaces, as in
    transformers' class or in the code of the publisher. aliases: other names of fields, mapped to the family's names.
    """
    usual = USUAL_FIELDS | names("hidden_act pretraining_tp")
    return Family(build, SIZES, usual | names(more), aliases or {})
