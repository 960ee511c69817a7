"""Galvatron-BMW's dynamic programming search for the strategies of one stage's layers (Algorithm 3), exactly as in the paper.

Recurrence (Eq. 4), over forward memory e in whole steps of the granularity, with the last layer's strategy in the state:

    C(l, e, S_j) = min_{S_i} C(l-1, e - O_f(l, S_j) - O_ms(l, S_j), S_i) + c(l, S_j) + R(l, S_i, S_j)

C: the least time of the first l layers with strategy S_j in layer l; c: the time of a layer; O_f, O_ms and O_b: the memory that
it keeps for its backward pass, of its model states, and of its backward pass; R: the time of re-layout between two strategies;
E: the memory limit; E_fwd: the budget of forward memory; b_up: the largest O_b of any layer.

Where the paper is silent: a layer's forward memory is rounded up to whole steps; ties go to the option listed first; a budget
at which no strategies exist is passed over, not the first failure.

The search raises the forward budget E_fwd. Up to E - b_up every choice passes the peak check; past it, the strategies found
must satisfy Eq. 2, and the first that do not end the search. So it may miss the optimum of the true constraint.

R depends on the layouts of two strategies only, so a layer costs O(E (S + K K)) with S strategies of K layouts, and only the
inner minimum is kept, by layout. Strategies are read back from the last layer to the first, for all budgets past E - b_up at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance, Integers
from trainplan.profiling.base.errors import InputError, shown
from trainplan.solvers.core.search import Outcome, Search

DEFAULT_LEVELS, LAYER_LEVELS, MOST_LEVELS = 1000, 10, 10**8
UNREACHABLE = np.iinfo(np.int64).max // 4


def granularity(search: Search, memory_bytes: int, layers: int) -> int:
    """The memory step of a run in bytes: the option `granularity_bytes`, by default a thousandth of the memory.

    With more than 100 layers, each of which is rounded up to whole steps, the default is ten steps per layer. Raises InputError
    where one step is more than the memory, or the table would have too many.
    """
    default = -(-memory_bytes // max(DEFAULT_LEVELS, LAYER_LEVELS * layers))
    step = int(search.options.get("granularity_bytes") or default)
    if not memory_bytes // MOST_LEVELS < step <= memory_bytes:
        fix = f"give {memory_bytes // MOST_LEVELS + 1} to {memory_bytes} for {memory_bytes} bytes of memory, such as {default}"
        raise InputError("command line", "option granularity_bytes", f"is {shown(step)}", fix)
    return step


def galvatron_dp(instance: Instance, search: Search) -> Outcome:
    """The choice of Algorithm 3. Option `granularity_bytes`: the memory step (default: see `granularity`)."""
    step = granularity(search, instance.memory_bytes, instance.layers)
    chain: PrefixTable | None = None
    columns = (instance.time_ns, instance.forward_bytes, instance.backward_bytes, instance.state_bytes)
    for l, (time, forward, backward, states) in enumerate(zip(*columns, strict=True)):
        if search.out_of_time():
            return Outcome(message="time ran out before the table was filled")
        layer, moves = LayerOptions(time, forward, backward, states, step), None
        if chain:
            moves = LayoutMoves(instance.transitions_ns[l - 1])
        chain = PrefixTable(layer, instance.memory_bytes, chain, moves)
    best = chain.optimum if chain else None
    statistics = {"granularity_bytes": step, "levels": instance.memory_bytes // step}
    if best is None:
        return Outcome(
            message=f"Algorithm 3 found nothing at a granularity of {step} bytes; that proves nothing",
            statistics=statistics,
        )
    search.report(best)
    return Outcome(choice=best, statistics=statistics)


@dataclass(frozen=True, eq=False)
class LayerOptions:
    """One layer's options: c in nanoseconds, and O_f, O_b and O_ms in bytes, each a vector over the options. step: the
    granularity in bytes."""

    time_ns: Integers
    forward_bytes: Integers
    backward_bytes: Integers
    state_bytes: Integers
    step: int

    @cached_property
    def need(self) -> Integers:
        """O_f + O_ms of each option in whole steps, rounded up."""
        return -(-(self.forward_bytes + self.state_bytes) // self.step)

    @cached_property
    def least(self) -> int:
        """The fewest steps that any option needs."""
        return int(self.need.min())


class LayoutMoves:
    """Re-layout times R between two layers, (options before, options after), and the layouts in it: options with equal rows, or
    with equal columns, share one."""

    def __init__(self, table_ns: Integers) -> None:
        self.table_ns = table_ns
        self.before, rows = _equal(table_ns)
        self.after, columns = _equal(table_ns.T)
        self.columns_ns = [table_ns[rows, column][:, None] for column in columns]


def _equal(table: Integers) -> tuple[Integers, list[int]]:
    """The class of each row, numbered by first appearance, and the first row of each class."""
    classes: dict[bytes, int] = {}
    numbers = [classes.setdefault(row.tobytes(), len(classes)) for row in table]
    return np.array(numbers), [numbers.index(number) for number in range(len(classes))]


class PrefixTable:
    """Eq. 4's table for the first layers of a stage: the last of these layers, and the table of those before it, which all
    longer chains that begin alike share.

    inner[k, x] = min_{S_i} C(l-1, e, S_i) + R(l, S_i, a strategy of layout k), at e = x steps above the least that l - 1 layers
    need.
    """

    def __init__(
        self, layer: LayerOptions, memory_bytes: int, before: PrefixTable | None = None, moves: LayoutMoves | None = None
    ) -> None:
        self.layer, self.memory_bytes, self.before, self.moves = layer, memory_bytes, before, moves
        self.budget = memory_bytes // layer.step
        self.below: int = before.least if before else 0
        self.least: int = self.below + layer.least
        self.largest_backward: int = max(int(layer.backward_bytes.max()), before.largest_backward if before else 0)
        if before and moves:
            rows = before._by_layout(moves)
            self.layouts, self.inner = moves.after, np.stack([(rows + column).min(axis=0) for column in moves.columns_ns])
        else:
            self.layouts, self.inner = np.zeros(len(layer.need), np.int64), np.zeros((1, self.budget + 1), np.int64)

    def _by_layout(self, moves: LayoutMoves) -> Integers:
        """(layouts, steps): min C(l, e, S) over the options S of each layout before `moves`, at e = x steps above `least`."""
        width = max(0, self.budget - self.least + 1)
        least = np.full((len(moves.columns_ns[0]), width), UNREACHABLE, np.int64)
        needs, times = (self.layer.need - self.layer.least).tolist(), self.layer.time_ns.tolist()
        for s, (before, after) in enumerate(zip(self.layouts.tolist(), moves.before.tolist(), strict=True)):
            if needs[s] < width:
                row = least[after, needs[s] :]
                np.minimum(row, self.inner[before, : width - needs[s]] + times[s], out=row)
        return least

    def _costs(self, levels: Integers) -> Integers:
        """(options, levels): C(l, e, S) for each option and each budget e, in steps."""
        indices = levels - (self.layer.need + self.below)[:, None]
        costs = self.inner[self.layouts[:, None], np.maximum(indices, 0)] + self.layer.time_ns[:, None]
        return np.where(indices < 0, UNREACHABLE, costs)

    @cached_property
    def optimum(self) -> tuple[int, ...] | None:
        """Algorithm 3's lines 10 to 26: the strategies at the largest E_fwd before the first whose strategies break Eq. 2; None
        where none is found."""
        safe = (self.memory_bytes - self.largest_backward) // self.layer.step
        levels = np.arange(max(safe, self.least), self.budget + 1)
        if not len(levels):
            return None
        path: list[Integers] = []
        states = peaks = np.zeros_like(levels)
        chain: PrefixTable | None = self
        after: LayoutMoves | None = None
        while chain:
            costs = chain._costs(levels)
            if after:
                costs += after.table_ns[:, path[-1]]
            chosen, layer = costs.argmin(axis=0), chain.layer
            peaks = np.maximum(peaks, layer.backward_bytes[chosen]) + layer.forward_bytes[chosen]
            states = states + layer.state_bytes[chosen]
            levels = levels - layer.need[chosen]
            path.append(chosen)
            after, chain = chain.moves, chain.before
        broken = peaks + states > self.memory_bytes
        passed = int(broken.argmax()) if broken.any() else len(broken)
        return tuple(int(chosen[passed - 1]) for chosen in reversed(path)) if passed else None
