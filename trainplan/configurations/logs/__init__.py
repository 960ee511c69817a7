"""What a training tool prints of its own configuration, read from the log of a run: the truest source, since it comes after all
scripts, defaults and overrides. The log of another tool is refused by name.

Megatron-LM, DeepSpeed, transformers and Accelerate have modules of their own; torchtitan prints the configuration of its job
(where `job.print_args` or `job.print_config` is set), Megatron-Bridge its ConfigContainer as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from trainplan.configurations import megatron_bridge, torchtitan
from trainplan.configurations.configuration import Configuration, Said
from trainplan.configurations.logs.lines import first, lines_of_log, mapping_at
from trainplan.configurations.logs.megatron import of_megatron, printed_at
from trainplan.configurations.logs.trainers import STATE, TRAINER, USER_FILE, of_accelerate, of_deepspeed, of_trainer
from trainplan.profiling.base.errors import InputError

TITAN = re.compile(r"Running with (?:args|configs?): ?(\{.*)$")
BRIDGE = "_target_: megatron.bridge.training.config.ConfigContainer"
OTHERS = {"NeMo": re.compile(r"\[NeMo I "), "nanotron": re.compile(r"nanotron\.config|\[config\]|Config\(general=GeneralArgs")}


def is_log(path: Path) -> bool:
    """Whether a file is the log of a run: it has lines that a tool prints of its configuration. Raises InputError."""
    lines = lines_of_log(path)
    if any(first(pattern, lines) is not None for pattern in (USER_FILE, TITAN, TRAINER, STATE)):
        return True
    return printed_at(lines) is not None or _bridge_at(lines) is not None or _other(lines) is not None


def read(path: Path, said: Said) -> Configuration:
    """The configuration that a log says a run has. Raises InputError naming what the log leaves open."""
    lines, where = lines_of_log(path), str(path)
    readers: tuple[Callable[[Sequence[str], str, Said], Configuration | None], ...] = (
        of_megatron, _bridge, _torchtitan, of_deepspeed, of_trainer, of_accelerate,
    )  # fmt: skip
    for reader in readers:
        if (made := reader(lines, where, said)) is not None:
            return made
    if (tool := _other(lines)) is not None:
        fix = (
            "give a log of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed or transformers, or the files that start the run"
        )
        raise InputError(where, "", f"is a log of {tool}, whose configuration is not read", fix)
    fix = "give one that has the lines from the start of the run, or the files that start it"
    raise InputError(where, "", "is a log without the tool's configuration", fix)


def _other(lines: Sequence[str]) -> str | None:
    return next((tool for tool, pattern in OTHERS.items() if first(pattern, lines) is not None), None)


def _torchtitan(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    if (number := first(TITAN, lines)) is None:
        return None
    match = TITAN.search(lines[number])
    assert match is not None
    values = mapping_at(lines, number, match[1], where)
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    return torchtitan.of_tables(values, f"{where}:{number + 1}", said)


def _bridge_at(lines: Sequence[str]) -> int | None:
    return next((number for number, line in enumerate(lines) if line.strip().endswith(BRIDGE)), None)


def _bridge(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """Megatron-Bridge's ConfigContainer, as `print_yaml` has it: sorted, so that its own name comes first."""
    if (number := _bridge_at(lines)) is None:
        return None
    front = lines[number].index("_target_")
    block = [line[front:] for line in lines[number:]]
    end = next((n for n, line in enumerate(block) if line and not re.match(r"\s|\w+:(\s|$)|- ", line)), len(block))
    try:
        data = yaml.safe_load("\n".join(block[:end]))
    except yaml.YAMLError:
        data = None
    if not isinstance(data, Mapping):
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that is no YAML", "give the file of the run")
    return megatron_bridge.of_sections(data, f"{where}:{number + 1}", said)
