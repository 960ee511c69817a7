"""Ranks of a group as numbers with several digits, in which all strategies of a plan write their ranks.

A level of a strategy is a span of neighbouring digits, and each group of ranks that do something together consists of all that
differ in some of the digits. So ranks may be renumbered digit by digit: moved by the same amount in each digit, wrapping
around, the groups of one rank become those of another. Strategies without common digits (dp2-tp3 and dp3-tp2) have no such
renumbering.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import prod

from trainplan.formulations.plan.strategy import Paradigm, Strategy
from trainplan.profiling.clusters.network import Network


@dataclass(frozen=True)
class Digits:
    """A mixed-radix form of the rank numbers of a group in which every level of parallelism (dp, tp, ...) covers one or more
    whole digits. With degrees (2, 4), the least significant first, rank 5 of 8 has the digits (1, 2).

    degrees: the number of values of each digit, at least 2, the least significant digit first.
    """

    degrees: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """The number of ranks of the group: the product of all degrees."""
        return prod(self.degrees)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """For each digit, the distance between two ranks whose digit differs by 1: degrees (2, 4) -> (1, 2)."""
        return tuple(prod(self.degrees[:number]) for number in range(len(self.degrees)))

    def moved(self, rank: int, origin: int, target: int) -> int:
        """Shift a rank, digit by digit, by the difference from `origin` to `target`, wrapping around: with degrees (2, 2),
        whose ranks 0 to 3 are the binary numbers 00 to 11, rank 1 moved from origin 0 to target 3 is rank 2."""
        return sum(
            (rank // stride - origin // stride + target // stride) % degree * stride
            for stride, degree in zip(self.strides, self.degrees, strict=True)
        )

    def reach(self, ranks: Iterable[int]) -> tuple[int, ...] | None:
        """The indices of the digits in which some ranks differ from each other: degrees (2, 2), ranks 0 and 1 -> (0,). None if
        the ranks are not all the ranks that differ in these digits alone, as ranks 0 and 3.
        """
        distinct, reached = set(ranks), list[int]()
        for number, (stride, degree) in enumerate(zip(self.strides, self.degrees, strict=True)):
            values = {rank // stride % degree for rank in distinct}
            if len(values) == degree:
                reached.append(number)
            elif len(values) > 1:
                return None
        return tuple(reached) if len(distinct) == prod(self.degrees[number] for number in reached) else None

    def tiled_by(self, islands: Iterable[int]) -> bool:
        """Whether every rank has the same arrangement of islands around it. An island is a set of consecutive ranks with
        faster links to each other, such as a node. True if each island covers whole groups of ranks, or ends at a boundary
        of a digit or at a divisor of that digit's number of values.

        islands: the number of ranks of an island, for each kind of island.
        """
        spans = [*pairwise([*self.strides, self.size])]
        within = (any(size % low == 0 and high % size == 0 for low, high in spans) or size % self.size == 0 for size in islands)
        return all(within)


def common_digits(strategies: Iterable[Strategy]) -> Digits | None:
    """The fewest digits in which the ranks of a group can be written so that each level of each strategy is made of whole
    digits; None if that is impossible, as for dp2-tp3 and dp3-tp2. All strategies are of groups of one size."""
    return _digits(frozenset(strategy.levels for strategy in strategies))


def alike_over(network: Network, devices: int, *strategies: Strategy) -> bool:
    """Whether one rank can represent the others on a network: all groups of devices that communicate under the given
    strategies have equal links, and so have the messages between ranks of equal index in neighbouring stages.

    network: the cluster's links; False if it has no regular islands. devices: the number of devices of all stages.
    strategies: of all units, over the ranks of one stage.
    """
    return network.tiles is not None and _tiled(frozenset(s.levels for s in strategies), network.tiles, devices)


@cache
def _digits(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]]) -> Digits | None:
    """The fewest digits in which all strategies can write the ranks of their group so that each level covers whole digits;
    None if there are none. Cached.

    all_levels: for each strategy, its levels as pairs (paradigm, degree), such as ("dp", 2), the slowest links first.
    """
    strategies = [Strategy(levels) for levels in all_levels]
    cuts = sorted({1, strategies[0].group}.union(*(strategy.strides().values() for strategy in strategies)))
    return None if any(high % low for low, high in pairwise(cuts)) else Digits(tuple(b // a for a, b in pairwise(cuts)))


@cache
def _tiled(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]], tiles: tuple[int, ...], devices: int) -> bool:
    """Whether every rank has the same arrangement of the network's islands (sets of consecutive devices with faster links,
    such as nodes) around it, for strategies with the given levels. Cached.

    all_levels: for each strategy, its levels as pairs (paradigm, degree). tiles: the number of devices of an island, for
    each kind of island. devices: the number of devices of all stages; larger islands are ignored.
    """
    digits = _digits(all_levels)
    return digits is not None and digits.tiled_by(size for size in tiles if size < devices)
