"""What all readers of foreign files share: the file as it was read, the caller's options, and numbers checked one by one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record, parse, read_data
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports import table_files
from trainplan.profiling.profiles import Profile

LONGEST_S = 1e4
MOST_MS = 1e3 * LONGEST_S
MOST_BYTES = 1e14
LARGEST_COUNT = 2**20
MOST_LAYERS = 10_000
SMALLEST = 1e-6  # of numbers that may not be 0, in the file's own unit
LISTS = ("layers", "sequence", "hidden_size", "tp")  # options of one number or several
AGREEMENT = 0.01  # of numbers that should be equal
MIB = 2**20


ByType = int | Sequence[int]  # one number, or one for each type of layers


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

    def fail(self, field: str, problem: str, fix: str) -> InputError:
        """The error, to be raised, about one field of the file; about the whole file where `field` is empty."""
        return InputError(self.path, field, problem, fix)

    @property
    def stem(self) -> str:
        """The file's name without folder and suffix."""
        return Path(self.path).stem


def read_source(path: str | os.PathLike[str]) -> Source:
    """A file that holds an object, or a table. Raises InputError."""
    if os.fspath(path).lower().endswith(table_files.SUFFIXES):
        return Source(os.fspath(path), table_files.load(path))
    data = read_data(path)
    if not isinstance(data, dict):
        raise InputError(os.fspath(path), "", f"holds {shown(data)}", "give a JSON object")
    return Source(os.fspath(path), data)


@dataclass(frozen=True)
class Options:
    """What the caller adds to the files; see `import_profile`."""

    cluster: Cluster | None = None
    layers: ByType | None = None
    sequence: ByType | None = None
    hidden_size: ByType | None = None
    rows: int | None = None
    memory_bytes: int | None = None
    name: str | None = None
    tp: Sequence[int] | None = None
    communication: str | None = None

    def check(self, format: str, usable: Sequence[str]) -> None:
        """Raises InputError for an option that this format has no use for, or that is no sensible number."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name in ("cluster", "name"):
                continue
            if field.name not in usable:
                problem = f"is {shown(value)}, but {format} files do not need it"
                raise InputError("command line", flag(field.name), problem, "leave it out")
            if field.name == "communication":
                continue
            most = {"memory_bytes": 2**50, "layers": MOST_LAYERS}.get(field.name, LARGEST_COUNT)
            several = field.name in LISTS and isinstance(value, list | tuple) and value
            if any(type(number) is not int or not 1 <= number <= most for number in (value if several else [value])):
                fix = f"give a whole number, at least 1 and at most {most}"
                raise InputError("command line", flag(field.name), f"is {shown(value)}", fix)

    def needed(self, source: Source, option: str, example: int | str) -> Any:
        """The option's value. Raises InputError where it was left out."""
        value = getattr(self, option)
        if value is None:
            problem = f"does not say the {option.replace('_', ' ')}"
            raise InputError(source.path, "", problem, f"give {flag(option)}, such as {example}")
        return value

    def by_type(self, source: Source, option: str, example: int, types: int) -> tuple[int, ...]:
        """The option's value for each type of layers. One number stands for all, but of layers it would leave the order open.

        Raises InputError.
        """
        examples = ",".join([str(example)] * types)
        value = self.needed(source, option, examples)
        values = (value,) * (1 if option == "layers" else types) if isinstance(value, int) else tuple(value)
        if len(values) != types:
            problem = f"is {','.join(map(str, values))}, but {source.path} has {types} type{'s' * (types > 1)} of layers"
            raise InputError("command line", flag(option), problem, f"give {types}, such as {examples}")
        return values

    def memory(self, source: Source) -> int:
        """Usable bytes of one device: as given, else the cluster's. Raises InputError."""
        if self.memory_bytes is None and self.cluster is not None:
            return self.cluster.usable_bytes
        return int(self.needed(source, "memory_bytes", "24GiB"))

    @property
    def device(self) -> str:
        """The name of the profiled kind of device: the cluster's, else `device`."""
        return "device" if self.cluster is None else self.cluster.used_kinds[0].name


def number(source: Source, field: str, value: Any, most: float, least: float = 0.0) -> float:
    """A finite number from `least` to `most`. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise source.fail(field, f"is {shown(value)}", "give a number")
    if isinstance(value, float) and not isfinite(value):
        raise source.fail(field, f"is {shown(value)}", "give a finite number")
    if value < least:
        raise source.fail(field, f"is {shown(value)}", f"give at least {least:g}")
    if value > most:
        raise source.fail(field, f"is {shown(value)}", f"give at most {most:g}")
    return float(value)


def counted(source: Source, field: str, text: str) -> int:
    """A number of things, as it stands in a key. Raises InputError."""
    if len(text) > len(str(LARGEST_COUNT)) or not 1 <= (value := int(text)) <= LARGEST_COUNT:
        raise source.fail(field, f"counts {text[:20]}", f"give 1 to {LARGEST_COUNT}")
    return value


def imported(value: float, spread: float = 0.0) -> dict[str, Any]:
    """A profile's number of nanoseconds or bytes."""
    return {"value": max(0, round(value)), "origin": "imported", "spread": round(spread, 4)}


def rate(value: float, spread: float = 0.0) -> dict[str, Any]:
    """A ratio or a rate as a profile has it, imported."""
    return {"value": float(value), "origin": "imported", "spread": round(spread, 4)}


def cost(sublayer: str, device: str, tp: int, rows: int, forward: float, backward: float, kept: float, **more: float) -> Any:
    """An entry of a profile's costs, in nanoseconds and bytes. more: what is not as simple as forward_ns or 0."""
    numbers = {"forward_without_graph_ns": forward, "forward_workspace_bytes": 0.0, "backward_workspace_bytes": 0.0} | more
    numbers |= {"forward_ns": forward, "backward_ns": backward, "kept_bytes": kept}
    place = {"sublayer": sublayer, "device": device, "tp": tp, "rows": rows}
    return place | {name: imported(value) for name, value in numbers.items()}


def shape(
    kind: str, input_bytes: int, output_bytes: int, parameters: Mapping[int, int], whole: bool = False, **more: int
) -> dict[str, Any]:
    """A sub-layer of a profile, without its name. parameters: of one rank, by tensor-parallel degree; whole: of all alike."""
    shards = [
        {"tp": tp, "parameters": count, "replicated_parameters": count * whole, "output_bytes": output_bytes}
        for tp, count in parameters.items()
    ]
    more |= {"reductions": 0} if whole else {}
    return {"kind": kind, "input_bytes": input_bytes, "output_bytes": output_bytes, **more, "shards": shards}


def chain(layers: Iterable[tuple[str, dict[str, Any], list[Any]]]) -> dict[str, Any]:
    """Units, sub-layers and costs of a profile from the name, shape and costs of each layer; equal ones share a sub-layer."""
    names: dict[str, str] = {}
    units, sublayers, costs = [], [], []
    for i, (name, index, entries) in enumerate(layers):
        if (key := repr((index, entries))) not in names:
            names[key] = name
            sublayers.append({"name": name, **index})
            costs += [{**entry, "sublayer": name} for entry in entries]
        units.append({"name": name, "layer": i, "sublayer": names[key]})
    return {"units": units, "sublayers": sublayers, "costs": costs}


def finished(sources: Sequence[Source], format: str, options: Options, content: dict[str, Any], **provenance: Any) -> Profile:
    """The checked profile, named as the options say. Raises InputError naming the first file."""
    notes = {"format": format, "files": ", ".join(Path(source.path).name for source in sources)}
    notes |= {name: str(value) for name, value in provenance.items()}
    common = {
        "provenance": notes,
        "cluster": f"{content['devices']} devices of {format.removeprefix('Hetu-')}",
        "optimizer_ns_per_parameter": rate(0) | {"origin": "estimated"},  # in no file
    }
    named = {"name": options.name or content["name"]}
    if options.cluster is not None:
        named["cluster"] = options.cluster.name
    return parse({**common, **content, **named}, Profile, where=sources[0].path)
