"""Excludes parts of pipelines by weighted paths: by reduced costs, as a linear program would.

A set of weights of longest paths, and prices of memory, bounds every pipeline from below by a sum over its units
(`free_cuts.lp_bound`). With the least sums before and after each unit, it also bounds every pipeline that contains a given
part: the part is kept only if its own sum, and those before and after it, add up to at most a limit on the step. Several sets
of weights, each sharp for other parts, are applied together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from trainplan.solvers.joint.fixed_cuts.critical_path import longest_path
from trainplan.solvers.joint.fixed_cuts.lp_bound import EXACT
from trainplan.solvers.joint.fixed_cuts.priced_chain import BACKWARD, NAMES
from trainplan.solvers.joint.free_cuts.lp_bound import DualPoint, FreeCuts
from trainplan.solvers.joint.free_cuts.priced_chain import (
    COLUMNS,
    Booleans,
    FreeChain,
    FreePrices,
    PrefixSums,
    SuffixSums,
    stacked,
)
from trainplan.solvers.joint.stages.option_tables import Floats, Indices

MOST_SETS, LARGEST = 36, 4_000_000  # sets of weights; floats of all of them, by unit, stage and state
TOWARDS = (0.15, 0.5, 1.0)  # how far sets go towards single paths
SLOWER = 1.2  # the factor by which a stage is slowed down for one of these


class Guides:
    """K sets of weights (of the times of the p stages of one configuration (number of stages and micro-batches, with a
    schedule)) and prices (of its memory), by which partial pipelines that cannot be better than the best plan are excluded: for
    each set, every pipeline's step time is at least its weighted sum plus a constant.

    prices: the K sets. weights: (5, K, p), of five kinds of stage times. constants_ns: (K,), the weighted times on paths that
    belong to no stage. taken_ns: (K,), the price of the memory limits of all stages, which is subtracted from the weighted sum.
    """

    def __init__(self, cuts: FreeCuts) -> None:
        self.chain: FreeChain = cuts.chain
        points = _points(cuts)
        self.prices: FreePrices = stacked([cuts.prices(point) for point in points])
        self.constants_ns = np.array([cuts.constants_ns(point)[0] for point in points])
        self.taken_ns = np.array([cuts.constants_ns(point)[1] for point in points])  # by the memory of all stages
        self.weights = np.stack([self.prices.times[name] for name in COLUMNS])

    def at(self, limit: float, begins: Booleans) -> GuidesAt:
        """The guides under a limit in ns on the step time, with the least weighted sums before and after each unit (sub-layer),
        for use under this limit. begins: (L, p), whether each of the p stages may begin with each of the L units.
        """
        begins = self.chain.begins & begins
        before, _ = self.chain.before(self.prices, begins)
        return GuidesAt(
            self, before, self.chain.after(self.prices, begins), loosened(limit - self.constants_ns + self.taken_ns)
        )

    @cached_property
    def unit_costs(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """The weighted costs of the S options of each kind of unit: three lists of arrays (K, p, S), by set of weights and
        stage: the cost of an option, its additional cost if the unit is a stage's first one, and if it is a stage's last one.
        """
        return self.chain.unit_costs(self.prices)

    @cached_property
    def boundary_costs(self) -> tuple[Floats, Floats]:
        """The weighted costs of each kind of boundary (Q kinds) by interface states (layouts of activations, D before and E
        after): (Q, K, p, D, E) inside each stage, and (Q, K, p - 1, D, E) between each stage and the next; infinite for
        forbidden pairs of states."""
        return self.chain.boundary_costs(self.prices)


@dataclass(frozen=True, eq=False)
class GuidesAt:
    """Guides (K sets of weights of stage times and prices of memory) under a limit on the step time. before, after: the least
    weighted sums before and after each unit (sub-layer). limits: (K,), the largest weighted sum that a pipeline with a step
    time of at most the limit can have."""

    guides: Guides
    before: PrefixSums
    after: SuffixSums
    limits: Floats

    def stage(self, x: int) -> Guide:
        """The guide for one stage: the weights and limits by which partial choices of options of the stage's units are
        excluded. x: the stage's index."""
        return Guide(self, x)


class Guide:
    """The weights of one stage's times and prices of its memory, in K sets, by which labels are excluded. A label is a partial
    choice: choices of options from some unit (sub-layer) to the stage's end. The sums of N labels, (K, N), are the weighted
    costs of their units and the least of everything after the stage; a label is excluded if its sum and the least sum before it
    exceed a limit. An interface state is the layout of the activations in which a unit is entered or left."""

    def __init__(self, at: GuidesAt, x: int) -> None:
        guides, self.limits = at.guides, at.limits[:, None]
        self.costs, self.first_costs, self.last_costs = ([cost[:, x] for cost in unit_cost] for unit_cost in guides.unit_costs)
        self.inside = guides.boundary_costs[0][:, :, x]
        self.entered_first = at.before.first[:, :, x]
        self.before = np.minimum(at.before.inner[:, :, x], self.entered_first)
        self.after = at.after.last[:, :, x]
        self.kinds, self.boundaries = guides.chain.kinds, guides.chain.boundaries

    def last_unit_sums(self, l: int, leave: Indices) -> Floats:
        """The weighted sums of the labels that consist of unit l alone, as the stage's last unit, one label for each of its N
        options: (K, N). leave: (N,), the interface state in which each option is left."""
        sums: Floats = self.costs[self.kinds[l]] + self.last_costs[self.kinds[l]] + self.after[l][:, leave]
        return sums

    def added_sums(self, l: int, option: Indices, leave: Indices, enter: Indices) -> Floats:
        """The amounts by which the weighted sums of labels grow if an option of unit l is put in front of each label: (K, N)
        for N pairs of an option and a label. option: (N,). leave, enter: (N,), the interface states in which the option is left
        and the label is entered."""
        more: Floats = self.costs[self.kinds[l]][:, option] + self.inside[self.boundaries[l]][:, leave, enter]
        return more

    def may_go_on(self, l: int, enter: Indices, sums: Floats) -> NDArray[np.bool_]:
        """For each of N labels, (N,), whether some pipeline within the limits may contain it if its first unit, l, is not the
        stage's first one. enter: (N,), the interface state in which the unit is entered. sums: (K, N), the labels' sums."""
        may: NDArray[np.bool_] = (sums + self.before[l][:, enter] <= self.limits).all(axis=0)
        return may

    def may_begin(self, l: int, option: Indices, enter: Indices, sums: Floats) -> NDArray[np.bool_]:
        """For each of N labels, (N,), whether some pipeline within the limits may contain it as a whole stage that begins with
        unit l. option, enter: (N,), the unit's option and the interface state in which it is entered. sums: (K, N), the labels'
        sums."""
        total = sums + self.first_costs[self.kinds[l]][:, option] + self.entered_first[l][:, enter]
        may: NDArray[np.bool_] = (total <= self.limits).all(axis=0)
        return may


def loosened(limits: Floats) -> Floats:
    """Raise limits on float sums to allow for rounding errors: a sum whose exact value (a whole number) is within the given
    limit is surely within the returned limit. limits: an array of any shape."""
    return limits + EXACT * np.abs(limits) + 1


def _points(cuts: FreeCuts) -> list[DualPoint]:
    """The dual points (weights of paths and prices of memory) of the linear program that serve as sets of weights: the point of
    the best bound, and points on the way from it to single paths. The single paths are the paths with the largest weights, and
    the critical paths that recent pipelines would have if one stage were slower. cuts: the linear program; new paths are added
    to its `paths`."""
    assert cuts.point is not None
    point = cuts.point
    set_size = cuts.chain.units * cuts.stages * cuts.chain.tables.states_in
    most = max(2, min(MOST_SETS, LARGEST // set_size) // len(TOWARDS))  # single paths
    keys = sorted(point.weights, key=lambda key: -point.weights[key])[: most // 2]
    mean = {name: np.mean([pipeline.times[name] for pipeline in cuts.pipelines[-5:]], axis=0) for name in NAMES}
    for x in range(cuts.stages)[: most - len(keys)]:
        slower = {name: times * np.where(np.arange(cuts.stages) == x, SLOWER, 1.0) for name, times in mean.items()}
        path = longest_path(cuts.configuration, slower, cuts.tied_ns)
        cuts.paths.setdefault(path.key, path)
        keys.append(path.key)
    singles = [DualPoint({key: 1.0}, point.memory, point.host) for key in dict.fromkeys(keys)]
    return [point, *(_scaled(cuts, point, point.towards(single, share)) for share in TOWARDS for single in singles)]


def _scaled(cuts: FreeCuts, point: DualPoint, other: DualPoint) -> DualPoint:
    """Combine two dual points: the result has the weights of paths of `other`, and the prices of memory of `point` scaled to
    these weights: in each stage the prices are multiplied by (weight of the stage's backward time under `other`) / (its weight
    under `point`), so that memory is dearer in a stage whose times count more. cuts: the linear program."""
    own, its = (
        np.sum([weight * cuts.paths[key].counts[BACKWARD] for key, weight in dual.weights.items()], axis=0)
        for dual in (point, other)
    )
    factors = its / np.maximum(own, 1e-9)
    return DualPoint(other.weights, point.memory * factors, point.host * factors)
