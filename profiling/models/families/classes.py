"""Recognise what a configuration file describes: its family under the names that publishers gave it, or a file that is no
configuration of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.errors import caution, shown

# From `model_type` in files with code of their own to the family with the same layers, as vLLM and transformers convert them.
SAME_LAYERS = {
    "Yi": "llama",
    "aquila": "llama",
    "xverse": "llama",
    "skywork": "llama",
    "PanguEmbedded": "internlm",
    "kimi_k2": "deepseek_v3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
    "stablelm_epoch": "stablelm",
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
    "glm4v_text": "glm4",  # its positions in three dimensions are equal for text
    "qwen2_5_omni_text": "qwen2_vl_text",
}
CLASS_SUFFIX = re.compile(r"(ForCausalLM|LMHeadModel|For(Conditional|Text)Generation|ForMaskedLM|ForPreTraining|Model)$")
CLASSES = {"rw": "falcon", "hunyuandensev1": "hunyuan_v1_dense", "openllama": "llama"}  # classes not named after their family
# Fields that only other kinds of files have, the kind of file, and the advice what to give instead.
OTHER_FILES = (
    ("peft_type", "settings of an adapter, which changes some of a model's layers", "give the config.json of its base model"),
    ("weight_map", "an index of files of weights", "give the config.json that lies in its folder"),
    ("_class_name", "a configuration of diffusers", "give a config.json of a model of text"),
    ("zero_optimization", "a configuration of DeepSpeed", "give a model's config.json; `trainplan import-run` reads this one"),
    ("train_micro_batch_size_per_gpu", "a configuration of DeepSpeed", "give a model's config.json"),
    ("encoder_seq_length", "a configuration of NeMo", "give a config.json; `trainplan import-run` reads runs"),
    ("general.architecture", "metadata of a GGUF file", "give the config.json that it was made from"),
    ("added_tokens", "a tokenizer", "give the config.json that lies in its folder"),
    ("added_tokens_decoder", "settings of a tokenizer", "give the config.json that lies in its folder"),
    ("tokenizer_class", "settings of a tokenizer", "give the config.json that lies in its folder"),
    ("do_sample", "settings of generation", "give the config.json that lies in its folder"),
    ("temperature", "settings of generation", "give the config.json that lies in its folder"),
)
HYBRID_FIELDS = re.compile(
    r"^mamba_|^layer_types$|^layers_block_type$|^position_embedding_type$|expert|router|^shared_|^norm\w+_function$"
)
PHI_FIELDS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_key_value_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act",
    "attn_pdrop": "attention_dropout",
}
FIRST_PHI_FIELDS = (
    "architecture",
    "embd_layer",
    "flash_attn",
    "flash_rotary",
    "fused_dense",
    "img_processor",
    "phyagi_version",
)
PARAMETERS = ("dim", "n_layers", "n_heads")  # fields of params.json, as Meta and Mistral publish it


def with_family(config: Mapping[str, Any], where: str, part: str, families: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set `model_type` in a copy of a configuration to the name of one of the known families, if the file gives the family
    another name, or names it only in `architectures`, in which case there is a warning. Other configurations are returned
    unchanged.

    where: the file; part: the path of the configuration in it, such as "text_config.", both for warnings. families: the known
    families, by name.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in SAME_LAYERS and kind not in families:
        grouped = {"new_decoder_architecture": True} if config.get("n_head_kv") is not None else {}
        return {**config, **grouped, "model_type": SAME_LAYERS[kind]}
    if kind == "granitemoehybrid" and (dense := _dense_granite(config)) is not None:
        return dense
    if kind in ("phi-msft", "mixformer-sequential"):
        return _phi(config)
    if "model_type" in config or (found := _family_of_architectures(config, families)) is None:
        return config
    fix = f"{found!r} is taken, as architectures says"
    caution(where, f"{part}model_type", "is missing", fix)
    return {**config, "model_type": found}


def _phi(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a Phi 1.5 or 2 in the form of its first published files to the field names of the family
    `phi`.
    """
    named = {PHI_FIELDS.get(name, name): value for name, value in config.items() if name not in FIRST_PHI_FIELDS}
    hidden, heads, rotating = (named.get(name) for name in ("hidden_size", "num_attention_heads", "rotary_dim"))
    if all(type(number) is int and number > 0 for number in (hidden, heads, rotating)):
        named["partial_rotary_factor"] = rotating * heads / hidden  # type: ignore[operator]
    if named.get("intermediate_size") is None and type(hidden) is int:
        named["intermediate_size"] = 4 * hidden
    if named.get("num_key_value_heads") is None:
        named["num_key_value_heads"] = heads
    return {**{name: value for name, value in named.items() if name != "rotary_dim"}, "model_type": "phi"}


def _dense_granite(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert the configuration of a dense Granite 4 to the field names of the family `granite`; None for any other Granite 4.

    Dense means no experts, and attention with rotary positions in every layer.
    """
    types = config.get("layer_types", config.get("layers_block_type"))
    attends = isinstance(types, list) and set(map(str, types)) == {"attention"}
    if not attends or config.get("num_local_experts") or config.get("position_embedding_type") != "rope":
        return None
    kept = {name: value for name, value in config.items() if not HYBRID_FIELDS.search(name)}
    return {**kept, "intermediate_size": config.get("shared_intermediate_size"), "model_type": "granite"}


def _family_of_architectures(config: Mapping[str, Any], families: Mapping[str, Any]) -> str | None:
    """The name of the family that the first class in a configuration's `architectures` is named after; None if there is none.
    families: the known families, by name.
    """
    architectures = config.get("architectures")
    return None if not isinstance(architectures, list) or not architectures else class_family(str(architectures[0]), families)


def class_family(name: str, families: Mapping[str, Any]) -> str | None:
    """The name of the family that a model class is named after, such as `llama` for `LlamaForCausalLM`; None if there is none.
    name: the class's name. families: the known families, by name.
    """
    stem = CLASS_SUFFIX.sub("", name).lower().replace("_", "")
    named = {known.lower().replace("_", ""): known for known in families} | CLASSES
    named |= {known.lower().replace("_", ""): family for known, family in SAME_LAYERS.items()}
    return named.get(stem)


def warn_of_own_classes(config: Mapping[str, Any], where: str, families: Mapping[str, Any]) -> None:
    """Warn if a configuration comes with code of its own that builds a model class of another family, because only that code
    defines the model's layers.

    config: the configuration; its `auto_map` states whether it comes with code. where: its file, for the warning. families:
    the known families, by name.
    """
    architectures, kind = config.get("architectures"), config.get("model_type")
    if not config.get("auto_map") or kind not in list(families) or not isinstance(architectures, list) or not architectures:
        return
    if class_family(str(architectures[0]), families) != kind:
        problem = f"is {shown(architectures)}, which the code that comes with the file builds"
        caution(where, "architectures", problem, f"it is planned as a {kind}, as model_type says")


def other_file(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Recognise a JSON file that is no model configuration: a description, such as "a tokenizer", and advice what to give
    instead.

    config: the file's fields. Returns None if it may be a model configuration.
    """
    if all(name in config for name in PARAMETERS):
        return "a params.json, as Meta and Mistral publish it", "give the config.json of Hugging Face's form, or --model NAME"
    return next((description for name, *description in OTHER_FILES if name in config), None)  # type: ignore[return-value]
