"""joint: choose schedule, micro-batches, stages and an option for every unit together, for the least step within the memory.

Sets. Units l = 0 .. L-1 (sub-layers, or groups of them that are cut and chosen together), of kind k(l); boundaries q(l) between
l and l+1. Devices in classes of equal ones; a device group is the devices of one stage, each with the memory E.

Decisions. A configuration fixes schedule, number of micro-batches m, and device groups; it has p stages (P device groups, each
with v chunks where the schedule is interleaved, p = P v; else p = P). In it, choose cuts 0 = a_0 < a_1 < .. < a_p = L, so that
stage x holds the units a_x .. a_{x+1} - 1, and for every unit l one option s_l. With the numbers of `tables`, for the first
unit i and the last unit j of stage x:

    f_x = head(s_i) + sum_l f(s_l) + R_f(l, l+1 within x) + R_f(into i)        forward pass of one micro-batch
    b_x = turn(s_j) + sum_l b(s_l) + R_b(l, l+1 within x) + R_b(back into j) + tail(s_i)
    c_x = message forward into x; d_x = message of gradients back into x       0 for the first and for the last stage
    l_x = sum_l last(s_l); g_x = sum_l reduce(s_l); o_x = sum_l optimizer(s_l)

where gradients of a whole stage are reduced together, g_x = that all-reduce of sum_l gradient(s_l) bytes, too.

A re-layout at a cut is done by the receiver: forward by the stage after the cut, backward by the stage before it.

Objective, by the instance's `step`:

    simulated   max_x ( end_x + g_x + o_x ): end_x is when device group x has ended its last backward pass, every pass as early
                as the order of the schedule allows: its devices are free, and its message has been sent; it takes c_x + f_x or
                d_x + b_x, the last micro-batch's backward pass l_x more (see `simulation`). Where both ends of the pipeline
                share a table in two parameters, they add up their gradients together: of the stages 0 and p-1,
                max(end_0 + g_0, end_{p-1} + g_{p-1}) + tied + o_x
    eq8         (m - 1) max_x (T_x - G_x) + sum_x T_x, T_x = f_x + b_x + c_x + d_x + G_x, G_x = l_x + g_x + o_x   Galvatron-BMW
    eq5         (m - 1) max_x (f_x + b_x) + sum_x (f_x + b_x) + sum_x (c_x + d_x)                                 AMP
    eq4         eq5 + max_x (g_x + o_x + tied where x is 0 or p-1)                                                AMP

subject to, with n_x micro-batches in flight on stage x (counted from the schedule's order),

    sum state + n_x sum held + (n_x - 1) sum kept + max_l ( sum_{k <= l} kept_k + work_l ) <= E      work: of the larger pass

over the units of the stage. Of interleaved chunks one device holds several: the largest such sum over the passes of its order,
with as many micro-batches of each chunk in flight as there are then (see `stage_memory`). Where the table that the ends share
is one parameter (one stage, equal levels), the last unit has the costs of `Tied.once`.

All numbers are integers. `evaluate` and `violations` know no solver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, get_args

from pydantic import Field
from trainplan.formulations.costs.overlapped.analytic_bounds import LayoutBounds
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
    """The order in which the stages of a pipeline run their passes, written `gpipe`, `1f1b`, `sliced(2)` or `interleaved(2)`.
    A pass is the forward or the backward computation of one micro-batch on one stage.

    name: the schedule's name. sliced: the number of first micro-batches that run in two halves; only with 1F1B. chunks: the
    number of stages that each device group has, 1 unless the schedule is interleaved. overlaps_messages: whether messages
    travel while passes run, so that a pass waits for its own message alone; only with interleaved schedules. Files call
    this field `beside`.
    """

    name: ScheduleName = "1f1b"
    sliced: Count = 0
    chunks: Annotated[int, Field(ge=1)] = 1
    overlaps_messages: Annotated[bool, Field(alias="beside")] = False

    def __repr__(self) -> str:
        """The text from which digests of instances are made, with the names that files have."""
        return f"Schedule({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def to_dict(self) -> dict[str, Any]:
        """The schedule as the dict that files hold, in which `overlaps_messages` is called `beside`."""
        return {("beside" if name == "overlaps_messages" else name): value for name, value in super().to_dict().items()}

    def __str__(self) -> str:
        if self.sliced:
            return f"sliced({self.sliced})"
        return f"interleaved({self.chunks})" if self.chunks > 1 else self.name

    @property
    def planned(self) -> PlanSchedule:
        """The name that plans have for the schedule: `interleaved-1f1b` for `interleaved`, else the schedule's own name."""
        return "interleaved-1f1b" if self.name == "interleaved" else self.name

    @property
    def has_closed_forms(self) -> bool:
        """Whether passes are of whole micro-batches, with one stage on every device group, in an order of which closed forms of
        times and lower bounds are known (GPipe and 1F1B); other schedules are simulated by their orders of passes."""
        return self.chunks == 1 and not self.sliced and self.name in schedules.CLOSED_FORMS

    def orders(self, stages: int, micro_batches: int) -> list[list[Pass]]:
        """For each device group, in pipeline order, its passes in the order in which it runs them; each pass names its stage,
        its micro-batch and its direction. stages: the number of stages of the whole pipeline, all chunks of all device groups.
        micro_batches: the number of micro-batches per step."""
        return schedules.orders(self.planned, stages, micro_batches, self.sliced, self.chunks)

    def in_flight(self, stages: int, micro_batches: int, stage: int) -> int:
        """The largest number of micro-batches in flight on a stage: those whose forward pass the stage has run, and whose
        backward pass it has not. stages: the number of stages of the pipeline. micro_batches: the number of micro-batches of a
        step. stage: the index of the stage. Only for schedules with one stage on every device group."""
        assert self.chunks == 1
        return schedules.most_in_flight(self.planned, stages, micro_batches, stage)


@dataclass(frozen=True)
class DeviceClass(DataclassRecord):
    """Devices that are equal to each other. count: the number of these devices. memory_bytes: the memory of one device.
    host_bytes: one device's part of its host's memory; None if nothing may be kept on hosts."""

    name: str
    count: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    host_bytes: Annotated[int, Field(gt=0, le=2**48)] | None = None


@dataclass(frozen=True)
class DeviceGroup(DataclassRecord):
    """The devices that run one stage, or several stages if the schedule is interleaved. devices: for each device class of the
    instance (devices that are equal to each other), the number of devices of that class in the group. kind: the index of
    the group's tables of costs in `Configuration.tables`.
    """

    devices: Items[Count]
    kind: Count = 0

    def __repr__(self) -> str:
        """The text from which digests of instances are made. Files of certificates hold such digests, so it keeps the class's
        first name."""
        return f"Site(devices={self.devices!r}, kind={self.kind!r})"

    @property
    def size(self) -> int:
        """The number of devices of the group, of all classes together."""
        return sum(self.devices)


@dataclass(frozen=True)
class Unit(DataclassRecord):
    """One sub-layer of the model, or several consecutive ones, that lie in one stage and run under one option together. kind:
    the number of the unit's kind; units of one kind have equal costs. first, last: the indices of the first and the last of the
    sub-layers in the model, both included."""

    name: str
    kind: Count
    first: Count
    last: Count


@dataclass(frozen=True)
class Reduction(DataclassRecord):
    """The all-reduce in which a stage sums all of its gradients at once over its data-parallel ranks; it takes equally long on
    all stages. network: the network of the cluster. devices: the indices, in the network, of the devices that take part.
    """

    network: Network
    devices: Annotated[Items[Count], Field(min_length=1)]

    def time_ns(self, gradient_bytes: int) -> int:
        """The time in ns, rounded, of an all-reduce of `gradient_bytes` bytes over the devices of the reduction."""
        return round(collective_ns(self.network, "all-reduce", gradient_bytes, self.devices))


@dataclass(frozen=True, eq=False, kw_only=True)
class Configuration:
    """A schedule, a number of micro-batches, the device groups in pipeline order, and the costs of all options there: all that
    is fixed before stages and options are chosen. An option is one way to run a unit (a sub-layer, or several that are
    chosen together).

    links: for each stage but the last, the index of the kind of link to the next stage, by which `Boundary` lists its
    messages. make_tables: returns the tables of costs by kind of device group; called when the tables are first needed.
    Configurations with equal device groups and micro-batches of one size share the function's result. make_tied: returns
    the costs of a weight table that embedding and head share, None if they share none. cuts: the first unit of every stage
    but the first, if the stages are fixed; None if they may be chosen. reduction: the all-reduce of gradients, if a stage
    reduces all of its gradients together; else None.
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
        """The number of stages of the pipeline: the number of device groups times the number of chunks (stages) that each of
        them has."""
        return len(self.device_groups) * self.schedule.chunks

    @cached_property
    def tables(self) -> tuple[Tables, ...]:
        """The costs of all options, one `Tables` for each kind of device group; `DeviceGroup.kind` is an index into it.
        Computed when first read."""
        return self.make_tables()

    @cached_property
    def tied(self) -> Tied | None:
        """The costs of a weight table that the first unit (embedding) and the last unit (head) share; None if they share none.
        Computed when first read."""
        return self.make_tied()

    def device_group(self, stage: int) -> DeviceGroup:
        """The device group that runs a stage. stage: the stage's index in the pipeline. If every group runs several stages
        (chunks), stage s is on group s modulo the number of groups.
        """
        return self.device_groups[stage % len(self.device_groups)]

    def tables_of(self, stage: int) -> Tables:
        """The costs of options and boundaries on the device group that runs a stage. stage: the stage's index in the
        pipeline."""
        return self.tables[self.device_group(stage).kind]

    def orders(self) -> list[list[Pass]]:
        """For each device group, in pipeline order, its passes in the order in which it runs them; each pass names its stage,
        its micro-batch and its direction."""
        return self.schedule.orders(self.stages, self.micro_batches)

    def in_flight(self, stage: int) -> int:
        """The largest number of micro-batches in flight on a stage at the same time (forward pass done, backward pass not yet).
        stage: the stage's index. Only for schedules with one stage on every device group."""
        return self.schedule.in_flight(self.stages, self.micro_batches, stage)

    def with_more(self, every: int, last: int) -> Configuration:
        """A copy of the configuration whose tables of costs say that passes need more memory. every: bytes of one device that
        are added while the passes of any unit run. last: bytes that are added, on top of `every`, while the passes of the
        last kind of unit run.
        """
        if not every and not last:
            return self

        def tables() -> tuple[Tables, ...]:
            return tuple(tables.with_more(every, last) for tables in self.tables)

        def tied() -> Tied | None:
            once = None if self.tied is None else self.tied.once
            return self.tied if self.tied is None or once is None else replace(self.tied, once=once.with_more(every + last))

        return replace(self, make_tables=tables, make_tied=tied)

    def __getstate__(self) -> dict[str, Any]:
        """The fields for another process, to which the tables are sent as they are, since the functions that make them cannot
        be."""
        constants = {"make_tables": partial(_constant, self.tables), "make_tied": partial(_constant, self.tied)}
        return {**vars(self), **constants}

    def __str__(self) -> str:
        return f"{plural(self.stages, 'stage')}, {plural(self.micro_batches, 'micro-batch')}, {self.schedule}"


def _constant(value: Any) -> Any:
    """Return `value` unchanged. `partial(_constant, value)` is a function without arguments that, unlike a lambda, can be sent
    to another process.
    """
    return value


class RuntimePredictions(Protocol):
    """The predictions of a runtime (training framework) for the plans of an instance: `runtime_costs.RuntimeCosts`. A candidate
    is a configuration, by its index, with the index of an option for every unit.
    """

    @property
    def runtime(self) -> str:
        """The name of the runtime, as `--for` takes it."""

    def predicted(self, instance: Instance, solution: Solution) -> tuple[int, tuple[int, ...]] | str:
        """The step in ns of a solution's plan, and the peak bytes of one device of each device group, in pipeline order; the
        reason as a text if the runtime cannot be predicted for it."""

    def bounds(self, instance: Instance, configuration: int, choice: Sequence[int]) -> LayoutBounds | None:
        """Lower bounds of the step of all plans of a candidate; None if the runtime cannot be predicted for them."""

    def fitting(self, instance: Instance, configuration: int, choice: Sequence[int]) -> list[list[int]] | None:
        """For each stage of a candidate, and each place where it may begin, the last place at which it may end so that it fits;
        None if no cuts fit."""

    def digest(self) -> str:
        """A text that names what the predictions depend on besides the instance's arrays."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Instance(ProblemInstance):
    """One instance of the joint problem, in arrays: what may be chosen, and what it costs. A unit is a sub-layer, or several
    that are chosen together; an option is one way to run a unit; a boundary lies between two neighbouring units; a
    configuration fixes schedule, number of micro-batches and device groups.

    classes: the device classes. batch: samples per step. units: the L units in model order. boundary_kinds: for each of the L -
    1 boundaries between units, the index of its kind in `Tables.boundaries`. cuttable: for each boundary, whether a stage may
    begin after it. configurations: the configurations to choose from. step: the formula by which stages' times add up to the
    step, such as `simulated`. reserve_bytes: memory of every device that is left free. runtime: the predictions of a runtime,
    from which step and memory of solutions are in place of those from the tables; None for trainplan's own programs. Files of
    instances do not have it.
    """

    classes: tuple[DeviceClass, ...]
    batch: int
    units: tuple[Unit, ...]
    boundary_kinds: tuple[int, ...]
    cuttable: tuple[bool, ...]
    configurations: tuple[Configuration, ...]
    step: Step = "simulated"
    reserve_bytes: int = 0
    runtime: RuntimePredictions | None = None

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
        """The memory in bytes that plans may use on every device, which is its memory less the reserve; None if device
        classes have different memory."""
        limits = {devices.memory_bytes - self.reserve_bytes for devices in self.classes}
        return limits.pop() if len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of units, configurations and devices, under these names; and, as `memory_bytes`, the bytes that plans may
        use on one device, if all devices have the same limit."""
        sizes = {"units": self.length, "configurations": len(self.configurations), "devices": self.devices}
        limit = self.common_memory_bytes
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    def limit_bytes(self, group: DeviceGroup) -> int:
        """The memory in bytes that a plan may use on each device of a group: that of the device with the least memory, less the
        reserve."""
        limits = [devices.memory_bytes for devices, count in zip(self.classes, group.devices, strict=True) if count]
        return min(limits) - self.reserve_bytes

    def host_limit_bytes(self, group: DeviceGroup) -> int | None:
        """The host memory in bytes that each device of a group may use, the least over its device classes; None if host
        memory has no limit."""
        limits = [devices.host_bytes for devices, count in zip(self.classes, group.devices, strict=True) if count]
        present = [limit for limit in limits if limit is not None]
        return min(present, default=None)

    def table(self, configuration: Configuration, stage: int, unit: int) -> OptionTable:
        """The options of a unit, with their costs, where the unit lies in a given stage. configuration: the configuration that
        has the stage. stage: the stage's index in the pipeline. unit: the unit's index in the model."""
        return configuration.tables_of(stage).units[self.units[unit].kind]

    def boundary(self, configuration: Configuration, stage: int, unit: int) -> Boundary:
        """The costs (re-layouts and messages) of the boundary between unit `unit` - 1 and unit `unit`, from the tables of the
        device group that runs stage `stage`, in which unit `unit` lies. configuration: the configuration that has the
        stage.
        """
        return configuration.tables_of(stage).boundaries[self.boundary_kinds[unit - 1]]

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with another memory limit for every device. memory_bytes: the bytes that plans may use; the reserve is
        added to it."""
        classes = tuple(replace(devices, memory_bytes=memory_bytes + self.reserve_bytes) for devices in self.classes)
        return replace(self, classes=classes)

    def with_more(self, more: Sequence[tuple[int, int]]) -> Self:
        """A copy of the instance whose tables of costs say that passes need more memory. more: for each configuration, two
        numbers of bytes of one device: those added while the passes of any unit run, and those added on top while the
        passes of the last unit run.
        """
        configurations = [configuration.with_more(*pair) for configuration, pair in zip(self.configurations, more, strict=True)]
        return replace(self, configurations=tuple(configurations))

    def only(self, indices: Sequence[int]) -> Self:
        """The instance reduced to some of its configurations. indices: the indices of the configurations to keep, in the order
        that they then have."""
        return replace(self, configurations=tuple(self.configurations[index] for index in indices))

    def even_cuts(self, stages: int) -> tuple[int, ...] | None:
        """Cuts into stages such that the units between embedding and head are spread as evenly as possible: the first unit of
        every stage but the first. stages: the number of stages. None if such cuts leave a stage empty, or begin a stage where
        the instance does not allow it."""
        cuts = tuple(1 + round((self.length - 2) * x / stages) for x in range(1, stages))
        possible = all(a < b for a, b in pairwise((0, *cuts, self.length))) and all(self.cuttable[cut - 1] for cut in cuts)
        return cuts if possible else None

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all fields on which a solution's cost depends; names and provenance are left
        out."""
        digest = hashlib.sha256()
        kinds = [unit.kind for unit in self.units]
        limits = [(devices.memory_bytes, devices.host_bytes) for devices in self.classes]
        digest.update(repr((limits, kinds, self.boundary_kinds, self.cuttable, self.step, self.reserve_bytes)).encode())
        if self.runtime is not None:
            digest.update(self.runtime.digest().encode())
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
        """The instance in its JSON file format: a dict of JSON-ready values, in which tables that configurations share are
        written once.
        """
        from trainplan.formulations.joint.instance_file import instance_dict  # it imports this module

        return instance_dict(self)


def uncounted(instance: Instance) -> str | None:
    """The first feature of an instance that certified lower bounds of the simulated step do not cover, in words for an error
    message, such as "gradients that a stage reduces all together"; None if they cover all of it.
    """
    for configuration in instance.configurations:
        if configuration.reduction is not None:
            return "gradients that a stage reduces all together"
        if any(not boundary.relayout_at_cut for tables in configuration.tables for boundary in tables.boundaries):
            return "boundaries that are not re-laid at cuts"
    return None


@dataclass(frozen=True)
class Solution(DataclassRecord):
    """One plan of an instance. A unit is a sub-layer or layer that has one option. configuration: the index of the
    configuration. cuts: the first unit of every stage but the first, as indices of units. choice: for every unit, the index of
    its option in its table."""

    configuration: Count
    cuts: Items[Annotated[int, Field(ge=1)]]
    choice: Items[Count]

    def spans(self) -> list[tuple[int, int]]:
        """For every stage, in pipeline order, the indices of its first and its last unit, both included."""
        return [(first, end - 1) for first, end in pairwise((0, *self.cuts, len(self.choice)))]
