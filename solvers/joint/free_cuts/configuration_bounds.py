"""Lower bounds on all spans of units of one configuration with two or more stages, and the arcs of its stages made
from them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.profiling.base.errors import Unsuited
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.closed_form_bound import least_u_ns
from trainplan.solvers.joint.free_cuts.critical_path_bounds import slope
from trainplan.solvers.joint.free_cuts.path_bound_search import Arcs, PathBoundSearch, StageArcs
from trainplan.solvers.joint.free_cuts.reduced_cost_pruning import Guides
from trainplan.solvers.joint.stages.label_setting import Column, Entry, Stages
from trainplan.solvers.joint.stages.option_tables import Floats, Indices, StageTables, cut_classes, stage_tables
from trainplan.solvers.joint.stages.span_bounds import Exit, Weight, prices_of, span_bounds
from trainplan.solvers.pipeline.spans import spans_of

GRID = 1.15  # between numbers of micro-batches in flight that have bounds of their own
COARSE_GRID, COARSE_PRICES = 2.0, 4
GROUPS = 3  # of interface states on either side of a cut
EXACT_FLOATS = 2.0**51


class CandidateBounds:
    """One configuration of an instance, with the lower bounds on its spans."""

    def __init__(self, instance: Instance, configuration_index: int, search: Search) -> None:
        """search: its time limit counts. Raises Unsuited where steps are too long to be exact as floats."""
        self.instance, self.configuration_index, self.search = instance, configuration_index, search
        configuration = instance.configurations[configuration_index]
        self.configuration: Configuration = configuration
        self.stages, self.m = configuration.stages, configuration.micro_batches
        self.units = instance.length
        self.kinds = tuple(unit.kind for unit in instance.units)
        self.schedule = "sliced" if configuration.schedule.sliced else configuration.schedule.name
        self.tied_ns = 0 if configuration.tied is None else configuration.tied.reduce_ns
        device_group = configuration.device_groups[0]
        self.memory_bytes, host = instance.limit_bytes(device_group), instance.host_limit_bytes(device_group)
        self.tables: StageTables = stage_tables(configuration.tables[device_group.kind], self.schedule == "sliced")
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
            raise Unsuited(
                "instance", f"configurations[{configuration_index}]", longest_step, "give smaller times, or take another method"
            )

    def _stages(self, groups: int) -> Stages:
        """An exact solver of the configuration's spans, with cuts in classes of at most `groups` groups of interface states on
        either side."""
        cuts = cut_classes(self.tables, groups)
        return Stages(self.tables, self.kinds, self.instance.boundary_kinds, self.memory_bytes, self.host_bytes, cuts)

    @cached_property
    def classes(self) -> int:
        """The number of classes of cuts that can be distinguished."""
        return cut_classes(self.tables, GROUPS).count

    @cached_property
    def least_u_ns(self) -> Floats:
        """For each unit, the least u in ns of any option: both passes of a micro-batch."""
        return least_u_ns(self.instance, self.configuration)

    @cached_property
    def least_extra_ns(self) -> int:
        """A lower bound in ns of the work at the end of stage 0: that of its first unit, and the sum of a shared table."""
        return int(self.tables.kinds[self.kinds[0]].extra_ns.min()) + self.tied_ns

    def prepare(self, limit: float, coarse: bool, groups: int = 1) -> None:
        """Compute the bounds on all spans that a step up to the limit may use. coarse: at few prices and depths, rougher and
        sooner. groups: of interface states that are distinguished on either side of a cut."""
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
        self.make_arcs()

    def raise_bound(self, row: int, into: Entry, out: Exit | None, number: int, weight: Weight, value: float) -> bool:
        """Raise the bounds of a class of spans to an exact value; returns whether the bound rises.

        row: the index of the number of micro-batches in flight; the value holds for all larger ones, too. into: the kind of
        link and the class of the cut before the span. out: see `Stages.solve`. number: the class of the span. weight: the pair
        (p, q).
        """
        link, group = into
        weight_index = 0 if weight == (1, 0) else 1 + self.weights.index(weight[0])
        exit_index = 0 if out is None else 1 + self.exits.index(out)
        values = self.bounds[link][group, weight_index, row:, exit_index, number]
        rose = bool(values[0] < value)
        np.maximum(values, value, out=values)
        return rose

    def make_arcs(self) -> None:
        """Make the arcs of all stages from the present bounds, and the search over paths of them (`path_search`)."""
        units, stages, longest = self.units, self.stages, self.longest
        links, fixed = self.configuration.links, self.configuration.cuts
        arcs, exit_positions = [], {link: self._after(link) for link in set(links)}
        for x in range(stages):
            w, final = stages - 1 - x, x == stages - 1
            low, high = max(x, units - (w + 1) * longest), min(units - w, x * longest + 1)
            band = slice(low, max(low, high))
            inside = self._inside[band] & (self._ending[band] if final else ~self._ending[band])
            if fixed is not None:
                edges = (0, *fixed, units)
                end = np.arange(units)[band, None] + 1 + np.arange(longest)
                inside = inside & (np.arange(units)[band, None] == edges[x]) & (end == edges[x + 1])
            values = self.bounds[links[x - 1] if x else links[0]][: None if x else 1, :, self.row[x]]
            number = self._number[band]
            if final:
                picked = values[:, :, 0][:, :, number][..., None]
            else:
                picked = values[:, :, exit_positions[links[x]][self._last[band]], number[..., None]]
            picked = np.where(inside[..., None], picked, np.inf)
            tied = self.tied_ns if x in (0, stages - 1) else 0
            rate = slope(self.schedule, w, self.m)
            arcs.append(StageArcs.of(low, picked[:, 0], picked[:, 1:].swapaxes(0, 1) + tied, self.weights, rate))
        before = np.concatenate([[0.0], np.cumsum([self.least_forward_ns(kind) for kind in self.kinds])])
        trip = head = None
        if self.schedule == "sliced":
            there = np.concatenate([[0.0], np.cumsum([self._least_trip(kind) for kind in self.kinds])])
            trip, head = there[-1] - there, there + self.least_extra_ns
        of_all = Arcs(arcs, self.weights, before, trip, head)
        self.path_search = PathBoundSearch(of_all, units, self.m, self.schedule, self.search.check_time)
        self.path_search.with_capped(self._capped)

    def _spans(self) -> None:
        """For each first unit and length up to the longest, set the last unit, the class of the span, and whether it may be a
        stage."""
        first = np.arange(self.units)[:, None]
        last = first + np.arange(self.longest)
        inside = last < self.units
        self._last = last = np.minimum(last, self.units - 1)
        self._number = np.where(inside, self.spans.number[first, last], 0)
        cuttable = np.array([True, *self.instance.cuttable, True])
        self._inside = inside & cuttable[first] & cuttable[last + 1]
        self._ending = last == self.units - 1

    def _after(self, link: int) -> Indices:
        """(L, classes of cuts): the position in the bounds of the exits after each unit, over a kind of link; 0 for the last
        unit, which has no exit."""
        boundaries = sorted(set(self.instance.boundary_kinds))
        classes = range(self.exact.cuts.count)
        of_kind = {kind: [1 + self.exits.index((kind, link, number)) for number in classes] for kind in boundaries}
        return np.array([*(of_kind[kind] for kind in self.instance.boundary_kinds), [0] * len(classes)], np.intp)

    def least_forward_ns(self, kind: int) -> int:
        """The least forward pass in ns of a kind of unit, of a whole micro-batch or the first half of one."""
        options = self.tables.kinds[kind]
        forward = options.table.forward_ns
        if self.schedule == "sliced" and options.table.halved is not None:
            forward = np.minimum(forward, options.table.halved.forward_ns[0])
        return int(forward.min())

    def least_backward_ns(self, kind: int) -> int:
        """The least backward pass in ns of a kind of unit, of a whole micro-batch or of one in halves."""
        options = self.tables.kinds[kind].table
        halved = options.backward_ns if options.halved is None else options.halved.backward_ns
        return int(np.minimum(options.backward_ns, halved).min())

    def _least_trip(self, kind: int) -> int:
        """The least time in ns of a kind of unit for a first half, or a whole micro-batch, forward and a backward pass."""
        options = self.tables.kinds[kind].table
        forward, backward = options.forward_ns, options.backward_ns
        if options.halved is not None:
            forward = np.minimum(forward, options.halved.forward_ns[0])
            backward = np.minimum(backward, options.halved.backward_ns)
        return int((forward + backward).min())


def _grid(low: int, top: int, factor: float) -> list[int]:
    """Numbers from `low` to at most `top`, each larger than the one before by the factor, or by one."""
    grid = [low]
    while (following := max(grid[-1] + 1, int(grid[-1] * factor))) <= top:
        grid.append(following)
    return grid
