"""Plans judged under the cost model `streams`: their programs are walked on lanes, with its costs.

It takes plans whose units are all laid out alike, tensor parallelism within, on devices of one kind, as today's frameworks run
them; what is recomputed may differ.
"""

from __future__ import annotations

from trainplan.execution.judge import Judged, judge_by
from trainplan.execution.walk.stream_costs import StreamsCosts
from trainplan.formulations.plan import Plan
from trainplan.formulations.streams.layout import Framework, Recompute, RunLayout
from trainplan.formulations.streams.links import Links
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster

TRAINPLAN = Framework("trainplan", gradients_behind=True, parameters_ahead=True, ends_ns=0)


def judge_streams(plan: Plan, cluster: Cluster) -> Judged:
    """The walks over a plan's programs on the lanes of the back-end `streams`. Raises InputError where the plan is not of one
    layout, or the cluster of several kinds of devices or of one without a rate for the model's dtype."""
    layout, kinds = layout_of(plan), cluster.used_kinds
    if len(kinds) > 1:
        raise InputError("cluster", "kinds", f"are {len(kinds)}", "give devices of one kind, or leave --cost-model out")
    if layout.base not in kinds[0].flops_per_s:
        fix = f"plan in one of {', '.join(kinds[0].flops_per_s)}"
        raise InputError("cluster", f"{kinds[0].name}.flops_per_s", f"has no {layout.base}", fix)
    if plan.world > cluster.devices:
        raise InputError("command line", "--cluster", f"has {cluster.devices} devices", f"give one of at least {plan.world}")
    costs = StreamsCosts(plan.planned_model(), layout, kinds[0], links_of(cluster))
    return judge_by(plan, lambda _: costs, "streams", by_class=plan.alike_on(cluster.network))


def layout_of(plan: Plan) -> RunLayout:
    """The layout that all units of a plan have. Raises InputError naming the first unit that has another one."""
    model, first = plan.planned_model(), plan.units[0].strategy
    for place, unit in enumerate(plan.units):
        strategy, field = unit.strategy, f"units[{place}].{unit.field}"
        if (strategy.levels, strategy.zero, strategy.sequence_parallel) != (first.levels, first.zero, first.sequence_parallel):
            raise InputError(
                "plan", field, f"is {str(strategy)!r}", f"give {first}, as units[0] has, or leave --cost-model out"
            )
        if any(paradigm == "tp" for paradigm, _ in strategy.levels[:-1]):
            raise InputError("plan", field, f"is {str(strategy)!r}", "give tp as the last level, on the fastest links")
    if plan.uses_host or plan.batch.shares is not None:
        problem = "has states on the host" if plan.uses_host else "has shares"
        raise InputError("plan", "batch.shares", problem, "leave --cost-model out")
    modules = {module for unit in plan.units for module in unit.strategy.modules}
    dtype, shard = model.dtype, first.degree("sdp")
    return RunLayout(
        dp=first.data_degree,
        tp=first.degree("tp"),
        pp=plan.depth,
        cp=1,
        chunks=plan.chunks,
        zero=first.zero_stage,
        shard=shard,
        sequence_parallel=first.sequence_parallel,
        recompute=Recompute(attention="attention" in modules, activations=bool(modules & {"norms", "activation"})),
        base=dtype,  # type: ignore[arg-type]
        precision=dtype,  # type: ignore[arg-type]
        micro=plan.batch.global_samples // plan.batch.micro_batches // first.data_degree,
        batch=plan.batch.global_samples,
        framework=TRAINPLAN,
    )


def links_of(cluster: Cluster) -> Links:
    """Links within a node, and a device's share of those between nodes."""
    node, network = cluster.nodes[0].devices, cluster.network
    within = network.link(range(node)).bandwidth_bytes_per_s if node > 1 else 1e12
    across = network.link((0, node)).bandwidth_bytes_per_s if cluster.devices > node else within
    return Links(node, within, across)
