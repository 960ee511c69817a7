"""A plan's programs, compiled and, on demand, checked: those of all ranks, or of one rank of each class of equals.

For plans of more than MOST_PROCESSES devices, which do not run on one machine, one rank of each class is compiled, with only
the few micro-batches that determine the rest (see `steady_state`), and its checks stand for all (see `rank_class_checks`). So
it is for plans of more than FEW_RANKS or FEW_MICRO_BATCHES where all ranks of a class take the same time, and never where ranks
do not fall into classes (see `Plan.regular`).

Where computation and communication run in parallel, parameters are gathered (or copied in) one unit ahead, while the unit
before computes, and receives are posted one pass ahead. One more unit is whole then, and one more message held. So programs
do both on such back-ends alone, and only if every rank keeps to the plan's memory: planners, whose plans are for the serial
back-end, count one whole unit and no message that is not needed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from trainplan.execution.analysis.memory.peak import Backend, Walk, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import RankClass, assure_compiled, compile_classes, compile_plan
from trainplan.execution.executable_models import MOST_PROCESSES
from trainplan.execution.program import Program
from trainplan.execution.steady_state import Rounds
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import Model

FEW_RANKS, FEW_MICRO_BATCHES = 8, 16
INSTRUCTIONS, MOST_INSTRUCTIONS = 4, 2**23  # roughly, per unit and micro-batch; at most, of all ranks' programs
Classes = Mapping[int, Sequence[int]]  # ranks that do the same, by the one that is compiled


@dataclass(frozen=True, eq=False)
class Compiled:
    """The programs of a plan. classes: for each rank that is compiled, all that it stands for. programs: of these ranks.
    walked: programs with the same peak memory, shorter where a program reaches a steady state. check: runs the checks, and
    gives their faults as text; none for sound programs."""

    plan: Plan
    classes: Classes
    programs: Sequence[Program | Rounds]
    walked: Sequence[Program]
    check: Callable[[], Sequence[str]]

    @cached_property
    def faults(self) -> Sequence[str]:
        """The faults that the checks find, as lines of text. For large plans checks take longer than all else."""
        return self.check()

    def assure(self) -> None:
        """Raises AssertionError with the first fault of the programs, which would be an error of trainplan's own."""
        assert not self.faults, self.faults[0]

    @property
    def instructions(self) -> int:
        """The number of instructions of all programs that were compiled, each in full length."""
        return sum(len(program) if isinstance(program, Rounds) else len(program.instructions) for program in self.programs)

    def memory(self, backend: Backend) -> tuple[Walk, ...]:
        """The memory of each program on a back-end or on the serial one, whichever needs more."""
        backends: set[Backend] = {"serial", backend}
        return tuple(max((memory_walk(p, b) for b in backends), key=lambda walk: walk.peak_bytes) for p in self.walked)


def default_backend(plan: Plan) -> Backend:
    """The back-end whose lanes count for a plan: the one that it names; else `streams` for plans that copy to the host, whose
    purpose is what lanes do in parallel, and `serial` for all others."""
    return plan.backend or ("streams" if plan.uses_host else "serial")


def compiled(plan: Plan, backend: Backend, by_class: bool = False) -> Compiled:
    """Compile a plan for a back-end. by_class: whether one rank of each class suffices where there is more than a little to
    do."""
    little = plan.world <= FEW_RANKS and plan.batch.micro_batches <= FEW_MICRO_BATCHES
    if not plan.regular or (little if by_class else plan.world <= MOST_PROCESSES):
        assure_compiled(plan, INSTRUCTIONS * len(plan.units) * plan.world // plan.depth, MOST_INSTRUCTIONS)
        programs = programs_of(plan, backend)
        return Compiled(plan, {rank: (rank,) for rank in range(plan.world)}, programs, programs, partial(check, programs))
    ranks = classes_of(plan, backend)
    rounds, walked = [rank_class.rounds for rank_class in ranks], [rank_class.walked for rank_class in ranks]
    return Compiled(
        plan, {rank_class.ranks[0]: rank_class.ranks for rank_class in ranks}, rounds, walked, partial(check_classes, ranks)
    )


def programs_of(plan: Plan, backend: Backend, model: Model | None = None) -> list[Program]:
    """The programs of all ranks of a plan on a back-end. model: as of `compile_plan`."""
    if may_go_ahead(plan, backend):
        programs = compile_plan(plan, model, ahead=True)
        if _fits(plan, backend, programs):
            return programs
    return compile_plan(plan, model)


def classes_of(plan: Plan, backend: Backend) -> list[RankClass]:
    """The classes of a plan's ranks, with their programs on a back-end."""
    if may_go_ahead(plan, backend):
        classes = compile_classes(plan, ahead=True)
        if _fits(plan, backend, [rank_class.walked for rank_class in classes]):
            return classes
    return compile_classes(plan)


def may_go_ahead(plan: Plan, backend: Backend) -> bool:
    """Whether, on a back-end, some parameters of a plan could be gathered one unit ahead, or copied in from the host, or some
    receives posted one pass ahead."""
    sharded = any(strategy.shares_parameters for strategy in plan.strategies())
    return backend != "serial" and plan.switches() is None and (sharded or plan.uses_host or len(plan.stages) > 1)


def _fits(plan: Plan, backend: Backend, programs: list[Program]) -> bool:
    """Whether the peak memory of all programs is within the plan's."""
    return all(memory_walk(program, backend).peak_bytes <= plan.memory_bytes for program in programs)
