"""Pictures of placements: which device does what, and what every stage and pipeline then costs. With the plot extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.pictures.device_map import FLOW, draw_devices, hatch_of, ink_on, kind_patches
from trainplan.pictures.placement_view import PlacementView
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time

TRANSFER, OVER = "#9a9a9a", "#c8102e"  # colours of transfers, and of memory beyond the limit


def draw_placement(instance: Instance, solution: Solution | Mapping[str, Any], *, title: str | None = None) -> Any:
    """A matplotlib Figure: every device with its stage, pipeline and tensor-parallel rank; one micro-batch on its way through
    each pipeline; and every stage's time, transfer, synchronisation and memory, red where it does not fit.

    Args:
        instance: an instance of a problem that places pipeline stages on devices: stage-assignment or cluster-strategy.
        solution: its Solution, or a dict in the file format of one, such as a Result has.
        title: the picture's title.

    Returns:
        The Figure.

    Raises:
        InputError: for a solution of another instance.
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    view = PlacementView.of(instance, solution)
    groups = view.alike_pipelines()
    stages, pipelines = view.solution.degrees.pp, len(groups)
    wide, high = view.layout.inches
    heights = [0.8 + 0.26 * min(stages, 40), 0.8 + 0.36 * pipelines]
    figure: Any = Figure(figsize=(wide + 8.2, 1.1 + max(high + 0.6, sum(heights))), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[wide, 8.2])
    draw_devices(left.subplots(), view)
    upper, lower = right.subfigures(2, 1, height_ratios=heights)
    _draw_stages(upper.subplots(1, 3, sharey=True, width_ratios=[3, 2, 2]), view)
    _draw_pipelines(lower.subplots(), view, groups)
    figure.suptitle(f"{title or instance.name}\n{view.heading}\n{view.summary}", fontsize=11)
    return figure


def draw_placements(instance: Instance, solutions: Mapping[str, Solution | Mapping[str, Any]]) -> Any:
    """A matplotlib Figure: the devices only, of several solutions next to each other, each under its name and time.

    Args:
        instance: an instance of a problem that places pipeline stages on devices: stage-assignment or cluster-strategy.
        solutions: Solutions of the instance, or dicts in the file format of one, by name.

    Returns:
        The Figure.

    Raises:
        InputError: if no solution is given.
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    views = {name: PlacementView.of(instance, solution) for name, solution in solutions.items()}
    if not views:
        raise InputError("solutions", "", "are none", "give at least one, under its name")
    wide, high = next(iter(views.values())).layout.inches
    figure: Any = Figure(figsize=(max(2.9, wide + 0.3) * len(views), high + 1.3), layout="constrained")
    for axes, (name, view) in zip(figure.subplots(1, len(views), squeeze=False)[0], views.items(), strict=True):
        draw_devices(axes, view, legend=False)
        axes.set_title(f"{name}: {format_time(view.costs.time_ns)}\n{view.degrees}\n{view.share_text}", fontsize=9)
    figure.legend(handles=kind_patches(instance), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_stages(line: Sequence[Any], view: PlacementView) -> None:
    """Draw three charts with one bar per pipeline stage: time of a micro-batch with its transfer to the next stage, time of
    gradient synchronisation, and memory against its limit.

    line: the matplotlib axes of the three charts. view: the placement to draw.
    """
    stages = view.costs.stages
    indices = np.arange(len(stages))
    spans = [f"{s.first}-{s.last} ({s.last - s.first + 1})" if s.first < s.last else f"{s.first}" for s in stages]
    names = [f"S{stage}: {span}" for stage, span in enumerate(spans)]
    step = ceil(len(stages) / 40)
    time, sync, memory = line
    times, transfers = (np.array([getattr(stage, name) for stage in stages]) / 1e6 for name in ("time_ns", "transfer_ns"))
    time.barh(indices, times, color=view.colours)
    time.barh(indices, transfers, left=times, color=TRANSFER, label="transfer to the next stage")
    uneven = view.times.min(axis=1) < view.times.max(axis=1)
    if uneven.any():
        points = [(time_ms, j) for j in np.flatnonzero(uneven) for time_ms in set(view.times[j])]
        time.plot(*zip(*points, strict=True), "|", color=FLOW, ms=9, mew=2, label="each pipeline")
    time.set(xlabel="a micro-batch, ms", ylim=(len(stages) - 0.4, -0.6))
    time.margins(x=0.03)
    time.set_yticks(indices[::step], names[::step], fontsize=8)
    time.set_title("stages: first and last layer (number of layers)", fontsize=9, loc="left")
    if transfers.any() or uneven.any():
        time.figure.legend(*time.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower left", ncols=2)
    sync.barh(indices, [stage.sync_ns / 1e6 for stage in stages], color=view.colours)
    sync.set(xlabel="gradients, ms", xlim=(0, 1.05 * view.costs.sync_ns / 1e6 or 1))
    peaks, limits = (np.array([getattr(stage, name) for stage in stages]) / 2**30 for name in ("peak_bytes", "limit_bytes"))
    fits = peaks <= limits
    memory.barh(indices, peaks, color=[colour if fit else OVER for colour, fit in zip(view.colours, fits, strict=True)])
    memory.vlines(limits, indices - 0.45, indices + 0.45, color="black", lw=1.5)
    memory.set(xlabel="memory, GiB (black: limit)", xlim=(0, 1.05 * max(peaks.max(), limits.max())))
    for j in np.flatnonzero(~fits):
        memory.annotate(
            f"{format_bytes(stages[j].peak_bytes)} of {format_bytes(stages[j].limit_bytes)}", (peaks[j], j), (4, 0),
            textcoords="offset points", fontsize=7.5, color=OVER, va="center",
        )  # fmt: skip
    for axes in line:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
        axes.xaxis.label.set_fontsize(8)


def _draw_pipelines(axes: Any, view: PlacementView, groups: list[list[int]]) -> None:
    """Draw when one micro-batch is in which stage, with one row per group of equal pipelines.

    axes: the matplotlib axes to draw on. view: the placement to draw. groups: the groups, each a list of the indices of
    pipelines with equal times and devices.
    """
    times, transfers, kinds = view.times, view.transfers, view.instance.device_kinds
    longest = (times.sum(axis=0) + transfers.sum(axis=0)).max()
    for row, alike in enumerate(groups):
        pipeline = alike[0]
        lengths, gaps = times[:, pipeline], transfers[:, pipeline]
        ends = np.cumsum(lengths + np.append(gaps, 0.0))
        starts = np.concatenate([[0.0], ends[:-1]])
        hatches = [hatch_of(kinds[device] for device in devices) for devices in view.placed.grid[:, pipeline].tolist()]
        bars = {"height": 0.7, "color": view.colours, "edgecolor": "white", "lw": 0.5, "hatch": hatches}
        axes.barh([row] * len(lengths), lengths, left=starts, **bars)
        axes.barh([row] * len(gaps), gaps, left=ends[:-1] - gaps, height=0.3, color=TRANSFER)
        for stage in np.flatnonzero(lengths > 0.045 * longest):
            box = {"facecolor": view.colours[stage], "edgecolor": "none", "pad": 0.8}
            style = {"fontsize": 8, "color": ink_on(view.colours[stage]), "ha": "center", "va": "center", "bbox": box}
            axes.text(starts[stage] + lengths[stage] / 2, row, f"S{stage}", **style)
        share = f"{view.shares[pipeline]} x, T = {format_time(view.costs.pipelines_ns[pipeline])}"
        axes.text(1.01, row, share, transform=axes.get_yaxis_transform(), fontsize=8, va="center")
    space = max(0.0, 1 - len(groups) / 2)
    axes.set_yticks(range(len(groups)), [_pipeline_names(alike) for alike in groups], fontsize=8)
    axes.set(xlim=(0, longest or 1), ylim=(len(groups) - 0.5 + space, -0.5 - space))
    axes.set_xlabel("ms", fontsize=8)
    left_out = view.solution.degrees.dp - sum(map(len, groups))
    heading = "one micro-batch through a pipeline; how many it takes, and its T"
    axes.set_title(heading + (f" ({left_out} faster pipelines left out)" if left_out else ""), fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)


def _pipeline_names(pipelines: Sequence[int]) -> str:
    """Format indices of pipelines as names, consecutive ones as a range: [0, 1, 2, 3, 7] -> `P0-3, P7`; if that is too long,
    `P0 and 4 alike`.
    """
    runs = [[number for _, number in group] for _, group in groupby(enumerate(pipelines), key=lambda pair: pair[1] - pair[0])]
    text = ", ".join(f"P{run[0]}-{run[-1]}" if len(run) > 1 else f"P{run[0]}" for run in runs)
    return text if len(text) <= 18 else f"P{pipelines[0]} and {len(pipelines) - 1} alike"
