"""Classes of ranks that run one program, up to names of ranks and samples: each class is compiled and simulated once.

Ranks of a stage run the same instructions on buffers of the same bytes if they work on equal numbers of micro-batches and hold
equally large shards; they differ in the members of their groups, and in the samples they work on.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.compile.ranks import by_kind, planned_ranks
from trainplan.execution.program import Program
from trainplan.execution.steady_state import Rounds, few_micro_batches, in_rounds, micro_batches_of_round
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model

MOST_INSTRUCTIONS = 2**20  # of a rank's program that has no steady state


@dataclass(frozen=True)
class RankClass:
    """Ranks of one stage, ascending, that run the same program, and the program of the first of them.

    few: that program with its first few micro-batches alone. rounds: the whole program, in compact form where it reaches a
    steady state (see `execution.steady_state`). ahead: whether it gathers parameters one unit ahead.
    """

    plan: Plan
    model: Model
    ranks: tuple[int, ...]
    few: Program
    rounds: Rounds
    ahead: bool = False

    @property
    def program(self) -> Program:
        """The whole program of the first rank, with all of its micro-batches, built when it is first needed."""
        return self.rounds.whole

    @property
    def walked(self) -> Program:
        """A program with the same peak memory as the whole one, shorter where that reaches a steady state."""
        return self.rounds.few


def assure_compiled(plan: Plan, instructions: int, most: int = MOST_INSTRUCTIONS) -> None:
    """Raises InputError where the program of a rank that reaches no steady state would have more than `most` instructions.
    instructions: number of instructions per micro-batch."""
    if plan.batch.micro_batches * instructions > most:
        problem = f"is {plan.batch.micro_batches}, each with instructions of its own"
        fix = f"give at most {most // instructions}, or equal stages under 1f1b"
        raise InputError("plan", "batch.micro_batches", problem, fix)


def replica_samples(plan: Plan) -> int:
    """Number of samples, or pieces of samples, in one micro-batch; where replicas have shares of their own, in that of one
    replica."""
    return plan.batch.global_samples * plan.pieces // sum(plan.batch.shares or [plan.batch.micro_batches])


def compile_classes(plan: Plan, model: Model | None = None, ahead: bool = False) -> list[RankClass]:
    """The classes of a plan's ranks, with the program of one rank of each. model, ahead: as of `compile_plan`."""
    model = model or plan.planned_model()
    classes, samples = by_kind(planned_ranks(plan, model)), replica_samples(plan)
    programs = compile_plan(plan, model, [members[0].rank for members in classes], few_micro_batches(plan), ahead)
    rank_classes = []
    for members, few in zip(classes, programs, strict=True):
        ranks, micro_batches = tuple(member.rank for member in members), members[0].micro_batches
        if micro_batches == few.micro_batches:
            rounds = Rounds(few)
        else:
            found = in_rounds(few, micro_batches, samples, micro_batches_of_round(plan))
            if found is None:
                assure_compiled(plan, len(few.instructions) // few.micro_batches)
            rounds = found or Rounds(compile_plan(plan, model, ranks[:1], ahead=ahead)[0])
        rank_classes.append(RankClass(plan, model, ranks, few, rounds, ahead))
    return rank_classes
