"""The bounds of `path_bound_search` along one whole partition at a time: label-setting over suffixes of a pipeline, with two
numbers for each.

The rounds of `path_bound_search` leave arcs that no single partition may have together: each arc meets the least H and the
least S there, of whatever stages. Here a suffix has a label (S, K): S the sum of u over its stages, K its longest path, without
H. For a stage before it with u,

    S' = S + u,     K' = max( bound of `critical_path_bounds` with u and S,  u + K ),        and H + K' <= V with the least H.

For the stages before a suffix, M is the least, over prefixes, of the largest H_y + (m - w) u_y + 2 (sum of u after y), 1F1B's
paths through stage y that wait for S twice; of GPipe, H_y + m u_y + (sum of u after y), which wait once. So M + 2 S, or M + S,
is at most V, too. Of two labels at one unit and class of cut, one with neither number above the other's suffices.

Where labels are many, both numbers are rounded down to multiples of a grain, so that all roundings together lose a small share
of V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from trainplan.solvers.chain.dominance import undominated
from trainplan.solvers.joint.stages.option_tables import Floats, Indices

if TYPE_CHECKING:
    from trainplan.solvers.joint.free_cuts.path_bound_search import Mask, PathBoundSearch

Step = tuple[int, int, int, int]  # a stage: first and last unit, the classes of the cuts before and after it
MANY, MOST = 20_000, 1_000_000  # labels of one stage from which they are rounded; pairs of arcs and labels at once
NEVER = -(2.0**60)
GRAINS = 4  # of which every stage may lose one by rounding


@dataclass(frozen=True, eq=False)
class _Labels:
    """Suffixes of a pipeline in parallel arrays: node (class of the cut before, times L + 1, plus the first unit), S (sums), K
    (longest); the first stage's length less one, the class after it (out), and the index of the label of the stages after it
    (parent)."""

    node: Indices
    sums: Floats
    longest: Floats
    length: Indices
    out: Indices
    parent: Indices


def whole_path(search: PathBoundSearch, limit: float, tolerance: float) -> tuple[Step, ...] | None:
    """None where no partition has a step up to `limit`, by the paths of each whole one; else the stages of one that these
    allow. tolerance: the share of the limit that rounding may lose, so that a partition just above the limit is allowed, too.
    """
    left = search.left(limit)
    if left is None:
        return None
    masks, before = left
    if search.schedule == "sliced":
        return search.possible(limit)
    waits, stays = _prefix_waits(search, masks, before), 1 if search.schedule == "gpipe" else 2
    units, stages = search.units, search.stages
    grain = max(1.0, np.floor(tolerance * limit / (GRAINS * stages)))
    start = np.array([units], np.intp)
    zero = np.zeros(1)
    none = np.zeros(1, np.intp)
    labels, trail = _Labels(start, zero, zero, none, none, none), list[_Labels]()
    for x in reversed(range(stages)):
        search.check_time()
        labels = _longer(search, x, masks[x], before[x], waits[x], stays, labels, limit, grain)
        if not len(labels.node):
            return None
        trail.append(labels)
    return _traced(trail[::-1], int(labels.longest.argmin()))


def _prefix_waits(search: PathBoundSearch, masks: Sequence[Mask], before: Sequence[Floats]) -> list[Floats]:
    """For each stage, M of the stages before it, (classes, L + 1); far below 0 where no path waits."""
    units, m = search.units, search.m
    waits = [np.full((1, units + 1), NEVER)]
    for x, (arcs, (low, mask)) in enumerate(zip(search.arcs.stages, masks, strict=True)):
        w, rounds = search.stages - 1 - x, 1 if search.schedule == "gpipe" else 2
        _, rows, width, classes = mask.shape
        first = np.arange(low, low + rows)
        u = np.where(mask, arcs.u_ns[:, low - arcs.low : low - arcs.low + rows, :width], np.inf)
        through_first = waits[-1][:, first, None, None] + rounds * u
        if search.schedule == "gpipe" or w < m:
            passes = m if search.schedule == "gpipe" else m - w
            least = before[x][:, first, None, None] if x else np.zeros((1, rows, 1, 1))
            through_first = np.maximum(through_first, least + passes * u)
        through = np.where(mask, through_first, np.inf).min(axis=0)
        end = np.minimum(first[:, None] + 1 + np.arange(width), units)
        here = np.full((classes, units + 1), np.inf)
        for number in range(classes):
            np.minimum.at(here[number], end.ravel(), through[:, :, number].ravel())
        waits.append(here)
    return waits


def _longer(
    search: PathBoundSearch,
    x: int,
    masked: Mask,
    before: Floats,
    waits: Floats,
    stays: int,
    labels: _Labels,
    limit: float,
    grain: float,
) -> _Labels:
    """The labels with stage x added before them that may belong to a step up to the limit, without dominated ones.

    masked: the allowed arcs of stage x. before, waits: H and M by class of cut and unit. stays: how often a path of M waits for
    S. grain: see `_best`.
    """
    arcs, (low, mask), units = search.arcs.stages[x], masked, search.units
    into, row, length, out = np.nonzero(mask)
    first = low + row
    node = out * (units + 1) + np.minimum(first + length + 1, units)
    order = np.argsort(labels.node, kind="stable")
    sorted_nodes = labels.node[order]
    starts, ends = np.searchsorted(sorted_nodes, node), np.searchsorted(sorted_nodes, node, side="right")
    counts, parts = ends - starts, []
    label = (into, row + low - arcs.low, length, out)
    u, excess = arcs.u_ns[label], arcs.excess_ns[label]
    head = search.first_stage(limit, True)[0, length, out] if x == 0 else u
    for chunk in _chunks(counts):
        arc = np.repeat(np.arange(chunk.start, chunk.stop), counts[chunk])
        within = np.arange(len(arc)) - np.repeat(np.cumsum(counts[chunk]) - counts[chunk], counts[chunk])
        parent = order[starts[arc] + within]
        sums, longest = labels.sums[parent], labels.longest[parent]
        base = _need(search, u[arc], sums, x)
        if x == 0:
            path = np.maximum(base + excess[arc], head[arc] + longest)
            fits = path <= limit
        else:
            path = np.maximum(base, u[arc] + longest)
            fits = (before[into[arc], first[arc]] + path <= limit) & (
                search.arcs.before_ns[first[arc]] + base + excess[arc] <= limit
            )
            fits &= waits[into[arc], first[arc]] + stays * (sums + u[arc]) <= limit
        kept = np.flatnonzero(fits)
        arc, parent = arc[kept], parent[kept]
        labelled = _Labels(into[arc] * (units + 1) + first[arc], sums[kept] + u[arc], path[kept], length[arc], out[arc], parent)
        parts.append(_best(labelled, grain))
    return _best(_joined(parts), grain) if len(parts) != 1 else parts[0]


def _need(search: PathBoundSearch, u: Floats, after: Floats, x: int) -> Floats:
    """The lower bound of `PathBoundSearch.need` for schedules that are not sliced. x: the stage."""
    needed: Floats = search.need(u, after, search.stages - 1 - x, np.zeros(0, np.intp))
    return needed


def _chunks(counts: NDArray[np.int64]) -> list[slice]:
    """Arcs in slices that have at most about MOST labels together. counts: the labels of each arc."""
    sums = np.cumsum(counts)
    count = int(sums[-1]) // MOST + 1 if len(sums) else 1
    cut_points = np.searchsorted(sums, np.arange(1, count) * MOST).tolist() if count > 1 else list[int]()
    edges = [0, *(border + 1 for border in cut_points), len(counts)]
    return [slice(a, b) for a, b in pairwise(edges) if a < b]


def _joined(parts: Sequence[_Labels]) -> _Labels:
    """Labels of several parts together."""
    if not parts:
        nothing, indices = np.zeros(0), np.zeros(0, np.intp)
        return _Labels(indices, nothing, nothing, indices, indices, indices)
    return _Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def _best(labels: _Labels, grain: float) -> _Labels:
    """The labels at each node that no other one dominates. Where there are many, their numbers are first rounded down to
    multiples of `grain`."""
    if len(labels.node) > MANY:
        sums, longest = (np.floor(values / grain) * grain for values in (labels.sums, labels.longest))
        labels = _Labels(labels.node, sums, longest, labels.length, labels.out, labels.parent)
    if not len(labels.node):
        return labels
    kept = undominated(labels.node, labels.sums, [labels.longest])  # type: ignore[arg-type, list-item]
    return _Labels(*(column[kept] for column in vars(labels).values()))


def _traced(trail: Sequence[_Labels], label: int) -> tuple[Step, ...]:
    """The stages along a label of the first stage. trail: for each stage, its labels. label: its index."""
    path, first, into = [], 0, 0
    for labels in trail:
        length, out = int(labels.length[label]), int(labels.out[label])
        path.append((first, first + length, into, out))
        first, into, label = first + length + 1, out, int(labels.parent[label])
    return tuple(path)
