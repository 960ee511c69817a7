"""Predictions of plans that other runtimes run: by the cost model `streams`, as measured runs are predicted, with the settings
of the runtime's framework.

Every command (`import-run`, `plan --for`, `simulate`) gives such a plan this step and this memory, and `validate` gives the
same to a row that describes the same run. Where there is no such prediction, the simulation of the plan's programs is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.analytic_step import Chunk
from trainplan.formulations.costs.overlapped.layout import (
    RUN_SCHEDULES,
    Framework,
    Hosted,
    RecomputePolicy,
    RunLayout,
    recompute_of,
)
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.joint.runtime_costs import LaidPlan
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.formulations.runtimes import StepAndPeaks, run_by, title
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision, shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.nodes import cluster_of_nodes
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.clusters.sheets import DeviceSheet, sheet, sheets
from trainplan.profiling.models.model import Unit
from trainplan.profiling.models.optimizers import OPTIMIZERS
from trainplan.validation.alongside import HELD, with_attention
from trainplan.validation.frameworks import framework_of
from trainplan.validation.layouts import LaidRun, laid_out
from trainplan.validation.predict import Prediction, predict_laid, step_of
from trainplan.validation.rows import Run

ENDS = ("embedding", "head")


def as_run(plan: Plan, cluster: Cluster) -> tuple[Plan, Prediction | str]:
    """Predict a plan as the runtime that it was made for would run it. Returns the plan with this prediction in it, and the
    prediction. If the runtime cannot be predicted, returns the plan unchanged, and the reason as a text.

    The plan must already carry a prediction of its own programs (instruction lists), whose durations it keeps.
    """
    found = predict(plan, cluster)
    if isinstance(found, str) or plan.predicted is None:
        return plan, found if isinstance(found, str) else "the plan has no programs"
    predicted = plan.predicted.changed(
        step_ns=found.step_ns,
        peak_bytes=list(found.peak_bytes),
        cost_model="streams",
        software=found.software,
        profile_origin=f"estimated on {cluster.name}",
    )
    return plan.changed(predicted=predicted), found.details


def predict(plan: Plan, cluster: Cluster, runtime: str | None = None) -> StepAndPeaks | str:
    """The prediction of a plan's step and memory by one runtime, or the reason why there is none as a text; as
    `formulations.runtimes.predict` describes, which calls it.

    plan: the plan, which needs no prediction of its own programs. cluster: the devices. runtime: the runtime's name; None for
    the one in the plan's field `runs_by`.
    """
    if runtime is not None:
        plan = plan.changed(runs_by=run_by(runtime, plan))
    found = predict_plan(plan, cluster)
    if isinstance(found, str):
        return found
    assert plan.runs_by is not None and found.step is not None and found.laid is not None
    memory, peaks = run_memory(found.laid.model, found.laid.layout), [0] * plan.world
    for position, stage in enumerate(plan.stages[: plan.depth]):
        for rank in stage.ranks:
            peaks[rank] = round(memory[position].peak_bytes)
    step_ns = round(found.step.step_ns)
    return StepAndPeaks(title(plan.runs_by.name), plan.runs_by.software, step_ns, tuple(peaks), found)


def predict_plan(plan: Plan, cluster: Cluster) -> Prediction | str:
    """Predict step and memory of a plan as its runtime, in the plan's field `runs_by`, would run it on a cluster. Returns the
    reason as a text if that is not possible.
    """
    laid = laid_plan(plan, cluster)
    return laid if isinstance(laid, str) else predict_laid(laid, shipped_efficiencies())


def laid_for(plan: Plan, cluster: Cluster, runtime: str) -> LaidPlan | str:
    """A plan laid out as a runtime runs it, for searches that predict many plans which differ in their stages alone; the reason
    as a text if the runtime cannot be predicted for it. `formulations.joint.runtime_costs` calls it.

    plan: the plan, whose fields need not be checked. cluster: the devices. runtime: the runtime's name.
    """
    laid = laid_plan(plan, cluster, run_by(runtime, plan))
    if isinstance(laid, str):
        return laid
    table = shipped_efficiencies()
    links = laid.links or Links.of(laid.sheet, table, laid.run.gpus, laid.network_bytes_per_s)

    def predicted(layout: RunLayout) -> tuple[int, tuple[int, ...]]:
        numbers = replace(laid, layout=layout)
        peaks = (round(rank.peak_bytes) for rank in run_memory(numbers.model, layout))
        return round(step_of(numbers, table).step_ns), tuple(peaks)

    rates = None if laid.rates is None else tuple(laid.rates.items())
    kind = _shipped_kind(laid.name, rates)
    if laid.efficiencies is not None:
        kind = kind.changed(efficiencies=list(laid.efficiencies))
    return LaidPlan(laid.model, laid.layout, kind, links, predicted)


@lru_cache(maxsize=16)
def _shipped_kind(name: str, rates: tuple[tuple[Precision, float], ...] | None) -> DeviceKind:
    """A kind of device with the efficiencies that come with the package. name: its data sheet. rates: peak rates by dtype; None
    for those of the data sheet."""
    kind = device_kind(name, shipped_efficiencies())
    return kind if rates is None else kind.changed(flops_per_s=dict(rates))


def laid_plan(plan: Plan, cluster: Cluster, by: RunBy | None = None) -> LaidRun | str:
    """A plan laid out on a cluster as its runtime runs it, ready to be predicted. Returns the reason as a text if that runtime
    cannot be predicted for it. by: the runtime and its settings; None for those in the plan's field `runs_by`.
    """
    by, model, strategy = by or plan.runs_by, plan.planned_model(), plan.units[0].strategy
    if by is None:
        return "the plan is for trainplan's own runtime"
    if (why := unpredicted(cluster)) is not None:
        return why
    kind = _kind(cluster)
    assert kind is not None
    strategies = {unit.strategy for unit in plan.units}
    if len({replace(own, ckpt=False, modules=()) for own in strategies}) > 1 or plan.batch.shares is not None:
        return "units are laid out unlike"
    schedule = next((name for name in RUN_SCHEDULES if name == SCHEDULES[plan.schedule].predicted_as), None)
    if schedule is None:
        return f"what other runtimes take under the schedule {plan.schedule} is not known"
    recipes = {unit.precision for unit in plan.units} - {"model"}  # at most one
    zero = strategy.zero_stage if by.zero is None else by.zero
    whole_matrices = OPTIMIZERS[plan.optimizer].whole_matrices and plan.optimizer not in by.flags
    stepped = f" {plan.optimizer}" if whole_matrices else ""
    run = Run(
        id=by.name, model=model.name, gpu=kind, gpus=plan.world, gbs=plan.batch.global_samples,
        mbs=plan.batch.global_samples // plan.batch.micro_batches // strategy.data_degree, tp=strategy.degree("tp"),
        cp=strategy.degree("cp"), pp=plan.depth, vpp=plan.chunks, zero=zero, precision=" ".join((model.dtype, *recipes)),
        framework=by.software, date=by.date, note=f"{by.flags}{stepped} shard group {strategy.degree('sdp')}",
    )  # fmt: skip
    buffers = Buffers(**by.buffers)
    fused_attention = None if buffers.attention is None else buffers.attention == "flash"
    assumed = dict[str, str]()
    framework = with_attention(_with_states(framework_of(run), plan, by), sheet(kind), fused_attention, assumed)
    if not framework.fused_attention:
        model = model.with_fields(attn_implementation="eager")
    try:
        laid = laid_out(run, model, kind, framework, assumed, buffers)
    except InputError as error:
        return f"{error.field} {error.problem}"
    layout = replace(
        laid.layout,
        zero=zero,
        recompute=replace(_recompute(by.name, plan), group=by.group),
        sequence_parallel=strategy.sequence_parallel,
        exchange=strategy.exchange,
        optimizer=plan.optimizer,
        schedule=schedule,
        recipe=next((RECIPES[name] for name in recipes), None),
        stage_layers=tuple(Chunk(tuple(model.units[stage.first_unit : stage.last_unit + 1])).layers for stage in plan.stages),
        on_host=_on_host(plan.units),
    )
    links = _links_of_last(cluster, kind, laid.sheet)
    rates = cluster.used_kinds[0].flops_per_s
    held = {name: text for name, text in assumed.items() if name in HELD}
    laid = replace(laid, layout=layout, links=links, rates=None if rates == laid.sheet.flops_per_s else rates, assumed=held)
    return replace(laid, efficiencies=tuple(cluster.used_kinds[0].efficiencies)) if cluster.corrected else laid


def unpredicted(cluster: Cluster) -> str | None:
    """The reason why no runtime can be predicted on a cluster, such as devices that differ; None if runtimes can be
    predicted.
    """
    if len(cluster.used_kinds) > 1 or cluster.matrix is not None or len({node.devices for node in cluster.nodes}) > 1:
        return "nodes or devices are unlike"
    if _kind(cluster) is None:
        return f"there is no data sheet of {cluster.used_kinds[0].name}"
    if not cluster.used_kinds[0].efficiencies:
        return f"what kernels of {cluster.used_kinds[0].name} reach is not known by their classes" + (
            f", {cluster.whose_numbers}" if cluster.paper else ""
        )
    return None


def _kind(cluster: Cluster) -> str | None:
    """The name of the data sheet of a cluster's devices; None if there is no data sheet for them."""
    return _sheet_of(cluster.used_kinds[0].name)


@lru_cache(maxsize=64)
def _sheet_of(device: str) -> str | None:
    """The name of the data sheet of the devices called `device`; None if there is none."""
    return next((name for name in sheets() if sheet(name).name == device), None)


def _with_states(framework: Framework, plan: Plan, by: RunBy) -> Framework:
    """Copy the cost model's settings for a framework, with model states in the dtypes that a plan states.

    The settings are returned unchanged for two things that a plan cannot state but the runtime has: master copies on the
    host, and FSDP2's gradients in the dtype of its master copies. by: the runtime.
    """
    if plan.uses_host or (by.name == "accelerate" and plan.precision.master is not None):
        return framework
    model = plan.planned_model()
    element, precision = model.element_bytes, plan.precision.for_model(model)
    gradient = precision.gradient_bytes(element)
    if precision.master is None and element < framework.master_bytes:  # moments are of the model's dtype, too
        return replace(framework, master_bytes=0, moments_bytes=2 * element, gradient_bytes=gradient, copied_bytes=0)
    return framework if framework.gradient_bytes == gradient else replace(framework, gradient_bytes=gradient, copied_bytes=0)


def _recompute(runtime: str, plan: Plan) -> RecomputePolicy:
    """The recomputation policy that describes the recomputation in a plan's strategies: of named modules, or of whole layers
    (for example all layers, the first ones of each stage, or every second one). On torchtitan, named modules become its own
    selective recomputation by operations, which keeps every second matrix multiplication.

    runtime: the runtime's name, such as "torchtitan".
    """
    pairs = [
        (unit, planned) for unit, planned in zip(plan.planned_model().units, plan.units, strict=True) if unit.kind not in ENDS
    ]
    modules = {module for _, planned in pairs for module in planned.strategy.modules}
    if modules and runtime == "torchtitan":
        return RecomputePolicy(operations=True)
    recomputed = {unit.layer for unit, planned in pairs if planned.strategy.ckpt}
    layers = sorted({unit.layer for unit, _ in pairs})
    if not recomputed:
        return recompute_of(modules)
    policy = recompute_of(modules)
    if len(recomputed) == len(layers):
        return replace(policy, layers=1.0)
    if (first := _first(plan, pairs, recomputed)) is not None:
        return replace(policy, first=first)
    interval = next((n for n in range(2, len(layers) + 1) if recomputed == {x for x in layers if x % n == 0}), None)
    return replace(policy, layers=1 / interval if interval else len(recomputed) / len(layers))


def _first(plan: Plan, pairs: Sequence[tuple[Unit, PlannedUnit]], recomputed: set[int]) -> int | None:
    """Find the number n such that exactly the first n layers of every pipeline stage (or all layers of a shorter stage) are
    recomputed. None if there is no such number.

    plan: the plan, which has the stages. pairs: each unit (sub-layer) of the model's layers with the plan's choice for it.
    recomputed: indices of the layers that are recomputed.
    """
    names = {unit.name: unit.layer for unit, _ in pairs}
    stages = []
    for stage in plan.stages:
        units = plan.units[stage.first_unit : stage.last_unit + 1]
        stages.append(sorted({names[unit.name] for unit in units if unit.name in names}))
    most = max(len(recomputed & set(layers)) for layers in stages)
    return most if recomputed == {layer for layers in stages for layer in layers[:most]} else None


def _on_host(units: Sequence[PlannedUnit]) -> frozenset[Hosted]:
    """The kinds of model states (parameters, optimizer states) that any unit of a plan keeps on the host. units: the plan's
    units (sub-layers with their strategies).
    """
    kinds: set[Hosted] = set()
    if any(unit.states.optimizer == "host" for unit in units):
        kinds.add("optimizer")
    if any(unit.states.parameters == "host" for unit in units):
        kinds.add("parameters")
    return frozenset(kinds)


_LAST_LINKS: list[tuple[Cluster, Links | None]] = []  # of the cluster that was asked for last, as searches ask again


def _links_of_last(cluster: Cluster, kind: str, described: DeviceSheet) -> Links | None:
    """As `_links`, computed once for many plans on one cluster. kind: the name of the device's data sheet. described: the data
    sheet."""
    if not _LAST_LINKS or _LAST_LINKS[0][0] is not cluster:
        _LAST_LINKS[:] = [(cluster, _links(cluster, kind, described))]
    return _LAST_LINKS[0][1]


def _links(cluster: Cluster, kind: str, described: DeviceSheet) -> Links | None:
    """The links of a cluster, in the form that predictions of measured runs take. None if they equal the links of usual nodes
    with its kind of device, which predictions assume by default.

    kind: the name of the device's data sheet. described: the data sheet.
    """
    node, links = cluster.nodes[0].devices, Links.of_cluster(cluster)
    if node != Links.of(described, shipped_efficiencies(), cluster.devices).node:
        return links
    usual = cluster_of_nodes(f"{kind}:{node}" + (f"x{cluster.devices // node}" if cluster.devices > node else ""))
    return None if Links.of_cluster(usual) == links else links
