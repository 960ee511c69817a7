"""Features of a plan that torch's own pieces cannot run, or not as the plan says: one refusal per field.

A plan without refusals is run by torch's own pieces (lowered); other plans are run by trainplan's own programs, which support
everything in a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import common_digits
from trainplan.formulations.plan.strategy import COPIES, LEVELS, Strategy
from trainplan.formulations.plan.torch_sharding import uneven_splits
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    LanguageHead,
    ParallelBlock,
    TokenEmbedding,
)

LOWERED_PARTS = (Attention, FeedForward, LanguageHead, ParallelBlock, TokenEmbedding)


class Refusal(NamedTuple):
    """A field of a plan whose value torch cannot run. field: its path in the plan, such as units[0].precision. problem: what
    its value is. fix: a change that would work."""

    field: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field} {self.problem}; {self.fix}"

    @property
    def kind(self) -> str:
        """The refused field without the indices in its path, such as units.precision, for counting."""
        return re.sub(r"\[\d+\]", "", self.field)


def refusals(plan: Plan, model: Model | None = None) -> list[Refusal]:
    """All fields of a plan whose values torch's own parallel modules cannot run, each with a change that would work: first
    fields of the whole step, then of stages, then of units (sub-layers). Empty if torch can run the plan. model: the model to
    run instead of the plan's own; None for the plan's own."""
    model = model or plan.planned_model()
    return [*_of_step(plan), *_of_stages(plan), *_of_units(plan, model)]


def _of_step(plan: Plan) -> Iterator[Refusal]:
    """Refusals of properties of the whole step that torch cannot run: optimizer, uneven shares of the batch, schedule,
    sliced forward passes."""
    if plan.optimizer != "adamw":
        yield Refusal("optimizer", f"is {plan.optimizer!r}", "give 'adamw': torch's own pieces are stepped by it")
    if plan.batch.shares is not None:
        problem = f"is {shown(plan.batch.shares)}"
        yield Refusal("batch.shares", problem, "leave it out: torch's replicas take equal numbers of micro-batches")
    if not SCHEDULES[plan.schedule].torch:
        *some, last = (name for name, spec in SCHEDULES.items() if spec.torch)
        yield Refusal("schedule", f"is {plan.schedule!r}", f"give {', '.join(some)} or {last}")
    if plan.sliced:
        yield Refusal("sliced", f"is {plan.sliced}", "leave it out: torch's schedules have no halves of micro-batches")


def _of_stages(plan: Plan) -> Iterator[Refusal]:
    """Refusals of the ranks of stages that torch cannot run: different numbers of ranks per stage, and ranks that are not in
    the order of the stages."""
    own = plan.stages[: plan.depth]
    size = len(own[0].ranks)
    for number, stage in enumerate(own):
        if len(stage.ranks) != size:
            problem = f"are {len(stage.ranks)}, and those of stages[0] {size}"
            yield Refusal(
                f"stages[{number}].ranks", problem, "give stages of one size: torch's send between ranks of the same index"
            )
            return
    for number, (before, after) in enumerate(pairwise(own), 1):
        if any(one > other for one, other in zip(before.ranks, after.ranks, strict=True)):
            problem = f"are {shown(after.ranks)}, after {shown(before.ranks)}"
            fix = "give the ranks of every index in the order of stages: torch numbers the ranks of a group so"
            yield Refusal(f"stages[{number}].ranks", problem, fix)


def _of_units(plan: Plan, model: Model) -> Iterator[Refusal]:
    """Refusals of single units (embedding, sub-layers, head) that torch cannot run: kinds of sub-layers, levels of
    parallelism, states on the host, precision, uneven splits, and layouts that do not follow on each other. model: the model
    that is run."""
    strategies = plan.strategies()
    for position, (unit, described) in enumerate(zip(plan.units, model.units, strict=True)):
        where, part, strategy = f"units[{position}]", described.sublayer, unit.strategy
        if not isinstance(part, LOWERED_PARTS) or (isinstance(part, Attention) and (part.window or part.relative)):
            problem = f"is {model.family!r}, whose {described.name} is not lowered"
            yield Refusal("model.config.model_type", problem, "run it by program, where that has it")
            return
        for axis in (name for name in LEVELS if name not in (*COPIES, "sdp", "tp")):
            if axis in dict(strategy.levels):
                yield Refusal(f"{where}.layout.levels", f"have {axis}", "give levels of dp, sdp and tp")
        for name in ("parameters", "gradients", "optimizer"):
            if getattr(unit.states, name) == "host":
                yield Refusal(f"{where}.states.{name}", "is 'host'", "give 'device': torch copies none in for each pass")
        if unit.activations.hidden == "host":
            yield Refusal(f"{where}.activations.hidden", "is 'host'", "give 'device'")
        if unit.precision != "model":
            yield Refusal(f"{where}.precision", f"is {unit.precision!r}", "give 'model'")
        for problem, fix in uneven_splits(part, strategy):
            yield Refusal(f"{where}.layout", problem, fix)
        if position and _unlike_digits(strategies[position - 1], strategy):
            problem = f"is {str(strategy)!r}, after {str(strategies[position - 1])!r}"
            fix = "give degrees that cut the ranks at common indices, such as powers of two: DTensor re-lays along dimensions"
            yield Refusal(f"{where}.layout", problem, fix)


def _unlike_digits(before: Strategy, after: Strategy) -> bool:
    """Whether two consecutive units split the same ranks so differently that no device mesh has dimensions for both layouts.
    before, after: the two units' strategies (levels of parallelism)."""
    return before.group == after.group and common_digits([before, after]) is None
