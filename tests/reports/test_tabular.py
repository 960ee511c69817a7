"""Results of comparisons, sweeps and trials give frames, tables of notebooks and pictures that say what the results say."""

from __future__ import annotations

from html import escape

import pytest

import trainplan as tp
from tests.helpers.instances import random_instance
from tests.helpers.refusals import refused
from trainplan.planning.compare_planners import PlannerComparison, PlannerResult


def test_a_comparison_is_a_pair_with_a_frame() -> None:
    instance = random_instance(3)
    compared = tp.compare(instance, ["exact", "brute-force"])
    results, contradictions = compared
    assert contradictions == []
    frame = compared.frame()
    assert list(frame["time_ns"]) == [result.objective for result in results]
    assert list(frame["above"]) == [0.0, 0.0]
    html = compared._repr_html_()
    assert html.count("<tr>") == 3 and all(result.method in html for result in results)
    [axes] = compared.picture().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(frame["method"])


def test_a_comparison_says_why_nothing_fits() -> None:
    compared = tp.compare(random_instance(3).with_memory(1), ["exact"])
    assert escape(str(compared.results[0].reason)) in compared._repr_html_()
    with refused("", "solution", "`compare`"):
        compared.picture()


def test_a_frontier_has_a_row_for_each_point() -> None:
    instance = random_instance(3)
    points = tp.frontier(instance, [instance.memory_bytes, 2 * instance.memory_bytes], ["exact"])
    frame = points.frame()
    assert list(frame["memory_bytes"]) == [point.memory_bytes for point in points]
    assert frame["time_ns"].is_monotonic_decreasing
    assert points._repr_html_().count("<tr>") == 3 and points.picture().axes


def test_rivals_name_those_without_a_plan() -> None:
    made = PlannerResult("joint optimum", 2_000_000, 2**30, 2, 4, 0.0, 0.001, 1.0)
    none = PlannerResult("AMP", None, None, None, None, None, None, 0.5, why="nothing <fits>")
    compared = PlannerComparison([made, none])
    assert compared.frame()["step_ns"][0] == 2_000_000
    assert "AMP: nothing &lt;fits&gt;" in compared._repr_html_()
    texts = [text.get_text() for text in compared.picture().axes[0].texts]
    assert texts == ["2 ms", "no plan"]
    with refused("", "plan", "`compare_planners`"):
        PlannerComparison([none]).picture()


def test_trials_are_shown_with_their_predictions() -> None:
    from trainplan.execution.launch.trials import Trial

    from trainplan.planning.trials import Trials

    plan = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=64, comparisons=False, gap=0.05).plan
    trials = Trials((plan,), (Trial(0, "ran", 1_000_000, 0.1, [1.0], None, 900_000),))
    assert list(trials.frame()["step_ns"]) == [1_000_000] and "10.0%" in trials._repr_html_()
    assert trials.picture().axes


def test_predictions_are_shown_with_measurements() -> None:
    run = {"id": "one", "model": "llama3-8b", "gpu": "H100", "gpus": 64, "seq": 8192, "gbs": 128, "tp": 2, "step_s": 5.0}
    held = tp.validate([run, {**run, "id": "two", "step_s": None}, {**run, "id": "three", "experts": 8}])
    frame = held.frame()
    assert list(frame["run"]) == ["one", "two", "three"]
    assert frame["error"][0] == pytest.approx(frame["predicted_ns"][0] / 5e9 - 1)
    assert frame["low_ns"][0] < frame["predicted_ns"][0] == frame["predicted_ns"][1] < frame["high_ns"][0]
    assert held.rows()[1]["error"] is None and held.rows()[2]["predicted_ns"] is None
    assert f"runs: [2] three (llama3-8b) cannot be predicted: {held[2].cannot}" in held.notes()
    assert held._repr_html_().count("<tr>") == 4
    [axes] = held.picture().axes
    assert len(axes.containers) == 1
    with refused("picture", fix=("step_s", "tokens_s_gpu", "tflops_gpu", "mfu")):
        tp.validate([{**run, "step_s": None}]).picture()
