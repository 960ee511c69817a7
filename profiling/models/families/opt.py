"""OPT: GPT-2 with ReLU, and learned positions from the third row of their table on."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.fields import Family, Fields, Unit, names, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding

FIRST_POSITION = 2


def opt(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of an OPT configuration whose blocks begin with their norms: all but that of 350M, which is refused."""
    hidden, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    layers, positions = fields.layers("num_hidden_layers", such_as=12), fields.size("max_position_embeddings", 2048)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.size("vocab_size", 50272), fields.size("ffn_dim", 3072)
    activation, bias = fields.activation("activation_function", "relu"), fields.flag("enable_bias", True)
    fields.only("word_embed_proj_dim", hidden)
    fields.only("do_layer_norm_before", True)
    fields.only("layer_norm_elementwise_affine", True)
    fields.absent("_remove_final_layer_norm", "layerdrop")
    dropped, attended = fields.dropout("dropout"), fields.dropout("attention_dropout", default=0.0)
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(1e-5) | {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    attention = Attention(
        **common,
        heads=heads,
        kv_heads=heads,
        width=hidden // heads,
        causal=True,
        bias=bias,
        out_bias=bias,
        dropout=dropped,
        attention_dropout=attended,
    )
    ffn = FeedForward(**common, inner=inner, activation=activation, bias=bias, dropout=dropped)
    padding = fields.padding(vocabulary, default=1)
    tables: dict[str, Any] = {"positions": positions + FIRST_POSITION, "first_position": FIRST_POSITION, "padding": padding}
    embedding = TokenEmbedding(**common, **tables, vocabulary=vocabulary)
    return uniform_chain(
        embedding, layers, {"attention": attention, "ffn": ffn}, LanguageHead(**common, vocabulary=vocabulary)
    ), tied


# As of transformers' OPTConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    vocab_size hidden_size num_hidden_layers ffn_dim max_position_embeddings do_layer_norm_before _remove_final_layer_norm
    word_embed_proj_dim dropout attention_dropout num_attention_heads activation_function layerdrop init_std enable_bias
    layer_norm_elementwise_affine
    activation_dropout
    """
)
FAMILY = Family(
    opt,
    {
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "inner": "ffn_dim",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    },
    FIELDS,
)
