"""Llama, with rotary positions, RMS norms, gated feed-forward networks and grouped queries."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def llama(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Llama configuration, with the rotary base and what stretches the angles wherever files have them."""
    sizes = decoder(fields)
    fields.note("rope_interleaved")
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    attention = sizes.attention(
        bias=bias,
        out_bias=bias,
        attention_dropout=fields.dropout("attention_dropout", default=0.0),
        **rotation(fields, sizes.positions, sizes.tokens, sizes.width),
    )
    ffn = sizes.feed_forward(activation=fields.activation("hidden_act", "silu"), gated=True, bias=inner_bias)
    embedding = sizes.embedding(padding=fields.padding(sizes.vocabulary))
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), fields.flag("tie_word_embeddings", False)


# As of transformers' LlamaConfig; the last ones are of its earlier versions, and of the files of SmolLM2.
FIELDS = USUAL_FIELDS | names(
    """
    hidden_act rms_norm_eps pretraining_tp attention_bias mlp_bias rope_interleaved is_llama_config
    """
)
FAMILY = Family(llama, SIZES, FIELDS, {"max_sequence_length": "max_position_embeddings"})  # as its first files called it
