"""Joint instances from a profile: the costs of every unit in trainplan's own programs, without overlap (cost model `executed`).

All devices form one class; where they are of several kinds, the slowest counts. Stages have equally many, consecutive devices.
Only depths whose stages have equal links are offered, and only strategies whose groups have, so that the first device of a
stage stands for all of its devices; the simulated programs of a plan, with one lane on each rank, then take exactly the
problem's step. Memory is an upper bound of the bytes that programs hold, on devices and on hosts: every unit has room for
re-layouts whatever its neighbours are, and for the device's sum of gradients from the first micro-batch on where the optimizer
works on the host.

A micro-batch may run in two halves. The forward pass of a half gathers the parameters again, takes half as long (the odd
nanosecond is in the second half), and sums the partial outputs of half as many samples. The backward pass of both halves
gathers and scatters once, and sums the partial gradients of each half separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from trainplan.formulations.costs.sequential.communication import moved_bytes, tied_ns
from trainplan.formulations.costs.sequential.cost_models import times_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.costs.sequential.sublayer_time import grouped_units, layer_name, partial_sums_ns, unit_work
from trainplan.formulations.joint.boundaries import Boundaries
from trainplan.formulations.joint.cluster_symmetry import groups_alike, stages_alike
from trainplan.formulations.joint.host_offload import with_host
from trainplan.formulations.joint.problem import Configuration, DeviceClass, DeviceGroup, Instance, Schedule, Unit
from trainplan.formulations.joint.search_space import Space, every_strategy, options
from trainplan.formulations.joint.tables import Boundary, Halved, Option, OptionTable, Tables, Tied
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.schedule.even_chunks import even_chunks
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.profiles import Profile

Parts = tuple[str, ...]  # the sub-layers of one unit of the problem, by name


class Setting(NamedTuple):
    """The arguments on which tables of costs depend.

    group: the number of devices of a stage. samples: samples per micro-batch. sliced: whether some micro-batches run in
    halves. in_flight: the largest number of micro-batches of a stage whose inputs are on the host at the same time. alone:
    whether a single stage with a single micro-batch is the whole step. chunks: the number of stages on each device group.
    layout: the strategy without recomputation that all units must have, if the configuration fixes one; else None.
    """

    group: int
    samples: int
    sliced: bool = False
    in_flight: int = 1
    alone: bool = False
    chunks: int = 1
    layout: Strategy | None = None


class JointCosts:
    """The tables of costs of one profiled model in one search space, each computed on first use and kept.

    A unit is a sub-layer, or a whole layer if the search space says so; units of one kind have equal sub-layers and costs.
    An option is one way to run a unit. An interface state says which samples and tokens of the hidden states each rank of a
    stage has; neighbouring units with different states need a re-layout. A configuration is a schedule, a number of
    micro-batches and a division into device groups.
    """

    cost_model = "executed"

    def __init__(self, profile: Profile, space: Space, tp_degrees: Sequence[int], precision: Precision | None = None) -> None:
        """profile: the profile of the model on all devices, with the costs of every shape that will be needed. space: the
        options to choose from. tp_degrees: the tensor-parallel degrees that the profile has. precision: the precision of model
        states; None for the profile's."""
        self.profile, self.space, self.tp_degrees = profile, space, tp_degrees
        self.precision = precision or profile.precision
        grouped = grouped_units(profile, space.by_unit)
        parts: list[Parts] = [tuple(unit.sublayer for unit in group) for group in grouped]
        self.kinds = list(dict.fromkeys(parts))
        ends = np.cumsum([len(group) for group in grouped]).tolist()
        self.units = tuple(
            Unit(layer_name(group), self.kinds.index(part), end - len(group), end - 1)
            for group, part, end in zip(grouped, parts, ends, strict=True)
        )
        between = [moved_bytes(profile, group[-1].sublayer)[1] for group in grouped[:-1]]
        self.boundaries = list(dict.fromkeys(between))
        self.boundary_kinds = tuple(self.boundaries.index(size) for size in between)
        self.layers = [group[0].layer for group in grouped]
        self.cuttable = tuple(not space.between_layers or a != b for a, b in pairwise(self.layers))
        self.boundary_costs = Boundaries(profile)
        self.tables = cache(self._tables)
        self.tied = cache(self._tied)
        self.options = cache(self._options)
        self._every = cache(self._every_strategy)

    # Possible options

    def _options(self, setting: Setting) -> tuple[tuple[Option, ...], ...]:
        """For each kind of unit, the options of the search space whose data-parallel degree divides the samples of a
        micro-batch (of half a micro-batch where some are sliced); an empty tuple if some kind has no option.

        One stage with one micro-batch and all states on the host is the step of H3T, whose order of operations is a problem
        of its own (`memory-switches`); its options are left out. setting: devices of a stage, samples per micro-batch and
        schedule.
        """
        group, samples, sliced = setting.group, setting.samples, setting.sliced
        least = 2 if sliced else 1  # samples of a rank
        possible = [strategy for strategy in self._every(group) if samples % (least * strategy.data_degree) == 0]
        space = replace(self.space, sequence_parallel=False, host=()) if sliced else self.space
        model = self.profile.described_model
        sublayers = {} if model is None else model.sublayers
        by_kind = [options(space, possible, [sublayers[part] for part in parts if sublayers]) for parts in self.kinds]
        if setting.alone:
            by_kind = [[option for option in kind if not _of_h3t(option, group)] for kind in by_kind]
        return tuple(map(tuple, by_kind)) if all(by_kind) else ()

    def _every_strategy(self, group: int) -> list[Strategy]:
        """The strategies of the search space for a stage of `group` devices, without recomputation, of which all groups of
        ranks at each parallelism level have equal links (so that one group's time stands for all)."""
        possible = every_strategy(group, self.tp_degrees, self.space.zero, self.space.hybrid)
        return [strategy for strategy in possible if groups_alike(self.profile.network, self.profile.devices, strategy)]

    @cached_property
    def depths(self) -> list[int]:
        """The numbers of device groups that a pipeline may have: divisors of the number of devices, at most the number of
        units, such that the links of all stages are equal."""
        devices = self.profile.devices
        possible = [depth for depth in divisors(devices) if depth <= len(self.units)]
        return [depth for depth in possible if stages_alike(self.profile.network, devices // depth, depth)]

    # Tables

    def _tables(self, setting: Setting) -> Tables:
        """The costs of all kinds of units and boundaries for the device group, the micro-batch size and the schedule that
        `setting` gives. setting: devices of a stage, samples per micro-batch and schedule.
        """
        by_kind = self.options(setting)
        by_state = self._by_state(by_kind)
        units = (self._unit(*kind, list(by_state), setting) for kind in zip(self.kinds, by_kind, strict=True))
        of_state = list(by_state.values())
        return Tables(
            units=tuple(units),
            boundaries=tuple(self._boundary(size, of_state, setting) for size in self.boundaries),
            states=tuple(map(self.boundary_costs.state_name, by_state)),
        )

    def _boundary(self, size: int, strategies: Sequence[Strategy], setting: Setting) -> Boundary:
        """The costs of one kind of boundary between two units: re-layouts and messages. size: bytes of hidden states per sample
        that cross the boundary. strategies: one strategy for each interface state, in the order of the states' numbers.
        setting: the devices of a stage, samples per micro-batch and schedule. With tables of least memory the messages hold no
        bytes."""
        boundary = self.boundary_costs.boundary(size, strategies, *setting[:3], setting.chunks)
        if not self.space.least_memory:
            return boundary
        none = np.zeros_like(boundary.message_forward_bytes)  # messages may be received at different times
        return replace(boundary, message_forward_bytes=none, message_backward_bytes=none.copy())

    def _unit(
        self,
        parts: Parts,
        options: Sequence[Option],
        states: Sequence[Any],
        setting: Setting,
        once: bool = False,
    ) -> OptionTable:
        """The costs of all options of one kind of unit, in the order of `options`.

        parts: the names of the unit's sub-layers. states: the interface states in the order of their numbers. setting:
        devices of a stage, samples per micro-batch and schedule that the costs depend on. once: True for a head whose
        weight table is the embedding's, as one parameter, so that the head has no table of its own.
        """
        samples, sliced = setting.samples, setting.sliced
        strategies = [strategy_of(option) for option in options]
        plain = {strategy: [self._part(part, strategy, setting, once) for part in parts] for strategy in set(strategies)}
        rows = [
            [
                self._with_host(part, option, samples, numbers, setting.in_flight) if option.host else numbers
                for part, numbers in zip(parts, plain[strategy], strict=True)
            ]
            for option, strategy in zip(options, strategies, strict=True)
        ]
        columns = {name: [joined[name] for joined in map(_joined, rows)] for name in NAMES}
        interface = [states.index(self.boundary_costs.state_of(strategy)) for strategy in strategies]
        halved = None
        if sliced:
            halves = partial(halved_passes, self.profile, samples=samples, precision=self.precision)
            passes = [[halves(part, strategy) for part in parts] for strategy in strategies]
            first, second, back = (
                np.array([sum(part[index] for part in pass_) for pass_ in passes], np.int64) for index in range(3)
            )
            halved = Halved(forward_ns=np.stack([first, second]), backward_ns=back)
        return OptionTable.of(options, halved, enter=interface, leave=interface, **columns)

    def _with_host(
        self, sublayer: str, option: Option, samples: int, numbers: dict[str, int], in_flight: int
    ) -> dict[str, int]:
        """The costs of one sub-layer, by column names of `OptionTable` (such as `forward_ns`), under an option that keeps a
        part of it on the host.

        sublayer: the sub-layer's name in the profile. samples: samples per micro-batch. numbers: the costs of the option's
        strategy with nothing on the host. in_flight: the largest number of micro-batches whose inputs are on the host at
        the same time.
        """
        return with_host(self.profile, sublayer, option, samples, numbers, in_flight, self.space.least_memory)

    def _part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        """The costs of one sub-layer under a strategy with nothing on the host, by column names of `OptionTable` (such as
        `forward_ns` and `kept_bytes`).

        sublayer: the sub-layer's name in the profile. setting: devices of a stage, samples per micro-batch and schedule.
        once: True for a head whose weight table is the embedding's, as one parameter.
        """
        profile, samples, sliced = self.profile, setting.samples, setting.sliced
        optimizer = self.space.optimizer
        times = times_of(profile, sublayer, strategy, samples, once, self.precision, optimizer=optimizer)
        least, precision = self.space.least_memory, self.precision
        if least and self.space.host:  # plans with something on the host have their states in the model's dtype
            precision = PLAIN
        kept, work, state = unit_bytes(
            profile, True, sublayer, strategy, samples, once, precision, optimizer=optimizer, least=least
        )
        if sliced and least:  # only some micro-batches run in halves
            halved = unit_bytes(
                profile, True, sublayer, strategy, samples // 2, once, precision, optimizer=optimizer, least=least
            )
            kept, work = min(kept, 2 * halved[0]), min(work, halved[1])
        elif sliced:  # both halves have a graph
            kept = max(kept, 2 * unit_bytes(profile, True, sublayer, strategy, samples // 2, once)[0])
        # Where a stage ends, its output is sent while the gradient of an earlier one arrives; `work` has room for re-layouts.
        exchanged = 2 * samples * moved_bytes(profile, sublayer)[1] if strategy.group == 1 else 0
        work = work if least else max(exchanged, work)
        numbers = (times.forward_ns, times.backward_ns, times.reduce_ns, times.step_ns, kept, work, state, 0)
        return dict(zip(NAMES, numbers, strict=True))

    def _tied(self, setting: Setting) -> Tied | None:
        """The costs of a weight table that embedding and head share: the time to sum its gradients between the first and the
        last stage, and, in a single stage, the options under which the table is one parameter. None if embedding and head
        share no table. setting: devices of a stage, samples per micro-batch and schedule.
        """
        profile, depth = self.profile, self.profile.devices // setting.group
        if not profile.tied_parameters:
            return None
        time = tied_ns(profile, setting.group, depth, self.precision)
        if depth > 1:
            return Tied(reduce_ns=time)
        by_kind = self.options(setting)
        first, last = (by_kind[self.units[end].kind] for end in (0, -1))
        numbers = dict[tuple[Any, ...], int]()
        first_keys, last_keys = (
            np.array(
                [-1 - end if (key := _shared_by(option)) is None else numbers.setdefault(key, len(numbers)) for option in kind]
            )
            for end, kind in enumerate((first, last))
        )
        equal = first_keys[:, None] == last_keys
        once = self._unit(self.kinds[self.units[-1].kind], last, list(self._by_state(by_kind)), setting, once=True)
        return Tied(reduce_ns=time, equal=equal, once=once)

    def _by_state(self, by_kind: Sequence[Sequence[Option]]) -> dict[Any, Strategy]:
        """The interface states that options have, in order of first appearance, each with one strategy that has it. by_kind:
        the options of each kind of unit."""
        strategies = (strategy_of(option) for options in by_kind for option in options)
        return {self.boundary_costs.state_of(strategy): strategy for strategy in strategies}

    # The instance

    def instance(
        self,
        batch: int,
        memory_bytes: int,
        *,
        host_bytes: int | None = None,
        name: str | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> Instance:
        """The instance of the joint problem for one batch. batch: samples per step. memory_bytes: the memory of one device.
        host_bytes: one device's part of its host's memory, None if that is not limited. name: the instance's name for people;
        by default made of model and devices. provenance: entries in addition to model, cost model and profile. Raises
        InputError if nothing can be chosen."""
        profile, space = self.profile, self.space
        return Instance(
            classes=(
                DeviceClass(" and ".join(profile.kinds), profile.devices, memory_bytes, host_bytes if space.host else None),
            ),
            batch=batch,
            units=self.units,
            boundary_kinds=self.boundary_kinds,
            cuttable=self.cuttable,
            configurations=tuple(self._configurations(batch)),
            step=space.step,
            name=name or f"{profile.name} on {profile.devices} x {' and '.join(profile.kinds)}",
            provenance={
                "model": profile.model or {"name": profile.name},
                "cost_model": self.cost_model,
                "profile": profile.origin,
                **(provenance or {}),
            },
        )

    def _configurations(self, batch: int) -> list[Configuration]:
        """All configurations (schedule, number of micro-batches, device groups) of the search space for a batch of `batch`
        samples. Raises InputError if there are none."""
        space, devices = self.space, self.profile.devices
        depths = [depth for depth in self.depths if space.depths is None or depth in space.depths]
        if not depths:
            requested = ", ".join(map(str, space.depths or []))
            problem, possible = f"is {requested}", ", ".join(map(str, self.depths)) or "none"
            raise InputError("command line", "--pipeline", problem, f"give another: {len(self.units)} units have {possible}")
        configurations, numbers = [], divisors(batch) if space.micro_batches is None else space.micro_batches
        for depth in depths:
            group = devices // depth
            for count in numbers:
                if batch % count or not self.options(Setting(group, batch // count)):
                    continue
                for schedule in space.schedules_of(depth, count, len(self.units)):
                    if self._sound(schedule, group, batch // count):
                        for setting in self._settings(schedule, group, batch // count):
                            configurations.append(self._configuration(schedule, depth, count, setting))
        if not configurations:
            if any(self.options(Setting(devices // depth, batch // m)) for depth in depths for m in numbers if batch % m == 0):
                raise self._schedule_error(depths, numbers)
            fix = f"give a multiple of {devices}"
            raise InputError("command line", "--batch", f"is {batch}, which no strategy of the space divides", fix)
        return configurations

    def _schedule_error(self, depths: Sequence[int], numbers: Sequence[int]) -> InputError:
        """The error that says that no schedule of the search space works with the requested pipelines, and what to give
        instead. depths: the numbers of device groups. numbers: the numbers of micro-batches."""
        fix = "give 1f1b: these depths and micro-batches do not suit it"
        if "interleaved" in self.space.schedules:
            pairs = [depth for depth in depths if depth > 1 and any(count % depth == 0 for count in numbers)]
            enough = [n for n in range(2, len(self.units)) if any(even_chunks(self.layers, depth * n) for depth in pairs)]
            fix = "give 1f1b, or --pipeline of at least 2 and --micro-batches a multiple of it"
            if self.space.cuts is not None:
                fix = "give --cuts as many stages as --pipeline times --chunks, or leave them out"
            elif enough:
                fix = f"give --chunks {enough[0]}: stages have as many layers each"
            elif pairs:
                fix = "give 1f1b: no --chunks make stages of as many layers each"
        elif self.space.even_stages:
            fix = "give --pipeline, or --cuts: stages of these depths cannot have as many layers each"
        return InputError("command line", "--schedule", f"is {' or '.join(self.space.schedules)}", fix)

    def _sound(self, schedule: Schedule, group: int, samples: int) -> bool:
        """Whether a schedule can be used: if it needs stages with equal numbers of layers, or fixed ones, such stages exist;
        and if it slices micro-batches, every kind of unit has an option that can run halves. group: the number of devices
        of a stage. samples: samples per micro-batch.
        """
        stages = self.profile.devices // group * schedule.chunks
        cuts = self._cuts(schedule, stages)
        halves = not schedule.sliced or bool(self.options(Setting(group, samples, True)))
        even = cuts is not None or not self._even(schedule)
        return halves and even and (cuts is None or len(cuts) == stages - 1)

    def _cuts(self, schedule: Schedule, stages: int) -> tuple[int, ...] | None:
        """The index of the first unit of every stage but the first, if the user fixed the stages or stages must have equal
        numbers of layers; None if stages may be chosen freely, and also if equal stages are required but impossible.
        stages: the number of stages of the pipeline.
        """
        if self.space.cuts is None and self._even(schedule):
            return even_chunks(self.layers, stages)
        return self.space.cuts

    def _even(self, schedule: Schedule) -> bool:
        """Whether all stages of a pipeline under this schedule must have equally many layers."""
        return self.space.even_stages or (self.space.even_chunks and schedule.chunks > 1)

    def _settings(self, schedule: Schedule, group: int, samples: int) -> Sequence[Setting]:
        """The settings on which tables of costs depend under a schedule; each becomes a configuration of its own. Here a single
        one; a subclass gives one for every layout that all units may share. group: the number of devices of a stage. samples:
        samples per micro-batch."""
        return [Setting(group, samples, bool(schedule.sliced))]

    def _configuration(self, schedule: Schedule, depth: int, micro_batches: int, setting: Setting) -> Configuration:
        """One configuration. depth: the number of device groups. micro_batches: the number of micro-batches per step. setting:
        the setting on which its tables of costs depend, apart from `in_flight` and `alone`, which are filled in here.
        """
        group, in_flight = self.profile.devices // depth, 1
        if "hidden" in self.space.host:  # each of a group's several stages may have all
            in_flight = schedule.in_flight(depth, micro_batches, 0) if schedule.chunks == 1 else micro_batches
        alone = bool(self.space.host) and depth == micro_batches == 1
        setting = setting._replace(in_flight=in_flight, alone=alone)
        return Configuration(
            schedule=schedule,
            micro_batches=micro_batches,
            device_groups=(DeviceGroup((group,)),) * depth,
            links=self.boundary_costs.links(group, schedule.chunks),
            make_tables=lambda: (self.tables(setting),),
            make_tied=partial(self.tied, setting),
            cuts=self._cuts(schedule, depth * schedule.chunks),
        )


_BYTES = ("kept_bytes", "work_backward_bytes", "state_bytes", "host_bytes")
NAMES = ("forward_ns", "backward_ns", "reduce_ns", "optimizer_ns", *_BYTES)


def strategy_of(option: Option) -> Strategy:
    """The strategy of an option (one way to run a unit). All options of plans have one; an option of an instance file that
    states costs only has none and must not be given. option: a strategy, and what of the unit is kept on the host.
    """
    assert option.strategy is not None
    return option.strategy


def _of_h3t(option: Option, group: int) -> bool:
    """Whether an option, in a stage of `group` devices, belongs to the step that the paper H3T plans: its model states are on
    the host, and all of them are sharded over all devices (ZeRO stage 3). option: a strategy, and what of the unit is kept
    on the host.
    """
    strategy = strategy_of(option)
    return "optimizer" in option.host and strategy.levels == Strategy.of(("sdp", group)).levels and strategy.zero == 3


def _shared_by(option: Option) -> tuple[Any, ...] | None:
    """A key of an option of the embedding or of the head: in one stage, the weight table that both share is one parameter if
    the keys of both options are equal. It holds the levels of parallelism and the ZeRO stage. None if the table is never
    one parameter under the option, since its optimizer works on the host. option: a strategy, and what of the unit is kept
    on the host.
    """
    strategy = strategy_of(option)
    return None if "optimizer" in option.host else (strategy.levels, strategy.zero_stage)


def _joined(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """The costs of one unit that consists of consecutive sub-layers under one strategy, by column names of `OptionTable` (such
    as `forward_ns`): sums, except `work_backward_bytes`, which is chosen such that the unit's peak memory equals that of
    its sub-layers one after the other. parts: the costs of each sub-layer, by these names.
    """
    if len(parts) == 1:
        return parts[0]
    joined = {name: sum(part[name] for part in parts) for name in NAMES}
    stacked = peak = 0
    for part in parts:
        stacked += part["kept_bytes"]
        peak = max(peak, stacked + part["work_backward_bytes"])
    return joined | {"work_backward_bytes": peak - stacked}


def tp_degrees(request: Request, group: int) -> tuple[int, ...]:
    """The tensor-parallel degrees that a model supports on at most `group` devices: the divisors of `group` on which all
    sub-layers of the model can run or, without a described model, those that the profile has. request: the user's model,
    cluster, batch and options.
    """
    model = request.described_model
    if model is None:
        return request.chain.tp_degrees(group)
    return tuple(t for t in divisors(group) if all(part.runs_on(t) for part in model.sublayers.values()))


def halved_passes(
    profile: Profile, sublayer: str, strategy: Strategy, samples: int, precision: Precision | None = None
) -> tuple[int, int, int]:
    """Three times in ns of a micro-batch that runs in two halves: the forward pass of its first half, the forward pass of its
    second half, and the backward pass of both together. sublayer: the sub-layer's name in the profile. samples: samples of
    both halves together. precision: the precision of gradients; None for the profile's. profile: measured or estimated
    costs of the model's sub-layers and of the devices' links. strategy: the sub-layer's parallelism and recomputation.
    """
    work = unit_work(profile, sublayer, strategy, samples)
    times = times_of(profile, sublayer, strategy, samples, precision=precision)
    rows = samples // 2 // strategy.data_degree
    forward_ns, backward_ns = map(round, partial_sums_ns(profile, profile.shapes[sublayer], strategy, rows))
    other_ns = times.forward_ns - work.forward_ns - work.partial_ns + forward_ns
    back = times.backward_ns - work.partial_back_ns + 2 * backward_ns
    return work.forward_ns // 2 + other_ns, work.forward_ns - work.forward_ns // 2 + other_ns, back
