"""The bound of any schedule, held against the best order of all passes: groups, chunks and shared tables of every form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.joint.lower_bounds import any_schedule_ns
from trainplan.formulations.joint.problem import Configuration, DeviceGroup, Schedule
from trainplan.formulations.joint.simulation import StageTimes, step_ns

from tests.helpers.sizes import some_and_all

Moments = tuple[int, ...]  # when each group is free, and then when each micro-batch's last pass so far has ended


def least_step_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The step of the best order of passes: each micro-batch's passes are a chain, so progress is an index in each chain."""
    groups, m, chain = len(configuration.device_groups), configuration.micro_batches, 2 * len(stages)

    def taken(index: int) -> tuple[int, int]:
        """The group of a pass of the chain, and its time."""
        x = min(index, chain - 1 - index)
        times = stages[x]
        forward = index < len(stages)
        ns = times.forward_ns + times.message_forward_ns if forward else times.backward_ns + times.message_backward_ns
        return x % groups, ns

    fronts: dict[tuple[int, ...], set[Moments]] = {(0,) * m: {(0,) * (groups + m)}}
    for done in sorted(product(range(chain + 1), repeat=m), key=sum):
        front = fronts[done]
        for moments in [entry for entry in front if not any(_better(other, entry) for other in front)]:
            for number in range(m):
                if done[number] == chain:
                    continue
                group, ns = taken(done[number])
                after = list(moments)
                after[group] = after[groups + number] = max(moments[group], moments[groups + number]) + ns
                following = (*done[:number], done[number] + 1, *done[number + 1 :])
                fronts.setdefault(following, set()).add(tuple(after))
    return min(_ended(moments[:groups], stages, tied_ns) for moments in fronts[(chain,) * m])


def _better(a: Moments, b: Moments) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def _ended(free: Sequence[int], stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The step where groups have ended their passes: they reduce, the ends of the pipeline add up a table, optimizers run."""
    groups = len(free)
    reduced = [moment + sum(stage.reduce_ns for stage in stages[group::groups]) for group, moment in enumerate(free)]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    return max(moment + sum(stage.optimizer_ns for stage in stages[group::groups]) for group, moment in enumerate(reduced))


Case = tuple[Configuration, list[StageTimes], int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A configuration of any schedule of whole micro-batches, with times of its stages and of a shared table."""
    groups, chunks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    stages = groups * chunks
    m = draw(st.sampled_from([m for m in (1, 2, 3) if (2 * stages + 1) ** m <= 400 or m == 1]))
    if chunks > 1:
        schedule, m = Schedule("interleaved", chunks=chunks, overlaps_messages=draw(st.booleans())), -(-m // groups) * groups
    else:
        schedule = Schedule(draw(st.sampled_from(("1f1b", "gpipe"))))
    ns = st.integers(0, draw(st.sampled_from((3, 50))))
    times = [StageTimes(*(draw(ns) for _ in range(7))) for _ in range(stages)]
    times[0], times[-1] = replace(times[0], message_forward_ns=0), replace(times[-1], message_backward_ns=0)
    configuration = Configuration(
        schedule=schedule,
        micro_batches=m,
        device_groups=(DeviceGroup((1,)),) * groups,
        links=(0,) * (stages - 1),
        make_tables=tuple,
    )
    return configuration, times, draw(ns) if draw(st.booleans()) else 0


def bound_ns(configuration: Configuration, times: Sequence[StageTimes], tied_ns: int) -> int:
    evaluation = SimpleNamespace(stages=[SimpleNamespace(times=time) for time in times], tied_ns=tied_ns)
    return any_schedule_ns(configuration, evaluation)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", some_and_all(60, 1000, 300))
def test_no_order_of_passes_is_below_the_bound(count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None)
    @given(cases())
    def check(case: Case) -> None:
        configuration, times, tied_ns = case
        bound = bound_ns(configuration, times, tied_ns)
        assert bound <= step_ns(configuration, times, tied_ns)
        if (2 * len(times) + 1) ** configuration.micro_batches <= 1000:
            assert bound <= least_step_ns(configuration, times, tied_ns)

    check()


def test_one_group_adds_up_a_table_of_both_its_stages_once() -> None:
    """Without anything to wait for, the bound is all that the group does."""
    times = [StageTimes(37, 158, 0, 58, 0, 183, 118), StageTimes(44, 212, 34, 0, 0, 112, 28)]
    configuration = Configuration(
        schedule=Schedule("interleaved", chunks=2),
        micro_batches=2,
        device_groups=(DeviceGroup((6,)),),
        links=(0,),
        make_tables=tuple,
    )
    passes = 2 * (37 + 158 + 58 + 44 + 212 + 34)
    assert bound_ns(configuration, times, 102) == passes + 183 + 118 + 112 + 28 + 102
    assert bound_ns(configuration, times, 102) == least_step_ns(configuration, times, 102)
