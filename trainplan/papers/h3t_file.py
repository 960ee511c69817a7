"""Memory-switches instances from the layer profiles of H3T's published code, layer by layer, as they stand there.

How fields of the file are understood, in addition to the reader's own rules (`profiling.imports.h3t`): the output of a layer is
the input of the next one, its `input_tensor`; that of the last layer is the `delta` of its forward pass without graph. A file
in which the next layer's input differs from that `delta` is refused. The graph's size is the difference of the deltas with and
without graph. `backward_delta` is not used: it follows from the others. A peak that is smaller than what remains after the pass
(output, graph, gradient of the input) is raised to that, and `provenance` names the layers where it was.
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

ROUNDING_BYTES = 512  # sizes in the file are those of tensors, or rounded up to an allocator's blocks of this size
SIZES = ("gathered_parameter", "partitioned_parameter", "gathered_gradient", "partitioned_gradient")


def instance_of(
    profile: object,
    *,
    memory: str | int | None = None,
    paper_combinations: bool | None = None,
    **others: object,
) -> Instance | None:
    """Build an instance of the problem memory-switches, which chooses for every layer whether its activations are kept,
    recomputed or offloaded, from a profile file of H3T's published code. Returns None if `profile` is not the path of such a
    file; raises InputError if it is one and is invalid.

    memory: memory of one device, in bytes or as text such as "8GiB". paper_combinations: whether hidden states may also be
    offloaded without recomputation, as in the paper. others: further options of planning, all of which are refused for such a
    file unless they are None or False.
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
    """Build an instance of the problem memory-switches, which chooses for every layer whether its activations are kept,
    recomputed or offloaded, from a profile file of H3T's published code. Raises InputError if the file is invalid.

    source: the file. memory_bytes: memory of one device, which the file does not state. offload_needs_ckpt: whether hidden
    states may be offloaded only in layers that are recomputed.
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
    """Check that the input of every layer has the size of the output of the layer before it, up to an allocator's rounding.
    memories: the layers' memory as read from the file. Raises InputError for the first layer whose input differs.
    """
    for i, (before, memory) in enumerate(pairwise(memories), start=1):
        output = before.forward_no_grad_delta
        if abs(memory.input_tensor - output) >= ROUNDING_BYTES:
            problem = f"is {memory.input_tensor}, but layer {i - 1} leaves {output} (its forward_no_grad_delta)"
            raise InputError(source.path, f"layer_memory[{i}].input_tensor", problem, f"give {output}")
