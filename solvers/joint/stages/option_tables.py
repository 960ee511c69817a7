"""The options of one kind of site, made ready for search: without dominated ones, by interface cells, with cheapest messages.

What a stage costs one micro-batch is u = f + b, its two passes with the messages and re-layouts that it receives; what it adds
once, g = l + reduce + optimizer, after the last micro-batch. A stage alone does not know its neighbours' interface states: its
messages are the cheapest over those, which bounds them from below.
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
    """The S options of one kind of unit that no other one beats, in arrays (S,).

    places: their numbers in the formulation's table. enter, leave: merged interface states, those of equal links being one.
    u_ns: both passes; extra_ns: what comes once; first_ns, final_ns: added to u where the unit is a stage's first or last.
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
        """What each option takes for the whole step with so many micro-batches in flight, of which one is stacked apart."""
        return self.state + in_flight * self.held + (in_flight - 1) * self.kept


@dataclass(frozen=True, eq=False)
class Crossing:
    """What crosses one kind of boundary, by merged states: (D, E), and (K, D, E) by the kind of link, as `Boundary` has it."""

    forward_ns: Integers
    backward_ns: Integers
    halved_forward_ns: Integers
    halved_backward_ns: Integers
    message_forward_ns: Integers
    message_backward_ns: Integers
    halved_message_ns: Integers


class StageTables:
    """All kinds of units and boundaries of one `Tables`.

    cell_enter, cell_leave: (C,), how each interface cell is entered and left. moves: (Q, D, E), re-layout of both passes;
    infinite where states do not agree. forward, backward: (Q, K, D, E), message and re-layout that crosses a cut each way.
    left, entered: the states in which any option leaves, and enters.
    """

    def __init__(self, tables: Tables, sliced: bool = False) -> None:
        """sliced: some micro-batches go in two halves, others whole; then u counts the cheaper of both ways, piece by piece."""
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
        self.ways_in, self.ways_out = shape[1], shape[0]
        self.links = links

    def _kind(self, table: OptionTable) -> KindOptions:
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
        """By kind, the cell of each option (S,)."""
        number = {pair: cell for cell, pair in enumerate(zip(self.cell_enter.tolist(), self.cell_leave.tolist(), strict=True))}
        return tuple(
            np.array([number[pair] for pair in zip(kind.enter.tolist(), kind.leave.tolist(), strict=True)], np.intp)
            for kind in self.kinds
        )

    def by_cell(self, kind: int, values: Floats) -> Floats:
        """The least value of each cell's options of a kind: (.., S) to (.., C); infinite where the kind has none there."""
        cell_of = self.cells_of[kind]
        order = np.argsort(cell_of, kind="stable")
        cells, starts = np.unique(cell_of[order], return_index=True)
        least = np.full((*values.shape[:-1], len(self.cell_enter)), np.inf)
        least[..., cells] = np.minimum.reduceat(values[..., order], starts, axis=-1)
        return least

    @cached_property
    def left_order(self) -> tuple[Indices, Indices, Indices]:
        """Cells sorted by how they are left, where each such group begins, and the ways out that there are."""
        order = np.argsort(self.cell_leave, kind="stable")
        ways, starts = np.unique(self.cell_leave[order], return_index=True)
        return order, starts, ways

    def by_leave(self, values: Floats, axis: int = -1) -> Floats:
        """The least value of the cells that are left in each way: of the axis of cells, (C), makes one of (D)."""
        order, starts, ways = self.left_order
        least: Floats = values.take(order, axis)
        if len(ways) < len(order):
            least = np.minimum.reduceat(least, starts, axis)
        if len(ways) == self.ways_out:
            return least
        spread = np.full((*values.shape[:axis], self.ways_out, *values.shape[axis:][1:]), np.inf)
        np.moveaxis(spread, axis, 0)[ways] = np.moveaxis(least, axis, 0)
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
    """Cuts by the interface states on both sides: each class holds some states to leave in and some to enter in.

    Together the classes hold all pairs of states, so bounds of stages by the classes around them bound all pipelines. entries:
    (Q, K, G, E), what a stage receives forward at least that is entered in each state of the class, over the class's states
    before it, infinite for other states; exits: (Q, K, G, D), the same backward of a stage that is left in each state.
    """

    entries: Floats
    exits: Floats

    @property
    def count(self) -> int:
        """The number of classes, G."""
        return self.entries.shape[2]


def cut_classes(tables: StageTables, most: int) -> CutClasses:
    """Classes of states that send alike: at most so many groups of states on either side of a cut, by what a message forward
    takes from the states before it, and a message backward from those after it."""
    before = _grouped(tables.forward.min(axis=3, initial=np.inf).reshape(-1, tables.ways_out).T, tables.left, most)
    after = _grouped(tables.backward.min(axis=2, initial=np.inf).reshape(-1, tables.ways_in).T, tables.entered, most)
    entries, exits = [], []
    for lefts in before:
        for enters in after:
            inside = lefts[:, None] & enters
            entries.append(np.where(inside, tables.forward, np.inf).min(axis=2, initial=np.inf))
            exits.append(np.where(inside, tables.backward, np.inf).min(axis=3, initial=np.inf))
    return CutClasses(np.stack(entries, axis=2), np.stack(exits, axis=2))


def _grouped(values: Floats, present: NDArray[np.bool_], most: int) -> list[NDArray[np.bool_]]:
    """States, as masks, in at most so many groups of similar values: (states, ..)."""
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
    """The tables made ready, once for all configurations that share them."""
    cached = _STAGE_TABLES.setdefault(tables, {})
    if sliced not in cached:
        cached[sliced] = StageTables(tables, sliced)
    return cached[sliced]


def _padded(boundaries: Sequence[Boundary], units: Sequence[OptionTable]) -> tuple[Integers, Integers]:
    """What every interface state meets at all boundaries, as a row for each way to leave and for each way to enter."""
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
    """The number of each row's kind, equal rows being of one kind; counted in the order of first rows."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)], np.intp)


def undominated_options(table: OptionTable) -> Indices:
    """The options of a table that no other one beats, by its own interface states."""
    return _undominated(table.enter, table.leave, _costs(table))


def _costs(table: OptionTable) -> Integers:
    """(columns, S): all that an option costs."""
    works = ("work_forward_bytes", "work_backward_bytes")
    columns = [getattr(table, name) for name in (*TIMES, *BYTES) if name not in works]
    columns.append(table.work_bytes)
    if table.halved is not None:
        columns += [*table.halved.forward_ns, table.halved.backward_ns]
    return np.stack(columns)


def _undominated(enter: Indices, leave: Indices, columns: Integers) -> Indices:
    """Options that no other one of their interface states is at most in all columns (columns, S); of equal ones the first."""
    count = columns.shape[1]
    alike = (enter[:, None] == enter) & (leave[:, None] == leave)
    beaten = np.zeros(count, bool)
    below = alike & (columns[:, :, None] <= columns[:, None, :]).all(axis=0)  # [i, j]: i is at most j everywhere
    equal = below & below.T
    first = np.arange(count)[:, None] < np.arange(count)
    beaten = ((below & ~equal) | (equal & first)).any(axis=0)
    return np.flatnonzero(~beaten)
