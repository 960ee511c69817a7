"""Instances of pipeline in arrays: configurations with tables of what layers cost; symbols as in `problem`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, get_args

from trainplan.formulations.instance import ProblemInstance
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.spans import span_instance
from trainplan.formulations.pair_tables import tables_in_file
from trainplan.formulations.schedule.orders import PassOrder, most_in_flight
from trainplan.formulations.strategy_tables import COLUMNS, Tables

NAME = "pipeline"
SCHEDULES: tuple[PassOrder, ...] = get_args(PassOrder)
COMMON = ("devices", "memory_bytes", "batch", "layer_names", "layer_kinds", "boundary_kinds")


@dataclass(frozen=True, eq=False)
class Configuration:
    """A number of stages, a number of micro-batches and a schedule (order of passes), with the tables of layers' costs that
    apply to them.
    """

    stages: int
    micro_batches: int
    tables: Tables
    schedule: PassOrder = "1f1b"

    @property
    def key(self) -> tuple[Any, ...]:
        """All fields on which the answer depends, except the tables of costs: stages, micro-batches and schedule."""
        return self.stages, self.micro_batches, self.schedule

    def in_flight(self, stage: int) -> int:
        """The largest number of micro-batches whose activations a stage holds at the same time. stage: the stage's index."""
        return most_in_flight(self.schedule, self.stages, self.micro_batches, stage)

    def to_dict(self) -> dict[str, Any]:
        """The configuration in the JSON file format of instances."""
        tables = self.tables
        options = [
            [
                {"strategy": name, **{column: int(getattr(tables, column)[kind, s]) for column in COLUMNS}}
                for s, name in enumerate(tables.strategies)
            ]
            for kind in range(len(tables.time_ns))
        ]
        return {
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            "options": options,
            "transitions_ns": tables_in_file(list(tables.transitions_ns)),
            "entries_ns": tables.entries_ns.tolist(),
        }

    def __str__(self) -> str:
        return f"{self.stages} stages, {self.micro_batches} micro-batches, {self.schedule}"


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """An instance of the problem `pipeline` in arrays, for L layers.

    Attributes:
        devices: the number of devices.
        memory_bytes: the memory of each device.
        batch: samples per step.
        layer_names: the name of each of the L layers.
        layer_kinds: the kind of each layer, its row in the tables of costs.
        boundary_kinds: the kind of each of the L - 1 boundaries between layers.
        configurations: the configurations (numbers of stages and micro-batches, schedule) to choose from.
    """

    devices: int
    memory_bytes: int
    batch: int
    layer_names: tuple[str, ...]
    layer_kinds: tuple[int, ...]
    boundary_kinds: tuple[int, ...]
    configurations: tuple[Configuration, ...]

    problem: ClassVar[str] = NAME

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.layer_kinds)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of layers, the largest number of options of any configuration, and the memory of one device in bytes."""
        options = max(len(configuration.tables.strategies) for configuration in self.configurations)
        return {"layers": self.layers, "options": options, "memory_bytes": self.memory_bytes}

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all fields on which the answer depends; names and provenance are left out."""
        digest = hashlib.sha256()
        digest.update(repr((self.memory_bytes, self.layer_kinds, self.boundary_kinds)).encode())
        for configuration in self.configurations:
            digest.update(repr(configuration.key).encode())
            digest.update(configuration.tables.digest)
        return digest.hexdigest()

    def span(self, tables: Tables, first: int, last: int, in_flight: int, weights: tuple[int, int]) -> StageInstance:
        """The layers `first` to `last`, both included, as an instance of the problem `layer-strategies`, which chooses a
        strategy for each layer of one stage. It minimises p (T - G) + q G, where T is the stage's time for one micro-batch
        and G the synchronisation within it, which only the last micro-batch has.

        tables: the costs of all kinds of layers. in_flight: the number of micro-batches that the stage holds at the same
        time. weights: (p, q).
        """
        return span_instance(
            self,
            tables,
            first,
            last,
            memory_bytes=self.memory_bytes,
            in_flight=in_flight,
            weights=weights,
            name=f"layers {first} to {last} of {self.name}",
            provenance={"batch": self.batch},
        )

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format."""
        return {
            **self.header,
            **self.lists(COMMON),
            "configurations": [configuration.to_dict() for configuration in self.configurations],
        }
