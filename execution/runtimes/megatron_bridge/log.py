"""Run configurations from logs of Megatron-Bridge and NeMo.

Megatron-Bridge prints its ConfigContainer as YAML (`print_yaml`), or, since 0.4, the fields that differ from Megatron Core's
defaults (`log_non_default_values` of `training/config.py`); the latter lack the parts of the model that Megatron Core does not
know, so that --model is needed. NeMo 1 prints its configuration as YAML under "Experiment configuration", and later the size of
the padded vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from trainplan.execution.launch_files.logs.lines import block_at, last, value_of
from trainplan.execution.launch_files.logs.text import CONTAINER, EXPERIMENT, SUMMARY, mark
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.nemo import reader as nemo_reader
from trainplan.profiling.base.errors import InputError

SECTION = re.compile(r"^\[(\w+)\](?: Non-default values \(vs Mcore \w+\))?:$")
FIELD = re.compile(r"^  (\w+): (.*?)(?:  \(Mcore default: .*\))?$")
CUT = ("has a configuration that does not end", "give the whole log, or the file of the run")
OF_YAML = re.compile(r" {2,}\S|\w+:(?:\s|$)|- ")  # a line of it
PADDED = mark("Padded vocab_size: ", r"Padded vocab_size: (\d+), original vocab_size: (\d+)")
NEMO = re.compile(r"\[NeMo [IWE] ")


def of_bridge(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration that Megatron-Bridge printed in a log: its whole ConfigContainer, or else a summary of the fields
    that differ from defaults. lines: the log. None if the log has neither. where: the file, for errors. user: the settings that
    the user gives in addition to the file. Raises InputError if it is cut off."""
    if (found := last(CONTAINER, lines)) is None:
        return _of_summary(lines, where, user)
    number = found[0]
    block = [lines[number][lines[number].index("_target_") :]]
    for _, line in block_at(lines, number):
        if line.strip() and not OF_YAML.match(line):
            break
        block.append(line)
    else:
        raise InputError(f"{where}:{number + 1}", "", *CUT)
    return megatron_bridge_reader.of_sections(_yaml(block, where, number), f"{where}:{number + 1}", user)


def _of_summary(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration that Megatron-Bridge printed in a log as a summary of the fields that differ from Megatron Core's
    defaults; None if the log has no summary. lines: the log. where: the file, for errors. user: the settings that the user
    gives in addition to the file. Raises InputError if it is cut off or the user has not named the model."""
    if (found := last(SUMMARY, lines)) is None:
        return None
    begun = found[0]
    section, ended, values, sources = "", False, dict[str, Any](), dict[str, str]()
    for number, line in block_at(lines, begun):
        if ended := re.match(r"={20,}$", line.strip()) is not None and bool(section):
            break
        if match := SECTION.match(line.strip()):
            section = match[1]
        elif section and (match := FIELD.match(line)):
            key = f"{section}.{match[1]}"
            values[key], sources[key] = value_of(match[2]), f"{where}:{number + 1}"
    at = f"{where}:{begun + 1}"
    if not ended:
        raise InputError(at, "", *CUT)
    if "model.num_layers" not in values:
        raise InputError(at, "model.num_layers", "is missing", "give the whole log, or the file of the run")
    if user.model is None:
        problem = "is missing: the summary does not have the vocabulary, shared embeddings and positions of the model"
        raise InputError(at, "--model", problem, "give it")
    for name in ("seq_length", "sequence_length"):
        if f"dataset.{name}" in values and "model.seq_length" not in values:
            values["model.seq_length"], sources["model.seq_length"] = values[f"dataset.{name}"], sources[f"dataset.{name}"]
    if values.get("model.gated_linear_unit") is True:
        values["model.activation_func"] = "silu"  # functions and positions are not printed; --model has the right ones
    values.setdefault("model.position_embedding_type", "rope")
    return megatron_bridge_reader.of_fields(values, at, user, sources)


def of_nemo(lines: Sequence[str], where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration that NeMo last printed in a log; None if the log has none. lines: the log. where: the file, for
    errors. user: the settings that the user gives in addition to the file. Raises InputError if it is cut off."""
    if (found := last(EXPERIMENT, lines)) is None:
        return None
    begun = found[0]
    after = block_at(lines, begun)
    start, line = next(((n, text) for n, text in after if OF_YAML.match(text.strip()) and not NEMO.search(text)), (None, ""))
    if start is None:
        raise InputError(f"{where}:{begun + 1}", "", "has a configuration that does not begin", "give the whole log")
    front = len(line) - len(line.lstrip())
    block = [line[front:]]
    for _, text in after:
        if NEMO.search(text) or (text.strip() and len(text) - len(text.lstrip()) < front):
            break
        block.append(text[front:])
    else:
        raise InputError(f"{where}:{start + 1}", "", *CUT)
    padded = last(PADDED, lines)
    data = _yaml(block, where, start)
    return nemo_reader.of_tables(data, f"{where}:{start + 1}", user, None, int(padded[1][1]) if padded else None)


def _yaml(block: Sequence[str], where: str, number: int) -> Any:
    """The mapping that a block of lines of a log holds as YAML. where: the log. number: the index of the block's first line,
    for errors. Raises InputError if it holds none."""
    try:
        data = yaml.safe_load("\n".join(block))
    except yaml.YAMLError:
        data = None
    if not isinstance(data, Mapping):
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that is no YAML", "give the file of the run")
    return data
