"""What both integer formulations of pipeline share: the places of a layer, and options that meet equal re-layout costs.

A place of a layer is a pair (stage i, option s). Every stage has a layer, so stage i holds layers i .. L - P + i only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.pipeline.problem import Configuration, Instance, Solution


@dataclass(frozen=True)
class Boundary:
    """Between two layers: options of each class before and after, the cost of each pair of classes where both layers are in
    one stage, and the cost of each class after it where a stage begins there."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    costs_ns: tuple[tuple[int, ...], ...]
    entries_ns: tuple[int, ...]


def only(instance: Instance) -> Configuration:
    """The configuration of an instance that has one. A formulation states one configuration at a time."""
    (given,) = instance.configurations
    return given


def boundaries(instance: Instance) -> list[Boundary]:
    """The L-1 boundaries of an instance of one configuration."""
    tables, known = only(instance).tables, {}
    for kind in set(instance.boundary_kinds):
        rows, row_of = np.unique(tables.transitions_ns[kind], axis=0, return_inverse=True)
        columns, column_of = np.unique(np.vstack([rows, tables.entries_ns[kind]]), axis=1, return_inverse=True)
        classes = [tuple(int(s) for s in np.flatnonzero(row_of.reshape(-1) == a)) for a in range(len(rows))]
        after = [tuple(int(s) for s in np.flatnonzero(column_of.reshape(-1) == b)) for b in range(columns.shape[1])]
        *costs, entries = (tuple(int(v) for v in row) for row in columns)
        known[kind] = Boundary(tuple(classes), tuple(after), tuple(costs), entries)
    return [known[kind] for kind in instance.boundary_kinds]


def stages_of(instance: Instance, layer: int) -> range:
    """Stages that may hold a layer."""
    stages = only(instance).stages
    return range(max(0, layer - (instance.layers - stages)), min(layer + 1, stages))


def solution(instance: Instance, places: Iterable[tuple[int, int, int]]) -> Solution:
    """What the places (layer, stage, option) of all layers stand for, given in any order."""
    _, found, choice = zip(*sorted(places), strict=True)
    return Solution(0, tuple(found.count(i) for i in range(only(instance).stages)), choice)


def most_ns(instance: Instance) -> int:
    """A time that no stage exceeds, nor all stages together."""
    tables, kinds = only(instance).tables, list(instance.layer_kinds)
    between = np.maximum(tables.transitions_ns.max(axis=(1, 2)), tables.entries_ns.max(axis=1))
    return int(tables.time_ns.max(axis=1)[kinds].sum()) + int(between[list(instance.boundary_kinds)].sum())


def parts(instance: Instance) -> list[Instance]:
    """One instance for each configuration."""
    return [replace(instance, configurations=(given,)) for given in instance.configurations]


def least_ns(instance: Instance) -> int:
    """A time that no solution beats, whatever the memory: every layer at its fastest, the slowest stage no faster than an even
    share of them or than any one layer."""
    given = only(instance)
    kinds, tables = list(instance.layer_kinds), given.tables
    whole = int(tables.time_ns.min(axis=1)[kinds].sum())
    running = (tables.time_ns - tables.sync_ns).min(axis=1)[kinds]
    slowest = max(int(running.max()), -(-int(running.sum()) // given.stages))
    return whole + (given.micro_batches - 1) * slowest
