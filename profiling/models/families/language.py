"""One stack over one sequence of tokens: GPT-2 (and GPT-3), BERT, Llama."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.profiling.models.families.fields import Chain, Fields, blocks, stack
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    LanguageHead,
    TokenEmbedding,
)


def gpt2(fields: Fields) -> tuple[Chain, bool]:
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
    return stack(embedding, blocks(layers, {"attention": attention, "ffn": ffn}), head), tied


def bert(fields: Fields) -> tuple[Chain, bool]:
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
    return stack(embedding, blocks(layers, {"attention": attention, "ffn": ffn}), head), tied


def llama(fields: Fields) -> tuple[Chain, bool]:
    hidden, heads = fields.count("hidden_size", 4096), fields.count("num_attention_heads", 32)
    layers, positions = fields.layers("num_hidden_layers", 32), fields.count("max_position_embeddings", 2048)
    kv_heads = fields.count("num_key_value_heads", heads)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if fields.config.get("head_dim") is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads))
    if width % 2:
        raise fields.fail("head_dim", f"is {width}", "give an even number: rotary positions turn pairs")
    vocabulary, inner = fields.count("vocab_size", 32000), fields.count("intermediate_size", 11008)
    activation = fields.activation("hidden_act", "silu")
    given = fields.config.get("rope_parameters")
    given = given if isinstance(given, Mapping) else {}
    theta = fields.share("rope_theta", given.get("rope_theta") or 10000.0, most=1e12)
    fields.note("rope_scaling")
    if given.get("rope_type", "default") != "default":
        fields.read["rope_scaling"] = dict(given)
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    tied = fields.flag("tie_word_embeddings", False)
    common = fields.common(fields.dropout("attention_dropout", default=0.0), fields.share("rms_norm_eps", 1e-6))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": "rms"}
    attention = Attention(
        **common, heads=heads, kv_heads=kv_heads, width=width, causal=True, bias=bias, out_bias=bias, rotary=theta
    )
    ffn = FeedForward(**common, inner=inner, activation=activation, gated=True, bias=inner_bias)
    embedding, head = TokenEmbedding(**common, vocabulary=vocabulary), LanguageHead(**common, vocabulary=vocabulary)
    return stack(embedding, blocks(layers, {"attention": attention, "ffn": ffn}), head), tied
