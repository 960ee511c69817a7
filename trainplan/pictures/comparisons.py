"""Pictures of methods, of planners and of trials next to each other, with the plot extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.pictures.palette import BEST, BOUND, GRID, OTHER
from trainplan.planning.compare_planners import PlannerResult
from trainplan.planning.trials import Trials
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time
from trainplan.solvers.core.result import Result

ROW = 0.38  # inches


def draw_comparison(compared: tuple[Sequence[Result], Sequence[str]], *, title: str | None = None) -> Any:
    """A matplotlib Figure: how far each method's time, and the lower bound that it proves, lie from the best time of all.

    A line joins the two where a gap is open. Methods without a solution are named with their status.

    Args:
        compared: the results of several methods, as `compare` gives them.
        title: the picture's title.

    Returns:
        The Figure.

    Raises:
        InputError: if no method has a solution.
        MissingExtra: if matplotlib is not installed.
    """
    results = compared[0]
    best = min((result.objective for result in results if result.objective), default=None)
    if best is None:
        raise InputError("results", "", "have no solution", "give those of `compare` with at least one")
    figure, axes = _rows([result.method for result in results])
    for index, result in enumerate(results):
        if result.objective is None:
            axes.annotate(f"  {result.status}", (0, index), va="center", fontsize=9, color=BOUND)
            continue
        above = 100 * (result.objective / best - 1)
        if result.bound is not None:
            below = 100 * (result.bound / best - 1)
            axes.plot([below, above], [index, index], color=BOUND, lw=2, zorder=1)
            axes.plot(below, index, "|", color=BOUND, ms=14, mew=2, zorder=2)
        colour = BEST if result.status == "optimal" else OTHER
        axes.plot(above, index, "o", color=colour, ms=7, zorder=3)
    for label, style in (
        ("time, proven", {"marker": "o", "color": BEST}),
        ("time", {"marker": "o", "color": OTHER}),
        ("lower bound", {"marker": "|", "color": BOUND, "ms": 12, "mew": 2}),
    ):
        axes.plot([], [], ls="none", label=label, **style)
    axes.axvline(0, color="black", lw=0.7, zorder=0)
    axes.set_xlabel(f"above the best time, {format_time(best)}, in %")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return _titled(figure, axes, title)


def draw_rivals(rivals: Sequence[PlannerResult], *, title: str | None = None) -> Any:
    """A matplotlib Figure: a bar for the step of each planner, with how far it is above the joint optimum's.

    Args:
        rivals: one result for each planner, as `compare_planners` gives them.
        title: the picture's title.

    Returns:
        The Figure.

    Raises:
        InputError: if no planner has a plan.
        MissingExtra: if matplotlib is not installed.
    """
    by_planner = {rival.planner: rival for rival in rivals}
    if all(rival.step_ns is None for rival in by_planner.values()):
        raise InputError("rivals", "", "have no plan", "give those of `compare_planners` with at least one")
    figure, axes = _rows(list(by_planner))
    for index, rival in enumerate(by_planner.values()):
        steps, above = (rival.step_ns or 0) / 1e6, ""
        axes.barh(index, steps, color=BEST if index == 0 else OTHER, height=0.66)
        if rival.above is not None and index:
            above = f", {rival.above:+.1%}"
        text = "no plan" if rival.step_ns is None else f"{format_time(rival.step_ns)}{above}"
        axes.annotate(text, (steps, index), (5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel("predicted step, ms")
    return _titled(figure, axes, title)


def draw_trials(trials: Trials, *, title: str | None = None) -> Any:
    """A matplotlib Figure: the predicted and the measured step of each plan that was run as a trial.

    Args:
        trials: the plans that were run, as `trial` gives them.
        title: the picture's title.

    Returns:
        The Figure.

    Raises:
        InputError: if none of the plans ran.
        MissingExtra: if matplotlib is not installed.
    """
    rows = [row for row in trials.rows() if row["step_ns"] is not None]
    if not rows:
        raise InputError("trials", "", "have no plan that ran", "give those of `trial` with at least one")
    figure, axes = _rows([f"plan {row['plan']}: {row['strategies']}" for row in rows], tall=2)
    kinds: Mapping[str, tuple[str, str, float]] = {
        "predicted": ("predicted_step_ns", OTHER, -0.2),
        "measured": ("step_ns", BEST, 0.2),
    }
    for label, (name, colour, shift) in kinds.items():
        times = [(row[name] or 0) / 1e6 for row in rows]
        axes.barh([index + shift for index in range(len(rows))], times, height=0.36, color=colour, label=label)
    axes.set_xlabel("step, ms")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return _titled(figure, axes, title)


def _rows(names: Sequence[str], tall: float = 1.0) -> tuple[Any, Any]:
    """Create a matplotlib figure and its axes with a horizontal row for each name, the first on top. tall: the height of a
    row, in multiples of ROW (in inches). Returns the figure and the axes.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8.5, 1.4 + ROW * tall * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def _titled(figure: Any, axes: Any, title: str | None) -> Any:
    """Finish a matplotlib figure: remove the upper and right edge of its axes, add a grid and, if one is given, a title.
    Returns the figure.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=11)
    return figure
