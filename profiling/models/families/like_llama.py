"""Families of transformers that are a Llama under other names, or with one more switch.

The builders return the units of a configuration, and whether the matrix of its language head is the embedding's ("tied"); they
raise InputError for a configuration that they cannot read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, plain, rotary_of, stretched_rotary
from trainplan.profiling.models.sublayers import Sublayer


def internlm3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an InternLM 3 model: a Llama with head size 128 and optional biases.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    bias, inner = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return plain(fields, decoder(fields, width=128), bias, inner, inner, padding=2)


def arcee(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an Arcee (AFM) model: a Llama whose feed-forward network has no gate and squared ReLU.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias, inner = decoder(fields), fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    ffn = {"activation": fields.activation("hidden_act", "relu2"), "bias": inner}
    return layered(fields, sizes, {"bias": bias, "out_bias": bias}, ffn, rotary_of(fields, sizes))


def helium(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Helium model: a Llama whose rotary position embedding rotates adjacent pairs of
    numbers in each head.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-8, width=128), fields.flag("attention_bias", False)
    inside = {"interleaved": True}
    inner = fields.flag("mlp_bias", False)
    return plain(fields, sizes, bias, False, inner, attention=inside, base=100000.0, padding=3)


def ernie4_5(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a dense ERNIE 4.5 model: a Llama whose rotary position embedding rotates adjacent pairs
    of numbers in each head, with tied embeddings by default.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=128), fields.flag("use_bias", False)
    inside = {"interleaved": True}
    return plain(fields, sizes, bias, bias, bias, attention=inside, base=500000.0, tied=True, padding=0)


def gemma(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Gemma model: a Llama with head size 256, gated GELU and scaled embeddings.

    Its files store each norm's weights minus 1, which changes neither results nor gradients. fields: the configuration
    (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or
    invalid.
    """
    fields.absent("use_bidirectional_attention")
    sizes, bias = decoder(fields, width=256), fields.flag("attention_bias", False)
    field = "hidden_activation" if fields.config.get("hidden_activation") is not None else "hidden_act"
    activation = fields.activation(field, "gelu_pytorch_tanh")
    activation = "gelu_tanh" if field == "hidden_act" and activation == "gelu" else activation  # as transformers takes it
    ffn = {"activation": activation, "gated": True, "bias": False}
    scaled = {"scale": math.sqrt(sizes.hidden)}
    inside, rotary = {"bias": bias, "out_bias": bias}, rotary_of(fields, sizes)
    return layered(fields, sizes, inside, ffn, rotary, embedding=scaled, tied=True, padding=0)


def seed_oss(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Seed-OSS model: a Llama with biases on queries, keys and values, head size 128, and
    dropout.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias, out = decoder(fields, width=128), fields.flag("attention_bias", True), fields.flag("attention_out_bias", False)
    dropped = {"dropout": fields.dropout("residual_dropout", default=0.1)}
    inside = {"bias": bias, "out_bias": out, "attention_dropout": fields.dropout("attention_dropout", default=0.1), **dropped}
    ffn = gated(fields, fields.flag("mlp_bias", False), **dropped)
    return layered(fields, sizes, inside, ffn, rotary_of(fields, sizes), padding=1)


def ministral(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Ministral model: Mistral with a sliding window in the layers that `layer_types`
    names, else in all.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields)
    window = sliding_window(fields, missing=4096)
    windows = layer_windows(fields, sizes.layers, window, [window > 0] * sizes.layers)
    return plain(fields, sizes, False, False, False, windows=windows)


def ministral3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Ministral 3 model: Mistral with head size 128.

    Its queries are scaled up beyond the positions that its rotation was trained on, which changes no shape. fields: the
    configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units
    (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are
    missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5, width=128)
    windows = [sliding_window(fields)] * sizes.layers
    return plain(fields, sizes, False, False, False, windows=windows, base=1e6, padding=11)


def iquestcoder(fields: Fields) -> Chain:
    """Build the chain of sub-layers of an IQuest-Coder model: a Llama with head size 128 by default.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    bias, inner = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return plain(fields, decoder(fields, usual_epsilon=1e-5, width=128), bias, bias, inner)


def cwm(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Code World Model: a Llama with a sliding window in three of four layers and stretched
    rotary positions.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes = decoder(fields, usual_epsilon=1e-5, width=128)
    windows = layer_windows(fields, sizes.layers, sliding_window(fields, 8192), [i % 4 > 0 for i in range(sizes.layers)])
    rotary = stretched_rotary(fields, sizes, base=1e6, factor=16.0)
    return plain(fields, sizes, False, False, fields.flag("mlp_bias", False), windows=windows, rotary=rotary)


def smollm3(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a SmolLM 3 model: a Llama without rotary positions in every fourth layer.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    every = fields.count("no_rope_layer_interval", 4)
    rotating = rotating_layers(fields, "no_rope_layers", [(i + 1) % every > 0 for i in range(sizes.layers)])
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    windows = layer_windows(fields, sizes.layers, window, [not turns for turns in rotating])
    inner, base = fields.flag("mlp_bias", False), 2e6
    options = {"windows": windows, "rotating": rotating, "tied": True, "padding": 128004}
    return plain(fields, sizes, bias, bias, inner, base=base, **options)


def rotating_layers(fields: Fields, name: str, usual: list[bool]) -> list[bool]:
    """Whether each layer has rotary positions, from a list of 1 (it has) and 0 in a field.

    fields: the configuration; fields that are read are recorded in it. name: the field. usual: the result if the field is
    absent; its length is the number of layers. Raises InputError for other lists.
    """
    value = fields.config.get(name)
    if value is None:
        return usual
    if not isinstance(value, list) or len(value) != len(usual) or any(flag not in (0, 1) for flag in value):
        raise fields.fail(name, f"is {shown(value)}", f"give 0 or 1 for each of {len(usual)} layers")
    fields.read[name] = value
    return [bool(flag) for flag in value]


def granite(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a Granite model: a Llama with factors on embeddings, scores, logits and residual
    branches.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    return scaled(fields, sizes, bias, fields.flag("mlp_bias", False), sandwich=False, usual_scale=1.0)


def hyperclovax(fields: Fields) -> Chain:
    """Build the chain of sub-layers of a HyperCLOVA X model: Granite with norms also after attention and feed-forward network.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    sandwich = fields.flag("use_post_norm", True)
    return scaled(fields, sizes, bias, fields.flag("mlp_bias", False), sandwich, sizes.width**-0.5)


def scaled(
    fields: Fields,
    sizes: Decoder,
    bias: bool,
    inner_bias: bool,
    sandwich: bool,
    usual_scale: float,
    network: Callable[..., Sublayer] | None = None,
) -> Chain:
    """Build the chain of sub-layers of a Granite-like decoder, with factors on embeddings, scores, logits and residual
    branches.

    sizes: the model's sizes, read before. bias: whether attention's projections have a bias; inner_bias: whether the
    feed-forward network's projections have one. sandwich: whether there are norms also after both. usual_scale: the factor of
    scores if the configuration has no `attention_multiplier`. network: makes the unit that all layers have in place of the
    feed-forward network, from the keyword arguments of its residual; None for that network. fields: the configuration
    (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    scale = fields.share("attention_multiplier", usual_scale, most=1e3)
    added = {"residual": fields.share("residual_multiplier", 1.0, most=1e3), "sandwich": sandwich}
    embedding = {"scale": fields.share("embedding_multiplier", 1.0, most=1e4)}
    head = {"scale": 1 / fields.share("logits_scaling", 1.0, most=1e4)}
    inside = {"bias": bias, "out_bias": bias, "scale": scale, **added}
    ffn, rotary = gated(fields, inner_bias, **added), rotary_of(fields, sizes)
    networks = None if network is None else [network(**added)] * sizes.layers
    return layered(fields, sizes, inside, ffn, rotary, networks=networks, embedding=embedding, head=head)


def qwen2_vl_text(fields: Fields) -> Chain:
    """Build the chain of sub-layers of the language model of Qwen 2-VL or 2.5-VL, which is Qwen 2.

    Its positions in three dimensions (time, height, width) are equal for text. fields: the configuration (config.json),
    written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with names) in
    order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or invalid.
    """
    from trainplan.profiling.models.families.qwen2 import qwen2

    return qwen2(fields)


def qwen3_vl_text(fields: Fields) -> Chain:
    """Build the chain of sub-layers of the language model of Qwen 3-VL, which is Qwen 3.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    from trainplan.profiling.models.families.qwen3 import qwen3

    return qwen3(fields)


BIASES = "rms_norm_eps attention_bias mlp_bias"
INTERNLM3 = described(internlm3, f"{BIASES} qkv_bias bias", {"qkv_bias": "attention_bias", "bias": "mlp_bias"})
ARCEE, HELIUM = described(arcee, BIASES), described(helium, BIASES)
ERNIE4_5 = described(ernie4_5, "rms_norm_eps use_bias compression_ratio use_flash_attention")
GEMMA = described(gemma, "rms_norm_eps attention_bias hidden_activation use_bidirectional_attention")
SEED_OSS = described(seed_oss, f"{BIASES} attention_out_bias residual_dropout")
MINISTRAL = described(ministral, "rms_norm_eps sliding_window layer_types")
MINISTRAL3 = described(ministral3, "rms_norm_eps sliding_window")
IQUESTCODER = described(iquestcoder, BIASES)
CWM = described(cwm, "rms_norm_eps mlp_bias sliding_window layer_types")
SMOLLM3 = described(
    smollm3,
    f"{BIASES} no_rope_layers no_rope_layer_interval use_sliding_window sliding_window layer_types max_window_layers",
)
FACTORS = "embedding_multiplier logits_scaling residual_multiplier attention_multiplier"
GRANITE = described(granite, f"{BIASES} {FACTORS}")
HYPERCLOVAX = described(hyperclovax, f"{BIASES} {FACTORS} use_post_norm")
VISION = "rms_norm_eps use_sliding_window sliding_window max_window_layers layer_types use_mrope"
QWEN2_VL_TEXT = described(qwen2_vl_text, VISION)
QWEN3_VL_TEXT = described(qwen3_vl_text, f"{VISION} attention_bias")
