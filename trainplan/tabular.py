"""Results that are tables: as text, as a DataFrame of pandas, as a table of a notebook, and as a picture."""

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

# How a field is written for people, by the end of its name.
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
NAMED_ROWS, NAMED = 3, 40  # a repr names the first rows, with a number of letters of each at most


def cell_text(name: str, value: Any) -> str:
    """A value of a table as people read it: ("step_ns", 1500000) gives "1.5 ms".

    The end of the field's name states the unit: "_ns" a time, "_bytes" a size, "gap" a share, "_per_s" a rate and so on
    (FORMATS); any other value becomes a text by str. None gives "-".
    """
    form = next((form for end, form in FORMATS.items() if name.endswith(end)), str)
    return "-" if value is None else form(value)


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame of rows (dicts by field), with a column for each field.

    Raises MissingExtra if pandas is not installed.
    """
    if find_spec("pandas") is None:
        raise MissingExtra("pandas", "plot", "a frame")
    import pandas  # type: ignore[import-untyped]

    return pandas.DataFrame(rows)


class Tabular:
    """Base class of results that are tables: text, DataFrame, notebook table and picture, all made of `rows`.

    A subclass gives `rows`; `headings`, the heading of each field that people see, by field; and, where it has a picture,
    `drawn_by`, the function that draws it, as "module:function".
    """

    headings: ClassVar[Mapping[str, str]]
    drawn_by: ClassVar[str] = ""

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, each a dict from the name of a field to a number, text, truth value or None. The name of a
        field with a unit ends with it, such as `step_ns`; all rows have the same fields."""
        raise NotImplementedError

    def cells(self) -> list[list[str]]:
        """The texts of the table's cells, row by row: the values of the fields that are in `headings`, in their order,
        formatted for people."""
        return [[cell_text(name, row[name]) for name in self.headings] for row in self.rows()]

    def notes(self) -> list[str]:
        """Lines of text that are shown below the table; none unless a subclass has some."""
        return []

    def frame(self) -> Any:
        """The table as a pandas DataFrame, with a column for each field of `rows`. Raises MissingExtra if pandas is not
        installed."""
        return frame_of(self.rows())

    def picture(self, **options: Any) -> Any:
        """The table as a matplotlib Figure.

        options: keywords of the function that draws it (`drawn_by`). Raises InputError if this kind of result has no picture,
        and MissingExtra if matplotlib is not installed.
        """
        if not self.drawn_by:
            raise InputError(type(self).__name__, "", "has no picture", "take its frame()")
        if find_spec("matplotlib") is None:
            raise MissingExtra("matplotlib", "plot", "drawing")
        return attribute(self.drawn_by)(self, **options)

    def __repr__(self) -> str:
        first = [row[0][:NAMED] for row in islice(self.cells(), NAMED_ROWS)]
        count, name = len(self.rows()), type(self).__name__
        return f"<{name} of {plural(count, 'row')}{': ' * bool(first)}{', '.join(first)}{', ...' * (count > len(first))}>"

    def _repr_html_(self) -> str:
        """The table as HTML, with its notes as paragraphs below it; notebooks call this method."""
        head = "".join(f"<th{LEFT_ALIGNED}>{escape(heading)}</th>" for heading in self.headings.values())
        lines = ("".join(f"<td{LEFT_ALIGNED}>{escape(printable(cell))}</td>" for cell in row) for row in self.cells())
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        below = "".join(f"<p>{escape(printable(note))}</p>" for note in self.notes())
        return f"<table><tr>{head}</tr>{body}</table>{below}"
