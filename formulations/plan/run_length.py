"""Long lists of units in few rows: runs of equal labels, and runs of labels that alternate."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.base.quantities import span

LONGEST_PERIOD = 4
Row = tuple[int, str, int, str]


def runs(names: Sequence[str], labels: Sequence[str]) -> list[Row]:
    """Rows of (place of the first unit, units, count, label), in the order of the first units.

    names: of the units; labels: what each has. Units of one label that follow one another are one row, `block0.attention ..
    block3.ffn`. Where labels alternate in a fixed order at least twice, the units of each place in that order are one row,
    `block0 .. block29 attention`, all with the name's last part in common, or `a .. g, every 2nd`.
    """
    rows: list[Row] = []
    at = 0
    while at < len(labels):
        period, length = max(
            ((period, _repeated(labels, at, period)) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda each: (each[1], -each[0]),
        )
        for phase in range(min(period, length)):
            indices = range(at + phase, at + length, period)
            rows.append((indices[0], _named([names[l] for l in indices], period), len(indices), labels[indices[0]]))
        at += length
    return rows


def _repeated(labels: Sequence[str], at: int, period: int) -> int:
    """How many units from `at` on have labels that repeat with a period: whole periods, at least two, or else none; of period
    1 any number."""
    end = at + period
    while end < len(labels) and labels[end] == labels[end - period]:
        end += 1
    if period == 1:
        return end - at
    whole = (end - at) // period * period
    return whole if whole >= 2 * period and end <= len(labels) else 0


def _named(names: Sequence[str], period: int) -> str:
    if period == 1 or len(names) == 1:
        return span(names[0], names[-1])
    owners, parts = zip(*(name.rpartition(".")[::2] for name in names), strict=True)
    if len(set(parts)) == 1 and all(owners):
        return f"{owners[0]} .. {owners[-1]} {parts[0]}"
    return f"{names[0]} .. {names[-1]}, every {period}{'nd' if period == 2 else 'rd' if period == 3 else 'th'}"
