"""Megatron-Bridge's recipes for pre-training dense models: the values that apply where a file overrides a recipe.

`trainplan/data/recipes/megatron-bridge.json` has these values (`benchmarks/bridge_recipes.py` reads them from Megatron-Bridge's
source) and names the version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.models.model import load_model
from trainplan.profiling.shipped import mixture, sized

# What steps in all of them (`distributed_fused_adam_with_cosine_annealing`), beyond what that file has.
STEPPED = {"optimizer.use_distributed_optimizer": True}
COMMON = "_pretrain_common"  # of recipes/common.py: what all have, to which a recipe adds a model and what else it sets
END = "_pretrain_config"
OTHERS = ("_sft_config", "_peft_config", "_finetune_config", "_sft_common", "_peft_common")
BATCH = {  # which each recipe has of its own, and the configuration's fields of the same
    "model.seq_length": "sequence",
    "train.global_batch_size": "samples",
    "train.micro_batch_size": "micro_samples",
}
SIZED = ("model.num_layers", "model.hybrid_layer_pattern", "model.hybrid_override_pattern")
# Of recipes before 0.3, whose functions took what they set: what each argument set.
ARGUMENTS = {
    **{
        name: f"model.{name}"
        for name in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
            "context_parallel_size", "sequence_parallel", "seq_length", "pipeline_dtype",
            "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "expert_model_parallel_size",
        )
    },
    **{name: f"train.{name}" for name in ("global_batch_size", "micro_batch_size", "train_iters")},
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "precision_config": "mixed_precision",
    "mixed_precision_recipe": "mixed_precision",
    "comm_overlap_config": "comm_overlap",
}  # fmt: skip


@dataclass(frozen=True)
class RecipeValues:
    """The values of a Megatron-Bridge recipe, which a file's own values override. fields: the recipe's values by dotted key,
    such as model.num_layers. sources: where each comes from, for reports. model: the name of the recipe's model; None if the
    file has the model's sizes. notes: lines on assumptions. unknown: whether there is a recipe whose name nobody has given."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    notes: tuple[str, ...] = ()
    unknown: bool = False


@cache
def _table() -> dict[str, Any]:
    """The data file of Megatron-Bridge's recipes: its version, the values that all recipes share ("common"), and model and
    values by name of the recipe ("recipes")."""
    return dict(json.loads(files("trainplan.data").joinpath("recipes", "megatron-bridge.json").read_text()))


def recipes() -> list[str]:
    """The names of all known recipes of Megatron-Bridge."""
    return list(_table()["recipes"])


def usual(name: str) -> dict[str, dict[str, Any]]:
    """The values that a Megatron-Bridge recipe sets when called without arguments, by section and field; empty for an
    unknown recipe. name: a recipe's name, or COMMON for the values that all recipes share."""
    if name != COMMON and name not in recipes():
        return {}
    result = dict[str, dict[str, Any]]()
    for key, value in {**_table()["common"], **_table()["recipes"].get(name, {}).get("fields", {})}.items():
        section, dot, inner = key.partition(".")
        if dot:
            result.setdefault(section, {})[inner] = value
    return result


def known(name: str, where: str) -> str:
    """The full name of a Megatron-Bridge recipe, which may be given without its ending: "llama3_8b" ->
    "llama3_8b_pretrain_config". where: the file, for errors. Raises InputError for an unknown recipe."""
    last = name.rpartition(".")[2]
    for recipe in (last, last + END):
        if recipe in _table()["recipes"]:
            return recipe
    if (what := mixture(re.sub(r"_(pretrain|sft|peft|finetune)_.*", "", last))) is not None:
        raise InputError(where, "recipe", f"is {shown(last)}: {what} is not planned yet", "give a recipe of a dense model")
    if last.endswith(OTHERS):
        fix = f"give one of pre-training, such as {recipes()[0]}: recipes of fine-tuning are not read"
    else:
        fix = one_of(last, recipes()) + f", of Megatron-Bridge {_table()['version']}, or a file that has all sizes"
    raise InputError(where, "recipe", f"is {shown(last)}", fix)


def recipe_values(
    values: Mapping[str, Any], where: str, user: UserSettings, recipe: str | None, replaced: Collection[str] = ()
) -> RecipeValues:
    """The values of a Megatron-Bridge recipe that a file overrides.

    values: the file's own values by dotted key. where: the file, for errors. recipe: the name of the recipe that the file
    calls; empty if the file is a whole ConfigContainer; None if unknown. Then it is the recipe of `--set recipe=NAME` or, if
    the file has no sizes, the recipe of the model that the user names. replaced: sections that the file replaces completely.
    user: the settings that the user gives in addition to the file. Raises InputError if no model is known.
    """
    name, table = recipe if recipe is not None else user.variables.get("recipe"), _table()
    unknown = False
    has_sizes, notes = any(values.get(key) is not None for key in SIZED), list[str]()
    if not name and has_sizes:
        return RecipeValues()
    if name is None and user.model is None:
        fix = f"give it, or the model by --model, or the recipe whose values the file overrides: --set recipe={recipes()[0]}"
        raise InputError(where, "model.num_layers", "is missing", fix)
    if name == COMMON:
        name = ""
    elif name:
        name = known(name, where)
    if name is None:
        assert user.model is not None
        model = sized(user.model)
        sizes = {recipe_name: sized(table["recipes"][recipe_name]["model"]) for recipe_name in recipes()}
        alike = (
            []
            if model is None
            else [recipe_name for recipe_name, size in sizes.items() if size is not None and size[:2] == model[:2]]
        )
        name = min(alike, key=len) if alike else None
        what = f"the recipe {name}" if name else "what all recipes of pre-training have, except for sequence and batch"
        notes.append(f"what the file leaves to its recipe is taken from {what}; another one: --set recipe=NAME")
        unknown = not name
    own = table["recipes"][name] if name else {}
    every = {} if recipe == "" else {**STEPPED, **table["common"], **own.get("fields", {})}
    fields = {key: value for key, value in every.items() if key.partition(".")[0] not in replaced}
    if unknown:
        fields |= dict.fromkeys(BATCH)  # which the user has to give
    source = f"recipe {name or 'of pre-training'} of Megatron-Bridge {table['version']}"
    sources = dict.fromkeys(fields, source)
    of_recipe = sized(own["model"]) if own else None
    named = user.model or (of_recipe[0] if of_recipe and "model" not in replaced else "")
    if not has_sizes and not named:
        raise InputError(where, "model.num_layers", "is missing", "give it, or the model by --model")
    if not has_sizes:
        fields["model.num_layers"] = load_model(named, 128).layers
        sources["model.num_layers"] = f"--model {named}" if user.model else source
    return RecipeValues(fields, sources, None if has_sizes else named, tuple(notes), unknown)
