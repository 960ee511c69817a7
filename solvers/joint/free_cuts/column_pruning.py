"""Removes columns of stages that no short pipeline has: by the least sums of weighted times before and after each column.

`reduced_cost_pruning` does this for units; here columns are known to fit, so memory has no price, and a column is kept only if
some chain of columns before and after it stays within the limit of every set of weights.
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
    """Lower bounds in ns on step times of pipelines of which the last stages (a suffix) are given. They come from K sets of
    weights of the times of the p stages.

    before: for each stage, (K + 1, L, E): the least weighted sums of the stages before it, by its first unit (of L sub-layers)
    and the interface state (of E layouts of activations) in which it is entered, with the cut's messages; the last of the K + 1
    is the least sum of forward plus backward passes of a micro-batch. weights: (5, K, p), the weights of five kinds of stage
    times. constants_ns: (K,), the weighted times on paths that belong to no stage."""

    before: Sequence[Floats]
    weights: Floats
    constants_ns: Floats

    def least_ns(self, stage: int, first: Indices, enter: Indices, passes: Passes) -> Floats:
        """For each of N suffixes (the last stages of a pipeline, given), a lower bound in ns on the step time of every pipeline
        that ends with it: (N,). stage: the suffixes' first stage. first, enter: (N,), the first unit of that stage, and the
        interface state (layout of activations) in which it is entered. passes: the times of the suffixes' stages, arrays (p -
        stage, N)."""
        sums = np.einsum("ckz,czn->kn", self.weights[:, :, stage:], _columns(passes), optimize=True)
        sums += self.before[stage][:-1, first, enter] + self.constants_ns[:, None]
        least: Floats = np.floor(sums.max(axis=0, initial=0.0) * (1 - EXACT) - 1)
        return least

    def before_ns(self, stage: int) -> Floats:
        """The least time in ns of forward plus backward passes of a micro-batch through the stages before `stage`, by that
        stage's first unit: (L + 1,)."""
        return np.append(self.before[stage][-1].min(axis=1), np.inf)


def bounded(guides: Guides, pools: Sequence[Pool], tied_ns: int, limit: float) -> tuple[list[Pool], PoolBounds] | None:
    """Remove the columns (choices of options for a stage) that no pipeline with a step time of at most `limit` ns has: for each
    stage the columns that stay, and lower bounds on suffixes of pipelines; None if some stage has none left.

    guides: K sets of weights of stage times. pools: for each stage, its columns. tied_ns: the time in ns in which both ends of
    the pipeline sum the gradients of a table shared by embedding and head."""
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
        after = _after(guides, kept, sums, across)
        changed = False
        for x, pool in enumerate(kept):
            total = before[x][:-1, pool.first, pool.enter] + sums[x][:-1] + after[x][:-1]
            indices = np.flatnonzero((total <= limits).all(axis=0))
            if not len(indices):
                return None
            if len(indices) < len(pool.first):
                kept[x], changed = pool.at(indices), True
        if not changed:
            break
    return kept, PoolBounds(before, guides.weights, guides.constants_ns)


def _columns(passes: Passes) -> Floats:
    """Stack the five kinds of stage times that weights apply to (forward, backward, last micro-batch, gradient reduction,
    optimizer), as floats: (5, p, N), for N pipelines or columns (choices of options for a stage). passes: the times to stack.
    """
    return np.stack([getattr(passes, name) for name in COLUMNS]).astype(float)


def _round_trips(guides: Guides) -> Floats:
    """The time in ns of a micro-batch across each cut and back, with re-layouts and messages: (Q, p - 1, D, E), by kind of
    boundary between units (sub-layers; Q kinds), cut (p - 1 for p stages), and the interface states (layouts of activations), D
    before and E after the cut; infinite for forbidden pairs of states.

    guides: gives the costs of boundaries.
    """
    chain = guides.chain
    found = []
    for crossing in chain.tables.crossings:
        apart = (crossing.forward_ns >= FORBIDDEN) | (crossing.backward_ns >= FORBIDDEN)
        moved = crossing.forward_ns + crossing.backward_ns
        sent = crossing.message_forward_ns[chain.links] + crossing.message_backward_ns[chain.links]
        found.append(np.where(apart, np.inf, (moved + sent).astype(float)))
    shape = (0, chain.stages - 1, chain.tables.states_out, chain.tables.states_in)
    return np.stack(found) if found else np.zeros(shape)


def _before(guides: Guides, pools: Sequence[Pool], sums: Sequence[Floats], across: Floats) -> list[Floats]:
    """For each stage, (K + 1, L, E): the least weighted sums of the stages before it, by K + 1 sets of weights, the stage's
    first unit (one of L sub-layers), and the interface state (layout of activations; E states) in which it is entered; messages
    at the cut before it included.

    guides: K sets of weights of stage times. pools: for each stage, its N columns. sums: for each stage, (K + 1, N), the
    weighted times of its columns. across: (Q, K + 1, p - 1, D, E), the weighted costs of the p - 1 cuts, by kind of boundary (Q
    kinds) and the states before (D) and after (E).
    """
    chain = guides.chain
    here = np.full((across.shape[1], chain.units, chain.tables.states_in), np.inf)
    here[:, 0] = 0.0
    before = [here]
    for x, pool in enumerate(pools[:-1]):
        values = before[-1][:, pool.first, pool.enter] + sums[x]
        node, least = _least(pool.last * chain.tables.states_out + pool.leave, values)
        last, leave = np.divmod(node, chain.tables.states_out)
        here = np.full((across.shape[1], chain.units, chain.tables.states_in), np.inf)
        crossed = least[:, :, None] + across[chain.boundaries[last], :, x, leave].swapaxes(0, 1)  # (K + 1, nodes, E)
        starts = np.flatnonzero(np.diff(last, prepend=-1))
        here[:, last[starts] + 1] = np.minimum.reduceat(crossed, starts, axis=1)
        before.append(here)
    return before


def _after(guides: Guides, pools: Sequence[Pool], sums: Sequence[Floats], across: Floats) -> list[Floats]:
    """For each stage, (K + 1, N): the least weighted sums of the stages after each of its N columns, by K + 1 sets of weights;
    messages at the cut after it included.

    guides: K sets of weights of stage times. pools: for each stage, its columns. sums: for each stage, (K + 1, N), the weighted
    times of its columns. across: (Q, K + 1, p - 1, D, E), the weighted costs of the p - 1 cuts, by kind of boundary (Q kinds)
    and the interface states (layouts of activations) before (D) and after (E).
    """
    chain = guides.chain
    sums_after = [np.zeros_like(sums[-1])]
    for x in reversed(range(len(pools) - 1)):
        following, pool = pools[x + 1], pools[x]
        node, least = _least(following.first * chain.tables.states_in + following.enter, sums[x + 1] + sums_after[-1])
        first, enter = np.divmod(node, chain.tables.states_in)
        crossed = least[:, :, None] + across[chain.boundaries[first - 1], :, x, :, enter].swapaxes(0, 1)  # (K + 1, nodes, D)
        starts = np.flatnonzero(np.diff(first, prepend=-1))
        here = np.full((across.shape[1], chain.units + 1, chain.tables.states_out), np.inf)
        here[:, first[starts]] = np.minimum.reduceat(crossed, starts, axis=1)
        sums_after.append(here[:, pool.last + 1, pool.leave])
    return sums_after[::-1]


def _least(nodes: Indices, values: Floats) -> tuple[Indices, Floats]:
    """Group values by key: the distinct keys, ascending, and the least value of each key, (K, keys). nodes: (N,), the key of
    each of N columns: here a unit (sub-layer) and an interface state (layout of activations), packed into one number. values:
    (K, N), K values of each column.
    """
    order = np.argsort(nodes, kind="stable")
    present, starts = np.unique(nodes[order], return_index=True)
    return present, np.minimum.reduceat(values[:, order], starts, axis=1)
