"""Pictures of simulated plans: the timeline of their pipeline, or the lanes of a step that overlaps computation and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainplan.execution.analysis.timing.simulate import Operation
from trainplan.execution.instructions import Op
from trainplan.formulations.plan.plan import Plan
from trainplan.pictures.palette import GREEN, PINK, SKY
from trainplan.pictures.timeline import BACKWARD, FORWARD, IDLE, MESSAGE, bars, draw_timeline
from trainplan.prediction.metrics import first_places
from trainplan.prediction.simulate import Simulation
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
LANE, WIDTH, LEFT = 0.32, 13.0, 1.7  # inches: of a lane, of the picture, of the names of lanes
MOST_EDGES = 300  # operations of a lane that have an edge
MOST_SEPARATE = 600  # operations of a lane, beyond which the whole step is drawn by shares of its time
MOST_BINS = 400  # of the step, in each of which shares are stacked; no more than micro-batches, or passes alone would show
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def kind_of(op: Op) -> str:
    """Which of KINDS an operation is drawn as."""
    kind = _DRAWN_AS.get(op.spec.kind, op.spec.kind)
    return kind if kind in KINDS else "other"


def draw_simulation(simulation: Simulation) -> Any:
    """A matplotlib Figure of a simulated step: its timeline, pass by pass; of a plan with switches, or of unlike or interleaved
    stages, the streams of one rank of each stage.

    Of a step with many operations the streams of the whole step show which share of the time each kind of work takes, and below
    stand its beginning and its end, operation by operation.

    Args:
        simulation: of `simulate`.

    Returns:
        The Figure.

    Raises:
        MissingExtra: where matplotlib is not installed.
    """
    title = simulation.name if simulation.judged is None else f"{simulation.name}: {format_time(simulation.step_ns)} a step"
    if simulation.timeline is not None:
        return draw_timeline(simulation.timeline, title=title, stages=simulation.stages)
    assert simulation.judged is not None and simulation.plan is not None
    if simulation.software:
        title += f" as {simulation.software} overlaps; drawn: trainplan's programs, {format_time(simulation.judged.step_ns)}"
    return _draw_lanes(simulation, simulation.plan, title)


def _draw_lanes(simulation: Simulation, plan: Plan, title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    assert simulation.judged is not None
    walk = simulation.judged.time
    ranks = [walk.rounds[index].few.rank for index in first_places(plan, simulation.judged)]
    lanes: dict[tuple[int, str], list[Operation]] = {}
    for operation in walk.operations():
        if operation.rank in ranks:
            lanes.setdefault((operation.rank, operation.lane), []).append(operation)
    lanes = {lane: lanes[lane] for lane in sorted(lanes)}
    names = [f"stage {ranks.index(rank)}, {lane}" if len(ranks) > 1 else lane for rank, lane in lanes]
    count = max(map(len, lanes.values()))
    scale, unit = next(((s, u) for s, u in UNITS if walk.step_ns >= s), (1.0, "ns"))
    parts = 1 if count <= MOST_SEPARATE else 2
    figure: Any = Figure(figsize=(WIDTH, parts * (LANE * len(lanes) + 0.75) + 0.8), layout="constrained")
    grid = figure.add_gridspec(parts, 2)
    whole = figure.add_subplot(grid[0, :])
    if parts == 1:
        _draw_operations(whole, lanes, scale)
    else:
        each_ns = walk.step_ns / plan.batch.micro_batches
        bins = min(MOST_BINS, plan.batch.micro_batches)
        _draw_shares(whole, lanes, np.linspace(0, walk.step_ns, bins + 1), scale)
        count_text = plural(plan.batch.micro_batches, "micro-batch")
        whole.set_title(
            f"the whole step, {count_text}: shares of each {format_time(walk.step_ns / bins)}", fontsize=9, loc="left"
        )
        window = min(walk.step_ns, round((2 * plan.depth + 3) * each_ns))
        for column, begin in enumerate((0, walk.step_ns - window)):
            axes = figure.add_subplot(grid[1, column])
            end = begin + window
            some = {lane: [o for o in those if o.end_ns > begin and o.start_ns < end] for lane, those in lanes.items()}
            _draw_operations(axes, some, scale)
            _finish(axes, names if column == 0 else None, (begin / scale, end / scale), unit)
            axes.set_title(f"the {('first', 'last')[column]} {format_time(window)}", fontsize=9, loc="left")
    _finish(whole, names, (0, walk.step_ns / scale), unit)
    seen = {kind_of(operation.instruction.op) for those in lanes.values() for operation in those}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in KINDS.items() if kind in seen]
    figure.legend(handles=patches, loc="outside lower left", ncols=len(patches), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _finish(axes: Any, names: Sequence[str] | None, limits: tuple[float, float], unit: str) -> None:
    rows = int(axes.get_ylim()[0] + 0.5) if names is None else len(names)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(range(rows), names or [""] * rows, fontsize=8)
    axes.set_xlim(*limits)
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_operations(axes: Any, lanes: dict[tuple[int, str], list[Operation]], scale: float) -> None:
    """A bar for every operation, with white edges where few are drawn: many would leave nothing of the bars."""
    by_kind = dict[str, list[tuple[int, int, int]]]()
    edged = max(map(len, lanes.values())) < MOST_EDGES
    for row, those in enumerate(lanes.values()):
        for operation in those:
            by_kind.setdefault(kind_of(operation.instruction.op), []).append((operation.start_ns, operation.end_ns, row))
    for kind, spans in by_kind.items():
        style = {"edgecolors": "white", "linewidths": 0.2} if edged else {"edgecolors": "none"}
        bars(axes, spans, scale, facecolors=KINDS[kind], gid=kind, **style)
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _draw_shares(axes: Any, lanes: dict[tuple[int, str], list[Operation]], edges: Any, scale: float) -> None:
    """For every lane the share of the time between neighbouring edges that each kind takes, stacked."""
    for row, those in enumerate(lanes.values()):
        bars(axes, [(0, edges[-1], row)], scale, facecolors=IDLE, gid="idle")
        low = np.full(len(edges) - 1, row + 0.4)
        for kind, colour in KINDS.items():
            spans = np.array([(o.start_ns, o.end_ns) for o in those if kind_of(o.instruction.op) == kind], dtype=float)
            if not len(spans):
                continue
            high = low - 0.8 * _covered(spans, edges) / np.diff(edges)
            axes.stairs(high, edges / scale, baseline=low, fill=True, color=colour, lw=0, gid=kind)
            low = high
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _covered(spans: Any, edges: Any) -> Any:
    """The time within each bin that is covered by spans, of one lane, which do not overlap: rows of start and end."""
    done = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def until(moments: Any) -> Any:
        number = np.searchsorted(spans[:, 0], moments, side="right")
        last = np.maximum(number - 1, 0)
        inside = np.minimum(moments, spans[last, 1]) - spans[last, 0]
        return np.where(number == 0, 0.0, done[last] + inside)

    return np.diff(until(edges))
