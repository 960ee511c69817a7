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
    """One choice of options for a span (consecutive units, that is, sub-layers) as a pipeline stage, whatever the stages before
    and after it: times in ns without messages and re-layouts at its cuts.

    options: for each unit, the index among the options that are not dominated. forward_ns, backward_ns: the passes of a
    micro-batch. last_ns: what the last micro-batch adds; reduce_ns: gradient reduction; optimizer_ns: the optimizer. halves_ns,
    halved_backward_ns: the passes of a micro-batch sliced in halves. enter, leave: the interface states (layouts of
    activations) in which it is entered and left, equal ones merged. host_bytes: the bytes on the host."""

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
        """Time in ns of the work after the last micro-batch: what it adds itself, gradient reduction, and the optimizer."""
        return self.last_ns + self.reduce_ns + self.optimizer_ns


@dataclass(frozen=True)
class Solved:
    """A span (consecutive units, that is, sub-layers) solved for one pair of weights (p, q): a lower bound on p u + q g (u,
    both passes of a micro-batch; g, the work after the last), infinite if nothing fits, and the best choice (column, None if
    none is known) with its value."""

    bound: float
    column: Column | None
    value: int = 0


Entry = tuple[int, int]  # the kind of link before a span, and the class of the cut
Span = tuple[int, int, int, Weight, Entry, Exit | None]  # as of `Stages.solve`: first, last, depth, weight, into, out


@dataclass
class Stages:
    """Solves spans (consecutive units, that is, sub-layers) of a model as pipeline stages, exactly, and keeps the results. For
    a choice of options, u is the forward plus backward pass of a micro-batch in ns, and g the work after the last micro-batch.
    An interface state is the layout of the activations in which a unit is entered or left.

    tables: the options of each kind of unit. kinds, boundaries: the kind of each unit, and of each boundary between units.
    memory_bytes, host_bytes: the memory limits of each device of a stage, on the device and on its host; None for no limit.
    cuts: classes (groups) of interface states at cuts. solved: the results kept so far. count: the number of spans solved.
    loosest: the largest relative gap between choice and bound."""

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
        """Solve a span (the units `first` to `last`, inclusive, as one stage): find the least p u + q g within the memory, with
        `depth` micro-batches in flight, and a choice of options that has it.

        search: the run's limits and options, and its best solution so far. weight: the pair (p, q). into: the kind of link and
        the class of the cut before the span, if it does not begin the model. out: the kind of boundary, the kind of link and
        the class of the cut after it; None for the last stage. tolerance: the relative gap between bound and choice at which
        the search may stop. worth_ns: the search also stops once the bound is above this. Raises TimeoutError."""
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
        """Solve a span that begins the model, as its first stage: find the least u + g among choices whose u is at most
        `most_ns` ns.

        search: the run's limits and options, and its best solution so far; only read here. depth: micro-batches in flight. out:
        the kind of boundary, the kind of link and the class of the cut after the span; None for the last stage. start: a choice
        within that limit. tolerance: the relative gap between bound and choice at which the search may stop. If the host's
        memory is limited, the bound holds for all choices, whatever memory they need on the host. Raises TimeoutError."""
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
        """Whether the choice of options of a solved span, which begins at unit `first`, also fits the memory with `depth`
        micro-batches in flight."""
        assert solved.column is not None
        return self.peak_bytes(first, depth, solved.column.options) <= self.memory_bytes

    def peak_bytes(self, first: int, depth: int, options: Sequence[int]) -> int:
        """The peak memory in bytes of a stage that begins at unit `first`, with `depth` micro-batches in flight. options: for
        each of the stage's units, the index among the options that are not dominated."""
        kinds = [self.tables.kinds[self.kinds[first + index]] for index in range(len(options))]
        state, kept, work, held = (
            np.array([getattr(kind, name)[s] for kind, s in zip(kinds, options, strict=True)], np.int64)
            for name in ("state", "kept", "work", "held")
        )
        return int(stage_peak(state, kept, work, depth, held)[0])

    def _solve(self, span: Span, search: Search, tolerance: float, worth_ns: float) -> Solved:
        """Solve a span by label-setting, without looking at earlier results: the least p u + q g within the memory, and its
        choice.

        search: the run's limits and options, and its best solution so far. span: first and last unit, micro-batches in flight,
        weight (p, q), and the classes of the cuts before and after it. tolerance: the relative gap between bound and choice at
        which the search may stop. worth_ns: the search also stops once the bound is above this. Raises TimeoutError."""
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
        """Solve a span with the host's memory as a second limit, beginning from the choice that needs the least memory on the
        host.

        search: the run's limits and options, and its best solution so far; only read here. first: the span's first unit. chain:
        the span as a chain of layers. forbidden: the time in ns by which impossible choices (neighbouring units with
        disagreeing interface states) are marked: no other choice takes so long. relaxed: the finished search without the host's
        limit. tolerance: the relative gap between bound and choice at which the search may stop. Raises TimeoutError."""
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
        """Restate a span (the units `first` to `last`, inclusive, as one stage) as a memory chain, that is, layers with options
        under one memory limit, whose time is p u + q g. Also returns a time in ns that marks impossible choices: every choice
        in which neighbouring units have disagreeing interface states takes at least that time, and no other choice does.

        depth: micro-batches in flight. weight: (p, q). into: the kind of link and the class of the cut before. out: the kind of
        boundary, the kind of link and the class of the cut after; None for the last stage."""
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
        """The weighted time in ns that a pair of neighbouring units with disagreeing interface states is given as its cost, so
        that it marks the choice as impossible: it is larger than the time of any possible choice. weight: (p, q), of u and g.
        """
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
        """The link between the options of two neighbouring units, with re-layout costs in weighted ns, and the forbidden time
        if their interface states disagree. before, after: the kinds of the units. boundary: the kind of boundary. weight: (p,
        q)."""
        key = (before, after, boundary, weight)
        if key not in self._links:
            moves = self.tables.moves[boundary]
            finite = np.where(np.isfinite(moves), moves, 0).astype(np.int64)
            costs: Integers = np.where(np.isfinite(moves), weight[0] * finite, self._forbidden(weight))
            a, b = self.tables.kinds[before], self.tables.kinds[after]
            self._links[key] = cost_table(costs[np.ix_(a.leave, b.enter)])
        return self._links[key]

    def column(self, first: int, options: Sequence[int]) -> Column:
        """Build the `Column` of a choice of options: its times as a stage that begins at unit `first`. options: for each unit,
        the index among the options that are not dominated.
        """
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
    """The largest finite entry of an array of costs (moves), as an integer; 0 if there is none."""
    return int(moves[np.isfinite(moves)].max(initial=0))
