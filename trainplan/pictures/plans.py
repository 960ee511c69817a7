"""Pictures of simulated plans: the timeline of a pipeline, pass by pass, or the lanes of devices, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainplan.execution.analysis.timing.simulate import Operation
from trainplan.execution.instructions import Op
from trainplan.formulations.plan.plan import Plan
from trainplan.pictures.palette import GREEN, PINK, SKY
from trainplan.pictures.timeline import BACKWARD, FORWARD, IDLE, MESSAGE, bars, draw_timeline
from trainplan.prediction.metrics import last_programs
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.quantities import format_time, plural

COPIED = "copies"
KINDS = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "recomputation": SKY,
    "communication": GREEN,
    COPIED: PINK,
    "optimizer": "#7a7a7a",
    "other": MESSAGE,
}
_DRAWN_AS = {
    "recompute": "recomputation",
    "collective": "communication",
    "message": "communication",
    "copy-in": COPIED,
    "copy-out": COPIED,
}
LANE, WIDTH = 0.32, 13.0  # inches: height of a lane, width of the picture
MOST_EDGES = 300  # operations of a lane that have an edge
MOST_SEPARATE = 600  # operations of a lane, beyond which the whole step is drawn by shares of its time
MOST_BINS = 400  # intervals of the step with stacked shares; never more than micro-batches, else single passes would show
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))

Lanes = dict[tuple[int, str], list[Operation]]  # the operations of each (rank, lane), in order of time


def kind_of(op: Op) -> str:
    """The kind of work (a key of KINDS, such as "forward" or "communication") in whose colour an instruction of a plan's
    program is drawn.
    """
    kind = _DRAWN_AS.get(op.spec.kind, op.spec.kind)
    return kind if kind in KINDS else "other"


def draw_simulation(simulation: Simulation) -> Any:
    """A matplotlib Figure of a simulated step: its timeline, pass by pass; for a plan with memory switches, interleaved stages
    or stages of unequal size, the streams of one rank of each stage instead.

    Where a step has many operations, the streams show which share of the time each kind of work takes, and below them are the
    step's beginning and end, operation by operation.

    Args:
        simulation: a simulated step, as `simulate` gives it.

    Returns:
        The Figure.

    Raises:
        MissingExtra: if matplotlib is not installed.
    """
    title = simulation.name if simulation.judged is None else f"{simulation.name}: {format_time(simulation.step_ns)} a step"
    if simulation.timeline is not None:
        return draw_timeline(simulation.timeline, title=title, stages=simulation.stages)
    assert simulation.judged is not None and simulation.plan is not None
    if simulation.software:
        title += f" as {simulation.software} overlaps; drawn: trainplan's programs, {format_time(simulation.judged.step_ns)}"
    return _draw_lanes(simulation, simulation.plan, title)


def _draw_lanes(simulation: Simulation, plan: Plan, title: str) -> Any:
    """Draw the lanes of one rank of each pipeline stage of a plan, over the time of the step; returns the matplotlib Figure. A
    lane is a stream of a rank, such as computation or communication.

    simulation: the simulated step. plan: its plan. title: the picture's title.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    assert simulation.judged is not None
    step = simulation.judged.time
    ranks = [step.rounds[index].few.rank for index in last_programs(plan, simulation.judged)]
    lanes: Lanes = {}
    for operation in step.operations():
        if operation.rank in ranks:
            lanes.setdefault((operation.rank, operation.lane), []).append(operation)
    lanes = {lane: lanes[lane] for lane in sorted(lanes)}
    names = [f"stage {ranks.index(rank)}, {lane}" if len(ranks) > 1 else lane for rank, lane in lanes]
    count = max(map(len, lanes.values()))
    scale, unit = next(((s, u) for s, u in UNITS if step.step_ns >= s), (1.0, "ns"))
    parts = 1 if count <= MOST_SEPARATE else 2
    figure: Any = Figure(figsize=(WIDTH, parts * (LANE * len(lanes) + 0.75) + 0.8), layout="constrained")
    grid = figure.add_gridspec(parts, 2)
    whole = figure.add_subplot(grid[0, :])
    if parts == 1:
        _draw_operations(whole, lanes, scale)
    else:
        micro_batch_ns = step.step_ns / plan.batch.micro_batches
        bins = min(MOST_BINS, plan.batch.micro_batches)
        _draw_shares(whole, lanes, np.linspace(0, step.step_ns, bins + 1), scale)
        count_text = plural(plan.batch.micro_batches, "micro-batch")
        whole.set_title(
            f"the whole step, {count_text}: shares of each {format_time(step.step_ns / bins)}", fontsize=9, loc="left"
        )
        window = min(step.step_ns, round((2 * plan.depth + 3) * micro_batch_ns))
        for column, begin in enumerate((0, step.step_ns - window)):
            axes = figure.add_subplot(grid[1, column])
            end = begin + window
            shown = {
                lane: [operation for operation in operations if operation.end_ns > begin and operation.start_ns < end]
                for lane, operations in lanes.items()
            }
            _draw_operations(axes, shown, scale)
            _finish(axes, names if column == 0 else None, (begin / scale, end / scale), unit)
            axes.set_title(f"the {('first', 'last')[column]} {format_time(window)}", fontsize=9, loc="left")
    _finish(whole, names, (0, step.step_ns / scale), unit)
    present = {kind_of(operation.instruction.op) for operations in lanes.values() for operation in operations}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in KINDS.items() if kind in present]
    figure.legend(handles=patches, loc="outside lower left", ncols=len(patches), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _finish(axes: Any, names: Sequence[str] | None, limits: tuple[float, float], unit: str) -> None:
    """Label the axes of a picture that has one row per lane (a stream of a rank). names: the lanes' names; None for no labels.
    limits: first and last time on the time axis. unit: the unit of the times.
    """
    rows = int(axes.get_ylim()[0] + 0.5) if names is None else len(names)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(range(rows), names or [""] * rows, fontsize=8)
    axes.set_xlim(*limits)
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_operations(axes: Any, lanes: Lanes, scale: float) -> None:
    """Draw one row per lane (a stream of a rank), with a bar for every operation; bars have white edges only if there are few,
    since the edges of many bars would cover them. axes: the matplotlib axes to draw on. lanes: the operations of each lane.
    scale: the number of ns per unit of the time axis.
    """
    by_kind = dict[str, list[tuple[int, int, int]]]()
    edged = max(map(len, lanes.values())) < MOST_EDGES
    for row, operations in enumerate(lanes.values()):
        for operation in operations:
            by_kind.setdefault(kind_of(operation.instruction.op), []).append((operation.start_ns, operation.end_ns, row))
    for kind, spans in by_kind.items():
        style = {"edgecolors": "white", "linewidths": 0.2} if edged else {"edgecolors": "none"}
        bars(axes, spans, scale, facecolors=KINDS[kind], gid=kind, **style)
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _draw_shares(axes: Any, lanes: Lanes, edges: Any, scale: float) -> None:
    """Draw one row per lane (a stream of a rank): for each interval of the step, the shares of its time that the kinds of work
    take, stacked.

    axes: the matplotlib axes to draw on. lanes: the operations of each lane. edges: (intervals + 1,), the times in ns at
    which the intervals begin and end. scale: the number of ns per unit of the time axis.
    """
    for row, operations in enumerate(lanes.values()):
        bars(axes, [(0, edges[-1], row)], scale, facecolors=IDLE, gid="idle")
        low = np.full(len(edges) - 1, row + 0.4)
        for kind, colour in KINDS.items():
            spans = np.array([(o.start_ns, o.end_ns) for o in operations if kind_of(o.instruction.op) == kind], dtype=float)
            if not len(spans):
                continue
            high = low - 0.8 * _covered(spans, edges) / np.diff(edges)
            axes.stairs(high, edges / scale, baseline=low, fill=True, color=colour, lw=0, gid=kind)
            low = high
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _covered(spans: Any, edges: Any) -> Any:
    """The time in ns that is covered by spans of time within each interval: an array (intervals,).

    spans: (number of spans, 2), start and end in ns of each span, in order and without overlap. edges: (intervals + 1,), the
    times in ns at which the intervals begin and end.
    """
    completed = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def until(moments: Any) -> Any:
        """The covered time before each of some moments."""
        number = np.searchsorted(spans[:, 0], moments, side="right")
        last = np.maximum(number - 1, 0)
        inside = np.minimum(moments, spans[last, 1]) - spans[last, 0]
        return np.where(number == 0, 0.0, completed[last] + inside)

    return np.diff(until(edges))
