"""Hugging Face transformers as the oracle of our models: parameter counts, logits and gradients; and tensor parallelism."""

from __future__ import annotations

import warnings
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.models.model import Model, load_model, model_from_config
from trainplan.profiling.models.sublayers import (
    Attention,
    Experts,
    LatentAttention,
    LightningAttention,
    Sublayer,
    TokenEmbedding,
    TokenJoin,
    TokenMixer,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from trainplan.execution.training.single_process import Reference  # noqa: E402
from trainplan.profiling.models import torch_units  # noqa: E402
from trainplan.profiling.models.torch_units import Shard  # noqa: E402
from trainplan.profiling.models.torch_units.attention_bias import t5_buckets  # noqa: E402

from tests.helpers.huggingface import as_huggingface, float64_throughout, matched, same_architecture  # noqa: E402
from tests.helpers.like_llama import RUN  # noqa: E402

torch.set_num_threads(1)  # more would wait for one another: the products are tiny
ROWS = 2
SHIPPED = sorted(entry.name[:-5] for entry in resources.files("trainplan.data").joinpath("models").iterdir())

# Sizes that no tensor-parallel degree divides, where none has to; positions that differ from the sequence.
GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 2, "n_inner": 38, "n_positions": 13, "vocab_size": 61}
BERT = {
    "model_type": "bert",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 13,
    "vocab_size": 61,
}
LLAMA = {**BERT, "model_type": "llama", "hidden_size": 32, "rope_theta": 500.0}
# Pairs of its heads turn from 0.03 to 2.5 times within these positions: llama3 leaves some, stretches some, and some in part.
ROTATED = {"original_max_position_embeddings": 16, "factor": 4.0}
STRETCHED: dict[str, dict[str, Any]] = {
    "llama3": {"rope_type": "llama3", **ROTATED, "low_freq_factor": 0.2, "high_freq_factor": 1.5},
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", **ROTATED, "beta_fast": 1.5, "beta_slow": 0.2},
    "yarn within pairs": {"rope_type": "yarn", **ROTATED, "beta_fast": 1, "beta_slow": 0.1, "truncate": False}
    | {"mscale": 1.5, "mscale_all_dim": 0.5},
}
T5 = {
    "model_type": "t5",
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 37,
    "num_heads": 4,
    "num_layers": 1,
    "relative_attention_num_buckets": 8,
    "n_positions": 23,
    "decoder_positions": 9,
    "vocab_size": 61,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 7,
}
SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [4, 4],
    "mlp_ratio": 2.5,
    "image_size": 24,
    "patch_size": 2,
    "window_size": 3,
    "num_labels": 7,
}
TRANSGAN = {
    "model_type": "transgan",
    "bottom_width": 2,
    "depths": [1, 1, 1],
    "hidden_sizes": [32, 32, 8],
    "latent_size": 5,
    "window_size": 4,
}
GROUPED = BERT | {"hidden_size": 32, "num_key_value_heads": 2, "rope_theta": 500.0}
ALTERNATING = {"layer_types": ["full_attention", "sliding_attention"]}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.2, 3.0, 8.0]}
GEMMA = GROUPED | {"model_type": "gemma2", "hidden_size": 16, "head_dim": 8, "sliding_window": 4, "pad_token_id": 0}
GEMMA |= {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 5}
GEMMA3 = GROUPED | {"model_type": "gemma3_text", "hidden_size": 16, "head_dim": 6, "sliding_window": 4}
GEMMA3 |= {"rope_local_base_freq": 50.0, "sliding_window_pattern": 2}
GEMMA3_BASES = {"sliding_attention": 30.0, "full_attention": 700.0}
NEOX = BERT | {"model_type": "gpt_neox", "hidden_size": 64, "rotary_emb_base": 300}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 13,
    "vocab_size": 61,
}
OPT = {**FALCON, "model_type": "opt", "ffn_dim": 38, "word_embed_proj_dim": 32}
MPT = {"model_type": "mpt", "d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 13, "vocab_size": 61}
DECODERS: dict[str, dict[str, Any]] = {
    "mistral": GROUPED | {"model_type": "mistral", "sliding_window": None},
    "mistral within a window": GROUPED
    | {"model_type": "mistral", "sliding_window": 4, "head_dim": 6, "tie_word_embeddings": True, "pad_token_id": 1},
    "qwen2": GROUPED | {"model_type": "qwen2", "num_attention_heads": 4, "tie_word_embeddings": True},
    "qwen2 with windows above": GROUPED
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "rms_norm_eps": 0.01},
    "qwen2 with windows by layer": GROUPED
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, **ALTERNATING},
    "qwen3": GROUPED | {"model_type": "qwen3", "head_dim": 6},
    "qwen3 with biases and windows": GROUPED
    | {"model_type": "qwen3", "head_dim": 10, "attention_bias": True, "use_sliding_window": True, "max_window_layers": 0}
    | {"sliding_window": 2, "pad_token_id": 2, "rope_scaling": STRETCHED["yarn"]},
    "phi3": GROUPED | {"model_type": "phi3", "pad_token_id": None, "num_key_value_heads": 4, "sliding_window": 4},
    "phi3 turned in part": GROUPED
    | {"model_type": "phi3", "pad_token_id": 60, "partial_rotary_factor": 0.5, "tie_word_embeddings": True},
    **{
        f"phi3 with {name} factors": GROUPED
        | {"model_type": "phi3", "pad_token_id": None, "hidden_size": 24, "rope_scaling": LONG}
        | {"original_max_position_embeddings": original, "max_position_embeddings": 52}
        for name, original in (("short", 13), ("long", 9))
    },
    "gemma2": GEMMA,
    "gemma2 by layer, untied": GEMMA
    | {"attention_bias": True, "tie_word_embeddings": False, "final_logit_softcapping": None}
    | ALTERNATING,
    "gemma2 without caps": GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 20},
    "gemma3": GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma3 as transformers 5 writes it": GEMMA3
    | {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 2.0}
    | {"rope_parameters": {one_base: {"rope_type": "default", "rope_theta": base} for one_base, base in GEMMA3_BASES.items()}},
    "glm": GROUPED | {"model_type": "glm", "head_dim": 8, "pad_token_id": 3},
    "glm turned whole, without biases": GROUPED
    | {"model_type": "glm", "head_dim": 6, "pad_token_id": None, "partial_rotary_factor": 1.0, "attention_bias": False}
    | {"tie_word_embeddings": True},
    "glm4": GROUPED | {"model_type": "glm4", "head_dim": 8, "pad_token_id": 3},
    "nemotron": GROUPED | {"model_type": "nemotron", "pad_token_id": 3},
    "nemotron with biases": GROUPED
    | {"model_type": "nemotron", "attention_bias": True, "mlp_bias": True, "head_dim": 12, "partial_rotary_factor": 0.34}
    | {"tie_word_embeddings": True, "norm_eps": 0.01, "hidden_act": "silu"},
    "gpt_neox": NEOX,
    "gpt_neox one after the other": NEOX | {"use_parallel_residual": False, "rotary_pct": 1.0, "tie_word_embeddings": True},
    "gpt_neox without biases": NEOX | {"attention_bias": False, "rotary_pct": 0.5, "layer_norm_eps": 0.01},
    "falcon of 7b": FALCON,
    "falcon of 40b": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon of 11b": FALCON
    | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 38}
    | {"tie_word_embeddings": False},
    "falcon of many keys": FALCON | {"multi_query": False, "bias": True},
    "falcon one after the other": FALCON | {"parallel_attn": False, "bias": True},
    "opt": OPT,
    "opt without biases": OPT | {"enable_bias": False, "activation_function": "gelu", "tie_word_embeddings": False},
    "mpt": MPT,
    "mpt of 6 heads": MPT | {"n_heads": 6, "attn_config": {"softmax_scale": 0.4}},
    **RUN,
}
VARIANTS: dict[str, dict[str, Any]] = DECODERS | {
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | {"tie_word_embeddings": False},
    "bert": BERT,
    "bert untied": BERT | {"tie_word_embeddings": False},
    "llama": LLAMA,
    "llama grouped, tied, padded": LLAMA | {"num_key_value_heads": 2, "tie_word_embeddings": True, "pad_token_id": 3},
    **{f"llama with {name} rotation": LLAMA | {"rope_scaling": rope} for name, rope in STRETCHED.items()},
    "llama with biases and wide heads": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "rms_norm_eps": 0.01},
    "t5": T5,
    "t5 untied, gated": T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
    "t5 of 2 and 3 layers": T5 | {"num_layers": 2, "num_decoder_layers": 3, "feed_forward_proj": "gated-silu"},
    "vit": VIT,
    "vit without biases": VIT | {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 0.01},
    "swin": SWIN,
    "swin whose last stage is one window": SWIN | {"window_size": 6, "qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"},
    "swin of three stages": SWIN | {"depths": [1, 2, 2], "num_heads": [1, 2, 4], "layer_norm_eps": 0.01},
}

# As published, with all that our builders have no use for, and the parameters that the model is known to have.
CLASS_NAMES = {"id2label": {str(i): f"LABEL_{i}" for i in range(1000)}, "label2id": {f"LABEL_{i}": i for i in range(1000)}}
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (
        124_439_808,
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": 50256,
            "embd_pdrop": 0.1,
            "eos_token_id": 50256,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_inner": None,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "scale_attn_weights": True,
            "summary_activation": None,
            "summary_first_dropout": 0.1,
            "summary_type": "cls_index",
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
    ),
    "bert-base-uncased": (
        109_514_298,
        {
            "architectures": ["BertForMaskedLM"],
            "attention_probs_dropout_prob": 0.1,
            "classifier_dropout": None,
            "gradient_checkpointing": False,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "transformers_version": "4.6.0.dev0",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 30522,
        },
    ),
    "llama-3.1-8b": (
        8_030_261_248,
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009],
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 128256,
        },
    ),
    "llama-3.2-1b": (  # as transformers 5 writes it
        1_235_814_400,
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "bfloat16",
            "eos_token_id": 128001,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "pad_token_id": None,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_theta": 500000.0,
                "rope_type": "llama3",
            },
            "tie_word_embeddings": True,
            "vocab_size": 128256,
        },
    ),
    "qwen2.5-7b": (
        7_615_616_512,
        {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "hidden_act": "silu",
            "hidden_size": 3584,
            "initializer_range": 0.02,
            "intermediate_size": 18944,
            "max_position_embeddings": 131072,
            "max_window_layers": 28,
            "model_type": "qwen2",
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_mrope": False,
            "use_sliding_window": False,
            "vocab_size": 152064,
        },
    ),
    "gemma-2-9b": (
        9_241_705_984,
        {
            "architectures": ["Gemma2ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": 50.0,
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 3584,
            "initializer_range": 0.02,
            "intermediate_size": 14336,
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "num_attention_heads": 16,
            "num_hidden_layers": 42,
            "num_key_value_heads": 8,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "sliding_window_size": 4096,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": 256000,
        },
    ),
    "phi-4": (
        14_659_507_200,
        {
            "architectures": ["Phi3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 100257,
            "embd_pdrop": 0.0,
            "eos_token_id": 100265,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "initializer_range": 0.02,
            "intermediate_size": 17920,
            "max_position_embeddings": 16384,
            "model_type": "phi3",
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 10,
            "original_max_position_embeddings": 16384,
            "pad_token_id": 100349,
            "resid_pdrop": 0.0,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 250000,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 100352,
        },
    ),
    "falcon-7b": (
        6_921_720_704,
        {
            "alibi": False,
            "apply_residual_connection_post_layernorm": False,
            "architectures": ["FalconForCausalLM"],
            "attention_dropout": 0.0,
            "bias": False,
            "bos_token_id": 11,
            "eos_token_id": 11,
            "hidden_dropout": 0.0,
            "hidden_size": 4544,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "falcon",
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 65024,
        },
    ),
    "pythia-6.9b": (
        6_857_302_016,
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_act": "gelu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 16384,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "gpt_neox",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "use_cache": True,
            "use_parallel_residual": True,
            "vocab_size": 50432,
        },
    ),
    "t5-small": (
        60_506_624,
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 2048,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "n_positions": 512,
            "num_heads": 8,
            "num_layers": 6,
            "output_past": True,
            "relative_attention_num_buckets": 32,
            "task_specific_params": {
                "summarization": {"early_stopping": True, "num_beams": 4, "prefix": "summarize: "},
                "translation_en_to_de": {"max_length": 300, "prefix": "translate English to German: "},
            },
            "vocab_size": 32128,
        },
    ),
    "flan-t5-small": (
        76_961_152,
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 1024,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dense_act_fn": "gelu_new",
            "dropout_rate": 0.1,
            "feed_forward_proj": "gated-gelu",
            "is_encoder_decoder": True,
            "is_gated_act": True,
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "n_positions": 512,
            "num_decoder_layers": 8,
            "num_heads": 6,
            "num_layers": 8,
            "relative_attention_max_distance": 128,
            "relative_attention_num_buckets": 32,
            "tie_word_embeddings": False,
            "vocab_size": 32128,
        },
    ),
    "vit-base-patch16-224": (
        86_567_656,
        {
            "architectures": ["ViTForImageClassification"],
            "attention_probs_dropout_prob": 0.0,
            "encoder_stride": 16,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": 768,
            "image_size": 224,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "model_type": "vit",
            "num_attention_heads": 12,
            "num_channels": 3,
            "num_hidden_layers": 12,
            "patch_size": 16,
            "qkv_bias": True,
            **CLASS_NAMES,
        },
    ),
    "swin-tiny-patch4-window7-224": (
        28_288_354,
        {
            "architectures": ["SwinForImageClassification"],
            "attention_probs_dropout_prob": 0.0,
            "depths": [2, 2, 6, 2],
            "drop_path_rate": 0.1,
            "embed_dim": 96,
            "encoder_stride": 32,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": 768,
            "image_size": 224,
            "layer_norm_eps": 1e-05,
            "mlp_ratio": 4.0,
            "model_type": "swin",
            "num_channels": 3,
            "num_heads": [3, 6, 12, 24],
            "num_layers": 4,
            "patch_size": 4,
            "path_norm": True,
            "qkv_bias": True,
            "use_absolute_embeddings": False,
            "window_size": 7,
            **CLASS_NAMES,
        },
    ),
}


def _count(model: Model) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in same_architecture(transformers, model).parameters())


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "amp-transgan"])
def test_shipped_models_have_their_parameters(name: str) -> None:
    """Every shipped model has exactly the parameters of the transformers model of its configuration."""
    model = load_model(name)
    assert model.total_parameters == _count(model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_small_models_have_their_parameters(variant: str) -> None:
    """As above, for what no shipped model has: biases, head widths, gates, untied matrices."""
    model = model_from_config(VARIANTS[variant], variant)
    # transformers keeps a bias of an untied BERT's head that it does not use.
    unused = model.vocabulary if variant == "bert untied" else 0
    assert model.total_parameters == _count(model) - unused


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load(name: str) -> None:
    """No field is unknown; the count is the published one, and transformers' of the same dictionary."""
    known, config = PUBLISHED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        model = model_from_config(config, name)
    assert model.total_parameters == known
    assert _count(replace(model, config=config)) == known
    base = config.get("rope_parameters", config).get("rope_theta", 0.0)
    assert {part.rotary for part in model.sublayers.values() if isinstance(part, Attention)} <= {base}


def test_windows_larger_than_the_side() -> None:
    """Swin's bias tables then cover the side, as published (Liu et al., 2021); transformers' cover the window still."""
    model = model_from_config(SWIN | {"window_size": 12}, "swin")
    blocks, heads = 2, 4
    assert _count(model) - model.total_parameters == blocks * heads * (23**2 - 11**2)


def run_chain(model: Model, parameters: list[dict[str, Any]], x: Any) -> Any:
    """Logits, unit after unit. T5's embedding gives both stacks' tokens; a stack's later layers read its first one's table."""
    memory, tables = None, {}
    for unit, own in zip(model.units, parameters, strict=True):
        part = unit.sublayer
        if isinstance(part, Attention) and part.relative.startswith("t5"):
            own = {"relative.weight": tables.setdefault(part.relative, own.get("relative.weight")), **own}
        if unit.name.startswith("encoder"):
            memory = torch_units.forward(part, own, memory, Shard())
        else:
            x = torch_units.forward(part, own, x, Shard(), memory if getattr(part, "memory_tokens", 0) else None)
        if model.family == "t5" and unit.kind == "embedding":
            memory, x = (stream.contiguous() for stream in x.tensor_split([x.shape[1] - model.tokens], 1))
    return x


def _inputs(model: Model) -> tuple[Any, dict[str, Any]]:
    """Random samples, equal for our chain and for transformers: an image's patches are flattened as its kernel does."""
    part = model.units[0].sublayer
    if model.family in ("vit", "swin"):
        size, patch = (int(model.config[name]) for name in ("image_size", "patch_size"))
        image = torch.randn(ROWS, 3, size, size, dtype=torch.float64)
        patches = torch.nn.functional.unfold(image, patch, stride=patch).mT
        return patches, {"pixel_values": image}
    tokens = torch.randint(model.vocabulary, (ROWS, part.tokens))
    tokens[0, :4] = torch.arange(4)  # what fills samples up is there, in families that have it
    if model.family == "t5":
        encoder, decoder = tokens.tensor_split([part.tokens - model.tokens], 1)
        return tokens, {"input_ids": encoder, "decoder_input_ids": decoder}
    return tokens, {"input_ids": tokens}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients(variant: str) -> None:
    """In float64, logits and the gradient of every single parameter are those of transformers."""
    torch.manual_seed(0)
    sequence = None if "image_size" in VARIANTS[variant] else 11 + 6 * ("t5" in variant)
    model = model_from_config(VARIANTS[variant], variant, sequence, "float64")
    reference = Reference(model, seed=1)
    distinct = {id(p): p for own in reference.parameters for p in own.values()}
    with torch.no_grad():
        for parameter in distinct.values():  # far from uniform attention and from linear activations
            parameter.mul_(10 if parameter.dim() > 1 else 1)
    with float64_throughout():
        other = as_huggingface(transformers, reference)
        x, named = _inputs(model)
        ours, theirs = run_chain(model, reference.parameters, x), other(**named).logits
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        weights = torch.randn_like(ours)
        (ours * weights).sum().backward()
        (theirs * weights).sum().backward()
    gradients = [{name: p.grad for name, p in own.items()} for own in reference.parameters]
    seen = set()
    for parameter, gradient in matched(other, model, gradients):
        seen.add(parameter)
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-10)
    assert seen == {parameter for parameter in other.parameters() if parameter.grad is not None}
    assert seen >= {p for name, p in other.named_parameters() if name != "cls.predictions.bias"}


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets", [8, 32])
def test_t5_buckets(both: bool, buckets: int) -> None:
    """Every pair of 600 tokens is in the bucket of transformers, logarithms in float32 as there."""
    from transformers.models.t5.modeling_t5 import T5Attention

    indices = torch.arange(600)
    theirs = T5Attention._relative_position_bucket(indices[None, :] - indices[:, None], both, buckets, 128)
    assert torch.equal(t5_buckets(600, buckets, both, torch.device("cpu")), theirs)


def _parts() -> dict[str, Sublayer]:
    """Every distinct sub-layer of the small models."""
    found: dict[Sublayer, str] = {}
    for variant, config in (VARIANTS | {"transgan": TRANSGAN}).items():
        for name, part in model_from_config(config, variant, dtype="float64").sublayers.items():
            found.setdefault(part, f"{variant}: {name}")
    return {name: part for part, name in found.items()}


PARTS = _parts()
SPLIT = [(name, tp) for name, part in PARTS.items() for tp in (2, 4) if part.splits_into(tp) and not part.sandwich]


def test_every_kind_is_split() -> None:
    """The next test is of all kinds of sub-layers that have a forward pass here, in every family."""
    elsewhere = {Experts, LatentAttention, LightningAttention, TokenJoin, TokenMixer}  # which are planned or shown alone
    assert {type(PARTS[name]) for name, tp in SPLIT if tp == 4} == set(Sublayer.__subclasses__()) - elsewhere
    assert len(SPLIT) > 1.6 * len(PARTS)


@pytest.mark.parametrize(("name", "tp"), SPLIT)
def test_ranks_add_up(name: str, tp: int) -> None:
    """Ranks' partial outputs add up to the whole sub-layer's (a head's shards follow one another), and so do the gradients.

    A shard is a view of the whole parameter: one backward pass through all ranks puts the gradients of the shards side by
    side, and adds up those of the input and of what every rank holds.
    """
    torch.manual_seed(0)
    part = PARTS[name]
    whole = {key: value.mul_(10).requires_grad_() for key, value in torch_units.whole_parameters(part, 1).items()}
    read = getattr(part, "memory_tokens", 0)
    memory = torch.randn(ROWS, read, part.hidden, dtype=torch.float64, requires_grad=True) if read else None
    if isinstance(part, TokenEmbedding):
        x = torch.randint(part.vocabulary, (ROWS, part.tokens))
        x[0, :4] = torch.arange(4)
    else:
        x = torch.randn(part.input_shape(ROWS), dtype=torch.float64, requires_grad=True)

    def output(degree: int) -> Any:
        found = []
        for shard in (Shard(degree, index) for index in range(degree)):
            own = {p.name: torch_units.sharded(p, whole[p.name], shard) for p in part.parameters()}
            assert all(own[p.name].shape == p.shard_shape(degree, shard.index) for p in part.parameters())
            found.append(torch_units.forward(part, own, x, shard, memory))
        return torch.cat(found, -1) if part.kind == "head" else sum(found)

    once, shared = output(1), output(tp)
    torch.testing.assert_close(shared, once, rtol=0, atol=1e-10)
    weights = torch.randn_like(once)
    leaves = [leaf for leaf in (x, memory, *whole.values()) if leaf is not None and leaf.requires_grad]
    for of_ranks, of_one in zip(*(torch.autograd.grad((y * weights).sum(), leaves) for y in (shared, once)), strict=True):
        torch.testing.assert_close(of_ranks, of_one, rtol=1e-10, atol=1e-10)
