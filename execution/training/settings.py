"""What a run trains with beside its plan, as users ask for it, checked."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.training.batches import Batches, InOrder
from trainplan.execution.training.optimizer import PLAIN, SCHEDULES, Optimizer
from trainplan.execution.training.tokens import TokenFile, token_file
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import check_writable
from trainplan.profiling.models.model import Model

EVALUATED_BATCHES = 10


@dataclass(frozen=True)
class Training:
    """data: the file that samples come from (None: made up, the same in every step). evaluation: a file whose first
    `evaluation_batches` batches give a loss without dropout, every `evaluate_every` steps and after the last. metrics: a file
    of JSON lines, one for each step. weights, saved: folders of Hugging Face's that the first values come from, and that the
    last ones go to. first: as of Batches."""

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
        """Whether the global norm of gradients is asked for."""
        return self.metrics is not None or self.optimizer.clip is not None

    def batches(self, plan: Plan, model: Model, seed: int) -> Batches:
        """The samples of each step of a plan."""
        return Batches(model, plan.batch.global_samples, seed, self.data, self.first)

    def evaluated(self, plan: Plan, model: Model) -> tuple[Batches, int]:
        """The batches that a plan is evaluated on, and how many."""
        assert self.evaluation is not None
        whole = self.evaluation.windows // plan.batch.global_samples
        return InOrder(model, plan.batch.global_samples, 0, self.evaluation), min(whole, self.evaluation_batches)

    def begun_at(self, position: int | None, done: int, samples: int) -> Training:
        """The same, of a run whose first `done` steps took the samples before `position`."""
        return self if position is None else replace(self, first=position - done * samples)


PLAINLY = Training()  # on made-up samples, as programs do


def training_of(plan: Plan, model: Model, steps: int, asked: dict[str, Any], resumed: bool = False) -> Training:
    """What a run of a plan as this model trains with. asked: by the arguments of `run`; None, or absent, as by default.
    resumed: whether it goes on from a checkpoint.

    Raises InputError.
    """
    asked = {name: value for name, value in asked.items() if value is not None}
    for of, needed in (("evaluate_every", "evaluate"), ("evaluate_batches", "evaluate")):
        if of in asked and needed not in asked:
            raise InputError("command line", _option(of), f"is {asked[of]}", f"give {_option(needed)}, too")
    for name in ("evaluate_every", "evaluate_batches", "warmup"):
        if asked.get(name, 1) < 1:
            raise InputError("command line", _option(name), f"is {asked[name]}", "give 1 or more")
    files = {}
    for name in ("data", "evaluate"):
        if name in asked:
            files[name] = token_file(asked[name], _option(name), model.tokens, model.vocabulary)
    held_out = files.get("evaluate")
    if held_out is not None and held_out.windows < plan.batch.global_samples:
        problem = f"has {held_out.windows} samples, and a batch of the plan {plan.batch.global_samples}"
        raise InputError(held_out.path, "", problem, "give a longer text")
    if "weights" in asked and resumed:
        raise InputError("command line", "--weights", "is given with --resume", "leave one out: a checkpoint has weights")
    metrics, folders = asked.get("metrics"), dict[str, str]()
    if "weights" in asked or "save_weights" in asked:
        from trainplan.execution.training.weight_files import check_saved, check_weights  # with torch

        if "weights" in asked:
            folders["weights"] = check_weights(asked["weights"], model)
        if "save_weights" in asked:
            folders["save_weights"] = check_saved(asked["save_weights"])
    if metrics is not None:
        check_writable(metrics)
    return Training(
        data=files.get("data"),
        optimizer=_optimizer(steps, asked),
        evaluation=held_out,
        evaluate_every=asked.get("evaluate_every", steps),
        evaluation_batches=asked.get("evaluate_batches", EVALUATED_BATCHES),
        metrics=None if metrics is None else os.path.abspath(metrics),
        weights=folders.get("weights"),
        saved=folders.get("save_weights"),
    )


def _optimizer(steps: int, asked: dict[str, Any]) -> Optimizer:
    values = {"learning_rate": PLAIN.rate, "least_rate": 0.0, "weight_decay": 0.0, "clip": math.inf} | asked
    for name, least, fix in (
        ("learning_rate", 0.0, "0 or more, such as 3e-4"),
        ("least_rate", 0.0, "0 or more, such as 3e-5"),
        ("weight_decay", 0.0, "0 or more, such as 0.1"),
        ("clip", 1e-300, "more than 0, such as 1"),
    ):
        if not least <= values[name] or (name in asked and not math.isfinite(values[name])):
            raise InputError("command line", _option(name), f"is {values[name]:g}", f"give {fix}")
    schedule = asked.get("rate_schedule", PLAIN.schedule)
    if schedule not in SCHEDULES:
        raise InputError("command line", "--rate-schedule", f"is {schedule!r}", one_of(schedule, SCHEDULES))
    if values["least_rate"] > values["learning_rate"]:
        problem = f"is {values['least_rate']:g}, above the learning rate of {values['learning_rate']:g}"
        raise InputError("command line", "--least-rate", problem, "give less")
    betas = tuple(asked.get("betas", PLAIN.betas))
    if not all(0 <= beta < 1 for beta in betas):
        raise InputError("command line", "--betas", f"are {betas}", "give numbers from 0 to below 1, such as 0.9 and 0.95")
    return Optimizer(
        rate=values["learning_rate"],
        schedule=schedule,
        warmup=asked.get("warmup", 0),
        steps=asked.get("rate_steps", steps),
        least_rate=values["least_rate"],
        betas=betas,
        weight_decay=asked.get("weight_decay"),
        clip=asked.get("clip"),
    )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
