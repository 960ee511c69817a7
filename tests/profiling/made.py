"""Profiles for all that strategies over a group of devices can meet with so many samples at once; and small models."""

from typing import Any

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.complete import for_shapes
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import shapes_needed
from trainplan.profiling.profiles import Profile


def estimate(model: Model, cluster: Cluster, group: int, rows: int) -> Profile:
    """Estimated, for `rows` samples over `group` devices."""
    return estimate_shapes(model, cluster, shapes_needed(model.tp_degrees(group), [group], [rows]), group)


def for_group(profile: Profile, group: int, rows: int) -> Profile:
    """Completed, for `rows` samples over `group` devices."""
    degrees = (profile.described_model or profile).tp_degrees(group)
    return for_shapes(profile, group, shapes_needed(degrees, [group], [rows]))


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
    "llama": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 2000,
        "max_position_embeddings": 128,
    },
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
