"""layer-strategies: choose one option (strategy) for each layer of a pipeline stage (Galvatron-BMW, Section IV-A).

    minimise    sum_l c(l, s_l) + sum_l R(l, s_l, s_{l+1})                                          time, nanoseconds
    subject to  max_l ( sum_{k<=l} O_f(k, s_k) + O_b(l, s_l) ) + sum_k O_ms(k, s_k)  <=  E          Eq. 2, bytes

s_l is the option of layer l. c is the time of a layer; R the re-layout between neighbours; O_f the activations kept from the
forward pass; O_b what the backward pass of one layer adds; O_ms the model states; E the memory of a device. All numbers are
integers; `evaluate` and `violations` know no solver.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile, ProblemInstance, Timed
from trainplan.formulations.numbers import Bytes, Integers, TimeNs, check_length
from trainplan.formulations.pair_tables import PairTable, arrays_of, check_tables, tables_in_file
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes

NAME = "layer-strategies"
COLUMNS = ("time_ns", "forward_bytes", "backward_bytes", "state_bytes")  # numbers of an option


class OptionRecord(Record):
    """One option of a layer in a file: a strategy (degrees and kinds of parallelism), with the layer's time and bytes."""

    strategy: Annotated[str, Field(min_length=1, description="name, such as dp8-ckpt; any text, unique in its layer")]
    time_ns: TimeNs
    forward_bytes: Annotated[Bytes, Field(description="O_f: activations kept until the layer's backward pass")]
    backward_bytes: Annotated[Bytes, Field(description="O_b: what the layer's backward pass adds on top")]
    state_bytes: Annotated[Bytes, Field(description="O_ms: parameters, gradients, optimizer states")]


class LayerRecord(Record):
    """A layer in a file: its options, or the index of an earlier layer that has the same ones."""

    name: str | None = None
    options: Annotated[list[OptionRecord], Field(min_length=1, max_length=1000)] | None = None
    like: Annotated[int | None, Field(ge=0, description="in place of options: a layer before this one that has them")] = None


class InstanceRecord(InstanceFile):
    """The file format of a layer-strategies instance, version 1."""

    problem: Literal["layer-strategies"]
    devices: Annotated[
        int | None,
        Field(ge=1, le=2**20, description="devices of the stage; where given, each strategy's degrees must multiply to it"),
    ] = None
    memory_bytes: Annotated[int, Field(gt=0, le=2**48, description="E: memory of one device")]
    layers: Annotated[list[LayerRecord], Field(min_length=1, max_length=10_000)]
    transitions_ns: Annotated[
        list[PairTable],
        Field(description="L-1 tables: [option of layer l][option of layer l+1], in full, by classes, or as one before"),
    ]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if options, tables and strategies
        do not fit each other."""
        for index, layer in enumerate(self.layers):
            self._check_options(f"layers[{index}]", index, layer)
        check_length("transitions_ns", self.transitions_ns, len(self.layers) - 1, "one fewer than layers", "tables")
        sizes = [len(self.options_of(layer)) for layer in self.layers]
        meanings = [f"one for each option of layer {index}" for index in range(len(sizes))]
        check_tables("transitions_ns", self.transitions_ns, list(pairwise(sizes)), list(pairwise(meanings)))
        for index, layer in enumerate(self.layers):
            names = [option.strategy for option in layer.options or []]
            if repeated := {name for name in names if names.count(name) > 1}:
                name = min(repeated)
                raise InputError("", f"layers[{index}].options", f"names {name!r} twice", "give each option its own name")
            for number, name in enumerate(names if self.devices else []):
                parse_strategy(name, "", f"layers[{index}].options[{number}].strategy", self.devices)
        return self

    def _check_options(self, where: str, index: int, layer: LayerRecord) -> None:
        """Raise InputError unless a layer has either options of its own or an earlier layer to take them from. where: the path
        of the layer's field in error messages. index: the layer's index."""
        if layer.options is None and layer.like is None:
            raise InputError("", f"{where}.options", "is missing", "add it (see `trainplan schema`)")
        if layer.options is not None and layer.like is not None:
            raise InputError("", f"{where}.like", "is given with options", "give one of them")
        if layer.like is not None and (layer.like >= index or self.layers[layer.like].options is None):
            raise InputError("", f"{where}.like", f"is {layer.like}", "give a layer before it that has options of its own")

    def options_of(self, layer: LayerRecord) -> list[OptionRecord]:
        """The options of a layer: its own, or those of the earlier layer that its field `like` names."""
        return layer.options or (self.layers[layer.like].options if layer.like is not None else None) or []


class SolutionRecord(Record):
    """The file format of a solution: the chosen option of every layer, numbered from 0."""

    choice: list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """An instance of the problem `layer-strategies` in arrays, for L layers of which layer l has S_l options (strategies).

    Attributes:
        memory_bytes: the memory of one device (E of Galvatron-BMW).
        time_ns, forward_bytes, backward_bytes, state_bytes: for each layer an array (S_l,): the time c, the bytes O_f kept
            from forward to backward pass, the bytes O_b that the backward pass adds, and the model states O_ms.
        transitions_ns: for each boundary between layers l and l+1 an array (S_l, S_{l+1}), the re-layout time R.
        strategies: the names of the options of each layer.
        layer_names: the name of each layer.
        devices: the number of devices of the stage, if known.
    """

    memory_bytes: int
    time_ns: tuple[Integers, ...]
    forward_bytes: tuple[Integers, ...]
    backward_bytes: tuple[Integers, ...]
    state_bytes: tuple[Integers, ...]
    transitions_ns: tuple[Integers, ...]
    strategies: tuple[tuple[str, ...], ...]
    layer_names: tuple[str, ...]
    devices: int | None = None

    problem = NAME

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.time_ns)

    @property
    def options(self) -> tuple[int, ...]:
        """The number of options of each layer."""
        return tuple(len(names) for names in self.strategies)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of layers, the largest number of options of any layer, and the memory of one device in bytes."""
        return {"layers": self.layers, "options": max(self.options), "memory_bytes": self.memory_bytes}

    def only(self, choice: Sequence[int]) -> Instance:
        """The instance in which each layer has a single option. choice: for every layer, the index of the option to keep."""
        columns: dict[str, Any] = {
            name: tuple(a[[s]] for a, s in zip(getattr(self, name), choice, strict=True)) for name in COLUMNS
        }
        moves = tuple(table[[a]][:, [b]] for table, (a, b) in zip(self.transitions_ns, pairwise(choice), strict=True))
        names = tuple((names[s],) for names, s in zip(self.strategies, choice, strict=True))
        return replace(self, transitions_ns=moves, strategies=names, **columns)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all fields on which the answer depends; names and provenance are left out."""
        arrays = (*self.time_ns, *self.forward_bytes, *self.backward_bytes, *self.state_bytes, *self.transitions_ns)
        parts = [self.memory_bytes, *(array.tolist() for array in arrays), self.strategies]
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format; a layer with the options of an earlier one refers to it."""
        layers, indices = [], dict[tuple[Any, ...], int]()
        for l, names in enumerate(self.strategies):
            columns = [getattr(self, column)[l] for column in COLUMNS]
            first = indices.setdefault((names, *(column.tobytes() for column in columns)), l)
            rows = zip(names, *(column.tolist() for column in columns), strict=True)
            options = [dict(zip(("strategy", *COLUMNS), row, strict=True)) for row in rows]
            layers.append({"name": self.layer_names[l], **({"options": options} if first == l else {"like": first})})
        return {
            **self.header,
            "devices": self.devices,
            "memory_bytes": self.memory_bytes,
            "layers": layers,
            "transitions_ns": tables_in_file(self.transitions_ns),
        }


@dataclass(frozen=True)
class Evaluation(Timed):
    """The time and the memory of a choice of options.

    time_ns: the objective. memory_by_layer_bytes: for each layer, the peak memory of a device during its backward pass, by Eq.
    2 of Galvatron-BMW. state_bytes: model states of all layers.
    """

    time_ns: int
    memory_by_layer_bytes: tuple[int, ...]
    state_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The peak memory of a device in bytes: the largest over all layers' backward passes."""
        return max(self.memory_by_layer_bytes)

    @property
    def peak_layer(self) -> int:
        """The index of the first layer whose backward pass reaches the peak memory."""
        return self.memory_by_layer_bytes.index(self.peak_bytes)


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))

    def column(name: str) -> Any:
        """A number of every option, given by its name in the file: for each layer an array (S_l,)."""
        arrays: list[Integers] = []
        for layer in record.layers:
            numbers = [getattr(option, name) for option in layer.options or []]
            arrays.append(np.array(numbers, np.int64) if layer.like is None else arrays[layer.like])
        return tuple(arrays)

    return Instance(
        memory_bytes=record.memory_bytes,
        **{name: column(name) for name in COLUMNS},
        transitions_ns=tuple(arrays_of(record.transitions_ns)),
        strategies=tuple(tuple(option.strategy for option in record.options_of(layer)) for layer in record.layers),
        layer_names=tuple(layer.name or f"layer {index}" for index, layer in enumerate(record.layers)),
        devices=record.devices,
        **record.labels,
    )


def load_solution(source: Source) -> tuple[int, ...]:
    """Read a solution, the index of every layer's option, from a file in its JSON format, or from a dict. Raises InputError if
    it cannot be read or is no solution.
    """
    return tuple(parse(source, SolutionRecord, name_of_source(source, "solution")).choice)


def solution_dict(choice: Sequence[int]) -> dict[str, Any]:
    """A solution in its JSON file format. choice: for every layer, the index of its option."""
    return {"choice": [int(s) for s in choice]}


def evaluate(instance: Instance, choice: Sequence[int]) -> Evaluation:
    """The time and the peak memory of a choice of options: the sum of layers' and re-layouts' times, and the memory by Eq. 2
    of Galvatron-BMW. choice: for every layer, the index of its option. instance: the costs of each layer under each of its
    options (strategies), and the memory limit. Raises ValueError if the choice does not belong to the instance.
    """
    if wrong := _malformed(instance, choice):
        raise ValueError(wrong[0])
    time = sum(int(instance.time_ns[l][s]) for l, s in enumerate(choice))
    time += sum(int(table[choice[l], choice[l + 1]]) for l, table in enumerate(instance.transitions_ns))
    states = sum(int(instance.state_bytes[l][s]) for l, s in enumerate(choice))
    stacked = accumulate(int(instance.forward_bytes[l][s]) for l, s in enumerate(choice))
    peaks = tuple(forward + int(instance.backward_bytes[l][choice[l]]) + states for l, forward in enumerate(stacked))
    return Evaluation(time, peaks, states)


def describe(instance: Instance, choice: Sequence[int]) -> dict[str, Any]:
    """The costs of a choice as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the step),
    `peak_bytes` (peak memory of a device), `peak_layer` (the index of the layer whose backward pass reaches the peak),
    `peak_layer_name`, `state_bytes` (model states), and `memory_by_layer_bytes` (a list, one number per layer). choice: for
    every layer, the index of its option. instance: the costs of each layer under each of its options (strategies), and the
    memory limit."""
    result = evaluate(instance, choice)
    return {
        "time_ns": result.time_ns,
        "peak_bytes": result.peak_bytes,
        "peak_layer": result.peak_layer,
        "peak_layer_name": instance.layer_names[result.peak_layer],
        "state_bytes": result.state_bytes,
        "memory_by_layer_bytes": list(result.memory_by_layer_bytes),
    }


def violations(instance: Instance, choice: Sequence[int]) -> list[str]:
    """Every constraint that a choice breaks, one sentence each; empty if it is feasible. choice: for every layer, the index of
    its option. instance: the costs of each layer under each of its options (strategies), and the memory limit.
    """
    if wrong := _malformed(instance, choice):
        return wrong
    result = evaluate(instance, choice)
    over = result.peak_bytes - instance.memory_bytes
    if over <= 0:
        return []
    return [
        f"the backward pass of {instance.layer_names[result.peak_layer]} needs {result.peak_bytes} bytes "
        f"({format_bytes(result.peak_bytes)}), {over} more than memory_bytes = {instance.memory_bytes}"
    ]


def _malformed(instance: Instance, choice: Sequence[int]) -> list[str]:
    """The reasons, in words, why a choice does not belong to the instance: a wrong number of entries or an option that does not
    exist. Empty if it belongs. choice: for every layer, the index of its option."""
    if len(choice) != instance.layers:
        return [f"choice has {len(choice)} entries; the instance has {instance.layers} layers"]
    return [
        f"choice[{l}] is {s}; layer {l} has options 0 to {count - 1}"
        for l, (s, count) in enumerate(zip(choice, instance.options, strict=True))
        if not 0 <= s < count
    ]
