"""GLM-4: biases of queries, keys and values, and rotary positions that turn adjacent numbers in half of each head."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def glm(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a GLM-4 model: biases on queries, keys and values; rotary position embedding rotates
    adjacent pairs of numbers in half of each head.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    return glm_chain(fields, sandwich=False)


def glm_chain(fields: Fields, sandwich: bool) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a dense GLM-4 or GLM-4-0414 model.

    sandwich: whether it has norms also after attention and feed-forward network, as GLM-4-0414 has. fields: the configuration
    (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or
    invalid.
    """
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
FIELDS = USUAL_FIELDS | names("hidden_act rms_norm_eps attention_bias partial_rotary_factor")
FAMILY = Family(glm, SIZES, FIELDS)
