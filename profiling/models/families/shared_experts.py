"""Decoders whose layers have shared experts as well as routed ones, and attention as dense decoders have it.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import NO_ROTATION, Chain, described, gated, layered, rotary_of
from trainplan.profiling.models.families.like_llama import rotating_layers
from trainplan.profiling.models.families.mixtures import PLAIN, ROUTED
from trainplan.profiling.models.families.routing import (
    dense_first,
    experts_of,
    further_tokens,
    grouped,
    indices,
    networks_of,
    shared_inner,
)


def glm4_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a GLM 4.5 or 4.6 model: rotary positions on half of each head, first dense layers, then
    experts that a sigmoid scores, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    inside = {
        "bias": fields.flag("attention_bias", False),
        "out_bias": False,
        "normed_heads": fields.flag("use_qk_norm", False),
    }
    further_tokens(fields)
    return _dense_first(fields, sizes, inside, rotary_of(fields, sizes, part=0.5), shared=1, dense=1)


def dots1(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a dots.llm1 model: norms of queries and keys, first dense layers, then experts that a
    sigmoid scores, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    window, first = sliding_window(fields, missing=4096), fields.count("max_window_layers", 62, least=0)
    windows = layer_windows(fields, sizes.layers, window, [window > 0 and i >= first for i in range(sizes.layers)])
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True}
    return _dense_first(fields, sizes, inside, rotary_of(fields, sizes), shared=0, dense=0, windows=windows)


def solar_open(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Solar Open model: experts that a sigmoid scores, and shared experts, in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    unused = {"intermediate_size": fields.size("moe_intermediate_size", such_as=1280), **fields.config}
    fields.config = unused  # no layer is dense
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=128), fields.flag("attention_bias", False)
    rotary = rotary_of(fields, sizes, base=1e6)
    return _dense_first(fields, sizes, {"bias": bias, "out_bias": False}, rotary, shared=1, dense=0)


def exaone_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a K-EXAONE model: norms of queries and keys, rotary positions in layers with a sliding
    window alone, first dense layers, then experts that a sigmoid scores, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, window = decoder(fields, usual_epsilon=1e-5), sliding_window(fields, missing=4096)
    every = fields.count("sliding_window_pattern", 4) if window else 1
    windows = layer_windows(fields, sizes.layers, window, [(i + 1) % every > 0 for i in range(sizes.layers)])
    rotating = [not window or slides > 0 for slides in windows]
    inside = {"bias": False, "out_bias": False, "normed_heads": True}
    options: dict[str, Any] = {"count": "num_experts", "always": "num_shared_experts", "windows": windows, "padding": 0}
    return _dense_first(fields, sizes, inside, rotary_of(fields, sizes), shared=1, dense=1, rotating=rotating, **options)


def hy_v3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Hunyuan 3 model: norms of queries and keys, a first dense layer, then experts that a
    sigmoid scores, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=128), fields.flag("attention_bias", False)
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True}
    options: dict[str, Any] = {"count": "num_experts", "always": "num_shared_experts", "bias": fields.flag("mlp_bias", False)}
    return _dense_first(fields, sizes, inside, rotary_of(fields, sizes, base=11158840.0), shared=1, dense=1, **options)


def _dense_first(
    fields: Fields,
    sizes: Decoder,
    inside: dict[str, Any],
    rotary: dict[str, Any],
    shared: int,
    dense: int,
    count: str = "n_routed_experts",
    always: str = "n_shared_experts",
    bias: bool = False,
    **options: Any,
) -> Chain:
    """Build the chain of sub-layers of a decoder with first dense layers, then layers of experts as DeepSeek V3 has them.

    sizes: the model's sizes, read before. inside: keyword arguments of attention; rotary: those of its rotary positions.
    shared, dense: the numbers of shared experts and of dense layers, if the configuration states none. count, always: the
    fields with the numbers of routed and of shared experts. bias: whether dense and shared experts have biases. options:
    further arguments of `layered`. Returns the units in order, and whether head and embedding share one matrix. Raises
    InputError for fields that are missing or invalid.
    """
    routing: dict[str, Any] = {"scoring": "sigmoid", "balanced": True, **grouped(fields, count)}
    inner, ffn = shared_inner(fields, always, shared), gated(fields, bias)
    experts = experts_of(fields, sizes, count, shared_inner=inner, shared_bias=bias, **routing)
    networks = networks_of(dense_first(fields, sizes.layers, dense), experts, sizes.feed_forward(**ffn))
    return layered(fields, sizes, inside, ffn, rotary, networks=networks, **options)


def ernie4_5_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an ERNIE 4.5 mixture of experts: rotary positions in adjacent pairs, experts in the
    layers of a range, or in every n-th of them, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5), fields.flag("use_bias", False)
    last = fields.config.get("moe_layer_end_index")
    first, every = fields.count("moe_layer_start_index", 1, least=0), fields.count("moe_layer_interval", 1)
    last = sizes.layers - 1 if last in (None, -1) else fields.count("moe_layer_end_index", least=0)
    sparse = [first <= i <= last and (i + 1) % every == 0 for i in range(sizes.layers)]
    always = shared_inner(fields, "moe_num_shared_experts", 2)
    options: dict[str, Any] = {"chosen": "moe_k", "balanced": True, "shared_inner": always, "shared_bias": bias}
    experts, ffn = experts_of(fields, sizes, "moe_num_experts", **options), gated(fields, bias)
    networks = networks_of(sparse, experts, sizes.feed_forward(**ffn))
    inside = {"bias": bias, "out_bias": bias, "interleaved": True}
    rotary, head = rotary_of(fields, sizes, base=500000.0), {"bias": bias}
    return layered(fields, sizes, inside, ffn, rotary, networks=networks, head=head, tied=True, padding=0)


def hunyuan_v1_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Hunyuan mixture of experts: norms of queries and keys after the rotation, experts in
    every layer, and one shared expert of the same size.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5), fields.flag("attention_bias", False)
    for name in ("moe_topk", "num_experts"):
        _equal_by_layer(fields, name)
    always = sizes.inner if fields.count("num_experts", 1) > 1 else 0
    options: dict[str, Any] = {"inner": "intermediate_size", "chosen": "moe_topk", "shared_inner": always}
    networks = [experts_of(fields, sizes, "num_experts", **options)] * sizes.layers
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True, "turned_first": True}
    rotary = rotary_of(fields, sizes)
    return layered(fields, sizes, inside, gated(fields, False), rotary, networks=networks, padding=0)


def _equal_by_layer(fields: Fields, name: str) -> None:
    """Put the one value of a list with a number for each layer in its place in the configuration; a single number stays.

    fields: the configuration. name: the field. Raises InputError for a list whose numbers differ.
    """
    value = fields.config.get(name)
    if not isinstance(value, list):
        return
    if len(set(map(repr, value))) != 1:
        raise fields.fail(name, f"is {shown(value)}", "give one number for all layers: layers of different ones are not read")
    fields.config = {**fields.config, name: value[0]}


def llama4_text(fields: Fields) -> Chain:
    """Build the chain of sub-layers of the language model of Llama 4: attention in chunks with rotary positions, but in every
    fourth layer to all keys without them; experts in every n-th layer, which probabilities multiply at their input, and a
    shared expert.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=128), fields.flag("attention_bias", False)
    every = fields.count("no_rope_layer_interval", 4)
    if fields.config.get("no_rope_layers") == []:
        fields.config = {**fields.config, "no_rope_layers": None}
    rotating = rotating_layers(fields, "no_rope_layers", [(i + 1) % every > 0 for i in range(sizes.layers)])
    step = fields.count("interleave_moe_layer_step", 1)
    given = indices(fields, "moe_layers", sizes.layers) if fields.config.get("moe_layers") is not None else None
    chosen = range(step - 1, sizes.layers, step) if given is None else given
    options: dict[str, Any] = {"scoring": "sigmoid", "weighted": "input", "shared_inner": sizes.inner}
    experts = experts_of(fields, sizes, "num_local_experts", inner="intermediate_size", **options)
    dense = sizes.feed_forward(inner=fields.count("intermediate_size_mlp", 16384), **gated(fields, False))
    networks = networks_of([i in chosen for i in range(sizes.layers)], experts, dense)
    chunk = 0
    if fields.config.get("attention_chunk_size", 8192) is None:
        fields.read["attention_chunk_size"] = None
    else:
        chunk = fields.count("attention_chunk_size", 8192)
    dropped = fields.dropout("attention_dropout", default=0.0)
    inside = {"bias": bias, "out_bias": bias, "attention_dropout": dropped}
    norm = {"normed_heads": fields.flag("use_qk_norm", True), "head_weights": "none", "turned_first": True}
    turned = sizes.attention(chunk=chunk, interleaved=True, **inside, **norm, **rotary_of(fields, sizes, base=500000.0))
    mixers = [turned if turns else sizes.attention(**inside, **NO_ROTATION) for turns in rotating]
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    return sizes.patterned(mixers, networks, table), fields.flag("tie_word_embeddings", False)


LIKE_V3 = (
    f"{ROUTED} n_routed_experts n_shared_experts moe_intermediate_size first_k_dense_replace moe_layer_freq n_group topk_group"
    " mlp_layer_types attention_bias"
)
ROUTED_NAMES = {"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts"}
NEXT = {"num_mtp_layers": "num_nextn_predict_layers"}
GLM4_MOE = described(glm4_moe, f"{LIKE_V3} use_qk_norm partial_rotary_factor num_nextn_predict_layers", ROUTED_NAMES | NEXT)
DOTS1 = described(dots1, f"{LIKE_V3} sliding_window max_window_layers layer_types use_sliding_window", ROUTED_NAMES)
SOLAR_OPEN = described(solar_open, LIKE_V3, ROUTED_NAMES)
EXAONE_MOE = described(
    exaone_moe,
    f"{LIKE_V3} num_experts num_shared_experts sliding_window sliding_window_pattern layer_types",
    PLAIN,
)
HY_V3 = described(
    hy_v3,
    f"{LIKE_V3} num_experts num_shared_experts router_scaling_factor enable_moe_fp32_combine mlp_bias",
    PLAIN,
)
ERNIE4_5_MOE = described(
    ernie4_5_moe,
    f"{ROUTED} use_bias moe_num_experts moe_num_shared_experts moe_k moe_intermediate_size moe_layer_start_index"
    " moe_layer_end_index moe_layer_interval moe_norm_min moe_capacity moe_gate moe_use_aux_free moe_use_hard_gate"
    " compression_ratio use_rmsnorm num_nextn_predict_layers",
    {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)
HUNYUAN_V1_MOE = described(
    hunyuan_v1_moe,
    f"{ROUTED} num_experts moe_topk attention_bias use_qk_norm mlp_bias norm_type moe_intermediate_size num_shared_expert"
    " use_mixed_mlp_moe eod_token_id use_cla cla_share_factor attention_head_dim",
    PLAIN | {"num_experts_per_tok": "moe_topk"},
)
LLAMA4_TEXT = described(
    llama4_text,
    f"{ROUTED} num_local_experts attention_bias intermediate_size_mlp interleave_moe_layer_step moe_layers no_rope_layers"
    " no_rope_layer_interval attention_chunk_size use_qk_norm attn_temperature_tuning attn_scale floor_scale layer_types"
    " for_llm_compressor",
    {"num_experts": "num_local_experts"},
)
