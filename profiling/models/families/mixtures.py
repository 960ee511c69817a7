"""Decoders with a mixture of experts in some or all layers, and attention as dense decoders have it.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, rotary_of
from trainplan.profiling.models.families.routing import ROUTER_FIELDS, experts_of, networks_of, stepped


def mixtral(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Mixtral model: Mistral with experts in every layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    experts = experts_of(fields, sizes, "num_local_experts", inner="intermediate_size")
    windows = [sliding_window(fields)] * sizes.layers
    inside, rotary = {"bias": False, "out_bias": False}, rotary_of(fields, sizes, base=1e6)
    networks = [experts] * sizes.layers
    return layered(fields, sizes, inside, gated(fields, False), rotary, windows=windows, networks=networks)


def qwen3_moe(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Qwen 3 mixture of experts: Qwen 3 with experts in some or all layers.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    sparse, ffn = stepped(fields, sizes.layers), gated(fields, False)
    dense = sizes.feed_forward(**ffn)
    experts = experts_of(fields, sizes, "num_experts") if any(sparse) else dense
    window = sliding_window(fields, missing=4096) if fields.flag("use_sliding_window", False) else 0
    windows = layer_windows(fields, sizes.layers, window, [window > 0] * sizes.layers)
    inside, rotary = {"bias": bias, "out_bias": bias, "normed_heads": True}, rotary_of(fields, sizes)
    networks = networks_of(sparse, experts, dense)
    return layered(fields, sizes, inside, ffn, rotary, windows=windows, networks=networks)


ROUTED = "rms_norm_eps num_experts_per_tok " + " ".join(sorted(ROUTER_FIELDS))
MIXTRAL = described(mixtral, f"{ROUTED} sliding_window num_local_experts", {"num_experts": "num_local_experts"})
STEPPED = "decoder_sparse_step mlp_only_layers moe_intermediate_size num_experts"
WINDOWS = "use_sliding_window sliding_window max_window_layers layer_types"
QWEN3_MOE = described(qwen3_moe, f"{ROUTED} {STEPPED} {WINDOWS} attention_bias", {"num_local_experts": "num_experts"})
