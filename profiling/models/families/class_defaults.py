"""Default sizes of each family's configuration class in transformers, for files that leave them out.

The language model of a multimodal file is written without values that equal its class's defaults. Files of one language model
state their sizes, except that older ones leave the heads of keys and values to the class.
"""

from __future__ import annotations

from collections.abc import Mapping

FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)
# As of transformers 5.23; None: as many heads of keys and values as of queries.
SIZES: Mapping[str, tuple[int | None, ...]] = {
    "apertus": (131072, 4096, 14336, 32, 32, None, 65536),
    "arcee": (32000, 2560, 18432, 32, 32, None, 4096),
    "cohere": (256000, 8192, 22528, 40, 64, None, 8192),
    "cohere2": (256000, 8192, 22528, 40, 64, None, 8192),
    "cwm": (128256, 6144, 21504, 64, 48, 8, 131072),
    "ernie4_5": (103424, 1024, 3072, 18, 16, 2, 131072),
    "exaone4": (102400, 4096, 16384, 32, 32, 32, 2048),
    "gemma": (256000, 3072, 24576, 28, 16, 16, 8192),
    "gemma2": (256000, 2304, 9216, 26, 8, 4, 8192),
    "gemma3_text": (262208, 2304, 9216, 26, 8, 4, 131072),
    "glm": (151552, 4096, 13696, 40, 32, 2, 131072),
    "glm4": (151552, 4096, 13696, 40, 32, 2, 131072),
    "glm4v_moe_text": (151424, 4096, 10944, 46, 96, 8, 65536),
    "granite": (32000, 4096, 11008, 32, 32, None, 2048),
    "helium": (48000, 2560, 7040, 24, 20, 20, 4096),
    "hunyuan_v1_dense": (290943, 4096, 11008, 32, 32, None, 2048),
    "hyperclovax": (32000, 4096, 11008, 32, 32, None, 2048),
    "internlm3": (128512, 4096, 10240, 48, 32, 2, 32768),
    "iquestcoder": (76800, 5120, 27648, 80, 40, 8, 131072),
    "jais2": (150272, 3328, 26624, 32, 26, None, 8192),
    "llama": (32000, 4096, 11008, 32, 32, None, 2048),
    "llama4_text": (202048, 5120, 8192, 48, 40, 8, 131072),
    "ministral": (32000, 4096, 14336, 32, 32, 8, 131072),
    "ministral3": (131072, 4096, 14336, 34, 32, 8, 262144),
    "mistral": (32000, 4096, 14336, 32, 32, 8, 131072),
    "nemotron": (256000, 6144, 24576, 32, 48, None, 4096),
    "olmo": (50304, 4096, 11008, 32, 32, None, 2048),
    "olmo2": (50304, 4096, 11008, 32, 32, None, 2048),
    "olmo3": (50304, 4096, 11008, 32, 32, None, 2048),
    "persimmon": (262144, 4096, 16384, 36, 64, None, 16384),
    "phi": (51200, 2048, 8192, 24, 32, None, 2048),
    "phi3": (32064, 3072, 8192, 32, 32, None, 4096),
    "qwen2": (151936, 4096, 22016, 32, 32, 32, 32768),
    "qwen2_5_vl_text": (152064, 8192, 29568, 80, 64, 8, 32768),
    "qwen2_vl_text": (152064, 8192, 29568, 80, 64, 8, 32768),
    "qwen3": (151936, 4096, 22016, 32, 32, 32, 32768),
    "qwen3_omni_moe_text": (3584, 2048, 18944, 28, 28, 4, 32768),
    "qwen3_vl_moe_text": (151936, 2048, 5632, 24, 16, 16, 128000),
    "qwen3_vl_text": (151936, 4096, 22016, 32, 32, 32, 128000),
    "seed_oss": (155136, 4096, 27648, 64, 80, 8, 524288),
    "smollm3": (128256, 2048, 11008, 36, 16, 4, 32768),
    "stablelm": (50304, 2560, 6912, 32, 32, 32, 4096),
    "starcoder2": (49152, 3072, 12288, 30, 24, 2, 4096),
    "vaultgemma": (256000, 2304, 9216, 26, 8, 4, 8192),
}


def class_sizes(family: str) -> dict[str, int]:
    """The default sizes (such as the number of layers) in the configuration class of a model family in transformers, by field
    name; empty for a family without such a class.

    family: the family's name, `model_type` in configurations.
    """
    named = zip(FIELDS, SIZES.get(family, ()), strict=False)
    return {name: value for name, value in named if value is not None}
