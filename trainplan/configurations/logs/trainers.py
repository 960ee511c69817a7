"""DeepSpeed, transformers' Trainer and Accelerate: what their logs have of the configuration of a run.

DeepSpeed prints its engine's configuration and the file that it was given (`deepspeed/runtime/config.py`, `print_user_config`),
transformers' Trainer its TrainingArguments, Accelerate its state (`accelerator.state`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from trainplan.configurations import deepspeed
from trainplan.configurations.configuration import Configuration, Recomputed, Said, Taken
from trainplan.configurations.logs.lines import bare, first, last, mapping_at, value_of
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.precision import MASTERS, PLAIN

ENGINE = re.compile(r"config\.py:\d+:print\]\s+(\w+)\s*\.*\s+(\S.*)$")
USER_FILE = re.compile(r"config\.py:\d+:print_user_config\]\s+json = (\{.*)$")
TRAINER = re.compile(r"TrainingArguments\($")
MODEL = re.compile(r"Model config \w+ (\{.*)$")
STATE = re.compile(
    r"Distributed environment: (\w+)"
)  # of Accelerate, whose lines after it say processes, precision and DeepSpeed's file


def of_deepspeed(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """DeepSpeed's file as its engine was given it, with batch, devices and precision as the engine resolved them."""
    if (number := last(USER_FILE, lines)) is None:
        return None
    match = USER_FILE.search(lines[number])
    assert match is not None
    values = mapping_at(lines, number, match[1], where)
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    engine = {m[1]: (value_of(m[2]), n + 1) for n, line in enumerate(lines) if (m := ENGINE.search(line))}
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if isinstance(engine.get(key, (None, 0))[0], int):
            values[key] = engine[key][0]
    for key, resolved in (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled")):
        if isinstance(engine.get(resolved, (None, 0))[0], bool):
            given = values.get(key)
            values[key] = {**(given if isinstance(given, dict) else {}), "enabled": engine[resolved][0]}
    world = engine.get("world_size", (None, 0))[0]
    arguments, config, taken = _training_arguments(lines, where)
    again = said.recompute or (None if not CHECKPOINTING & set(arguments) else _again(arguments))
    made = deepspeed.of_values(values, f"{where}:{number + 1}", replace(said, recompute=again))
    return replace(
        made, where=where, devices=world if isinstance(world, int) else None, config=config or made.config,
        taken=(*made.taken, *taken),
    )  # fmt: skip


def _again(arguments: Mapping[str, Any]) -> str:
    return "full" if any(arguments.get(name) is True for name in CHECKPOINTING) else "none"


def _training_arguments(lines: Sequence[str], where: str) -> tuple[dict[str, Any], dict[str, Any] | None, tuple[Taken, ...]]:
    """TrainingArguments and the model's configuration, where transformers prints them; with their sources."""
    arguments, taken = dict[str, Any](), list[Taken]()
    if (number := last(TRAINER, lines)) is not None:
        for n in range(number + 1, len(lines)):
            text = bare(lines[n]).strip() if "=" not in lines[n].split(" ")[0] else lines[n].strip()
            if text == ")":
                break
            name, equals, value = text.rstrip(",").partition("=")
            if equals and name.isidentifier():
                arguments[name] = value_of(value)
                if name in READ:
                    taken.append(Taken(name, arguments[name], f"{where}:{n + 1}"))
    config = None
    if (number := last(MODEL, lines)) is not None:
        match = MODEL.search(lines[number])
        assert match is not None
        config = mapping_at(lines, number, match[1], where)
    return arguments, config, tuple(taken)


CHECKPOINTING = {"gradient_checkpointing", "activation_checkpointing"}  # of transformers before 5.20 or so, and since
READ = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", *CHECKPOINTING, "fsdp")
DISTRIBUTED = re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)")
WHOLE = ("full_shard", "shard_grad_op", "no_shard")
ZEROS: dict[str | None, Literal[0, 1, 2, 3]] = {None: 0, "no_shard": 0, "shard_grad_op": 2, "full_shard": 3}


def of_trainer(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """transformers' Trainer without DeepSpeed: data-parallel copies, or FSDP."""
    arguments, config, taken = _training_arguments(lines, where)
    if not arguments:
        return None
    begun = last(TRAINER, lines)
    assert begun is not None
    error = lambda key, problem, fix: InputError(f"{where}:{begun + 1}", key, problem, fix)  # noqa: E731
    if arguments.get("deepspeed") not in (None, ""):
        fix = "give the log with its configuration (config.py, print_user_config), or the file itself"
        raise error("deepspeed", f"is {shown(arguments['deepspeed'])}, and what it holds is not in the log", fix)
    micro, accumulation = (arguments.get(name) for name in READ[:2])
    if not isinstance(micro, int) or not isinstance(accumulation, int) or micro < 1 or accumulation < 1:
        raise error("per_device_train_batch_size", "is missing", "give the log with all TrainingArguments")
    number = first(DISTRIBUTED, lines)
    match = None if number is None else DISTRIBUTED.search(lines[number])
    samples = None if match is None else int(match[1].replace(",", ""))
    fsdp = str(arguments.get("fsdp") or "")
    strategy = next((word for word in WHOLE if word in fsdp), None)
    if fsdp not in ("", "[]") and strategy is None:
        raise error("fsdp", f"is {shown(fsdp)}", f"give a log with one of {', '.join(WHOLE)}")
    if "offload" in fsdp:
        raise error("fsdp", f"is {shown(fsdp)}", "leave offload out: states that FSDP keeps on the host are not read from logs")
    zero: Literal[0, 1, 2, 3] = ZEROS[strategy]
    said_half = "bfloat16" if arguments.get("bf16") is True else "float16" if arguments.get("fp16") is True else "float32"
    half = said_half != "float32"
    again = _again(arguments) if said.recompute is None else said.recompute
    return Configuration(
        where=where, runtime="accelerate", dtype=said_half,
        software="PyTorch FSDP (Accelerate)" if strategy else "PyTorch DDP (Accelerate)",
        precision=MASTERS if half else PLAIN, samples=samples, micro_samples=micro, accumulation=accumulation,
        devices=None if samples is None else samples // (micro * accumulation), zero=zero, config=config, cuts=(),
        recomputed=Recomputed("full" if again == "full" else "none"),
        keys={"micro_samples": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps"}, taken=taken,
    )  # fmt: skip


PROCESSES, MIXED = re.compile(r"Num processes: (\d+)"), re.compile(r"Mixed precision type: (\w+)")
OF_DEEPSPEED = re.compile(r"ds_config: (\{.*)$")
PER_DEVICE = re.compile(r"Instantaneous batch size per device = ([\d,]+)")
ACCUMULATED = re.compile(r"Gradient Accumulation steps = ([\d,]+)", re.IGNORECASE)
OF_STATE = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def of_accelerate(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """Accelerate's state, and the batch as the examples of its trainers print it. Raises InputError for FSDP, which the state
    says nothing of."""
    if (begun := last(STATE, lines)) is None:
        return None
    found: dict[str, tuple[str, str]] = {}
    for name, pattern in (("kind", STATE), ("processes", PROCESSES), ("precision", MIXED), ("samples", DISTRIBUTED),
                          ("micro", PER_DEVICE), ("accumulation", ACCUMULATED)):  # fmt: skip
        number = next((n for n in range(begun, len(lines)) if pattern.search(lines[n])), None)
        if number is not None and (match := pattern.search(lines[number])):
            found[name] = match[1].replace(",", ""), f"{where}:{number + 1}"
    kind, at = found["kind"]
    if kind not in ("NO", "MULTI_GPU", "DEEPSPEED"):
        fix = "give the file of `accelerate config`: the log does not say how states are shared"
        raise InputError(at, "Distributed environment", f"is {kind}", fix)
    devices = int(found["processes"][0]) if "processes" in found else None
    counts: dict[str, Any] = {
        field: int(found[name][0])
        for field, name in (("samples", "samples"), ("micro_samples", "micro"), ("accumulation", "accumulation"))
        if name in found
    }
    taken = tuple(Taken(name, value, source) for name, (value, source) in found.items())
    if kind == "DEEPSPEED":
        number = next((n for n in range(begun, len(lines)) if OF_DEEPSPEED.search(lines[n])), None)
        match = None if number is None else OF_DEEPSPEED.search(lines[number])
        values = None if number is None or match is None else mapping_at(lines, number, match[1], where)
        if values is None:
            raise InputError(at, "ds_config", "is missing", "give the whole log, or DeepSpeed's file")
        made = deepspeed.of_values(values, f"{where}:{(number or 0) + 1}", said)
        return replace(made, where=where, devices=devices, taken=(*taken, *made.taken), **counts)
    precision, source = found.get("precision", ("", at))
    if precision not in OF_STATE:
        raise InputError(source, "Mixed precision type", f"is {shown(precision)}", f"give one of {', '.join(OF_STATE)}")
    return Configuration(
        where=where, runtime="accelerate", software="PyTorch DDP (Accelerate)", dtype=OF_STATE[precision],
        precision=PLAIN if precision == "no" else MASTERS, devices=devices, cuts=(),
        recomputed=Recomputed("full" if said.recompute == "full" else "none"), taken=taken, **counts,
    )  # fmt: skip
