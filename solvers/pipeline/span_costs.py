"""Costs of a pipeline stage over any span of consecutive layers: lower bounds for all spans at once, and the optimum for one
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
    """A span solved under one weight: a lower bound on F in ns, and the choice found (None: nothing fits) with its u and T."""

    bound: float
    choice: tuple[int, ...] | None
    u_ns: int = 0
    time_ns: int = 0


# What was found of tables, for all instances that share them: other batch sizes, other numbers of micro-batches.
_kept: WeakKeyDictionary[Tables, tuple[list[int], Tables]] = WeakKeyDictionary()
_shared: WeakKeyDictionary[Tables, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


def undominated(tables: Tables) -> tuple[list[int], Tables]:
    """The options that no other one equals or beats everywhere (in u, T and bytes of every kind of layer, and in every
    re-layout), and the tables of those alone."""
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
    """Bounds and optima of all spans of layers in one configuration, given by its index.

    in_flight: number of micro-batches in flight of each stage. depths: the distinct such numbers; depth_of: for each stage, the
    index of its number among them. options: indices of the options that are not dominated, which all methods use. All methods
    but `solve_capped` raise TimeoutError where the time of the search is over.
    """

    def __init__(self, instance: Instance, index: int, search: Search | None = None) -> None:
        """search: the search whose time limit counts; none by default."""
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
        """(weights, depths, classes): lower bounds in ns on F for each weight, number of micro-batches in flight and class of
        spans; infinite where nothing fits.

        prices: of a byte at weight (1, 1) (default: those at which equal layers change their option).
        """
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
        """The cheapest partition and its cost, as `SpanClasses.cheapest` finds it. costs: (depths, classes)."""
        return self.spans.cheapest(costs[self.depth_of], joined, self.search.check_time)

    def least_bytes(self) -> Floats:
        """(depths, classes): lower bounds on the memory in bytes that a stage needs."""
        return self._cheapest([(0, 0, 1.0)])[:, :, 0].T

    def _cheapest(self, rates: Sequence[tuple[int, int, float]], memory_bytes: float = np.inf) -> Floats:
        """(classes, depths, rates): the least p u + q (T - u) + w (memory) of every class of spans at each rate (p, q, w).

        memory_bytes: where no span of some length is below it at the last rate, which must be (0, 0, 1), longer spans, each of
        which begins with one of those, are left infinite.
        """
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
        """Prices in ns per byte at which a chain of equal layers changes from one option to the next; first 0, for memory that
        is not short.

        They are the slopes of the lower hull of (memory, time) of each kind, for few and for many micro-batches in flight.
        """
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
        """F of a class of spans by label-setting; equal spans are solved only one time.

        number: the class. depth: micro-batches in flight. The best choice for the fewest of them is the best for more wherever
        it still fits. worth: values above it, in ns, are not searched; the bound may then be just above it.
        """
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
        """Whether a solved span of layers first to last fits the memory with `depth` micro-batches in flight."""
        kinds, choice = list(self.instance.layer_kinds[first : last + 1]), list(solved.choice or ())
        tables = self.configuration.tables
        columns = (tables.state_bytes, tables.forward_bytes, tables.backward_bytes)
        states, kept, work = (column[kinds, choice] for column in columns)
        peak, _ = stage_peak(states, kept, work, depth)
        return int(peak) <= self.instance.memory_bytes

    def _solve(self, first: int, last: int, depth: int, weight: Weight, options: dict[str, Any] | None = None) -> SolvedSpan:
        """Solve layers first to last as one stage by label-setting. options: those of label-setting."""
        stage = self.stage_instance(first, last, depth, weight)
        search = self.search.inner(judge(stage), options=options or {})
        label_setting(stage, search)
        self.search.check_time()
        return self._as_solved(first, last, search)

    def solve_capped(
        self, number: int, depth: int, limit_ns: int, start: SolvedSpan, slope: float, time_limit: float
    ) -> SolvedSpan:
        """The least T of a span under u <= limit_ns, and its choice.

        start: a solved span that keeps the limit. slope: the ns of T gained by one ns of u, as a first estimate. As with
        `solve`, the answer for the fewest micro-batches in flight holds for more of them wherever it still fits.
        """
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
            return judged(choice) if evaluate_stage(capped, choice).objective <= limit_ns else None

        search = self.search.inner(objective, time_limit)
        search.report([self.options.index(s) for s in start.choice or ()])
        label_setting(stage, search, cap)
        return self._as_solved(first, last, search)

    def _as_solved(self, first: int, last: int, search: Search) -> SolvedSpan:
        """A search's best choice for layers first to last, with its u and T, and the search's bound."""
        if search.best is None:
            return SolvedSpan(np.inf, None)
        assert search.bound is not None
        choice = [int(s) for s in search.best]
        time = evaluate_stage(self.stage_instance(first, last, 1, (1, 1)), choice).time_ns
        sync = int(self.tables.sync_ns[list(self.instance.layer_kinds[first : last + 1]), choice].sum())
        return SolvedSpan(search.bound, tuple(self.options[s] for s in choice), time - sync, time)

    def stage_instance(self, first: int, last: int, depth: int, weight: Weight) -> StageInstance:
        """The layer-strategies instance whose optimum is F for layers first to last, over the options that are not
        dominated."""
        return self.instance.span(self.tables, first, last, depth, weight)


@dataclass(frozen=True, eq=False)
class InterfaceCells:
    """Options grouped by their re-layout costs: options that are entered and left at equal costs lie in one cell.

    Re-layout depends on where the samples lie, not on the whole strategy. So with S options in C cells, one step of a cheapest
    chain takes C^2 + S sums, not S^2: only the cheapest option of each cell counts. There are E ways in which options are
    entered and D ways in which they are left, at Q kinds of boundary.

    cell_of: (S,), the cell of each option. enter, leave: (C,), the way in which each cell is entered and left. moves_ns: (Q, D,
    E), time of re-layout between neighbours. entries_ns: (Q, E), at the beginning of a stage.
    """

    cell_of: Indices
    enter: Indices
    leave: Indices
    moves_ns: Integers
    entries_ns: Integers

    def cheapest(self, values: Floats) -> Floats:
        """The least value of each cell's options: (..., S) to (..., C)."""
        return _least(values, self.cell_of)

    def cheapest_by_exit(self, values: Floats) -> Floats:
        """The least value of the cells that are left in the same way: (..., C) to (..., D)."""
        return _least(values, self.leave)


def interface_cells(tables: Tables) -> InterfaceCells:
    """The cells of the options of these tables.

    Options with equal rows in every transition table are left in the same way; options with equal columns there, and equal
    entries, are entered in the same way.
    """
    moves, entries = tables.transitions_ns, tables.entries_ns
    rows = moves.transpose(1, 0, 2).reshape(len(tables.strategies), -1)
    columns = np.concatenate((moves.transpose(2, 0, 1).reshape(len(tables.strategies), -1), entries.T), axis=1)
    (lefts, leave), (enters, enter) = _numbered_rows(rows), _numbered_rows(columns)
    cells, cell_of = _numbered_rows(np.stack((enter, leave), axis=1))
    return InterfaceCells(cell_of, enter[cells], leave[cells], moves[:, lefts][:, :, enters], entries[:, enters])


def _numbered_rows(rows: Integers) -> tuple[Indices, Indices]:
    """The index of the first of every group of equal rows, and for each row the number of its group."""
    _, firsts, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return firsts, numbers.reshape(-1)


def _least(values: NDArray[Any], group_of: Indices) -> NDArray[Any]:
    """The least value of each group of the last axis. group_of: the group of each entry; groups are numbered from 0, none is
    empty."""
    order = np.argsort(group_of, kind="stable")
    starts = np.flatnonzero(np.diff(group_of[order], prepend=-1))
    return np.minimum.reduceat(values[..., order], starts, axis=-1)
