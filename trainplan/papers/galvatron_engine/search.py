"""The engine's own search: DpOnModel.fit with dynamic_programming_core (csrc/dp_core.cpp), on whole MiB and nanoseconds.

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
    """Options of one layer of a stage, relative to the least: equal layers are equal, whatever embedding and head add."""

    weights: tuple[int, ...]  # MiB
    times: tuple[int, ...]


Staircase = tuple[Integers, Integers]  # memory, rising, and time from there on, falling
Front = tuple[Staircase, ...]


def published_search(instance: Instance, search: Search) -> Outcome:
    """The engine's own plan. It has no options, and proves nothing."""
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
    """What rounding every layer to nanoseconds may make of a time: configurations that tie for the engine shall tie."""
    return instance.configurations[solution.configuration].micro_batches * (instance.layers + 2) // 2


def _even_choice(
    instance: Instance, configuration: Configuration, partition: Sequence[int], dynamic: _Dynamic
) -> tuple[int, ...] | None:
    """The options of all layers, None where a stage does not fit."""
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
    """A layer's options and the least MiB among them, which every option has on top."""
    tables = configuration.tables
    weights = -(-(tables.state_bytes[kind] + in_flight * tables.forward_bytes[kind]) // MIB)
    times = tables.time_ns[kind]
    return EngineLayer(tuple((weights - weights.min()).tolist()), tuple((times - times.min()).tolist())), int(weights.min())


class _Dynamic:
    """Staircases of chains of layers, kept by what they depend on. most: MiB beyond which none is needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.fronts: dict[tuple[tuple[EngineLayer, ...], bytes], list[Front]] = {}

    def choose(self, layers: Sequence[EngineLayer], moves: Sequence[Integers], free: int) -> list[int] | None:
        """The engine's choice for layers that may take `free` MiB in all; None where there is none."""
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
        key = tuple(layers), b"".join(table.tobytes() for table in moves)
        if key not in self.fronts:
            nothing = np.zeros(1, np.int64)
            fronts: list[Front] = [((nothing, nothing),)]
            for layer, table in zip(layers, [np.zeros((1, len(layers[0].weights)), np.int64), *moves], strict=True):
                fronts.append(tuple(map(partial(self._next, fronts[-1], layer, table), range(len(layer.weights)))))
            self.fronts[key] = fronts[1:]
        return self.fronts[key]

    def _next(self, front: Front, layer: EngineLayer, moves: Integers, option: int) -> Staircase:
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
    step = int(np.searchsorted(stairs[0], free, side="right")) - 1
    return None if step < 0 else int(stairs[1][step])
