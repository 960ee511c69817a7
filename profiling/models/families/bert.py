"""BERT."""

from __future__ import annotations

from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding


def bert(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a BERT configuration: post-norm blocks, and a head with a transform."""
    hidden, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    layers, positions = fields.layers("num_hidden_layers", such_as=12), fields.size("max_position_embeddings", 512)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.size("vocab_size", 30522), fields.size("intermediate_size", 3072)
    activation = fields.activation("hidden_act", "gelu")
    fields.absent("add_cross_attention")
    fields.only("position_embedding_type", "absolute")
    causal = fields.flag("is_decoder", False)
    types = fields.count("type_vocab_size", 2, least=0)
    tied = fields.flag("tie_word_embeddings", True)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob")
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-12))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, causal=causal, post_norm=True)
    ffn = FeedForward(**common, inner=inner, activation=activation, post_norm=True)
    padding = fields.padding(vocabulary, default=0)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, positions=positions, token_types=types, padding=padding)
    head = LanguageHead(**common, vocabulary=vocabulary, transform=activation, bias=True)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), tied


# As of transformers' BertConfig; the last ones are of its earlier versions, and of the first release's files.
FIELDS = names(
    """
    vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob
    attention_probs_dropout_prob max_position_embeddings type_vocab_size layer_norm_eps classifier_dropout is_decoder
    add_cross_attention
    position_embedding_type directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type output_past
    """
)
FAMILY = Family(bert, USUAL_SIZES, FIELDS)
