"""Extensions by other packages: problems, methods, model families and exports, through Python's entry points.

A package extends trainplan by entry points of the groups `trainplan.problems`, `trainplan.methods`, `trainplan.families` and
`trainplan.exports`; what each must refer to, the module that reads the group says.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, of all installed packages."""
    return {entry.name: entry for entry in entry_points(group=group)}


def attribute(target: str) -> Any:
    """What a target such as `package.module:name` refers to; its module is imported now."""
    module, name = target.split(":")
    return getattr(import_module(module), name)


def names(built_in: Iterable[str], group: str) -> list[str]:
    """The names that come with trainplan, and those of plug-ins behind them."""
    own = list(built_in)
    return own + sorted(set(plugins(group)) - set(own))
