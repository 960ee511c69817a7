"""The devices of a placement, drawn: squares with their ranks, or tiles where there are many devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.pictures.palette import VERMILION
from trainplan.pictures.placement_view import HEAD, SQUARE, TILE, PlacementView

HATCHES = ("", "////", "....", "xxxx", "||||", "oooo")  # by kind of device
FLOW = VERMILION
PAPER: dict[str, Any] = {"facecolor": "#f1f1f1", "edgecolor": "#a8a8a8"}


def draw_devices(axes: Any, view: PlacementView, legend: bool = True) -> None:
    """Draw the devices of a placement (which stage, pipeline and tensor-parallel rank runs on which device) on the matplotlib
    axes `axes`: one square per device or, if there are many, tiles of several devices each. view: the placement to draw.
    legend: whether a legend explains kinds of device and labels.
    """
    axes.set_aspect("equal", anchor="N")
    axes.axis("off")
    caption = (_draw_tiles if view.layout.tiles else _draw_squares)(axes, view)
    axes.set_xlim(-0.1, view.layout.width)
    axes.set_ylim(view.layout.height, -0.1)
    if legend:
        axes.figure.legend(
            handles=kind_patches(view.instance), title=caption, title_fontsize=8, fontsize=8, frameon=False,
            loc="outside lower left", alignment="left",
        )  # fmt: skip


def _draw_squares(axes: Any, view: PlacementView) -> str:
    """Draw one square per device, coloured by pipeline stage, inside boxes of neighbouring devices, and arrows from stage to
    stage. axes: the matplotlib axes to draw on. view: the placement to draw. Returns the caption that explains labels and
    arrows.
    """
    from matplotlib.patches import Rectangle

    layout, kinds, degrees = view.layout, view.instance.kinds, view.solution.degrees
    squares: dict[int, Any] = {}
    for box in layout.boxes:
        rows = ceil(len(box.devices) / box.columns)
        wide = min(len(box.devices), box.columns) + 0.3
        kind = view.instance.device_kinds[box.devices.start]
        axes.add_patch(Rectangle((box.x, box.y), wide, rows + HEAD + 0.15, hatch=hatch_of([kind]), **PAPER))
        axes.text(
            box.x + 0.12, box.y + HEAD / 2, _box_name(box.devices, kinds[kind].name, wide), fontsize=7.5, va="center", zorder=4,
            bbox={"facecolor": PAPER["facecolor"], "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
        for device in box.devices:
            stage, pipeline, rank = view.ranks[device].tolist()
            x, y = box.corner(device)
            colour = view.colours[stage]
            squares[device] = Rectangle((x + 0.09, y + 0.09), 0.82, 0.82, facecolor=colour, gid=f"device {device}")
            axes.add_patch(squares[device])
            labels = " ".join([f"P{pipeline}"] * (degrees.dp > 1) + [f"T{rank}"] * (degrees.tmp > 1))
            background = {"facecolor": colour, "edgecolor": "none", "pad": 0.6}  # no arrow goes through a name
            style = {"color": ink_on(colour), "ha": "center", "va": "center", "zorder": 4, "bbox": background}
            axes.text(x + 0.5, y + (0.36 if labels else 0.5), f"S{stage}", fontsize=10, weight="bold", **style)
            axes.text(x + 0.5, y + 0.69, labels, fontsize=7, **style)
    for pipeline in range(degrees.dp):
        for before, after in pairwise(squares[device] for device in view.placed.grid[:, pipeline, 0].tolist()):
            (x, y), (u, v) = before.get_center(), after.get_center()
            bent = f"arc3,rad={0.35 if y == v and abs(u - x) > 1.5 else 0.1}"  # bent, to pass the squares between the two
            arrow = {"arrowstyle": "-|>", "color": FLOW, "lw": 1.1, "mutation_scale": 7, "alpha": 0.8}
            ends = {"patchA": before, "patchB": after, "shrinkA": 0, "shrinkB": 0, "connectionstyle": bent}
            axes.annotate("", (u, v), (x, y), arrowprops=arrow | ends, zorder=3, gid=f"pipeline {pipeline}")
    words = ["S stage", *["P pipeline"] * (degrees.dp > 1), *["T tensor-parallel rank"] * (degrees.tmp > 1)]
    flow = f"arrows: on to the next stage{' (of rank T0)' if degrees.tmp > 1 else ''}"
    return "\n".join([", ".join(words), *[flow] * (degrees.pp > 1)])


def _draw_tiles(axes: Any, view: PlacementView) -> str:
    """Draw one tile per box of neighbouring devices, coloured by the stages of its devices, and below it the hatch pattern of
    their kind. axes: the matplotlib axes to draw on. view: the placement to draw. Returns the caption that explains the tiles.
    """
    from matplotlib.patches import Rectangle

    boxes, stages_of, kinds = view.layout.boxes, view.ranks[:, 0].tolist(), view.instance.device_kinds
    for box in boxes:
        devices = slice(box.devices.start, box.devices.stop)
        back = Rectangle((box.x + 0.04, box.y + 0.04), 0.92, TILE - 0.08, gid=f"devices from {devices.start}", lw=0.3, **PAPER)
        back.set_hatch(hatch_of(kinds[devices]))
        axes.add_patch(back)
        stages, left = Counter(stages_of[devices]), box.x + 0.04
        for stage, count in sorted(stages.items()):
            width = 0.92 * count / len(box.devices)
            axes.add_patch(Rectangle((left, box.y + 0.04), width, TILE - 0.28, facecolor=view.colours[stage], lw=0))
            left += width
        if view.layout.square > 0.3:
            label = f"S{min(stages)}" + (f"-{max(stages)}" if len(stages) > 1 else "")
            ink = ink_on(view.colours[sorted(stages.elements())[len(box.devices) // 2]])
            axes.text(box.x + 0.5, box.y + TILE / 2 - 0.1, label, fontsize=6, color=ink, ha="center", va="center")
        if box.x == 0:
            axes.text(-0.1, box.y + TILE / 2, devices.start, fontsize=6, ha="right", va="center")
    most = max(len(box.devices) for box in boxes)
    return f"{len(boxes)} groups of up to {most} neighbouring devices, coloured by stage;\nleft: the first device of a row"


def kind_patches(instance: Instance) -> list[Any]:
    """Legend entries (matplotlib patches) for the kinds of device that the instance of a placement problem has, each with the
    hatch pattern that marks it.
    """
    from matplotlib.patches import Patch

    return [
        Patch(hatch=2 * hatch_of([kind]), label=instance.kinds[kind].name, **PAPER)
        for kind in sorted(set(instance.device_kinds))
    ]


def hatch_of(kinds: Iterable[int]) -> str:
    """The hatch pattern of matplotlib that marks a group of devices, given the indices of their kinds; several kinds give the
    combination of their patterns.
    """
    return "".join(HATCHES[kind % len(HATCHES)] for kind in sorted(set(kinds)))


def _box_name(devices: range, kind: str, squares: float) -> str:
    """The text at a box of neighbouring devices: their numbers and, if the box is wide enough, their kind, such as "0-7:
    a100".

    kind: the kind's name. squares: the width of the box, in squares of one device.
    """
    short = f"{devices[0]}-{devices[-1]}" if len(devices) > 1 else f"{devices[0]}"
    full = f"{short}: {kind}"
    return full if 0.058 * len(full) < SQUARE * squares - 0.1 else short


def ink_on(colour: Sequence[float]) -> str:
    """Black or white, whichever is easier to read on a colour, which is given as red, green and blue from 0 to 1."""
    red, green, blue = colour[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
