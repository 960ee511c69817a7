"""Families whose files come with code of their publishers; their builders read the fields of those files' `config.json`.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

import math

from trainplan.profiling.models.families.decoder import decoder
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import NO_ROTATION, Chain, described, gated, layered, plain, rotary_of
from trainplan.profiling.models.families.rotation import rotation


def internlm(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an InternLM model: a Llama with biases in attention by default.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    bias = fields.flag("bias", True)
    return plain(fields, decoder(fields), bias, bias, False)


def internlm2(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an InternLM 2 or 2.5 model: a Llama with biases in attention by default.

    Its files pack queries, keys and values of a group of heads in one matrix, which changes no size. fields: the
    configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units
    (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are
    missing or invalid.
    """
    bias = fields.flag("bias", True)
    return plain(fields, decoder(fields), bias, bias, False, padding=2)


def orion(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an Orion model: a Llama with layer norms.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, norm="layer", usual_epsilon=1e-5)
    bias = fields.flag("attention_bias", False)
    return plain(fields, sizes, bias, bias, False)


def qwen(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a model of the first Qwen: a Llama with biases on queries, keys and values.

    Its `intermediate_size` counts gate and up-projection together, so half of it is the network's inner size. fields: the
    configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units
    (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are
    missing or invalid.
    """
    inner = fields.count("intermediate_size", least=2)
    fields.only("no_bias", True)
    fields.note("kv_channels", "use_dynamic_ntk", "use_logn_attn", usual=None)
    changed = {**fields.config, "num_key_value_heads": fields.config.get("num_attention_heads")}
    fields.config = {**changed, "intermediate_size": inner // 2}
    sizes = decoder(fields, epsilon="layer_norm_epsilon")
    fields.read["intermediate_size"] = inner
    rotary = rotary_of(fields, sizes, called=("rotary_emb_base", "rotary_pct"))
    dropped = fields.dropout("attn_dropout_prob", default=0.0)
    inside = {"bias": True, "out_bias": False, "attention_dropout": dropped}
    return layered(fields, sizes, inside, {"activation": "silu", "gated": True, "bias": False}, rotary)


def minicpm(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a MiniCPM model: a Llama with the factors of muP on embeddings, logits and residual
    branches.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    bias = fields.flag("attention_bias", False)
    added = {"residual": fields.share("scale_depth", 1.0, most=1e4) / math.sqrt(sizes.layers)}
    embedding = {"scale": fields.share("scale_emb", 1.0, most=1e4)}
    head = {"scale": fields.count("dim_model_base", sizes.hidden) / sizes.hidden}
    inside = {"bias": bias, "out_bias": bias, **added}
    ffn, rotary = gated(fields, False, **added), rotary_of(fields, sizes)
    return layered(fields, sizes, inside, ffn, rotary, embedding=embedding, head=head, tied=True)


def baichuan(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Baichuan or Baichuan 2 model: a Llama with rotary positions (7B) or with ALiBi slopes
    (13B).

    Positions are rotary if its file has `max_position_embeddings`. fields: the configuration (config.json), written to:
    `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in order, and
    whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    sloped = fields.config.get("max_position_embeddings") is None
    if sloped:
        fields.config = {**fields.config, "max_position_embeddings": fields.config.get("model_max_length")}
    heads = fields.config.get("num_attention_heads")
    fields.config = {**fields.config, "num_key_value_heads": heads}
    sizes = decoder(fields)
    rotary = {**NO_ROTATION, "alibi": 8.0} if sloped else rotary_of(fields, sizes)
    if sloped:
        fields.read["model_max_length"] = fields.read.pop("max_position_embeddings")
    fields.read.pop("num_key_value_heads")
    return layered(fields, sizes, {"bias": False, "out_bias": False}, gated(fields, False), rotary, padding=0)


def exaone(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an EXAONE 3 or 3.5 model: a Llama under other field names.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, epsilon="layer_norm_epsilon", usual_epsilon=1e-5)
    ffn = {"activation": fields.activation("activation_function", "silu"), "gated": True, "bias": False}
    dropped = {"dropout": fields.dropout("embed_dropout", default=0.0)}
    inside = {"bias": False, "out_bias": False}
    return layered(fields, sizes, inside, ffn, rotary_of(fields, sizes), embedding=dropped, tied=True, padding=0)


def chatglm(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a ChatGLM 2 or 3 model, or of GLM-4 in its first form: rotary position embedding
    rotates adjacent pairs of numbers in half of each head.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.only("rmsnorm", True)
    fields.only("post_layer_norm", True)
    fields.absent("apply_residual_connection_post_layernorm", "fp32_residual_connection_off", "pre_seq_len")
    grouped, heads = fields.flag("multi_query_attention", False), fields.config.get("num_attention_heads")
    groups = fields.count("multi_query_group_num", 1) if grouped else heads
    fields.config = {**fields.config, "num_key_value_heads": groups}
    sizes = decoder(fields, epsilon="layernorm_epsilon", usual_epsilon=1e-5)
    fields.read.pop("num_key_value_heads")
    bias = fields.flag("add_bias_linear", False)
    added = fields.flag("add_qkv_bias", False) or bias
    dropped = {"dropout": fields.dropout("hidden_dropout", default=0.0)}
    base = 10000.0 * fields.share("rope_ratio", 1.0, most=1e6)
    rotary = rotation(fields, sizes.positions, sizes.tokens, sizes.width, part=0.5, base=base)
    for name in ("rope_theta", "partial_rotary_factor"):  # they follow from other fields of its files
        fields.read.pop(name)
    inside = {"bias": added, "out_bias": bias, "interleaved": True, **dropped}
    ffn = {"activation": "silu", "gated": True, "bias": bias, **dropped}
    return layered(fields, sizes, inside, ffn, rotary)


INTERNLM = described(internlm, "rms_norm_eps bias rotary")
INTERNLM2 = described(internlm2, "rms_norm_eps bias")
ORION = described(orion, "rms_norm_eps attention_bias max_sequence_length")
QWEN = described(
    qwen,
    """
    layer_norm_epsilon kv_channels no_bias seq_length rotary_emb_base rotary_pct attn_dropout_prob emb_dropout_prob
    use_dynamic_ntk use_logn_attn use_flash_attn bf16 fp16 fp32 scale_attn_weights onnx_safe softmax_in_fp32
    use_cache_quantization use_cache_kernel
    """,
)
MINICPM = described(minicpm, "rms_norm_eps attention_bias scale_emb scale_depth dim_model_base mup_denominator")
BAICHUAN = described(baichuan, "rms_norm_eps model_max_length z_loss_weight")
EXAONE = described(
    exaone, "activation_function layer_norm_epsilon embed_dropout num_layers rotary_dim", {"num_layers": "num_hidden_layers"}
)
CHATGLM = described(
    chatglm,
    """
    layernorm_epsilon rmsnorm post_layer_norm apply_residual_connection_post_layernorm multi_query_attention
    multi_query_group_num add_bias_linear add_qkv_bias hidden_dropout rope_ratio original_rope bias_dropout_fusion
    attention_softmax_in_fp32 apply_query_key_layer_scaling fp32_residual_connection quantization_bit pre_seq_len
    prefix_projection interleaved_qkv classifier_dropout eos_token_ids num_layers ffn_hidden_size kv_channels seq_length
    padded_vocab_size
    """,
    {
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "kv_channels": "head_dim",
        "seq_length": "max_position_embeddings",
        "padded_vocab_size": "vocab_size",
    },
)
