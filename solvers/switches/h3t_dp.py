"""H3T's dynamic program for memory-switches (Section B.3): the table of Algorithm 4, or of Algorithm 3, on a memory grid.

With every segment synchronised the step is a chain of segments (see `segments`), and for the first i layers

    runtime(i, curr, peak, before, after)

is the least time of all choices that hold `curr` bytes and have needed at most `peak`, where `before` is r_i and `after`
r_{i+1} (Algorithm 4, pruned), or s_i and s_{i+1} (Algorithm 3, basic). One layer more:

    curr' = curr + resident_i + delta_i            peak' = max(peak, curr + peak_i) + resident_i <= M

Both are levels from 0 to m, that is multiples of M / m. As in the authors' published code a level stands for floor(M level / m)
bytes, and bytes are rounded up to a level again at every layer. So what is found fits, and a coarse grid may find nothing.
Algorithm 4 drops a state where another one of its table is as fast with no more of either memory.

Where the printed algorithms are corrected, or leave something open:
- Line 14 of Algorithm 3 forgets delta_i; without it, what layers keep for their backward pass would cost later layers nothing.
- Lines 17 and 20 require peak' < m. Memory(s) <= M (Eq. 3) and the published code allow the last level.
- Of the switches of layer i+1 segment i depends on `lazy_prefetch` alone. States that differ only in the rest of `after` have
  equal tables: one of them is kept, by `before` and by lazy_prefetch of layer i+1.
- The published code also forgets a peak that later layers cannot raise above M. The printed algorithms do not.
Both versions have the same answer, as rounding keeps the order of two memories; Algorithm 3 has up to 100 times the states. All
states of a layer are extended together; the least time of every cell, and what is dropped, come from whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution
from trainplan.formulations.memory_switches.segments import Segments, segments
from trainplan.formulations.memory_switches.simulation import Booleans
from trainplan.solvers.core.heuristic import first_plan
from trainplan.solvers.core.search import Outcome, Search, Unsupported
from trainplan.solvers.switches.h3t import LONG

LEVELS = 128
MOST_CELLS, MOST_TRANSITIONS = 10**7, 4 * 10**9
AT_ONCE = 2**19  # transitions evaluated in one batch
UNREACHABLE = np.iinfo(np.int64).max


def h3t_dp(instance: Instance, search: Search) -> Outcome:
    """The method `h3t-dp` of the problem `memory-switches`: choose for every layer which switches (such as recomputation or
    offloading) are on, by H3T's dynamic program over memory levels (Algorithm 4 or 3). The outcome has no lower bound.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported.

    The search's options: `version`, pruned (Algorithm 4, default) or basic (Algorithm 3); `levels`, the number of memory levels
    (128). Raises Unsupported if its table would be too large."""
    basic, levels = search.options.get("version") == "basic", search.options.get("levels") or LEVELS
    _check_size(instance, levels, basic)
    if search.time_limit is not None and instance.layers > LONG:
        first_plan(instance)  # simulated and cached by `evaluate` now, so that it costs no time after the limit
    try:
        grid = filled_grid(instance, levels, basic, search.check_time)
    except TimeoutError:
        return Outcome(message="time ran out before the table was filled")
    solution = grid.solution(instance)
    message = None
    if solution is None:
        message = f"Algorithm {3 if basic else 4} found nothing on {levels} levels of memory; that proves nothing"
    search.report(solution)
    return Outcome(message=message, statistics=grid.statistics)


def filled_grid(instance: Instance, levels: int, basic: bool, check_time: Callable[[], None]) -> MemoryGrid:
    """Run H3T's dynamic program over all layers of an instance and return its table; it ends early if no partial choice of
    memory switches fits the memory.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. levels: the number of steps
    into which the memory limit is divided. basic: Algorithm 3 instead of 4. check_time: called often; an exception that it
    raises is passed on."""
    grid = MemoryGrid(segments(instance, check_time), instance.memory_bytes, levels, basic)
    for layer in range(instance.layers):
        for _ in grid.extend(layer):
            check_time()
        if not len(grid.states.time_ns):
            break
    return grid


def _check_size(instance: Instance, levels: int, basic: bool) -> None:
    """Check that H3T's dynamic program has a table of reasonable size. levels: the number of steps into which the memory limit
    is divided. basic: Algorithm 3 instead of 4. Raises Unsupported if it would have too many cells or transitions.

    instance: the times and bytes of each layer of a model on one device, and the device's memory."""
    options = len(instance.options)
    cells = 2 * (options if basic else 8) * (levels + 1) ** 2
    transitions = cells // 2 * options * instance.layers if basic else 0  # curr <= peak: half of the cells at most
    if cells > MOST_CELLS or transitions > MOST_TRANSITIONS:
        problem = f"is 'h3t-dp' for {instance.layers} layers and {levels} levels of memory"
        fix = "give fewer levels, or version=pruned" if basic else "give fewer levels"
        raise Unsupported("command line", "--method", problem, fix)


@dataclass(frozen=True, eq=False)
class GridStates:
    """The n reached cells of one layer's table that no other cell dominates, as arrays (n,). A cell (a state) stands for a
    partial choice: which memory switches (such as recomputation or offloading) are on in each of the layers so far.

    before: a number for those of the last layer's switches on which the next layer's costs depend, 0 to 7 (offload_hidden,
    partition, lazy_prefetch), or, in the basic version, the number of its whole combination. lazy: the switch lazy_prefetch of
    the next layer, 0 or 1. curr: the level of memory that is held after the last layer. peak: the highest level of memory
    needed so far. time_ns: the least time in ns."""

    before: Integers
    lazy: Integers
    curr: Integers
    peak: Integers
    time_ns: Integers


class MemoryGrid:
    """H3T's dynamic program over levels of memory, extended layer by layer from the first layer on. A level stands for
    memory_bytes * level / levels bytes; an option is a combination of switches (such as recomputation or offloading) of a
    layer.

    states: the states (partial choices) of the layers so far. origins: for each layer, (states,): the index of the state that
    each came from, times the number of options, plus the layer's option.
    """

    def __init__(self, chain: Segments, memory_bytes: int, levels: int, basic: bool) -> None:
        """Begin before the first layer. chain: the segments. memory_bytes: the limit. levels: of memory. basic: Algorithm 3,
        else 4."""
        assert (chain.peak_bytes >= chain.delta_bytes[:, None, :, None]).all()  # so that curr' <= peak'
        self.chain, self.memory_bytes, self.levels, self.basic = chain, memory_bytes, levels, basic
        none, lazy = np.zeros(2, np.int64), np.arange(2)
        self.states = GridStates(none, lazy, none, none, none)
        self.origins: list[Integers] = []

    @property
    def statistics(self) -> dict[str, Any]:
        """Numbers for the result's statistics: the algorithm's version, memory levels, and the number of states in total and of
        the layer with the most."""
        states = [len(origin) for origin in self.origins]
        version = "basic" if self.basic else "pruned"
        return {"version": version, "levels": self.levels, "states": sum(states), "most_states": max(states, default=0)}

    def extend(self, layer: int) -> Iterator[None]:
        """Extend all states (partial choices) by one layer's switches, and replace `states` by the result. layer: the layer's
        index. A generator that yields None after each batch of transitions, so that the caller can check the clock."""
        chain, options = self.chain, len(self.chain.options)
        before = np.arange(options) if self.basic else chain.r
        shape = (2 * (options if self.basic else 8), self.levels + 1, self.levels + 1)
        least, origin = np.full(shape, UNREACHABLE).ravel(), np.zeros(np.prod(shape), np.int64)
        for lazy in (0, 1):
            (fitting,) = np.nonzero(chain.lazy == lazy)
            (rows,) = np.nonzero(self.states.lazy == lazy)
            count = max(1, AT_ONCE // (2 * len(fitting)))
            for batch in (rows[first : first + count] for first in range(0, len(rows), count)):
                state, option, after, curr, peak, time = self._transitions(layer, batch, fitting)
                cell = np.ravel_multi_index((2 * before[option] + after, curr, peak), shape)
                (better,) = np.nonzero(time < least[cell])
                cell, time = cell[better], time[better]
                np.minimum.at(least, cell, time)
                (fastest,) = np.nonzero(time == least[cell])
                origin[cell[fastest]] = (state * options + option)[better[fastest]]
                yield
        (cells,) = np.nonzero(least < UNREACHABLE)
        if not self.basic:
            cells = cells[_undominated(np.unravel_index(cells, shape), least[cells])]
        table, curr, peak = np.unravel_index(cells, shape)
        self.states = GridStates(table // 2, table % 2, curr, peak, least[cells])
        self.origins.append(origin[cells])

    def _transitions(self, layer: int, rows: Integers, options: Integers) -> tuple[Integers, ...]:
        """All extensions of some states (partial choices) by an option of one layer that fit the memory.

        layer: the layer's index. rows: indices of the states. options: indices of the layer's combinations of switches to try.
        Returns six arrays, one entry for each transition: state, option, lazy_prefetch of the layer after (0 after the last
        layer), levels of memory held and needed afterwards, and time in ns."""
        chain, states, limit = self.chain, self.states, self.memory_bytes
        r = chain.r[states.before[rows]] if self.basic else states.before[rows]
        afters = np.arange(2 if layer + 1 < len(chain.time_ns) else 1)
        choices = np.ix_(r, options, afters)
        curr, peak = (limit * level[rows] // self.levels for level in (states.curr, states.peak))
        resident, delta = chain.resident_bytes[layer][options], chain.delta_bytes[layer][options]
        high = np.maximum(peak[:, None, None], curr[:, None, None] + chain.peak_bytes[layer][choices]) + resident[:, None]
        fits: Booleans = high <= limit
        row, column, after = np.nonzero(fits)
        kept = (curr[:, None] + resident + delta)[row, column]
        time = (states.time_ns[rows][:, None, None] + chain.time_ns[layer][choices])[fits]
        return rows[row], options[column], after, self._level(kept), self._level(high[fits]), time

    def _level(self, size: Integers) -> Integers:
        """The memory level that stands for a number of bytes, rounded up. size: bytes of each entry."""
        return -(-self.levels * size // self.memory_bytes)

    def solution(self, instance: Instance) -> Solution | None:
        """The switches of every layer in the fastest state of the whole chain; None if no state fits the memory.

        instance: the times and bytes of each layer of a model on one device, and the device's memory."""
        if not len(self.states.time_ns):
            return None
        options, state = [], int(self.states.time_ns.argmin())
        for origin in reversed(self.origins):
            state, option = divmod(int(origin[state]), len(self.chain.options))
            options.append(option)
        return Solution(tuple(instance.options[option] for option in reversed(options)))


def _undominated(cells: Sequence[Integers], time_ns: Integers) -> Booleans:
    """Pareto filter of Algorithm 4 (lines 27 to 43): (cells,), True for each cell that is faster than every other cell of its
    table that holds no more memory and has no higher peak. cells: three arrays, the cell's table, level of memory held, and
    level of peak memory. time_ns: (cells,)."""
    table = cells[0]
    (currs, curr), (peaks, peak) = (np.unique(level, return_inverse=True) for level in cells[1:])
    grid = np.full((table.max(initial=0) + 1, len(currs) + 1, len(peaks) + 1), UNREACHABLE)
    grid[table, curr + 1, peak + 1] = time_ns
    running = np.minimum.accumulate(np.minimum.accumulate(grid, axis=1), axis=2)
    faster: Booleans = time_ns < np.minimum(running[table, curr, peak + 1], running[table, curr + 1, peak])
    return faster
