"""Memory-switches instances from the layer profiles of H3T's published code, layer by layer, as they stand there.

Readings taken, beside those of the reader (`profiling.imports.h3t`): what a layer gives is what the next one reads, its
`input_tensor`; the last one gives the `delta` of a forward pass without graph. A file in which the next one reads something
else than that `delta` is refused. What the graph holds is the difference of the two deltas. `backward_delta` is read, and not
used: what a backward pass leaves behind follows from the others. A peak below what the layer leaves behind (its output, its
graph, the gradient of its input) is lifted to that, and `provenance` names the layers where it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trainplan.formulations.memory_switches.problem import NAME, Instance, load
from trainplan.formulations.parameters import flag_of
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.imports import h3t
from trainplan.profiling.imports.source import Source

ROUNDING_BYTES = 512  # sizes as tensors have them, or as an allocator hands them out, in blocks of this size
SIZES = ("gathered_parameter", "partitioned_parameter", "gathered_gradient", "partitioned_gradient")


def instance_of(
    profile: object,
    *,
    memory: str | int | None = None,
    paper_combinations: bool | None = None,
    **others: object,
) -> Instance | None:
    """The instance of a file of H3T's published code, where `profile` is the path of one; else None. Raises InputError.

    memory: of one device, bytes or text such as "8GiB". others: what `build` was asked for beside, of which nothing goes with
    such a file.
    """
    if not isinstance(profile, str | os.PathLike):
        return None
    data = read_data(profile)
    if not isinstance(data, dict) or not h3t.recognises(data):
        return None
    for name, value in others.items():
        if value is not None and value is not False:
            fix = "leave it out: an H3T file has its own layers, of its own batch"
            raise InputError("command line", flag_of(name), f"is {shown(value)}", fix)
    if memory is None:
        raise InputError("command line", "--memory", "is missing", "give it, such as 8GiB: an H3T file has none")
    size = parse_bytes(memory) if isinstance(memory, str) else memory
    source = Source(os.fspath(profile), data)
    return build(source, size, offload_needs_ckpt=not paper_combinations)


def build(source: Source, memory_bytes: int, *, offload_needs_ckpt: bool = True) -> Instance:
    """The instance of a file of H3T's published code.

    memory_bytes: of one device, which the file does not say. offload_needs_ckpt: as in `InstanceRecord`. Raises InputError.
    """
    profile, devices = h3t.checked(source)
    memories = [memory for _, memory in profile.layers]
    _check_chain(source, memories)
    outputs = [memory.input_tensor for memory in memories[1:]] + [memories[-1].forward_no_grad_delta]
    rows, lifted = [], dict[str, list[int]]()
    for i, ((time, memory), output) in enumerate(zip(profile.layers, outputs, strict=True)):
        graph = memory.forward_with_grad_delta - memory.forward_no_grad_delta
        row: dict[str, Any] = {f"{name}_ns": round(seconds * 1e9) for name, seconds in time.model_dump().items()}
        row |= {f"{name}_bytes": getattr(memory, name) for name in SIZES}
        row |= {"input_bytes": memory.input_tensor, "output_bytes": output, "graph_bytes": graph}
        for pass_, peak, least in (
            ("forward_without_graph", memory.forward_no_grad_peak, output),
            ("forward", memory.forward_with_grad_peak, output + graph),
            ("backward", memory.backward_peak, memory.input_tensor if i else 0),
        ):
            row[f"{pass_}_peak_bytes"] = max(peak, least)
            if peak < least:
                lifted.setdefault(f"{pass_}_peak_bytes", []).append(i)
        rows.append(row)
    return load(
        {
            "problem": NAME,
            "version": 1,
            "name": profile.name or source.stem,
            "provenance": {
                "format": "H3T",
                "file": source.stem,
                "devices": devices,
                **({"lifted": lifted} if lifted else {}),
            },
            "nvlink": profile.nvlink_available,
            "offload_needs_ckpt": offload_needs_ckpt,
            "memory_bytes": memory_bytes,
            "layers": rows,
        },
        source.path,
    )


def _check_chain(source: Source, memories: Sequence[h3t.Memory]) -> None:
    """Raises InputError where a layer reads something else than what the one before it gives."""
    for i, (before, memory) in enumerate(pairwise(memories), start=1):
        output = before.forward_no_grad_delta
        if abs(memory.input_tensor - output) >= ROUNDING_BYTES:
            problem = f"is {memory.input_tensor}, but layer {i - 1} leaves {output} (its forward_no_grad_delta)"
            raise InputError(source.path, f"layer_memory[{i}].input_tensor", problem, f"give {output}")
