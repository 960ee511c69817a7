"""Families whose attention and feed-forward network run in parallel on one norm's result, as GPT-J's do.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, names
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, rotary_of


def cohere(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Command R model: norms without bias, scaled logits, rotary position embedding of
    adjacent pairs of numbers.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, normed = _command(fields), fields.flag("use_qk_norm", False)
    return _of_command(fields, sizes, {"normed_heads": normed, "head_weights": "each"}, base=500000.0)


def cohere2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Command R7B or Command A model, with a sliding window in three of four layers.

    The layers without a window attend to all keys and have no positions. fields: the configuration (config.json), written to:
    `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in order, and
    whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sizes, pattern = _command(fields), fields.count("sliding_window_pattern", 4)
    usual = [(i + 1) % pattern > 0 for i in range(sizes.layers)]
    windows = layer_windows(fields, sizes.layers, sliding_window(fields, 4096), usual)
    return _of_command(fields, sizes, {}, base=10000.0, windows=windows, rotating=[window > 0 for window in windows])


def _command(fields: Fields) -> Decoder:
    """Read the sizes of a Command model, whose layer norms have no bias. Raises InputError for fields that are missing or
    invalid."""
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    return sizes.changed(norm_bias=False)


def _of_command(fields: Fields, sizes: Decoder, inside: dict[str, Any], base: float, **options: Any) -> Chain:
    """Build the chain of sub-layers of a Command model, whose attention and feed-forward network run in parallel on one norm's
    result.

    sizes: the model's sizes, read before. inside: further keyword arguments of attention. base: the base of the rotary angles
    if the file states none. options: further arguments of `layered`. fields: the configuration (config.json), written to:
    `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in order, and
    whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    bias, head = fields.flag("attention_bias", False), {"scale": fields.share("logit_scale", 0.0625, most=1e3)}
    inside = {"bias": bias, "out_bias": bias, "interleaved": True, **inside}
    rotary, ffn = rotary_of(fields, sizes, base=base), gated(fields, False)
    return layered(fields, sizes, inside, ffn, rotary, side_by_side=True, head=head, tied=True, padding=0, **options)


def phi(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Phi 1, 1.5 or 2 model: biases everywhere, and rotary positions on half of each head.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    fields.note("resid_pdrop", usual=0)
    embedding = {"dropout": fields.dropout("embd_pdrop", default=0.0)}
    normed, ffn = fields.flag("qk_layernorm", False), {"activation": fields.activation("hidden_act", "gelu_new")}
    rotary, inside, head = rotary_of(fields, sizes, part=0.5), {"normed_heads": normed}, {"bias": True}
    return layered(fields, sizes, inside, ffn, rotary, side_by_side=True, embedding=embedding, head=head)


def gptj(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a GPT-J or CodeGen model, with rotary positions on the first `rotary_dim` numbers of
    each head.

    Only the feed-forward network and the head have biases. fields: the configuration (config.json), written to: `fields.read`
    gets every field that is read, with its value. Returns the units (sub-layers with names) in order, and whether head and
    embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    hidden, heads, layers = fields.size("n_embd", 4096), fields.size("n_head", 16), fields.layers("n_layer", such_as=28)
    positions, vocabulary = fields.size("n_positions", 2048), fields.size("vocab_size", 50400)
    fields.divisor("n_head", heads, "n_embd", hidden)
    inner, rotating = fields.count("n_inner", 4 * hidden), fields.count("rotary_dim", 64, most=hidden // heads)
    fields.note("resid_pdrop", usual=0)
    embedding = {"dropout": fields.dropout("embd_pdrop", default=0.0)}
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("n_positions", positions), "hidden": hidden}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, inner, common)
    if rotating % 2:
        raise fields.fail("rotary_dim", f"is {rotating}", "give an even number: rotary positions turn pairs")
    rotary = {"rotary": 10000.0, "scaling": None, "rotary_width": rotating if rotating < sizes.width else 0}
    dropped = fields.dropout("attn_pdrop", default=0.0)
    inside = {"bias": False, "out_bias": False, "interleaved": True, "attention_dropout": dropped}
    ffn, head = {"activation": fields.activation("activation_function", "gelu_new")}, {"bias": True}
    return layered(fields, sizes, inside, ffn, rotary, side_by_side=True, embedding=embedding, head=head)


COMMAND = "layer_norm_eps logit_scale attention_bias"
COHERE = described(cohere, f"{COMMAND} use_qk_norm")
COHERE2 = described(cohere2, f"{COMMAND} sliding_window layer_types sliding_window_pattern")
PHI = described(phi, "layer_norm_eps resid_pdrop embd_pdrop qk_layernorm partial_rotary_factor")
GPTJ = Family(
    gptj,
    {},
    names(
        """
        vocab_size n_positions n_embd n_layer n_head n_inner rotary_dim activation_function resid_pdrop embd_pdrop attn_pdrop
        layer_norm_epsilon n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        scale_attn_weights rotary gradient_checkpointing
        """
    ),
    {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head"}
    | {"num_hidden_layers": "n_layer"},
)
