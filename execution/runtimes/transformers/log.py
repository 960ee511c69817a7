"""Run configurations from logs of DeepSpeed, transformers' Trainer and Accelerate.

DeepSpeed prints its engine's configuration and the file that it was given (`deepspeed/runtime/config.py`, `print_user_config`),
transformers' Trainer its TrainingArguments and a summary of the batch, Accelerate its state (`accelerator.state`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.logs.lines import block_at, first, last, mapping_at, value_of
from trainplan.execution.launch_files.logs.text import ENGINE, STATE, TRAINER, TRL, mark
from trainplan.execution.launch_files.run_configuration import (
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    TakenValue,
    UserSettings,
    flattened,
)
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.models.model import load_model, model_from_config
from trainplan.profiling.models.precision import MASTERS, PLAIN

RESOLVED = re.compile(r"config\.py:\d+:print\]\s+(\w+)\s*\.*\s+(\S.*)$")
MODEL = mark("Model config ", r"Model config \w+ (\{.*)$")
WHOLE = "give the whole log, or what starts the run"
ENUMERATION = re.compile(r"^(?:[A-Z]\w*\.)([A-Z][A-Z\d_]*)$")  # as Python's enumerations were printed before 3.11
OPTION = re.compile(r"<\w+\.\w+: ('[^']*')>")
ADAPTERS = mark("trainable params: ", r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)")


CHECKPOINTING = mark(  # as transformers warns of it, and LLaMA-Factory says it
    "radient checkpointing", r"is incompatible with gradient checkpointing|\bGradient checkpointing enabled\."
)
TOTAL = mark("Total train batch size", r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)")
PER_DEVICE = mark("Instantaneous batch size per device", r"Instantaneous batch size per device = ([\d,]+)")
ACCUMULATED = mark("radient Accumulation steps", r"(?i)Gradient Accumulation steps = ([\d,]+)")
TRAINABLE = mark("Number of trainable parameters", r"Number of trainable parameters = ([\d,]+)")
PROCESSES = mark("Num processes: ", r"Num processes: (\d+)")
MIXED = mark("precision", r"(?:Mixed precision type|Use FP16 precision): (\w+)")  # the latter until 2022
OF_DEEPSPEED = mark("ds_config: ", r"ds_config: (\{.*)$")
OF_STATE = {"no": "float32", "fp16": "float16", "bf16": "bfloat16", "False": "float32", "True": "float16"}
CLOSE = 0.02  # of a number of parameters


def of_deepspeed(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration of a log in which DeepSpeed printed its configuration; batch, devices and precision are as its
    engine resolved them. lines: the log. None if the log has no such lines. where: the file, for errors. user: the settings
    that the user gives in addition to the file. Raises InputError if they are cut off."""
    if (found := last(ENGINE, lines)) is None:
        return None
    number, at = found[0], f"{where}:{found[0] + 1}"
    values = mapping_at(lines, number, found[1][1])
    if values is None:
        raise InputError(at, "", "has a configuration that does not end", "give the whole log")
    engine = {m[1]: value_of(m[2]) for line in lines[: number + 1] if "print]" in line and (m := RESOLVED.search(line))}
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if isinstance(engine.get(key), int):
            values[key] = engine[key]
    for key, resolved in (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled")):
        if isinstance(engine.get(resolved), bool):
            given = values.get(key)
            values[key] = {**(given if isinstance(given, dict) else {}), "enabled": engine[resolved]}
    if (run := _of_arguments(lines, where, user, values, at)) is None:
        run = _with_recomputation(lines, where, user, lambda settings: deepspeed_reader.of_values(values, at, settings))
    world = engine.get("world_size")  # of data-parallel ranks, where a model is shared
    devices = world if isinstance(world, int) and run.tp == run.cp == 1 else None
    run = replace(run, where=where, devices=devices, config=run.config or _model(lines))
    _trained(lines, where, user, run)
    return run


def _with_recomputation(
    lines: Sequence[str], where: str, user: UserSettings, read: Callable[[UserSettings], RunConfiguration]
) -> RunConfiguration:
    """The run configuration of a log, with full recomputation if a line of the log says that layers are recomputed (gradient
    checkpointing). lines: the log. read: gives the configuration for given user settings. where: the file, for errors. user:
    the settings that the user gives in addition to the file. Raises InputError if the log contradicts the user's --recompute.
    """
    if (found := first(CHECKPOINTING, lines)) is None:
        return read(user)
    at = f"{where}:{found[0] + 1}"
    if user.recompute == "none":
        raise InputError(COMMAND_LINE, "--recompute", f"is none, and {at} says that layers are recomputed", "leave it out")
    configuration = read(replace(user, recompute="full"))
    return replace(configuration, taken=(*configuration.taken, TakenValue("gradient_checkpointing", True, at)))


def of_trainer(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration of a log of transformers' Trainer without DeepSpeed: data-parallel copies, or FSDP; None if the log
    prints no arguments. lines: the log. If only the launcher's own file would say whether FSDP is used, the number of
    parameters that each device trains decides it. where: the file, for errors. user: the settings that the user gives in
    addition to the file. Raises InputError if states are sharded and the log does not say how."""
    if (run := _of_arguments(lines, where, user, None, where)) is None:
        return None
    shares = _trained(lines, where, user, run)
    if "zero" not in run.undecided or shares is None:
        return run
    if shares:
        fix = "give --set accelerate=FILE, what `accelerate launch` reads: the log does not say how they are shared"
        raise InputError(where, "fsdp", "is empty, and parameters are shared between the devices all the same", fix)
    return replace(run, undecided={name: what for name, what in run.undecided.items() if name != "zero"})


def _of_arguments(
    lines: Sequence[str], where: str, user: UserSettings, engine: Mapping[str, Any] | None, at: str
) -> RunConfiguration | None:
    """The run configuration of the TrainingArguments that a log prints; None if it prints none. lines: the log. engine:
    DeepSpeed's configuration; None if the log has none. at: the file and line of that configuration; unused. where: the file,
    for errors. user: the settings that the user gives in addition to the file. Raises InputError if the arguments are cut off.
    """
    found = last(TRAINER, lines) or last(TRL, lines)
    if found is None:
        return None
    begin = f"{where}:{found[0] + 1}"
    values, sources, ended = dict[str, Any](), dict[str, str](), False
    for number, line in block_at(lines, found[0]):
        if line.strip() == ")":
            ended = True
            break
        name, equals, text = line.strip().rstrip(",").partition("=")
        if equals and name.isidentifier() and name not in values:
            values[name], sources[name] = _argument(text), f"{where}:{number + 1}"
    if not ended or "per_device_train_batch_size" not in values:
        raise InputError(begin, "per_device_train_batch_size", "has arguments that do not end", WHOLE)
    if (count := values.pop("_n_gpu", 1)) not in (0, 1):
        problem = f"is {count}, with one process: torch's DataParallel, which is not planned"
        raise InputError(sources["_n_gpu"], "_n_gpu", problem, "start a process for each device, by torchrun")
    if engine is not None:
        values["deepspeed"] = engine
    elif values.get("deepspeed") not in (None, "") and not isinstance(values["deepspeed"], dict):
        fix = "give the log with its configuration (config.py, print_user_config), or the file itself"
        raise InputError(begin, "deepspeed", f"is {shown(values['deepspeed'])}, and what it holds is not in the log", fix)
    if not any((values.get("fsdp_config") or {"": None}).values()):  # printed as it is without FSDP
        values.pop("fsdp_config", None)
    values = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    flat = flattened({name: value for name, value in values.items() if name not in PRINTED})
    keys = KeyReader(where, flat, (None,), sources, transformers_reader.DEFAULTS, user.ignored)
    run = transformers_reader.of_keys(values, keys, Path(where), user)
    samples = first(TOTAL, lines, found[0])
    total = None if samples is None else int(samples[1][1].replace(",", ""))
    samples_per_rank = (run.micro_samples or 1) * (run.accumulation or 1)
    devices = None if total is None or run.tp * run.cp > 1 else total // samples_per_rank
    taken = () if samples is None else (TakenValue("Total train batch size", total, f"{where}:{samples[0] + 1}"),)
    return replace(run, samples=total or run.samples, devices=devices, config=_model(lines), taken=(*run.taken, *taken))


# Of no bearing, under names that only logs have; and those that say again what others say.
PRINTED = ("logging_dir", "fp16_opt_level", "xpu_backend", "tpu_metrics_debug", "use_legacy_prediction_loop")


def _argument(text: str) -> Any:
    """The value of one of TrainingArguments' fields, from the text that Python prints for it; of an enumeration, its value
    in lower case."""
    if (member := ENUMERATION.match(text)) is not None:
        return member[1].lower()
    return value_of(OPTION.sub(lambda option: option[1], text))


def _model(lines: Sequence[str]) -> dict[str, Any] | None:
    """The Hugging Face configuration of the model, if transformers printed it in the log while loading the model; otherwise
    None. lines: the log."""
    found = last(MODEL, lines)
    return None if found is None else mapping_at(lines, found[0], found[1][1])


def _trained(lines: Sequence[str], where: str, user: UserSettings, run: RunConfiguration) -> bool | None:
    """Whether each device trains a share of the parameters (True) or all of them (False), by the number of trainable parameters
    in the log; None if the log does not decide it. lines: the log. run: the run configuration that has been read so far. where:
    the file, for errors. user: the settings that the user gives in addition to the file. Raises InputError if only some
    parameters are trained, as with adapters."""
    if (adapters := last(ADAPTERS, lines)) is not None:
        some, every = (int(text.replace(",", "")) for text in adapters[1].groups())
        if some < every * (1 - CLOSE):
            problem = f"is {some:,} of {every:,} parameters"
            raise InputError(f"{where}:{adapters[0] + 1}", "trainable params", problem, transformers_reader.ADAPTERS)
    named, found = user.model or run.model, last(TRAINABLE, lines)
    if found is None or (named is None and run.config is None):
        return None
    model = load_model(named, 1024) if named is not None else model_from_config(run.config, where, 1024, "bfloat16")
    every, trained = model.total_parameters, int(found[1][1].replace(",", ""))
    if abs(trained / every - 1) < CLOSE:
        return False
    if run.devices and abs(trained * run.devices / every - 1) < CLOSE:
        return True
    if run.zero < 3 and trained < every * (1 - CLOSE):
        problem = f"is {trained:,} of {model.name}'s {every:,}"
        raise InputError(f"{where}:{found[0] + 1}", "Number of trainable parameters", problem, transformers_reader.ADAPTERS)
    return None


def of_accelerate(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration of a log in which Accelerate printed its state, with the batch as transformers' example scripts
    print it; None if the log has no state. lines: the log. where: the file, for errors. user: the settings that the user gives
    in addition to the file. Raises InputError for FSDP, whose options the state does not contain."""
    if (state := last(STATE, lines)) is None:
        return None
    begun, kind, at = state[0], state[1][1], f"{where}:{state[0] + 1}"
    found: dict[str, tuple[str, str]] = {"kind": (kind, at)}
    marks = {"processes": PROCESSES, "precision": MIXED, "samples": TOTAL, "micro": PER_DEVICE, "accumulation": ACCUMULATED}
    for name, line_mark in marks.items():
        if (line := first(line_mark, lines, begun)) is not None:
            found[name] = line[1][1].replace(",", ""), f"{where}:{line[0] + 1}"
    if kind not in ("NO", "MULTI_GPU", "DEEPSPEED"):
        fix = "give the file of `accelerate config`: the log does not say how states are shared"
        raise InputError(at, "Distributed environment", f"is {kind}", fix)
    counts: dict[str, Any] = {
        field: int(found[name][0])
        for field, name in (("samples", "samples"), ("micro_samples", "micro"), ("accumulation", "accumulation"))
        if name in found
    }
    devices = int(found["processes"][0]) if "processes" in found else None
    taken = tuple(TakenValue(name, value, source) for name, (value, source) in found.items())
    if kind == "DEEPSPEED":
        line = first(OF_DEEPSPEED, lines, begun)
        values = None if line is None else mapping_at(lines, line[0], line[1][1])
        if line is None or values is None:
            raise InputError(at, "ds_config", "is missing", "give the whole log, or DeepSpeed's file")
        at = f"{where}:{line[0] + 1}"
        run = _with_recomputation(lines, where, user, lambda settings: deepspeed_reader.of_values(values, at, settings))
        run = replace(run, where=where, devices=devices, taken=(*taken, *run.taken), **counts)
    else:
        precision, source = found.get("precision", ("", at))
        if precision not in OF_STATE:
            raise InputError(source, "Mixed precision type", f"is {shown(precision)}", "give a log of no, fp16 or bf16")
        run = _with_recomputation(lines, where, user, lambda settings: RunConfiguration(
            where=where, runtime="accelerate", software="PyTorch DDP (Accelerate)", dtype=OF_STATE[precision],
            precision=PLAIN if OF_STATE[precision] == "float32" else MASTERS, devices=devices, cuts=(),
            recomputed=RecomputedLayers("full" if settings.recompute == "full" else "none"), taken=taken,
            notes=(deepspeed_reader.RECOMPUTED,) * (settings.recompute is None), **counts,
        ))  # fmt: skip
    _trained(lines, where, user, run)
    return run
