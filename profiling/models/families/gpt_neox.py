"""GPT-NeoX and Pythia: attention and feed-forward network in parallel, and rotary positions on a quarter of each head."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names
from trainplan.profiling.models.families.rotation import rotation
from trainplan.profiling.models.sublayers import ParallelBlock, Sublayer


def gpt_neox(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a GPT-NeoX or Pythia model, with rotary positions on a quarter of each head by default.

    A block is one unit if its attention and feed-forward network read the same hidden states (`use_parallel_residual`), else
    two.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 6144), fields.size("num_attention_heads", 64)
    layers, positions = fields.layers("num_hidden_layers", such_as=44), fields.size("max_position_embeddings", 2048)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.size("vocab_size", 50432), fields.size("intermediate_size", 24576)
    activation, bias = fields.activation("hidden_act", "gelu"), fields.flag("attention_bias", True)
    side_by_side, tied = fields.flag("use_parallel_residual", True), fields.flag("tie_word_embeddings", False)
    attended = fields.dropout("attention_dropout", default=0.0)
    fields.note("hidden_dropout", usual=0)
    common = fields.common(fields.share("layer_norm_eps", 1e-5))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, inner, common)
    rotary = rotation(fields, positions, sizes.tokens, sizes.width, part=0.25, called=("rotary_emb_base", "rotary_pct"))
    attention = sizes.attention(bias=bias, out_bias=bias, attention_dropout=attended, **rotary)
    ffn = sizes.feed_forward(activation=activation)
    parts: dict[str, Sublayer] = {"attention": attention, "ffn": ffn}
    if side_by_side:
        parts = {"block": ParallelBlock(**common, attention=attention, feed_forward=ffn)}
    return sizes.uniform(parts, sizes.embedding()), tied


# As of transformers' GPTNeoXConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act attention_dropout hidden_dropout
    classifier_dropout max_position_embeddings layer_norm_eps use_parallel_residual rope_parameters attention_bias
    rotary_pct rotary_emb_base rope_scaling attention_probs_dropout_prob hidden_dropout_prob
    """
)
FAMILY = Family(gpt_neox, USUAL_SIZES, FIELDS)
