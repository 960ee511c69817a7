"""Where the formulations of an instance's problem are."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def formulation(instance: Any, name: str) -> Any:
    """The module of that name (`problem`, `milp`, `cpsat`) of the instance's problem."""
    return import_module(f"trainplan.formulations.{instance.problem.replace('-', '_')}.{name}")
