"""Quick facts about a pipeline instance, in milliseconds: a lower bound in closed form, and the best of a few simple plans.

The plans give all layers of one kind in a stage the same strategy. They are tried on stages that are even in layers, and even
in time. A stage's choice does not change the cost of other stages: so each stage takes the best of a few choices that fit it.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.pipeline.layouts import least_ns, parts
from trainplan.formulations.pipeline.problem import Solution

SOURCE = "every layer at its fastest, stages as even as they can be"
PRICES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)  # of memory, in proportion to what it costs in the mean


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on the time of all plans, ignoring memory, and the text that says why it holds: every layer at its
    fastest, stages as even as they can be; the least over all configurations (numbers of stages and micro-batches, with a
    schedule).

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
    return min(least_ns(part) for part in parts(instance)), SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """The best of a few simple plans in which stages are even in numbers of layers or in time, and all layers of one kind in a
    stage have one strategy; None if none of them fits the memory.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
    best, plan = np.inf, None
    for bound, index in sorted((least_ns(part), index) for index, part in enumerate(parts(instance))):
        if bound >= best:
            break
        for sizes in _partitions(instance, instance.configurations[index]):
            planned = _planned(instance, instance.configurations[index], sizes)
            if planned is not None and planned[0] < best:
                best, plan = planned[0], Solution(index, tuple(sizes.tolist()), planned[1])
    return plan


def _partitions(instance: Instance, configuration: Configuration) -> list[Integers]:
    """Two partitions of the layers into stages, each an array (stages,) of numbers of layers: even in layers, and even in time
    with every layer at its fastest.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
    layers, stages = instance.layers, configuration.stages
    fastest = (configuration.tables.time_ns - configuration.tables.sync_ns).min(axis=1)[list(instance.layer_kinds)]
    indices, partitions = np.arange(1, stages), []
    for load in (np.ones(layers, np.int64), fastest):
        sums = np.cumsum(load)
        cuts = np.searchsorted(sums - load / 2, sums[-1] * indices / stages)  # layers whose middle is before the cut
        cuts = np.maximum.accumulate(np.maximum(cuts, indices) - indices) + indices  # each stage has a layer
        partitions.append(np.diff([0, *np.minimum(cuts, layers - stages + indices), layers]))
    return partitions


def _planned(instance: Instance, configuration: Configuration, sizes: Integers) -> tuple[int, tuple[int, ...]] | None:
    """A quick plan for given stages, in which each stage has the fastest of a few choices (one strategy for each kind of layer)
    that fits the memory: the step's time in ns (Eq. 8 of Galvatron-BMW) and the option index of every layer; None if no choice
    fits some stage. sizes: (stages,), numbers of layers.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). configuration: gives the cost tables and the number of micro-batches."""
    tables, m = configuration.tables, configuration.micro_batches
    starts = np.cumsum(sizes) - sizes
    choices = _choices(configuration)[:, list(instance.layer_kinds)]
    kinds, boundaries = np.array(instance.layer_kinds), np.array(instance.boundary_kinds, np.int64)
    time, sync = tables.time_ns[kinds, choices], tables.sync_ns[kinds, choices]
    moves = tables.transitions_ns[boundaries, choices[:, :-1], choices[:, 1:]]
    cuts = starts[1:] - 1
    moves[:, cuts] = tables.entries_ns[boundaries[cuts], choices[:, starts[1:]]]
    time[:, 1:] += moves
    forward, backward, states = (
        column[kinds, choices] for column in (tables.forward_bytes, tables.backward_bytes, tables.state_bytes)
    )
    kept = np.add.reduceat(forward, starts, axis=1)
    turns = np.maximum.reduceat(np.cumsum(forward, axis=1) + backward, starts, axis=1) - (np.cumsum(kept, axis=1) - kept)
    earlier = np.array([configuration.in_flight(stage) - 1 for stage in range(configuration.stages)])
    peaks = turns + earlier * kept + np.add.reduceat(states, starts, axis=1)
    times, syncs = np.add.reduceat(time, starts, axis=1), np.add.reduceat(sync, starts, axis=1)
    fits = peaks <= instance.memory_bytes
    if not fits.any(axis=0).all():
        return None
    chosen = np.where(fits, m * (times - syncs) + syncs, np.iinfo(np.int64).max).argmin(axis=0)
    stages = np.arange(configuration.stages)
    taken, paid = times[chosen, stages], syncs[chosen, stages]
    options = choices[np.repeat(chosen, sizes), np.arange(instance.layers)]
    return (m - 1) * int((taken - paid).max()) + int(taken.sum()), tuple(options.tolist())


def _choices(configuration: Configuration) -> Integers:
    """A few choices of strategies to try in every stage, (choices, kinds of layers), an option index for each kind of layer:
    first one choice per strategy, in which all kinds have it; then, for a few prices of memory, the choice in which each kind
    has the strategy of least time plus priced memory. configuration: gives the cost tables."""
    tables = configuration.tables
    everywhere = np.repeat(np.arange(len(tables.strategies))[:, None], len(tables.time_ns), axis=1)
    memory = (tables.state_bytes + configuration.in_flight(0) * tables.forward_bytes).astype(np.float64)
    mean = np.ptp(tables.time_ns, axis=1).sum() / max(1.0, float(np.ptp(memory, axis=1).sum()))
    priced = [(tables.time_ns + price * mean * memory).argmin(axis=1) for price in PRICES]
    return np.unique(np.concatenate((everywhere, priced)), axis=0)
