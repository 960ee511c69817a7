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
    """The number of values of each digit of the ranks of a group, the least significant first; each is 2 or more."""

    degrees: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.degrees)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """For each digit, the distance between ranks of neighbouring values."""
        return tuple(prod(self.degrees[:number]) for number in range(len(self.degrees)))

    def moved(self, rank: int, origin: int, target: int) -> int:
        """The rank that is as far from `target` in each digit, wrapping around, as `rank` is from `origin`."""
        return sum(
            (rank // stride - origin // stride + target // stride) % degree * stride
            for stride, degree in zip(self.strides, self.degrees, strict=True)
        )

    def reach(self, ranks: Iterable[int]) -> tuple[int, ...] | None:
        """The indices of the digits in which ranks differ; None if they are not all ranks that differ in these digits alone."""
        distinct, reached = set(ranks), list[int]()
        for number, (stride, degree) in enumerate(zip(self.strides, self.degrees, strict=True)):
            values = {rank // stride % degree for rank in distinct}
            if len(values) == degree:
                reached.append(number)
            elif len(values) > 1:
                return None
        return tuple(reached) if len(distinct) == prod(self.degrees[number] for number in reached) else None

    def tiled_by(self, islands: Iterable[int]) -> bool:
        """Whether islands of neighbouring ranks lie in the same way for all ranks of the groups, one group after the other: an
        island is a span of the lowest digits, cut where the strategies need not cut it, or it spans whole groups. islands:
        their sizes."""
        spans = [*pairwise([*self.strides, self.size])]
        within = (any(size % low == 0 and high % size == 0 for low, high in spans) or size % self.size == 0 for size in islands)
        return all(within)


def common_digits(strategies: Iterable[Strategy]) -> Digits | None:
    """The fewest digits in which all strategies of one group write its ranks, so that no level ends within a digit; None where
    there are none."""
    return _digits(frozenset(strategy.levels for strategy in strategies))


def alike_over(network: Network, devices: int, *strategies: Strategy) -> bool:
    """Whether all groups of devices that do something together by these strategies have equal links, and all messages between
    equal ranks of neighbouring groups, too. devices: the number of devices in all."""
    return network.tiles is not None and _tiled(frozenset(s.levels for s in strategies), network.tiles, devices)


@cache
def _digits(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]]) -> Digits | None:
    """The common digits of strategies given by their levels; kept."""
    strategies = [Strategy(levels) for levels in all_levels]
    cuts = sorted({1, strategies[0].group}.union(*(strategy.strides().values() for strategy in strategies)))
    return None if any(high % low for low, high in pairwise(cuts)) else Digits(tuple(b // a for a, b in pairwise(cuts)))


@cache
def _tiled(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]], tiles: tuple[int, ...], devices: int) -> bool:
    """Whether the common digits of strategies are tiled by those islands that are smaller than all devices; kept."""
    digits = _digits(all_levels)
    return digits is not None and digits.tiled_by(size for size in tiles if size < devices)
