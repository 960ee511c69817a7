"""pipeline: choose stages, micro-batches and every layer's strategy together (Galvatron-BMW, Section IV), for one batch size.

A configuration fixes the number P of equal stages, the number m of micro-batches and the schedule; in it, choose which
consecutive layers form stage i = 0 .. P-1 and one option s_l for each layer l:

    minimise    (m - 1) max_i ( T_i - G_i ) + sum_i T_i                                               Eq. 8, nanoseconds
    with        T_i = entry(first layer of i, its option; none for i = 0) + sum_l c(l, s_l) + sum_l R(l, s_l, s_{l+1})
                G_i = sum_l g(l, s_l)                             gradient synchronisation, paid with the last micro-batch
    subject to  max_l ( sum_{k<=l} n_i O_f(k) + O_b(l) + (n_i - 1)(O_f of the rest of i) ) + sum_k O_ms(k) <= E    Eq. 2, bytes
                n_i = min(m, P - i) micro-batches in flight under 1F1B-Flush, m under GPipe.

Memory: n_i - 1 other micro-batches keep the activations of all layers of the stage, the current one those up to layer l, and
its backward pass adds O_b; with M_i = O_ms + (n_i - 1) O_f this is Eq. 2 of one stage. entry: sending the hidden states to
the stage and their gradients back. `evaluate` and `violations` know no solver; all numbers are integers.

A configuration may instead ask for the iteration time of Galvatron's published code (`iteration` = published). R and entry do
not count there: its search knows R, its final cost does not. With C_i = T_i - G_i and w = min(P, m) - 1,

    max ( sum_i C_i + (m-1) C_{P-1},  max (w C_0, sum_{i>0} C_i) + max (0, m+1-P) C_0 )
        + max (0, max_i ( T_i - e_i - sum_{k<=i} C_k ))

where e_i, of the first and the last stage, is the time of embedding and head (`ends_ns`, contained in T_i). Stages are then
even, as that engine splits them: any other partition is a violation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.layer_strategies.problem import Instance as StageInstance
from trainplan.formulations.layer_strategies.problem import Integers, OptionRecord, TimeNs
from trainplan.formulations.strategies import parse_strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, parse
from trainplan.profiling.base.quantities import format_bytes

NAME = "pipeline"
Schedule = Literal["1f1b", "gpipe"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
LARGEST_NS, LARGEST_BYTES = 2**53, 2**62
Iteration = Literal["eq8", "published"]


class PipelineOption(OptionRecord):
    """One way to run a layer, for one micro-batch. time_ns includes sync_ns, what the last micro-batch alone pays."""

    sync_ns: TimeNs = 0


class ConfigurationRecord(Record):
    """Tables of one number of stages and micro-batches. Kinds of layers and of boundaries are numbered from 0."""

    stages: Annotated[int, Field(ge=1, le=2**16)]
    micro_batches: Annotated[int, Field(ge=1, le=10**6)]
    schedule: Schedule = "1f1b"
    iteration: Iteration = "eq8"
    ends_ns: Annotated[
        tuple[TimeNs, TimeNs], Field(strict=False, description="embedding and head, for the published iteration time")
    ] = (0, 0)
    options: Annotated[list[list[PipelineOption]], Field(min_length=1, description="options of each kind of layer")]
    transitions_ns: Annotated[
        list[list[list[TimeNs]]],
        Field(description="a table for each kind of boundary: [option before][option after]"),
    ]
    entries_ns: Annotated[
        list[list[TimeNs]], Field(description="for each kind of boundary, by option after it, where a stage begins there")
    ]


class InstanceRecord(Record):
    """The file format of a pipeline instance, version 1."""

    problem: Literal["pipeline"]
    version: Literal[1]
    name: str | None = None
    provenance: dict[str, Any] | None = None
    devices: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    batch: Annotated[int, Field(ge=1, le=10**9)]
    layer_names: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    layer_kinds: list[Annotated[int, Field(ge=0)]]
    boundary_kinds: list[Annotated[int, Field(ge=0)]]
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        layers = len(self.layer_names)
        for name, wanted in (("layer_kinds", layers), ("boundary_kinds", layers - 1)):
            if len(getattr(self, name)) != wanted:
                raise InputError("", name, f"has {len(getattr(self, name))} entries", f"give {wanted}")
        for place, configuration in enumerate(self.configurations):
            self._check(f"configurations[{place}]", configuration)
        return self

    def _check(self, where: str, given: ConfigurationRecord) -> None:
        if given.stages > len(self.layer_names) or self.devices % given.stages:
            told = f"a divisor of devices = {self.devices}, at most the {len(self.layer_names)} layers"
            raise InputError("", f"{where}.stages", f"is {given.stages}", f"give {told}")
        if self.batch % given.micro_batches:
            raise InputError("", f"{where}.micro_batches", f"is {given.micro_batches}", f"give a divisor of {self.batch}")
        if given.iteration == "eq8" and any(given.ends_ns):
            raise InputError("", f"{where}.ends_ns", "is given", 'leave it out, or give iteration "published"')
        kinds, boundaries = len(given.options), len(given.transitions_ns)
        for name, count, used in (
            ("options", kinds, max(self.layer_kinds, default=-1)),
            ("transitions_ns", boundaries, max(self.boundary_kinds, default=-1)),
            ("entries_ns", len(given.entries_ns), max(self.boundary_kinds, default=-1)),
        ):
            if used >= count:
                raise InputError("", f"{where}.{name}", f"has {count} entries", f"give {used + 1}, one for each kind")
        self._check_sums(where, given)
        first = [option.strategy for option in given.options[0]]
        for kind, options in enumerate(given.options):
            names = [option.strategy for option in options]
            if names != first or len(set(names)) < len(names) or not names:
                fix = "name the same strategies, each once, for every kind of layer"
                raise InputError("", f"{where}.options[{kind}]", f"has the strategies {', '.join(names)}", fix)
            for option in options:
                if option.sync_ns > option.time_ns:
                    field = f"{where}.options[{kind}].sync_ns"
                    raise InputError("", field, f"is {option.sync_ns}", f"give at most time_ns = {option.time_ns}")
        for name in first:
            parse_strategy(name, "", f"{where}.options", self.devices // given.stages)
        for kind, table in enumerate(given.transitions_ns):
            if len(table) != len(first) or any(len(row) != len(first) for row in table):
                raise InputError("", f"{where}.transitions_ns[{kind}]", "is not square", f"give {len(first)} by {len(first)}")
        for kind, row in enumerate(given.entries_ns):
            if len(row) != len(first):
                raise InputError("", f"{where}.entries_ns[{kind}]", f"has {len(row)} entries", f"give {len(first)}")

    def _check_sums(self, where: str, given: ConfigurationRecord) -> None:
        """All sums of times are whole in floats, too, and sums of bytes within 64 bits."""
        m, layers = given.micro_batches, len(self.layer_names)
        every = [option for options in given.options for option in options]
        moves = (
            [ns for table in given.transitions_ns for row in table for ns in row],
            [ns for row in given.entries_ns for ns in row],
        )
        longest = max((o.time_ns for o in every), default=0) + sum(max(times, default=0) for times in moves)
        fullest = max((o.state_bytes + o.backward_bytes + m * o.forward_bytes for o in every), default=0)
        for name, total, most in (("ns", m * layers * longest, LARGEST_NS), ("bytes", layers * fullest, LARGEST_BYTES)):
            if total > most:
                told = f"is {m}, with which {layers} layers may take {total:.3g} {name}"
                raise InputError("", f"{where}.micro_batches", told, f"give numbers that stay within {most:.3g}")


class SolutionRecord(Record):
    """The file format of a solution: the configuration, the layers of each stage, and the option of every layer."""

    configuration: Annotated[int, Field(ge=0)]
    stages: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    choice: list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True, eq=False)
class Tables:
    """What layers cost, for one size of stage and of micro-batch: K kinds of layer with S options, Q kinds of boundary.

    time_ns, sync_ns, forward_bytes, backward_bytes, state_bytes: (K, S). transitions_ns: (Q, S, S). entries_ns: (Q, S).
    """

    strategies: tuple[str, ...]
    time_ns: Integers
    sync_ns: Integers
    forward_bytes: Integers
    backward_bytes: Integers
    state_bytes: Integers
    transitions_ns: Integers
    entries_ns: Integers

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of names and numbers."""
        found = hashlib.sha256(json.dumps(self.strategies).encode())
        for name in (*COLUMNS, "transitions_ns", "entries_ns"):
            found.update(np.ascontiguousarray(getattr(self, name), "<i8").tobytes())
        return found.digest()

    def keep(self, options: Sequence[int]) -> Tables:
        """The same tables with only these options."""
        o = list(options)
        columns = {name: getattr(self, name)[:, o] for name in (*COLUMNS, "entries_ns")}
        names = tuple(self.strategies[s] for s in o)
        return Tables(strategies=names, transitions_ns=self.transitions_ns[:, o][:, :, o], **columns)


COLUMNS = ("time_ns", "sync_ns", "forward_bytes", "backward_bytes", "state_bytes")


@dataclass(frozen=True, eq=False)
class Configuration:
    """A number of stages and micro-batches, and the tables that hold there. ends_ns: see the published iteration time."""

    stages: int
    micro_batches: int
    tables: Tables
    schedule: Schedule = "1f1b"
    iteration: Iteration = "eq8"
    ends_ns: tuple[int, int] = (0, 0)

    @cached_property
    def counted(self) -> Tables:
        """The tables as the iteration time counts them."""
        tables = self.tables
        if self.iteration == "eq8":
            return tables
        return replace(tables, transitions_ns=0 * tables.transitions_ns, entries_ns=0 * tables.entries_ns)

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once."""
        return self.micro_batches if self.schedule == "gpipe" else min(self.micro_batches, self.stages - stage)

    def __str__(self) -> str:
        return f"{self.stages} stages, {self.micro_batches} micro-batches, {self.schedule}"


@dataclass(frozen=True, eq=False)
class Instance:
    """The problem in arrays. layer_kinds: kind of each of the L layers; boundary_kinds: of the L-1 boundaries between them."""

    devices: int
    memory_bytes: int
    batch: int
    layer_names: tuple[str, ...]
    layer_kinds: tuple[int, ...]
    boundary_kinds: tuple[int, ...]
    configurations: tuple[Configuration, ...]
    name: str = NAME
    provenance: dict[str, Any] = field(default_factory=dict)

    problem = NAME

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the answer depends on (not of names or provenance)."""
        found = hashlib.sha256()
        found.update(repr((self.memory_bytes, self.layer_kinds, self.boundary_kinds)).encode())
        for given in self.configurations:
            found.update(repr((given.stages, given.micro_batches, given.schedule, given.iteration, given.ends_ns)).encode())
            found.update(given.tables.digest)
        return found.hexdigest()

    def with_memory(self, memory_bytes: int) -> Instance:
        return replace(self, memory_bytes=memory_bytes)

    def stage(self, configuration: int, stage: int, first: int, last: int, weight: int = 1) -> StageInstance:
        """One stage, layers first to last (included), as a layer-strategies instance. weight: micro-batches that the time is
        counted for; gradient synchronisation counts once. Options of all layers are those of the configuration."""
        given = self.configurations[configuration]
        return self.span(given.counted, first, last, given.in_flight(stage), (weight, 1))

    def span(self, tables: Tables, first: int, last: int, in_flight: int, weight: tuple[int, int]) -> StageInstance:
        """A span of layers under some tables, as a layer-strategies instance that minimises p (T - G) + q G; weight: (p, q)."""
        p, q = weight
        kinds = self.layer_kinds[first : last + 1]
        times = list(p * (tables.time_ns - tables.sync_ns) + q * tables.sync_ns)
        states = list(tables.state_bytes + (in_flight - 1) * tables.forward_bytes)
        moves = list(p * tables.transitions_ns)  # one object for each kind, so that equal ones are known to be equal
        layers_ns = [times[kind] for kind in kinds]
        if first:
            layers_ns[0] = layers_ns[0] + p * tables.entries_ns[self.boundary_kinds[first - 1]]
        return StageInstance(
            memory_bytes=self.memory_bytes,
            time_ns=tuple(layers_ns),
            forward_bytes=tuple(tables.forward_bytes[kind] for kind in kinds),
            backward_bytes=tuple(tables.backward_bytes[kind] for kind in kinds),
            state_bytes=tuple(states[kind] for kind in kinds),
            transitions_ns=tuple(moves[kind] for kind in self.boundary_kinds[first:last]),
            strategies=(tables.strategies,) * len(kinds),
            layer_names=self.layer_names[first : last + 1],
            name=f"layers {first} to {last} of {self.name}",
            provenance={"batch": self.batch},
        )

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""
        configurations = []
        for given in self.configurations:
            tables = given.tables
            options = [
                [
                    {"strategy": name, **{column: int(getattr(tables, column)[kind, s]) for column in COLUMNS}}
                    for s, name in enumerate(tables.strategies)
                ]
                for kind in range(len(tables.time_ns))
            ]
            configurations.append(
                {
                    "stages": given.stages,
                    "micro_batches": given.micro_batches,
                    "schedule": given.schedule,
                    "iteration": given.iteration,
                    "ends_ns": list(given.ends_ns),
                    "options": options,
                    "transitions_ns": tables.transitions_ns.tolist(),
                    "entries_ns": tables.entries_ns.tolist(),
                }
            )
        return {
            "problem": NAME,
            "version": 1,
            "name": self.name,
            "provenance": self.provenance,
            "devices": self.devices,
            "memory_bytes": self.memory_bytes,
            "batch": self.batch,
            "layer_names": list(self.layer_names),
            "layer_kinds": list(self.layer_kinds),
            "boundary_kinds": list(self.boundary_kinds),
            "configurations": configurations,
        }


@dataclass(frozen=True)
class StageCosts:
    """One stage of a solution: time of the last micro-batch, the synchronisation in it, and Eq. 2's peak at its worst layer."""

    first: int
    last: int
    in_flight: int
    time_ns: int
    sync_ns: int
    peak_bytes: int
    peak_layer: int
    state_bytes: int


@dataclass(frozen=True)
class Evaluation:
    """What a solution costs, stage by stage."""

    time_ns: int
    stages: tuple[StageCosts, ...]

    @property
    def objective(self) -> int:
        return self.time_ns

    @property
    def peak_bytes(self) -> int:
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def time_balance(self) -> float:
        """a_t of Eq. 6, between 0 and 1 - 1/P."""
        return _balance([stage.time_ns for stage in self.stages])

    @property
    def memory_balance(self) -> float:
        """a_m of Eq. 6."""
        return _balance([stage.peak_bytes for stage in self.stages])


def _balance(shares: Sequence[int]) -> float:
    return 1 - max(shares) / sum(shares) if sum(shares) else 0.0


@dataclass(frozen=True)
class Solution:
    """A configuration by its place, the number of layers of each stage, and the option of every layer."""

    configuration: int
    stages: tuple[int, ...]
    choice: tuple[int, ...]

    def spans(self) -> list[tuple[int, int]]:
        """First and last layer of every stage."""
        return spans_of_sizes(self.stages)


def spans_of_sizes(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """First and last layer of stages of these numbers of layers."""
    ends = list(accumulate(sizes))
    return [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
    configurations = []
    for given in record.configurations:
        columns: dict[str, Any] = {
            name: np.array([[getattr(option, name) for option in options] for options in given.options], np.int64)
            for name in COLUMNS
        }
        names = tuple(option.strategy for option in given.options[0])
        count = len(names)
        tables = Tables(
            strategies=names,
            transitions_ns=np.array(given.transitions_ns, np.int64).reshape(-1, count, count),
            entries_ns=np.array(given.entries_ns, np.int64).reshape(-1, count),
            **columns,
        )
        shape = (given.stages, given.micro_batches, tables, given.schedule, given.iteration, given.ends_ns)
        configurations.append(Configuration(*shape))
    return Instance(
        devices=record.devices,
        memory_bytes=record.memory_bytes,
        batch=record.batch,
        layer_names=tuple(record.layer_names),
        layer_kinds=tuple(record.layer_kinds),
        boundary_kinds=tuple(record.boundary_kinds),
        configurations=tuple(configurations),
        name=record.name or NAME,
        provenance=record.provenance or {},
    )


def load_solution(source: Source) -> Solution:
    """A solution from a file or a dict. Raises InputError."""
    record = parse(source, SolutionRecord, "solution" if isinstance(source, Mapping) else None)
    return Solution(record.configuration, tuple(record.stages), tuple(record.choice))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its file format."""
    return {
        "configuration": solution.configuration,
        "stages": list(solution.stages),
        "choice": [int(s) for s in solution.choice],
    }


def iteration_ns(configuration: Configuration, times_ns: Sequence[int], syncs_ns: Sequence[int]) -> int:
    """Eq. 8, or the published iteration time, from the stages' times and the synchronisation in them."""
    own = [time - sync for time, sync in zip(times_ns, syncs_ns, strict=True)]
    stages, m = configuration.stages, configuration.micro_batches
    if configuration.iteration == "eq8":
        return (m - 1) * max(own) + sum(times_ns)
    led = max((min(stages, m) - 1) * own[0], sum(own[1:])) + max(0, m + 1 - stages) * own[0]
    layers_ns = list(times_ns)
    for stage, end in zip((0, -1), configuration.ends_ns, strict=True):
        layers_ns[stage] -= end
    unhidden = max(time - before for time, before in zip(layers_ns, accumulate(own), strict=True))
    return max(sum(own) + (m - 1) * own[-1], led) + max(0, unhidden)


def even_partition(layers: int, stages: int) -> tuple[int, ...]:
    """The published engine's, for one type of layers (pp_division_even): the last stage takes the rest."""
    return (layers // stages,) * (stages - 1) + (layers - layers // stages * (stages - 1),)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Time and memory of a solution, by Eq. 8 and Eq. 2. Raises ValueError where it is no solution of the instance."""
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    given = instance.configurations[solution.configuration]
    found = []
    for number, (first, last) in enumerate(solution.spans()):
        found.append(stage_costs(instance, given, number, first, solution.choice[first : last + 1]))
    total = iteration_ns(given, [stage.time_ns for stage in found], [stage.sync_ns for stage in found])
    return Evaluation(total, tuple(found))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """What users see of a solution's costs."""
    result, given = evaluate(instance, solution), instance.configurations[solution.configuration]
    worst = max(result.stages, key=lambda stage: stage.peak_bytes)
    return {
        "time_ns": result.time_ns,
        "throughput_samples_per_s": instance.batch / result.time_ns * 1e9 if result.time_ns else None,
        "pipeline": given.stages,
        "micro_batches": given.micro_batches,
        "schedule": given.schedule,
        "peak_bytes": result.peak_bytes,
        "peak_layer": worst.peak_layer,
        "peak_layer_name": instance.layer_names[worst.peak_layer],
        "state_bytes": worst.state_bytes,
        "time_balance": result.time_balance,
        "memory_balance": result.memory_balance,
        "stages": [asdict(stage) for stage in result.stages],
        "strategies": [given.tables.strategies[s] for s in solution.choice],
    }


def stage_costs(instance: Instance, given: Configuration, number: int, first: int, choice: Sequence[int]) -> StageCosts:
    """One stage that begins at layer `first`, under the options of its layers."""
    tables, ahead = given.counted, given.in_flight(number) - 1
    kinds = instance.layer_kinds[first : first + len(choice)]
    places = (list(kinds), list(choice))
    time = int(tables.time_ns[places].sum())
    if first:
        time += int(tables.entries_ns[instance.boundary_kinds[first - 1], choice[0]])
    for place in range(len(choice) - 1):
        time += int(tables.transitions_ns[instance.boundary_kinds[first + place], choice[place], choice[place + 1]])
    kept = tables.forward_bytes[places]
    states = int(tables.state_bytes[places].sum())
    peaks = np.cumsum(kept) + tables.backward_bytes[places] + ahead * int(kept.sum()) + states
    place = int(peaks.argmax())
    return StageCosts(
        first=first,
        last=first + len(choice) - 1,
        in_flight=ahead + 1,
        time_ns=time,
        sync_ns=int(tables.sync_ns[places].sum()),
        peak_bytes=int(peaks[place]),
        peak_layer=first + place,
        state_bytes=states,
    )


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, in words; empty where it is feasible."""
    if wrong := _malformed(instance, solution):
        return wrong
    found = []
    for number, stage in enumerate(evaluate(instance, solution).stages):
        over = stage.peak_bytes - instance.memory_bytes
        if over > 0:
            found.append(
                f"stage {number}: the backward pass of {instance.layer_names[stage.peak_layer]} needs {stage.peak_bytes} bytes "
                f"({format_bytes(stage.peak_bytes)}), {over} more than memory_bytes = {instance.memory_bytes}"
            )
    return found


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    known = len(instance.configurations)
    if not 0 <= solution.configuration < known:
        return [f"configuration is {solution.configuration}; the instance has 0 to {known - 1}"]
    given = instance.configurations[solution.configuration]
    if len(solution.stages) != given.stages or min(solution.stages) < 1 or sum(solution.stages) != instance.layers:
        return [f"stages is {list(solution.stages)}; configuration {solution.configuration} splits {instance.layers} layers "
                f"into {given.stages} stages of at least one"]  # fmt: skip
    even = even_partition(instance.layers, given.stages)
    if given.iteration == "published" and tuple(solution.stages) != even:
        return [f"stages is {list(solution.stages)}; the published engine splits the layers evenly: {list(even)}"]
    if len(solution.choice) != instance.layers:
        return [f"choice has {len(solution.choice)} entries; the instance has {instance.layers} layers"]
    count = len(given.tables.strategies)
    return [
        f"choice[{l}] is {s}; layer {l} has options 0 to {count - 1}"
        for l, s in enumerate(solution.choice)
        if not 0 <= s < count
    ]
