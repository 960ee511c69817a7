"""The search for a shorter simulated step, for cost models whose objective is only a lower bound on it.

Where costs count the overlap of communication with computation, the objective of a plan is at most the simulated step of its
programs, so a plan with a larger objective may have a shorter step. While the best simulated step is longer than the least
objective of the plans not tried yet, plans of other solutions are simulated, from all instances of a request:

    layouts   the best solution without the layouts tried already
    shapes    the best solution with other numbers of stages and micro-batches, where the step is far above the first objective
    even      a few layouts with equal numbers of layers in all stages, where it is still far above

Layouts and shapes are tried separately for interleaved stages and for others (`Refinement.pass_orders`): otherwise those with
the smaller objectives would leave no time for the others, and a wider choice of schedules could end with a worse plan.

The lower bound stays that of all solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.problem import counts_overlap, problem_of
from trainplan.formulations.refinement import Refinement
from trainplan.planning.memory_beyond_tables import BeyondTables
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.solvers.core.answer import Answer, stopped_with, with_solution
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import CUTOFF

LESS_ROUNDS = 3  # searches with less memory, where a plan's programs do not fit
LAYOUTS, SHAPES, EVEN = 4, 4, 2  # the most that are simulated, the first two for each order of passes
HIDDEN = 0.002  # layouts are tried while the best step is longer than the least untried objective by more than this share of it
FAR = 0.02  # the share for other numbers of stages and micro-batches, and for even stages
SECONDS = 10.0  # for all shapes, and for even stages; as long as planning took before, where that is longer
SOURCE = "the least predicted step of several plans"


def improve_by_walks(run: PlanningRun, best: PlanningResult) -> PlanningResult:
    """The result with the shortest simulated step among several plans, since the solver's objectives only estimate simulated
    steps. Returns `best` if costs do not count overlap, if its programs are not simulated, or if the objective is the
    prediction of a runtime.

    run: the planning run of the request. best: the result with the plan of the least objective, with which the search
    begins.
    """
    refinement, beyond = run.preset.problem.refinement, run.beyond
    if refinement is None or beyond is None or best.judged is None or best.plan is None or not counts_overlap(best.instance):
        return best
    if predicted_by_runtime(best.instance):
        return best
    return WalkSearch(run, best, refinement, beyond).run()


@dataclass
class PlanGroup:
    """Some of the configurations of an instance of the joint problem (each a pipeline with a schedule, a number of
    micro-batches and a device layout), and the best solution among them.

    Attributes:
        whole: the instance.
        result: the solver's result for the whole instance.
        names: a name for each configuration of the instance; of configurations with one name, only one is tried.
        indices: the indices, in the instance, of the configurations that have not been tried yet.
        even: whether their stages are restricted to equal numbers of layers.
        floor_ns: a lower bound on the objective of all of them.
        answer: the solver's answer for them, with their best solution; None until they are searched.
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
        """The least objective in ns of the configurations not tried yet; None if they are not searched yet, or have no
        solution."""
        return None if self.answer is None else self.answer.objective_ns

    def solution(self) -> Any:
        """The solution of the group's search in terms of the whole instance: its configuration is an index into the
        configurations of `whole`.
        """
        assert self.answer is not None
        solution = self.answer.solution
        return replace(solution, configuration=self.indices[solution.configuration])

    def leave_out(self, solution: Any) -> None:
        """Remove from the group, which is changed, the configuration of a solution and all configurations that share its name.
        solution: a solution of the whole instance.
        """
        name = self.names[solution.configuration]
        self.indices = [index for index in self.indices if self.names[index] != name]
        self.floor_ns, self.answer = self.objective_ns or self.floor_ns, None


class WalkSearch:
    """The search for the plan with the shortest simulated step, beginning with the plan of the least objective (the solver's
    estimate of the step).

    It simulates the best solutions of groups of configurations; a configuration is a pipeline with a schedule, a number of
    micro-batches and a device layout. planning: the planning run of the request. first: the result that the search begins with.
    best: the best result so far.
    """

    def __init__(self, run: PlanningRun, best: PlanningResult, refinement: Refinement, beyond: BeyondTables) -> None:
        """best: the plan of the least objective; refinement: how the problem narrows its instances; beyond: notes of what
        simulated programs held beyond the tables of memory."""
        self.planning, self.refinement, self.beyond = run, refinement, beyond
        self.best, self.first = best, best
        tried = best.answer.tried or ((best.instance, best.result),)
        self.wholes = [(instance, result) for instance, result in tried if result.objective is not None]
        self.walked = [(best.instance, best.answer.solution)]

    def run(self) -> PlanningResult:
        """Simulate further plans as long as one of them could be faster than the best so far. Returns the result with the
        shortest simulated step.
        """
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
        """Whether the shortest simulated step exceeds the first plan's objective by more than the share FAR, so that it is
        worth trying more plans.
        """
        return self.step_ns > (1 + FAR) * (self.first.answer.objective_ns or 0)

    @property
    def step_ns(self) -> int:
        """The shortest simulated step so far, in ns."""
        assert self.best.judged is not None
        return self.best.judged.step_ns

    def groups(self, names: Callable[[Any], Sequence[str]], order: str) -> list[PlanGroup]:
        """A group for each instance of the request: those of its configurations that have one given class of pass orders,
        without those that share a name with a solution that has been simulated.

        names: takes an instance, returns a name for each of its configurations. order: the name of the class of pass
        orders.
        """
        groups = []
        for whole, result in self.wholes:
            indices = [index for index, own in enumerate(self.refinement.pass_orders(whole)) if own == order]
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
        """A group for each instance: its configurations with the best plan's schedule and numbers of stages and micro-batches,
        restricted to stages with equal numbers of layers."""
        refinement, best = self.refinement, self.best
        shape = refinement.shapes(best.instance)[best.answer.solution.configuration]
        groups = []
        for whole, result in self.wholes:
            indices = [index for index, own in enumerate(refinement.shapes(whole)) if own == shape]
            if indices and refinement.with_even_stages(whole, indices) is not None:
                groups.append(self.group(whole, result, refinement.layouts(whole), indices, even=True))
        return groups

    def group(self, whole: Any, result: Result, names: Sequence[str], indices: Iterable[int], even: bool = False) -> PlanGroup:
        """A new group of configurations, none of them searched yet.

        whole: the instance. result: the result of searching it. names: a name for each of its configurations. indices: the
        configurations. even: whether their stages are restricted to equal numbers of layers.
        """
        assert result.objective is not None
        return PlanGroup(whole, result, names, list(indices), even, result.objective)

    def improve_among(self, groups: Sequence[PlanGroup], most: int, above: float, seconds: float | None = None) -> None:
        """Simulate the best solution of some groups, then the best of the remaining configurations, and so on, up to `most`
        times; better plans become `best`.

        above: stop once the best step exceeds the least objective of the rest by no more than this share. seconds: for all of
        it; None without a limit.
        """
        began = self.planning.elapsed()
        for _ in range(most):
            for group in groups:
                seconds_left = None if seconds is None else seconds - (self.planning.elapsed() - began)
                if self.planning.deadline_passed or self.best.interrupted or (seconds_left is not None and seconds_left <= 0):
                    return
                if group.answer is None and group.indices and self.step_ns > (1 + above) * group.floor_ns:
                    group.answer = self.searched(group, seconds_left)
            known = [(group.objective_ns, index) for index, group in enumerate(groups) if group.objective_ns is not None]
            if not known or self.step_ns <= (1 + above) * min(known)[0]:
                return
            group = groups[min(known)[1]]
            solution = group.solution()
            self.simulate(group, solution)
            group.leave_out(solution)

    def searched(self, group: PlanGroup, seconds: float | None) -> Answer:
        """The solver's answer for a group's configurations, searched only below the best simulated step: the best solution
        whose objective is smaller. seconds: the time limit; None for the remaining time.
        """
        run, refinement = self.planning, self.refinement
        narrow = refinement.with_even_stages if group.even else refinement.with_configurations
        instance = narrow(group.whole, group.indices)
        arguments = {**run.arguments, "explained": False}
        if CUTOFF in run.method_options:
            arguments[CUTOFF] = self.step_ns
        run.begin(f"solving again, {plural(len(group.indices), 'configuration')}" + ", with even stages" * group.even)
        return run.search([self.beyond.corrected(instance)], run.method, seconds=seconds, **arguments)

    def simulate(self, group: PlanGroup, solution: Any) -> None:
        """Simulate the plan of a group's best solution, and keep it as `best` if it fits and its step is the shortest.

        If its programs do not fit, the bytes that they hold beyond the group's tables of memory are added to these tables, and
        the best solution is searched again, at most LESS_ROUNDS times. solution: a solution of the group's whole instance."""
        self.walked.append((group.whole, solution))
        run, first = self.planning, self.first.answer
        answer = replace(first, instance=group.whole, result=stopped_with(group.result, [first.result]))
        least = format_time(first.objective_ns or 0)
        message = f"another plan has the objective {least}; its predicted step is longer than this one's"
        name = group.names[solution.configuration]
        indices = [index for index in group.indices if group.names[index] == name]
        for _ in range(LESS_ROUNDS):
            tried = run.plan(with_solution(answer, solution, SOURCE, message), self.first.margin_bytes)
            if max(excess := run.over_bytes(tried)) <= 0 or run.deadline_passed or not indices:
                break
            self.beyond.note(group.whole, tried, excess)
            tighter = self.beyond.corrected(self.refinement.with_configurations(group.whole, indices))
            found = run.search([tighter], run.method, **{**run.arguments, "explained": False})
            if found.solution is None:
                break
            solution = replace(found.solution, configuration=indices[found.solution.configuration])
        if tried.judged is not None and tried.judged.step_ns < self.step_ns and max(run.over_bytes(tried)) <= 0:
            self.best = tried
