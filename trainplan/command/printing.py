"""Lines and tables on standard output. Texts that come from files are escaped and cut, since names may contain anything."""

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
UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|[mun]?s|%)\b|%)")  # the space between a number and its unit: no line ends there
LEAST_WIDTH = 20  # columns of a text that stands next to its label, at least
PIPE_WIDTH = 160  # columns of tables in a pipe
SCREEN_WIDTH, LABEL_WIDTH = 80, 11  # columns of a command's short answer in a pipe, and of its labels
# Columns of tables that hold words, which stand to the left.
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
    """The width in columns that tables on standard output have: the environment variable COLUMNS, if it is a number of at least
    LEAST_WIDTH; else None on a terminal (rich then takes the terminal's width), and PIPE_WIDTH in a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) >= LEAST_WIDTH:
        return int(columns)
    return None if Console().is_terminal else PIPE_WIDTH


out = Console(highlight=False, soft_wrap=True, emoji=False, width=_width())
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def line(text: str, margin: str = "") -> None:
    """Print a line of text on standard output after a margin (any text, such as a label).

    On a terminal, and if the environment variable COLUMNS states a width, the text is wrapped, its further lines indented by
    the margin's width; in a pipe without that width it stays whole, so that it can be searched and copied.
    """
    text = printable(text, LONGEST_LINE)
    if _has_width() and len(margin) + len(text) > out.width:
        width = max(LEAST_WIDTH, out.width - len(margin))
        lines = wrap(UNIT.sub("\u00a0", text), width, break_long_words=False, break_on_hyphens=False)
        text = f"\n{' ' * len(margin)}".join(lines).replace("\u00a0", " ")
    out.print(Text(margin + text))


def wrapped(label: str, pieces: Sequence[str], *, whole: bool = False) -> None:
    """Print a label and pieces of text, joined by dots ("8 GPUs · 2 stages"), on as many lines as they need.

    A line ends between pieces, or within a long piece between words, at the width of the terminal; in a pipe at 80 columns,
    unless the environment variable COLUMNS states another width. whole: if True, a piece is never broken, since it is a command
    to be copied.
    """
    for number, text in enumerate(_broken(pieces, _screen_width() - LABEL_WIDTH, whole)):
        out.print(Text(f"{'' if number else label:<{LABEL_WIDTH}}{text}"))


def aligned(label: str, rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Print a label and, to its right, rows of cells in columns: the first column is aligned left, the others right.

    rows: for each row its cells, and pieces of text that follow the cells. The pieces are joined by dots and broken into lines,
    as `wrapped` does, in the width that remains to the right of the cells. All rows have equally many cells.
    """
    cells = [[printable(text, LONGEST_CELL) for text in row] for row, _ in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rest = _screen_width() - LABEL_WIDTH - sum(widths) - 2 * len(widths)
    for number, (row, (_, pieces)) in enumerate(zip(cells, rows, strict=True)):
        padded = [f"{row[0]:<{widths[0]}}", *(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))]
        head = f"{'' if number else label:<{LABEL_WIDTH}}{'  '.join(padded)}  "
        for index, text in enumerate(_broken(pieces, rest, whole=False)):
            out.print(Text(f"{'' if index else head:<{len(head)}}{text}"))


def _screen_width() -> int:
    """The width in columns of a command's short answer: on a terminal, or if the environment variable COLUMNS is a number, the
    width of the console, else SCREEN_WIDTH."""
    return out.width if _has_width() else SCREEN_WIDTH


def _has_width() -> bool:
    """Whether standard output has a width that texts are wrapped to: that of a terminal, or the environment variable
    COLUMNS."""
    return out.is_terminal or os.environ.get("COLUMNS", "").isdecimal()


def _broken(pieces: Sequence[str], columns: int, whole: bool) -> list[str]:
    """Pieces of text as lines of at most `columns` letters, with a dot between two pieces of one line.

    A piece that is longer is broken between words, unless `whole` is True; no line ends between a number and its unit.
    """
    rows = [""]
    for piece in (UNIT.sub("\u00a0", printable(text, LONGEST_LINE)) for text in pieces):
        joined = f"{rows[-1]} · {piece}" if rows[-1] else piece
        rows = [*rows[:-1], joined] if len(joined) <= columns or not rows[-1] else [*rows, piece]
    width = max(LEAST_WIDTH, columns)
    lines = rows if whole else [text for row in rows for text in _filled(row, width)]
    return [text.replace("\u00a0", " ") for text in lines]


def _filled(text: str, width: int) -> list[str]:
    """A text as lines of at most `width` letters, broken between words; a number stays on one line with its unit (between which
    the text has a no-break space), unless a line would be too long."""
    kept = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return kept if max(map(len, kept), default=0) <= width else wrap(text.replace("\u00a0", " "), width)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print rows of (label, text) on standard output in two columns."""
    labels = [printable(label, LONGEST_LABEL) for label, _ in rows]
    width = max(map(len, labels), default=0)
    for label, (_, text) in zip(labels, rows, strict=True):
        line(text, f"{label:<{width}}  ")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, left: Container[str] = LEFT) -> None:
    """Print a table on standard output; if it is wider than the terminal even with its words wrapped, print for each row a
    block of lines, each the column's heading and the cell's text.

    columns: the headings. rows: the texts of the cells, row by row. title: a line above the table; None for no title. left: the
    headings of columns that hold words, which are aligned left and may be wrapped; the other columns hold numbers, are aligned
    right and never wrapped.
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


def fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], words: Container[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The columns of a table that the terminal has room for: their headings, and the rows with their cells alone, in order.

    columns: the headings. rows: the texts of the cells, row by row. spare: the headings of columns that are left out, the first
    of them first, until the rest fits with each cell on one line. words: the headings of columns whose cells may be on several
    lines, one for each word.
    """
    widths = {
        name: _least_width(True, (name, *texts)) if name in words else max(map(len, (name, *texts)))
        for name, *texts in zip(columns, *rows, strict=True)
    }
    kept = list(columns)
    for name in spare:
        if sum(widths[left] + 1 for left in kept) <= out.width:
            break
        kept.remove(name)
    indices = [list(columns).index(name) for name in kept]
    return kept, [[row[index] for index in indices] for row in rows]


def _least_width(words: bool, texts: Sequence[str]) -> int:
    """The least width of a table's column in letters, at which no word of it is broken.

    words: whether the column holds words, whose cells may be wrapped between words, rather than numbers, whose cells may not.
    texts: the column's heading, then its cells.
    """
    parts = [part for text in texts for part in text.split()] if words else [*texts[1:], *texts[0].split()]
    return max(map(len, parts), default=1)
