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
    """The compiled programs of a plan. A program is one rank's instructions for a training step. A class of ranks is a set of
    ranks of one stage whose programs are equal up to samples and groups; for large plans one rank of each class is compiled. A
    back-end is a way in which the executor runs a program: on one queue (`serial`), threads or CUDA streams.

    classes: for each rank that is compiled, all ranks of its class. programs: the programs of the compiled ranks. walked: for
    each of them a program with the same peak memory, which has fewer micro-batches if the program repeats itself. check: runs
    the static checks, and gives their faults as text; empty for sound programs.
    """

    plan: Plan
    classes: Classes
    programs: Sequence[Program | Rounds]
    walked: Sequence[Program]
    check: Callable[[], Sequence[str]]

    @cached_property
    def faults(self) -> Sequence[str]:
        """The faults that the static checks find in the programs, as lines of text, empty if there are none; computed once.
        For large plans this takes longer than everything else."""
        return self.check()

    def assure(self) -> None:
        """Raises AssertionError with the programs' first fault, if there is one: it would be an error of trainplan's own."""
        assert not self.faults, self.faults[0]

    @property
    def instructions(self) -> int:
        """The number of instructions of all compiled programs together, with all their micro-batches."""
        return sum(len(program) if isinstance(program, Rounds) else len(program.instructions) for program in self.programs)

    def memory(self, backend: Backend) -> tuple[Walk, ...]:
        """The memory analysis of each compiled program, on `backend` or on the serial back-end, whichever has the higher
        peak."""
        backends: set[Backend] = {"serial", backend}
        return tuple(max((memory_walk(p, b) for b in backends), key=lambda walk: walk.peak_bytes) for p in self.walked)


def default_backend(plan: Plan) -> Backend:
    """The executor's back-end whose lanes (parallel queues of instructions) decide a plan's time: the one that the plan names;
    else `streams` for plans that copy to the host, whose point is to overlap copies, and `serial` for all others."""
    return plan.backend or ("streams" if plan.uses_host else "serial")


def compiled(plan: Plan, backend: Backend, by_class: bool = False) -> Compiled:
    """Compile a plan for a back-end of the executor. by_class: whether to compile only one rank of each class of equal ranks,
    unless the plan is small; plans with too many ranks for one machine are compiled that way in any case."""
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
    """Compile the programs (instructions for a training step) of all ranks of a plan for a back-end of the executor, such as
    `serial` or `streams`. On back-ends with parallel queues they gather parameters and post receives ahead if that fits in
    memory. model: a smaller model with the same units (sub-layers) to run; None for the plan's own."""
    if may_go_ahead(plan, backend):
        programs = compile_plan(plan, model, ahead=True)
        if _fits(plan, backend, programs):
            return programs
    return compile_plan(plan, model)


def classes_of(plan: Plan, backend: Backend) -> list[RankClass]:
    """The classes of equal ranks of a plan, with one program (a rank's instructions for a training step) each, compiled for a
    back-end of the executor, such as `serial` or `streams`. On back-ends with parallel queues programs gather parameters and
    post receives ahead if that fits in memory."""
    if may_go_ahead(plan, backend):
        classes = compile_classes(plan, ahead=True)
        if _fits(plan, backend, [rank_class.walked for rank_class in classes]):
            return classes
    return compile_classes(plan)


def may_go_ahead(plan: Plan, backend: Backend) -> bool:
    """Whether programs (a rank's instructions for a training step) could overlap more, on this back-end of the executor, by
    gathering parameters, or copying them from the host, one unit (sub-layer) ahead, or by posting receives one pass ahead:
    False on the back-end `serial`, which runs one instruction at a time, and for plans without any of these."""
    sharded = any(strategy.shares_parameters for strategy in plan.strategies())
    return backend != "serial" and plan.switches() is None and (sharded or plan.uses_host or len(plan.stages) > 1)


def _fits(plan: Plan, backend: Backend, programs: list[Program]) -> bool:
    """Whether the peak memory of each of these programs is within the memory per device that the plan was made for. A program
    is one rank's instructions for a training step."""
    return all(memory_walk(program, backend).peak_bytes <= plan.memory_bytes for program in programs)
