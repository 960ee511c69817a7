"""Pictures of simulated plans: the timeline of their pipeline, or the lanes of a step that overlaps computation and copies."""

from __future__ import annotations

from typing import Any

from trainplan.execution.walk.time import TimeWalk
from trainplan.pictures.timeline import BACKWARD, FORWARD, draw_timeline
from trainplan.profiling.base.quantities import format_time
from trainplan.simulating import Simulation

LANE, WIDTH = 0.45, 13.0  # inches
COLOURS = {"forward": FORWARD, "backward": BACKWARD, "optimizer": "#7a7a7a", "gather": "#009e73", "reduce": "#7fc8b0"}
OTHER = "#cc79a7"


def draw_simulation(simulation: Simulation) -> Any:
    """A matplotlib Figure of a simulated step: its timeline, pass by pass; of a plan with switches, the lanes of rank 0."""
    if simulation.timeline is not None:
        return draw_timeline(simulation.timeline, title=simulation.name, stages=simulation.stages)
    assert simulation.judged is not None
    return _draw_lanes(simulation.judged.time, f"{simulation.name}: {format_time(simulation.step_ns)} a step")


def _draw_lanes(walk: TimeWalk, title: str) -> Any:
    from matplotlib.figure import Figure

    operations = [operation for operation in walk.operations() if operation.rank == 0]
    lanes = list(dict.fromkeys(operation.lane for operation in operations))
    figure: Any = Figure(figsize=(WIDTH, LANE * len(lanes) + 1.4), layout="constrained")
    axes = figure.subplots()
    for operation in operations:
        colour = next((colour for word, colour in COLOURS.items() if word in operation.instruction.op), OTHER)
        span = (operation.start_ns / 1e6, (operation.end_ns - operation.start_ns) / 1e6)
        axes.broken_barh([span], (lanes.index(operation.lane) - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set(xlim=(0, walk.step_ns / 1e6), xlabel="ms of the step")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure
