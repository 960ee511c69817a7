"""The papers' problems as restrictions of the joint problem: equal solutions have equal costs, value for value.

    problem             decides                         restricts                                       step
    layer-strategies    an option of every layer        one stage, one micro-batch                      Eq. 8, a sum
    pipeline            stages, options                 messages wholly with the stage after the cut    Eq. 8
    stage-assignment    cuts                            one option; times by stage                      Eq. 5
    pipeline-partition  cuts                            one option; nothing after the last pass         simulated
    cluster-strategy    degrees, cuts                   one class of devices, even shares; one option   Eq. 4
    memory-switches     switches, synchronised          one stage, one micro-batch; options link        Eq. 8, a sum

Memory is equal, too: `kept_bytes` alone is Galvatron's Eq. 2 and H3T's chain, `held_bytes` with the largest pass is AutoPipe's
and AMP's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainplan.formulations.cluster_strategy.instance import Instance as ClusterInstance
from trainplan.formulations.layer_strategies.problem import Instance as LayerInstance
from trainplan.formulations.memory_switches.problem import Instance as SwitchInstance
from trainplan.formulations.pipeline.instance import Instance as PipelineInstance
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance

from tests.helpers.papers_as_joint.base import Restriction
from tests.helpers.papers_as_joint.cut_problems import cluster_strategy, pipeline_partition, stage_assignment
from tests.helpers.papers_as_joint.layer_problems import layer_strategies, memory_switches, pipeline


def restrict(instance: Any) -> Restriction:
    """The joint instance whose solutions are those of an instance of a paper's problem. Raises KeyError for another object."""
    restriction: Restriction = _RESTRICTIONS[type(instance)](instance)
    return restriction


_RESTRICTIONS: dict[type, Callable[[Any], Restriction]] = {
    LayerInstance: layer_strategies,
    PipelineInstance: pipeline,
    AssignmentInstance: stage_assignment,
    PartitionInstance: pipeline_partition,
    ClusterInstance: cluster_strategy,
    SwitchInstance: memory_switches,
}
