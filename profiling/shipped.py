"""Models and clusters that come with the package, by name."""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal

from trainplan.profiling.errors import InputError


def _folder(kind: Literal["models", "clusters"]) -> Traversable:
    return resources.files("trainplan.data") / kind


def shipped(kind: Literal["models", "clusters"]) -> list[str]:
    """Names of what is shipped of one kind."""
    return sorted(item.name.removesuffix(".json") for item in _folder(kind).iterdir() if item.name.endswith(".json"))


def locate(kind: Literal["models", "clusters"], name: str, option: str, otherwise: str) -> Any:
    """Path of a shipped file, or of the user's own. Raises InputError where `name` is neither.

    option: the command's option that the name came with. otherwise: what a file given in its place is called.
    """
    if name in (known := shipped(kind)):
        return _folder(kind) / f"{name}.json"
    if not os.path.exists(name):
        raise InputError("command line", option, f"is {name!r}", f"give {otherwise} or one of: {', '.join(known)}")
    return name
