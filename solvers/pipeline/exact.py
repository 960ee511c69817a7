"""Solve the pipeline problem to proven optimality: branch and bound over the slowest stage's time, stages solved by
label-setting.

A configuration has P stages and m micro-batches; u is a stage's time for a micro-batch without gradient synchronisation, T its
time with it. For one configuration let g_i(a..b, t) be the least T of stage i over layers a..b with u <= t. Then Eq. 8 of
Galvatron-BMW is min over t of (m - 1) t + P(t), with P(t) the cheapest partition, a shortest path over stages and layers. g is
bounded from below, for all spans of layers together, by the weighted bounds F of `span_costs`:

    g(t) >= ( F(p, q) - (p - q) t ) / q        for each weight p >= q > 0;   no choice where F(1, 0) > t.

A node is a range lo..hi of t; (m - 1) lo + P(hi) bounds it. The node of the least bound is next: the stages that its partition
uses are solved (following the convex hull of their u and T towards hi, equal stages only one time), which gives plans and
sharper bounds; then the range is split. In a narrow range, points above the hull are searched, too, by label-setting with u
capped: when the stages used are exact at hi, the plan found is optimal for all t from its own slowest stage up to hi.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.layouts import least_ns, most_ns, parts
from trainplan.formulations.pipeline.problem import Solution
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.pipeline.span_costs import SolvedSpan, SpanCosts, Weight
from trainplan.solvers.pipeline.spans import Floats, Path

SOURCE = "bounds on all spans, exact on those used"
LARGEST_WEIGHT = 64
STEEPEST = 100_000
RANGES = 24
GROWTH = 1.08
NARROW = 0.02

Node = tuple[float, float, float, Path]


def branch_and_bound(instance: Instance, search: Search) -> Outcome:
    """The method `branch-and-bound` of the problem `pipeline`: the best plan (cuts of layers into stages, and a strategy for
    each layer) and a lower bound over all configurations (number of stages and micro-batches); optimal within the search's gap
    unless time runs out.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). search: the run's limits and options, and its best solution so far, to which better ones are reported. The
    search's option `cutoff_ns`: only plans faster than this are wanted."""
    statistics = dict.fromkeys(("opened", "nodes", "stages_solved", "stages_capped"), 0)
    # Each configuration is bounded more sharply, and more slowly, whenever it comes first.
    waiting = [(float(least_ns(part)), index) for index, part in enumerate(parts(instance))]
    heapq.heapify(waiting)
    searches: dict[int, _ConfigurationSearch] = {}
    bounds: list[float] = [np.inf]
    while waiting and waiting[0][0] <= search.target() and not search.out_of_time():
        bound, index = heapq.heappop(waiting)
        if index not in searches:
            searches[index] = _ConfigurationSearch(instance, index, search, statistics)
            heapq.heappush(waiting, (max(bound, searches[index].quick_bound()), index))
        elif bound < np.inf:
            statistics["opened"] += 1
            bounds.append(max(bound, searches[index].run()))
        least = min([*bounds, *(bound for bound, _ in waiting[:1])])
        if search.objective is not None and least < np.inf:
            search.report(bound=min(search.objective, int(np.ceil(least))))
    bounds += [bound for bound, _ in waiting]
    bound = min(bounds)
    if search.objective is None:
        if bound == np.inf:
            return Outcome(infeasible=True, bound_source="least memory over all stages", statistics=statistics)
        message = "time ran out before a plan was found" if search.out_of_time() else "no plan is below cutoff_ns"
        return Outcome(message=message, bound=int(np.ceil(bound)), bound_source=SOURCE, statistics=statistics)
    proven = search.objective if bound == np.inf else min(search.objective, int(np.ceil(bound)))
    search.report(bound=proven)
    return Outcome(bound=proven, bound_source=SOURCE, statistics=statistics)


@dataclass
class _Refined:
    """The exact results for one class of equal spans of layers with one number of micro-batches in flight. A choice is one
    option (parallel strategy) for each layer of the span; u is its time in ns for a micro-batch without gradient
    synchronisation, and T its time with it.

    cuts: by weight (p, q), the least of p u + q (T - u) over all choices. solved: solved choices, each with its u and T.
    refined_to: the limits on u for which the span has been solved, each in a pair with True if choices above the convex hull of
    (u, T) were searched, too. capped: pairs of a limit on u and a lower bound on T under it."""

    cuts: dict[Weight, float] = field(default_factory=dict)
    solved: list[SolvedSpan] = field(default_factory=list)
    refined_to: set[tuple[float, bool]] = field(default_factory=set)
    capped: list[tuple[float, float]] = field(default_factory=list)

    def bound(self, limit: float) -> float:
        """A lower bound in ns on the time T of any choice whose time u is at most `limit` ns; infinite if the span cannot fit.

        It follows from the field `cuts`, whose values F(p, q) are lower bounds: F(p, q) <= p u + q (T - u), so T is at least (F
        - (p - q) u) / q."""
        bounds = [time for cap, time in self.capped if limit <= cap]
        for (p, q), value in self.cuts.items():
            if value == np.inf:
                return np.inf
            if p == q:
                bounds.append(-(-value // q))
            elif q and limit < np.inf:
                bounds.append(-(-(int(value) - (p - q) * int(limit)) // q))
        return max(bounds, default=-np.inf)

    def best(self, limit: float) -> SolvedSpan | None:
        """The solved choice with the least time T among those whose time u is at most `limit` ns; None if there is none."""
        return min((s for s in self.solved if s.u_ns <= limit), key=lambda s: s.time_ns, default=None)


class _ConfigurationSearch:
    """Branch and bound for one configuration (number of stages and micro-batches), given by its index in the instance.

    For a stage, u is its time in ns for a micro-batch without gradient synchronisation, and T its time with it. A node of the
    search is a range low..high of the slowest stage's u: (lower bound in ns, low, high, cheapest partition in that range), the
    partition being the first and last layer of each stage. refined: exact results by (index of the number of micro-batches in
    flight, class of equal spans of layers). unresolved: the least bound of nodes that could neither be solved nor split into
    smaller ranges."""

    def __init__(self, instance: Instance, index: int, search: Search, statistics: dict[str, int]) -> None:
        """Prepare the search. search: the search of the whole instance, to which plans are reported. statistics: counts that
        are raised.

        instance: the layers' strategies with times and memory, and the possible configurations (number of stages and
        micro-batches, schedule)."""
        self.costs = SpanCosts(instance, index, search)
        self.instance, self.index, self.search, self.statistics = instance, index, search, statistics
        configuration = instance.configurations[index]
        self.stages, self.m = configuration.stages, configuration.micro_batches
        middle = Fraction(1 + Fraction(self.m - 1, self.stages)).limit_denominator(8)
        weights = [(1, 1), (middle.numerator, middle.denominator), (self.m, 1)]
        self.weights: list[Weight] = list(dict.fromkeys(weights))
        self.refined: dict[tuple[int, int], _Refined] = {}
        self.unresolved = np.inf
        most = most_ns(replace(instance, configurations=(configuration,)))  # times weights, this stays within 64 bits
        self.steepest = min(STEEPEST, 2**62 // (LARGEST_WEIGHT * max(1, most)))

    def quick_bound(self) -> float:
        """A quick lower bound in ns on all plans of the configuration, without prices of memory: infinite if some stage can
        never fit, 0 if time runs out. Kept for instances of other batch sizes that share the cost tables."""
        shared = self.costs.shared
        key = ("quick", self.costs.spans, tuple(self.costs.in_flight), self.instance.memory_bytes)
        if key not in shared:
            try:
                u, times = self.costs.bounds([(1, 0), (1, 1)], prices=np.zeros(1))
                shared[key] = self.costs.cheapest(u, np.maximum)[0], self.costs.cheapest(np.maximum(0, times), np.add)[0]
            except TimeoutError:
                return 0.0
        slowest, total = shared[key]
        return (self.m - 1) * slowest + total if total < np.inf else np.inf

    def run(self) -> float:
        """Search the configuration, and report better plans to the search. Returns a proven lower bound in ns on its plans,
        infinite if all of them are proven to be no better than the best plan."""
        bound = 0.0
        try:
            if self.stages == 1:
                return self._single()
            bounds = self.costs.bounds([*self.weights, (1, 0)])
            self.values, self.u = bounds[:-1], bounds[-1]
            nodes, hope = self._first_nodes()
            if hope is not None:
                bound = nodes[0][0]
                self._solve_used(*hope)
            while nodes:
                bound = min(nodes[0][0], self.unresolved)
                if nodes[0][0] > self.search.target() or self.search.out_of_time():
                    return bound
                self._branch(nodes)
            return self.unresolved
        except TimeoutError:
            return bound

    def _branch(self, nodes: list[Node]) -> None:
        """Take the node of least bound (a range of the slowest stage's time u), solve the stages that its cheapest partition
        uses, and put back what remains of its range, as up to two nodes with smaller ranges.

        nodes: the heap of open nodes, which is changed. Raises TimeoutError if the time is over."""
        bound, low, high, path = heapq.heappop(nodes)
        self.statistics["nodes"] += 1
        narrow = high - low <= max(1.0, NARROW * low)
        plan, exact = self._solve_used(path, high, narrow)
        # Bounds have risen where stages were solved: another partition may now be the cheapest.
        total, again = self._partition(high)
        bound = max(bound, (self.m - 1) * low + total)
        if exact and plan and sum(stage.time_ns for stage in plan) - total < 1:
            high = max(stage.u_ns for stage in plan) - 1
        elif total == np.inf:
            return
        elif (exact and again != path) or not self._refined_to(again, high, narrow):
            heapq.heappush(nodes, (bound, low, high, again))
            return
        elif high - low < 1:
            self.unresolved = min(self.unresolved, bound)
            return
        for start, end in _halves(low, high):
            total, path = self._partition(end)
            if total < np.inf:
                heapq.heappush(nodes, (max(bound, (self.m - 1) * start + total), start, end, path))

    def _single(self) -> float:
        """Solve a configuration of one pipeline stage, which needs a single weighted problem, and report its plan to the
        search. Returns a lower bound in ns on the configuration's plans."""
        number = int(self.costs.spans.number[0, -1])
        bound = float(self.costs.bounds([(self.m, 1)])[0, 0, number])
        if bound > self.search.target():
            return bound
        self.statistics["stages_solved"] += 1
        solved = self.costs.solve(number, self.costs.depths[0], (self.m, 1), worth=self.search.target())
        if solved.choice is not None:
            self.search.report(Solution(self.index, (self.instance.layers,), solved.choice))
        return solved.bound

    def _first_nodes(self) -> tuple[list[Node], tuple[Path, float] | None]:
        """Start the search. Returns two values: the first nodes (ranges of the slowest stage's time u) as a heap; and a pair of
        the most promising partition (first and last layer of each stage) and the limit in ns on every stage's u under which it
        was found. ([], None) if no stage can fit."""
        lowest = self.costs.cheapest(self.u, np.maximum)[0]
        if lowest == np.inf:
            return [], None
        lowest = np.ceil(lowest)
        edges = [lowest, *sorted({np.floor(lowest * GROWTH**i) for i in range(1, RANGES)} - {lowest}), np.inf]
        nodes, hopes = [], []
        for low, high in pairwise(edges):
            total, path = self._partition(high)
            if total < np.inf:
                nodes.append(((self.m - 1) * low + total, low, high, path))
                hopes.append(((self.m - 1) * high + total, high, path))
        heapq.heapify(nodes)
        _, high, path = min(hopes, default=(0, 0, ()))
        return nodes, (path, high) if hopes else None

    def _solve_used(self, path: Path, limit: float, narrow: bool = False) -> tuple[list[SolvedSpan], bool]:
        """Solve the stages of a partition under the limit u <= `limit` ns for every stage (u: a micro-batch's time without
        gradient synchronisation), and report the plan that they form.

        path: first and last layer of each stage. narrow: also search choices above the convex hull of (u, T), which minimising
        p u + q (T - u) finds at no weight (p, q). Returns the solved stages, empty if some stage has no choice, and whether all
        stages are proven to be the best under the limit."""
        plan: list[SolvedSpan] = []
        exact = True
        for stage, (first, last) in enumerate(path):
            best, proven = self._refine(self.costs.depth_of[stage], int(self.costs.spans.number[first, last]), limit, narrow)
            exact = exact and proven
            if best is not None:
                plan.append(best)
        if len(plan) < len(path):
            return [], exact
        sizes = tuple(last - first + 1 for first, last in path)
        choice = tuple(s for solved in plan for s in solved.choice or ())
        self.search.report(Solution(self.index, sizes, choice))
        return plan, exact

    def _refined_to(self, path: Path, limit: float, narrow: bool) -> bool:
        """Whether all stages of a partition have already been solved for a limit in ns on their time u. path: first and last
        layer of each stage. narrow: whether choices above the convex hull of (u, T) must have been searched, too."""
        numbers = [(self.costs.depth_of[stage], int(self.costs.spans.number[span])) for stage, span in enumerate(path)]
        return all(key in self.refined and (limit, narrow) in self.refined[key].refined_to for key in numbers)

    def _refine(self, depth: int, number: int, limit: float, narrow: bool) -> tuple[SolvedSpan | None, bool]:
        """Solve a span of layers under a limit in ns on its time u: the best known choice with u <= limit (None if there is
        none), and whether it is proven that none is better. Follows the convex hull of (u, T) to the limit.

        depth: index of the number of micro-batches in flight. number: the span's class. narrow: also search choices above the
        convex hull, which no weight (p, q) finds.
        """
        refined = self.refined.setdefault((depth, number), _Refined())
        refined.refined_to.add((limit, narrow))
        cheapest = self._cut(refined, depth, number, (1, 1))
        if cheapest.choice is None or cheapest.u_ns <= limit:
            return refined.best(limit), True
        fastest = self._cut(refined, depth, number, (1, 0))
        if fastest.u_ns > limit:
            return None, True
        while (refined.best(limit) or fastest).time_ns - refined.bound(limit) >= 1:
            slope = Fraction(fastest.time_ns - cheapest.time_ns, cheapest.u_ns - fastest.u_ns)
            weight = (1 + slope).limit_denominator(LARGEST_WEIGHT)
            if weight > self.steepest or (weight.numerator, weight.denominator) in refined.cuts:
                break
            between = self._cut(refined, depth, number, (weight.numerator, weight.denominator))
            if between.u_ns > limit:
                cheapest = between
            else:
                fastest = between
            if cheapest.u_ns <= fastest.u_ns:
                break
        best = refined.best(limit)
        if best is not None and best.time_ns - refined.bound(limit) >= 1 and narrow:
            price = (fastest.time_ns - cheapest.time_ns) / max(1, cheapest.u_ns - fastest.u_ns)
            self.statistics["stages_capped"] += 1
            capped = self.costs.solve_capped(number, self.costs.depths[depth], int(limit), best, price, self.search.remaining())
            refined.capped.append((limit, capped.bound))
            refined.solved.append(capped)
            best = refined.best(limit)
        return best, best is not None and best.time_ns - refined.bound(limit) < 1

    def _cut(self, refined: _Refined, depth: int, number: int, weight: Weight) -> SolvedSpan:
        """Solve a span of layers at one weight (p, q), minimising p u + q (T - u), and record the least value and the choice in
        `refined`. depth: index of the number of micro-batches in flight. number: the span's class."""
        self.statistics["stages_solved"] += 1
        solved = self.costs.solve(number, self.costs.depths[depth], weight)
        if weight not in refined.cuts:
            refined.cuts[weight] = solved.bound
            if solved.choice is not None:
                refined.solved.append(solved)
        return solved

    def _least_times(self, limit: float) -> Floats:
        """Lower bounds in ns on the time T of a stage whose time u is at most `limit` ns: (depths, classes), by number of
        micro-batches in flight and by class of equal spans of layers; infinite if nothing fits."""
        best = np.zeros_like(self.u)
        for (p, q), values in zip(self.weights, self.values, strict=True):
            if p == q:
                best = np.maximum(best, values / q)
            elif limit < np.inf:
                best = np.maximum(best, (values - (p - q) * limit) / q)
        best[self.u > limit] = np.inf
        for (depth, number), refined in self.refined.items():
            if refined.cuts.get((1, 0), 0.0) > limit:
                best[depth, number] = np.inf
            else:
                best[depth, number] = max(best[depth, number], refined.bound(limit))
        return best

    def _partition(self, limit: float) -> tuple[float, Path]:
        """The cheapest partition into stages by the lower bounds on T, if every stage's u is at most `limit` ns: the sum of the
        bounds in ns, and first and last layer of each stage. The sum is infinite, and the partition empty, if there is none."""
        return self.costs.cheapest(self._least_times(limit), np.add)


def _halves(low: float, high: float) -> list[tuple[float, float]]:
    """Split a range of whole nanoseconds low..high into two ranges; one if it holds a single value, none if it is empty. low,
    high: the first and the last value. (4, 7) -> [(4, 5), (6, 7)]; an open range (4, inf) -> [(4, 8), (9, inf)]."""
    if high < low:
        return []
    if high == np.inf:
        return [(low, 2 * low), (2 * low + 1, np.inf)]
    middle = (low + high) // 2
    return [(low, middle), (middle + 1, high)] if middle + 1 <= high else [(low, high)]
