"""The search for a faster plan whose units have unlike layouts, where the best plan of one layout is known.

The problem's objective is at most the simulated step of a plan's programs, also where every unit (sub-layer or layer) has a
layout of its own. So the search solves for the least objective, which is the lower bound of all such plans, and simulates

    every plan     whose objective is below the best step, the least first, where the instance is small; then the plan is proven
                   to be the fastest: all others have a longer step, or an objective above it
    neighbours     of the best plan, in which some units have another option
    solutions      of single configurations (schedule, stages, micro-batches), those with the least floor first, and neighbours

until the time is up. Before a plan is simulated, the largest of its single lower bounds (`unlike_layout_bounds`), of which the
objective is a weighted mean, has to be below the best step. The plan of one layout is one of the problem's solutions and the
first to beat, so the result is never slower. Of large instances the plan is taken whose units change layout least often, among
those whose steps are within a thousandth (or the requested gap) of the shortest. Memory is that of the programs, as for every
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

from trainplan.formulations.joint.definition import unlike_layout_bounds
from trainplan.formulations.joint.enumeration import solution_count
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.lower_bounds import least_ns
from trainplan.formulations.joint.options import with_tables
from trainplan.formulations.joint.overlap_lower_bounds import layout_of
from trainplan.formulations.joint.overlap_units_moves import better_neighbours, every_solution_below, tidied
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.plan.plan import Plan
from trainplan.planning.memory_beyond_tables import BeyondTables
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.result import PlanningResult
from trainplan.solvers.core.answer import Answer, with_solution

FEW = 4000  # solutions of an instance of which every one may be simulated
CONFIGURATIONS = 8  # of which the best solution is simulated
BOUNDED, MOVES = 48, 6  # neighbours whose lower bounds are looked at, and that are simulated before the next round
PLAIN = 0.001  # the share of the shortest step within which fewer changes of layout count more
LESS_ROUNDS = 3  # searches with what programs hold beyond the tables, for one solution
SECONDS = 20.0  # for all of it after the first search; as long as planning took before, where that is longer
SOURCE = "the least predicted step of plans with unlike layouts"
PROVEN = "every plan of unlike layouts whose objective is below this plan's step was simulated: none is faster"


def improve_by_unlike_layouts(run: PlanningRun, best: PlanningResult) -> PlanningResult:
    """The fastest plan found whose units may have unlike layouts; never slower than the best plan of one layout.

    run: the planning run of the request for unlike layouts. best: the result of the request for one layout.
    """
    if best.interrupted or (best.plan is not None and best.judged is None) or run.deadline_passed:
        return replace(best, request=run.request)
    run.begin("solving with unlike layouts")
    (instance,) = run.preset.problem.instances(with_tables(run.request, "least"))
    known = (*([] if best.plan is None else [best.plan]), *run.incumbents)
    arguments = {**run.arguments, "explained": False} | ({"incumbents": known} if known else {})
    answer = run.search([instance], run.method, **arguments)
    if answer.solution is None:
        return replace(best, request=run.request)
    answer = run.without_needless_recomputation(answer)
    return UnlikeSearch.of(run, instance, answer, best).run_all()


@dataclass
class UnlikeSearch:
    """The search of one request, under way.

    Attributes:
        run: the planning run of the request for unlike layouts.
        instance: the problem with memory tables of what programs surely hold.
        answer: the solver's answer for the instance, with the lower bound.
        first: the result for one layout.
        best: the fastest plan that fits so far; None if none is known.
        beyond: notes of the bytes that simulated programs held beyond the tables.
        until: the moment at which the search ends, as seconds of planning.
        bounds: instances whose objectives are single lower bounds of the simulated step.
        walked: the solutions that were simulated.
        near: the plans that fit with a step that is equally short, see PLAIN.
    """

    run: PlanningRun
    instance: Instance
    answer: Answer
    first: PlanningResult
    best: PlanningResult | None
    beyond: BeyondTables
    until: float
    bounds: list[Instance]
    walked: set[Solution] = field(default_factory=set)
    near: list[PlanningResult] = field(default_factory=list)

    @classmethod
    def of(cls, run: PlanningRun, instance: Instance, answer: Answer, first: PlanningResult) -> UnlikeSearch:
        """A search that begins from the result for one layout, whose plan becomes a solution of the instance."""
        assert run.beyond is not None and run.preset.problem.refinement is not None
        elapsed = run.elapsed()
        bounds = unlike_layout_bounds(with_tables(run.request, "least"))
        search = cls(run, instance, answer, first, None, run.beyond, elapsed + max(SECONDS, elapsed), bounds)
        plan = first.plan
        solution = None if plan is None else run.preset.problem.refinement.solution_of_plan(instance, plan)
        if plan is not None and solution is not None:
            restated = with_solution(answer, solution, SOURCE)
            search.keep(replace(first, request=run.request, answer=restated, plan=plan.changed(claim=run.claim(restated))))
            search.walked.add(solution)
        return search

    def run_all(self) -> PlanningResult:
        """Simulate plans as the module says; returns the result with the fastest one."""
        try:
            proven = self.tried_all() if self.is_small else False
            if not proven:
                self.try_incumbents()
                self.walk_down(self.answer.solution)
                self.try_neighbours()
                self.try_configurations()
                self.try_neighbours()
        except KeyboardInterrupt:
            return (self.best or self.first).as_interrupted()
        if self.best is None:
            return replace(self.first, request=self.run.request)
        best = min(self.near, key=lambda result: (result.plan and _changes(result.plan), result.walked_ns))
        if proven:
            result = replace(best.answer.result, message=PROVEN)
            best = replace(best, answer=replace(best.answer, result=result))
        one = self.first.plan is not None and self.first.plan.one_strategy is not None
        uniform = self.first if one and best.plan is not None and best.plan.one_strategy is None else self.first.uniform
        return replace(best, uniform=uniform)

    @property
    def is_small(self) -> bool:
        """Whether the instance has so few solutions that the plan of each may be simulated."""
        return solution_count(self.instance) <= FEW

    @property
    def step_ns(self) -> int | None:
        """The shortest simulated step so far, in ns; None if no plan that fits is known."""
        return None if self.best is None else self.best.walked_ns

    @property
    def over(self) -> bool:
        """Whether the time of the search, or of planning, is up."""
        return self.run.elapsed() > self.until or self.run.deadline_passed

    def below(self, objective_ns: int) -> bool:
        """Whether a plan with this objective may be faster than the best one."""
        return self.step_ns is None or objective_ns < self.step_ns

    def walk(self, solution: Solution) -> tuple[PlanningResult, Sequence[int]]:
        """Simulate the plan of a solution, and keep it as `best` if it fits and is faster. Returns its result, and for each
        rank the bytes by which it exceeds the memory."""
        self.walked.add(solution)
        tried = self.run.plan(with_solution(self.answer, solution, SOURCE), 0)
        over = self.run.over_bytes(tried)
        if max(over) > 0:
            self.beyond.note(self.instance, tried, over)
        elif tried.judged is not None:
            self.keep(tried)
        return tried, over

    def keep(self, result: PlanningResult) -> None:
        """Remember a plan that fits, if its step is the shortest so far or, of large instances, about as short."""
        if self.below(result.walked_ns):
            self.best = result
        share = 0.0 if self.is_small else max(PLAIN, self.run.arguments.get("gap", 0.0))
        most_ns = (1 + share) * (self.step_ns or 0)
        self.near = [known for known in (*self.near, result) if known.walked_ns <= most_ns]

    def bound_ns(self, solution: Solution) -> int:
        """The largest known lower bound of the simulated step of a solution's plan, in ns."""
        return max(evaluate(instance, solution).time_ns for instance in self.bounds)

    def walk_down(self, solution: Solution | None, indices: Sequence[int] | None = None) -> None:
        """Simulate a solution; while its programs do not fit, search again with the bytes that they held beyond the tables.
        indices: the configurations of the whole instance in which to search again; None for all."""
        for _ in range(LESS_ROUNDS):
            solution = None if solution is None else tidied(self.beyond.corrected(self.instance), solution)
            if solution is None or solution in self.walked or not self.below(self.bound_ns(solution)):
                return
            _, over = self.walk(solution)
            if max(over) <= 0 or self.over:
                return
            corrected = self.beyond.corrected(self.instance)
            narrower = corrected if indices is None else corrected.only(indices)
            found = self.run.search_below([narrower], self.step_ns, self.until - self.run.elapsed())
            if found.objective_ns is None or not self.below(found.objective_ns):
                return
            solution = found.solution if indices is None else _of_whole(found.solution, indices)

    def try_incumbents(self) -> None:
        """Simulate the plans that the user gave to begin from, as far as they are solutions of the instance."""
        refinement = self.run.preset.problem.refinement
        for plan in self.run.incumbents if refinement is not None else ():
            solution = refinement.solution_of_plan(self.instance, plan) if refinement is not None else None
            if solution is not None and solution not in self.walked:
                self.walk(solution)

    def tried_all(self) -> bool:
        """Simulate every plan of a small instance whose objective is below the best step, the least first. Returns whether none
        was left when the time was up."""
        limit = max(map(self.bound_of_all, range(len(self.instance.configurations)))) if self.step_ns is None else self.step_ns
        for objective_ns, solution in every_solution_below(self.instance, limit):
            if self.over:
                return False
            if self.below(objective_ns) and solution not in self.walked and self.below(self.bound_ns(solution)):
                self.walk(solution)
        return True

    def bound_of_all(self, index: int) -> int:
        """An objective in ns that no solution of a configuration reaches. index: the configuration's."""
        configuration = self.instance.configurations[index]
        most = 0
        for tables in configuration.tables:
            for unit in self.instance.units:
                table = tables.units[unit.kind]
                passes = table.forward_ns + table.backward_ns
                most += int((configuration.micro_batches * configuration.stages * passes + table.last_ns + table.end_ns).max())
        return 1000 * (most + 1)

    def try_configurations(self) -> None:
        """Simulate the best solution of single configurations, those with the least floor first."""
        floors = [(least_ns(self.instance.only([index])), index) for index in range(len(self.instance.configurations))]
        for floor_ns, index in sorted(floors)[:CONFIGURATIONS]:
            if self.over or not self.below(floor_ns):
                return
            narrower = self.beyond.corrected(self.instance).only([index])
            found = self.run.search_below([narrower], self.step_ns, (self.until - self.run.elapsed()) / 2)
            if found.objective_ns is not None and self.below(found.objective_ns):
                self.walk_down(_of_whole(found.solution, [index]), [index])

    def try_neighbours(self) -> None:
        """Simulate neighbours of the best plan, and of the next best one, until none is faster."""
        while self.best is not None and not self.over:
            step_ns, solution = self.best.walked_ns, self.best.answer.solution
            instance = self.beyond.corrected(self.instance)
            found = better_neighbours(instance, solution, step_ns, lambda: self.over)
            self.run.begin(f"simulating plans with unlike layouts, {len(found)} near the best one")
            others = [other for _, other in found if other not in self.walked][:BOUNDED]
            bounded = sorted(((self.bound_ns(other), other) for other in others), key=itemgetter(0))
            for bound_ns, other in bounded[:MOVES]:
                if self.over or not self.below(bound_ns):
                    break
                self.walk(other)
            if self.best.walked_ns == step_ns:
                return


def _changes(plan: Plan) -> int:
    """How often the layout changes from one unit of a plan to the next."""
    layouts = [layout_of(unit.strategy) for unit in plan.units]
    return sum(before != after for before, after in pairwise(layouts))


def of_one_layout_alone(plan: Plan) -> bool:
    """Whether all units of a plan have one layout, apart from what they recompute."""
    return _changes(plan) == 0


def _of_whole(solution: Any, indices: Sequence[int]) -> Any:
    """A solution of an instance with some configurations as one of the whole instance. indices: of these configurations."""
    return replace(solution, configuration=indices[solution.configuration])
