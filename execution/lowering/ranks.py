"""The body of a process that runs lowered plans: one rank's steps, how far its results are from one process, and weights from
and to files of Hugging Face."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.execution.analysis.verify.buffer_sizes import zero_stage
from trainplan.execution.lowering.checkpoints import Checkpoints
from trainplan.execution.lowering.running import Run
from trainplan.execution.lowering.saving import load
from trainplan.execution.lowering.trainer import Trainer
from trainplan.execution.lowering.weights import gathered, write_unit
from trainplan.execution.program import Program
from trainplan.execution.run.compare_with_single_process import Differences, Outcome, compare
from trainplan.execution.run.unit_state import flat_layout
from trainplan.execution.training.settings import DEFAULT_TRAINING
from trainplan.execution.training.weight_files import WeightFiles, WeightWriter
from trainplan.profiling.base.processes import Reporter
from trainplan.profiling.models import torch_units


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """Body of the process of rank `rank` of `world`: trains all plans of the job by torch, one after the other. job: the
    settings that the starting process gives. report: sends progress to it. Returns one dict per plan: losses and seconds per
    step, peak bytes, and differences from training on one process."""
    device = torch.device("cpu")
    if job["gpus"] is not None:
        device = torch.device("cuda", job["gpus"][rank])
        torch.cuda.set_device(device)
    everyone, results = dist.new_group(list(range(world))), []
    for number, entry in enumerate(job["jobs"]):
        program, plan = entry["programs"][rank], entry["plan"]
        training, kept = job.get("training") or DEFAULT_TRAINING, job.get("checkpoints") or Checkpoints()
        training = training.continued_at(kept.position, kept.done, plan.batch.global_samples)
        trainer = Trainer(plan, program.model, rank, job["seed"], device, training)
        if kept.resume is not None:
            load(trainer, kept)
        elif training.weights is not None:
            load_weights(trainer, training.weights)
        run = Run(trainer, job, number, everyone, report, kept)
        gradients: dict[int, Tensor] = {}
        for _ in run.steps():
            if len(run.losses) == 1 and job["compare"]:
                gradients = flat_values(trainer, program, True)
        differences: dict[str, float | None] = dict.fromkeys(Differences._fields)
        if job["compare"] and run.losses:
            report({"plan": number, "comparing": True})
            outcome = Outcome(gradients, flat_values(trainer, program, False), run.losses)
            settings: dict[str, Any] = {"batches": trainer.batches, "settings": training.optimizer, "weights": training.weights}
            if apart := compare(entry["programs"], outcome, job["seed"], everyone, kept.done, **settings):
                differences = {**apart._asdict()}
        if training.saved is not None:
            save_weights(trainer, training.saved)
        peak = trainer.peak_bytes() if job["memory"] else None
        results.append({**run.result(), "peak_bytes": peak, "spans": [], **differences})
    return results


def flat_values(trainer: Trainer, program: Program, gradients: bool) -> dict[int, Tensor]:
    """Parameters (or gradients, if `gradients`) of each sub-layer, by its index, as a flat tensor on the CPU in the layout that
    the plan's program has for this rank: its shard or, for parameters of which every rank keeps a full copy, all of them.
    trainer: the rank's trainer, which holds them as torch's modules do. A collective of the ranks. A program is one rank's
    instructions for a training step."""
    flat = {}
    for position, unit in sorted(trainer.units.items()):
        strategy = program.strategies[position]
        shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.index_in_stage, "tp"))
        specification = {parameter.name: parameter for parameter in unit.part.parameters()}
        whole = dict(gathered(unit, gradients))
        names = [name for name, *_ in flat_layout(program, position)]
        values = torch.cat([torch_units.sharded(specification[name], whole[name], shard).flatten() for name in names]).cpu()
        piece = -(-values.numel() // strategy.degree("sdp"))
        padded = values.new_zeros(piece * strategy.degree("sdp"))
        padded[: values.numel()] = values
        shards = gradients or zero_stage(program, position) == 3
        start = strategy.index(program.index_in_stage, "sdp") * piece if shards else 0
        flat[position] = padded[start : start + piece].clone() if shards else padded
    return flat


def load_weights(trainer: Trainer, folder: str) -> None:
    """Fill the parameters of the rank's sub-layers from a folder of Hugging Face weights; only one sub-layer is whole in
    memory at a time."""
    files = WeightFiles.of(folder)
    for position, unit in sorted(trainer.units.items()):
        write_unit(unit, dict(files.unit(trainer.model, position)))


def save_weights(trainer: Trainer, folder: str) -> None:
    """Write all parameters to a folder in Hugging Face's format, in the model's dtype. Called on all ranks; the first rank of
    each stage writes its sub-layers' files."""
    writer = WeightWriter(folder, trainer.model, torch_units.DTYPES[trainer.model.dtype])
    if dist.get_rank() == 0:
        writer.begin()
    dist.barrier()
    indices: dict[str, str] = {}
    for position, unit in sorted(trainer.units.items()):
        whole: dict[str, Tensor] = dict(gathered(unit, False))
        if trainer.index_in_stage == 0:
            indices |= writer.write(position, whole)
    by_rank: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, indices)
    if dist.get_rank() == 0:
        writer.finish({name: file for some in by_rank for name, file in some.items()})
    dist.barrier()
