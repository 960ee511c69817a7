"""Nemotron 3 and 4, Minitron: layer norms, squared ReLU, and rotary positions on part of each head.

Their files store each norm's weights less 1; trainplan's models keep the weights that norms multiply by. Gradients are the
same.
"""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def nemotron(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Nemotron or Minitron model: layer norms, squared ReLU, and rotary positions on half
    of each head by default.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
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
FIELDS = USUAL_FIELDS | names("hidden_act norm_eps attention_bias mlp_bias partial_rotary_factor rope_percent")
FAMILY = Family(nemotron, SIZES, FIELDS)
