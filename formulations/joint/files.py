"""Instances and solutions of the joint problem in files: equal tables stand once, columns of zeros are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import numpy as np
from trainplan.formulations.joint.instance_file import InstanceRecord, SolutionRecord
from trainplan.formulations.joint.problem import Configuration, DeviceClass, Instance, Reduction, Schedule, Site, Solution, Unit
from trainplan.formulations.joint.table_records import MATRICES, MESSAGES, BoundaryRecord, TableRecord, TablesRecord, TiedRecord
from trainplan.formulations.joint.tables import COLUMNS, Boundary, Halved, Option, OptionTable, Tables, Tied
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.base.files import Source, parse

Made = TypeVar("Made")


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
    tables, ties = [_tables(table) for table in record.tables], [_tied(tie) for tie in record.ties]
    return Instance(
        classes=tuple(DeviceClass(**each.model_dump()) for each in record.classes),
        batch=record.batch,
        units=tuple(Unit(**unit.model_dump()) for unit in record.units),
        boundary_kinds=tuple(record.boundary_kinds),
        cuttable=tuple(record.cuttable),
        step=record.step,
        reserve_bytes=record.reserve_bytes,
        configurations=tuple(
            Configuration(
                schedule=Schedule(**configuration.schedule.model_dump()),
                micro_batches=configuration.micro_batches,
                sites=tuple(Site(tuple(site.devices), site.kind) for site in configuration.sites),
                links=tuple(configuration.links),
                make_tables=partial(tuple, [tables[place] for place in configuration.tables]),
                make_tied=partial(_present, None if configuration.tied is None else ties[configuration.tied]),
                cuts=None if configuration.cuts is None else tuple(configuration.cuts),
                reduction=None
                if configuration.reduction is None
                else Reduction(configuration.reduction.network, tuple(configuration.reduction.devices)),
            )
            for configuration in record.configurations
        ),
        **record.labels,
    )


def _present(value: Made) -> Made:
    return value


def _table(record: TableRecord) -> OptionTable:
    options = [
        Option(option.name, None if option.strategy is None else parse_strategy(option.strategy), tuple(option.host))
        for option in record.options
    ]
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
    matrices = {name: _array(getattr(record, name), shape) for name in MATRICES}
    messages = {name: _array(value, (len(value or []), *shape)) for name in MESSAGES for value in [getattr(record, name)]}
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
            "schedule": asdict(configuration.schedule),
            "micro_batches": configuration.micro_batches,
            "sites": [{"devices": list(site.devices), "kind": site.kind} for site in configuration.sites],
            "links": list(configuration.links),
            "tables": [tables.place(table) for table in configuration.tables],
            "tied": None if configuration.tied is None else ties.place(configuration.tied),
            "cuts": None if configuration.cuts is None else list(configuration.cuts),
            **({} if configuration.reduction is None else {"reduction": configuration.reduction.to_dict()}),
        }
        for configuration in instance.configurations
    ]
    return {
        **instance.header,
        "classes": [vars(each) for each in instance.classes],
        "batch": instance.batch,
        "units": [vars(unit) for unit in instance.units],
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
        {name: value.tolist() for name in (*MATRICES, *MESSAGES) if (value := getattr(boundary, name)) is not None}
        | ({} if boundary.relayout_at_cut else {"relayout_at_cut": False})
        for boundary in tables.boundaries
    ]
    return {"units": list(map(_table_dict, tables.units)), "boundaries": boundaries, "states": list(tables.states)}


def _table_dict(table: OptionTable) -> dict[str, Any]:
    columns: dict[str, Integers] = {name: getattr(table, name) for name in COLUMNS}
    fields: dict[str, Any] = {
        "options": [
            {"name": option.name, "strategy": None if option.strategy is None else str(option.strategy)}
            | ({"host": list(option.host)} if option.host else {})
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
