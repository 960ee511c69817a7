"""Columns joined to pipelines: their passes with messages and re-layouts at the cuts, and the simulated steps of many at once.

The steps equal those of `formulations.joint.simulation`, which takes one pipeline at a time (asserted in
tests/solvers/test_joint.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Schedule
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule import vectorised
from trainplan.formulations.schedule.recorded import Shape, recorded
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import StageTables


@dataclass(frozen=True, eq=False)
class Passes:
    """Times in ns of the P stages of N pipelines, each (P, N): forward and backward passes of a micro-batch with the messages
    that they receive; what the last micro-batch adds (last_ns), gradient reduction and optimizer. For micro-batches sliced in
    halves: halves_ns, (2, P, N), the two forward halves; halved_backward_ns, the backward pass."""

    forward_ns: Integers
    backward_ns: Integers
    last_ns: Integers
    reduce_ns: Integers
    optimizer_ns: Integers
    halves_ns: Integers
    halved_backward_ns: Integers

    @property
    def extra_ns(self) -> Integers:
        """The time in ns of the work after the last micro-batch (what it adds itself, gradient reduction, optimizer) on each
        stage, (P, N)."""
        return self.last_ns + self.reduce_ns + self.optimizer_ns


NAMES = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns", "halves_ns", "halved_backward_ns")


def passes_of(tables: StageTables, pipelines: Sequence[Sequence[Column]], cuts: Sequence[int], links: Sequence[int]) -> Passes:
    """The pass times of N pipelines, or of equally many consecutive stages of them, with messages and re-layouts at the cuts.

    pipelines: for each pipeline, one column (choice of options) per stage. cuts, links: the kinds of boundary and of link
    between each stage and the next. A message into the first of these stages is left out. tables: options of all kinds of units
    (sub-layers) and costs of boundaries between units."""
    rows = {name: np.array([[getattr(c, name) for c in row] for row in pipelines], np.int64) for name in NAMES}
    halves = rows.pop("halves_ns").transpose(2, 1, 0)
    columns = {name: row.T.copy() for name, row in rows.items()}
    for index, (cut, link) in enumerate(zip(cuts, links, strict=True)):
        crossing = tables.crossings[cut]
        state = [row[index].leave for row in pipelines], [row[index + 1].enter for row in pipelines]
        back = crossing.backward_ns[state] + crossing.message_backward_ns[link][state]
        columns["forward_ns"][index + 1] += crossing.forward_ns[state] + crossing.message_forward_ns[link][state]
        columns["backward_ns"][index] += back
        columns["halved_backward_ns"][index] += back
        halves[:, index + 1] += crossing.halved_forward_ns[state] + crossing.halved_message_ns[link][state]
    return Passes(halves_ns=halves, **columns)


def agree(tables: StageTables, before: Column, after: Column, cut: int) -> bool:
    """Whether two columns (choices of options for neighbouring stages) may follow each other: the layout of activations in
    which the first one is left may be followed at the cut by the layout in which the second one is entered. tables: the costs
    of boundaries between units. before, after: the columns of the earlier and of the later stage. cut: the index of the kind of
    boundary at the cut."""
    return bool(np.isfinite(tables.moves[cut][before.leave, after.enter]))


def steps_ns(passes: Passes, configuration: Configuration, tied_ns: int) -> Integers:
    """The simulated step times in ns of N whole pipelines, (N,). passes: the times of all stages. configuration: gives the
    schedule and the number of micro-batches. tied_ns: the time in ns in which both ends of the pipeline sum the gradients of a
    shared table, 0 without one."""
    reduced = pass_ends_ns(passes, configuration.schedule, configuration.micro_batches) + passes.reduce_ns
    if tied_ns:
        reduced[0] = reduced[-1] = np.maximum(reduced[0], reduced[-1]) + tied_ns
    steps: Integers = (reduced + passes.optimizer_ns).max(axis=0)
    return steps


def pass_ends_ns(passes: Passes, schedule: Schedule, micro_batches: int) -> Integers:
    """The time in ns at which each stage ends its last pass, (P, N), by simulation of N pipelines of P stages.

    passes: the times of all stages, or of the last stages of longer pipelines, which are simulated as pipelines of their own,
    with as many of their first micro-batches in halves as the schedule slices, at most. schedule: any schedule with one stage
    on each device group. micro_batches: the number of micro-batches in a step.
    """
    if schedule.has_closed_forms:
        return vectorised.pass_ends_ns(schedule.name, passes.forward_ns, passes.backward_ns, micro_batches, passes.last_ns)
    times = {
        "forward_ns": passes.forward_ns,
        "backward_ns": passes.backward_ns,
        "first_half_ns": passes.halves_ns[0],
        "second_half_ns": passes.halves_ns[1],
        "halved_backward_ns": passes.halved_backward_ns,
        "last_ns": passes.last_ns,
    }  # messages are part of the passes that receive them
    stages, none = len(passes.forward_ns), np.zeros(passes.forward_ns.shape[1], np.int64)
    graph = recorded(Shape(schedule.planned, stages, micro_batches, schedule.sliced))
    ends = graph.ends_of_columns(lambda duration: sum((times[name][x] for name, x in duration if name in times), none))
    return ends[graph.last]
