"""The papers' planners next to the joint optimum: all judged by the simulations, none better than what contains it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.planning.compare_planners import BEGUN
from trainplan.planning.presets import PAPERS

MODEL = load_model("gpt2", 64, "float32").with_fields(
    n_embd=128, n_head=4, n_inner=512, n_positions=64, vocab_size=1009, n_layer=4
)
WORDS = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]


@pytest.mark.parametrize(("cluster", "memory"), [("cpu-4", None), ("a100-16", None), ("a100-16", "8MiB")])
def test_no_planner_is_better_than_the_joint_optimum(cluster: str, memory: str | None) -> None:
    rows = tp.compare_planners(model=MODEL, cluster=cluster, batch=32, memory=memory, gap=1e-5)
    assert [row.planner for row in rows] == [*(paper.label for paper in PAPERS), f"{PAPERS[0].label}, {BEGUN}"]
    best, last = rows[0], rows[-1]
    assert best.step_ns is not None and best.above == 0 and best.gap is not None and 0 <= best.gap < 0.05
    for row in rows[1:]:
        if row.step_ns is None:
            assert row.why
        elif row.outside is None:
            assert row.above is not None and row.above >= 0 and row.gap is not None and row.gap >= 0
    assert sum(row.step_ns is not None for row in rows) >= (3 if memory is None else 1)
    if last.step_ns is not None:
        assert abs(last.above or 0) <= 1e-5 and last.whole_seconds is not None and last.whole_seconds > last.seconds


def test_the_step_of_each_is_that_of_its_plan() -> None:
    rows = {row.planner: row for row in tp.compare_planners(model=MODEL, cluster="cpu-4", batch=16)}
    for paper in PAPERS[1:]:
        plan = tp.plan(like=paper.preset, method=paper.method, model=MODEL, cluster="cpu-4", batch=16, backend="serial").plan
        assert plan is not None and tp.simulate(plan).step_ns == rows[paper.label].step_ns


def test_the_command_compares_planners() -> None:
    words = WORDS
    done = call("compare-planners", *words, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows[0]["planner"] == "joint optimum" and {"step_ns", "peak_bytes", "gap", "seconds", "above"} <= set(rows[0])
    shown = call("compare-planners", *words).stdout
    assert all(paper.label in shown for paper in PAPERS) and "above the joint optimum" in shown
    assert BEGUN in shown and "with theirs" in shown
    assert "--batch is missing" in call("compare-planners", *words[:4]).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WORDS, "--schedule", "none"], "--schedule is 'none'"),
        ([*WORDS, "--seed", "-1"], "--seed is -1"),
    ],
)
def test_values_are_refused_by_name(words: list[str], message: str) -> None:
    done = call("compare-planners", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr
    with refused("method", problem="amp"):
        tp.compare_planners(model=MODEL, cluster="cpu-4", batch=16, method="amp")


def test_the_optimum_is_planned_as_it_is_requested() -> None:
    """With the options of the joint problem; planners have what means the same to them, and rows say what they went without."""
    request: dict[str, Any] = {"model": MODEL, "cluster": "rtx-titan-8", "batch": 16, "pipeline": 2, "forbid": ["sdp"]}
    rows = {row.planner: row for row in tp.compare_planners(**request)}
    alone = tp.plan(**request, backend="serial", gap=1e-4)
    assert alone.step_ns == rows["joint optimum"].step_ns and rows["joint optimum"].stages == 2
    assert rows["Galvatron-BMW"].stages == 2 and rows["Galvatron-BMW"].outside == "planned without --forbid"
    assert rows["AMP"].outside == "planned without --forbid, --pipeline" and rows["AMP"].gap is None
    wider = tp.compare_planners(model=MODEL, cluster="rtx-titan-8", batch=16, schedule="all", modules=True)
    assert all("planned without" not in str(row.outside) for row in wider)


def test_seconds_are_of_a_planner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the best plan with one strategy nor the prices of constraints are looked for."""
    monkeypatch.setattr("trainplan.planning.planner.best_single_strategy", lambda *_: pytest.fail("looked for"))
    monkeypatch.setattr("trainplan.api.plan_verbs.priced", lambda *_, **__: pytest.fail("looked for"))
    assert tp.compare_planners(model=MODEL, cluster="cpu-4", batch=16, tp=2)[0].step_ns is not None


def test_a_search_begins_from_plans_of_any_planner() -> None:
    request: dict[str, Any] = {"model": MODEL, "cluster": "rtx-titan-8", "batch": 16}
    best, other = tp.plan(**request).plan, tp.plan(like="galvatron-bmw", **request).plan
    assert best is not None and other is not None
    begun = tp.plan(**request, incumbents=[other, best])
    first, claim = begun.result.history[0], best.claim
    assert claim is not None and begun.plan is not None and begun.plan.units == best.units
    sources = [point.source for point in begun.result.history]
    assert first.source == "plan that the search began from" and sources.count(first.source) <= 2
    assert first.objective is not None and first.objective >= claim.objective_ns
    instance = begun.instance
    for plan in (best, other):
        solution = begun.problem.refinement.solution_of_plan(instance, plan)
        assert solution is not None
        again = begun.problem.plan(instance, solution, begun.request)
        assert (again.units, again.stages, again.batch) == (plan.units, plan.stages, plan.batch)
    with refused("incumbents", problem=(1, "joint")):
        tp.plan(model=MODEL, cluster="rtx-titan-8", batch=8, incumbents=[best])
