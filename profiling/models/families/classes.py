"""What a file is, by what stands in it: its family by the names that publishers gave it, or no configuration of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.errors import caution, shown

# Names that files with code of their own give to layers of another family, as vLLM and transformers' own conversion map them.
SAME = {
    "Yi": "llama",
    "aquila": "llama",
    "xverse": "llama",
    "skywork": "llama",
    "PanguEmbedded": "internlm",
    "stablelm_epoch": "stablelm",
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
    "glm4v_text": "glm4",  # whose three positions are one in a text
    "qwen2_5_omni_text": "qwen2_vl_text",
}
HEADS = re.compile(r"(ForCausalLM|LMHeadModel|For(Conditional|Text)Generation|ForMaskedLM|ForPreTraining|Model)$")
CLASSES = {"rw": "falcon", "hunyuandensev1": "hunyuan_v1_dense", "openllama": "llama"}  # whose names are not their family's
# Fields of files that people give in its place: what such a file is, and what to give.
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
OF_HYBRIDS = re.compile(
    r"^mamba_|^layer_types$|^layers_block_type$|^position_embedding_type$|expert|router|^shared_|^norm\w+_function$"
)
PHI = {
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
OF_FIRST_PHIS = ("architecture", "embd_layer", "flash_attn", "flash_rotary", "fused_dense", "img_processor", "phyagi_version")
PARAMETERS = ("dim", "n_layers", "n_heads")  # of params.json, as Meta and Mistral publish it


def with_family(config: Mapping[str, Any], where: str, place: str, families: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with `model_type` as of one of these families, where it has another name of it, or none.

    Some files that come with code of their own leave it to `architectures`; what is taken so is warned of.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in SAME and kind not in families:
        grouped = {"new_decoder_architecture": True} if config.get("n_head_kv") is not None else {}
        return {**config, **grouped, "model_type": SAME[kind]}
    if kind == "granitemoehybrid" and (dense := _dense_granite(config)) is not None:
        return dense
    if kind in ("phi-msft", "mixformer-sequential"):
        return _phi(config)
    if "model_type" in config or (found := _of_classes(config, families)) is None:
        return config
    fix = f"{found!r} is taken, as architectures says"
    caution(where, f"{place}model_type", "is missing", fix)
    return {**config, "model_type": found}


def _phi(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Phi 1.5 or 2 by the names that its first files have."""
    named = {PHI.get(name, name): value for name, value in config.items() if name not in OF_FIRST_PHIS}
    hidden, heads, turned = (named.get(name) for name in ("hidden_size", "num_attention_heads", "rotary_dim"))
    if all(type(each) is int and each > 0 for each in (hidden, heads, turned)):
        named["partial_rotary_factor"] = turned * heads / hidden  # type: ignore[operator]
    if named.get("intermediate_size") is None and type(hidden) is int:
        named["intermediate_size"] = 4 * hidden
    if named.get("num_key_value_heads") is None:
        named["num_key_value_heads"] = heads
    return {**{name: value for name, value in named.items() if name != "rotary_dim"}, "model_type": "phi"}


def _dense_granite(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """A Granite 4 without experts, of which every layer is attention that turns: a Granite by other names; else None."""
    types = config.get("layer_types", config.get("layers_block_type"))
    attends = isinstance(types, list) and set(map(str, types)) == {"attention"}
    if not attends or config.get("num_local_experts") or config.get("position_embedding_type") != "rope":
        return None
    kept = {name: value for name, value in config.items() if not OF_HYBRIDS.search(name)}
    return {**kept, "intermediate_size": config.get("shared_intermediate_size"), "model_type": "granite"}


def _of_classes(config: Mapping[str, Any], families: Mapping[str, Any]) -> str | None:
    made = config.get("architectures")
    return None if not isinstance(made, list) or not made else class_family(str(made[0]), families)


def class_family(name: str, families: Mapping[str, Any]) -> str | None:
    """The family that a class of transformers, or of a file's own code, is named after; None where there is none."""
    stem = HEADS.sub("", name).lower().replace("_", "")
    named = {each.lower().replace("_", ""): each for each in families} | CLASSES
    named |= {each.lower().replace("_", ""): family for each, family in SAME.items()}
    return named.get(stem)


def warn_of_own_classes(config: Mapping[str, Any], where: str, families: Mapping[str, Any]) -> None:
    """Warn of a file whose own code builds a class that its family has not: what its layers are, only that code says."""
    made, kind = config.get("architectures"), config.get("model_type")
    if not config.get("auto_map") or kind not in list(families) or not isinstance(made, list) or not made:
        return
    if class_family(str(made[0]), families) != kind:
        problem = f"is {shown(made)}, which the code that comes with the file builds"
        caution(where, "architectures", problem, f"it is planned as a {kind}, as model_type says")


def other_file(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a file without `model_type` is that is no configuration of a model, and what to give; None where it may be one."""
    if all(name in config for name in PARAMETERS):
        return "a params.json, as Meta and Mistral publish it", "give the config.json of Hugging Face's form, or --model NAME"
    return next((told for name, *told in OTHER_FILES if name in config), None)  # type: ignore[return-value]
