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
    """The entry points of all installed packages in a group, such as `trainplan.methods`, by name."""
    from importlib.metadata import entry_points  # slow to import, and needed only for names that are not built in

    return {entry.name: entry for entry in entry_points(group=group)}


def attribute(target: str) -> Any:
    """Import and return the object that a target such as `package.module:name` refers to."""
    module, name = target.split(":")
    return getattr(import_module(module), name)


def load_named(name: str, built_in: Mapping[str, str], group: str) -> Any:
    """Load the object that is registered under a name: trainplan's own object if `built_in` has the name, else an installed
    plug-in's object; None if neither has the name.

    built_in: import targets such as `package.module:name`, by name. group: the group of entry points in which plug-ins
    register, such as `trainplan.methods`.
    """
    if name in built_in:
        return attribute(built_in[name])
    return plugins(group)[name].load() if name in plugins(group) else None


def names(built_in: Iterable[str], group: str) -> list[str]:
    """List all names of a kind of extension (such as solution methods): the built-in names in their order, followed by the
    names of plug-ins, sorted. group: the group of entry points in which plug-ins register, such as `trainplan.methods`.
    """
    first = list(built_in)
    return first + sorted(set(plugins(group)) - set(first))
