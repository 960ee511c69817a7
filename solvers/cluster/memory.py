"""The reason for users where no cluster strategy fits: the strategy with the least excess of memory, exactly, and what to
change.

P is the number of stages, gas_i the number of micro-batches of pipeline i, tmp the devices of a tensor-parallel group. Whether
all excesses can be at most E depends on the devices only by how many groups have how much memory. Groups of devices sorted by
memory, tmp at a time, are best: for every v they have the fewest groups with a device of at most v bytes. Slots (stage j,
pipeline i) with a need fit on them exactly where, for every v, no more slots need more than v + E than there are groups with
more than v (both sorted, one by one). So a path over stages, of spans of layers, counts its slots above each v; paths with more
of every count are dropped.

With uneven shares memory depends on min(gas_i, P - j) alone. Where one pipeline has P micro-batches or more, the others may as
well have one each; otherwise every pipeline has less than P, and all these shares are tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.problem import Solution, evaluate
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import enough_bytes, plural
from trainplan.solvers.core.result import Infeasibility

Spans = list[tuple[int, int]]
Counts = dict[tuple[int, ...], tuple[int, tuple[int, ...]]]  # slots above each level, with first layer and counts before


def explain(instance: Instance) -> Infeasibility | None:
    """The reason, for users, why no cluster strategy fits the memory; None if one fits or there is no memory limit. Raises
    InputError if no strategy exists at all, because no degrees of parallelism use all devices.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    every = list(instance.degrees())
    if not every:
        raise _without_strategy(instance)
    if not instance.within_memory:
        return None
    packings = [
        _Packing(DegreeCase(instance, degrees), shares)
        for degrees in every
        for shares in _shares(DegreeCase(instance, degrees))
    ]
    if any(packing.spans(0) is not None for packing in packings):
        return None
    least, best = None, packings[0]
    for packing in packings:
        if least is None or packing.spans(least - 1) is not None:
            least, best = packing.least_excess(least), packing
    assert least is not None
    return _reason(instance, best, least)


def _without_strategy(instance: Instance) -> InputError:
    """The error for users that no degrees of parallelism use all devices; it names the least batch, or the number of layers or
    devices, with which some do. The caller raises it.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    devices, layers = instance.devices, instance.layers
    possible = [
        (mbs * dp, f"{plural(dp, 'pipeline')} of {plural(devices // tmp // dp, 'stage')} with micro-batches of {mbs}")
        for tmp, mbs in instance.tables
        for dp in range(1, devices // tmp + 1)
        if devices % (tmp * dp) == 0
        and devices // tmp // dp <= layers
        and instance.allows_degree(tmp)
        and instance.allows_degree(dp)
    ]
    machine, most = plural(devices, "device"), plural(layers, "stage")
    if not possible:
        odd = devices // (devices & -devices) if instance.powers_of_two else 1  # no power of two takes it
        degrees = ", ".join(map(str, sorted(instance.shards)))
        problem = f"have tmp {degrees}, with which {machine} make no pipelines of at most {most}"
        fix = f"give {odd} layers or more" if odd > layers else f"give one that does, such as {devices // odd}, with tables"
        return InputError("instance", "shards", problem, fix)
    batch, example = min(possible)
    problem = f"is {instance.batch}, which pipelines of at most {most} on {machine} do not share out"
    return InputError("instance", "batch", problem, f"give {batch}: {example}")


def _shares(case: DegreeCase) -> Iterator[tuple[int, ...]]:
    """Yield shares of the batch (numbers of micro-batches of each pipeline), such that one of the yielded shares needs the
    least memory among all possible shares. case: the instance with one choice of degrees of parallelism."""
    instance, degrees, total = case.instance, case.degrees, case.micro_batches
    even = instance.even_shares(degrees.dp, degrees.mbs)
    assert even is not None
    yield even
    if len(case.share_choices) == 1 or len({instance.kinds[kind].memory_bytes for kind in instance.device_kinds}) == 1:
        return  # of equal devices the pipeline with the largest share decides
    if total - degrees.dp + 1 >= degrees.pp:
        yield (total - degrees.dp + 1, *[1] * (degrees.dp - 1))
    yield from _partitions(total, degrees.dp, degrees.pp - 1)


def _partitions(total: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write the number `total` as a sum of `parts` numbers, each from 1 to `most` and none larger than the
    one before it. (5, 2, 4) -> (4, 1), (3, 2)."""
    if parts == 0:
        if total == 0:
            yield ()
        return
    for first in range(min(most, total - parts + 1), -(-total // parts) - 1, -1):
        for rest in _partitions(total - first, parts - 1, first):
            yield (first, *rest)


class _Packing:
    """Degrees of parallelism with given shares of the batch: finds stages that would fit if every device had a given number of
    bytes more (the excess).

    Slots are pairs (stage, pipeline), each to be held by a tensor-parallel group; groups are formed of devices sorted by
    memory. devices: (groups, tmp), the devices of each group; limits: (groups,), the memory in bytes of its smallest device,
    falling. levels: the distinct limits; groups_above: for each level, the number of groups with more memory. needs: for each
    stage, pairs of the peak bytes of all spans of layers and the number of pipelines that need them."""

    def __init__(self, case: DegreeCase, shares: tuple[int, ...]) -> None:
        self.case, self.shares, degrees = case, shares, case.degrees
        instance = case.instance
        memory = np.array([instance.kinds[kind].memory_bytes for kind in instance.device_kinds])
        self.devices = np.argsort(-memory, kind="stable").reshape(-1, degrees.tmp)
        self.limits = memory[self.devices].min(axis=1)  # of the groups, falling
        self.levels = np.unique(self.limits)[::-1]
        self.groups_above = [int((self.limits > level).sum()) for level in self.levels]
        peaks_of = cache(case.peak_bytes)
        self.needs = []  # of every stage: bytes for a number of micro-batches in flight, and the pipelines with it
        for j in range(degrees.pp):
            in_flight, pipelines = np.unique([case.in_flight(share, j) for share in shares], return_counts=True)
            self.needs.append([(peaks_of(n), int(many)) for n, many in zip(in_flight.tolist(), pipelines, strict=True)])

    def spans(self, excess: int) -> Spans | None:
        """Stages, each as layers [first, end), with which no device lacks more than `excess` bytes of memory; None if there are
        no such stages. excess: in bytes."""
        layers = self.case.instance.layers
        counts: list[dict[int, Counts]] = [{0: {(0,) * len(self.levels): (0, ())}}]
        for j, needs in enumerate(self.needs):
            lacking = [[many * (peaks > level + excess) for peaks, many in needs] for level in self.levels]
            above = np.array(lacking).sum(axis=1)  # (levels, L + 1, L + 1)
            reached: dict[int, Counts] = {}
            for a, b in self.case.spans(j):
                for before in counts[-1].get(a, ()):
                    above_here = tuple(map(int, above[:, a, b] + before))
                    if all(slots <= groups for slots, groups in zip(above_here, self.groups_above, strict=True)):
                        _keep(reached.setdefault(b, {}), above_here, (a, before))
            counts.append(reached)
        if layers not in counts[-1]:
            return None
        path, end, above_here = [], layers, next(iter(counts[-1][layers]))
        for reached in reversed(counts[1:]):
            first, above_here = reached[end][above_here]
            path.append((first, end))
            end = first
        return path[::-1]

    def least_excess(self, most: int | None) -> int:
        """The least number of bytes by which the memory of every device must grow for some stages to fit. most: a number that
        is known to suffice, or None."""
        if most is None:
            most = int(max(peaks.max() for needs in self.needs for peaks, _ in needs))
        return bisect_left(range(most), True, key=lambda excess: self.spans(excess) is not None)

    def solution(self, excess: int) -> Solution:
        """A strategy in which no device lacks more than `excess` bytes: stages and pipelines that need most memory are put on
        the groups of devices that have most. `spans` must have found stages for this excess."""
        degrees, spans = self.case.degrees, self.spans(excess)
        assert spans is not None
        peaks = self.case.instance.placed(degrees, range(self.case.instance.devices)).peak_bytes
        cuts = tuple(first for first, _ in spans[1:])
        order = np.argsort(-peaks(cuts, self.shares), axis=None, kind="stable")
        grid = np.empty_like(self.devices)
        grid[order] = self.devices
        return Solution(degrees, tuple(map(int, grid.reshape(-1))), cuts, self.shares)


def _keep(frontier: Counts, counts: tuple[int, ...], origin: tuple[int, tuple[int, ...]]) -> None:
    """Add a path over stages to a Pareto front of paths, which is changed, unless another path in it needs at most as many
    groups at every level; drop the paths that need at least as many as the new one at every level. A path is a choice of the
    first stages.

    frontier: the Pareto front, from each path's counts to its origin. counts: for each level of memory, the number of slots
    (stage, pipeline) so far that need a group with more memory. origin: the first layer of the path's last stage, and the
    counts before that stage."""
    if any(all(x <= y for x, y in zip(other, counts, strict=True)) for other in frontier):
        return
    for other in [other for other in frontier if all(x <= y for x, y in zip(counts, other, strict=True))]:
        del frontier[other]
    frontier[counts] = origin


def _reason(instance: Instance, packing: _Packing, excess: int) -> Infeasibility:
    """The reason, for users, why no strategy fits the memory: it describes the stage that lacks most memory in the strategy
    that comes closest to fitting. packing: degrees of parallelism and shares of the batch of that strategy. excess: the bytes
    by which the memory of every device would have to grow for it to fit.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    solution = packing.solution(excess)
    stages = evaluate(instance, solution).stages
    number = max(range(len(stages)), key=lambda j: stages[j].peak_bytes - stages[j].limit_bytes)
    worst = stages[number]
    assert worst.peak_bytes - worst.limit_bytes == excess
    shard = instance.shards[solution.degrees.tmp]
    states = int(shard.state_bytes[worst.first : worst.last + 1].sum())
    advice = [f"give the smallest device of that stage {enough_bytes(excess)} more"]
    if states > worst.limit_bytes:
        advice.append("use a --cluster of more devices: the model states alone do not fit")
    else:
        advice.append(f"take a smaller --batch than {instance.batch}, --recompute, or a --cluster of more devices")
    return Infeasibility(
        worst.limit_bytes,
        worst.peak_bytes,
        worst.last,
        f"{instance.layer_names[worst.last]} in stage {number} of {solution.degrees}",
        states,
        worst.peak_bytes - states,
        tuple(advice),
    )
