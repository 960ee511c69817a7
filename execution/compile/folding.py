"""The smallest plan whose programs mean the same as those of a plan: for checks of plans that are too large to run whole.

Ranks of a stage are numbered in bits, and a level of a strategy is a span of bits. Bits that no strategy of the plan tells
apart form a *segment*: whatever a rank does with another that differs in one of them, it does with all that differ in any. A
segment of n bits is folded to fewer: 2 replicas stand for 2^n. Re-layouts tie bits of samples to bits of ranks by their
position, and unequal segments may shift these: a folding is taken only if it keeps for all strategies of neighbouring units
which segments a re-layout gathers over (`faithful`), and the plan itself, of which every bit is kept, always does.

Micro-batches are folded to a few (see `rounds`), and samples to one of each on each data-parallel rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trainplan.execution.rounds import few_micro_batches
from trainplan.formulations.plan import Plan
from trainplan.formulations.strategies import Strategy, gather_ranks


@dataclass(frozen=True)
class Segments:
    """Bits of the ranks of a stage, the least significant first: the width of each segment."""

    widths: tuple[int, ...]

    def reach(self, differences: Sequence[int]) -> tuple[int, ...] | None:
        """The segments in which members of a group differ, given how each differs from one of them (exclusive or).

        None if they are not all that differ in these segments alone.
        """
        bits, low, reached = 0, 0, []
        for difference in differences:
            bits |= difference
        for number, width in enumerate(self.widths):
            mask = (1 << width) - 1 << low
            if bits & mask == mask and width:
                reached.append(number)
            elif bits & mask:
                return None
            low += width
        return tuple(reached) if len(set(differences)) == 1 << bits.bit_count() else None

    def cut(self, most: int) -> Segments:
        """The same segments, each of so many bits at most."""
        return Segments(tuple(min(width, most) for width in self.widths))


@dataclass(frozen=True)
class Folding:
    """A plan, the segments of its ranks' bits, the folded plan and the segments of that one's."""

    plan: Plan
    segments: Segments
    folded: Plan
    folded_segments: Segments


def fold(plan: Plan) -> Folding:
    """The smallest faithful folding of a plan."""
    strategies = plan.strategies()
    segments = segments_of(strategies)
    widest = max(segments.widths, default=0)
    shares, pairs = plan.batch.shares, set(pairwise(strategies))
    few = few_micro_batches(plan)
    if shares is not None:
        shares = _folded_shares([min(share, few) for share in shares])
    for most in range(1, widest + 1):
        narrow = segments.cut(most)
        if shares is not None:  # the outermost level is that of the replicas
            narrow = Segments((*narrow.widths[:-1], len(shares).bit_length() - 1))
        if all(faithful(a, b, segments, narrow) and faithful(b, a, segments, narrow) for a, b in pairs):
            return Folding(plan, segments, _folded(plan, segments, narrow, few, shares), narrow)
    return Folding(plan, segments, _folded(plan, segments, segments, few, shares), segments)


def segments_of(strategies: Sequence[Strategy]) -> Segments:
    """The longest spans of bits that lie within one level of every strategy."""
    ends = {0}
    for strategy in strategies:
        end = 0
        for _, degree in reversed(strategy.levels):
            end += degree.bit_length() - 1
            ends.add(end)
    return Segments(tuple(b - a for a, b in pairwise(sorted(ends))))


def folded_strategy(strategy: Strategy, segments: Segments, narrow: Segments) -> Strategy:
    """A strategy with each level over the same segments, of other widths."""
    places, levels, number = list(zip(segments.widths, narrow.widths, strict=True)), [], 0
    for paradigm, degree in reversed(strategy.levels):
        left, bits = degree.bit_length() - 1, 0
        while left:
            left -= places[number][0]
            bits += places[number][1]
            number += 1
        levels.append((paradigm, 1 << bits))
    return replace(strategy, levels=tuple(reversed(levels)))


def faithful(before: Strategy, after: Strategy, segments: Segments, narrow: Segments) -> bool:
    """Whether a re-layout is one of the folded strategies too, or of neither, and gathers over the same segments."""
    if segments == narrow:
        return True
    a, b = folded_strategy(before, segments, narrow), folded_strategy(after, segments, narrow)
    reached = segments.reach(gather_ranks(before, after, 0))
    same = (before.layout == after.layout) == (a.layout == b.layout)
    same = same and (before.token_digit == after.token_digit) == (a.token_digit == b.token_digit)
    return same and reached is not None and reached == narrow.reach(gather_ranks(a, b, 0))


def _folded_shares(shares: Sequence[int]) -> list[int]:
    """Each number of micro-batches that some replica has, and the largest again up to a power of two (2 at least)."""
    kinds = sorted(set(shares))
    count = max(2, 1 << (len(kinds) - 1).bit_length())
    return kinds + [kinds[-1]] * (count - len(kinds))


def _folded(plan: Plan, segments: Segments, narrow: Segments, few: int, shares: list[int] | None) -> Plan:
    size = 1 << sum(narrow.widths)
    strategies = [folded_strategy(strategy, segments, narrow) for strategy in plan.strategies()]
    samples = (2 if plan.sliced else 1) * (1 if shares else max(strategy.data_degree for strategy in strategies))
    micro_batches = max(shares) if shares else min(few, plan.batch.micro_batches)
    total = sum(shares) if shares else micro_batches
    batch = plan.batch.changed(global_samples=samples * total, micro_batches=micro_batches, shares=shares)
    return plan.changed(
        world=size * plan.depth,
        batch=batch,
        placement=None,
        predicted=None,
        stages=[
            s.changed(ranks=list(range(n % plan.depth * size, (n % plan.depth + 1) * size))) for n, s in enumerate(plan.stages)
        ],
        units=[unit.laid_out(s) for unit, s in zip(plan.units, strategies, strict=True)],
    )
