"""Configurations of small models, by family, and profiles with all shapes that strategies of a group of devices need."""

from typing import Any

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.interpolate import for_shapes
from trainplan.profiling.models.model import Model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.profiling.profiles import Profile


def estimate(model: Model, cluster: Cluster, group: int, rows: int) -> Profile:
    """An estimated profile with the shapes that any strategy needs for `rows` samples over `group` devices."""
    return estimate_shapes(model, cluster, shapes_needed(model.tp_degrees(group), [group], [rows]), group)


def for_group(profile: Profile, group: int, rows: int) -> Profile:
    """A profile completed with the shapes that any strategy needs for `rows` samples over `group` devices."""
    degrees = (profile.described_model or profile).tp_degrees(group)
    return for_shapes(profile, group, shapes_needed(degrees, [group], [rows]))


_LLAMA: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 128,
}
_FALCON = {name: value for name, value in _LLAMA.items() if name not in ("intermediate_size", "num_key_value_heads")}
# Fields of small configurations, by family; the model_type is to be added.
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 256, "n_head": 8, "n_layer": 1, "n_positions": 128, "vocab_size": 2000},
    "bert": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_hidden_layers": 1,
        "max_position_embeddings": 128,
        "intermediate_size": 1024,
        "vocab_size": 2000,
    },
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": 48},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 48},
    "phi3": _LLAMA | {"partial_rotary_factor": 0.75, "pad_token_id": 7},
    "gemma2": _LLAMA | {"num_hidden_layers": 2, "head_dim": 48, "sliding_window": 48},
    "gemma3_text": _LLAMA | {"num_hidden_layers": 2, "head_dim": 48, "sliding_window": 48, "sliding_window_pattern": 2},
    "glm": _LLAMA | {"head_dim": 32, "pad_token_id": 7},
    "glm4": _LLAMA | {"head_dim": 32, "pad_token_id": 7},
    "nemotron": _LLAMA,
    "smollm3": _LLAMA | {"num_hidden_layers": 2, "no_rope_layer_interval": 2, "pad_token_id": None},
    "starcoder2": _LLAMA | {"residual_dropout": 0.1},
    "seed_oss": _LLAMA | {"head_dim": 48, "attention_dropout": 0.0},
    "cohere2": _LLAMA | {"num_hidden_layers": 2, "sliding_window": 48, "sliding_window_pattern": 2},
    "gpt_neox": _FALCON | {"intermediate_size": 1024},
    "falcon": _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 4},
    "opt": _FALCON | {"ffn_dim": 1024},
    "mpt": {"d_model": 256, "n_heads": 8, "n_layers": 1, "max_seq_len": 128, "vocab_size": 2000},
    "t5": {
        "d_model": 256,
        "d_kv": 32,
        "num_heads": 8,
        "num_layers": 2,
        "d_ff": 1024,
        "vocab_size": 2000,
        "n_positions": 128,
        "decoder_positions": 32,
    },
    "vit": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_hidden_layers": 1,
        "intermediate_size": 1024,
        "image_size": 112,
        "patch_size": 8,
        "num_labels": 100,
    },
    "swin": {
        "embed_dim": 64,
        "depths": [2, 2],
        "num_heads": [8, 16],
        "image_size": 112,
        "patch_size": 4,
        "window_size": 7,
        "num_labels": 100,
    },
    "transgan": {
        "bottom_width": 8,
        "latent_size": 64,
        "hidden_sizes": [256, 256, 64],
        "depths": [1, 0, 1],
        "num_attention_heads": 8,
        "window_size": 16,
    },
}
