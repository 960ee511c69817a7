"""Galvatron-BMW's search space (Section III-B): strategies of one layer on one group of devices, and where its data lies.

A strategy is an ordered list of levels, each a paradigm (dp, sdp or tp) with a degree of 2, 4, 8, ...; a paradigm appears
once, and the degrees multiply to the group. The first level spans the slowest links: ranks of a group are numbered in mixed
radix, first level outermost. Written `dp2-tp4`, `sdp8-ckpt`; on one device `single`, `single-ckpt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, permutations
from math import prod
from typing import Literal, get_args

from trainplan.profiling.base.errors import InputError

Paradigm = Literal["dp", "sdp", "tp"]
PARADIGMS: tuple[Paradigm, ...] = get_args(Paradigm)
DATA: frozenset[Paradigm] = frozenset({"dp", "sdp"})  # those that split the samples


@dataclass(frozen=True)
class Strategy:
    """How one layer is parallelised: levels from the slowest links to the fastest, and whether it is recomputed (CKPT)."""

    levels: tuple[tuple[Paradigm, int], ...] = ()
    ckpt: bool = False

    @classmethod
    def of(cls, *levels: tuple[Paradigm, int], ckpt: bool = False) -> Strategy:
        """The strategy of these levels without those of degree 1."""
        return cls(tuple(level for level in levels if level[1] > 1), ckpt)

    def __str__(self) -> str:
        levels = "-".join(f"{paradigm}{degree}" for paradigm, degree in self.levels) or "single"
        return levels + ("-ckpt" if self.ckpt else "")

    def degree(self, paradigm: Paradigm) -> int:
        """The degree of a paradigm; 1 where the strategy does without it."""
        return dict(self.levels).get(paradigm, 1)

    @property
    def data_degree(self) -> int:
        """Number of parts that the samples are split into."""
        return prod(degree for paradigm, degree in self.levels if paradigm in DATA)

    @cached_property
    def group(self) -> int:
        """The number of devices, the product of all degrees."""
        return prod(degree for _, degree in self.levels)

    def strides(self) -> dict[Paradigm, int]:
        """Distance between neighbouring ranks of each paradigm's groups."""
        strides, stride = {}, self.group
        for paradigm, degree in self.levels:
            stride //= degree
            strides[paradigm] = stride
        return strides

    def index(self, rank: int, paradigm: Paradigm) -> int:
        """Place of `rank` (0-based, in the group) along a paradigm's level; 0 where the paradigm is absent."""
        return rank // self.strides()[paradigm] % self.degree(paradigm) if self.degree(paradigm) > 1 else 0

    def peers(self, rank: int, *paradigms: Paradigm) -> tuple[int, ...]:
        """Ranks, ascending, that differ from `rank` only along the given paradigms' levels."""
        ranks, strides = [rank], self.strides()
        for paradigm, degree in self.levels:
            if paradigm in paradigms:
                stride = strides[paradigm]
                first = rank // stride % degree
                ranks = [r + (place - first) * stride for r in ranks for place in range(degree)]
        return tuple(sorted(ranks))

    def data_index(self, rank: int) -> int:
        """Which of the `data_degree` blocks of samples `rank` works on; earlier levels are more significant."""
        place = 0
        for paradigm, degree in self.levels:
            if paradigm in DATA:
                place = place * degree + self.index(rank, paradigm)
        return place

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """Bits of a rank (0 the least significant) that number its block of samples, the most significant first.

        Two strategies with equal layouts need no re-layout between them.
        """
        bits, position = [], self.group.bit_length() - 1
        for paradigm, degree in self.levels:
            width = degree.bit_length() - 1
            if paradigm in DATA:
                bits += [position - 1 - i for i in range(width)]
            position -= width
        return tuple(bits)


def parse_strategy(text: str, where: str = "strategy", field: str = "", group: int | None = None) -> Strategy:
    """The strategy written as `text`; with `group`, its degrees must multiply to it. Raises InputError."""
    example = f"dp{group}" if group and group > 1 else "single" if group == 1 else "dp2-tp4-ckpt"
    body, ckpt = (text[:-5], True) if text.endswith("-ckpt") else (text, False)
    levels: list[tuple[Paradigm, int]] = []
    for part in body.split("-") if body != "single" else []:
        match = re.fullmatch(r"(dp|sdp|tp)([1-9]\d{0,6})", part)
        if match is None:
            raise InputError(where, field, f"is {text!r}", f"give levels of dp, sdp and tp with degrees, such as {example!r}")
        degree = int(match[2])
        if degree < 2 or degree & (degree - 1):
            raise InputError(where, field, f"is {text!r}", f"give degrees from 2, 4, 8, ..., such as {example!r}")
        levels.append((match[1], degree))  # type: ignore[arg-type]
    if len({paradigm for paradigm, _ in levels}) < len(levels):
        raise InputError(where, field, f"is {text!r}", f"name each paradigm once, such as {example!r}")
    strategy = Strategy(tuple(levels), ckpt)
    if group is not None and strategy.group != group:
        raise InputError(
            where,
            field,
            f"is {text!r}, whose degrees multiply to {strategy.group}",
            f"make them multiply to {group}, such as {example!r}",
        )
    return strategy


def decision_tree(group: int, *, takeaway3: bool = True, ckpt: bool = True) -> list[Strategy]:
    """All strategies of one layer on `group` devices (a power of two).

    takeaway3: leave out those that mix dp with sdp, which sdp alone always beats (Takeaway 3).
    ckpt: list each strategy also with recomputation, after all those without.
    """
    if group < 1 or group & (group - 1):
        raise InputError("decision tree", "group", f"is {group}", "give a power of two, such as 8")
    strategies = []
    for count in range(len(PARADIGMS) + 1):
        for order in permutations(PARADIGMS, count):
            if takeaway3 and {"dp", "sdp"} <= set(order):
                continue
            strategies += [Strategy(tuple(zip(order, degrees, strict=True))) for degrees in _factorisations(group, count)]
    return strategies + ([Strategy(s.levels, True) for s in strategies] if ckpt else [])


def _factorisations(group: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of a power of two into `count` factors of at least 2."""
    bits = group.bit_length() - 1
    if count == 0 and bits == 0:
        yield ()
    for cuts in combinations(range(1, bits), count - 1) if 0 < count <= bits else ():
        yield tuple(1 << end - begin for begin, end in pairwise((0, *cuts, bits)))


def gather_ranks(before: Strategy, after: Strategy, rank: int) -> tuple[int, ...]:
    """Ranks whose blocks, put together, hold all rows that `rank` needs under `after` (Slice-Gather): the fewest, ascending.

    The rank alone where it already holds them under `before`; then only slicing is left to do.

    Samples are numbered by log2(group) bits, most significant first; a layout ties leading sample bits to rank bits. The
    gather runs over the rank bits that `before` ties to a sample bit and `after` does not tie to the same one.
    """
    ranks = [rank]
    for bit in _freed_bits(before, after):
        ranks += [r ^ (1 << bit) for r in ranks]
    return tuple(sorted(ranks))


def gather_groups(before: Strategy, after: Strategy) -> Iterator[tuple[int, ...]]:
    """All groups that `gather_ranks` gives, each once, the one of rank 0 first; none where ranks only slice."""
    freed = sum(1 << bit for bit in _freed_bits(before, after))
    if freed:
        for rank in range(before.group):
            if not rank & freed:
                yield gather_ranks(before, after, rank)


def _freed_bits(before: Strategy, after: Strategy) -> list[int]:
    available, needed = before.layout, after.layout
    return [bit for place, bit in enumerate(available) if place >= len(needed) or needed[place] != bit]


def rows_of(strategy: Strategy, rank: int, first: int, count: int) -> range:
    """Samples, of `count` that begin at `first`, that `rank` works on."""
    block = count // strategy.data_degree
    start = first + strategy.data_index(rank) * block
    return range(start, start + block)
