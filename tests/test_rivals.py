"""The papers' planners beside the joint optimum: all judged by the walks, none better than what contains it."""

from __future__ import annotations

import json

import pytest
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.command.calls import call
from trainplan.presets import PAPERS

MODEL = load_model("gpt2", 64).with_fields(n_embd=128, n_head=4, n_inner=512, n_positions=64, vocab_size=1009, n_layer=4)


@pytest.mark.parametrize(("cluster", "memory"), [("cpu-4", None), ("a100-16", None), ("a100-16", "8MiB")])
def test_no_planner_is_better_than_the_joint_optimum(cluster: str, memory: str | None) -> None:
    rows = tp.compare_planners(model=MODEL, cluster=cluster, batch=32, memory=memory, gap=1e-5)
    assert [row.planner for row in rows] == [each.label for each in PAPERS]
    best = rows[0]
    assert best.step_ns is not None and best.above == 0 and best.gap is not None and 0 <= best.gap < 0.05
    for row in rows[1:]:
        if row.step_ns is None:
            assert row.why
        elif row.outside is None:
            assert row.above is not None and row.above >= 0 and row.gap is not None and row.gap >= 0
    assert sum(row.step_ns is not None for row in rows) >= (3 if memory is None else 1)


def test_the_step_of_each_is_that_of_its_plan() -> None:
    rows = {row.planner: row for row in tp.compare_planners(model=MODEL, cluster="cpu-4", batch=16)}
    for each in PAPERS[1:]:
        plan = tp.plan(like=each.preset, method=each.method, model=MODEL, cluster="cpu-4", batch=16, backend="serial").plan
        assert plan is not None and tp.simulate(plan).step_ns == rows[each.label].step_ns


def test_the_command_compares_planners() -> None:
    words = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]
    done = call("compare", *words, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows[0]["planner"] == "joint optimum" and {"step_ns", "peak_bytes", "gap", "seconds", "above"} <= set(rows[0])
    shown = call("compare", *words).stdout
    assert all(each.label in shown for each in PAPERS) and "above the joint optimum" in shown
    refused = call("compare", "instance.json", *words)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "--batch is missing" in call("compare", *words[:4]).stderr
