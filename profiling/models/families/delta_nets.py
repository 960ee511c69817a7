"""Qwen3-Next and Qwen 3.5: three of four layers mix tokens by a gated delta net, the fourth by attention with a gate.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import Chain, described, gated, rotary_of
from trainplan.profiling.models.families.routing import ROUTER_FIELDS, experts_of, networks_of, stepped
from trainplan.profiling.models.sublayers import GatedDeltaNet, Sublayer

DELTA, ATTENTION = "linear_attention", "full_attention"


def qwen3_next(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Qwen3-Next model: gated delta nets and attentions, with experts in all layers but
    those that are listed as dense.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, width=256)
    sparse, dense = stepped(fields, sizes.layers), sizes.feed_forward(**gated(fields, False))
    return _mixed(fields, sizes, networks_of(sparse, _experts(fields, sizes) if any(sparse) else dense, dense))


def qwen3_5_text(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a dense Qwen 3.5 model: gated delta nets and attentions, each before a feed-forward
    network.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, width=256)
    return _mixed(fields, sizes, [sizes.feed_forward(**gated(fields, False))] * sizes.layers)


def qwen3_5_moe_text(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Qwen 3.5 mixture of experts: gated delta nets and attentions, each before experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.config = {"intermediate_size": fields.config.get("moe_intermediate_size"), **fields.config}
    sizes = decoder(fields, width=256)
    return _mixed(fields, sizes, [_experts(fields, sizes)] * sizes.layers)


def _experts(fields: Fields, sizes: Decoder) -> Sublayer:
    """Read a layer's experts, in addition to one expert with a gate that works on every token. Raises InputError for fields
    that are missing or invalid."""
    shared = fields.size("shared_expert_intermediate_size", 512)
    return experts_of(fields, sizes, "num_experts", shared_inner=shared, shared_gate=True)


def _mixed(fields: Fields, sizes: Decoder, networks: Sequence[Sublayer]) -> Chain:
    """Build the chain of a model whose layers mix tokens by gated delta nets and attentions, as `layer_types` lists them, or
    by an attention in every n-th layer (`full_attention_interval`). networks: each layer's second unit. Raises InputError for
    fields that are missing or invalid."""
    bias, dropped = fields.flag("attention_bias", False), fields.dropout("attention_dropout", default=0.0)
    rotary = rotary_of(fields, sizes, part=0.25)
    inside = {"bias": bias, "out_bias": bias, "normed_heads": True, "gated": True, "attention_dropout": dropped}
    mixers: dict[str, Sublayer] = {ATTENTION: sizes.attention(**inside, **rotary)}
    mixers[DELTA] = GatedDeltaNet(
        **sizes.common,
        key_heads=fields.size("linear_num_key_heads", 16),
        value_heads=fields.size("linear_num_value_heads", 32),
        key_width=fields.size("linear_key_head_dim", 128),
        value_width=fields.size("linear_value_head_dim", 128),
        taps=fields.count("linear_conv_kernel_dim", 4),
    )
    fields.divisor(
        "linear_num_key_heads",
        fields.read["linear_num_key_heads"],
        "linear_num_value_heads",
        fields.read["linear_num_value_heads"],
    )
    types = _types(fields, sizes.layers)
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    units = sizes.patterned([mixers[kind] for kind in types], networks, table)
    return units, fields.flag("tie_word_embeddings", False)


def _types(fields: Fields, layers: int) -> list[str]:
    """The kind of mixer of each layer, "linear_attention" (a gated delta net) or "full_attention". Raises InputError for an
    invalid list or interval. layers: the number of layers."""
    types = fields.config.get("layer_types")
    if types is None:
        interval = fields.count("full_attention_interval", 4)
        return [ATTENTION if (i + 1) % interval == 0 else DELTA for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers or any(kind not in (DELTA, ATTENTION) for kind in types):
        raise fields.fail("layer_types", f"is {shown(types)}", f"give {DELTA} or {ATTENTION} for each of {layers} layers")
    fields.read["layer_types"] = types
    return types


LINEAR = """
    rms_norm_eps attention_bias layer_types full_attention_interval partial_rotary_factor
    linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads
    """
# Fields of Qwen 3.5's files that change no parameter of its language model.
MORE = "attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings mlp_only_layers rope_interleaved"
ROUTED = "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size " + " ".join(
    sorted(ROUTER_FIELDS)
)
QWEN3_NEXT = described(
    qwen3_next, f"{LINEAR} {ROUTED} decoder_sparse_step mlp_only_layers use_sliding_window max_window_layers"
)
QWEN3_5_TEXT = described(qwen3_5_text, f"{LINEAR} {MORE}")
QWEN3_5_MOE_TEXT = described(qwen3_5_moe_text, f"{LINEAR} {MORE} {ROUTED}")
