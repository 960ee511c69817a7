"""Files that people bring: families with code of their own, multimodal ones, mixtures of experts, and what is no decoder."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.models.model import Model, load_model, model_from_config, model_from_shape
from trainplan.profiling.models.sublayers import attention_of

from tests.helpers.refusals import cautioned, refused

LIKE_LLAMA = {"hidden_act": "silu", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
INTERNLM2 = {
    **LIKE_LLAMA,
    "model_type": "internlm2",
    "attn_implementation": "sdpa",
    "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
    "bias": False,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"type": "dynamic", "factor": 1.0},
    "rope_theta": 1000000,
    "vocab_size": 92544,
}
BAICHUAN = {
    **LIKE_LLAMA,
    "model_type": "baichuan",
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_max_length": 4096,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": 125696,
}
BAICHUAN_13B = {name: value for name, value in BAICHUAN.items() if name != "max_position_embeddings"} | {
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "intermediate_size": 13696,
}
CHATGLM = {
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "tie_word_embeddings": False,
}
MINICPM = {
    **LIKE_LLAMA,
    "model_type": "minicpm",
    "hidden_size": 2304,
    "intermediate_size": 5760,
    "max_position_embeddings": 2048,
    "num_attention_heads": 36,
    "num_hidden_layers": 40,
    "num_key_value_heads": 36,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "vocab_size": 122753,
    "scale_emb": 12,
    "dim_model_base": 256,
    "scale_depth": 1.4,
}
EXAONE = {
    "model_type": "exaone",
    "activation_function": "silu",
    "attention_dropout": 0.0,
    "embed_dropout": 0.0,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_layers": 32,
    "pad_token_id": 0,
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    | {"original_max_position_embeddings": 8192},
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 102400,
}
QWEN = {
    "model_type": "qwen",
    "attn_dropout_prob": 0.0,
    "emb_dropout_prob": 0.0,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "kv_channels": 128,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 32768,
    "no_bias": True,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "seq_length": 8192,
    "tie_word_embeddings": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "vocab_size": 151936,
}
INTERNLM = {**LIKE_LLAMA, "model_type": "internlm", "bias": True, "intermediate_size": 11008, "vocab_size": 103168}
INTERNLM |= {"max_position_embeddings": 2048, "num_key_value_heads": 32, "rms_norm_eps": 1e-6}
OLMO2 = {**LIKE_LLAMA, "model_type": "olmo2", "intermediate_size": 11008, "num_key_value_heads": 32, "vocab_size": 100352}
OLMO2 |= {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000, "tie_word_embeddings": False}
# What the checkpoints hold (InternLM: the sum of its code's matrices, biases and norms).
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "internlm2-7b": (7_737_708_544, INTERNLM2),
    "internlm-7b": (
        2 * 103168 * 4096 + 4096 + 32 * (4 * (4096 + 1) * 4096 + 3 * 4096 * 11008 + 2 * 4096),
        INTERNLM,
    ),
    "baichuan2-7b": (7_505_973_248, BAICHUAN),
    "baichuan2-13b": (13_896_668_160, BAICHUAN_13B),
    "baichuan-13b": (13_264_901_120, BAICHUAN_13B | {"vocab_size": 64000}),
    "chatglm3-6b": (6_243_584_000, CHATGLM),
    "glm-4-9b": (
        9_399_951_360,
        CHATGLM | {"num_layers": 40, "padded_vocab_size": 151552, "rope_ratio": 500, "seq_length": 131072},
    ),
    "minicpm-2b": (2_724_880_896, MINICPM),
    "exaone-3.5-7.8b": (7_818_448_896, EXAONE),
    "qwen-7b": (7_721_324_544, QWEN),
    "olmo2-7b": (7_298_617_344, OLMO2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_have_the_parameters_of_their_checkpoints(name: str) -> None:
    """No field is unknown; the same model comes back from what a plan carries."""
    parameters, config = PUBLISHED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        model = model_from_config(config, name)
        assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model
    assert model.total_parameters == parameters


def _attention(model: Model) -> Any:
    return next(found for part in model.sublayers.values() if (found := attention_of(part)) is not None)


def test_switches_of_published_code_are_in_the_layers() -> None:
    small, large = (model_from_config(entry, "config.json") for entry in (BAICHUAN, BAICHUAN_13B))
    assert (_attention(small).rotary, _attention(small).alibi) == (10000.0, 0.0)
    assert (_attention(large).rotary, _attention(large).alibi, large.tokens) == (0.0, 8.0, 4096), "slopes in place of positions"
    glm = _attention(model_from_config(CHATGLM | {"rope_ratio": 50}, "config.json"))
    assert (glm.kv_heads, glm.rotary_width, glm.interleaved, glm.rotary) == (2, 64, True, 500000.0)
    mini = model_from_config(MINICPM, "config.json")
    assert mini.tied and mini.units[0].sublayer.scale == 12 and mini.units[-1].sublayer.scale == pytest.approx(256 / 2304)  # type: ignore[attr-defined]
    assert _attention(mini).residual == pytest.approx(1.4 / 40**0.5)


def test_patterns_of_windows_are_read() -> None:
    common = {**LIKE_LLAMA, "num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}
    common |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 8, "pad_token_id": None}

    def layers(kind: str, **fields: Any) -> list[tuple[int, bool]]:
        """The window of each layer, and whether its heads turn."""
        model = model_from_config({**common, "model_type": kind, **fields}, "config.json")
        found = [attention_of(unit.sublayer) for unit in model.units]
        return [(entry.sliding, entry.rotary > 0) for entry in found if entry is not None]

    assert layers("exaone4", sliding_window_pattern="LLLG") == [(8, True)] * 3 + [(0, False)]
    assert layers("exaone4", sliding_window=None, sliding_window_pattern=None) == [(0, True)] * 4
    assert layers("cohere2", sliding_window_pattern=2) == [(8, True), (0, False)] * 2
    assert layers("olmo3") == [(8, True)] * 3 + [(0, True)]
    assert layers("smollm3", sliding_window=None) == [(0, True)] * 3 + [(0, False)]
    with refused("sliding_window_pattern", problem="LLX"):
        layers("exaone4", sliding_window_pattern="LLX")


QWEN_VL = {**LIKE_LLAMA, "model_type": "qwen2_5_vl", "intermediate_size": 11008, "num_key_value_heads": 4, "vocab_size": 1000}
QWEN_VL |= {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "image_token_id": 7}
QWEN_VL |= {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {"depth": 32}}


def test_language_models_of_multimodal_files_are_planned_alone() -> None:
    with cautioned("this", problem="qwen2_5_vl", fix="vision_config"):
        flat = model_from_config(QWEN_VL, "config.json")
    assert flat.family == "qwen2_5_vl_text"
    text = {**{name: value for name, value in QWEN_VL.items() if name not in ("vision_config", "image_token_id")}}
    nested = {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": text | {"model_type": "qwen2_5_vl_text"}}
    other = {"model_type": "internvl_chat", "vision_config": {}, "llm_config": INTERNLM2}
    with cautioned(re.compile("llm_config|text_config"), re.compile("internvl_chat|qwen2_5_vl"), "vision_config"):
        assert model_from_config(nested, "config.json").total_parameters == flat.total_parameters
        assert model_from_config(other, "config.json").total_parameters == PUBLISHED["internlm2-7b"][0]


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        (
            {"model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 8},
            ("num_experts", ("experts", 64, 8)),
        ),
        (
            {"model_type": "deepseek_v3", "n_routed_experts": 256, "num_experts_per_tok": 8},
            ("n_routed_experts", ("experts", 256, 8)),
        ),
        ({"model_type": "mixtral"}, ("model_type", ("mixtral", "experts", 8, 2))),
        ({"model_type": "kimi_k9", "num_experts": 384, "num_experts_per_token": 8}, ("num_experts", ("experts", 384, 8))),
        (
            {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}},
            ("ffn_config.moe_num_experts", ("experts", 16, 4)),
        ),
        ({"model_type": "ernie4_5_vl_moe", "moe_num_experts": [64, 64], "moe_k": 6}, ("moe_num_experts", ("experts", 64, 6))),
        ({**INTERNLM2, "num_local_experts": 8}, ("num_local_experts", ("experts", 8))),
        ({"model_type": "deepseek_v3", "n_shared_experts": 2}, ("model_type", ("deepseek_v3", "experts", 256, 8))),
        ({"model_type": "dots1", "n_routed_experts": None}, ("model_type", ("dots1", "experts", 128, 6))),
        ({"model_type": "dots1", "n_routed_experts": 128, "num_experts_per_tok": 6}, ("n_routed_experts", ("experts", 128, 6))),
        ({"model_type": "doge", "is_moe": True}, ("model_type", ("doge", "experts", 16384, 64))),
        (
            {"model_type": "doge", "is_moe": True, "num_experts": 4096, "num_experts_per_tok": 32},
            ("num_experts", ("experts", 4096, 32)),
        ),
        ({"model_type": "new_moe"}, ("model_type", ("new_moe", "experts"))),
    ],
)
def test_mixtures_of_experts_are_refused_as_what_they_are(config: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal, "dense model", where="config.json"):
        model_from_config(config, "config.json")


def test_one_expert_is_a_dense_model() -> None:
    with cautioned("num_experts", problem="internlm2"):
        assert model_from_config({**INTERNLM2, "num_experts": 1}, "config.json").total_parameters == 7_737_708_544


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({"model_type": "mamba", "state_size": 128}, ("mamba", "state-space")),
        ({"model_type": "new", "layer_types": ["linear_attention", "full_attention"]}, ("new", "linear-attention")),
        ({"model_type": "bart", "is_encoder_decoder": True}, ("bart", "encoder", "decoder")),
        ({"model_type": "deberta-v2", "hidden_size": 768}, ("deberta-v2", "encoder")),
        ({"model_type": "new", "architectures": ["NewForImageClassification"]}, ("new", "images")),
        (
            {"model_type": "doge", "is_moe": False, "num_experts": 16384, "keep_window_size": 2048},
            ("doge", "mask", "keep_window_size"),
        ),
        ({"model_type": "doge", "num_experts": 16384, "keep_window_size": 2048}, ("doge", "mask", "keep_window_size")),
        ({"model_type": "minicpm3", "kv_lora_rank": 256}, ("minicpm3", "latent attention", "kv_lora_rank")),
    ],
)
def test_what_is_no_dense_decoder_is_named(config: dict[str, Any], refusal: tuple[str, ...]) -> None:
    with refused("model_type", refusal, "dense decoder", where="config.json"):
        model_from_config(config, "config.json")


def test_an_unknown_decoder_gets_the_nearest_family_and_what_that_does_not_read() -> None:
    config = {**OLMO2, "model_type": "newlm", "hyper_connections": 4}
    with refused("model_type", problem="newlm", fix=("hyper_connections", '"model_type": "llama"')):
        model_from_config(config, "config.json")


def test_fields_of_own_code_that_bear_on_layers_are_refused_unread() -> None:
    with refused("qk_norm", where="config.json", problem="true"):
        model_from_config({**INTERNLM2, "qk_norm": True}, "config.json")
    with cautioned("quantization_config", "{'quant_method': 'fp8'}"):
        model_from_config({**OLMO2, "quantization_config": {"quant_method": "fp8"}}, "config.json")


def test_a_refused_file_with_the_sizes_of_a_known_name_says_which(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**OLMO2, "model_type": "newlm"}))
    with refused("model_type", problem="newlm", fix=("--model olmo2-7b", '"model_type": "llama"')):
        load_model(path)
