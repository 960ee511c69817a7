"""Helpers of all readers of foreign files: the file as it was read, the user's options, numbers checked one by one, and
entries of profiles."""

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
SMALLEST = 1e-6  # the least of numbers that may not be 0, in the file's own unit
LISTS = ("layers", "sequence", "hidden_size", "tp")  # options of one number or several
AGREEMENT = 0.01  # the relative difference of numbers that count as equal
MIB = 2**20


ByType = int | Sequence[int]  # one number, or one for each type of layers


def flag(option: str) -> str:
    """The command's spelling of an option of `import_profile`: "hidden_size" -> "--hidden-size"."""
    return "--memory" if option == "memory_bytes" else f"--{option.replace('_', '-')}"


class Foreign(Record):
    """Base of classes that define another project's file format; objects may have further fields, which are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Source:
    """A file of another project: its path, and the JSON object or the table in it."""

    path: str
    data: dict[str, Any]

    def fail(self, field: str, problem: str, fix: str) -> InputError:
        """Build the error about one field of the file, for the caller to raise; about the whole file if `field` is empty.

        problem: what is wrong, such as "is 0". fix: advice with a value that would work.
        """
        return InputError(self.path, field, problem, fix)

    @property
    def stem(self) -> str:
        """The file's name without folder and suffix."""
        return Path(self.path).stem


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a file that holds a JSON object, or, by its suffix, a table. Raises InputError if it cannot be read or holds
    neither."""
    if os.fspath(path).lower().endswith(table_files.SUFFIXES):
        return Source(os.fspath(path), table_files.load(path))
    data = read_data(path)
    if not isinstance(data, dict):
        raise InputError(os.fspath(path), "", f"holds {shown(data)}", "give a JSON object")
    return Source(os.fspath(path), data)


@dataclass(frozen=True)
class Options:
    """The user's values for everything that files of other projects do not specify, as the command's options and
    `import_profile` take them.

    cluster: links, memory and name of the device. layers, sequence, hidden_size: number of layers, tokens per sample and
    hidden size, one number, or one per type of layers (set of equal layers). rows: the number of samples that times are for.
    memory_bytes: usable memory of a device. name: the profile's name. tp: tensor-parallel degrees of a table's columns.
    communication: "included" or "excluded", for the times in a table.
    """

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
        """Raise InputError if the user set an option that files of a format do not use, or one whose value is out of range.

        format: the format's name, such as "piper". usable: names of the options that the format uses.
        """
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
        """The user's value of an option that is needed because a file does not specify it. Raises InputError, with an example,
        if it was not given.

        source: the file. option: a field of this class. example: a valid value for the error.
        """
        value = getattr(self, option)
        if value is None:
            problem = f"does not say the {option.replace('_', ' ')}"
            raise InputError(source.path, "", problem, f"give {flag(option)}, such as {example}")
        return value

    def by_type(self, source: Source, option: str, example: int, types: int) -> tuple[int, ...]:
        """The user's value of an option for each type of layers (set of equal layers). One number applies to all types, except
        for the number of layers.

        source: the file that does not specify it. option: a field of this class. example: a valid value for errors. types:
        the number of types. Raises InputError if it was not given, or for another number of types.
        """
        examples = ",".join([str(example)] * types)
        value = self.needed(source, option, examples)
        values = (value,) * (1 if option == "layers" else types) if isinstance(value, int) else tuple(value)
        if len(values) != types:
            problem = f"is {','.join(map(str, values))}, but {source.path} has {types} type{'s' * (types > 1)} of layers"
            raise InputError("command line", flag(option), problem, f"give {types}, such as {examples}")
        return values

    def memory(self, source: Source) -> int:
        """Usable bytes of one device: as the user gives them, else as the cluster states them. Raises InputError without
        either. source: the file, for the error.
        """
        if self.memory_bytes is None and self.cluster is not None:
            return self.cluster.usable_bytes
        return int(self.needed(source, "memory_bytes", "24GiB"))

    @property
    def device(self) -> str:
        """The name of the profiled kind of device: the first kind of the user's cluster, or "device" without a cluster."""
        return "device" if self.cluster is None else self.cluster.used_kinds[0].name


def number(source: Source, field: str, value: Any, most: float, least: float = 0.0) -> float:
    """Check that a field's value is a finite number from `least` to `most`, and return it; raises InputError otherwise.

    source, field: the file and the field's path, for errors.
    """
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
    """Convert the part of a key that states a number to an integer from 1 to `LARGEST_COUNT`. source, field: the file and the
    key, for errors. Raises InputError if it is no such number.
    """
    if len(text) > len(str(LARGEST_COUNT)) or not 1 <= (value := int(text)) <= LARGEST_COUNT:
        raise source.fail(field, f"counts {text[:20]}", f"give 1 to {LARGEST_COUNT}")
    return value


def imported(value: float, spread: float = 0.0) -> dict[str, Any]:
    """Make a profile's entry for an imported number of nanoseconds or bytes: the rounded value, the origin `imported`, and its
    relative spread.
    """
    return {"value": max(0, round(value)), "origin": "imported", "spread": round(spread, 4)}


def rate(value: float, spread: float = 0.0) -> dict[str, Any]:
    """Make a profile's entry for an imported ratio or rate: the value, the origin `imported`, and its relative spread."""
    return {"value": float(value), "origin": "imported", "spread": round(spread, 4)}


def cost(sublayer: str, device: str, tp: int, rows: int, forward: float, backward: float, kept: float, **more: float) -> Any:
    """Make the entry of a profile's costs for a sub-layer on `tp` tensor-parallel ranks with `rows` samples.

    sublayer: its name. device: the name of the kind of device. forward, backward: times of the passes in ns. kept: bytes kept
    for the backward pass. more: further numbers by field; by default the forward pass without graph takes as long as
    `forward`, and workspace bytes are 0.
    """
    numbers = {"forward_without_graph_ns": forward, "forward_workspace_bytes": 0.0, "backward_workspace_bytes": 0.0} | more
    numbers |= {"forward_ns": forward, "backward_ns": backward, "kept_bytes": kept}
    key = {"sublayer": sublayer, "device": device, "tp": tp, "rows": rows}
    return key | {name: imported(value) for name, value in numbers.items()}


def shape(
    kind: str, input_bytes: int, output_bytes: int, parameters: Mapping[int, int], whole: bool = False, **more: int
) -> dict[str, Any]:
    """Describe a sub-layer in the form of a profile, without its name.

    kind: such as "layer". input_bytes, output_bytes: bytes of one sample's input and output. parameters: number of parameters
    per rank, by tensor-parallel degree. whole: whether each rank has all parameters, so that nothing is reduced. more:
    further fields.
    """
    shards = [
        {"tp": tp, "parameters": count, "replicated_parameters": count * whole, "output_bytes": output_bytes}
        for tp, count in parameters.items()
    ]
    more |= {"reductions": 0} if whole else {}
    return {"kind": kind, "input_bytes": input_bytes, "output_bytes": output_bytes, **more, "shards": shards}


def chain(layers: Iterable[tuple[str, dict[str, Any], list[Any]]]) -> dict[str, Any]:
    """Build the fields units, sublayers and costs of a profile from layers in order, each given by its name, shape (sub-layer)
    and costs. Layers of equal shape and costs share the sub-layer of the first of them.
    """
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
    """Build and check the profile with the given fields, under the name that the user's options state.

    sources: the files; errors name the first. format: the other project's name, for the provenance. content: fields of the
    profile; if it has no time of the optimizer, that is 0. provenance: further notes. Raises InputError for fields that are
    invalid.
    """
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
