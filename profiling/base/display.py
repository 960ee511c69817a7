"""How objects are shown: in one short line, and as tables of labels and texts in notebooks and rich consoles."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, TypeVar

from trainplan.profiling.base.errors import printable

Rows = Sequence[tuple[str, str]]
Shown = TypeVar("Shown")
LONGEST_LINE, LONGEST_FIELD = 200, 60  # of letters, without the class
LEFT = ' style="text-align: left"'  # notebooks set cells to the right


def html_table(rows: Rows) -> str:
    """A table of HTML, a row for each label and its text, whose lines stay lines. It has no colours of its own, so that it is
    read on the notebook's own ground, light or dark."""
    texts = ((html.escape(label), html.escape(text).replace("\n", "<br>")) for label, text in rows)
    cells = (f"<tr><th{LEFT}>{label}</th><td{LEFT}>{text}</td></tr>" for label, text in texts)
    return f"<table>{''.join(cells)}</table>"


def one_line(value: object) -> str:
    """An object in one short line: its class and its fields of plain values, as far as they are short; `...` for all others
    that are set."""
    names = getattr(type(value), "model_fields", None) or getattr(type(value), "__dataclass_fields__", {})
    texts, left, length = list[str](), False, 0
    for name in names:
        field = getattr(value, name)
        if field is None:
            continue
        text = f"{name}={field!r}" if isinstance(field, str | int | float) else ""
        left = left or not text or len(text) > LONGEST_FIELD or length + len(text) > LONGEST_LINE
        if text and len(text) <= LONGEST_FIELD and length + len(text) <= LONGEST_LINE:
            texts.append(text)
            length += len(text) + 2
    return f"{type(value).__name__}({', '.join([*texts, *['...'] * left])})"


def in_one_line(kind: type[Shown]) -> type[Shown]:
    """The class, whose objects are shown by `one_line` where it is not said how they are printed: a notebook or an interpreter
    shows what a call gives, and all numbers of a plan are hundreds of kilobytes."""
    if kind.__str__ is not object.__str__ and "__str__" not in vars(kind):
        kind.__str__ = one_line  # type: ignore[method-assign]
    kind.__repr__ = one_line  # type: ignore[method-assign]
    return kind


def rich_table(rows: Rows) -> Any:
    """A renderable of rich, a row for each label and its text."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(printable(label), style="bold"), Text(printable(text)))
    return grid
