"""Pictures of a study along its axes: the step against devices, memory or batch, and a heat map of two axes. Plot extra.

A picture takes a study's DataFrame, chooses axes along which its requests differ, and can be told others. On axes that it does
not draw it keeps the value with which most rows have a solution, which its title states.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from trainplan.pictures.palette import BOUND, series
from trainplan.pictures.study_profiles import PANEL, finish, panels_of, styles, titled
from trainplan.pictures.study_rows import (
    METHOD,
    Row,
    axis_value,
    axis_values,
    axis_words,
    best_bounds,
    best_values,
    by_problem,
    common_part,
    instance_of,
    is_number,
    rows_of,
    value_words,
    varying,
    with_axis,
)
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.base.quantities import format_gap, format_time

PREFERRED = ("devices", "memory_bytes", "batch", "sequence")  # horizontal axes, of those with equally many values
MOST_SERIES = 8
MOST_HEAT = 24  # values of a heat map's axis
Quantity = Literal["step", "gap", "seconds"]
QUANTITIES = {"step": "shortest step", "gap": "gap of the best value to the best bound", "seconds": "median seconds"}
FAILED = {"infeasible": "none fits", "out of memory": "memory", "timed out": "time", "unknown": "none found"}


@dataclass(frozen=True)
class _Point:
    """The best value at one point of a picture, and a lower bound on it, both in ns; None if unknown."""

    value_ns: int | None
    bound_ns: int | None


def _point(rows: Sequence[Row], bounds: dict[Hashable, int]) -> _Point:
    """The best value of rows, and a lower bound on it: the least of the bounds of their instances, if all have one. bounds: the
    best bounds by instance."""
    values, instances = best_values(rows), {instance_of(row) for row in rows}
    bound = min((bounds[one] for one in values), default=None) if all(one in bounds for one in values) else None
    if not values and len(instances) == 1:
        bound = bounds.get(next(iter(instances)))
    return _Point(min(values.values(), default=None), bound)


def draw_steps(
    frame: Any,
    *,
    x: str | None = None,
    series_by: str | None = None,
    problem: str | None = None,
    size: tuple[float, float] = PANEL,
) -> Any:
    """A matplotlib Figure of the step against devices, memory, batch or another axis: a line for each value of a second axis,
    or for each method, and below it a band down to the best lower bound that any method has proven. A cross marks where there
    is no value.

    Args:
        frame: a study's DataFrame, a part of it, or rows as dicts.
        x: the horizontal axis: a column such as devices, memory_bytes, batch, sequence, or a keyword of the requests (default:
            the numeric axis with most values).
        series_by: the axis whose values are the lines; "method" for methods (default: of the other axes with at most eight
            values one of names, such as model, else of numbers; else method).
        problem: the problem to draw (default: a panel for each problem whose requests differ on a numeric axis).
        size: inches of a panel.

    Returns:
        The Figure.

    Raises:
        InputError: if the study differs on no numeric axis, or has no values on one that is named.
        MissingExtra: if matplotlib is not installed.
    """
    drawable = {}
    problems = with_axis(by_problem(rows_of(frame), problem), x, "--x")
    for name, rows in with_axis(problems, series_by, "--series-by").items():
        axes = varying(rows)
        numeric = [axis for axis in axes if is_number(rows, axis)]
        across = x if x is not None else _longest(rows, numeric)
        if across is None:
            continue
        lines = series_by
        if lines is None:
            others = [axis for axis in axes if axis != across and len(axis_values(rows, axis)) <= MOST_SERIES]
            lines = _longest(rows, [axis for axis in others if axis not in numeric]) or _longest(rows, others) or METHOD
        drawable[name] = across, lines, *common_part(rows, axes, (across, lines))
    if not drawable:
        raise InputError("study", "", "has no numeric axis along which requests differ", "take another picture, or name x")
    figure, panels = panels_of(len(drawable), size)
    for panel, (name, (across, lines, rows, fixed)) in zip(panels, drawable.items(), strict=True):
        _draw_steps(panel, rows, across, lines)
        count = len(axis_values(rows, lines))
        few = f"the first {MOST_SERIES} of {count} lines" if count > MOST_SERIES else ""
        titled(panel, ", ".join(filter(None, (name, fixed, few))))
    return figure


def _longest(rows: Sequence[Row], axes: Sequence[str]) -> str | None:
    """The axis with most values in rows, of those with equally many the first in PREFERRED; None if there is no axis."""
    order = {name: -index for index, name in enumerate(PREFERRED)}
    return max(axes, key=lambda axis: (len(axis_values(rows, axis)), order.get(axis, -len(order))), default=None)


def _draw_steps(panel: Any, rows: Sequence[Row], across: str, lines: str) -> None:
    """Draw step against an axis on matplotlib axes (`panel`). rows: of one problem, which differ on no other axis. across: the
    horizontal axis. lines: the axis of the lines."""
    values, bounds = axis_values(rows, across), best_bounds(rows)
    numbers = is_number(rows, across)
    position = {value: value if numbers else index for index, value in enumerate(values)}
    drawn, lacking, bands, by_method = list[int](), False, list[bool](), styles(rows)
    for index, name in enumerate(axis_values(rows, lines)[:MOST_SERIES]):
        own = [row for row in rows if axis_value(row, lines) == name]
        points = {value: _point(part, bounds) for value in values if (part := [r for r in own if r.get(across) == value])}
        found = {position[value]: point for value, point in points.items() if point.value_ns is not None}
        steps = [point.value_ns for point in found.values() if point.value_ns is not None]
        style: dict[str, Any] = {**(by_method[name] if lines == METHOD else {**series(index), "lw": 1.8, "ms": 5}), "zorder": 4}
        panel.plot(list(found), steps, label=value_words(lines, name), **style)
        if lines != METHOD:
            bands.append(_draw_band(panel, found, style["color"]))
        failed = [position[value] for value, point in points.items() if point.value_ns is None]
        height, lacking = [0.02 + 0.035 * index] * len(failed), lacking or bool(failed)
        panel.plot(failed, height, "x", color=style["color"], ms=6, mew=1.6, transform=panel.get_xaxis_transform(), zorder=5)
        drawn += steps + [point.bound_ns for point in found.values() if point.bound_ns]
    if lines == METHOD:
        best = {position[value]: _point([row for row in rows if row.get(across) == value], bounds) for value in values}
        bands.append(_draw_band(panel, {at: point for at, point in best.items() if point.value_ns is not None}, BOUND))
    if any(bands):
        panel.fill_between([], [], [], color=BOUND, alpha=0.3, lw=0, label="down to the lower bound")
    if lacking:
        panel.plot([], [], "x", color=BOUND, ms=6, mew=1.6, label="no value")
    _scale(panel, drawn)
    if numbers and min(values) > 0 and max(values) >= 4 * min(values):
        panel.set_xscale("log")
        panel.minorticks_off()
    shown = values if len(values) <= 8 else values[:: -(-len(values) // 8)]
    panel.set_xticks([position[value] for value in shown], [value_words(across, value) for value in shown])
    panel.set_xlabel(axis_words(across))
    panel.set_ylabel("step")
    finish(panel, None if lines == METHOD else axis_words(lines))


def _draw_band(panel: Any, points: dict[Any, _Point], colour: str) -> bool:
    """Draw the band between bounds and values on matplotlib axes, and return whether it has a width anywhere. points: by
    horizontal coordinate, with values; those without a bound have no band."""
    bounded = {at: (point.bound_ns, point.value_ns) for at, point in points.items() if point.bound_ns is not None}
    if bounded:
        low, high = zip(*bounded.values(), strict=True)
        panel.fill_between(list(bounded), low, high, color=colour, alpha=0.22, lw=0, zorder=2)
        panel.plot(list(bounded), low, ls=":", lw=1.2, color=colour, zorder=3)
    return any(bound < value for bound, value in bounded.values() if value is not None)


def _scale(panel: Any, times_ns: Sequence[int]) -> None:
    """Set the vertical axis of a panel to times: from 0, or logarithmic if the largest is five times the smallest or more."""
    if times_ns and max(times_ns) >= 5 * min(times_ns):
        from matplotlib.ticker import LogLocator

        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.minorticks_off()
    elif times_ns:
        panel.set_ylim(0, 1.08 * max(times_ns))
    panel.yaxis.set_major_formatter(lambda y, _: format_time(y) if y else "0")


def draw_heat(
    frame: Any,
    *,
    x: str | None = None,
    y: str | None = None,
    quantity: Quantity = "step",
    problem: str | None = None,
    size: tuple[float, float] = PANEL,
) -> Any:
    """A matplotlib Figure of a heat map of two axes; fields without a value are hatched and name the reason.

    Args:
        frame: a study's DataFrame, a part of it, or rows as dicts.
        x: the horizontal axis: a column, a keyword of the requests, or "method" (default: the numeric axis with most values).
        y: the vertical axis (default: of the others the one with most values; "method" if there is none).
        quantity: step (the shortest of any method), gap (of this step to the best bound) or seconds (median of the cells with a
            solution or a proof).
        problem: the problem to draw (default: a panel for each problem with two axes).
        size: inches of a panel.

    Returns:
        The Figure.

    Raises:
        InputError: if no problem's rows differ on two axes, or have values on an axis that is named.
        MissingExtra: if matplotlib is not installed.
    """
    if quantity not in QUANTITIES:
        raise InputError(COMMAND_LINE, "--quantity", f"is {quantity!r}", one_of(quantity, QUANTITIES))
    drawable = {}
    problems = with_axis(by_problem(rows_of(frame), problem), x, "--x")
    for name, rows in with_axis(problems, y, "--y").items():
        axes = [axis for axis in varying(rows) if len(axis_values(rows, axis)) <= MOST_HEAT]
        axes.sort(key=lambda axis: (not is_number(rows, axis), -len(axis_values(rows, axis))))
        if len(axis_values(rows, METHOD)) > 1:
            axes.append(METHOD)
        across = x if x is not None else next((axis for axis in axes if axis != y), None)
        up = y if y is not None else next((axis for axis in axes if axis != across), None)
        if across is not None and up is not None:
            drawable[name] = across, up, *common_part(rows, varying(rows), (across, up))
    if not drawable:
        raise InputError("study", "", "has no two axes along which rows differ", "take another picture, such as profile")
    figure, panels = panels_of(len(drawable), size)
    for panel, (name, (across, up, rows, fixed)) in zip(panels, drawable.items(), strict=True):
        _draw_heat(panel, rows, across, up, quantity)
        titled(panel, f"{name}: {QUANTITIES[quantity]}" + (f"; {fixed}" if fixed else ""))
    return figure


def _draw_heat(panel: Any, rows: Sequence[Row], across: str, up: str, quantity: Quantity) -> None:
    """Draw the heat map of one problem's rows on matplotlib axes (`panel`). across, up: its two axes."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    columns, lines, bounds = axis_values(rows, across), axis_values(rows, up), best_bounds(rows)
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        groups.setdefault((axis_value(row, across), axis_value(row, up)), []).append(row)
    found = {key: _quantity(group, bounds, quantity) for key, group in groups.items()}
    numbers = [value for value in found.values() if value is not None]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    logarithmic = low > 0 and high >= 10 * low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high if high > low else low + 1)
    grid = [[found.get((column, line)) for column in columns] for line in lines]
    numbers_or_nan = [[float("nan") if value is None else value for value in row] for row in grid]
    image = panel.pcolormesh(range(len(columns)), range(len(lines)), numbers_or_nan, cmap="cividis_r", norm=norm)
    small = 7 if max(len(columns), len(lines)) <= 8 else 5.5
    for top, line in enumerate(lines):
        for left, column in enumerate(columns):
            value = found.get((column, line))
            if value is not None:
                red, green, blue, _ = image.cmap(norm(value))
                ink = "#111111" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"
                panel.text(left, top, _quantity_words(value, quantity), color=ink, ha="center", va="center", fontsize=small)
                continue
            box = Rectangle((left - 0.5, top - 0.5), 1, 1, fill=False, hatch="////", ec=BOUND, lw=0, alpha=0.5)
            panel.add_patch(box)
            if group := groups.get((column, line)):
                status = group[0]["status"]
                panel.text(left, top, FAILED.get(status, status), ha="center", va="center", fontsize=small)
    panel.set_xticks(range(len(columns)), [value_words(across, value) for value in columns])
    panel.set_yticks(range(len(lines)), [value_words(up, value) for value in lines])
    if sum(len(value_words(across, value)) for value in columns) > 40:
        panel.tick_params(axis="x", rotation=40)
    panel.set(xlabel=axis_words(across), ylabel=axis_words(up))
    finish(panel)
    panel.grid(False)
    panel.tick_params(length=0)
    panel.spines[["left", "bottom"]].set_visible(False)


def _quantity(rows: Sequence[Row], bounds: dict[Hashable, int], quantity: Quantity) -> float | None:
    """The number that a field of a heat map shows, of the rows that belong to it; None if they have none."""
    if quantity == "seconds":
        seconds = [row["seconds"] for row in rows if row["status"] in ("optimal", "feasible", "infeasible")]
        known = [number for number in seconds if number is not None]
        return median(known) if known else None
    point = _point(rows, bounds)
    if quantity == "step" or point.value_ns is None:
        return point.value_ns if quantity == "step" else None
    return None if point.bound_ns is None else (point.value_ns - point.bound_ns) / point.value_ns


def _quantity_words(value: float, quantity: Quantity) -> str:
    """A number of a heat map as text."""
    if quantity == "gap":
        return format_gap(value)
    return format_time(value if quantity == "step" else 1e9 * value)
