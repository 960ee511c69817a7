"""All columns of a stage that may matter, those that no other one dominates, by label-setting in several times at once.

Labels run from the last units of the allowed spans to their first ones, with the times of passes, the work at the end of the
step, the peak H of the units so far, their model states M, and their bytes on the host. Of two labels with one last unit,
entered and left in equal interface states, one with no entry above the other's is as good, whatever units stand before them.
Entries that cannot matter are not compared: H and M where any units before them fit; and work at the end of a stage after the
first, where the stages before it take longer anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.solvers.chain.dominance import undominated
from trainplan.solvers.joint.free_cuts.pipeline_columns import Passes
from trainplan.solvers.joint.free_cuts.reduced_cost_pruning import Guide
from trainplan.solvers.joint.free_cuts.suffix_enumeration import Pool
from trainplan.solvers.joint.stages.label_setting import Column, Stages
from trainplan.solvers.joint.stages.option_tables import Floats, Indices, KindOptions

RAW, MOST_RAW = 40, 2**21  # the factor of `limit`, and the number, of labels at which TooMany is raised
AT_ONCE = 2**18  # labels that are computed before dominated ones are removed
FORWARD, BACKWARD, LAST, REDUCE, OPTIMIZER, FIRST_HALF, SECOND_HALF, HALVED, PEAK, STATES, HOST = range(
    11
)  # entries of a label
PASSES, ONCE = [FORWARD, BACKWARD, FIRST_HALF, SECOND_HALF, HALVED], [LAST, REDUCE, OPTIMIZER]


class TooMany(Exception):
    """Raised if there are more labels (partial stages) than allowed."""


@dataclass(frozen=True, eq=False)
class Front:
    """The spans (consecutive units, that is, sub-layers) that a stage may be, and the limits on the choices of options that are
    wanted for it. u is the forward plus backward pass of a micro-batch, g the work after the last micro-batch.

    first, last, most_u_ns: (F,), the spans, and for each the largest u. weight, most_ns: a number p, and (F,), the largest p u
    + g of each span. depth: micro-batches in flight. begins: whether it is the first stage. ends_apart: whether the part of g
    before the sum of a shared table's gradients is compared separately. hidden_ns: a g up to this length cannot make the step
    longer, since the first stage ends later; 0 for the first stage itself. guide: weighted sums by which partial pipelines that
    cannot be better than the best plan are excluded, or None."""

    first: Indices
    last: Indices
    most_u_ns: Floats
    weight: int
    most_ns: Floats
    depth: int
    begins: bool
    ends_apart: bool
    hidden_ns: int = 0
    guide: Guide | None = None


@dataclass(frozen=True, eq=False)
class _Labels:
    """N labels in parallel arrays; a label is a partial choice: options for the units (sub-layers) from some unit to the end of
    a stage. option: the option of the first unit. parent: the index of the label of the units after it. enter: the interface
    state (layout of activations) in which the first unit is entered. group: the last unit times the number of states in which
    units are left, plus the state in which the last unit is left. entries: (11, N), eight times in ns and three sizes in bytes.
    sums: (K, N), K weighted sums by which labels that no good pipeline can contain are excluded."""

    option: Indices
    parent: Indices
    enter: Indices
    group: Indices
    entries: Integers
    sums: Floats

    def at(self, indices: Indices) -> _Labels:
        """Select some of the labels. indices: their indices, in whose order they are returned."""
        return _Labels(*(column[..., indices] for column in vars(self).values()))


def front(stages: Stages, wanted: Front, limit: int, check_time: Callable[[], None] = lambda: None) -> Pool:
    """All columns (choices of options) that a stage may have in a pipeline within the limits: those that fit the memory and
    that are not dominated by another column of the same span with equal interface states (layouts of activations at its ends).

    stages: the units (sub-layers) and their options. wanted: the spans and limits. limit: the most labels (partial stages) that
    one unit may have. check_time: called for every unit; an exception that it raises is passed on. Raises TooMany if there are
    more labels."""
    low, high = int(wanted.first.min()), int(wanted.last.max())
    kinds = {l: stages.tables.kinds[stages.kinds[l]] for l in range(low, high + 1)}
    times = {id(kind): _times(kind) for kind in kinds.values()}
    p = wanted.weight
    least = _sums([int(kinds[l].u_ns.min()) for l in range(low, high + 1)])
    least_ends = _sums([int((p * kinds[l].u_ns + kinds[l].extra_ns).min()) for l in range(low, high + 1)])
    trail: dict[int, _Labels] = {}
    found: list[tuple[int, Indices, Integers]] = []  # first unit, labels, and entries
    following: _Labels | None = None
    for l in range(high, low - 1, -1):
        check_time()
        inside = (wanted.first <= l) & (wanted.last >= l)
        # By last unit, the largest u (and p u + g) after l that some span allows.
        most, most_ends = np.full((2, high + 1), -np.inf)
        np.maximum.at(most, wanted.last[inside], (wanted.most_u_ns - (least[l - low] - least[wanted.first - low]))[inside])
        ends = wanted.most_ns - (least_ends[l - low] - least_ends[wanted.first - low])
        np.maximum.at(most_ends, wanted.last[inside], ends[inside])
        limits = _Limits(stages, wanted, l, most, most_ends)
        parts = []
        if (wanted.last == l).any():
            parts.append(limits.of(_single_unit(stages, l, kinds[l], times[id(kinds[l])], wanted)))
        for some in () if following is None else _pieces(following, len(kinds[l].indices)):
            parts.append(limits.of(_extended(stages, l, some, kinds[l], times[id(kinds[l])], wanted)))
            if sum(len(part.option) for part in parts) > min(RAW * limit, MOST_RAW):
                raise TooMany
        if not parts:
            following = None
            continue
        labels = _Labels(
            *(np.concatenate(columns, axis=-1) for columns in zip(*(vars(p).values() for p in parts), strict=True))
        )
        before = [kinds[k] for k in range(low, l)]
        compared = _compared(stages, labels.entries, before, wanted)
        if (wanted.first == l).any():  # labels that begin a stage also have the times that its first unit adds
            indices = kinds[l].indices[labels.option]
            compared += [kinds[l].table.head_ns[indices], kinds[l].table.tail_ns[indices]]
        labels = labels.at(_best(stages, labels, compared))
        if len(labels.option) > limit:
            raise TooMany
        trail[l] = following = labels
        if (wanted.first == l).any():
            found.append((l, *_completed(stages, l, kinds[l], labels, wanted)))
    return _pool(stages, trail, found)


@dataclass(frozen=True, eq=False)
class _Limits:
    """The limits for labels (choices of options from the unit (sub-layer) `unit` to the end of a stage). most, most_ends: by
    the stage's last unit, the largest u (forward plus backward pass of a micro-batch) that some span allows, and the largest p
    u + g, with g the work after the last micro-batch and p the weight in `wanted`."""

    stages: Stages
    wanted: Front
    unit: int
    most: Floats
    most_ends: Floats

    def of(self, labels: _Labels) -> _Labels:
        """Keep only the labels (choices of options from the unit `unit` to the end of the stage) that some pipeline within the
        limits of time and memory may have. labels: all labels that begin with the unit `unit`."""
        tables, wanted = self.stages.tables, self.wanted
        u_ns, last = _u_ns(labels.entries, tables.sliced), labels.group // tables.states_out
        fits = (labels.entries[PEAK] <= self.stages.memory_bytes) & (u_ns <= self.most[last])
        fits &= wanted.weight * u_ns + labels.entries[ONCE].sum(axis=0) <= self.most_ends[last]
        if self.stages.host_bytes is not None:
            fits &= labels.entries[HOST] <= self.stages.host_bytes
        if wanted.guide is not None:
            fits &= wanted.guide.may_go_on(self.unit, labels.enter, labels.sums)
        return labels.at(np.flatnonzero(fits))


def _pieces(labels: _Labels, options: int) -> Iterator[_Labels]:
    """Divide labels into pieces small enough that combining a piece with all options of a unit takes little memory. options:
    the number of the unit's options. In each piece, the field `option` has the labels' indices among all labels instead of
    options."""
    count = max(1, AT_ONCE // options)
    if len(labels.option) <= count:
        yield replace(labels, option=np.arange(len(labels.option)))
        return
    for start in range(0, len(labels.option), count):
        indices = np.arange(start, min(start + count, len(labels.option)))
        yield replace(labels.at(indices), option=indices)


def _sums(values: list[int]) -> Integers:
    """Prefix sums of a list: the sum of all values before each index, then the sum of all. [2, 3] -> [0, 2, 5]."""
    return np.concatenate([[0], np.cumsum(values)])


def _times(kind: KindOptions) -> Integers:
    """The times in ns of the S options of a kind of unit (sub-layer), (8, S): forward and backward pass, what the last
    micro-batch adds, gradient reduction, optimizer; first and second forward half and backward pass of a sliced micro-batch, 0
    if none is sliced."""
    table = kind.table.keep(kind.indices.tolist())
    halves = np.zeros((3, len(kind.indices)), np.int64)
    if table.halved is not None:
        halves = np.stack([*table.halved.forward_ns, table.halved.backward_ns])
    return np.concatenate(
        [np.stack([table.forward_ns, table.backward_ns, table.last_ns, table.reduce_ns, table.optimizer_ns]), halves]
    )


def _u_ns(entries: Integers, sliced: bool) -> Integers:
    """For each of N labels (partial stages), (N,), the time in ns of forward plus backward pass of a micro-batch. entries: (11,
    N), the labels' times and bytes. sliced: whether some micro-batches run in halves; the cheaper of whole passes and both
    halves then counts."""
    if not sliced:
        return entries[FORWARD] + entries[BACKWARD]
    forward = np.minimum(entries[FORWARD], entries[FIRST_HALF] + entries[SECOND_HALF])
    u: Integers = forward + np.minimum(entries[BACKWARD], entries[HALVED])
    return u


def _single_unit(stages: Stages, l: int, kind: KindOptions, times: Integers, wanted: Front) -> _Labels:
    """The labels (partial stages) that consist of one unit (sub-layer) l as the last unit of a stage, one label for each
    option. stages: the units and their tables. kind: its options; times: (8, S), eight times in ns of each of its S options.
    wanted: the spans and limits.
    """
    options, states = np.arange(len(kind.indices)), kind.states(wanted.depth)
    entries = np.concatenate([times, np.stack([states + kind.kept + kind.work, states, kind.host])])
    entries[BACKWARD] += kind.final_ns
    entries[HALVED] += kind.final_ns
    sums = np.zeros((0, len(options))) if wanted.guide is None else wanted.guide.last_unit_sums(l, kind.leave)
    group = l * stages.tables.states_out + kind.leave
    return _Labels(options, np.zeros(len(options), np.intp), kind.enter, group, entries, sums)


def _extended(stages: Stages, l: int, following: _Labels, kind: KindOptions, times: Integers, wanted: Front) -> _Labels:
    """Extend labels (choices of options from unit (sub-layer) l + 1 to the end of a stage) by the options of unit l in front,
    if their interface states (layouts of activations) agree.

    stages: the units and their tables. following: the labels of unit l + 1, whose field `option` has their indices. kind: the
    options of unit l; times: (8, S), eight times in ns of each of its S options. wanted: the spans and limits.
    """
    boundary = stages.boundaries[l]
    option, parent = np.nonzero(np.isfinite(stages.tables.moves[boundary])[kind.leave][:, following.enter])
    crossing, state = stages.tables.crossings[boundary], (kind.leave[option], following.enter[parent])
    entries = following.entries[:, parent]
    entries[: HALVED + 1] += times[:, option]
    entries[FORWARD] += crossing.forward_ns[state]
    entries[BACKWARD] += crossing.backward_ns[state]
    entries[FIRST_HALF] += crossing.halved_forward_ns[state]
    entries[SECOND_HALF] += crossing.halved_forward_ns[state]
    entries[HALVED] += crossing.halved_backward_ns[state]
    states, h, m = kind.states(wanted.depth)[option], entries[PEAK], entries[STATES]
    entries[PEAK] = states + kind.kept[option] + np.maximum(kind.work[option] + m, h)
    entries[STATES] = states + m
    entries[HOST] += kind.host[option]
    sums = following.sums[:, parent]
    if wanted.guide is not None:
        sums += wanted.guide.added_sums(l, option, *state)
    return _Labels(option, following.option[parent], kind.enter[option], following.group[parent], entries, sums)


def _compared(stages: Stages, entries: Integers, before: Sequence[KindOptions], wanted: Front) -> list[Integers]:
    """Choose the numbers by which labels (partial stages) are compared, as rows (N,), for N labels: only times and bytes are
    taken that can make a difference to a pipeline's step time or memory. stages: the units and their tables. entries: (11, N),
    the labels' times and bytes. before: the kinds of the units (sub-layers) that may precede them. wanted: the spans and
    limits.
    """
    rows = [entries[row] for row in PASSES]
    if wanted.begins and wanted.ends_apart:
        rows += [entries[LAST] + entries[REDUCE], entries[OPTIMIZER]]
    elif wanted.begins:
        rows.append(entries[LAST] + entries[REDUCE] + entries[OPTIMIZER])
    else:
        ends = entries[REDUCE] if wanted.ends_apart else entries[REDUCE] + entries[OPTIMIZER]
        more = sum(
            int((kind.table.reduce_ns if wanted.ends_apart else kind.table.end_ns)[kind.indices].max()) for kind in before
        )
        rows += [entries[LAST], np.where(ends + more <= wanted.hidden_ns, 0, ends)]
        rows += [entries[OPTIMIZER]] if wanted.ends_apart else []
    if not before:
        return [*rows, entries[PEAK], entries[STATES], entries[HOST]]
    # With any units before them the peak is at most max(H, M + work) + sum (states + kept), by the largest of each.
    limits = sum(int((kind.states(wanted.depth) + kind.kept).max()) for kind in before)
    work = max(int(kind.work.max()) for kind in before)
    fits = np.maximum(entries[PEAK], entries[STATES] + work) + limits <= stages.memory_bytes
    return [*rows, np.where(fits, 0, entries[PEAK]), np.where(fits, 0, entries[STATES]), entries[HOST]]


def _best(stages: Stages, labels: _Labels, compared: list[Integers]) -> Indices:
    """Pareto filter: the indices of the labels (partial stages) that no other label with the same last unit (sub-layer) and
    interface states equals or undercuts in all compared numbers. labels: N labels. compared: rows of N numbers, smaller is
    better."""
    if not len(labels.option):
        return np.zeros(0, np.intp)
    first, *others = compared
    varied = [row for row in others if (row != row[0]).any()] or [np.zeros(len(first), np.int64)]
    return undominated(labels.group * stages.tables.states_in + labels.enter, first, varied)


def _completed(stages: Stages, l: int, kind: KindOptions, labels: _Labels, wanted: Front) -> tuple[Indices, Integers]:
    """Find the labels that can be whole stages beginning with unit (sub-layer) l, within the limits and without dominated ones.
    Returns their indices among `labels`, and (11, n), their times and bytes, with the additional costs of a stage's first unit.
    stages: the units and their tables. kind: the options of unit l. wanted: the spans and limits."""
    table, indices = kind.table, kind.indices[labels.option]
    entries = labels.entries.copy()
    entries[[FORWARD, FIRST_HALF, SECOND_HALF]] += table.head_ns[indices]
    entries[[BACKWARD, HALVED]] += table.tail_ns[indices]
    most = np.full(len(stages.kinds), -np.inf)
    here = wanted.first == l
    most[wanted.last[here]] = wanted.most_u_ns[here]
    fits = _u_ns(entries, stages.tables.sliced) <= most[labels.group // stages.tables.states_out]
    if wanted.guide is not None:
        fits &= wanted.guide.may_begin(l, labels.option, labels.enter, labels.sums)
    kept = np.flatnonzero(fits)
    times = _compared(stages, entries[:, kept], (), wanted)[:-3]
    kept = kept[_best(stages, labels.at(kept), times)]
    return kept, entries[:, kept]


def _pool(stages: Stages, trail: dict[int, _Labels], found: Sequence[tuple[int, Indices, Integers]]) -> Pool:
    """Translate complete labels into the columns (choices of options for a stage) that they stand for. stages: the units and
    their tables. trail: for each unit (sub-layer), its labels, by which choices are traced. found: triples of a first unit, the
    indices of its complete labels, and their times and bytes."""
    firsts = np.concatenate([np.full(len(indices), l, np.intp) for l, indices, _ in found] or [np.zeros(0, np.intp)])
    indices = np.concatenate([labels for _, labels, _ in found] or [np.zeros(0, np.intp)])
    entries = np.concatenate([labels for _, _, labels in found] or [np.zeros((11, 0), np.int64)], axis=1)
    groups = np.concatenate([trail[l].group[labels] for l, labels, _ in found] or [np.zeros(0, np.intp)])
    enters = np.concatenate([trail[l].enter[labels] for l, labels, _ in found] or [np.zeros(0, np.intp)])
    last, leave = np.divmod(groups, stages.tables.states_out)
    passes = Passes(
        forward_ns=entries[FORWARD][None],
        backward_ns=entries[BACKWARD][None],
        last_ns=entries[LAST][None],
        reduce_ns=entries[REDUCE][None],
        optimizer_ns=entries[OPTIMIZER][None],
        halves_ns=entries[[FIRST_HALF, SECOND_HALF]][:, None],
        halved_backward_ns=entries[HALVED][None],
    )
    return Pool(_Columns(stages, trail, firsts, last, indices), firsts, last, enters, leave, passes)


class _Columns(Sequence[Column]):
    """The columns (choices of options) of a stage, each built when it is first used. first, last: their first and last units
    (sub-layers). indices: the indices of the labels of the first unit."""

    def __init__(self, stages: Stages, trail: dict[int, _Labels], first: Indices, last: Indices, indices: Indices) -> None:
        self.stages, self.trail, self.first, self.last, self.indices = stages, trail, first, last, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, number: int) -> Column: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Column]: ...

    def __getitem__(self, number: int | slice) -> Column | Sequence[Column]:
        if isinstance(number, slice):
            return [self[position] for position in range(len(self))[number]]
        options, index = [], int(self.indices[number])
        for l in range(int(self.first[number]), int(self.last[number]) + 1):
            options.append(int(self.trail[l].option[index]))
            index = int(self.trail[l].parent[index])
        return self.stages.column(int(self.first[number]), options)
