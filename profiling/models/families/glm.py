"""GLM-4: biases of queries, keys and values, and heads of which half turns, neighbour with neighbour."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import decoder
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def glm(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a GLM-4 configuration."""
    return glm_chain(fields, sandwich=False)


def glm_chain(fields: Fields, sandwich: bool) -> tuple[list[Unit], bool]:
    """The chain of a dense GLM. sandwich: with norms behind the matrices, too."""
    sizes = decoder(fields, usual_epsilon=1.5625e-07, width=128)
    attention = sizes.attention(
        bias=fields.flag("attention_bias", True),
        out_bias=False,
        sandwich=sandwich,
        interleaved=True,
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **rotation(fields, sizes.positions, sizes.tokens, sizes.width, part=0.5),
    )
    activation = fields.activation("hidden_act", "silu")
    ffn = sizes.feed_forward(activation=activation, gated=True, bias=False, sandwich=sandwich)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary, default=151329))
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' GlmConfig and Glm4Config; the last ones are of their earlier versions.
FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act
    attention_dropout max_position_embeddings rms_norm_eps rope_parameters attention_bias
    rope_theta rope_scaling partial_rotary_factor
    """
)
FAMILY = Family(glm, {**USUAL_SIZES, "width": "head_dim"}, FIELDS)
