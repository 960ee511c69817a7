"""Hybrids: decoders whose layers mix tokens by state spaces, and a few of them by attention; and Mamba-2 alone.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder
from trainplan.profiling.models.families.fields import LARGEST, Family, Fields, names
from trainplan.profiling.models.families.layered import NO_ROTATION, Chain, described, gated, rotary_of
from trainplan.profiling.models.families.routing import ROUTER_FIELDS, experts_of, further_tokens, grouped, indices
from trainplan.profiling.models.sublayers import Experts, SelectiveScan, StateSpace, Sublayer

MIXER, ATTENTION, NETWORK, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
LETTERS = {"M": MIXER, "*": ATTENTION, "-": NETWORK, "E": EXPERTS}  # of a layer in `hybrid_override_pattern`
KINDS = {kind: kind for kind in LETTERS.values()} | {"mamba": MIXER, "attention": ATTENTION}  # with transformers' older names
TRAINED_TOKENS = 2048  # of a sample on which Mamba-2's models were trained; nothing in them limits it


def nemotron_h(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Nemotron-H or Nemotron 3 model: each layer is one unit, a state space, an attention
    without positions, a feed-forward network or experts, as a pattern of letters says.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    kinds = pattern(fields)
    fields.config = {"num_hidden_layers": len(kinds), **fields.config}
    sizes = decoder(fields, epsilon="layer_norm_epsilon", usual_epsilon=1e-5, width=128)
    if sizes.layers != len(kinds):
        fix = f"give {len(kinds)}, as the pattern of its layers has"
        raise fields.fail("num_hidden_layers", f"is {sizes.layers}", fix)
    further_tokens(fields)
    activation, bias = fields.activation("mlp_hidden_act", "relu2"), fields.flag("mlp_bias", False)
    dropped = fields.dropout("attention_dropout", default=0.0)
    made: dict[str, Sublayer] = {NETWORK: sizes.feed_forward(activation=activation, bias=bias)}
    made[ATTENTION] = sizes.attention(bias=False, out_bias=False, attention_dropout=dropped, **NO_ROTATION)
    if MIXER in kinds:
        made[MIXER] = StateSpace(
            **sizes.common,
            heads=fields.size("mamba_num_heads", 128),
            width=fields.size("mamba_head_dim", 64),
            groups=_groups(fields, "n_groups", "mamba_num_heads"),
            state=fields.size("ssm_state_size", 128),
            chunk=fields.count("chunk_size", 128),
            taps=fields.count("conv_kernel", 4),
            bias=fields.flag("use_bias", False),
            taps_bias=fields.flag("use_conv_bias", True),
        )
    if EXPERTS in kinds:
        made[EXPERTS] = _nemotron_experts(fields, sizes, {"activation": activation, "shared_bias": bias, "latent_bias": bias})
    mixers = [made[kind] if kind in (MIXER, ATTENTION) else None for kind in kinds]
    networks = [made[kind] if kind in (NETWORK, EXPERTS) else None for kind in kinds]
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary, 0))
    return sizes.patterned(mixers, networks, table), fields.flag("tie_word_embeddings", False)


def pattern(fields: Fields) -> list[str]:
    """The kind of each layer: "linear_attention" (a state space), "full_attention", "mlp" or "moe", from `layers_block_type`, a
    list, or `hybrid_override_pattern`, a text of one letter a layer. Raises InputError if both are missing or one is invalid.
    """
    listed, text = fields.config.get("layers_block_type"), fields.config.get("hybrid_override_pattern")
    if listed is not None:
        known = isinstance(listed, list) and listed and all(isinstance(kind, str) and kind in KINDS for kind in listed)
        if not known:
            raise fields.fail("layers_block_type", f"is {shown(listed)}", f"give a list of {', '.join(LETTERS.values())}")
        fields.read["layers_block_type"] = listed
        return [KINDS[kind] for kind in listed]
    if not isinstance(text, str) or not text or set(text) - LETTERS.keys():
        problem = "is missing" if text is None else f"is {shown(text)}"
        fix = "give a letter for each layer, such as M-M*-: M a state space, * attention, - a feed-forward network, E experts"
        raise fields.fail("hybrid_override_pattern", problem, fix)
    fields.read["hybrid_override_pattern"] = text
    return [LETTERS[letter] for letter in text]


def _groups(fields: Fields, name: str, heads: str) -> int:
    """Read the number of groups of a state space's heads, which must divide their number. name, heads: the fields of both
    numbers. Raises InputError otherwise."""
    groups = fields.size(name, 8)
    fields.divisor(name, groups, heads, int(fields.read[heads]))
    return groups


def _nemotron_experts(fields: Fields, sizes: Decoder, options: dict[str, Any]) -> Experts:
    """Read the experts of a Nemotron 3 layer: without gates, chosen by sigmoids and balancing biases, and one network that all
    tokens share; possibly on a latent of each token. options: further keyword arguments. Raises InputError for fields that are
    missing or invalid."""
    count = fields.size("n_routed_experts", 128)
    return sizes.experts(
        experts=count,
        chosen=fields.count("num_experts_per_tok", most=count, such_as=6),
        inner=fields.size("moe_intermediate_size", 1856),
        gated=False,
        balanced=True,
        scoring="sigmoid",
        shared_inner=fields.size("moe_shared_expert_intermediate_size", 3712),
        latent=fields.count("moe_latent_size") if fields.config.get("moe_latent_size") is not None else 0,
        **grouped(fields, "n_routed_experts"),
        **options,
    )


def jamba(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Jamba model: Mamba-1 and in one of 8 layers attention without positions, then a
    feed-forward network or, in every second layer, experts.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    experts = experts_of(fields, sizes, "num_experts", inner="intermediate_size")
    dense = sizes.feed_forward(**gated(fields, False))
    dropped = fields.dropout("attention_dropout", default=0.0)
    attention = sizes.attention(bias=False, out_bias=False, attention_dropout=dropped, **NO_ROTATION)
    rank = fields.config.get("mamba_dt_rank")
    fields.config = {**fields.config, "mamba_dt_rank": None if rank == "auto" else rank}
    scan = SelectiveScan(
        **sizes.common,
        channels=fields.count("mamba_expand", 2) * sizes.hidden,
        state=fields.count("mamba_d_state", 16),
        rank=fields.count("mamba_dt_rank", -(-sizes.hidden // 16)),
        taps=fields.count("mamba_d_conv", 4),
        normed=True,
        bias=fields.flag("mamba_proj_bias", False),
        taps_bias=fields.flag("mamba_conv_bias", True),
    )
    attends, mixes = (_every(fields, name, sizes.layers, usual) for name, usual in (("attn", (8, 4)), ("expert", (2, 1))))
    mixers = [attention if attending else scan for attending in attends]
    networks = [experts if mixing else dense for mixing in mixes]
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary, 0))
    return sizes.patterned(mixers, networks, table), fields.flag("tie_word_embeddings", False)


def _every(fields: Fields, name: str, layers: int, usual: tuple[int, int]) -> list[bool]:
    """Whether each layer is one of those at every n-th place from an offset on, as the fields `attn_layer_period` and
    `attn_layer_offset` say. name: the beginning of their names. usual: period and offset of files without them. Raises
    InputError for invalid fields."""
    period = fields.count(f"{name}_layer_period", usual[0])
    offset = fields.count(f"{name}_layer_offset", usual[1], least=0, most=period - 1)
    return [i % period == offset for i in range(layers)]


def bamba(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Bamba model: Mamba-2, or in the listed layers attention with rotary positions on half
    of each head, then a gated feed-forward network.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5)
    bias, attends = fields.flag("attention_bias", False), indices(fields, "attn_layer_indices", sizes.layers)
    dropped, rotary = fields.dropout("attention_dropout", default=0.0), rotary_of(fields, sizes, part=0.5)
    attention = sizes.attention(bias=bias, out_bias=bias, attention_dropout=dropped, **rotary)
    dense = sizes.feed_forward(**gated(fields, fields.flag("mlp_bias", False)))
    scan = bamba_scan(fields, sizes)
    mixers = [attention if i in attends else scan for i in range(sizes.layers)]
    table = sizes.embedding(padding=fields.padding(sizes.vocabulary, 0))
    return sizes.patterned(mixers, [dense] * sizes.layers, table), fields.flag("tie_word_embeddings", False)


def bamba_scan(fields: Fields, sizes: Decoder) -> StateSpace:
    """Read a state space from the fields that Bamba's and Granite 4's files have. sizes: the model's sizes, read before. Raises
    InputError for fields that are missing or invalid."""
    heads, inner = fields.size("mamba_n_heads", 128), fields.count("mamba_expand", 2) * sizes.hidden
    fields.divisor("mamba_n_heads", heads, "mamba_expand x hidden_size", inner)
    if fields.config.get("mamba_d_head") not in (None, "auto", inner // heads):
        raise fields.fail("mamba_d_head", f"is {shown(fields.config['mamba_d_head'])}", f"give {inner // heads}")
    return StateSpace(
        **sizes.common,
        heads=heads,
        width=inner // heads,
        groups=_groups(fields, "mamba_n_groups", "mamba_n_heads"),
        state=fields.size("mamba_d_state", 128),
        chunk=fields.count("mamba_chunk_size", 256),
        taps=fields.count("mamba_d_conv", 4),
        bias=fields.flag("mamba_proj_bias", False),
        taps_bias=fields.flag("mamba_conv_bias", True),
    )


def mamba2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Mamba-2 model, each of whose layers is one state space.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, layers = fields.size("hidden_size", 4096), fields.layers("num_hidden_layers", such_as=64)
    vocabulary = fields.size("vocab_size", 32768)
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    tokens = fields.length("num_hidden_layers", TRAINED_TOKENS, LARGEST)
    common |= {"tokens": tokens, "hidden": hidden, "norm": "rms"}
    sizes = Decoder(hidden, 1, 1, hidden, layers, tokens, vocabulary, hidden, common)
    heads, width = fields.size("num_heads", 128), fields.size("head_dim", 64)
    if heads * width != (inner := fields.count("expand", 2) * hidden):
        raise fields.fail("num_heads", f"is {heads}, of {width} numbers each", f"give heads of {inner} numbers together")
    scan = StateSpace(
        **common,
        heads=heads,
        width=width,
        groups=_groups(fields, "n_groups", "num_heads"),
        state=fields.size("state_size", 128),
        chunk=fields.count("chunk_size", 256),
        taps=fields.count("conv_kernel", 4),
        bias=fields.flag("use_bias", False),
        taps_bias=fields.flag("use_conv_bias", True),
    )
    table = sizes.embedding(padding=fields.padding(vocabulary, 1))
    return sizes.patterned([scan] * layers, [None] * layers, table), fields.flag("tie_word_embeddings", False)


KERNELS = "use_mamba_kernels num_logits_to_keep residual_in_fp32 rescale_prenorm_residual"
STEPS = "time_step_min time_step_max time_step_limit time_step_floor time_step_rank time_step_init_scheme"
ROUTED = "num_experts_per_tok " + " ".join(sorted(ROUTER_FIELDS))
SCAN = "mamba_d_state mamba_d_conv mamba_expand mamba_conv_bias mamba_proj_bias"
NEMOTRON_H = described(
    nemotron_h,
    f"""
    hybrid_override_pattern layers_block_type layer_norm_epsilon rms_norm_eps attention_bias mlp_bias mlp_hidden_act
    ssm_state_size mamba_num_heads mamba_head_dim mamba_hidden_act n_groups conv_kernel expand use_conv_bias use_bias
    chunk_size mamba_proj_bias mamba_ssm_cache_dtype hidden_dropout sliding_window
    n_routed_experts n_shared_experts moe_intermediate_size moe_shared_expert_intermediate_size moe_latent_size
    moe_shared_expert_overlap n_group topk_group num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern
    {KERNELS} {STEPS} {ROUTED}
    """,
    {"attention_head_dim": "head_dim", "layer_types": "layers_block_type", "num_local_experts": "n_routed_experts"}
    | {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_expand": "expand"}
    | {"mamba_chunk_size": "chunk_size", "mamba_conv_bias": "use_conv_bias"},
)
JAMBA = described(
    jamba,
    f"""
    rms_norm_eps num_experts attn_layer_period attn_layer_offset expert_layer_period expert_layer_offset mamba_dt_rank
    sliding_window use_mambapy use_associative_scan mamba_inner_layernorms calc_logits_for_entire_prompt n_shared_head
    {KERNELS} {ROUTED} {SCAN}
    """,
    {"num_local_experts": "num_experts"},
)
BAMBA = described(
    bamba,
    f"""
    rms_norm_eps attention_bias mlp_bias attn_layer_indices mamba_n_heads mamba_d_head mamba_n_groups mamba_chunk_size
    partial_rotary_factor attn_rotary_emb z_loss_coefficient mamba_use_mlp {KERNELS} {SCAN} time_step_limit
    """,
)
MAMBA2 = Family(
    mamba2,
    {},
    names(
        f"""
        hidden_size num_hidden_layers vocab_size layer_norm_epsilon num_heads head_dim state_size n_groups expand conv_kernel
        use_bias use_conv_bias chunk_size hidden_act rms_norm norm_before_gate {KERNELS} {STEPS}
        """
    ),
)
