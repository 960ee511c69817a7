"""From a profile to a joint instance: what every unit costs by trainplan's own programs (`executed` of `formulations.work`).

All devices are of one class: where there are several kinds, the slowest counts. Stages have equal numbers of devices, and lie
on consecutive ones. Only depths are offered whose stages lie alike in the cluster, and only strategies whose groups do, so that
one stage's first device stands for all; the time walk over the plan's programs then takes exactly as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.halves import halved_passes
from trainplan.formulations.joint.problem import Configuration, DeviceClass, Instance, Schedule, Site, Unit
from trainplan.formulations.joint.sites import groups_alike, stage_links, stage_pairs, stages_alike
from trainplan.formulations.joint.space import Space, every_strategy
from trainplan.formulations.joint.tables import Boundary, Halved, Option, OptionTable, Tables, Tied
from trainplan.formulations.request import Request
from trainplan.formulations.step.chunks import even_chunks
from trainplan.formulations.strategies import Strategy, gather_ranks
from trainplan.formulations.work.memory import unit_bytes
from trainplan.formulations.work.models import times_of
from trainplan.formulations.work.moves import moved_bytes, slice_gather_ns, slowest_message_ns, tied_ns
from trainplan.formulations.work.units import grouped_units, layer_name, table_part, unit_work
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.profiles import Profile

Parts = tuple[str, ...]  # the sub-layers of one unit of the problem, by name


class JointCosts:
    """The tables of one profile in one space, made when they are first asked for and kept."""

    def __init__(self, profile: Profile, space: Space, tp_degrees: Sequence[int]) -> None:
        """profile: of all devices, with the costs of every shape that will be asked for. tp_degrees: that it has."""
        self.profile, self.space, self.tp_degrees = profile, space, tp_degrees
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
        self.tables = cache(self._tables)
        self.tied = cache(self._tied)
        self.strategies = cache(self._strategies)
        self.links = cache(partial(stage_links, profile))
        self.pairs = cache(partial(stage_pairs, profile))
        self._every = cache(self._every_strategy)
        self._slices = cache(self._only_slices)
        self._gathered_more = cache(self._more)

    # What is possible

    def _strategies(self, group: int, samples: int, parts: int = 1) -> list[Strategy]:
        """The space's strategies of a stage of `group` devices that divide the samples of a micro-batch, or of its `parts`."""
        return [strategy for strategy in self._every(group) if samples % (parts * strategy.data_degree) == 0]

    def _every_strategy(self, group: int) -> list[Strategy]:
        network = self.profile.network
        strategies = filter(self.space.strategies, every_strategy(group, self.tp_degrees))
        return [strategy for strategy in strategies if groups_alike(network, strategy)]

    @cached_property
    def depths(self) -> list[int]:
        """Numbers of sites whose stages are of equal size and lie alike."""
        devices = self.profile.devices
        possible = [depth for depth in divisors(devices) if depth <= len(self.units)]
        return [depth for depth in possible if stages_alike(self.profile.network, devices // depth, depth)]

    # Tables

    def _tables(self, group: int, samples: int, sliced: bool) -> Tables:
        """The tables of stages of `group` devices with so many samples a micro-batch."""
        strategies = self.strategies(group, samples, 2 if sliced else 1)
        states = list(dict.fromkeys(strategy.layout for strategy in strategies))
        units = tuple(self._unit(parts, strategies, states, samples, sliced) for parts in self.kinds)
        shown = {strategy.layout: strategy for strategy in strategies}
        of_state = [shown[state] for state in states]
        return Tables(
            units=units,
            boundaries=tuple(self._boundary(size, of_state, group, samples, sliced) for size in self.boundaries),
            states=tuple("-".join(f"{degree}x{stride}" for stride, degree in state) or "whole" for state in states),
        )

    def _unit(
        self,
        parts: Parts,
        strategies: Sequence[Strategy],
        states: Sequence[Any],
        samples: int,
        sliced: bool,
        once: bool = False,
    ) -> OptionTable:
        more = self._gathered_more(tuple(strategies))
        rows = [[self._part(part, strategy, samples, once, sliced, more) for part in parts] for strategy in strategies]
        columns = {name: [joined[name] for joined in map(_joined, rows)] for name in _NAMES}
        interface = [states.index(strategy.layout) for strategy in strategies]
        options = [Option(str(strategy), strategy) for strategy in strategies]
        halved = None
        if sliced:
            passes = [[halved_passes(self.profile, part, strategy, samples) for part in parts] for strategy in strategies]
            first, second, back = (
                np.array([sum(part[place] for part in each) for each in passes], np.int64) for place in range(3)
            )
            halved = Halved(forward_ns=np.stack([first, second]), backward_ns=back)
        return OptionTable.of(options, halved, enter=interface, leave=interface, **columns)

    def _part(self, sublayer: str, strategy: Strategy, samples: int, once: bool, sliced: bool, more: int) -> dict[str, int]:
        """The numbers of one sub-layer. once: as of `times_of`; more: as of `_more`."""
        profile = self.profile
        times = times_of(profile, sublayer, strategy, samples, once)
        head = once and profile.shapes[sublayer].kind == "head"
        left_out = table_part(profile, strategy.degree("tp")) if head else 0
        optimizer = unit_work(profile, sublayer, strategy, samples, left_out=left_out).optimizer_ns
        kept, work, state = unit_bytes(profile, True, sublayer, strategy, samples, once)
        if sliced:  # both halves have a graph
            kept = max(kept, 2 * unit_bytes(profile, True, sublayer, strategy, samples // 2, once)[0])
        # Where a stage ends, its output is sent while the gradient of an earlier one comes; `work` has room for re-layouts.
        exchanged = 2 * samples * moved_bytes(profile, sublayer)[1] if strategy.group == 1 else 0
        work = max(exchanged, work + more * samples * max(moved_bytes(profile, sublayer)))
        numbers = (times.forward_ns, times.backward_ns, times.sync_ns - optimizer, optimizer, kept, work, state)
        return dict(zip(_NAMES, numbers, strict=True))

    def _more(self, strategies: tuple[Strategy, ...]) -> int:
        """How many times a micro-batch's hidden states a re-layout may gather beyond once, for which `unit_bytes` has room.
        Where ranks have no digits in common, each gathers the blocks of all: every sample as often as it is held."""
        if not strategies or strategies[0].group & (strategies[0].group - 1) == 0:
            return 0
        places = range(strategies[0].group)
        most = (
            -(-max(len(gather_ranks(a, b, place)) for place in places) // a.data_degree) for a in strategies for b in strategies
        )
        return max(most) - 1

    def _boundary(self, size: int, strategies: Sequence[Strategy], group: int, samples: int, sliced: bool) -> Boundary:
        """One kind of boundary, of so many bytes a sample. strategies: one of each interface state."""
        shape = (len(self.pairs(group)), len(strategies), len(strategies))
        there, sent = self._relayouts(size, strategies, samples), self._messages(size, strategies, group, samples)
        halves: dict[str, Any] = {}
        if sliced:
            half, half_sent = (
                self._relayouts(size, strategies, samples // 2),
                self._messages(size, strategies, group, samples // 2),
            )
            halves["halved_relayout_forward_ns"], halves["halved_relayout_backward_ns"] = half, 2 * half.T
            halves["halved_message_forward_ns"] = np.broadcast_to(half_sent[:, :, None], shape).copy()
        sizes = np.array([samples // strategy.data_degree * size for strategy in strategies], np.int64)
        return Boundary(
            message_forward_bytes=np.broadcast_to(sizes[:, None], shape[1:]).copy(),
            message_backward_bytes=np.broadcast_to(sizes[None, :], shape[1:]).copy(),
            relayout_forward_ns=there,
            relayout_backward_ns=there.T.copy(),
            message_forward_ns=np.broadcast_to(sent[:, :, None], shape).copy(),
            message_backward_ns=np.broadcast_to(sent[:, None, :], shape).copy(),
            **halves,
        )

    def _relayouts(self, size: int, strategies: Sequence[Strategy], samples: int) -> Integers:
        """(C, C): of so many samples, from the state of one strategy to that of another."""
        times = np.zeros((len(strategies), len(strategies)), np.int64)
        for a, before in enumerate(strategies):
            for b, after in enumerate(strategies):
                if not self._slices(before, after):
                    times[a, b] = round(slice_gather_ns(self.profile, before, after, samples, size))
        return times

    def _only_slices(self, before: Strategy, after: Strategy) -> bool:
        """Whether every rank holds all that it needs. Of powers of two, what holds for one rank holds for all."""
        alike = before.group & (before.group - 1) == 0
        return alike and len(gather_ranks(before, after, 0)) == 1

    def _messages(self, size: int, strategies: Sequence[Strategy], group: int, samples: int) -> Integers:
        """(K, C): of so many samples in the state of each strategy, by kind of link."""
        messages = [samples // strategy.data_degree * size for strategy in strategies]
        times = [[slowest_message_ns(self.profile, message, ranks) for message in messages] for ranks in self.pairs(group)]
        return np.array(times, np.int64).reshape(len(times), len(strategies))

    def _tied(self, group: int, samples: int) -> Tied | None:
        profile, depth = self.profile, self.profile.devices // group
        if not profile.tied_parameters:
            return None
        time = tied_ns(profile, group, depth)
        if depth > 1:
            return Tied(reduce_ns=time)
        strategies = self.strategies(group, samples)
        states = list(dict.fromkeys(strategy.layout for strategy in strategies))
        equal = np.array([[a.levels == b.levels for b in strategies] for a in strategies], bool)
        once = self._unit(self.kinds[self.units[-1].kind], strategies, states, samples, False, once=True)
        return Tied(reduce_ns=time, equal=equal.reshape(len(strategies), len(strategies)), once=once)

    # The instance

    def instance(
        self, batch: int, memory_bytes: int, *, name: str | None = None, provenance: dict[str, Any] | None = None
    ) -> Instance:
        """The instance of one batch, in samples of a step. memory_bytes: of one device. Raises InputError."""
        profile, space = self.profile, self.space
        return Instance(
            classes=(DeviceClass(" and ".join(profile.kinds), profile.devices, memory_bytes),),
            batch=batch,
            units=self.units,
            boundary_kinds=self.boundary_kinds,
            cuttable=self.cuttable,
            configurations=tuple(self._configurations(batch)),
            step=space.step,
            name=name or f"{profile.name} on {profile.devices} x {' and '.join(profile.kinds)}",
            provenance={
                "model": profile.model or {"name": profile.name},
                "cost_model": "executed",
                "profile": profile.origin,
                **(provenance or {}),
            },
        )

    def _configurations(self, batch: int) -> list[Configuration]:
        space, devices = self.space, self.profile.devices
        depths = [depth for depth in self.depths if space.depths is None or depth in space.depths]
        if not depths:
            asked = ", ".join(map(str, space.depths or []))
            problem, possible = f"is {asked}", ", ".join(map(str, self.depths)) or "none"
            raise InputError("command line", "--pipeline", problem, f"give another: {len(self.units)} units have {possible}")
        configurations, numbers = [], divisors(batch) if space.micro_batches is None else space.micro_batches
        for depth in depths:
            group = devices // depth
            for count in numbers:
                if batch % count or not self.strategies(group, batch // count):
                    continue
                for schedule in space.schedules_of(depth, count, len(self.units)):
                    if self._sound(schedule, group, batch // count):
                        configurations.append(self._configuration(schedule, depth, count, batch // count))
        if not configurations:
            if any(self.strategies(devices // depth, batch // m) for depth in depths for m in numbers if batch % m == 0):
                problem, fix = f"is {' or '.join(space.schedules)}", "give 1f1b: these depths and micro-batches do not suit it"
                raise InputError("command line", "--schedule", problem, fix)
            fix = f"give a multiple of {devices}"
            raise InputError("command line", "--batch", f"is {batch}, which no strategy of the space divides", fix)
        return configurations

    def _sound(self, schedule: Schedule, group: int, samples: int) -> bool:
        """Whether the fixed cuts suit the schedule, and some strategy halves of micro-batches, where it slices them."""
        stages = self.profile.devices // group * schedule.chunks
        cuts = self._cuts(schedule, stages)
        halves = not schedule.sliced or bool(self.strategies(group, samples, 2))
        even = cuts is not None or schedule.chunks == 1 or not self.space.even_chunks
        return halves and even and (cuts is None or len(cuts) == stages - 1)

    def _cuts(self, schedule: Schedule, stages: int) -> tuple[int, ...] | None:
        """The cuts of a schedule, where they are fixed."""
        if self.space.cuts is None and self.space.even_chunks and schedule.chunks > 1:
            return even_chunks(self.layers, stages)
        return self.space.cuts

    def _configuration(self, schedule: Schedule, depth: int, micro_batches: int, samples: int) -> Configuration:
        group = self.profile.devices // depth
        tables: Callable[[], Tables] = partial(self.tables, group, samples, bool(schedule.sliced))
        return Configuration(
            schedule=schedule,
            micro_batches=micro_batches,
            sites=(Site((group,)),) * depth,
            links=self.links(group, schedule.chunks),
            make_tables=lambda: (tables(),),
            make_tied=partial(self.tied, group, samples),
            cuts=self._cuts(schedule, depth * schedule.chunks),
        )


_NAMES = ("forward_ns", "backward_ns", "reduce_ns", "optimizer_ns", "kept_bytes", "work_backward_bytes", "state_bytes")


def _joined(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Consecutive sub-layers under one strategy as one unit, whose peak in a stage is theirs."""
    if len(parts) == 1:
        return parts[0]
    joined = {name: sum(part[name] for part in parts) for name in _NAMES}
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
