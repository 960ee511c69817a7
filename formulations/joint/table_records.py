"""The file format of the joint problem's tables: options, boundaries, and tables that both ends of a pipeline share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from trainplan.formulations.joint.tables import COLUMNS, FORBIDDEN, HostPart
from trainplan.formulations.numbers import check_length
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record

Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=0, le=FORBIDDEN)]
Matrix = list[list[Whole]]


class OptionRecord(Record):
    """An option. strategy: as plans have it, where it is one of theirs; host: what of it is there."""

    name: Annotated[str, Field(min_length=1)]
    strategy: str | None = None
    host: list[HostPart] = Field(default_factory=list)


class HalvedRecord(Record):
    """Passes on a micro-batch in two halves, by option: forward by half, backward of both."""

    forward_ns: Annotated[list[list[Whole]], Field(min_length=2, max_length=2)]
    backward_ns: list[Whole]


class TableRecord(Record):
    """The options of one kind of unit. columns: by name, one number for each option; those left out are 0."""

    options: Annotated[list[OptionRecord], Field(min_length=1)]
    columns: dict[str, list[Whole]]
    halved: HalvedRecord | None = None

    def check(self, where: str) -> None:
        """Raises InputError where a column is none, or has not one number for each option."""
        count = len(self.options)
        if len({option.name for option in self.options}) < count:
            raise InputError("", f"{where}.options", "have one name twice", "give each option its own name")
        for name, column in self.columns.items():
            if name not in COLUMNS:
                raise InputError("", f"{where}.columns", f"has {name!r}", f"give some of: {', '.join(COLUMNS)}")
            check_length(f"{where}.columns.{name}", column, count, "one for each option")
        for index, option in enumerate(self.options):
            if option.strategy is not None:
                parse_strategy(option.strategy, "", f"{where}.options[{index}].strategy")
        if self.halved is not None:
            for half, row in enumerate(self.halved.forward_ns):
                check_length(f"{where}.halved.forward_ns[{half}]", row, count, "one for each option")
            check_length(f"{where}.halved.backward_ns", self.halved.backward_ns, count, "one for each option")

    def largest(self, name: str) -> int:
        """The largest number of a column."""
        return max(self.columns.get(name, [0]))


class BoundaryRecord(Record):
    """One kind of boundary: a row for each state before it, in it one number for each state after; messages by kind of link."""

    relayout_forward_ns: Matrix
    relayout_backward_ns: Matrix
    message_forward_ns: list[Matrix]
    message_backward_ns: list[Matrix]
    message_forward_bytes: Matrix | None = None
    message_backward_bytes: Matrix | None = None
    halved_relayout_forward_ns: Matrix | None = None
    halved_relayout_backward_ns: Matrix | None = None
    halved_message_forward_ns: list[Matrix] | None = None
    relayout_at_cut: bool = True

    def check(self, where: str, before: int, after: int, links: int) -> None:
        """Raises InputError where a matrix is too small. before, after: states that there must be; links: kinds of link."""
        shape = self.relayout_forward_ns
        rows, columns = len(shape), len(shape[0]) if shape else 0
        for name, count, least, what in (("rows", rows, before, "before"), ("columns", columns, after, "after")):
            if count < least:
                fix = f"give {least}, one for each state {what}"
                raise InputError("", f"{where}.relayout_forward_ns", f"has {count} {name}", fix)
        for name in MATRICES:
            _check_matrix(f"{where}.{name}", getattr(self, name), rows, columns)
        for name in MESSAGES:
            matrices = getattr(self, name)
            if matrices is not None and len(matrices) < links:
                raise InputError("", f"{where}.{name}", f"has {len(matrices)} matrices", f"give {links}, one for each link")
            for link, matrix in enumerate(matrices or []):
                _check_matrix(f"{where}.{name}[{link}]", matrix, rows, columns)


RELAYOUTS = ("relayout_forward_ns", "relayout_backward_ns", "halved_relayout_forward_ns", "halved_relayout_backward_ns")
MATRICES = (*RELAYOUTS, "message_forward_bytes", "message_backward_bytes")
MESSAGES = ("message_forward_ns", "message_backward_ns", "halved_message_forward_ns")


def _check_matrix(where: str, matrix: Matrix | None, rows: int, columns: int) -> None:
    if matrix is None:
        return
    check_length(where, matrix, rows, "as relayout_forward_ns has", "rows")
    for row, numbers in enumerate(matrix):
        check_length(f"{where}[{row}]", numbers, columns, "as relayout_forward_ns has")


class TablesRecord(Record):
    """What one kind of site costs with one size of micro-batch."""

    units: Annotated[list[TableRecord], Field(min_length=1)]
    boundaries: list[BoundaryRecord]
    states: list[str] = Field(default_factory=list)


class TiedRecord(Record):
    """A table that the first and the last unit share. equal: by their options, whether it may be one parameter, in one stage;
    once: the last unit's options then."""

    reduce_ns: Whole
    equal: list[list[bool]] | None = None
    once: TableRecord | None = None

    @model_validator(mode="after")
    def _both(self) -> TiedRecord:
        if (self.equal is None) != (self.once is None):
            raise InputError("", "once", "and equal are not both there", "give both, or none")
        return self


def allowed_ns(record: BoundaryRecord) -> list[int]:
    """The numbers of a boundary that a solution may have."""
    matrices = [getattr(record, name) or [] for name in RELAYOUTS]
    matrices += [matrix for name in MESSAGES for matrix in getattr(record, name) or []]
    return [ns for matrix in matrices for row in matrix for ns in row if ns < FORBIDDEN]


def message_bytes(record: BoundaryRecord) -> list[int]:
    """The sizes of messages over a boundary."""
    matrices = record.message_forward_bytes or [], record.message_backward_bytes or []
    return [size for matrix in matrices for row in matrix for size in row]
