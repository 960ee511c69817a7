"""joint: choose schedule, micro-batches, stages and an option for every unit together, for the least step within the memory.

Sets. Units l = 0 .. L-1 (sub-layers, or groups of them that are cut and chosen together), of kind k(l); boundaries q(l) between
l and l+1. Devices in classes of equal ones; a site is what the devices of one stage are, with its memory E.

Decisions. A configuration fixes schedule, number of micro-batches m, and sites; it has p stages (P sites, each with v chunks
where the schedule is interleaved, p = P v; else p = P). In it, choose cuts 0 = a_0 < a_1 < .. < a_p = L, so that stage x holds
the units a_x .. a_{x+1} - 1, and of every unit l one option s_l. With the numbers of `tables`, of the first unit i and the last
unit j of stage x:

    f_x = head(s_i) + sum_l f(s_l) + R_f(l, l+1 within x) + R_f(into i)        forward pass of one micro-batch
    b_x = turn(s_j) + sum_l b(s_l) + R_b(l, l+1 within x) + R_b(back into j) + tail(s_i)
    c_x = message forward into x; d_x = message of gradients back into x       0 for the first and for the last stage
    l_x = sum_l last(s_l); g_x = sum_l reduce(s_l); o_x = sum_l optimizer(s_l)

where gradients of a whole stage are reduced together, g_x = that all-reduce of sum_l gradient(s_l) bytes, too.

A re-layout at a cut is made by who receives: forward by the stage after the cut, backward by the stage before it.

Objective, by the instance's `step`:

    simulated   max_x ( end_x + g_x + o_x ): end_x is when site x has ended its last backward pass, every pass as early as the
                schedule's order allows: its device is free, and what it receives has been sent; then it takes c_x + f_x or
                d_x + b_x, the last micro-batch's backward pass l_x more (see `simulation`). Where both ends of the pipeline
                share a table in two parameters, they add up their gradients together: of the stages 0 and p-1,
                max(end_0 + g_0, end_{p-1} + g_{p-1}) + tied + o_x
    eq8         (m - 1) max_x (T_x - G_x) + sum_x T_x, T_x = f_x + b_x + c_x + d_x + G_x, G_x = l_x + g_x + o_x   Galvatron-BMW
    eq5         (m - 1) max_x (f_x + b_x) + sum_x (f_x + b_x) + sum_x (c_x + d_x)                                 AMP
    eq4         eq5 + max_x (g_x + o_x + tied where x is 0 or p-1)                                                AMP

subject to, with n_x micro-batches in flight on stage x (counted from the schedule's order),

    sum state + n_x sum held + (n_x - 1) sum kept + max_l ( sum_{k <= l} kept_k + work_l ) <= E      work: of the larger pass

over the units of the stage. Of interleaved chunks one device holds several: the largest such sum over the passes of its order,
with as many micro-batches of each chunk in flight as there are then (see `memory`). Where the table that the ends share is one
parameter (one stage, equal levels), the last unit costs what `Tied.once` says.

All numbers are integers. `evaluate` and `violations` know no solver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field
from trainplan.formulations.instance import ProblemInstance
from trainplan.formulations.joint.tables import Boundary, Count, OptionTable, Tables, Tied, update
from trainplan.formulations.schedule import orders as schedules
from trainplan.formulations.schedule.orders import Pass, PlanSchedule
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.costs import collective_ns

NAME = "joint"

Step = Literal["simulated", "eq8", "eq5", "eq4"]
STEPS: tuple[Step, ...] = get_args(Step)
ScheduleName = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True)
class Schedule(DataclassRecord):
    """The order of passes. sliced: of 1F1B, how many micro-batches begin in two halves; chunks: how many stages a site has,
    which is one but for the interleaved schedule; beside: its messages travel while passes run, and a pass waits for its own
    message alone. Written `gpipe`, `1f1b`, `sliced(2)`, `interleaved(2)`."""

    name: ScheduleName = "1f1b"
    sliced: Count = 0
    chunks: Annotated[int, Field(ge=1)] = 1
    beside: bool = False

    def __str__(self) -> str:
        if self.sliced:
            return f"sliced({self.sliced})"
        return f"interleaved({self.chunks})" if self.chunks > 1 else self.name

    @property
    def planned(self) -> PlanSchedule:
        """The schedule's name in plans."""
        return "interleaved-1f1b" if self.name == "interleaved" else self.name

    def orders(self, stages: int, micro_batches: int) -> list[list[Pass]]:
        """The order of passes on every site, in the order of sites. stages: their number, of all sites."""
        return schedules.orders(self.planned, stages, micro_batches, self.sliced, self.chunks)

    def in_flight(self, stages: int, micro_batches: int, stage: int) -> int:
        """The largest number of micro-batches in flight on a stage, of a schedule with one stage on every site."""
        assert self.chunks == 1
        return micro_batches if self.name == "gpipe" else min(micro_batches, stages - stage)


@dataclass(frozen=True)
class DeviceClass(DataclassRecord):
    """Devices that may stand for each other. host_bytes: of a device's part of its host's memory; None where hosts hold
    nothing."""

    name: str
    count: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    host_bytes: Annotated[int, Field(gt=0, le=2**48)] | None = None


@dataclass(frozen=True)
class DeviceGroup(DataclassRecord):
    """The devices of one stage: how many of each class of the instance. kind: of equal costs, by the configuration's tables."""

    devices: Items[Count]
    kind: Count = 0

    def __repr__(self) -> str:
        """The text that digests of instances have, which files of certificates hold; it keeps the class's first name."""
        return f"Site(devices={self.devices!r}, kind={self.kind!r})"

    @property
    def size(self) -> int:
        """The number of devices."""
        return sum(self.devices)


@dataclass(frozen=True)
class Unit(DataclassRecord):
    """What is cut and chosen as one: units `first` to `last` of the model, both included. Units of one kind cost alike."""

    name: str
    kind: Count
    first: Count
    last: Count


@dataclass(frozen=True)
class Reduction(DataclassRecord):
    """One all-reduce of all gradients of a stage, among these devices of a network; of every stage alike."""

    network: Network
    devices: Annotated[Items[Count], Field(min_length=1)]

    def time_ns(self, gradient_bytes: int) -> int:
        """What it takes for so many bytes."""
        return round(collective_ns(self.network, "all-reduce", gradient_bytes, self.devices))


@dataclass(frozen=True, eq=False, kw_only=True)
class Configuration:
    """A schedule, a number of micro-batches and the sites, in pipeline order; and what holds there.

    links: the kind of link between a stage and the next, by the boundaries' messages (stages - 1 entries). make_tables: the
    tables by kind of site, called when they are first asked for; configurations of equal sites and sizes of micro-batch share
    the call's results. cuts: the first units of the stages after the first, where they are fixed. reduction: of the gradients,
    where a stage reduces all of them together.
    """

    schedule: Schedule
    micro_batches: int
    device_groups: tuple[DeviceGroup, ...]
    links: tuple[int, ...]
    make_tables: Callable[[], tuple[Tables, ...]] = field(repr=False)
    make_tied: Callable[[], Tied | None] = field(repr=False, default=lambda: None)
    cuts: tuple[int, ...] | None = None
    reduction: Reduction | None = None

    @property
    def stages(self) -> int:
        """The number of stages p: of all chunks of all sites."""
        return len(self.device_groups) * self.schedule.chunks

    @cached_property
    def tables(self) -> tuple[Tables, ...]:
        """The tables by kind of site."""
        return self.make_tables()

    @cached_property
    def tied(self) -> Tied | None:
        """What a table costs that the ends of the pipeline share; None where there is none."""
        return self.make_tied()

    def device_group(self, stage: int) -> DeviceGroup:
        """The site of a stage."""
        return self.device_groups[stage % len(self.device_groups)]

    def tables_of(self, stage: int) -> Tables:
        """The tables of a stage."""
        return self.tables[self.device_group(stage).kind]

    def orders(self) -> list[list[Pass]]:
        """The order of passes on every site, in the order of sites."""
        return self.schedule.orders(self.stages, self.micro_batches)

    def in_flight(self, stage: int) -> int:
        """The largest number of micro-batches in flight on a stage, of a schedule with one stage on every site."""
        return self.schedule.in_flight(self.stages, self.micro_batches, stage)

    def with_more(self, every: int, last: int) -> Configuration:
        """The configuration with so many bytes more while any unit's passes run, and while those of the last kind do."""
        if not every and not last:
            return self

        def tables() -> tuple[Tables, ...]:
            return tuple(tables.with_more(every, last) for tables in self.tables)

        def tied() -> Tied | None:
            once = None if self.tied is None else self.tied.once
            return self.tied if self.tied is None or once is None else replace(self.tied, once=once.with_more(every + last))

        return replace(self, make_tables=tables, make_tied=tied)

    def __getstate__(self) -> dict[str, Any]:
        """The configuration with its tables in place of what makes them, for another process."""
        constants = {"make_tables": partial(_constant, self.tables), "make_tied": partial(_constant, self.tied)}
        return {**vars(self), **constants}

    def __str__(self) -> str:
        return f"{plural(self.stages, 'stage')}, {plural(self.micro_batches, 'micro-batch')}, {self.schedule}"


def _constant(value: Any) -> Any:
    return value


@dataclass(frozen=True, eq=False, kw_only=True)
class Instance(ProblemInstance):
    """The problem in arrays.

    units: L of them, in order. boundary_kinds: of the L - 1 boundaries. cuttable: of every boundary, whether a stage may begin
    after it. reserve_bytes: of every device's memory, left free.
    """

    classes: tuple[DeviceClass, ...]
    batch: int
    units: tuple[Unit, ...]
    boundary_kinds: tuple[int, ...]
    cuttable: tuple[bool, ...]
    configurations: tuple[Configuration, ...]
    step: Step = "simulated"
    reserve_bytes: int = 0

    problem: ClassVar[str] = NAME

    @property
    def length(self) -> int:
        """The number of units L."""
        return len(self.units)

    @property
    def devices(self) -> int:
        """The number of devices of all classes."""
        return sum(devices.count for devices in self.classes)

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory in bytes that a device has without the reserve; None where classes have different ones."""
        limits = {devices.memory_bytes - self.reserve_bytes for devices in self.classes}
        return limits.pop() if len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of units, configurations and devices, and the memory of one device in bytes where all have the same."""
        sizes = {"units": self.length, "configurations": len(self.configurations), "devices": self.devices}
        limit = self.common_memory_bytes
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    def limit_bytes(self, group: DeviceGroup) -> int:
        """The memory in bytes of a site's smallest device, without the reserve."""
        limits = [devices.memory_bytes for devices, count in zip(self.classes, group.devices, strict=True) if count]
        return min(limits) - self.reserve_bytes

    def host_limit_bytes(self, group: DeviceGroup) -> int | None:
        """The host memory in bytes of a device of a site; None where hosts hold nothing that is counted."""
        limits = [devices.host_bytes for devices, count in zip(self.classes, group.devices, strict=True) if count]
        present = [limit for limit in limits if limit is not None]
        return min(present, default=None)

    def table(self, configuration: Configuration, stage: int, unit: int) -> OptionTable:
        """The options of a unit in a stage."""
        return configuration.tables_of(stage).units[self.units[unit].kind]

    def boundary(self, configuration: Configuration, stage: int, unit: int) -> Boundary:
        """The boundary before a unit, which lies in a stage."""
        return configuration.tables_of(stage).boundaries[self.boundary_kinds[unit - 1]]

    def with_memory(self, memory_bytes: int) -> Self:
        """The same instance under another memory limit of every device, to which the reserve comes in addition."""
        classes = tuple(replace(devices, memory_bytes=memory_bytes + self.reserve_bytes) for devices in self.classes)
        return replace(self, classes=classes)

    def with_more(self, more: Sequence[tuple[int, int]]) -> Self:
        """The same instance with so many bytes more while any unit's passes run, and while those of the last one do, by
        configuration."""
        configurations = [configuration.with_more(*pair) for configuration, pair in zip(self.configurations, more, strict=True)]
        return replace(self, configurations=tuple(configurations))

    def only(self, indices: Sequence[int]) -> Self:
        """The instance with only these configurations, by their indices."""
        return replace(self, configurations=tuple(self.configurations[index] for index in indices))

    def even_cuts(self, stages: int) -> tuple[int, ...] | None:
        """The first units of the stages after the first, with as many units between embedding and head in each as can be; None
        where there is no such cut."""
        cuts = tuple(1 + round((self.length - 2) * x / stages) for x in range(1, stages))
        possible = all(a < b for a, b in pairwise((0, *cuts, self.length))) and all(self.cuttable[cut - 1] for cut in cuts)
        return cuts if possible else None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the answer depends on (not of names or provenance)."""
        digest = hashlib.sha256()
        kinds = [unit.kind for unit in self.units]
        limits = [(devices.memory_bytes, devices.host_bytes) for devices in self.classes]
        digest.update(repr((limits, kinds, self.boundary_kinds, self.cuttable, self.step, self.reserve_bytes)).encode())
        for configuration in self.configurations:
            names = ("schedule", "micro_batches", "device_groups", "links", "cuts")
            digest.update(repr(tuple(getattr(configuration, name) for name in names)).encode())
            if configuration.reduction is not None:
                digest.update(repr(configuration.reduction.to_dict()).encode())
            for tables in configuration.tables:
                digest.update(tables.digest)
            if configuration.tied is not None:
                update(digest, configuration.tied)
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""
        from trainplan.formulations.joint.instance_file import instance_dict  # which reads what this module states

        return instance_dict(self)


def uncounted(instance: Instance) -> str | None:
    """What an instance has that bounds on simulated steps do not count; None where there is nothing."""
    for configuration in instance.configurations:
        if configuration.reduction is not None:
            return "gradients that a stage reduces all together"
        if any(not boundary.relayout_at_cut for tables in configuration.tables for boundary in tables.boundaries):
            return "boundaries that are not re-laid at cuts"
    return None


@dataclass(frozen=True)
class Solution(DataclassRecord):
    """The index of a configuration, the first unit of every stage but the first, and the index of every unit's option."""

    configuration: Count
    cuts: Items[Annotated[int, Field(ge=1)]]
    choice: Items[Count]

    def spans(self) -> list[tuple[int, int]]:
        """First and last unit of every stage."""
        return [(first, end - 1) for first, end in pairwise((0, *self.cuts, len(self.choice)))]
