"""GPT-2, and GPT-3, which differs from it in sizes alone."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names


def gpt2(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a GPT-2 or GPT-3 model: layer norms, learned positions, biases and dropout.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads, layers = fields.size("n_embd", 768), fields.size("n_head", 12), fields.layers("n_layer", such_as=12)
    positions = fields.count("n_positions", fields.config.get("n_ctx"), such_as=1024)
    vocabulary = fields.size("vocab_size", 50257)
    fields.divisor("n_head", heads, "n_embd", hidden)
    inner = fields.count("n_inner", 4 * hidden)
    activation = fields.activation("activation_function", "gelu_new")
    fields.note("scale_attn_weights", usual=True)
    fields.note("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    fields.absent("add_cross_attention")
    attended, residual, embedded = (fields.dropout(name) for name in ("attn_pdrop", "resid_pdrop", "embd_pdrop"))
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("n_positions", positions), "hidden": hidden}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, inner, common)
    attention = sizes.attention(dropout=residual, attention_dropout=attended)
    ffn = sizes.feed_forward(activation=activation, dropout=residual)
    embedding = sizes.embedding(positions=positions, dropout=embedded)
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), tied


# As of transformers' GPT2Config; the last ones are of its earlier versions.
FIELDS = names(
    """
    vocab_size n_positions n_embd n_layer n_head n_inner activation_function resid_pdrop embd_pdrop attn_pdrop
    layer_norm_epsilon summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn add_cross_attention
    n_ctx n_special predict_special_tokens
    """
)
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
FAMILY = Family(
    gpt2,
    {"hidden": "n_embd", "heads": "n_head", "inner": "n_inner", "vocabulary": "vocab_size", "positions": "n_positions"},
    FIELDS,
    ALIASES,
)
