"""When passes have ended where micro-batches are many: what recurs among the recorded ends, followed in leaps.

Ends are recorded in an order, each by how far before it those stand that it follows, and by the times in between. With a round
of micro-batches more, the same row of them stands in the record once more, wherever the pipeline is full: that is looked for,
and asserted, in the records of two steps of few micro-batches. `step.repeats` then follows the row as often as it recurs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainplan.formulations.schedule.repeats import after_rounds

Symbols = TypeVar("Symbols")
Recorded = tuple[list[tuple[tuple[int, ...], Symbols]], list[int]]  # ends by the places of those before them; each site's last
Row = tuple[tuple[int, ...], Symbols]  # how far before an end those stand that it follows, and what comes in between


@dataclass(frozen=True)
class Recurring(Generic[Symbols]):
    """The record of a step of few micro-batches, of which the `size` rows that end before place `end` recur with every further
    round of micro-batches. last: how far before the end of the record the sites' last ends stand."""

    rows: Sequence[Row[Symbols]]
    end: int
    size: int
    last: Sequence[int]

    def ends_ns(self, more: int, time_ns: Callable[[Symbols], int]) -> list[int]:
        """When each site has ended its last pass, with so many rounds more. time_ns: what comes in between. Raises
        TooManyRounds."""
        ended: list[int] = []
        follow(ended, self.rows[: self.end], time_ns)
        reach = max(self.size, max((back for row, _ in self.rows[self.end - self.size :] for back in row), default=1))
        window = min(reach, self.end)

        def one_round(moments: Sequence[int]) -> list[int]:
            later = list(moments)
            follow(later, self.rows[self.end - self.size : self.end], time_ns)
            return later[-window:]

        ended = after_rounds(ended[-window:], one_round, more)
        follow(ended, self.rows[self.end :], time_ns)
        return [ended[-back] for back in self.last]


def follow(ended: list[int], rows: Sequence[Row[Symbols]], time_ns: Callable[[Symbols], int]) -> None:
    """Add the ends of some rows to those before them."""
    for before, symbols in rows:
        index = len(ended)
        ended.append(max([ended[index - back] for back in before], default=0) + time_ns(symbols))


def recurring(few: Recorded[Symbols], more: Recorded[Symbols]) -> Recurring[Symbols] | None:
    """What recurs, by the records of two steps, one of which has a round of micro-batches more: in the order of the record, or
    in that in which ends come about where all takes one unit of time. None where nothing does in either."""
    return _recurring(few, more) or _recurring(_levelled(few), _levelled(more))


def _levelled(recorded: Recorded[Symbols]) -> Recorded[Symbols]:
    """The same ends, ordered by how many others have to come before each."""
    rows, last = recorded
    levels: list[int] = []
    for before, _ in rows:
        levels.append(1 + max((levels[place] for place in before), default=0))
    order = sorted(range(len(rows)), key=lambda place: (levels[place], str(rows[place][1])))
    indices = {old: new for new, old in enumerate(order)}
    return [(tuple(indices[each] for each in rows[old][0]), rows[old][1]) for old in order], [indices[each] for each in last]


def _recurring(few: Recorded[Symbols], more: Recorded[Symbols]) -> Recurring[Symbols] | None:
    rows, longer = _relative(few), _relative(more)
    size, last = len(longer) - len(rows), [len(rows) - place for place in few[1]]
    if last != [len(longer) - place for place in more[1]]:
        return None
    common = next((place for place, (a, b) in enumerate(zip(rows, longer, strict=False)) if a != b), len(rows))
    for end in range(common, max(3 * size, common - size) - 1, -1):
        row = rows[end - size : end]
        alike = all(rows[end - n * size : end - (n - 1) * size] == row for n in (2, 3))
        if alike and longer[end : end + size] == row and longer[end + size :] == rows[end:]:
            return Recurring(rows, end, size, last)
    return None


def _relative(recorded: Recorded[Symbols]) -> list[Row[Symbols]]:
    return [(tuple(index - each for each in before), symbols) for index, (before, symbols) in enumerate(recorded[0])]
