"""The options of one kind of device group, prepared for search: without dominated ones, by interface cells, with cheapest
messages.

The cost of a stage for one micro-batch is u = f + b, its two passes with the messages and re-layouts that it receives; once in
a step it adds g = l + reduce + optimizer, after the last micro-batch. A stage alone does not know its neighbours' interface
states: its messages are the cheapest over those, which bounds them from below. An interface cell is a pair of states, in which
a unit is entered and left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.tables import BYTES, FORBIDDEN, TIMES, Boundary, OptionTable, Tables
from trainplan.formulations.numbers import Integers

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class KindOptions:
    """The S options of one kind of unit that no other option dominates, in arrays (S,).

    indices: of the options in the formulation's table. enter, leave: merged interface states; states with equal links are
    merged. u_ns: both passes. extra_ns: the work after the last micro-batch. first_ns, final_ns: added to u where the unit is a
    stage's first or last one. kept, held, work, state, host: bytes, see `OptionTable`.
    """

    table: OptionTable
    indices: Indices
    enter: Indices
    leave: Indices
    u_ns: Integers
    extra_ns: Integers
    first_ns: Integers
    final_ns: Integers
    kept: Integers
    held: Integers
    work: Integers
    state: Integers
    host: Integers

    def states(self, in_flight: int) -> Integers:
        """(S,): the bytes that each option holds during the whole step with `in_flight` micro-batches in flight, one of which
        is counted elsewhere."""
        return self.state + in_flight * self.held + (in_flight - 1) * self.kept


@dataclass(frozen=True, eq=False)
class Crossing:
    """The times in ns of one kind of boundary, by merged interface states: (D, E), and messages (K, D, E) by the kind of link,
    see `Boundary`."""

    forward_ns: Integers
    backward_ns: Integers
    halved_forward_ns: Integers
    halved_backward_ns: Integers
    message_forward_ns: Integers
    message_backward_ns: Integers
    halved_message_ns: Integers


class StageTables:
    """All kinds of units and boundaries of one `Tables`.

    cell_enter, cell_leave: (C,), the states in which a unit of each interface cell is entered and left. moves: (Q, D, E),
    re-layouts of both passes, by kind of boundary; infinite where states disagree. forward, backward: (Q, K, D, E), message and
    re-layout across a cut in each direction. left, entered: whether any option leaves, or enters, in each state.
    """

    def __init__(self, tables: Tables, sliced: bool = False) -> None:
        """sliced: whether some micro-batches run in halves and others whole; u then has the cheaper of both, piece by piece."""
        self.sliced = sliced
        rows, columns = _padded(tables.boundaries, tables.units)
        self.leave_state, self.enter_state = _ways(rows), _ways(columns)
        self.kinds = tuple(self._kind(table) for table in tables.units)
        lefts = np.unique(self.leave_state, return_index=True)[1]
        enters = np.unique(self.enter_state, return_index=True)[1]
        shape = len(lefts), len(enters)
        count, links = len(tables.boundaries), max([1, *(len(b.message_forward_ns) for b in tables.boundaries)])
        self.crossings = tuple(_crossing(boundary, lefts, enters, links) for boundary in tables.boundaries)
        self.moves = np.full((count, *shape), np.inf)
        self.forward = np.full((count, links, *shape), np.inf)
        self.backward = np.full((count, links, *shape), np.inf)
        for q, crossing in enumerate(self.crossings):
            ahead, back = crossing.forward_ns, crossing.backward_ns
            agreed = (ahead < FORBIDDEN) & (back < FORBIDDEN)
            sent = ahead + crossing.message_forward_ns
            inside = ahead + back
            if sliced:
                sent = np.minimum(sent, 2 * (crossing.halved_forward_ns + crossing.halved_message_ns))
                inside = np.minimum(ahead, 2 * crossing.halved_forward_ns) + np.minimum(back, crossing.halved_backward_ns)
            self.moves[q] = np.where(agreed, inside, np.inf)
            self.forward[q] = np.where(agreed, sent, np.inf)
            self.backward[q] = np.where(agreed, back + crossing.message_backward_ns, np.inf)
        self.left = np.isin(np.arange(shape[0]), np.concatenate([kind.leave for kind in self.kinds]))
        self.entered = np.isin(np.arange(shape[1]), np.concatenate([kind.enter for kind in self.kinds]))
        pairs = np.concatenate([np.stack((kind.enter, kind.leave)) for kind in self.kinds], axis=1)
        cells = np.unique(pairs, axis=1)
        self.cell_enter, self.cell_leave = cells
        self.states_in, self.states_out = shape[1], shape[0]
        self.links = links

    def _kind(self, table: OptionTable) -> KindOptions:
        """The options of one kind of unit that no other option dominates."""
        enter, leave = self.enter_state[table.enter], self.leave_state[table.leave]
        indices = _undominated(enter, leave, _costs(table))
        chosen = table.keep(indices.tolist())
        u_ns = chosen.forward_ns + chosen.backward_ns
        if self.sliced and chosen.halved is not None:
            forward = np.minimum(chosen.forward_ns, chosen.halved.forward_ns.sum(axis=0))
            u_ns = forward + np.minimum(chosen.backward_ns, chosen.halved.backward_ns)
        return KindOptions(
            table=table,
            indices=indices,
            enter=enter[indices],
            leave=leave[indices],
            u_ns=u_ns,
            extra_ns=chosen.last_ns + chosen.end_ns,
            first_ns=chosen.head_ns + chosen.tail_ns,
            final_ns=chosen.turn_ns,
            kept=chosen.kept_bytes,
            held=chosen.held_bytes,
            work=chosen.work_bytes,
            state=chosen.state_bytes,
            host=chosen.host_bytes,
        )

    @cached_property
    def cells_of(self) -> tuple[Indices, ...]:
        """For each kind, (S,), the interface cell of each option."""
        number = {pair: cell for cell, pair in enumerate(zip(self.cell_enter.tolist(), self.cell_leave.tolist(), strict=True))}
        return tuple(
            np.array([number[pair] for pair in zip(kind.enter.tolist(), kind.leave.tolist(), strict=True)], np.intp)
            for kind in self.kinds
        )

    def by_cell(self, kind: int, values: Floats) -> Floats:
        """The least value among the options of a kind in each interface cell: (.., S) to (.., C); infinite where the kind has
        none there."""
        cell_of = self.cells_of[kind]
        order = np.argsort(cell_of, kind="stable")
        cells, starts = np.unique(cell_of[order], return_index=True)
        least = np.full((*values.shape[:-1], len(self.cell_enter)), np.inf)
        least[..., cells] = np.minimum.reduceat(values[..., order], starts, axis=-1)
        return least

    @cached_property
    def left_order(self) -> tuple[Indices, Indices, Indices]:
        """The cells sorted by the state in which they are left, the first position of each such state, and the states that
        there are."""
        order = np.argsort(self.cell_leave, kind="stable")
        states, starts = np.unique(self.cell_leave[order], return_index=True)
        return order, starts, states

    def by_leave(self, values: Floats, axis: int = -1) -> Floats:
        """The least value among the cells that are left in each state; the axis of cells, (C), becomes one of states, (D)."""
        order, starts, states = self.left_order
        least: Floats = values.take(order, axis)
        if len(states) < len(order):
            least = np.minimum.reduceat(least, starts, axis)
        if len(states) == self.states_out:
            return least
        spread = np.full((*values.shape[:axis], self.states_out, *values.shape[axis:][1:]), np.inf)
        np.moveaxis(spread, axis, 0)[states] = np.moveaxis(least, axis, 0)
        return spread


def _crossing(boundary: Boundary, lefts: Indices, enters: Indices, links: int) -> Crossing:
    """A boundary by the first state of each merged kind; FORBIDDEN where it has no such state. links: how many kinds."""

    def merged(matrix: Integers | None) -> Integers:
        if matrix is None:
            return np.zeros((1, len(lefts), len(enters)), np.int64)
        stacked = matrix if matrix.ndim == 3 else matrix[None]
        _, rows, columns = stacked.shape
        there = (lefts < rows)[:, None] & (enters < columns)
        inside = np.ix_(range(len(stacked)), np.minimum(lefts, rows - 1), np.minimum(enters, columns - 1))
        return np.where(there, stacked[inside], FORBIDDEN)

    def by_link(matrix: Integers | None) -> Integers:
        links_matrix = merged(matrix) if matrix is None or len(matrix) else merged(None)
        return np.concatenate([links_matrix, np.repeat(links_matrix[-1:], links - len(links_matrix), axis=0)])

    return Crossing(
        forward_ns=merged(boundary.relayout_forward_ns)[0],
        backward_ns=merged(boundary.relayout_backward_ns)[0],
        halved_forward_ns=merged(boundary.halved_relayout_forward_ns)[0],
        halved_backward_ns=merged(boundary.halved_relayout_backward_ns)[0],
        message_forward_ns=by_link(boundary.message_forward_ns),
        message_backward_ns=by_link(boundary.message_backward_ns),
        halved_message_ns=by_link(boundary.halved_message_forward_ns),
    )


@dataclass(frozen=True, eq=False)
class CutClasses:
    """Classes of cuts: each class holds some interface states before the cut and some after it.

    Together the classes hold all pairs of states, so bounds of stages by the classes around them bound all pipelines. entries:
    (Q, K, G, E), by kinds of boundary and link, class and state: the least that a stage entered in this state receives forward,
    over the class's states before it; infinite for states outside the class. exits: (Q, K, G, D), the same backward for a stage
    that is left in each state.
    """

    entries: Floats
    exits: Floats

    @property
    def count(self) -> int:
        """The number of classes, G."""
        return self.entries.shape[2]


def cut_classes(tables: StageTables, most: int) -> CutClasses:
    """Classes of interface states with similar messages: at most `most` groups of states on either side of a cut, by the time
    of a message forward from the states before it, and of a message backward from those after it."""
    before = _grouped(tables.forward.min(axis=3, initial=np.inf).reshape(-1, tables.states_out).T, tables.left, most)
    after = _grouped(tables.backward.min(axis=2, initial=np.inf).reshape(-1, tables.states_in).T, tables.entered, most)
    entries, exits = [], []
    for lefts in before:
        for enters in after:
            inside = lefts[:, None] & enters
            entries.append(np.where(inside, tables.forward, np.inf).min(axis=2, initial=np.inf))
            exits.append(np.where(inside, tables.backward, np.inf).min(axis=3, initial=np.inf))
    return CutClasses(np.stack(entries, axis=2), np.stack(exits, axis=2))


def _grouped(values: Floats, present: NDArray[np.bool_], most: int) -> list[NDArray[np.bool_]]:
    """The states that are present, as masks, in at most `most` groups of similar values. values: (states, ..)."""
    states = np.flatnonzero(present)
    sums = np.where(np.isfinite(values), values, 0.0).sum(axis=1)[states] if values.size else np.zeros(len(states))
    thresholds = np.unique(sums)
    if len(thresholds) > most:  # where neighbouring values differ most
        widest = np.sort(np.argsort(np.diff(thresholds))[len(thresholds) - most :])
        thresholds = thresholds[np.concatenate([[0], widest + 1])]
    number = np.searchsorted(thresholds, sums, side="right") - 1
    return [np.isin(np.arange(len(present)), states[number == group]) for group in range(len(thresholds))]


_STAGE_TABLES: WeakKeyDictionary[Tables, dict[bool, StageTables]] = WeakKeyDictionary()


def stage_tables(tables: Tables, sliced: bool = False) -> StageTables:
    """The prepared tables, made once for all configurations that share them."""
    cached = _STAGE_TABLES.setdefault(tables, {})
    if sliced not in cached:
        cached[sliced] = StageTables(tables, sliced)
    return cached[sliced]


def _padded(boundaries: Sequence[Boundary], units: Sequence[OptionTable]) -> tuple[Integers, Integers]:
    """For every interface state, its links at all boundaries, as one row for each state in which a unit is left, and one for
    each in which it is entered."""
    lefts = 1 + max(int(table.leave.max(initial=0)) for table in units)
    enters = 1 + max(int(table.enter.max(initial=0)) for table in units)
    lefts = max([lefts, *(b.relayout_forward_ns.shape[0] for b in boundaries)])
    enters = max([enters, *(b.relayout_forward_ns.shape[1] for b in boundaries)])
    matrices = [np.zeros((1, lefts, enters), np.int64)]
    for b in boundaries:
        stacks = [b.relayout_forward_ns[None], b.relayout_backward_ns[None], b.message_forward_ns, b.message_backward_ns]
        stacks += [
            halved[None] if halved.ndim == 2 else halved
            for halved in (b.halved_relayout_forward_ns, b.halved_relayout_backward_ns, b.halved_message_forward_ns)
            if halved is not None
        ]
        for stack in stacks:
            whole = np.full((len(stack), lefts, enters), FORBIDDEN, np.int64)
            whole[:, : stack.shape[1], : stack.shape[2]] = stack
            matrices.append(whole)
    stacked = np.concatenate(matrices)
    return stacked.transpose(1, 0, 2).reshape(lefts, -1), stacked.transpose(2, 0, 1).reshape(enters, -1)


def _ways(rows: Integers) -> Indices:
    """The number of each row's kind; equal rows are of one kind, numbered in the order of their first rows."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)], np.intp)


def undominated_options(table: OptionTable) -> Indices:
    """The indices of the options of a table that no other one dominates, by its own interface states."""
    return _undominated(table.enter, table.leave, _costs(table))


def _costs(table: OptionTable) -> Integers:
    """(columns, S): all costs of each option."""
    works = ("work_forward_bytes", "work_backward_bytes")
    columns = [getattr(table, name) for name in (*TIMES, *BYTES) if name not in works]
    columns.append(table.work_bytes)
    if table.halved is not None:
        columns += [*table.halved.forward_ns, table.halved.backward_ns]
    return np.stack(columns)


def _undominated(enter: Indices, leave: Indices, columns: Integers) -> Indices:
    """The options that no other one of their interface states equals or undercuts in all columns, (columns, S); of equal
    options the first."""
    count = columns.shape[1]
    alike = (enter[:, None] == enter) & (leave[:, None] == leave)
    beaten = np.zeros(count, bool)
    below = alike & (columns[:, :, None] <= columns[:, None, :]).all(axis=0)  # [i, j]: i is at most j everywhere
    equal = below & below.T
    first = np.arange(count)[:, None] < np.arange(count)
    beaten = ((below & ~equal) | (equal & first)).any(axis=0)
    return np.flatnonzero(~beaten)
