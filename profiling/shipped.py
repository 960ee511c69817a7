"""Models, clusters and kinds of devices that come with the package, by name."""

from __future__ import annotations

import os
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any, Literal

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, named, one_of

SUFFIXES = (".yaml", ".json")
Shipped = Literal["models", "clusters", "devices"]
HUB_ID = r"[\w.-]+/([\w.-]+)"


def _files(kind: Shipped) -> dict[str, Traversable]:
    files = (resources.files("trainplan.data") / kind).iterdir()
    return {PurePath(file.name).stem: file for file in files if file.name.endswith(SUFFIXES)}


def shipped(kind: Shipped) -> list[str]:
    """Names of what is shipped of one kind, without suffixes."""
    return sorted(_files(kind))


def locate(kind: Shipped, name: str, option: str, otherwise: str) -> Any:
    """Path of a shipped file, or of the user's own. Raises InputError where `name` is neither.

    option: the command's option that the name came with. otherwise: what a file given in its place is called.
    """
    files, listing = _files(kind), f"trainplan {kind.removesuffix('s')} list"
    if name in files:
        return files[name]
    if os.path.exists(name):
        return name
    if chosen := named(name, files):
        return files[chosen]
    if name.lower().endswith((*SUFFIXES, ".yml")) or name.startswith((".", "/", "~")):
        fix = f"give the path of {otherwise}, or a name from `{listing}`"
        raise InputError(COMMAND_LINE, option, f"is {name!r}: no such file", fix)
    if kind == "models" and (hub := re.fullmatch(HUB_ID, name)):
        fix = f"download its config.json: `hf download {name} config.json --local-dir {hub[1]}`, and give {hub[1]}/config.json"
        raise InputError(COMMAND_LINE, option, f"is {name!r}, an id of the Hugging Face hub", fix)
    if kind == "clusters" and (device := named(name, _files("devices"))):
        fix = f"say how many in a node, and how many nodes: {device}:8 or {device}:8x16"
        raise InputError(COMMAND_LINE, option, f"is {name!r}, a kind of device", fix)
    raise InputError(COMMAND_LINE, option, f"is {name!r}", f"{one_of(name, sorted(files), listing)}; or give {otherwise}")
