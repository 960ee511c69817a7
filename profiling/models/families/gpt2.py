"""GPT-2 and GPT-3."""

from __future__ import annotations

from trainplan.profiling.models.families.fields import Family, Fields, Unit, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding


def gpt2(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a GPT-2 configuration."""
    hidden, heads, layers = fields.count("n_embd", 768), fields.count("n_head", 12), fields.layers("n_layer", 12)
    positions = fields.count("n_positions", fields.config.get("n_ctx") or 1024)
    vocabulary = fields.count("vocab_size", 50257)
    fields.divisor("n_head", heads, "n_embd", hidden)
    inner = fields.count("n_inner", 4 * hidden)
    activation = fields.activation("activation_function", "gelu_new")
    fields.note("scale_attn_weights", usual=True)
    fields.note("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    fields.absent("add_cross_attention")
    dropped = fields.dropout("attn_pdrop", "resid_pdrop", "embd_pdrop")
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(dropped, fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("n_positions", positions), "hidden": hidden}
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, causal=True)
    ffn = FeedForward(**common, inner=inner, activation=activation)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, positions=positions)
    head = LanguageHead(**common, vocabulary=vocabulary)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), tied


FAMILY = Family(
    gpt2,
    {"hidden": "n_embd", "heads": "n_head", "inner": "n_inner", "vocabulary": "vocab_size", "positions": "n_positions"},
)
