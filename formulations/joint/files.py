"""Instances and solutions of the joint problem in files: equal tables stand once, columns of zeros are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.instances import InstanceFile, Integers, check_length, check_sums
from trainplan.formulations.joint.problem import (
    STEPS,
    Configuration,
    DeviceClass,
    Instance,
    Reduction,
    Schedule,
    Site,
    Solution,
    Step,
    Unit,
)
from trainplan.formulations.joint.tables import (
    BYTES,
    COLUMNS,
    FORBIDDEN,
    TIMES,
    Boundary,
    Halved,
    Option,
    OptionTable,
    Tables,
    Tied,
)
from trainplan.formulations.step.schedules import most_sliced
from trainplan.formulations.strategies import parse_strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, parse
from trainplan.profiling.clusters.network import Network

assert STEPS
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=0, le=FORBIDDEN)]
Matrix = list[list[Whole]]
Made = TypeVar("Made")


class OptionRecord(Record):
    """An option. strategy: as plans have it, where it is one of theirs."""

    name: Annotated[str, Field(min_length=1)]
    strategy: str | None = None


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
        for place, option in enumerate(self.options):
            if option.strategy is not None:
                parse_strategy(option.strategy, "", f"{where}.options[{place}].strategy")
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
        for name in _MATRICES:
            _check_matrix(f"{where}.{name}", getattr(self, name), rows, columns)
        for name in _MESSAGES:
            matrices = getattr(self, name)
            if matrices is not None and len(matrices) < links:
                raise InputError("", f"{where}.{name}", f"has {len(matrices)} matrices", f"give {links}, one for each link")
            for link, matrix in enumerate(matrices or []):
                _check_matrix(f"{where}.{name}[{link}]", matrix, rows, columns)


_RELAYOUTS = ("relayout_forward_ns", "relayout_backward_ns", "halved_relayout_forward_ns", "halved_relayout_backward_ns")
_MATRICES = (*_RELAYOUTS, "message_forward_bytes", "message_backward_bytes")
_MESSAGES = ("message_forward_ns", "message_backward_ns", "halved_message_forward_ns")


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


class ScheduleRecord(Record):
    """The order of passes."""

    name: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    sliced: Count = 0
    chunks: Annotated[int, Field(ge=1)] = 1


class SiteRecord(Record):
    """The devices of a stage, by class, and the place of its tables among those of its configuration."""

    devices: list[Count]
    kind: Count = 0


class ReductionRecord(Record):
    """One all-reduce of all gradients of a stage, among these devices."""

    network: Network
    devices: Annotated[list[Count], Field(min_length=1)]


class ConfigurationRecord(Record):
    """A schedule, micro-batches, sites, and the places of their tables in the file."""

    schedule: ScheduleRecord = Field(default_factory=ScheduleRecord)
    micro_batches: Annotated[int, Field(ge=1, le=10**6)]
    sites: Annotated[list[SiteRecord], Field(min_length=1, max_length=2**16)]
    links: list[Count]
    tables: Annotated[list[Count], Field(min_length=1)]
    tied: Count | None = None
    cuts: list[Count] | None = None
    reduction: ReductionRecord | None = None


class ClassRecord(Record):
    """Devices that may stand for each other."""

    name: str
    count: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    host_bytes: Annotated[int, Field(gt=0, le=2**48)] | None = None


class UnitRecord(Record):
    """What is cut and chosen as one."""

    name: str
    kind: Count
    first: Count
    last: Count


class InstanceRecord(InstanceFile):
    """The file format of a joint instance, version 1."""

    problem: Literal["joint"]
    classes: Annotated[list[ClassRecord], Field(min_length=1)]
    batch: Annotated[int, Field(ge=1, le=10**9)]
    units: Annotated[list[UnitRecord], Field(min_length=1, max_length=10_000)]
    boundary_kinds: list[Count]
    cuttable: list[bool]
    step: Step = "simulated"
    reserve_bytes: Annotated[int, Field(ge=0, le=2**48)] = 0
    tables: Annotated[list[TablesRecord], Field(min_length=1)]
    ties: list[TiedRecord] = Field(default_factory=list)
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        for name in ("boundary_kinds", "cuttable"):
            check_length(name, getattr(self, name), len(self.units) - 1, "one for each boundary of two units")
        for place, tables in enumerate(self.tables):
            self._check_tables(f"tables[{place}]", place, tables)
        for place, tied in enumerate(self.ties):
            if tied.once is not None:
                tied.once.check(f"ties[{place}].once")
        for place, configuration in enumerate(self.configurations):
            self._check_configuration(f"configurations[{place}]", configuration)
        return self

    def _check_tables(self, where: str, place: int, tables: TablesRecord) -> None:
        for name, entries, kinds in (
            ("units", tables.units, [unit.kind for unit in self.units]),
            ("boundaries", tables.boundaries, self.boundary_kinds),
        ):
            if kinds and max(kinds) >= len(entries):
                raise InputError("", f"{where}.{name}", f"has {len(entries)} entries", f"give {max(kinds) + 1}, one a kind")
        for number, table in enumerate(tables.units):
            table.check(f"{where}.units[{number}]")
        users = [each for each in self.configurations if place in each.tables]
        links = max((link for each in users for link in each.links), default=-1) + 1
        for kind, record in enumerate(tables.boundaries):
            pairs = [l for l, each in enumerate(self.boundary_kinds) if each == kind]
            before = max((tables.units[self.units[l].kind].largest("leave") for l in pairs), default=-1) + 1
            after = max((tables.units[self.units[l + 1].kind].largest("enter") for l in pairs), default=-1) + 1
            record.check(f"{where}.boundaries[{kind}]", before, after, links)

    def _check_configuration(self, where: str, record: ConfigurationRecord) -> None:
        stages, units = len(record.sites) * record.schedule.chunks, len(self.units)
        self._check_schedule(f"{where}.schedule", record)
        if stages > units:
            raise InputError("", f"{where}.sites", f"are of {stages} stages", f"give at most {units}, one for each unit")
        check_length(f"{where}.links", record.links, stages - 1, "one for each two stages that follow each other")
        if self.batch % record.micro_batches:
            fix = f"give a divisor of {self.batch}"
            raise InputError("", f"{where}.micro_batches", f"is {record.micro_batches}", fix)
        for place in record.tables:
            if place >= len(self.tables):
                raise InputError("", f"{where}.tables", f"has {place}", f"give 0 to {len(self.tables) - 1}")
            lacking = record.schedule.sliced and any(table.halved is None for table in self.tables[place].units)
            if lacking:
                raise InputError("", f"tables[{place}]", "lacks `halved`", "add it: a schedule is sliced")
        for number, site in enumerate(record.sites):
            check_length(f"{where}.sites[{number}].devices", site.devices, len(self.classes), "one for each class")
            if site.kind >= len(record.tables) or not sum(site.devices):
                fix = f"give kinds 0 to {len(record.tables) - 1}, and at least one device"
                raise InputError("", f"{where}.sites[{number}]", f"is of kind {site.kind}", fix)
        if record.tied is not None and record.tied >= len(self.ties):
            raise InputError(
                "", f"{where}.tied", f"is {record.tied}", f"give a place of ties, of which there are {len(self.ties)}"
            )
        if record.reduction is not None and not record.reduction.network.reaches(max(record.reduction.devices) + 1):
            fix = "give an island that holds them"
            raise InputError("", f"{where}.reduction.network", "does not reach all devices", fix)
        if record.cuts is not None:
            check_length(f"{where}.cuts", record.cuts, stages - 1, "the first unit of every stage but the first")
        if record.cuts is not None and not all(a < b for a, b in pairwise((0, *record.cuts, units))):
            raise InputError("", f"{where}.cuts", f"is {record.cuts}", f"give rising numbers of 1 to {units - 1}")
        self._check_sums(where, record)

    def _check_schedule(self, where: str, record: ConfigurationRecord) -> None:
        schedule, sites, m = record.schedule, len(record.sites), record.micro_batches
        if (name := schedule.name) != "interleaved" and schedule.chunks > 1:
            raise InputError("", f"{where}.chunks", f"is {schedule.chunks}", f"give 1: {name} has one")
        most = most_sliced(sites, m) if name == "1f1b" else 0
        if schedule.sliced > most:
            fix = f"give at most {most}: {name} with {sites} sites and {m} micro-batches can use no more"
            raise InputError("", f"{where}.sliced", f"is {schedule.sliced}", fix)
        if name == "interleaved" and m % sites:
            fix = f"give a multiple of the {sites} sites"
            raise InputError("", f"{where.removesuffix('schedule')}micro_batches", f"is {m}, interleaved", fix)

    def _check_sums(self, where: str, record: ConfigurationRecord) -> None:
        tables = [self.tables[place] for place in record.tables]
        every = [table for each in tables for table in each.units]
        if record.tied is not None and (once := self.ties[record.tied].once) is not None:
            every.append(once)
        longest = max(sum(table.largest(name) for name in TIMES) for table in every)
        moves = [ns for each in tables for boundary in each.boundaries for ns in _allowed(boundary)]
        sent = [n for each in tables for boundary in each.boundaries for n in _message_bytes(boundary)]
        fullest = max(sum(table.largest(name) for name in BYTES) for table in every) + 2 * max(sent, default=0)
        count = record.micro_batches * len(self.units)
        time = count * (longest + 4 * max(moves, default=0))
        check_sums(f"{where}.micro_batches", record.micro_batches, f"{len(self.units)} units", time, count * fullest)


def _allowed(record: BoundaryRecord) -> list[int]:
    """The numbers of a boundary that a solution may have."""
    matrices = [getattr(record, name) or [] for name in _RELAYOUTS]
    matrices += [matrix for name in _MESSAGES for matrix in getattr(record, name) or []]
    return [ns for matrix in matrices for row in matrix for ns in row if ns < FORBIDDEN]


def _message_bytes(record: BoundaryRecord) -> list[int]:
    matrices = record.message_forward_bytes or [], record.message_backward_bytes or []
    return [size for matrix in matrices for row in matrix for size in row]


class SolutionRecord(Record):
    """The file format of a solution: the configuration, the first unit of every stage but the first, every unit's option."""

    configuration: Count
    cuts: list[Annotated[int, Field(ge=1)]]
    choice: list[Count]


def load_solution(source: Source) -> Solution:
    """A solution from a file or a dict. Raises InputError."""
    record = parse(source, SolutionRecord, "solution" if isinstance(source, Mapping) else None)
    return Solution(record.configuration, tuple(record.cuts), tuple(record.choice))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its file format."""
    return {
        "configuration": int(solution.configuration),
        "cuts": [int(cut) for cut in solution.cuts],
        "choice": [int(s) for s in solution.choice],
    }


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
    tables, ties = [_tables(each) for each in record.tables], [_tied(each) for each in record.ties]
    return Instance(
        classes=tuple(DeviceClass(**each.model_dump()) for each in record.classes),
        batch=record.batch,
        units=tuple(Unit(**each.model_dump()) for each in record.units),
        boundary_kinds=tuple(record.boundary_kinds),
        cuttable=tuple(record.cuttable),
        step=record.step,
        reserve_bytes=record.reserve_bytes,
        configurations=tuple(
            Configuration(
                schedule=Schedule(**each.schedule.model_dump()),
                micro_batches=each.micro_batches,
                sites=tuple(Site(tuple(site.devices), site.kind) for site in each.sites),
                links=tuple(each.links),
                make_tables=partial(tuple, [tables[place] for place in each.tables]),
                make_tied=partial(_present, None if each.tied is None else ties[each.tied]),
                cuts=None if each.cuts is None else tuple(each.cuts),
                reduction=None if each.reduction is None else Reduction(each.reduction.network, tuple(each.reduction.devices)),
            )
            for each in record.configurations
        ),
        **record.labels,
    )


def _present(value: Made) -> Made:
    return value


def _table(record: TableRecord) -> OptionTable:
    options = [Option(each.name, None if each.strategy is None else parse_strategy(each.strategy)) for each in record.options]
    halved = None
    if record.halved is not None:
        arrays = np.array(record.halved.forward_ns, np.int64), np.array(record.halved.backward_ns, np.int64)
        halved = Halved(forward_ns=arrays[0], backward_ns=arrays[1])
    return OptionTable.of(options, halved, **record.columns)


def _tables(record: TablesRecord) -> Tables:
    return Tables(
        units=tuple(map(_table, record.units)),
        boundaries=tuple(map(_boundary, record.boundaries)),
        states=tuple(record.states),
    )


def _boundary(record: BoundaryRecord) -> Boundary:
    shape = np.array(record.relayout_forward_ns, np.int64).shape
    matrices = {name: _array(getattr(record, name), shape) for name in _MATRICES}
    messages = {name: _array(value, (len(value or []), *shape)) for name in _MESSAGES for value in [getattr(record, name)]}
    return Boundary(relayout_at_cut=record.relayout_at_cut, **matrices, **messages)


def _array(numbers: list[Any] | None, shape: tuple[int, ...]) -> Any:
    """Numbers of a file as an array, also where there are none of them; None as it is."""
    return None if numbers is None else np.array(numbers, np.int64).reshape(shape)


def _tied(record: TiedRecord) -> Tied:
    equal = None if record.equal is None else np.array(record.equal, bool)
    return Tied(reduce_ns=record.reduce_ns, equal=equal, once=None if record.once is None else _table(record.once))


# Writing


def instance_dict(instance: Instance) -> dict[str, Any]:
    """An instance in its file format."""
    tables, ties = _Once(_tables_dict), _Once(_tied_dict)
    configurations = [
        {
            "schedule": {"name": each.schedule.name, "sliced": each.schedule.sliced, "chunks": each.schedule.chunks},
            "micro_batches": each.micro_batches,
            "sites": [{"devices": list(site.devices), "kind": site.kind} for site in each.sites],
            "links": list(each.links),
            "tables": [tables.place(table) for table in each.tables],
            "tied": None if each.tied is None else ties.place(each.tied),
            "cuts": None if each.cuts is None else list(each.cuts),
            **({} if each.reduction is None else {"reduction": each.reduction.to_dict()}),
        }
        for each in instance.configurations
    ]
    return {
        **instance.header,
        "classes": [vars(each) for each in instance.classes],
        "batch": instance.batch,
        "units": [vars(each) for each in instance.units],
        "boundary_kinds": list(instance.boundary_kinds),
        "cuttable": list(instance.cuttable),
        "step": instance.step,
        "reserve_bytes": instance.reserve_bytes,
        "tables": tables.written,
        "ties": ties.written,
        "configurations": configurations,
    }


class _Once:
    """Records that are written once, however often they are used. (Equal ones are one object.)"""

    def __init__(self, write: Any) -> None:
        self._write, self.written = write, list[dict[str, Any]]()
        self._places: dict[int, int] = {}

    def place(self, record: Any) -> int:
        """The place of a record among those written."""
        if id(record) not in self._places:
            self._places[id(record)] = len(self.written)
            self.written.append(self._write(record))
        return self._places[id(record)]


def _tables_dict(tables: Tables) -> dict[str, Any]:
    boundaries = [
        {name: value.tolist() for name in (*_MATRICES, *_MESSAGES) if (value := getattr(each, name)) is not None}
        | ({} if each.relayout_at_cut else {"relayout_at_cut": False})
        for each in tables.boundaries
    ]
    return {"units": list(map(_table_dict, tables.units)), "boundaries": boundaries, "states": list(tables.states)}


def _table_dict(table: OptionTable) -> dict[str, Any]:
    columns: dict[str, Integers] = {name: getattr(table, name) for name in COLUMNS}
    fields: dict[str, Any] = {
        "options": [
            {"name": option.name, "strategy": None if option.strategy is None else str(option.strategy)}
            for option in table.options
        ],
        "columns": {name: column.tolist() for name, column in columns.items() if column.any()},
    }
    if table.halved is not None:
        halved: Sequence[Any] = table.halved.forward_ns.tolist(), table.halved.backward_ns.tolist()
        fields["halved"] = dict(zip(("forward_ns", "backward_ns"), halved, strict=True))
    return fields


def _tied_dict(tied: Tied) -> dict[str, Any]:
    fields: dict[str, Any] = {"reduce_ns": tied.reduce_ns}
    if tied.equal is not None and tied.once is not None:
        fields |= {"equal": tied.equal.tolist(), "once": _table_dict(tied.once)}
    return fields
