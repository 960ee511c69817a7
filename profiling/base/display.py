"""Objects as text for people: one short line for interpreters, tables of labels and texts for notebooks and rich consoles."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, TypeVar

from trainplan.profiling.base.errors import printable

Rows = Sequence[tuple[str, str]]
Shown = TypeVar("Shown")
LONGEST_LINE, LONGEST_FIELD = 200, 60  # characters, without the name of the class
LEFT_ALIGNED = ' style="text-align: left"'  # notebooks align cells to the right


def html_table(rows: Rows) -> str:
    """Format (label, text) pairs as an HTML table with one row per pair; line breaks in a text are kept. It sets no colours,
    so that it is legible in a light and in a dark notebook.
    """
    texts = ((html.escape(label), html.escape(text).replace("\n", "<br>")) for label, text in rows)
    cells = (f"<tr><th{LEFT_ALIGNED}>{label}</th><td{LEFT_ALIGNED}>{text}</td></tr>" for label, text in texts)
    return f"<table>{''.join(cells)}</table>"


def one_line(value: object) -> str:
    """Format an object as one short line: the name of its class, and those of its fields that are short plain values; `...`
    represents all other fields that are not None.
    """
    names = getattr(type(value), "model_fields", None) or getattr(type(value), "__dataclass_fields__", {})
    texts, shortened, length = list[str](), False, 0
    for name in names:
        field = getattr(value, name)
        if field is None:
            continue
        text = f"{name}={field!r}" if isinstance(field, str | int | float) else ""
        if text and len(text) <= LONGEST_FIELD and length + len(text) <= LONGEST_LINE:
            texts.append(text)
            length += len(text) + 2
        else:
            shortened = True
    return f"{type(value).__name__}({', '.join([*texts, *['...'] * shortened])})"


def in_one_line(kind: type[Shown]) -> type[Shown]:
    """Class decorator that makes Python print objects of the class by `one_line`, as a short line, unless the class itself
    defines how they are printed. A notebook prints the result of every call, and the full text of a plan has hundreds of
    kilobytes.
    """
    if kind.__str__ is not object.__str__ and "__str__" not in vars(kind):
        kind.__str__ = one_line  # type: ignore[method-assign]
    kind.__repr__ = one_line  # type: ignore[method-assign]
    return kind


def rich_table(rows: Rows) -> Any:
    """Format (label, text) pairs as a table object that the library rich can print, with one row per pair."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(printable(label), style="bold"), Text(printable(text)))
    return grid
