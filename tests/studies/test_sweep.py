"""Sweeps: axes from texts, the requests that they make, and marginal values, against differences by hand and new plans."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.profiling.clusters.cluster import load_cluster

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.planning.result import PlanningResult
from trainplan.planning.what_if import changed_cluster
from trainplan.studies.changes import keywords_of
from trainplan.studies.sweep import GIB, MARGINS, Point, axes_of, margins, points
from trainplan.studies.sweep_results import marginal_value

REQUEST: dict[str, Any] = {"model": "llama-3.1-70b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192, "for_": "megatron"}
SMALL: dict[str, Any] = {"model": "gpt2", "cluster": "h100:2x2", "batch": 16, "sequence": 1024}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("memory=60GiB..80GiB/5", [size * GIB for size in (60, 65, 70, 75, 80)]),
        ("memory=60GiB..64GiB+2GiB", [size * GIB for size in (60, 62, 64)]),
        ("devices=32,64,128", [32, 64, 128]),
        ("devices=8..64*2", [8, 16, 32, 64]),
        ("network=0.5,1,2", [0.5, 1.0, 2.0]),
        ("network=0.5..2*2", [0.5, 1.0, 2.0]),
        ("seq=8k,16k", [8192, 16384]),
        ("batch=64..128/3", [64, 96, 128]),
        ("batch=64,64", [64]),
        ("price=2.5,0", [2.5, 0.0]),
        ("tp=1..4*2", [1, 2, 4]),
        ("schedule=1f1b,gpipe", ["1f1b", "gpipe"]),
        ("hybrid=true,false", [True, False]),
        ("for=megatron,torchtitan", ["megatron", "torchtitan"]),
    ],
)
def test_axes_are_lists_and_ranges(text: str, values: list[Any]) -> None:
    assert list(axes_of([text], others=("tp", "schedule", "hybrid", "for_")).values()) == [values]


@pytest.mark.parametrize(
    "texts",
    [
        ["bandwidth=2"],
        ["memory"],
        ["memory="],
        ["memory=60"],
        ["memory=80GiB..60GiB/5"],
        ["memory=60GiB..80GiB/1"],
        ["devices=0"],
        ["devices=8..64*1"],
        ["devices=1..2000+1"],
        ["network=-1"],
        ["network=fast"],
        ["network=0..1/3"],
        ["price=-2"],
        ["batch=1.5"],
        ["batch=8", "batch=16"],
    ],
)
def test_bad_axes_are_refused(texts: list[str]) -> None:
    with refused(fix="", problem=()):
        axes_of(texts)


def test_an_unknown_axis_names_those_that_there_are_once() -> None:
    with refused("over", "bandwidth") as caught:
        axes_of(["bandwidth=2"], others=("memory", "for_"))
    names = caught.value.fix.split(": ", 1)[1].split(", such as")[0].split(", ")
    assert len(names) == len(set(names)) and {"memory", "network", "for"} <= set(names)
    assert Point({"for_": "megatron"}, {}).label == "for megatron"


def test_python_gives_axes_as_lists_or_texts() -> None:
    over = {"memory": ["60GiB", 70 * GIB], "network": 2, "devices": "8,16", "tp": (1, 2)}
    assert axes_of(over, others=("tp",)) == {
        "memory": [60 * GIB, 70 * GIB],
        "network": [2.0],
        "devices": [8, 16],
        "tp": [1, 2],
    }


def test_each_axis_is_varied_by_itself_and_a_grid_has_all_combinations() -> None:
    axes = axes_of(["devices=32,128", "batch=256,512,1024", "price=1,2"])
    alone, grid = points(REQUEST, axes), points(REQUEST, axes, grid=True)
    assert [point.changes for point in alone[:4]] == [{}, {"devices": 32}, {"devices": 128}, {"batch": 256}]
    assert len(alone) == 1 + 5 and len(grid) == 1 + 6
    assert grid[-1].request == {**REQUEST, "cluster": "h100:8x16", "batch": 1024} and alone[0].request == REQUEST
    assert grid[-1].label == "devices 128, batch 1024" and grid[0].label == "as it is"


def test_the_points_of_marginal_values_have_a_little_more_of_everything() -> None:
    more = {point.margin: point for point in margins(REQUEST)}
    assert set(more) == set(MARGINS)
    assert more["devices"].request["cluster"] == "h100:8x16" and more["devices"].units == 64
    assert more["memory"].request["memory"] == load_cluster("h100:8x8").usable_bytes + GIB
    assert more["batch"].request["batch"] == 1024 and more["network"].request["network"] == 1.01
    of_one = {point.margin for point in margins({**SMALL, "cluster": "h100:1"})}
    assert of_one == {"memory", "flops", "devices", "batch"}  # no links
    assert {point.margin for point in margins({**REQUEST, "profile": "p.json"})} == {"batch"}
    given_memory = {point.margin: point for point in margins({**REQUEST, "memory": "60GiB", "reserve": "4GiB"})}
    assert given_memory["memory"].request["memory"] == 57 * GIB and "reserve" not in given_memory["memory"].request


def test_changes_of_a_request_become_a_changed_cluster() -> None:
    kept, rates = keywords_of({**SMALL, "network": 2.0, "price": 3.0, "tokens": "1B", "tp": None})
    assert kept == {**SMALL, "cluster": changed_cluster(load_cluster("h100:2x2"), {"network": 2.0})}
    assert (rates.price, rates.training_tokens) == (3.0, 10**9)
    assert keywords_of({**SMALL, "cluster": "h100", "devices": 64})[0]["cluster"].devices == 64
    assert keywords_of({**SMALL, "cluster": "a100-64", "nodes": 2})[0]["cluster"].devices == 16
    assert keywords_of({**SMALL, "cluster": "h100:8x8", "devices": 4})[0]["cluster"].name == "h100:4"
    for request in (
        {"network": 2.0},
        {**SMALL, "devices": 7},
        {**SMALL, "devices": 0},
        {**SMALL, "cluster": "h100:1", "network": 2},
    ):
        with refused():
            keywords_of(request)


def row(value: int | None, bound: int | None, step: int | None = None, **others: Any) -> dict[str, Any]:
    status = "infeasible" if value is None else "optimal" if value == bound else "feasible"
    return {"status": status, "value_ns": value, "bound_ns": bound, "predicted_step_ns": step, "batch": 8, **others}


def worth(axis: str, before: dict[str, Any], after: dict[str, Any], units: float = 1.0) -> Any:
    return marginal_value(Point({}, {}, axis, units), before, after)


def test_marginal_values_by_hand() -> None:
    exact = worth("memory", row(1000, 1000, 1100), row(990, 990, 1078))
    assert (exact.saved_ns, exact.least_ns, exact.most_ns, exact.proven) == (22, 10, 10, "exact")
    assert exact.share == pytest.approx(0.02)
    of_eight = worth("devices", row(1000, 1000, 1000), row(600, 600, 600), units=8)
    assert of_eight.saved_ns == of_eight.least_ns == 50
    twice = worth("batch", row(1000, 1000, 1000), row(1800, 1800, 1800, batch=16))
    assert (twice.saved_ns, twice.proven) == (100, "exact")  # 900 for the work of a step


def test_what_two_gaps_leave_open_is_an_interval() -> None:
    both = worth("network", row(1000, 900), row(980, 890))
    assert (both.least_ns, both.most_ns, both.proven, both.saved_ns) == (900 - 980, 1000 - 890, "open", None)
    assert worth("network", row(1000, 990), row(980, 970)).proven == "saves"
    assert worth("devices", row(970, 960), row(990, 980)).proven == "costs"
    assert worth("memory", row(1000, 900), row(980, 890)).least_ns == 0  # more memory never makes the best plan slower
    assert worth("network", row(1000, None), row(980, 890)).proven == "unknown"
    failed = worth("memory", row(None, None, reason="nothing fits"), row(980, 890))
    assert failed.why == "infeasible: nothing fits" and failed.saved_ns is None and failed.proven == "unknown"


@given(st.data())
def test_the_interval_has_the_difference_of_the_true_optima(data: st.DataObject) -> None:
    optima = [data.draw(st.integers(1, 10**12)) for _ in range(2)]
    rows = [row(best + data.draw(st.integers(0, 10**9)), best - data.draw(st.integers(0, best))) for best in optima]
    found = worth("network", rows[0], rows[1], units=4)
    assert found.least_ns <= (optima[0] - optima[1]) / 4 <= found.most_ns
    assert (found.proven == "exact") == all(entry["value_ns"] == entry["bound_ns"] for entry in rows)


@cache
def planned(**request: Any) -> PlanningResult:
    return tp.plan(**keywords_of(request)[0], comparisons=False)


def as_row(answer: PlanningResult) -> dict[str, Any]:
    found = {"value_ns": answer.answer.objective_ns, "bound_ns": answer.answer.bound_ns, "predicted_step_ns": answer.step_ns}
    return {**found, "status": answer.answer.status, "batch": answer.request.batch, "sequence": 1024}


def test_marginal_values_are_those_of_neighbours_planned_anew() -> None:
    before = planned(**SMALL)
    for point in margins(SMALL):
        after = planned(**point.request)
        found = marginal_value(point, as_row(before), as_row(after))
        assert before.step_ns is not None and after.step_ns is not None and found.saved_ns is not None
        scale = 0.5 if point.margin == "batch" else 1
        assert found.saved_ns * point.units == pytest.approx(before.step_ns - scale * after.step_ns)
        assert found.least_ns <= found.most_ns
        if before.answer.gap == after.answer.gap == 0 and point.margin in ("network", "flops", "devices", "nvlink"):
            assert found.proven == "exact" and found.least_ns >= 0


def test_the_memory_of_a_margin_is_the_memory_that_was_planned_with() -> None:
    more = next(point for point in margins(SMALL) if point.margin == "memory")
    limits = [planned(**request).request.with_margin(0).limit_bytes for request in (SMALL, dict(more.request))]
    assert limits[1] - limits[0] == GIB
