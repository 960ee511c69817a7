"""Granite 4: Granite whose layers are state spaces or attention, each before experts with a network that all tokens share, or
before that network alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import decoder
from trainplan.profiling.models.families.fields import Fields, Unit
from trainplan.profiling.models.families.hybrids import KINDS, MIXER, bamba_scan
from trainplan.profiling.models.families.layered import NO_ROTATION, Chain, described
from trainplan.profiling.models.families.like_llama import FACTORS, scaled
from trainplan.profiling.models.families.routing import ROUTER_FIELDS, experts_of
from trainplan.profiling.models.sublayers import Attention


def granitemoehybrid(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Granite 4 model: Mamba-2 or attention in each layer, as `layer_types` lists them, then
    experts with a shared network, or that network alone if there are no experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    shared = fields.size("shared_intermediate_size", 1024)
    network: Any
    if fields.count("num_local_experts", least=0, such_as=8):
        network = partial(experts_of, fields, sizes, "num_local_experts", inner="intermediate_size", shared_inner=shared)
    else:
        activation = fields.activation("hidden_act", "silu")
        network = partial(sizes.feed_forward, inner=shared, activation=activation, gated=True, bias=False)
    units, tied = scaled(fields, sizes, bias, False, sandwich=False, usual_scale=1.0, network=network)
    types, turns = _types(fields, sizes.layers), fields.config.get("position_embedding_type") == "rope"
    if turns:
        fields.read["position_embedding_type"] = "rope"
    added = replace(sizes, common={**sizes.common, "residual": fields.read["residual_multiplier"]})
    scan = bamba_scan(fields, added) if MIXER in types else None

    def own(unit: Unit) -> Unit:
        """The unit of a layer as the configuration has it: an attention without positions, or a state space in its place."""
        if not isinstance(unit.sublayer, Attention):
            return unit
        if types[unit.layer - 1] == MIXER and scan is not None:
            return Unit(unit.name.replace("attention", "state_space"), unit.layer, scan)
        return unit if turns else replace(unit, sublayer=replace(unit.sublayer, **NO_ROTATION))

    return [own(unit) for unit in units], tied


def _types(fields: Fields, layers: int) -> list[str]:
    """The kind of mixer of each layer, "linear_attention" (a state space, all without `layer_types`) or "full_attention".
    Raises InputError for an invalid list. layers: the number of layers."""
    types = fields.config.get("layer_types")
    if types is None:
        return [MIXER] * layers
    known = isinstance(types, list) and len(types) == layers and all(isinstance(kind, str) and kind in KINDS for kind in types)
    if not known:
        raise fields.fail("layer_types", f"is {shown(types)}", f"give mamba or attention for each of {layers} layers")
    fields.read["layer_types"] = types
    return [KINDS[kind] for kind in types]


GRANITEMOEHYBRID = described(
    granitemoehybrid,
    f"""
    rms_norm_eps attention_bias shared_intermediate_size num_local_experts num_experts_per_tok position_embedding_type
    layer_types mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_chunk_size
    mamba_conv_bias mamba_proj_bias time_step_limit normalization_function init_method
    {FACTORS} {" ".join(sorted(ROUTER_FIELDS))}
    """,
    {"layers_block_type": "layer_types"},
)
