"""Model families: a Hugging Face configuration becomes a chain of sub-layers. One module for each family, or for several that
share most of their code.

A family is a `Family` object: the function that builds the chain, and the fields that say how large the model is. Another
package adds one by an entry point of the group `trainplan.families`, named as `model_type` in configurations, which refers to
such an object (`package.module:FAMILY`). Its chain may consist of any sub-layers (`models.sublayers`), its own included.

A builder reads its fields through `Fields`, which checks them and notes what was read: that, with its defaults filled in, is
the architecture which a plan or a profile carries, and from which the same chain can be built again. Sizes have no defaults;
what transformers itself assumes of files that are older than a field is assumed here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.plugins import load_named, names
from trainplan.profiling.models.families.fields import Family, Fields, Role, Unit, uniform_chain
from trainplan.profiling.models.families.naming import READ, check_names, without_aliases
from trainplan.profiling.models.families.unread import (
    check_dense,
    refuse_features,
    refuse_unplanned,
    refuse_unread,
    unsupported_kind,
)

__all__ = [
    "BUILT_IN",
    "BY_UNITS",
    "GROUP",
    "READABLE",
    "Family",
    "Fields",
    "Role",
    "Unit",
    "build_chain",
    "family",
    "family_names",
    "sized_config",
    "uniform_chain",
]

GROUP = "trainplan.families"
MODULES = (
    *("gpt2", "bert", "llama", "t5", "vit", "swin", "transgan"),
    *("mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "glm", "glm4", "nemotron"),
    *("gpt_neox", "falcon", "opt", "mpt"),
)
SEVERAL = {  # modules of several families, each called as its name in capitals
    "like_llama": "internlm3 iquestcoder arcee helium ernie4_5 gemma seed_oss ministral cwm smollm3 granite hyperclovax"
    " qwen2_vl_text qwen3_vl_text ministral3",
    "other_norms": "jais2 vaultgemma hunyuan_v1_dense apertus starcoder2 stablelm persimmon olmo olmo2 olmo3 exaone4",
    "published_code": "internlm internlm2 orion qwen minicpm baichuan exaone chatglm",
    "side_by_side": "cohere cohere2 phi gptj",
    "older": "gpt_bigcode gpt_neo bloom",
}
OTHER_NAMES = {"qwen2_5_vl_text": "qwen2_vl_text", "codegen": "gptj"}
BUILT_IN = {name: f"{__name__}.{name}:FAMILY" for name in MODULES}
BUILT_IN |= {name: f"{__name__}.{module}:{name.upper()}" for module, group in SEVERAL.items() for name in group.split()}
BUILT_IN |= {other: BUILT_IN[name] for other, name in OTHER_NAMES.items()}
# Families whose models are read and shown, but of which plans are not made yet, by their modules: mixtures of experts, latent
# attention.
SHOWN: dict[str, str] = {
    "mixtures": "mixtral qwen2_moe qwen3_moe olmoe flex_olmo phimoe granitemoe granitemoeshared minimax minimax_m2 gpt_oss",
    "shared_experts": "glm4_moe dots1 solar_open exaone_moe hy_v3 ernie4_5_moe hunyuan_v1_moe llama4_text",
    "latent": "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa",
    "hybrids": "nemotron_h jamba bamba mamba2",
    "granite_hybrid": "granitemoehybrid",
    "delta_nets": "qwen3_next qwen3_5_text qwen3_5_moe_text",
}
# Those of them that are planned where all of their units are: state spaces by chunks and delta nets without experts.
BY_UNITS = frozenset(("nemotron_h", "bamba", "mamba2", "qwen3_5_text", "granitemoehybrid"))
UNPLANNED = {name: f"{__name__}.{module}:{name.upper()}" for module, group in SHOWN.items() for name in group.split()}
READABLE = BUILT_IN | UNPLANNED


def family_names() -> list[str]:
    """The names of all model families that are planned (`model_type` in configurations), built-in families first, families of
    plug-ins last."""
    return names(BUILT_IN, GROUP)


def family(name: str) -> Family | None:
    """The model family with this name (`model_type` in configurations), whose module is imported by this call; None if
    trainplan and its plug-ins have no such family.
    """
    loaded: Family | None = load_named(name, READABLE, GROUP)
    assert loaded is None or isinstance(loaded, Family), f"the entry point {name} of {GROUP} refers to no Family"
    return loaded


def sized_config(base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A shipped configuration with some of its fields replaced, to describe another size of the model.

    base: the shipped configuration's fields. fields: the new values. If they contain another `model_type`, the result omits
    the fields of `base` that the new family does not have, and fields whose new value is None.
    """
    kind = fields.get("model_type", base["model_type"])
    described = None if kind == base["model_type"] else family(kind)
    if described is None or described.fields is None:
        return {**base, **fields}
    known = described.fields | READ
    kept = {name: value for name, value in base.items() if name in known and (name not in fields or fields[name] is not None)}
    return {**kept, **{name: value for name, value in fields.items() if value is not None}}


def build_chain(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a model from its configuration. Returns the units (sub-layers with names) in order, and
    whether head and embedding share one matrix (tied embeddings).

    fields: the configuration, written to: `fields.read` gets the fields that were read with their values, and aliases in
    `fields.config` are replaced by the family's own names. Raises InputError for a family that trainplan does not have, for
    fields that are missing or invalid, and, if the model is to be planned, for what is not planned yet, such as mixtures of
    experts.
    """
    name = fields.config.get("model_type")
    chosen = family(name) if isinstance(name, str) else None
    shown = chosen is not None and name in UNPLANNED and name not in BY_UNITS
    if chosen is None or name in BUILT_IN or (shown and fields.planned):
        check_dense(fields, shown)
    if chosen is None or (shown and fields.planned and unsupported_kind(fields.config)):
        raise refuse_unread(fields, {known: described for known in family_names() if (described := family(known))})
    if name in READABLE:
        refuse_features(fields, chosen)
    check_names(fields, str(name), chosen, own_code=name in SEVERAL["published_code"].split())
    fields.config = without_aliases(fields, chosen.aliases)
    fields.absent("pruned_heads", "per_layer_config")
    fields.read["model_type"] = name
    units, tied = chosen.build(fields)
    if "mtp_num_layers" in fields.config:
        from trainplan.profiling.models.families.prediction import with_predictions

        units = with_predictions(fields, units)
    if fields.planned:
        refuse_unplanned(fields, units)
    return units, tied
