"""Weighted paths and prices of memory that bound a joint configuration with fixed cuts, in whole numbers for the library's
checker.

Rounds of the linear program of `solvers.joint.fixed_cuts.lp_bound`: each gives weights of paths and prices of moments, whose
bound the program itself knows in floats; the best ones are rounded, and the checker finds the bound that they prove.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from trainplan.formulations.joint.problem import Instance
from trainplan.formulations.joint.stage_memory import Moment, moments_of
from trainplan.solvers.joint.fixed_cuts.lp_bound import PathKey, Relaxation, RowKey
from trainplan.solvers.joint.fixed_cuts.rounding import at_prices, even_weights, mean_price

ROUNDS = 60
FIRST = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)  # prices of memory, as multiples of its mean cost
WHOLE = 2**24  # of which weights are parts
ALIKE = {"forward": 2, "backward": 4, "first_half": 1, "second_half": 1, "halved_backward": 4}  # times of stages that are alike
STILL, RISE = 6, 1e-5  # rounds in which the bound has to rise by this share

Key = TypeVar("Key")
Weights = tuple[Mapping[PathKey, float], Mapping[RowKey, float]]


def weighted_paths(instance: Instance, index: int, target_ns: int, out_of_time: Callable[[], bool]) -> dict[str, Any] | None:
    """Paths and prices for the evidence `certificate` of one configuration, without the step that they show to be impossible;
    None if there are none.

    instance: the configurations to choose from, with costs and memory limits. index: the configuration's index; its cuts are
    fixed, and its device groups equal. target_ns: the step time up to which a bound is of use. out_of_time: whether to stop.
    """
    relaxation = Relaxation(instance, index, 0.0)
    even = even_weights(relaxation)
    mean = mean_price(relaxation, even)
    for factor in FIRST:
        relaxation.take(at_prices(relaxation, even, np.full(len(relaxation.group_memories), factor * mean)))
    best: Weights | None = None
    bounds = list[float]()
    for _ in range(ROUNDS):
        if out_of_time():
            break
        weights, prices, shares = relaxation.solve(relaxation.choices[-1].step_ns)
        tried: list[Weights] = [(weights, prices)]
        if best is not None:
            tried.insert(0, (_between(weights, best[0]), _between(prices, best[1])))
        new = relaxation.take_mixture(shares)
        for one in tried:
            before = relaxation.bound
            choice = relaxation.least(*one)
            if relaxation.bound > before:
                best = one
            new |= relaxation.take(choice)
        bounds.append(relaxation.bound)
        still = len(bounds) > STILL and bounds[-1] <= bounds[-1 - STILL] * (1 + RISE)
        if relaxation.bound > target_ns or not new or still:
            break
    return None if best is None else _rounded(instance, index, relaxation, *best)


def _between(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    """The mean of two mappings of numbers, key by key; a missing key counts as 0."""
    return {key: (one.get(key, 0.0) + other.get(key, 0.0)) / 2 for key in {**one, **other}}


def _rounded(
    instance: Instance, index: int, relaxation: Relaxation, weights: Mapping[PathKey, float], prices: Mapping[RowKey, float]
) -> dict[str, Any] | None:
    """Weights and prices in whole numbers, as evidence has them; None if all weights are rounded to 0.

    instance: the configurations. index: the configuration's index. relaxation: the linear program with its paths and moments.
    weights: of paths, which add up to 1. prices: of moments and hosts, in ns per byte."""
    paths: list[dict[str, Any]] = []
    for key, weight in weights.items():
        path = relaxation.paths[key]
        if number := round(weight * WHOLE):
            choices = "".join(map(str, path.turns))
            paths.append({"weight": number, "end": path.end, "site": path.last_pass_group, "choices": choices})
    total = sum(path["weight"] for path in paths)
    rows, configuration = _rows(instance, index), instance.configurations[index]
    host, moments = [0] * configuration.stages, []
    for (group, row), price in prices.items():
        number = round(price * total)
        if group < 0:
            host[row] = number
        elif number:
            moment, unit = rows[group][row]
            moments.append(_moment_dict(moment, unit) | {"price": number})
    claim = {"paths": paths, "moments": moments, **({"host": host} if any(host) else {})}
    return claim if paths else None


def _moment_dict(moment: Moment, unit: int | None) -> dict[str, Any]:
    """A moment of a device group's order as evidence has it. unit: the unit whose pass runs; None if no pass runs."""
    messages = [[kind, stage, count] for (kind, stage), count in moment.messages]
    stage = -1 if moment.stage is None else moment.stage
    counts = [list(pair) for pair in moment.counts]
    return {"counts": counts, "messages": messages, "stage": stage} | ({} if unit is None else {"unit": unit})


def _rows(instance: Instance, index: int) -> list[Sequence[tuple[Moment, int | None]]]:
    """For each device group, the rows of memory of the linear program, in its order: a moment, and the unit whose pass runs
    (None if none does). instance: the configurations. index: the configuration's index."""
    configuration = instance.configurations[index]
    edges = (0, *(configuration.cuts or ()), instance.length)
    rows: list[list[tuple[Moment, int | None]]] = [[] for _ in configuration.device_groups]
    for moment in moments_of(configuration):
        group = moment.counts[0][0] % len(configuration.device_groups)
        units = [None] if moment.stage is None else range(edges[moment.stage], edges[moment.stage + 1])
        rows[group] += [(moment, unit) for unit in units]
    return list(rows)


def even_paths(pipeline: Any) -> list[dict[str, Any]]:
    """For each device group, the longest path through a step whose stages are alike, but for those of that group, which are a
    little slower; all of the same weight. pipeline: the configuration, as the library's checker has it."""
    graph, groups = pipeline.graph(), pipeline.groups
    paths = []
    for slow in range(groups):
        ends: list[int] = []
        for waits, times in zip(graph.waits, graph.times, strict=True):
            took = sum(ALIKE.get(name, 0) * (11 if stage % groups == slow else 10) for name, stage in times)
            ends.append(max((ends[node] for node in waits), default=0) + took)
        node, choices = graph.last[0], list[int]()
        while waits := graph.waits[node]:
            turn = max(range(len(waits)), key=lambda number, waits=waits: ends[waits[number]])  # type: ignore[misc]
            choices += [turn] if len(waits) > 1 else []
            node = waits[turn]
        paths.append({"weight": WHOLE, "end": 0, "site": 0, "choices": "".join(map(str, choices))})
    return paths


def fullest_moments(pipeline: Any, price: int) -> list[dict[str, Any]]:
    """For each device group, the moment of most micro-batches in flight while a pass runs, with a price of a byte. pipeline:
    the configuration, as the library's checker has it."""
    result = []
    for moments in pipeline.moments():
        counts, messages, stage = max(moments, key=lambda moment: (sum(n for _, n in moment.counts), moment.stage))
        listed = [[kind, stage_after, count] for (kind, stage_after), count in messages]
        result.append({"counts": [list(pair) for pair in counts], "messages": listed, "stage": stage, "price": price})
    return result
