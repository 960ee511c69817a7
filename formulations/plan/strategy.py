"""Strategies of one layer on one group of devices, and where its data lies (Galvatron-BMW, Section III-B).

A strategy is an ordered list of levels. A level is a paradigm (dp data, sdp sharded data, tp tensor, cp context, ep expert
parallelism) with a degree of 2 or more; a paradigm appears at most once, and the degrees multiply to the group. The first level
spans the slowest links: ranks of a group are numbered in mixed radix, first level outermost. Written `dp2-tp4`, `sdp8-ckpt`; on
one device `single`, `single-ckpt`. Galvatron-BMW's decision trees have dp, sdp and tp of degrees 2, 4, 8, ... alone.

Ranks of an sdp level share the model states, all of them (ZeRO stage 3) unless `-zero1` (the optimizer's) or `-zero2`
(gradients, too) is written; together with a dp level, whose ranks hold copies, that is hybrid sharding. `-sp` is sequence
parallelism along tp; `-ckpt` recomputes everything, `-ckpt:attention+norms` what these modules keep.

Ranks of a cp level split the tokens of each sample. For attention's core they exchange keys (`cp4`): each rank gets the keys
and values of all tokens, as around a ring (Liu et al., 2023); or heads (`cp4h`): an all-to-all gives each rank all tokens of
its part of the heads, and another one gives results back (DeepSpeed-Ulysses, Jacobs et al., 2023).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, pairwise, permutations
from math import prod
from typing import Literal, get_args

from trainplan.profiling.base.errors import InputError

Paradigm = Literal["dp", "sdp", "tp", "cp", "ep"]
Module = Literal["activation", "attention", "loss", "norms"]  # what a sub-layer may compute again by itself
Exchange = Literal["keys", "heads"]  # what context-parallel ranks exchange for attention's core
Digit = tuple[int, int]  # of a rank: distance between the ranks of neighbouring values, and the number of values
PARADIGMS: tuple[Paradigm, ...] = get_args(Paradigm)
TREE: tuple[Paradigm, ...] = ("dp", "sdp", "tp")  # those of the papers' decision trees
MODULES: tuple[Module, ...] = get_args(Module)
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)
HEADS_WORD = "h"  # after the degree of a cp level whose ranks exchange heads
ZERO: dict[str | None, Literal[1, 2, 3]] = {"1": 1, "2": 2, None: 3}  # stages as they are written
DATA: frozenset[Paradigm] = frozenset({"dp", "sdp"})  # those that split the samples


@dataclass(frozen=True)
class Strategy:
    """How one layer is parallelised over a group of devices.

    Attributes:
        levels: paradigms with their degrees, from the slowest links to the fastest.
        ckpt: whether the layer is recomputed (CKPT).
        zero: the ZeRO stage of an sdp level, 1, 2 or 3 (3 without one).
        sequence_parallel: whether what lies between the matrices of tensor-parallel ranks is shared, too.
        modules: those that are recomputed, in order, where not everything is.
        exchange: what the ranks of a cp level exchange for attention's core; keys without one.
    """

    levels: tuple[tuple[Paradigm, int], ...] = ()
    ckpt: bool = False
    zero: Literal[1, 2, 3] = 3
    sequence_parallel: bool = False
    modules: tuple[Module, ...] = ()
    exchange: Exchange = "keys"

    @classmethod
    def of(cls, *levels: tuple[Paradigm, int], ckpt: bool = False) -> Strategy:
        """The strategy of the given levels, leaving out those of degree 1."""
        return cls(tuple(level for level in levels if level[1] > 1), ckpt)

    def __str__(self) -> str:
        marks = {"cp": HEADS_WORD if self.exchanges_heads else ""}
        words = [f"{paradigm}{degree}{marks.get(paradigm, '')}" for paradigm, degree in self.levels] or ["single"]
        words += [f"zero{self.zero}"] * (self.zero < 3) + ["sp"] * self.sequence_parallel
        words += ["ckpt"] * self.ckpt + [f"ckpt:{'+'.join(self.modules)}"] * bool(self.modules)
        return "-".join(words)

    def degree(self, paradigm: Paradigm) -> int:
        """The degree of a paradigm; 1 where the strategy does not have it."""
        return self._degrees.get(paradigm, 1)

    @cached_property
    def _degrees(self) -> dict[Paradigm, int]:
        """The degree of each paradigm that the strategy has."""
        return dict(self.levels)

    @cached_property
    def zero_stage(self) -> Literal[0, 1, 2, 3]:
        """The ZeRO stage: 0 without an sdp level, else 1, 2 or 3."""
        return self.zero if self.degree("sdp") > 1 else 0

    @property
    def exchanges_heads(self) -> bool:
        """Whether context-parallel ranks get all tokens of their part of the heads for attention's core (all-to-all)."""
        return self.exchange == "heads" and self.degree("cp") > 1

    @property
    def shares_parameters(self) -> bool:
        """Whether a rank keeps only a shard of the parameters, and gathers the whole for each pass (ZeRO stage 3)."""
        return self.zero_stage == 3

    @property
    def shares_gradients(self) -> bool:
        """Whether a rank keeps only a shard of the gradients, and a whole one only for a while (ZeRO stages 2 and 3)."""
        return self.zero_stage >= 2

    @property
    def gathers_updates(self) -> bool:
        """Whether each rank steps a shard of the parameters, of which all ranks keep the whole (ZeRO stages 1 and 2)."""
        return self.zero_stage in (1, 2)

    @cached_property
    def data_degree(self) -> int:
        """The number of parts that the samples are split into."""
        return prod(degree for paradigm, degree in self.levels if paradigm in DATA)

    @cached_property
    def group(self) -> int:
        """The number of devices, the product of all degrees."""
        return prod(degree for _, degree in self.levels)

    def strides(self) -> dict[Paradigm, int]:
        """The distance between neighbouring ranks of each paradigm's groups."""
        strides, stride = {}, self.group
        for paradigm, degree in self.levels:
            stride //= degree
            strides[paradigm] = stride
        return strides

    def index(self, rank: int, paradigm: Paradigm) -> int:
        """The index of `rank` (0-based, in the group) along a paradigm's level; 0 where the paradigm is absent."""
        return rank // self.strides()[paradigm] % self.degree(paradigm) if self.degree(paradigm) > 1 else 0

    def peers(self, rank: int, *paradigms: Paradigm) -> tuple[int, ...]:
        """The ranks, ascending, that differ from `rank` only along the levels of the given paradigms."""
        ranks, strides = [rank], self.strides()
        for paradigm, degree in self.levels:
            if paradigm in paradigms:
                stride = strides[paradigm]
                first = rank // stride % degree
                ranks = [r + (value - first) * stride for r in ranks for value in range(degree)]
        return tuple(sorted(ranks))

    def data_index(self, rank: int) -> int:
        """The index of the block of samples that `rank` works on, of `data_degree` blocks; earlier levels are more
        significant."""
        index = 0
        for paradigm, degree in self.levels:
            if paradigm in DATA:
                index = index * degree + self.index(rank, paradigm)
        return index

    @cached_property
    def layout(self) -> tuple[Digit, ...]:
        """The digits of a rank that number its block of samples, the most significant first, as few as possible.

        Two strategies of one group with equal layouts need no re-layout between them.
        """
        digits: list[Digit] = []
        for paradigm, degree in self.levels:
            stride = self.strides()[paradigm]
            if paradigm in DATA and digits and digits[-1][0] == stride * degree:
                digits[-1] = stride, digits[-1][1] * degree
            elif paradigm in DATA:
                digits.append((stride, degree))
        return tuple(digits)

    @cached_property
    def token_digit(self) -> Digit | None:
        """The digit of a rank that numbers its part of each sample's tokens, with sequence parallelism; None without it."""
        return (self.strides()["tp"], self.degree("tp")) if self.sequence_parallel else None

    def share(self, rank: int) -> Digit:
        """The part of each sample's tokens that a rank has of what passes between units: its index, and the number of parts."""
        return (self.index(rank, "tp"), self.degree("tp")) if self.sequence_parallel else (0, 1)


def without_cp(strategy: Strategy) -> Strategy:
    """The strategy whose ranks split samples where those of the given one split the tokens of each sample (cp), in the level
    next outside that of tp: states are shared among these ranks, or copied to them, in the same way."""
    degree = strategy.degree("cp")
    if degree == 1:
        return strategy
    data: Paradigm = "sdp" if strategy.degree("sdp") > 1 else "dp"
    degrees: dict[Paradigm, int] = {paradigm: level for paradigm, level in strategy.levels if paradigm != "cp"}
    degrees[data] = degrees.get(data, 1) * degree
    levels = tuple((paradigm, degrees[paradigm]) for paradigm in TREE if paradigm in degrees)
    return replace(strategy, levels=levels, exchange="keys")


def parse_strategy(text: str, where: str = "strategy", field: str = "", group: int | None = None) -> Strategy:
    """The strategy that a text denotes, such as `dp2-tp4-ckpt`.

    where, field: what errors name. group: where given, the degrees must multiply to it. Raises InputError.
    """
    example = f"dp{group}" if group and group > 1 else "single" if group == 1 else "dp2-tp4-ckpt"
    match = re.fullmatch(
        r"(single|[a-z]+\d+h?(?:-[a-z]+\d+h?)*?)(?:-zero([12]))?(-sp)?(?:-ckpt(?::([a-z]+(?:\+[a-z]+)*))?)?", text
    )
    fix = f"give levels of dp, sdp and tp with degrees, such as {example!r}"
    if match is None:
        raise InputError(where, field, f"is {text!r}", fix)
    body, zero, sequence_parallel, names = match.groups()
    levels: list[tuple[Paradigm, int]] = []
    exchange: Exchange = "keys"
    for part in body.split("-") if body != "single" else []:
        level = re.fullmatch(rf"({'|'.join(PARADIGMS)})([1-9]\d{{0,6}})({HEADS_WORD}?)", part)
        if level is None:
            raise InputError(where, field, f"is {text!r}", fix)
        if level[3]:
            if level[1] != "cp":
                raise InputError(where, field, f"is {text!r}", f"write {HEADS_WORD} after a cp level alone, such as cp4h")
            exchange = "heads"
        degree = int(level[2])
        if degree < 2:
            raise InputError(where, field, f"is {text!r}", f"give degrees of 2 or more, such as {example!r}")
        levels.append((level[1], degree))  # type: ignore[arg-type]
    if len({paradigm for paradigm, _ in levels}) < len(levels):
        raise InputError(where, field, f"is {text!r}", f"name each paradigm once, such as {example!r}")
    modules = tuple(sorted(set((names or "").split("+")) - {""}))
    if wrong := sorted(set(modules) - set(MODULES)):
        raise InputError(where, field, f"is {text!r}, which recomputes {wrong[0]!r}", f"name some of {', '.join(MODULES)}")
    ckpt = text.endswith("-ckpt")
    strategy = Strategy(tuple(levels), ckpt, ZERO[zero], sequence_parallel is not None, modules, exchange)
    if zero and strategy.degree("sdp") == 1:
        raise InputError(where, field, f"is {text!r}", f"leave zero{zero} out, or give an sdp level, which shares states")
    if sequence_parallel and strategy.degree("tp") == 1:
        raise InputError(where, field, f"is {text!r}", "leave sp out, or give a tp level, whose ranks share the tokens")
    if group is not None and strategy.group != group:
        raise wrong_group(strategy, where, field, group)
    return strategy


def wrong_group(strategy: Strategy, where: str, field: str, group: int) -> InputError:
    """The error of a strategy whose degrees do not multiply to the group."""
    example = f"dp{group}" if group > 1 else "single"
    problem = f"is {str(strategy)!r}, whose degrees multiply to {strategy.group}"
    return InputError(where, field, problem, f"make them multiply to {group}, such as {example!r}")


def decision_tree(group: int, *, takeaway3: bool = True, ckpt: bool = True) -> list[Strategy]:
    """All strategies of one layer on `group` devices (a power of two).

    takeaway3: leave out those that mix dp with sdp, which sdp alone always beats (Takeaway 3).
    ckpt: list each strategy also with recomputation, after all those without.
    """
    if group < 1 or group & (group - 1):
        raise InputError("decision tree", "group", f"is {group}", "give a power of two, such as 8")
    strategies = []
    for count in range(len(TREE) + 1):
        for order in permutations(TREE, count):
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
    """The ranks whose blocks together hold all rows that `rank` needs under `after` (Slice-Gather), ascending; the fewest
    possible where the degrees of both strategies are powers of two.

    The rank alone where it already holds them under `before`; then only slicing remains to be done.

    Both layouts write a sample's number in digits, the most significant first, each of which is a digit of the rank. The gather
    runs over those digits of the rank that are one of the sample under `before`, and not the same one under `after`. For
    strategies that do not write ranks in common digits (dp2-tp3 and dp3-tp2) it runs over the whole group.
    """
    freed = _freed_digits(before, after)
    if freed is None:
        return tuple(range(before.group))
    ranks = [rank]
    for stride, degree in freed:
        ranks = [r + (value - r // stride % degree) * stride for r in ranks for value in range(degree)]
    return tuple(sorted(ranks))


def gather_groups(before: Strategy, after: Strategy) -> Iterator[tuple[int, ...]]:
    """All different groups that `gather_ranks` gives, the one of rank 0 first; none where ranks only slice."""
    for rank in range(0 if only_slices(before, after) else before.group):
        group = gather_ranks(before, after, rank)
        if group[0] == rank:
            yield group


def only_slices(before: Strategy, after: Strategy) -> bool:
    """Whether a re-layout from one strategy to another needs no communication: every rank already holds all rows that it needs
    under `after`."""
    return _freed_digits(before, after) == ()


@cache
def _freed_digits(before: Strategy, after: Strategy) -> tuple[Digit, ...] | None:
    """The digits of ranks over which a re-layout from one strategy to another gathers rows; None where ranks have no digits in
    which both strategies are written."""
    digits = [*before.layout, *after.layout]
    cuts = sorted({stride for stride, _ in digits} | {stride * degree for stride, degree in digits})
    if any(high % low for low, high in pairwise(cuts)):
        return None
    available, needed = (_in_primes(strategy.layout, cuts) for strategy in (before, after))
    return tuple(digit for index, digit in enumerate(available) if _digit_at(needed, index) != _digit_at(available, index))


def _in_primes(layout: Sequence[Digit], cuts: Sequence[int]) -> list[Digit]:
    """The digits of a layout, divided at the given strides and further into digits of prime degrees."""
    digits: list[Digit] = []
    for stride, degree in layout:
        inside = [cut for cut in cuts if stride <= cut <= stride * degree]
        for low, high in reversed(list(pairwise(inside))):
            digits += _primes(low, high)
    return digits


def _primes(low: int, high: int) -> Iterator[Digit]:
    """The digits of prime degrees between two strides, the most significant first."""
    while high > low:
        prime = next(factor for factor in range(2, high // low + 1) if high // low % factor == 0)
        high //= prime
        yield high, prime


def _digit_at(digits: Sequence[Digit], index: int) -> tuple[Digit | None, int]:
    """The digit at an index (None after the last), and the product of the degrees before it: the number of parts of the samples
    that the digit divides."""
    return digits[index] if index < len(digits) else None, prod(degree for _, degree in digits[:index])


def piece_peers(strategy: Strategy, rank: int, pieces: int) -> tuple[int, ...]:
    """The ranks, by piece, that work on the pieces of the same samples as `rank`, itself included, where each sample is cut
    into `pieces` pieces (context parallelism): neighbours in the innermost level of data parallelism."""
    level: Paradigm = "sdp" if strategy.degree("sdp") > 1 else "dp"
    stride, piece = strategy.strides().get(level, 0), strategy.data_index(rank) % pieces
    return tuple(rank + (other - piece) * stride for other in range(pieces))


def rows_of(strategy: Strategy, rank: int, first: int, count: int, pieces: int = 1) -> range:
    """The samples that `rank` works on, of `count` that begin at `first`.

    pieces: the number of pieces that each sample is cut into; pieces are then counted instead of samples, those of a sample one
    after the other, and a rank has the same one of each of its samples.
    """
    block = count // strategy.data_degree
    block_index, piece = divmod(strategy.data_index(rank), pieces)
    start = first + block_index * block * pieces + piece
    return range(start, start + block * pieces, pieces)
