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
    """The division of a chain of layers into blocks, the units of a partition: each layer is a block, except that the first and
    the last layer may belong to their neighbour's block.

    layers: the number of layers. lead, tail: 1 if the first (last) layer, embedding (head), belongs to its neighbour's block,
    else 0.
    """

    layers: int
    lead: int
    tail: int

    @property
    def count(self) -> int:
        """The number of blocks into which the layers are divided."""
        return self.layers - self.lead - self.tail

    def layers_of(self, partition: Sequence[int]) -> tuple[int, ...]:
        """The number of layers of each stage. partition: the number of blocks of each stage."""
        layers = list(partition)
        layers[0] += self.lead
        layers[-1] += self.tail
        return tuple(layers)

    def edges(self) -> list[int]:
        """The index of the layer at which each block begins, followed by the number of layers. Six layers with lead and tail 1
        -> [0, 2, 3, 4, 6]."""
        return [0, *range(self.lead + 1, self.layers - self.tail), self.layers]


def blocks(instance: Instance, stages: int = 1) -> Blocks:
    """The division of a model's layers into blocks: embedding and head belong to their neighbour's block if their kinds occur
    only at the ends of the chain. Every layer is a block if there would be fewer blocks than stages.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
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
    """Galvatron-BMW's PP_Partition_Init: the partition whose largest stage is smallest, in blocks of layers per stage.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). configuration: the index of the configuration (number of stages and micro-batches, with a schedule) in the
    instance. balance: the load of a stage that counts: "layers", "parameters" (bytes of model states), "memory" (peak bytes) or
    "time". choice: an option for each layer, by which memory and time are measured; None takes one strategy for all layers,
    chosen by `uniform_choice`. check_time: called often; an exception that it raises is passed on."""
    if balance != "layers" and choice is None:
        choice = uniform_choice(instance, configuration, check_time)
    stages = instance.configurations[configuration].stages
    return balanced(_loads(instance, configuration, balance, choice or ()), stages, check_time)


def uniform_choice(instance: Instance, configuration: int, check_time: Callable[[], None] = lambda: None) -> tuple[int, ...]:
    """One strategy for all layers, as an option index for each layer (Strategy_Init of Galvatron-BMW, which the paper does not
    specify): the fastest that fits the memory if stages are even in layers, or else the strategy that exceeds the memory least.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). configuration: the index of the configuration (number of stages and micro-batches, with a schedule) in the
    instance. check_time: called often; an exception that it raises is passed on."""
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
    """Divide a chain of blocks (layers that stay together) into pipeline stages such that the largest load of a stage is least:
    the number of blocks of each stage. Among several such partitions, the one with the most even numbers is returned.

    load: load(i)[a, b] is the load of blocks a to b - 1 as stage i; only entries with a < b are read. stages: the number of
    stages. check_time: called often; an exception that it raises is passed on."""
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
    """Build the function by which stages are balanced: given a stage's index, it returns a table whose entry [a, b] is the load
    of the blocks a to b - 1 as that stage.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). configuration: the index of the configuration (number of stages and micro-batches, with a schedule) in the
    instance. balance: the kind of load: number of layers, bytes of model states ("parameters"), time in ns or peak bytes
    ("memory"). choice: an option for each layer; unused for "layers"."""
    chosen = instance.configurations[configuration]
    edges = np.array(blocks(instance, chosen.stages).edges())
    count = len(edges)
    if balance == "layers":
        lengths = np.arange(count) - np.arange(count)[:, None]
        return lambda stage: lengths
    tables, indices = chosen.tables, (list(instance.layer_kinds), list(choice))

    def until(values: Integers) -> Integers:
        """The sums of values before each layer, and of all layers."""
        return np.concatenate([[0], np.cumsum(values)])

    def between(sums: Integers) -> Integers:
        """The sum over blocks a to b - 1 at [a, b], from the sums of `until`."""
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
