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
    """One configuration of an instance, with the pipelines to which its bounds lead."""

    @property
    def filling(self) -> bool:
        """Whether the pipeline mostly fills and empties, where bounds of single paths are weak."""
        return self.schedule != "sliced" and self.m < 2 * self.stages

    def refine(self, path: Sequence[Step], tolerance: float) -> bool:
        """Solve the stages of a path exactly, at all weights that apply; returns whether a bound has risen. tolerance: the
        relative gap that suffices. Raises TimeoutError."""
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
        """Solve the first stage of a path for its least u + g under the largest u that a step up to the limit allows it;
        returns whether a bound has risen. Raises TimeoutError."""
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
        """The number of stages solved since the last call."""
        count, self.exact.count = self.exact.count, 0
        return count

    def priced(self, bound: float) -> float:
        """A lower bound in ns by weighted paths of all pipelines that the bounds on spans allow, at least `bound`; infinite
        where none of them can be better than the best plan. Reports plans with cuts near those of the mixture from which the
        weights are. Raises TimeoutError."""
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
        """The solved linear program of all pipelines that may have a step up to a limit; None where there are none."""
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
        """(L, P): whether each stage may begin with each unit, by the arcs that masks leave."""
        begins = np.zeros((self.units, self.stages), bool)
        for x, (low, mask) in enumerate(masks):
            begins[low : low + mask.shape[1], x] = mask.any(axis=(0, 2, 3))
        return begins

    def _cuttable(self, cuts: Sequence[int]) -> bool:
        """Whether stages may begin at these cuts, in rising order."""
        edges = (0, *cuts, self.units)
        return all(a < b for a, b in pairwise(edges)) and all(self.instance.cuttable[cut - 1] for cut in cuts)

    def enumerated(self, limit: float, target: Callable[[], float], labels: int) -> float:
        """Evaluate all pipelines with a step up to a limit that the path bounds leave, by all columns of their spans. Returns
        the least bound of those for which there was no time, infinite where none is left. target: the step above which plans do
        not matter. labels: the most labels of a unit. Raises TooMany and TimeoutError."""
        left = self.path_search.left(limit)
        return np.inf if left is None else self._searched(*left, limit, target, labels)

    def partitions(self, limit: float, most: int) -> list[tuple[int, ...]] | None:
        """The cuts that a step up to the limit may have by the bounds on spans; None where they are more than `most`."""
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
        """As `enumerated`, for the arcs that masks leave. before: for each stage, the least sums of u of the stages
        before it."""
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
        """Report the best pipeline of the known columns of a path that simulation finds."""
        picks = [self.columns.get((x, *step[:2]), []) for x, step in enumerate(path)]
        cuts = [self.instance.boundary_kinds[step[1]] for step in path[:-1]]
        pipelines = Pipelines(self.tables, self.configuration, self.tied_ns, cuts)
        best = pipelines.best(picks, self.weights, self.search.out_of_time)
        if best is not None and self.search.betters(best[0]):
            self.search.report(self.solution(path, best[1]))

    def solution(self, path: Sequence[Sequence[int]], columns: Sequence[Column]) -> Solution:
        """The solution that consists of these columns along a path."""
        choice: list[int] = []
        for (first, *_), column in zip(path, columns, strict=True):
            kinds = [self.tables.kinds[self.kinds[first + index]] for index in range(len(column.options))]
            choice += [int(kind.indices[s]) for kind, s in zip(kinds, column.options, strict=True)]
        return Solution(self.configuration_index, tuple(step[0] for step in path[1:]), tuple(choice))


def _spans_left(low: int, mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The first and the last unit of each span that a stage may still be, whatever the classes of its cuts. low: the first unit
    of the mask's first row."""
    for row, length in zip(*np.nonzero(mask.any(axis=(0, 3))), strict=True):
        yield low + int(row), low + int(row + length)
