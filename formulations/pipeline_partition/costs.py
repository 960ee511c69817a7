"""From a profile to a pipeline-partition instance, and to the stage times of a plan: what every sub-layer costs.

Costs of a sub-layer are those of trainplan's own programs (the cost model `executed` of layer-strategies), forward and backward
apart, each with its collectives. What only the last micro-batch of a step pays (the reduction of gradients, the optimizer) is
no part of the pipeline's iteration, and is added to the end of every stage:

    step = max_x (end of the last backward pass of stage x + sync_x)

A message is the hidden states of one device's rows, one way, over the slowest link between neighbouring stages: ranks of stage
x + 1 follow those of stage x, and each sends to its own place in the next stage. Collectives within a stage are costed on the
first devices, as in the problems `layer-strategies` and `pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from trainplan.formulations.layer_strategies.costs import (
    COST_MODELS,
    grouped_units,
    layer_name,
    moved_bytes,
    slice_gather_ns,
    unit_costs,
)
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import NAME, Instance, load
from trainplan.formulations.plan import Plan
from trainplan.formulations.step.timeline import Work
from trainplan.formulations.strategies import Paradigm, Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import span
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.profiles import Profile

EXECUTED = COST_MODELS["executed"]


@dataclass(frozen=True)
class Degrees:
    """dp pipelines side by side, each of pp stages of tp devices, with so many micro-batches a step."""

    pp: int
    dp: int = 1
    tp: int = 1
    micro_batches: int = 1

    @property
    def devices(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def stage_size(self) -> int:
        return self.dp * self.tp

    def strategy(self, recompute: bool) -> Strategy:
        """That of every sub-layer over the devices of its stage."""
        levels: tuple[tuple[Paradigm, int], ...] = (("dp", self.dp), ("tp", self.tp))
        return Strategy(tuple(level for level in levels if level[1] > 1), recompute)

    def rows(self, batch: int) -> int:
        """Samples of a micro-batch in one pipeline. Raises InputError."""
        rows, rest = divmod(batch, self.dp * self.micro_batches)
        if rest or rows < 1:
            fix = (
                f"give a multiple of {self.dp * self.micro_batches}: {self.dp} pipelines of {self.micro_batches} micro-batches"
            )
            raise InputError("command line", "--batch", f"is {batch}", fix)
        return rows


@dataclass(frozen=True)
class Times:
    """One micro-batch through one sub-layer, in ns. sync_ns: what is added at the end of the step."""

    forward_ns: int
    backward_ns: int
    sync_ns: int


def times_of(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> Times:
    """samples: of a micro-batch over all devices of the stage. Raises InputError where the profile lacks the shape."""
    found = unit_costs(profile, EXECUTED, sublayer, strategy, samples)
    forward, sync = round(found.forward_ns), round(found.sync_ns)
    return Times(forward, round(found.time_ns) - forward - sync, sync)


def build(
    profile: Profile,
    batch: int,
    degrees: Degrees,
    *,
    memory_bytes: int | None = None,
    recompute: bool = False,
    name: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Instance:
    """The partition of one of the pipelines that share a batch of so many samples.

    memory_bytes: of one device; None for no limit. recompute: every sub-layer keeps its input only, and repeats its forward
    pass in its backward pass. Raises InputError where the batch cannot be split so, or the profile lacks a shape.
    """
    rows, strategy = degrees.rows(batch), degrees.strategy(recompute)
    units = [unit for group in grouped_units(profile, by_unit=True) for unit in group]
    if degrees.pp > len(units):
        raise InputError("command line", "--pipeline", f"is {degrees.pp}", f"give at most {len(units)}, one sub-layer a stage")
    known = {unit.sublayer: times_of(profile, unit.sublayer, strategy, rows * degrees.dp) for unit in units}
    size, devices = degrees.stage_size, degrees.devices
    pairs = [(rank, rank + size) for rank in range(devices - size)]
    messages = [rows * moved_bytes(profile, unit.sublayer)[1] for unit in units[:-1]]
    moves = {message: _slowest_ns(profile, message, pairs) for message in set(messages)}
    given: dict[str, Any] = {
        "problem": NAME,
        "version": 1,
        "name": name or f"{profile.name}, {degrees.pp} stages",
        "provenance": {
            "model": profile.model or {"name": profile.name},
            "profile": profile.origin,
            "batch": batch,
            "dp": degrees.dp,
            "tp": degrees.tp,
            "mbs": rows,
            "recompute": recompute,
            **(provenance or {}),
        },
        "forward_ns": [known[unit.sublayer].forward_ns for unit in units],
        "backward_ns": [known[unit.sublayer].backward_ns for unit in units],
        "transfer_ns": [moves[message] for message in messages],
        "stages": degrees.pp,
        "micro_batches": degrees.micro_batches,
        "names": [layer_name([unit]) for unit in units],
        "layers": [unit.layer for unit in units],
    }
    if memory_bytes is not None:
        # Stages whose units are all laid out alike re-lay nothing: their bytes are those of one pipeline.
        alone = Degrees(degrees.pp, 1, degrees.tp).strategy(recompute)
        held = {name: unit_costs(profile, EXECUTED, name, alone, rows) for name in known}
        given["memory"] = {
            "limit_bytes": memory_bytes,
            "state_bytes": [held[unit.sublayer].state_bytes for unit in units],
            "kept_bytes": [held[unit.sublayer].forward_bytes for unit in units],
            "workspace_bytes": [max(0, held[unit.sublayer].backward_bytes) for unit in units],
        }
    return load(given)


def syncs_ns(profile: Profile, instance: Instance, cuts: Sequence[int]) -> tuple[int, ...]:
    """What every stage of a partition adds to the end of a step. instance: as `build` makes it from this profile."""
    strategy, own = _own_syncs(profile, instance)
    bounds = pairwise((0, *cuts, instance.sublayers))
    return tuple(_with_tied(profile, strategy, [sum(own[first:end]) for first, end in bounds]))


def added_ns(profile: Profile, instance: Instance) -> tuple[Integers, int]:
    """What each sub-layer adds to the end of its stage's step, (n,), and what the first and the last stage add beside."""
    strategy, own = _own_syncs(profile, instance)
    return np.array(own, np.int64), _with_tied(profile, strategy, [0] * instance.stages)[0]


def _own_syncs(profile: Profile, instance: Instance) -> tuple[Strategy, list[int]]:
    """How sub-layers are laid out, and what each adds by itself."""
    given = instance.provenance
    strategy = Degrees(instance.stages, given["dp"], given["tp"]).strategy(given["recompute"])
    samples = given["mbs"] * given["dp"]
    known = {name: times_of(profile, name, strategy, samples).sync_ns for name in profile.shapes}
    return strategy, [known[unit.sublayer] for unit in profile.units]


def _with_tied(profile: Profile, strategy: Strategy, own: list[int]) -> list[int]:
    """A table that the first and the last stage share is reduced between them, too."""
    if not profile.tied_parameters or len(own) == 1:
        return own
    table = -(-profile.tied_parameters // strategy.degree("tp")) * profile.parameter_bytes
    shared = round(collective_ns(profile.network, "all-reduce", table, (0, (len(own) - 1) * strategy.group)))
    return [own[0] + shared, *own[1:-1], own[-1] + shared]


@dataclass(frozen=True)
class PlannedWork:
    """What the stages of a plan take. syncs_ns: what each adds to the end of the step."""

    work: Work
    syncs_ns: tuple[int, ...]
    micro_batches: int
    names: tuple[str, ...]


def samples_of(plan: Plan) -> int:
    """Samples of a micro-batch over all devices of a stage; of pipelines with shares of their own, one of each."""
    shares = plan.batch.shares
    if shares is None:
        return plan.batch.global_samples // plan.batch.micro_batches
    return plan.batch.global_samples // sum(shares) * len(shares)


def planned_work(plan: Plan, profiles: Sequence[Profile]) -> PlannedWork:
    """Stage times of a plan. profiles: one for each stage, of the kinds of devices that it is on, with all shapes' costs.

    Of data-parallel pipelines with different shares, that with the most micro-batches counts. Re-layouts within a stage count.
    Raises InputError.
    """
    strategies, samples = plan.strategies(), samples_of(plan)
    devices = plan.placement or range(plan.world)
    forward, backward, moves, syncs, names = [], [], [], [], []
    for number, (profile, stage) in enumerate(zip(profiles, plan.stages, strict=True)):
        units, first, last = profile.units, stage.first_unit, stage.last_unit
        times = [times_of(profile, units[u].sublayer, strategies[u], samples) for u in range(first, last + 1)]
        there = back = 0.0
        for u in range(first, last):
            size = moved_bytes(profile, units[u].sublayer)[1]
            there += slice_gather_ns(profile, strategies[u], strategies[u + 1], samples, size)
            back += slice_gather_ns(profile, strategies[u + 1], strategies[u], samples, size)
        forward.append(sum(time.forward_ns for time in times) + round(there))
        backward.append(sum(time.backward_ns for time in times) + round(back))
        syncs.append(sum(time.sync_ns for time in times))
        names.append(span(units[first].name, units[last].name))
        if number:
            message = samples // strategies[first].data_degree * moved_bytes(profile, units[first - 1].sublayer)[1]
            ranks = zip(plan.stages[number - 1].ranks, stage.ranks, strict=True)
            moves.append(_slowest_ns(profile, message, [(devices[a], devices[b]) for a, b in ranks]))
    work = Work(tuple(forward), tuple(backward), tuple(moves))
    return PlannedWork(work, tuple(_with_tied(profiles[0], strategies[0], syncs)), plan.batch.micro_batches, tuple(names))


def _slowest_ns(profile: Profile, message_bytes: int, pairs: Iterable[tuple[int, int]]) -> int:
    return round(max((collective_ns(profile.network, "p2p", message_bytes, pair) for pair in pairs), default=0.0))
