"""Lower bounds on the cost of stages, for all spans of units at once.

For a span as a stage with n micro-batches in flight, and whole numbers p, q >= 0, let F(p, q) be the least p u + q g within the
memory E (u, g: see `option_tables`). For any price w >= 0 of a byte

    F(p, q) >= min over choices of  p u + q g + w ( sum state + n sum (kept + held) + work of the last unit )  -  w E

since a stage's peak is at least its memory during its last unit's pass. The right side is a shortest path along the units; the
paths of all spans, numbers n, weights and prices are found together, a unit at a time, by interface cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.solvers.chain.hull import hull_slopes
from trainplan.solvers.joint.stages.option_tables import CutClasses, Floats, KindOptions, StageTables
from trainplan.solvers.pipeline.spans import SpanClasses

Weight = tuple[int, int]
Exit = tuple[int, int, int]  # the kinds of boundary and of link after a span, and the class of the cut
MOST_PRICES = 10
FEW, BLOCK = 4_096, 65_536  # numbers: of which all pairs of states are added at once; that a processor's cache holds


def span_bounds(
    tables: StageTables,
    spans: SpanClasses,
    memory_bytes: int,
    depths: Sequence[int],
    weights: Sequence[Weight],
    prices: Floats,
    cuts: CutClasses,
    link: int,
    exits: Sequence[Exit],
    longest: int,
    check_time: Callable[[], None] = lambda: None,
) -> Floats:
    """Lower bounds, in whole ns, on the weighted time p u + q g of every span (consecutive units, that is, sub-layers) as one
    pipeline stage within the memory; u is the forward plus backward pass of a micro-batch, g the work after the last one.

    Returns (G, weights, depths, 1 + exits, classes): by the class of the cut before the span (G), the weight (p, q), the
    micro-batches in flight, the exit after the span, and the class of equal spans, of at most `longest` units. Infinite if
    nothing fits; also for spans of a length for which all spans one unit shorter need too much memory already.

    tables: the options of all kinds of units and costs of boundaries. spans: the classes of equal spans. memory_bytes: the
    limit of a device. depths: numbers of micro-batches in flight, ascending. weights: pairs (p, q). prices: of memory, in ns
    per byte at weight (1, 1). cuts: classes of interface states (layouts of activations) at cuts. link: the kind of link over
    which spans that do not begin the model are entered. exits: kinds of boundary and link and class of the cut after the span;
    the first entry of that axis, before them, is for spans that end the model. check_time: called often; an exception that it
    raises is passed on.

    Proof: the head of this module, for each price; float sums are lowered by a few times their rounding errors; and the
    weighted time is a whole number."""
    rates = [(p, q, w * max(p, q)) for p, q in weights for w in prices] + [(0, 0, 1.0)]
    p, q, w = (np.array(column, np.float64)[:, None] for column in zip(*rates, strict=True))
    # Rates of every class of cuts before, one class after the other. States of interfaces are the first axes: numpy is slow at
    # the least of a few numbers that are neighbours in memory, and quick at the smaller of two long rows.
    groups = cuts.count if len(cuts.entries) else 1
    cells = [np.tile(cost, groups) for cost in _cell_costs(tables, p, q, w, depths)]
    entries = np.moveaxis(_at_rates(p, cuts.entries[:, link]), -1, 0)  # (E, Q, G, rates)
    entries = entries.reshape(tables.states_in, -1, groups * len(rates))
    moves = np.tile(np.moveaxis(_at_rates(p, tables.moves), 2, -1), groups)  # (Q, D, E, rates)
    memory_rates = np.arange(groups) * len(rates) + len(rates) - 1
    free = [not move.any() for move in tables.moves]
    p, w, rates = np.tile(p, (groups, 1)), np.tile(w, (groups, 1)), rates * groups
    after = [np.zeros((tables.states_out, len(rates)))]
    after += [_at_rates(p, cuts.exits[out]).T for out in exits]
    classes = sum(len(level.kind) for level in spans.levels[:longest])
    best = np.full((len(after), classes, len(depths), groups, len(weights)), np.inf)
    shape, units = (groups, len(weights), len(prices)), len(spans.levels)
    many = max(1, BLOCK // (len(depths) * len(rates)))  # classes at once
    chain: Floats = np.empty(0)
    at = before = 0
    for length, level in enumerate(spans.levels[:longest]):
        check_time()
        count, short = len(level.kind), np.inf
        following = np.empty((tables.states_out, count, len(depths), len(rates)))
        inner, final = (cells[0], cells[2]) if length else (cells[1], cells[3])
        for begin in range(0, count, many):
            block = slice(begin, begin + many)
            kinds, boundaries = level.kind[block], level.boundary[block]
            if not length:
                entered = np.zeros((tables.states_in, len(kinds), 1, len(rates)))
                entered[:, boundaries >= 0] = entries[:, boundaries[boundaries >= 0], None]
            else:
                entered = np.empty((tables.states_in, len(kinds), len(depths), len(rates)))
                for boundary in np.unique(boundaries):
                    here = np.flatnonzero(boundaries == boundary)
                    through = chain[:, level.parent[block][here] - before]
                    entered[:, here] = through.min(axis=0) if free[boundary] else _crossed(through, moves[boundary])
            reached = entered[tables.cell_enter]
            following[:, block] = tables.by_leave(reached + inner[:, kinds], axis=0)
            ends = tables.by_leave(reached + final[:, kinds], axis=0)
            for index, out in enumerate(after):
                least = _crossed(ends, out[:, None])[0]
                if not index:
                    short = min(short, least[:, 0, memory_rates].min())
                best[index, at : at + count][block] = _over_prices(least, w[:, 0], memory_bytes, shape, units)
        if short > memory_bytes * (1 + 1e-9):
            break
        chain, before, at = following, at, at + count
    return np.maximum(np.ceil(best), 0.0).transpose(3, 4, 2, 0, 1)


def _crossed(chain: Floats, moves: Floats) -> Floats:
    """Extend shortest paths along a chain of units (sub-layers) over a boundary. chain: (D, classes, depths, rates), the least
    costs by the interface state (layout of activations, D states) in which the chain is left. Returns (E, classes, depths,
    rates), by the state (E states) in which the next unit is entered. moves: (D, E, rates), the weighted costs of re-layouts. A
    rate is a pair of weights with a price of memory.
    """
    if chain[0].size < FEW:
        least: Floats = (chain[:, None] + moves[:, :, None, None]).min(axis=0)
        return least
    least = np.empty((moves.shape[1], *chain.shape[1:]))
    for enter, into in enumerate(least):
        np.add(chain[0], moves[0, enter], out=into)
        for leave in range(1, len(chain)):
            np.minimum(into, chain[leave] + moves[leave, enter], out=into)
    return least


def _over_prices(least: Floats, w: Floats, memory_bytes: int, shape: tuple[int, int, int], units: int) -> Floats:
    """The largest lower bound that any price of memory gives: from least priced costs (classes, depths, rates) to bounds in ns
    (classes, depths, groups, weights), lowered by the rounding error that float sums may have; infinite if the memory needed
    exceeds the limit at every choice.

    least: least priced costs; a rate is a pair of weights with a price, and the last rate of each group counts memory alone. w:
    (rates,), the price of each rate in ns per byte. shape: the numbers of groups (classes of cuts), weights and prices.
    memory_bytes: the limit of a device. units: the number of units (sub-layers) of a span."""
    memory, rounding = w * memory_bytes, 8 * (units + 4) * np.finfo(np.float64).eps
    least = least * (1 - rounding) - (1 + rounding) * memory  # costs are not negative
    groups, weights, prices = shape
    apart = least.reshape(*least.shape[:2], groups, -1)
    of_prices = apart[..., :-1].reshape(*least.shape[:2], groups, weights, prices)
    best: Floats = reduce(np.maximum, np.moveaxis(of_prices, -1, 0))
    best[apart[..., -1] > 0] = np.inf
    return best


def _at_rates(p: Floats, times: Floats) -> Floats:
    """Multiply times by each of several weights: times (.., E), by one of E interface states (layouts of activations), become
    (.., rates, E); infinite times stay infinite, even at weight 0. p: (rates, 1), the weights.
    """
    finite = np.isfinite(times)
    return np.where(finite[..., None, :], p * np.where(finite, times, 0.0)[..., None, :], np.inf)


def _cell_costs(tables: StageTables, p: Floats, q: Floats, w: Floats, depths: Sequence[int]) -> list[Floats]:
    """The least cost (weighted times plus priced memory) of each kind of unit (sub-layer) in each interface cell (the pair of
    activation layouts in which a unit is entered and left), as an inner, a first, a last and an only unit of a span: four
    arrays (C cells, kinds, depths, rates).

    tables: the options of all kinds of units. p, q, w: (rates, 1), the weights of both passes and of the work after the last
    micro-batch, and the price of memory. depths: numbers of micro-batches in flight."""
    depth = np.array(depths, np.float64)[:, None, None]
    columns: list[list[Floats]] = [[], [], [], []]
    for number, kind in enumerate(tables.kinds):
        memory = kind.state + depth * (kind.kept + kind.held)
        cost = p * kind.u_ns + q * kind.extra_ns + w * memory
        first, final = cost + p * kind.first_ns, p * kind.final_ns + w * kind.work
        inner = tables.by_cell(number, cost)
        columns[0].append(inner)
        columns[1].append(tables.by_cell(number, first) if kind.first_ns.any() else inner)
        columns[2].append(tables.by_cell(number, cost + final))
        columns[3].append(tables.by_cell(number, first + final))
    return [np.ascontiguousarray(np.moveaxis(np.stack(column), -1, 0)) for column in columns]


def prices_of(tables: StageTables, depths: Sequence[int], most: int = MOST_PRICES) -> Floats:
    """Prices of memory in ns per byte, ascending, at which the option of least (time + price x memory) of a chain of equal
    units (sub-layers) changes, for few and for many micro-batches in flight; the first price is 0, for memory that is not
    short. tables: the options of all kinds of units. depths: numbers of micro-batches in flight, ascending. most: the number of
    prices above 0, at most."""
    slopes = set[float]()
    for depth in {depths[0], depths[-1]}:
        for kind in tables.kinds:
            slopes.update(hull_slopes(_memory(kind, depth), kind.u_ns))
    ordered = sorted(slopes)
    if len(ordered) > most:
        ordered = [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, most).astype(int))]
    return np.array([0.0, *ordered])


def _memory(kind: KindOptions, depth: int) -> Integers:
    """The bytes that each of the S options of a kind of unit (sub-layer) holds, (S,), that is, model states and the activations
    of `depth` micro-batches in flight.
    """
    return kind.state + depth * (kind.kept + kind.held)
