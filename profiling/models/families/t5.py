"""T5: an encoder and a decoder as one chain of units."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.fields import ACTIVATIONS, LARGEST, Family, Fields, Unit, names
from trainplan.profiling.models.sublayers import Activation, Attention, FeedForward, LanguageHead, Norm, TokenEmbedding

GATED_GELU: Activation = "gelu_tanh"  # as published with T5 1.1


def t5(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a T5 model: its encoder and its decoder as one chain.

    Encoder's and decoder's hidden states pass through the chain together: encoder units hand on the decoder's tokens
    unchanged, and decoder units the encoder's result. The field `decoder_positions` is trainplan's own: the decoder's
    sequence length if it differs from the encoder's (as in T5-512/4).

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads, width = fields.size("d_model", 512), fields.size("num_heads", 8), fields.size("d_kv", 64)
    encoders = fields.layers("num_layers", such_as=6)
    decoders, vocabulary = fields.layers("num_decoder_layers", encoders), fields.size("vocab_size", 32128)
    positions, buckets = fields.count("n_positions", 512), fields.count("relative_attention_num_buckets", 32)
    inner, tied = fields.size("d_ff", 2048), fields.flag("tie_word_embeddings", True)
    spellings = {**ACTIVATIONS, **{f"gated-{name}": kind for name, kind in ACTIVATIONS.items()}, "gated-gelu": GATED_GELU}
    activation = fields.activation("feed_forward_proj", "relu", spellings)
    dropped = fields.counted_dropout("dropout_rate")
    common = fields.common(fields.share("layer_norm_epsilon", 1e-6)) | {"dropout": dropped}
    long = fields.length("relative positions", positions, LARGEST)
    short = fields.count("decoder_positions", long) if "decoder_positions" in fields.config else long
    common |= {"hidden": hidden, "norm": "rms"}
    encoder = common | {"tokens": long, "carried_tokens": short}
    decoder = common | {"tokens": short, "carried_tokens": long}
    projected: dict[str, Any] = {"heads": heads, "kv_heads": heads, "width": width, "scale": 1.0, "attention_dropout": dropped}
    projected |= {"bias": False, "out_bias": False}
    inside: dict[str, Any] = {"inner": inner, "activation": activation, "bias": False, "inner_dropout": True}
    inside["gated"] = fields.read["feed_forward_proj"].startswith("gated-")
    if fields.config.get("is_gated_act") not in (None, inside["gated"]):
        problem = f"is {shown(fields.config['is_gated_act'])}, but feed_forward_proj {shown(fields.read['feed_forward_proj'])}"
        raise fields.fail("is_gated_act", problem, "leave it out, or give feed_forward_proj, such as 'gated-gelu' or 'relu'")
    chain = [Unit("embedding", 0, TokenEmbedding(**common, tokens=long + short, vocabulary=vocabulary))]
    for i in range(encoders):
        biased: dict[str, Any] = {"relative": "t5", "buckets": buckets, "holds_table": i == 0}
        parts = {"attention": Attention(**encoder, **projected, **biased), "ffn": FeedForward(**encoder, **inside)}
        chain += [Unit(f"encoder{i}.{name}", i + 1, part) for name, part in parts.items()]
    chain.append(Unit("encoder.norm", encoders, Norm(**encoder)))
    for i in range(decoders):
        biased = {"relative": "t5-causal", "buckets": buckets, "holds_table": i == 0, "causal": True}
        parts = {
            "attention": Attention(**decoder, **projected, **biased),
            "cross": Attention(**decoder, **projected, memory_tokens=long),
            "ffn": FeedForward(**decoder, **inside),
        }
        chain += [Unit(f"decoder{i}.{name}", encoders + i + 1, part) for name, part in parts.items()]
    head = LanguageHead(**common, tokens=short, vocabulary=vocabulary, scale=hidden**-0.5 if tied else 1.0)
    return [*chain, Unit("head", encoders + decoders + 1, head)], tied


# As of transformers' T5Config; the last ones are of its earlier versions, what it derives, and our own.
FIELDS = names(
    """
    vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets
    relative_attention_max_distance dropout_rate layer_norm_epsilon feed_forward_proj classifier_dropout is_decoder
    n_positions output_past dense_act_fn is_gated_act scale_decoder_outputs decoder_positions
    """
)
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
FAMILY = Family(t5, fields=FIELDS, aliases=ALIASES)
