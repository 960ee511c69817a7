"""Runs that `trainplan export` wrote: launch.sh and slurm.sh start a train.py, and a file next to it describes the layout.

Exports to Megatron-LM and torchtitan start these tools' own programs, and are read as such.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.run_configuration import RunConfiguration, TakenValue, UserSettings
from trainplan.execution.launch_files.shell import Command
from trainplan.execution.runtimes.registry import Reader, runtime_reader
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError, shown

READERS: dict[str, Reader] = {  # by the file that describes the layout
    runtime.layout_file: reader
    for name, runtime in RUNTIMES.items()
    if runtime.layout_file and (reader := runtime_reader(name)) is not None
}
# The beginnings of docstrings of exported scripts.
SCRIPT_START = re.compile(r'"""Train .* as (\S+)(?: and (run\.json))? (?:beside|next to) this file says?\b')
BY_TORCH = re.compile(r'"""Train .* on \d+ ranks: .*\n\n    torchrun ')
MOST = 500  # characters of a script that are searched for them


def of_command(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration | None:
    """Read the run configuration of a training script that `trainplan export` wrote; None if the command starts any other
    program.

    command: the program and its arguments, as found in the script that starts it. where: that script, for errors. user:
    settings that the user adds, such as --set values. folder: the script's folder, from which relative paths are looked up.
    Raises InputError for incomplete exports, and for exports to torch.
    """
    script = folder / command.directory / command.program
    if command.tool or script.suffix != ".py" or not script.is_file():
        return None
    with script.open(errors="replace") as text:
        beginning = text.read(MOST)
    if BY_TORCH.match(beginning):
        problem = f"starts {script.name} ({command.where}), an export to torch, which has its layout in its code"
        raise InputError(where, "", problem, "give the plan that it was exported from to `trainplan simulate`")
    found = SCRIPT_START.match(beginning)
    if found is None or found[1] not in READERS:
        return None
    layout, run = script.with_name(found[1]), script.with_name("run.json")
    for file in (layout, *[run] * bool(found[2])):
        if not file.is_file():
            problem = f"starts {script.name}, which reads {file.name}, and that is not there"
            raise InputError(where, "", problem, "export the plan again, or give all files of the export")
    if not found[2]:
        return replace(READERS[found[1]](layout, user), devices=command.devices)
    try:
        run_file: dict[str, Any] = json.loads(run.read_text())
        model, sequence, samples, count, recomputes = (
            run_file[name] for name in ("model", "sequence", "micro_batch_samples", "micro_batches", "recompute")
        )
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(str(run), "", f"is not as it was exported ({shown(str(error))})", "export the plan again") from None
    if user.recompute is None and (recomputes or found[1] == "ds_config.json"):
        user = replace(user, recompute="full" if recomputes else "none")
    configuration = READERS[found[1]](layout, user)
    fields = {"sequence": sequence, "micro_samples": samples, "accumulation": count}
    of_run_file = (TakenValue(name, value, str(run)) for name, value in {**fields, "recompute": recomputes}.items())
    taken = (*configuration.taken, *of_run_file)
    return replace(configuration, devices=command.devices, config=None if user.model else model, taken=taken, **fields)
