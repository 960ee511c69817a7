"""Phi-3 and Phi-4: a Llama with dropout, rotary positions that may turn part of each head, and long rotations (LongRoPE)."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def phi3(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Phi-3 or Phi-4 model: a Llama with dropout, and rotary position embedding that may
    cover only a part of each head.

    Its files pack queries, keys and values in one matrix, and gate and up-projection in another, which changes no size.
    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    embedded, dropped = fields.dropout("embd_pdrop", default=0.0), fields.dropout("resid_pdrop", default=0.0)
    attention = sizes.attention(
        bias=False,
        out_bias=False,
        dropout=dropped,
        sliding=sliding_window(fields),
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **rotation(fields, sizes.positions, sizes.tokens, sizes.width, part=1.0),
    )
    if fields.config.get("original_max_position_embeddings") is not None:
        fields.count("original_max_position_embeddings")
    activation = fields.activation("hidden_act", "silu")
    ffn = sizes.feed_forward(activation=activation, gated=True, bias=False, dropout=dropped)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary, default=32000), dropout=embedded)
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' Phi3Config; the last ones are of its earlier versions, and of published files.
FIELDS = USUAL_FIELDS | names(
    """
    resid_pdrop embd_pdrop hidden_act original_max_position_embeddings rms_norm_eps sliding_window partial_rotary_factor
    attention_bias interpolate_factor lm_head_bias mlp_bias full_attn_mod
    """
)
FAMILY = Family(phi3, SIZES, FIELDS)
