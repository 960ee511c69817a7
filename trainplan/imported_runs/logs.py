"""Run configurations from logs: a tool's own printout of its configuration, which is the truest source, since it comes after
all scripts, defaults and overrides; with the steps and the memory of the same run. Logs of other tools are refused by name.

torchtitan prints the configuration of its job if `job.print_args` or `job.print_config` is set; the readers of other tools'
logs are in `execution.runtimes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainplan.execution.launch_files.logs.lines import last, mapping_at
from trainplan.execution.launch_files.logs.steps import log_of, ran_out
from trainplan.execution.launch_files.logs.text import (
    CONFIGURATIONS,
    JOB,
    STEPS,
    Mark,
    has_steps,
    last_run,
    mark,
)
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.megatron.log import of_megatron
from trainplan.execution.runtimes.megatron_bridge.log import of_bridge, of_nemo
from trainplan.execution.runtimes.torchtitan import reader as torchtitan_reader
from trainplan.execution.runtimes.transformers.log import of_accelerate, of_deepspeed, of_trainer
from trainplan.profiling.base.errors import InputError

MESH = Mark(  # torchtitan's, whose product is its devices; experts share them
    "uilding ", re.compile(r"Building (?:\d-D device mesh with .*, (\[[\d, ]+\])|device mesh with parallelism: (pp=.*))")
)
VERSION = mark("DeepSpeed info: version=", r"DeepSpeed info: version=(\d[\d.]*\d)")
# Lines that identify the tool of a log without configuration and steps; and lines (ANY) that identify a text as a log.
BEGUN = {
    "transformers": mark("***** Running training *****", r"(?<![\"'])\*{5} Running training \*{5}"),
    "DeepSpeed": mark("DeepSpeedEngine configuration:", r"config\.py:\d+:print\] DeepSpeedEngine configuration:"),
}
ANY = (
    mark("Traceback (most", r"Traceback \(most recent call last\):\s*$"),
    mark("ut of memory. Tried", r"[Oo]ut of memory\. Tried to allocate [\d.]+"),
    mark("Setting OMP_NUM_THREADS env", r"Setting OMP_NUM_THREADS environment variable for each process"),
)
# Tools whose logs are not read, by lines that only they print; and what to give instead.
YAML, BY_COMMAND = "give its YAML", "give arguments of Megatron-LM by --command, of the same sizes"
OTHERS: tuple[tuple[str, Mark, str], ...] = tuple(
    (tool, Mark(part, re.compile(pattern)), fix)
    for tool, part, pattern, fix in (
        ("NeMo 2", "Training epoch ", r"Training epoch \d+, iteration \d+/\d+ \|", BY_COMMAND),
        ("NeMo", "[NeMo ", r"\[NeMo [IWE] \d", f"{BY_COMMAND}, or NeMo 1's YAML"),
        ("nanotron", "|DP=", r"\[\w+\|DP=\d+\|PP=\d+\|TP=\d+", BY_COMMAND),
        ("GPT-NeoX", "approx flops per GPU", r"samples/sec: .*approx flops per GPU", BY_COMMAND),
        ("LLaMA-Factory", "llamafactory.", r"(?:- \w+ - |\] )llamafactory\.\w+", YAML),
        ("axolotl", "[axolotl.", r"\[axolotl\.[\w.]+", YAML),
        ("torchtune", "with resolved config", r"Running \w*Recipe\w* with resolved config", BY_COMMAND),
        ("Composer", "/tokens_per_sec", r"throughput/(?:device/)?tokens_per_sec: ", BY_COMMAND),
        ("OLMo", "device/tokens_per_second", r"throughput/device/tokens_per_second", BY_COMMAND),
        ("MaxText", "completed step: ", r"completed step: \d+, seconds: ", BY_COMMAND),
        ("veRL", "timing_s/step", r"timing_s/step:\s*[\d.]", BY_COMMAND),
        ("Lightning", "v_num=", r"Epoch \d+: .*\bv_num=", BY_COMMAND),
    )
)
# Advice for a log that has a tool's steps and not its configuration.
INSTEAD = {
    "Megatron-LM": "one that has its arguments, as it prints them at the start, or the script that starts it",
    "torchtitan": "its TOML or config_registry.py, or a log with --job.print_config (--job.print_args before 2026)",
    "DeepSpeed": "one that has its configuration (config.py, print_user_config), or DeepSpeed's JSON",
    "DeepSpeed's pipelines": "one that has its configuration (config.py, print_user_config), or DeepSpeed's JSON",
    "NeMo": "one that has the lines under `Experiment configuration`, or NeMo 1's YAML",
    "transformers": "one in which the program prints its TrainingArguments, or their YAML, or the script that starts it",
}


def is_log(text: str) -> bool:
    """Whether a text is the log of a training run: whether some line is one that a tool prints about its configuration or its
    steps."""
    marks = (*CONFIGURATIONS, *STEPS.values(), *BEGUN.values(), *ANY, *(line for _, line, _ in OTHERS))
    return any(next(line_mark.all(text), None) is not None for line_mark in marks)


def of_text(text: str, where: str, user: UserSettings) -> RunConfiguration:
    """Read the run configuration that a tool printed for the last run in a log, with the run's measurements.

    text: the log's text. where: the log's name, for errors. user: settings that the user adds, such as --set values. Raises
    InputError that names what the log does not specify.
    """
    after, begin, steps = last_run(text)
    lines = [""] * text.count("\n", 0, after) + text[after:steps].split("\n")  # under the numbers that they have in the file
    readers: tuple[Callable[[Sequence[str], str, UserSettings], RunConfiguration | None], ...] = (
        of_megatron, of_bridge, of_nemo, _torchtitan, of_deepspeed, of_trainer, of_accelerate,
    )  # fmt: skip
    for reader in readers:
        if (configuration := reader(lines, where, user)) is not None:
            run = text[begin:]
            log = log_of(run)
            notes = () if log is not None or not after else ("the last run in the log made no step: none is compared",)
            return replace(
                configuration,
                log=log,
                ran_out=ran_out(run),
                notes=(*configuration.notes, *notes, *_other_version(configuration, lines)),
            )
    for tool, line, fix in OTHERS:
        if next(line.all(text), None) is not None:
            raise InputError(where, "", f"is a log of {tool}, whose configuration is not read", fix)
    whose = has_steps(text) or next((tool for tool, line in BEGUN.items() if next(line.all(text), None)), None)
    if whose is None:
        fix = "give one that has the lines from the start of the run, or what starts it"
        raise InputError(where, "", "is a log without any tool's configuration", fix)
    raise InputError(where, "", f"is a log without the tool's configuration, of {whose}", f"give {INSTEAD[whose]}")


def _other_version(configuration: RunConfiguration, lines: Sequence[str]) -> tuple[str, ...]:
    """Notes for people: one if values were taken from the defaults of one version of DeepSpeed although the log is of another
    version; otherwise none. configuration: the run's values, as read from the log. lines: the log's lines.
    """
    found = last(VERSION, lines)
    own_version = deepspeed_reader.DEFAULTS.rpartition(" ")[2]
    if (
        found is None
        or f"{found[1][1]}.".startswith(f"{own_version}.")
        or all(t.source != deepspeed_reader.DEFAULTS for t in configuration.taken)
    ):
        return ()
    what = f"what the log does not say is by the defaults of DeepSpeed {own_version}, and the log is of {found[1][1]}"
    return (f"{what}: give the keys whose defaults were others then, in DeepSpeed's file",)


def _torchtitan(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """Read the run configuration that torchtitan printed into a log; None if it printed none.

    lines: the log's lines, numbered as in its file. where: the log's name, for errors. user: settings that the user adds,
    such as --set values. Raises InputError if the printout is cut off.
    """
    if (found := last(JOB, lines)) is None:
        return None
    number, match = found
    values = mapping_at(lines, number, match[1])
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    configuration = torchtitan_reader.of_tables(values, f"{where}:{number + 1}", user)
    mesh = last(MESH, lines)
    if mesh is None:
        return configuration
    degrees = re.findall(r"\d+", mesh[1][1] or re.sub(r"\b(?:ep|etp)=\d+", "", mesh[1][2]))
    devices = 1
    for degree in degrees:
        devices *= int(degree)
    return replace(configuration, devices=devices)
