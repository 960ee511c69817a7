"""What all readers of foreign files share: the file as it was read, the caller's options, and numbers checked one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record, parse
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile

LONGEST_S = 1e4
MOST_MS = 1e3 * LONGEST_S
MOST_BYTES = 1e14
LARGEST_COUNT = 2**20
SMALLEST = 1e-6  # of numbers that may not be 0, in the file's own unit
AGREEMENT = 0.01  # of numbers that should be equal
MIB = 2**20


def flag(option: str) -> str:
    """How the command spells an option of `import_profile`."""
    return "--memory" if option == "memory_bytes" else f"--{option.replace('_', '-')}"


class Foreign(Record):
    """An object of another project's format: fields that are not needed may stand beside."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Source:
    """A file's path and the object in it."""

    path: str
    data: dict[str, Any]

    @property
    def stem(self) -> str:
        return Path(self.path).stem


@dataclass(frozen=True)
class Options:
    """What the caller adds to the files; see `import_profile`."""

    cluster: Cluster | None = None
    layers: int | None = None
    sequence: int | None = None
    hidden_size: int | None = None
    rows: int | None = None
    memory_bytes: int | None = None
    name: str | None = None

    def check(self, format: str, usable: Sequence[str]) -> None:
        """Raises InputError for an option that this format has no use for, or that is no sensible number."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name in ("cluster", "name"):
                continue
            if field.name not in usable:
                told = f"is {shown(value)}, but {format} files do not need it"
                raise InputError("command line", flag(field.name), told, "leave it out")
            most = 2**50 if field.name == "memory_bytes" else LARGEST_COUNT
            if type(value) is not int or not 1 <= value <= most:
                fix = f"give a whole number from 1 to {most}"
                raise InputError("command line", flag(field.name), f"is {shown(value)}", fix)

    def needed(self, source: Source, option: str, example: int) -> int:
        """The option's value. Raises InputError where it was left out."""
        value: int | None = getattr(self, option)
        if value is None:
            told = f"does not say the {option.replace('_', ' ')}"
            raise InputError(
                source.path, "", told, f"give {flag(option)}, such as {'24GiB' if option == 'memory_bytes' else example}"
            )
        return value

    def memory(self, source: Source) -> int:
        """Bytes of one device: as given, else the cluster's. Raises InputError."""
        if self.memory_bytes is None and self.cluster is not None:
            return self.cluster.memory_bytes
        return self.needed(source, "memory_bytes", 24 * 2**30)

    @property
    def device(self) -> str:
        return "device" if self.cluster is None else self.cluster.used_kinds[0].name


def number(source: Source, field: str, value: Any, most: float, least: float = 0.0) -> float:
    """A finite number from `least` to `most`. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(source.path, field, f"is {shown(value)}", "give a number")
    if isinstance(value, float) and not isfinite(value):
        raise InputError(source.path, field, f"is {shown(value)}", "give a finite number")
    if value < least:
        raise InputError(source.path, field, f"is {shown(value)}", f"give at least {least:g}")
    if value > most:
        raise InputError(source.path, field, f"is {shown(value)}", f"give at most {most:g}")
    return float(value)


def counted(source: Source, field: str, text: str) -> int:
    """A number of things, as it stands in a key. Raises InputError."""
    value = int(text)
    if not 1 <= value <= LARGEST_COUNT:
        raise InputError(source.path, field, f"counts {value}", f"give 1 to {LARGEST_COUNT}")
    return value


def imported(value: float, spread: float = 0.0) -> dict[str, Any]:
    """A profile's number of nanoseconds or bytes."""
    return {"value": max(0, round(value)), "origin": "imported", "spread": spread}


def rate(value: float, spread: float = 0.0) -> dict[str, Any]:
    return {"value": float(value), "origin": "imported", "spread": spread}


def cost(sublayer: str, device: str, tp: int, rows: int, forward: float, backward: float, kept: float, **more: float) -> Any:
    """An entry of a profile's costs, in nanoseconds and bytes. more: what is not as simple as forward_ns or 0."""
    numbers = {"forward_without_graph_ns": forward, "forward_workspace_bytes": 0.0, "backward_workspace_bytes": 0.0} | more
    numbers |= {"forward_ns": forward, "backward_ns": backward, "kept_bytes": kept}
    place = {"sublayer": sublayer, "device": device, "tp": tp, "rows": rows}
    return place | {name: imported(value) for name, value in numbers.items()}


def finished(sources: Sequence[Source], format: str, content: dict[str, Any], **provenance: Any) -> Profile:
    """The checked profile. Raises InputError naming the first file."""
    told = {"format": format, "files": ", ".join(Path(source.path).name for source in sources)}
    told |= {name: str(value) for name, value in provenance.items()}
    return parse({"provenance": told, **content}, Profile, where=sources[0].path)
