"""Mistral: a Llama whose layers may attend to the keys within a sliding window alone (Jiang et al., 2023)."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def mistral(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Mistral model: a Llama with a sliding window, of 4,096 tokens without the field, as
    in transformers.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    attention = sizes.attention(
        bias=False,
        out_bias=False,
        sliding=sliding_window(fields, missing=4096),
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **rotation(fields, sizes.positions, sizes.tokens, sizes.width),
    )
    ffn = sizes.feed_forward(activation=fields.activation("hidden_act", "silu"), gated=True, bias=False)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' MistralConfig; the last ones are of its earlier versions.
FIELDS = USUAL_FIELDS | names("hidden_act rms_norm_eps sliding_window")
FAMILY = Family(mistral, SIZES, FIELDS)
