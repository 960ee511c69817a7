"""Bounds and plans of a configuration with fixed cuts: rounds of the linear program of `lp_bound`, with plans made to fit in
between.

Each round solves the program for weights and prices, raises the bound by the shortest path at these (or halfway to the best
ones so far, which is steadier), and adds the new paths and rows of memory of the choice found, and of the mixture that the
program proposes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import inf
from typing import TypeVar

import numpy as np
from trainplan.formulations.joint.problem import Instance
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.fixed_cuts.lp_bound import PathKey, Relaxation, RowKey
from trainplan.solvers.joint.fixed_cuts.rounding import at_prices, even_weights, fitted, mean_price

ROUNDS = 60  # of the linear program
LOOK_BACK, RISE = 5, 2e-4  # rounds in which the bound has to rise by this share
FIRST = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)  # prices of memory, as multiples of its mean cost
SLOPES, EVENNESS = (0.0, -1.0, 1.0), (1.0, 0.3)  # of choices that are fitted

Key = TypeVar("Key")


def fixed_cuts(instance: Instance, configuration_index: int, bound: float, search: Search) -> float:
    """Bound a configuration (number of stages and micro-batches, with a schedule) with fixed cuts by rounds of a linear
    program, and report plans to the search on the way. Returns a lower bound in ns on the configuration's step times; infinite
    if it is proven that none of its plans is better than the best plan known.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far. bound: the known lower bound in ns.
    Raises TimeoutError."""
    relaxation = Relaxation(instance, configuration_index, bound)
    even, longest = even_weights(relaxation), relaxation.chain.longest_ns() + relaxation.tied_ns
    mean = mean_price(relaxation, even)
    for factor in FIRST:
        search.check_time()
        relaxation.take(at_prices(relaxation, even, np.full(len(relaxation.group_memories), factor * mean)))
    center: tuple[dict[PathKey, float], dict[RowKey, float]] | None = None
    fitted_at, bounds = 0, list[float]()
    for turn in range(ROUNDS):
        search.check_time()
        scale_ns = relaxation.choices[-1].step_ns
        weights, prices, shares = relaxation.solve(scale_ns)
        center = center or (weights, prices)
        new = relaxation.take_mixture(shares)
        before, middle = relaxation.bound, (_between(weights, center[0]), _between(prices, center[1]))
        choice = relaxation.least(*middle)
        if relaxation.bound > before:
            center = middle
        else:
            relaxation.take(choice)
            choice, at_middle = relaxation.least(weights, prices), relaxation.bound
            if relaxation.bound > at_middle:
                center = weights, prices
        new |= relaxation.take(choice)
        _report(relaxation, search)
        bounds.append(relaxation.bound)
        if relaxation.bound > min(search.target(), longest):
            return inf
        settled = not new or (turn >= LOOK_BACK and bounds[-1] <= bounds[-1 - LOOK_BACK] * (1 + RISE))
        if turn == fitted_at or settled:
            fitted_at = 2 * turn + 1
            _fit(relaxation, weights, search)
        if settled:
            break
    return inf if relaxation.bound > search.target() else relaxation.bound


def _fit(relaxation: Relaxation, weights: Mapping[PathKey, float], search: Search) -> None:
    """Derive choices of options that fit the memory from the linear program's weights of paths, add them to the linear program,
    and report the best one as a plan. relaxation: the linear program of a configuration. weights: a dict from the key of each
    path (a chain of passes) to its weight. Raises TimeoutError.

    search: the run's limits and options, and its best solution so far."""
    for slope, evenness in product(SLOPES, EVENNESS):
        search.check_time()
        choice = fitted(relaxation, weights, slope, evenness)
        if choice is not None:
            relaxation.take(choice)
    _report(relaxation, search)


def _report(relaxation: Relaxation, search: Search) -> None:
    """Report the linear program's best choice that fits the memory as a plan, if it is better than the best plan known.
    relaxation: the linear program of a configuration.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    best = relaxation.best
    if best is not None and search.betters(best.step_ns):
        search.report(relaxation.solution(best.choice))


def _between(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    """The mean of two mappings of numbers (weights of paths, or prices of memory), key by key: `one` and `other`; a missing key
    counts as 0. {a: 2}, {b: 4} -> {a: 1, b: 2}."""
    return {key: (one.get(key, 0.0) + other.get(key, 0.0)) / 2 for key in {**one, **other}}
