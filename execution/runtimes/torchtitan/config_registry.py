"""Reader of torchtitan's configurations in Python (`config_registry.py`, since February 2026); they are translated to the
tables of its TOML files.

    def llama3_8b() -> Trainer.Config:
        return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1, seq_len=8192), ..)

Since August 2026 batches are counted in tokens: num_tokens_per_microbatch_per_dp_rank over max_context_length corresponds to
pipeline_parallel_microbatch_size, and num_pp_microbatches times that to local_batch_size.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import written
from trainplan.execution.launch_files.python.objects import ConstructedObject, Symbol, UnreadExpression
from trainplan.execution.launch_files.run_configuration import SET, RunConfiguration, UserSettings, affects_plan
from trainplan.execution.runtimes.torchtitan import reader as torchtitan_reader
from trainplan.execution.runtimes.torchtitan.versions import MIXTURES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.models.families.fields import names
from trainplan.profiling.shipped import sized

TABLES = ("training", "parallelism", "compile", "activation_checkpoint", "optimizer")
POLICIES = {"SelectiveAC": ("selective", "op"), "FullAC": ("full", None), "MemoryBudgetAC": ("memory_budget", None)}
CONVERTERS = {"Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx", "MXLinearConverter": "mx"}
# Of HEAD of August 2026; versions before have the defaults of 0.2, except for this one.
DEFAULTS = {"activation_checkpoint": ("selective", "op")}
NAMES = ("llama2", "llama3", "qwen3", *MIXTURES)
ARGUMENTS = ("name", "flavor", "converters", "quantization", "attn_backend", "tp_gemm_backend")  # of model_registry
# Further fields of Trainer.Config (0.3 and earlier versions), which change no plan or are read below.
FIELDS = names(
    """
    model_spec hf_assets_path dump_folder profiler metrics tokenizer dataloader lr_scheduler checkpoint comm validator debug
    loss job model model_converters profiling lr_scheduler validation memory_estimation experimental
    """
)
TOKENS, CONTEXT, STEP = "num_tokens_per_microbatch_per_dp_rank", "max_context_length", "num_tokens_per_train_step"


def is_config(value: Any) -> bool:
    """Whether an object that a followed Python file makes is the configuration of a torchtitan job."""
    return isinstance(value, ConstructedObject) and value.name.endswith(("Trainer.Config", "JobConfig"))


def of_config(config: ConstructedObject, path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of the object that configures a torchtitan job. config: the object, from a Python file that is
    followed without running it. path: this file. user: the settings that the user gives in addition to the file. Raises
    InputError for parts that are not written out in the file."""
    where = str(path)
    kind = config.name.split(".")[-2] if config.name.endswith(".Config") else config.name
    if kind not in ("Trainer", "JobConfig"):
        raise InputError(
            f"{where}:{config.line}", "", f"is of {kind}, which runs otherwise", "give one of torchtitan's Trainer"
        )
    other = next((name for name in config.fields if name not in (*TABLES, *FIELDS) and not name.isdecimal()), None)
    if other is not None and other not in user.ignored and config.fields[other] not in (None, False):
        fix = f"say that it changes nothing by --ignore {other}"
        raise InputError(f"{where}:{config.lines.get(other, config.line)}", other, "is no field that is read", fix)
    tables, sources = dict[str, dict[str, Any]](), dict[str, str]()

    def take(table: str, key: str, value: Any, line: int, source: str = "") -> None:
        tables.setdefault(table, {})[key] = value
        sources[f"{table}.{key}"] = source or f"{where}:{line}"

    for name in TABLES:
        part = config.fields.get(name)
        if isinstance(part, UnreadExpression):
            raise InputError(f"{where}:{part.line}", name, f"is {part.text}, which is not known", "give a file where it is")
        if not isinstance(part, ConstructedObject) or (name == "activation_checkpoint" and part.name.split(".")[-2:-1] != []):
            continue
        if name == "optimizer" and not part.implied and part.name.rpartition(".")[2] not in ("default_adamw", "Config"):
            fix = "give default_adamw: plans for it step by AdamW"
            raise InputError(f"{where}:{part.line}", "optimizer", f"is {part.name.rpartition('.')[2]}", fix)
        if name == "optimizer" and "InBackward" in part.name:
            take(name, "early_step_in_backward", True, part.line)
        for key, value, line in part.flattened():
            settled = user.variables.get(f"{name}.{key}")
            if isinstance(value, UnreadExpression) and settled is None:
                if name != "optimizer" and (affects_plan(key) or key in (TOKENS, CONTEXT, "enable")):
                    fix = f"give it: --set {name}.{key}=VALUE"
                    raise InputError(f"{where}:{line}", f"{name}.{key}", f"is {value.text}, which is not known", fix)
                continue
            if "." not in key and not isinstance(value, ConstructedObject) and not key.isdecimal():
                take(name, key, str(value) if isinstance(value, Symbol) else value, line)
    _settings(tables, sources, user)
    _tokens(tables, sources, where)
    _recomputed(config, take, where)
    _model(config, path, take, user)
    if (overlap := tables.get("compile", {}).pop("enable_async_tensor_parallel", None)) is not None:
        take("parallelism", "enable_async_tensor_parallel", overlap, config.line)
    plain = replace(user, variables={})  # of which tables have what it says
    run = torchtitan_reader.of_tables(tables, where, plain, sources, latest=True)
    loss = config.fields.get("loss")
    chunked = isinstance(loss, ConstructedObject) and "Chunked" in loss.name
    return replace(run, buffers=replace(run.buffers, loss="chunked" if chunked else run.buffers.loss))


def _settings(tables: dict[str, dict[str, Any]], sources: dict[str, str], user: UserSettings) -> None:
    """Add the values of `--set table.key=VALUE` to the tables of a torchtitan configuration. tables: values by table and key,
    which are changed. sources: the source by dotted key, which is changed, too. user: the settings that the user gives in
    addition to the file. Raises InputError for other tables."""
    for name, text in user.variables.items():
        table, _, key = name.partition(".")
        if key and table not in TABLES:
            raise InputError(COMMAND_LINE, SET, f"is {name}, and no table that can be changed so", one_of(table, TABLES))
        if key:
            tables.setdefault(table, {})[key], sources[name] = written(text), SET


def _tokens(tables: dict[str, dict[str, Any]], sources: dict[str, str], where: str) -> None:
    """Replace batch sizes in tokens by batch sizes in samples. tables: values by table and key, which are changed. sources:
    the source by dotted key, which is changed, too. where: the file, for errors. Raises InputError if a micro-batch is not a
    whole number of samples."""
    training, parallelism = tables.setdefault("training", {}), tables.setdefault("parallelism", {})
    if "local_batch_size" in training or "seq_len" in training:
        return
    tokens, context = training.pop(TOKENS, 16384), training.pop(CONTEXT, 2048)
    step, count = training.pop(STEP, -1), parallelism.pop("num_pp_microbatches", 1)
    for key, value in (
        (TOKENS, tokens),
        (CONTEXT, context),
        (STEP, step),
        ("num_pp_microbatches", count),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and key != STEP):
            raise InputError(where, f"training.{key}", f"is {shown(value)}", "give a whole number")
    if tokens % context or (step > 0 and step % context):
        key, value = (TOKENS, tokens) if tokens % context else (STEP, step)
        raise InputError(where, f"training.{key}", f"is {value}", f"give a multiple of {CONTEXT} = {context}")
    micro = tokens // context
    piped = parallelism.get("pipeline_parallel_degree", 1) not in (1, None)
    parallelism["pipeline_parallel_microbatch_size"] = micro
    training |= {"seq_len": context, "local_batch_size": micro * (count if piped else 1)}
    if step > 0:
        training["global_batch_size"] = step // context
    for new, old in (("local_batch_size", TOKENS), ("seq_len", CONTEXT), ("global_batch_size", STEP)):
        if f"training.{old}" in sources:
            sources[f"training.{new}"] = sources[f"training.{old}"]


def _recomputed(config: ConstructedObject, take: Any, where: str) -> None:
    """Find the mode of recomputation in a torchtitan configuration. It comes from a class per policy or, before June 2026, from
    mode and option. take: called with table, key, value and line for each value found. config: the object that configures the
    job. where: the file, for errors. Raises InputError for a key or value that is invalid or that no plan can have."""
    policy = config.fields.get("activation_checkpoint", "default")
    line = config.lines.get("activation_checkpoint", config.line)
    mode, option = DEFAULTS["activation_checkpoint"]
    if policy is None:
        mode = "none"
    elif isinstance(policy, ConstructedObject) and not policy.implied:
        name = next((part for part in policy.name.split(".") if part in POLICIES), None)
        if name is None and not policy.name.endswith(("ActivationCheckpointConfig", "ActivationCheckpoint")):
            fix = f"give one of {', '.join(POLICIES)}, or None"
            raise InputError(f"{where}:{line}", "activation_checkpoint", f"is {policy.name}", fix)
        known = POLICIES[name] if name is not None else (policy.fields.get("mode", "selective"), None)
        mode, option = known[0], known[1] or policy.fields.get("selective_ac_option", option)
    elif policy != "default" and not isinstance(policy, ConstructedObject):
        raise InputError(f"{where}:{line}", "activation_checkpoint", f"is {shown(policy)}", "give one of its classes, or None")
    elif isinstance(policy, ConstructedObject):  # of which only fields were assigned
        mode, option = policy.fields.get("mode", mode), policy.fields.get("selective_ac_option", option)
    take("activation_checkpoint", "mode", mode, line)
    if mode == "selective":
        take("activation_checkpoint", "selective_ac_option", option, line)


def _model(config: ConstructedObject, path: Path, take: Any, user: UserSettings) -> None:
    """Find the name, the flavour (size) and the low-precision converters of the model in a torchtitan configuration. The name
    is that of --model if the file does not say it. take: called with table, key, value and line for each value found. config:
    the object that configures the job. path: the file. user: the settings that the user gives in addition to the file. Raises
    InputError if they are not written out."""
    where, spec = str(path), config.fields.get("model_spec", config.fields.get("model"))
    if not isinstance(spec, ConstructedObject) or not isinstance(
        flavour := spec.fields.get("0", spec.fields.get("flavor")), str
    ):
        line = config.lines.get("model_spec", config.line)
        raise InputError(f"{where}:{line}", "model_spec", "is not written out", 'give model_registry("8B"), or another flavour')
    unread = next((key for key in spec.fields if not key.isdecimal() and key not in ARGUMENTS), None)
    if unread is not None:
        fix = f"give no more than {', '.join(ARGUMENTS)}"
        raise InputError(f"{where}:{spec.line}", f"model_spec.{unread}", "is no argument that is read", fix)
    name = spec.fields.get("name")
    parts = [*spec.name.split("."), *reversed(path.resolve().parts[-4:-1])]
    name = name if isinstance(name, str) else next((part for part in parts if part in NAMES), None)
    source = "" if name is not None or user.model is None else f"--model {user.model}"
    if source and user.model is not None:
        known = (sized(user.model) or (user.model,))[0]
        name = next((known_name for known_name in NAMES if known.startswith(known_name)), known)
    if name is None:
        fix = "give --model, such as llama3-8b, or a file that imports model_registry from torchtitan.models.NAME"
        raise InputError(f"{where}:{spec.line}", "model_spec", f"is {shown(flavour)} of a model that is not named", fix)
    take("model", "name", name, spec.line, source)
    take("model", "flavor", flavour, spec.lines.get("flavor", spec.line))
    holder = config.fields.get("model_converters")
    given = (
        spec.fields.get("converters")
        or spec.fields.get("quantization")
        or (holder.fields.get("converters") if isinstance(holder, ConstructedObject) else None)
        or []
    )
    if not isinstance(given, list | tuple):
        raise InputError(f"{where}:{spec.line}", "converters", "is not written out", "give a list of converters")
    kinds = []
    for converter in given:
        names = converter.name.split(".") if isinstance(converter, ConstructedObject) else []
        kind = next((CONVERTERS[part] for part in names if part in CONVERTERS), None)
        if kind is None:
            what = converter.name if isinstance(converter, ConstructedObject) else converter
            raise InputError(f"{where}:{spec.line}", "converters", f"has {shown(what)}", f"give one of {', '.join(CONVERTERS)}")
        kinds.append(kind)
        for key, value, line in converter.flattened():
            if key in ("recipe_name", "recipe", "filter_fqns", "emulate", "enable_fsdp_float8_all_gather"):
                if isinstance(value, UnreadExpression | ConstructedObject):
                    raise InputError(f"{where}:{line}", f"converters.{key}", "is not written out", "give its value")
                take(kind, "recipe_name" if key == "recipe" else key, value, line)
            elif key == "fqns" and value:
                fix = "leave it out: plans have all layers alike"
                raise InputError(f"{where}:{line}", "converters.fqns", f"is {shown(value)}", fix)
    if kinds:
        take("model", "converters", kinds, spec.line)
