"""Nemotron 3 and 4, Minitron: layer norms, squared ReLU, and heads that turn in part.

Its files keep the weights of norms less 1; trainplan's are the weights that norms work with. Gradients are the same.
"""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import decoder
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def nemotron(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Nemotron configuration."""
    sizes = decoder(fields, norm="layer", epsilon="norm_eps", usual_epsilon=1e-5)
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    attention = sizes.attention(
        bias=bias,
        out_bias=bias,
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **rotation(fields, sizes.positions, sizes.tokens, sizes.width, part=0.5),
    )
    ffn = sizes.feed_forward(activation=fields.activation("hidden_act", "relu2"), bias=inner_bias)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' NemotronConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads head_dim num_key_value_heads hidden_act
    max_position_embeddings norm_eps rope_parameters attention_bias attention_dropout mlp_bias
    rope_theta rope_scaling partial_rotary_factor rope_percent
    """
)
FAMILY = Family(nemotron, {**USUAL_SIZES, "width": "head_dim"}, FIELDS)
