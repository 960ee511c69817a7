"""The steps of a run on one rank, with evaluation, checkpoints, metrics, and an early end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from trainplan.execution.lowering.checkpoints import Checkpoints
from trainplan.execution.lowering.saving import Saver
from trainplan.execution.lowering.trainer import Trainer
from trainplan.execution.run.ranks import AFTER
from trainplan.execution.training.ending import Ending, StepWatch
from trainplan.execution.training.metrics import Metrics, memory_bytes
from trainplan.profiling.base.processes import Reporter


class Run:
    """The steps of a training run on one rank: those after the steps that a checkpoint has done, up to the job's number of
    steps or, if a rank got SIGTERM, the end of the step then running. losses, seconds: one per step. evaluations: by step, the
    loss on the evaluation data, without dropout. ended: whether SIGTERM ended the run. number: the index of the plan in the
    job. everyone: the process group of all ranks."""

    def __init__(
        self, trainer: Trainer, job: dict[str, Any], number: int, everyone: Any, report: Reporter, kept: Checkpoints
    ) -> None:
        self.trainer, self.job, self.number, self.everyone, self.report = trainer, job, number, everyone, report
        self.first, self.last = kept.done, job["steps"]
        self.losses, self.seconds, self.evaluations = list[float](), list[float](), dict[int, float]()
        self.ended, training = False, trainer.training
        self.saver = Saver(trainer, kept) if kept.folder is not None else None
        first = trainer.rank == 0 and training.metrics is not None
        self.metrics = Metrics(str(training.metrics), kept.done) if first else None

    def result(self) -> dict[str, Any]:
        """The run's results as a dict, for the process that started the ranks: `losses` and `seconds` (lists, one number per
        step), `evaluations` (a dict from the number of a step to the loss on evaluation data after it), `first_step` (its
        number, from 1), and `ended` (whether SIGTERM ended the run before its last step)."""
        of_steps = {"losses": self.losses, "seconds": self.seconds, "evaluations": self.evaluations}
        return {**of_steps, "first_step": self.first + 1, "ended": self.ended}

    def steps(self) -> Iterator[None]:
        """Run the steps one after the other; yields None after each, before evaluation and checkpoint, so that the caller can
        look at gradients."""
        position, step = self.report.position, self.first
        with self._listening() as ending, StepWatch(self.trainer.rank, self.job.get("step_timeout")) as watch:
            for step in range(self.first + 1, self.last + 1):
                position.set(self.number, step, 0)
                watch.begins(step)
                if self._end_requested(ending):
                    self.ended, step = True, step - 1
                    break
                self._step(step)
                yield
                self._after(step)
            if self.saver is not None:
                self.saver.end(step) if step > self.first else self.saver.finish()
        position.set(self.number, AFTER, 1)

    def _listening(self) -> AbstractContextManager[Ending | None]:
        """A context manager for the steps. If the run writes checkpoints, it gives an `Ending`, which notes SIGTERM so that
        the run can end after its step; else it gives None, and SIGTERM ends the process at once."""
        return nullcontext() if self.saver is None else Ending()

    def _end_requested(self, ending: Ending | None) -> bool:
        """Whether any rank got SIGTERM: a collective, with the same answer on all ranks. ending: notes whether this rank got
        it; None if that is not noted."""
        requested = torch.tensor(int(ending is not None and ending.requested))
        dist.all_reduce(requested, group=self.everyone)
        return bool(requested)

    def _step(self, step: int) -> None:
        """Run the step with this number, counted from 1, and record and report its loss and seconds."""
        trainer = self.trainer
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        loss = trainer.step()
        took = time.perf_counter() - started
        self.losses.append(loss)
        self.seconds.append(took)
        self.report({"plan": self.number, "step": step, "steps": self.last, "loss": loss, "seconds": took})

    def _after(self, step: int) -> None:
        """Evaluate, write metrics and begin a checkpoint after the step with this number, as far as they are due."""
        trainer, training = self.trainer, self.trainer.training
        if training.evaluation is not None and (step % training.evaluate_every == 0 or step == self.last):
            self.evaluations[step] = trainer.evaluate(*training.evaluated(trainer.plan, trainer.model))
        if training.metrics is not None:
            self._measure(step)
        if self.saver is not None:
            self.saver.after(step, self.last)

    def _measure(self, step: int) -> None:
        """Write the line of metrics of the step with this number: seconds and memory of the slowest and the largest rank. A
        collective."""
        trainer, loss = self.trainer, self.losses[-1]
        most = torch.tensor([self.seconds[-1], memory_bytes(trainer.device)], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.everyone)
        seconds, memory = most.tolist()
        evaluated = {"evaluation_loss": self.evaluations[step]} if step in self.evaluations else {}
        if self.metrics is not None:
            self.metrics.add(
                step=step,
                loss=loss,
                grad_norm=trainer.gradient_norm,
                learning_rate=trainer.training.optimizer.rate_at(step - 1),
                seconds=seconds,
                tokens_per_second=trainer.plan.batch.global_samples * trainer.model.tokens / seconds,
                memory_bytes=int(memory),
                **evaluated,
            )
