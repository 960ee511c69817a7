"""Models, clusters and kinds of devices that come with the package, by name."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any, Literal

import yaml
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


# What names of models end or begin with that say nothing about their sizes.
_TRAINED = re.compile(r"^meta-|-(hf|chat|instruct|it|base|pt|v0\.\d|4k|8k|32k|128k|tokens|step-\d+k)(?=-|$)")


def _files(kind: Shipped) -> dict[str, Traversable]:
    files = (resources.files("trainplan.data") / kind).iterdir()
    return {PurePath(file.name).stem: file for file in files if file.name.endswith(SUFFIXES)}


def shipped(kind: Shipped) -> list[str]:
    """Names of what is shipped of one kind, without suffixes."""
    return sorted(_files(kind))


def folded(name: str) -> str:
    """A model's name without what publishers write now so, now so: capitals, separators, and what it was trained for."""
    plain = name.split("/")[-1].lower().replace("_", "-")
    return re.sub(r"[^a-z0-9.]+", "", _TRAINED.sub("", plain))


@cache
def _sizes() -> dict[str, dict[str, Any]]:
    path = resources.files("trainplan.data") / "sizes.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    known = {folded(name): {"base": name} for name in shipped("models")}
    known |= {folded(alias): {"base": name} for alias, name in MODEL_ALIASES.items()}
    return {**{folded(name): {"name": name, **fields} for name, fields in content.items()}, **known}


def sized(name: str) -> tuple[str, str, dict[str, Any]] | None:
    """A well-known model by its name, as whoever spells it: its own name, the shipped configuration, and the fields in which it
    differs from that; None where there is none."""
    if (known := _sizes().get(folded(name))) is None:
        return None
    fields = dict(known)
    base = fields.pop("base")
    return fields.pop("name", base), base, fields


def sized_names() -> list[str]:
    """Names of well-known models that are shipped as sizes of another one."""
    return sorted(fields["name"] for fields in _sizes().values() if "name" in fields)


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
