"""Layouts whose predicted steps differ by less than the error of their ratio, as plans and comparisons name them."""

from __future__ import annotations

import math
import random

from trainplan.profiling.clusters.efficiencies import shipped_efficiencies

import trainplan as tp
from trainplan.api.compare_verbs import ComparedPlans
from trainplan.screens.equal import equal_layouts, equal_lines, equal_note, equal_rows
from trainplan.screens.others import equal_plans
from trainplan.screens.plan import screen


def width() -> float:
    widths = shipped_efficiencies().step_errors
    assert widths is not None and widths.difference > 0
    return widths.difference


def test_layouts_are_equal_within_the_error_of_their_ratio_and_no_further() -> None:
    draw = random.Random(0)
    for _ in range(300):
        own = draw.uniform(1e6, 1e12)
        others = [(f"TP{index}", own * math.exp(draw.uniform(-3, 3) * width())) for index in range(5)]
        found = equal_layouts(own, others)
        assert found == [row for row in others if abs(math.log(row[1] / own)) <= width()]
        assert [row["layout"] for row in equal_rows(own, others)] == [name for name, _ in found]
        assert bool(equal_lines(own, others)) is bool(found)


def test_a_line_names_some_and_counts_the_others() -> None:
    ((names, percent),) = equal_lines(1e9, [(f"TP{index}", 1e9) for index in range(5)])
    assert "TP0" in names and "TP2" in names and "TP3" not in names and "2 more" in names and "within the error" in names
    assert "%" in percent


def test_plans_side_by_side_say_which_are_equal_to_the_fastest() -> None:
    slow = 1e9 * math.exp(2 * width())
    note = equal_note([("a.json", slow), ("b.json", 1.0e9), ("c.json", 1.0e9 * math.exp(width() / 2))])
    assert "b.json and c.json are equally fast, within the error of predictions" in note and "a.json" not in note
    assert equal_note([("a", 1e9), ("b", slow)]) == equal_note([("a", 1e9)]) == equal_note([]) == ""


def test_only_plans_of_one_job_and_one_runtime_compare() -> None:
    job = {"model": "m", "devices": 8, "batch": 8, "sequence": 8, "software": "Megatron-Core", "step_ns": 10**9}
    rows = [{**job, "name": name} for name in "ab"]
    assert ComparedPlans(rows).notes()
    for change in ({"batch": 16}, {"software": None}, {"software": "torchtitan"}, {"step_ns": None}):
        assert not ComparedPlans([rows[0], {**rows[1], **change}]).notes(), change


def test_a_plan_for_a_runtime_names_its_equals_with_their_predicted_steps() -> None:
    about = {"model": "llama-3.2-1b", "cluster": "h100:8", "batch": 64, "sequence": 2048, "for_": "megatron"}
    answer = tp.plan(**about, time_limit=20, comparisons=False)
    assert answer.step_ns is not None
    equal = equal_plans(answer)
    assert ("EQUAL" in dict(screen(answer))) is bool(equal)
    assert all(abs(math.log(row["step_ns"] / answer.step_ns)) <= width() + 1e-9 for row in equal)
