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
    """The steps of a run after those that a checkpoint has done, up to the job's number of steps, or to the end of the step in
    which some rank got SIGTERM. losses, seconds: of each step. evaluations: losses without dropout, by step. ended: whether
    SIGTERM ended it."""

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
        """The results, for the process that started the ranks."""
        of_steps = {"losses": self.losses, "seconds": self.seconds, "evaluations": self.evaluations}
        return {**of_steps, "first_step": self.first + 1, "ended": self.ended}

    def steps(self) -> Iterator[None]:
        """Run the steps one after the other; the caller may look at the results after each."""
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
        """Note SIGTERM in the result's block; without checkpoints nothing would be kept, and SIGTERM ends the process."""
        return nullcontext() if self.saver is None else Ending()

    def _end_requested(self, ending: Ending | None) -> bool:
        """Whether any rank got SIGTERM. All ranks begin a step together, and decide alike."""
        requested = torch.tensor(int(ending is not None and ending.requested))
        dist.all_reduce(requested, group=self.everyone)
        return bool(requested)

    def _step(self, step: int) -> None:
        """Run one step, and report its loss and seconds."""
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
        """Evaluate, measure and save after a step, when gradients may be gone."""
        trainer, training = self.trainer, self.trainer.training
        if training.evaluation is not None and (step % training.evaluate_every == 0 or step == self.last):
            self.evaluations[step] = trainer.evaluate(*training.evaluated(trainer.plan, trainer.model))
        if training.metrics is not None:
            self._measure(step)
        if self.saver is not None:
            self.saver.after(step, self.last)

    def _measure(self, step: int) -> None:
        """Write the metrics of a step."""
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
