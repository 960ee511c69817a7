"""The least predicted step of a runtime over all plans of a joint instance that fit, by bounds and predictions alone.

A candidate is a configuration (schedule, numbers of stages and micro-batches, layout) with a choice of options. Candidates are
taken in the order of their lower bounds, which grow in steps:

    closed     the passes of all micro-batches in closed form
    stages     the least bound over all cuts into stages, where cuts are free
    fitting    the same, of stages that fit
    predicted  the step of the one plan, where cuts are fixed; else of the cuts whose bound is below the best step

It ends when no bound is below the best predicted step. A candidate with very many cuts below it counts with its bound, so that
a plan is called optimal only where this is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

from trainplan.formulations.costs.overlapped.analytic_bounds import LayoutBounds, StageBounds
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST

STRIDE = 16  # candidates, of which one is searched first
MOST_CUTS = 200  # of one candidate, that are predicted at most
CLOSED, STAGES, FITTING = range(3)  # the last bound of a candidate

Candidate = tuple[int, tuple[int, ...]]  # the index of a configuration, and for every unit the index of its option
Waiting = tuple[float, int, int, Candidate, StageBounds | None]


def candidates(instance: Instance) -> list[Candidate]:
    """All candidates of an instance whose plans have one strategy: each configuration with the one option of its units, or,
    where stages recompute their first layers, with each number of them."""
    found = list[Candidate]()
    for index, configuration in enumerate(instance.configurations):
        counts = {len(table.options) for tables in configuration.tables for table in tables.units}
        several = RECOMPUTE_FIRST.name in instance.provenance and len(counts) == 1
        assert several or counts == {1}, "plans for a runtime have one strategy"
        found += [(index, (s,) * instance.length) for s in range(max(counts))]
    return found


def least_predicted_ns(instance: Instance) -> int:
    """A lower bound in ns of the predicted step of every plan of an instance with a runtime that fits into memory: mostly the
    step of the best plan. Every bound is computed here, and every plan that they leave is predicted."""
    search = LeastPrediction(instance)
    search.run()
    return search.bound_ns


def least_ns(bound_ns: float) -> int:
    """The least whole number of ns to which a step of at least `bound_ns` may be rounded."""
    return ceil(bound_ns - 0.5)


@dataclass
class LeastPrediction:
    """One search for the plan with the least predicted step.

    Attributes:
        instance: the configurations to choose from, with a runtime.
        target: returns the longest step in ns that is still worth finding; None for one that is shorter than the best found.
        stopped: returns whether to stop.
        found: called with a better plan's solution.
        proven: called with a lower bound in ns of the steps of all plans.
        best_ns: the least predicted step so far of a plan that fits.
        settled_ns: the least bound, or predicted step, of candidates that are not searched further.
        waiting: candidates with their bounds.
        counts: numbers for people who look at searches.
    """

    instance: Instance
    target: Callable[[], float] | None = None
    stopped: Callable[[], bool] = lambda: False
    found: Callable[[Solution], None] = lambda _: None
    proven: Callable[[int], None] = lambda _: None
    best_ns: float = inf
    settled_ns: float = inf
    waiting: list[Waiting] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("candidates", "bounded", "predicted", "left"), 0))

    def run(self) -> None:
        """Search until nothing better is left, or until it is stopped."""
        every = candidates(self.instance)
        if not self._lay_out(every[::STRIDE]):
            return
        while self.waiting and self.best_ns == inf and not self.stopped():  # some plan soon, in case that time is short
            self._advance(*heappop(self.waiting))
        if not self._lay_out([candidate for index, candidate in enumerate(every) if index % STRIDE]):
            return
        while self.waiting and not self.stopped():
            if self.best_ns < inf:
                self.proven(self.bound_ns)
            if least_ns(self.waiting[0][0]) > self._target():
                break
            self._advance(*heappop(self.waiting))

    def _lay_out(self, some: Sequence[Candidate]) -> bool:
        """Add some candidates to those that wait, each with its bound in closed form. Returns False if it was stopped."""
        assert self.instance.runtime is not None
        for candidate in some:
            bounds = self.instance.runtime.bounds(self.instance, *candidate)
            if bounds is not None:
                heappush(self.waiting, (bounds.closed_ns(), self.counts["candidates"], CLOSED, candidate, None))
                self.counts["candidates"] += 1
            if self.stopped():
                self.settled_ns = -inf  # nothing is known of the rest
                return False
        return True

    @property
    def bound_ns(self) -> int:
        """The lower bound of the steps of all plans that fit; 0 if none is known. Only where `nothing_left` is false."""
        left = min(self.waiting[0][0] if self.waiting else inf, self.settled_ns)
        return 0 if left in (inf, -inf) else least_ns(left)

    @property
    def nothing_left(self) -> bool:
        """Whether it is proven that no plan fits."""
        return not self.waiting and self.settled_ns == inf

    def _target(self) -> float:
        """The longest step in ns that is still worth finding."""
        return self.best_ns - 1 if self.target is None else self.target()

    def _advance(self, bound: float, number: int, step: int, candidate: Candidate, stages: StageBounds | None) -> None:
        """Take the next step with a candidate. bound, number, step, stages: its entry of `waiting`."""
        configuration = self.instance.configurations[candidate[0]]
        if stages is not None:
            self._predict_cuts(candidate, stages)
        elif configuration.stages == 1:
            self._predict(candidate, ())
        elif configuration.cuts is not None:
            self._predict(candidate, configuration.cuts)
        elif configuration.schedule.chunks > 1:  # whose stages are not bounded one by one
            self.settled_ns = min(self.settled_ns, bound)
            self.counts["left"] += 1
        elif step == CLOSED:
            heappush(self.waiting, (max(bound, self._bounds(candidate).stages().bound_ns), number, STAGES, candidate, None))
        elif (fitting := self._fitting(candidate)) is not None and fitting.bound_ns < inf:
            heappush(self.waiting, (max(bound, fitting.bound_ns), number, FITTING, candidate, fitting))

    def _bounds(self, candidate: Candidate) -> LayoutBounds:
        """The bounds of a candidate."""
        assert self.instance.runtime is not None
        bounds = self.instance.runtime.bounds(self.instance, *candidate)
        assert bounds is not None
        return bounds

    def _fitting(self, candidate: Candidate) -> StageBounds | None:
        """The bounds of a candidate by stage, of stages that fit; None if none do."""
        assert self.instance.runtime is not None
        self.counts["bounded"] += 1
        fitting = self.instance.runtime.fitting(self.instance, *candidate)
        return None if fitting is None else self._bounds(candidate).stages(fitting)

    def _predict(self, candidate: Candidate, cuts: tuple[int, ...]) -> None:
        """Predict one plan, and report it if it fits and is the best so far."""
        assert self.instance.runtime is not None
        self.counts["predicted"] += 1
        solution = Solution(candidate[0], cuts, candidate[1])
        predicted = self.instance.runtime.predicted(self.instance, solution)
        groups = self.instance.configurations[candidate[0]].device_groups
        if isinstance(predicted, str) or any(
            peak > self.instance.limit_bytes(group) for peak, group in zip(predicted[1], groups, strict=True)
        ):
            return
        self.settled_ns = min(self.settled_ns, predicted[0])
        if predicted[0] < self.best_ns:
            self.best_ns = predicted[0]
            self.found(solution)

    def _predict_cuts(self, candidate: Candidate, stages: StageBounds) -> None:
        """Predict the plans of a candidate whose bounds are below the best step, the one with the least bound first."""
        cuttable = (0, *(l for l in range(1, self.instance.length) if self.instance.cuttable[l - 1]))
        for most in (1, MOST_CUTS):
            ways = stages.cuts(self._target() + 1, most)
            for bound, cut in ways:
                if self.stopped():
                    self.settled_ns = min(self.settled_ns, stages.bound_ns)
                    return
                if least_ns(bound) <= self._target():
                    self._predict(candidate, tuple(cuttable[end] for end in cut))
            if least_ns(stages.bound_ns) > self._target():
                break
            if len(ways) == MOST_CUTS:
                self.counts["left"] += 1
                self.settled_ns = min(self.settled_ns, stages.bound_ns)
                return
        self.settled_ns = min(self.settled_ns, max(least_ns(stages.bound_ns), self._target() + 1))
