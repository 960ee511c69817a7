"""Measured runs as plans for the runtimes that ran them, so that a row and a plan of one run can be compared."""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import RecomputedLayers, RunConfiguration
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy
from trainplan.formulations.plan.plan import Plan, Precision
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import Cluster, load_cluster

from trainplan.imported_runs.to_plan import plan_of
from trainplan.validation.alongside import stated_buffers
from trainplan.validation.layouts import LaidRun

PARTS = ("attention", "norms", "activation")  # of a layer, that a policy recomputes by themselves


def usual_cluster(laid: LaidRun) -> Cluster:
    """The usual nodes with the devices of a run."""
    count, node = laid.run.gpus, laid.sheet.host.devices
    return load_cluster(f"{laid.name}:{min(count, node)}" + f"x{count // node}" * (count > node))


def plan_of_row(laid: LaidRun) -> Plan:
    """The plan of a measured run, for its runtime, without a prediction. Raises InputError where plans have no such layout."""
    layout, run = laid.layout, laid.run
    name = (run.framework or "").lower()
    runtime = next((known for known in ("torchtitan", "nanotron", "deepspeed") if known in name), "")
    half = layout.base != "float32"
    wide = layout.framework.gradient_bytes == 4
    configuration = RunConfiguration(
        where=run.id,
        runtime=runtime or ("megatron" if layout.framework.pads > 1 else "accelerate"),
        software=run.framework or layout.framework.name,
        flags=run.note or "",
        precision=Precision(
            master="float32" if half and layout.framework.master_bytes else None,
            gradients="float32" if half and wide else "model",
        ),
        recipe=None if layout.recipe is None else layout.recipe.name,
        samples=layout.batch,
        micro_samples=layout.micro,
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        chunks=layout.chunks,
        zero=layout.zero,  # type: ignore[arg-type]
        shard=layout.shard if layout.zero else None,
        sequence_parallel=layout.sequence_parallel,
        exchange=layout.exchange,
        schedule="interleaved-1f1b" if layout.chunks > 1 else "1f1b",
        recomputed=_recomputed(layout.recompute),
        buffers=stated_buffers(run),
        optimizer=layout.optimizer,
        cuts=_cuts(laid),
    )
    plan = plan_of(configuration, laid.model, Request(laid.model, usual_cluster(laid), None))
    assert plan.runs_by is not None
    return plan.changed(runs_by=plan.runs_by.changed(date=run.date))


def _recomputed(policy: RecomputePolicy) -> RecomputedLayers:
    """What a policy recomputes, as a file of a run says it."""
    if policy.layers or policy.first is not None:
        every = round(1 / policy.layers) if policy.layers else 1
        return RecomputedLayers(of="full", every=every, first=policy.first, group=policy.group)
    modules = ("norms",) if policy.operations else tuple(part for part in PARTS if getattr(policy, part))
    return RecomputedLayers(of="modules", modules=modules) if modules else RecomputedLayers()  # type: ignore[arg-type]


def _cuts(laid: LaidRun) -> tuple[int, ...]:
    """The index of the first unit of each stage but the first."""
    layers, cuts = [chunk.layers for chunk in chunks_of(laid.model, laid.layout)], [1]
    units = (len(laid.model.units) - 2) // laid.model.layers
    for count in layers[:-1]:
        cuts.append(cuts[-1] + count * units)
    return tuple(cuts[1:])
