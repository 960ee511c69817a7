"""Better plans by the prediction of their programs, where overlap hides less than the solver's relaxed problem has it.

Where costs count overlap, an objective is at most the simulated step of the plan's programs, so that a plan with a larger
objective may have a shorter step. While the best simulated step is longer than the least objective that is left, plans of other
solutions are simulated, of all instances of a request:

    layouts   of the layouts that are left, the best solution
    shapes    of the numbers of stages and micro-batches that are left, where the best step is far above the first objective
    even      with as many layers in each stage, of the best plan's numbers, for a few layouts; where it still is

Layouts and shapes are tried for interleaved stages and for others apart (`Refinement.pass_orders`): else those whose objectives
promise most would leave no time for the others, and a wider choice of schedules could end with a worse plan.

The bound stays that of all solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.problem import counts_overlap, problem_of
from trainplan.formulations.refinement import Refinement
from trainplan.planning.memory_beyond_tables import BeyondTables
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.solvers.core.answer import Answer, stopped_with, with_solution
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import CUTOFF

LESS_ROUNDS = 3  # searches with less memory, where a plan's programs do not fit
LAYOUTS, SHAPES, EVEN = 4, 4, 2  # that are simulated at most, the first two of either order of passes
HIDDEN = 0.002  # of the least objective that is left: by how much the best step may be longer before others are simulated, too
FAR = 0.02  # the same, before other numbers of stages and micro-batches, and even stages, are tried
SECONDS = 10.0  # for all shapes, and for even stages; as many as passed before, where these are more
SOURCE = "the least predicted step of several plans"


def improve_by_walks(run: PlanningRun, best: PlanningResult) -> PlanningResult:
    """The plan of the least simulated step among some, beginning from the plan of the least objective; that plan itself where
    costs do not count overlap, or its programs are not simulated."""
    refinement, beyond = run.preset.problem.refinement, run.beyond
    if refinement is None or beyond is None or best.judged is None or best.plan is None or not counts_overlap(best.instance):
        return best
    return WalkSearch(run, best, refinement, beyond).run()


@dataclass
class PlanGroup:
    """Some configurations of an instance of a request, and the best solution of them.

    Attributes:
        whole: the instance.
        result: of the search of the whole instance.
        names: of all configurations of the instance, the same where one stands for all of that name.
        indices: of those configurations that are left.
        even: whether their stages are even.
        floor_ns: an objective that none of them is below.
        answer: their best solution; None until it is searched.
    """

    whole: Any
    result: Result
    names: Sequence[str]
    indices: list[int]
    even: bool
    floor_ns: int
    answer: Answer | None = None

    @property
    def objective_ns(self) -> int | None:
        """The least objective of the configurations that are left; None where none is known."""
        return None if self.answer is None else self.answer.objective_ns

    def solution(self) -> Any:
        """The best solution as one of the whole instance."""
        assert self.answer is not None
        solution = self.answer.solution
        return replace(solution, configuration=self.indices[solution.configuration])

    def leave_out(self, solution: Any) -> None:
        """Leave out all configurations that are like that of a solution of the whole instance."""
        name = self.names[solution.configuration]
        self.indices = [index for index in self.indices if self.names[index] != name]
        self.floor_ns, self.answer = self.objective_ns or self.floor_ns, None


class WalkSearch:
    """The search for the plan of the least simulated step, beginning from the one of the least objective."""

    def __init__(self, run: PlanningRun, best: PlanningResult, refinement: Refinement, beyond: BeyondTables) -> None:
        self.planning, self.refinement, self.beyond = run, refinement, beyond
        self.best, self.first = best, best
        tried = best.answer.tried or ((best.instance, best.result),)
        self.wholes = [(instance, result) for instance, result in tried if result.objective is not None]
        self.walked = [(best.instance, best.answer.solution)]

    def run(self) -> PlanningResult:
        """The plan of the least simulated step among those tried."""
        refinement = self.refinement
        orders = sorted({order for whole, _ in self.wholes for order in refinement.pass_orders(whole)})
        for order in orders:
            self.improve_among(self.groups(refinement.layouts, order), LAYOUTS, HIDDEN)
        seconds = max(SECONDS, self.planning.elapsed()) / len(orders)
        for order in orders:
            if self.far:
                self.improve_among(self.groups(refinement.shapes, order), SHAPES, FAR, seconds)
        if self.far:
            self.improve_among(self.even_groups(), EVEN, FAR, max(SECONDS, self.planning.elapsed()))
        return self.best

    @property
    def far(self) -> bool:
        """Whether the best simulated step is far above the first objective."""
        return self.step_ns > (1 + FAR) * (self.first.answer.objective_ns or 0)

    @property
    def step_ns(self) -> int:
        """The best simulated step."""
        assert self.best.judged is not None
        return self.best.judged.step_ns

    def groups(self, names: Callable[[Any], Sequence[str]], order: str) -> list[PlanGroup]:
        """The configurations of all instances with this order of passes, without those like solutions that have been simulated.
        names: of an instance's configurations."""
        groups = []
        for whole, result in self.wholes:
            indices = [index for index, each in enumerate(self.refinement.pass_orders(whole)) if each == order]
            group = self.group(whole, result, names(whole), indices)
            best = None if result.solution is None else problem_of(whole).load_solution(result.solution)
            if best is not None and best.configuration in indices:
                best = replace(best, configuration=indices.index(best.configuration))
                group.answer = Answer(whole, result, best, result.objective, result.bound)
            for instance, solution in self.walked:
                if instance is whole and solution.configuration in indices:
                    group.leave_out(solution)
            groups.append(group)
        return groups

    def even_groups(self) -> list[PlanGroup]:
        """The configurations of all instances with the best plan's numbers of stages and micro-batches, with even stages."""
        refinement, best = self.refinement, self.best
        shape = refinement.shapes(best.instance)[best.answer.solution.configuration]
        groups = []
        for whole, result in self.wholes:
            indices = [index for index, each in enumerate(refinement.shapes(whole)) if each == shape]
            if indices and refinement.with_even_stages(whole, indices) is not None:
                groups.append(self.group(whole, result, refinement.layouts(whole), indices, even=True))
        return groups

    def group(self, whole: Any, result: Result, names: Sequence[str], indices: Iterable[int], even: bool = False) -> PlanGroup:
        """A group of which no more is known than of its instance."""
        assert result.objective is not None
        return PlanGroup(whole, result, names, list(indices), even, result.objective)

    def improve_among(self, groups: Sequence[PlanGroup], most: int, above: float, seconds: float | None = None) -> None:
        """Simulate the best solution of these groups, then the best of what is left without it, and so on, up to `most`.

        above: by how much of the least objective the best step has to be longer; seconds: for all of it.
        """
        began = self.planning.elapsed()
        for _ in range(most):
            for group in groups:
                left = None if seconds is None else seconds - (self.planning.elapsed() - began)
                if self.planning.deadline_passed or self.best.interrupted or (left is not None and left <= 0):
                    return
                if group.answer is None and group.indices and self.step_ns > (1 + above) * group.floor_ns:
                    group.answer = self.searched(group, left)
            known = [(group.objective_ns, index) for index, group in enumerate(groups) if group.objective_ns is not None]
            if not known or self.step_ns <= (1 + above) * min(known)[0]:
                return
            group = groups[min(known)[1]]
            solution = group.solution()
            self.simulate(group, solution)
            group.leave_out(solution)

    def searched(self, group: PlanGroup, seconds: float | None) -> Answer:
        """The best solution of a group, where its objective is below the best simulated step."""
        run, refinement = self.planning, self.refinement
        narrowed = refinement.with_even_stages if group.even else refinement.with_configurations
        left = narrowed(group.whole, group.indices)
        arguments = {**run.arguments, "explained": False}
        if CUTOFF in run.method_options:
            arguments[CUTOFF] = self.step_ns
        run.begin(f"solving again, {plural(len(group.indices), 'configuration')}" + ", with even stages" * group.even)
        return run.search([self.beyond.corrected(left)], run.method, seconds=seconds, **arguments)

    def simulate(self, group: PlanGroup, solution: Any) -> None:
        """Simulate the plan of a group's best solution; where its programs do not fit, that of the best one with what they hold
        beyond its tables, a few times. Where it fits and its step is the shortest, it is the best."""
        self.walked.append((group.whole, solution))
        run, first = self.planning, self.first.answer
        answer = replace(first, instance=group.whole, result=stopped_with(group.result, [first.result]))
        least = format_time(first.objective_ns or 0)
        message = f"another plan has the objective {least}; its predicted step is longer than this one's"
        name = group.names[solution.configuration]
        indices = [index for index in group.indices if group.names[index] == name]
        for _ in range(LESS_ROUNDS):
            made = run.plan(with_solution(answer, solution, SOURCE, message), self.first.margin_bytes)
            if max(over := run.over_bytes(made)) <= 0 or run.deadline_passed or not indices:
                break
            self.beyond.note(group.whole, made, over)
            tighter = self.beyond.corrected(self.refinement.with_configurations(group.whole, indices))
            found = run.search([tighter], run.method, **{**run.arguments, "explained": False})
            if found.solution is None:
                break
            solution = replace(found.solution, configuration=indices[found.solution.configuration])
        if made.judged is not None and made.judged.step_ns < self.step_ns and max(run.over_bytes(made)) <= 0:
            self.best = made
