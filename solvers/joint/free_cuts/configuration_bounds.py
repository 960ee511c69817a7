"""Lower bounds on all spans of units of one configuration with two or more stages, and the arcs of its stages made
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.profiling.base.errors import Unsupported
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
    """Lower bounds on all spans (consecutive units, that is, sub-layers) as stages of one configuration (number of stages and
    micro-batches, with a schedule) with two or more stages. u is the forward plus backward pass of a micro-batch in a stage, g
    the work after the last micro-batch. An interface state is the layout of the activations at a cut; classes of cuts group
    such states. An exit says how a span is left: the kind of boundary and the kind of link after it, and the class of the cut
    there. An arc is a span as one stage with its lower bounds.

    L: the number of units. m: micro-batches per step. in_flight: for each stage, its number of micro-batches in flight; depths:
    the distinct numbers; row: for each stage, the index of its number in `depths`. spans: classes of equal spans. exact: the
    solver of single spans as stages. bounds: a dict from the kind of link before a span to an array (classes of cuts, weights,
    depths, 1 + exits, classes of spans). path_search: the search over paths, that is, sequences of arcs from the first unit to
    the last. columns: known choices of options by stage, first and last unit.
    """

    def __init__(self, instance: Instance, configuration_index: int, search: Search) -> None:
        """instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
        configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's
        index in the instance. search: its time limit counts. Raises Unsupported where steps are too long to be exact as floats.
        """
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
            raise Unsupported(
                "instance", f"configurations[{configuration_index}]", longest_step, "give smaller times, or take another method"
            )

    def _stages(self, groups: int) -> Stages:
        """A solver of the configuration's spans that distinguishes at most `groups` groups of interface states on either side
        of a cut. groups: more of them give sharper bounds and take longer."""
        cuts = cut_classes(self.tables, groups)
        return Stages(self.tables, self.kinds, self.instance.boundary_kinds, self.memory_bytes, self.host_bytes, cuts)

    @cached_property
    def classes(self) -> int:
        """The largest number of classes of cuts (pairs of groups of interface states) that could be distinguished; 1 if all
        states cost the same, so that distinguishing them is of no use."""
        return cut_classes(self.tables, GROUPS).count

    @cached_property
    def least_u_ns(self) -> Floats:
        """For each unit, (L,), the least u in ns over all of its options, ignoring memory."""
        return least_u_ns(self.instance, self.configuration)

    @cached_property
    def least_extra_ns(self) -> int:
        """A lower bound in ns on the work at the end of stage 0: the least work of its first unit, and the sum of the gradients
        of a table shared by embedding and head."""
        return int(self.tables.kinds[self.kinds[0]].extra_ns.min()) + self.tied_ns

    def prepare(self, limit: float, coarse: bool, groups: int = 1) -> None:
        """Compute the bounds on all spans that a step time of at most `limit` ns may use, the arcs and the search over their
        paths. limit: a step time in ns. coarse: use few prices of memory and few numbers of micro-batches in flight only, which
        gives weaker bounds in less time. groups: the most groups of interface states that are distinguished on either side of a
        cut."""
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
        """Raise the bounds of a class of equal spans to a value that was proven; returns whether the bound rises.

        row: the index of the number of micro-batches in flight in `depths`; the value is then used for all larger numbers, too.
        into: the kind of link and the class of the cut before the span. out: the kinds of boundary and of link and the class of
        the cut after it; None for the last stage. number: the class of the span. weight: the pair (p, q) of the sum p u + q g
        that is bounded. value: the bound in ns."""
        link, group = into
        weight_index = 0 if weight == (1, 0) else 1 + self.weights.index(weight[0])
        exit_index = 0 if out is None else 1 + self.exits.index(out)
        values = self.bounds[link][group, weight_index, row:, exit_index, number]
        rose = bool(values[0] < value)
        np.maximum(values, value, out=values)
        return rose

    def make_arcs(self) -> None:
        """Build the arcs of all stages from the present bounds, and with them `path_search`, the search over paths of arcs."""
        exit_indices = {link: self._after(link) for link in set(self.configuration.links)}
        arcs = [self._stage_arcs(x, exit_indices) for x in range(self.stages)]
        before = np.concatenate([[0.0], np.cumsum([self.least_forward_ns(kind) for kind in self.kinds])])
        trip = head = None
        if self.schedule == "sliced":
            there = np.concatenate([[0.0], np.cumsum([self._least_trip(kind) for kind in self.kinds])])
            trip, head = there[-1] - there, there + self.least_extra_ns
        of_all = Arcs(arcs, self.weights, before, trip, head)
        self.path_search = PathBoundSearch(of_all, self.units, self.m, self.schedule, self.search.check_time)
        self.path_search.with_capped(self._capped)

    def _stage_arcs(self, x: int, exit_indices: Mapping[int, Indices]) -> StageArcs:
        """The arcs of stage x: all spans that it may be, with their lower bounds. exit_indices: a dict from each kind of link
        to (L, classes of cuts): for each unit as the span's last one, the index of the exit in the arrays of bounds."""
        links, following = self.configuration.links, self.stages - 1 - x
        low = max(x, self.units - (following + 1) * self.longest)
        high = min(self.units - following, x * self.longest + 1)
        band = slice(low, max(low, high))
        number = self._number[band]
        values = self.bounds[links[x - 1] if x else links[0]][: None if x else 1, :, self.row[x]]
        if following:
            picked = values[:, :, exit_indices[links[x]][self._last[band]], number[..., None]]
        else:
            picked = values[:, :, 0][:, :, number][..., None]
        picked = np.where(self._allowed(x, band)[..., None], picked, np.inf)
        tied = self.tied_ns if x in (0, self.stages - 1) else 0
        rate = slope(self.schedule, following, self.m)
        return StageArcs.of(low, picked[:, 0], picked[:, 1:].swapaxes(0, 1) + tied, self.weights, rate)

    def _allowed(self, x: int, band: slice) -> NDArray[np.bool_]:
        """Whether each span may be stage x, (units of the band, lengths), by its first unit and its number of units less one: a
        stage may begin at a boundary that may be cut (or at its fixed cut), and only the last stage has the last unit. band:
        the range of first units that is considered."""
        ends_model, fixed = self._ending[band], self.configuration.cuts
        allowed = self._inside[band] & (ends_model if x == self.stages - 1 else ~ends_model)
        if fixed is None:
            return allowed
        edges, first = (0, *fixed, self.units), np.arange(self.units)[band, None]
        return allowed & (first == edges[x]) & (first + 1 + np.arange(self.longest) == edges[x + 1])

    def _spans(self) -> None:
        """Set four tables of all spans of consecutive units (sub-layers), each (first unit, number of units less one), up to
        the longest span: the span's last unit, the number of its class of equal spans, whether it may be a stage, and whether
        it ends the model."""
        first = np.arange(self.units)[:, None]
        last = first + np.arange(self.longest)
        inside = last < self.units
        self._last = last = np.minimum(last, self.units - 1)
        self._number = np.where(inside, self.spans.number[first, last], 0)
        cuttable = np.array([True, *self.instance.cuttable, True])
        self._inside = inside & cuttable[first] & cuttable[last + 1]
        self._ending = last == self.units - 1

    def _after(self, link: int) -> Indices:
        """For one kind of link after a stage, (L, classes of cuts): the index of the exit in the arrays of bounds, by the
        stage's last unit and the class of the cut after it; 0 for the model's last unit, which has no exit."""
        boundaries = sorted(set(self.instance.boundary_kinds))
        classes = range(self.exact.cuts.count)
        of_kind = {kind: [1 + self.exits.index((kind, link, number)) for number in classes] for kind in boundaries}
        return np.array([*(of_kind[kind] for kind in self.instance.boundary_kinds), [0] * len(classes)], np.intp)

    def least_forward_ns(self, kind: int) -> int:
        """The least forward pass in ns over all options of a kind of unit: of a whole micro-batch, or, under a sliced schedule,
        of the first half of one. kind: the kind's index."""
        options = self.tables.kinds[kind]
        forward = options.table.forward_ns
        if self.schedule == "sliced" and options.table.halved is not None:
            forward = np.minimum(forward, options.table.halved.forward_ns[0])
        return int(forward.min())

    def least_backward_ns(self, kind: int) -> int:
        """The least backward pass in ns over all options of a kind of unit, of a whole micro-batch or of one sliced in halves,
        whichever is less. kind: the kind's index."""
        options = self.tables.kinds[kind].table
        halved = options.backward_ns if options.halved is None else options.halved.backward_ns
        return int(np.minimum(options.backward_ns, halved).min())

    def _least_trip(self, kind: int) -> int:
        """The least time in ns, over all options of a kind of unit, of a forward pass (of a whole micro-batch, or of the first
        half of a sliced one) plus a backward pass. kind: the kind's index."""
        options = self.tables.kinds[kind].table
        forward, backward = options.forward_ns, options.backward_ns
        if options.halved is not None:
            forward = np.minimum(forward, options.halved.forward_ns[0])
            backward = np.minimum(backward, options.halved.backward_ns)
        return int((forward + backward).min())


def _grid(low: int, top: int, factor: float) -> list[int]:
    """A geometric grid of whole numbers from `low` to at most `top`: each is the one before times `factor`, and at least one
    more. (4, 8, 1.5) -> [4, 6]."""
    grid = [low]
    while (following := max(grid[-1] + 1, int(grid[-1] * factor))) <= top:
        grid.append(following)
    return grid
