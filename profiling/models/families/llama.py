"""Llama: rotary positions, RMS norms, gated feed-forward networks and grouped keys and values."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, USUAL_FIELDS, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def llama(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Llama model: rotary positions, RMS norms, gated feed-forward networks, and optional
    biases.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
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
