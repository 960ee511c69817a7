"""The cheapest single pipeline through a cluster: a dynamic program over stages, under falling caps.

The least of (gas - 1) M + S + D over walks through the graph of groups (see `group_graph`), one node a stage: gas is the number
of micro-batches, S the time of one micro-batch through all stages, M the slowest stage, D the slowest all-reduce of gradients.
Under caps on M and D the least S is a shortest path,

    S_j(node, weight, end) = min over first and nodes before of  S_{j-1}(before, weight', first) + transfer + t(first .. end-1),

where stages beyond a cap or their memory are left out. The caps are swept by branch and bound over boxes of (M, D), see `Box`:
boxes are halved until none is below the best path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heappop, heappush
from itertools import count

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.formulations.cluster_strategy.placement_costs import Integers
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.cluster.group_graph import GroupGraph, TooLong, graphs

Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

# Of a stage: S before it by (node, weight, first layer), times of spans by profile and link, S after it by its end.
Stage = tuple[Integers, dict[tuple[int, int], Integers], Integers]

FAR = np.int64(2**60)
MOST_STATES = 20_000  # nodes times weights; beyond, weights are left out


@dataclass(frozen=True)
class Path:
    """One pipeline, found as a walk through the graph of device groups (one node per stage). slowest: the time in ns of its
    slowest stage; through: the time in ns of one micro-batch through all stages; sync: the time in ns of its slowest gradient
    all-reduce. cuts: the first layer of every stage but the first. visits: the orbits (sets of device classes that may be
    exchanged as a whole) that it enters, in order."""

    slowest: int
    through: int
    sync: int
    cuts: tuple[int, ...]
    visits: tuple[int, ...]

    def time_ns(self, micro_batches: int) -> int:
        """The pipeline's time in ns for a step with this number of micro-batches: the first micro-batch passes through all
        stages, each further one adds the time of the slowest stage, and the slowest gradient all-reduce follows. micro_batches:
        the number of micro-batches."""
        return (micro_batches - 1) * self.slowest + self.through + self.sync


@dataclass(frozen=True)
class Box:
    """A set of pipelines, as a node of branch and bound: those whose slowest stage time M and slowest all-reduce time D are in
    given ranges, and whose micro-batches are known to take at least `through` ns through all stages.

    low, high: first and last index of M in the sorted list of its possible values; lower, upper: first and last index of D in
    the sorted list of its possible values.
    """

    low: int
    high: int
    lower: int
    upper: int
    through: int


def box_bound_ns(box: Box, slow: Integers, syncs: Integers, micro_batches: int) -> int:
    """A lower bound in ns on the step time of all pipelines in a box (a set of pipelines given by ranges of their times): the
    least slowest stage of the box for all micro-batches but one, one micro-batch through all stages, and the least all-reduce
    of the box.

    micro_batches: the number of micro-batches in the pipeline's share of the batch. slow, syncs: the possible values in ns of
    the slowest stage's time and of the slowest all-reduce, ascending; the box refers to them by index."""
    return (micro_batches - 1) * int(slow[box.low]) + box.through + int(syncs[box.lower])


def followed(case: DegreeCase, stop: Callable[[], bool]) -> PipelineSearch | None:
    """Build the search for the cheapest single pipeline through a cluster, for one choice of degrees of parallelism; None if
    there are too many groups of devices, or `stop` returns True before the graph of device groups is built.

    case: the instance with these degrees, reduced: groups of devices that differ only by an exchange of equal classes of
    devices are listed only once. stop: returns whether to give up."""
    if not case.enumerable:
        return None
    try:
        return PipelineSearch(case, stop)
    except TooLong:
        return None


class PipelineSearch:
    """The search for the cheapest pipeline of a reduced case: an instance with given degrees of parallelism, in which groups of
    devices that differ only by an exchange of equal classes of devices are listed only once. Raises TooLong if its graph is too
    large.

    Weights of devices are the ranks of their kinds by speed, 0 the fastest; a pipeline's weight is the sum over its devices.
    whole_weight: the weight of all devices; most_weight: an upper bound on the weight of a pipeline. walks: a search for each
    graph of device groups that a pipeline may go through.
    """

    def __init__(self, case: DegreeCase, stop: Callable[[], bool] = lambda: False) -> None:
        self.case, instance, degrees = case, case.instance, case.degrees
        slowest = case.micro_batches * float(case.layer_ns.sum(axis=1, dtype=np.float64).max())
        slowest += degrees.pp * float(case.transfer_ns.max(initial=0))
        if (step := slowest + float(case.sync_ns.max()) + max(case.tied_ns, default=0)) > FAR // 4:
            raise InputError("instance", "network", f"makes steps take {step:.3g} ns", "give faster links")
        speed = instance.tables[degrees.tmp, degrees.mbs].layer_ns.sum(axis=1)
        ranks = {int(value): index for index, value in enumerate(sorted({int(speed[k]) for k in instance.class_kinds}))}
        weights = [ranks[int(speed[kind])] for kind in instance.class_kinds]
        self.whole_weight = sum(weight * size for weight, size in zip(weights, case.counts, strict=True))
        self.most_weight = min(self.whole_weight, max(weights) * degrees.pp * degrees.tmp)
        self.walks = [WalkSearch(case, graph) for graph in graphs(case, weights, stop)]

    def least(
        self, micro_batches: int, weight: int, cutoff: int | None, stop: Callable[[], bool], first: bool = False
    ) -> tuple[int, Path | None]:
        """A lower bound in ns on the step time of any pipeline whose devices have at least a given weight (slow devices weigh
        more), and the cheapest such pipeline. The step is (micro_batches - 1) M + S + D, with M the slowest stage, S one
        micro-batch through all stages, and D the slowest all-reduce.

        micro_batches: the number of micro-batches that the pipeline takes. weight: the least sum of its devices' weights.
        cutoff: only pipelines faster than this, in ns, are of interest; None for no cutoff. stop: returns whether to end early.
        first: end with the first pipeline found below the cutoff, which need not be the cheapest. The pipeline is None if none
        is below the cutoff, or if the search was stopped."""
        bounds, path = list[int](), None
        for walks in self.walks:
            bound, cheaper = walks.least(micro_batches, weight, cutoff, stop, first)
            bounds.append(bound)
            if cheaper is not None:
                path, cutoff = cheaper, bound
                if first:
                    break
        return min(bounds), path


class WalkSearch:
    """The search for the cheapest walk through one graph of device groups: one node (a type of tensor-parallel groups with its
    ring for gradient reduction) for each pipeline stage. case: the instance with one choice of degrees of parallelism. L is the
    number of layers; a profile stands for tensor-parallel groups with equal times and memory. FAR stands for infinite times.
    """

    def __init__(self, case: DegreeCase, graph: GroupGraph) -> None:
        self.case, self.graph = case, graph
        self.layers, self.stages = case.instance.layers, case.degrees.pp
        self._peaks = cache(case.peak_bytes)

    @cached_property
    def costs(self) -> Integers:
        """The time in ns of layers [first, end) on every profile of tensor-parallel groups (groups of equal cost): (profiles, L
        + 1, L + 1), L layers; FAR (infinite) for empty spans."""
        sums = self.case.times
        spans = sums[:, None, :] - sums[:, :, None]
        return np.where(np.tri(self.layers + 1, dtype=bool).T & ~np.eye(self.layers + 1, dtype=bool), spans, FAR)

    def least(
        self, micro_batches: int, weight: int, cutoff: int | None, stop: Callable[[], bool], first: bool = False
    ) -> tuple[int, Path | None]:
        """A lower bound in ns on the step time of any walk through this graph whose devices have at least a given weight (slow
        devices weigh more), and the cheapest such walk as a path.

        micro_batches: the number of micro-batches that the pipeline takes. weight: the least sum of the devices' weights.
        cutoff: only walks faster than this, in ns, are of interest; None for no cutoff. stop: returns whether to end early.
        first: end with the first walk found below the cutoff, which need not be the cheapest. The path is None if none is below
        the cutoff, or if the search was stopped."""
        weight = weight if len(self.graph.types) * (weight + 1) <= MOST_STATES else 0
        slow, syncs = np.unique(self.costs[self.costs < FAR]), np.unique(self.graph.syncs)
        best, path = FAR if cutoff is None else np.int64(cutoff), None
        rounds, ties = micro_batches - 1, count()
        waiting = [(0, 0, next(ties), Box(0, len(slow) - 1, 0, len(syncs) - 1, 0))]
        while waiting:
            bound, _, _, box = heappop(waiting)
            if bound >= best:
                break
            if stop():
                return int(bound), None
            low, lower = box.low, box.lower
            # A cap above the time that the best path leaves is no cap.
            high, upper = box.high, box.upper
            if rounds:
                high = min(high, int(np.searchsorted(slow * rounds, best - box.through - syncs[lower])) - 1)
            upper = min(upper, int(np.searchsorted(syncs, best - box.through - rounds * slow[low])) - 1)
            if high < low or upper < lower:
                continue
            try:
                cheapest = self._path(micro_batches, int(slow[high]), int(syncs[upper]), weight)
            except TimeoutError:
                return int(bound), None
            if cheapest is None:
                continue
            if cheapest.time_ns(micro_batches) < best:
                best, path = np.int64(cheapest.time_ns(micro_batches)), cheapest
                if first:
                    break
            reached, synced = int(np.searchsorted(slow, cheapest.slowest)), int(np.searchsorted(syncs, cheapest.sync))
            if reached <= low and synced <= lower:
                continue  # the path is as good as the box's lower corner
            through = cheapest.through
            if rounds * int(slow[reached] - slow[low]) >= int(syncs[synced] - syncs[lower]) or synced <= lower:
                middle = (low + reached) // 2
                halves = Box(low, middle, lower, upper, through), Box(middle + 1, high, lower, upper, through)
            else:
                middle = (lower + synced) // 2
                halves = Box(low, high, lower, middle, through), Box(low, high, middle + 1, upper, through)
            for half in halves:
                bound = box_bound_ns(half, slow, syncs, micro_batches)
                if bound < best:
                    heappush(waiting, (bound, through, next(ties), half))
        return int(best), path

    def _path(self, micro_batches: int, cap: int, sync_cap: int, weight: int) -> Path | None:
        """The walk with the least time of one micro-batch through all stages, under caps; None if there is none. cap, sync_cap:
        the most ns that any stage and any all-reduce of gradients may take. micro_batches: the number of micro-batches that the
        pipeline takes, by which memory is counted. weight: the least sum of the devices' weights. Raises TimeoutError if time
        runs out."""
        layers = self.layers
        allowed = np.where(self.costs <= cap, self.costs, FAR)
        synced = self.graph.syncs <= sync_cap
        sums = np.full((len(self.graph.types), weight + 1, layers + 1), FAR)
        for node, first in enumerate(self.graph.initial):
            if first:
                sums[node, min(weight, self.graph.types[node].weight), 0] = 0
        trail: list[Stage] = []
        for stage in range(self.stages):
            self.case.check_time()
            if stage:
                sums = self._entered(trail[-1][2], weight)
            step = self._allowed(allowed, synced, most_in_flight("1f1b", self.stages, micro_batches, stage))
            after = np.empty_like(sums)
            for node, (kind, q) in enumerate(zip(self.graph.types, self.graph.rings, strict=True)):
                after[node] = (sums[node][:, :, None] + step[kind.profile, q]).min(axis=1)
            trail.append((sums, step, np.minimum(after, FAR)))
        last = np.where(self.graph.final, trail[-1][2][:, weight, layers], FAR)
        return None if last.min() >= FAR else self._back(trail, int(last.argmin()), weight)

    def _allowed(self, allowed: Integers, synced: Flags, in_flight: int) -> dict[tuple[int, int], Integers]:
        """The time in ns of layers [first, end) as a stage, (L + 1, L + 1), by (profile of the tensor-parallel group, ring of
        the gradient reduction); FAR (infinite) for stages that exceed a cap on their time or their all-reduce, or the memory.

        allowed: (profiles, L + 1, L + 1), the times, FAR (infinite) above the cap. synced: (rings, L + 1, L + 1), True where
        the all-reduce is within its cap. in_flight: micro-batches in flight in the stage."""
        fits = {}
        for f, q in set(zip((kind.profile for kind in self.graph.types), self.graph.rings, strict=True)):
            row = np.where(synced[q], allowed[f], FAR)
            if self.case.instance.within_memory:
                row = np.where(self._peaks(in_flight) <= self.case.limits_bytes[f], row, FAR)
            fits[f, q] = row
        return fits

    def _entered(self, ended: Integers, weight: int) -> Integers:
        """One step of the dynamic program over stages: the least time in ns of a micro-batch until it enters each node as the
        next stage: (nodes, weights, L + 1), by the weight of the walk so far (the node's included) and the stage's first layer.

        ended: (nodes, weights, L + 1), the least time until the end of the stage before, by its node, the weight so far, and
        where it ends. weight: the largest weight that is counted; larger ones count as this."""
        arrived = np.full_like(ended, FAR)
        if not len(self.graph.targets):
            return arrived
        arrived[self.graph.heads] = np.minimum.reduceat(
            ended[self.graph.sources] + self.graph.moves_ns[:, None, :], self.graph.begins, axis=0
        )
        moved = np.full_like(ended, FAR)
        for node, kind in enumerate(self.graph.types):
            for before in range(weight + 1):
                after = min(weight, before + kind.weight)
                moved[node, after] = np.minimum(moved[node, after], arrived[node, before])
        return np.minimum(moved, FAR)

    def _back(self, trail: list[Stage], node: int, weight: int) -> Path:
        """Reconstruct the cheapest walk from the dynamic program's tables, from the last stage to the first. trail: for each
        stage, in order, the tables that the dynamic program computed. node: the node of the last stage. weight: the sum of the
        devices' weights in the walk."""
        heaviest, end, slowest, sync, cuts, visits = weight, self.layers, 0, 0, [], []
        through = int(trail[-1][2][node, weight, end])
        for stage in reversed(range(self.stages)):
            sums, step, _ = trail[stage]
            kind, q = self.graph.types[node], self.graph.rings[node]
            first = int((sums[node, weight] + step[kind.profile, q][:, end]).argmin())
            slowest = max(slowest, int(self.costs[kind.profile, first, end]))
            sync = max(sync, int(self.graph.syncs[q, first, end]))
            if self.graph.starts[node] and kind.size:
                visits.append(self.graph.orbits[node])
            if stage:
                cuts.append(first)
                into = np.flatnonzero(self.graph.targets == node)
                before = [v for v in range(heaviest + 1) if min(heaviest, v + kind.weight) == weight]
                ended = trail[stage - 1][2][self.graph.sources[into]][:, before, first]
                arrived = ended + self.graph.moves_ns[into, first][:, None]
                edge, column = np.unravel_index(arrived.argmin(), arrived.shape)
                node, weight, end = int(self.graph.sources[into[edge]]), before[column], first
        return Path(slowest, through, sync, tuple(reversed(cuts)), tuple(reversed(visits)))
