"""Steps of any number of micro-batches, held against steps that are followed pass by pass."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.costs.overlapped.analytic_fsdp import Block, sharded_ns
from trainplan.formulations.costs.overlapped.analytic_pipeline import pipeline_ns
from trainplan.formulations.schedule import recorded, repeats
from trainplan.formulations.schedule.repeats import TooManyRounds, after_rounds

from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all


def followed(*arguments: object) -> list[int]:
    """`pipeline_ns`, with nothing repeated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "FEW", 10**9)
        return pipeline_ns(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", some_and_all(60, 1500, 500))
def test_a_pipeline_of_many_micro_batches_ends_as_if_followed_pass_by_pass(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        devices, chunks = rng.randint(2, 5), rng.randint(1, 3)
        base, spread = rng.choice((0, 1000)), rng.choice((1, 3, 1000))
        forward, backward = ([base + rng.randint(0, spread) for _ in range(devices * chunks)] for _ in range(2))
        transfer = rng.choice((0, rng.randint(0, spread), 3 * base))
        micro_batches = rng.randint(1, 30) * devices if chunks > 1 else rng.randint(1, 120)
        run = forward, backward, transfer, micro_batches, chunks, rng.random() < 0.5
        assert pipeline_ns(*run) == followed(*run), run


def test_a_stage_that_is_a_little_slower_wins_only_late() -> None:
    """A slow start hides the slowest stage for 10,000 micro-batches: the leap over them ends where it no longer does."""
    run = [10, 1000, 1001, 1000], [0, 0, 0, 0], 0
    for micro_batches in (100, 5000):
        assert pipeline_ns(*run, micro_batches) == followed(*run, micro_batches)


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_billion_micro_batches_keep_a_device_busy_or_waiting_for_messages(chunks: int) -> None:
    stages, micro_batches = 8 * chunks, 8 * 10**9
    busy, messages = micro_batches * chunks * 3000, micro_batches * chunks * 2 * 7
    ended = max(pipeline_ns([1000] * stages, [2000] * stages, 7, micro_batches, chunks))
    assert busy < ended < busy + 2 * messages


def direct_ns(blocks: list[Block], micro_batches: int, again: bool, ahead: int) -> float:
    """`sharded_ns`, one micro-batch after the other, event by event."""
    compute = lane = 0.0
    for number in range(micro_batches):
        last, gathers, ends, backs = number == micro_batches - 1, again or not number, list[float](), list[float]()
        for index, block in enumerate(blocks):
            if gathers:
                lane = max(lane, ends[index - ahead - 1] if index > ahead else 0.0) + block.gather_ns
                compute = max(compute, lane)
            compute += block.forward_ns
            ends.append(compute)
        for index in reversed(range(len(blocks))):
            block, kept = blocks[index], index == len(blocks) - 1
            if again and not kept:
                lane = max(lane, backs[-ahead - 1] if len(backs) > ahead else 0.0) + block.gather_ns
                compute = max(compute, lane)
            compute += block.backward_ns
            backs.append(compute)
            if not kept:
                following = blocks[index + 1]
                lane = max(lane, backs[-2]) + following.reduce_ns + following.copies_ns * last
        lane = max(lane, compute) + blocks[0].reduce_ns + blocks[0].copies_ns * last
    return max(compute, lane)


@given(
    st.lists(st.builds(Block, *[st.integers(0, 50).map(float)] * 5), min_size=1, max_size=5),
    st.integers(1, 70),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=100, deadline=None, database=None)
def test_a_sharded_step_of_many_micro_batches_is_that_of_one_after_the_other(
    blocks: list[Block], micro_batches: int, again: bool, ahead: int
) -> None:
    assert sharded_ns(blocks, micro_batches, again, ahead) == direct_ns(blocks, micro_batches, again, ahead)


def test_rounds_that_never_repeat_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round of a step is like these, whose additions grow for ever."""
    monkeypatch.setattr(repeats, "MOST_FOLLOWED", 200)
    with pytest.raises(TooManyRounds):
        after_rounds([0], lambda moments: [moments[0] * 2 + 1], 10**9)


def test_a_run_whose_passes_do_not_repeat_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[int]:
        raise TooManyRounds

    monkeypatch.setattr(recorded, "after_rounds", never)
    with refused("micro-batches", problem=1000000, fix=re.compile(r"\d+")):
        pipeline_ns([1, 2], [1, 2], 0, 10**6)
