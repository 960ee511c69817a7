"""Columns of all stages as a network: the least sums before and behind each of them, at several sets of weights of paths.

Where `guides` know units, this knows columns that fit: so nothing is paid for memory, and a column stays only where some chain
of columns before and behind it keeps every set's limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.joint.tables import FORBIDDEN
from trainplan.solvers.joint.fixed_cuts.lp_bound import EXACT
from trainplan.solvers.joint.free_cuts.pipeline_columns import Passes
from trainplan.solvers.joint.free_cuts.priced_chain import COLUMNS
from trainplan.solvers.joint.free_cuts.reduced_cost_pruning import Guides, loosened
from trainplan.solvers.joint.free_cuts.suffix_enumeration import Pool
from trainplan.solvers.joint.stages.option_tables import Floats, Indices

ROUNDS = 3


@dataclass(frozen=True, eq=False)
class PoolBounds:
    """before: by stage, (K + 1, L, E), the least sums of columns before it by its first unit and the state that is entered in,
    with what crosses the cut; the last row is the least H, see `master`. weights: (5, K, p); constants_ns: (K,)."""

    before: Sequence[Floats]
    weights: Floats
    constants_ns: Floats

    def least_ns(self, stage: int, first: Indices, enter: Indices, passes: Passes) -> Floats:
        """(N,): no step is below it with suffixes from a stage on. passes: (p - stage, N)."""
        sums = np.einsum("ckz,czn->kn", self.weights[:, :, stage:], _columns(passes), optimize=True)
        sums += self.before[stage][:-1, first, enter] + self.constants_ns[:, None]
        least: Floats = np.floor(sums.max(axis=0, initial=0.0) * (1 - EXACT) - 1)
        return least

    def before_ns(self, stage: int) -> Floats:
        """(L + 1,): the least H of the stages before one, by its first unit."""
        return np.append(self.before[stage][-1].min(axis=1), np.inf)


def bounded(guides: Guides, pools: Sequence[Pool], tied_ns: int, limit: float) -> tuple[list[Pool], PoolBounds] | None:
    """The columns that a step up to the limit may have, and their bounds; None where some stage has none."""
    stages, kept = len(pools), list(pools)
    limits = loosened(limit - guides.constants_ns)[:, None]
    round_trip = np.ones((5, 1, stages))
    round_trip[2:, :, 1:] = 0
    weights = np.concatenate([guides.weights, round_trip], axis=1)
    across = np.concatenate([guides.boundary_costs[1], _round_trips(guides)[:, None]], axis=1)
    before: list[Floats] = []
    for _ in range(ROUNDS):
        sums = [np.einsum("ck,cn->kn", weights[:, :, x], _columns(pool.passes)[:, 0]) for x, pool in enumerate(kept)]
        sums[0][-1] += tied_ns
        before = _before(guides, kept, sums, across)
        behind = _behind(guides, kept, sums, across)
        changed = False
        for x, pool in enumerate(kept):
            total = before[x][:-1, pool.first, pool.enter] + sums[x][:-1] + behind[x][:-1]
            indices = np.flatnonzero((total <= limits).all(axis=0))
            if not len(indices):
                return None
            if len(indices) < len(pool.first):
                kept[x], changed = pool.at(indices), True
        if not changed:
            break
    return kept, PoolBounds(before, guides.weights, guides.constants_ns)


def _columns(passes: Passes) -> Floats:
    """(5, p, N): what weights are of."""
    return np.stack([getattr(passes, name) for name in COLUMNS]).astype(float)


def _round_trips(guides: Guides) -> Floats:
    """(Q, p - 1, D, E): what crosses each cut both ways, infinite where states do not agree."""
    chain = guides.chain
    found = []
    for crossing in chain.tables.crossings:
        apart = (crossing.forward_ns >= FORBIDDEN) | (crossing.backward_ns >= FORBIDDEN)
        moved = crossing.forward_ns + crossing.backward_ns
        sent = crossing.message_forward_ns[chain.links] + crossing.message_backward_ns[chain.links]
        found.append(np.where(apart, np.inf, (moved + sent).astype(float)))
    shape = (0, chain.stages - 1, chain.tables.ways_out, chain.tables.ways_in)
    return np.stack(found) if found else np.zeros(shape)


def _before(guides: Guides, pools: Sequence[Pool], sums: Sequence[Floats], across: Floats) -> list[Floats]:
    chain = guides.chain
    here = np.full((across.shape[1], chain.units, chain.tables.ways_in), np.inf)
    here[:, 0] = 0.0
    before = [here]
    for x, pool in enumerate(pools[:-1]):
        values = before[-1][:, pool.first, pool.enter] + sums[x]
        node, least = _least(pool.last * chain.tables.ways_out + pool.leave, values)
        last, leave = np.divmod(node, chain.tables.ways_out)
        here = np.full((across.shape[1], chain.units, chain.tables.ways_in), np.inf)
        crossed = least[:, :, None] + across[chain.boundaries[last], :, x, leave].swapaxes(0, 1)  # (K + 1, nodes, E)
        starts = np.flatnonzero(np.diff(last, prepend=-1))
        here[:, last[starts] + 1] = np.minimum.reduceat(crossed, starts, axis=1)
        before.append(here)
    return before


def _behind(guides: Guides, pools: Sequence[Pool], sums: Sequence[Floats], across: Floats) -> list[Floats]:
    """By stage, (K + 1, N), the least sums behind each column."""
    chain = guides.chain
    behind = [np.zeros_like(sums[-1])]
    for x in reversed(range(len(pools) - 1)):
        after, pool = pools[x + 1], pools[x]
        node, least = _least(after.first * chain.tables.ways_in + after.enter, sums[x + 1] + behind[-1])
        first, enter = np.divmod(node, chain.tables.ways_in)
        crossed = least[:, :, None] + across[chain.boundaries[first - 1], :, x, :, enter].swapaxes(0, 1)  # (K + 1, nodes, D)
        starts = np.flatnonzero(np.diff(first, prepend=-1))
        here = np.full((across.shape[1], chain.units + 1, chain.tables.ways_out), np.inf)
        here[:, first[starts]] = np.minimum.reduceat(crossed, starts, axis=1)
        behind.append(here[:, pool.last + 1, pool.leave])
    return behind[::-1]


def _least(nodes: Indices, values: Floats) -> tuple[Indices, Floats]:
    """The nodes that there are, ascending, and the least values of each, (K, nodes). values: (K, N)."""
    order = np.argsort(nodes, kind="stable")
    present, starts = np.unique(nodes[order], return_index=True)
    return present, np.minimum.reduceat(values[:, order], starts, axis=1)
