"""Decoders with latent attention: DeepSeek V2 and V3, and families with the same layers.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder
from trainplan.profiling.models.families.fields import Fields, names
from trainplan.profiling.models.families.layered import Chain, described, gated
from trainplan.profiling.models.families.rotation import rotation
from trainplan.profiling.models.families.routing import (
    ROUTER_FIELDS,
    dense_first,
    experts_of,
    further_tokens,
    grouped,
    networks_of,
    shared_inner,
)
from trainplan.profiling.models.sublayers import Indexer, LatentAttention


def latent_attention(fields: Fields, sizes: Decoder, interleaved: bool, **options: Any) -> LatentAttention:
    """Read a latent attention from the fields that DeepSeek's files have: `q_lora_rank` (null: none), `kv_lora_rank`,
    `qk_nope_head_dim`, `qk_rope_head_dim` and `v_head_dim`.

    sizes: the model's sizes, read before. interleaved: whether rotary positions turn pairs of adjacent numbers. options:
    further keyword arguments of `LatentAttention`. Raises InputError for fields that are missing or invalid.
    """
    whole = "q_lora_rank" in fields.config and fields.config["q_lora_rank"] is None  # which differs from a missing field
    queries = 0 if whole else fields.size("q_lora_rank", such_as=1536)
    if whole:
        fields.read["q_lora_rank"] = None
    plain, turned = fields.size("qk_nope_head_dim", such_as=128), fields.size("qk_rope_head_dim", such_as=64)
    rotary = rotation(fields, sizes.positions, sizes.tokens, turned)
    rope = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    stretch = 0.1 * rope.get("mscale_all_dim", 0) * math.log(rope["factor"]) + 1 if rope.get("factor", 1) > 1 else 1.0
    return LatentAttention(
        **sizes.common,
        heads=sizes.heads,
        query_latent=queries,
        latent=fields.size("kv_lora_rank", such_as=512),
        plain=plain,
        turned=turned,
        value_width=fields.size("v_head_dim", such_as=128),
        bias=fields.flag("attention_bias", False),
        rotary=rotary["rotary"],
        scaling=rotary["scaling"],
        interleaved=interleaved,
        scale=stretch * stretch / math.sqrt(plain + turned),
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **options,
    )


def deepseek_v2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a DeepSeek V2 model: latent attention, first dense layers, then experts that a softmax
    scores, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.note("topk_method")
    in_groups = fields.config.get("topk_method") == "group_limited_greedy"
    groups = grouped(fields, "n_routed_experts") if in_groups else {}
    return _deepseek(fields, True, shared=2, dense=0, routing=groups)


def deepseek_v3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a DeepSeek V3 or V3.1, or of a Kimi K2: latent attention, first dense layers, then
    experts that a sigmoid scores, in groups, and shared experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    further_tokens(fields)
    routing: dict[str, Any] = {"scoring": "sigmoid", "balanced": True, **grouped(fields, "n_routed_experts", (8, 4))}
    return _deepseek(fields, fields.flag("rope_interleave", True), shared=1, dense=3, routing=routing)


def deepseek_v32(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a DeepSeek V3.2 model: V3 whose attention sees only the keys that an indexer chooses.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    further_tokens(fields)
    indexers = [_indexer(fields)] * fields.layers("num_hidden_layers", such_as=61)
    routing: dict[str, Any] = {"scoring": "sigmoid", "balanced": True, **grouped(fields, "n_routed_experts", (8, 4))}
    return _deepseek(fields, True, shared=1, dense=3, routing=routing, indexers=indexers)


def glm_moe_dsa(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a GLM 5 model: the layers of DeepSeek V3.2, some of which see the keys that an earlier
    layer's indexer chose.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    further_tokens(fields)
    indexer = _indexer(fields, heads=32)
    layers = fields.layers("num_hidden_layers", such_as=78)
    routing: dict[str, Any] = {"scoring": "sigmoid", "balanced": True, **grouped(fields, "n_routed_experts")}
    indexers = [replace(indexer, borrowed=borrowed) for borrowed in _borrowing(fields, layers)]
    return _deepseek(fields, True, shared=1, dense=3, routing=routing, indexers=indexers)


def _borrowing(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer sees the keys that an earlier layer's indexer chose: by `indexer_types` ("full" or "shared") or
    `index_topk_pattern` (F or S), else by every `index_topk_freq`-th layer's having one from `index_skip_topk_offset` on.

    layers: the number of layers. Raises InputError for invalid fields.
    """
    words = {"full": False, "shared": True, "F": False, "S": True}
    for name in ("indexer_types", "index_topk_pattern"):
        if (value := fields.config.get(name)) is not None:
            if not isinstance(value, list | str) or len(value) != layers or any(one not in words for one in value):
                raise fields.fail(name, f"is {shown(value)}", f'give "full" or "shared" for each of {layers} layers')
            fields.read[name] = value
            return [words[one] for one in value]
    every, offset = fields.count("index_topk_freq", 1), fields.count("index_skip_topk_offset", 2, least=0)
    return [max(i - offset + 1, 0) % every > 0 for i in range(layers)]


def _indexer(fields: Fields, heads: int = 64) -> Indexer:
    """Read the indexer of sparse attention. heads: its number of heads if the configuration states none. Raises InputError for
    invalid fields."""
    heads, width = fields.count("index_n_heads", heads), fields.count("index_head_dim", 128)
    return Indexer(heads, width, fields.count("index_topk", 2048))


def glm4_moe_lite(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a GLM 4.7 Flash model: the layers of DeepSeek V3, of which the first is dense.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    further_tokens(fields)
    routing: dict[str, Any] = {"scoring": "sigmoid", "balanced": True, **grouped(fields, "n_routed_experts")}
    return _deepseek(fields, fields.flag("rope_interleave", True), shared=1, dense=1, routing=routing)


def _deepseek(
    fields: Fields, interleaved: bool, shared: int, dense: int, routing: dict[str, Any], indexers: list[Indexer] | None = None
) -> Chain:
    """Build the chain of sub-layers of a decoder of latent attention, first dense layers, and experts with shared ones.

    interleaved: whether rotary positions turn pairs of adjacent numbers. shared, dense: the numbers of shared experts and of
    dense layers, if the configuration states none. routing: further keyword arguments of `Experts`. indexers: each layer's
    choice of keys of sparse attention. fields: the configuration; fields that are read are recorded in it. Returns the units in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes = decoder(fields, width=fields.size("qk_rope_head_dim", such_as=64))
    attention, bias = latent_attention(fields, sizes, interleaved), fields.flag("mlp_bias", False)
    always = shared_inner(fields, "n_shared_experts", shared)
    experts = experts_of(fields, sizes, "n_routed_experts", shared_inner=always, shared_bias=bias, **routing)
    networks = networks_of(dense_first(fields, sizes.layers, dense), experts, sizes.feed_forward(**gated(fields, bias)))
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    mixers = [attention] * sizes.layers if indexers is None else [replace(attention, indexer=one) for one in indexers]
    return sizes.patterned(mixers, networks, table), fields.flag("tie_word_embeddings", False)


LATENT = names(
    """
    q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim rope_interleave index_n_heads
    index_head_dim index_topk layer_types indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset
    """
)
SPARSE = names(
    """
    n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size first_k_dense_replace moe_layer_freq n_group
    topk_group mlp_layer_types mlp_bias num_nextn_predict_layers
    """
)
FIELDS = " ".join(sorted(ROUTER_FIELDS | LATENT | SPARSE)) + " rms_norm_eps attention_bias"
OTHER_NAMES = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
}
DEEPSEEK_V2 = described(deepseek_v2, FIELDS, OTHER_NAMES)
DEEPSEEK_V3 = described(deepseek_v3, FIELDS, OTHER_NAMES)
GLM4_MOE_LITE = described(glm4_moe_lite, FIELDS, OTHER_NAMES)
GLM_MOE_DSA = described(glm_moe_dsa, FIELDS, OTHER_NAMES)
DEEPSEEK_V32 = described(deepseek_v32, FIELDS, OTHER_NAMES)
