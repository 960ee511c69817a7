"""From a profile to a pipeline-partition instance: what every sub-layer costs.

Costs of a sub-layer are those of trainplan's own programs (cost model `executed` of `formulations.costs.sequential`), forward
and backward apart, with the collectives of each. What only the last micro-batch of a step pays (the reduction of gradients, the
optimizer) is no part of the pipeline's iteration, and is added to the end of every stage:

    step = max_x (end of the last backward pass of stage x + sync_x)

sync_x is the sum of what its sub-layers add, the instance's `sync_ns`. A table that the first and the last stage share is
reduced between these two, too: as the first sub-layer is always in the first stage and the last one in the last, that is part
of what these two sub-layers add.

A message is the hidden states of one device's rows, one way, over the slowest link between neighbouring stages: ranks of stage
x + 1 follow those of stage x, and each sends to the rank with its own index in the next stage. Collectives within a stage are
costed on the first devices, as in the problems `layer-strategies` and `pipeline`.
"""

from __future__ import annotations

from typing import Any

from trainplan.formulations.costs.sequential.communication import moved_bytes, slowest_message_ns, tied_ns
from trainplan.formulations.costs.sequential.cost_models import times_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.costs.sequential.sublayer_time import layer_name
from trainplan.formulations.pipeline_partition.degrees import PipelineDegrees
from trainplan.formulations.pipeline_partition.problem import NAME, Instance, load
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.profiles import Profile


def build(
    profile: Profile,
    batch: int,
    degrees: PipelineDegrees,
    *,
    memory_bytes: int | None = None,
    recompute: bool = False,
    name: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Instance:
    """The pipeline-partition instance of one of the equal pipelines that share a step of `batch` samples.

    Args:
        profile: the costs of all sub-layers.
        batch: samples per step, of all pipelines together.
        degrees: numbers of stages, pipelines, tensor-parallel devices and micro-batches.
        memory_bytes: the memory of one device; None for no limit.
        recompute: whether every sub-layer keeps its input only, and repeats its forward pass in its backward pass.
        name: the instance's name; None for one made of the profile's. provenance: entries in addition to the profile's.

    Raises InputError if the batch cannot be divided equally, there are fewer sub-layers than stages, or the profile lacks a
    shape.
    """
    rows, strategy = degrees.rows(batch), degrees.strategy(recompute)
    units = profile.units
    if degrees.pp > len(units):
        raise InputError("command line", "--pipeline", f"is {degrees.pp}", f"give at most {len(units)}, one sub-layer a stage")
    names = {unit.sublayer for unit in units}
    times_by_name = {name: times_of(profile, name, strategy, rows * degrees.dp, degrees.pp == 1) for name in names}
    times = [times_by_name[unit.sublayer] for unit in units]
    size, devices = degrees.stage_size, degrees.devices
    pairs = [(rank, rank + size) for rank in range(devices - size)]
    messages = [rows * moved_bytes(profile, unit.sublayer)[1] for unit in units[:-1]]
    moves = {message: slowest_message_ns(profile, message, pairs) for message in set(messages)}
    syncs = [time.sync_ns for time in times]
    for end in (0, -1) if degrees.pp > 1 else ():
        syncs[end] += tied_ns(profile, degrees.stage_size, degrees.pp)
    fields: dict[str, Any] = {
        "problem": NAME,
        "version": 1,
        "name": name or f"{profile.name}, {degrees.pp} stages",
        "provenance": {
            "model": profile.model or {"name": profile.name},
            "profile": profile.origin,
            "batch": batch,
            "dp": degrees.dp,
            "tp": degrees.tp,
            "mbs": rows,
            "recompute": recompute,
            **(provenance or {}),
        },
        "forward_ns": [time.forward_ns for time in times],
        "backward_ns": [time.backward_ns for time in times],
        "transfer_ns": [moves[message] for message in messages],
        "sync_ns": syncs,
        "stages": degrees.pp,
        "micro_batches": degrees.micro_batches,
        "names": [layer_name([unit]) for unit in units],
        "layers": [unit.layer for unit in units],
    }
    if memory_bytes is not None:
        # Stages whose units are all laid out alike re-lay nothing: their bytes are those of one pipeline.
        alone = PipelineDegrees(degrees.pp, 1, degrees.tp).strategy(recompute)
        sizes = {name: unit_bytes(profile, True, name, alone, rows) for name in times_by_name}
        kept, workspace, state = zip(*(sizes[unit.sublayer] for unit in units), strict=True)
        fields["memory"] = {
            "limit_bytes": memory_bytes,
            "state_bytes": list(state),
            "kept_bytes": list(kept),
            "workspace_bytes": [max(0, size) for size in workspace],
        }
    return load(fields)
