"""Columns as pipelines: their passes with messages and re-layouts at the cuts, and the simulated steps of many at once.

Cross-check of `formulations.joint.simulation`, pass by pass, of one pipeline: the same steps, of many at once (asserted in
tests/solvers/test_joint.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Schedule
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import is_sliced
from trainplan.formulations.schedule.vectorised import gpipe_ends_ns, one_f_one_b_ends_ns
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import StageTables


@dataclass(frozen=True, eq=False)
class Passes:
    """Of P stages of N pipelines, (P, N): passes with what they receive, and what comes once. halves: (2, P, N)."""

    forward_ns: Integers
    backward_ns: Integers
    last_ns: Integers
    reduce_ns: Integers
    optimizer_ns: Integers
    halves_ns: Integers
    halved_backward_ns: Integers

    @property
    def extra_ns(self) -> Integers:
        """g."""
        return self.last_ns + self.reduce_ns + self.optimizer_ns


NAMES = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns", "halves_ns", "halved_backward_ns")


def passes_of(tables: StageTables, pipelines: Sequence[Sequence[Column]], cuts: Sequence[int], links: Sequence[int]) -> Passes:
    """The passes of pipelines of consecutive stages. cuts, links: the kinds of boundary and link between each stage and the
    next. The first stage's message is not among them where it is not the model's first."""
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
    """Whether one column may follow another at a kind of boundary."""
    return bool(np.isfinite(tables.moves[cut][before.leave, after.enter]))


def steps_ns(passes: Passes, configuration: Configuration, tied_ns: int) -> Integers:
    """(N,): the simulated steps of whole pipelines. tied_ns: of the sum of a table that two ends share, 0 without one."""
    reduced = pass_ends_ns(passes, configuration.schedule, configuration.micro_batches) + passes.reduce_ns
    if tied_ns:
        reduced[0] = reduced[-1] = np.maximum(reduced[0], reduced[-1]) + tied_ns
    steps: Integers = (reduced + passes.optimizer_ns).max(axis=0)
    return steps


def pass_ends_ns(passes: Passes, schedule: Schedule, micro_batches: int) -> Integers:
    """(P, N): when each stage ends its last pass. The last stages of a longer pipeline are a pipeline themselves, under each of
    the schedules with one stage on each site, with no more of its first micro-batches in halves than it has."""
    if schedule.sliced:
        return _by_order_ns(passes, schedule, micro_batches)
    many = gpipe_ends_ns if schedule.name == "gpipe" else one_f_one_b_ends_ns
    return many(passes.forward_ns, passes.backward_ns, micro_batches, passes.last_ns)


@lru_cache(maxsize=64)
def _tasks(schedule: Schedule, stages: int, m: int) -> list[tuple[int, int, int]]:
    """All passes in an order in which each one's source comes before: stage, kind of pass (see `_by_order_ns`), and the place
    of its source in the list, or -1."""
    orders = schedule.orders(stages, m)
    indices: dict[tuple[str, int, int, int | None], int] = {}
    tasks: list[tuple[int, int, int]] = []
    at = [0] * stages
    while len(tasks) < sum(map(len, orders)):
        for x, order in enumerate(orders):
            while at[x] < len(order):
                task = order[at[x]]
                halved = is_sliced(x, task.micro_batch, stages, schedule.sliced)
                source: tuple[str, int, int, int | None] | None
                if task.kind == "backward":
                    source = None if x == stages - 1 else ("backward", task.micro_batch, x + 1, None)
                    kind = (4 if halved else 3) + 2 * (task.micro_batch == m - 1)
                else:
                    split = x > 0 and is_sliced(x - 1, task.micro_batch, stages, schedule.sliced)
                    half = task.half if task.half is not None else (1 if split else None)
                    source = None if x == 0 else ("forward", task.micro_batch, x - 1, half)
                    kind = 0 if task.half is None else 1 + task.half
                if source is not None and source not in indices:
                    break
                indices[task.kind, task.micro_batch, x, task.half] = len(tasks)
                tasks.append((x, kind, -1 if source is None else indices[source]))
                at[x] += 1
    return tasks


def _by_order_ns(passes: Passes, schedule: Schedule, m: int) -> Integers:
    """Pass by pass. Kinds of passes: whole forward, first half, second half, backward, backward of both halves; and the last
    two of the last micro-batch."""
    stages, count = passes.forward_ns.shape
    backward = passes.backward_ns, passes.halved_backward_ns
    times = [passes.forward_ns, *passes.halves_ns, *backward, *(b + passes.last_ns for b in backward)]
    free = np.zeros((stages, count), np.int64)
    ended = np.zeros((len(tasks := _tasks(schedule, stages, m)), count), np.int64)
    for index, (x, kind, source) in enumerate(tasks):
        if source >= 0:
            np.maximum(free[x], ended[source], out=free[x])
        free[x] += times[kind][x]
        ended[index] = free[x]
    return free
