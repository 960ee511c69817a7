"""The body of a rank that runs lowered plans, and how far what it gives is from one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.execution.lowering.checkpoints import Checkpoints
from trainplan.execution.lowering.saving import Saver, load
from trainplan.execution.lowering.trainer import Trainer
from trainplan.execution.lowering.weights import gathered
from trainplan.execution.program import Program
from trainplan.execution.run.comparison import Differences, Outcome, compare
from trainplan.execution.run.processes import AFTER
from trainplan.execution.run.unit_state import flat_layout
from trainplan.execution.walk.buffers import zero_stage
from trainplan.profiling.base.processes import Reporter
from trainplan.profiling.models import torch_units


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """All plans of the job, one after the other; results as of `processes.run_rank`."""
    device = torch.device("cpu")
    if job["gpus"] is not None:
        device = torch.device("cuda", job["gpus"][rank])
        torch.cuda.set_device(device)
    everyone, results = dist.new_group(list(range(world))), []
    for number, each in enumerate(job["jobs"]):
        program, plan = each["programs"][rank], each["plan"]
        trainer = Trainer(plan, program.model, rank, job["seed"], device)
        kept = job.get("checkpoints") or Checkpoints()
        saver = Saver(trainer, kept) if kept.folder is not None else None
        if kept.resume is not None:
            load(trainer, kept)
        losses, seconds, gradients = [], [], dict[int, Tensor]()
        for loss, took in steps(trainer, job, number, everyone, report, kept.done):
            losses.append(loss)
            seconds.append(took)
            if saver is not None:
                saver.after(kept.done + len(losses), job["steps"])
            if len(losses) == 1 and job["compare"]:
                gradients = flat_values(trainer, program, True)
        if saver is not None:
            saver.finish()
        differences: dict[str, float | None] = dict.fromkeys(Differences._fields)
        if job["compare"]:
            report({"plan": number, "comparing": True})
            outcome = Outcome(gradients, flat_values(trainer, program, False), losses)
            if apart := compare(each["programs"], outcome, job["seed"], everyone, kept.done):
                differences = {**apart._asdict()}
        peak = trainer.peak_bytes() if job["memory"] else None
        results.append({"losses": losses, "seconds": seconds, "peak_bytes": peak, "spans": [], **differences})
    return results


def steps(
    trainer: Trainer, job: dict[str, Any], number: int, everyone: Any, report: Reporter, done: int
) -> Iterator[tuple[float, float]]:
    """Loss and seconds of each step behind those that are done, which all ranks begin together."""
    for step in range(done + 1, job["steps"] + 1):
        report.position.set(number, step, 0)
        dist.barrier(everyone)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        loss = trainer.step()
        took = time.perf_counter() - started
        report({"plan": number, "step": step, "steps": job["steps"], "loss": loss, "seconds": took})
        yield loss, took
    report.position.set(number, AFTER, 1)


def flat_values(trainer: Trainer, program: Program, gradients: bool) -> dict[int, Tensor]:
    """Gradients or parameters of each unit as this rank's program has them, flat: the slice of its shard, or the whole."""
    flat = {}
    for position, unit in sorted(trainer.units.items()):
        strategy = program.strategies[position]
        shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.place, "tp"))
        specification = {parameter.name: parameter for parameter in unit.part.parameters()}
        whole = dict(gathered(unit, gradients))
        names = [name for name, *_ in flat_layout(program, position)]
        values = torch.cat([torch_units.sharded(specification[name], whole[name], shard).flatten() for name in names]).cpu()
        piece = -(-values.numel() // strategy.degree("sdp"))
        padded = values.new_zeros(piece * strategy.degree("sdp"))
        padded[: values.numel()] = values
        shards = gradients or zero_stage(program, position) == 3
        start = strategy.index(program.place, "sdp") * piece if shards else 0
        flat[position] = padded[start : start + piece].clone() if shards else padded
    return flat
