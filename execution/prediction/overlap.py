"""Predictions under the cost model `streams`: a plan's programs are simulated on the lanes of frameworks, with its costs.

It takes plans with tensor parallelism innermost, on devices of one kind. What is recomputed may differ between units. Their
layouts may, too, where `unlike_layouts` finds nothing against it; today's frameworks run plans of one layout. For plans that no
program carries out yet, surrogates are simulated (`surrogate_of`), whose instructions take what those of the plan would.
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
from trainplan.formulations.plan.strategy import ORDER, Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import LAYER_KINDS


def predict_overlapped(plan: Plan, cluster: Cluster, checked: bool = True) -> PlanPrediction:
    """Predict a plan by simulating its programs as other frameworks run them, with communication that overlaps computation.
    checked: whether to check the programs now; if not, `PlanPrediction.checked` does it later. Raises InputError if the plan's
    sub-layers do not all have one layout, if the cluster has several kinds of devices, or if its kind has no rate for the
    model's dtype. A program is one rank's instructions for a training step."""
    of_units, kinds = layouts_of(plan), cluster.used_kinds
    layout, unlike = of_units[0], of_units if len(set(of_units)) > 1 else ()
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
    costs = StreamsCosts(plan.planned_model(), layout, kinds[0], Links.of_cluster(cluster), unlike)
    walked = surrogate_of(plan)
    alike = walked.alike_on(cluster.network)
    walking: dict[str, Any] = {"lanes": "overlapped", "outside_program_bytes": weight_copies(plan), "checked": checked}
    return predict_from_costs(walked, lambda _: costs, backend_for_order(walked), by_class=alike, **walking)


def layout_of(plan: Plan) -> RunLayout:
    """The one parallel layout that all units (sub-layers) of a plan have. Raises InputError about the first unit with another
    one."""
    first = plain_layout(plan.units[0].strategy)
    for index, unit in enumerate(plan.units):
        if plain_layout(unit.strategy) != first:
            problem = f"is {str(unit.strategy)!r}"
            fix = f"give {plan.units[0].strategy}, as units[0] has, or leave --cost-model out"
            raise InputError("plan", f"units[{index}].{unit.field}", problem, fix)
    return layouts_of(plan)[0]


def layouts_of(plan: Plan) -> list[RunLayout]:
    """The parallel layout of every unit (sub-layer) of a plan, in model order. Raises InputError about the first unit that the
    cost model `streams` does not take, or whose layout is not the first one's where the plan has a feature that only plans of
    one layout can have."""
    model, first = plan.planned_model(), plan.units[0].strategy
    layered = [planned for unit, planned in zip(model.units, plan.units, strict=True) if unit.kind in LAYER_KINDS]
    refusal = unlike_layouts(plan)
    for index, unit in enumerate(plan.units):
        strategy, field = unit.strategy, f"units[{index}].{unit.field}"
        if refusal is not None and plain_layout(strategy) != plain_layout(first):
            fix = f"give {first}, as units[0] has, or leave --cost-model out: {refusal}"
            raise InputError("plan", field, f"is {str(strategy)!r}", fix)
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
    return [run_layout(plan, model, unit.strategy) for unit in plan.units]


def unlike_layouts(plan: Plan) -> str | None:
    """The feature of a plan, in words for an error, with which overlap is known only if all units have one layout; None if
    units may have unlike ones."""
    if plan.chunks > 1:
        return "unlike layouts are not of interleaved stages"
    if plan.optimizer != "adamw":
        return f"unlike layouts are not of {plan.optimizer}"
    if recipe_of(plan) is not None:
        return "unlike layouts are of the model's own precision"
    if any(unit.strategy.degree("cp") > 1 for unit in plan.units):
        return "unlike layouts have no context parallelism"
    if plan.depth > 1 and any(unit.strategy.zero_stage > 1 for unit in plan.units):
        return "unlike layouts in pipelines are of ZeRO 0 and 1"
    return None


def plain_layout(strategy: Strategy) -> Strategy:
    """The strategy without recomputation, which says only how ranks share work and states."""
    return replace(strategy, ckpt=False, modules=())


def run_layout(plan: Plan, model: Model, strategy: Strategy) -> RunLayout:
    """The parallel layout, for the cost model `streams`, of the units of a plan that have a strategy. model: the plan's."""
    dtype = model.dtype
    return RunLayout(
        dp=strategy.data_degree,
        tp=strategy.degree("tp"),
        pp=plan.depth,
        cp=strategy.degree("cp"),
        chunks=plan.chunks,
        zero=strategy.zero_stage,
        shard=strategy.degree("sdp"),
        sequence_parallel=strategy.sequence_parallel,
        recompute=recompute_of([module for unit in plan.units for module in unit.strategy.modules]),
        base=dtype,  # type: ignore[arg-type]
        precision=dtype,  # type: ignore[arg-type]
        micro=plan.batch.global_samples // plan.batch.micro_batches // strategy.data_degree,
        batch=plan.batch.global_samples,
        framework=planned_framework(plan.optimizer, plan.precision.gradient_bytes(model.element_bytes)),
        optimizer=plan.optimizer,
        exchange=strategy.exchange,
        recipe=recipe_of(plan),
    )
