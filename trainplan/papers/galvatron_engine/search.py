"""The search of Galvatron's engine: DpOnModel.fit with dynamic_programming_core (csrc/dp_core.cpp), on whole MiB and ns.

In every configuration, in the order of the instance, each stage of the even partition chooses its layers' options by

    f_l(v, s) = min_s' ( f_{l-1}(v - w_l(s), s') + R(s', s) ) + c_l(s),      w_l(s) = ceil( O_ms + n O_f ) MiB,

with c the time that includes gradient synchronisation; ties go to the first option. Then the iteration time, which knows no
R and no part of that synchronisation that embedding and head hide, decides between configurations: so even in the engine's
own space and model the plan need not be optimal. f_l(., s) is kept as a staircase (the memory at which it falls, and the
time), which gives the same choices as a table of all v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline.problem import Solution
from trainplan.papers.galvatron_engine.problem import Configuration, Instance, evaluate, even_partition
from trainplan.profiling.imports.source import MIB
from trainplan.solvers.core.search import Outcome, Search


@dataclass(frozen=True)
class EngineLayer:
    """Memory (weights, whole MiB) and time (times, ns) of every strategy for one layer, minus the least memory and time over
    the strategies, so that layers which differ only by the costs of embedding or head are equal.
    """

    weights: tuple[int, ...]
    times: tuple[int, ...]


Staircase = tuple[Integers, Integers]  # memory in MiB, rising, and the least time in ns from there on, falling
Front = tuple[Staircase, ...]  # by option of a layer


def published_search(instance: Instance, search: Search) -> Outcome:
    """Find the plan that the search of Galvatron's engine finds.

    instance: layers with the costs of their strategies. search: limits of the run, and the best solution so far, which is
    written to: every better plan is reported to it. The Outcome has the last plan, or none if nothing fits; no lower bound is
    proven. The method has no options.
    """
    dynamic = _Dynamic(instance.memory_bytes // MIB)
    best: tuple[int, Solution] | None = None
    for index, configuration in enumerate(instance.configurations):
        if search.out_of_time():
            break
        partition = even_partition(instance.layers, configuration.stages)
        choice = _even_choice(instance, configuration, partition, dynamic)
        if choice is None:
            continue
        solution = Solution(index, partition, choice)
        time = evaluate(instance, solution).time_ns
        if best is None or time < best[0] - _rounding_ns(instance, best[1]) - _rounding_ns(instance, solution):
            best = time, solution
            search.report(solution)
    return Outcome(choice=best[1] if best else None, statistics={"stages": len(dynamic.fronts)})


def _rounding_ns(instance: Instance, solution: Solution) -> int:
    """The largest error in ns of an iteration time that results from rounding every layer's time to whole nanoseconds. The
    engine treats configurations whose times differ by less as equal. instance: layers with the cost tables of all
    configurations. solution: a solution of the instance.
    """
    return instance.configurations[solution.configuration].micro_batches * (instance.layers + 2) // 2


def _even_choice(
    instance: Instance, configuration: Configuration, partition: Sequence[int], dynamic: _Dynamic
) -> tuple[int, ...] | None:
    """The strategies that Galvatron's engine chooses for the layers in one configuration (cost tables for a number of stages
    and micro-batches): the index of a strategy per layer, in order; None if a stage does not fit into memory.

    instance: layers with the cost tables of all configurations. partition: number of layers of each stage. dynamic: the
    dynamic program, which caches the results of sequences of layers.
    """
    tables, first, choice = configuration.tables, 0, list[int]()
    for stage, count in enumerate(partition):
        kinds = instance.layer_kinds[first : first + count]
        boundaries = instance.boundary_kinds[first : first + count - 1]
        context = -(-int(tables.backward_bytes[list(kinds)].max()) // MIB)
        layers = [_relative(configuration, kind, configuration.in_flight(stage)) for kind in kinds]
        free = instance.memory_bytes // MIB - context - sum(least for _, least in layers)
        options = dynamic.choose([layer for layer, _ in layers], [tables.transitions_ns[kind] for kind in boundaries], free)
        if options is None:
            return None
        choice += options
        first += count
    return tuple(choice)


def _relative(configuration: Configuration, kind: int, in_flight: int) -> tuple[EngineLayer, int]:
    """Returns memory and time of every strategy for one layer, each minus the least over the strategies; and that least memory
    in MiB.

    configuration: the cost tables. kind: index of the layer's kind in them. in_flight: number of micro-batches that the
    layer's stage has in flight.
    """
    tables = configuration.tables
    weights = -(-(tables.state_bytes[kind] + in_flight * tables.forward_bytes[kind]) // MIB)
    times = tables.time_ns[kind]
    return EngineLayer(tuple((weights - weights.min()).tolist()), tuple((times - times.min()).tolist())), int(weights.min())


class _Dynamic:
    """The dynamic program by which Galvatron's engine chooses the strategies (options) of a chain, which is the sequence of
    the layers of one stage. Results are cached for equal chains.

    A staircase is a pair of arrays: amounts of memory in MiB, rising, and for each the least time in ns within that memory,
    falling. A front has, for one layer of a chain, a staircase for each strategy of the layer. most: the largest memory in
    MiB of any chain. fronts: for each chain, the fronts of its layers.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.fronts: dict[tuple[tuple[EngineLayer, ...], bytes], list[Front]] = {}

    def choose(self, layers: Sequence[EngineLayer], moves: Sequence[Integers], free: int) -> list[int] | None:
        """The strategies that the engine chooses for the layers of a chain within `free` MiB, as an index per layer; None if
        no choice fits.

        moves: for each pair of neighbouring layers, the time in ns of redistributing activations between them, (strategies of
        the first, strategies of the second layer).
        """
        if free < 0:
            return None
        choice: list[int] = []
        for l, front in reversed(list(enumerate(self._fronts(layers, moves)))):
            times = [(time, s) for s, stairs in enumerate(front) if (time := _at(stairs, free)) is not None]
            if choice:
                times = [(time + int(moves[l][s, choice[-1]]), s) for time, s in times]
            if not times:
                return None
            choice.append(min(times)[1])
            free -= layers[l].weights[choice[-1]]
        return choice[::-1]

    def _fronts(self, layers: Sequence[EngineLayer], moves: Sequence[Integers]) -> list[Front]:
        """For every layer of a chain, the least time of the chain up to and including this layer, by the layer's strategy and
        by memory (a `Front`).

        moves: for each pair of neighbouring layers, the time in ns of redistributing activations, (strategies of the first,
        strategies of the second layer).
        """
        key = tuple(layers), b"".join(table.tobytes() for table in moves)
        if key not in self.fronts:
            nothing = np.zeros(1, np.int64)
            fronts: list[Front] = [((nothing, nothing),)]
            for layer, table in zip(layers, [np.zeros((1, len(layers[0].weights)), np.int64), *moves], strict=True):
                fronts.append(tuple(map(partial(self._next, fronts[-1], layer, table), range(len(layer.weights)))))
            self.fronts[key] = fronts[1:]
        return self.fronts[key]

    def _next(self, front: Front, layer: EngineLayer, moves: Integers, option: int) -> Staircase:
        """The least time, by memory, of a chain whose last layer, `layer`, has the strategy with index `option`.

        front: this least time for the chain without its last layer, for each strategy of the layer before. moves: time in ns
        of redistributing activations between these two layers, (strategies of the first, strategies of the second layer).
        """
        memory = np.concatenate([stairs[0] for stairs in front]) + layer.weights[option]
        time = np.concatenate([stairs[1] + move for stairs, move in zip(front, moves[:, option], strict=True)])
        fits = memory <= self.most
        memory, time = memory[fits], time[fits]
        order = np.lexsort((time, memory))
        memory, time = memory[order], time[order]
        lowest = np.minimum.accumulate(time)
        falls = np.concatenate([np.ones(min(1, len(time)), bool), lowest[1:] < lowest[:-1]])
        return memory[falls], time[falls] + layer.times[option]


def _at(stairs: Staircase, free: int) -> int | None:
    """The least time in ns within `free` MiB; None if no choice fits. stairs: amounts of memory in MiB, rising, and the least
    time in ns within each.
    """
    step = int(np.searchsorted(stairs[0], free, side="right")) - 1
    return None if step < 0 else int(stairs[1][step])
