"""Labels and texts as tables, where notebooks and rich consoles show objects."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from trainplan.profiling.base.errors import printable

Rows = Sequence[tuple[str, str]]


def html_table(rows: Rows) -> str:
    """A table of HTML, a row for each label and its text."""
    cells = (f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>" for label, text in rows)
    return f"<table>{''.join(cells)}</table>"


def rich_table(rows: Rows) -> Any:
    """A renderable of rich, a row for each label and its text."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(printable(label), style="bold"), Text(printable(text)))
    return grid
