"""One configuration of two or more stages: its bounds, the pipelines that they lead to, and what they leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.profiling.base.errors import Unsuited
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.closed_form import least_u_ns
from trainplan.solvers.joint.fixed_cuts import fixed_cuts
from trainplan.solvers.joint.free_cuts import FreeCuts
from trainplan.solvers.joint.fronts import Front, front
from trainplan.solvers.joint.guides import Guides
from trainplan.solvers.joint.master import Arcs, Mask, Master, StageArcs
from trainplan.solvers.joint.path_bounds import slope
from trainplan.solvers.joint.picked_pipelines import Pipelines
from trainplan.solvers.joint.pool_bounds import bounded
from trainplan.solvers.joint.span_bounds import Exit, Weight, prices_of, span_bounds
from trainplan.solvers.joint.stage_tables import Floats, Places, StageTables, cut_classes, stage_tables
from trainplan.solvers.joint.stages import Column, Entry, Stages
from trainplan.solvers.joint.suffixes import Enumeration, Pool, Suffixes
from trainplan.solvers.joint.whole_paths import Step
from trainplan.solvers.pipeline.spans import spans_of

GRID = 1.15  # between numbers of micro-batches in flight that have bounds of their own
COARSE_GRID, COARSE_PRICES = 2.0, 4
GROUPS = 3  # of interface states on either side of a cut
EXACT_FLOATS = 2.0**51
LIKELY, MOST_PASSES = 4, 512  # of the likeliest cuts, with which plans are tried; of pipelines that are worth it


class Candidate:
    """One configuration of an instance."""

    def __init__(self, instance: Instance, place: int, search: Search) -> None:
        self.instance, self.place, self.search = instance, place, search
        configuration = instance.configurations[place]
        self.configuration: Configuration = configuration
        self.stages, self.m = configuration.stages, configuration.micro_batches
        self.units = instance.length
        self.kinds = tuple(unit.kind for unit in instance.units)
        self.schedule = "sliced" if configuration.schedule.sliced else configuration.schedule.name
        self.tied_ns = 0 if configuration.tied is None else configuration.tied.reduce_ns
        site = configuration.sites[0]
        self.memory_bytes, host = instance.limit_bytes(site), instance.host_limit_bytes(site)
        self.tables: StageTables = stage_tables(configuration.tables[site.kind], self.schedule == "sliced")
        self.spans = spans_of(self.kinds, instance.boundary_kinds)
        self.in_flight = [configuration.in_flight(x) for x in range(self.stages)]
        self.depths = sorted(set(self.in_flight))
        self.row = [self.depths.index(depth) for depth in self.in_flight]
        self.host_bytes = host
        self.exact = self._stages(1)
        self.columns: dict[tuple[int, ...], list[Column]] = {}  # by stage, first and last unit
        self.guides: Guides | None = None
        longest = sum(int((kind.u_ns + kind.extra_ns).max()) for kind in map(self.tables.kinds.__getitem__, self.kinds))
        if (self.m + 4) * 2 * longest > EXACT_FLOATS:
            longest_step = f"has steps of up to {(self.m + 4) * 2 * longest} ns, which floats do not hold"
            raise Unsuited("instance", f"configurations[{place}]", longest_step, "give smaller times, or take another method")

    @property
    def filling(self) -> bool:
        """Whether the pipeline mostly fills and empties, where bounds of single paths are weak."""
        return self.schedule != "sliced" and self.m < 2 * self.stages

    def _stages(self, groups: int) -> Stages:
        cuts = cut_classes(self.tables, groups)
        return Stages(self.tables, self.kinds, self.instance.boundary_kinds, self.memory_bytes, self.host_bytes, cuts)

    @cached_property
    def classes(self) -> int:
        """The number of classes of cuts that can be told apart."""
        return cut_classes(self.tables, GROUPS).count

    # Bounds

    @cached_property
    def least_u_ns(self) -> Floats:
        """By unit, the least u of any option."""
        return least_u_ns(self.instance, self.configuration)

    @cached_property
    def least_extra_ns(self) -> int:
        """What stage 0 adds once at least: that of its first unit, and the sum of a shared table."""
        return int(self.tables.kinds[self.kinds[0]].extra_ns.min()) + self.tied_ns

    def prepare(self, limit: float, coarse: bool, groups: int = 1) -> None:
        """Bounds on all spans that a step up to the limit may use. coarse: at few prices and depths, rougher and sooner;
        groups: of interface states that are told apart on either side of a cut."""
        sums = np.concatenate([[0.0], np.cumsum(self.least_u_ns)])
        longest = self.units - self.stages + 1
        if np.isfinite(limit):
            # The longest span whose least u leaves m of it within the limit, wherever it begins.
            ends = np.searchsorted(sums, sums[:-1] + limit / self.m, side="right") - 1
            longest = max(1, min(longest, int((ends - np.arange(self.units)).max())))
        self.longest = longest
        top, m = self.depths[-1], self.m
        self.grid = _grid(self.depths[0], top, COARSE_GRID if coarse else GRID)
        candidates = {1} if coarse else {1, max(1, m // 32), max(1, m // 8), max(1, m // 3), max(1, m - self.stages + 1)}
        extra = max(int(kind.extra_ns.max(initial=0)) for kind in self.tables.kinds)
        self.weights = sorted(candidates) if extra else [1]
        prices = prices_of(self.tables, [self.depths[0], top], COARSE_PRICES if coarse else 10)
        weights: list[Weight] = [(1, 0), *((p, 1) for p in self.weights)]
        links = sorted(set(self.configuration.links)) or [0]
        boundaries = sorted(set(self.instance.boundary_kinds))
        if groups > 1:
            self.exact = self._stages(groups)
        cuts = self.exact.cuts
        self.exits: list[Exit] = [
            (boundary, link, number) for boundary in boundaries for link in links for number in range(cuts.count)
        ]
        rows = [int(np.searchsorted(self.grid, depth, side="right")) - 1 for depth in self.depths]
        self.bounds: dict[int, Floats] = {}
        limits = (self.tables, self.spans, self.memory_bytes, self.grid, weights, prices, cuts)
        for link in links:
            values = span_bounds(*limits, link, self.exits, longest, self.search.check_time)
            self.bounds[link] = values[:, :, rows]
        self._capped: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._spans()
        self._arcs()

    def _raise_bound(self, row: int, into: Entry, out: Exit | None, number: int, weight: Weight, value: float) -> bool:
        """Take an exact value for a depth and all deeper ones; whether the bound rises."""
        link, group = into
        place = 0 if weight == (1, 0) else 1 + self.weights.index(weight[0])
        behind = 0 if out is None else 1 + self.exits.index(out)
        values = self.bounds[link][group, place, row:, behind, number]
        rose = bool(values[0] < value)
        np.maximum(values, value, out=values)
        return rose

    def _arcs(self) -> None:
        """Arcs of all stages from the bounds as they are now, and the master on them."""
        units, stages, longest = self.units, self.stages, self.longest
        links, fixed = self.configuration.links, self.configuration.cuts
        arcs, behind = [], {link: self._behind(link) for link in set(links)}
        for x in range(stages):
            w, final = stages - 1 - x, x == stages - 1
            low, high = max(x, units - (w + 1) * longest), min(units - w, x * longest + 1)
            band = slice(low, max(low, high))
            inside = self._inside[band] & (self._ending[band] if final else ~self._ending[band])
            if fixed is not None:
                borders = (0, *fixed, units)
                end = np.arange(units)[band, None] + 1 + np.arange(longest)
                inside = inside & (np.arange(units)[band, None] == borders[x]) & (end == borders[x + 1])
            values = self.bounds[links[x - 1] if x else links[0]][: None if x else 1, :, self.row[x]]
            number = self._number[band]
            if final:
                picked = values[:, :, 0][:, :, number][..., None]
            else:
                picked = values[:, :, behind[links[x]][self._last[band]], number[..., None]]
            picked = np.where(inside[..., None], picked, np.inf)
            tied = self.tied_ns if x in (0, stages - 1) else 0
            rate = slope(self.schedule, w, self.m)
            arcs.append(StageArcs.of(low, picked[:, 0], picked[:, 1:].swapaxes(0, 1) + tied, self.weights, rate))
        before = np.concatenate([[0.0], np.cumsum([self._least_forward(kind) for kind in self.kinds])])
        trip = head = None
        if self.schedule == "sliced":
            there = np.concatenate([[0.0], np.cumsum([self._least_trip(kind) for kind in self.kinds])])
            trip, head = there[-1] - there, there + self.least_extra_ns
        of_all = Arcs(arcs, self.weights, before, trip, head)
        self.master = Master(of_all, units, self.m, self.schedule, self.search.check_time)
        self.master.with_capped(self._capped)

    def _spans(self) -> None:
        """Of every first unit and length up to the longest: the last unit, the class, and whether it may be a stage."""
        first = np.arange(self.units)[:, None]
        last = first + np.arange(self.longest)
        inside = last < self.units
        self._last = last = np.minimum(last, self.units - 1)
        self._number = np.where(inside, self.spans.number[first, last], 0)
        cuttable = np.array([True, *self.instance.cuttable, True])
        self._inside = inside & cuttable[first] & cuttable[last + 1]
        self._ending = last == self.units - 1

    def _behind(self, link: int) -> Places:
        """(L, classes of cuts): where bounds have the exits behind each unit, over a kind of link; the first of the last."""
        boundaries = sorted(set(self.instance.boundary_kinds))
        classes = range(self.exact.cuts.count)
        of_kind = {kind: [1 + self.exits.index((kind, link, number)) for number in classes] for kind in boundaries}
        return np.array([*(of_kind[kind] for kind in self.instance.boundary_kinds), [0] * len(classes)], np.intp)

    def _least_forward(self, kind: int) -> int:
        options = self.tables.kinds[kind]
        forward = options.table.forward_ns
        if self.schedule == "sliced" and options.table.halved is not None:
            forward = np.minimum(forward, options.table.halved.forward_ns[0])
        return int(forward.min())

    def _least_backward(self, kind: int) -> int:
        options = self.tables.kinds[kind].table
        halved = options.backward_ns if options.halved is None else options.halved.backward_ns
        return int(np.minimum(options.backward_ns, halved).min())

    def _least_trip(self, kind: int) -> int:
        """The least of a first half, or the whole, forward and a backward pass of a unit."""
        options = self.tables.kinds[kind].table
        forward, backward = options.forward_ns, options.backward_ns
        if options.halved is not None:
            forward = np.minimum(forward, options.halved.forward_ns[0])
            backward = np.minimum(backward, options.halved.backward_ns)
        return int((forward + backward).min())

    # Plans

    def refine(self, path: Sequence[Step], tolerance: float) -> bool:
        """Solve the stages of a path exactly, at all weights that apply; whether a bound has risen. Raises TimeoutError."""
        rose, links, ahead = False, self.configuration.links, 0
        for x, (first, last, group, following) in enumerate(path):
            number, row = int(self.spans.number[first, last]), self.row[x]
            into = (links[x - 1] if x else links[0], group)
            out = None if x == self.stages - 1 else (self.instance.boundary_kinds[last], links[x], following)
            picks = self.columns.setdefault((x, first, last), [])
            weights: list[Weight] = [(1, 0), *((p, 1) for p in self.weights if p <= self.master.rates[x])]
            for weight in weights:
                if x and weight != (1, 0) and picks and picks[0].extra_ns + self.tied_ns <= ahead:
                    break  # the bounds by u alone tell as much: this stage ends its work before the first one
                solved = self.exact.solve(first, last, self.depths[row], weight, into, out, self.search, tolerance)
                rose |= self._raise_bound(row, into, out, number, weight, solved.bound)
                if solved.column is not None and solved.column not in picks:
                    picks.append(solved.column)
            ahead += picks[0].backward_ns + (picks[0].extra_ns if not x else 0) if picks else 0
        if rose:
            self._arcs()
        return rose

    def refine_first(self, path: Sequence[Step], limit: float, tolerance: float) -> bool:
        """Solve the first stage of a path for its least u + g under the largest u that a step up to the limit leaves it;
        whether that is more than was known. Raises TimeoutError."""
        first, last, _, following = path[0]
        if self.schedule == "sliced" or not np.isfinite(limit) or self.master.left(limit) is None:
            return False
        most = float(self.master.most_first_u(limit)[0, last, following])
        least = float(self.master.first_stage(limit, True)[0, last, following])
        picks = self.columns.get((0, first, last), [])
        out = (self.instance.boundary_kinds[last], self.configuration.links[0], following)
        exits = self.exact.cuts.exits[out]

        def u_ns(column: Column) -> float:
            return column.forward_ns + column.backward_ns + float(exits[column.leave])

        inside = [(u_ns(column) + column.extra_ns, place) for place, column in enumerate(picks) if u_ns(column) <= most]
        if not inside or min(inside)[0] + self.tied_ns <= least * (1 + tolerance) + 1:
            return False
        start = picks[min(inside)[1]]
        solved = self.exact.solve_capped(first, last, self.in_flight[0], out, int(most), start, self.search, tolerance)
        if solved.column is not None and solved.column not in picks:
            picks.append(solved.column)
        if solved.bound + self.tied_ns <= least:
            return False
        self._capped.setdefault((last, following), []).append((most, solved.bound + self.tied_ns))
        self.master.with_capped(self._capped)
        return True

    def take_count(self) -> int:
        """The number of stages solved since it was last asked for."""
        count, self.exact.count = self.exact.count, 0
        return count

    def priced(self, bound: float) -> float:
        """What is proven by weighted paths of all pipelines that the bounds on spans leave, at least `bound`; infinite where
        nothing of interest is left. Reports plans with cuts near those of the mixture that the weights are from. Raises
        TimeoutError."""
        limit = self.search.target()
        cuts = self._free_cuts(limit, bound)
        if cuts is None or cuts.bound == np.inf or cuts.bound > self.search.target():
            return np.inf
        few = self.stages * self.m <= MOST_PASSES
        for likely in cuts.likely[: -LIKELY - 1 : -1]:
            if few and self._cuttable(likely):
                configurations = list(self.instance.configurations)
                configurations[self.place] = replace(self.configuration, cuts=likely)
                part = replace(self.instance, configurations=tuple(configurations))
                fixed_cuts(part, self.place, bound, self.search)
        self.guides = Guides(cuts)
        return cuts.bound

    def _free_cuts(self, limit: float, bound: float) -> FreeCuts | None:
        """The linear program of all pipelines that may have a step up to a limit; None where there are none."""
        begins = None
        if np.isfinite(limit):
            left = self.master.left(limit)
            if left is None:
                return None
            begins = self._begins(left[0])
        cuts = FreeCuts(self.instance, self.place, bound, begins)
        cuts.run(lambda: cuts.bound <= self.search.target(), self.search.check_time)
        return cuts

    def _begins(self, masks: Sequence[Mask]) -> NDArray[np.bool_]:
        """(L, P): the units that stages may begin with."""
        begins = np.zeros((self.units, self.stages), bool)
        for x, (low, mask) in enumerate(masks):
            begins[low : low + mask.shape[1], x] = mask.any(axis=(0, 2, 3))
        return begins

    def _cuttable(self, cuts: Sequence[int]) -> bool:
        borders = (0, *cuts, self.units)
        return all(a < b for a, b in pairwise(borders)) and all(self.instance.cuttable[cut - 1] for cut in cuts)

    def enumerated(self, limit: float, target: Callable[[], float], labels: int) -> float:
        """Settle what the path bounds leave of steps up to a limit, by all pipelines of all columns of the spans left: the
        least bound of what time did not allow; infinite where nothing is left. Raises TooMany and TimeoutError."""
        left = self.master.left(limit)
        return np.inf if left is None else self._searched(*left, limit, target, labels)

    def partitions(self, limit: float, most: int) -> list[tuple[int, ...]] | None:
        """The cuts that a step up to the limit may have by the bounds on spans; None where they are more than so many."""
        left = self.master.left(limit)
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
        return [borders[1:-1] for borders in waiting if borders[-1] == self.units]

    def _searched(
        self, masks: Sequence[Mask], before: Sequence[Floats], limit: float, target: Callable[[], float], labels: int
    ) -> float:
        guide = None if self.guides is None else self.guides.at(limit, self._begins(masks))
        least = [each.min(axis=0) for each in before]
        behind, pools = self.master.behind(masks), list[Pool]()
        for x in reversed(range(self.stages)):
            first, last = (np.array(ends, np.intp) for ends in zip(*_spans_left(*masks[x]), strict=True))
            most = self.master.most_u(x, limit, first, least[x][first], behind[x + 1][last + 1])
            weight, most_ns = self.master.most_with_extra(x, limit, first, last, least[x][first], behind[x + 1][last + 1])
            wanted = Front(
                first,
                last,
                most,
                weight,
                most_ns - (self.tied_ns if x in (0, self.stages - 1) else 0),
                depth=self.in_flight[x],
                begins=x == 0,
                ends_apart=bool(self.tied_ns) and x in (0, self.stages - 1),
                hidden_ns=sum(self._least_backward(kind) for kind in self.kinds[: int(first.min())]),
                guide=None if guide is None else guide.stage(x),
            )
            pools.append(front(self.exact, wanted, labels, self.search.check_time))
            if not len(pools[-1].columns):
                return np.inf
        pools, bounds = pools[::-1], None
        if self.schedule == "sliced":
            head = self.master.arcs.head_ns
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
            self.tables, self.configuration, pools, kinds, least, self.master.arcs.before_ns, self.tied_ns, bounds
        )

        def report(suffixes: Suffixes, place: int) -> None:
            columns = [pool.columns[int(number)] for pool, number in zip(pools, suffixes.chosen[:, place], strict=True)]
            firsts = [int(pool.first[int(number)]) for pool, number in zip(pools, suffixes.chosen[:, place], strict=True)]
            path = tuple((first, end - 1) for first, end in pairwise((*firsts, self.units)))
            if self.search.betters(int(suffixes.bound[place])):
                self.search.report(self.solution(path, columns))

        return enumeration.run(lambda: min(limit, target()), report, self.search.out_of_time)

    def report(self, path: Sequence[Step]) -> None:
        """Report the best pipeline of the columns of a path that simulation finds."""
        picks = [self.columns.get((x, *step[:2]), []) for x, step in enumerate(path)]
        cuts = [self.instance.boundary_kinds[step[1]] for step in path[:-1]]
        pipelines = Pipelines(self.tables, self.configuration, self.tied_ns, cuts)
        best = pipelines.best(picks, self.weights, self.search.out_of_time)
        if best is not None and self.search.betters(best[0]):
            self.search.report(self.solution(path, best[1]))

    def solution(self, path: Sequence[Sequence[int]], columns: Sequence[Column]) -> Solution:
        """The solution of a path's columns, by the formulation's numbers of options."""
        choice: list[int] = []
        for (first, *_), column in zip(path, columns, strict=True):
            kinds = [self.tables.kinds[self.kinds[first + place]] for place in range(len(column.options))]
            choice += [int(kind.places[s]) for kind, s in zip(kinds, column.options, strict=True)]
        return Solution(self.place, tuple(step[0] for step in path[1:]), tuple(choice))


def _grid(low: int, top: int, factor: float) -> list[int]:
    """Numbers from `low` to at most `top`, each larger than the one before by the factor, or by one."""
    grid = [low]
    while (following := max(grid[-1] + 1, int(grid[-1] * factor))) <= top:
        grid.append(following)
    return grid


def _spans_left(low: int, mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """First and last units of the spans that a stage may still be, whatever the classes of its cuts."""
    for row, length in zip(*np.nonzero(mask.any(axis=(0, 3))), strict=True):
        yield low + int(row), low + int(row + length)
