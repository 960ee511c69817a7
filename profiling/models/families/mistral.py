"""Mistral: a Llama whose every layer may meet the keys within a sliding window alone (Jiang et al., 2023)."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import decoder, sliding_window
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation


def mistral(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a Mistral configuration. Without the field, as transformers has it, the window is of 4,096 tokens."""
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
FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act
    max_position_embeddings rms_norm_eps rope_parameters sliding_window attention_dropout
    rope_theta rope_scaling
    """
)
FAMILY = Family(mistral, {**USUAL_SIZES, "width": "head_dim"}, FIELDS)
