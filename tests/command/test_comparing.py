"""`compare` takes plans alone; what else it did once is refused in a line that names the command which does it now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.calls import call


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["instance.json"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--method", "milp"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--warm"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--time-limit", "10"], "trainplan compare-methods INSTANCE"),
        (["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8"], "trainplan compare-planners MODEL CLUSTER"),
        (["--model=gpt2"], "trainplan compare-planners MODEL CLUSTER"),
    ],
)
def test_what_compare_did_once_names_the_command_that_does_it(words: list[str], now: str, tmp_path: Path) -> None:
    (tmp_path / "instance.json").write_text(json.dumps({"problem": "layer-strategies", "layers": []}))
    done = call("compare", *words, folder=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"use `{now}`" in done.stderr


def test_compare_needs_a_plan() -> None:
    done = call("compare")
    assert done.returncode == 2 and "Missing argument" in done.stderr
