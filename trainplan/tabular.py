"""Findings of several rows: as text, as a frame of pandas, as a table of a notebook, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from itertools import islice
from typing import Any, ClassVar

from trainplan.profiling.base.display import LEFT_ALIGNED
from trainplan.profiling.base.errors import InputError, MissingExtra, printable
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_bytes, format_count, format_gap, format_time, plural

FORMATS: dict[str, Callable[[Any], str]] = {
    "_ns": format_time,
    "_bytes": format_bytes,
    "gap": format_gap,
    "above": "{:+.3%}".format,
    "error": "{:+.1%}".format,
    "saves": "{:+.1%}".format,
    "fits": {True: "yes", False: "no"}.__getitem__,
    "spread": "{:.1%}".format,
    "seconds": "{:.3f}".format,
    "_per_s": format_count,
    "_per_device": format_count,
}
NAMED_ROWS, NAMED = 3, 40  # rows that a repr names, each with so many letters at most


def cell_text(name: str, value: Any) -> str:
    """A value as its name says: a time, bytes, a share, a rate."""
    form = next((form for end, form in FORMATS.items() if name.endswith(end)), str)
    return "-" if value is None else form(value)


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with a column for each field. Raises MissingExtra where pandas is not installed."""
    if find_spec("pandas") is None:
        raise MissingExtra("pandas", "plot", "a frame")
    import pandas  # type: ignore[import-untyped]

    return pandas.DataFrame(rows)


class Tabular:
    """What has rows. A class of it gives `rows`, the heading of each field that people see, and the function that draws it, if
    there is one."""

    headings: ClassVar[Mapping[str, str]]
    drawn_by: ClassVar[str] = ""

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each row, of plain values whose units are in their names."""
        raise NotImplementedError

    def cells(self) -> list[list[str]]:
        """The fields with headings, row by row, as people read them."""
        return [[cell_text(name, row[name]) for name in self.headings] for row in self.rows()]

    def notes(self) -> list[str]:
        """What belongs below the table."""
        return []

    def frame(self) -> Any:
        """A pandas DataFrame of `rows`. Raises MissingExtra where pandas is not installed."""
        return frame_of(self.rows())

    def picture(self, **options: Any) -> Any:
        """A matplotlib Figure. options: of the function that draws it. Raises MissingExtra without matplotlib, and InputError
        where nothing draws such rows."""
        if not self.drawn_by:
            raise InputError(type(self).__name__, "", "has no picture", "take its frame()")
        if find_spec("matplotlib") is None:
            raise MissingExtra("matplotlib", "plot", "drawing")
        return attribute(self.drawn_by)(self, **options)

    def __repr__(self) -> str:
        first = [row[0][:NAMED] for row in islice(self.cells(), NAMED_ROWS)]
        every, name = len(self.rows()), type(self).__name__
        return f"<{name} of {plural(every, 'row')}{': ' * bool(first)}{', '.join(first)}{', ...' * (every > len(first))}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th{LEFT_ALIGNED}>{escape(heading)}</th>" for heading in self.headings.values())
        lines = ("".join(f"<td{LEFT_ALIGNED}>{escape(printable(cell))}</td>" for cell in row) for row in self.cells())
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        below = "".join(f"<p>{escape(printable(note))}</p>" for note in self.notes())
        return f"<table><tr>{head}</tr>{body}</table>{below}"
