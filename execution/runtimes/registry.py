"""The runtimes that a plan can be exported to: those that come with trainplan, followed by those of plug-ins.

A package adds a runtime by an entry point of the group `trainplan.exports`, named as users request it. It refers to a function
of a plan and of where the plan came from (for error messages), which returns an `Export` and raises InputError for a plan that
the runtime cannot run. Modules are imported when their runtime is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.export_common import Export
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.runtimes import FOLDERS, folder
from trainplan.profiling.base.errors import InputError, named, one_of
from trainplan.profiling.base.plugins import attribute, load_named, names

GROUP = "trainplan.exports"
BUILT_IN = {name: f"{folder(name)}.export:export" for name in FOLDERS if find_spec(f"{folder(name)}.export")}
Exporter = Callable[[Plan, str], Export]
Reader = Callable[[Path, UserSettings], RunConfiguration]


def export_names() -> list[str]:
    """The names of all runtimes that plans can be exported to; runtimes that plug-ins add come last."""
    return names(BUILT_IN, GROUP)


def exporter(name: str) -> Exporter:
    """The function that exports a plan to a runtime: it takes the plan and the plan's file name, and returns the files.
    name: the runtime, as `--to` takes it. Raises InputError for an unknown name."""
    function: Exporter | None = load_named(named(name, export_names()) or name, BUILT_IN, GROUP)
    if function is None:
        raise InputError("command line", "--to", f"is {name!r}", one_of(name, export_names()))
    return function


def runtime_reader(name: str) -> Reader | None:
    """The function `read` of a runtime's module `reader`, which makes a run configuration from a file and the user's settings;
    None for a runtime whose files are not read."""
    module = f"{folder(name)}.reader"
    if find_spec(module) is None:
        return None
    read: Reader = attribute(f"{module}:read")
    return read
