"""Limits of what this machine runs: the largest number of processes, the dtypes, and the families of models."""

from __future__ import annotations

MOST_PROCESSES = 64
EXECUTED_DTYPES = ("float32", "float64", "bfloat16")  # in float16 gradients would vanish without a scaled loss
# Fields of a configuration that change results, and that torch_units does not implement.
UNEXECUTED = (
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "rope_interleaved",
    "alibi",
    "hidden_dropout",
)
EXECUTED_FAMILIES = (  # one stream of tokens, and a language head
    *("gpt2", "bert", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"),
    *("glm", "glm4", "nemotron", "gpt_neox", "falcon", "opt", "mpt"),
    *("internlm3", "arcee", "helium", "ernie4_5", "gemma", "seed_oss", "ministral", "cwm", "smollm3", "iquestcoder"),
    *("starcoder2", "jais2", "cohere2"),
)
# Families whose plans become programs, which are checked and simulated, and do not run here yet.
WALKED_FAMILIES = (
    *("granite", "hyperclovax", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "ministral3", "vaultgemma"),
    *("hunyuan_v1_dense", "apertus", "stablelm", "persimmon", "olmo", "olmo2", "olmo3", "exaone4"),
    *("internlm", "internlm2", "orion", "qwen", "minicpm", "baichuan", "exaone", "chatglm"),
    *("cohere", "phi", "gptj", "codegen", "gpt_bigcode", "gpt_neo", "bloom"),
)
# Families of state spaces and delta nets, whose plans become such programs, too, if no layer has experts.
HYBRID_FAMILIES = ("nemotron_h", "bamba", "mamba2", "qwen3_5_text", "granitemoehybrid")
