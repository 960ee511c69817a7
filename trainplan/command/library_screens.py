"""Prints the library for people: lists of entries, an entry, and checks."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.command.printing import fitting, pairs, table
from trainplan.libraries.catalogue import Library
from trainplan.libraries.checking import CheckedEntry
from trainplan.libraries.records import Entry, LowerBound
from trainplan.libraries.scoring import Scores
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_time, plural


def listed(found: Library) -> None:
    """Print a library's entries as a table, and the number of entries by status."""
    headings = list(found.headings.values())
    rows = found.cells()
    for cells, row in zip(rows, found.rows(), strict=True):
        if row["infeasible"]:
            cells[list(found.headings).index("best_ns")] = "infeasible"
    spare = ("gap", "lower bound", "devices", "layers", "status", "gap by evidence")
    table(*fitting(headings, rows, spare), left=("name", "status"))
    pairs([(plural(len(found), "instance"), note) for note in found.notes()])


def entry_rows(entry: Entry) -> list[tuple[str, str]]:
    """An entry as pairs of label and text."""
    sizes = [
        f"{name.removesuffix('_bytes').replace('_', ' ')} {format_bytes(size) if name.endswith('_bytes') else size}"
        for name, size in entry.size.items()
    ]
    rows = [("name", entry.name), ("problem", entry.problem), ("about", entry.about)]
    rows.append(("source", ", ".join(f"{kind} {value}" for kind, value in entry.source.items())))
    if entry.request is not None:
        rows.append(("request", ", ".join(f"{name} {value}" for name, value in entry.request.items())))
    rows += [("size", ", ".join(sizes)), ("hash", entry.instance_hash), ("status", entry.status)]
    if entry.infeasible:
        return [*rows, ("infeasible", entry.reason or "")]
    for label, bound in (("best known", entry.upper_bound), ("lower bound", entry.lower_bound)):
        rows.append((label, "none" if bound is None else _found(bound)))
    if entry.gap is not None:
        rows.append(("gap", format_gap(entry.gap)))
    checked = entry.checked_lower_bound
    text = "none" if checked is None else f"{format_time(checked.value)} ({checked.value} ns), by {checked.kind}"
    return [*rows, ("by evidence", text)]


def _found(bound: LowerBound) -> str:
    """A bound as text: its value, its method with options, and who found it when, on which machine, in which time."""
    options = "".join(f" {name}={value}" for name, value in bound.options.items())
    found = f"{bound.method}{options} in {bound.seconds:.3f} s, {bound.who}, {bound.date}"
    return f"{format_time(bound.value)} ({bound.value} ns), by {found}, on {bound.machine.get('processor', 'a machine')}"


def checked(found: Sequence[CheckedEntry]) -> None:
    """Print the findings of checks: of one entry all lines, of several a line each."""
    if len(found) == 1:
        pairs([*found[0].lines, *(("fault", text) for text in found[0].faults)])
        return
    rows = []
    for entry in found:
        by_label = dict(entry.lines)
        verdict = "; ".join(entry.faults) or "holds"
        nothing = by_label.get("infeasible", "-")
        rows.append([entry.name, by_label.get("value", nothing), by_label.get("lower bound", "-"), verdict])
    columns = ("name", "value", "lower bound by evidence", "verdict")
    left = ("name", "lower bound by evidence", "verdict")
    table(*fitting(columns, rows, ("lower bound by evidence", "value")), left=left)
    wrong = sum(bool(entry.faults) for entry in found)
    pairs([(plural(len(found), "instance"), f"{wrong} with faults" if wrong else "all hold")])


def scored(scores: Scores) -> None:
    """Print how methods did on the library's instances, and where one found better than the best known."""
    columns = list(scores.headings.values())
    kept, rows = fitting(columns, scores.cells(), ("best known", "instances", "closed"), words=columns[2:])
    table(kept, rows, left=("problem", "method"))
    pairs([("better", note) for note in scores.notes()])
