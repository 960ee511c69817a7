"""Ranks of a group in digits: those that all strategies of a plan write their ranks in.

A level of a strategy is a span of neighbouring digits, and each group of ranks that do something together consists of all that
differ in some of the digits. So ranks may be renumbered, digit by digit: moved by as much in each digit, around its end, the
groups of one rank become those of another. Strategies without common digits (dp2-tp3 and dp3-tp2) have no such renumbering.
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
    """The degree of each digit of the ranks of a group, the least significant first; each is 2 or more."""

    degrees: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.degrees)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Of each digit, the distance between ranks of neighbouring values."""
        return tuple(prod(self.degrees[:number]) for number in range(len(self.degrees)))

    def moved(self, place: int, origin: int, target: int) -> int:
        """The place that is as far from `target` in each digit, around its end, as `place` is from `origin`."""
        return sum(
            (place // stride - origin // stride + target // stride) % degree * stride
            for stride, degree in zip(self.strides, self.degrees, strict=True)
        )

    def reach(self, places: Iterable[int]) -> tuple[int, ...] | None:
        """The numbers of the digits in which places differ; None if they are not all places that differ in these alone."""
        distinct, reached = set(places), list[int]()
        for number, (stride, degree) in enumerate(zip(self.strides, self.degrees, strict=True)):
            values = {place // stride % degree for place in distinct}
            if len(values) == degree:
                reached.append(number)
            elif len(values) > 1:
                return None
        return tuple(reached) if len(distinct) == prod(self.degrees[number] for number in reached) else None

    def tiled_by(self, islands: Iterable[int]) -> bool:
        """Whether islands of so many neighbouring ranks lie alike for all ranks of the groups, one group after the other: an
        island is a span of the lowest digits, cut where the strategies need not cut it, or of whole groups."""
        spans = [*pairwise([*self.strides, self.size])]
        within = (any(size % low == 0 and high % size == 0 for low, high in spans) or size % self.size == 0 for size in islands)
        return all(within)


def common_digits(strategies: Iterable[Strategy]) -> Digits | None:
    """The fewest digits in which all strategies of one group write its ranks, so that no level ends within one; None where
    there are no such digits."""
    return _digits(frozenset(strategy.levels for strategy in strategies))


def alike_over(network: Network, devices: int, *strategies: Strategy) -> bool:
    """Whether, of groups of neighbouring devices among so many, all that do something together by these strategies, or pass
    messages from one group to the same places of another, have equal links."""
    return network.tiles is not None and _tiled(frozenset(s.levels for s in strategies), network.tiles, devices)


@cache
def _digits(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]]) -> Digits | None:
    strategies = [Strategy(levels) for levels in all_levels]
    cuts = sorted({1, strategies[0].group}.union(*(strategy.strides().values() for strategy in strategies)))
    return None if any(high % low for low, high in pairwise(cuts)) else Digits(tuple(b // a for a, b in pairwise(cuts)))


@cache
def _tiled(all_levels: frozenset[tuple[tuple[Paradigm, int], ...]], tiles: tuple[int, ...], devices: int) -> bool:
    digits = _digits(all_levels)
    return digits is not None and digits.tiled_by(size for size in tiles if size < devices)
