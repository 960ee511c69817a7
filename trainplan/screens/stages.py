"""A drawing of a plan's pipeline as text: the layers of each stage, pipeline ranks from left to right, and the stages that one
rank interleaves (chunks) from top to bottom.

    rank       0  1-2    3
    chunk 0  E+3    4    4
    chunk 1    4    4  5+L
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

from trainplan.execution.runtimes.export_common import LETTERS, half_cut, layers_of
from trainplan.execution.runtimes.megatron import layouts
from trainplan.formulations.plan.plan import Plan

COLUMNS = 69  # of a screen of 80, right of its labels
MOST_BLOCKS = 3  # of ranks, one below the other
LEGEND = "layers; E: embedding, L: head"


def stage_lines(plan: Plan) -> list[list[str]]:
    """Lines for a plan's screen that draw its stages; empty unless some stages have more layers than others. Neighbouring ranks
    and chunks that are alike share a column or a row. The last line explains the letters and has the layout string of
    Megatron-Core (`layouts`) that says the same, if stages have whole layers and it fits. A line is a list of texts that are
    printed with dots between them.
    """
    sizes = _sizes(plan)
    if len(set(sizes)) < 2:
        return []
    cells = [_cell(size, number == 0, number == len(sizes) - 1) for number, size in enumerate(sizes)]
    columns = [tuple(cells[rank :: plan.depth]) for rank in range(plan.depth)]
    ranks = _runs(columns)
    rows = _runs(list(zip(*(column for _, column in ranks), strict=True)))
    labels = ["rank", *(f"chunk {name}" if plan.chunks > 1 else "layers" for name, _ in rows)]
    table = [[name for name, _ in ranks], *(list(row) for _, row in rows)]
    return [[line] for line in _blocks(labels, table)] + [[LEGEND, *_layout(plan)]]


def _sizes(plan: Plan) -> list[Fraction]:
    """The number of layers of each stage; a layer that two stages share counts in each by its sub-layers there."""
    names = [unit.name.rpartition(".")[0] for unit in plan.units]
    counts = {name: names.count(name) for name in names if name}
    stages = (names[stage.first_unit : stage.last_unit + 1] for stage in plan.stages)
    return [sum((Fraction(1, counts[name]) for name in stage if name), Fraction(0)) for stage in stages]


def _cell(size: Fraction, first: bool, last: bool) -> str:
    """The text of one stage, such as "E+3", "4", "3.5" or "L". size: its layers. first, last: whether it is the first or the
    last stage, which have embedding and head."""
    parts = ["E"] * first + [f"{float(size):.3g}"] * (size > 0) + ["L"] * last
    return "+".join(parts)


def _runs(items: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Runs of equal neighbours, each with its indices as text ("0" or "1-6") and the item."""
    result, index = list[tuple[str, tuple[str, ...]]](), 0
    for item, run in groupby(items):
        end = index + len(list(run)) - 1
        result.append((str(index) if end == index else f"{index}-{end}", item))
        index = end + 1
    return result


def _blocks(labels: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text, in blocks of as many columns as fit next to the labels; of more than MOST_BLOCKS blocks, a last
    line counts the columns that are left out. labels: one for each row. table: the texts of each row."""
    labelled = max(map(len, labels))
    widths = [max(map(len, column)) + 2 for column in zip(*table, strict=True)]
    lines, begin = list[str](), 0
    for _ in range(MOST_BLOCKS):
        end, width = begin, labelled
        while end < len(widths) and width + widths[end] <= COLUMNS:
            width, end = width + widths[end], end + 1
        for label, row in zip(labels, table, strict=True):
            cells = (f"{text:>{size}}" for text, size in zip(row[begin:end], widths[begin:end], strict=True))
            lines.append(f"{label:<{labelled}}{''.join(cells)}")
        begin = end
        if begin == len(widths):
            return lines
    return [*lines, f"and ranks {table[0][begin].split('-')[0]} to {table[0][-1].split('-')[-1]} (--details)"]


def _layout(plan: Plan) -> list[str]:
    """The plan's stages as a layout string of Megatron-Core, in a list; an empty list if units of the model have no letter, a
    stage begins within a layer, or the string is longer than a line."""
    if any(unit.name.rpartition(".")[2] not in LETTERS for unit in plan.units) or half_cut(plan) is not None:
        return []
    text = layouts.written(layers_of(plan))
    return [text] * (set(text) <= set("EtL|()*0123456789") and len(text) <= COLUMNS)
