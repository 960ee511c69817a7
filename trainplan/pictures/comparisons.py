"""Pictures of methods, of planners and of trials next to each other, with the plot extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.pictures.palette import BEST, BOUND, GRID, OTHER
from trainplan.planning.compare_planners import Rival
from trainplan.planning.trials import Trials
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time
from trainplan.solvers.core.result import Result

ROW = 0.38  # inches


def draw_comparison(compared: tuple[Sequence[Result], Sequence[str]], *, title: str | None = None) -> Any:
    """A matplotlib Figure: how far the time of each method, and what it proves to be the least, lie from the best time.

    A line joins the two where a gap is open. Methods without a solution are named with their status.

    Args:
        compared: of `compare`.
        title: of the picture.

    Returns:
        The Figure.

    Raises:
        InputError: where no method has a solution.
        MissingExtra: where matplotlib is not installed.
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


def draw_rivals(rivals: Sequence[Rival], *, title: str | None = None) -> Any:
    """A matplotlib Figure: a bar for the step of each planner, with how far it is above the joint optimum's.

    Args:
        rivals: of `compare_planners`.
        title: of the picture.

    Returns:
        The Figure.

    Raises:
        InputError: where no planner has a plan.
        MissingExtra: where matplotlib is not installed.
    """
    made = {rival.planner: rival for rival in rivals}
    if all(rival.step_ns is None for rival in made.values()):
        raise InputError("rivals", "", "have no plan", "give those of `compare_planners` with at least one")
    figure, axes = _rows(list(made))
    for index, rival in enumerate(made.values()):
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
    """A matplotlib Figure: predicted and measured step of each plan that was tried.

    Args:
        trials: of `trial`.
        title: of the picture.

    Returns:
        The Figure.

    Raises:
        InputError: where none ran.
        MissingExtra: where matplotlib is not installed.
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
    """A figure and its axes, a row for each name, the first on top."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8.5, 1.4 + ROW * tall * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def _titled(figure: Any, axes: Any, title: str | None) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=11)
    return figure
