"""The fault runs of `benchmarks.faults`, of which `make faults` makes fifty: a few of them."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")
from benchmarks.faults import run
from tests.helpers.sizes import first_and_others


@pytest.mark.parametrize(
    ("fault", "name"), first_and_others([("exception", "dp2"), ("killed", "2 stages"), ("stopped", "tp2")])
)
def test_a_run_with_a_fault_ends_and_says_why(fault: str, name: str) -> None:
    row: dict[str, Any] = run(fault, name, random.Random(3))
    assert row["wrong"] == [], row["line"]
