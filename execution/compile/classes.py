"""Classes of ranks that run one program, under other names of ranks and samples: each is compiled and walked once.

Ranks of a stage run the same instructions on buffers of the same bytes if they work on equal numbers of micro-batches and hold
equally large shards; what differs is who is in their groups, and which samples they work on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.compile.ranks import by_kind, planned_ranks
from trainplan.execution.compile.rounds import few_micro_batches, last_round, prolonged
from trainplan.execution.program import Program
from trainplan.formulations.plan import Plan
from trainplan.profiling.models.model import Model


@dataclass(frozen=True)
class RankClass:
    """Ranks of one stage, ascending, that run the same program, and the program of the first of them.

    micro_batches: those that each of them works on. few: that program with its first few micro-batches alone (see `rounds`).
    """

    plan: Plan
    model: Model
    ranks: tuple[int, ...]
    micro_batches: int
    few: Program

    @cached_property
    def program(self) -> Program:
        """The whole program of the first rank, with all of its micro-batches; made when it is first asked for."""
        if self.micro_batches == self.few.micro_batches:
            return self.few
        if self._round is None:
            return compile_plan(self.plan, self.model, self.ranks[:1])[0]
        return prolonged(self.few, self.micro_batches, samples_of(self.plan), self._round)

    @cached_property
    def _round(self) -> tuple[int, int] | None:
        return last_round(self.few, samples_of(self.plan))

    @property
    def walked(self) -> Program:
        """A program with the peak of the whole one, shorter where that repeats in rounds: for the memory walk."""
        return self.program if self._round is None else self.few


def samples_of(plan: Plan) -> int:
    """Samples of one micro-batch, of one replica where these have shares of their own."""
    return plan.batch.global_samples // sum(plan.batch.shares or [plan.batch.micro_batches])


def compile_classes(plan: Plan, model: Model | None = None) -> list[RankClass]:
    """The classes of a plan's ranks, with the program of one rank of each. model: as of `compile_plan`."""
    model = model or plan.planned_model()
    classes = by_kind(planned_ranks(plan, model))
    programs = compile_plan(plan, model, [members[0].rank for members in classes], few_micro_batches(plan))
    return [
        RankClass(plan, model, tuple(member.rank for member in members), members[0].micro_batches, few)
        for members, few in zip(classes, programs, strict=True)
    ]


def of_ranks(classes: Sequence[RankClass], values: Sequence[int]) -> tuple[int, ...]:
    """A number of each class, such as its peak bytes, as that of every rank, by rank."""
    by_rank = {rank: value for each, value in zip(classes, values, strict=True) for rank in each.ranks}
    return tuple(by_rank[rank] for rank in sorted(by_rank))
