"""Pictures of memory switches: a step on its lanes with its memory over time, and time against memory. With the plot extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution, matrix, violations
from trainplan.formulations.memory_switches.simulation import LANES, Evaluation, Operation
from trainplan.formulations.plan.switches import SWITCHES
from trainplan.pictures.palette import BEST, GREEN, GRID, PINK, PURPLE, series
from trainplan.pictures.timeline import AROUND, BACKWARD, CHARACTER, FORWARD, IDLE, LATER_FORWARD, PATH, bars
from trainplan.planning.memory_frontier import FrontierPoint
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time

# Kinds of operation: name in the legend, and colour (Okabe and Ito's palette and lighter shades of it).
KINDS = {
    "forward": ("forward", FORWARD),
    "forward without graph": ("forward, nothing kept", LATER_FORWARD),
    "recompute": ("recompute", "#f0d58a"),
    "backward": ("backward", BACKWARD),
    "all-gather": ("all-gather", GREEN),
    "reduce-scatter": ("reduce-scatter", "#7fc8b0"),
    "prefetch shard": ("shard in", PINK),
    "prefetch hidden": ("hidden state in", "#e5b8d0"),
    "offload hidden": ("hidden state out", PURPLE),
    "offload gradient": ("gradient out", "#c3b1e1"),
    "optimizer": ("optimizer", "#7a7a7a"),
}
DARK = {FORWARD, GREEN, PURPLE, "#7a7a7a"}
ON, OFF = FORWARD, "#ececec"
BUFFERS, RESIDENT = "#a9c9dc", "#5d8aa8"
LANE = 0.42  # inches
WIDTH = 13.0
MOST_WIDTH = 26.0
NAMES_WIDTH = 1.9  # inches of the names left of the axes
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
CLOSE = 0.1  # per cent, below which the scale of gaps is linear, else logarithmic


def draw_switches(
    instance: Instance,
    solution: Solution | Mapping[str, Any],
    *,
    title: str | None = None,
    window_ns: tuple[int, int] | None = None,
) -> Any:
    """A matplotlib Figure: every stream of the step, its operations numbered by layer where there is space; the bytes held over
    time, with limit and peak; and every layer's switches.

    Args:
        instance: an instance of the problem memory-switches, which chooses for every layer whether its activations are
            kept, recomputed or offloaded.
        solution: its Solution, or a dict in the file format of one, such as a Result has.
        title: the picture's title.
        window_ns: the beginning and the end of the part of the step to show, which leaves out the table of switches.

    Returns:
        The Figure.

    Raises:
        InputError: for a solution of another instance.
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    chosen = solution if isinstance(solution, Solution) else load_solution(solution)
    try:
        step = evaluate(instance, chosen)
    except ValueError:
        [reason, *_] = violations(instance, chosen)
        raise InputError("solution", "switches", reason, "give a solution of this instance") from None
    if window_ns is not None and not 0 <= window_ns[0] < window_ns[1] <= step.time_ns:
        raise InputError("window_ns", "", f"is {tuple(window_ns)}", f"give two rising times from 0 to {step.time_ns}")
    lanes = [lane for lane in LANES if instance.nvlink or lane != "copy"]
    width = WIDTH if window_ns else min(MOST_WIDTH, max(WIDTH, NAMES_WIDTH + 0.14 * instance.layers))
    heights = [LANE * len(lanes), 2.3] + ([] if window_ns else [0.19 * len(SWITCHES)])
    figure: Any = Figure(figsize=(width, sum(heights) + (1.9 if window_ns else 2.7)), layout="constrained")
    streams, memory, *switches = figure.subplots(len(heights), 1, height_ratios=heights)
    memory.sharex(streams)
    begin, end = window_ns or (0, step.time_ns)
    scale, unit = next(((s, u) for s, u in UNITS if end - begin >= s), (1, "ns"))
    _draw_lanes(streams, instance, step, lanes, scale, (begin / scale, end / scale), width - NAMES_WIDTH)
    _draw_memory(memory, instance, step, scale)
    for axes in switches:
        _draw_choice(axes, instance, chosen)
    memory.set_xlabel(f"{unit} of the step", fontsize=8)
    for axes in (streams, memory, *switches):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    streams.tick_params(labelbottom=False)
    over = step.peak_bytes - instance.memory_bytes
    fits = f"{format_bytes(-over)} below" if over <= 0 else f"{format_bytes(over)} ABOVE"
    heading = f"{format_time(step.time_ns)} a step, {format_bytes(step.peak_bytes)} at the peak, {fits} the limit"
    figure.suptitle(f"{title or instance.name}\n{heading}", fontsize=11)
    return figure


def _draw_lanes(
    axes: Any,
    instance: Instance,
    step: Evaluation,
    lanes: Sequence[str],
    scale: float,
    window: tuple[float, float],
    width: float,
) -> None:
    """Draw the operations of a simulated step of a memory-switches instance (layers are kept, recomputed or offloaded), one
    row per lane. A lane is a stream of work that runs in parallel with others, such as computation, communication or copies to
    the host.

    step: the simulated step. lanes: the names of the lanes to draw. scale: the number of ns per unit of the time axis.
    window: the first and the last time that is shown, in units of the time axis. width: width of the axes in inches.
    """
    from matplotlib.patches import Patch

    rows, (begin, end) = {lane: row for row, lane in enumerate(lanes)}, window
    inches = width / (end - begin or 1)  # of one unit of time
    bars(axes, [(begin, end, row) for row in rows.values()], 1, facecolors=IDLE, zorder=0.5)
    by_kind, numbered = dict[str, list[Operation]](), False
    for operation in step.timeline:
        if operation.end_ns > operation.start_ns and operation.end_ns > begin * scale and operation.start_ns < end * scale:
            by_kind.setdefault(operation.what, []).append(operation)
    for what, (_, colour) in KINDS.items():
        operations = by_kind.get(what, [])
        spans = [(operation.start_ns, operation.end_ns, rows[operation.lane]) for operation in operations]
        lengths = sorted(operation.end_ns - operation.start_ns for operation in operations)
        wide = bool(lengths) and lengths[len(lengths) // 2] / scale * inches > 0.06
        line: dict[str, Any] = {"edgecolors": "white" if wide else colour, "linewidths": 0.4 if wide else 0.5}
        bars(axes, spans, scale, facecolors=colour, gid=what, **line)
        for operation in operations:
            first, last = max(begin, operation.start_ns / scale), min(end, operation.end_ns / scale)
            if (last - first) * inches >= CHARACTER * len(str(operation.layer)) + AROUND:
                numbered, style = True, {"fontsize": 6.5, "ha": "center", "va": "center", "zorder": 4}
                ink, middle = "white" if colour in DARK else "black", (first + last) / 2
                axes.text(
                    middle, rows[operation.lane], operation.layer, color=ink, gid=f"number {what} {operation.layer}", **style
                )
    names = {"communication": "communication" if instance.nvlink else "communication\nand copies", "copy": "host copies"}
    axes.set_yticks(range(len(lanes)), [names.get(lane, lane) for lane in lanes])
    axes.set(xlim=(begin, end or 1), ylim=(len(lanes) - 0.5, -0.75))
    moments = (0, *(moment / scale for moment in step.phases_ns))
    for phase, (first, last) in zip(("forward", "backward", "optimizer"), pairwise(moments), strict=True):
        axes.axvline(last, color="black", lw=0.6, alpha=0.5)
        label, shown = f"{phase} {format_time((last - first) * scale)}", (max(begin, first), min(end, last))
        if (shown[1] - shown[0]) * inches > CHARACTER * len(label):
            axes.text(sum(shown) / 2, -0.72, label, fontsize=8, ha="center", va="bottom", clip_on=False)
    patches = [Patch(facecolor=colour, label=name) for what, (name, colour) in KINDS.items() if what in by_kind]
    axes.figure.legend(
        handles=patches, loc="outside lower center", ncols=len(patches) if len(patches) < 9 else -(-len(patches) // 2),
        frameon=False, fontsize=8, title="numbers: layer" if numbered else None, title_fontsize=8,
    )  # fmt: skip


def _draw_memory(axes: Any, instance: Instance, step: Evaluation, scale: float) -> None:
    """Draw the bytes of memory that are in use over the time of a simulated step, with the memory limit and the peak. axes:
    the matplotlib axes to draw on. step: the simulated step of a memory-switches instance. scale: the number of ns per unit of
    the time axis.
    """
    limit = instance.memory_bytes
    size, unit = next(((s, u) for s, u in SIZES if step.peak_bytes >= s), (1, "B"))
    changes = [(0, step.resident_bytes), *step.memory, (step.time_ns, step.memory[-1][1])]
    times, sizes = np.array([time for time, _ in changes]) / scale, np.array([bytes_ for _, bytes_ in changes]) / size
    axes.fill_between(times, np.minimum(sizes, limit / size), step="post", color=BUFFERS, lw=0)
    axes.fill_between(times, np.maximum(sizes, limit / size), limit / size, step="post", color=PATH, lw=0, gid="too much")
    axes.plot(times, sizes, drawstyle="steps-post", color=RESIDENT, lw=0.7, gid="held")
    if step.resident_bytes:
        axes.axhspan(0, step.resident_bytes / size, color=RESIDENT, lw=0)
        style = {"fontsize": 8, "color": "white", "va": "center"}
        if step.resident_bytes / size > 0.1 * step.peak_bytes / size:
            axes.text(0.005, step.resident_bytes / size / 2, "shards that stay", transform=axes.get_yaxis_transform(), **style)
    axes.axhline(limit / size, color=PATH, lw=1.2, ls="--", gid="limit")
    peak, moment = step.peak_bytes / size, step.peak_ns / scale
    axes.plot([moment], [peak], "o", color="black", ms=4, zorder=5, gid="peak")
    top = 1.18 * max(peak, limit / size if limit < 2 * step.peak_bytes else 0)
    late = moment > 0.7 * step.time_ns / scale
    axes.annotate(
        f"peak {format_bytes(step.peak_bytes)}", (moment, peak), (-6 if late else 6, 4), textcoords="offset points",
        fontsize=8, ha="right" if late else "left", va="bottom", bbox={"fc": "white", "ec": "none", "pad": 0.8, "alpha": 0.85},
    )  # fmt: skip
    if limit / size <= top:
        shown = (0.995, limit / size, f"limit {format_bytes(limit)}")
        axes.text(*shown, transform=axes.get_yaxis_transform(), fontsize=8, color=PATH, ha="right", va="bottom")
    axes.set(ylim=(0, top), ylabel=f"memory, {unit}")
    axes.yaxis.label.set_fontsize(8)


def _draw_choice(axes: Any, instance: Instance, chosen: Solution) -> None:
    """Draw the table of memory switches (recompute, offload and others) of a solution: one row per switch, one column per
    layer, filled if the switch is on in that layer. axes: the matplotlib axes to draw on. instance: the problem that the
    solution is of, with its limits and costs. chosen: the solution, which has the switches of every layer.
    """
    from matplotlib.colors import ListedColormap

    count = instance.layers
    line = {"edgecolors": "white", "linewidth": 1.0 if count <= 60 else 0.4} if count <= 300 else {}
    axes.pcolormesh(matrix([chosen])[0].T.astype(int), cmap=ListedColormap([OFF, ON]), vmin=0, vmax=1, gid="switches", **line)
    shares = matrix([chosen])[0].mean(axis=0)
    names = [f"{name.replace('_', ' ')}  {share:.0%}" for name, share in zip(SWITCHES, shares, strict=True)]
    axes.set_yticks(np.arange(len(SWITCHES)) + 0.5, names)
    apart = -(-count // 24)
    axes.set_xticks(np.arange(0, count, apart) + 0.5, range(0, count, apart))
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xlabel(f"layer, from {instance.name_of(0)} to {instance.name_of(count - 1)}; filled: on", fontsize=8)
    axes.spines[:].set_visible(False)


def draw_frontier(points: Sequence[FrontierPoint], *, title: str | None = None) -> Any:
    """A matplotlib Figure: the time of a step against the memory limit, with a line for each method; below, how far each method
    is above the best lower bound, or above the best time where there is no bound. A line begins at the least memory for which
    its method finds a solution.

    Args:
        points: solutions for several memory limits, as `frontier` gives them.
        title: the picture's title.

    Returns:
        The Figure.

    Raises:
        InputError: if there are no points.
        MissingExtra: if matplotlib is not installed.
    """
    if not points:
        raise InputError("points", "", "are none", "give those of `frontier`")
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9.5, 7.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    objectives = [point.result.objective for point in points if point.result.objective is not None]
    scale, unit = next(((s, u) for s, u in UNITS if max(objectives, default=0) >= s), (1, "ns"))
    size, size_unit = next(((s, u) for s, u in SIZES if max(point.memory_bytes for point in points) >= s), (1, "B"))
    floors = _floors(points)
    for index, name in enumerate(dict.fromkeys(point.result.method for point in points)):
        solved = [point for point in points if point.result.method == name and point.result.objective is not None]
        proven = bool(solved) and all(point.result.status == "optimal" for point in solved)
        style: dict[str, Any] = series(index) | ({"color": BEST, "lw": 2.2, "zorder": 3} if proven else {"lw": 1.3})
        label = name + (" (proven)" if proven else "") if solved else f"{name}: nothing"
        memory = [point.memory_bytes / size for point in solved]
        times = [(point.result.objective or 0) / scale for point in solved]
        above = [100 * ((point.result.objective or 0) / floors[point.memory_bytes] - 1) for point in solved]
        style["ms"] = 4
        upper.plot(memory, times, label=label, gid=f"time {name}", **style)
        lower.plot(memory, above, gid=f"gap {name}", **style)
    upper.set_ylabel(f"time of a step, {unit}")
    lower.set_yscale("symlog", linthresh=CLOSE)
    lower.set_yticks(ticks := [0, 0.1, 1, 10, 100], [f"{tick:g} %" for tick in ticks])
    lower.set_ylim(-0.02, max(1.0, 1.5 * max((g for line in lower.lines for g in line.get_ydata()), default=0)))
    lower.set(xlabel=f"memory limit of a device, {size_unit}", ylabel="above the lower bound")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=GRID, lw=0.6)
        axes.set_axisbelow(True)
    upper.legend(frameon=False, fontsize=8)
    figure.suptitle(title or f"{points[0].result.problem}: time of a step against memory", fontsize=11)
    return figure


def _floors(points: Sequence[FrontierPoint]) -> dict[int, int]:
    """For each memory limit in bytes among the points, the time in ns that gaps are measured from: the largest lower bound
    that any method proves, or the shortest time found if there is no bound. points: solutions of several methods for several
    memory limits.
    """
    floors = {}
    for limit in {point.memory_bytes for point in points}:
        results = [point.result for point in points if point.memory_bytes == limit]
        bounds = [result.bound for result in results if result.bound]
        floors[limit] = max(bounds) if bounds else min((result.objective for result in results if result.objective), default=1)
    return floors
