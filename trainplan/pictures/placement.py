"""Pictures of placements: which device does what, and what every stage and pipeline then costs. With the plot extra."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import ceil, log
from typing import Any

import numpy as np

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.placement_costs import Placed
from trainplan.formulations.cluster_strategy.problem import Evaluation, Solution, evaluate, load_solution, shares_of
from trainplan.pictures.palette import VERMILION
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time

MOST_SQUARES = 128  # devices that get a square each; larger clusters are summarised
MOST_TILES = 1024
MOST_PIPELINES = 12
COLUMNS = 8  # of a box
HATCHES = ("", "////", "....", "xxxx", "||||", "oooo")
BESIDE, OVER = "#9a9a9a", "#c8102e"
FLOW = VERMILION
SQUARE = 0.68  # inches
HEAD = 0.42  # of a box, in squares
TILE = 0.75  # height in squares
PAPER: dict[str, Any] = {"facecolor": "#f1f1f1", "edgecolor": "#a8a8a8"}


def draw_placement(instance: Instance, solution: Solution | Mapping[str, Any], *, title: str | None = None) -> Any:
    """A matplotlib Figure: every device with its stage, pipeline and tensor-parallel rank; one micro-batch on its way through
    each pipeline; and every stage's time, transfer, synchronisation and memory, red where it does not fit.

    Args:
        instance: of stage-assignment or cluster-strategy.
        solution: a Solution, or one in its file format, such as a Result's.
        title: of the picture.

    Returns:
        The Figure.

    Raises:
        InputError: for a solution of another instance.
        MissingExtra: where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    view = _View.of(instance, solution)
    makes = view.pipeline_makes()
    stages, pipelines = view.solution.degrees.pp, len(makes)
    wide, high = view.layout.inches
    heights = [0.8 + 0.26 * min(stages, 40), 0.8 + 0.36 * pipelines]
    figure: Any = Figure(figsize=(wide + 8.2, 1.1 + max(high + 0.6, sum(heights))), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[wide, 8.2])
    _draw_cluster(left.subplots(), view)
    upper, lower = right.subfigures(2, 1, height_ratios=heights)
    _draw_stages(upper.subplots(1, 3, sharey=True, width_ratios=[3, 2, 2]), view)
    _draw_pipelines(lower.subplots(), view, makes)
    figure.suptitle(f"{title or instance.name}\n{view.heading}\n{view.summary}", fontsize=11)
    return figure


def draw_placements(instance: Instance, solutions: Mapping[str, Solution | Mapping[str, Any]]) -> Any:
    """A matplotlib Figure: the devices only, of several solutions next to each other, each under its name and time.

    Args:
        instance: of stage-assignment or cluster-strategy.
        solutions: by name.

    Returns:
        The Figure.

    Raises:
        InputError: where there are none.
        MissingExtra: where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    views = {name: _View.of(instance, solution) for name, solution in solutions.items()}
    if not views:
        raise InputError("solutions", "", "are none", "give at least one, under its name")
    wide, high = next(iter(views.values())).layout.inches
    figure: Any = Figure(figsize=(max(2.9, wide + 0.3) * len(views), high + 1.3), layout="constrained")
    for axes, (name, view) in zip(figure.subplots(1, len(views), squeeze=False)[0], views.items(), strict=True):
        _draw_cluster(axes, view, legend=False)
        axes.set_title(f"{name}: {format_time(view.costs.time_ns)}\n{view.degrees}\n{view.share_text}", fontsize=9)
    figure.legend(handles=_kind_patches(instance), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


@dataclass(frozen=True)
class _Box:
    """Neighbouring devices, and where they are drawn, in squares from the upper left."""

    devices: range
    x: float
    y: float
    columns: int

    def corner(self, device: int) -> tuple[float, float]:
        row, column = divmod(device - self.devices.start, self.columns)
        return self.x + 0.15 + column, self.y + HEAD + row


@dataclass(frozen=True)
class _Layout:
    """All boxes, in squares. square: inches of one. tiles: a box is one square, for devices are many."""

    boxes: tuple[_Box, ...]
    width: float
    height: float
    square: float = SQUARE
    tiles: bool = False

    @property
    def inches(self) -> tuple[float, float]:
        return max(2.8, self.square * self.width), self.square * self.height


@dataclass(frozen=True)
class _View:
    """A solution, and all that its pictures say of it."""

    instance: Instance
    solution: Solution
    costs: Evaluation
    shares: tuple[int, ...]

    @staticmethod
    def of(instance: Instance, solution: Solution | Mapping[str, Any]) -> _View:
        parsed = solution if isinstance(solution, Solution) else load_solution(solution)
        try:
            return _View(instance, parsed, evaluate(instance, parsed), shares_of(instance, parsed))
        except ValueError as error:
            raise InputError("solution", "", f"is none of {instance.name}: {error}", "give one of this instance") from None

    @cached_property
    def placed(self) -> Placed:
        return self.instance.placed(self.solution.degrees, self.solution.placement)

    @cached_property
    def ranks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Stage, pipeline and tensor-parallel rank of every device: (devices, 3)."""
        coordinates = np.empty((self.instance.devices, 3), np.int64)
        coordinates[self.placed.grid.reshape(-1)] = list(np.ndindex(*self.placed.grid.shape))
        return coordinates

    @cached_property
    def times(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Milliseconds of a micro-batch in every stage of every pipeline."""
        return self.placed.stage_ns(self.solution.cuts) / 1e6

    @cached_property
    def transfers(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Milliseconds from every stage but the last to the next, in every pipeline."""
        cuts = [cut - 1 for cut in self.solution.cuts]
        return self.placed.transfer_ns[range(len(cuts)), :, cuts] / 1e6

    @cached_property
    def colours(self) -> list[Any]:
        """Of every stage, from first to last: viridis, which the colour-blind can order, too."""
        from matplotlib import colormaps

        count = self.solution.degrees.pp
        return [colormaps["viridis"](0.15 + 0.8 * index / max(1, count - 1)) for index in range(count)]

    @cached_property
    def layout(self) -> _Layout:
        return (_layout if self.instance.devices <= MOST_SQUARES else _tiled)(self.instance)

    @property
    def degrees(self) -> str:
        degrees = self.solution.degrees
        return f"pp {degrees.pp}, dp {degrees.dp}, tmp {degrees.tmp}, mbs {degrees.mbs}"

    @property
    def share_text(self) -> str:
        if len(set(self.shares)) == 1:
            return f"{self.shares[0]} micro-batch{'es' if self.shares[0] > 1 else ''} a pipeline"
        counts = Counter(self.shares).items()
        shares = self.shares if len(self.shares) <= 8 else [f"{count} x {share}" for share, count in counts]
        return "shares " + ", ".join(map(str, shares))

    @property
    def heading(self) -> str:
        rate = f", {self.instance.batch / self.costs.time_ns * 1e9:.4g} samples/s" if self.costs.time_ns else ""
        return f"{self.degrees}, {self.share_text}{rate}" + ("" if self.costs.fits else ", does not fit")

    @property
    def summary(self) -> str:
        parts = f"{format_time(max(self.costs.pipelines_ns))} slowest pipeline + {format_time(self.costs.sync_ns)}"
        return f"T = {format_time(self.costs.time_ns)} = {parts} gradient synchronisation"

    def pipeline_makes(self) -> list[list[int]]:
        """Pipelines that are alike in kinds of devices, times and share, slowest first."""
        kinds = np.sort(np.array(self.instance.device_kinds)[self.placed.grid], axis=2)
        makes: dict[Any, list[int]] = {}
        for pipeline, share in enumerate(self.shares):
            same = (kinds, self.times, self.transfers)
            makes.setdefault((share, *(table[:, pipeline].tobytes() for table in same)), []).append(pipeline)
        ranked = sorted(makes.values(), key=lambda alike: -self.costs.pipelines_ns[alike[0]])
        return ranked[:MOST_PIPELINES]


def _runs(instance: Instance) -> list[range]:
    """Neighbours of one class; those that are alike to none stand with their neighbours of one kind."""
    classes, sizes = instance.classes.tolist(), Counter(instance.classes.tolist())
    keys = [(instance.device_kinds[d], c if sizes[c] > 1 else -1) for d, c in enumerate(classes)]
    groups = [list(group) for _, group in groupby(range(len(keys)), key=keys.__getitem__)]
    return [range(group[0], group[-1] + 1) for group in groups]


def _layout(instance: Instance) -> _Layout:
    """Boxes of equal size in columns, as near to a square as they come."""
    runs = _runs(instance)
    columns = min(COLUMNS, max(map(len, runs)))
    width, height = columns + 0.5, ceil(max(map(len, runs)) / columns) + HEAD + 0.3
    across = min(range(1, len(runs) + 1), key=lambda n: abs(log(n * width / (ceil(len(runs) / n) * height))))
    down = ceil(len(runs) / across)
    boxes = (_Box(run, index // down * width, index % down * height, columns) for index, run in enumerate(runs))
    return _Layout(tuple(boxes), across * width, down * height)


def _tiled(instance: Instance) -> _Layout:
    """Up to COLUMNS neighbours a box, or more where that is too many boxes, row by row."""
    parts = [run[at : at + COLUMNS] for run in _runs(instance) for at in range(0, len(run), COLUMNS)]
    together = ceil(len(parts) / MOST_TILES)
    groups = [parts[at : at + together] for at in range(0, len(parts), together)]
    across = ceil((len(groups) / 1.3) ** 0.5)
    boxes = (
        _Box(range(group[0].start, group[-1].stop), index % across, TILE * (index // across), COLUMNS)
        for index, group in enumerate(groups)
    )
    return _Layout(tuple(boxes), across, TILE * ceil(len(groups) / across), min(SQUARE, 8 / across), tiles=True)


def _draw_cluster(axes: Any, view: _View, legend: bool = True) -> None:
    axes.set_aspect("equal", anchor="N")
    axes.axis("off")
    caption = (_draw_tiles if view.layout.tiles else _draw_squares)(axes, view)
    axes.set_xlim(-0.1, view.layout.width)
    axes.set_ylim(view.layout.height, -0.1)
    if legend:
        axes.figure.legend(
            handles=_kind_patches(view.instance), title=caption, title_fontsize=8, fontsize=8, frameon=False,
            loc="outside lower left", alignment="left",
        )  # fmt: skip


def _draw_squares(axes: Any, view: _View) -> str:
    from matplotlib.patches import Rectangle

    layout, kinds, degrees = view.layout, view.instance.kinds, view.solution.degrees
    squares: dict[int, Any] = {}
    for box in layout.boxes:
        rows = ceil(len(box.devices) / box.columns)
        wide = min(len(box.devices), box.columns) + 0.3
        kind = view.instance.device_kinds[box.devices.start]
        axes.add_patch(Rectangle((box.x, box.y), wide, rows + HEAD + 0.15, hatch=_hatch([kind]), **PAPER))
        axes.text(
            box.x + 0.12, box.y + HEAD / 2, _fitting(box.devices, kinds[kind].name, wide), fontsize=7.5, va="center", zorder=4,
            bbox={"facecolor": PAPER["facecolor"], "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
        for device in box.devices:
            stage, pipeline, rank = view.ranks[device].tolist()
            x, y = box.corner(device)
            colour = view.colours[stage]
            squares[device] = Rectangle((x + 0.09, y + 0.09), 0.82, 0.82, facecolor=colour, gid=f"device {device}")
            axes.add_patch(squares[device])
            labels = " ".join([f"P{pipeline}"] * (degrees.dp > 1) + [f"T{rank}"] * (degrees.tmp > 1))
            behind = {"facecolor": colour, "edgecolor": "none", "pad": 0.6}  # no arrow goes through a name
            style = {"color": _ink(colour), "ha": "center", "va": "center", "zorder": 4, "bbox": behind}
            axes.text(x + 0.5, y + (0.36 if labels else 0.5), f"S{stage}", fontsize=10, weight="bold", **style)
            axes.text(x + 0.5, y + 0.69, labels, fontsize=7, **style)
    for pipeline in range(degrees.dp):
        for before, after in pairwise(squares[device] for device in view.placed.grid[:, pipeline, 0].tolist()):
            (x, y), (u, v) = before.get_center(), after.get_center()
            bent = f"arc3,rad={0.35 if y == v and abs(u - x) > 1.5 else 0.1}"  # past the squares between
            arrow = {"arrowstyle": "-|>", "color": FLOW, "lw": 1.1, "mutation_scale": 7, "alpha": 0.8}
            ends = {"patchA": before, "patchB": after, "shrinkA": 0, "shrinkB": 0, "connectionstyle": bent}
            axes.annotate("", (u, v), (x, y), arrowprops=arrow | ends, zorder=3, gid=f"pipeline {pipeline}")
    words = ["S stage", *["P pipeline"] * (degrees.dp > 1), *["T tensor-parallel rank"] * (degrees.tmp > 1)]
    flow = f"arrows: on to the next stage{' (of rank T0)' if degrees.tmp > 1 else ''}"
    return "\n".join([", ".join(words), *[flow] * (degrees.pp > 1)])


def _draw_tiles(axes: Any, view: _View) -> str:
    """A box as one tile, coloured by the stages that are on it; below, the hatch of its kind."""
    from matplotlib.patches import Rectangle

    boxes, stages_of, kinds = view.layout.boxes, view.ranks[:, 0].tolist(), view.instance.device_kinds
    for box in boxes:
        devices = slice(box.devices.start, box.devices.stop)
        back = Rectangle((box.x + 0.04, box.y + 0.04), 0.92, TILE - 0.08, gid=f"devices from {devices.start}", lw=0.3, **PAPER)
        back.set_hatch(_hatch(kinds[devices]))
        axes.add_patch(back)
        stages, left = Counter(stages_of[devices]), box.x + 0.04
        for stage, count in sorted(stages.items()):
            width = 0.92 * count / len(box.devices)
            axes.add_patch(Rectangle((left, box.y + 0.04), width, TILE - 0.28, facecolor=view.colours[stage], lw=0))
            left += width
        if view.layout.square > 0.3:
            label = f"S{min(stages)}" + (f"-{max(stages)}" if len(stages) > 1 else "")
            ink = _ink(view.colours[sorted(stages.elements())[len(box.devices) // 2]])
            axes.text(box.x + 0.5, box.y + TILE / 2 - 0.1, label, fontsize=6, color=ink, ha="center", va="center")
        if box.x == 0:
            axes.text(-0.1, box.y + TILE / 2, devices.start, fontsize=6, ha="right", va="center")
    most = max(len(box.devices) for box in boxes)
    return f"{len(boxes)} groups of up to {most} neighbouring devices, coloured by stage;\nleft: the first device of a row"


def _draw_stages(line: Sequence[Any], view: _View) -> None:
    """Bars of every stage: its time and transfer, its synchronisation, its memory."""
    stages = view.costs.stages
    indices = np.arange(len(stages))
    spans = [f"{s.first}-{s.last} ({s.last - s.first + 1})" if s.first < s.last else f"{s.first}" for s in stages]
    names = [f"S{stage}: {span}" for stage, span in enumerate(spans)]
    step = ceil(len(stages) / 40)
    time, sync, memory = line
    times, transfers = (np.array([getattr(stage, name) for stage in stages]) / 1e6 for name in ("time_ns", "transfer_ns"))
    time.barh(indices, times, color=view.colours)
    time.barh(indices, transfers, left=times, color=BESIDE, label="transfer to the next stage")
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


def _draw_pipelines(axes: Any, view: _View, makes: list[list[int]]) -> None:
    """One micro-batch on its way through one pipeline of each make."""
    times, transfers, kinds = view.times, view.transfers, view.instance.device_kinds
    longest = (times.sum(axis=0) + transfers.sum(axis=0)).max()
    for row, alike in enumerate(makes):
        pipeline = alike[0]
        lengths, gaps = times[:, pipeline], transfers[:, pipeline]
        ends = np.cumsum(lengths + np.append(gaps, 0.0))
        starts = np.concatenate([[0.0], ends[:-1]])
        hatches = [_hatch(kinds[device] for device in group) for group in view.placed.grid[:, pipeline].tolist()]
        bars = {"height": 0.7, "color": view.colours, "edgecolor": "white", "lw": 0.5, "hatch": hatches}
        axes.barh([row] * len(lengths), lengths, left=starts, **bars)
        axes.barh([row] * len(gaps), gaps, left=ends[:-1] - gaps, height=0.3, color=BESIDE)
        for stage in np.flatnonzero(lengths > 0.045 * longest):
            box = {"facecolor": view.colours[stage], "edgecolor": "none", "pad": 0.8}
            style = {"fontsize": 8, "color": _ink(view.colours[stage]), "ha": "center", "va": "center", "bbox": box}
            axes.text(starts[stage] + lengths[stage] / 2, row, f"S{stage}", **style)
        share = f"{view.shares[pipeline]} x, T = {format_time(view.costs.pipelines_ns[pipeline])}"
        axes.text(1.01, row, share, transform=axes.get_yaxis_transform(), fontsize=8, va="center")
    space = max(0.0, 1 - len(makes) / 2)
    axes.set_yticks(range(len(makes)), [_numbers(alike) for alike in makes], fontsize=8)
    axes.set(xlim=(0, longest or 1), ylim=(len(makes) - 0.5 + space, -0.5 - space))
    axes.set_xlabel("ms", fontsize=8)
    left_out = view.solution.degrees.dp - sum(map(len, makes))
    heading = "one micro-batch through a pipeline; how many it takes, and its T"
    axes.set_title(heading + (f" ({left_out} faster pipelines left out)" if left_out else ""), fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)


def _kind_patches(instance: Instance) -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(hatch=2 * _hatch([kind]), label=instance.kinds[kind].name, **PAPER) for kind in sorted(set(instance.device_kinds))
    ]


def _hatch(kinds: Iterable[int]) -> str:
    return "".join(HATCHES[kind % len(HATCHES)] for kind in sorted(set(kinds)))


def _fitting(devices: range, kind: str, squares: float) -> str:
    """The longest name of a box for which there is space."""
    short = f"{devices[0]}-{devices[-1]}" if len(devices) > 1 else f"{devices[0]}"
    full = f"{short}: {kind}"
    return full if 0.058 * len(full) < SQUARE * squares - 0.1 else short


def _numbers(pipelines: Sequence[int]) -> str:
    runs = [[number for _, number in group] for _, group in groupby(enumerate(pipelines), key=lambda pair: pair[1] - pair[0])]
    text = ", ".join(f"P{run[0]}-{run[-1]}" if len(run) > 1 else f"P{run[0]}" for run in runs)
    return text if len(text) <= 18 else f"P{pipelines[0]} and {len(pipelines) - 1} alike"


def _ink(colour: Sequence[float]) -> str:
    red, green, blue = colour[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
