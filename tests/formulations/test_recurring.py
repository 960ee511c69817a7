"""Many micro-batches in the joint problem: times and moments of memory are those of every pass, however few are followed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from trainplan.formulations.joint import stage_memory
from trainplan.formulations.joint.problem import Configuration, DeviceGroup, Schedule
from trainplan.formulations.joint.simulation import StageTimes, ends_ns, graph_of
from trainplan.formulations.schedule import vectorised
from trainplan.formulations.schedule.recorded import FEW
from trainplan.formulations.schedule.vectorised import one_f_one_b_ends_ns

from tests.helpers.sizes import some_and_all


def random_times(rng: random.Random, stages: int) -> list[StageTimes]:
    base, spread = rng.choice((0, 1000)), rng.choice((1, 3, 1000))
    return [StageTimes(*[base + rng.randint(0, spread) for _ in range(11)]) for _ in range(stages)]


def configured(schedule: Schedule, groups: int, micro_batches: int) -> Configuration:
    return Configuration(
        schedule=schedule, micro_batches=micro_batches, device_groups=(DeviceGroup((1,)),) * groups, links=(), make_tables=tuple
    )


@pytest.mark.parametrize("count", some_and_all(40, 600, 200))
def test_ends_of_many_micro_batches_are_those_of_every_pass(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        groups, chunks = rng.randint(2, 4), rng.randint(1, 3)
        if chunks > 1:
            schedule = Schedule("interleaved", chunks=chunks, overlaps_messages=rng.random() < 0.5)
            micro_batches = groups * rng.randint(2 * FEW, 5 * FEW)
        else:
            schedule, micro_batches = Schedule("1f1b", sliced=rng.randint(1, groups - 1)), rng.randint(30, 90)
        stages, configuration = random_times(rng, groups * chunks), configured(schedule, groups, micro_batches)

        graph = graph_of(configuration)
        ends = graph.ends_ns(lambda duration: sum(getattr(stages[x], name) for name, x in duration))  # noqa: B023
        assert ends_ns(configuration, stages) == [ends[index] for index in graph.last], seed


@pytest.mark.parametrize("count", some_and_all(100, 3000, 1000))
def test_blocks_that_move_all_ends_alike_need_not_be_followed(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        stages, pipelines, base, spread = (
            int(rng.choice(entry)) for entry in ((1, 2, 3, 6), (1, 1, 3), (0, 1000), (1, 3, 1000))
        )
        forward, backward, last = (base + rng.integers(0, spread + 1, (stages, pipelines)) for _ in range(3))
        micro_batches = int(rng.choice((1, 2, 70, 150, 400)))
        found = one_f_one_b_ends_ns(forward, backward, micro_batches, last)
        with monkeypatch.context() as patch:
            patch.setattr(vectorised, "LONG", 10**9)
            assert (found == one_f_one_b_ends_ns(forward, backward, micro_batches, last)).all(), seed


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule("interleaved", chunks=2), Schedule("interleaved", chunks=3, overlaps_messages=True)]
)
def test_a_million_micro_batches_are_not_followed_one_by_one(schedule: Schedule) -> None:
    configuration = configured(schedule, 4, 2**20)
    busy = max(ends_ns(configuration, [StageTimes(10, 20, 0, 0, 0, 0, 0)] * (4 * schedule.chunks)))
    stage_memory.moments_of(configuration)
    assert busy >= 2**20 * 30 * schedule.chunks


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_stages_have_no_other_moments_with_more_micro_batches(groups: int, chunks: int) -> None:
    schedule = Schedule("interleaved", chunks=chunks)
    few, many = (
        stage_memory._interleaved(schedule, groups * chunks, groups * rounds)
        for rounds in (stage_memory.FULL, 3 * stage_memory.FULL)
    )
    assert few == many
