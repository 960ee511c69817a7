"""Costs of a pipeline stage over any span of consecutive layers: lower bounds for all spans together, and the optimum for one
span.

A stage has u, its time for one micro-batch without gradient synchronisation, and T, its time with it. Eq. 8 of Galvatron-BMW
weighs them: for whole numbers p >= q >= 0 let F(p, q) be the least p u + q (T - u) of a span within the memory E. For any price
w >= 0 of a byte

    F(p, q) >= min over choices of  p u + q (T - u) + w ( n O_f + O_ms  of all layers  + O_b of the last )  -  w E

with O_f, O_ms and O_b the bytes that a layer keeps for each of n micro-batches in flight, of its model states, and of its
backward pass. This is a shortest path along the layers; the paths of all spans, numbers n, weights and prices are found
together, a layer at a time. For one span F is the optimum of a layer-strategies instance, by label-setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.layer_strategies.problem import evaluate as evaluate_stage
from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.formulations.strategy_tables import Tables
from trainplan.solvers.chain.bounds import Cap
from trainplan.solvers.chain.chain import chain_of
from trainplan.solvers.chain.hull import hull_slopes
from trainplan.solvers.chain.label_setting import WORTH, label_setting
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.pipeline.spans import Floats, Indices, Path, SpanClasses, spans_of

Weight = tuple[int, int]
MOST_PRICES = 10


@dataclass(frozen=True)
class SolvedSpan:
    """A span (consecutive layers as one pipeline stage) solved at one weight (p, q), minimising p u + q (T - u). bound: a lower
    bound in ns on that weighted time, infinite if nothing fits. choice: the best option of each layer, None if nothing fits.
    u_ns: the choice's time u for a micro-batch without gradient synchronisation; time_ns: its time T with it."""

    bound: float
    choice: tuple[int, ...] | None
    u_ns: int = 0
    time_ns: int = 0


# Results by tables, for all instances that share these: other batch sizes, other numbers of micro-batches.
_kept: WeakKeyDictionary[Tables, tuple[list[int], Tables]] = WeakKeyDictionary()
_shared: WeakKeyDictionary[Tables, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


def undominated(tables: Tables) -> tuple[list[int], Tables]:
    """Remove useless options (strategies) from cost tables: returns the indices of the options for which no other option is at
    most as high in every cost, and the tables of these options alone.

    Compared are time with and without gradient synchronisation, the bytes of every kind of layer, and every re-layout. The
    result is kept for as long as the tables exist."""
    if tables not in _kept:
        options: list[int] = []
        values = np.concatenate(
            [
                tables.time_ns - tables.sync_ns,
                tables.time_ns,
                tables.forward_bytes,
                tables.backward_bytes,
                tables.state_bytes,
                tables.entries_ns,
                *tables.transitions_ns,
                *tables.transitions_ns.transpose(0, 2, 1),
            ]
        )
        # By rising size, so that of two equal ones the first is kept.
        order = np.lexsort((np.arange(values.shape[1]), values[: 2 * len(tables.time_ns)].sum(axis=0, dtype=np.float64)))
        for s in order:
            if not any((values[:, other] <= values[:, s]).all() for other in options):
                options.append(int(s))
        _kept[tables] = sorted(options), tables.keep(sorted(options))
    return _kept[tables]


class SpanCosts:
    """Lower bounds and optima of a pipeline stage over all spans of consecutive layers, in one configuration (number of stages
    and micro-batches, with a schedule), given by its index. For a stage, u is its time in ns for a micro-batch without gradient
    synchronisation, and T its time with it. Spans with equal kinds of layers and boundaries form a class.

    in_flight: for each stage, its number of micro-batches in flight. depths: the distinct numbers; depth_of: for each stage,
    the index of its number in `depths`. options: indices of the options that are not dominated, which all methods use. spans:
    the classes. All methods but `solve_capped` raise TimeoutError if the time of the search is over."""

    def __init__(self, instance: Instance, index: int, search: Search | None = None) -> None:
        """Prepare the costs of one configuration. search: the search whose time limit counts; none by default.

        instance: the layers' strategies with times and memory, and the possible configurations (number of stages and
        micro-batches, schedule)."""
        self.instance, self.index = instance, index
        self.search = search or Search(lambda _: None)
        self.configuration: Configuration = instance.configurations[index]
        self.options, self.tables = undominated(self.configuration.tables)
        self.spans: SpanClasses = spans_of(instance.layer_kinds, instance.boundary_kinds)
        stages = range(self.configuration.stages)
        self.in_flight = [self.configuration.in_flight(stage) for stage in stages]
        self.depths = sorted(set(self.in_flight))
        self.depth_of = [self.depths.index(depth) for depth in self.in_flight]
        self.cells = interface_cells(self.tables)
        self.shared = _shared.setdefault(self.configuration.tables, {})

    def bounds(self, weights: Sequence[Weight], prices: Floats | None = None) -> Floats:
        """Lower bounds in ns on the least weighted time p u + q (T - u) of a stage within the memory: (weights, depths,
        classes), by weight (p, q), number of micro-batches in flight and class of spans; infinite if nothing fits.

        weights: the pairs (p, q). prices: (prices,), prices of memory in ns per byte at weight (1, 1); None takes those at
        which equal layers change their option."""
        prices = self._prices() if prices is None else prices
        rates = [(p, q, w * max(p, q)) for p, q in weights for w in prices] + [(0, 0, 1.0)]
        costs = self._cheapest(rates, self.instance.memory_bytes * (1 + 1e-9))
        memory = np.array([w for _, _, w in rates]) * self.instance.memory_bytes
        # Float sums stay within a few times their rounding errors of the truth.
        size = np.where(np.isfinite(costs), np.abs(costs), 0) + memory
        costs -= memory + 8 * (self.instance.layers + 4) * np.finfo(np.float64).eps * size
        best = costs[:, :, :-1].reshape(len(self.spans), len(self.depths), len(weights), len(prices)).max(axis=-1)
        best[costs[:, :, -1] > 0] = np.inf
        return np.ascontiguousarray(best.transpose(2, 1, 0))

    def cheapest(self, costs: Floats, joined: np.ufunc) -> tuple[float, Path]:
        """The cheapest partition of the layers into stages: its cost, and first and last layer of each stage; an infinite cost
        and an empty path if there is none. costs: (depths, classes), the cost of a stage. joined: how the costs of stages are
        combined, np.add or np.maximum."""
        return self.spans.cheapest(costs[self.depth_of], joined, self.search.check_time)

    def least_bytes(self) -> Floats:
        """Lower bounds in bytes on the memory that a device needs for a stage: (depths, classes), by number of micro-batches in
        flight and class of spans."""
        return self._cheapest([(0, 0, 1.0)])[:, :, 0].T

    def _cheapest(self, rates: Sequence[tuple[int, int, float]], memory_bytes: float = np.inf) -> Floats:
        """The least p u + q (T - u) + w x (bytes of memory) of every class of spans, over all choices: (classes, depths,
        rates). Memory is priced, not limited.

        rates: (p, q, w), weights of the times u and T - u and a price w in ns per byte. memory_bytes: a limit by which long
        spans are skipped: if, at the last rate, which must then be (0, 0, 1), no span of some length is below it, all longer
        spans stay infinite."""
        tables, spans, cells = self.tables, self.spans, self.cells
        p, q, w = (np.array(column, np.float64)[:, None] for column in zip(*rates, strict=True))
        u, sync = tables.time_ns - tables.sync_ns, tables.sync_ns
        depth = np.array(self.depths, np.float64)[:, None, None]
        # For each kind of layer: (kinds, depths, rates, options), and then cells in place of options.
        costs = [
            p * u[kind] + q * sync[kind] + w * (depth * tables.forward_bytes[kind] + tables.state_bytes[kind])
            for kind in range(len(u))
        ]
        inner = np.stack([cells.cheapest(cost) for cost in costs])
        last = np.stack([cells.cheapest(cost + w * tables.backward_bytes[kind]) for kind, cost in enumerate(costs)])
        entries = p * cells.entries_ns[:, None, :]
        moves = p[:, :, None] * cells.moves_ns[:, None]
        least = np.full((len(spans), len(self.depths), len(rates)), np.inf)
        chain, at, before = np.empty(0), 0, 0
        for length, level in enumerate(spans.levels):
            self.search.check_time()
            count = len(level.kind)
            entered = np.zeros((count, len(self.depths), len(rates), entries.shape[-1]))
            for boundary in np.unique(level.boundary[level.boundary >= 0]):
                here = np.flatnonzero(level.boundary == boundary)
                if not length:
                    entered[here] = entries[boundary]
                elif cells.moves_ns[boundary].any():
                    through = chain[level.parent[here] - before]
                    entered[here] = (through[..., :, None] + moves[boundary]).min(axis=-2)
                else:
                    entered[here] = chain[level.parent[here] - before].min(axis=-1, keepdims=True)
            reached = entered[..., cells.enter]
            least[at : at + count] = (reached + last[level.kind]).min(axis=-1)
            if least[at : at + count, 0, -1].min() > memory_bytes:
                break
            chain = cells.cheapest_by_exit(reached + inner[level.kind])
            before, at = at, at + count
        return least

    def _prices(self) -> Floats:
        """Prices of memory in ns per byte, (prices,), at which the option of least (time + price x memory) of a chain of equal
        layers changes; the first price is 0, for memory that is not short. They are the slopes of the lower hull of (memory,
        time) for each kind of layer."""
        tables, slopes = self.tables, set[float]()
        for depth in {self.depths[0], self.depths[-1]}:
            for kind in range(len(tables.time_ns)):
                memory = depth * tables.forward_bytes[kind] + tables.state_bytes[kind]
                slopes.update(hull_slopes(memory, tables.time_ns[kind]))
        ordered = sorted(slopes)
        if len(ordered) > MOST_PRICES:
            ordered = [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, MOST_PRICES).astype(int))]
        return np.array([0.0, *ordered])

    def solve(self, number: int, depth: int, weight: Weight, worth: float = np.inf) -> SolvedSpan:
        """Solve a class of spans at one weight (p, q) by label-setting, exactly, minimising p u + q (T - u). Equal spans are
        solved only once: results are kept.

        weight: the pair (p, q). number: the class of the span. depth: micro-batches in flight. worth: the largest weighted time
        in ns that is of interest; the search ends once the bound exceeds it, and such a result is not kept for later calls."""
        first, last = self.spans.span[number]
        instance = self.instance
        kinds, boundaries = instance.layer_kinds[first : last + 1], instance.boundary_kinds[max(0, first - 1) : last]
        key = (kinds, boundaries, first > 0, depth, weight, instance.memory_bytes)
        if key not in self.shared and worth < np.inf:
            return self._solve(first, last, depth, weight, {WORTH: int(worth)})
        if key not in self.shared:
            easier = self.solve(number, self.depths[0], weight) if depth > self.depths[0] else None
            if easier is not None and (easier.choice is None or self._fits(first, last, depth, easier)):
                self.shared[key] = easier
            else:
                self.shared[key] = self._solve(first, last, depth, weight)
        solved: SolvedSpan = self.shared[key]
        return solved

    def _fits(self, first: int, last: int, depth: int, solved: SolvedSpan) -> bool:
        """Whether the choice of a solved span, layers first to last (inclusive), fits the memory with `depth` micro-batches in
        flight."""
        kinds, choice = list(self.instance.layer_kinds[first : last + 1]), list(solved.choice or ())
        tables = self.configuration.tables
        columns = (tables.state_bytes, tables.forward_bytes, tables.backward_bytes)
        states, kept, work = (column[kinds, choice] for column in columns)
        peak, _ = stage_peak(states, kept, work, depth)
        return int(peak) <= self.instance.memory_bytes

    def _solve(self, first: int, last: int, depth: int, weight: Weight, options: dict[str, Any] | None = None) -> SolvedSpan:
        """Solve layers first to last (inclusive) as one stage at a weight (p, q) by label-setting: minimise p u + q (T - u)
        within the memory. depth: micro-batches in flight. options: options of label-setting, by name."""
        stage = self.stage_instance(first, last, depth, weight)
        search = self.search.inner(judge(stage), options=options or {})
        label_setting(stage, search)
        self.search.check_time()
        return self._as_solved(first, last, search)

    def solve_capped(
        self, number: int, depth: int, limit_ns: int, start: SolvedSpan, slope: float, time_limit: float
    ) -> SolvedSpan:
        """Solve a span under a limit on its time u: find the choice of options with the least time T among those whose u is at
        most limit_ns.

        number: the class of spans. depth: micro-batches in flight. limit_ns: the largest allowed u. start: a solved span of
        this class whose u is within the limit. slope: a first estimate of the ns of T gained for one ns more of u. time_limit:
        in seconds; if it is reached, the result's lower bound is less than the time of its choice, so that nothing is proven
        optimal."""
        first, last = self.spans.span[number]
        if depth > self.depths[0]:
            key = ("capped", self.spans, number, limit_ns, self.instance.memory_bytes)
            easier: SolvedSpan | None = self.shared.get(key)
            if easier is None:
                easier = self.solve_capped(number, self.depths[0], limit_ns, start, slope, time_limit)
                if easier.bound == easier.time_ns:  # not where time ran out
                    self.shared[key] = easier
            if self._fits(first, last, depth, easier):
                return easier
        stage, capped = self.stage_instance(first, last, depth, (1, 1)), self.stage_instance(first, last, depth, (1, 0))
        cap, judged = Cap(limit_ns, chain_of(capped), (slope, slope / 2, 2 * slope)), judge(stage)

        def objective(choice: Sequence[int]) -> int | None:
            """The stage's objective in ns of a choice; None where it exceeds the limit on u or the memory."""
            return judged(choice) if evaluate_stage(capped, choice).objective <= limit_ns else None

        search = self.search.inner(objective, time_limit)
        search.report([self.options.index(s) for s in start.choice or ()])
        label_setting(stage, search, cap)
        return self._as_solved(first, last, search)

    def _as_solved(self, first: int, last: int, search: Search) -> SolvedSpan:
        """A finished search over the options of layers first to last (inclusive) as a record: its best choice with times u and
        T, and its lower bound; without a solution, the choice is None and the bound infinite.

        search: the run's limits and options, and its best solution so far; only read here."""
        if search.best is None:
            return SolvedSpan(np.inf, None)
        assert search.bound is not None
        choice = [int(s) for s in search.best]
        time = evaluate_stage(self.stage_instance(first, last, 1, (1, 1)), choice).time_ns
        sync = int(self.tables.sync_ns[list(self.instance.layer_kinds[first : last + 1]), choice].sum())
        return SolvedSpan(search.bound, tuple(self.options[s] for s in choice), time - sync, time)

    def stage_instance(self, first: int, last: int, depth: int, weight: Weight) -> StageInstance:
        """The layer-strategies instance (one option per layer, one memory limit) whose optimum is the least p u + q (T - u) of
        layers first to last (inclusive) as one stage, over the options that are not dominated. depth: micro-batches in flight.
        weight: (p, q)."""
        return self.instance.span(self.tables, first, last, depth, weight)


@dataclass(frozen=True, eq=False)
class InterfaceCells:
    """Options (strategies) grouped by their re-layout costs: options that are entered and left at equal costs are in one cell.

    Re-layout depends on the layout of the samples, not on the whole strategy. So with S options in C cells, one step of a
    cheapest chain of layers takes C^2 + S sums, not S^2: only the cheapest option of each cell counts. Options differ in E
    kinds of entry and D kinds of exit, at Q kinds of boundary.

    cell_of: (S,), the cell of each option. enter, leave: (C,), the kind of entry and of exit of each cell. moves_ns: (Q, D, E),
    time of re-layout between neighbours. entries_ns: (Q, E), time of re-layout at the beginning of a stage.
    """

    cell_of: Indices
    enter: Indices
    leave: Indices
    moves_ns: Integers
    entries_ns: Integers

    def cheapest(self, values: Floats) -> Floats:
        """For each cell, the least value of its options. values: (..., S), one per option. Returns (..., C)."""
        return _least(values, self.cell_of)

    def cheapest_by_exit(self, values: Floats) -> Floats:
        """For each kind of exit, the least value of the cells that have it. values: (..., C), one number per cell. Returns
        (..., D)."""
        return _least(values, self.leave)


def interface_cells(tables: Tables) -> InterfaceCells:
    """Group the options (strategies) of cost tables by their re-layout costs, which depend on the layout of the samples only:
    options with equal rows in every transition table have one kind of exit; options with equal columns there, and equal entry
    times, have one kind of entry; options with equal kinds of both are one cell."""
    moves, entries = tables.transitions_ns, tables.entries_ns
    rows = moves.transpose(1, 0, 2).reshape(len(tables.strategies), -1)
    columns = np.concatenate((moves.transpose(2, 0, 1).reshape(len(tables.strategies), -1), entries.T), axis=1)
    (lefts, leave), (enters, enter) = _numbered_rows(rows), _numbered_rows(columns)
    cells, cell_of = _numbered_rows(np.stack((enter, leave), axis=1))
    return InterfaceCells(cell_of, enter[cells], leave[cells], moves[:, lefts][:, :, enters], entries[:, enters])


def _numbered_rows(rows: Integers) -> tuple[Indices, Indices]:
    """Group equal rows of a table: the index of one row of each group, (groups,), and for each row the number of its group,
    (rows,)."""
    _, firsts, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return firsts, numbers.reshape(-1)


def _least(values: NDArray[Any], group_of: Indices) -> NDArray[Any]:
    """The least value of each group of entries along the last axis of `values`: (..., entries) to (..., groups). group_of:
    (entries,), the group of each entry; groups are numbered from 0, and none is empty."""
    order = np.argsort(group_of, kind="stable")
    starts = np.flatnonzero(np.diff(group_of[order], prepend=-1))
    return np.minimum.reduceat(values[..., order], starts, axis=-1)
