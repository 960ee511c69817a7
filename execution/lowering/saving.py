"""Save and load what lives from step to step, by `torch.distributed.checkpoint`.

A tensor's name is that of its unit and parameter, so that it does not depend on the plan: what one plan has sharded over four
ranks another reads whole, or cut otherwise. Parameters, and AdamW's moments and counts of steps, are saved as they lie, each
part by one of the ranks that have it. A table that embedding and head share is saved under both names, since another plan may
have two of it.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from trainplan.execution.lowering.checkpoints import ABOUT, Checkpoints, step_folder
from trainplan.execution.lowering.trainer import Trainer
from trainplan.profiling.base.files import to_disk
from trainplan.profiling.base.processes import error_line


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """The tensors of the rank's sub-layers that live from step to step (parameters, AdamW's states), by names that do not
    depend on the plan: to save, or to load into. Optimizer states that do not exist yet, before the first step, are created."""
    names = {
        parameter: f"{trainer.plan.units[position].name}.{name}"
        for position, unit in trainer.units.items()
        for name, parameter in unit.named_parameters()
    }
    names = {parameter: name.replace(".table.", ".") for parameter, name in names.items()}
    state: dict[str, Tensor] = {name: parameter.detach() for parameter, name in names.items()}
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                kept = optimizer.state[parameter]
                if not kept:
                    kept["step"] = torch.zeros((), dtype=torch.float32, device=trainer.device)
                    kept["exp_avg"], kept["exp_avg_sq"] = (torch.zeros_like(parameter).detach() for _ in range(2))
                state |= {f"{names[parameter]}:{name}": value for name, value in kept.items()}
    if trainer.tied.shared_table:
        first, last = (f"{unit.name}." for unit in (trainer.plan.units[0], trainer.plan.units[-1]))
        table = {name: value for name, value in state.items() if name.startswith(f"{first}tokens.")}
        state |= {name.replace(f"{first}tokens.", f"{last}logits."): value for name, value in table.items()}
    return state


def load(trainer: Trainer, checkpoints: Checkpoints) -> None:
    """Restore, in place, the parameters, optimizer states and number of steps of the checkpoint that a run begins with. Called
    on all ranks."""
    dcp.load(state_of(trainer), checkpoint_id=checkpoints.resume)
    trainer.done(checkpoints.done)


class Saver:
    """Writes checkpoints of a training run in the background of the steps that follow, one at a time, over a process group of
    its own. Its methods are called on all ranks. last: the latest step with a checkpoint."""

    def __init__(self, trainer: Trainer, checkpoints: Checkpoints) -> None:
        self.trainer, self.checkpoints, self.last = trainer, checkpoints, checkpoints.done
        self.group = dist.new_group(backend="gloo")
        self.deciding = dist.new_group(backend="gloo")  # while a checkpoint is written over the other
        self._writing: tuple[Future[Any], Path, Path, int] | None = None

    def after(self, step: int, last: int) -> None:
        """Called after each step: give a checkpoint that has been written by now its final name, and begin one if it is due
        after this step. last: the run's last step, which always gets one."""
        if self._writing is not None:
            written = torch.tensor(int(self._writing[0].done()))
            dist.all_reduce(written, dist.ReduceOp.MIN, group=self.deciding)
            if written:
                self.finish()
        if step % self.checkpoints.every == 0 or step == last:
            self.begin(step)

    def end(self, step: int) -> None:
        """Called when the run ends after this step: write the step's checkpoint, if it is not begun yet, and wait until it is
        complete."""
        if self.last != step:
            self.begin(step)
        self.finish()

    def begin(self, step: int) -> None:
        """Begin to write the checkpoint of a step, after waiting for the one before."""
        folder, self.last = self.checkpoints.folder, step
        assert folder is not None
        self.finish()
        final = step_folder(folder, step)
        aside = final.with_name(f"writing-{final.name}")
        if dist.get_rank() == 0:
            shutil.rmtree(aside, ignore_errors=True)  # of a run that was ended
        dist.barrier(self.group)
        writing = dcp.async_save(state_of(self.trainer), checkpoint_id=aside, process_group=self.group)
        assert isinstance(writing, Future)
        self._writing = writing, aside, final, step

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete, and give it its final name; nothing if there is none.
        Raises RuntimeError if it cannot be written."""
        if self._writing is None:
            return
        writing, aside, final, step = self._writing
        try:
            writing.result()
        except CheckpointException as error:
            cause = error_line(next(iter(error.failures.values()))[0])
            raise RuntimeError(f"the checkpoint of step {step} cannot be written: {cause}") from error
        self._writing = None
        dist.barrier(self.group)
        if dist.get_rank() == 0:
            about = {**(self.checkpoints.about or {}), "position": self.trainer.batches.drawn(step)}
            (aside / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
            for path in (*aside.iterdir(), aside):
                to_disk(path)
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)
            to_disk(final.parent)
        dist.barrier(self.group)
