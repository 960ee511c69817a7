"""Whether a model fits, and the least memory that it needs: against what `plan` finds with as much memory, and with less."""

from __future__ import annotations

import json
from typing import Any

import pytest

import trainplan as tp
from tests.helpers.calls import call
from trainplan.screens.fit import fit_screen

REQUEST: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64}
WORDS = ("gpt2", "cpu-4", "--batch", "8", "--seq", "64")


@pytest.mark.parametrize("for_", [None, "torch", "deepspeed"])
def test_a_plan_is_found_with_the_least_memory_and_none_below_the_bound(for_: str | None) -> None:
    found = tp.fit(**REQUEST, for_=for_)
    assert found.fits and found.bound_bytes is not None and found.peak_bytes is not None
    enough = tp.fit(**REQUEST, for_=for_, memory=max(*found.answer.walk_bytes, found.peak_bytes))
    assert enough.fits
    below = tp.plan(**REQUEST, for_=for_, memory=found.bound_bytes - 1, comparisons=False)
    assert below.plan is None and below.result.status == "infeasible"


def test_the_least_peak_is_below_that_of_the_fastest_plan() -> None:
    fastest = tp.plan(**REQUEST, comparisons=False)
    found = tp.fit(**REQUEST)
    assert fastest.plan is not None and fastest.plan.predicted is not None and found.peak_bytes is not None
    assert found.peak_bytes < fastest.plan.predicted.most_bytes


def test_what_does_not_fit_says_what_would_and_that_does() -> None:
    found = tp.fit(**REQUEST, memory="300MiB")
    assert found.fits is False and found.answer.plan is None
    needed = found.answer.needed_bytes
    assert needed is not None and found.bound_bytes is not None and found.bound_bytes <= needed
    assert tp.fit(**REQUEST, memory=needed).fits
    assert tp.plan(**REQUEST, memory=needed, comparisons=False, gap=0.5).plan is not None


def test_the_command_answers_yes_or_no_by_its_exit_code() -> None:
    yes, no = call("fit", *WORDS), call("fit", *WORDS, "--memory", "300MiB", "--json")
    assert yes.returncode == 0 and yes.stdout.startswith("FITS       yes")
    assert no.returncode == 1
    reported = json.loads(no.stdout)
    assert reported["fits"] is False and reported["needed_bytes"] >= reported["bound_bytes"]


def test_without_a_batch_there_is_a_sample_for_each_gpu_and_it_is_reported() -> None:
    shown = call("fit", "gpt2", "cpu-4", "--seq", "64").stdout
    assert "a batch of 4 samples, one for each GPU (--batch)" in shown
    assert "trainplan plan gpt2 cpu-4 --seq 64 --batch 4" in shown


def test_mixed_devices_are_answered_too() -> None:
    found = tp.fit(model="amp-gpt2", cluster="amp-heterogeneous-16", batch=32, dtype="float16")
    assert found.fits and found.answer.preset.name == "amp"


def test_a_number_of_gpus_that_was_not_found_in_the_time_is_reported_to_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainplan.planning.shortage.fewest_devices", lambda way: (None, "more than 88; the time was up"))
    found = tp.fit(**REQUEST, memory="300MiB")
    rows = dict(fit_screen(found, True, "trainplan plan gpt2 cpu-4"))
    assert "or more than 88 GPUs (the time was up)" in rows["NEEDS"][0][0]
    assert rows["NEXT"] == [["trainplan plan gpt2 cpu-4 --devices any"]]
