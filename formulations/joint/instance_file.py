"""The file formats of the joint problem: instances, beside their tables, and solutions."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile
from trainplan.formulations.joint.problem import Step
from trainplan.formulations.joint.table_records import Count, TablesRecord, TiedRecord, allowed_ns, message_bytes
from trainplan.formulations.joint.tables import BYTES, TIMES
from trainplan.formulations.numbers import check_length, check_sums
from trainplan.formulations.schedule.orders import most_sliced
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.network import Network


class ScheduleRecord(Record):
    """The order of passes."""

    name: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    sliced: Count = 0
    chunks: Annotated[int, Field(ge=1)] = 1
    beside: bool = False


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
        for index, tables in enumerate(self.tables):
            self._check_tables(f"tables[{index}]", index, tables)
        for index, tied in enumerate(self.ties):
            if tied.once is not None:
                tied.once.check(f"ties[{index}].once")
        for index, configuration in enumerate(self.configurations):
            self._check_configuration(f"configurations[{index}]", configuration)
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
        links = max((link for user in users for link in user.links), default=-1) + 1
        for kind, record in enumerate(tables.boundaries):
            pairs = [l for l, boundary_kind in enumerate(self.boundary_kinds) if boundary_kind == kind]
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
        if record.tied is not None:
            self._check_tied(where, record, self.ties[record.tied])
        if record.reduction is not None and not record.reduction.network.reaches(max(record.reduction.devices) + 1):
            fix = "give an island that holds them"
            raise InputError("", f"{where}.reduction.network", "does not reach all devices", fix)
        if record.cuts is not None:
            check_length(f"{where}.cuts", record.cuts, stages - 1, "the first unit of every stage but the first")
        if record.cuts is not None and not all(a < b for a, b in pairwise((0, *record.cuts, units))):
            raise InputError("", f"{where}.cuts", f"is {record.cuts}", f"give rising numbers of 1 to {units - 1}")
        self._check_sums(where, record)

    def _check_tied(self, where: str, record: ConfigurationRecord, tied: TiedRecord) -> None:
        """Raises InputError where a shared table does not suit the first and the last unit of a configuration."""
        if tied.equal is None or tied.once is None:
            return
        name, stages, units = f"ties[{record.tied}]", len(record.sites) * record.schedule.chunks, len(self.units)
        if stages > 1 or units < 2:
            problem = f"is {record.tied}, with `once`, of {plural(stages, 'stage')} and {plural(units, 'unit')}"
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
            zeros = [0] * len(last.options)
            if tied.once.columns.get(column, zeros) != last.columns.get(column, zeros):
                raise InputError("", f"{name}.once.columns.{column}", "is not that of the last unit's table", "give that")

    def _check_schedule(self, where: str, record: ConfigurationRecord) -> None:
        schedule, sites, m = record.schedule, len(record.sites), record.micro_batches
        if (name := schedule.name) != "interleaved" and schedule.chunks > 1:
            raise InputError("", f"{where}.chunks", f"is {schedule.chunks}", f"give 1: {name} has one")
        if schedule.beside and schedule.chunks == 1:
            raise InputError(
                "", f"{where}.beside", "is true", "give false: only messages of interleaved stages travel during passes"
            )
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
        moves = [ns for each in tables for boundary in each.boundaries for ns in allowed_ns(boundary)]
        sent = [n for each in tables for boundary in each.boundaries for n in message_bytes(boundary)]
        fullest = max(sum(table.largest(name) for name in BYTES) for table in every) + 2 * max(sent, default=0)
        count = record.micro_batches * len(self.units)
        time = count * (longest + 4 * max(moves, default=0))
        check_sums(f"{where}.micro_batches", record.micro_batches, f"{len(self.units)} units", time, count * fullest)


class SolutionRecord(Record):
    """The file format of a solution: the configuration, the first unit of every stage but the first, every unit's option."""

    configuration: Count
    cuts: list[Annotated[int, Field(ge=1)]]
    choice: list[Count]
