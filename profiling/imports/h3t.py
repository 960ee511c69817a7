"""H3T's layer profiles (the published code on BMTrain; fields as the project's notes on the paper name them).

`layer_runtime` and `layer_memory` hold one object for each layer. How their numbers are read:
- seconds and bytes are those of one device; the file does not state its number of samples (option `rows`);
- a forward pass with graph leaves its output and what the graph holds, one without graph its output only, so the
  difference of their `delta` is kept_bytes; `peak` less `delta` is workspace;
- a gather or scatter over n = gathered / partitioned devices is a ring of n - 1 steps; a scatter reduces;
- parameters are of 2 bytes (BMTrain trains in half precision) with 16 bytes of state each, which H3T has on the host;
  its optimizer runs there, on the shard of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from trainplan.profiling.base.files import parse
from trainplan.profiling.base.lines import fitted_copies, fitted_link
from trainplan.profiling.imports.source import (
    LONGEST_S,
    MOST_BYTES,
    Foreign,
    Options,
    Source,
    chain,
    cost,
    finished,
    imported,
    rate,
    shape,
)
from trainplan.profiling.profiles import Profile

OPTIONS = ("rows", "memory_bytes")
ELEMENT_BYTES = 2

Seconds = Annotated[float, Field(ge=1e-9, le=LONGEST_S, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=int(MOST_BYTES))]
Change = Annotated[int, Field(ge=-int(MOST_BYTES), le=int(MOST_BYTES))]


class Runtime(Foreign):
    """The times of one layer in an H3T file, in seconds, under trainplan's names."""

    forward_without_graph: Seconds = Field(alias="forward_no_grad")
    forward: Seconds = Field(alias="forward_with_grad")
    backward: Seconds
    all_gather: Seconds = Field(alias="gather_parameter")
    reduce_scatter: Seconds = Field(alias="scatter_gradient")
    prefetch_parameter: Seconds
    offload_gradient: Seconds
    prefetch_hidden: Seconds = Field(alias="prefetch_hidden_state")
    offload_hidden: Seconds = Field(alias="offload_hidden_state")
    optimizer: Seconds = Field(alias="optimizer_step")


class Memory(Foreign):
    """The sizes of one layer's tensors and its memory use in an H3T file, in bytes."""

    input_tensor: Bytes
    gathered_parameter: Bytes
    partitioned_parameter: Bytes
    gathered_gradient: Bytes
    partitioned_gradient: Bytes
    forward_no_grad_peak: Bytes
    forward_no_grad_delta: Bytes
    forward_with_grad_peak: Bytes
    forward_with_grad_delta: Bytes
    backward_peak: Bytes
    backward_delta: Change


class LayerProfile(Foreign):
    """The content of an H3T file: times and sizes of every layer, in order."""

    name: str = ""
    nvlink_available: bool
    layer_runtime: Annotated[list[Runtime], Field(min_length=1, max_length=10_000)]
    layer_memory: Annotated[list[Memory], Field(min_length=1, max_length=10_000)]

    @property
    def layers(self) -> list[tuple[Runtime, Memory]]:
        """Times and sizes of each layer, as pairs in the order of the layers."""
        return list(zip(self.layer_runtime, self.layer_memory, strict=True))


def recognises(data: dict[str, Any]) -> bool:
    """Whether an object, read from a JSON file, is a layer profile of H3T's code."""
    return "layer_runtime" in data or "layer_memory" in data


def checked(source: Source) -> tuple[LayerProfile, int]:
    """Read an H3T file. Returns its content, and the number of devices over which each parameter is partitioned. Raises
    InputError if the content is invalid.
    """
    file = parse(source.data, LayerProfile, where=source.path)
    return file, _devices(source, file)


def read(sources: Sequence[Source], options: Options) -> Profile:
    """Build the profile from one H3T file. Raises InputError for several files, or for one that contradicts itself or does not
    specify a value.

    options: the user's values for everything that the file does not specify.
    """
    source = sources[0]
    if len(sources) > 1:
        raise sources[1].fail("", "is a second H3T file", "give one: it holds the whole profile")
    file, devices = checked(source)
    layers, rows = file.layers, options.rows or 1
    parts = [
        (f"layer-{i}", _shape(source, i, memory, rows), [_cost(options.device, rows, time, memory)])
        for i, (time, memory) in enumerate(layers)
    ]
    return finished(
        sources,
        "H3T",
        options,
        {
            **chain(parts),
            "name": file.name or source.stem,
            "dtype": "float16",
            "parameter_bytes": ELEMENT_BYTES,
            "devices": devices,
            "memory_bytes": options.memory(source),
            "network": {"islands": _islands(layers, devices)},
            "host": _host(layers) | {"shares_bus": not file.nvlink_available},
        },
        nvlink_available=file.nvlink_available,
        optimizer_on_device="not in the file, so 0",
    )


def _devices(source: Source, file: LayerProfile) -> int:
    """The number of devices over which each parameter is partitioned, computed from the sizes of whole and partitioned tensors
    in an H3T file.

    source: the file's path and data, for errors. file: its content. Raises InputError if the file contradicts itself.
    """
    times, memories = len(file.layer_runtime), len(file.layer_memory)
    if times != memories:
        raise source.fail("layer_memory", f"has {memories} layers", f"give {times}, as layer_runtime has")
    devices = file.layer_memory[0].gathered_parameter // file.layer_memory[0].partitioned_parameter
    for i, memory in enumerate(file.layer_memory):
        where = f"layer_memory[{i}]"
        for whole, part in (("gathered_parameter", "partitioned_parameter"), ("gathered_gradient", "partitioned_gradient")):
            if getattr(memory, whole) != devices * getattr(memory, part) or devices < 1:
                problem = f"is {getattr(memory, whole)}, with {getattr(memory, part)} of it on each device"
                raise source.fail(f"{where}.{whole}", problem, f"give {max(1, devices)} parts, as the first layer has")
        for pass_ in ("forward_no_grad", "forward_with_grad"):
            peak, delta = getattr(memory, f"{pass_}_peak"), getattr(memory, f"{pass_}_delta")
            if peak < delta:
                problem = f"is {peak}, below the {delta} that stay"
                raise source.fail(f"{where}.{pass_}_peak", problem, "give the largest use during the pass")
        if memory.forward_with_grad_delta < memory.forward_no_grad_delta:
            problem = f"is {memory.forward_with_grad_delta}, below forward_no_grad_delta"
            raise source.fail(f"{where}.forward_with_grad_delta", problem, "give the output and all the graph holds")
    return devices


def _shape(source: Source, index: int, memory: Memory, rows: int) -> dict[str, Any]:
    """Describe a layer of an H3T file as a sub-layer in the form of a profile, without a name.

    source: the file, for errors. index: the layer's index. memory: its sizes. rows: the number of samples that the sizes are
    for. Raises InputError if a size is no multiple of `rows`.
    """
    if memory.input_tensor % rows or memory.forward_no_grad_delta % rows:
        problem = f"is {memory.input_tensor}, not that of {rows} samples"
        raise source.fail(f"layer_memory[{index}].input_tensor", problem, "give another rows, or none")
    parameters = {1: memory.gathered_parameter // ELEMENT_BYTES}
    return shape("layer", memory.input_tensor // rows, memory.forward_no_grad_delta // rows, parameters)


def _cost(device: str, rows: int, time: Runtime, memory: Memory) -> Any:
    """The costs of one layer of an H3T file on `rows` samples, in the form of a profile, without the sub-layer's name.

    device: the name of the profiled kind of device. time, memory: the layer's times and sizes.
    """
    kept_bytes = memory.forward_with_grad_delta - memory.forward_no_grad_delta
    return cost(
        "",
        device,
        1,
        rows,
        time.forward * 1e9,
        time.backward * 1e9,
        kept_bytes,
        forward_without_graph_ns=time.forward_without_graph * 1e9,
        forward_workspace_bytes=max(
            memory.forward_with_grad_peak - memory.forward_with_grad_delta,
            memory.forward_no_grad_peak - memory.forward_no_grad_delta - kept_bytes,
        ),
        backward_workspace_bytes=max(0, memory.backward_peak - memory.input_tensor),
    )


def _islands(layers: Sequence[tuple[Runtime, Memory]], devices: int) -> list[dict[str, Any]]:
    """Build the islands (groups of devices with their link) of a profile's network, with links fitted to the measured times of
    one ring step.

    There is one for all-gathers, one for reduce-scatters, and one, fitted to the times of both, for all other operations.
    layers: times and sizes of each layer. devices: number of devices of the ring.
    """
    steps = devices - 1 or 1
    gathers = [(memory.partitioned_parameter, time.all_gather / steps) for time, memory in layers]
    scatters = [(memory.partitioned_gradient, time.reduce_scatter / steps) for time, memory in layers]
    islands = []
    for operation, points in (("all-gather", gathers), ("reduce-scatter", scatters), (None, gathers + scatters)):
        islands.append({"devices": devices, "operation": operation, "origin": "imported", **fitted_link(points)})
    return islands


def _host(layers: Sequence[tuple[Runtime, Memory]]) -> dict[str, Any]:
    """Build a profile's record of the host: rates of copies between device and host in both directions, and its optimizer's
    time per parameter.

    Rates are fitted to the copies of parameter shards and hidden states. layers: times and sizes of each layer.
    """
    there = [(memory.partitioned_parameter, time.prefetch_parameter) for time, memory in layers]
    there += [(memory.input_tensor, time.prefetch_hidden) for time, memory in layers]
    back = [(memory.partitioned_gradient, time.offload_gradient) for time, memory in layers]
    back += [(memory.input_tensor, time.offload_hidden) for time, memory in layers]
    to_device, to_host, latency_ns = fitted_copies(there, back)
    seconds = sum(time.optimizer for time, _ in layers)
    parameters = sum(memory.partitioned_parameter for _, memory in layers) / ELEMENT_BYTES
    return {
        "to_device_bytes_per_s": rate(*to_device),
        "to_host_bytes_per_s": rate(*to_host),
        "latency_ns": imported(*latency_ns),
        "optimizer_ns_per_parameter": rate(seconds / parameters * 1e9),
    }
