"""memory-switches: choose memory switches for every layer of a chain (H3T, Eq. 3).

    minimise    Runtime(s)                                     nanoseconds of one training step
    subject to  Memory(s) <= M                                 bytes of one device at the fullest moment
    over        s = (s_1, ..., s_N), s_i one of the legal combinations of seven switches (see `plan.switches`)

Runtime and Memory are those of the step simulated on its lanes (see `simulation`), for forward and backward pass and the
optimizer on the host. Every layer has `segment_sync` on, as the paper's dynamic program demands, so the step is a chain of
segments (see `segments`). All numbers are integers; `evaluate` and `violations` know no solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile, ProblemInstance
from trainplan.formulations.memory_switches.simulation import Evaluation, simulate_one
from trainplan.formulations.numbers import Bytes, Integers, TimeNs
from trainplan.formulations.plan.switches import SWITCHES, Switches, SwitchName, combinations
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items, ReadAs
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes

NAME = "memory-switches"
MOST_LAYERS = 10_000
LARGEST = 2**53  # ns, and bytes, which are added up as floats, too


class LayerRecord(Record):
    """A layer in a file, as it runs on one device.

    What computations keep afterwards follows from `output_bytes` and `graph_bytes`: a forward pass without graph keeps its
    output, one with graph the output and what the graph holds, and a backward pass frees all of it.
    """

    name: str | None = None
    forward_without_graph_ns: TimeNs
    forward_ns: Annotated[TimeNs, Field(description="with graph; recomputation takes as long")]
    backward_ns: TimeNs
    all_gather_ns: Annotated[TimeNs, Field(description="of the parameters, from their shards on all devices")]
    reduce_scatter_ns: Annotated[TimeNs, Field(description="of the parameters' gradients")]
    prefetch_parameter_ns: Annotated[TimeNs, Field(description="copy of the parameters' shard, host to device")]
    offload_gradient_ns: Annotated[TimeNs, Field(description="copy of the gradients' shard, device to host")]
    prefetch_hidden_ns: Annotated[TimeNs, Field(description="copy of the layer's input, host to device")]
    offload_hidden_ns: Annotated[TimeNs, Field(description="copy of the layer's input, device to host")]
    optimizer_ns: Annotated[TimeNs, Field(description="optimizer step on the host, of the device's shard")]
    input_bytes: Annotated[Bytes, Field(description="H: the hidden states that the layer reads")]
    output_bytes: Annotated[Bytes, Field(description="what the layer gives; the input of the next one")]
    graph_bytes: Annotated[Bytes, Field(description="A: intermediate activations kept for the backward pass")]
    gathered_parameter_bytes: Bytes
    partitioned_parameter_bytes: Annotated[Bytes, Field(description="the shard of one device")]
    gathered_gradient_bytes: Bytes
    partitioned_gradient_bytes: Annotated[Bytes, Field(description="the shard of one device")]
    forward_without_graph_peak_bytes: Annotated[Bytes, Field(description="most above the start, the output included")]
    forward_peak_bytes: Annotated[Bytes, Field(description="most above the start, output and graph included")]
    backward_peak_bytes: Annotated[Bytes, Field(description="most above the start, the input's gradient included")]


class InstanceRecord(InstanceFile):
    """The file format of a memory-switches instance, version 1."""

    problem: Literal["memory-switches"]
    nvlink: Annotated[bool, Field(description="whether collectives have a stream of their own, apart from copies to the host")]
    synchronisation: Annotated[Literal["forced"], Field(description="of segments, in every layer")] = "forced"
    offload_needs_ckpt: Annotated[
        bool, Field(description="offload_hidden only with ckpt, as in the published code; false: the paper's 128 combinations")
    ] = True
    memory_bytes: Annotated[int, Field(gt=0, le=2**48, description="M: memory of one device")]
    layers: Annotated[list[LayerRecord], Field(min_length=1, max_length=MOST_LAYERS)]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if a layer's output has another size
        than the next layer's input, a peak is below the bytes of what the computation makes, or times or bytes add up to too
        much.
        """
        for i, layer in enumerate(self.layers):
            where = f"layers[{i}]"
            if i + 1 < len(self.layers) and layer.output_bytes != self.layers[i + 1].input_bytes:
                fix = f"give {self.layers[i + 1].input_bytes}, as layer {i + 1} reads"
                raise InputError("", f"{where}.output_bytes", f"is {layer.output_bytes}", fix)
            for name, least, parts in (
                ("forward_without_graph_peak_bytes", layer.output_bytes, "output_bytes"),
                ("forward_peak_bytes", layer.output_bytes + layer.graph_bytes, "output_bytes and graph_bytes"),
                ("backward_peak_bytes", layer.input_bytes if i else 0, "input_bytes"),
            ):
                if (value := getattr(layer, name)) < least:
                    raise InputError("", f"{where}.{name}", f"is {value}", f"give at least {least}, its {parts}")
        numbers = [layer.model_dump(exclude={"name"}) for layer in self.layers]
        for unit in ("_ns", "_bytes"):
            total = 4 * sum(value for layer in numbers for name, value in layer.items() if name.endswith(unit))
            if total >= LARGEST:
                problem = f"add up to {total:.3g} {unit[1:]} or more in a step"
                raise InputError("", "layers", problem, f"give numbers that stay below {LARGEST:.3g}")
        return self


SETTINGS = ("nvlink", "offload_needs_ckpt", "memory_bytes")
COLUMNS = tuple(name for name in LayerRecord.model_fields if name != "name")


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """An instance of the problem `memory-switches` in arrays, for N layers.

    Attributes:
        nvlink: whether collectives have a lane of their own, so that they overlap with copies to the host.
        memory_bytes: the memory of one device (M of H3T).
        columns: a dict from the name of each number in `LayerRecord` (times in ns and bytes of a layer) to an array (N,).
        offload_needs_ckpt: whether offloading an input requires recomputation.
        layer_names: the name of each layer; empty if layers have none.
    """

    nvlink: bool
    memory_bytes: int
    columns: Mapping[str, Integers]
    offload_needs_ckpt: bool = True
    layer_names: tuple[str, ...] = ()

    problem = NAME

    def __getitem__(self, name: str) -> Integers:
        """(N,): one number of every layer, by its name in the file format."""
        return self.columns[name]

    @property
    def layers(self) -> int:
        """The number of layers, N."""
        return len(self.columns["forward_ns"])

    @cached_property
    def options(self) -> tuple[Switches, ...]:
        """The possible combinations of switches of a layer, equal for all layers."""
        return combinations(self.offload_needs_ckpt)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of layers and of combinations of switches of a layer, and the memory of one device in bytes."""
        return {"layers": self.layers, "options": len(self.options), "memory_bytes": self.memory_bytes}

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all fields on which the answer depends; names and provenance are left out."""
        return replace(self, layer_names=()).digest if self.layer_names else super().digest

    def name_of(self, layer: int) -> str:
        """The name of a layer, or `layer 3` where layers have no names. layer: the layer's index."""
        return self.layer_names[layer] if self.layer_names else f"layer {layer}"

    def part(self, first: int, end: int) -> Instance:
        """The layers from index `first` up to, but not including, `end`, as an instance of their own."""
        columns = {name: column[first:end] for name, column in self.columns.items()}
        return Instance(self.nvlink, self.memory_bytes, columns, self.offload_needs_ckpt)

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format."""
        rows = [{name: int(column[i]) for name, column in self.columns.items()} for i in range(self.layers)]
        names = [{"name": self.layer_names[i]} if self.layer_names else {} for i in range(self.layers)]
        return {
            **self.header,
            "nvlink": self.nvlink,
            "synchronisation": "forced",
            "offload_needs_ckpt": self.offload_needs_ckpt,
            "memory_bytes": self.memory_bytes,
            "layers": [named | row for named, row in zip(names, rows, strict=True)],
        }


def _switches(names: list[SwitchName]) -> Switches:
    """The switches of one layer in a file. names: the names of the switches that are on. Raises InputError if a switch is
    named twice."""
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError("", "", f"names {repeated[0]} twice", "name each switch that is on once")
    return Switches.of(names)


@dataclass(frozen=True)
class Solution(DataclassRecord):
    """A solution: the switches of every layer. In files, the names of those that are on."""

    switches: Annotated[
        Items[Annotated[Switches, ReadAs(list[SwitchName], _switches)]], Field(min_length=1, max_length=MOST_LAYERS)
    ]

    def to_dict(self) -> dict[str, Any]:
        """The solution in its JSON file format: for every layer, the names of the switches that are on."""
        return {"switches": [list(switches.names) for switches in self.switches]}


def matrix(solutions: Sequence[Solution]) -> NDArray[np.bool_]:
    """(K, N, 7): for K solutions and N layers, whether each of the seven switches is on, in the order of `SWITCHES`; the form
    that `simulate` takes."""
    on = attrgetter(*SWITCHES)
    return np.array([[on(switches) for switches in solution.switches] for solution in solutions], bool)


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    columns = {name: np.array([getattr(layer, name) for layer in record.layers], np.int64) for name in COLUMNS}
    named = any(layer.name for layer in record.layers)
    return Instance(
        columns=columns,
        **record.tuples(SETTINGS),
        layer_names=tuple(layer.name or f"layer {i}" for i, layer in enumerate(record.layers)) if named else (),
        **record.labels,
    )


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict. Raises InputError if it cannot be read or is no
    solution.
    """
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format. solution: the memory switches of every layer."""
    return solution.to_dict()


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The simulated step of a solution. instance: times and bytes of every layer, and the memory limit. solution: the memory
    switches of every layer. Raises ValueError if the solution does not belong to the instance.
    """
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    return _simulated(instance, solution)


@lru_cache(maxsize=4)
def _simulated(instance: Instance, solution: Solution) -> Evaluation:
    """The simulated step of a solution. The results of the latest four solutions are kept, since a solution is evaluated and
    described one after the other. instance: times and bytes of every layer, and the memory limit. solution: the memory
    switches of every layer.
    """
    return simulate_one(instance.columns, instance.nvlink, matrix([solution]))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a solution as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the step),
    `peak_bytes` (peak memory of a device), `peak_ns` (the time of the peak from the beginning of the step), `resident_bytes`
    (shards that stay on the device), `forward_ns`, `backward_ns`, `optimizer_ns` (durations of the step's three phases),
    `busy_ns` (a dict from the name of each lane, such as compute or copy, to the time in which it works), `layers_on` (a dict
    from the name of each switch to the number of layers that have it on), and `layers` (the number of layers). instance: times
    and bytes of every layer, and the memory limit. solution: the memory switches of every layer."""
    result = evaluate(instance, solution)
    busy: dict[str, int] = {}
    for operation in result.timeline:
        busy[operation.lane] = busy.get(operation.lane, 0) + operation.end_ns - operation.start_ns
    forward, backward, optimizer = result.phases_ns
    return {
        "time_ns": result.time_ns,
        "peak_bytes": result.peak_bytes,
        "peak_ns": result.peak_ns,
        "resident_bytes": result.resident_bytes,
        "forward_ns": forward,
        "backward_ns": backward - forward,
        "optimizer_ns": optimizer - backward,
        "busy_ns": busy,
        "layers_on": {name: sum(getattr(s, name) for s in solution.switches) for name in SWITCHES},
        "layers": instance.layers,
    }


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one sentence each; empty if it is feasible. instance: times and bytes of every
    layer, and the memory limit. solution: the memory switches of every layer.
    """
    if wrong := _malformed(instance, solution):
        return wrong
    peak, limit = evaluate(instance, solution).peak_bytes, instance.memory_bytes
    if peak > limit:
        return [f"the step needs {peak} bytes ({format_bytes(peak)}), {peak - limit} more than the limit of {limit}"]
    return []


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    """The reasons, in words, why a solution does not belong to the instance: a wrong number of layers, or a combination of
    switches that is not allowed. Empty if it belongs. solution: the memory switches of every layer.
    """
    if len(solution.switches) != instance.layers:
        return [f"switches has {len(solution.switches)} layers; give {instance.layers}"]
    legal, wrong = set(instance.options), []
    for i, switches in enumerate(solution.switches):
        if switches not in legal:
            lacking = "ckpt" if switches.segment_sync else "segment_sync"
            why = "offload_hidden needs it" if switches.segment_sync else "synchronisation is forced"
            wrong.append(f"switches[{i}] is {switches}; switch {lacking} on: {why}")
    return wrong
