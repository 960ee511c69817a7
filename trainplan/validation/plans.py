"""Plans that other runtimes run, predicted as rows of measured runs are: by the cost model `streams`, with what the runtime's
framework does of itself.

Whatever is asked of such a plan (`import-run`, `plan --for`, `simulate`), its step and its memory are these, and those of a row
that describes the same run (`validate`). Where that cannot be, the walks over the plan's programs stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.formulations.costs.overlapped.analytic_memory import COPY_BYTES, run_memory
from trainplan.formulations.costs.overlapped.analytic_step import Chunk
from trainplan.formulations.costs.overlapped.layout import Framework, Hosted, RecomputePolicy, recompute_of
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.nodes import cluster_of_nodes
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.clusters.sheets import DeviceSheet, sheet, sheets
from trainplan.profiling.models.model import Unit
from trainplan.validation.alongside import BUCKET, HELD, with_attention
from trainplan.validation.frameworks import framework_of
from trainplan.validation.layouts import laid_out
from trainplan.validation.predict import Prediction, predict_laid
from trainplan.validation.rows import Run

ENDS = ("embedding", "head")
OVERLAPS = "overlap-grad-reduce overlap-param-gather"
# What `export --to` writes of each runtime.
RUN_BY = {
    "megatron": RunBy(name="megatron", software="megatron-core", flags=OVERLAPS),
    "megatron-bridge": RunBy(name="megatron-bridge", software="megatron-core", flags=OVERLAPS),
    "torchtitan": RunBy(name="torchtitan", software="torchtitan"),
    "deepspeed": RunBy(name="deepspeed", software="deepspeed", flags="FusedAdam overlap_comm"),
    "accelerate": RunBy(name="accelerate", software="PyTorch FSDP (Accelerate)"),
}


def run_by(name: str | None, plan: Plan) -> RunBy | None:
    """The runtime of this name as `export --to` has it run a plan; None of trainplan's own and of scripts of torch, of whose
    plans the walks over their programs are the prediction."""
    chosen = RUN_BY.get(name or "")
    if chosen is not None and plan.optimizer == "muon":
        return chosen.changed(flags="muon")
    if name == "torchtitan" and any(unit.precision != "model" for unit in plan.units):
        return RUN_BY["torchtitan"].changed(flags="compile")  # which fuses the casts
    wide = plan.precision.gradients == "float32" and plan.planned_model().element_bytes < COPY_BYTES
    if name == "deepspeed" and wide:  # reduced in float32, too
        return RUN_BY["deepspeed"].changed(buffers={"reduce_elements": 2 * BUCKET})
    return chosen


def as_run(plan: Plan, cluster: Cluster) -> tuple[Plan, Prediction | str]:
    """The plan with the prediction of the runtime that it is for, and that prediction; or why there is none, and the plan as it
    is. The plan has a prediction by the walks, whose durations it keeps."""
    found = predict_plan(plan, cluster)
    if isinstance(found, str) or found.step is None or found.laid is None or plan.predicted is None or plan.runs_by is None:
        return plan, found if isinstance(found, str) else "the plan has no programs"
    memory, size = run_memory(found.laid.model, found.laid.layout), plan.world // plan.depth
    predicted = plan.predicted.changed(
        step_ns=round(found.step.step_ns),
        peak_bytes=[round(memory[rank // size].peak_bytes) for rank in range(plan.world)],
        cost_model="streams",
        software=plan.runs_by.software,
        profile_origin=f"estimated on {cluster.name}",
    )
    return plan.changed(predicted=predicted), found


def predict_plan(plan: Plan, cluster: Cluster) -> Prediction | str:
    """The prediction of a plan by the runtime that it is for (`runs_by`); or why there is none."""
    by, model, strategy = plan.runs_by, plan.planned_model(), plan.units[0].strategy
    if by is None:
        return "the plan is for trainplan's own runtime"
    if (why := unpredicted(cluster)) is not None:
        return why
    kind = _kind(cluster)
    assert kind is not None
    if len({replace(unit.strategy, ckpt=False, modules=()) for unit in plan.units}) > 1 or plan.batch.shares is not None:
        return "units are laid out unlike"
    zero = strategy.zero_stage if by.zero is None else by.zero
    muon = " muon" * (plan.optimizer == "muon" and "muon" not in by.flags)
    run = Run(
        id=by.name, model=model.name, gpu=kind, gpus=plan.world, gbs=plan.batch.global_samples,
        mbs=plan.batch.global_samples // plan.batch.micro_batches // strategy.data_degree, tp=strategy.degree("tp"),
        cp=strategy.degree("cp"), pp=plan.depth, vpp=plan.chunks, zero=zero, precision=model.dtype,
        framework=by.software, note=f"{by.flags}{muon} shard group {strategy.degree('sdp')}",
    )  # fmt: skip
    buffers = Buffers(**by.buffers)
    said = None if buffers.attention is None else buffers.attention == "flash"
    assumed = dict[str, str]()
    framework = with_attention(_with_states(framework_of(run), plan), sheet(kind), said, assumed)
    if not framework.fused_attention:
        model = model.with_fields(attn_implementation="eager")
    try:
        laid = laid_out(run, model, kind, framework, assumed, buffers)
    except InputError as error:
        return f"{error.field} {error.problem}"
    recipes = {unit.precision for unit in plan.units} - {"model"}
    layout = replace(
        laid.layout,
        zero=zero,
        recompute=replace(_recompute(by.name, plan), group=by.group),
        sequence_parallel=strategy.sequence_parallel,
        exchange=strategy.exchange,
        optimizer=plan.optimizer,
        schedule="gpipe" if plan.schedule == "gpipe" else "1f1b",
        recipe=RECIPES[recipes.pop()] if recipes else None,
        stage_layers=tuple(Chunk(tuple(model.units[stage.first_unit : stage.last_unit + 1])).layers for stage in plan.stages),
        on_host=_on_host(plan.units),
    )
    links = _links(cluster, kind, laid.sheet)
    held = {name: text for name, text in assumed.items() if name in HELD}
    return predict_laid(replace(laid, layout=layout, links=links, assumed=held), shipped_efficiencies())


def unpredicted(cluster: Cluster) -> str | None:
    """Why no runtime's prediction is known on a cluster; None where they are."""
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
    """The data sheet of a cluster's devices; None where there is none."""
    return next((name for name in sheets() if sheet(name).name == cluster.used_kinds[0].name), None)


def _with_states(framework: Framework, plan: Plan) -> Framework:
    """The framework with model states in the dtypes that the plan says. Where plans cannot say what a runtime has, it has its
    own: masters on the host, and FSDP2's gradients in the dtype of its masters."""
    if plan.uses_host or (plan.runs_by is not None and plan.runs_by.name == "accelerate" and plan.precision.master is not None):
        return framework
    model = plan.planned_model()
    element, precision = model.element_bytes, plan.precision.of(model)
    gradient = precision.gradient_bytes(element)
    if precision.master is None and element < framework.master_bytes:  # moments are of the model's dtype, too
        return replace(framework, master_bytes=0, moments_bytes=2 * element, gradient_bytes=gradient, copied_bytes=0)
    return framework if framework.gradient_bytes == gradient else replace(framework, gradient_bytes=gradient, copied_bytes=0)


def _recompute(runtime: str, plan: Plan) -> RecomputePolicy:
    """What layers compute again: named modules, or whole layers: all, the first of each stage, or every second, say. Of
    torchtitan, whose selective recomputation by operations keeps every second product, what it does."""
    pairs = [(unit, made) for unit, made in zip(plan.planned_model().units, plan.units, strict=True) if unit.kind not in ENDS]
    modules = {module for _, made in pairs for module in made.strategy.modules}
    if modules and runtime == "torchtitan":
        return RecomputePolicy(operations=True)
    again = {unit.layer for unit, made in pairs if made.strategy.ckpt}
    layers = sorted({unit.layer for unit, _ in pairs})
    if not again:
        return recompute_of(modules)
    whole = recompute_of(modules)
    if len(again) == len(layers):
        return replace(whole, layers=1.0)
    if (first := _first(plan, pairs, again)) is not None:
        return replace(whole, first=first)
    every = next((n for n in range(2, len(layers) + 1) if again == {x for x in layers if x % n == 0}), None)
    return replace(whole, layers=1 / every if every else len(again) / len(layers))


def _first(plan: Plan, pairs: Sequence[tuple[Unit, PlannedUnit]], again: set[int]) -> int | None:
    """Of how many first layers of every stage those are that are computed again; None where they are not the first ones."""
    names = {unit.name: unit.layer for unit, _ in pairs}
    stages = []
    for stage in plan.stages:
        units = plan.units[stage.first_unit : stage.last_unit + 1]
        stages.append(sorted({names[unit.name] for unit in units if unit.name in names}))
    most = max(len(again & set(layers)) for layers in stages)
    return most if again == {layer for layers in stages for layer in layers[:most]} else None


def _on_host(units: Sequence[PlannedUnit]) -> frozenset[Hosted]:
    kept: set[Hosted] = set()
    if any(unit.states.optimizer == "host" for unit in units):
        kept.add("optimizer")
    if any(unit.states.parameters == "host" for unit in units):
        kept.add("parameters")
    return frozenset(kept)


def _links(cluster: Cluster, kind: str, described: DeviceSheet) -> Links | None:
    """The links of a cluster; None where they are those of usual nodes of its kind, which rows of measured runs take."""
    node, own = cluster.nodes[0].devices, Links.of_cluster(cluster)
    if node != Links.of(described, shipped_efficiencies(), cluster.devices).node:
        return own
    usual = cluster_of_nodes(f"{kind}:{node}" + (f"x{cluster.devices // node}" if cluster.devices > node else ""))
    return None if Links.of_cluster(usual) == own else own
