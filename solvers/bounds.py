"""For each problem a time that no solution of an instance beats, in milliseconds, with what says so.

A method that proves nothing is given this bound, and so is one that its limit ends before it has any.
"""

from __future__ import annotations

from trainplan.formulations.cluster_strategy.makes import Case
from trainplan.formulations.cluster_strategy.problem import Instance as ClusterInstance
from trainplan.formulations.layer_strategies.problem import Instance as LayerInstance
from trainplan.formulations.memory_switches.columns import undominated
from trainplan.formulations.memory_switches.problem import Instance as SwitchInstance
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.pipeline.layouts import least_ns, parts
from trainplan.formulations.pipeline.problem import Instance as PipelineInstance
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.solvers.chain.chain import chain_of
from trainplan.solvers.cluster.bounds import even_stages_ns
from trainplan.solvers.partition.exact import even_bound_ns
from trainplan.solvers.switches.exact import chain_of_columns

Bound = tuple[int, str]  # ns, and its source


def layer_strategies(instance: LayerInstance) -> Bound:
    """The shortest path through the options, whatever memory it needs."""
    return chain_of(instance).fastest()[0], "fastest choice without a memory limit"


def pipeline(instance: PipelineInstance) -> Bound:
    """The least of all configurations, with every layer at its fastest in even stages."""
    return min(least_ns(part) for part in parts(instance)), "every layer at its fastest, in even stages"


def stage_assignment(instance: AssignmentInstance) -> Bound:
    """Every layer on its fastest stage, the largest stage with an even share or with the longest layer, the least transfers."""
    fastest = instance.layer_ns.min(axis=0)
    whole = int(fastest.sum())
    slowest = max(int(fastest.max()), -(-whole // instance.stages))
    moves = int(instance.transfer_ns.min(axis=1).sum()) if instance.transfer_ns.size else 0
    return (instance.micro_batches - 1) * slowest + whole + moves, "every layer at its fastest, in even stages"


def pipeline_partition(instance: PartitionInstance) -> Bound:
    """As if sub-layers could be cut anywhere."""
    return even_bound_ns(instance), "sub-layers cut anywhere"


def memory_switches(instance: SwitchInstance) -> Bound:
    """The shortest path of the synchronised step, whatever memory it needs; else all that a lane has to do in any step."""
    if instance.forced:
        chain = chain_of_columns(undominated(segments(instance)), instance.memory_bytes)
        return chain.fastest()[0], "fastest choice without a memory limit"
    lanes = ("forward_ns", "backward_ns"), ("reduce_scatter_ns",), ("optimizer_ns",)
    return max(sum(int(instance[name].sum()) for name in lane) for lane in lanes), "what the fullest lane has to do"


def cluster_strategy(instance: ClusterInstance) -> Bound | None:
    """The least of all degrees, with every layer at its fastest in even stages; None where there are no degrees."""
    bounds = [even_stages_ns(Case(instance, degrees, reduced=True)) for degrees in instance.degrees()]
    return (min(bounds), "every layer at its fastest, in even stages, for all degrees") if bounds else None
