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
    """K sets of weights of one configuration. weights: (5, K, p), of the times of the p stages, by name in the order of
    `COLUMNS`. constants_ns: (K,), the times on paths that belong to no stage."""

    def __init__(self, cuts: FreeCuts) -> None:
        self.chain: FreeChain = cuts.chain
        points = _points(cuts)
        self.prices: FreePrices = stacked([cuts.prices(point) for point in points])
        self.constants_ns = np.array([cuts.constants_ns(point)[0] for point in points])
        self.taken_ns = np.array([cuts.constants_ns(point)[1] for point in points])  # by the memory of all stages
        self.weights = np.stack([self.prices.times[name] for name in COLUMNS])

    def at(self, limit: float, begins: Booleans) -> GuidesAt:
        """The guides under a limit on the step. begins: (L, p), whether each stage may begin with each unit."""
        begins = self.chain.begins & begins
        before, _ = self.chain.before(self.prices, begins)
        return GuidesAt(
            self, before, self.chain.after(self.prices, begins), loosened(limit - self.constants_ns + self.taken_ns)
        )

    @cached_property
    def unit_costs(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """See `FreeChain.unit_costs`."""
        return self.chain.unit_costs(self.prices)

    @cached_property
    def boundary_costs(self) -> tuple[Floats, Floats]:
        """See `FreeChain.boundary_costs`."""
        return self.chain.boundary_costs(self.prices)


@dataclass(frozen=True, eq=False)
class GuidesAt:
    """Guides under a limit on the step, with the least sums before and after each unit. limits: (K,), of all sums."""

    guides: Guides
    before: PrefixSums
    after: SuffixSums
    limits: Floats

    def stage(self, x: int) -> Guide:
        """The guide of one stage."""
        return Guide(self, x)


class Guide:
    """The guides of one stage, for labels that begin with its last unit. The sums of a label, (K, N), are the weighted times of
    its units and everything after them."""

    def __init__(self, at: GuidesAt, x: int) -> None:
        guides, self.limits = at.guides, at.limits[:, None]
        self.costs, self.first_costs, self.last_costs = ([cost[:, x] for cost in unit_cost] for unit_cost in guides.unit_costs)
        self.inside = guides.boundary_costs[0][:, :, x]
        self.entered_first = at.before.first[:, :, x]
        self.before = np.minimum(at.before.inner[:, :, x], self.entered_first)
        self.after = at.after.last[:, :, x]
        self.kinds, self.boundaries = guides.chain.kinds, guides.chain.boundaries

    def last_unit_sums(self, l: int, leave: Indices) -> Floats:
        """The sums of the options of unit l as the stage's last one. leave: the interface state in which each is left."""
        sums: Floats = self.costs[self.kinds[l]] + self.last_costs[self.kinds[l]] + self.after[l][:, leave]
        return sums

    def added_sums(self, l: int, option: Indices, leave: Indices, enter: Indices) -> Floats:
        """The sums that options of unit l add in front of labels. leave, enter: the interface states between them."""
        more: Floats = self.costs[self.kinds[l]][:, option] + self.inside[self.boundaries[l]][:, leave, enter]
        return more

    def may_go_on(self, l: int, enter: Indices, sums: Floats) -> NDArray[np.bool_]:
        """Whether some pipeline within the limits may have each label. enter: the interface state in which its first unit l is
        entered."""
        may: NDArray[np.bool_] = (sums + self.before[l][:, enter] <= self.limits).all(axis=0)
        return may

    def may_begin(self, l: int, option: Indices, enter: Indices, sums: Floats) -> NDArray[np.bool_]:
        """Whether some pipeline within the limits may have each label as a whole stage that begins with unit l."""
        total = sums + self.first_costs[self.kinds[l]][:, option] + self.entered_first[l][:, enter]
        may: NDArray[np.bool_] = (total <= self.limits).all(axis=0)
        return may


def loosened(limits: Floats) -> Floats:
    """Limits on sums of floats that are kept whenever the exact sums, whole numbers, keep the given limits."""
    return limits + EXACT * np.abs(limits) + 1


def _points(cuts: FreeCuts) -> list[DualPoint]:
    """The dual point of the best bound, and points on the way from it to single paths: those with the largest weights, and the
    longest paths of recent pipelines with one stage slower than the others."""
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
    """A dual point's weights of paths, with the prices of memory of another one, scaled in each stage by how much the stage's
    times weigh in the two."""
    own, its = (
        np.sum([weight * cuts.paths[key].counts[BACKWARD] for key, weight in dual.weights.items()], axis=0)
        for dual in (point, other)
    )
    factors = its / np.maximum(own, 1e-9)
    return DualPoint(other.weights, point.memory * factors, point.host * factors)
