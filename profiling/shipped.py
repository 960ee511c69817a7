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
# Other names of shipped models, in lower case: as their publishers spell them.
MODEL_ALIASES = {
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "meta-llama-3-8b": "llama3-8b",
    "meta-llama-3-70b": "llama3-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.2-1b": "llama3.2-1b",
    "llama-3.3-70b": "llama3.1-70b",
    "llama3.3-70b": "llama3.1-70b",
    "qwen-2.5-7b": "qwen2.5-7b",
    "qwen-3-8b": "qwen3-8b",
    "qwen-3-32b": "qwen3-32b",
    "mistral-7b-v0.1": "mistral-7b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-3-12b": "gemma3-12b",
    "phi-3-mini": "phi3-mini",
    "phi-3-mini-4k-instruct": "phi3-mini",
    "gpt-neox": "gpt-neox-20b",
    "gptneox-20b": "gpt-neox-20b",
    "nemotron-4-15b": "nemotron4-15b",
    "glm4-9b": "glm-4-9b",
}


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
    if chosen := named(name, files, MODEL_ALIASES if kind == "models" else None):
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
