"""The search of Galvatron's published engine (Hetu-Galvatron v2.4.0), and the optimum it can be held against.

`published_search` is DpOnModel.fit with dynamic_programming_core (csrc/dp_core.cpp), on whole MiB and nanoseconds: in every
configuration, in the order of the instance, each stage of the even partition chooses its layers' options by

    f_l(v, s) = min_s' ( f_{l-1}(v - w_l(s), s') + R(s', s) ) + c_l(s),      w_l(s) = ceil( O_ms + n O_f ) MiB,

with c the time that includes gradient synchronisation; ties go to the first option. Then the iteration time, which knows no
R and no part of that synchronisation that embedding and head hide, decides between configurations: so even in the engine's
own space and model the plan need not be optimal. f_l(., s) is kept as a staircase (the memory at which it falls, and the
time), which gives the same choices as a table of all v.

`published_optimum` takes the least `own` time of every stage, without synchronisation, over the even partition of every
configuration: the iteration time is monotone in those but for the unhidden synchronisation, which is at least nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.layer_strategies.problem import evaluate as evaluate_stage
from trainplan.formulations.layer_strategies.problem import violations as stage_violations
from trainplan.formulations.pipeline.problem import (
    Configuration,
    Instance,
    Solution,
    evaluate,
    even_partition,
    iteration_ns,
)
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.core.search import Outcome, Search, Unsuited

MIB = 2**20


@dataclass(frozen=True)
class Layer:
    """Options of one layer of a stage, relative to the least: equal layers are equal, whatever embedding and head add."""

    weights: tuple[int, ...]  # MiB
    times: tuple[int, ...]


Staircase = tuple[Integers, Integers]  # memory, rising, and time from there on, falling
Front = tuple[Staircase, ...]


def published_search(instance: Instance, search: Search) -> Outcome:
    """The engine's own plan. Option: none. Raises Unsuited for instances of another cost model."""
    if any(given.iteration != "published" for given in instance.configurations):
        raise Unsuited("command line", "--method", "is 'published' for an instance of Eq. 8", "give 'exact' or 'galvatron-bmw'")
    dp = _Dynamic(instance.memory_bytes // MIB)
    best: tuple[int, Solution] | None = None
    for place, given in enumerate(instance.configurations):
        if search.out_of_time():
            break
        partition = even_partition(instance.layers, given.stages)
        choice = _even_choice(instance, given, partition, dp)
        if choice is None:
            continue
        solution = Solution(place, partition, choice)
        time = evaluate(instance, solution).time_ns
        if best is None or time < best[0] - _rounding_ns(instance, best[1]) - _rounding_ns(instance, solution):
            best = time, solution
            search.report(solution)
    return Outcome(choice=best[1] if best else None, statistics={"stages": len(dp.fronts)})


def _rounding_ns(instance: Instance, solution: Solution) -> int:
    """What rounding every layer to nanoseconds may make of a time: configurations that tie for the engine shall tie."""
    return instance.configurations[solution.configuration].micro_batches * (instance.layers + 2) // 2


def _even_choice(instance: Instance, given: Configuration, partition: Sequence[int], dp: _Dynamic) -> tuple[int, ...] | None:
    """The options of all layers, None where a stage does not fit."""
    moves, first, found = given.tables.transitions_ns, 0, []
    for stage, count in enumerate(partition):
        kinds = instance.layer_kinds[first : first + count]
        boundaries = instance.boundary_kinds[first : first + count - 1]
        held = -(-int(given.tables.backward_bytes[list(kinds)].max()) // MIB)
        layers = [_relative(given, kind, given.in_flight(stage)) for kind in kinds]
        free = instance.memory_bytes // MIB - held - sum(least for _, least in layers)
        choice = dp.choose([layer for layer, _ in layers], [moves[kind] for kind in boundaries], free)
        if choice is None:
            return None
        found += choice
        first += count
    return tuple(found)


def _relative(given: Configuration, kind: int, in_flight: int) -> tuple[Layer, int]:
    """A layer's options and the least MiB among them, which every option has on top."""
    tables = given.tables
    weights = -(-(tables.state_bytes[kind] + in_flight * tables.forward_bytes[kind]) // MIB)
    times = tables.time_ns[kind]
    return Layer(tuple((weights - weights.min()).tolist()), tuple((times - times.min()).tolist())), int(weights.min())


class _Dynamic:
    """Staircases of chains of layers, kept by what they depend on. most: MiB beyond which none is needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.fronts: dict[tuple[tuple[Layer, ...], bytes], list[Front]] = {}

    def choose(self, layers: Sequence[Layer], moves: Sequence[Integers], free: int) -> list[int] | None:
        """The engine's choice for layers that may take `free` MiB in all; None where there is none."""
        if free < 0:
            return None
        fronts = self._fronts(layers, moves)
        times = [_at(stairs, free) for stairs in fronts[-1]]
        if all(time is None for time in times):
            return None
        option, choice = _first_least(times), []
        for l in range(len(layers) - 1, 0, -1):
            choice.append(option)
            free -= layers[l].weights[option]
            before = [_at(stairs, free) for stairs in fronts[l - 1]]
            option = _first_least([None if t is None else t + int(moves[l - 1][s, option]) for s, t in enumerate(before)])
        return [*reversed([*choice, option])]

    def _fronts(self, layers: Sequence[Layer], moves: Sequence[Integers]) -> list[Front]:
        key = tuple(layers), b"".join(table.tobytes() for table in moves)
        if key not in self.fronts:
            fronts = [tuple(self._start(w, c) for w, c in zip(layers[0].weights, layers[0].times, strict=True))]
            for layer, table in zip(layers[1:], moves, strict=True):
                fronts.append(tuple(map(partial(self._next, fronts[-1], layer, table), range(len(layer.weights)))))
            self.fronts[key] = fronts
        return self.fronts[key]

    def _start(self, weight: int, time: int) -> Staircase:
        fits = weight <= self.most
        return np.array([weight] * fits, np.int64), np.array([time] * fits, np.int64)

    def _next(self, front: Front, layer: Layer, moves: Integers, option: int) -> Staircase:
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


def _first_least(times: Sequence[int | None]) -> int:
    return min((time, s) for s, time in enumerate(times) if time is not None)[1]


def published_optimum(instance: Instance, search: Search) -> Outcome:
    """Optimal over the even partition of every configuration, proved where the bound says so. Option: none."""
    bounds, infeasible = [], True
    for place, given in enumerate(instance.configurations):
        if search.out_of_time():
            return Outcome()
        spans = _spans(even_partition(instance.layers, given.stages))
        bound = _bound(given, [_least_own(given, instance.layer_kinds, span) for span in spans])
        if search.objective is None or bound < search.objective:
            found = _least(instance, place, spans, search)
            if found is None:
                continue
            bound, infeasible = found, False
        bounds.append(bound)
    if infeasible:
        return Outcome(infeasible=True, bound_source="least memory over all stages")
    search.report(bound=min(bounds, default=0))
    return Outcome(bound=search.bound, bound_source="least own time of every stage")


def _least(instance: Instance, place: int, spans: Sequence[range], search: Search) -> int | None:
    """The bound of one configuration, having reported what reaches it; None where a stage does not fit.

    Two sums are minimised, own time alone and with synchronisation: without a pipeline, the larger of the two bounds is that of
    the larger of two sums, m C and m C + G - e.
    """
    given = instance.configurations[place]
    tables = given.tables
    silent = replace(tables, time_ns=tables.time_ns - tables.sync_ns, sync_ns=0 * tables.sync_ns)
    alone = replace(instance, configurations=(replace(given, tables=silent),))
    bound, partition = 0, tuple(len(span) for span in spans)
    for problem, number in ((alone, 0), (instance, place)):
        weight = given.micro_batches if given.stages == 1 else 1
        stages = [problem.stage(number, i, span[0], span[-1], weight) for i, span in enumerate(spans)]
        found = [_exact(stage, search) for stage in stages]
        if any(part is None for part in found):
            return None
        choice = tuple(option for part in found if part for option in part[1])
        search.report(Solution(place, partition, choice))
        sums = [part[0] for part in found if part]
        if problem is alone:
            bound = _bound(given, [total // weight for total in sums])
            if search.objective is not None and bound >= search.objective:
                break
        elif given.stages == 1:
            bound = max(bound, sums[0] - sum(given.ends_ns))
    return bound


def _exact(stage: StageInstance, search: Search) -> tuple[int, tuple[int, ...]] | None:
    """Least time of a stage, or a bound of it where time ran out, and a choice; None where it does not fit."""

    def objective(choice: Sequence[int]) -> int | None:
        return None if stage_violations(stage, choice) else evaluate_stage(stage, choice).objective

    limit = None if search.time_limit is None else search.remaining()
    inner = Search(objective, limit)
    outcome = label_setting(stage, inner)
    if outcome.infeasible or inner.best is None or inner.objective is None:
        return None
    proven = inner.objective if inner.bound is None else min(inner.bound, inner.objective)
    return proven, tuple(int(s) for s in inner.best)


def _spans(partition: Sequence[int]) -> list[range]:
    ends = np.cumsum(partition).tolist()
    return [range(end - count, end) for end, count in zip(ends, partition, strict=True)]


def _least_own(given: Configuration, kinds: Sequence[int], span: range) -> int:
    own = (given.tables.time_ns - given.tables.sync_ns).min(axis=1)
    return int(sum(own[kinds[l]] for l in span))


def _bound(given: Configuration, own_ns: Sequence[int]) -> int:
    """The iteration time without synchronisation."""
    return iteration_ns(replace(given, ends_ns=(0, 0)), own_ns, [0] * len(own_ns))
