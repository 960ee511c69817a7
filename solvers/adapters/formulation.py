"""Find the module that states a problem as a MILP or for CP-SAT."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainplan.formulations.problem import BUILT_IN, GROUP
from trainplan.profiling.base.errors import Unsupported
from trainplan.profiling.base.plugins import plugins


def formulation(instance: Any, name: str) -> Any:
    """Import the module that states an instance's problem as a model for a general solver, from the package that defines the
    problem (which may be a plug-in's). name: `milp` for a MILP in Pyomo, or `cpsat` for CP-SAT.

    instance: the data of one optimisation problem.

    Raises Unsupported if that package has no such module."""
    target = BUILT_IN.get(instance.problem) or plugins(GROUP)[instance.problem].value
    package = target.split(":")[0].rpartition(".")[0]
    if not package or find_spec(f"{package}.{name}") is None:
        raise Unsupported("command line", "--method", f"is a {name} model", f"give another: {instance.problem} has none")
    return import_module(f"{package}.{name}")
