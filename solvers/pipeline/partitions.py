"""Contiguous partitions of a model into pipeline stages: PP_Partition_Init of Galvatron-BMW (Algorithms 1 and 2), exactly.

Blocks of layers are partitioned. The first layer (embedding) belongs to the first block and the last one (head) to the last,
where their kinds occur at the two ends only, so that [14, 18] reads as in the paper. A partition is the number of blocks of
each stage. Among partitions with the least largest load, the one with the most even numbers of blocks is taken, then the one
with fewer blocks in earlier stages, which hold more micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.problem import Solution, evaluate

Balance = Literal["layers", "parameters", "memory", "time"]
BALANCES: tuple[Balance, ...] = get_args(Balance)
Partition = tuple[int, ...]
IMPOSSIBLE = np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Blocks:
    """The blocks of a chain of layers. lead, tail: 1 where the first and the last layer belong to their neighbour's block, else
    0."""

    layers: int
    lead: int
    tail: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.layers - self.lead - self.tail

    def layers_of(self, partition: Sequence[int]) -> tuple[int, ...]:
        """The number of layers of each stage, from its number of blocks."""
        layers = list(partition)
        layers[0] += self.lead
        layers[-1] += self.tail
        return tuple(layers)

    def edges(self) -> list[int]:
        """The index of the layer at which each block begins, then the number of layers."""
        return [0, *range(self.lead + 1, self.layers - self.tail), self.layers]


def blocks(instance: Instance, stages: int = 1) -> Blocks:
    """The blocks of a model's layers. Where there would be fewer blocks than stages, every layer is a block."""
    kinds, layers = instance.layer_kinds, instance.layers
    lead = int(layers > 2 and kinds[0] not in kinds[1:-1])
    tail = int(layers > 2 and kinds[-1] not in kinds[1:-1])
    candidate = Blocks(layers, lead, tail)
    return candidate if candidate.count >= stages else Blocks(layers, 0, 0)


def initial_partition(
    instance: Instance,
    configuration: int,
    balance: Balance,
    choice: Sequence[int] | None = None,
    check_time: Callable[[], None] = lambda: None,
) -> Partition:
    """PP_Partition_Init: the partition whose largest stage is smallest, in blocks per stage. Parameters are counted in bytes of
    model states.

    configuration: its index. balance: the load that is balanced. choice: an option for each layer, to weigh with (default:
    `uniform_choice`). check_time: an exception that it raises is passed on.
    """
    if balance != "layers" and choice is None:
        choice = uniform_choice(instance, configuration, check_time)
    stages = instance.configurations[configuration].stages
    return balanced(_loads(instance, configuration, balance, choice or ()), stages, check_time)


def uniform_choice(instance: Instance, configuration: int, check_time: Callable[[], None] = lambda: None) -> tuple[int, ...]:
    """Strategy_Init, where the paper is silent: one strategy for all layers, as an option for each layer.

    It is the fastest that fits the memory under the partition that is even in layers, or else the one of least memory there.
    """
    chosen = instance.configurations[configuration]
    stages = blocks(instance, chosen.stages).layers_of(
        initial_partition(instance, configuration, "layers", check_time=check_time)
    )

    def rank(option: int) -> tuple[int, int]:
        """Sort key of a strategy: bytes beyond the memory, then time in ns."""
        check_time()
        evaluation = evaluate(instance, Solution(configuration, stages, (option,) * instance.layers))
        over = max(0, evaluation.peak_bytes - instance.memory_bytes)
        return over, evaluation.time_ns

    return (min(range(len(chosen.tables.strategies)), key=rank),) * instance.layers


def balanced(load: Callable[[int], Integers], stages: int, check_time: Callable[[], None] = lambda: None) -> Partition:
    """The partition, in blocks per stage, with the least largest load. load(i)[a, b]: the load of blocks a to b - 1 as stage i;
    only entries with a < b are read."""
    count = len(load(0)) - 1
    first, end = np.arange(count + 1)[:, None], np.arange(count + 1)

    def of_stage(stage: int) -> Integers:
        """The load of each span of blocks as this stage; IMPOSSIBLE for empty spans."""
        check_time()
        return np.where(first < end, load(stage), IMPOSSIBLE)

    largest = np.where(end == count, 0, IMPOSSIBLE)
    for stage in reversed(range(stages)):
        largest = np.maximum(of_stage(stage), largest).min(axis=1)
    bottleneck = largest[0]
    rest = np.where(end == count, 0, IMPOSSIBLE)
    ends = []
    for stage in reversed(range(stages)):
        squares = np.where(of_stage(stage) <= bottleneck, (end - first) ** 2, IMPOSSIBLE) + rest
        ends.append(squares.argmin(axis=1))
        rest = np.minimum(squares.min(axis=1), IMPOSSIBLE)
    bounds = [0]
    for following in reversed(ends):
        bounds.append(int(following[bounds[-1]]))
    return tuple(np.diff(bounds).tolist())


def _loads(instance: Instance, configuration: int, balance: Balance, choice: Sequence[int]) -> Callable[[int], Integers]:
    """A function of a stage that returns the load of each span of blocks in it: at [a, b], that of blocks a to b - 1.

    choice: an option for each layer. balance: layers, bytes of model states, time in ns or peak bytes.
    """
    chosen = instance.configurations[configuration]
    edges = np.array(blocks(instance, chosen.stages).edges())
    count = len(edges)
    if balance == "layers":
        lengths = np.arange(count) - np.arange(count)[:, None]
        return lambda stage: lengths
    tables, indices = chosen.tables, (list(instance.layer_kinds), list(choice))

    def until(values: Integers) -> Integers:
        """The sums of values before each layer, and of all."""
        return np.concatenate([[0], np.cumsum(values)])

    def between(sums: Integers) -> Integers:
        """At [a, b], the sum over blocks a to b - 1, from the sums of `until`."""
        at_edges: Integers = sums[edges]
        return at_edges - at_edges[:, None]

    states = between(until(tables.state_bytes[indices]))
    if balance == "parameters":
        return lambda stage: states
    if balance == "time":
        cuts = list(instance.boundary_kinds)
        moves = until(tables.transitions_ns[cuts, list(choice[:-1]), list(choice[1:])])
        entries = np.concatenate([[0], tables.entries_ns[cuts, list(choice[1:])], [0]])[edges]
        inside = moves[edges - 1] - moves[np.minimum(edges, len(cuts))][:, None]
        times = between(until(tables.time_ns[indices])) + inside + entries[:, None]
        return lambda stage: times
    forward = until(tables.forward_bytes[indices])
    peaks = forward[1:] + tables.backward_bytes[indices]
    within = np.where(np.arange(instance.layers) >= edges[:, None], peaks, 0)
    highest = np.maximum.accumulate(within, axis=1)[:, edges - 1] - forward[edges][:, None]
    kept = between(forward)
    return lambda stage: highest + (chosen.in_flight(stage) - 1) * kept + states
