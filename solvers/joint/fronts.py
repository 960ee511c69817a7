"""All columns of a span that may matter: those that no other one beats, by label-setting in several times at once.

Labels run from the span's last unit to its first one, as in `chain.label_setting`: the times of passes and of what comes once,
the peak H of the units so far, their states M, and what they hold on the host. Of two labels entered and left alike, one with
no entry above the other's is as good, whatever stands before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.solvers.chain.dominance import undominated
from trainplan.solvers.joint.stage_tables import KindOptions, Places
from trainplan.solvers.joint.stages import Column, Stages


class TooMany(Exception):
    """More labels than may be looked at."""


@dataclass(frozen=True, eq=False)
class _Labels:
    """In parallel arrays (N,): options of the first unit, places of the labels behind them, ways in and out. entries: (E, N),
    the times, then H, M and the host's bytes."""

    option: Places
    parent: Places
    enter: Places
    leave: Places
    entries: Integers


def front(stages: Stages, first: int, last: int, depth: int, most_u_ns: float, ends_apart: bool, limit: int) -> list[Column]:
    """The columns of a span with `depth` micro-batches in flight that fit the memory, have no u above `most_u_ns`, and are not
    beaten in every time by another one entered and left alike.

    ends_apart: whether it matters what of the end comes before the sum of a shared table. limit: of labels of one unit. Raises
    TooMany.
    """
    kinds = [stages.tables.kinds[kind] for kind in stages.kinds[first : last + 1]]
    least = np.concatenate([[0], np.cumsum([int(kind.u_ns.min()) for kind in kinds])])
    trail: list[_Labels] = []
    for place in reversed(range(len(kinds))):
        labels = _begun(kinds[-1], depth) if not trail else _longer(stages, first, place, trail[-1], kinds, depth)
        if len(labels.option) > 20 * limit:
            raise TooMany
        entries = labels.entries
        if place == 0:
            entries = _headed(kinds[0], labels)
        fits = (entries[-3] <= stages.memory_bytes) & (_u_ns(entries, stages.tables.sliced) + least[place] <= most_u_ns)
        if stages.host_bytes is not None:
            fits &= entries[-1] <= stages.host_bytes
        compared = entries if place else entries[:-3]
        if not ends_apart:
            compared = np.concatenate([compared[:3], (compared[3] + compared[4])[None], compared[5:]])
        kept = np.flatnonzero(fits)
        kind = labels.enter * stages.tables.ways_out + labels.leave
        varied = [row[kept] for row in compared[1:] if len(kept) and (row[kept] != row[kept[0]]).any()]
        varied = varied or [np.zeros(len(kept), np.int64)]
        kept = kept[undominated(kind[kept], compared[0][kept], varied)] if len(kept) else kept
        if len(kept) > limit:
            raise TooMany
        trail.append(
            _Labels(labels.option[kept], labels.parent[kept], labels.enter[kept], labels.leave[kept], entries[:, kept])
        )
    return [stages.column(first, _traced(trail, number)) for number in range(len(trail[-1].option))]


def _times(kind: KindOptions) -> Integers:
    """(8, S): forward, backward, last, reduce, optimizer; both halves, the backward pass of both; 0 where none is sliced."""
    table = kind.table.keep(kind.places.tolist())
    halves = np.zeros((3, len(kind.places)), np.int64)
    if table.halved is not None:
        halves = np.stack([*table.halved.forward_ns, table.halved.backward_ns])
    return np.concatenate(
        [np.stack([table.forward_ns, table.backward_ns, table.last_ns, table.reduce_ns, table.optimizer_ns]), halves]
    )


def _u_ns(entries: Integers, sliced: bool) -> Integers:
    """The u of labels, by the cheaper way where some micro-batches are sliced."""
    if not sliced:
        return entries[0] + entries[1]
    return np.minimum(entries[0], entries[5] + entries[6]) + np.minimum(entries[1], entries[7])


def _begun(kind: KindOptions, depth: int) -> _Labels:
    """The labels of the last unit alone."""
    options, states = np.arange(len(kind.places)), kind.states(depth)
    times = _times(kind)
    times[1] += kind.final_ns
    times[7] += kind.final_ns
    entries = np.concatenate([times, np.stack([states + kind.kept + kind.work, states, kind.host])])
    return _Labels(options, np.zeros(len(options), np.intp), kind.enter, kind.leave, entries)


def _longer(stages: Stages, first: int, place: int, behind: _Labels, kinds: list[KindOptions], depth: int) -> _Labels:
    """All labels of a unit before those of the next one, where their states agree."""
    kind, boundary = kinds[place], stages.boundaries[first + place]
    option, parent = np.nonzero(np.isfinite(stages.tables.moves[boundary])[kind.leave][:, behind.enter])
    crossing, state = stages.tables.crossings[boundary], (kind.leave[option], behind.enter[parent])
    entries = behind.entries[:, parent].copy()
    entries[:8] += _times(kind)[:, option]
    entries[0] += crossing.forward_ns[state]
    entries[1] += crossing.backward_ns[state]
    entries[5] += crossing.halved_forward_ns[state]
    entries[6] += crossing.halved_forward_ns[state]
    entries[7] += crossing.halved_backward_ns[state]
    states, h, m = kind.states(depth)[option], entries[-3], entries[-2]
    entries[-3] = states + kind.kept[option] + np.maximum(kind.work[option] + m, h)
    entries[-2] = states + m
    entries[-1] += kind.host[option]
    return _Labels(option, parent, kind.enter[option], behind.leave[parent], entries)


def _headed(kind: KindOptions, labels: _Labels) -> Integers:
    """The entries of labels with what a stage's first unit adds."""
    table, places = kind.table, kind.places[labels.option]
    head, tail = table.head_ns[places], table.tail_ns[places]
    entries = labels.entries.copy()
    for row, more in ((0, head), (5, head), (6, head), (1, tail), (7, tail)):
        entries[row] += more
    return entries


def _traced(trail: list[_Labels], number: int) -> tuple[int, ...]:
    """The options of a label of the first unit, from the first on."""
    options = []
    for labels in reversed(trail):
        options.append(int(labels.option[number]))
        number = int(labels.parent[number])
    return tuple(options)
