"""A placement as its pictures show it: costs, ranks and colours, and where the devices are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil, log
from typing import Any

import numpy as np

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.placement_costs import Placed
from trainplan.formulations.cluster_strategy.problem import Evaluation, Solution, evaluate, load_solution, shares_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time

MOST_SQUARES = 128  # devices that get a square each; larger clusters are drawn as tiles of several devices
MOST_TILES = 1024
MOST_PIPELINES = 12  # groups of equal pipelines that are drawn
COLUMNS = 8  # devices in a row of a box
SQUARE = 0.68  # inches
HEAD = 0.42  # height of a box's heading, in squares
TILE = 0.75  # height of a tile, in squares


@dataclass(frozen=True)
class Box:
    """A box of neighbouring devices in the picture of a placement.

    x, y: position of its upper left corner, in squares (one square per device), from the upper left corner of the picture.
    columns: number of devices in a row of the box.
    """

    devices: range
    x: float
    y: float
    columns: int

    def corner(self, device: int) -> tuple[float, float]:
        """The upper left corner (x, y) of a device's square, in squares from the picture's upper left corner. device: the
        device's number in the cluster.
        """
        row, column = divmod(device - self.devices.start, self.columns)
        return self.x + 0.15 + column, self.y + HEAD + row


@dataclass(frozen=True)
class DeviceLayout:
    """The positions at which the devices of a cluster are drawn: their boxes, and the width and height of all boxes together,
    in squares (one square per device).

    square: the side of a square in inches. tiles: whether a box is drawn as a single square, because there are many devices.
    """

    boxes: tuple[Box, ...]
    width: float
    height: float
    square: float = SQUARE
    tiles: bool = False

    @property
    def inches(self) -> tuple[float, float]:
        """Width and height of the drawing in inches; at least as wide as a title needs."""
        return max(2.8, self.square * self.width), self.square * self.height


@dataclass(frozen=True)
class PlacementView:
    """The data that pictures show of a solution of a placement problem (which stage, pipeline and tensor-parallel rank runs on
    which device): costs, ranks of devices, colours of stages, and texts.

    costs: time and memory of the solution. shares: the number of micro-batches that each pipeline processes.
    """

    instance: Instance
    solution: Solution
    costs: Evaluation
    shares: tuple[int, ...]

    @staticmethod
    def of(instance: Instance, solution: Solution | Mapping[str, Any]) -> PlacementView:
        """Build the view of a solution of an instance (a placement problem with its costs); the solution may also be a dict in
        its file format. Raises InputError if it is not a solution of the instance.
        """
        parsed = solution if isinstance(solution, Solution) else load_solution(solution)
        try:
            return PlacementView(instance, parsed, evaluate(instance, parsed), shares_of(instance, parsed))
        except ValueError as error:
            raise InputError("solution", "", f"is none of {instance.name}: {error}", "give one of this instance") from None

    @cached_property
    def placed(self) -> Placed:
        """The instance's costs under the solution's degrees of parallelism and its placement of ranks on devices."""
        return self.instance.placed(self.solution.degrees, self.solution.placement)

    @cached_property
    def ranks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices of stage, pipeline and tensor-parallel rank of every device: an array (devices, 3)."""
        coordinates = np.empty((self.instance.devices, 3), np.int64)
        coordinates[self.placed.grid.reshape(-1)] = list(np.ndindex(*self.placed.grid.shape))
        return coordinates

    @cached_property
    def times(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Milliseconds that one micro-batch takes in each stage of each pipeline: an array (stages, pipelines)."""
        return self.placed.stage_ns(self.solution.cuts) / 1e6

    @cached_property
    def transfers(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Milliseconds that one micro-batch takes from a stage to the next one: an array (stages - 1, pipelines)."""
        cuts = [cut - 1 for cut in self.solution.cuts]
        return self.placed.transfer_ns[range(len(cuts)), :, cuts] / 1e6

    @cached_property
    def colours(self) -> list[Any]:
        """The colour of every stage, from first to last, in matplotlib's scale viridis, whose order colour-blind people see
        too.
        """
        from matplotlib import colormaps

        count = self.solution.degrees.pp
        return [colormaps["viridis"](0.15 + 0.8 * index / max(1, count - 1)) for index in range(count)]

    @cached_property
    def layout(self) -> DeviceLayout:
        """The positions at which the devices are drawn: each device as a square or, if there are many, several devices per
        tile.
        """
        return (_in_columns if self.instance.devices <= MOST_SQUARES else _as_tiles)(self.instance)

    @property
    def degrees(self) -> str:
        """The degrees of parallelism and the size of a micro-batch as text, such as `pp 4, dp 2, tmp 1, mbs 8`."""
        degrees = self.solution.degrees
        return f"pp {degrees.pp}, dp {degrees.dp}, tmp {degrees.tmp}, mbs {degrees.mbs}"

    @property
    def share_text(self) -> str:
        """The number of micro-batches per pipeline as text, such as `4 micro-batches a pipeline` or `shares 5, 3`."""
        if len(set(self.shares)) == 1:
            return f"{self.shares[0]} micro-batch{'es' if self.shares[0] > 1 else ''} a pipeline"
        counts = Counter(self.shares).items()
        shares = self.shares if len(self.shares) <= 8 else [f"{count} x {share}" for share, count in counts]
        return "shares " + ", ".join(map(str, shares))

    @property
    def heading(self) -> str:
        """A line of the title: degrees of parallelism, micro-batches and throughput, and a remark if the solution does not fit
        into memory.
        """
        rate = f", {self.instance.batch / self.costs.time_ns * 1e9:.4g} samples/s" if self.costs.time_ns else ""
        return f"{self.degrees}, {self.share_text}{rate}" + ("" if self.costs.fits else ", does not fit")

    @property
    def summary(self) -> str:
        """A line of the picture's title: the time of the step as the sum of the slowest pipeline's time and the gradient
        synchronisation.
        """
        parts = f"{format_time(max(self.costs.pipelines_ns))} slowest pipeline + {format_time(self.costs.sync_ns)}"
        return f"T = {format_time(self.costs.time_ns)} = {parts} gradient synchronisation"

    def alike_pipelines(self) -> list[list[int]]:
        """Group the pipelines that have equal kinds of devices, times and numbers of micro-batches. Returns the indices of the
        pipelines of each group, the slowest group first, at most MOST_PIPELINES groups.
        """
        kinds = np.sort(np.array(self.instance.device_kinds)[self.placed.grid], axis=2)
        groups: dict[Any, list[int]] = {}
        for pipeline, share in enumerate(self.shares):
            tables = (kinds, self.times, self.transfers)
            groups.setdefault((share, *(table[:, pipeline].tobytes() for table in tables)), []).append(pipeline)
        ranked = sorted(groups.values(), key=lambda alike: -self.costs.pipelines_ns[alike[0]])
        return ranked[:MOST_PIPELINES]


def _neighbours(instance: Instance) -> list[range]:
    """Divide the devices of an instance into ranges of consecutive devices that are drawn in one box: devices of one kind that
    are interchangeable in the cluster.

    A device that is not interchangeable with any other shares a box with neighbours of the same kind that are not
    interchangeable either.
    """
    classes, sizes = instance.classes.tolist(), Counter(instance.classes.tolist())
    keys = [(instance.device_kinds[d], c if sizes[c] > 1 else -1) for d, c in enumerate(classes)]
    groups = [list(group) for _, group in groupby(range(len(keys)), key=keys.__getitem__)]
    return [range(group[0], group[-1] + 1) for group in groups]


def _in_columns(instance: Instance) -> DeviceLayout:
    """Compute positions for the devices as boxes of equal size, one per range of neighbouring devices, in columns, such that
    the whole picture is as close to a square as possible. instance: the placement problem, with its cluster.
    """
    runs = _neighbours(instance)
    columns = min(COLUMNS, max(map(len, runs)))
    width, height = columns + 0.5, ceil(max(map(len, runs)) / columns) + HEAD + 0.3
    across = min(range(1, len(runs) + 1), key=lambda n: abs(log(n * width / (ceil(len(runs) / n) * height))))
    down = ceil(len(runs) / across)
    boxes = (Box(run, index // down * width, index % down * height, columns) for index, run in enumerate(runs))
    return DeviceLayout(tuple(boxes), across * width, down * height)


def _as_tiles(instance: Instance) -> DeviceLayout:
    """Compute positions for the devices as tiles, row by row: one tile for up to COLUMNS neighbouring devices, or more if
    there would be too many tiles. instance: the placement problem, with its cluster.
    """
    parts = [run[at : at + COLUMNS] for run in _neighbours(instance) for at in range(0, len(run), COLUMNS)]
    together = ceil(len(parts) / MOST_TILES)
    groups = [parts[at : at + together] for at in range(0, len(parts), together)]
    across = ceil((len(groups) / 1.3) ** 0.5)
    boxes = (
        Box(range(group[0].start, group[-1].stop), index % across, TILE * (index // across), COLUMNS)
        for index, group in enumerate(groups)
    )
    return DeviceLayout(tuple(boxes), across, TILE * ceil(len(groups) / across), min(SQUARE, 8 / across), tiles=True)
