"""Long lists of units in few rows: runs of equal labels, and runs of labels that alternate."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.base.quantities import span

LONGEST_PERIOD = 4
Row = tuple[int, str, int, str]


def runs(names: Sequence[str], labels: Sequence[str]) -> list[Row]:
    """Shorten a list of units (sub-layers) to few rows for a table. A row is (index of the first unit, units, count, label).

    names: the name of each unit; labels: the text to show for each unit, such as its strategy. Consecutive units with one label
    are one row, "block0.attention .. block3.ffn". If up to LONGEST_PERIOD labels alternate in a fixed order at least twice, the
    units of each position in that order are one row: "block0 .. block29 attention" if the last part of their names is equal,
    otherwise "a .. g, every 2nd". Rows are sorted by the index of their first unit.
    """
    rows: list[Row] = []
    at = 0
    while at < len(labels):
        period, length = max(
            ((period, _repeated(labels, at, period)) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda candidate: (candidate[1], -candidate[0]),
        )
        for phase in range(min(period, length)):
            indices = range(at + phase, at + length, period)
            rows.append((indices[0], _named([names[l] for l in indices], period), len(indices), labels[indices[0]]))
        at += length
    return rows


def _repeated(labels: Sequence[str], at: int, period: int) -> int:
    """The number of units, from index `at` on, whose labels repeat with a period of `period` units: labels a b a b c, at 0,
    period 2 -> 4. With a period above 1 it is 0 unless there are at least two whole periods; with period 1 it is the number
    of equal labels.

    labels: the label of every unit, such as its strategy.
    """
    end = at + period
    while end < len(labels) and labels[end] == labels[end - period]:
        end += 1
    if period == 1:
        return end - at
    whole = (end - at) // period * period
    return whole if whole >= 2 * period and end <= len(labels) else 0


def _named(names: Sequence[str], period: int) -> str:
    """The text for units that are `period` units apart: "block0 .. block3" for period 1, otherwise "block0 .. block29
    attention" if the last part of their names is equal, or "a .. g, every 2nd". names: the names of these units, in order."""
    if period == 1 or len(names) == 1:
        return span(names[0], names[-1])
    owners, parts = zip(*(name.rpartition(".")[::2] for name in names), strict=True)
    if len(set(parts)) == 1 and all(owners):
        return f"{owners[0]} .. {owners[-1]} {parts[0]}"
    return f"{names[0]} .. {names[-1]}, every {period}{'nd' if period == 2 else 'rd' if period == 3 else 'th'}"
