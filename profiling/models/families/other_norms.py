"""Families whose norms are elsewhere than those of a Llama, or of another kind.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.gemma2 import FAMILY as GEMMA2
from trainplan.profiling.models.families.gemma2 import gemma2
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, plain, rotary_of, stretched_rotary
from trainplan.profiling.models.sublayers import Activation


def jais2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Jais 2 model: layer norms, biases, and squared ReLU without a gate.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    bias, inner = fields.flag("attention_bias", True), fields.flag("mlp_bias", True)
    ffn = {"activation": fields.activation("hidden_act", "relu2"), "bias": inner}
    return layered(fields, sizes, {"bias": bias, "out_bias": bias}, ffn, rotary_of(fields, sizes, base=500000.0))


def vaultgemma(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a VaultGemma model: Gemma 2 without norms after attention and feed-forward network.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    return gemma2(fields, sandwich=False)


def hunyuan_v1_dense(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a dense Hunyuan model: a Llama with norms on queries and keys after the rotation.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5), fields.flag("attention_bias", False)
    fields.only("use_qk_norm", True)
    fields.only("mlp_bias", False)
    fields.only("norm_type", "rms")
    inside = {"normed_heads": True, "turned_first": True}
    return plain(fields, sizes, bias, bias, False, attention=inside, padding=0)


def apertus(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an Apertus model: xIELU without a gate, and norms on queries and keys.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5), fields.flag("attention_bias", False)
    ffn = {"activation": fields.activation("hidden_act", "xielu", XIELU), "bias": False}
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True}
    return layered(fields, sizes, inside, ffn, stretched_rotary(fields, sizes, base=12e6, factor=8.0), padding=3)


XIELU: dict[str, Activation] = {"xielu": "xielu"}


def starcoder2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a StarCoder 2 model: layer norms, biases, dropout, and a feed-forward network without a
    gate.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", epsilon="norm_epsilon", usual_epsilon=1e-5)
    bias, dropped = fields.flag("use_bias", True), {"dropout": fields.dropout("residual_dropout", default=0.0)}
    embedding = {"dropout": fields.dropout("embedding_dropout", default=0.0)}
    ffn = {"activation": fields.activation("hidden_act", "gelu_pytorch_tanh"), "bias": bias, **dropped}
    inside, rotary = {"bias": bias, "out_bias": bias, **dropped}, rotary_of(fields, sizes)
    windows = [sliding_window(fields)] * sizes.layers
    return layered(fields, sizes, inside, ffn, rotary, windows=windows, embedding=embedding, tied=True)


def stablelm(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a StableLM model: layer norms, a gate, and rotary positions on a quarter of each head.

    In some of these models attention and feed-forward network run in parallel. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    bias, dropped = fields.flag("use_qkv_bias", False), fields.dropout("hidden_dropout", default=0.0)
    normed, both = fields.flag("qk_layernorm", False), fields.flag("use_parallel_residual", False)
    if both:
        fields.note("hidden_dropout", usual=0)
    ffn = gated(fields, False, dropout=0.0 if both else dropped)
    inside = {"bias": bias, "out_bias": False, "normed_heads": normed, "head_weights": "each"}
    return layered(fields, sizes, inside, ffn, rotary_of(fields, sizes, part=0.25), side_by_side=both)


def persimmon(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Persimmon model: layer norms, biases, squared ReLU, norms on queries and keys, rotary
    position embedding on half of each head.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.config = {**fields.config, "num_key_value_heads": fields.config.get("num_attention_heads")}
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    fields.read.pop("num_key_value_heads")
    normed, dropped = fields.flag("qk_layernorm", True), {"dropout": fields.dropout("hidden_dropout", default=0.0)}
    ffn = {"activation": fields.activation("hidden_act", "relu2"), **dropped}
    return layered(fields, sizes, {"normed_heads": normed}, ffn, rotary_of(fields, sizes, part=0.5, base=25000.0))


def olmo(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an OLMo model: a Llama with layer norms that have no weights.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.config = {**fields.config, "layer_norm_eps": 1e-5}
    sizes, bias = decoder(fields, norm="layer", epsilon="layer_norm_eps"), fields.flag("attention_bias", False)
    fields.read.pop("layer_norm_eps")
    fields.note("clip_qkv", usual=None)
    plain = {"norm_weight": False}
    inside, ffn = {"bias": bias, "out_bias": bias, **plain}, gated(fields, False, **plain)
    return layered(fields, sizes, inside, ffn, rotary_of(fields, sizes), head=plain, padding=1)


def olmo2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an OLMo 2 model: norms only after attention and feed-forward network, and one norm over
    all queries (or keys) of a token.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    return _norms_after(fields, sizes, fields.flag("attention_bias", False), "all", base=10000.0, padding=1)


def olmo3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an OLMo 3 model: OLMo 2 with a sliding window in three of four layers.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    usual = [(i + 1) % 4 > 0 for i in range(sizes.layers)]
    windows = layer_windows(fields, sizes.layers, sliding_window(fields, 4096), usual)
    bias = fields.flag("attention_bias", False)
    return _norms_after(fields, sizes, bias, "all", base=500000.0, padding=1, windows=windows)


def exaone4(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an EXAONE 4 model: norms only after attention and feed-forward network, and on queries
    and keys.

    In models with sliding windows, the layers without one have no rotary positions. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    window = sliding_window(fields, 4096)
    pattern = fields.config.get("sliding_window_pattern", 4)
    if pattern is not None:
        fields.read["sliding_window_pattern"] = pattern
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:  # such as LLLG
        usual = [pattern[i % len(pattern)] == "L" for i in range(sizes.layers)]
    elif type(pattern) is int and pattern > 0:
        usual = [(i + 1) % pattern > 0 for i in range(sizes.layers)]
    elif pattern in (None, 0) and not window:
        usual = [False] * sizes.layers
    else:
        raise fields.fail("sliding_window_pattern", f"is {shown(pattern)}", "give a whole number of layers, such as 4")
    windows = layer_windows(fields, sizes.layers, window, usual)
    rotating = [not window or size > 0 for size in windows]
    return _norms_after(fields, sizes, False, "shared", base=10000.0, windows=windows, rotating=rotating)


def _norms_after(
    fields: Fields, sizes: Decoder, bias: bool, weights: Literal["shared", "all"], base: float, **options: Any
) -> Chain:
    """Build the chain of sub-layers of a decoder with norms only after attention and feed-forward network, and on queries and
    keys.

    sizes: the model's sizes, read before. bias: whether attention's projections have a bias. weights: the norms on queries
    and keys: one weight "shared" by all heads, or one norm over "all" heads together. base: the base of the rotary angles, if
    the file states none. options: further arguments of `layered`. fields: the configuration (config.json), written to:
    `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in order, and
    whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    norms_after = {"pre_norm": False, "sandwich": True}
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True, "head_weights": weights, **norms_after}
    return layered(fields, sizes, inside, gated(fields, False, **norms_after), rotary_of(fields, sizes, base=base), **options)


JAIS2 = described(jais2, "layer_norm_eps attention_bias mlp_bias")
VAULTGEMMA = replace(GEMMA2, build=vaultgemma)
HUNYUAN_V1_DENSE = described(
    hunyuan_v1_dense, "rms_norm_eps attention_bias eod_token_id use_qk_norm mlp_bias norm_type attention_head_dim"
)
APERTUS = described(apertus, "rms_norm_eps attention_bias post_norm qk_norm")
STARCODER2 = described(starcoder2, "norm_epsilon use_bias residual_dropout embedding_dropout sliding_window mlp_type norm_type")
STABLELM = described(
    stablelm,
    "layer_norm_eps use_qkv_bias qk_layernorm use_parallel_residual hidden_dropout partial_rotary_factor rope_pct norm_eps",
    {"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"},
)
PERSIMMON = described(persimmon, "layer_norm_eps qk_layernorm hidden_dropout partial_rotary_factor")
OLMO = described(olmo, "attention_bias clip_qkv")
OLMO2 = described(olmo2, "rms_norm_eps attention_bias")
OLMO3 = described(olmo3, "rms_norm_eps attention_bias sliding_window layer_types")
EXAONE4 = described(exaone4, "rms_norm_eps sliding_window sliding_window_pattern layer_types")
