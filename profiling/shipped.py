"""Models and clusters that come with the package, by name."""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any, Literal

from trainplan.profiling.base.errors import InputError

SUFFIXES = (".yaml", ".json")


def _files(kind: Literal["models", "clusters"]) -> dict[str, Traversable]:
    files = (resources.files("trainplan.data") / kind).iterdir()
    return {PurePath(file.name).stem: file for file in files if file.name.endswith(SUFFIXES)}


def shipped(kind: Literal["models", "clusters"]) -> list[str]:
    """Names of what is shipped of one kind, without suffixes."""
    return sorted(_files(kind))


def locate(kind: Literal["models", "clusters"], name: str, option: str, otherwise: str) -> Any:
    """Path of a shipped file, or of the user's own. Raises InputError where `name` is neither.

    option: the command's option that the name came with. otherwise: what a file given in its place is called.
    """
    files = _files(kind)
    if name in files:
        return files[name]
    if not os.path.exists(name):
        names = ", ".join(sorted(files))
        raise InputError("command line", option, f"is {name!r}", f"give {otherwise} or one of: {names}")
    return name
