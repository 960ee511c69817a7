"""Which programs of a plan a back-end runs: with parameters gathered (or copied in) one unit ahead and receives posted one pass
ahead, or with everything when it is needed.

Where lanes run in parallel, parameters gathered ahead travel while the unit before computes, and a message whose receive is
posted ahead while the pass before does. One more unit is whole then, and one more message held. So programs do both on such
back-ends alone, and only if every rank keeps to the plan's memory: planners, whose plans are for the serial back-end, count one
whole unit and no message that is not needed yet.
"""

from __future__ import annotations

from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.compile.classes import RankClass, compile_classes
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.program import Program
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import Model


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
