"""What stages cost at least, for all spans of units at once.

Of a span as a stage with n micro-batches in flight, for whole numbers p, q >= 0 let F(p, q) be the least p u + q g within the
memory E (u, g: see `stage_tables`). For any price w >= 0 of a byte

    F(p, q) >= min over choices of  p u + q g + w ( sum state + n sum (kept + held) + work of the last unit )  -  w E

since a stage's peak is at least what its last unit's pass sees. The right side is a shortest path along the units; the paths of
all spans, numbers n, weights and prices are found together, a unit at a time, by interface cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.solvers.chain.hull import hull_slopes
from trainplan.solvers.joint.stage_tables import CutClasses, Floats, KindOptions, StageTables
from trainplan.solvers.pipeline.spans import SpanClasses

Weight = tuple[int, int]
Exit = tuple[int, int, int]  # the kinds of boundary and of link behind a span, and the class of the cut
MOST_PRICES = 10


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
    """Lower bounds on F: (G, weights, depths, 1 + exits, classes), whole numbers, by the class of the cut before the span;
    infinite where nothing fits, and where every span one unit shorter needs too much memory. Classes are those of spans of at
    most `longest` units.

    depths: numbers of micro-batches in flight, ascending. prices: of a byte at weight (1, 1). link: the kind over which spans
    that do not begin the model are entered. exits: behind the span; before them comes that of no stage after it.

    Proof: the head of this file, for each price; float sums stay within a few times their rounding errors, by which they are
    lowered; and F is a whole number.
    """
    rates = [(p, q, w * max(p, q)) for p, q in weights for w in prices] + [(0, 0, 1.0)]
    p, q, w = (np.array(column, np.float64)[:, None] for column in zip(*rates, strict=True))
    # Rates of every class of cuts before, one class after the other.
    groups = cuts.count if len(cuts.entries) else 1
    cells = [np.tile(cost, (1, 1, groups, 1)) for cost in _cell_costs(tables, p, q, w, depths)]
    single = _at_rates(p, cuts.entries[:, link])  # (Q, G, rates, E)
    entries = single.reshape(len(single), -1, tables.ways_in)
    moves = np.tile(_at_rates(p, tables.moves).swapaxes(1, 2), (1, groups, 1, 1))
    memory_rates = np.arange(groups) * len(rates) + len(rates) - 1
    p, w, rates = np.tile(p, (groups, 1)), np.tile(w, (groups, 1)), rates * groups
    free = [not tables.moves[b].any() for b in range(len(tables.moves))]
    behind = [np.zeros((len(rates), tables.ways_out))]
    behind += [_at_rates(p, cuts.exits[each]) for each in exits]
    classes = sum(len(level.kind) for level in spans.levels[:longest])
    least = np.full((classes, len(depths), len(rates), len(behind)), np.inf)
    chain, at, before = np.empty(0), 0, 0
    for length, level in enumerate(spans.levels[:longest]):
        check_time()
        count = len(level.kind)
        if not length:
            entered = np.zeros((count, 1, len(rates), tables.ways_in))
            inside = level.boundary >= 0
            if inside.any():
                entered[inside] = entries[level.boundary[inside]][:, None]
        else:
            entered = np.empty((count, len(depths), len(rates), tables.ways_in))
            for boundary in np.unique(level.boundary):
                here = np.flatnonzero(level.boundary == boundary)
                through = chain[level.parent[here] - before]
                if free[boundary]:
                    entered[here] = through.min(axis=-1, keepdims=True)
                else:
                    entered[here] = (through[..., :, None] + moves[boundary]).min(axis=-2)
        reached = entered[..., tables.cell_enter]
        inner, final = (cells[0], cells[2]) if length else (cells[1], cells[3])
        ends = tables.by_leave(reached + final[level.kind])
        for place, out in enumerate(behind):
            least[at : at + count, :, :, place] = (ends + out).min(axis=-1)
        if least[at : at + count, 0, memory_rates, 0].min() > memory_bytes * (1 + 1e-9):
            break
        chain = tables.by_leave(reached + inner[level.kind])
        before, at = at, at + count
    return _over_prices(least, w[:, 0], memory_bytes, (groups, len(weights), len(prices)), len(spans.levels))


def _over_prices(least: Floats, w: Floats, memory_bytes: int, shape: tuple[int, int, int], units: int) -> Floats:
    """The largest bound over all prices: (classes, depths, rates, exits) to (groups, weights, depths, exits, classes). shape:
    groups, weights and prices; the rates of each group end with memory alone."""
    memory, rounding = (w * memory_bytes)[:, None], 8 * (units + 4) * np.finfo(np.float64).eps
    least = least * (1 - rounding) - (1 + rounding) * memory  # costs are not negative
    classes, depths, _, exits = least.shape
    groups, weights, prices = shape
    apart = least.reshape(classes, depths, groups, -1, exits)
    best: Floats = apart[:, :, :, :-1].reshape(classes, depths, groups, weights, prices, exits).max(axis=4)
    best[np.broadcast_to((apart[:, :, :, -1:] > 0), best.shape)] = np.inf
    return np.maximum(np.ceil(best), 0.0).transpose(2, 3, 1, 4, 0)


def _at_rates(p: Floats, times: Floats) -> Floats:
    """Times at each p: (.., E) to (.., rates, E); what is infinite stays so, even at 0."""
    finite = np.isfinite(times)
    return np.where(finite[..., None, :], p * np.where(finite, times, 0.0)[..., None, :], np.inf)


def _cell_costs(tables: StageTables, p: Floats, q: Floats, w: Floats, depths: Sequence[int]) -> list[Floats]:
    """The least cost of each kind's cells as an inner, a first, a last and an only unit: (kinds, depths, rates, C) each."""
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
    return [np.stack(column) for column in columns]


def prices_of(tables: StageTables, depths: Sequence[int], most: int = MOST_PRICES) -> Floats:
    """Prices at which a chain of equal units changes from one option to the next, for few and for many micro-batches in flight;
    0, for memory that is not short. most: of those that are above 0."""
    slopes = set[float]()
    for depth in {depths[0], depths[-1]}:
        for kind in tables.kinds:
            slopes.update(hull_slopes(_memory(kind, depth), kind.u_ns))
    ordered = sorted(slopes)
    if len(ordered) > most:
        ordered = [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, most).astype(int))]
    return np.array([0.0, *ordered])


def _memory(kind: KindOptions, depth: int) -> Integers:
    return kind.state + depth * (kind.kept + kind.held)
