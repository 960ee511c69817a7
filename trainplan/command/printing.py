"""Lines and tables on standard output. What comes from files is escaped and cut: names may hold anything."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainplan.profiling.base.errors import printable

LONGEST_LINE, LONGEST_LABEL, LONGEST_CELL = 2000, 60, 300  # letters
UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|[mun]?s|%)\b|%)")  # between a number and its unit, where no line ends
LEAST_WIDTH = 20  # columns of a text that stands next to its label
PIPE_WIDTH = 160
SCREEN_WIDTH, LABEL_WIDTH = 80, 11  # of the first screen, and of its labels
LEFT = {"method", "status", "about", "options", "planner", "cuts", "fits", "devices", "kinds", "layers", "units", "strategy"}
LEFT |= {
    "plan",
    "ranks",
    "holds",
    "sub-layers",
    "sub-layers of stages",
    "layers of stages",
    "like",
    "stages",
    "switches",
    "problem",
    "",
}


def _width() -> int | None:
    """Columns of tables: as the variable COLUMNS says, else the terminal's (None), or in a pipe a usual width."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) >= LEAST_WIDTH:
        return int(columns)
    return None if Console().is_terminal else PIPE_WIDTH


out = Console(highlight=False, soft_wrap=True, emoji=False, width=_width())
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def line(text: str, margin: str = "") -> None:
    """A line as it is; on a terminal wrapped, what follows below the margin that it begins with.

    In a pipe it stays whole, so that it can be searched and copied.
    """
    text = printable(text, LONGEST_LINE)
    if out.is_terminal and len(margin) + len(text) > out.width:
        width = max(LEAST_WIDTH, out.width - len(margin))
        text = f"\n{' ' * len(margin)}".join(wrap(text, width, break_long_words=False, break_on_hyphens=False))
    out.print(Text(margin + text))


def wrapped(label: str, pieces: Sequence[str], *, whole: bool = False) -> None:
    """A label and pieces of text with dots between, broken between pieces, or else between words, at the width of the terminal;
    in a pipe at 80 columns, unless COLUMNS says otherwise. whole: pieces are commands, which are copied, and stay whole."""
    for number, text in enumerate(_broken(pieces, _screen_width() - LABEL_WIDTH, whole)):
        out.print(Text(f"{'' if number else label:<{LABEL_WIDTH}}{text}"))


def aligned(label: str, rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """A label and rows of cells in columns, the first to the left, the others to the right; each row ends with pieces of text,
    broken in the width that is left as those of `wrapped` are."""
    cells = [[printable(text, LONGEST_CELL) for text in row] for row, _ in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = _screen_width() - LABEL_WIDTH - sum(widths) - 2 * len(widths)
    for number, (row, (_, pieces)) in enumerate(zip(cells, rows, strict=True)):
        padded = [f"{row[0]:<{widths[0]}}", *(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))]
        head = f"{'' if number else label:<{LABEL_WIDTH}}{'  '.join(padded)}  "
        for index, text in enumerate(_broken(pieces, room, whole=False)):
            out.print(Text(f"{'' if index else head:<{len(head)}}{text}"))


def _screen_width() -> int:
    return out.width if out.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else SCREEN_WIDTH


def _broken(pieces: Sequence[str], room: int, whole: bool) -> list[str]:
    """Lines of so many letters at most, with dots between pieces; longer pieces are broken between words unless they are
    whole."""
    rows = [""]
    for piece in (UNIT.sub("\u00a0", printable(text, LONGEST_LINE)) for text in pieces):
        joined = f"{rows[-1]} · {piece}" if rows[-1] else piece
        rows = [*rows[:-1], joined] if len(joined) <= room or not rows[-1] else [*rows, piece]
    width = max(LEAST_WIDTH, room)
    lines = rows if whole else [text for row in rows for text in _filled(row, width)]
    return [text.replace("\u00a0", " ") for text in lines]


def _filled(text: str, width: int) -> list[str]:
    """Lines of a text, in which numbers stay with their units."""
    kept = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return kept if max(map(len, kept), default=0) <= width else wrap(text.replace("\u00a0", " "), width)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and texts in two columns."""
    labels = [printable(label, LONGEST_LABEL) for label, _ in rows]
    width = max(map(len, labels), default=0)
    for label, (_, text) in zip(labels, rows, strict=True):
        line(text, f"{label:<{width}}  ")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, left: Container[str] = LEFT) -> None:
    """A table; where it is wider than the terminal even with its words wrapped, a block of labels and texts for each row.

    left: columns of words; others hold numbers, to the right.
    """
    cells = [[printable(text, LONGEST_CELL) for text in row] for row in (columns, *rows)]
    texts = list(zip(*cells, strict=True))
    least = [_least_width(name in left, column) for name, column in zip(columns, texts, strict=True)]
    widths = [max(map(len, column)) for column in texts]
    for padding, edges in ((1, True), (0, False)):
        space = out.width - (2 * padding + 1) * len(columns) - (1 if edges else -1)
        if sum(least) > space:
            continue
        while sum(widths) > space:
            widest = max(range(len(widths)), key=lambda index: widths[index] - least[index])
            widths[widest] -= 1
        drawn = Table(
            box=box.SIMPLE_HEAD, title=title and Text(title), title_justify="left", padding=(0, padding), show_edge=edges
        )
        for name, width in zip(columns, widths, strict=True):
            drawn.add_column(Text(name), justify="left" if name in left else "right", width=width)
        for row in cells[1:]:
            drawn.add_row(*map(Text, row))
        out.print(drawn, soft_wrap=False)
        return
    pairs([("", title)] if title else [])
    for row in cells[1:]:
        out.print()
        pairs([(name, text) for name, text in zip(columns, row, strict=True) if name or text])


def _least_width(words: bool, texts: Sequence[str]) -> int:
    """Of a column, its name first: that of its longest word; numbers stand on one line."""
    parts = [part for text in texts for part in text.split()] if words else [*texts[1:], *texts[0].split()]
    return max(map(len, parts), default=1)
