"""What a training tool prints of its own configuration, read from the log of a run: the truest source, since it comes after all
scripts, defaults and overrides. The log of another tool is refused by name.

torchtitan prints the configuration of its job where `job.print_args` or `job.print_config` is set; the others have modules of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from trainplan.configurations import torchtitan
from trainplan.configurations.configuration import Configuration, Said
from trainplan.configurations.logs.lines import first, last, mapping_at
from trainplan.configurations.logs.megatron import of_megatron, printed_at
from trainplan.configurations.logs.nvidia import CONTAINER, EXPERIMENT, NEMO, SUMMARY, of_bridge, of_nemo
from trainplan.configurations.logs.trainers import STATE, TRAINER, USER_FILE, of_accelerate, of_deepspeed, of_trainer
from trainplan.profiling.base.errors import InputError
from trainplan.validation.logs import text_of_log

TITAN = re.compile(r"Running with (?:args|configs?): ?(\{.*)$")
# Lines of runs whose configuration is not in the file.
RUNNING = re.compile(
    r"\*{5} Running training \*{5}|step:\s*\d+\s.*\btps:|iteration\s+\d+/.*elapsed time per iteration"
    r"|global_step=\d+.*SamplesPerSec="
)
OTHERS = {"NeMo": NEMO, "nanotron": re.compile(r"nanotron\.config|\[config\]|Config\(general=GeneralArgs")}
READ = "Megatron-LM, Megatron-Bridge, NeMo 1, torchtitan, DeepSpeed, transformers or Accelerate"


def is_log(path: Path) -> bool:
    """Whether a file is the log of a run: it has lines that a tool prints of its configuration. Raises InputError."""
    lines = text_of_log(path).splitlines()
    if any(first(pattern, lines) is not None for pattern in (USER_FILE, TITAN, TRAINER, STATE, SUMMARY, EXPERIMENT, RUNNING)):
        return True
    return printed_at(lines) is not None or any(CONTAINER in line for line in lines) or _other(lines) is not None


def read(path: Path, said: Said) -> Configuration:
    """The configuration that a log says a run has. Raises InputError naming what the log leaves open."""
    lines, where = text_of_log(path).splitlines(), str(path)
    readers: tuple[Callable[[Sequence[str], str, Said], Configuration | None], ...] = (
        of_megatron, of_bridge, of_nemo, _torchtitan, of_deepspeed, of_trainer, of_accelerate,
    )  # fmt: skip
    for reader in readers:
        if (made := reader(lines, where, said)) is not None:
            return made
    if (tool := _other(lines)) is not None:
        fix = f"give a log of {READ}, or what starts the run"
        raise InputError(where, "", f"is a log of {tool}, whose configuration is not read", fix)
    fix = "give one that has the lines from the start of the run, or the files that start it"
    raise InputError(where, "", "is a log without the tool's configuration", fix)


def _other(lines: Sequence[str]) -> str | None:
    return next((tool for tool, pattern in OTHERS.items() if first(pattern, lines) is not None), None)


def _torchtitan(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    if (number := last(TITAN, lines)) is None:
        return None
    match = TITAN.search(lines[number])
    assert match is not None
    values = mapping_at(lines, number, match[1], where)
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    return torchtitan.of_tables(values, f"{where}:{number + 1}", said)
