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
    """The S options of one kind of unit (sub-layer) that no other option dominates, in arrays (S,).

    table: all options of the kind. indices: the indices of the S options in that table. enter, leave: the interface states
    (layouts of activations) in which they are entered and left; states with equal costs are merged. u_ns: forward plus backward
    pass of a micro-batch. extra_ns: the work after the last micro-batch. first_ns, final_ns: added to u_ns if the unit is a
    stage's first or last one. In bytes: kept: for each micro-batch from the unit's forward to its backward pass; held: for each
    micro-batch in flight; work: added while a pass runs; state: during the whole step; host: on the host."""

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
        """The bytes that each option holds throughout, (S,), if `in_flight` micro-batches are in flight: model states, and the
        activations of micro-batches. What one of these micro-batches keeps until its backward pass is not included, since it
        changes during the passes."""
        return self.state + in_flight * self.held + (in_flight - 1) * self.kept


@dataclass(frozen=True, eq=False)
class Crossing:
    """The times in ns of one kind of boundary between units (sub-layers), by the interface states (layouts of activations)
    before it (D) and after it (E), equal ones merged. forward_ns, backward_ns: re-layouts, (D, E); message_forward_ns,
    message_backward_ns: messages at a cut, (K, D, E), for K kinds of link; the fields with `halved` are for micro-batches
    sliced in halves.
    """

    forward_ns: Integers
    backward_ns: Integers
    halved_forward_ns: Integers
    halved_backward_ns: Integers
    message_forward_ns: Integers
    message_backward_ns: Integers
    halved_message_ns: Integers

    def costs_ns(self, sliced: bool) -> tuple[Floats, Floats, Floats]:
        """Three costs of the boundary in ns, infinite for pairs of interface states that are forbidden: re-layout forward plus
        backward inside a stage, (D, E); at a cut, message plus re-layout forward, (K, D, E), and backward, (K, D, E), by kind
        of link.

        sliced: whether some micro-batches run in halves; each re-layout and message then takes the cheaper of its time for a
        whole and for both halves.
        """
        forward, backward = self.forward_ns, self.backward_ns
        agreed = (forward < FORBIDDEN) & (backward < FORBIDDEN)
        sent, inside = forward + self.message_forward_ns, forward + backward
        if sliced:
            sent = np.minimum(sent, 2 * (self.halved_forward_ns + self.halved_message_ns))
            inside = np.minimum(forward, 2 * self.halved_forward_ns) + np.minimum(backward, self.halved_backward_ns)
        returned = backward + self.message_backward_ns
        return np.where(agreed, inside, np.inf), np.where(agreed, sent, np.inf), np.where(agreed, returned, np.inf)


class StageTables:
    """The options of all kinds of units (sub-layers) and the costs of all kinds of boundaries of one kind of device group,
    prepared for search. An interface state is the layout of the activations in which a unit is entered or left; states with
    equal costs are merged into D states left and E states entered. An interface cell is a pair of states in which a unit is
    entered and left.

    kinds: for each kind of unit, its options that are not dominated. cell_enter, cell_leave: (C,), the states in which a unit
    of each interface cell is entered and left. moves: (Q, D, E), re-layouts of both passes in ns, by kind of boundary; infinite
    for forbidden pairs of states. forward, backward: (Q, K, D, E), message and re-layout across a cut in each direction, by
    kind of boundary and of link. left: (D,), whether any option is left in each state. entered: (E,), whether any option is
    entered in each state."""

    def __init__(self, tables: Tables, sliced: bool = False) -> None:
        """sliced: whether some micro-batches run in halves and others whole; u then has the cheaper of both, piece by piece."""
        self.sliced = sliced
        rows, columns = _padded(tables.boundaries, tables.units)
        self.leave_state, self.enter_state = _row_kinds(rows), _row_kinds(columns)
        self.kinds = tuple(self._kind(table) for table in tables.units)
        lefts = np.unique(self.leave_state, return_index=True)[1]
        enters = np.unique(self.enter_state, return_index=True)[1]
        shape = self.states_out, self.states_in = len(lefts), len(enters)
        count = len(tables.boundaries)
        self.links = links = max([1, *(len(boundary.message_forward_ns) for boundary in tables.boundaries)])
        self.crossings = tuple(_crossing(boundary, lefts, enters, links) for boundary in tables.boundaries)
        self.moves = np.full((count, *shape), np.inf)
        self.forward = np.full((count, links, *shape), np.inf)
        self.backward = np.full((count, links, *shape), np.inf)
        for q, crossing in enumerate(self.crossings):
            self.moves[q], self.forward[q], self.backward[q] = crossing.costs_ns(sliced)
        self.left = np.isin(np.arange(shape[0]), np.concatenate([kind.leave for kind in self.kinds]))
        self.entered = np.isin(np.arange(shape[1]), np.concatenate([kind.enter for kind in self.kinds]))
        pairs = np.concatenate([np.stack((kind.enter, kind.leave)) for kind in self.kinds], axis=1)
        self.cell_enter, self.cell_leave = np.unique(pairs, axis=1)

    def _kind(self, table: OptionTable) -> KindOptions:
        """Prepare the options of one kind of unit: those that no other option dominates, in merged interface states. table: all
        of its options."""
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
        """For each kind of unit, (S options,), the index of each option's interface cell."""
        number = {pair: cell for cell, pair in enumerate(zip(self.cell_enter.tolist(), self.cell_leave.tolist(), strict=True))}
        return tuple(
            np.array([number[pair] for pair in zip(kind.enter.tolist(), kind.leave.tolist(), strict=True)], np.intp)
            for kind in self.kinds
        )

    def by_cell(self, kind: int, values: Floats) -> Floats:
        """For each interface cell, the least value of the options of one kind of unit in it. kind: the kind's index. values:
        (.., S), one for each of the kind's S options. Returns (.., C) for the C cells, infinite for a cell without options.
        """
        cell_of = self.cells_of[kind]
        order = np.argsort(cell_of, kind="stable")
        cells, starts = np.unique(cell_of[order], return_index=True)
        least = np.full((*values.shape[:-1], len(self.cell_enter)), np.inf)
        least[..., cells] = np.minimum.reduceat(values[..., order], starts, axis=-1)
        return least

    @cached_property
    def left_order(self) -> tuple[Indices, Indices, Indices]:
        """The interface cells sorted by the state in which they are left; the first position of each such state in that order;
        and the states that occur. All three are index arrays."""
        order = np.argsort(self.cell_leave, kind="stable")
        states, starts = np.unique(self.cell_leave[order], return_index=True)
        return order, starts, states

    def by_leave(self, values: Floats, axis: int = -1) -> Floats:
        """For each interface state, the least value of the interface cells that are left in it. values: an array with an axis
        of C cells, which becomes an axis of D states; infinite for a state in which no cell is left. axis: the index of the
        axis of cells."""
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
    """Compute the costs of a boundary between units (sub-layers) for merged interface states (layouts of activations): each
    merged state is represented by its first member; a cost is FORBIDDEN (infinite) if the boundary does not have that state.

    lefts, enters: the first state of each of the D merged states before the boundary, (D,), and of the E after it, (E,). links:
    the number of kinds of link.
    """

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
    """Classes of cuts: each class holds some interface states (layouts of activations) before the cut and some after it.
    Together the classes hold all pairs of states, so lower bounds on stages, one for each class of the cuts around them, hold
    for all pipelines.

    entries: (Q, K, G, E), by kind of boundary (Q), kind of link (K), class (G) and state (E): the least ns that a stage entered
    in this state receives forward, over the class's states before it; infinite for states outside the class. exits: (Q, K, G,
    D), the least ns that a stage left in each state receives backward."""

    entries: Floats
    exits: Floats

    @property
    def count(self) -> int:
        """The number of classes, G."""
        return self.entries.shape[2]


def cut_classes(tables: StageTables, most: int) -> CutClasses:
    """Group the pairs of interface states (layouts of activations before and after a cut) whose messages cost about the same
    into classes of cuts, so that lower bounds can distinguish them. There are at most `most` groups of states on either side of
    a cut: before it by the time of a message forward, after it by the time of a message backward; each pair of groups is a
    class.

    tables: the options of all kinds of units (sub-layers) and the costs of boundaries."""
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
    """Group interface states by similar values: at most `most` groups, each as an array (states,), True for its members.

    values: (states, ..), which are summed for each state, infinite ones as 0. present: (states,), the states to group."""
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
    """Prepare the tables of options and boundaries of one kind of device group for search; the result is computed only once and
    shared by all configurations (numbers of stages and micro-batches, with a schedule) with the same tables. tables: the
    instance's tables of costs. sliced: whether some micro-batches run in halves; passes then take the cheaper of whole and
    halves."""
    cached = _STAGE_TABLES.setdefault(tables, {})
    if sliced not in cached:
        cached[sliced] = StageTables(tables, sliced)
    return cached[sliced]


def _padded(boundaries: Sequence[Boundary], units: Sequence[OptionTable]) -> tuple[Integers, Integers]:
    """Collect the costs of every interface state (layout of activations) at all boundaries between units (sub-layers), so that
    equal states can be found. Returns two tables: one row for each state in which a unit is left, and one row for each state in
    which a unit is entered. Boundaries with fewer states are filled up with FORBIDDEN (infinite).

    boundaries: each kind of boundary. units: the options of each kind of unit."""
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


def _row_kinds(rows: Integers) -> Indices:
    """Number the distinct rows of a table by first appearance; returns the number of each row, (rows,). Rows a, b, a -> [0, 1,
    0]."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)], np.intp)


def undominated_options(table: OptionTable) -> Indices:
    """The indices of the options of a unit (sub-layer) that no other option dominates, where an option dominates another with
    the same interface states (layouts of activations in which the unit is entered and left) if it is at most as high in all
    times and bytes. table: all options of the unit."""
    return _undominated(table.enter, table.leave, _costs(table))


def _costs(table: OptionTable) -> Integers:
    """Stack all costs by which the S options of a unit (sub-layer) are compared, times in ns and bytes: (columns, S). table:
    the unit's options."""
    works = ("work_forward_bytes", "work_backward_bytes")
    columns = [getattr(table, name) for name in (*TIMES, *BYTES) if name not in works]
    columns.append(table.work_bytes)
    if table.halved is not None:
        columns += [*table.halved.forward_ns, table.halved.backward_ns]
    return np.stack(columns)


def _undominated(enter: Indices, leave: Indices, columns: Integers) -> Indices:
    """Pareto filter: the indices of the options that no other option with the same interface states (layouts of activations)
    equals or undercuts in all columns; of equal options the first. enter, leave: (S,), for the S options the states in which
    each option is entered and left. columns: (columns, S), costs.
    """
    count = columns.shape[1]
    alike = (enter[:, None] == enter) & (leave[:, None] == leave)
    beaten = np.zeros(count, bool)
    below = alike & (columns[:, :, None] <= columns[:, None, :]).all(axis=0)  # [i, j]: i is at most j everywhere
    equal = below & below.T
    first = np.arange(count)[:, None] < np.arange(count)
    beaten = ((below & ~equal) | (equal & first)).any(axis=0)
    return np.flatnonzero(~beaten)
