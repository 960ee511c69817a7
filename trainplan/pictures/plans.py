"""Pictures of simulated plans: the timeline of their pipeline, or the lanes of a step that overlaps computation and copies."""

from __future__ import annotations

from typing import Any

from trainplan.execution.walk.time import TimeWalk
from trainplan.pictures.palette import GREEN, PINK, SKY
from trainplan.pictures.timeline import BACKWARD, FORWARD, bars, draw_timeline
from trainplan.profiling.base.quantities import format_time
from trainplan.simulating import Simulation

LANE, WIDTH = 0.45, 13.0  # inches
MOST_EDGES = 300  # operations of a lane that have an edge
OTHERS = "messages, copies and others"
COLOURS = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "recompute": SKY,
    "optimizer": "#7a7a7a",
    "gather": GREEN,
    "reduce": "#7fc8b0",
    OTHERS: PINK,
}


def draw_simulation(simulation: Simulation) -> Any:
    """A matplotlib Figure of a simulated step: its timeline, pass by pass; of a plan with switches, or of unlike or interleaved
    stages, the lanes of one rank of each stage."""
    title = simulation.name if simulation.judged is None else f"{simulation.name}: {format_time(simulation.step_ns)} a step"
    if simulation.timeline is not None:
        return draw_timeline(simulation.timeline, title=title, stages=simulation.stages)
    assert simulation.judged is not None
    return _draw_lanes(simulation.judged.time, title)


def _draw_lanes(walk: TimeWalk, title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    first_ranks = {each.few.rank for each in {tuple(rounds.few.units): rounds for rounds in reversed(walk.rounds)}.values()}
    operations = [operation for operation in walk.operations() if operation.rank in first_ranks]
    lanes = sorted({(operation.rank, operation.lane) for operation in operations})
    figure: Any = Figure(figsize=(WIDTH, LANE * len(lanes) + 1.8), layout="constrained")
    axes, by_kind = figure.subplots(), dict[str, list[tuple[int, int, int]]]()
    for operation in operations:
        kind = next((kind for kind in COLOURS if kind in operation.instruction.op), OTHERS)
        row = lanes.index((operation.rank, operation.lane))
        by_kind.setdefault(kind, []).append((operation.start_ns, operation.end_ns, row))
    for kind, spans in by_kind.items():
        edge = "white" if len(operations) < MOST_EDGES * len(lanes) else "none"  # many edges would leave nothing of the bars
        bars(axes, spans, 1e6, facecolors=COLOURS[kind], edgecolors=edge, linewidths=0.3, gid=kind)
    axes.set_ylim(-0.5, len(lanes) - 0.5)
    axes.set_yticks(range(len(lanes)), [f"rank {rank}, {lane}" for rank, lane in lanes])
    axes.invert_yaxis()
    axes.set(xlim=(0, walk.step_ns / 1e6), xlabel="ms of the step")
    axes.spines[["top", "right"]].set_visible(False)
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in COLOURS.items() if kind in by_kind]
    figure.legend(handles=patches, loc="outside lower left", ncols=len(patches), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure
