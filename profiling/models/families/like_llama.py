"""Families of transformers that are a Llama with other names, or with one more switch."""

from __future__ import annotations

import math

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Fields
from trainplan.profiling.models.families.layered import Chain, described, gated, layered, plain, stretched_turning, turning_of


def internlm3(fields: Fields) -> Chain:
    """InternLM 3."""
    bias, inner = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return plain(fields, decoder(fields, width=128), bias, inner, inner, padding=2)


def arcee(fields: Fields) -> Chain:
    """Arcee's AFM: no gate, squared ReLU."""
    sizes, bias, inner = decoder(fields), fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    ffn = {"activation": fields.activation("hidden_act", "relu2"), "bias": inner}
    return layered(fields, sizes, {"bias": bias, "out_bias": bias}, ffn, turning_of(fields, sizes))


def helium(fields: Fields) -> Chain:
    """Helium: neighbours turn with each other."""
    sizes, bias = decoder(fields, usual_epsilon=1e-8, width=128), fields.flag("attention_bias", False)
    inside = {"interleaved": True}
    inner = fields.flag("mlp_bias", False)
    return plain(fields, sizes, bias, False, inner, attention=inside, base=100000.0, padding=3)


def ernie4_5(fields: Fields) -> Chain:
    """Dense ERNIE 4.5: neighbours turn with each other, embeddings are tied."""
    sizes, bias = decoder(fields, usual_epsilon=1e-5, width=128), fields.flag("use_bias", False)
    inside = {"interleaved": True}
    return plain(fields, sizes, bias, bias, bias, attention=inside, base=500000.0, tied=True, padding=0)


def gemma(fields: Fields) -> Chain:
    """Gemma: wide heads, GELU with a gate, scaled embeddings. Its files keep the weights of norms less 1."""
    fields.absent("use_bidirectional_attention")
    sizes, bias = decoder(fields, width=256), fields.flag("attention_bias", False)
    said = "hidden_activation" if fields.config.get("hidden_activation") is not None else "hidden_act"
    activation = fields.activation(said, "gelu_pytorch_tanh")
    activation = "gelu_tanh" if said == "hidden_act" and activation == "gelu" else activation  # as transformers takes it
    ffn = {"activation": activation, "gated": True, "bias": False}
    scaled = {"scale": math.sqrt(sizes.hidden)}
    inside, turning = {"bias": bias, "out_bias": bias}, turning_of(fields, sizes)
    return layered(fields, sizes, inside, ffn, turning, embedding=scaled, tied=True, padding=0)


def seed_oss(fields: Fields) -> Chain:
    """Seed-OSS: biases of queries, keys and values, wide heads, dropout."""
    sizes, bias, out = decoder(fields, width=128), fields.flag("attention_bias", True), fields.flag("attention_out_bias", False)
    dropped = {"dropout": fields.dropout("residual_dropout", default=0.1)}
    inside = {"bias": bias, "out_bias": out, "attention_dropout": fields.dropout("attention_dropout", default=0.1), **dropped}
    ffn = gated(fields, fields.flag("mlp_bias", False), **dropped)
    return layered(fields, sizes, inside, ffn, turning_of(fields, sizes), padding=1)


def ministral(fields: Fields) -> Chain:
    """Ministral: Mistral whose layers slide where its file says so, or all of them."""
    sizes = decoder(fields)
    window = sliding_window(fields, missing=4096)
    windows = layer_windows(fields, sizes.layers, window, [window > 0] * sizes.layers)
    return plain(fields, sizes, False, False, False, windows=windows)


def ministral3(fields: Fields) -> Chain:
    """Ministral 3: Mistral with wide heads, whose queries grow beyond the positions that its rotation was trained on."""
    sizes = decoder(fields, usual_epsilon=1e-5, width=128)
    windows = [sliding_window(fields)] * sizes.layers
    return plain(fields, sizes, False, False, False, windows=windows, base=1e6, padding=11)


def iquestcoder(fields: Fields) -> Chain:
    """IQuest-Coder: a Llama with heads of a width of their own."""
    bias, inner = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return plain(fields, decoder(fields, usual_epsilon=1e-5, width=128), bias, bias, inner)


def cwm(fields: Fields) -> Chain:
    """Code World Model: three of four layers within a window."""
    sizes = decoder(fields, usual_epsilon=1e-5, width=128)
    windows = layer_windows(fields, sizes.layers, sliding_window(fields, 8192), [i % 4 > 0 for i in range(sizes.layers)])
    turning = stretched_turning(fields, sizes, base=1e6, factor=16.0)
    return plain(fields, sizes, False, False, fields.flag("mlp_bias", False), windows=windows, turning=turning)


def smollm3(fields: Fields) -> Chain:
    """SmolLM 3: every fourth layer without positions."""
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    every = fields.count("no_rope_layer_interval", 4)
    turned = _turned(fields, "no_rope_layers", [(i + 1) % every > 0 for i in range(sizes.layers)])
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    windows = layer_windows(fields, sizes.layers, window, [not turns for turns in turned])
    inner, base = fields.flag("mlp_bias", False), 2e6
    options = {"windows": windows, "turned": turned, "tied": True, "padding": 128004}
    return plain(fields, sizes, bias, bias, inner, base=base, **options)


def _turned(fields: Fields, name: str, usual: list[bool]) -> list[bool]:
    """Of each layer whether its heads turn: 1 where they do, 0 where they do not."""
    value = fields.config.get(name)
    if value is None:
        return usual
    if not isinstance(value, list) or len(value) != len(usual) or any(each not in (0, 1) for each in value):
        raise fields.fail(name, f"is {shown(value)}", f"give 0 or 1 for each of {len(usual)} layers")
    fields.read[name] = value
    return [bool(each) for each in value]


def granite(fields: Fields) -> Chain:
    """Granite: factors on embeddings, scores, logits and what joins the residual."""
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    return _scaled(fields, sizes, bias, fields.flag("mlp_bias", False), sandwich=False, usual_scale=1.0)


def hyperclovax(fields: Fields) -> Chain:
    """HyperCLOVA X: Granite with norms behind the matrices, too."""
    sizes, bias = decoder(fields), fields.flag("attention_bias", False)
    sandwich = fields.flag("use_post_norm", True)
    return _scaled(fields, sizes, bias, fields.flag("mlp_bias", False), sandwich, sizes.width**-0.5)


def _scaled(fields: Fields, sizes: Decoder, bias: bool, inner_bias: bool, sandwich: bool, usual_scale: float) -> Chain:
    scale = fields.share("attention_multiplier", usual_scale, most=1e3)
    added = {"residual": fields.share("residual_multiplier", 1.0, most=1e3), "sandwich": sandwich}
    embedding = {"scale": fields.share("embedding_multiplier", 1.0, most=1e4)}
    head = {"scale": 1 / fields.share("logits_scaling", 1.0, most=1e4)}
    inside = {"bias": bias, "out_bias": bias, "scale": scale, **added}
    ffn, turning = gated(fields, inner_bias, **added), turning_of(fields, sizes)
    return layered(fields, sizes, inside, ffn, turning, embedding=embedding, head=head)


def qwen2_vl_text(fields: Fields) -> Chain:
    """The language model of Qwen 2-VL and 2.5-VL: Qwen 2. A text's three positions (time, height, width) are one."""
    from trainplan.profiling.models.families.qwen2 import qwen2

    return qwen2(fields)


def qwen3_vl_text(fields: Fields) -> Chain:
    """The language model of Qwen 3-VL: Qwen 3."""
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
