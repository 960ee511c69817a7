"""Run configurations from Python files: recipes of Megatron-Bridge, and torchtitan's `config_registry.py`.

The files are evaluated from their syntax trees (`launch_files.python.program`) and never run. A value that depends on something
outside the file is named in an error, with what to give.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.python.objects import ConstructedObject, Symbol, UnreadExpression
from trainplan.execution.launch_files.python.program import Program
from trainplan.execution.launch_files.run_configuration import SET, RunConfiguration, UserSettings, affects_plan
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.megatron_bridge import recipes as megatron_bridge_recipes
from trainplan.execution.runtimes.torchtitan import config_registry as torchtitan_config_registry
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.models.model import load_model
from trainplan.profiling.shipped import mixture, sized

READ = frozenset(megatron_bridge_reader.ARGUMENTS.values())
SECTIONS = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "dist", "dataset", "peft")
STARTS = ("pretrain", "finetune", "train")  # functions that run the configuration that they are given
# Functions outside the file whose results are known as far as they affect plans.
FOLLOWED = ("to_megatron_provider", "distributed_fused_adam_with_cosine_annealing", "replace")
CHOICES = ("config",)  # names for `--set` that are not variables of the file
WHAT = "a recipe of Megatron-Bridge, or torchtitan's config_registry.py"
TRAINER = "give its arguments as YAML, its command by --command, or the file of DeepSpeed or Accelerate with --model"
LOG = "give the log of the run"
# Packages that other tools' files import, the most specific first: the tool, and advice on what to give instead.
PACKAGES = {
    "nemo": ("NeMo", "give the log of the run, or Megatron-LM's arguments: NeMo's recipes are not read"),
    "nemo_run": ("NeMo", "give the log of the run, or Megatron-LM's arguments: NeMo's recipes are not read"),
    "nemo_automodel": ("NeMo AutoModel", LOG),
    "verl": ("veRL", "give a run of pre-training or full fine-tuning: reinforcement learning is not planned"),
    "openrlhf": ("OpenRLHF", "give a run of pre-training or full fine-tuning: reinforcement learning is not planned"),
    "megatron": ("Megatron-LM", "give the script that starts it, or its command by --command"),
    "nanotron": ("nanotron", LOG),
    "olmo_core": ("OLMo-core", LOG),
    "olmo": ("OLMo", LOG),
    "torchtune": ("torchtune", LOG),
    "litgpt": ("LitGPT", LOG),
    "levanter": ("Levanter", LOG),
    "MaxText": ("MaxText", LOG),
    "llmfoundry": ("LLM Foundry", LOG),
    "composer": ("Composer", LOG),
    "colossalai": ("Colossal-AI", LOG),
    "internlm": ("InternEvo", LOG),
    "internevo": ("InternEvo", LOG),
    "xtuner": ("XTuner", "give its DeepSpeed file with --model, or the log of the run"),
    "mmengine": ("XTuner or MMEngine", "give its DeepSpeed file with --model, or the log of the run"),
    "unsloth": ("Unsloth", TRAINER),
    "swift": ("ms-swift", TRAINER),
    "axolotl": ("axolotl", "give its YAML"),
    "llamafactory": ("LLaMA-Factory", "give its YAML"),
    "lightning": ("Lightning", LOG),
    "pytorch_lightning": ("Lightning", LOG),
    "ray": ("Ray", TRAINER),
    "trl": ("TRL", TRAINER),
    "transformers": ("transformers", TRAINER),
    "accelerate": ("Accelerate", "give the file that `accelerate launch` reads, with --model"),
    "deepspeed": ("DeepSpeed", "give its JSON file, with --model"),
}
# Variables of InternEvo's and Colossal-AI's files, which import nothing.
PLAIN = {"parallel": "InternEvo or Colossal-AI", "SEQ_LEN": "InternEvo"}


class Recipes(Program):
    """A Python file of training, evaluated without being run. Calls of Megatron-Bridge's recipes (functions that return a
    model's usual configuration) become objects with the recipes' values.
    """

    def usual(self, name: str) -> Mapping[str, Any]:
        """The values that a recipe of Megatron-Bridge sets, by section and field, such as {"train": {"micro_batch_size": 1}};
        empty if no such recipe is known. name: the recipe's name.
        """
        return megatron_bridge_recipes.usual(name)


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """Read the run configuration that a Python file builds, in the form of the training tool that it imports. path: the file.
    user: settings that the user adds, such as --set values. Raises InputError that names what the file does not specify.
    """
    program = Recipes(path, {name: text for name, text in user.variables.items() if "." not in name and name not in CHOICES})
    _refuse_unused(program, user)
    modules = set(_modules(program.tree))
    if any(name.startswith("megatron.bridge") for name in modules):
        return _bridge(program, user)
    if any("torchtitan" in name.split(".")[0] for name in modules):
        if (base := next((name for name in sorted(modules) if re.search(r"\.config_registry\.\w", name)), None)) is not None:
            fix = "give that config_registry.py, with --set config=NAME and --set table.key=VALUE for each change, or the TOML"
            raise InputError(program.where, "", f"changes {base}, which is in another file", fix)
        config = chosen(program, user, torchtitan_config_registry.is_config, "a Trainer.Config")
        refuse_changes(config, program.where)
        return torchtitan_config_registry.of_config(config, path, user)
    packages = {name.split(".")[0] for name in modules}
    for package, (tool, fix) in PACKAGES.items():
        if package in packages:
            raise InputError(program.where, "", f"is a Python file of {tool}, which is not run", fix)
    if (tool := next((PLAIN[name] for name in PLAIN if isinstance(program.values.get(name), dict | int)), "")) and not modules:
        raise InputError(program.where, "", f"is a Python file of {tool}, which is not read", LOG)
    raise InputError(program.where, "", "is a Python file that configures no run that is known", f"give {WHAT}, or a script")


def _refuse_unused(program: Program, user: UserSettings) -> None:
    """Raise InputError for a variable that the user sets although the file uses it neither as a name nor in a text (as
    environment variables and options are used).

    program: the file, evaluated without being run. user: the user's settings, among them the variables.
    """
    names = set[str]()
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Name | ast.arg):
            names.add(node.id if isinstance(node, ast.Name) else node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value.lstrip("-").replace("-", "_"))
    for name in user.variables:
        if "." not in name and name not in CHOICES and name not in names:
            near = get_close_matches(name, names, n=2)
            fix = f"did you mean {' or '.join(near)}?" if near else "give a name that it assigns, or section.key=VALUE"
            raise InputError(COMMAND_LINE, SET, f"is {name}, which {program.where} does not use", fix)


def _modules(tree: ast.Module) -> Iterator[str]:
    """The dotted names of the modules that a Python file imports, and of the names that it imports from them: "from a import
    b" -> "a", "a.b". tree: the file's syntax tree.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def chosen(program: Program, user: UserSettings, is_one: Callable[[Any], bool], what: str) -> ConstructedObject:
    """The configuration that a Python file runs: the one given to a function that starts a run, otherwise the only one that the
    file or one of its functions makes, or the one that `--set config=NAME` selects.

    Args:
        program: the file, evaluated.
        user: settings that the user adds, such as --set values.
        is_one: returns whether an object is a configuration.
        what: an example of such a configuration, for errors.

    Raises:
        InputError: if there is none, or several.
    """
    name = user.variables.get("config")
    if name is None:
        started = [call for call in program.objects if call.name.rpartition(".")[2] in STARTS]
        given: list[Any] = [call.fields.get("config", call.fields.get("0", call.fields.get("cfg"))) for call in started]
        for value in given:
            if isinstance(value, UnreadExpression):
                fix = "give a file where it is written out"
                raise InputError(f"{program.where}:{value.line}", "config", f"is {value.text}, which is not known", fix)
        other = next(
            (candidate for candidate in given if isinstance(candidate, ConstructedObject) and not is_one(candidate)),
            None,
        )
        if other is not None:
            fix = "give a file where it is written out"
            raise InputError(f"{program.where}:{other.line}", "config", f"is made by {other.name or 'others'}", fix)
        ones: list[ConstructedObject] = [candidate for candidate in given if is_one(candidate)] or [
            candidate for candidate in program.objects if is_one(candidate)
        ]
        alone = list(dict.fromkeys(ones))
        if len(alone) == 1:
            return alone[0]
        if len(alone) > 1:
            lines = ", ".join(str(config.line) for config in alone[:8])
            raise InputError(program.where, "", f"makes {len(alone)} configurations (lines {lines})", "give a file with one")
    result = dict[str, ConstructedObject]()
    wanted = list(program.functions) if name is None else [name] if name in program.functions else []
    for function in wanted:
        value = program.call(function)
        if is_one(value) and not function.startswith("_"):
            result[function] = value
    if len(result) == 1:
        return next(iter(result.values()))
    names = list(result) or [function for function in program.functions if not function.startswith("_")]
    if name in program.functions:
        raise InputError(program.where, "config", f"is {name}, which makes no configuration that is followed", f"give {what}")
    listed = ", ".join(names[:12]) + (", .." if len(names) > 12 else "")
    if name is not None or result:
        problem = f"is {shown(name)}" if name is not None else f"is not given, and there are {len(result)}"
        raise InputError(program.where, "config", problem, f"give --set config=NAME, one of: {listed}")
    raise InputError(program.where, "", f"makes no configuration that is read, such as {what}", f"give {WHAT}")


def refuse_changes(result: ConstructedObject, where: str, fix: str = "or a file where all is written out") -> None:
    """Raise InputError if a Python file passes a configuration to a call that may change it, since such calls are not
    evaluated.

    result: the configuration object. where: the file, for errors. fix: the end of the error's advice.
    """
    change = next(result.changes(), None)
    if change is not None:
        problem = f"changes the configuration by {change.text}, which is not followed"
        raise InputError(f"{where}:{change.line}", "", problem, "give the log of the run, " + fix)


def _is_bridge(value: Any) -> bool:
    """Whether an object of a Python file is a ConfigContainer or a recipe of Megatron-Bridge."""
    last = value.name.rpartition(".")[2] if isinstance(value, ConstructedObject) else ""
    known = (
        last.endswith((megatron_bridge_recipes.END, *megatron_bridge_recipes.OTHERS))
        or last in megatron_bridge_recipes.recipes()
    )
    return (
        last in ("ConfigContainer", megatron_bridge_recipes.COMMON)
        or known
        or (last.endswith("_config") and "bridge.recipes" in value.name)
    )


def _bridge(program: Program, user: UserSettings) -> RunConfiguration:
    """Read the run configuration that a Python file for Megatron-Bridge builds: from a ConfigContainer, or from a recipe and
    the values assigned to its result. program: the file, evaluated without being run. user: settings that the user adds,
    such as --set values. Raises InputError for values that are not read, or that plans cannot have.
    """
    config = chosen(program, user, _is_bridge, "llama3_8b_pretrain_config()")
    refuse_changes(config, program.where, "a file where all is written out, or a YAML file of overrides with --set recipe=NAME")
    where, last = program.where, config.name.rpartition(".")[2]
    whole = last == "ConfigContainer"
    recipe = (
        ""
        if whole
        else last
        if last == megatron_bridge_recipes.COMMON
        else megatron_bridge_recipes.known(last, f"{where}:{config.line}")
    )
    values, sources = _assigned(config, where, user)
    values, sources = _with_precision(config, values, sources, where)
    optimizer = config.fields.get("optimizer")
    if isinstance(optimizer, ConstructedObject) and "fused_adam" in optimizer.name:
        values = {**megatron_bridge_recipes.STEPPED, **values}
    values = {key: value for key, value in values.items() if key.partition(".")[0] in SECTIONS}
    model = _hub_model(config, where, user)
    _refuse_open_precision(config, values, where, user, of_checkpoint=whole and model is not None)
    if model is not None:
        sources["model.num_layers"] = f"{where}:{config.lines.get('model', config.line)}"
        if "model.seq_length" not in values:  # which its bridge fills in
            values["model.seq_length"] = load_model(model).sequence_tokens
            sources["model.seq_length"] = f"max_position_embeddings of {model}"
    with_model = user if model is None or user.model is not None else replace(user, model=model)
    replaced = [
        name
        for name, value in config.fields.items()
        if value is None or (isinstance(value, ConstructedObject) and not value.implied)
    ]
    result = megatron_bridge_reader.of_fields(values, where, with_model, sources, recipe, replaced)
    return result if model is None else replace(result, model=result.model or model)


def _assigned(config: ConstructedObject, where: str, user: UserSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that a configuration of Megatron-Bridge assigns to fields of its sections, as {"section.field": value}, and
    the file's line of each, as {"section.field": "file:line"}.

    config: the configuration object. where: the file, for errors. user: settings that the user adds, such as --set values.
    Raises InputError for values that affect the plan and are not known.
    """
    values, sources = dict[str, Any](), dict[str, str]()
    for key, value, line in config.flattened():
        first, dot, rest = key.partition(".")
        key = f"{megatron_bridge_recipes.ARGUMENTS.get(first, first)}{dot}{rest}"
        section, _, field = key.partition(".")
        bearing = section in SECTIONS and (not field or key in READ or affects_plan(key))
        if isinstance(value, UnreadExpression) and key.endswith("**"):
            fix = "give that file, where it is one of YAML, or a file where its fields are written out"
            raise InputError(f"{where}:{line}", section, f"has what {value.text} holds, which is not in this file", fix)
        if isinstance(value, UnreadExpression) and bearing and key not in user.variables:
            raise InputError(f"{where}:{line}", key, f"is {value.text}, which is not known", f"give it: --set {key}=VALUE")
        if isinstance(value, ConstructedObject) and not field and bearing and not value.implied:
            _refuse_calls(value, key, f"{where}:{line}")
        elsewhere = not field and section not in SECTIONS and not affects_plan(key)
        if field.startswith("of.") or isinstance(value, UnreadExpression | ConstructedObject) or elsewhere:
            continue
        if not field and section not in SECTIONS:
            raise InputError(f"{where}:{line}", key, f"is {shown(value)}, and no argument that is read", "assign it by section")
        if field.count(".") == 0 and field not in ("of", "load_weights"):
            values[key], sources[key] = str(value) if isinstance(value, Symbol) else value, f"{where}:{line}"
    return values, sources


def _with_precision(
    config: ConstructedObject, values: dict[str, Any], sources: dict[str, str], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Replace a configuration's mixed precision, given by name or as an object, by the fields that it sets. Returns values and
    sources: {"mixed_precision": "bf16_mixed"} -> {"mixed_precision.bf16": True}.

    config: the configuration object. values: its values by "section.field". sources: the file's line of each value. where:
    the file, for errors.
    """
    precision = config.fields.get("mixed_precision", config.fields.get("precision_config"))
    if isinstance(precision, ConstructedObject) and not precision.implied:
        shape = precision.fields.get("0")
        name = shape if isinstance(shape, str) else precision.name.rpartition(".")[2]
        fields = {} if name == "MixedPrecisionConfig" else megatron_bridge_reader.precision_fields(name, where)
        values = {**fields, **values}
    elif isinstance(values.get("mixed_precision"), str):
        fields = megatron_bridge_reader.precision_fields(values["mixed_precision"], where)
        values, sources = {**fields, **values}, {**dict.fromkeys(fields, sources["mixed_precision"]), **sources}
    values.pop("mixed_precision", None)
    return values, sources


def _refuse_open_precision(
    config: ConstructedObject, values: Mapping[str, Any], where: str, user: UserSettings, of_checkpoint: bool
) -> None:
    """Raise InputError if a configuration of Megatron-Bridge does not specify the precision that it trains in.

    config: the configuration object. values: its values by "section.field". where: the file, for errors. user: settings
    that the user adds, such as --set values. of_checkpoint: whether the model is read from a checkpoint and not made by a
    recipe, so that the checkpoint's dtype would be used.
    """
    widths = [f"{section}.{name}" for section in ("mixed_precision", "model") for name in ("bf16", "fp16")]
    is_open = config.fields.get("mixed_precision", "" if of_checkpoint else "of the recipe") in (None, "")
    if is_open and not any(values.get(key) or key in user.variables for key in widths):
        fix = "give it, such as bf16_mixed, or --set mixed_precision.bf16=true: without it the checkpoint's own dtype is taken"
        raise InputError(f"{where}:{config.line}", "mixed_precision", "is missing", fix)


def _refuse_calls(value: ConstructedObject, key: str, where: str) -> None:
    """Raise InputError if a section of a configuration is the result of a function call that is not evaluated. value: the
    section's object. key: the section's name. where: the file and line, for errors.
    """
    last = value.name.rpartition(".")[2]
    plain = last.partition("[")[0]
    precision = key == "mixed_precision" and ("mixed" in plain or plain == "get_mixed_precision_config")
    if not last[:1].isupper() and plain not in FOLLOWED and not precision:
        raise InputError(where, key, f"is {plain}(..), which is not followed", "give a file where its fields are written out")


def _hub_model(config: ConstructedObject, where: str, user: UserSettings) -> str | None:
    """The name of the known model that a configuration names by its name on the Hugging Face hub; None if it names none.

    config: the configuration object. where: the file, for errors. user: settings that the user adds, such as --set values.
    Raises InputError if the sizes of the named model are not known.
    """
    model = config.fields.get("model")
    if not isinstance(model, ConstructedObject) or model.implied:
        return None
    names = [value for key, value, _ in model.flattened() if key.startswith("of.") and isinstance(value, str) and "/" in value]
    if names and (found := sized(names[0])) is not None:
        return found[0]
    if names and (what := mixture(names[0])) is not None:
        problem = f"is {shown(names[0])}: {what} is not planned yet"
        raise InputError(f"{where}:{model.line}", "model", problem, "give a dense model")
    if model.fields.get("num_layers") is None and user.model is None:
        what = names[0] if names else model.name.rpartition(".")[2]
        raise InputError(f"{where}:{model.line}", "model", f"is {shown(what)}, whose sizes are not known", "give --model")
    return None
