"""Times of the stages of a plan, as trainplan's own programs run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.formulations.costs.sequential.communication import (
    gather_tokens_ns,
    moved_bytes,
    shares_table,
    slice_gather_ns,
    slowest_message_ns,
    tied_ns,
)
from trainplan.formulations.costs.sequential.cost_models import times_of
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.schedule.simulate import Work
from trainplan.profiling.base.quantities import span
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class PlannedWork:
    """Times in ns of the stages of a plan.

    Attributes:
        work: passes of one micro-batch on each stage, and messages between stages.
        syncs_ns: for each stage, the time added at the end of the step.
        micro_batches: the number of micro-batches per step.
        names: for each stage, its first and last sub-layer, as a text.
    """

    work: Work
    syncs_ns: tuple[int, ...]
    micro_batches: int
    names: tuple[str, ...]


def samples_of(plan: Plan) -> int:
    """Samples per micro-batch over all devices of a stage; for data-parallel pipelines with different shares of the batch, the
    samples of one micro-batch of every pipeline together."""
    shares = plan.batch.shares
    if shares is None:
        return plan.batch.global_samples // plan.batch.micro_batches
    return plan.batch.global_samples // sum(shares) * len(shares)


def planned_work(plan: Plan, profiles: Sequence[Profile]) -> PlannedWork:
    """The times of the stages of a plan as trainplan's programs run them; for plans in which all ranks of a stage do equal
    work. Raises InputError if a profile lacks a shape.

    profiles: one per stage, with the costs of all shapes on the kinds of devices that run the stage. If data-parallel
    pipelines have different shares of the batch, the one with the most micro-batches counts. A stage's time includes the
    re-layout of the hidden states that it receives.
    """
    strategies, samples = plan.strategies(), samples_of(plan)
    one_table = len(plan.stages) == 1 and shares_table(strategies, range(len(plan.units)))
    devices = plan.placement or range(plan.world)
    forward, backward, moves, syncs, names = [], [], [], [], []
    for number, (profile, stage) in enumerate(zip(profiles, plan.stages, strict=True)):
        units, first, last = profile.units, stage.first_unit, stage.last_unit
        times = [
            times_of(profile, units[u].sublayer, strategies[u], samples, one_table, plan.precision)
            for u in range(first, last + 1)
        ]
        passed = [moved_bytes(profile, unit.sublayer)[1] for unit in units]
        there = [(u - 1, u) for u in range(max(first, 1), last + 1)]
        back = [(u + 1, u) for u in range(first, min(last + 1, len(units) - 1))]
        moved = [
            sum(
                round(move(profile, strategies[a], strategies[b], samples, passed[min(a, b)]))
                for a, b in direction
                for move in (slice_gather_ns, gather_tokens_ns)
            )
            for direction in (there, back)
        ]
        forward.append(sum(time.forward_ns for time in times) + moved[0])
        backward.append(sum(time.backward_ns for time in times) + moved[1])
        syncs.append(sum(time.sync_ns for time in times))
        names.append(span(units[first].name, units[last].name))
        if number:
            message = samples // strategies[first].data_degree * passed[first - 1] // strategies[first - 1].share(0)[1]
            ranks = zip(plan.stages[number - 1].ranks, stage.ranks, strict=True)
            moves.append(slowest_message_ns(profile, message, [(devices[a], devices[b]) for a, b in ranks]))
    for end in set() if one_table else {0, len(plan.stages) - 1}:
        syncs[end] += tied_ns(profiles[0], plan.stage_sizes[0], len(plan.stages), plan.precision)
    work = Work(tuple(forward), tuple(backward), tuple(moves))
    return PlannedWork(work, tuple(syncs), plan.batch.micro_batches, tuple(names))
