"""OPT: GPT-2 with ReLU, and learned positions that begin at the third row of their table."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names

FIRST_POSITION = 2


def opt(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of an OPT model: GPT-2 with ReLU, and learned positions from the third row of their table
    on.

    InputError is also raised for OPT-350M, whose blocks do not begin with norms. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    layers, positions = fields.layers("num_hidden_layers", such_as=12), fields.size("max_position_embeddings", 2048)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.size("vocab_size", 50272), fields.size("ffn_dim", 3072)
    activation, bias = fields.activation("activation_function", "relu"), fields.flag("enable_bias", True)
    if (table := fields.count("word_embed_proj_dim", hidden)) != hidden:
        problem = f"is {table}, and hidden_size {hidden}: tables that are narrower than the layers are not planned"
        raise fields.fail("word_embed_proj_dim", problem, "give another model, such as --model opt-1.3b")
    fields.only("do_layer_norm_before", True)
    fields.only("layer_norm_elementwise_affine", True)
    fields.absent("_remove_final_layer_norm", "layerdrop")
    dropped, attended = fields.dropout("dropout"), fields.dropout("attention_dropout", default=0.0)
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(1e-5) | {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, inner, common)
    attention = sizes.attention(bias=bias, out_bias=bias, dropout=dropped, attention_dropout=attended)
    ffn = sizes.feed_forward(activation=activation, bias=bias, dropout=dropped)
    padding = fields.padding(vocabulary, default=1)
    embedding = sizes.embedding(positions=positions + FIRST_POSITION, first_position=FIRST_POSITION, padding=padding)
    return sizes.uniform({"attention": attention, "ffn": ffn}, embedding), tied


# As of transformers' OPTConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    vocab_size hidden_size num_hidden_layers ffn_dim max_position_embeddings do_layer_norm_before _remove_final_layer_norm
    word_embed_proj_dim dropout attention_dropout num_attention_heads activation_function layerdrop init_std enable_bias
    layer_norm_elementwise_affine
    activation_dropout
    """
)
FAMILY = Family(opt, {**USUAL_SIZES, "inner": "ffn_dim"}, FIELDS)
