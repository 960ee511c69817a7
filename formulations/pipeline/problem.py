"""pipeline: choose stages, micro-batches and every layer's strategy together (Galvatron-BMW, Section IV), for one batch size.

A configuration fixes the number P of equal stages, the number m of micro-batches and the schedule; in it, choose which
consecutive layers form stage i = 0 .. P-1 and one option s_l for each layer l:

    minimise    (m - 1) max_i ( T_i - G_i ) + sum_i T_i                                               Eq. 8, nanoseconds
    with        T_i = entry(first layer of i, its option; none for i = 0) + sum_l c(l, s_l) + sum_l R(l, s_l, s_{l+1})
                G_i = sum_l g(l, s_l)                             gradient synchronisation, paid with the last micro-batch
    subject to  max_l ( sum_{k<=l} n_i O_f(k) + O_b(l) + (n_i - 1)(O_f of the rest of i) ) + sum_k O_ms(k) <= E    Eq. 2, bytes
                n_i = min(m, P - i) micro-batches in flight under 1F1B-Flush, m under GPipe.

c is the time of a layer, g the synchronisation in it, R the re-layout between two layers, entry the time to send hidden states
to a stage and their gradients back, and E the memory of a device. O_f is what a layer keeps from its forward pass, O_b what its
backward pass adds, O_ms its model states. n_i - 1 other micro-batches keep the activations of all layers of the stage, the
current one those up to layer l; with M_i = O_ms + (n_i - 1) O_f this is Eq. 2 of one stage. `evaluate` and `violations` know no
solver; all numbers are integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.instance import InstanceFile, ProblemInstance, Timed
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import OptionRecord
from trainplan.formulations.layer_strategies.spans import span_instance
from trainplan.formulations.numbers import TimeNs, check_length, check_sums
from trainplan.formulations.pair_tables import PairTable, arrays_of, check_tables, costs_of, tables_in_file
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.schedule.orders import PassOrder, most_in_flight
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.formulations.strategy_tables import COLUMNS, Tables
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes

NAME = "pipeline"
SCHEDULES: tuple[PassOrder, ...] = get_args(PassOrder)


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
        """Raise InputError where lists have wrong lengths, or a configuration does not fit."""
        layers = len(self.layer_names)
        for name, wanted in (("layer_kinds", layers), ("boundary_kinds", layers - 1)):
            check_length(name, getattr(self, name), wanted)
        for index, configuration in enumerate(self.configurations):
            self._check(f"configurations[{index}]", configuration)
        return self

    def _check(self, where: str, record: ConfigurationRecord) -> None:
        """Raise InputError where a configuration does not fit the devices, the batch or the layers. where: its field."""
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
        """Raise InputError where times or bytes of a configuration could add up to too large a sum. where: its field."""
        m, layers = record.micro_batches, len(self.layer_names)
        every = [option for options in record.options for option in options]
        moves = (
            [ns for table in record.transitions_ns for ns in costs_of(table)],
            [ns for row in record.entries_ns for ns in row],
        )
        longest = max((o.time_ns for o in every), default=0) + sum(max(times, default=0) for times in moves)
        fullest = max((o.state_bytes + o.backward_bytes + m * o.forward_bytes for o in every), default=0)
        check_sums(f"{where}.micro_batches", m, f"{layers} layers", m * layers * longest, layers * fullest)


COMMON = ("devices", "memory_bytes", "batch", "layer_names", "layer_kinds", "boundary_kinds")


@dataclass(frozen=True, eq=False)
class Configuration:
    """A number of stages and micro-batches, a schedule, and the tables that hold for them."""

    stages: int
    micro_batches: int
    tables: Tables
    schedule: PassOrder = "1f1b"

    @property
    def key(self) -> tuple[Any, ...]:
        """All that the answer depends on apart from the tables."""
        return self.stages, self.micro_batches, self.schedule

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose activations a stage, given by its index, holds at once."""
        return most_in_flight(self.schedule, self.stages, self.micro_batches, stage)

    def to_dict(self) -> dict[str, Any]:
        """The configuration in the file format of its instance."""
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
    """The problem in arrays.

    Attributes:
        devices: the number of devices; memory_bytes: the memory of each.
        batch: samples of a step.
        layer_names: the name of each of the L layers.
        layer_kinds: the kind of each layer, its row in the tables; boundary_kinds: the kind of each of the L - 1 boundaries.
        configurations: the configurations to choose from.
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
        """SHA-256 of all that the answer depends on, in hexadecimal digits; names and provenance are left out."""
        digest = hashlib.sha256()
        digest.update(repr((self.memory_bytes, self.layer_kinds, self.boundary_kinds)).encode())
        for configuration in self.configurations:
            digest.update(repr(configuration.key).encode())
            digest.update(configuration.tables.digest)
        return digest.hexdigest()

    def span(self, tables: Tables, first: int, last: int, in_flight: int, weights: tuple[int, int]) -> StageInstance:
        """The layers `first` to `last` under some tables, as a layer-strategies instance that minimises p (T - G) + q G, with T
        and G as at the head of this file. in_flight: micro-batches that the stage holds at once; weights: (p, q)."""
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
        """The instance in its file format."""
        return {
            **self.header,
            **self.lists(COMMON),
            "configurations": [configuration.to_dict() for configuration in self.configurations],
        }


@dataclass(frozen=True)
class EvaluatedStage:
    """Cost of one stage of a solution.

    Attributes:
        first, last: its layers.
        in_flight: the most micro-batches that it holds at once.
        time_ns: its time for the last micro-batch, sync_ns: the synchronisation in it.
        peak_bytes, peak_layer: Eq. 2's peak, and the layer that reaches it.
        state_bytes: model states.
    """

    first: int
    last: int
    in_flight: int
    time_ns: int
    sync_ns: int
    peak_bytes: int
    peak_layer: int
    state_bytes: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """Time and memory of a solution, with those of each stage."""

    time_ns: int
    stages: tuple[EvaluatedStage, ...]

    @property
    def peak_bytes(self) -> int:
        """The peak of the fullest stage, in bytes."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def time_balance(self) -> float:
        """The balance of the stages' times, a_t of Eq. 6: from 0, where one stage takes all, to 1 - 1/P, where all are
        equal."""
        return _balance([stage.time_ns for stage in self.stages])

    @property
    def memory_balance(self) -> float:
        """The balance of the stages' peak memory, a_m of Eq. 6: from 0, where one stage takes all, to 1 - 1/P, where all are
        equal."""
        return _balance([stage.peak_bytes for stage in self.stages])


def _balance(shares: Sequence[int]) -> float:
    """1 minus the largest part of a sum."""
    return 1 - max(shares) / sum(shares) if sum(shares) else 0.0


@dataclass(frozen=True)
class Solution(DataclassRecord):
    """The index of a configuration, the number of layers of each of its stages, and the index of every layer's option."""

    configuration: Annotated[int, Field(ge=0)]
    stages: Annotated[Items[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    choice: Items[Annotated[int, Field(ge=0)]]

    def spans(self) -> list[tuple[int, int]]:
        """First and last layer of every stage."""
        return spans_of_sizes(self.stages)


def spans_of_sizes(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """First and last layer of every stage, given the number of layers of each."""
    ends = list(accumulate(sizes))
    return [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file or a dict. Raises InputError with file, field, value and fix. where: the name that errors
    call a dict by."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    configurations = [
        Configuration(entry.stages, entry.micro_batches, tables_of(entry), entry.schedule) for entry in record.configurations
    ]
    return Instance(configurations=tuple(configurations), **common_fields(record))


def tables_of(record: ConfigurationRecord) -> Tables:
    """The tables of a configuration that was read from a file."""
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
    """The fields of an instance that was read from a file, except its configurations, as keyword arguments."""
    return record.tuples(COMMON) | record.labels


def load_solution(source: Source) -> Solution:
    """Read a solution from a file or a dict. Raises InputError."""
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its file format, as plain values."""
    return solution.to_dict()


def iteration_ns(configuration: Configuration, times_ns: Sequence[int], syncs_ns: Sequence[int]) -> int:
    """Time of a step by Eq. 8. times_ns, syncs_ns: T and G of each stage."""
    slowest = max(time - sync for time, sync in zip(times_ns, syncs_ns, strict=True))
    return (configuration.micro_batches - 1) * slowest + sum(times_ns)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Time and memory of a solution, by Eq. 8 and Eq. 2. Raises ValueError where it is no solution of the instance."""
    if wrong := malformed(instance, solution):
        raise ValueError(wrong[0])
    stages = evaluate_stages(instance, solution)
    times_ns, syncs_ns = zip(*((stage.time_ns, stage.sync_ns) for stage in stages), strict=True)
    return Evaluation(iteration_ns(instance.configurations[solution.configuration], times_ns, syncs_ns), stages)


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a solution as users see them, by name."""
    return described(instance, solution, evaluate(instance, solution))


def described(instance: Instance, solution: Solution, evaluation: Evaluation) -> dict[str, Any]:
    """The costs of a solution that has been evaluated, as users see them, by name."""
    configuration = instance.configurations[solution.configuration]
    worst = max(evaluation.stages, key=lambda stage: stage.peak_bytes)
    return {
        "time_ns": evaluation.time_ns,
        "throughput_samples_per_s": instance.batch / evaluation.time_ns * 1e9 if evaluation.time_ns else None,
        "pipeline": configuration.stages,
        "micro_batches": configuration.micro_batches,
        "schedule": configuration.schedule,
        "peak_bytes": evaluation.peak_bytes,
        "peak_layer": worst.peak_layer,
        "peak_layer_name": instance.layer_names[worst.peak_layer],
        "state_bytes": worst.state_bytes,
        "time_balance": evaluation.time_balance,
        "memory_balance": evaluation.memory_balance,
        "stages": [asdict(stage) for stage in evaluation.stages],
        "strategies": [configuration.tables.strategies[s] for s in solution.choice],
    }


def evaluate_stages(
    instance: Instance, solution: Solution, configuration: Configuration | None = None
) -> tuple[EvaluatedStage, ...]:
    """The costs of a solution's stages. configuration: used in place of the instance's own, where other tables are to count."""
    counted = configuration or instance.configurations[solution.configuration]
    return tuple(
        evaluate_stage(instance, counted, number, first, solution.choice[first : last + 1])
        for number, (first, last) in enumerate(solution.spans())
    )


def evaluate_stage(
    instance: Instance, configuration: Configuration, number: int, first: int, choice: Sequence[int]
) -> EvaluatedStage:
    """The costs of one stage. number: its index; first: its first layer; choice: the options of its layers."""
    tables, in_flight = configuration.tables, configuration.in_flight(number)
    kinds = instance.layer_kinds[first : first + len(choice)]
    indices = (list(kinds), list(choice))
    time = int(tables.time_ns[indices].sum())
    if first:
        time += int(tables.entries_ns[instance.boundary_kinds[first - 1], choice[0]])
    inside = list(instance.boundary_kinds[first : first + len(choice) - 1])
    time += int(tables.transitions_ns[inside, list(choice[:-1]), list(choice[1:])].sum())
    states = tables.state_bytes[indices]
    peak, index = stage_peak(states, tables.forward_bytes[indices], tables.backward_bytes[indices], in_flight)
    return EvaluatedStage(
        first=first,
        last=first + len(choice) - 1,
        in_flight=in_flight,
        time_ns=time,
        sync_ns=int(tables.sync_ns[indices].sum()),
        peak_bytes=int(peak),
        peak_layer=first + int(index),
        state_bytes=int(states.sum()),
    )


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one text each; empty where it is feasible."""
    return malformed(instance, solution) or over_memory(instance, evaluate(instance, solution))


def over_memory(instance: Instance, evaluation: Evaluation) -> list[str]:
    """A text for each stage that needs more memory than a device has."""
    limit = instance.memory_bytes
    return [
        f"stage {number}: the backward pass of {instance.layer_names[stage.peak_layer]} needs {stage.peak_bytes} bytes "
        f"({format_bytes(stage.peak_bytes)}), {stage.peak_bytes - limit} more than memory_bytes = {limit}"
        for number, stage in enumerate(evaluation.stages)
        if stage.peak_bytes > limit
    ]


def malformed(instance: Instance, solution: Solution) -> list[str]:
    """Why a solution does not belong to the instance, in words; empty where it does, whatever memory it needs."""
    count = len(instance.configurations)
    if not 0 <= solution.configuration < count:
        return [f"configuration is {solution.configuration}; the instance has 0 to {count - 1}"]
    configuration, layers = instance.configurations[solution.configuration], instance.layers
    if len(solution.stages) != configuration.stages or min(solution.stages) < 1 or sum(solution.stages) != layers:
        return [f"stages is {list(solution.stages)}; configuration {solution.configuration} splits {layers} layers "
                f"into {configuration.stages} stages of at least one"]  # fmt: skip
    if len(solution.choice) != layers:
        return [f"choice has {len(solution.choice)} entries; the instance has {layers} layers"]
    options = len(configuration.tables.strategies)
    return [
        f"choice[{l}] is {s}; layer {l} has options 0 to {options - 1}"
        for l, s in enumerate(solution.choice)
        if not 0 <= s < options
    ]
