"""Families like GPT-2: the first StarCoder (one key for all queries), GPT-Neo (sliding windows), BLOOM (ALiBi slopes).

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import Family, Fields, names
from trainplan.profiling.models.families.gpt2 import ALIASES
from trainplan.profiling.models.families.gpt2 import FIELDS as GPT2_FIELDS
from trainplan.profiling.models.families.layered import NO_ROTATION, Chain, layered

WINDOWS = {"global": False, "local": True}


def gpt_bigcode(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a StarCoder or SantaCoder model: GPT-2 with one key and value head for all queries.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads, layers = fields.size("n_embd", 6144), fields.size("n_head", 48), fields.layers("n_layer", such_as=40)
    positions, vocabulary = fields.size("n_positions", 8192), fields.size("vocab_size", 49152)
    fields.divisor("n_head", heads, "n_embd", hidden)
    fields.note("scale_attn_weights", usual=True)
    fields.absent("add_cross_attention")
    keys = 1 if fields.flag("multi_query", True) else heads
    sizes = _sizes(
        fields, hidden, heads, keys, layers, positions, vocabulary, fields.count("n_inner", 4 * hidden), "n_positions"
    )
    dropped = {"dropout": fields.dropout("resid_pdrop")}
    embedding = {"positions": positions, "dropout": fields.dropout("embd_pdrop")}
    ffn = {"activation": fields.activation("activation_function", "gelu_pytorch_tanh"), **dropped}
    inside = {"attention_dropout": fields.dropout("attn_pdrop"), **dropped}
    return layered(fields, sizes, inside, ffn, NO_ROTATION, embedding=embedding, tied=True)


def gpt_neo(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a GPT-Neo model: GPT-2 with a sliding window in every second layer, and scores that are
    not scaled.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 2048), fields.size("num_heads", 16)
    layers, positions = fields.layers("num_layers", such_as=24), fields.size("max_position_embeddings", 2048)
    vocabulary, inner = fields.size("vocab_size", 50257), fields.count("intermediate_size", 4 * hidden)
    fields.divisor("num_heads", heads, "hidden_size", hidden)
    window, slides = fields.count("window_size", 256), _sliding_layers(fields, layers)
    sizes = _sizes(fields, hidden, heads, heads, layers, positions, vocabulary, inner, "max_position_embeddings")
    dropped = {"dropout": fields.dropout("resid_dropout", default=0.0)}
    embedding = {"positions": positions, "dropout": fields.dropout("embed_dropout", default=0.0)}
    ffn = {"activation": fields.activation("activation_function", "gelu_new"), **dropped}
    inside = {"bias": False, "scale": 1.0, **dropped}
    windows = [window if slide else 0 for slide in slides]
    return layered(fields, sizes, inside, ffn, NO_ROTATION, windows=windows, embedding=embedding, tied=True)


def _sliding_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer of a GPT-Neo has a sliding window, from the field `attention_types`; every second layer if it is
    absent.

    The field has pairs of a list of kinds and how often it is repeated: [[["global", "local"], 12]] for 24 layers, where
    "local" slides. fields: the configuration; fields that are read are recorded in it. layers: the number of layers. Raises
    InputError for other values, or too few layers.
    """
    value: Any = fields.config.get("attention_types")
    if value is None:
        value = [[["global", "local"], layers // 2 + layers % 2]]
    try:
        slides = [WINDOWS[kind] for kinds, times in value for _ in range(times) for kind in kinds]
    except (TypeError, ValueError, KeyError):
        slides = []
    if len(slides) < layers:
        fix = f'give kinds for {layers} layers, such as [[["global", "local"], {-(-layers // 2)}]]'
        raise fields.fail("attention_types", f"is {shown(value)}", fix)
    fields.read["attention_types"] = value
    return slides[:layers]


def bloom(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a BLOOM model: ALiBi slopes in place of positions, and a norm after the embedding.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 4096), fields.size("n_head", 32)
    layers, vocabulary = fields.layers("n_layer", such_as=30), fields.size("vocab_size", 250880)
    fields.divisor("n_head", heads, "hidden_size", hidden)
    fields.absent("apply_residual_connection_post_layernorm")
    positions = fields.count("seq_length", 2048)
    sizes = _sizes(fields, hidden, heads, heads, layers, positions, vocabulary, 4 * hidden, "seq_length")
    dropped = {"dropout": fields.dropout("hidden_dropout", default=0.0)}
    ffn, rotary = {"activation": "gelu_tanh", **dropped}, {**NO_ROTATION, "alibi": 8.0}
    return layered(fields, sizes, dropped, ffn, rotary, embedding={"normed": True}, tied=True)


def _sizes(
    fields: Fields, hidden: int, heads: int, keys: int, layers: int, positions: int, vocabulary: int, inner: int, length: str
) -> Decoder:
    """Build the sizes of a decoder like GPT-2, with layer norms and the requested sequence length, from numbers that were read
    before.

    fields: the configuration; fields that are read are recorded in it. keys: number of heads of keys and values. positions:
    the longest sequence in tokens. inner: output size of the up-projection. length: the name of the configuration's field
    that has the longest sequence, for errors. Raises InputError for a sequence that is too long.
    """
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length(length, positions), "hidden": hidden}
    return Decoder(hidden, heads, keys, hidden // heads, layers, positions, vocabulary, inner, common)


GPT_BIGCODE = Family(
    gpt_bigcode,
    {},
    GPT2_FIELDS
    | names(
        """
        multi_query num_key_value_heads attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner
        validate_runner_input pre_allocate_kv_cache max_sequence_length max_batch_size pad_key_length
        """
    ),
    ALIASES,
)
GPT_NEO = Family(
    gpt_neo,
    {},
    names(
        """
        vocab_size max_position_embeddings hidden_size num_layers attention_types num_heads intermediate_size window_size
        activation_function resid_dropout embed_dropout attention_dropout classifier_dropout layer_norm_epsilon
        attention_layers summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        """
    ),
    {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
)
BLOOM = Family(
    bloom,
    {},
    names(
        """
        vocab_size hidden_size n_layer n_head layer_norm_epsilon apply_residual_connection_post_layernorm hidden_dropout
        attention_dropout pretraining_tp slow_but_exact seq_length
        n_embed n_inner offset_alibi skip_bias_add skip_bias_add_qkv attention_softmax_in_fp32 bias_dropout_fusion
        masked_softmax_fusion unk_token_id
        """
    ),
    {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
)
