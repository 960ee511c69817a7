"""Settings of training apart from the plan, such as data and optimizer: as users give them, and checked."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.training.batches import Batches, InOrder
from trainplan.execution.training.optimizer import PLAIN, SCHEDULES, Optimizer
from trainplan.execution.training.tokens import TokenFile, token_file
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FilePath, check_writable
from trainplan.profiling.models.model import Model

EVALUATED_BATCHES = 10


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of training for a run by torch, as users give them; `Training` has the checked values.

    Attributes:
        data: A file of tokens, as `trainplan data` writes it (default: made-up samples).

            `tokenize` writes it, too. Each step takes other samples of it, in an order that depends on the seed alone; made-up
            samples are the same in every step.
        learning_rate: The largest learning rate of AdamW (default: 0.001).
        rate_schedule: How it falls: constant, cosine or linear (default: constant).
        warmup: Steps over which it rises linearly before (default: none).
        rate_steps: The step at which it is the least (default: `steps`).
        least_rate: The learning rate that it falls to (default: 0).
        betas: Of AdamW, two numbers (default: 0.9 0.999).
        weight_decay: Of matrices and tables, not of norms and biases (default: 0.01, of all).
        clip: Scale gradients of a larger global norm down to this (default: leave them).
        evaluate: A file of tokens for a loss without dropout, in the order of the file.
        evaluate_every: Steps from one such loss to the next (default: after the last).

            There is one after the last step, too.
        evaluate_batches: Batches that it is of (default: 10).
        metrics: Write a JSON line for each step here: step, loss, grad_norm, learning_rate, seconds, tokens_per_second,
            memory_bytes, evaluation_loss.

            `evaluation_loss` is there where the step was evaluated.
        weights: Begin with the safetensors of this Hugging Face folder (default: by the seed).
        save_weights: Write such a folder after the last step: safetensors and config.json.
        step_timeout: End a rank that is in one step for more seconds than these (default: never).

            Its evaluation and its checkpoint count.
    """

    data: FilePath | None = None
    learning_rate: float | None = None
    rate_schedule: str | None = None
    warmup: int | None = None
    rate_steps: int | None = None
    least_rate: float | None = None
    betas: tuple[float, float] | None = None
    weight_decay: float | None = None
    clip: float | None = None
    evaluate: FilePath | None = None
    evaluate_every: int | None = None
    evaluate_batches: int | None = None
    metrics: FilePath | None = None
    weights: FilePath | None = None
    save_weights: FilePath | None = None
    step_timeout: float | None = None


@dataclass(frozen=True)
class Training:
    """Checked settings of training. data: the token file that samples come from; None: synthetic samples, the same in every
    step. optimizer: the settings of the optimizer. evaluation: a token file whose first `evaluation_batches` batches give a
    loss without dropout, every `evaluate_every` steps and after the last step; None: no evaluation. metrics: the path of a file
    of JSON lines, one per step. weights, saved: folders in Hugging Face's format that the weights are read from before the
    first step, and written to after the last. first: the index of the first sample of step 0."""

    data: TokenFile | None = None
    optimizer: Optimizer = PLAIN
    evaluation: TokenFile | None = None
    evaluate_every: int = 0
    evaluation_batches: int = EVALUATED_BATCHES
    metrics: str | None = None
    weights: str | None = None
    saved: str | None = None
    first: int = 0

    @property
    def normed(self) -> bool:
        """Whether the global norm of gradients has to be computed: for metrics or for clipping."""
        return self.metrics is not None or self.optimizer.clip is not None

    def batches(self, plan: Plan, model: Model, seed: int) -> Batches:
        """The samples of each step of a run of this plan. model: the model that runs. seed: the seed of the order of the file's
        samples, or of synthetic samples."""
        return Batches(model, plan.batch.global_samples, seed, self.data, self.first)

    def evaluated(self, plan: Plan, model: Model) -> tuple[Batches, int]:
        """(samples of the evaluation, number of batches) for a plan; the evaluation file must be given. model: the model that
        runs."""
        assert self.evaluation is not None
        whole = self.evaluation.windows // plan.batch.global_samples
        return InOrder(model, plan.batch.global_samples, 0, self.evaluation), min(whole, self.evaluation_batches)

    def continued_at(self, position: int | None, done: int, samples: int) -> Training:
        """These settings for a run that resumes from a checkpoint after `done` steps. position: number of samples that these
        steps have taken; None if it is done x samples. samples: number of samples per step from now on."""
        return self if position is None else replace(self, first=position - done * samples)


DEFAULT_TRAINING = Training()  # on made-up samples, as programs do


def training_of(plan: Plan, model: Model, steps: int, requested: TrainingSettings, resumed: bool = False) -> Training:
    """The checked settings with which a run of a plan trains.

    Args:
        plan: the plan, which has the samples per step.
        model: the model that runs, which may be smaller than the plan's.
        steps: number of steps of the run, including those before a checkpoint that it goes on from.
        requested: the settings as users give them.
        resumed: whether the run goes on from a checkpoint.

    Raises:
        InputError: for a value that cannot be, and files that cannot be read or written.
    """
    for name in ("evaluate_every", "evaluate_batches"):
        if getattr(requested, name) is not None and requested.evaluate is None:
            raise InputError("command line", flag_of(name), f"is {getattr(requested, name)}", "give --evaluate, too")
    for name in ("evaluate_every", "evaluate_batches", "warmup"):
        if (number := getattr(requested, name)) is not None and number < 1:
            raise InputError("command line", flag_of(name), f"is {number}", "give 1 or more")
    data, held_out = (
        None if path is None else token_file(path, flag, model.tokens, model.vocabulary)
        for path, flag in ((requested.data, "--data"), (requested.evaluate, "--evaluate"))
    )
    if held_out is not None and held_out.windows < plan.batch.global_samples:
        problem = f"has {held_out.windows} samples, and a batch of the plan {plan.batch.global_samples}"
        raise InputError(held_out.path, "", problem, "give a longer text")
    if requested.weights is not None and resumed:
        raise InputError("command line", "--weights", "is given with --resume", "leave one out: a checkpoint has weights")
    weights = saved = None
    if requested.weights is not None or requested.save_weights is not None:
        from trainplan.execution.training.weight_files import check_saved, check_weights  # with torch

        weights = None if requested.weights is None else check_weights(requested.weights, model)
        saved = None if requested.save_weights is None else check_saved(requested.save_weights)
    if requested.metrics is not None:
        check_writable(requested.metrics)
    return Training(
        data=data,
        optimizer=_optimizer(steps, requested),
        evaluation=held_out,
        evaluate_every=_or(requested.evaluate_every, steps),
        evaluation_batches=_or(requested.evaluate_batches, EVALUATED_BATCHES),
        metrics=None if requested.metrics is None else os.path.abspath(requested.metrics),
        weights=weights,
        saved=saved,
    )


def _optimizer(steps: int, requested: TrainingSettings) -> Optimizer:
    """The optimizer's settings for a run of `steps` steps, with defaults filled in. Raises InputError for values that cannot
    be."""
    for name, least, fix in (
        ("learning_rate", 0.0, "0 or more, such as 3e-4"),
        ("least_rate", 0.0, "0 or more, such as 3e-5"),
        ("weight_decay", 0.0, "0 or more, such as 0.1"),
        ("clip", 1e-300, "more than 0, such as 1"),
    ):
        if (value := getattr(requested, name)) is not None and not least <= value < math.inf:
            raise InputError("command line", flag_of(name), f"is {value:g}", f"give {fix}")
    schedule = _or(requested.rate_schedule, PLAIN.schedule)
    if schedule not in SCHEDULES:
        raise InputError("command line", "--rate-schedule", f"is {schedule!r}", one_of(schedule, SCHEDULES))
    rate, least_rate = _or(requested.learning_rate, PLAIN.rate), _or(requested.least_rate, 0.0)
    if least_rate > rate:
        problem = f"is {least_rate:g}, above the learning rate of {rate:g}"
        raise InputError("command line", "--least-rate", problem, "give less")
    betas = tuple(_or(requested.betas, PLAIN.betas))
    if not all(0 <= beta < 1 for beta in betas):
        raise InputError("command line", "--betas", f"are {betas}", "give numbers from 0 to below 1, such as 0.9 and 0.95")
    return Optimizer(
        rate=rate,
        schedule=schedule,
        warmup=_or(requested.warmup, 0),
        steps=_or(requested.rate_steps, steps),
        least_rate=least_rate,
        betas=betas,
        weight_decay=requested.weight_decay,
        clip=requested.clip,
    )


def _or(value: Any, default: Any) -> Any:
    """`value`, or `default` if value is None."""
    return default if value is None else value
