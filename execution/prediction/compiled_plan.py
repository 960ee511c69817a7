"""A plan's programs, compiled and, once that is asked for, checked: those of all ranks, or of one rank of each class of equals.

Of plans for more than MOST_PROCESSES devices, which do not run on one machine, one rank of each class is compiled, with as few
of its micro-batches as tell the rest (see `rounds`), and its checks stand for all (see `walk.class_checks`). So it is of more
than FEW_RANKS or FEW_MICRO_BATCHES where all ranks of a class are walked alike, and never where ranks do not fall into classes
(see `Plan.regular`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from trainplan.execution.analysis.memory.peak import Backend, Walk, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.classes import assure_compiled
from trainplan.execution.executable_models import MOST_PROCESSES
from trainplan.execution.prediction.prefetch import classes_of, programs_of
from trainplan.execution.program import Program
from trainplan.execution.steady_state import Rounds
from trainplan.formulations.plan.plan import Plan

FEW_RANKS, FEW_MICRO_BATCHES = 8, 16
INSTRUCTIONS, MOST_INSTRUCTIONS = 4, 2**23  # about how many a unit has for each micro-batch; of all ranks' programs
Classes = Mapping[int, Sequence[int]]  # ranks that do the same, by the one that is compiled


@dataclass(frozen=True, eq=False)
class Compiled:
    """classes: of each rank that is compiled, all that it stands for. programs: theirs; walked: programs with the same peaks,
    shorter where a program repeats in rounds. check: what the checks say, in words; nothing of sound programs."""

    plan: Plan
    classes: Classes
    programs: Sequence[Program | Rounds]
    walked: Sequence[Program]
    check: Callable[[], Sequence[str]]

    @cached_property
    def faults(self) -> Sequence[str]:
        """What the checks say, which take longer than all else of a large plan."""
        return self.check()

    def assure(self) -> None:
        """Stop with the first fault of the programs, which is one of trainplan's own."""
        assert not self.faults, self.faults[0]

    @property
    def instructions(self) -> int:
        """The number of instructions of all programs that were compiled, whole."""
        return sum(len(program) if isinstance(program, Rounds) else len(program.instructions) for program in self.programs)

    def memory(self, backend: Backend) -> tuple[Walk, ...]:
        """The walk of each program on a back-end or on the serial one, whichever needs more."""
        backends: set[Backend] = {"serial", backend}
        return tuple(max((memory_walk(p, b) for b in backends), key=lambda walk: walk.peak_bytes) for p in self.walked)


def default_backend(plan: Plan) -> Backend:
    """Whose lanes count: those that the plan names; else `streams` for plans that copy to the host, for the sake of what lanes
    do beside each other, and `serial`."""
    return plan.backend or ("streams" if plan.uses_host else "serial")


def compiled(plan: Plan, backend: Backend, by_class: bool = False) -> Compiled:
    """Compile a plan for a back-end. by_class: one rank of each class where there is more than a little to do."""
    little = plan.world <= FEW_RANKS and plan.batch.micro_batches <= FEW_MICRO_BATCHES
    if not plan.regular or (little if by_class else plan.world <= MOST_PROCESSES):
        assure_compiled(plan, INSTRUCTIONS * len(plan.units) * plan.world // plan.depth, MOST_INSTRUCTIONS)
        programs = programs_of(plan, backend)
        return Compiled(plan, {rank: (rank,) for rank in range(plan.world)}, programs, programs, partial(check, programs))
    ranks = classes_of(plan, backend)
    rounds, walked = [each.rounds for each in ranks], [each.walked for each in ranks]
    return Compiled(plan, {each.ranks[0]: each.ranks for each in ranks}, rounds, walked, partial(check_classes, ranks))
