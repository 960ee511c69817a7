"""Findings of several rows: as text, as a frame of pandas, as a table of a notebook, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from importlib.util import find_spec
from typing import Any, ClassVar

from trainplan.profiling.base.errors import MissingExtra, printable
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_bytes, format_count, format_time

FORMATS: dict[str, Callable[[Any], str]] = {
    "_ns": format_time,
    "_bytes": format_bytes,
    "gap": "{:.3%}".format,
    "above": "{:+.3%}".format,
    "error": "{:+.1%}".format,
    "fits": {True: "yes", False: "no"}.__getitem__,
    "spread": "{:.1%}".format,
    "seconds": "{:.3f}".format,
    "_per_s": format_count,
    "_per_device": format_count,
}


def cell_text(name: str, value: Any) -> str:
    """A value as its name says: a time, bytes, a share, a rate."""
    form = next((form for end, form in FORMATS.items() if name.endswith(end)), str)
    return "-" if value is None else form(value)


class Tabular:
    """What has rows. A class of it gives `rows`, the heading of each field that people see, and the function that draws it."""

    headings: ClassVar[Mapping[str, str]]
    drawn_by: ClassVar[str]

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
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "plot", "a frame")
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.rows())

    def picture(self, **options: Any) -> Any:
        """A matplotlib Figure. options: of the function that draws it. Raises MissingExtra without matplotlib."""
        if find_spec("matplotlib") is None:
            raise MissingExtra("matplotlib", "plot", "drawing")
        return attribute(self.drawn_by)(self, **options)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(heading)}</th>" for heading in self.headings.values())
        lines = ("".join(f"<td>{escape(printable(cell))}</td>" for cell in row) for row in self.cells())
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        below = "".join(f"<p>{escape(printable(note))}</p>" for note in self.notes())
        return f"<table><tr>{head}</tr>{body}</table>{below}"
