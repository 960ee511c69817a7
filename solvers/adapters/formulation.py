"""Finds the module that states a problem as a MILP or for CP-SAT."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainplan.formulations.problem import BUILT_IN, GROUP
from trainplan.profiling.base.errors import Unsuited
from trainplan.profiling.base.plugins import plugins


def formulation(instance: Any, name: str) -> Any:
    """The module `name` (`milp` or `cpsat`) in the package that defines the instance's problem, a plug-in's package included.

    Raises Unsuited where there is none.
    """
    target = BUILT_IN.get(instance.problem) or plugins(GROUP)[instance.problem].value
    package = target.split(":")[0].rpartition(".")[0]
    if not package or find_spec(f"{package}.{name}") is None:
        raise Unsuited("command line", "--method", f"is a {name} model", f"give another: {instance.problem} has none")
    return import_module(f"{package}.{name}")
