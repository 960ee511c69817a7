"""Problems that only decide cuts, as restrictions of the joint problem: stage-assignment, pipeline-partition and
cluster-strategy (see `restrict`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees
from trainplan.formulations.cluster_strategy.instance import Instance as ClusterInstance
from trainplan.formulations.cluster_strategy.problem import Solution as ClusterSolution
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    DeviceGroup,
    Reduction,
    Schedule,
    Solution,
)
from trainplan.formulations.joint.tables import Option, OptionTable, Tables, Tied
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.pipeline_partition.problem import Solution as PartitionSolution
from trainplan.formulations.schedule.chains import Chain
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.formulations.stage_assignment.problem import Solution as AssignmentSolution
from trainplan.profiling.base.errors import Unsupported

from tests.helpers.papers_as_joint.base import Restriction, constant, free_boundary, joint_instance

NO_LIMIT = 2**48


# stage-assignment and pipeline-partition


def _device_groups(instance: Chain, by_stage: bool) -> tuple[list[DeviceClass], tuple[DeviceGroup, ...]]:
    """Device classes, one for each memory limit of a stage, and a device group of one device for each stage.

    by_stage: whether each device group is of a kind of its own.
    """
    count = instance.stages
    limits = [NO_LIMIT] * count if instance.memory is None else instance.memory.limit_bytes.tolist()
    sizes = sorted(set(limits))
    classes = [DeviceClass(f"device {index}", limits.count(size), size) for index, size in enumerate(sizes)]
    groups = [
        DeviceGroup(tuple(int(limit == size) for size in sizes), stage if by_stage else 0) for stage, limit in enumerate(limits)
    ]
    return classes, tuple(groups)


def _memory(instance: Chain, layer: int) -> dict[str, Any]:
    """The memory columns of a layer's one option, in bytes; none where the instance has no memory.

    The bytes that a micro-batch keeps count for as long as it is in flight.
    """
    if (memory := instance.memory) is None:
        return {}
    columns = {
        "state_bytes": memory.state_bytes,
        "held_bytes": memory.kept_bytes,
        "work_backward_bytes": memory.workspace_bytes,
    }
    return {name: [int(column[layer])] for name, column in columns.items()}


def stage_assignment(instance: AssignmentInstance) -> Restriction:
    """A stage-assignment instance as a joint one: each layer is a kind of unit with one option, each stage a kind of device
    group, and each pair of neighbouring stages a kind of link."""
    length, links = instance.layers, max(1, instance.stages - 1)
    boundaries = []
    for l in range(length - 1):
        sent = instance.transfer_ns[:, l] if instance.stages > 1 else np.zeros(1, np.int64)
        boundaries.append(free_boundary(np.zeros((1, 1), np.int64), sent.reshape(links, 1, 1)))
    tables = [
        Tables(
            units=tuple(
                OptionTable.of([Option("layer")], forward_ns=[int(t)], **_memory(instance, l)) for l, t in enumerate(row)
            ),
            boundaries=tuple(boundaries),
        )
        for row in instance.layer_ns
    ]
    classes, groups = _device_groups(instance, by_stage=True)
    configuration = Configuration(
        schedule=Schedule(),
        micro_batches=instance.micro_batches,
        device_groups=groups,
        links=tuple(range(instance.stages - 1)),
        make_tables=constant(tuple(tables)),
    )
    layers = [(instance.name_of(l), l) for l in range(length)]
    joint = joint_instance(instance, layers, range(length - 1), [configuration], classes, "eq5", instance.micro_batches)
    return Restriction(
        joint, lambda solution: Solution(0, solution.cuts, (0,) * length), lambda solution: AssignmentSolution(solution.cuts)
    )


def pipeline_partition(instance: PartitionInstance) -> Restriction:
    """A pipeline-partition instance as a joint one: each sub-layer is a kind of unit with one option, each cut one of boundary.

    Only solutions without slicing can be lifted: the half of a stage is half of its sum, rounded once, and not a sum of halves.
    """
    length, units, boundaries = instance.sublayers, [], []
    for l in range(length):
        columns: dict[str, Any] = {"forward_ns": [int(instance.forward_ns[l])], "backward_ns": [int(instance.backward_ns[l])]}
        units.append(OptionTable.of([Option("sub-layer")], **columns, **_memory(instance, l)))
    for move in instance.transfer_ns.tolist():
        sent = np.full((1, 1, 1), move, np.int64)
        boundaries.append(free_boundary(np.zeros((1, 1), np.int64), sent, sent))
    classes, groups = _device_groups(instance, by_stage=False)
    configuration = Configuration(
        schedule=Schedule(),
        micro_batches=instance.micro_batches,
        device_groups=groups,
        links=(0,) * (instance.stages - 1),
        make_tables=constant((Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
    )
    layers = [(instance.name_of(l), l) for l in range(length)]
    joint = joint_instance(instance, layers, range(length - 1), [configuration], classes, "simulated", instance.micro_batches)

    def lift(solution: PartitionSolution) -> Solution:
        assert not solution.sliced, "halves of sums are no sums of halves"
        return Solution(0, solution.cuts, (0,) * length)

    return Restriction(joint, lift, lambda solution: PartitionSolution(solution.cuts))


# cluster-strategy


def cluster_strategy(instance: ClusterInstance) -> Restriction:
    """A cluster-strategy instance of equal devices as a joint one, with a configuration for each choice of degrees.

    It has the solutions whose shares are as even as possible; where one share is larger than others, that pipeline's time
    counts. Raises an InputError (`Unsuited`) for devices of several kinds.
    """
    if int(instance.classes.max()):
        raise Unsupported("instance", "devices", "are not all alike", "give a cluster of one kind of device and of link")
    degrees = [degree for degree in instance.degrees() if instance.even_shares(degree.dp, degree.mbs)]
    layers = [(name, l) for l, name in enumerate(instance.layer_names)]
    limit = instance.memory_bytes if instance.within_memory else NO_LIMIT
    configurations = [_cluster_configuration(instance, degree) for degree in degrees]
    classes = [DeviceClass("device", instance.devices, limit)]
    joint = joint_instance(instance, layers, range(len(layers) - 1), configurations, classes, "eq4", instance.batch)
    everyone = tuple(range(instance.devices))

    def lift(solution: ClusterSolution) -> Solution:
        even = instance.even_shares(solution.degrees.dp, solution.degrees.mbs)
        assert solution.shares in ((), even), "uneven shares have no configuration"
        return Solution(degrees.index(solution.degrees), solution.cuts, (0,) * instance.layers)

    def lower(solution: Solution) -> ClusterSolution:
        chosen = degrees[solution.configuration]
        return ClusterSolution(chosen, everyone, solution.cuts, instance.even_shares(chosen.dp, chosen.mbs) or ())

    return Restriction(joint, lift, lower)


def _cluster_configuration(instance: ClusterInstance, degrees: Degrees) -> Configuration:
    """The joint configuration of one choice of degrees."""
    placed = instance.placed(degrees, range(instance.devices))
    shares = instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    shard, table = instance.shards[degrees.tmp], instance.tables[degrees.tmp, degrees.mbs]
    columns = {
        "forward_ns": placed.layer_ns[0, 0],
        "held_bytes": table.kept_bytes,
        "work_backward_bytes": table.workspace_bytes,
        "state_bytes": shard.state_bytes,
        "gradient_bytes": shard.gradient_bytes,
    }
    units = [
        OptionTable.of([Option(f"tp{degrees.tmp}")], **{name: column[[l]] for name, column in columns.items()})
        for l in range(instance.layers)
    ]
    sent = placed.transfer_ns[0, 0] if degrees.pp > 1 else np.zeros(instance.layers - 1, np.int64)
    boundaries = [free_boundary(np.zeros((1, 1), np.int64), np.full((1, 1, 1), ns, np.int64)) for ns in sent.tolist()]
    return Configuration(
        schedule=Schedule(),
        micro_batches=max(shares),
        device_groups=(DeviceGroup((degrees.dp * degrees.tmp,)),) * degrees.pp,
        links=(0,) * (degrees.pp - 1),
        make_tables=constant((Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
        make_tied=constant(Tied(reduce_ns=placed.tied_ns) if placed.tied_ns else None),
        reduction=Reduction(instance.network, tuple(placed.grid[0, :, 0].tolist())) if degrees.dp > 1 else None,
    )
