"""Families whose attention and feed-forward network both read one norm's result, as GPT-J's do."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, names
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, turning_of


def cohere(fields: Fields) -> Chain:
    """Command R: norms without bias, scaled logits, neighbours turn with each other."""
    sizes, normed = _command(fields), fields.flag("use_qk_norm", False)
    return _of_command(fields, sizes, {"normed_heads": normed, "head_weights": "each"}, base=500000.0)


def cohere2(fields: Fields) -> Chain:
    """Command R7B and A: three of four layers within a window; those that meet all keys have no positions."""
    sizes, pattern = _command(fields), fields.count("sliding_window_pattern", 4)
    usual = [(i + 1) % pattern > 0 for i in range(sizes.layers)]
    windows = layer_windows(fields, sizes.layers, sliding_window(fields, 4096), usual)
    return _of_command(fields, sizes, {}, base=10000.0, windows=windows, turned=[window > 0 for window in windows])


def _command(fields: Fields) -> Decoder:
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    return sizes.changed(norm_bias=False)


def _of_command(fields: Fields, sizes: Decoder, inside: dict[str, Any], base: float, **options: Any) -> Chain:
    bias, head = fields.flag("attention_bias", False), {"scale": fields.share("logit_scale", 0.0625, most=1e3)}
    inside = {"bias": bias, "out_bias": bias, "interleaved": True, **inside}
    turning, ffn = turning_of(fields, sizes, base=base), gated(fields, False)
    return layered(fields, sizes, inside, ffn, turning, side_by_side=True, head=head, tied=True, padding=0, **options)


def phi(fields: Fields) -> Chain:
    """Phi 1 to 2: biases everywhere, half of each head turns."""
    sizes = decoder(fields, norm="layer", epsilon="layer_norm_eps", usual_epsilon=1e-5)
    fields.note("resid_pdrop", usual=0)
    embedding = {"dropout": fields.dropout("embd_pdrop", default=0.0)}
    normed, ffn = fields.flag("qk_layernorm", False), {"activation": fields.activation("hidden_act", "gelu_new")}
    turning, inside, head = turning_of(fields, sizes, part=0.5), {"normed_heads": normed}, {"bias": True}
    return layered(fields, sizes, inside, ffn, turning, side_by_side=True, embedding=embedding, head=head)


def gptj(fields: Fields) -> Chain:
    """GPT-J and CodeGen: biases of the feed-forward network and the head alone; the first numbers of each head turn."""
    hidden, heads, layers = fields.size("n_embd", 4096), fields.size("n_head", 16), fields.layers("n_layer", such_as=28)
    positions, vocabulary = fields.size("n_positions", 2048), fields.size("vocab_size", 50400)
    fields.divisor("n_head", heads, "n_embd", hidden)
    inner, turned = fields.count("n_inner", 4 * hidden), fields.count("rotary_dim", 64, most=hidden // heads)
    fields.note("resid_pdrop", usual=0)
    embedding = {"dropout": fields.dropout("embd_pdrop", default=0.0)}
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("n_positions", positions), "hidden": hidden}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, inner, common)
    if turned % 2:
        raise fields.fail("rotary_dim", f"is {turned}", "give an even number: rotary positions turn pairs")
    turning = {"rotary": 10000.0, "scaling": None, "rotary_width": turned if turned < sizes.width else 0}
    dropped = fields.dropout("attn_pdrop", default=0.0)
    inside = {"bias": False, "out_bias": False, "interleaved": True, "attention_dropout": dropped}
    ffn, head = {"activation": fields.activation("activation_function", "gelu_new")}, {"bias": True}
    return layered(fields, sizes, inside, ffn, turning, side_by_side=True, embedding=embedding, head=head)


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
