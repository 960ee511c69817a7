"""The moments of a step after many equal rounds, computed exactly without following every round.

In a *round* every moment is the latest of some sums of earlier moments and durations. So a round is a convex function of the
moments that it begins with, and so is a sequence of several rounds. Suppose that one round after another adds the same to each
moment. If a round that begins k rounds later, by these additions, adds it, too, then so do all rounds in between: a convex
function that meets a line at three points is that line from the first to the last of them. So rounds are not followed one by
one but in leaps, until another sum becomes the latest; in the end all moments move by the same, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Moments = Sequence[int]
Round = Callable[[Moments], list[int]]

LONGEST = 64  # rounds after which additions may repeat
MOST_FOLLOWED = 20_000  # rounds, where additions do not repeat so soon


class TooManyRounds(ValueError):
    """Raised if too many groups of micro-batches (rounds) would have to be simulated one by one, because the times that they
    add do not repeat.
    """


def after_rounds(moments: Moments, one_round: Round, count: int) -> list[int]:
    """The moments, in whole ns, at which the passes of a step end after many equal rounds of micro-batches, computed without
    following every round.

    moments: at the beginning of the first round. one_round: returns the moments at the end of a round for those at its
    beginning. count: the number of rounds. Raises TooManyRounds if more than MOST_FOLLOWED rounds would have to be followed one
    by one.
    """
    past, followed = [list(moments)], 0
    while count:
        size = _repeated(past)
        if size is not None and count >= size:
            added = _less(past[-1], past[-1 - size])
            leaps = _leaps(past[-1], added, one_round, size, count // size)
            count -= leaps * size
            past = [_plus(past[-1], added, leaps)]
            if not count:
                break
        past.append(one_round(past[-1]))
        past, count, followed = past[-2 * LONGEST - 1 :], count - 1, followed + 1
        if followed > MOST_FOLLOWED:
            raise TooManyRounds(f"{count} rounds that do not repeat")
    return past[-1]


def _repeated(past: Sequence[list[int]]) -> int | None:
    """The least number k of rounds such that the last k rounds added to every moment what the k rounds before them added; None
    if there is none.

    past: the moments (times in ns at which passes end) after each of the latest rounds.
    """
    last = past[-1]
    for size in range(1, min(LONGEST, (len(past) - 1) // 2) + 1):
        middle, first = past[-1 - size], past[-1 - 2 * size]
        if all(c - b == b - a for a, b, c in zip(first, middle, last, strict=True)):
            return size
    return None


def _leaps(moments: Moments, added: Moments, one_round: Round, size: int, most: int) -> int:
    """The number of times, at most `most`, that the next `size` rounds add the amounts `added` to the moments again, so that
    these rounds need not be followed one by one. A moment is the time at which a pass ends; a round is a group of
    micro-batches.

    moments: the moments now, in ns. added: the amounts that the last two groups of `size` rounds added to each moment.
    one_round: returns the moments after one more round.
    """

    def holds(leaps: int) -> bool:
        """Whether the last of this number of leaps adds the same."""
        begun = ended = _plus(moments, added, leaps - 1)
        for _ in range(size):
            ended = one_round(ended)
        return _less(ended, begun) == added

    low, high = 0, 1  # the last one that holds, and one that is tried
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _less(a: Moments, b: Moments) -> list[int]:
    """The differences a - b of two sequences of moments (times in ns), entry by entry."""
    return [x - y for x, y in zip(a, b, strict=True)]


def _plus(moments: Moments, added: Moments, times: int) -> list[int]:
    """The moments (times in ns) after the amounts `added` are added `times` times."""
    return [moment + times * addition for moment, addition in zip(moments, added, strict=True)]
