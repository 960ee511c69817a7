"""Problems that decide each layer's option, as restrictions of the joint problem: layer-strategies, pipeline and
memory-switches (see `restrict`)."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    DeviceGroup,
    Schedule,
    Solution,
)
from trainplan.formulations.joint.tables import FORBIDDEN, Option, OptionTable, Tables
from trainplan.formulations.layer_strategies.problem import Instance as LayerInstance
from trainplan.formulations.memory_switches.problem import Instance as SwitchInstance
from trainplan.formulations.memory_switches.problem import Solution as SwitchSolution
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.pipeline.instance import Configuration as PipelineConfiguration
from trainplan.formulations.pipeline.instance import Instance as PipelineInstance
from trainplan.formulations.pipeline.problem import Solution as PipelineSolution

from tests.helpers.papers_as_joint.base import Restriction, constant, free_boundary, joint_instance, one_stage

# layer-strategies


def layer_strategies(instance: LayerInstance) -> Restriction:
    """A layer-strategies instance as a joint one: each layer is a kind of unit, and each boundary a kind of boundary; the state
    of an option at its boundaries is its own index."""
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
    tables = Tables(units=tuple(units), boundaries=tuple(map(free_boundary, instance.transitions_ns)))
    layers = [(name, l) for l, name in enumerate(instance.layer_names)]
    classes = [DeviceClass("device", 1, instance.memory_bytes)]
    joint = joint_instance(instance, layers, range(len(layers) - 1), [one_stage(tables)], classes, "eq8")
    return Restriction(joint, lambda choice: Solution(0, (), tuple(choice)), lambda solution: solution.choice)


# pipeline


def pipeline(instance: PipelineInstance) -> Restriction:
    """A pipeline instance as a joint one, with its configurations.

    The time of a layer without synchronisation is that of its forward pass; synchronisation, which only the last micro-batch
    has, is added to that one's backward pass.
    """
    layers = list(zip(instance.layer_names, instance.layer_kinds, strict=True))
    classes = [DeviceClass("device", instance.devices, instance.memory_bytes)]
    configurations = [_pipeline_configuration(instance, configuration) for configuration in instance.configurations]
    joint = joint_instance(instance, layers, instance.boundary_kinds, configurations, classes, "eq8", instance.batch)

    def lift(solution: PipelineSolution) -> Solution:
        cuts = np.cumsum(solution.stages)[:-1].tolist()
        return Solution(solution.configuration, tuple(cuts), tuple(solution.choice))

    def lower(solution: Solution) -> PipelineSolution:
        sizes = tuple(last - first + 1 for first, last in solution.spans())
        return PipelineSolution(solution.configuration, sizes, solution.choice)

    return Restriction(joint, lift, lower)


def _pipeline_configuration(instance: PipelineInstance, source: PipelineConfiguration) -> Configuration:
    """The joint configuration for one of a pipeline instance."""
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
        free_boundary(moves, np.broadcast_to(entries[None, None, :], (1, *moves.shape)), relayout_at_cut=False)
        for moves, entries in zip(tables.transitions_ns, tables.entries_ns, strict=True)
    ]
    return Configuration(
        schedule=Schedule(source.schedule),
        micro_batches=source.micro_batches,
        device_groups=(DeviceGroup((size,)),) * source.stages,
        links=(0,) * (source.stages - 1),
        make_tables=constant((Tables(units=tuple(units), boundaries=tuple(boundaries)),)),
    )


# memory-switches


def memory_switches(instance: SwitchInstance) -> Restriction:
    """A memory-switches instance as a joint one.

    An option is a layer's switches together with those switches of its neighbours that its segments depend on: r (three
    switches of the layer before, as a number below 8) and lazy_prefetch of the layer after. Neighbouring options must agree in
    the state between them, which is r of the first and lazy_prefetch of the second.
    """
    chain, count = segments(instance), instance.layers
    choices = range(len(chain.options))
    columns = [
        [(r, s, lazy) for r in (range(8) if l else (0,)) for s in choices for lazy in (range(2) if l < count - 1 else (0,))]
        for l in range(count)
    ]
    numbers = [{key: index for index, key in enumerate(column)} for column in columns]
    units = []
    for l, column in enumerate(columns):
        r, s, lazy = (np.array(part, np.int64) for part in zip(*column, strict=True))
        delta = chain.delta_bytes[l, s]
        units.append(
            OptionTable.of(
                [Option(f"{chain.options[b]} after {a} before {c}") for a, b, c in column],
                enter=2 * r + chain.lazy[s] if l else 0 * r,
                leave=2 * chain.r[s] + lazy if l < count - 1 else 0 * r,
                forward_ns=chain.time_ns[l, r, s, lazy],
                kept_bytes=delta,
                work_backward_bytes=chain.peak_bytes[l, r, s, lazy] - delta,
                state_bytes=chain.resident_bytes[l, s],
            )
        )
    agreeing = np.where(np.eye(16, dtype=bool), 0, FORBIDDEN)
    tables = Tables(units=tuple(units), boundaries=(free_boundary(agreeing),) if count > 1 else ())
    classes = [DeviceClass("device", 1, instance.memory_bytes)]
    layers = [(instance.name_of(l), l) for l in range(count)]
    joint = joint_instance(instance, layers, [0] * (count - 1), [one_stage(tables)], classes, "eq8")

    def lift(solution: SwitchSolution) -> Solution:
        indices = [chain.options.index(switches) for switches in solution.switches]
        before, after = [0, *(int(chain.r[s]) for s in indices)], [*(int(chain.lazy[s]) for s in indices[1:]), 0]
        keys = zip(before, indices, after, strict=False)
        return Solution(0, (), tuple(numbers[l][key] for l, key in enumerate(keys)))

    def lower(solution: Solution) -> SwitchSolution:
        return SwitchSolution(tuple(chain.options[columns[l][s][1]] for l, s in enumerate(solution.choice)))

    return Restriction(joint, lift, lower)
