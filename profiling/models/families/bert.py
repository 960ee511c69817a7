"""BERT."""

from __future__ import annotations

from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding


def bert(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a BERT configuration: post-norm blocks, and a head with a transform."""
    hidden, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    layers, positions = fields.layers("num_hidden_layers", 12), fields.count("max_position_embeddings", 512)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.count("vocab_size", 30522), fields.count("intermediate_size", 3072)
    activation = fields.activation("hidden_act", "gelu")
    fields.absent("add_cross_attention")
    causal = fields.flag("is_decoder", False)
    types = fields.count("type_vocab_size", 2, least=0)
    tied = fields.flag("tie_word_embeddings", True)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob")
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-12))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, causal=causal, post_norm=True)
    ffn = FeedForward(**common, inner=inner, activation=activation, post_norm=True)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, positions=positions, token_types=types)
    head = LanguageHead(**common, vocabulary=vocabulary, transform=activation, bias=True)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), tied


FAMILY = Family(bert, USUAL_SIZES)
