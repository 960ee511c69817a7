"""BERT: an encoder with norms after its residual sums, or a decoder where `is_decoder` is true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainplan.profiling.models.families.fields import USUAL_SIZES, Family, Fields, Unit, names, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding


def bert(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a BERT model: norms after the residual sums, and a head with a dense layer before its
    logits.

    The embedding's norm and the dropout after this norm belong to the first block; if attention is unfused, that dropout is
    counted with the embedding.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
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
    attended, dropped = fields.dropout("attention_probs_dropout_prob"), fields.dropout("hidden_dropout_prob")
    padding = fields.padding(vocabulary, default=0)
    common = fields.common(fields.share("layer_norm_eps", 1e-12))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    blocks: dict[str, Any] = {**common, "post_norm": True, "dropout": dropped}
    attending: dict[str, Any] = {"width": hidden // heads, "causal": causal, "attention_dropout": attended}
    attention = Attention(**blocks, **attending, heads=heads, kv_heads=heads)
    ffn = FeedForward(**blocks, inner=inner, activation=activation)
    tables: dict[str, Any] = {"positions": positions, "token_types": types, "padding": padding}
    embedding = TokenEmbedding(**common, **tables, vocabulary=vocabulary, dropout=dropped if common["unfused"] else 0.0)
    head = LanguageHead(**common, vocabulary=vocabulary, transform=activation, bias=True)
    chain = uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head)
    chain[1] = replace(chain[1], sublayer=replace(attention, input_dropout=dropped))
    return chain, tied


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
