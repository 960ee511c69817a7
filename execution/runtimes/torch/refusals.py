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
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.torch_sharding import uneven_splits
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
    """A field of a plan that torch cannot run, with the problem and a change that would work."""

    field: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field} {self.problem}; {self.fix}"

    @property
    def kind(self) -> str:
        """The field without indices, for counting."""
        return re.sub(r"\[\d+\]", "", self.field)


def refusals(plan: Plan, model: Model | None = None) -> list[Refusal]:
    """All refusals of a plan, in the order of its fields. model: a model to run instead of the plan's own."""
    model = model or plan.planned_model()
    return [*_of_step(plan), *_of_stages(plan), *_of_units(plan, model)]


def _of_step(plan: Plan) -> Iterator[Refusal]:
    """Refusals of properties of the whole step: optimizer, uneven shares, schedule, sliced passes."""
    if plan.optimizer != "adamw":
        yield Refusal("optimizer", f"is {plan.optimizer!r}", "give 'adamw': torch's own pieces are stepped by it")
    if plan.batch.shares is not None:
        problem = f"is {shown(plan.batch.shares)}"
        yield Refusal("batch.shares", problem, "leave it out: torch's replicas take equal numbers of micro-batches")
    if plan.schedule == "zero-bubble":
        yield Refusal("schedule", "is 'zero-bubble'", "give 1f1b, gpipe or interleaved-1f1b")
    if plan.sliced:
        yield Refusal("sliced", f"is {plan.sliced}", "leave it out: torch's schedules have no halves of micro-batches")


def _of_stages(plan: Plan) -> Iterator[Refusal]:
    """Refusals of the ranks of stages: their number, and their order between stages."""
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
    """Refusals of single units: sub-layers, levels, states on the host, precision, uneven or incompatible layouts."""
    strategies = plan.strategies()
    for position, (unit, described) in enumerate(zip(plan.units, model.units, strict=True)):
        where, part, strategy = f"units[{position}]", described.sublayer, unit.strategy
        if not isinstance(part, LOWERED_PARTS) or (isinstance(part, Attention) and (part.window or part.relative)):
            problem = f"is {model.family!r}, whose {described.name} is not lowered"
            yield Refusal("model.config.model_type", problem, "run it by program, where that has it")
            return
        for axis in ("cp", "ep"):
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
    """Whether two consecutive units split the same ranks so differently that no device mesh has both layouts."""
    return before.group == after.group and common_digits([before, after]) is None
