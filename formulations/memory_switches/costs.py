"""From a profile to a memory-switches instance: what every layer costs on one of the devices that share it.

All devices of the profile are one group of sharded data parallelism: each has batch / devices samples, and a part of every
parameter and gradient. With P parameters of e bytes over d devices

    shard = ceil(P / d) e        gathered = d shard        all-gather, reduce-scatter: of `gathered`, over all d devices
    copies: shard, or the layer's input, through the link to the host        optimizer: on the host, of one shard

and copies have a lane of their own unless they share the bus of the collectives (`shares_bus` of the profile's host).

Bytes are those that trainplan's own programs allocate. The output of a layer is the input of the next one. The first layer's
input is tokens or pixels, which have no gradient. Next to the last layer's output, the logits, the loss holds targets and
statistics. Peaks are relative to what is held when a computation begins:

    forward without graph   output + max(kept + workspace, loss)
    forward                 output + kept + max(workspace, loss)
    backward                gradient of the input + workspace

A layer of several sub-layers, as in the paper, runs them one after the other: its graph also holds what they hand on to each
other, and its peaks are the largest of theirs, each on top of what the sub-layers before it keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.primitives import collective, host_copy, host_costs, host_step
from trainplan.formulations.costs.sequential.sublayer_time import grouped_units, layer_name, unit_work
from trainplan.formulations.memory_switches.problem import NAME, Instance, load
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.profiles import Profile

INDEX_BYTES = 8  # of a target of the loss
STATISTICS = 3  # numbers of a token that the loss keeps: largest, sum, target's logit
TIMES = ("forward_without_graph_ns", "forward_ns", "backward_ns", "optimizer_ns")
PARAMETER_BYTES = (
    "gathered_parameter_bytes",
    "partitioned_parameter_bytes",
    "gathered_gradient_bytes",
    "partitioned_gradient_bytes",
)

Row = dict[str, Any]


def rows_of(batch: int, devices: int) -> int:
    """The number of samples on each device in a step of `batch` samples over all devices. Raises InputError if the devices
    cannot have equally many.
    """
    rows, rest = divmod(batch, devices)
    if rest or rows < 1:
        fix = f"give a multiple of the {devices} devices, such as {max(1, rows) * devices}"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    return rows


def build(
    profile: Profile,
    batch: int,
    memory_bytes: int,
    *,
    offload_needs_ckpt: bool = True,
    by_unit: bool = True,
) -> Instance:
    """The memory-switches instance of a step of `batch` samples over all devices of the profile.

    Args:
        profile: measured or estimated costs of the model's sub-layers and of the devices' links.
        memory_bytes: the memory of one device.

        offload_needs_ckpt: whether offloading a layer's input requires its recomputation.

        by_unit: whether every sub-layer is a layer of its own, as in a plan, instead of every Transformer layer, as in the
            paper.

    Raises InputError if the batch cannot be divided equally, or the profile lacks a shape or costs of its host.
    """
    rows, host, group = rows_of(batch, profile.devices), host_costs(profile), range(profile.devices)
    layers, begin = list[Row](), 0
    for units in grouped_units(profile, by_unit):
        row = _joined([_unit_row(profile, begin + index, rows) for index in range(len(units))])
        row["all_gather_ns"] = collective(profile, "all-gather", row["gathered_parameter_bytes"], group)
        row["reduce_scatter_ns"] = collective(profile, "reduce-scatter", row["gathered_gradient_bytes"], group)
        layers.append({"name": layer_name(units)} | row | _copies(profile, row))
        begin += len(units)
    return load(
        {
            "problem": NAME,
            "version": 1,
            "name": f"{profile.name} on {profile.cluster}",
            "provenance": {
                "model": profile.model or {"name": profile.name},
                "profile": profile.origin,
                "cluster": profile.cluster,
                "devices": profile.devices,
                "batch": batch,
            },
            "nvlink": not host.shares_bus,
            "offload_needs_ckpt": offload_needs_ckpt,
            "memory_bytes": memory_bytes,
            "layers": layers,
        }
    )


def _unit_row(profile: Profile, index: int, rows: int) -> Row:
    """The times in ns of computations, and the bytes, of one sub-layer on one device, by the field names of a layer in
    instance files. index: the sub-layer's index in the profile. rows: the number of samples on one device. profile:
    measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    sublayer, last = profile.units[index].sublayer, len(profile.units) - 1
    entry, shape, element = profile.cost(sublayer, 1, rows), profile.shapes[sublayer], profile.parameter_bytes
    work = unit_work(profile, sublayer, Strategy(ckpt=True), rows)
    shard = -(-shape.shard(1).parameters // profile.devices)
    before = shape.input_bytes if index == 0 else moved_bytes(profile, profile.units[index - 1].sublayer)[1]
    after = shape.shard(1).output_bytes if index == last else moved_bytes(profile, sublayer)[1]
    source, output, kept = rows * before, rows * after, entry.kept_bytes.value
    loss = rows * shape.tokens * (INDEX_BYTES + STATISTICS * element) if shape.kind == "head" else 0
    forward, backward = entry.forward_workspace_bytes.value, entry.backward_workspace_bytes.value
    whole = shard * profile.devices * element
    return {
        "forward_without_graph_ns": work.forward_ns,
        "forward_ns": work.recompute_ns,
        "backward_ns": work.backward_ns,
        "optimizer_ns": host_step(profile, shard),
        "input_bytes": source,
        "output_bytes": output,
        "graph_bytes": kept,
        **dict(zip(PARAMETER_BYTES, (whole, shard * element) * 2, strict=True)),
        "forward_without_graph_peak_bytes": output + max(kept + forward, loss),
        "forward_peak_bytes": output + kept + max(forward, loss),
        "backward_peak_bytes": (source if index else 0) + backward,
    }


def _joined(parts: Sequence[Row]) -> Row:
    """The times in ns and bytes, by the field names of a layer in instance files, of a layer made of consecutive sub-layers.
    parts: the same numbers for each sub-layer.
    """
    if len(parts) == 1:
        return dict(parts[0])
    first, last = parts[0], parts[-1]
    row = {name: sum(part[name] for part in parts) for name in (*TIMES, *PARAMETER_BYTES)}
    row |= {"input_bytes": first["input_bytes"], "output_bytes": last["output_bytes"]}
    graphs = without = forward = 0  # by the units so far: their graphs, and all that they pass on but the layer's own input
    for index, part in enumerate(parts):
        passed = part["input_bytes"] if index else 0
        without = max(without, passed + part["forward_without_graph_peak_bytes"])
        graphs += passed
        forward = max(forward, graphs + part["forward_peak_bytes"])
        graphs += part["graph_bytes"]
    # The layer's whole graph and the gradient of its output are there when its backward pass begins.
    backward, left = 0, 0
    for part in reversed(parts):
        backward = max(backward, left + part["backward_peak_bytes"])
        # In place of the unit's graph, of its input and of the gradient of its output there is the gradient of its input.
        left -= part["graph_bytes"] + part["output_bytes"]
    return row | {
        "graph_bytes": graphs,
        "forward_without_graph_peak_bytes": without,
        "forward_peak_bytes": forward,
        "backward_peak_bytes": max(backward, first["input_bytes"]),
    }


def _copies(profile: Profile, row: Row) -> Row:
    """The times in ns of a layer's copies between device and host, by the field names of a layer in instance files. row: the
    layer's bytes, by these names. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    return {
        "prefetch_parameter_ns": host_copy(profile, "to_device", row["partitioned_parameter_bytes"]),
        "offload_gradient_ns": host_copy(profile, "to_host", row["partitioned_gradient_bytes"]),
        "prefetch_hidden_ns": host_copy(profile, "to_device", row["input_bytes"]),
        "offload_hidden_ns": host_copy(profile, "to_host", row["input_bytes"]),
    }
