"""Galvatron-BMW's dynamic programming search (Algorithm 3), exactly.

Recurrence (Eq. 4), over forward memory e in whole steps of the granularity, with the last layer's strategy in the state:

    C(l, e, S_j) = min_{S_i} C(l-1, e - O_f(l, S_j) - O_ms(l, S_j), S_i) + c(l, S_j) + R(l, S_i, S_j)

Where the paper is silent: a layer's forward memory is rounded up to whole steps; ties go to the option listed first; a
budget at which no strategies exist is passed over, not the first failure.

The search raises the forward budget E_fwd. Up to E - b_up every choice passes the peak check; past it, the found strategies
must satisfy Eq. 2, and the first that do not end the search. So it may miss the optimum of the true constraint.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance, evaluate
from trainplan.solvers.search import Outcome, Search

DEFAULT_LEVELS = 1000
UNREACHABLE = np.iinfo(np.int64).max // 4


def galvatron_dp(instance: Instance, search: Search) -> Outcome:
    """The choice of Algorithm 3. Option `granularity_bytes`: the memory step (default: a thousandth of the memory)."""
    step = search.options.get("granularity_bytes") or -(-instance.memory_bytes // DEFAULT_LEVELS)
    budget = instance.memory_bytes // step
    tables = _costs(instance, step, budget, search)
    if tables is None:
        return Outcome(message="time ran out before the table was filled")
    last, parents, needs = tables

    def found(level: int) -> tuple[int, ...] | None:
        option = int(last[level].argmin())
        if last[level, option] >= UNREACHABLE:
            return None
        choice = [option]
        for l in range(instance.layers - 1, 0, -1):
            parent = int(parents[l][level, choice[-1]])
            level -= int(needs[l][choice[-1]])
            choice.append(parent)
        return tuple(reversed(choice))

    b_up = max(int(b.max()) for b in instance.backward_bytes)
    safe = (instance.memory_bytes - b_up) // step
    best = found(safe) if safe >= 0 else None
    for level in range(max(safe, -1) + 1, budget + 1):
        choice = found(level)
        if choice is None or choice == best:
            continue
        if evaluate(instance, choice).peak_bytes > instance.memory_bytes:
            break
        best = choice
    statistics = {"granularity_bytes": step, "levels": budget}
    if best is None:
        return Outcome(
            message=f"Algorithm 3 found nothing at a granularity of {step} bytes; that proves nothing",
            statistics=statistics,
        )
    search.report(best)
    return Outcome(choice=best, statistics=statistics)


def _costs(
    instance: Instance, step: int, budget: int, search: Search
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]] | None:
    """C(L, e, S) for all e at once, the predecessors of each layer, and each layer's forward memory in steps."""
    needs = [-(-(f + ms) // step) for f, ms in zip(instance.forward_bytes, instance.state_bytes, strict=True)]
    cost = np.zeros((budget + 1, 1), np.int64)
    parents: list[np.ndarray] = []
    for l in range(instance.layers):
        if search.out_of_time():
            return None
        options = instance.options[l]
        table = np.full((budget + 1, options), UNREACHABLE, np.int64)
        parent = np.zeros((budget + 1, options), np.int16)
        moves = instance.transitions_ns[l - 1] if l else np.zeros((1, options), np.int64)
        for s in range(options):
            need = int(needs[l][s])
            if need > budget:
                continue
            through = cost[: budget + 1 - need] + moves[:, s]
            parent[need:, s] = through.argmin(axis=1)
            table[need:, s] = through.min(axis=1) + instance.time_ns[l][s]
        cost = np.minimum(table, UNREACHABLE)
        parents.append(parent)
    return cost, parents, needs
