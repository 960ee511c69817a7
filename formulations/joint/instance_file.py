"""Instances of the joint problem in files: the format, its checks, reading and writing.

The parts of an instance are read and written by their own classes (`problem`, `tables`). A file differs from an instance in one
way: tables and ties are listed once, and configurations refer to them by their indices, counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    DeviceGroup,
    Instance,
    Reduction,
    Schedule,
    Solution,
    Step,
    Unit,
)
from trainplan.formulations.joint.tables import (
    BYTES,
    FORBIDDEN,
    MATRICES,
    MESSAGES,
    RELAYOUTS,
    TIMES,
    Boundary,
    Count,
    OptionTable,
    Tables,
    Tied,
)
from trainplan.formulations.numbers import check_length, check_sums
from trainplan.formulations.schedule.orders import SCHEDULES, most_sliced
from trainplan.profiling.base.dataclass_records import Items, written
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import plural

PARTS = ("classes", "batch", "units", "boundary_kinds", "cuttable", "step", "reserve_bytes")  # alike in files and instances


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance of the joint problem from a file in its JSON format, or from a dict. where: what error messages call a
    dict. Raises InputError, which names file, field and value, and a value that would work.
    """
    record = parse(source, InstanceRecord, name_of_source(source, where))
    configurations = tuple(
        Configuration(
            schedule=entry.schedule,
            micro_batches=entry.micro_batches,
            device_groups=entry.sites,
            links=entry.links,
            make_tables=partial(tuple, [record.tables[index] for index in entry.tables]),
            make_tied=partial(_itself, None if entry.tied is None else record.ties[entry.tied]),
            cuts=entry.cuts,
            reduction=entry.reduction,
        )
        for entry in record.configurations
    )
    return Instance(**{name: getattr(record, name) for name in PARTS}, configurations=configurations, **record.labels)


def _itself(tied: Tied | None) -> Tied | None:
    """Return `tied`, the costs of a weight table that embedding and head share, unchanged. `partial(_itself, tied)` is a
    function without arguments that, unlike a lambda, can be sent to another process.
    """
    return tied


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict. Raises InputError if it cannot be read or is no
    solution.
    """
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format: configuration, cuts and choice. solution: the chosen configuration, the cuts between
    stages, and an option for every unit.
    """
    return solution.to_dict()


def instance_dict(instance: Instance) -> dict[str, Any]:
    """An instance in its JSON file format. Tables of costs that several configurations (schedule, number of micro-batches and
    device groups) share are written once, and configurations refer to them by index. instance: the configurations to choose
    from, with costs and memory limits.
    """
    tables, ties = _Listed(), _Listed()
    configurations = [
        {
            **written({name: getattr(configuration, name) for name in ("schedule", "micro_batches")}),
            **written({"sites": configuration.device_groups, "links": configuration.links}),
            "tables": [tables.index(table) for table in configuration.tables],
            "tied": None if configuration.tied is None else ties.index(configuration.tied),
            "cuts": written(configuration.cuts),
            **({} if configuration.reduction is None else {"reduction": configuration.reduction.to_dict()}),
        }
        for configuration in instance.configurations
    ]
    lists = {"tables": tables.written, "ties": ties.written, "configurations": configurations}
    return instance.header | written({name: getattr(instance, name) for name in PARTS}) | lists


class _Listed:
    """A list of objects in their JSON file format, in which each object is written exactly once; configurations refer to it by
    its index.
    """

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self._indices: dict[int, int] = {}

    def index(self, record: Tables | Tied) -> int:
        """The index of an object in the list; the object is added to the list if it is new. Two objects with equal values have
        two indices."""
        if id(record) not in self._indices:
            self._indices[id(record)] = len(self.written)
            self.written.append(record.to_dict())
        return self._indices[id(record)]


class ConfigurationRecord(Record):
    """A `Configuration` in a file: schedule, number of micro-batches, and device groups, called sites there. links: for each
    stage but the last, the kind of link to the next. tables: the indices of its tables of costs in the file, by kind of device
    group. tied: the index of the costs of the weight table that embedding and head share, None if there is none. cuts: the
    first unit of every stage but the first, None if they may be chosen. reduction: the all-reduce of all gradients of a
    stage together, None if there is none."""

    schedule: Schedule = Schedule()
    micro_batches: Annotated[int, Field(ge=1, le=10**6)]
    sites: Annotated[Items[DeviceGroup], Field(min_length=1, max_length=2**16)]
    links: Items[Count]
    tables: Annotated[list[Count], Field(min_length=1)]
    tied: Count | None = None
    cuts: Items[Count] | None = None
    reduction: Reduction | None = None

    @property
    def stages(self) -> int:
        """The number of stages of the pipeline: device groups times the stages (chunks) that each has."""
        return len(self.sites) * self.schedule.chunks


class InstanceRecord(InstanceFile):
    """The file format of a joint instance, version 1. Its fields are those of `Instance`, except that tables of costs
    (`tables`) and costs of shared parameter tables (`ties`) are lists, to which configurations refer by index. A unit is a
    sub-layer or layer that has one option."""

    problem: Literal["joint"]
    classes: Annotated[Items[DeviceClass], Field(min_length=1)]
    batch: Annotated[int, Field(ge=1, le=10**9)]
    units: Annotated[Items[Unit], Field(min_length=1, max_length=10_000)]
    boundary_kinds: Items[Count]
    cuttable: Items[bool]
    step: Step = "simulated"
    reserve_bytes: Annotated[int, Field(ge=0, le=2**48)] = 0
    tables: Annotated[list[Tables], Field(min_length=1)]
    ties: list[Tied] = Field(default_factory=list)
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check that the parts of the file belong together, after its fields are read. Returns the record; raises InputError
        with the field."""
        for name in ("boundary_kinds", "cuttable"):
            check_length(name, getattr(self, name), len(self.units) - 1, "one for each boundary of two units")
        for index, tables in enumerate(self.tables):
            self._check_tables(f"tables[{index}]", index, tables)
        for index, configuration in enumerate(self.configurations):
            self._check_configuration(f"configurations[{index}]", configuration)
        return self

    def _check_tables(self, where: str, index: int, tables: Tables) -> None:
        """Raise InputError if tables of costs in the file lack a kind of unit or of boundary that the instance has, or if an
        array of a boundary is too small. where: the path of the tables' field, for the error. index: the index of the
        tables in the file's list.
        """
        entries: tuple[tuple[str, Sequence[Any], Sequence[int]], ...] = (
            ("units", tables.units, [unit.kind for unit in self.units]),
            ("boundaries", tables.boundaries, self.boundary_kinds),
        )
        for name, present, kinds in entries:
            if kinds and max(kinds) >= len(present):
                raise InputError("", f"{where}.{name}", f"has {len(present)} entries", f"give {max(kinds) + 1}, one a kind")
        users = [configuration for configuration in self.configurations if index in configuration.tables]
        links = max((link for configuration in users for link in configuration.links), default=-1) + 1
        for kind, boundary in enumerate(tables.boundaries):
            before = [l for l, other in enumerate(self.boundary_kinds) if other == kind]  # the units before such boundaries
            leaves = max((largest(tables.units[self.units[l].kind], "leave") for l in before), default=-1) + 1
            enters = max((largest(tables.units[self.units[l + 1].kind], "enter") for l in before), default=-1) + 1
            check_boundary(f"{where}.boundaries[{kind}]", boundary, leaves, enters, links)

    def _check_configuration(self, where: str, record: ConfigurationRecord) -> None:
        """Raise InputError if a configuration does not fit the units, tables of costs, devices or batch of its file. where:
        the path of the configuration's field in error messages. record: the configuration."""
        stages, units = record.stages, len(self.units)
        check_schedule(where, record)
        if stages > units:
            raise InputError("", f"{where}.sites", f"are of {stages} stages", f"give at most {units}, one for each unit")
        check_length(f"{where}.links", record.links, stages - 1, "one for each two stages that follow each other")
        if self.batch % record.micro_batches:
            fix = f"give a divisor of {self.batch}"
            raise InputError("", f"{where}.micro_batches", f"is {record.micro_batches}", fix)
        for index in record.tables:
            if index >= len(self.tables):
                raise InputError("", f"{where}.tables", f"has {index}", f"give 0 to {len(self.tables) - 1}")
            if record.schedule.sliced and any(table.halved is None for table in self.tables[index].units):
                raise InputError("", f"tables[{index}]", "lacks `halved`", "add it: a schedule is sliced")
        for number, group in enumerate(record.sites):
            check_length(f"{where}.sites[{number}].devices", group.devices, len(self.classes), "one for each class")
            if group.kind >= len(record.tables) or not sum(group.devices):
                fix = f"give kinds 0 to {len(record.tables) - 1}, and at least one device"
                raise InputError("", f"{where}.sites[{number}]", f"is of kind {group.kind}", fix)
        if record.tied is not None:
            if record.tied >= len(self.ties):
                fix = f"give an index of ties, of which there are {len(self.ties)}"
                raise InputError("", f"{where}.tied", f"is {record.tied}", fix)
            self._check_tied(where, record, self.ties[record.tied])
        if record.reduction is not None and not record.reduction.network.reaches(max(record.reduction.devices) + 1):
            fix = "give an island that holds them"
            raise InputError("", f"{where}.reduction.network", "does not reach all devices", fix)
        if record.cuts is not None:
            check_length(f"{where}.cuts", record.cuts, stages - 1, "the first unit of every stage but the first")
            if not all(a < b for a, b in pairwise((0, *record.cuts, units))):
                raise InputError("", f"{where}.cuts", f"is {list(record.cuts)}", f"give rising numbers of 1 to {units - 1}")
        self._check_sums(where, record)

    def _check_tied(self, where: str, record: ConfigurationRecord, tied: Tied) -> None:
        """Raise InputError if the costs of a shared weight table do not fit the first and the last unit of a configuration.
        where: the path of the configuration's field in error messages. record: the configuration. tied: the costs of the shared
        weight table."""
        if tied.equal is None or tied.once is None:
            return
        name, units = f"ties[{record.tied}]", len(self.units)
        if record.stages > 1 or units < 2:
            problem = f"is {record.tied}, with `once`, of {plural(record.stages, 'stage')} and {plural(units, 'unit')}"
            raise InputError("", f"{where}.tied", problem, "give one without `once`: one stage of several sub-layers has it")
        tables = self.tables[record.tables[record.sites[0].kind]]
        first, last = (tables.units[self.units[l].kind] for l in (0, -1))
        check_length(f"{name}.once.options", tied.once.options, len(last.options), "as many as the last unit has")
        check_length(f"{name}.equal", tied.equal, len(first.options), "one for each option of the first unit", "rows")
        for row, flags in enumerate(tied.equal):
            check_length(f"{name}.equal[{row}]", flags, len(last.options), "one for each option of the last unit")
        if [option.name for option in tied.once.options] != [option.name for option in last.options]:
            raise InputError("", f"{name}.once.options", "are not those of the last unit's table", "give those, in their order")
        for column in ("enter", "leave"):
            if not np.array_equal(getattr(tied.once, column), getattr(last, column)):
                raise InputError("", f"{name}.once.columns.{column}", "is not that of the last unit's table", "give that")

    def _check_sums(self, where: str, record: ConfigurationRecord) -> None:
        """Raise InputError if the times or the bytes of a step may add up to more than integers of 64 bits hold exactly.
        where: the path of the configuration's field in error messages. record: the configuration."""
        tables = [self.tables[index] for index in record.tables]
        boundaries = [boundary for group in tables for boundary in group.boundaries]
        every = [table for group in tables for table in group.units]
        if record.tied is not None and (once := self.ties[record.tied].once) is not None:
            every.append(once)
        longest = max(sum(largest(table, name) for name in TIMES) for table in every)
        fullest = max(sum(largest(table, name) for name in BYTES) for table in every)
        moved_ns = max((_largest_allowed(boundary, (*RELAYOUTS, *MESSAGES)) for boundary in boundaries), default=0)
        sent_bytes = max((_largest_allowed(boundary, MATRICES[4:]) for boundary in boundaries), default=0)
        count = record.micro_batches * len(self.units)
        sums = count * (longest + 4 * moved_ns), count * (fullest + 2 * sent_bytes)
        check_sums(f"{where}.micro_batches", record.micro_batches, f"{len(self.units)} units", *sums)


def largest(table: OptionTable, name: str) -> int:
    """The largest number in a column of a table of options. name: the column's name, such as `forward_ns`."""
    return int(getattr(table, name).max())


def _largest_allowed(boundary: Boundary, names: Sequence[str]) -> int:
    """The largest number below FORBIDDEN (which marks what may not be chosen) in the named arrays of a boundary; 0 if there is
    none. names: fields of `Boundary`."""
    arrays = [array for name in names if (array := getattr(boundary, name)) is not None]
    return max(int(array[array < FORBIDDEN].max(initial=0)) for array in arrays) if arrays else 0


def check_schedule(where: str, record: ConfigurationRecord) -> None:
    """Raise InputError if a configuration's schedule does not work with its device groups and its number of micro-batches,
    such as interleaved stages with micro-batches that are no multiple of the groups. where: the path of the configuration's
    field, for the error. record: the configuration as read from the file.
    """
    schedule, group_count, m = record.schedule, len(record.sites), record.micro_batches
    if (name := schedule.name) != "interleaved" and schedule.chunks > 1:
        raise InputError("", f"{where}.schedule.chunks", f"is {schedule.chunks}", f"give 1: {name} has one")
    if schedule.overlaps_messages and schedule.chunks == 1:
        fix = "give false: only messages of interleaved stages travel during passes"
        raise InputError("", f"{where}.schedule.beside", "is true", fix)
    most = most_sliced(group_count, m) if SCHEDULES[schedule.planned].sliced else 0
    if schedule.sliced > most:
        fix = f"give at most {most}: {name} with {group_count} device groups and {m} micro-batches can use no more"
        raise InputError("", f"{where}.schedule.sliced", f"is {schedule.sliced}", fix)
    if name == "interleaved" and m % group_count:
        fix = f"give a multiple of the {group_count} device groups"
        raise InputError("", f"{where}.micro_batches", f"is {m}, interleaved", fix)


def check_boundary(where: str, boundary: Boundary, before: int, after: int, links: int) -> None:
    """Raise InputError if an array of a boundary is too small, or has another size than its `relayout_forward_ns`.

    where: the path of the boundary's field in error messages. before, after: the least numbers of interface states (how ranks
    share hidden states) before and after the boundary. links: the least number of kinds of link.
    """
    shape = boundary.relayout_forward_ns
    rows, columns = len(shape), len(shape[0]) if len(shape) else 0
    for name, count, least, what in (("rows", rows, before, "before"), ("columns", columns, after, "after")):
        if count < least:
            fix = f"give {least}, one for each state {what}"
            raise InputError("", f"{where}.relayout_forward_ns", f"has {count} {name}", fix)
    for name in MATRICES:
        if (matrix := getattr(boundary, name)) is not None:
            _check_matrix(f"{where}.{name}", matrix, rows, columns)
    for name in MESSAGES:
        if (matrices := getattr(boundary, name)) is None:
            continue
        if len(matrices) < links:
            raise InputError("", f"{where}.{name}", f"has {len(matrices)} matrices", f"give {links}, one for each link")
        for link, matrix in enumerate(matrices):
            _check_matrix(f"{where}.{name}[{link}]", matrix, rows, columns)


def _check_matrix(where: str, matrix: Sequence[Any] | np.ndarray, rows: int, columns: int) -> None:
    """Raise InputError if a matrix of a boundary does not have `rows` rows of `columns` numbers. where: the path of the
    matrix's field in error messages."""
    check_length(where, matrix, rows, "as relayout_forward_ns has", "rows")
    for row, numbers in enumerate(matrix):
        check_length(f"{where}[{row}]", numbers, columns, "as relayout_forward_ns has")
