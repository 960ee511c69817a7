"""Run configurations from records of Weights & Biases (`wandb/run-.../files/config.yaml`): each key with the value that a tool
passed on. Megatron-LM passes on its resolved arguments, torchtitan its tables. transformers passes on its arguments and the
fields of the model in one table, without telling them apart: its records are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.megatron.log import of_printed
from trainplan.execution.runtimes.torchtitan import reader as torchtitan_reader
from trainplan.profiling.base.errors import InputError

MEGATRON = ("tensor_model_parallel_size", "num_attention_heads", "micro_batch_size")
TITAN = ("training", "model", "parallelism")


def is_one(data: Any) -> bool:
    """Whether a document is a run's configuration as Weights & Biases records it."""
    return isinstance(data, Mapping) and ("wandb_version" in data or "_wandb" in data)


def of_record(data: Mapping[str, Any], path: Path, user: UserSettings) -> RunConfiguration:
    """Read the run configuration from a record of Weights & Biases. data: the record. path: its file. user: settings that the
    user adds, such as --set values. Raises InputError for records of tools that are not read."""
    where, lines = str(path), sources_of(path)
    values = {key: entry["value"] for key, entry in data.items() if isinstance(entry, Mapping) and "value" in entry}
    values.pop("_wandb", None)
    sources = {key: lines.get(f"{key}.value", where) for key in values}
    if set(MEGATRON) <= set(values):
        return of_printed({key: (value, sources[key]) for key, value in values.items()}, where, user)
    if set(TITAN) <= set(values):
        return torchtitan_reader.of_tables(values, where, user)
    keys = ", ".join(list(values)[:4]) or "it is empty"
    fix = "give the log of the run, or what starts it"
    raise InputError(where, "", f"is a record of Weights & Biases, of a tool that is not read ({keys})", fix)
