"""The file format of pipeline instances, and how a file becomes an instance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile
from trainplan.formulations.layer_strategies.problem import OptionRecord
from trainplan.formulations.numbers import TimeNs, check_length, check_sums
from trainplan.formulations.pair_tables import PairTable, arrays_of, check_tables, costs_of
from trainplan.formulations.pipeline.instance import COMMON, Configuration, Instance
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.formulations.strategy_tables import COLUMNS, Tables
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, name_of_source, parse


class PipelineOption(OptionRecord):
    """One option of a kind of layer in a file, for one micro-batch. time_ns includes sync_ns, which the last micro-batch alone
    pays."""

    sync_ns: TimeNs = 0


class ConfigurationRecord(Record):
    """Tables of one number of stages and micro-batches in a file. Kinds of layers and of boundaries are numbered from 0."""

    stages: Annotated[int, Field(ge=1, le=2**16)]
    micro_batches: Annotated[int, Field(ge=1, le=10**6)]
    schedule: PassOrder = "1f1b"
    options: Annotated[list[list[PipelineOption]], Field(min_length=1, description="options of each kind of layer")]
    transitions_ns: Annotated[
        list[PairTable],
        Field(description="a table for each kind of boundary: [option before][option after], in full or by classes"),
    ]
    entries_ns: Annotated[
        list[list[TimeNs]], Field(description="for each kind of boundary, by option after it, where a stage begins there")
    ]


class InstanceRecord(InstanceFile):
    """The file format of a pipeline instance, version 1."""

    problem: Literal["pipeline"]
    devices: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    batch: Annotated[int, Field(ge=1, le=10**9)]
    layer_names: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    layer_kinds: list[Annotated[int, Field(ge=0)]]
    boundary_kinds: list[Annotated[int, Field(ge=0)]]
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if lists have wrong lengths, or a
        configuration does not fit the devices, the batch or the layers."""
        layers = len(self.layer_names)
        for name, wanted in (("layer_kinds", layers), ("boundary_kinds", layers - 1)):
            check_length(name, getattr(self, name), wanted)
        for index, configuration in enumerate(self.configurations):
            self._check(f"configurations[{index}]", configuration)
        return self

    def _check(self, where: str, record: ConfigurationRecord) -> None:
        """Raise InputError if a configuration does not fit the devices, the batch or the layers. where: the path of the
        configuration's field in error messages. record: the configuration."""
        if record.stages > len(self.layer_names) or self.devices % record.stages:
            fix = f"a divisor of devices = {self.devices}, at most the {len(self.layer_names)} layers"
            raise InputError("", f"{where}.stages", f"is {record.stages}", f"give {fix}")
        if self.batch % record.micro_batches:
            raise InputError("", f"{where}.micro_batches", f"is {record.micro_batches}", f"give a divisor of {self.batch}")
        kinds, boundaries = len(record.options), len(record.transitions_ns)
        for name, count, used in (
            ("options", kinds, max(self.layer_kinds, default=-1)),
            ("transitions_ns", boundaries, max(self.boundary_kinds, default=-1)),
            ("entries_ns", len(record.entries_ns), max(self.boundary_kinds, default=-1)),
        ):
            if used >= count:
                raise InputError("", f"{where}.{name}", f"has {count} entries", f"give {used + 1}, one for each kind")
        self._check_sums(where, record)
        first = [option.strategy for option in record.options[0]]
        for kind, options in enumerate(record.options):
            names = [option.strategy for option in options]
            if names != first or len(set(names)) < len(names) or not names:
                fix = "name the same strategies, each once, for every kind of layer"
                raise InputError("", f"{where}.options[{kind}]", f"has the strategies {', '.join(names)}", fix)
            for option in options:
                if option.sync_ns > option.time_ns:
                    field = f"{where}.options[{kind}].sync_ns"
                    raise InputError("", field, f"is {option.sync_ns}", f"give at most time_ns = {option.time_ns}")
        for name in first:
            parse_strategy(name, "", f"{where}.options", self.devices // record.stages)
        square, meaning = (len(first), len(first)), ("one for each strategy", "one for each strategy")
        check_tables(f"{where}.transitions_ns", record.transitions_ns, [square] * boundaries, [meaning] * boundaries)
        for kind, row in enumerate(record.entries_ns):
            check_length(f"{where}.entries_ns[{kind}]", row, len(first))

    def _check_sums(self, where: str, record: ConfigurationRecord) -> None:
        """Raise InputError if the times or bytes of a configuration could add up to more than is computed exactly. where:
        the path of the configuration's field in error messages. record: the configuration."""
        m, layers = record.micro_batches, len(self.layer_names)
        every = [option for options in record.options for option in options]
        moves = (
            [ns for table in record.transitions_ns for ns in costs_of(table)],
            [ns for row in record.entries_ns for ns in row],
        )
        longest = max((o.time_ns for o in every), default=0) + sum(max(times, default=0) for times in moves)
        fullest = max((o.state_bytes + o.backward_bytes + m * o.forward_bytes for o in every), default=0)
        check_sums(f"{where}.micro_batches", m, f"{layers} layers", m * layers * longest, layers * fullest)


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    configurations = [
        Configuration(entry.stages, entry.micro_batches, tables_of(entry), entry.schedule) for entry in record.configurations
    ]
    return Instance(configurations=tuple(configurations), **common_fields(record))


def tables_of(record: ConfigurationRecord) -> Tables:
    """The tables of costs of a configuration (numbers of stages and micro-batches) as arrays, from lists in its file. record:
    the configuration as read from the file.
    """
    columns: dict[str, Any] = {
        name: np.array([[getattr(option, name) for option in options] for options in record.options], np.int64)
        for name in COLUMNS
    }
    names = tuple(option.strategy for option in record.options[0])
    return Tables(
        strategies=names,
        transitions_ns=np.array(arrays_of(record.transitions_ns), np.int64).reshape(-1, len(names), len(names)),
        entries_ns=np.array(record.entries_ns, np.int64).reshape(-1, len(names)),
        **columns,
    )


def common_fields(record: InstanceRecord) -> dict[str, Any]:
    """The fields of an instance that was read from a file, without its configurations, as keyword arguments for `Instance`.
    record: the instance as read from the file.
    """
    return record.tuples(COMMON) | record.labels
