"""From a profile and a cluster to a cluster-strategy instance: what every layer costs on each kind of device.

Times of a layer are those of one device at one tensor-parallel degree, as AMP looks them up (Section 3.4); its all-reduces,
forward and back, are kept apart, because they depend on where the group lies. Bytes are those of this project's own programs
(the cost model `executed` of `formulations.costs.sequential`), so that a strategy that fits here fits when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.instance import NAME, Instance, Kind, LayerTable, Shard
from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, layer_costs, unit_costs
from trainplan.formulations.costs.sequential.sublayer_memory import LOSS_BYTES
from trainplan.formulations.costs.sequential.sublayer_time import grouped_units, layer_name, reductions, unit_work
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import ChainUnit, Profile


def shapes_of_strategies(degrees: Sequence[int], devices: int, batch: int) -> list[tuple[int, int]]:
    """All pairs (tmp, mbs) of tensor-parallel degree and samples per micro-batch that strategies can have. degrees: the
    tensor-parallel degrees that the model allows. devices: the number of devices, which tmp divides. batch: samples per step,
    which mbs divides."""
    return [(tmp, mbs) for tmp in degrees if devices % tmp == 0 for mbs in divisors(batch)]


def build(
    profile: Profile,
    cluster: Cluster,
    batch: int,
    *,
    memory_bytes: int | None = None,
    margin_bytes: int = 0,
    recompute: bool = False,
    by_unit: bool = False,
    uneven_shares: bool = False,
    within_memory: bool = True,
    tied: bool = True,
) -> Instance:
    """The cluster-strategy instance of one batch on a cluster.

    Args:
        profile: the costs of all `shapes_of_strategies`, by kind of device.
        batch: samples per step.
        memory_bytes: the memory of every device; None for what is usable of each kind's memory.
        margin_bytes: bytes of every device's memory that stay free.
        recompute: whether every layer keeps its input only, and repeats its forward pass.
        by_unit: whether every sub-layer is a layer of its own.
        uneven_shares: whether pipelines may take different numbers of micro-batches.
        within_memory: whether memory limits count.
        tied: whether the gradients of a weight table that embedding and head share are added up at the end of the step, as
            trainplan's
            programs do it; AMP's own cost model leaves that out.

    Raises InputError if the profile lacks a kind of device or a shape.
    """
    kinds = cluster.used_kinds
    for kind in kinds:
        if kind.name not in profile.kinds:
            fix = f"measure or estimate them, or give a cluster of {', '.join(profile.kinds)}"
            raise InputError("profile", "costs", f"has no times of {kind.name}", fix)
    layers = grouped_units(profile, by_unit)
    degrees = [tmp for tmp in profile.tp_degrees(cluster.devices) if cluster.devices % tmp == 0]
    numbers = {kind.name: index for index, kind in enumerate(kinds)}
    reduced = [[_reductions(profile, unit) for unit in layer] for layer in layers]
    return Instance(
        batch=batch,
        layer_names=tuple(map(layer_name, layers)),
        kinds=tuple(Kind(kind.name, max(1, (memory_bytes or kind.usable_bytes) - margin_bytes)) for kind in kinds),
        device_kinds=tuple(numbers[kind] for kind in cluster.device_kinds),
        network=cluster.network,
        reductions=_array(sum(count for count, _ in layer) for layer in reduced),
        reduced_bytes=_array(sum(size for _, size in layer) for layer in reduced),
        boundary_bytes=_array(moved_bytes(profile, layer[-1].sublayer)[1] for layer in layers[:-1]),
        shards={tmp: _shard(profile, layers, tmp) for tmp in degrees},
        tables={
            (tmp, mbs): _table(profile, layers, [kind.name for kind in kinds], tmp, mbs, recompute)
            for tmp, mbs in shapes_of_strategies(degrees, cluster.devices, batch)
        },
        uneven_shares=uneven_shares,
        within_memory=within_memory,
        tied_bytes=profile.tied_parameters * profile.parameter_bytes if tied else 0,
        name=f"{profile.name} on {cluster.name}" if profile.name else NAME,
        provenance={
            "model": profile.model or {"name": profile.name},
            "cluster": cluster.name,
            "profile": profile.origin,
            "batch": batch,
            "recompute": recompute,
        },
    )


def _reductions(profile: Profile, unit: ChainUnit) -> tuple[int, int]:
    """Two numbers for a sub-layer under tensor parallelism: how many all-reduces it has in forward (of its output) and
    backward pass (of its input's gradient) together, and their bytes per sample, all together. unit: the sub-layer.
    profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    shape = profile.shapes[unit.sublayer]
    forward, back = reductions(shape)
    return forward + back, forward * shape.output_bytes + back * shape.input_bytes


def _shard(profile: Profile, layers: Sequence[Sequence[ChainUnit]], tmp: int) -> Shard:
    """The bytes of gradients and of model states of every layer on one of `tmp` tensor-parallel devices. layers: the
    sub-layers of every layer. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    shards = [[profile.shapes[unit.sublayer].shard(tmp) for unit in layer] for layer in layers]
    counts = _array(sum(shard.parameters for shard in layer) for layer in shards)
    whole = tuple(index for index, layer in enumerate(shards) if all(shard.whole for shard in layer))
    return Shard(counts * profile.parameter_bytes, counts * profile.state_bytes_per_parameter, whole)


def _table(
    profile: Profile, layers: Sequence[Sequence[ChainUnit]], kinds: Sequence[str], tmp: int, mbs: int, recompute: bool
) -> LayerTable:
    """Times and bytes of every layer for one micro-batch on one tensor-parallel device, for each kind of device. layers: the
    sub-layers of every layer. kinds: names of the kinds of devices. tmp: the number of tensor-parallel devices. mbs:
    samples per micro-batch. recompute: whether layers repeat their forward pass in the backward pass. profile: measured or
    estimated costs of the model's sub-layers and of the devices' links.
    """
    strategy = Strategy.of(("tp", tmp), ckpt=recompute)
    costs = COST_MODELS["executed"]
    sublayers = sorted({unit.sublayer for layer in layers for unit in layer})
    of_sublayer = {sublayer: unit_costs(profile, costs, sublayer, strategy, mbs) for sublayer in sublayers}
    of_layer = [layer_costs([of_sublayer[unit.sublayer] for unit in layer]) for layer in layers]
    time_ns = {
        (sublayer, kind): unit_work(profile, sublayer, strategy, mbs, kind).compute_ns
        for sublayer in sublayers
        for kind in kinds
    }
    return LayerTable(
        layer_ns=_array([sum(time_ns[unit.sublayer, kind] for unit in layer) for layer in layers] for kind in kinds),
        kept_bytes=_array(cost.forward_bytes for cost in of_layer),
        # The loss is one scalar of every stage: with whichever layer needs most, it counts only once.
        workspace_bytes=_array(LOSS_BYTES + max(0, cost.backward_bytes) for cost in of_layer),
    )


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Values as an array of 64-bit integers."""
    return np.array(list(values), np.int64)
