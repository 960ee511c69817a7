"""Extensions by other packages: problems, methods, model families and exports, through Python's entry points.

A package extends trainplan by entry points of the groups `trainplan.problems`, `trainplan.methods`, `trainplan.families` and
`trainplan.exports`. The module that reads a group states the type of object that its entry points must refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, from all installed packages."""
    from importlib.metadata import entry_points  # slow to import, and needed only for names that are not built in

    return {entry.name: entry for entry in entry_points(group=group)}


def attribute(target: str) -> Any:
    """The object that a target such as `package.module:name` refers to; its module is imported now."""
    module, name = target.split(":")
    return getattr(import_module(module), name)


def load_named(name: str, built_in: Mapping[str, str], group: str) -> Any:
    """The object of a name: trainplan's own by its target in `built_in`, else a plug-in of the group; None if neither has
    the name."""
    if name in built_in:
        return attribute(built_in[name])
    return plugins(group)[name].load() if name in plugins(group) else None


def names(built_in: Iterable[str], group: str) -> list[str]:
    """The built-in names in their order, followed by the names of plug-ins of the group, sorted."""
    first = list(built_in)
    return first + sorted(set(plugins(group)) - set(first))
