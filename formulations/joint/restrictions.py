"""Problems of the papers as restrictions of the joint problem: the same solutions cost the same, value for value.

    problem             decides                         restricts                                       step
    layer-strategies    an option of every layer        one stage, one micro-batch                      Eq. 8, a sum
    pipeline            stages, options                 messages wholly with the stage after the cut    Eq. 8
    stage-assignment    cuts                            one option; times by stage                      Eq. 5
    pipeline-partition  cuts                            one option; nothing behind the last pass        simulated
    cluster-strategy    degrees, cuts                   one class of devices, even shares; one option   Eq. 4
    memory-switches     switches, synchronised          one stage, one micro-batch; options link        Eq. 8, a sum

Memory is the same, too: `kept_bytes` alone is Galvatron's Eq. 2 and H3T's chain, `held_bytes` with the largest pass AutoPipe's
and AMP's. Of free segments (memory-switches without forced synchronisation) there are no tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.problem import Degrees
from trainplan.formulations.cluster_strategy.problem import Instance as ClusterInstance
from trainplan.formulations.cluster_strategy.problem import Solution as ClusterSolution
from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    Instance,
    Reduction,
    Schedule,
    Site,
    Solution,
    Step,
    Unit,
)
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, Option, OptionTable, Tables, Tied
from trainplan.formulations.layer_strategies.problem import Instance as LayerInstance
from trainplan.formulations.memory_switches.problem import Instance as SwitchInstance
from trainplan.formulations.memory_switches.problem import Solution as SwitchSolution
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.pipeline.problem import Configuration as PipelineConfiguration
from trainplan.formulations.pipeline.problem import Instance as PipelineInstance
from trainplan.formulations.pipeline.problem import Solution as PipelineSolution
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.pipeline_partition.problem import Solution as PartitionSolution
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.formulations.stage_assignment.problem import Solution as AssignmentSolution
from trainplan.formulations.step.chains import Chain
from trainplan.profiling.base.errors import Unsuited

NO_LIMIT = 2**48


@dataclass(frozen=True)
class Restriction:
    """A problem's instance as one of the joint problem. lift: a solution of the problem as a joint one; lower: back again."""

    instance: Instance
    lift: Callable[[Any], Solution]
    lower: Callable[[Solution], Any]


def restrict(instance: Any) -> Restriction:
    """The joint instance whose solutions are those of a problem's instance. Raises KeyError for a problem that is none."""
    restriction: Restriction = _RESTRICTIONS[type(instance)](instance)
    return restriction


def _joint(
    source: Any,
    units: Sequence[tuple[str, int]],
    boundary_kinds: Sequence[int],
    configurations: Sequence[Configuration],
    classes: Sequence[DeviceClass],
    step: Step,
    batch: int = 1,
) -> Instance:
    """units: name and kind of each."""
    return Instance(
        classes=tuple(classes),
        batch=batch,
        units=tuple(Unit(name, kind, l, l) for l, (name, kind) in enumerate(units)),
        boundary_kinds=tuple(boundary_kinds),
        cuttable=(True,) * (len(units) - 1),
        configurations=tuple(configurations),
        step=step,
        name=source.name,
        provenance=source.provenance,
    )


def _boundary(
    relayout_ns: Integers, message_ns: Integers | None = None, back_ns: Integers | None = None, **more: Any
) -> Boundary:
    """Of one kind: re-layouts forward, and messages by kind of link, of which there is one where none are given."""
    none = np.zeros((1, *relayout_ns.shape), np.int64)
    return Boundary(
        relayout_forward_ns=relayout_ns,
        relayout_backward_ns=np.zeros_like(relayout_ns),
        message_forward_ns=none if message_ns is None else message_ns,
        message_backward_ns=np.zeros_like(none if message_ns is None else message_ns) if back_ns is None else back_ns,
        **more,
    )


def _one_stage(tables: Tables, micro_batches: int = 1) -> Configuration:
    return Configuration(
        schedule=Schedule(), micro_batches=micro_batches, sites=(Site((1,)),), links=(), make_tables=partial(_made, (tables,))
    )


def _made(tables: tuple[Tables, ...]) -> tuple[Tables, ...]:
    return tables


# layer-strategies


def layer_strategies(instance: LayerInstance) -> Restriction:
    """Every layer is a kind of its own, and so is every boundary; an option's interface state is its own number."""
    units = [
        OptionTable.of(
            [Option(name) for name in names],
            enter=range(len(names)),
            leave=range(len(names)),
            forward_ns=instance.time_ns[l],
            kept_bytes=instance.forward_bytes[l],
            work_backward_bytes=instance.backward_bytes[l],
            state_bytes=instance.state_bytes[l],
        )
        for l, names in enumerate(instance.strategies)
    ]
    tables = Tables(units=tuple(units), boundaries=tuple(map(_boundary, instance.transitions_ns)))
    layers = [(name, l) for l, name in enumerate(instance.layer_names)]
    classes = [DeviceClass("device", 1, instance.memory_bytes)]
    joint = _joint(instance, layers, range(len(layers) - 1), [_one_stage(tables)], classes, "eq8")
    return Restriction(joint, lambda choice: Solution(0, (), tuple(choice)), lambda solution: solution.choice)


# pipeline


def pipeline(instance: PipelineInstance) -> Restriction:
    """One configuration for each, with its tables. The time of a layer without synchronisation is that of its forward pass;
    what the last micro-batch pays is added to its backward pass."""
    layers = list(zip(instance.layer_names, instance.layer_kinds, strict=True))
    classes = [DeviceClass("device", instance.devices, instance.memory_bytes)]
    configurations = [_pipeline_configuration(instance, each) for each in instance.configurations]
    joint = _joint(instance, layers, instance.boundary_kinds, configurations, classes, "eq8", instance.batch)

    def lift(solution: PipelineSolution) -> Solution:
        cuts = np.cumsum(solution.stages)[:-1].tolist()
        return Solution(solution.configuration, tuple(cuts), tuple(solution.choice))

    def lower(solution: Solution) -> PipelineSolution:
        sizes = tuple(last - first + 1 for first, last in solution.spans())
        return PipelineSolution(solution.configuration, sizes, solution.choice)

    return Restriction(joint, lift, lower)


def _pipeline_configuration(instance: PipelineInstance, source: PipelineConfiguration) -> Configuration:
    tables, size = source.tables, instance.devices // source.stages
    states = range(len(tables.strategies))
    units = [
        OptionTable.of(
            [Option(name) for name in tables.strategies],
            enter=states,
            leave=states,
            forward_ns=tables.time_ns[kind] - tables.sync_ns[kind],
            last_ns=tables.sync_ns[kind],
            kept_bytes=tables.forward_bytes[kind],
            work_backward_bytes=tables.backward_bytes[kind],
            state_bytes=tables.state_bytes[kind],
        )
        for kind in range(len(tables.time_ns))
    ]
    boundaries = [
        _boundary(moves, np.broadcast_to(entries[None, None, :], (1, *moves.shape)), relayout_at_cut=False)
        for moves, entries in zip(tables.transitions_ns, tables.entries_ns, strict=True)
    ]
    return Configuration(
        schedule=Schedule(source.schedule),
        micro_batches=source.micro_batches,
        sites=(Site((size,)),) * source.stages,
        links=(0,) * (source.stages - 1),
        make_tables=partial(_made, (Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
    )


# stage-assignment and pipeline-partition


def _sites(instance: Chain, by_stage: bool) -> tuple[list[DeviceClass], tuple[Site, ...]]:
    """Classes of devices by the memory that stages have, and a site of one device for each stage. by_stage: whether every site
    is of a kind of its own."""
    count = instance.stages
    limits = [NO_LIMIT] * count if instance.memory is None else instance.memory.limit_bytes.tolist()
    sizes = sorted(set(limits))
    classes = [DeviceClass(f"device {place}", limits.count(size), size) for place, size in enumerate(sizes)]
    sites = [Site(tuple(int(limit == size) for size in sizes), x if by_stage else 0) for x, limit in enumerate(limits)]
    return classes, tuple(sites)


def _memory(instance: Chain, layer: int) -> dict[str, list[int]]:
    """The bytes of a layer: what a micro-batch keeps is held as long as it is in flight."""
    if (memory := instance.memory) is None:
        return {}
    columns = {
        "state_bytes": memory.state_bytes,
        "held_bytes": memory.kept_bytes,
        "work_backward_bytes": memory.workspace_bytes,
    }
    return {name: [int(column[layer])] for name, column in columns.items()}


def stage_assignment(instance: AssignmentInstance) -> Restriction:
    """Every layer is a kind of its own with one option; every stage a kind of site, and every two stages a kind of link."""
    length, links = instance.layers, max(1, instance.stages - 1)
    boundaries = []
    for l in range(length - 1):
        sent = instance.transfer_ns[:, l] if instance.stages > 1 else np.zeros(1, np.int64)
        boundaries.append(_boundary(np.zeros((1, 1), np.int64), sent.reshape(links, 1, 1)))
    tables = [
        Tables(
            units=tuple(
                OptionTable.of([Option("layer")], forward_ns=[int(t)], **_memory(instance, l)) for l, t in enumerate(row)
            ),
            boundaries=tuple(boundaries),
        )
        for row in instance.layer_ns
    ]
    classes, sites = _sites(instance, by_stage=True)
    configuration = Configuration(
        schedule=Schedule(),
        micro_batches=instance.micro_batches,
        sites=sites,
        links=tuple(range(instance.stages - 1)),
        make_tables=partial(_made, tuple(tables)),
    )
    layers = [(instance.name_of(l), l) for l in range(length)]
    joint = _joint(instance, layers, range(length - 1), [configuration], classes, "eq5", instance.micro_batches)
    return Restriction(
        joint, lambda solution: Solution(0, solution.cuts, (0,) * length), lambda solution: AssignmentSolution(solution.cuts)
    )


def pipeline_partition(instance: PartitionInstance) -> Restriction:
    """Every sub-layer is a kind of its own with one option, every cut a kind of boundary. Of solutions that slice nothing: a
    stage's half is half of the sum, with its odd nanosecond, which no sub-layer has of its own."""
    length, units, boundaries = instance.sublayers, [], []
    for l in range(length):
        columns = {"forward_ns": [int(instance.forward_ns[l])], "backward_ns": [int(instance.backward_ns[l])]}
        units.append(OptionTable.of([Option("sub-layer")], **columns, **_memory(instance, l)))
    for move in instance.transfer_ns.tolist():
        sent = np.full((1, 1, 1), move, np.int64)
        boundaries.append(_boundary(np.zeros((1, 1), np.int64), sent, sent))
    classes, sites = _sites(instance, by_stage=False)
    configuration = Configuration(
        schedule=Schedule(),
        micro_batches=instance.micro_batches,
        sites=sites,
        links=(0,) * (instance.stages - 1),
        make_tables=partial(_made, (Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
    )
    layers = [(instance.name_of(l), l) for l in range(length)]
    joint = _joint(instance, layers, range(length - 1), [configuration], classes, "simulated", instance.micro_batches)

    def lift(solution: PartitionSolution) -> Solution:
        assert not solution.sliced, "halves of sums are no sums of halves"
        return Solution(0, solution.cuts, (0,) * length)

    return Restriction(joint, lift, lambda solution: PartitionSolution(solution.cuts))


# cluster-strategy


def cluster_strategy(instance: ClusterInstance) -> Restriction:
    """Of equal devices, which may all stand for each other, and of solutions with shares as even as can be: one configuration
    for each choice of degrees. Where one share is larger than others, it is that pipeline that counts."""
    if int(instance.classes.max()):
        raise Unsuited("instance", "devices", "are not all alike", "give a cluster of one kind of device and of link")
    degrees = [each for each in instance.degrees() if instance.even_shares(each.dp, each.mbs)]
    layers = [(name, l) for l, name in enumerate(instance.layer_names)]
    limit = instance.memory_bytes if instance.within_memory else NO_LIMIT
    configurations = [_cluster_configuration(instance, each) for each in degrees]
    classes = [DeviceClass("device", instance.devices, limit)]
    joint = _joint(instance, layers, range(len(layers) - 1), configurations, classes, "eq4", instance.batch)
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
    boundaries = [_boundary(np.zeros((1, 1), np.int64), np.full((1, 1, 1), ns, np.int64)) for ns in sent.tolist()]
    return Configuration(
        schedule=Schedule(),
        micro_batches=max(shares),
        sites=(Site((degrees.dp * degrees.tmp,)),) * degrees.pp,
        links=(0,) * (degrees.pp - 1),
        make_tables=partial(_made, (Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
        make_tied=partial(_present, Tied(reduce_ns=placed.tied_ns) if placed.tied_ns else None),
        reduction=Reduction(instance.network, tuple(placed.grid[0, :, 0].tolist())) if degrees.dp > 1 else None,
    )


def _present(tied: Tied | None) -> Tied | None:
    return tied


# memory-switches


def memory_switches(instance: SwitchInstance) -> Restriction:
    """Of an instance whose synchronisation is forced. An option is a layer's switches, with those of its neighbours that its
    segments depend on: r of the layer before, and lazy_prefetch of the one after. Options agree by the state between two
    layers, r of the one and lazy_prefetch of the other."""
    if not instance.forced:
        fix = "give an instance whose synchronisation is forced: free segments have no times of their own"
        raise Unsuited("instance", "synchronisation", "is 'free'", fix)
    chain, count = segments(instance), instance.layers
    choices = range(len(chain.options))
    columns = [
        [(r, s, lazy) for r in (range(8) if l else (0,)) for s in choices for lazy in (range(2) if l < count - 1 else (0,))]
        for l in range(count)
    ]
    numbers = [{key: place for place, key in enumerate(each)} for each in columns]
    units = []
    for l, each in enumerate(columns):
        r, s, lazy = (np.array(part, np.int64) for part in zip(*each, strict=True))
        delta = chain.delta_bytes[l, s]
        units.append(
            OptionTable.of(
                [Option(f"{chain.options[b]} after {a} before {c}") for a, b, c in each],
                enter=2 * r + chain.lazy[s] if l else 0 * r,
                leave=2 * chain.r[s] + lazy if l < count - 1 else 0 * r,
                forward_ns=chain.time_ns[l, r, s, lazy],
                kept_bytes=delta,
                work_backward_bytes=chain.peak_bytes[l, r, s, lazy] - delta,
                state_bytes=chain.resident_bytes[l, s],
            )
        )
    agreeing = np.where(np.eye(16, dtype=bool), 0, FORBIDDEN)
    tables = Tables(units=tuple(units), boundaries=(_boundary(agreeing),) if count > 1 else ())
    classes = [DeviceClass("device", 1, instance.memory_bytes)]
    layers = [(instance.name_of(l), l) for l in range(count)]
    joint = _joint(instance, layers, [0] * (count - 1), [_one_stage(tables)], classes, "eq8")

    def lift(solution: SwitchSolution) -> Solution:
        places = [chain.options.index(switches) for switches in solution.switches]
        before, after = [0, *(int(chain.r[s]) for s in places)], [*(int(chain.lazy[s]) for s in places[1:]), 0]
        keys = zip(before, places, after, strict=False)
        return Solution(0, (), tuple(numbers[l][key] for l, key in enumerate(keys)))

    def lower(solution: Solution) -> SwitchSolution:
        return SwitchSolution(tuple(chain.options[columns[l][s][1]] for l, s in enumerate(solution.choice)))

    return Restriction(joint, lift, lower)


_RESTRICTIONS: dict[type, Callable[[Any], Restriction]] = {
    LayerInstance: layer_strategies,
    PipelineInstance: pipeline,
    AssignmentInstance: stage_assignment,
    PartitionInstance: pipeline_partition,
    ClusterInstance: cluster_strategy,
    SwitchInstance: memory_switches,
}
