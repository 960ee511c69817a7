"""Small configurations of the model families that are variants of Llama: other names, or one more feature."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 38,
    "max_position_embeddings": 13,
    "vocab_size": 61,
    "pad_token_id": None,
    "rope_theta": 500.0,
}
HALF_SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
FOUR = {**BASE, "num_hidden_layers": 4}
FACTORS = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3, "logits_scaling": 4.0}
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 13, "vocab_size": 61}
GPTJ = {**GPT, "rotary_dim": 6}


def _of(kind: str, config: dict[str, Any] = BASE, **changes: Any) -> dict[str, Any]:
    """A configuration of a family (model_type) with some fields changed."""
    return {"model_type": kind, **config, **changes}


# Configurations of families that can be executed: their logits and gradients are compared with transformers'.
RUN: dict[str, dict[str, Any]] = {
    "internlm3": _of("internlm3", head_dim=8, pad_token_id=2),
    "internlm3 with biases": _of("internlm3", head_dim=6, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "arcee": _of("arcee"),
    "arcee with biases": _of("arcee", attention_bias=True, mlp_bias=True, head_dim=10, tie_word_embeddings=True),
    "helium": _of("helium", head_dim=8),
    "helium with biases": _of("helium", head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "ernie4_5": _of("ernie4_5", head_dim=10),
    "ernie4_5 with biases, untied": _of("ernie4_5", head_dim=8, use_bias=True, tie_word_embeddings=False),
    "gemma": _of("gemma", hidden_size=16, head_dim=10, pad_token_id=0),
    "gemma with one key": _of(
        "gemma", hidden_size=16, head_dim=8, num_key_value_heads=1, tie_word_embeddings=False, attention_bias=True
    ),
    "seed_oss": _of("seed_oss", head_dim=10, attention_dropout=0.0, residual_dropout=0.0),
    "seed_oss with biases": _of("seed_oss", head_dim=8, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "ministral": _of("ministral", head_dim=8, **HALF_SLIDING),
    "cwm": _of("cwm", head_dim=8, rope_theta=None, **HALF_SLIDING),
    "smollm3": _of("smollm3", FOUR),
    "smollm3 by layer": _of("smollm3", no_rope_layers=[0, 1], attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "iquestcoder": _of("iquestcoder", head_dim=8, mlp_bias=True),
    "starcoder2": _of("starcoder2"),
    "starcoder2 without biases": _of("starcoder2", use_bias=False, sliding_window=4, tie_word_embeddings=False),
    "jais2": _of("jais2"),
    "jais2 with one bias": _of("jais2", attention_bias=False, tie_word_embeddings=True, head_dim=10),
    "cohere2": _of("cohere2", FOUR, sliding_window=4, logit_scale=0.2),
}
# Configurations of families whose plans are compiled and simulated, but not executed.
WALKED: dict[str, dict[str, Any]] = {
    "granite": _of("granite", **FACTORS),
    "granite with biases": _of("granite", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "hyperclovax": _of("hyperclovax", head_dim=10, **FACTORS),
    "hyperclovax without post-norms": _of("hyperclovax", use_post_norm=False, attention_bias=True, mlp_bias=True),
    "qwen2_vl_text": _of("qwen2_vl_text", rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}),
    "qwen2_5_vl_text": _of("qwen2_5_vl_text", tie_word_embeddings=True),
    "qwen3_vl_text": _of("qwen3_vl_text", head_dim=8, attention_bias=True),
    "ministral3": _of("ministral3", head_dim=10, sliding_window=4),
    "vaultgemma": _of("vaultgemma", head_dim=8, query_pre_attn_scalar=8, **HALF_SLIDING),
    "hunyuan_v1_dense": _of("hunyuan_v1_dense", head_dim=10),
    "hunyuan_v1_dense with biases": _of("hunyuan_v1_dense", head_dim=8, attention_bias=True, tie_word_embeddings=True),
    "apertus": _of("apertus"),
    "apertus with biases": _of("apertus", attention_bias=True, tie_word_embeddings=True),
    "stablelm": _of("stablelm", hidden_size=64),
    "stablelm side by side": _of("stablelm", hidden_size=64, use_parallel_residual=True, use_qkv_bias=True, qk_layernorm=True),
    "persimmon": _of("persimmon", num_key_value_heads=None),
    "persimmon without norms of heads": _of("persimmon", num_key_value_heads=None, qk_layernorm=False),
    "olmo": _of("olmo", clip_qkv=8.0),
    "olmo with biases": _of("olmo", attention_bias=True, tie_word_embeddings=True),
    "olmo2": _of("olmo2"),
    "olmo2 with biases": _of("olmo2", attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4),
    "olmo3": _of("olmo3", FOUR, sliding_window=4),
    "olmo3 by layer": _of("olmo3", **HALF_SLIDING),
    "exaone4": _of("exaone4", FOUR, sliding_window=4, sliding_window_pattern=4),
    "exaone4 without windows": _of("exaone4", sliding_window=None, layer_types=["full_attention"] * 2, head_dim=10),
    "cohere": _of("cohere"),
    "cohere with norms of heads": _of("cohere", use_qk_norm=True, attention_bias=True, tie_word_embeddings=False),
    "phi": _of("phi", num_key_value_heads=4),
    "phi with norms of heads": _of("phi", qk_layernorm=True, tie_word_embeddings=True, partial_rotary_factor=0.25),
    "gptj": _of("gptj", GPTJ),
    "gptj with an inner size, tied": _of("gptj", GPTJ, n_inner=40, tie_word_embeddings=True),
    "codegen": _of("codegen", GPTJ),
    "gpt_bigcode": _of("gpt_bigcode", GPT),
    "gpt_bigcode of many keys": _of("gpt_bigcode", GPT, multi_query=False, n_inner=40),
    "gpt_neo": _of(
        "gpt_neo",
        {"hidden_size": 32, "num_heads": 4, "num_layers": 2, "max_position_embeddings": 13, "vocab_size": 61, "window_size": 4},
        attention_types=[[["global", "local"], 1]],
    ),
    "bloom": _of("bloom", {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61}),
    "bloom untied": _of("bloom", {"hidden_size": 48, "n_head": 6, "n_layer": 3, "vocab_size": 61}, tie_word_embeddings=False),
}
LIKE_LLAMA = RUN | WALKED
