"""Pictures of simulated steps: a row for every device, a bar for every pass. With the plot extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.schedule.critical_path import Critical, critical_path
from trainplan.formulations.schedule.orders import one_f_one_b
from trainplan.formulations.schedule.simulate import Event, Timeline, simulate
from trainplan.pictures.palette import BLUE, ORANGE, SKY
from trainplan.prediction.chrome_trace import label
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time

FORWARD, BACKWARD = BLUE, ORANGE
LATER_FORWARD, LATER_BACKWARD = SKY, "#f0d58a"  # the last of several stages on a device
MESSAGE, PATH, IDLE = "#7a7a7a", "#c8102e", "#f4f4f4"
ROW = 0.34  # inches of a device
LARGEST = (26.0, 22.0)  # inches
TEXT_HEIGHT = 0.16  # inches of a row that still holds a number
MUCH_SHORTER = 0.6
CHARACTER, AROUND = 0.062, 0.04  # inches of a number: of each character, and around it


def draw_timeline(timeline: Timeline, *, title: str | None = None, stages: Sequence[str] | None = None) -> Any:
    """A matplotlib Figure: when every device runs which pass, forward and backward in two colours, numbered by micro-batch
    where there is space. Thin bars are messages that are received; the critical path is outlined; the title has iteration,
    start-up and bubble.

    Args:
        timeline: a simulated step, such as `simulate(...).timeline`.
        title: the picture's title.
        stages: a name for every stage, such as its units, which is printed next to its device.

    Returns:
        The Figure.

    Raises:
        MissingExtra: if matplotlib is not installed.
    """
    return _drawn([(title, timeline, stages)])


def draw_partition(instance: Instance, solution: Solution, *, title: str | None = None) -> Any:
    """Draw, as a matplotlib Figure, the simulated iteration of a solution of the problem pipeline-partition (cut sub-layers
    into pipeline stages), under the schedule 1F1B.

    instance: the problem with its costs. solution: the cuts between stages, and the number of micro-batches that are cut in
    two. title: the picture's title; None for the instance's name.
    """
    orders = one_f_one_b(instance.stages, instance.micro_batches, solution.sliced)
    return draw_timeline(simulate(instance.work(solution.cuts), orders), title=title or instance.name)


def draw_timelines(timelines: Mapping[str, Timeline], *, width_inches: float | None = None) -> Any:
    """A matplotlib Figure: several timelines, each under its name, on one axis of time.

    Args:
        timelines: simulated steps, by name.
        width_inches: the picture's width (default: one with space for the numbers of passes).

    Returns:
        The Figure.

    Raises:
        InputError: if no timeline is given.
        MissingExtra: if matplotlib is not installed.
    """
    if not timelines:
        raise InputError("timelines", "", "are none", "give at least one, under its name")
    return _drawn([(name, timeline, None) for name, timeline in timelines.items()], width_inches)


def _drawn(parts: Sequence[tuple[str | None, Timeline, Sequence[str] | None]], width_inches: float | None = None) -> Any:
    """Draw timelines below each other, on one time axis; returns the matplotlib Figure.

    parts: for each timeline its title, the timeline, and the names of the units that every stage holds (None for no names).
    width_inches: the picture's width; None for a width with space for the numbers of passes.
    """
    from matplotlib.figure import Figure

    timelines = [timeline for _, timeline, _ in parts]
    end = max(timeline.time_ns for timeline in timelines)
    rows = [len(timeline.devices) for timeline in timelines]
    label_width = 0.9 + CHARACTER * max((len(name) for _, _, stages in parts for name in stages or []), default=0)
    width = (width_inches or LARGEST[0]) - label_width
    if width_inches is None:
        width = min(width, max(9.0, *(_width(timeline, end) for timeline in timelines)))
    heads = 0.75 * len(parts) + 1.1
    row = min(ROW, (LARGEST[1] - heads) / sum(rows))
    figure: Any = Figure(figsize=(width + label_width, heads + row * sum(rows)), layout="constrained")
    scale, unit = next(((s, u) for s, u in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if end >= s), (1, "ns"))
    all_axes = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (name, timeline, stages) in zip(all_axes, parts, strict=True):
        _draw(axes, timeline, scale, width / (end / scale) if end else 1.0, row)
        count = len(timeline.devices)
        chunked = timeline.work.stages > count
        step = -(-count // max(1, int(count * row / 0.14)))
        labels = [f"{d}: {stages[d]}" if stages and not chunked else str(d) for d in range(count)]
        axes.set_yticks(range(0, count, step), labels[::step], fontsize=8)
        axes.set_title("\n".join([*([name] if name else []), _summary(timeline)]), fontsize=10, loc="left")
        axes.set(xlim=(0, end / scale or 1), ylim=(count - 0.45, -0.55), ylabel="stage" if not chunked else "device")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
        axes.yaxis.label.set_fontsize(8)
    all_axes[-1].set_xlabel(unit, fontsize=8)
    numbered = any(text.get_gid() for axes in all_axes for text in axes.texts)
    figure.legend(**_legend(timelines, numbered), loc="outside lower center", frameon=False, fontsize=8)
    return figure


def _width(timeline: Timeline, end: int) -> float:
    """The width in inches that a timeline needs so that its forward passes (or their halves) have space for their numbers;
    passes that are much shorter than most are ignored. end: the time in ns at the end of the axis.
    """
    needed = [0.0]
    for halves in (False, True):
        passes = [event for events in timeline.devices for event in events if (event.task.half is not None) == halves]
        lengths = sorted(event.end_ns - event.start_ns for event in passes if event.task.kind == "forward")
        if lengths and (usual := lengths[len(lengths) // 2]):
            shortest = next(length for length in lengths if length >= MUCH_SHORTER * usual)
            needed.append(_inches(_longest(timeline, halves)) * end / shortest)
    return max(needed)


def _number(timeline: Timeline, event: Event) -> str:
    """The text that is printed on a pass: the index of its micro-batch, such as 3; 3a for its first half; 3.1 on a device's
    second stage, if devices have several stages. timeline: the simulated passes and messages of a pipeline's step. event: the
    simulated pass, with begin and end.
    """
    count = len(timeline.devices)
    return label(event.task, count if timeline.work.stages > count else None)[1:]


def _longest(timeline: Timeline, halves: bool) -> int:
    """The number of characters of the longest text that is printed on a pass of the timeline; with `halves`, on a half of a
    pass.
    """
    passes = [event for events in timeline.devices for event in events if (event.task.half is not None) == halves]
    return max((len(_number(timeline, event)) for event in passes), default=0)


def _inches(characters: int) -> float:
    """The width in inches of a printed number with this number of characters, including its margin."""
    return CHARACTER * characters + AROUND


def _summary(timeline: Timeline) -> str:
    """A line of the picture's title: time of the iteration, start-up time, bubble (share of time in which devices are idle)
    and master stage (the stage with the most passes on the critical path). timeline: the simulated passes and messages of a
    pipeline's step.
    """
    critical = critical_path(timeline)
    parts = [
        f"iteration {format_time(timeline.time_ns)}",
        f"start-up {format_time(timeline.startup_ns)}",
        f"bubble {timeline.bubble:.1%}",
        f"master stage {critical.master}",
    ]
    return ", ".join(parts)


def _draw(axes: Any, timeline: Timeline, scale: float, inches: float, row: float) -> None:
    """Draw one timeline: passes, messages, the critical path, and indices of micro-batches if there is space.

    axes: the matplotlib axes to draw on. scale: the number of ns per unit of the time axis. inches: the width in inches of
    one unit of the time axis. row: the height in inches of one device's row.
    """
    count = len(timeline.devices)
    events = [event for device in timeline.devices for event in device]
    critical = critical_path(timeline)
    on_path = {event.task for event in critical.path}
    wide = [event for event in events if event.end_ns > event.start_ns]
    line = 0.4 if row > TEXT_HEIGHT else 0.15
    bars(axes, [(0, timeline.time_ns, device) for device in range(count)], scale, facecolors=IDLE, gid="idle", zorder=0.5)
    for kind in ("forward", "backward"):
        alike = [event for event in wide if event.task.kind == kind]
        colours = [_colour(event, count, timeline.work.stages // count) for event in alike]
        bars(axes, map(_bar, alike), scale, facecolors=colours, edgecolors="white", linewidths=line, gid=kind)
    messages = [(event.ready_ns, event.start_ns, event.device) for event in events if event.start_ns > event.ready_ns]
    bars(axes, messages, scale, 0.22, facecolors=MESSAGE, linewidths=0, gid="messages")
    outlined = [event for event in wide if event.task in on_path]
    lengths = sorted(event.end_ns - event.start_ns for event in outlined)
    points = 72 * inches * lengths[len(lengths) // 2] / scale if lengths else 1.0
    thick = min(1.3, max(0.35, 0.12 * points))
    style: dict[str, Any] = {"facecolors": "none", "edgecolors": PATH, "linewidths": thick, "gid": "critical path"}
    bars(axes, map(_bar, outlined), scale, zorder=3, **style)
    _draw_path(axes, critical, scale, thick)
    if row < TEXT_HEIGHT:
        return
    needed = {halves: _inches(_longest(timeline, halves)) for halves in (False, True)}
    for event in wide:
        if needed[event.task.half is not None] <= 1.1 * (event.end_ns - event.start_ns) / scale * inches:
            number = _number(timeline, event)
            dark = event.task.kind == "forward" and event.task.stage < count
            style = {"color": "white" if dark else "black", "fontsize": 6.5, "ha": "center", "va": "center", "zorder": 4}
            axes.text(
                (event.start_ns + event.end_ns) / 2 / scale, event.device, number, gid=f"number {label(event.task)}", **style
            )


def _draw_path(axes: Any, critical: Critical, scale: float, thick: float) -> None:
    """Draw the links of the critical path (the passes and messages that determine the iteration's time): a thin line between
    two consecutive passes on it that are on different devices. axes: the matplotlib axes to draw on. scale: the number of ns
    per unit of the time axis. thick: the width of the passes' outlines in points.
    """
    for before, after in zip(critical.path, critical.path[1:], strict=False):
        if before.device != after.device:
            lanes = [before.device, after.device]
            axes.plot([before.end_ns / scale, after.start_ns / scale], lanes, color=PATH, lw=0.6 * thick, zorder=2.9)


def bars(axes: Any, spans: Iterable[tuple[float, float, int]], scale: float, height: float = 0.8, **style: Any) -> None:
    """Draw many horizontal bars as one matplotlib collection, which is faster than one by one.

    axes: the matplotlib axes to draw on. spans: (begin, end, row) of every bar, which is centred on its row. scale: the
    number by which begin and end are divided. height: height of a bar, in rows. style: further arguments of the collection,
    such as colours.
    """
    from matplotlib.collections import PolyCollection

    corners = [
        [(start / scale, low), (end / scale, low), (end / scale, low + height), (start / scale, low + height)]
        for start, end, low in ((start, end, row - height / 2) for start, end, row in spans)
    ]
    axes.add_collection(PolyCollection(corners, **style))


def _bar(event: Event) -> tuple[int, int, int]:
    """Begin in ns, end in ns, and row of the bar of a pass; the row is the device's number. event: the simulated pass, with
    begin and end.
    """
    return event.start_ns, event.end_ns, event.device


def _colour(event: Event, devices: int, chunks: int) -> Any:
    """The colour of a pass, as (red, green, blue), by its direction (forward or backward); if a device has several stages,
    later stages are lighter.

    event: the pass. devices: number of devices. chunks: number of stages per device.
    """
    from matplotlib.colors import to_rgb

    first, last = (FORWARD, LATER_FORWARD) if event.task.kind == "forward" else (BACKWARD, LATER_BACKWARD)
    share = event.task.stage // devices / max(1, chunks - 1)
    return tuple((1 - share) * a + share * b for a, b in zip(to_rgb(first), to_rgb(last), strict=True))


def _legend(timelines: Sequence[Timeline], numbered: bool) -> dict[str, Any]:
    """The keyword arguments of matplotlib's legend for a picture of timelines. numbered: whether any pass has its number
    printed on it.
    """
    from matplotlib.patches import Patch

    patches, notes = (
        [Patch(facecolor=FORWARD, label="forward"), Patch(facecolor=BACKWARD, label="backward")],
        ["numbers: micro-batch"],
    )
    if any(timeline.work.stages > len(timeline.devices) for timeline in timelines):
        patches.append(Patch(facecolor=LATER_FORWARD, label="forward, last stage of the device"))
        patches.append(Patch(facecolor=LATER_BACKWARD, label="backward, last stage of the device"))
        notes.append("after the dot, which of the device's stages, from 0")
    if any(event.task.half is not None for timeline in timelines for device in timeline.devices for event in device):
        notes.append("a and b, its halves")
    if any(any(timeline.work.transfer_ns) for timeline in timelines):
        patches.append(Patch(facecolor=MESSAGE, label="receiving"))
    patches.append(Patch(facecolor="none", edgecolor=PATH, label="critical path"))
    title = "; ".join(notes) if numbered else None
    return {"handles": patches, "title": title, "title_fontsize": 8, "ncols": len(patches)}
