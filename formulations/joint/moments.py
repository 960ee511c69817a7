"""When stages end while their times are not known yet: the simulation as rows for linear models.

An end is the latest of some earlier ends, plus times of stages. Where one of these is surely the latest, the end is a sum; else
the latest is a variable with a row for each that it is not below. At the least step the rows hold with the longest path's
moments, so a model with them has the simulation's optimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.joint.simulation import Symbol, ends


class Sum(NamedTuple):
    """start: number of a variable, None for the step's beginning. times: those that are added, each with how often."""

    start: int | None
    times: tuple[tuple[Symbol, int], ...] = ()

    def plus(self, symbols: Sequence[Symbol]) -> Sum:
        """The sum with these times added."""
        return Sum(self.start, tuple(sorted((Counter(dict(self.times)) + Counter(symbols)).items())))

    def at_most(self, other: Sum) -> bool:
        """Whether this sum is not above the other one, whatever the times are."""
        counts = dict(other.times)
        return self.start in (None, other.start) and all(count <= counts.get(symbol, 0) for symbol, count in self.times)


class Moments(NamedTuple):
    """rows: the sums that each variable is not below. ends: of the sites."""

    rows: tuple[tuple[Sum, ...], ...]
    ends: tuple[Sum, ...]


def moments(configuration: Configuration) -> Moments:
    """The moments of a configuration, for any times of its stages."""
    numbers: dict[frozenset[Sum], int] = {}

    def after(earlier: Sequence[Sum], symbols: tuple[Symbol, ...]) -> Sum:
        sums = frozenset(earlier) or frozenset([Sum(None)])
        largest = frozenset(s for s in sums if not any(s != other and s.at_most(other) for other in sums))
        if len(largest) == 1:
            return next(iter(largest)).plus(symbols)
        return Sum(numbers.setdefault(largest, len(numbers))).plus(symbols)

    reached = ends(configuration, after)
    return Moments(tuple(tuple(sorted(sums, key=str)) for sums in numbers), tuple(reached))
