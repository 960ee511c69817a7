"""From a profile to a joint instance: what every unit costs by trainplan's own programs (`executed` of `formulations.work`).

All devices are of one class: where there are several kinds, the slowest counts. Stages have equal numbers of devices, and lie
on consecutive ones. Only depths are offered whose stages lie alike in the cluster, and only strategies whose groups do, so that
one stage's first device stands for all; the time walk over the plan's programs then takes exactly as long, on one lane a rank.
What programs hold is bounded from above, on devices and hosts: a unit has room for re-layouts whatever its neighbours are, and
for the device's sum of gradients, where the host steps, from the first micro-batch on.

A micro-batch may go in two halves, as trainplan's programs run them: the forward pass of a half gathers parameters anew, takes
half as long (the odd nanosecond in the second half), and adds up the partial outputs of half as many samples. The backward
pass of both halves gathers and scatters once, and adds up the partial gradients of each half by itself.
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
    """What tables depend on. group: devices of a stage; samples: of a micro-batch; sliced: whether some go in halves.
    in_flight: of micro-batches whose inputs may be on the host, the most on a stage; alone: whether one micro-batch in one
    stage is the whole step. chunks: stages of each group of devices. layout: of all units, where a configuration has one."""

    group: int
    samples: int
    sliced: bool = False
    in_flight: int = 1
    alone: bool = False
    chunks: int = 1
    layout: Strategy | None = None


class JointCosts:
    """The tables of one profile in one space, made when they are first asked for and kept."""

    cost_model = "executed"

    def __init__(self, profile: Profile, space: Space, tp_degrees: Sequence[int], precision: Precision | None = None) -> None:
        """profile: of all devices, with the costs of every shape that will be asked for. tp_degrees: that it has. precision: of
        model states, where it is not the profile's."""
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

    # What is possible

    def _options(self, setting: Setting) -> tuple[tuple[Option, ...], ...]:
        """By kind of unit, the space's options that divide the samples of a micro-batch, or of its halves where some are
        sliced; nothing where a kind has none. With all states on the host, one stage and one micro-batch are H3T's step, which
        has an order and a problem of its own (`memory-switches`): what that takes is no option."""
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
        possible = every_strategy(group, self.tp_degrees, self.space.zero, self.space.hybrid)
        return [strategy for strategy in possible if groups_alike(self.profile.network, self.profile.devices, strategy)]

    @cached_property
    def depths(self) -> list[int]:
        """Numbers of sites whose stages are of equal size and lie alike."""
        devices = self.profile.devices
        possible = [depth for depth in divisors(devices) if depth <= len(self.units)]
        return [depth for depth in possible if stages_alike(self.profile.network, devices // depth, depth)]

    # Tables

    def _tables(self, setting: Setting) -> Tables:
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
        boundary = self.boundary_costs.boundary(size, strategies, *setting[:3], setting.chunks)
        if not self.space.least_memory:
            return boundary
        none = np.zeros_like(boundary.message_forward_bytes)  # when messages lie where they arrive is not sure
        return replace(boundary, message_forward_bytes=none, message_backward_bytes=none.copy())

    def _unit(
        self,
        parts: Parts,
        options: Sequence[Option],
        states: Sequence[Any],
        setting: Setting,
        once: bool = False,
    ) -> OptionTable:
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
        """The numbers of one sub-layer, some of it on the host."""
        return with_host(self.profile, sublayer, option, samples, numbers, in_flight, self.space.least_memory)

    def _part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        """The numbers of one sub-layer, all on the device. once: as of `times_of`."""
        profile, samples, sliced = self.profile, setting.samples, setting.sliced
        optimizer = self.space.optimizer
        times = times_of(profile, sublayer, strategy, samples, once, self.precision, optimizer=optimizer)
        least, precision = self.space.least_memory, self.precision
        if least and self.space.host:  # plans with something on the host have their states in the model's dtype
            precision = PLAIN
        kept, work, state = unit_bytes(
            profile, True, sublayer, strategy, samples, once, precision, optimizer=optimizer, least=least
        )
        if sliced and least:  # what halves hold while they are computed, of which only some micro-batches consist
            halved = unit_bytes(
                profile, True, sublayer, strategy, samples // 2, once, precision, optimizer=optimizer, least=least
            )
            kept, work = min(kept, 2 * halved[0]), min(work, halved[1])
        elif sliced:  # both halves have a graph
            kept = max(kept, 2 * unit_bytes(profile, True, sublayer, strategy, samples // 2, once)[0])
        # Where a stage ends, its output is sent while the gradient of an earlier one comes; `work` has room for re-layouts.
        exchanged = 2 * samples * moved_bytes(profile, sublayer)[1] if strategy.group == 1 else 0
        work = work if least else max(exchanged, work)
        numbers = (times.forward_ns, times.backward_ns, times.reduce_ns, times.step_ns, kept, work, state, 0)
        return dict(zip(NAMES, numbers, strict=True))

    def _tied(self, setting: Setting) -> Tied | None:
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
        """The interface states of some options, and one strategy of each."""
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
        """The instance of one batch, in samples of a step. memory_bytes: of one device; host_bytes: of its part of its host's
        memory, None where that is not known to have a limit. Raises InputError."""
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
        """Why none of the schedules suits any depth and number of micro-batches."""
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
        """Whether the fixed cuts suit the schedule, and some strategy halves of micro-batches, where it slices them."""
        stages = self.profile.devices // group * schedule.chunks
        cuts = self._cuts(schedule, stages)
        halves = not schedule.sliced or bool(self.options(Setting(group, samples, True)))
        even = cuts is not None or not self._even(schedule)
        return halves and even and (cuts is None or len(cuts) == stages - 1)

    def _cuts(self, schedule: Schedule, stages: int) -> tuple[int, ...] | None:
        """The cuts of a schedule, where they are fixed."""
        if self.space.cuts is None and self._even(schedule):
            return even_chunks(self.layers, stages)
        return self.space.cuts

    def _even(self, schedule: Schedule) -> bool:
        """Whether all stages have as many layers each."""
        return self.space.even_stages or (self.space.even_chunks and schedule.chunks > 1)

    def _settings(self, schedule: Schedule, group: int, samples: int) -> Sequence[Setting]:
        """What tables may depend on under a schedule: one configuration for each."""
        return [Setting(group, samples, bool(schedule.sliced))]

    def _configuration(self, schedule: Schedule, depth: int, micro_batches: int, setting: Setting) -> Configuration:
        group, in_flight = self.profile.devices // depth, 1
        if "hidden" in self.space.host:  # of a site's several stages each may have all
            in_flight = min(micro_batches, depth) if schedule.name == "1f1b" else micro_batches
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
    """The strategy of an option of a plan."""
    assert option.strategy is not None
    return option.strategy


def _of_h3t(option: Option, group: int) -> bool:
    """Whether units of a stage that is all devices are H3T's if all have such options (see `Plan.switches`)."""
    strategy = strategy_of(option)
    return "optimizer" in option.host and strategy.levels == Strategy.of(("sdp", group)).levels and strategy.zero == 3


def _shared_by(option: Option) -> tuple[Any, ...] | None:
    """What options of embedding and head have in common if a table of both is one parameter where they are in one stage (see
    `moves.shares_table`); None where it is none."""
    strategy = strategy_of(option)
    return None if "optimizer" in option.host else (strategy.levels, strategy.zero_stage)


def _joined(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Consecutive sub-layers under one strategy as one unit, whose peak in a stage is theirs."""
    if len(parts) == 1:
        return parts[0]
    joined = {name: sum(part[name] for part in parts) for name in NAMES}
    stacked = peak = 0
    for part in parts:
        stacked += part["kept_bytes"]
        peak = max(peak, stacked + part["work_backward_bytes"])
    return joined | {"work_backward_bytes": peak - stacked}


def tp_degrees(request: Request, group: int) -> tuple[int, ...]:
    """Tensor-parallel degrees up to a group of devices: divisors of it that the model's sub-layers run on; of a profile without
    a described model, those that it has."""
    model = request.described_model
    if model is None:
        return request.chain.tp_degrees(group)
    return tuple(t for t in divisors(group) if all(part.runs_on(t) for part in model.sublayers.values()))


def halved_passes(
    profile: Profile, sublayer: str, strategy: Strategy, samples: int, precision: Precision | None = None
) -> tuple[int, int, int]:
    """The forward passes of the first and the second half, and the backward pass of both, in ns. samples: of both halves.
    precision: of gradients, where it is not the profile's."""
    work = unit_work(profile, sublayer, strategy, samples)
    times = times_of(profile, sublayer, strategy, samples, precision=precision)
    rows = samples // 2 // strategy.data_degree
    forward_ns, backward_ns = map(round, partial_sums_ns(profile, profile.shapes[sublayer], strategy, rows))
    other_ns = times.forward_ns - work.forward_ns - work.partial_ns + forward_ns
    back = times.backward_ns - work.partial_back_ns + 2 * backward_ns
    return work.forward_ns // 2 + other_ns, work.forward_ns - work.forward_ns // 2 + other_ns, back
