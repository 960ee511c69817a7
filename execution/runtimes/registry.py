"""The runtimes that a plan can be exported to: those that come with trainplan, followed by those of plug-ins.

A package adds a runtime by an entry point of the group `trainplan.exports`, named as users request it. It refers to a function
of a plan and of where the plan came from (for error messages), which returns an `Export` and raises InputError for a plan that
the runtime cannot run. Modules are imported when their runtime is requested.
"""

from __future__ import annotations

from collections.abc import Callable

from trainplan.execution.runtimes.export_common import Export
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, named, one_of
from trainplan.profiling.base.plugins import load_named, names

GROUP = "trainplan.exports"
BUILT_IN = {
    "torch": "trainplan.execution.runtimes.torch.export:export",
    "torchtitan": "trainplan.execution.runtimes.torchtitan.export:export",
    "megatron": "trainplan.execution.runtimes.megatron.export:export",
    "megatron-bridge": "trainplan.execution.runtimes.megatron_bridge.export:export",
    "deepspeed": "trainplan.execution.runtimes.deepspeed.export:export",
    "accelerate": "trainplan.execution.runtimes.accelerate.export:export",
}
Exporter = Callable[[Plan, str], Export]


def export_names() -> list[str]:
    """The names of all runtimes that plans can be exported to, those of plug-ins last."""
    return names(BUILT_IN, GROUP)


def exporter(name: str) -> Exporter:
    """The function that exports a plan to the runtime of this name. Raises InputError for an unknown name."""
    function: Exporter | None = load_named(named(name, export_names()) or name, BUILT_IN, GROUP)
    if function is None:
        raise InputError("command line", "--to", f"is {name!r}", one_of(name, export_names()))
    return function
