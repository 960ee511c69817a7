"""Pictures of how methods compare over a study's instances: performance profiles, and the gap over time; with the plot extra.

Performance profiles are those of Dolan and More, Benchmarking optimization software with performance profiles, Mathematical
Programming 91 (2002).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from textwrap import fill
from typing import Any, Literal

from trainplan.pictures.palette import GRID, series
from trainplan.pictures.study_rows import PROVEN, Row, by_problem, competitor, instance_of, rows_of, value_of
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.base.quantities import plural

Costs = Mapping[str, Mapping[Hashable, float | None]]  # by competitor and instance; None for a failure
Measure = Literal["seconds", "value"]
Styles = Mapping[str, dict[str, Any]]
Histories = Mapping[str, Sequence[Mapping[str, Any]]]
PANEL = (5.6, 4.2)  # inches of one problem's panel
TITLE_LETTERS = 10  # of a line of a title for each inch of the panel
LONGEST_LABEL = 26  # letters of a legend with two columns
LEAST_SECONDS = 1e-3  # shorter times are counted as this one: below it, the clock and the process decide
WORDS = {  # below a profile: where its axis has multiples, and where it has small excesses
    "seconds": (
        "seconds to a proof, up to this multiple of the fastest's",
        "seconds to a proof, up to this much above the fastest",
    ),
    "value": ("value, up to this multiple of the best", "value, up to this much above the best"),
}
MANY = 3.0  # from this multiple on a profile has a logarithmic axis
MOST_BANDS = 3  # methods of a picture whose quartiles are drawn
LEAST_GAP = 1e-3  # gaps below it are drawn on a linear scale, so that 0 has its point
TIMES = 160  # moments at which the gap over time is drawn


def performance_profile(costs: Costs) -> dict[str, list[tuple[float, float]]]:
    """The performance profile of every competitor, after Dolan and More (2002): the share of all instances that it solves with
    at most r times the least cost of any competitor.

    costs: by competitor and instance the positive cost, such as seconds, or None for a failure; all have the same instances.
    Instances that every competitor fails on count, too.

    Returns:
        By competitor its steps (r, share) with r ascending from 1: the share holds from r to the next step. A failure is in no
        step, so that the last share is the share of instances that the competitor solves.
    """
    instances = list(dict.fromkeys(instance for own in costs.values() for instance in own))
    least = {
        instance: min((cost for own in costs.values() if (cost := own[instance]) is not None), default=None)
        for instance in instances
    }
    profiles = {}
    for name, own in costs.items():
        ratios = sorted(cost / best for key, cost in own.items() if cost is not None and (best := least[key]) is not None)
        steps = {ratio: (index + 1) / len(instances) for index, ratio in enumerate(ratios)}
        profiles[name] = [*([] if 1.0 in steps else [(1.0, 0.0)]), *steps.items()]
    return profiles


def costs_of(rows: Sequence[Row], measure: Measure = "seconds") -> tuple[dict[str, dict[Hashable, float | None]], str]:
    """The costs of the competitors in rows of one problem, over the instances that all of them tried. A competitor that tried
    less than half as many as another one is left out, so that it does not take the instances from the others.

    rows: of one problem. One instance under two limits, seeds or repetitions counts as two. measure: seconds (until the method
    has proven that its solution is optimal, or that there is none) or value (of its solution). By value, instances without any
    solution do not count, since nothing can be compared.

    Returns (costs, left): `left` is a text that states what was left out; it is empty if nothing was.
    """
    costs: dict[str, dict[Hashable, float | None]] = {}
    built = {row["request"]: row for row in rows if row["instance_hash"] is not None}
    for row in rows:
        alike = row if row["instance_hash"] is not None else built.get(row["request"], row)  # a process that died has no hash
        limits = (row["time_limit_s"], row["solver_memory_bytes"], row["seed"], row["repeat"])
        cost: float | None = value_of(row)
        if measure == "seconds":
            proven = row["status"] in PROVEN and row["seconds"] is not None
            cost = max(LEAST_SECONDS, row["seconds"]) if proven else None
        costs.setdefault(competitor(row), {})[instance_of(alike), limits] = cost
    most = max(map(len, costs.values()), default=0)
    few = [name for name, own in costs.items() if 2 * len(own) < most]
    costs = {name: own for name, own in costs.items() if name not in few}
    tried = list(dict.fromkeys(key for own in costs.values() for key in own))
    if measure == "value":
        tried = [key for key in tried if any(own.get(key) is not None for own in costs.values())]
    shared = [key for key in tried if all(key in own for own in costs.values())]
    texts = [f"{len(tried) - len(shared)} that some method did not try"] if len(shared) < len(tried) else []
    texts += [f"{', '.join(few)}, tried on few"] if few else []
    left = f"; without {'; '.join(texts)}" if texts else ""
    return {name: {key: own[key] for key in shared} for name, own in costs.items()}, left


def draw_performance(
    frame: Any, *, measure: Measure = "seconds", problem: str | None = None, size: tuple[float, float] = PANEL
) -> Any:
    """A matplotlib Figure of performance profiles: for each method, the share of instances that it solves within a multiple of
    the best method's cost. What a method fails on never counts as solved, so that its line ends at the share that it solves.

    Args:
        frame: a study's DataFrame, a part of it, or rows as dicts.
        measure: seconds (to a proof; not of plans, whose presets and runtimes prove different things) or value (of the
            solution, over the best of any method; of plans the predicted step).
        problem: the problem to draw (default: a panel for each problem that two methods or more have tried).
        size: inches of a panel.

    Returns:
        The Figure.

    Raises:
        InputError: if no two methods have tried the same instance.
        MissingExtra: if matplotlib is not installed.
    """
    if measure not in WORDS:
        raise InputError(COMMAND_LINE, "--measure", f"is {measure!r}", one_of(measure, WORDS))
    drawable = {}
    for name, rows in by_problem(rows_of(frame), problem).items():
        if measure == "seconds" and rows[0]["task"] == "plan":
            continue  # each preset and runtime proves something else
        costs, left = costs_of(rows, measure)
        if len(costs) > 1 and any(costs.values()):
            drawable[name] = costs, left, styles(rows)
    if not drawable:
        raise InputError("study", "", "has no instance that two methods have tried", "take another picture, such as step")
    figure, panels = panels_of(len(drawable), size)
    for axes, (name, (costs, left, style)) in zip(panels, drawable.items(), strict=True):
        _draw_profile(axes, performance_profile(costs), measure, style)
        titled(axes, f"{name}, {plural(len(next(iter(costs.values()))), 'instance')}{left}")
    return figure


def _draw_profile(axes: Any, profiles: Mapping[str, Sequence[tuple[float, float]]], measure: str, styles: Styles) -> None:
    """Draw performance profiles as step lines on matplotlib axes. profiles: as `performance_profile` gives them. measure: a
    name in WORDS. styles: by competitor."""
    last = max((steps[-1][0] for steps in profiles.values()), default=1.0)
    fine = last < MANY  # most values lie close to the best one
    right = last * 1.2 if not fine else 1 + 1.2 * (last - 1) if last > 1 else 1.1
    for index, (name, steps) in enumerate(sorted(profiles.items(), key=lambda item: -item[1][-1][1])):
        ratios, shares = zip(*steps, (right, steps[-1][1]), strict=True)
        style: dict[str, Any] = {**styles[name], "markevery": max(1, len(ratios) // 6), "zorder": 3 + index}
        axes.plot(ratios, shares, drawstyle="steps-post", label=f"{name} ({steps[-1][1]:.0%})", **style)
    if not fine:
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if last < 100 else (1,)))
        axes.xaxis.set_minor_formatter("")
    decimals = 1 if right < 1.02 else 0
    axes.xaxis.set_major_formatter(lambda x, _: f"+{100 * (x - 1):.{decimals}f} %" if fine else f"{x:,.4g}x")
    axes.set(xlim=(1 if fine else 0.97, right), ylim=(-0.02, 1.03))
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
    axes.set(xlabel=WORDS[measure][fine], ylabel="share of instances")
    finish(axes)


def draw_gaps(frame: Any, *, histories: Histories, problem: str | None = None, size: tuple[float, float] = PANEL) -> Any:
    """A matplotlib Figure of the gap over time: for each method the median over its instances of the gap between its value and
    its bound (with few methods, the middle half of the instances is a band); 100 % as long as it has no solution or no bound.

    Methods that prove no bound are left out and named.

    Args:
        frame: a study's DataFrame, a part of it, or rows as dicts.
        histories: by the key of a row the history of its search, as `Study.histories()` gives them.
        problem: the problem to draw (default: a panel for each problem).
        size: inches of a panel.

    Returns:
        The Figure.

    Raises:
        InputError: if no history has a bound.
        MissingExtra: if matplotlib is not installed.
    """
    drawable = {}
    for name, rows in by_problem(rows_of(frame), problem).items():
        curves, unbounded = _gap_curves(rows, histories)
        if curves:
            drawable[name] = curves, unbounded, styles(rows)
    if not drawable:
        raise InputError("study", "", "has no history with a bound", "solve with methods that prove bounds")
    figure, panels = panels_of(len(drawable), size)
    for axes, (name, (curves, unbounded, style)) in zip(panels, drawable.items(), strict=True):
        _draw_gaps(axes, curves, style)
        titled(axes, name + (f"; without a bound: {', '.join(unbounded)}" if unbounded else ""))
    return figure


def _gap_curves(
    rows: Sequence[Row], histories: Histories
) -> tuple[dict[str, list[tuple[list[float], list[float]]]], list[str]]:
    """The gaps over time in rows of one problem: by competitor, for each of its instances the seconds at which the gap changes
    and the gap from then on. Returns also the names of competitors of which no history has a bound."""
    curves: dict[str, list[tuple[list[float], list[float]]]] = {}
    bounded: set[str] = set()
    for row in rows:
        points = histories.get(row["key"])
        if not points:
            continue
        gaps = [_gap(point["value_ns"], point["bound_ns"]) for point in points]
        times = [max(LEAST_SECONDS, point["seconds"]) for point in points]
        if row["status"] == "optimal" and row["gap"] is not None:  # the proof ends the search, with no better value or bound
            times.append(max(times[-1], row["seconds"] or 0.0))
            gaps.append(row["gap"])
        curves.setdefault(competitor(row), []).append((times, gaps))
        if any(gap < 1 for gap in gaps):
            bounded.add(competitor(row))
    return {name: own for name, own in curves.items() if name in bounded}, [name for name in curves if name not in bounded]


def _gap(value: int | None, bound: int | None) -> float:
    """The gap (value - bound) / value, between 0 and 1; 1 if either is None."""
    return 1.0 if not value or bound is None else min(1.0, max(0.0, (value - bound) / value))


def _draw_gaps(axes: Any, curves: Mapping[str, Sequence[tuple[list[float], list[float]]]], styles: Styles) -> None:
    """Draw gaps over time on matplotlib axes, a line for each competitor. curves: as `_gap_curves` gives them. styles: by
    competitor."""
    ends = [time for own in curves.values() for times, _ in own for time in times]
    first, last = min(ends) / 1.3, max(max(ends), 2 * min(ends)) * 1.3
    moments = [first * (last / first) ** (index / (TIMES - 1)) for index in range(TIMES)]
    for index, (name, own) in enumerate(curves.items()):
        rows = [sorted(_at(times, gaps, moment) for times, gaps in own) for moment in moments]
        style: dict[str, Any] = {**styles[name], "markevery": (6 * index % 20, 20), "zorder": 3}
        count = f" ({plural(len(own), 'instance')})"
        axes.plot(moments, [median(row) for row in rows], drawstyle="steps-post", label=name + count, **style)
        if len(own) > 3 and len(curves) <= MOST_BANDS:
            low, high = ([row[len(row) * quarter // 4] for row in rows] for quarter in (1, 3))
            axes.fill_between(moments, low, high, step="post", color=style["color"], alpha=0.15, lw=0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LEAST_GAP, linscale=0.5)
    axes.set_yticks([0, 0.001, 0.01, 0.1, 1], ["0 %", "0.1 %", "1 %", "10 %", "100 %"])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} s")
    axes.set(xlim=(first, last), ylim=(-LEAST_GAP / 8, 1.3), xlabel="seconds of the search", ylabel="median gap")
    finish(axes)


def _at(times: Sequence[float], gaps: Sequence[float], moment: float) -> float:
    """The gap at a moment: that of the last change until then, 1 before the first. times: seconds of the changes, ascending."""
    index = bisect_right(times, moment)
    return gaps[index - 1] if index else 1.0


def styles(rows: Sequence[Row]) -> Styles:
    """By competitor the style of its line, as keyword arguments of matplotlib's plot: equal in all pictures of the rows,
    whichever competitors a picture leaves out."""
    names = dict.fromkeys(competitor(row) for row in rows)
    return {name: {**series(index), "lw": 1.8, "ms": 5} for index, name in enumerate(names)}


def panels_of(count: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A matplotlib Figure and the axes of its panels, two in a row. count: number of panels. size: inches of one."""
    from matplotlib.figure import Figure

    columns = min(2, count)
    lines = -(-count // columns)
    figure: Any = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for spare in panels[count:]:
        spare.set_axis_off()
    return figure, panels[:count]


def finish(axes: Any, title: str | None = None) -> None:
    """Finish the axes of a panel: no upper and right edge, a grid, and a legend below with a title, if there is one."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(9)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = 2 if max(map(len, labels)) <= LONGEST_LABEL else 1
        style: dict[str, Any] = {"ncols": columns, "frameon": False, "fontsize": 8, "title": title, "title_fontsize": 8}
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), **style)


def titled(axes: Any, text: str) -> None:
    """Set the title of a panel, on as many lines as it needs within the panel's width."""
    inches = axes.figure.get_figwidth() / axes.get_subplotspec().get_gridspec().ncols
    letters = int(TITLE_LETTERS * inches)
    axes.set_title(fill(text, letters, break_long_words=False, break_on_hyphens=False), fontsize=9.5)
