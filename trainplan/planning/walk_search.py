"""Walks of more plans than the one of the least claim, where lanes hide less than the relaxed problem has it.

Under `streams` a claim is at most the walk of the plan's programs, so that a plan with a larger claim may have a shorter walk.
While the best walk is longer than the least claim that is left, other solutions are walked, of all instances of a request:

    layouts   of the layouts that are left, the best solution
    shapes    of the numbers of stages and micro-batches that are left, where the best walk is far above the first claim
    even      with as many layers in each stage, of the best plan's numbers, for a few layouts; where it still is

Layouts and shapes are tried for interleaved stages and for others apart (`Problem.passes`): else those whose claims promise
most would leave no room for the others, and a wider choice of schedules could end with a worse plan.

The bound stays that of all solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trainplan.formulations.problem import problem_of
from trainplan.formulations.refinement import Refinement
from trainplan.planning.memory_beyond_tables import BeyondTables
from trainplan.planning.presets import Preset
from trainplan.planning.result import Planned
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.solvers.core.answer import Answer, stopped_with, with_solution
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import CUTOFF

LESS_ROUNDS = 3  # searches with less memory, where a plan's programs do not fit
LAYOUTS, SHAPES, EVEN = 4, 4, 2  # that are walked at most, the first two of either order of passes
HIDDEN = 0.002  # of the least claim that is left: by how much the best walk may be longer before others are walked, too
FAR = 0.02  # the same, before other numbers of stages and micro-batches, and even stages, are tried
SECONDS = 10.0  # for all shapes, and for even stages; as many as passed before, where these are more
SOURCE = "the least predicted step of several plans"


@dataclass
class Part:
    """Some configurations of an instance of a request. names: of all its configurations, alike where one stands for all of that
    name; places: of those that are left; even: whether their cuts are; floor_ns: a claim that none of them is below; answer:
    their best solution, None until it is searched."""

    whole: Any
    result: Result
    names: Sequence[str]
    places: list[int]
    even: bool
    floor_ns: int
    answer: Answer | None = None

    @property
    def claim_ns(self) -> int | None:
        """The least claim of what is left; None where none is known."""
        return None if self.answer is None else self.answer.objective_ns

    def solution(self) -> Any:
        """The best solution as one of the whole instance."""
        assert self.answer is not None
        solution = self.answer.solution
        return replace(solution, configuration=self.places[solution.configuration])

    def leave_out(self, solution: Any) -> None:
        """Leave all out that are like a solution of the whole instance."""
        name = self.names[solution.configuration]
        self.places = [index for index in self.places if self.names[index] != name]
        self.floor_ns, self.answer = self.claim_ns or self.floor_ns, None


class Way(Protocol):
    """What is asked of the way from the request to its plan, see `planning.Way`."""

    @property
    def preset(self) -> Preset:
        """What plans the request."""
        ...

    @property
    def method(self) -> str:
        """The name of the method."""
        ...

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of its searches."""
        ...

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        ...

    @property
    def options_of_method(self) -> set[str]:
        """The names of the options that the method has."""
        ...

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        ...

    def begin(self, what: str) -> None:
        """Tell the caller what is begun."""
        ...

    def search(self, instances: Sequence[Any], method: str, seconds: float | None = None, **arguments: Any) -> Answer:
        """The best solution of these instances."""
        ...

    def plan(self, answer: Answer, margin: int) -> Planned:
        """The plan of an answer, walked."""
        ...

    def over_bytes(self, tried: Planned) -> list[int]:
        """By how much a plan exceeds the memory, by rank."""
        ...

    @property
    def beyond(self) -> BeyondTables | None:
        """What walks have had beyond the tables."""
        ...


class OtherWalks:
    """The search for the plan of the least walk, beginning from the one of the least claim."""

    def __init__(self, way: Way, best: Planned, refinement: Refinement) -> None:
        self.way, self.best, self.first, self.refinement = way, best, best, refinement
        tried = best.answer.tried or ((best.instance, best.result),)
        self.wholes = [(instance, result) for instance, result in tried if result.objective is not None]
        self.walked = [(best.instance, best.answer.solution)]

    def run(self) -> Planned:
        """The plan of the least walk among those tried."""
        refinement = self.refinement
        orders = sorted({order for whole, _ in self.wholes for order in refinement.pass_orders(whole)})
        for order in orders:
            self.among(self.parts(refinement.layouts, order), LAYOUTS, HIDDEN)
        seconds = max(SECONDS, self.way.elapsed()) / len(orders)
        for order in orders:
            if self.far:
                self.among(self.parts(refinement.shapes, order), SHAPES, FAR, seconds)
        if self.far:
            self.among(self.even_parts(), EVEN, FAR, max(SECONDS, self.way.elapsed()))
        return self.best

    @property
    def far(self) -> bool:
        """Whether the best walk is far above the first claim."""
        return self.step_ns > (1 + FAR) * (self.first.answer.objective_ns or 0)

    @property
    def step_ns(self) -> int:
        """The best walk."""
        assert self.best.judged is not None
        return self.best.judged.step_ns

    def parts(self, names: Callable[[Any], Sequence[str]], order: str) -> list[Part]:
        """What has this order of passes of all instances, without what is like solutions that have been walked. names: of an
        instance's configurations."""
        parts = []
        for whole, result in self.wholes:
            places = [index for index, each in enumerate(self.refinement.pass_orders(whole)) if each == order]
            part = self.part(whole, result, names(whole), places)
            best = None if result.solution is None else problem_of(whole).load_solution(result.solution)
            if best is not None and best.configuration in places:
                best = replace(best, configuration=places.index(best.configuration))
                part.answer = Answer(whole, result, best, result.objective, result.bound)
            for instance, solution in self.walked:
                if instance is whole and solution.configuration in places:
                    part.leave_out(solution)
            parts.append(part)
        return parts

    def even_parts(self) -> list[Part]:
        """Of all instances, what has the best plan's numbers of stages and micro-batches, with even stages."""
        refinement, best = self.refinement, self.best
        shape = refinement.shapes(best.instance)[best.answer.solution.configuration]
        parts = []
        for whole, result in self.wholes:
            indices = [index for index, each in enumerate(refinement.shapes(whole)) if each == shape]
            if indices and refinement.with_even_stages(whole, indices) is not None:
                parts.append(self.part(whole, result, refinement.layouts(whole), indices, even=True))
        return parts

    def part(self, whole: Any, result: Result, names: Sequence[str], places: Iterable[int], even: bool = False) -> Part:
        """A part of which no more is known than of its instance."""
        assert result.objective is not None
        return Part(whole, result, names, list(places), even, result.objective)

    def among(self, parts: Sequence[Part], most: int, above: float, seconds: float | None = None) -> None:
        """Walk the best solution of these parts, then the best of what is left without it, and so on, up to so many.

        above: by how much of the least claim the best walk has to be longer; seconds: for all of it.
        """
        began = self.way.elapsed()
        for _ in range(most):
            for part in parts:
                left = None if seconds is None else seconds - (self.way.elapsed() - began)
                if self.way.late or self.best.interrupted or (left is not None and left <= 0):
                    return
                if part.answer is None and part.places and self.step_ns > (1 + above) * part.floor_ns:
                    part.answer = self.searched(part, left)
            known = [(part.claim_ns, index) for index, part in enumerate(parts) if part.claim_ns is not None]
            if not known or self.step_ns <= (1 + above) * min(known)[0]:
                return
            part = parts[min(known)[1]]
            solution = part.solution()
            self.walk(part, solution)
            part.leave_out(solution)

    def searched(self, part: Part, seconds: float | None) -> Answer:
        """The best solution of a part, where its claim is below the best walk."""
        way, narrowed = self.way, self.refinement.with_even_stages if part.even else self.refinement.with_configurations
        left = narrowed(part.whole, part.places)
        arguments = {**way.arguments, "explained": False}
        if CUTOFF in way.options_of_method:
            arguments[CUTOFF] = self.step_ns
        way.begin(f"solving again, {plural(len(part.places), 'configuration')}" + ", with even stages" * part.even)
        assert way.beyond is not None, "of a problem with a refinement"
        return way.search([way.beyond.corrected(left)], way.method, seconds=seconds, **arguments)

    def walk(self, part: Part, solution: Any) -> None:
        """Walk the plan of a part's best solution; where its programs do not fit, that of the best one with what they hold
        beyond its tables, a few times. Where it fits and its walk is the shortest, it is the best."""
        self.walked.append((part.whole, solution))
        first, beyond = self.first.answer, self.way.beyond
        assert beyond is not None, "of a problem with a refinement"
        answer = replace(first, instance=part.whole, result=stopped_with(part.result, [first.result]))
        least = format_time(first.objective_ns or 0)
        message = f"another plan has the objective {least}; its predicted step is longer than this one's"
        name = part.names[solution.configuration]
        indices = [index for index in part.places if part.names[index] == name]
        for _ in range(LESS_ROUNDS):
            made = self.way.plan(with_solution(answer, solution, SOURCE, message), self.first.margin_bytes)
            if max(over := self.way.over_bytes(made)) <= 0 or self.way.late or not indices:
                break
            beyond.note(part.whole, made, over)
            tighter = beyond.corrected(self.refinement.with_configurations(part.whole, indices))
            found = self.way.search([tighter], self.way.method, **{**self.way.arguments, "explained": False})
            if found.solution is None:
                break
            solution = replace(found.solution, configuration=indices[found.solution.configuration])
        if made.judged is not None and made.judged.step_ns < self.step_ns and max(self.way.over_bytes(made)) <= 0:
            self.best = made
