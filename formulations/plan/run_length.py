"""Long lists of units in few rows: runs of equal labels, and runs of labels that alternate."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.base.quantities import span

LONGEST_PERIOD = 4
Row = tuple[int, str, int, str]


def runs(names: Sequence[str], labels: Sequence[str]) -> list[Row]:
    """Rows of (index of the first unit, units, count, label), in the order of the first units.

    names: the name of each unit; labels: what each of them has. Consecutive units of one label are one row, `block0.attention
    .. block3.ffn`. Where labels alternate in a fixed order at least twice, the units of each position in that order are one
    row, `block0 .. block29 attention`, where the last part of their names is the same, or `a .. g, every 2nd`.
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
    """How many units from index `at` on have labels that repeat with a period: whole periods, at least two, else 0; for period
    1 any number."""
    end = at + period
    while end < len(labels) and labels[end] == labels[end - period]:
        end += 1
    if period == 1:
        return end - at
    whole = (end - at) // period * period
    return whole if whole >= 2 * period and end <= len(labels) else 0


def _named(names: Sequence[str], period: int) -> str:
    """The text of units that are `period` units apart."""
    if period == 1 or len(names) == 1:
        return span(names[0], names[-1])
    owners, parts = zip(*(name.rpartition(".")[::2] for name in names), strict=True)
    if len(set(parts)) == 1 and all(owners):
        return f"{owners[0]} .. {owners[-1]} {parts[0]}"
    return f"{names[0]} .. {names[-1]}, every {period}{'nd' if period == 2 else 'rd' if period == 3 else 'th'}"
