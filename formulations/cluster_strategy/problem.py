"""cluster-strategy: choose degrees, placement, micro-batch size, layer assignment and shares together (AMP, Section 3).

A strategy s = (pp, dp, tmp, p, mbs, a) (Eq. 2): dp pipelines of pp stages, each stage a group of tmp devices, on all devices of
the cluster. p puts a device on each of the ranks (j, i, r), stage j of pipeline i, tensor-parallel rank r, numbered (j dp + i)
tmp + r; a cuts the layers into stages, alike in all pipelines. Pipeline i takes gas_i micro-batches of mbs samples.

    minimise    T = max_i T_i + max_{j,r} D_{j,r}                                                     Eq. 4, nanoseconds
    with        T_i = (gas_i - 1) max_j t_{j,i} + sum_j e_{j,i} + sum_j t_{j,i}                       Eq. 5
                t_{j,i} = sum of the layers of stage j: the slowest device's time + the all-reduces of group (j, i)
                e_{j,i} = 2 (v mbs / b + latency), the slowest pair between groups (j, i) and (j+1, i)
                D_{j,r} = all-reduce of stage j's gradients over its devices (j, ., r)                Eq. 3
                          + R where j is the first or the last stage
                R       = all-reduce of a table that embedding and head share over all devices of these two stages
    subject to  sum_i gas_i mbs = gbs, all gas_i equal unless `uneven_shares`
                dp and tmp are powers of two, if `powers_of_two` (plans have no others)
                on every device   sum states + min(gas_i, pp - j) sum kept + max workspace <= its memory, if `within_memory`

v is the bytes across a cut for one sample, b the bandwidth of the link, gbs the samples of a step. Every group communicates at
its slowest link. Readings of the paper: v / b is paid forward and back; all-reduces have their latencies. R is what this
project's programs do; AMP has none (`tied_bytes` of 0). The memory is this project's, too: AMP plans with `within_memory` off.
All numbers are integers.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.cluster_strategy.classes import device_classes
from trainplan.formulations.cluster_strategy.placement_costs import Placed
from trainplan.formulations.instance import InstanceFile, ProblemInstance, Timed
from trainplan.formulations.numbers import ArrayOf, Integers, check_length
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items, written
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes, plural
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.costs import collective_ns

NAME = "cluster-strategy"
LARGEST, LARGEST_BATCH = 2**53, 10**9
ARRAYS = ("reductions", "reduced_bytes", "boundary_bytes")
FLAGS = ("uneven_shares", "within_memory", "powers_of_two")

Whole = Annotated[int, Field(ge=0, le=2**53)]
Degree = Annotated[int, Field(ge=1, le=2**20)]
Row = Annotated[Integers, ArrayOf(Whole)]


@dataclass(frozen=True)
class Kind(DataclassRecord):
    """A kind of device, and the memory in bytes that its devices have for a plan."""

    name: Annotated[str, Field(min_length=1)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]


class DevicesRecord(Record):
    """Consecutive devices of one kind in a file."""

    kind: Annotated[int, Field(ge=0)]
    count: Degree


@dataclass(frozen=True, eq=False)
class Shard(DataclassRecord):
    """Bytes that one of tmp devices holds of every layer: (L,) gradients to synchronise, and (L,) model states.

    whole: layers that each of the tmp devices computes as a whole, so that nothing is reduced.
    """

    gradient_bytes: Row
    state_bytes: Row
    whole: Annotated[
        Items[Annotated[int, Field(ge=0)]],
        Field(description="layers that each of the tmp devices computes all of, so that nothing is reduced; none by default"),
    ] = ()

    optional = ("whole",)

    @cached_property
    def gradient_sums(self) -> Integers:
        """(L + 1,): gradient bytes of all layers before a layer."""
        return np.pad(self.gradient_bytes.cumsum(), (1, 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardRecord(Shard):
    """A shard in a file, with the number of tensor-parallel devices, tmp, that it is for."""

    tmp: Degree


@dataclass(frozen=True, eq=False)
class LayerTable(DataclassRecord):
    """Costs of every layer with mbs samples on one of tmp devices.

    layer_ns: (kinds, L), both passes; kept_bytes: (L,), kept between them; workspace_bytes: (L,), the most that a pass adds.
    """

    layer_ns: Annotated[Integers, ArrayOf(Whole, 2), Field(description="for each kind of device, by layer")]
    kept_bytes: Row
    workspace_bytes: Row


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerTableRecord(LayerTable):
    """A table in a file, with the numbers of devices, tmp, and of samples, mbs, that it is for."""

    tmp: Degree
    mbs: Degree


class InstanceRecord(InstanceFile):
    """The file format of a cluster-strategy instance, version 1."""

    problem: Literal["cluster-strategy"]
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH, description="samples of one step, gbs")]
    layer_names: Annotated[Items[str], Field(min_length=1, max_length=10_000)]
    kinds: Annotated[Items[Kind], Field(min_length=1)]
    devices: Annotated[list[DevicesRecord], Field(min_length=1)]
    network: Network
    reductions: Annotated[Row, Field(description="all-reduces of a layer over its tmp devices, both passes")]
    reduced_bytes: Annotated[Row, Field(description="all of them together, of one sample")]
    boundary_bytes: Annotated[Row, Field(description="v: bytes across the cut, of one sample, one way")]
    shards: Annotated[list[ShardRecord], Field(min_length=1)]
    tables: Annotated[list[LayerTableRecord], Field(min_length=1)]
    uneven_shares: bool = False
    within_memory: bool = True
    powers_of_two: Annotated[bool, Field(description="dp and tmp are powers of two, as plans have them")] = False
    tied_bytes: Annotated[
        Whole, Field(description="of a table that embedding and head share, whose gradients both ends add up; 0: none")
    ] = 0

    @model_validator(mode="after")
    def _consistent(self) -> InstanceRecord:
        """Raise InputError where lists have wrong lengths, references lead nowhere, or times are too large."""
        layers = len(self.layer_names)
        for name, wanted in (("reductions", layers), ("reduced_bytes", layers), ("boundary_bytes", layers - 1)):
            check_length(name, getattr(self, name), wanted)
        for i, run in enumerate(self.devices):
            if run.kind >= len(self.kinds):
                raise InputError("", f"devices[{i}].kind", f"is {run.kind}", f"give 0 to {len(self.kinds) - 1}")
        if (count := sum(run.count for run in self.devices)) > 2**20:
            raise InputError("", "devices", f"are {count}", f"give at most {2**20}")
        if not self.network.reaches(count):
            raise InputError("", "network", f"does not reach all {count} devices", "give an island that holds them")
        for i, shard in enumerate(self.shards):
            for name in ("gradient_bytes", "state_bytes"):
                check_length(f"shards[{i}].{name}", getattr(shard, name), layers)
            for index, layer in enumerate(shard.whole):
                if layer >= layers:
                    raise InputError("", f"shards[{i}].whole[{index}]", f"is {layer}", f"give 0 to {layers - 1}")
        degrees = [shard.tmp for shard in self.shards]
        if len(set(degrees)) < len(degrees):
            raise InputError("", "shards", f"have tmp {shown(degrees)}", "give each degree once")
        for i, table in enumerate(self.tables):
            if table.tmp not in degrees:
                raise InputError(
                    "", f"tables[{i}].tmp", f"is {table.tmp}", f"give one of shards: {', '.join(map(str, degrees))}"
                )
            check_length(f"tables[{i}].layer_ns", table.layer_ns, len(self.kinds))
            rows = [(f"layer_ns[{k}]", row) for k, row in enumerate(table.layer_ns)]
            for name, row in [*rows, ("kept_bytes", table.kept_bytes), ("workspace_bytes", table.workspace_bytes)]:
                check_length(f"tables[{i}].{name}", row, layers)
            if (longest := -(-self.batch // table.mbs) * max(map(sum, table.layer_ns.tolist()))) > LARGEST:
                problem = f"take {longest:.3g} ns in a step of {self.batch} samples"
                raise InputError("", f"tables[{i}].layer_ns", problem, f"give times that stay within {LARGEST:.3g}")
        if len({(table.tmp, table.mbs) for table in self.tables}) < len(self.tables):
            raise InputError("", "tables", "have one (tmp, mbs) twice", "give each once")
        if (taken := self._most_communication_ns(count)) > LARGEST:
            problem = f"makes the messages of a step of {self.batch} samples take up to {taken:.3g} ns"
            raise InputError("", "network", problem, f"give faster links, or fewer bytes: within {LARGEST:.3g} ns")
        return self

    def _most_communication_ns(self, devices: int) -> float:
        """Time of all messages of a step one after another, as if each were an all-reduce among all devices."""
        stages, everyone = min(devices, len(self.layer_names)), tuple(range(devices))
        messages = self.batch * (2 * stages + sum(self.reductions.tolist())) + 2
        size = self.batch * (2 * stages * max(self.boundary_bytes.tolist(), default=0) + sum(self.reduced_bytes.tolist()))
        size += max(sum(shard.gradient_bytes.tolist()) for shard in self.shards) + self.tied_bytes
        latency_ns, whole_ns = (collective_ns(self.network, "all-reduce", float(of), everyone) for of in (0, size))
        return messages * latency_ns + whole_ns


class SolutionRecord(Record):
    """The file format of a solution. cuts: the first layer of stages 2 to pp. shares: micro-batches of each pipeline."""

    pp: Degree
    dp: Degree
    tmp: Degree
    mbs: Degree
    placement: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    cuts: list[Annotated[int, Field(ge=0)]]
    shares: list[Annotated[int, Field(ge=1, le=LARGEST_BATCH)]] | None = None


@dataclass(frozen=True, order=True)
class Degrees:
    """How a strategy divides the devices: pp stages, dp pipelines, tmp devices in a group; and micro-batches of mbs samples."""

    pp: int
    dp: int
    tmp: int
    mbs: int

    def __str__(self) -> str:
        return f"pp {self.pp}, dp {self.dp}, tmp {self.tmp}, micro-batches of {self.mbs}"


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """The problem in arrays.

    Attributes:
        batch: samples of a step.
        layer_names: the name of each of the L layers.
        kinds: the kinds of devices; device_kinds: the index of the kind of every device.
        network: the links between devices.
        reductions: (L,), all-reduces of each layer over its tmp devices; reduced_bytes: (L,), their bytes for one sample.
        boundary_bytes: (L-1,), v.
        shards: by tmp; tables: by (tmp, mbs).
        uneven_shares, within_memory, powers_of_two: as at the head of this file.
        tied_bytes: bytes of a table that embedding and head share; 0 where there is none, and where R is left out, as in AMP.
        group_costs: costs of groups of devices that were looked up; `Placed` fills them in.
    """

    batch: int
    layer_names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    device_kinds: tuple[int, ...]
    network: Network
    reductions: Integers
    reduced_bytes: Integers
    boundary_bytes: Integers
    shards: Mapping[int, Shard]
    tables: Mapping[tuple[int, int], LayerTable]
    uneven_shares: bool = False
    within_memory: bool = True
    powers_of_two: bool = False
    tied_bytes: int = 0
    group_costs: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    problem = NAME

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.layer_names)

    @property
    def devices(self) -> int:
        """The number of devices of the cluster."""
        return len(self.device_kinds)

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest device, in bytes."""
        return min(self.kinds[kind].memory_bytes for kind in set(self.device_kinds))

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device in bytes; None where memory is not counted, or where devices differ."""
        limits = {self.kinds[kind].memory_bytes for kind in self.device_kinds}
        return limits.pop() if self.within_memory and len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of layers, of possible degrees and of devices, and the memory of the smallest device in bytes."""
        degrees = sum(1 for _ in self.degrees())
        return {"layers": self.layers, "degrees": degrees, "devices": self.devices, "memory_bytes": self.memory_bytes}

    @cached_property
    def classes(self) -> Integers:
        """The class of every device; devices of one class may be exchanged (see `classes`)."""
        return np.array(device_classes(self.network, self.device_kinds), np.int64)

    @cached_property
    def class_kinds(self) -> Integers:
        """The kind of the devices of each class."""
        _, first = np.unique(self.classes, return_index=True)
        return np.array(self.device_kinds, np.int64)[first]

    @cached_property
    def members(self) -> list[list[int]]:
        """The devices of every class."""
        return [np.flatnonzero(self.classes == c).tolist() for c in range(int(self.classes.max()) + 1)]

    def placement(self, classes: Iterable[int]) -> tuple[int, ...]:
        """Some placement that has a device of the given class on every rank."""
        waiting = [iter(devices) for devices in self.members]
        return tuple(next(waiting[c]) for c in classes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides a solution's cost, in hexadecimal digits: everything but name and provenance."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "provenance")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with `memory_bytes` as the limit of every device, in which memory counts."""
        return replace(self, kinds=tuple(replace(kind, memory_bytes=memory_bytes) for kind in self.kinds), within_memory=True)

    def degrees(self) -> Iterator[Degrees]:
        """All (pp, dp, tmp) that use every device, with all possible sizes of micro-batch (Algorithm 1's loops)."""
        for tmp in sorted(self.shards):
            if self.devices % tmp or not self.allows_degree(tmp):
                continue
            sizes = sorted(mbs for t, mbs in self.tables if t == tmp)
            for dp in range(1, self.devices // tmp + 1):
                pp = self.devices // tmp // dp
                if pp * dp * tmp == self.devices and pp <= self.layers and self.allows_degree(dp):
                    yield from (Degrees(pp, dp, tmp, mbs) for mbs in sizes if self.even_shares(dp, mbs) is not None)

    def allows_degree(self, degree: int) -> bool:
        """Whether dp or tmp may be a number."""
        return not self.powers_of_two or degree & (degree - 1) == 0

    def even_shares(self, dp: int, mbs: int) -> tuple[int, ...] | None:
        """Micro-batches of each pipeline, as equal as the batch allows; None where it cannot be divided so."""
        if self.batch % mbs or self.batch // mbs < dp or (self.batch // mbs % dp and not self.uneven_shares):
            return None
        least, more = divmod(self.batch // mbs, dp)
        return (least + 1,) * more + (least,) * (dp - more)

    def placed(self, degrees: Degrees, placement: Sequence[int]) -> Placed:
        """All times and limits that follow from a placement."""
        return Placed(self, degrees, np.asarray(placement, np.int64))

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""
        return {
            **self.header,
            **self.lists(("batch", *ARRAYS, *FLAGS, "layer_names", *(["tied_bytes"] if self.tied_bytes else []))),
            "kinds": written(self.kinds),
            "devices": [{"kind": kind, "count": len(list(run))} for kind, run in groupby(self.device_kinds)],
            "network": self.network.model_dump(exclude_none=True),
            "shards": [{"tmp": tmp, **shard.to_dict()} for tmp, shard in self.shards.items()],
            "tables": [{"tmp": tmp, "mbs": mbs, **table.to_dict()} for (tmp, mbs), table in self.tables.items()],
        }


@dataclass(frozen=True)
class Solution:
    """A strategy. placement: the device of every rank; cuts: the first layer of stages 2 to pp; shares: gas_i, or empty for
    even ones."""

    degrees: Degrees
    placement: tuple[int, ...]
    cuts: tuple[int, ...]
    shares: tuple[int, ...]

    def spans(self, layers: int) -> list[tuple[int, int]]:
        """First and last layer of every stage. layers: the number of layers."""
        borders = [0, *self.cuts, layers]
        return [(first, after - 1) for first, after in pairwise(borders)]


@dataclass(frozen=True)
class StrategyStage:
    """Cost of one stage of a strategy.

    Attributes:
        first, last: its layers.
        kinds: how many devices it has of each kind, by name.
        time_ns, transfer_ns: those of its slowest pipeline; sync_ns: its gradient synchronisation.
        peak_bytes, limit_bytes: need and memory of the device that is closest to its limit, or furthest above it.
    """

    first: int
    last: int
    kinds: tuple[tuple[str, int], ...]
    time_ns: int
    transfer_ns: int
    sync_ns: int
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """Time and memory of a strategy, with those of each stage. pipelines_ns: T_i of every pipeline; sync_ns: the largest D."""

    time_ns: int
    pipelines_ns: tuple[int, ...]
    sync_ns: int
    stages: tuple[StrategyStage, ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the fullest device of any stage needs; where devices differ, not always the most of all
        devices."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory that it needs."""
        return all(stage.peak_bytes <= stage.limit_bytes for stage in self.stages)


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file or a dict. Raises InputError with file, field, value and fix. where: the name that errors
    call a dict by."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    same = ("batch", "layer_names", "kinds", "network", *ARRAYS, *FLAGS, "tied_bytes")
    return Instance(
        **{name: getattr(record, name) for name in same},
        device_kinds=tuple(run.kind for run in record.devices for _ in range(run.count)),
        shards={shard.tmp: shard for shard in record.shards},
        tables={(table.tmp, table.mbs): table for table in record.tables},
        **record.labels,
    )


def load_solution(source: Source) -> Solution:
    """Read a solution from a file or a dict; without shares, an even distribution is meant. Raises InputError."""
    record = parse(source, SolutionRecord, name_of_source(source, "solution"))
    degrees = Degrees(record.pp, record.dp, record.tmp, record.mbs)
    return Solution(degrees, tuple(record.placement), tuple(record.cuts), tuple(record.shares or ()))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its file format, as plain values."""
    return {
        **asdict(solution.degrees),
        "placement": [int(device) for device in solution.placement],
        "cuts": [int(cut) for cut in solution.cuts],
        "shares": list(solution.shares),
    }


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Time and memory of a strategy, by Eq. 3 to 5. Raises ValueError where it is no solution of the instance."""
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    shares = shares_of(instance, solution)
    placed = instance.placed(solution.degrees, solution.placement)
    times, transfers, syncs = placed.stage_ns(solution.cuts), placed.sent_ns(solution.cuts), placed.syncs_ns(solution.cuts)
    pipelines = placed.pipelines_ns(solution.cuts, shares)
    peaks, limits, stages = placed.peak_bytes(solution.cuts, shares), placed.limits_bytes, []
    for number, (first, last) in enumerate(solution.spans(instance.layers)):
        fullest = int((peaks[number] - limits[number]).argmax())
        names = Counter(instance.kinds[kind].name for kind in placed.kinds[number].flat)
        stages.append(
            StrategyStage(
                first,
                last,
                tuple(sorted(names.items())),
                int(times[number].max()),
                int(transfers[number].max()) if number < len(transfers) else 0,
                syncs[number],
                int(peaks[number, fullest]),
                int(limits[number, fullest]),
            )
        )
    slowest_sync = max(syncs)
    return Evaluation(int(pipelines.max()) + slowest_sync, tuple(map(int, pipelines)), slowest_sync, tuple(stages))


def shares_of(instance: Instance, solution: Solution) -> tuple[int, ...]:
    """gas_i, the micro-batches of every pipeline of a solution: its own, or even ones."""
    shares = solution.shares or instance.even_shares(solution.degrees.dp, solution.degrees.mbs)
    assert shares is not None, "a solution without shares has even ones"
    return shares


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a strategy as users see them, by name."""
    result = evaluate(instance, solution)
    worst = max(result.stages, key=lambda stage: stage.peak_bytes - stage.limit_bytes)
    return {
        "time_ns": result.time_ns,
        "throughput_samples_per_s": instance.batch / result.time_ns * 1e9 if result.time_ns else None,
        **asdict(solution.degrees),
        "shares": list(shares_of(instance, solution)),
        "pipelines_ns": list(result.pipelines_ns),
        "sync_ns": result.sync_ns,
        "fits": result.fits,
        "peak_bytes": worst.peak_bytes,
        "peak_layer": worst.last,
        "peak_layer_name": instance.layer_names[worst.last],
        "stages": [asdict(stage) for stage in result.stages],
    }


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a strategy breaks, one text each; empty where it is feasible."""
    if wrong := _malformed(instance, solution):
        return wrong
    broken = []
    for number, stage in enumerate(evaluate(instance, solution).stages):
        over = stage.peak_bytes - stage.limit_bytes
        if over > 0 and instance.within_memory:
            broken.append(
                f"stage {number}: layers {stage.first} to {stage.last} need {stage.peak_bytes} bytes "
                f"({format_bytes(stage.peak_bytes)}), {over} more than its smallest device has"
            )
    return broken


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    """Why a strategy is no solution of the instance, in words; empty where it is one, whatever memory it needs."""
    degrees, devices, layers = solution.degrees, instance.devices, instance.layers
    if degrees.pp * degrees.dp * degrees.tmp != devices:
        return [f"pp x dp x tmp is {degrees.pp} x {degrees.dp} x {degrees.tmp}; the cluster has {devices} devices"]
    if (degrees.tmp, degrees.mbs) not in instance.tables:
        possible = sorted({tmp for tmp, _ in instance.tables}), sorted({mbs for _, mbs in instance.tables})
        return [f"tmp is {degrees.tmp}, mbs {degrees.mbs}; the instance has tmp {shown(possible[0])}, mbs {shown(possible[1])}"]
    for name, degree in (("dp", degrees.dp), ("tmp", degrees.tmp)):
        if not instance.allows_degree(degree):
            return [f"{name} is {degree}; the instance wants a power of two"]
    for device, times in Counter([*range(devices), *solution.placement]).items():
        if times != 2:
            fix = "once" if device < devices else f"of 0 to {devices - 1}"
            return [f"placement names device {device} {plural(times - 1, 'time')}; give each {fix}"]
    borders = [0, *solution.cuts, layers]
    if len(solution.cuts) != degrees.pp - 1 or any(before >= after for before, after in pairwise(borders)):
        return [f"cuts is {list(solution.cuts)}; give {degrees.pp - 1} layers of 1 to {layers - 1}, ascending"]
    if not solution.shares:
        return [] if instance.even_shares(degrees.dp, degrees.mbs) else [f"shares are missing; {degrees} has no even ones"]
    total = instance.batch // degrees.mbs
    if len(solution.shares) != degrees.dp or min(solution.shares) < 1 or sum(solution.shares) * degrees.mbs != instance.batch:
        return [f"shares is {list(solution.shares)}; give {degrees.dp} numbers of at least 1 that add up to {total}"]
    if len(set(solution.shares)) > 1 and not instance.uneven_shares:
        return [f"shares is {list(solution.shares)}; the instance wants them equal"]
    return []
