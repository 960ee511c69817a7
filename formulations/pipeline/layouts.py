"""Parts that both integer formulations of pipeline share: the nodes of a layer, and options that meet equal re-layout costs.

A node of a layer is a pair (stage i, option s). Of L layers in P stages, stage i holds layers i .. L - P + i only, since every
stage has a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from trainplan.formulations.layer_strategies.layout_classes import LayoutBoundary, layout_boundary
from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.pipeline.problem import Solution


def only(instance: Instance) -> Configuration:
    """The only configuration (numbers of stages and micro-batches) of an instance. Integer models hold one configuration at a
    time, so an instance with several is a programming error (ValueError). instance: the configurations (numbers of stages
    and micro-batches) to choose from, with the costs of layers under each strategy, and the memory limit.
    """
    (configuration,) = instance.configurations
    return configuration


def boundaries(instance: Instance) -> list[LayoutBoundary]:
    """The boundaries between neighbouring layers of an instance of one configuration (numbers of stages and micro-batches), one
    fewer than layers, in order, each with the options on both sides grouped into classes of equal re-layout costs. instance:
    the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy, and
    the memory limit.
    """
    tables = only(instance).tables
    by_kind = [layout_boundary(*kind) for kind in zip(tables.transitions_ns, tables.entries_ns, strict=True)]
    return [by_kind[kind] for kind in instance.boundary_kinds]


def stages_of(instance: Instance, layer: int) -> range:
    """The indices of the stages that may hold a layer, such that every stage has a layer. instance: an instance with one
    configuration. layer: the layer's index."""
    stages = only(instance).stages
    return range(max(0, layer - (instance.layers - stages)), min(layer + 1, stages))


def solution(instance: Instance, nodes: Iterable[tuple[int, int, int]]) -> Solution:
    """The solution that consists of some nodes. nodes: one (layer, stage, option) for each layer, in any order: the layer lies
    in that stage and takes that option. instance: the configurations (numbers of stages and micro-batches) to choose from,
    with the costs of layers under each strategy, and the memory limit.
    """
    _, stages, choice = zip(*sorted(nodes), strict=True)
    return Solution(0, tuple(stages.count(i) for i in range(only(instance).stages)), choice)


def most_ns(instance: Instance) -> int:
    """An upper bound in ns on the time of any stage, and on the time of all stages together, for one micro-batch. instance: an
    instance with one configuration."""
    tables, kinds = only(instance).tables, list(instance.layer_kinds)
    between = np.maximum(tables.transitions_ns.max(axis=(1, 2)), tables.entries_ns.max(axis=1))
    return int(tables.time_ns.max(axis=1)[kinds].sum()) + int(between[list(instance.boundary_kinds)].sum())


def parts(instance: Instance) -> list[Instance]:
    """For each configuration (numbers of stages and micro-batches) of an instance, the instance reduced to that configuration.
    instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
    strategy, and the memory limit.
    """
    return [replace(instance, configurations=(configuration,)) for configuration in instance.configurations]


def least_ns(instance: Instance) -> int:
    """A lower bound in ns on every solution of an instance of one configuration (numbers of stages and micro-batches),
    whatever the memory: every layer at its fastest, and the slowest stage no faster than an even share of them or than any
    one layer. instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers
    under each strategy, and the memory limit.
    """
    configuration = only(instance)
    kinds, tables = list(instance.layer_kinds), configuration.tables
    whole = int(tables.time_ns.min(axis=1)[kinds].sum())
    running = (tables.time_ns - tables.sync_ns).min(axis=1)[kinds]
    slowest = max(int(running.max()), -(-int(running.sum()) // configuration.stages))
    return whole + (configuration.micro_batches - 1) * slowest
