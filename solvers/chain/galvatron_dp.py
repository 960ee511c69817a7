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
    """The memory step in bytes by which Galvatron's dynamic program rounds memory: the search's option `granularity_bytes`, by
    default a thousandth of memory_bytes, or, with more than 100 layers, memory_bytes / (10 layers).

    memory_bytes: the memory limit. layers: the number of layers. search: the run's limits and options, and its best solution so
    far; only read here.

    Raises InputError if one step is more than the memory, or the table would have too many steps."""
    default = -(-memory_bytes // max(DEFAULT_LEVELS, LAYER_LEVELS * layers))
    step = int(search.options.get("granularity_bytes") or default)
    if not memory_bytes // MOST_LEVELS < step <= memory_bytes:
        fix = f"give {memory_bytes // MOST_LEVELS + 1} to {memory_bytes} for {memory_bytes} bytes of memory, such as {default}"
        raise InputError("command line", "option granularity_bytes", f"is {shown(step)}", fix)
    return step


def galvatron_dp(instance: Instance, search: Search) -> Outcome:
    """The method `galvatron-dp`: choose one strategy per layer of one stage by Algorithm 3 of Galvatron-BMW, a dynamic program
    over memory steps; without a proof of optimality.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit. search: the run's limits and options, and its best solution so far, to which better ones are reported.

    The search's option `granularity_bytes` is the memory step in bytes (default: a thousandth of the memory, or less if there
    are more than 100 layers)."""
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
    """One layer's options (strategies) as vectors over the options: time_ns: time; forward_bytes: memory kept for the backward
    pass (O_f in Galvatron-BMW); backward_bytes: memory of the backward pass (O_b); state_bytes: model states (O_ms). step: the
    memory step in bytes by which the dynamic program counts."""

    time_ns: Integers
    forward_bytes: Integers
    backward_bytes: Integers
    state_bytes: Integers
    step: int

    @cached_property
    def need(self) -> Integers:
        """The memory that each option keeps, forward_bytes + state_bytes, in whole memory steps, rounded up: (options,)."""
        return -(-(self.forward_bytes + self.state_bytes) // self.step)

    @cached_property
    def least(self) -> int:
        """The fewest memory steps that any option of the layer needs."""
        return int(self.need.min())


class LayoutMoves:
    """Re-layout times between two neighbouring layers, grouped by layout: options with equal rows, or with equal columns, of
    the table share one layout.

    table_ns: (options before, options after), time in ns. before, after: for each option of the first and of the second layer,
    the number of its layout. columns_ns: for each layout of the second layer, (layouts before, 1), the times to it in ns.
    """

    def __init__(self, table_ns: Integers) -> None:
        self.table_ns = table_ns
        self.before, rows = _equal(table_ns)
        self.after, columns = _equal(table_ns.T)
        self.columns_ns = [table_ns[rows, column][:, None] for column in columns]


def _equal(table: Integers) -> tuple[Integers, list[int]]:
    """Group equal rows of a table: for each row the number of its class, numbered by first appearance, and for each class the
    index of its first row. Rows a, b, a -> ([0, 1, 0], [0, 1])."""
    classes: dict[bytes, int] = {}
    numbers = [classes.setdefault(row.tobytes(), len(classes)) for row in table]
    return np.array(numbers), [numbers.index(number) for number in range(len(classes))]


class PrefixTable:
    """The table of Galvatron-BMW's dynamic program (Eq. 4) for the first layers of a stage: the options of its last layer, and
    the table of the layers before that one. Stages that begin with equal layers share these tables.

    inner[k, x]: the least time in ns of the layers before the last and of the re-layout to it, if the last layer has a strategy
    of layout k and the layers before it use x memory steps more than the fewest that they can (`below`). least: the fewest
    steps that all layers need. budget: the memory limit in steps."""

    def __init__(
        self, layer: LayerOptions, memory_bytes: int, before: PrefixTable | None = None, moves: LayoutMoves | None = None
    ) -> None:
        """Extend a table by one layer. layer: its options. before: the table of the layers before it, and moves: the
        re-layout times from them, None for a first layer."""
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
        """The least time in ns of the layers so far, (layouts, x): by the layout of the last layer's strategy, and by the
        number x of memory steps that the layers use in addition to `least`. moves: the re-layout times to the next layer, which
        define the layouts. A very large value stands for impossible."""
        width = max(0, self.budget - self.least + 1)
        least = np.full((len(moves.columns_ns[0]), width), UNREACHABLE, np.int64)
        needs, times = (self.layer.need - self.layer.least).tolist(), self.layer.time_ns.tolist()
        for s, (before, after) in enumerate(zip(self.layouts.tolist(), moves.before.tolist(), strict=True)):
            if needs[s] < width:
                row = least[after, needs[s] :]
                np.minimum(row, self.inner[before, : width - needs[s]] + times[s], out=row)
        return least

    def _costs(self, levels: Integers) -> Integers:
        """The least time in ns of the layers so far, C(l, e, S) in Eq. 4, for each option (strategy) S of the last layer l and
        each memory budget e: (options, levels). levels: (levels,) or (options, levels), budgets in memory steps. Eq. 4 is of
        Galvatron-BMW. A very large value stands for impossible.
        """
        indices = levels - (self.layer.need + self.below)[:, None]
        costs = self.inner[self.layouts[:, None], np.maximum(indices, 0)] + self.layer.time_ns[:, None]
        return np.where(indices < 0, UNREACHABLE, costs)

    @cached_property
    def optimum(self) -> tuple[int, ...] | None:
        """The strategies of all layers that Algorithm 3 (lines 10 to 26) returns, one option index per layer; None if it finds
        none.

        The algorithm raises the budget of forward memory step by step until the fastest strategies within the budget exceed the
        memory limit, and returns the strategies of the budget before."""
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
