"""Solves one stage exactly: the least p u + q g of a span of units within the memory, by label-setting, and the times of its
choice.

u: both passes of a micro-batch; g: the work after the last one. Equal spans with equal neighbours are solved once. The best
choice for few micro-batches in flight is also the best one for more of them wherever it still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.solvers.chain.bounds import Cap
from trainplan.solvers.chain.chain import Link, MemoryChain, cost_table
from trainplan.solvers.chain.label_setting import WORTH, label_setting
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.stages.option_tables import CutClasses, Floats, StageTables
from trainplan.solvers.joint.stages.span_bounds import Exit, Weight


@dataclass(frozen=True)
class Column:
    """One choice of options for a span of units as a stage, whatever its neighbours: times in ns without messages and
    re-layouts at its cuts.

    options: for each unit, the index in the reduced tables. forward_ns, backward_ns: the passes. halves_ns, halved_backward_ns:
    of a micro-batch in halves. enter, leave: merged interface states (see `option_tables`).
    """

    options: tuple[int, ...]
    forward_ns: int
    backward_ns: int
    last_ns: int
    reduce_ns: int
    optimizer_ns: int
    enter: int
    leave: int
    host_bytes: int
    halves_ns: tuple[int, int] = (0, 0)
    halved_backward_ns: int = 0

    @property
    def extra_ns(self) -> int:
        """g: the work in ns after the last micro-batch."""
        return self.last_ns + self.reduce_ns + self.optimizer_ns


@dataclass(frozen=True)
class Solved:
    """A span solved for one weight (p, q): a lower bound on p u + q g, infinite where nothing fits, and the best choice with
    its value; column is None where none is known."""

    bound: float
    column: Column | None
    value: int = 0


Entry = tuple[int, int]  # the kind of link before a span, and the class of the cut
Span = tuple[int, int, int, Weight, Entry, Exit | None]  # as of `Stages.solve`: first, last, depth, weight, into, out


@dataclass
class Stages:
    """Solves the spans of one chain of units, and keeps the results.

    tables: of the chain's kinds. kinds, boundaries: of each unit, and between units. memory_bytes, host_bytes: of each device
    of a stage; None for no limit. cuts: classes of the interface states at cuts.
    """

    tables: StageTables
    kinds: tuple[int, ...]
    boundaries: tuple[int, ...]
    memory_bytes: int
    host_bytes: int | None
    cuts: CutClasses
    solved: dict[tuple[Any, ...], Solved] = field(default_factory=dict)
    count: int = 0
    loosest: float = 0.0  # of all spans solved, the largest relative gap between choice and bound
    _links: dict[tuple[int, int, int, Weight], Link] = field(default_factory=dict)
    _bars: dict[Weight, int] = field(default_factory=dict)

    def solve(
        self,
        first: int,
        last: int,
        depth: int,
        weight: Weight,
        into: Entry,
        out: Exit | None,
        search: Search,
        tolerance: float,
        worth_ns: float = np.inf,
    ) -> Solved:
        """The least p u + q g of the span of units `first` to `last`, with `depth` micro-batches in flight and weight (p, q).

        into: the kind of link and the class of the cut before the span, if it does not begin the model. out: the kind of
        boundary, the kind of link and the class of the cut after it; None for the last stage. tolerance: the relative gap
        between bound and choice that suffices. worth_ns: a bound above this suffices, too.

        Raises TimeoutError.
        """
        around = (into, self.boundaries[first - 1]) if first else None
        key = (self.kinds[first : last + 1], self.boundaries[first:last], around, weight, out, depth)
        if key not in self.solved:
            shallower = [other for other in self.solved if other[:-1] == key[:-1] and other[-1] < depth] if depth > 1 else []
            best = max(shallower, key=lambda other: other[-1], default=None)
            if (
                best is not None
                and (easier := self.solved[best])
                and (easier.column is None or self._fits(first, depth, easier))
            ):
                self.solved[key] = easier
            else:
                self.solved[key] = self._solve((first, last, depth, weight, into, out), search, tolerance, worth_ns)
        return self.solved[key]

    def solve_capped(
        self, first: int, last: int, depth: int, out: Exit | None, most_ns: int, start: Column, search: Search, tolerance: float
    ) -> Solved:
        """The least u + g of a span that begins the model, among choices whose u is at most `most_ns`. start: a choice within
        that limit.

        Where the host's memory is limited, the bound is that of choices whatever they hold there. Raises TimeoutError.
        """
        self.count += 1
        whole, forbidden = self.chain(first, last, depth, (1, 1), (0, 0), out)
        capped, _ = self.chain(first, last, depth, (1, 0), (0, 0), out)

        def objective(choice: Sequence[int]) -> int | None:
            return whole.objective(choice) if int(capped.times(np.array([choice]))[0]) <= most_ns else None

        inner = search.inner(objective, gap=tolerance)
        inner.report(start.options)
        if inner.objective is None:
            return Solved(0.0, None)
        rate = max(1e-6, start.extra_ns / max(1, most_ns))
        label_setting(whole, inner, Cap(most_ns, capped, (rate, rate / 8, 8 * rate)))
        search.check_time()
        assert inner.bound is not None
        if inner.best is None or inner.objective >= forbidden:
            return Solved(inner.bound, None)
        column = self.column(first, inner.best)
        within = self.host_bytes is None or column.host_bytes <= self.host_bytes
        return Solved(inner.bound, column if within else None, inner.objective)

    def _fits(self, first: int, depth: int, solved: Solved) -> bool:
        """Whether the choice of a solved span fits with `depth` micro-batches in flight."""
        assert solved.column is not None
        return self.peak_bytes(first, depth, solved.column.options) <= self.memory_bytes

    def peak_bytes(self, first: int, depth: int, options: Sequence[int]) -> int:
        """The peak bytes of a stage that begins at a unit, by its units' options."""
        kinds = [self.tables.kinds[self.kinds[first + index]] for index in range(len(options))]
        state, kept, work, held = (
            np.array([getattr(kind, name)[s] for kind, s in zip(kinds, options, strict=True)], np.int64)
            for name in ("state", "kept", "work", "held")
        )
        return int(stage_peak(state, kept, work, depth, held)[0])

    def _solve(self, span: Span, search: Search, tolerance: float, worth_ns: float) -> Solved:
        """As `solve`, without looking at earlier results. span: the arguments that name the span."""
        self.count += 1
        first, chain, forbidden = span[0], *self.chain(*span)
        inner = search.inner(chain.objective, gap=tolerance, options={WORTH: int(worth_ns)} if worth_ns < np.inf else {})
        outcome = label_setting(chain, inner)
        search.check_time()
        if outcome.infeasible:
            return Solved(np.inf, None)
        assert inner.bound is not None
        if inner.bound >= forbidden:
            return Solved(np.inf, None)
        if inner.best is None or inner.objective is None or inner.objective >= forbidden:
            return Solved(inner.bound, None)
        column = self.column(first, inner.best)
        if self.host_bytes is not None and column.host_bytes > self.host_bytes:
            return self._within_host(first, chain, forbidden, inner, search, tolerance)
        self.loosest = max(self.loosest, (inner.objective - inner.bound) / max(1, inner.objective))
        return Solved(inner.bound, column, inner.objective)

    def _within_host(
        self, first: int, chain: MemoryChain, forbidden: int, relaxed: Search, search: Search, tolerance: float
    ) -> Solved:
        """As `solve`, with the host's memory as a second limit. It starts from the choice that needs the least there."""
        assert self.host_bytes is not None and relaxed.bound is not None
        hosts = [self.tables.kinds[kind].host for kind in self.kinds[first : first + chain.layers]]
        links = tuple(
            Link(link.leaves, link.enters, None if link.costs is None else np.zeros_like(link.costs)) for link in chain.links
        )
        host = MemoryChain(
            chain.memory_bytes, tuple(hosts), chain.forward_bytes, chain.backward_bytes, chain.state_bytes, links
        )
        least = search.inner(host.objective)
        outcome = label_setting(host, least)
        search.check_time()
        if outcome.infeasible or least.bound is None or least.bound > self.host_bytes:
            return Solved(np.inf, None)
        if least.best is None or least.objective is None or least.objective > self.host_bytes:
            return Solved(relaxed.bound, None)

        def objective(choice: Sequence[int]) -> int | None:
            return chain.objective(choice) if int(host.times(np.array([choice]))[0]) <= limit else None

        limit = self.host_bytes
        inner = search.inner(objective, gap=tolerance)
        inner.report(tuple(int(s) for s in least.best))
        rate = max(1e-12, (relaxed.objective or 1) / max(1, limit) / 100)
        label_setting(chain, inner, Cap(limit, host, (rate, rate / 10, 10 * rate)))
        search.check_time()
        bound = max(relaxed.bound, inner.bound or 0)
        if inner.best is None or inner.objective is None or inner.objective >= forbidden:
            return Solved(np.inf if bound >= forbidden else bound, None)
        return Solved(bound, self.column(first, inner.best), inner.objective)

    def chain(
        self, first: int, last: int, depth: int, weight: Weight, into: Entry, out: Exit | None
    ) -> tuple[MemoryChain, int]:
        """The span as a chain of layers that minimises p u + q g, and a time that every choice with disagreeing interface
        states reaches, and no other one. Arguments as of `solve`."""
        p, q = weight
        tables, kinds = self.tables, self.kinds[first : last + 1]
        units = [tables.kinds[kind] for kind in kinds]
        times = [(p * unit.u_ns + q * unit.extra_ns).astype(np.float64) for unit in units]
        times[0] = times[0] + p * units[0].first_ns
        times[-1] = times[-1] + p * units[-1].final_ns
        if first and p:
            times[0] = times[0] + p * self.cuts.entries[(self.boundaries[first - 1], *into)][units[0].enter]
        if out is not None and p:
            times[-1] = times[-1] + p * self.cuts.exits[out][units[-1].leave]
        forbidden = self._forbidden(weight)
        inside = self.boundaries[first:last]
        links = tuple(self._link(a, b, boundary, weight) for a, b, boundary in zip(kinds, kinds[1:], inside, strict=False))
        chain = MemoryChain(
            self.memory_bytes,
            tuple(np.where(np.isfinite(time), time, forbidden).astype(np.int64) for time in times),
            tuple(unit.kept for unit in units),
            tuple(unit.work for unit in units),
            tuple(unit.states(depth) for unit in units),
            links,
        )
        return chain, forbidden

    def _forbidden(self, weight: Weight) -> int:
        """A time at a weight that no choice reaches whose interface states agree."""
        if weight not in self._bars:
            p, q = weight
            units = [
                int((p * (unit.u_ns + unit.first_ns + unit.final_ns) + q * unit.extra_ns).max(initial=0))
                for unit in self.tables.kinds
            ]
            moves = [_largest(moves) for moves in self.tables.moves]
            ends = max(map(_largest, (self.tables.forward, self.tables.backward))) if self.boundaries else 0
            crossing = sum(moves[boundary] for boundary in self.boundaries) + 2 * ends
            self._bars[weight] = 1 + sum(units[kind] for kind in self.kinds) + p * crossing
        return self._bars[weight]

    def _link(self, before: int, after: int, boundary: int, weight: Weight) -> Link:
        """The link between the options of two kinds of units, at the forbidden time where their interface states disagree."""
        key = (before, after, boundary, weight)
        if key not in self._links:
            moves = self.tables.moves[boundary]
            finite = np.where(np.isfinite(moves), moves, 0).astype(np.int64)
            costs: Integers = np.where(np.isfinite(moves), weight[0] * finite, self._forbidden(weight))
            a, b = self.tables.kinds[before], self.tables.kinds[after]
            self._links[key] = cost_table(costs[np.ix_(a.leave, b.enter)])
        return self._links[key]

    def column(self, first: int, options: Sequence[int]) -> Column:
        """The times of a choice as a stage that begins at a unit."""
        chosen = [int(s) for s in options]
        tables = [self.tables.kinds[self.kinds[first + index]] for index in range(len(chosen))]
        indices = [int(kind.indices[s]) for kind, s in zip(tables, chosen, strict=True)]
        pairs = list(zip((kind.table for kind in tables), indices, strict=True))

        def total(name: str) -> int:
            return sum(int(getattr(table, name)[s]) for table, s in pairs)

        (head, s), (tail, t) = pairs[0], pairs[-1]
        forward, back = int(head.head_ns[s]), int(tail.turn_ns[t]) + int(head.tail_ns[s])
        crossed = np.zeros(4, np.int64)
        for index in range(len(chosen) - 1):
            crossing = self.tables.crossings[self.boundaries[first + index]]
            state = int(tables[index].leave[chosen[index]]), int(tables[index + 1].enter[chosen[index + 1]])
            columns = crossing.forward_ns, crossing.backward_ns, crossing.halved_forward_ns, crossing.halved_backward_ns
            crossed += [column[state] for column in columns]
        moved, moved_back, halved_moved, halved_back = crossed.tolist()
        halves = [(table.halved, s) for table, s in pairs]
        first_half, second_half = (
            forward + halved_moved + sum(int(h.forward_ns[half, s]) for h, s in halves if h) for half in (0, 1)
        )
        return Column(
            options=tuple(chosen),
            forward_ns=forward + total("forward_ns") + moved,
            backward_ns=back + total("backward_ns") + moved_back,
            last_ns=total("last_ns"),
            reduce_ns=total("reduce_ns"),
            optimizer_ns=total("optimizer_ns"),
            enter=int(tables[0].enter[chosen[0]]),
            leave=int(tables[-1].leave[chosen[-1]]),
            host_bytes=total("host_bytes"),
            halves_ns=(first_half, second_half),
            halved_backward_ns=back + sum(int(h.backward_ns[s]) for h, s in halves if h) + halved_back,
        )


def _largest(moves: Floats) -> int:
    """The largest finite number."""
    return int(moves[np.isfinite(moves)].max(initial=0))
