"""Searches one configuration of two or more stages: the pipelines to which its bounds lead, and those that the bounds leave
open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Solution
from trainplan.solvers.joint.fixed_cuts.search import fixed_cuts
from trainplan.solvers.joint.free_cuts.column_pruning import bounded
from trainplan.solvers.joint.free_cuts.column_selection import Pipelines
from trainplan.solvers.joint.free_cuts.configuration_bounds import CandidateBounds
from trainplan.solvers.joint.free_cuts.lp_bound import FreeCuts
from trainplan.solvers.joint.free_cuts.pareto_fronts import Front, front
from trainplan.solvers.joint.free_cuts.path_bound_search import Mask
from trainplan.solvers.joint.free_cuts.path_relaxation import Step
from trainplan.solvers.joint.free_cuts.reduced_cost_pruning import Guides
from trainplan.solvers.joint.free_cuts.suffix_enumeration import Enumeration, Pool, Suffixes
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import Floats
from trainplan.solvers.joint.stages.span_bounds import Weight

LIKELY, MOST_PASSES = 4, 512  # of the likeliest cuts, with which plans are tried; of pipelines that are worth it


class Candidate(CandidateBounds):
    """The search of one configuration (number of stages and micro-batches, with a schedule) of two or more stages whose cuts
    are free: its lower bounds on spans (consecutive units, that is, sub-layers), and the pipelines built from the spans of
    least bounds. A path is a sequence of stages; a column is one choice of options for a stage; u is the forward plus backward
    pass of a micro-batch in a stage, g the work after the last micro-batch; an interface state is the layout of the activations
    at a cut, and classes of cuts group such states."""

    @property
    def filling(self) -> bool:
        """Whether the pipeline spends much of the step filling and emptying (fewer than 2 P micro-batches on P stages), so that
        lower bounds by single paths are weak; False for sliced schedules."""
        return self.schedule != "sliced" and self.m < 2 * self.stages

    def refine(self, path: Sequence[Step], tolerance: float) -> bool:
        """Solve each stage of a path exactly, for all weighted sums of u and g that bounds use, and raise the bounds on the
        stages' spans to the results; returns whether a bound has risen.

        path: for each stage, its first and last unit, and the classes of the cuts before and after it. tolerance: the relative
        gap to which a stage is solved. Raises TimeoutError."""
        rose, links, ahead = False, self.configuration.links, 0
        for x, (first, last, group, following) in enumerate(path):
            number, row = int(self.spans.number[first, last]), self.row[x]
            into = (links[x - 1] if x else links[0], group)
            out = None if x == self.stages - 1 else (self.instance.boundary_kinds[last], links[x], following)
            picks = self.columns.setdefault((x, first, last), [])
            weights: list[Weight] = [(1, 0), *((p, 1) for p in self.weights if p <= self.path_search.rates[x])]
            for weight in weights:
                if x and weight != (1, 0) and picks and picks[0].extra_ns + self.tied_ns <= ahead:
                    break  # the bounds by u alone tell as much: this stage ends its work before the first one
                solved = self.exact.solve(first, last, self.depths[row], weight, into, out, self.search, tolerance)
                rose |= self.raise_bound(row, into, out, number, weight, solved.bound)
                if solved.column is not None and solved.column not in picks:
                    picks.append(solved.column)
            ahead += picks[0].backward_ns + (picks[0].extra_ns if not x else 0) if picks else 0
        if rose:
            self.make_arcs()
        return rose

    def refine_first(self, path: Sequence[Step], limit: float, tolerance: float) -> bool:
        """Solve the first stage of a path for its least u + g under the largest u that a step time of at most `limit` ns allows
        it; returns whether a bound has risen.

        path: for each stage, its first and last unit, and the classes of the cuts before and after it. tolerance: the relative
        gap to which the stage is solved. Raises TimeoutError."""
        first, last, _, following = path[0]
        if self.schedule == "sliced" or not np.isfinite(limit) or self.path_search.left(limit) is None:
            return False
        most = float(self.path_search.most_first_u(limit)[0, last, following])
        least = float(self.path_search.first_stage(limit, True)[0, last, following])
        picks = self.columns.get((0, first, last), [])
        out = (self.instance.boundary_kinds[last], self.configuration.links[0], following)
        exits = self.exact.cuts.exits[out]

        def u_ns(column: Column) -> float:
            return column.forward_ns + column.backward_ns + float(exits[column.leave])

        inside = [(u_ns(column) + column.extra_ns, index) for index, column in enumerate(picks) if u_ns(column) <= most]
        if not inside or min(inside)[0] + self.tied_ns <= least * (1 + tolerance) + 1:
            return False
        start = picks[min(inside)[1]]
        solved = self.exact.solve_capped(first, last, self.in_flight[0], out, int(most), start, self.search, tolerance)
        if solved.column is not None and solved.column not in picks:
            picks.append(solved.column)
        if solved.bound + self.tied_ns <= least:
            return False
        self._capped.setdefault((last, following), []).append((most, solved.bound + self.tied_ns))
        self.path_search.with_capped(self._capped)
        return True

    def take_count(self) -> int:
        """Return the number of stages solved exactly since the last call, and set the count to 0."""
        count, self.exact.count = self.exact.count, 0
        return count

    def priced(self, bound: float) -> float:
        """A lower bound in ns by a linear program over weighted paths of passes, for all pipelines that the bounds on spans
        allow; infinite if none of them can be better than the best plan. Pipelines whose cuts are near the cuts of the linear
        program's solution are reported as plans.

        bound: the known lower bound in ns. Raises TimeoutError."""
        limit = self.search.target()
        cuts = self._free_cuts(limit, bound)
        if cuts is None or cuts.bound == np.inf or cuts.bound > self.search.target():
            return np.inf
        few = self.stages * self.m <= MOST_PASSES
        for likely in cuts.likely[: -LIKELY - 1 : -1]:
            if few and self._cuttable(likely):
                configurations = list(self.instance.configurations)
                configurations[self.configuration_index] = replace(self.configuration, cuts=likely)
                part = replace(self.instance, configurations=tuple(configurations))
                fixed_cuts(part, self.configuration_index, bound, self.search)
        self.guides = Guides(cuts)
        return cuts.bound

    def _free_cuts(self, limit: float, bound: float) -> FreeCuts | None:
        """Build and solve the linear program of all pipelines that may have a step time of at most `limit` ns; None if there
        are none. bound: the known lower bound in ns. Raises TimeoutError."""
        begins = None
        if np.isfinite(limit):
            left = self.path_search.left(limit)
            if left is None:
                return None
            begins = self._begins(left[0])
        cuts = FreeCuts(self.instance, self.configuration_index, bound, begins)
        cuts.run(lambda: cuts.bound <= self.search.target(), self.search.check_time)
        return cuts

    def _begins(self, masks: Sequence[Mask]) -> NDArray[np.bool_]:
        """Whether each of the P stages may begin with each of the L units (sub-layers), (L, P). masks: for each stage, an array
        that says which spans it may still be.
        """
        begins = np.zeros((self.units, self.stages), bool)
        for x, (low, mask) in enumerate(masks):
            begins[low : low + mask.shape[1], x] = mask.any(axis=(0, 2, 3))
        return begins

    def _cuttable(self, cuts: Sequence[int]) -> bool:
        """Whether cuts divide the units into non-empty stages at boundaries that the instance allows to be cut. cuts: the first
        unit of every stage but the first."""
        edges = (0, *cuts, self.units)
        return all(a < b for a, b in pairwise(edges)) and all(self.instance.cuttable[cut - 1] for cut in cuts)

    def enumerated(self, limit: float, target: Callable[[], float], labels: int) -> float:
        """Evaluate all pipelines with a step time of at most `limit` ns that the bounds do not exclude, with all columns of
        their stages, and report better plans. Returns the least bound in ns of the pipelines for which there was no time,
        infinite if none is left.

        target: returns the step time in ns above which plans are of no interest. labels: the most labels (partial stages) that
        one unit may have. Raises TooMany if there are more, and TimeoutError."""
        left = self.path_search.left(limit)
        return np.inf if left is None else self._searched(*left, limit, target, labels)

    def partitions(self, limit: float, most: int) -> list[tuple[int, ...]] | None:
        """All partitions that may have a step time of at most `limit` ns by the bounds on spans, each as its cuts (first unit
        of every stage but the first), to be examined one by one; empty if there are none, None if there are more than `most`.
        """
        left = self.path_search.left(limit)
        if left is None:
            return []
        waiting: list[tuple[int, ...]] = [(0,)]
        for low, mask in left[0]:
            ends: dict[int, list[int]] = {}
            for first, last in _spans_left(low, mask):
                ends.setdefault(first, []).append(last + 1)
            waiting = [(*begun, end) for begun in waiting for end in ends.get(begun[-1], ())]
            if len(waiting) > most:
                return None
        return [edges[1:-1] for edges in waiting if edges[-1] == self.units]

    def _searched(
        self, masks: Sequence[Mask], before: Sequence[Floats], limit: float, target: Callable[[], float], labels: int
    ) -> float:
        """Evaluate all pipelines whose stages have spans that the bounds do not exclude, and report better plans. Returns the
        least bound in ns of the pipelines for which there was no time, infinite if none is left.

        masks: for each stage, an array that says which spans remain. before: for each stage, the least sum of u in ns over the
        stages before it, by class of cut and first unit. limit: a step time in ns; slower pipelines are not looked for. target:
        returns the step time in ns above which plans are of no interest. labels: the most labels (partial stages) that one unit
        may have. Raises TooMany."""
        guide = None if self.guides is None else self.guides.at(limit, self._begins(masks))
        least = [sums.min(axis=0) for sums in before]
        after, pools = self.path_search.after(masks), list[Pool]()
        for x in reversed(range(self.stages)):
            first, last = (np.array(ends, np.intp) for ends in zip(*_spans_left(*masks[x]), strict=True))
            most = self.path_search.most_u(x, limit, first, least[x][first], after[x + 1][last + 1])
            weight, most_ns = self.path_search.most_with_extra(x, limit, first, last, least[x][first], after[x + 1][last + 1])
            wanted = Front(
                first,
                last,
                most,
                weight,
                most_ns - (self.tied_ns if x in (0, self.stages - 1) else 0),
                depth=self.in_flight[x],
                begins=x == 0,
                ends_apart=bool(self.tied_ns) and x in (0, self.stages - 1),
                hidden_ns=sum(self.least_backward_ns(kind) for kind in self.kinds[: int(first.min())]),
                guide=None if guide is None else guide.stage(x),
            )
            pools.append(front(self.exact, wanted, labels, self.search.check_time))
            if not len(pools[-1].columns):
                return np.inf
        pools, bounds = pools[::-1], None
        if self.schedule == "sliced":
            head = self.path_search.arcs.head_ns
            assert head is not None
            least = [head] * len(before)
        elif self.guides is not None:
            bounded_pools = bounded(self.guides, pools, self.tied_ns, limit)
            if bounded_pools is None:
                return np.inf
            pools, bounds = bounded_pools
            least = [bounds.before_ns(x) for x in range(self.stages)]
        kinds = self.instance.boundary_kinds
        enumeration = Enumeration(
            self.tables, self.configuration, pools, kinds, least, self.path_search.arcs.before_ns, self.tied_ns, bounds
        )

        def report(suffixes: Suffixes, configuration_index: int) -> None:
            columns = [
                pool.columns[int(number)] for pool, number in zip(pools, suffixes.chosen[:, configuration_index], strict=True)
            ]
            firsts = [
                int(pool.first[int(number)])
                for pool, number in zip(pools, suffixes.chosen[:, configuration_index], strict=True)
            ]
            path = tuple((first, end - 1) for first, end in pairwise((*firsts, self.units)))
            if self.search.betters(int(suffixes.bound[configuration_index])):
                self.search.report(self.solution(path, columns))

        return enumeration.run(lambda: min(limit, target()), report, self.search.out_of_time)

    def report(self, path: Sequence[Step]) -> None:
        """Combine the known columns (choices of options) of a path's stages to pipelines, simulate them, and report the best
        one as a plan. path: for each stage, its first and last unit, and the classes of the cuts around it."""
        picks = [self.columns.get((x, *step[:2]), []) for x, step in enumerate(path)]
        cuts = [self.instance.boundary_kinds[step[1]] for step in path[:-1]]
        pipelines = Pipelines(self.tables, self.configuration, self.tied_ns, cuts)
        best = pipelines.best(picks, self.weights, self.search.out_of_time)
        if best is not None and self.search.betters(best[0]):
            self.search.report(self.solution(path, best[1]))

    def solution(self, path: Sequence[Sequence[int]], columns: Sequence[Column]) -> Solution:
        """The solution with the stages of a path and the options of one column for each stage. path: for each stage, a sequence
        whose first entry is the stage's first unit. columns: one for each stage."""
        choice: list[int] = []
        for (first, *_), column in zip(path, columns, strict=True):
            kinds = [self.tables.kinds[self.kinds[first + index]] for index in range(len(column.options))]
            choice += [int(kind.indices[s]) for kind, s in zip(kinds, column.options, strict=True)]
        return Solution(self.configuration_index, tuple(step[0] for step in path[1:]), tuple(choice))


def _spans_left(low: int, mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (first unit, last unit) of each span (consecutive units, that is, sub-layers) that a stage may still be. low: the
    first unit that the mask's first row stands for. mask: (classes of the cut before, first units, lengths less one, classes of
    the cut after), True for spans that remain; classes group cuts by the layouts of activations at the cut."""
    for row, length in zip(*np.nonzero(mask.any(axis=(0, 3))), strict=True):
        yield low + int(row), low + int(row + length)
