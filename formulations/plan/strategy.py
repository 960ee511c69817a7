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
MODULES: tuple[Module, ...] = get_args(Module)
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)
HEADS_WORD = "h"  # after the degree of a cp level whose ranks exchange heads
ZERO: dict[str | None, Literal[1, 2, 3]] = {"1": 1, "2": 2, None: 3}  # stages as they are written


@dataclass(frozen=True)
class LevelSpec:
    """One kind of strategy level, that is, one form of parallelism such as dp or tp.

    splits: the part of a unit's work that the level's ranks divide among them.

    shares: for a level that splits samples, whether its ranks shard the model states (ZeRO); otherwise each rank has a copy
    of them.

    in_trees: whether planners choose the level by themselves, as the decision trees of Galvatron's papers have dp, sdp and
    tp. Other levels stand in plans, and planners choose them only by options of their own (as `--cp` is one).

    feature: the name of the level in the `features` of a runtime's capabilities; empty for dp, sdp and tp, which need none.
    Exports to a runtime without the feature refuse plans with the level. Planning for a runtime (`--for`) leaves the level
    out if it is `in_trees`; of the others, cp is left out by the runtime's `exchanges`.
    """

    splits: Literal["samples", "matrices", "tokens", "experts"]
    shares: bool = False
    in_trees: bool = True
    feature: str = ""


LEVELS: dict[Paradigm, LevelSpec] = {  # from the slowest links to the fastest, in the order of frameworks' ranks
    "dp": LevelSpec("samples"),
    "sdp": LevelSpec("samples", shares=True),
    "cp": LevelSpec("tokens", in_trees=False, feature="context parallelism"),
    "tp": LevelSpec("matrices"),
    "ep": LevelSpec("experts", in_trees=False, feature="expert parallelism"),
}
TREE: tuple[Paradigm, ...] = tuple(name for name, spec in LEVELS.items() if spec.in_trees)
DATA = frozenset(name for name, spec in LEVELS.items() if spec.splits == "samples")
COPIES: tuple[Paradigm, ...] = tuple(name for name, spec in LEVELS.items() if name in DATA and not spec.shares)
ORDER: tuple[Paradigm, ...] = tuple(name for name, spec in LEVELS.items() if spec.splits != "experts")


@dataclass(frozen=True)
class Strategy:
    """How one layer is parallelised over a group of devices. Its ranks are numbered in mixed radix, the first level outermost,
    so that each level is one digit of a rank's number.

    Attributes:
        levels: pairs of paradigm (dp, sdp, tp, cp, ep, ...) and degree, from the slowest links to the fastest.
        ckpt: whether the layer is recomputed (activation checkpointing).
        zero: the ZeRO stage of the sdp level, 1, 2 or 3; 3 if there is no sdp level.
        sequence_parallel: whether tensor-parallel ranks also split the tokens between the matrix products.
        modules: the names of the recomputed modules, in order, if only a part of the layer is recomputed.
        exchange: what the ranks of a cp level exchange for attention: `keys` (and values) or `heads`; `keys` without a cp
            level.
    """

    levels: tuple[tuple[Paradigm, int], ...] = ()
    ckpt: bool = False
    zero: Literal[1, 2, 3] = 3
    sequence_parallel: bool = False
    modules: tuple[Module, ...] = ()
    exchange: Exchange = "keys"

    @classmethod
    def of(cls, *levels: tuple[Paradigm, int], ckpt: bool = False) -> Strategy:
        """The strategy of the given levels (pairs of paradigm and degree, slowest links first); levels of degree 1 are
        dropped. ckpt: whether the layer is recomputed.
        """
        return cls(tuple(level for level in levels if level[1] > 1), ckpt)

    def __str__(self) -> str:
        marks = {"cp": HEADS_WORD if self.exchanges_heads else ""}
        words = [f"{paradigm}{degree}{marks.get(paradigm, '')}" for paradigm, degree in self.levels] or ["single"]
        words += [f"zero{self.zero}"] * (self.zero < 3) + ["sp"] * self.sequence_parallel
        words += ["ckpt"] * self.ckpt + [f"ckpt:{'+'.join(self.modules)}"] * bool(self.modules)
        return "-".join(words)

    def degree(self, paradigm: Paradigm) -> int:
        """The number of ranks of a paradigm's level, such as dp or tp; 1 if the strategy has no such level."""
        return self._degrees.get(paradigm, 1)

    @cached_property
    def _degrees(self) -> dict[Paradigm, int]:
        """The number of ranks of each level, by paradigm: dp2-tp4 -> {"dp": 2, "tp": 4}."""
        return dict(self.levels)

    @cached_property
    def zero_stage(self) -> Literal[0, 1, 2, 3]:
        """The ZeRO stage: 0 without an sdp level, else 1, 2 or 3."""
        return self.zero if self.degree("sdp") > 1 else 0

    @property
    def exchanges_heads(self) -> bool:
        """Whether, for attention's core, each context-parallel rank gets all tokens of some of the heads by all-to-all
        (DeepSpeed-Ulysses)."""
        return self.exchange == "heads" and self.degree("cp") > 1

    @property
    def shares_parameters(self) -> bool:
        """Whether a rank keeps only a shard of the parameters, and gathers all of them for each pass (ZeRO stage 3)."""
        return self.zero_stage == 3

    @property
    def shares_gradients(self) -> bool:
        """Whether a rank keeps only a shard of the gradients, and all of them only until they are reduced (ZeRO stages 2 and
        3)."""
        return self.zero_stage >= 2

    @property
    def gathers_updates(self) -> bool:
        """Whether each rank updates only a shard of the parameters and then gathers the other ranks' shards, since it keeps
        all parameters (ZeRO stages 1 and 2).
        """
        return self.zero_stage in (1, 2)

    @cached_property
    def data_degree(self) -> int:
        """The number of parts that the samples of a micro-batch are split into: the product of the dp and sdp degrees."""
        return prod(degree for paradigm, degree in self.levels if paradigm in DATA)

    @cached_property
    def copies(self) -> int:
        """The number of ranks that hold a copy of the same model states while they work on different samples (the degrees of
        all copying levels, such as dp, multiplied); 1 without such levels.
        """
        return prod(self.degree(paradigm) for paradigm in COPIES)

    @property
    def innermost_data(self) -> Paradigm:
        """The paradigm of the innermost level (on the fastest links, in the order of frameworks' ranks) among those that split
        samples, such as dp and sdp; "dp" if the strategy has none.
        """
        return next((name for name in reversed(ORDER) if name in DATA and self.degree(name) > 1), "dp")

    @property
    def in_rank_order(self) -> bool:
        """Whether the strategy's levels are in the order in which frameworks number ranks, from the slowest links to the
        fastest (`ORDER`).
        """
        levels = [paradigm for paradigm, _ in self.levels]
        return levels == [paradigm for paradigm in ORDER if paradigm in levels]

    @cached_property
    def group(self) -> int:
        """The number of devices that the strategy spans, the product of all degrees."""
        return prod(degree for _, degree in self.levels)

    def strides(self) -> dict[Paradigm, int]:
        """For each paradigm of the strategy, the distance between neighbouring ranks of one of its groups: dp2-tp4 -> {"dp": 4,
        "tp": 1}."""
        strides, stride = {}, self.group
        for paradigm, degree in self.levels:
            stride //= degree
            strides[paradigm] = stride
        return strides

    def index(self, rank: int, paradigm: Paradigm) -> int:
        """The index of a rank along a paradigm's level; 0 if the strategy has no such level. rank: its number in the group,
        from 0."""
        return rank // self.strides()[paradigm] % self.degree(paradigm) if self.degree(paradigm) > 1 else 0

    def peers(self, rank: int, *paradigms: Paradigm) -> tuple[int, ...]:
        """The communication group of a rank along some levels: the ranks, ascending and with the rank itself, that differ from
        it only in these levels' digits. In dp2-tp4, rank 1 along "dp" -> (1, 5).
        """
        ranks, strides = [rank], self.strides()
        for paradigm, degree in self.levels:
            if paradigm in paradigms:
                stride = strides[paradigm]
                first = rank // stride % degree
                ranks = [r + (value - first) * stride for r in ranks for value in range(degree)]
        return tuple(sorted(ranks))

    def is_first_copy(self, rank: int) -> bool:
        """Whether `rank` (0-based, in the group) is the first of the ranks that hold a copy of the same states."""
        return all(self.index(rank, paradigm) == 0 for paradigm in COPIES)

    def data_index(self, rank: int) -> int:
        """The index, from 0 to data_degree - 1, of the block of samples that a rank works on; earlier levels count as more
        significant."""
        index = 0
        for paradigm, degree in self.levels:
            if paradigm in DATA:
                index = index * degree + self.index(rank, paradigm)
        return index

    @cached_property
    def layout(self) -> tuple[Digit, ...]:
        """How samples are laid out over the ranks, as digits of a rank's number: pairs (stride, number of values), the most
        significant first, as few as possible, that together number the block of samples that the rank works on. dp2-tp4 ->
        ((4, 2),).

        Two strategies over one group of ranks with equal layouts need no re-layout of samples between them.
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
        """The digit of a rank's number that says which part of each sample's tokens the rank holds under sequence parallelism,
        as (stride, number of values): its tp level. None without sequence parallelism.
        """
        return (self.strides()["tp"], self.degree("tp")) if self.sequence_parallel else None

    def share(self, rank: int) -> Digit:
        """The part of each sample's tokens that a rank holds between layers, as (index of the part, number of parts): (0, 1)
        without sequence parallelism."""
        return (self.index(rank, "tp"), self.degree("tp")) if self.sequence_parallel else (0, 1)


def without_cp(strategy: Strategy) -> Strategy:
    """The strategy with its context parallelism replaced by data parallelism of the same degree: ranks that split the tokens of
    each sample split samples instead, and share model states, or hold copies, as before."""
    degree = strategy.degree("cp")
    if degree == 1:
        return strategy
    data = strategy.innermost_data
    degrees: dict[Paradigm, int] = {paradigm: level for paradigm, level in strategy.levels if paradigm != "cp"}
    degrees[data] = degrees.get(data, 1) * degree
    levels = tuple((paradigm, degrees[paradigm]) for paradigm in LEVELS if paradigm in degrees)
    return replace(strategy, levels=levels, exchange="keys")


def parse_strategy(text: str, where: str = "strategy", field: str = "", group: int | None = None) -> Strategy:
    """The strategy that a text such as `dp2-tp4-ckpt` denotes.

    where, field: the file and the field that errors name. group: if given, the number of devices that the degrees must
    multiply to. Raises InputError if the text is not a strategy.
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
    """The error for a strategy whose degrees do not multiply to `group`, the number of devices. where, field: the file and the
    field that it names."""
    example = f"dp{group}" if group > 1 else "single"
    problem = f"is {str(strategy)!r}, whose degrees multiply to {strategy.group}"
    return InputError(where, field, problem, f"make them multiply to {group}, such as {example!r}")


def mixes_states(levels: Sequence[Paradigm]) -> bool:
    """Whether some of the levels copy the model states (such as dp) and others shard them (such as sdp). levels: the paradigms
    of a strategy's levels.
    """
    return len({LEVELS[level].shares for level in levels if level in DATA}) > 1


def decision_tree(group: int, *, takeaway3: bool = True, ckpt: bool = True) -> list[Strategy]:
    """All strategies of one layer on `group` devices (a power of two) that combine dp, sdp and tp: Galvatron's decision trees.

    takeaway3: leave out strategies that mix dp with sdp, which by the paper's Takeaway 3 are never better than sdp alone.
    ckpt: list each strategy also with recomputation, after all those without. Raises InputError if `group` is not a power
    of two.
    """
    if group < 1 or group & (group - 1):
        raise InputError("decision tree", "group", f"is {group}", "give a power of two, such as 8")
    strategies = []
    for count in range(len(TREE) + 1):
        for order in permutations(TREE, count):
            if takeaway3 and mixes_states(order):
                continue
            strategies += [Strategy(tuple(zip(order, degrees, strict=True))) for degrees in _factorisations(group, count)]
    return strategies + ([Strategy(s.levels, True) for s in strategies] if ckpt else [])


def _factorisations(group: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of `group`, a power of two, into `count` factors of at least 2: 8 in 2 factors -> (2, 4), (4,
    2)."""
    bits = group.bit_length() - 1
    if count == 0 and bits == 0:
        yield ()
    for cuts in combinations(range(1, bits), count - 1) if 0 < count <= bits else ():
        yield tuple(1 << end - begin for begin, end in pairwise((0, *cuts, bits)))


def gather_ranks(before: Strategy, after: Strategy, rank: int) -> tuple[int, ...]:
    """The ranks, ascending, whose samples `rank` gathers when a layer under `before` is followed by one under `after`
    (Galvatron's Slice-Gather): together they hold all samples that the rank needs. They are the fewest possible if all
    degrees are powers of two; the rank alone if it already holds all samples, so that it only slices.

    A sample's index can be written under both strategies in digits, each of which is a digit of the rank's number. The
    gather runs over the digits that number samples under `before` and do not number the same part of the index under
    `after`. Two strategies without common digits (dp2-tp3 and dp3-tp2) gather over the whole group.
    """
    freed = _freed_digits(before, after)
    if freed is None:
        return tuple(range(before.group))
    ranks = [rank]
    for stride, degree in freed:
        ranks = [r + (value - r // stride % degree) * stride for r in ranks for value in range(degree)]
    return tuple(sorted(ranks))


def gather_groups(before: Strategy, after: Strategy) -> Iterator[tuple[int, ...]]:
    """All groups of ranks that gather samples among themselves when a layer under `before` is followed by one under `after`,
    the group of rank 0 first; none if every rank already holds the samples that it needs.
    """
    for rank in range(0 if only_slices(before, after) else before.group):
        group = gather_ranks(before, after, rank)
        if group[0] == rank:
            yield group


def only_slices(before: Strategy, after: Strategy) -> bool:
    """Whether going from one strategy to the next needs no communication: every rank already holds, under `before`, all samples
    that it needs under `after`."""
    return _freed_digits(before, after) == ()


@cache
def _freed_digits(before: Strategy, after: Strategy) -> tuple[Digit, ...] | None:
    """The digits of a rank's number, as (stride, number of values), over which samples are gathered between a layer under
    `before` and one under `after`: () if nothing is gathered, None if the two strategies have no digits in common in which
    ranks can be written.
    """
    digits = [*before.layout, *after.layout]
    cuts = sorted({stride for stride, _ in digits} | {stride * degree for stride, degree in digits})
    if any(high % low for low, high in pairwise(cuts)):
        return None
    available, needed = (_in_primes(strategy.layout, cuts) for strategy in (before, after))
    return tuple(digit for index, digit in enumerate(available) if _digit_at(needed, index) != _digit_at(available, index))


def _in_primes(layout: Sequence[Digit], cuts: Sequence[int]) -> list[Digit]:
    """Cut a layout's digits (stride, number of values), which number a rank's block of samples, at the given strides and then
    into digits with prime numbers of values. cuts: strides at which a digit of another strategy begins.
    """
    digits: list[Digit] = []
    for stride, degree in layout:
        inside = [cut for cut in cuts if stride <= cut <= stride * degree]
        for low, high in reversed(list(pairwise(inside))):
            digits += _primes(low, high)
    return digits


def _primes(low: int, high: int) -> Iterator[Digit]:
    """Cut the digit with stride `low` and high // low values into digits (stride, number of values) with prime numbers of
    values, the most significant first."""
    while high > low:
        prime = next(factor for factor in range(2, high // low + 1) if high // low % factor == 0)
        high //= prime
        yield high, prime


def _digit_at(digits: Sequence[Digit], index: int) -> tuple[Digit | None, int]:
    """The digit (stride, number of values) at an index in a list, None after the last one; and the product of the numbers of
    values of all digits before it.
    """
    return digits[index] if index < len(digits) else None, prod(degree for _, degree in digits[:index])


def piece_peers(strategy: Strategy, rank: int, pieces: int) -> tuple[int, ...]:
    """The ranks that work on the pieces of the same samples as `rank`, itself included, in the order of the pieces. pieces:
    the number of pieces that each sample's tokens are cut into (context parallelism); the ranks are neighbours in the
    innermost level that splits samples.
    """
    stride, piece = strategy.strides().get(strategy.innermost_data, 0), strategy.data_index(rank) % pieces
    return tuple(rank + (other - piece) * stride for other in range(pieces))


def rows_of(strategy: Strategy, rank: int, first: int, count: int, pieces: int = 1) -> range:
    """The indices of the samples that a rank works on, among `count` samples from index `first` on, as a range.

    pieces: the number of pieces that each sample's tokens are cut into (context parallelism). Above 1, the range has
    indices of pieces instead, where the pieces of one sample have consecutive indices; the rank works on the piece with one
    position of each of its samples.
    """
    block = count // strategy.data_degree
    block_index, piece = divmod(strategy.data_index(rank), pieces)
    start = first + block_index * block * pieces + piece
    return range(start, start + block * pieces, pieces)
