"""Every solution, one after the other: the judge of tiny instances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, count, pairwise, product
from math import comb, factorial, prod
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.problem import Degrees
from trainplan.formulations.cluster_strategy.problem import Instance as ClusterInstance
from trainplan.formulations.cluster_strategy.problem import Solution as Strategy
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import Integers, evaluate
from trainplan.formulations.memory_switches.problem import Instance as SwitchesInstance
from trainplan.formulations.memory_switches.problem import Solution as AllSwitches
from trainplan.formulations.memory_switches.problem import matrix
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.memory_switches.simulation import simulate
from trainplan.formulations.pipeline.problem import Configuration, Solution, even_partition, iteration_ns, stage_costs
from trainplan.formulations.pipeline.problem import Instance as PipelineInstance
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.pipeline_partition.problem import Solution as Partition
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.formulations.stage_assignment.problem import Solution as Assignment
from trainplan.solvers.core.search import Outcome, Search, Unsuited

LARGEST = 2_000_000
LARGEST_FORCED = 20_000_000  # switches of a synchronised step, which are looked at thousands at once: 4 layers
LARGEST_FREE = 128**3  # where the whole step is simulated: 3 layers
EVERY = 4096  # solutions between two looks at the clock

Stages = list[tuple[int, int, tuple[int, ...]]]
Instance = StageInstance | PipelineInstance | AssignmentInstance | PartitionInstance | ClusterInstance | SwitchesInstance


def brute_force(instance: Instance, search: Search) -> Outcome:
    """The optimum of an instance with at most two million solutions (memory-switches: twenty million where synchronisation is
    forced, else 128^3). Raises Unsuited for a larger one."""
    known, largest = _solutions(instance), _largest(instance)
    if known > largest:
        shown = f"{known:.3g}" if known < 10**300 else "over 1e300"
        fix = f"give 'exact'; brute force takes {largest / 1e6:.0f}e6"
        raise Unsuited("command line", "--method", f"is 'brute-force' for {shown} choices", fix)
    try:
        if isinstance(instance, ClusterInstance):
            _each_strategy(instance, search)
        elif isinstance(instance, PipelineInstance):
            _each_solution(instance, search)
        elif isinstance(instance, AssignmentInstance):
            _each_cuts(Assignment, instance.layers, instance.stages, search)
        elif isinstance(instance, PartitionInstance):
            _each_cuts(Partition, instance.sublayers, instance.stages, search)
        elif isinstance(instance, SwitchesInstance):
            (_each_forced if instance.forced else _each_free)(instance, search)
        else:
            _each_choice(instance, search)
    except TimeoutError:
        return Outcome(message="time ran out")
    if search.objective is None:
        return Outcome(infeasible=True, bound_source="enumeration of all choices")
    search.report(bound=search.objective)
    return Outcome(bound=search.objective, bound_source="enumeration of all choices")


def _largest(instance: Instance) -> int:
    if isinstance(instance, SwitchesInstance):
        return LARGEST_FORCED if instance.forced else LARGEST_FREE
    return LARGEST


def _solutions(instance: Instance) -> int:
    if isinstance(instance, SwitchesInstance):
        return len(instance.options) ** instance.layers
    if isinstance(instance, AssignmentInstance):
        return comb(instance.layers - 1, instance.stages - 1)
    if isinstance(instance, PartitionInstance):
        return comb(instance.sublayers - 1, instance.stages - 1)
    if isinstance(instance, ClusterInstance):
        placements = factorial(instance.devices) // prod(factorial(int(size)) for size in np.bincount(instance.classes))
        return placements * sum(
            comb(instance.layers - 1, given.pp - 1) * _ways_to_share(instance, given) for given in instance.degrees()
        )
    if not isinstance(instance, PipelineInstance):
        return prod(instance.options)
    cuts = instance.layers - 1
    return sum(
        comb(cuts, given.stages - 1) * len(given.tables.strategies) ** instance.layers for given in instance.configurations
    )


def _each_choice(instance: StageInstance, search: Search) -> None:
    for number, choice in enumerate(product(*(range(options) for options in instance.options))):
        _look(number, search)
        result = evaluate(instance, choice)
        if result.peak_bytes <= instance.memory_bytes and (search.objective is None or result.time_ns < search.objective):
            search.report(choice)


def _each_cuts(solution: type[Assignment] | type[Partition], layers: int, stages: int, search: Search) -> None:
    for number, cuts in enumerate(combinations(range(1, layers), stages - 1)):
        _look(number, search)
        search.report(solution(cuts))


def _each_solution(instance: PipelineInstance, search: Search) -> None:
    number = count()
    for place, given in enumerate(instance.configurations):

        @cache
        def stages(stage: int, first: int, end: int, given: Configuration = given) -> Stages:
            """Time, synchronisation and choice of every way to run a stage in the memory; one choice of equal ones."""
            found = {}
            for choice in product(range(len(given.tables.strategies)), repeat=end - first):
                _look(next(number), search)
                costs = stage_costs(instance, given, stage, first, choice)
                if costs.peak_bytes <= instance.memory_bytes:
                    found[costs.time_ns, costs.sync_ns] = choice
            return [(*costs, choice) for costs, choice in found.items()]

        for cuts in combinations(range(1, instance.layers), given.stages - 1):
            spans = list(pairwise((0, *cuts, instance.layers)))
            sizes = tuple(end - first for first, end in spans)
            if given.iteration == "published" and sizes != even_partition(instance.layers, given.stages):
                continue
            for plan in product(*(stages(stage, *span) for stage, span in enumerate(spans))):
                _look(next(number), search)
                times, syncs, choices = zip(*plan, strict=True)
                time = iteration_ns(given, times, syncs)
                if search.objective is None or time < search.objective:
                    search.report(Solution(place, sizes, sum(choices, ())))


def _ways_to_share(instance: ClusterInstance, given: Degrees) -> int:
    return comb(instance.batch // given.mbs - 1, given.dp - 1) if instance.uneven_shares else 1


def _each_strategy(instance: ClusterInstance, search: Search) -> None:
    """Of placements that differ by an exchange of pipelines, or of devices of one class, one; all cuts and shares at once."""
    number = count()
    for given in instance.degrees():
        total = instance.batch // given.mbs
        shares = [(total // given.dp,) * given.dp]
        if instance.uneven_shares:
            shares = [
                tuple(after - before for before, after in pairwise((0, *borders, total)))
                for borders in combinations(range(1, total), given.dp - 1)
            ]
        cuts = list(combinations(range(1, instance.layers), given.pp - 1))
        plain = instance.placed(given, range(instance.devices))
        peaks = np.array([[plain.peak_bytes(own, parts) for parts in shares] for own in cuts])
        for placement in _placements(instance, given):
            _look(next(number) * EVERY, search)
            placed = instance.placed(given, placement)
            times = np.array([placed.stage_ns(own) for own in cuts])
            moves = np.array([placed.transfer_ns[range(given.pp - 1), :, [c - 1 for c in own]].sum(axis=0) for own in cuts])
            sync = [max(placed.sync_ns(j, a, b - 1) for j, (a, b) in enumerate(_spans(own, instance))) for own in cuts]
            slowest, once = times.max(axis=1)[:, None], (times.sum(axis=1) + moves)[:, None]
            found = ((np.array(shares) - 1) * slowest + once).max(axis=2) + np.array(sync)[:, None]
            if instance.within_memory:
                fits = (peaks <= placed.limits_bytes).all(axis=(2, 3))
                if not fits.any():
                    continue
                found = np.where(fits, found, found.max() + 1)
            row, column = np.unravel_index(found.argmin(), found.shape)
            if search.objective is None or found[row, column] < search.objective:
                search.report(Strategy(given, placement, cuts[row], shares[column]))


def _spans(cuts: tuple[int, ...], instance: ClusterInstance) -> Iterator[tuple[int, int]]:
    return pairwise((0, *cuts, instance.layers))


def _placements(instance: ClusterInstance, given: Degrees) -> Iterator[tuple[int, ...]]:
    members = [np.flatnonzero(instance.classes == c).tolist() for c in range(int(instance.classes.max()) + 1)]

    def continued(left: tuple[int, ...], taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not any(left):
            grid = np.array(taken).reshape(given.pp, given.dp, given.tmp)
            pipelines = [grid[:, i].ravel().tolist() for i in range(given.dp)]
            if pipelines == sorted(pipelines):
                yield taken
            return
        for c, rest in enumerate(left):
            if rest:
                yield from continued((*left[:c], rest - 1, *left[c + 1 :]), (*taken, c))

    for classes in continued(tuple(map(len, members)), ()):
        waiting = [iter(own) for own in members]
        yield tuple(next(waiting[c]) for c in classes)


def _each_forced(instance: SwitchesInstance, search: Search) -> None:
    """From the tables of the segments, all switches of the layers but the first at once; what is best is simulated."""
    chain, layers, options = segments(instance), instance.layers, range(len(instance.options))
    others = np.ix_(*[options] * (layers - 1))

    def costs(i: int, choice: tuple[Any, ...]) -> tuple[Any, ...]:
        """Time, peak, delta and resident bytes of layer i, over the options of layers i - 1 to i + 1."""
        own = choice[i]
        place = (i, chain.r[choice[i - 1]] if i else 0, own, chain.lazy[choice[i + 1]] if i + 1 < layers else 0)
        return chain.time_ns[place], chain.peak_bytes[place], chain.delta_bytes[i, own], chain.resident_bytes[i, own]

    of_later = [costs(i, (0, *others)) for i in range(2, layers)]
    best = None
    for first in options:
        _look(0, search)
        near = [costs(i, (first, *others)) for i in range(min(2, layers))]
        time: Any = 0
        peak: Any = 0
        held = resident = 0
        for own_time, own_peak, delta, own_resident in near + of_later:
            peak = np.maximum(peak, held + own_peak)
            time, held, resident = time + own_time, held + delta, resident + own_resident
        time, fits = np.broadcast_arrays(time, peak + resident <= instance.memory_bytes)
        if fits.any():
            found = np.where(fits, time, time.max() + 1)
            place = np.unravel_index(found.argmin(), found.shape)
            if best is None or found[place] < best:
                best = int(found[place])
                search.report(AllSwitches(tuple(instance.options[int(s)] for s in (first, *place))))
                assert search.objective == best  # the whole step takes as long as its segments


def whole_steps(instance: SwitchesInstance) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Every choice, thousands at once: options of all layers (K, N), and time and peak of the whole step, simulated."""
    on = matrix([AllSwitches(instance.options)])[0]
    shape, count = (len(on),) * instance.layers, len(on) ** instance.layers
    for begin in range(0, count, EVERY):
        choices = np.stack(np.unravel_index(np.arange(begin, min(begin + EVERY, count)), shape), axis=1)
        yield choices, *simulate(instance.columns, instance.nvlink, on[choices])


def _each_free(instance: SwitchesInstance, search: Search) -> None:
    """The whole step of every choice, simulated thousands at once."""
    for choices, time, peak in whole_steps(instance):
        _look(0, search)
        fits = np.flatnonzero(peak <= instance.memory_bytes)
        if len(fits):
            best = fits[time[fits].argmin()]
            if search.objective is None or time[best] < search.objective:
                search.report(AllSwitches(tuple(instance.options[int(own)] for own in choices[best])))


def _look(number: int, search: Search) -> None:
    if number % EVERY == 0 and search.out_of_time():
        raise TimeoutError
