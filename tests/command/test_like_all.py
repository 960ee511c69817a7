"""`plan --like all`: every preset's plan for one request."""

from __future__ import annotations

import json

from tests.command.calls import call


def test_presets_plan_or_say_what_they_lack() -> None:
    request = ("--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64", "--time-limit", "5")
    done = call("plan", "--like", "all", *request, "--json")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    made = {answer["like"] for answer in answers if isinstance(answer, dict) and answer["plan"]}
    assert {"joint", "galvatron-bmw"} <= made
    assert not any("--option" in answer for answer in answers if isinstance(answer, str))
