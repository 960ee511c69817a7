"""Predictions under the cost model `streams`: a plan's programs are simulated on the lanes of frameworks, with its costs.

It takes plans whose units all have one layout, tensor parallelism innermost, on devices of one kind, as today's frameworks run
them; what is recomputed may differ. For plans that no program carries out yet, surrogates are simulated (`surrogate_of`), whose
instructions take what those of the plan would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainplan.execution.analysis.timing.overlapped_costs import StreamsCosts
from trainplan.execution.prediction.evaluate_plan import PlanPrediction, backend_for_order, predict_from_costs
from trainplan.execution.prediction.surrogate import recipe_of, surrogate_of, weight_copies
from trainplan.formulations.costs.overlapped.frameworks import planned_framework
from trainplan.formulations.costs.overlapped.layout import RunLayout, recompute_of
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import ORDER
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.sublayers import LAYER_KINDS


def predict_overlapped(plan: Plan, cluster: Cluster, checked: bool = True) -> PlanPrediction:
    """Predict a plan by simulating its programs as other frameworks run them, with communication that overlaps computation.
    checked: whether to check the programs now; if not, `PlanPrediction.checked` does it later. Raises InputError if the plan's
    sub-layers do not all have one layout, if the cluster has several kinds of devices, or if its kind has no rate for the
    model's dtype. A program is one rank's instructions for a training step."""
    layout, kinds = layout_of(plan), cluster.used_kinds
    if len(kinds) > 1:
        raise InputError("cluster", "kinds", f"are {len(kinds)}", "give devices of one kind, or leave --cost-model out")
    if layout.base not in kinds[0].flops_per_s:
        fix = f"plan in one of {', '.join(kinds[0].flops_per_s)}"
        raise InputError("cluster", f"{kinds[0].name}.flops_per_s", f"has no {layout.base}", fix)
    if layout.recipe is not None and layout.recipe.name not in kinds[0].recipes:
        fix = f"plan with --precision {' or '.join(['model', *kinds[0].recipes])}"
        raise InputError("cluster", f"{kinds[0].name}.recipes", f"has no {layout.recipe.name}", fix)
    if plan.world > cluster.devices:
        raise InputError("command line", "--cluster", f"has {cluster.devices} devices", f"give one of at least {plan.world}")
    costs = StreamsCosts(plan.planned_model(), layout, kinds[0], Links.of_cluster(cluster))
    walked = surrogate_of(plan)
    alike = walked.alike_on(cluster.network)
    walking: dict[str, Any] = {"lanes": "overlapped", "outside_program_bytes": weight_copies(plan), "checked": checked}
    return predict_from_costs(walked, lambda _: costs, backend_for_order(walked), by_class=alike, **walking)


def layout_of(plan: Plan) -> RunLayout:
    """The one parallel layout that all units (sub-layers) of a plan have. Raises InputError about the first unit with another
    one."""
    model, first = plan.planned_model(), plan.units[0].strategy
    layered = [planned for unit, planned in zip(model.units, plan.units, strict=True) if unit.kind in LAYER_KINDS]
    for index, unit in enumerate(plan.units):
        strategy, field = unit.strategy, f"units[{index}].{unit.field}"
        if replace(strategy, ckpt=False, modules=()) != replace(first, ckpt=False, modules=()):
            raise InputError(
                "plan", field, f"is {str(strategy)!r}", f"give {first}, as units[0] has, or leave --cost-model out"
            )
        if any(paradigm == "tp" for paradigm, _ in strategy.levels[:-1]):
            raise InputError("plan", field, f"is {str(strategy)!r}", "give tp as the last level, on the fastest links")
        if not strategy.in_rank_order:
            raise InputError("plan", field, f"is {str(strategy)!r}", f"give levels in the order {', '.join(ORDER)}")
        if model.units[index].kind in LAYER_KINDS and unit.precision != layered[0].precision:
            fix = f"give {layered[0].precision!r}, as {layered[0].name} has"
            raise InputError("plan", f"units[{index}].precision", f"is {unit.precision!r}", fix)
    if (on_host := any(unit.states.on_host for unit in plan.units)) or plan.batch.shares is not None:
        problem = "has states on the host" if on_host else "has shares"
        raise InputError("plan", "batch.shares", problem, "leave --cost-model out")
    dtype = model.dtype
    return RunLayout(
        dp=first.data_degree,
        tp=first.degree("tp"),
        pp=plan.depth,
        cp=first.degree("cp"),
        chunks=plan.chunks,
        zero=first.zero_stage,
        shard=first.degree("sdp"),
        sequence_parallel=first.sequence_parallel,
        recompute=recompute_of([module for unit in plan.units for module in unit.strategy.modules]),
        base=dtype,  # type: ignore[arg-type]
        precision=dtype,  # type: ignore[arg-type]
        micro=plan.batch.global_samples // plan.batch.micro_batches // first.data_degree,
        batch=plan.batch.global_samples,
        framework=planned_framework(plan.optimizer, plan.precision.gradient_bytes(model.element_bytes)),
        optimizer=plan.optimizer,
        exchange=first.exchange,
        recipe=recipe_of(plan),
    )
