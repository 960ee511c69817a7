"""Decoders with a mixture of experts in some or all layers, and attention as dense decoders have it.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, rotary_of
from trainplan.profiling.models.families.like_llama import FACTORS, scaled
from trainplan.profiling.models.families.routing import ROUTER_FIELDS, experts_of, networks_of, stepped
from trainplan.profiling.models.sublayers import LightningAttention, Sublayer


def mixtral(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Mixtral model: Mistral with experts in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    networks = [experts_of(fields, sizes, "num_local_experts", inner="intermediate_size")] * sizes.layers
    windows = [sliding_window(fields)] * sizes.layers
    inside, rotary = {"bias": False, "out_bias": False}, rotary_of(fields, sizes, base=1e6)
    return layered(fields, sizes, inside, gated(fields, False), rotary, windows=windows, networks=networks)


def qwen2_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Qwen 1.5 or 2 mixture of experts: Qwen 2 with experts in some or all layers, and
    shared experts with a gate.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    shared = fields.count("shared_expert_intermediate_size", 5632, least=0)
    inside = {"bias": fields.flag("qkv_bias", True), "out_bias": False}
    window, above = 0, 0
    if fields.flag("use_sliding_window", False):
        window, above = sliding_window(fields, missing=4096), fields.count("max_window_layers", 28, least=0)
    return _qwen(fields, inside, window, lambda i: i % 2 == 0 and i < above, shared_inner=shared, shared_gate=True)


def qwen3_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Qwen 3 mixture of experts: Qwen 3 with experts in some or all layers.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    bias = fields.flag("attention_bias", False)
    window = sliding_window(fields, missing=4096) if fields.flag("use_sliding_window", False) else 0
    return _qwen(fields, {"bias": bias, "out_bias": bias, "normed_heads": True}, window, lambda i: True)


def _qwen(fields: Fields, inside: dict[str, Any], window: int, slides: Any, **experts: Any) -> Chain:
    """Build the chain of sub-layers of a Qwen mixture of experts.

    inside: keyword arguments of attention. window: the sliding window in tokens, 0 for none. slides: a function of a layer's
    index that says whether it slides, if the configuration does not say it by layer. experts: keyword arguments of `Experts`.
    fields: the configuration; fields that are read are recorded in it. Returns the units in order, and whether head and
    embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes, ffn = decoder(fields), gated(fields, False)
    sparse, dense = stepped(fields, sizes.layers), sizes.feed_forward(**ffn)
    routed = experts_of(fields, sizes, "num_experts", **experts) if any(sparse) else dense
    windows = layer_windows(fields, sizes.layers, window, [slides(i) for i in range(sizes.layers)])
    networks, rotary = networks_of(sparse, routed, dense), rotary_of(fields, sizes)
    return layered(fields, sizes, inside, ffn, rotary, windows=windows, networks=networks)


def olmoe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an OLMoE model: a Llama with one norm over all queries (or keys) of a token, and experts
    in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5), fields.flag("attention_bias", False)
    fields.note("clip_qkv", usual=None)
    networks = [experts_of(fields, sizes, "num_experts", inner="intermediate_size")] * sizes.layers
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True, "head_weights": "all"}
    rotary = rotary_of(fields, sizes)
    return layered(fields, sizes, inside, gated(fields, False), rotary, networks=networks, padding=1)


def phimoe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Phi 3.5 mixture of experts: layer norms, biases in attention and head if the
    configuration says so, and experts in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", usual_epsilon=1e-5)
    bias, head = fields.flag("attention_bias", False), {"bias": fields.flag("lm_head_bias", False)}
    networks = [experts_of(fields, sizes, "num_local_experts", inner="intermediate_size")] * sizes.layers
    windows = [sliding_window(fields)] * sizes.layers
    inside, rotary = {"bias": bias, "out_bias": bias}, rotary_of(fields, sizes, base=1e6)
    return layered(fields, sizes, inside, gated(fields, False), rotary, windows=windows, networks=networks, head=head)


def granitemoe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Granite mixture of experts: Granite with experts in every layer, and shared experts if
    the configuration has them.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    shared = fields.count("shared_intermediate_size", 0, least=0)
    network: Any = partial(experts_of, fields, sizes, "num_local_experts", inner="intermediate_size", shared_inner=shared)
    return scaled(fields, sizes, bias, False, sandwich=False, usual_scale=1.0, network=network)


def _rotary_of_a_part(fields: Fields, sizes: Decoder, base: float) -> dict[str, Any]:
    """Keyword arguments of `Attention` for rotary positions of which `rotary_dim` says how many numbers of a head they turn.

    sizes: the model's sizes, read before. base: the base of the angles if the configuration states none. Raises InputError for
    invalid fields.
    """
    if fields.config.get("rotary_dim") is not None and fields.config.get("partial_rotary_factor") is None:
        share = fields.count("rotary_dim", most=sizes.width) / sizes.width
        del fields.read["rotary_dim"]
        fields.config = {**fields.config, "partial_rotary_factor": share}
    return rotary_of(fields, sizes, base=base, part=1.0)


def minimax_m2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a MiniMax M2 model: one norm over all queries (or keys) of a token, rotary positions on
    half of each head, and experts that a sigmoid scores.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, width=128)
    routing: dict[str, Any] = {"inner": "intermediate_size", "scoring": "sigmoid", "balanced": True}
    networks = [experts_of(fields, sizes, "num_local_experts", **routing)] * sizes.layers
    inside = {"bias": False, "out_bias": False, "normed_heads": True, "head_weights": "all"}
    rotary = _rotary_of_a_part(fields, sizes, base=5e6)
    return layered(fields, sizes, inside, gated(fields, False), rotary, networks=networks)


def minimax(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a MiniMax 01 or M1 model: lightning attention in most layers, plain attention in the
    others, and experts in every layer; the residual is the normed input.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    for branch in ("full_attn", "linear_attn", "mlp"):
        fields.note(f"{branch}_alpha_factor", f"{branch}_beta_factor", usual=1)
    types = fields.config.get("layer_types") or ["full_attention", "linear_attention"] * sizes.layers
    known = ("full_attention", "linear_attention")
    if not isinstance(types, list) or any(one not in known for one in types) or len(types) < sizes.layers:
        raise fields.fail("layer_types", f"is {shown(types)}", f"give one of {', '.join(known)} for each layer")
    if fields.config.get("layer_types") is not None:
        fields.read["layer_types"] = types
    rotary = _rotary_of_a_part(fields, sizes, base=1e6)
    dropped = fields.dropout("attention_dropout", default=0.0)
    full = sizes.attention(bias=False, out_bias=False, post_norm=True, attention_dropout=dropped, **rotary)
    block = fields.count("block_size", 256)
    linear = LightningAttention(**sizes.common, heads=sizes.heads, width=sizes.width, block=block, post_norm=True)
    network = experts_of(fields, sizes, "num_local_experts", inner="intermediate_size")
    mixers = [full if one == "full_attention" else linear for one in types[: sizes.layers]]
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    return sizes.patterned(mixers, [network] * sizes.layers, table), fields.flag("tie_word_embeddings", False)


def gpt_oss(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a gpt-oss model: biases everywhere, a learned score of no key in every head, a sliding
    window in every second layer, and experts in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=64), fields.flag("attention_bias", True)
    routing: dict[str, Any] = {"inner": "intermediate_size", "bias": True, "router_bias": True}
    networks = [experts_of(fields, sizes, "num_local_experts", **routing)] * sizes.layers
    window = sliding_window(fields, missing=128)
    windows = layer_windows(fields, sizes.layers, window, [i % 2 == 0 for i in range(sizes.layers)])
    inside, rotary = {"bias": bias, "out_bias": bias, "sinks": True}, rotary_of(fields, sizes, base=150000.0)
    return layered(fields, sizes, inside, gated(fields, True), rotary, windows=windows, networks=networks)


def flex_olmo(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a FlexOLMo model: OLMo 2, whose norms come after attention and network, with experts in
    every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    after: dict[str, Any] = {"pre_norm": False, "sandwich": True}
    network: Sublayer = experts_of(fields, sizes, "num_experts", inner="intermediate_size", **after)
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True, "head_weights": "all", **after}
    rotary, networks = rotary_of(fields, sizes, base=500000.0), [network] * sizes.layers
    return layered(fields, sizes, inside, gated(fields, False), rotary, networks=networks, padding=100277)


ROUTED = "rms_norm_eps num_experts_per_tok " + " ".join(sorted(ROUTER_FIELDS))
LOCAL, PLAIN = {"num_experts": "num_local_experts"}, {"num_local_experts": "num_experts"}
MIXTRAL = described(mixtral, f"{ROUTED} sliding_window num_local_experts", LOCAL)
STEPPED = "decoder_sparse_step mlp_only_layers moe_intermediate_size num_experts"
WINDOWS = "use_sliding_window sliding_window max_window_layers layer_types"
QWEN2_MOE = described(qwen2_moe, f"{ROUTED} {STEPPED} {WINDOWS} shared_expert_intermediate_size qkv_bias", PLAIN)
QWEN3_MOE = described(qwen3_moe, f"{ROUTED} {STEPPED} {WINDOWS} attention_bias", PLAIN)
OLMOE = described(olmoe, f"{ROUTED} num_experts attention_bias clip_qkv", PLAIN)
FLEX_OLMO = described(flex_olmo, f"{ROUTED} num_experts attention_bias", PLAIN)
PHIMOE = described(
    phimoe,
    f"{ROUTED} sliding_window num_local_experts attention_bias lm_head_bias input_jitter_noise hidden_dropout"
    " original_max_position_embeddings",
    LOCAL,
)
GRANITEMOE = described(
    granitemoe, f"{ROUTED} num_local_experts attention_bias {FACTORS} shared_intermediate_size mlp_bias", LOCAL
)
GRANITEMOESHARED = GRANITEMOE
MINIMAX_M2 = described(
    minimax_m2,
    f"{ROUTED} num_local_experts rotary_dim partial_rotary_factor use_qk_norm qk_norm_type use_routing_bias attn_type_list"
    " use_mtp num_mtp_modules mtp_transformer_layers shared_intermediate_size layernorm_full_attention_beta"
    " layernorm_linear_attention_beta layernorm_mlp_beta",
    LOCAL,
)
MINIMAX = described(
    minimax,
    f"{ROUTED} num_local_experts sliding_window layer_types block_size rotary_dim partial_rotary_factor full_attn_alpha_factor"
    " full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor",
    LOCAL,
)
GPT_OSS = described(
    gpt_oss,
    f"{ROUTED} num_local_experts attention_bias sliding_window layer_types swiglu_limit swiglu_alpha initial_context_length",
    LOCAL | {"experts_per_token": "num_experts_per_tok"},
)
