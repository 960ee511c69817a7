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
from trainplan.formulations.schedule.orders import by_order
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
    """Suffixes (the last stages of a pipeline) as labels in parallel arrays. node: the class of the cut before the suffix,
    times L + 1, plus its first unit (sub-layer). sums: the sum in ns of forward plus backward passes of a micro-batch over its
    stages. longest: the longest path through them. length: the number of units of its first stage, less one; out: the class of
    the cut after that stage; parent: the index of the label of the stages after it."""

    node: Indices
    sums: Floats
    longest: Floats
    length: Indices
    out: Indices
    parent: Indices


def whole_path(search: PathBoundSearch, limit: float, tolerance: float) -> tuple[Step, ...] | None:
    """Test whether a partition of the model's units (sub-layers) into stages may have a step time of at most `limit` ns, by
    lower bounds along each whole partition.

    search: the spans of units that each stage may be, with their bounds. tolerance: the share of the limit that rounding may
    lose, so that a partition just above the limit may be returned, too. Returns the stages of a partition that the bounds
    allow, each as (first unit, last unit, class of the cut before, class of the cut after), where classes group cuts by the
    layouts of activations at the cut; None if no partition may have such a step."""
    left = search.left(limit)
    if left is None:
        return None
    masks, before = left
    if search.schedule == "sliced":
        return search.possible(limit)
    waits, stays = _prefix_waits(search, masks, before), by_order(search.schedule, gpipe=1, one_f_one_b=2)
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
    """For each stage, (classes of cuts, L + 1): the least, over all choices of the stages before it, of the longest path
    through one of these stages, without the path's part in later stages, by the class of the cut (which groups layouts of
    activations) and the stage's first unit (one of L sub-layers, or L after the last); far below 0 if there is no such path.

    search: the spans that each stage may be, with their bounds. masks: for each stage, which of these spans remain. before: for
    each stage, the least sums in ns of forward plus backward passes over the stages before it.
    """
    units, m = search.units, search.m
    waits = [np.full((1, units + 1), NEVER)]
    for x, (arcs, (low, mask)) in enumerate(zip(search.arcs.stages, masks, strict=True)):
        w, rounds = search.stages - 1 - x, by_order(search.schedule, gpipe=1, one_f_one_b=2)
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
    """Put stage x in front of suffixes (last stages of a pipeline), in all possible ways, and return those that may belong to a
    step time of at most `limit` ns, without dominated ones.

    search: the spans that each stage may be, with their bounds. x: the stage's index. masked: the spans (consecutive units,
    that is, sub-layers) that stage x may be. before, waits: by class of the cut (which groups layouts of activations) and first
    unit of stage x, the least sum of forward plus backward passes over the stages before x, and the longest path through one of
    the stages before x, without the path's part in later stages. stays: how often such a path waits for the stages after it (1
    for GPipe, 2 for 1F1B). labels: the suffixes to extend. limit: the largest step time of interest. grain: numbers are rounded
    down to multiples of this many ns if labels are many."""
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
    """A lower bound in ns on the time from the first pass of stage x to the end of its last pass, for schedules that are not
    sliced.

    search: gives the schedule and the numbers of stages and micro-batches. u: forward plus backward pass of a micro-batch on
    the stage, in ns. after: the sum of u over the stages after it. x: the stage's index. u and after are arrays of equal shape.
    """
    needed: Floats = search.need(u, after, search.stages - 1 - x, np.zeros(0, np.intp))
    return needed


def _chunks(counts: NDArray[np.int64]) -> list[slice]:
    """Divide a list of spans (consecutive sub-layers as a stage) into batches, to limit memory: slices of the list such that
    the spans of a batch together have at most about MOST continuations (labels, each standing for a choice of the later
    stages). counts: (spans,), the number of labels that can follow each span."""
    sums = np.cumsum(counts)
    count = int(sums[-1]) // MOST + 1 if len(sums) else 1
    cut_points = np.searchsorted(sums, np.arange(1, count) * MOST).tolist() if count > 1 else list[int]()
    edges = [0, *(border + 1 for border in cut_points), len(counts)]
    return [slice(a, b) for a, b in pairwise(edges) if a < b]


def _joined(parts: Sequence[_Labels]) -> _Labels:
    """The labels (last stages of pipelines) of several parts, joined to one set of parallel arrays. parts: the sets to join; if
    there is none, the arrays are empty."""
    if not parts:
        nothing, indices = np.zeros(0), np.zeros(0, np.intp)
        return _Labels(indices, nothing, nothing, indices, indices, indices)
    return _Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def _best(labels: _Labels, grain: float) -> _Labels:
    """Pareto filter: the labels (last stages of pipelines) that no other label with the same first unit (sub-layer) and class
    of cut before it (which groups layouts of activations) equals or undercuts in both numbers. grain: if labels are many, their
    numbers are first rounded down to multiples of this many ns."""
    if len(labels.node) > MANY:
        sums, longest = (np.floor(values / grain) * grain for values in (labels.sums, labels.longest))
        labels = _Labels(labels.node, sums, longest, labels.length, labels.out, labels.parent)
    if not len(labels.node):
        return labels
    kept = undominated(labels.node, labels.sums, [labels.longest])  # type: ignore[arg-type, list-item]
    return _Labels(*(column[kept] for column in vars(labels).values()))


def _traced(trail: Sequence[_Labels], label: int) -> tuple[Step, ...]:
    """Reconstruct the partition that a label of the first stage stands for: its stages, each as (first unit (sub-layer), last
    unit, class of the cut before, class of the cut after); classes group cuts by the layouts of activations at the cut.

    trail: for each stage, its labels (choices for this and all later stages). label: the index of the first stage's label."""
    path, first, into = [], 0, 0
    for labels in trail:
        length, out = int(labels.length[label]), int(labels.out[label])
        path.append((first, first + length, into, out))
        first, into, label = first + length + 1, out, int(labels.parent[label])
    return tuple(path)
