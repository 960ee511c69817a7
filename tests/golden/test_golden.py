"""Behaviour stays: steps, peaks, bounds, certificates, programs and exports of many requests are those that are recorded.

Where a change is meant to change answers, record them anew and say in the commit what changed and why:

    python -m tests.golden.record --fresh -o tests/golden/golden.jsonl

`make test` asks one request in seven, `make test-long` one in three of the others, and `make golden` every one, the costly ones
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.golden.record import read, recorded, sampled
from tests.golden.requests import Task, tasks
from tests.helpers.sizes import WHOLE, one_in

PARTS = 8  # of the requests, which run in parallel
RECORDED = read(Path(__file__).parent / "golden.jsonl")


def check(chosen: Sequence[Task]) -> None:
    answers = {key: made for key, made, _ in recorded(chosen)}
    assert answers.keys() == {task.key for task in chosen}
    assert list(differences(answers, RECORDED)) == [] and answers.keys() <= RECORDED.keys()


def test_each_request_has_a_record_of_its_own() -> None:
    keys = [task.key for task in tasks()]
    assert len(set(keys)) == len(keys) and set(keys) == RECORDED.keys()
    assert not any({"fault", "unfinished"} & made.keys() for made in RECORDED.values())


def test_a_change_of_a_nanosecond_a_byte_or_a_text_is_reported() -> None:
    was = {"a": {"step_ns": 5, "peak_bytes": [8, 7]}, "b": {"refused": "memory is 0"}}
    now = {"a": {"step_ns": 6, "peak_bytes": [8, 7]}, "b": {"refused": "memory is 1"}, "c": {}}
    assert [text.split(" was ")[0] for text in differences(was, now)] == ["a: step_ns", "b: refused"]
    assert list(differences(was, now, {"step_ns", "refused"})) == []


def test_a_fair_sample_of_requests_is_answered_as_recorded() -> None:
    check(sampled(tasks()))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_requests_of_a_larger_sample_are_answered_as_recorded(part: int) -> None:
    """One in three of those that `make test` leaves out and that are not costly; every request under TRAINPLAN_TESTS=all."""
    asked = {task.key for task in sampled(tasks())}
    others = [task for task in tasks() if task.key not in asked and (WHOLE or not task.costly)]
    check([*(sampled(tasks()) if WHOLE else ()), *one_in(3, others)][part::PARTS])
