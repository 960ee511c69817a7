"""Layouts of one job whose predicted steps differ by less than the error of their ratio: none of them is known to be faster.

Most of the error of a prediction is common to all layouts of a job on the same devices and runtime, and cancels when they are
compared. What is left is the spread of measured against predicted ratios of layouts (`StepErrors.difference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.profiling.base.quantities import format_time
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.step_errors import apart, as_relative

Layout = tuple[str, float]  # its name for people, and its predicted step in ns
MOST_NAMED = 3  # equal layouts that a screen names


def equal_layouts(step_ns: float, others: Sequence[Layout]) -> list[Layout]:
    """The layouts whose predicted steps are equal, within the error of their ratio, to a step. Empty if that error is not
    known. step_ns: the predicted step of the layout that others are compared with. others: layouts of the same job, predicted
    alike.
    """
    widths = shipped_efficiencies().step_errors
    if widths is None:
        return []
    return [(name, other_ns) for name, other_ns in others if apart(step_ns, other_ns) <= widths.difference]


def equal_lines(step_ns: float, others: Sequence[Layout]) -> list[list[str]]:
    """A line for a plan's screen that names the layouts that are equal to it within what is known; no line if there are none. A
    line is a list of texts that are printed with dots between them. The arguments are those of `equal_layouts`.
    """
    equal = equal_layouts(step_ns, others)
    if not equal:
        return []
    names = [f"{name} ({format_time(round(other_ns))})" for name, other_ns in equal[:MOST_NAMED]]
    more = f" and {len(equal) - MOST_NAMED} more" * (len(equal) > MOST_NAMED)
    return [[f"{_joined(names)}{more}: as fast as this, within the error of predictions", _told_apart()]]


def equal_rows(step_ns: float, others: Sequence[Layout]) -> list[dict[str, Any]]:
    """The layouts that are equal to a plan's within what is known, as JSON-ready dicts with `layout` and `step_ns`. The
    arguments are those of `equal_layouts`.
    """
    return [{"layout": name, "step_ns": round(other_ns)} for name, other_ns in equal_layouts(step_ns, others)]


def equal_note(rows: Sequence[Layout]) -> str:
    """A sentence that names the plans whose steps are equal, within what is known, to that of the fastest one; empty if there
    are none. rows: plans of one job, predicted alike, with their steps.
    """
    if len(rows) < 2:
        return ""
    first, *rest = sorted(rows, key=lambda row: row[1])
    equal = equal_layouts(first[1], rest)
    if not equal:
        return ""
    names = _joined([first[0], *(name for name, _ in equal)])
    return f"{names} are equally fast, within the error of predictions: {_told_apart()}"


def _joined(names: Sequence[str]) -> str:
    """Names as one text: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _told_apart() -> str:
    """A few words on how far apart the predicted steps of two layouts must be, to tell which of them is faster."""
    widths = shipped_efficiencies().step_errors
    return "" if widths is None else f"steps less than {100 * as_relative(widths.difference):.2g} % apart are not told apart"
