"""The costs of units under their options: whole nanoseconds and bytes, in arrays by field.

An option is one way to run a unit on the devices of its stage: how it is parallelised, what is recomputed, where states live.
An option matters to its neighbours only through the interface state in which a unit takes its input (`enter`) and leaves its
output (`leave`): hidden states between two units are re-laid from one state to the other, and where a stage begins they are
sent first. So the link between options is a matrix by states, and options of equal states are equal to their neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema
from trainplan.formulations.numbers import ArrayOf, Integers, check_length
from trainplan.formulations.plan.strategy import Strategy, parse_strategy
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items, ReadAs, written
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record

FORBIDDEN = 1 << 53
"""The time of a link between interface states that do not agree: no solution has it."""

TIMES = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns", "head_ns", "turn_ns", "tail_ns")
BYTES = ("kept_bytes", "held_bytes", "work_forward_bytes", "work_backward_bytes", "state_bytes", "host_bytes")


Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=0, le=FORBIDDEN)]
Row = Annotated[Integers, ArrayOf(Whole)]
Matrix = Annotated[Integers, ArrayOf(Whole, 2)]
Matrices = Annotated[Integers, ArrayOf(Whole, 3)]

HostPart = Literal["optimizer", "parameters", "hidden"]
HOST_PARTS: tuple[HostPart, ...] = get_args(HostPart)


@dataclass(frozen=True)
class Option(DataclassRecord):
    """One way to run a unit (a sub-layer, or several that are chosen together). name: unique in its table. strategy: its
    parallelism and recomputation as plans have them; None for options of no plan. host: the parts of the unit that are on the
    host, in the order of HOST_PARTS: `optimizer` (with gradients and optimizer states), `parameters`, `hidden` (the unit's
    input)."""

    name: Annotated[str, Field(min_length=1)]
    strategy: Annotated[Strategy, ReadAs(str, parse_strategy)] | None = None
    host: Items[HostPart] = ()

    optional = ("host",)

    @classmethod
    def of(cls, strategy: Strategy, host: tuple[HostPart, ...] = ()) -> Option:
        """The option with a strategy and parts on the host, under the name that users read, such as `dp8-ckpt, input on the
        host`. host: the parts on the host."""
        words = " and ".join(host).replace("hidden", "input")
        return cls(f"{strategy}, {words} on the host" if host else str(strategy), strategy, host)


@dataclass(frozen=True, eq=False, kw_only=True)
class OptionTable:
    """The S options (ways to run it) of one kind of unit, a sub-layer or layer, on one kind of device group, for one size of
    micro-batch. Every array has shape (S,). An interface state, numbered from 0, says how ranks share the hidden states that go
    into or out of a unit.

    forward_ns, backward_ns: the passes of one micro-batch. last_ns: the additional time of the last micro-batch's backward
    pass. reduce_ns, optimizer_ns: the work after the stage's last backward pass, before and after the sum of a shared weight
    table's gradients; together `end_ns`. head_ns: added to the forward pass of a stage that begins with the unit; tail_ns:
    added to its backward pass. turn_ns: added to the backward pass of a stage that ends with the unit.

    kept_bytes: kept for a micro-batch from the unit's forward pass to its backward pass, stacked (O_f of Galvatron's Eq. 2).
    held_bytes: held for a micro-batch as long as it is in flight on the stage. work_forward_bytes, work_backward_bytes: added
    while the unit's pass runs. state_bytes: held during the whole step; host_bytes: on the host during the whole step.
    gradient_bytes: the bytes of gradients, where a stage reduces all of them together (`Configuration.reduction`).

    enter, leave: the interface states of input and output. halved: the passes of a micro-batch in two halves, where the
    schedule is sliced; else None.
    """

    options: tuple[Option, ...]
    enter: Integers
    leave: Integers
    forward_ns: Integers
    backward_ns: Integers
    last_ns: Integers
    reduce_ns: Integers
    optimizer_ns: Integers
    head_ns: Integers
    turn_ns: Integers
    tail_ns: Integers
    kept_bytes: Integers
    held_bytes: Integers
    work_forward_bytes: Integers
    work_backward_bytes: Integers
    state_bytes: Integers
    host_bytes: Integers
    gradient_bytes: Integers
    halved: Halved | None = None

    @classmethod
    def of(cls, options: Sequence[Option], halved: Halved | None = None, **columns: Any) -> OptionTable:
        """A table from some of its columns. options: the S options. halved: the passes in halves, None if there are none.
        columns: by name, arrays or lists of S whole numbers; a column that is not given is all 0."""
        arrays = {name: np.asarray(columns.get(name, np.zeros(len(options))), np.int64) for name in COLUMNS}
        assert set(columns) <= set(COLUMNS)
        return cls(options=tuple(options), halved=halved, **arrays)

    @cached_property
    def end_ns(self) -> Integers:
        """(S,): for each option, the work in ns after the stage's last backward pass, `reduce_ns` + `optimizer_ns`."""
        return self.reduce_ns + self.optimizer_ns

    @cached_property
    def work_bytes(self) -> Integers:
        """(S,): for each option, the bytes added while one of the unit's passes runs, the larger of forward and backward
        pass."""
        return np.maximum(self.work_forward_bytes, self.work_backward_bytes)

    def with_more(self, more_bytes: int) -> OptionTable:
        """A copy of the table in which every option needs `more_bytes` more bytes while its forward or backward pass runs."""
        forward, backward = self.work_forward_bytes + more_bytes, self.work_backward_bytes + more_bytes
        return replace(self, work_forward_bytes=forward, work_backward_bytes=backward)

    def keep(self, options: Sequence[int]) -> OptionTable:
        """The table reduced to some of its options. options: the indices of the options to keep, in the order that they then
        have."""
        chosen = list(options)
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        halved = None if self.halved is None else self.halved.keep(chosen)
        return OptionTable(options=tuple(self.options[s] for s in chosen), halved=halved, **columns)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def table(record: TableRecord) -> OptionTable:
            return cls.of(record.options, record.halved, **record.columns)

        return core_schema.no_info_after_validator_function(table, handler.generate_schema(TableRecord))

    def to_dict(self) -> dict[str, Any]:
        """The table in its JSON file format: the options, the columns that are not all 0, by name, and the passes in halves if
        there are any."""
        columns = {name: column.tolist() for name in COLUMNS if (column := getattr(self, name)).any()}
        halved = {} if self.halved is None else {"halved": self.halved.to_dict()}
        return {"options": written(self.options), "columns": columns, **halved}


COLUMNS = ("enter", "leave", *TIMES, *BYTES, "gradient_bytes")


class TableRecord(Record):
    """An `OptionTable` in a file. options: the options, with different names. columns: by name, one number for each option; a
    column that is left out is 0. halved: the passes of a micro-batch in two halves, None if there are none."""

    options: Annotated[Items[Option], Field(min_length=1)]
    columns: dict[str, Row]
    halved: Halved | None = None

    @model_validator(mode="after")
    def _lengths(self) -> TableRecord:
        """Check the table after a file is read. Returns it; raises InputError if a name occurs twice or is unknown, or a
        column has another length than the options."""
        count, meaning = len(self.options), "one for each option"
        if len({option.name for option in self.options}) < count:
            raise InputError("", "options", "have one name twice", "give each option its own name")
        for name, column in self.columns.items():
            if name not in COLUMNS:
                raise InputError("", "columns", f"has {name!r}", f"give some of: {', '.join(COLUMNS)}")
            check_length(f"columns.{name}", column, count, meaning)
        if self.halved is not None:
            for half, row in enumerate(self.halved.forward_ns):
                check_length(f"halved.forward_ns[{half}]", row, count, meaning)
            check_length("halved.backward_ns", self.halved.backward_ns, count, meaning)
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class Halved(DataclassRecord):
    """The passes in ns of the S options of a unit for a micro-batch that runs in two halves. forward_ns: (2, S), for each half
    and option. backward_ns: (S,), both halves one after the other."""

    forward_ns: Annotated[Matrix, Field(min_length=2, max_length=2)]
    backward_ns: Row

    def keep(self, options: Sequence[int]) -> Halved:
        """The passes of some of the options. options: the indices of the options to keep, in the order that they then have."""
        return Halved(forward_ns=self.forward_ns[:, options], backward_ns=self.backward_ns[options])


RELAYOUTS = ("relayout_forward_ns", "relayout_backward_ns", "halved_relayout_forward_ns", "halved_relayout_backward_ns")
MATRICES = (*RELAYOUTS, "message_forward_bytes", "message_backward_bytes")
MESSAGES = ("message_forward_ns", "message_backward_ns", "halved_message_forward_ns")


@dataclass(frozen=True, eq=False, kw_only=True)
class Boundary(DataclassRecord):
    """The costs of one kind of boundary between two neighbouring units. An interface state says how ranks share hidden states:
    C states are possible before the boundary and D after it; K is the number of kinds of link between stages. A re-layout moves
    hidden states between the ranks of a stage, from one state to another.

    relayout_forward_ns, relayout_backward_ns: (C, D), by the `leave` of the unit before and the `enter` of the unit after: time
    added to the receiving unit's pass where both units lie in one stage and, with `relayout_at_cut`, where a stage begins
    between them. FORBIDDEN where neighbouring units may not have the two states, in either case.

    message_forward_ns, message_backward_ns: (K, C, D), where a stage begins here: the time that the stage after it waits for
    its input once that has been sent, and the stage before it for the gradients. message_forward_bytes, message_backward_bytes:
    (C, D), the sizes of these messages, which count where messages wait for passes, as under the interleaved schedule; None
    stands for 0. The arrays named `halved_` are for half a micro-batch forward (both halves are equal), and for the backward
    re-layouts of both halves together; None if the schedule is not sliced."""

    relayout_forward_ns: Matrix
    relayout_backward_ns: Matrix
    message_forward_ns: Matrices
    message_backward_ns: Matrices
    message_forward_bytes: Matrix | None = None
    message_backward_bytes: Matrix | None = None
    halved_relayout_forward_ns: Matrix | None = None
    halved_relayout_backward_ns: Matrix | None = None
    halved_message_forward_ns: Matrices | None = None
    relayout_at_cut: bool = True

    optional = (*MATRICES[2:], MESSAGES[2], "relayout_at_cut")

    @model_validator(mode="after")
    def _without_links(self) -> Boundary:
        """Give empty message lists of a file, whose stages have no links, the shape (0, C, D); C and D are the numbers of
        interface states before and after the boundary. Returns the boundary itself if it has links."""
        shape = getattr(self.relayout_forward_ns, "shape", None)  # none of lists of unequal lengths
        empty = [name for name in MESSAGES if (matrices := getattr(self, name)) is not None and not len(matrices)]
        if shape is None or not empty:
            return self
        arrays: dict[str, Any] = dict.fromkeys(empty, np.zeros((0, *shape), np.int64))
        return replace(self, **arrays)

    def to_dict(self) -> dict[str, Any]:
        """The boundary in its JSON file format, in which arrays that are None are left out."""
        values = super().to_dict()
        return {name: values[name] for name in (*MATRICES, *MESSAGES, "relayout_at_cut") if name in values}


@dataclass(frozen=True, eq=False, kw_only=True)
class Tied(DataclassRecord):
    """A weight table that the first and the last unit of the model share (embedding and head).

    It is one parameter if both units are in one stage with equal levels of parallelism. Otherwise it is two parameters,
    whose gradients are summed over the ranks of both stages after each stage has reduced its own and before the optimizer.

    equal: (S, T), bool, for the S options of the first unit and the T options of the last: whether the table is one
    parameter. once: the last unit's options, with their costs, if it is one parameter. Both are None if that is impossible,
    as with several stages. reduce_ns: the time in ns to sum the gradients.
    """

    reduce_ns: Whole
    equal: Annotated[np.ndarray, ArrayOf(bool, 2, bool)] | None = None
    once: OptionTable | None = None

    optional = ("equal", "once")

    @model_validator(mode="after")
    def _both(self) -> Tied:
        """Check, after a file is read, that a shared weight table has either both of `equal` and `once` or neither. Returns
        the record; raises InputError otherwise.
        """
        if (self.equal is None) != (self.once is None):
            raise InputError("", "once", "and equal are not both there", "give both, or none")
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables(DataclassRecord):
    """The costs of all units (sub-layers or layers) and boundaries on one kind of device group for one size of micro-batch.
    units: the options for each kind of unit. boundaries: the costs for each kind of boundary between units. states: for users,
    the names of the interface states (how ranks share hidden states), in the order of their numbers."""

    units: Annotated[Items[OptionTable], Field(min_length=1)]
    boundaries: Items[Boundary]
    states: Items[str] = ()  # names of interface states, for people

    def with_more(self, every: int, last: int) -> Tables:
        """A copy of the tables in which passes need more memory. every: bytes of one device that are added while the passes of
        any unit run. last: bytes that are added on top while the passes of the last kind of unit run.
        """
        *others, end = self.units
        return replace(self, units=(*(table.with_more(every) for table in others), end.with_more(every + last)))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256, as 32 bytes, of the names of all options and of all numbers, to tell different tables apart."""
        digest = hashlib.sha256()
        for unit in self.units:
            update(digest, unit)
        for boundary in self.boundaries:
            update(digest, boundary)
        return digest.digest()


def update(digest: hashlib._Hash, record: OptionTable | Boundary | Halved | Tied) -> None:
    """Add all fields of a record of arrays, with shapes and the names of options, to a hash. digest: the hash, which is updated
    in place."""
    for entry in fields(record):
        value = getattr(record, entry.name)
        if isinstance(value, np.ndarray):
            digest.update(repr(value.shape).encode() + np.ascontiguousarray(value, "<i8").tobytes())
        elif isinstance(value, OptionTable | Halved):
            update(digest, value)
        elif entry.name == "options":
            digest.update(json.dumps([option.name for option in value]).encode())
        else:
            digest.update(repr(value).encode())
