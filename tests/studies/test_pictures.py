"""Pictures of studies: profiles by a computed example and by properties, axes that pictures choose, and what they draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.studies import small_study, write_study
from trainplan.pictures.studies import draw_heat, draw_steps
from trainplan.pictures.study_profiles import costs_of, draw_gaps, draw_performance, performance_profile
from trainplan.pictures.study_rows import METHOD, axis_values, common_part, rows_of, varying
from trainplan.studies.rows import row_of

GIB = 2**30


def rows() -> list[dict[str, Any]]:
    return [row for row, _ in small_study()]


def made(**values: Any) -> dict[str, Any]:
    """A row of an optimal result with some values; its request has the axes that are given."""
    request = {name: values[name] for name in ("model", "cluster", "batch", "sequence", "tp") if name in values}
    request |= {"memory": f"{values['memory_bytes']}B"} if "memory_bytes" in values else {}
    text = json.dumps(request)
    base = {
        "key": str(values),
        "name": str(values),
        "task": "solve",
        "problem": "joint",
        "method": "exact",
        "status": "optimal",
    }
    base |= {"seconds": 1.0, "value_ns": 10**9, "bound_ns": 10**9, "gap": 0.0, "request": text, "instance_hash": text}
    return row_of({**base, **{name: value for name, value in values.items() if name != "tp"}})


def test_a_profile_is_that_of_dolan_and_more() -> None:
    """Times of two solvers on four problems. The ratios of A are 1, 2, failed, 1, those of B 3, 1, 1, failed."""
    costs: dict[str, dict[Any, float | None]] = {
        "A": {1: 10.0, 2: 8.0, 3: None, 4: 5.0},
        "B": {1: 30.0, 2: 4.0, 3: 7.0, 4: None},
    }
    assert performance_profile(costs) == {"A": [(1.0, 0.5), (2.0, 0.75)], "B": [(1.0, 0.5), (3.0, 0.75)]}


def test_an_instance_that_all_fail_on_counts() -> None:
    costs: dict[str, dict[Any, float | None]] = {"A": {1: 1.0, 2: None}, "B": {1: None, 2: None}}
    assert performance_profile(costs) == {"A": [(1.0, 0.5)], "B": [(1.0, 0.0)]}


COSTS = st.integers(1, 4).flatmap(
    lambda instances: st.dictionaries(
        st.sampled_from("ABCD"),
        st.lists(st.none() | st.floats(1e-3, 1e6), min_size=instances, max_size=instances),
        min_size=1,
    )
)


@given(COSTS)
def test_profiles_rise_to_the_share_that_is_solved(drawn: dict[str, list[float | None]]) -> None:
    profiles = performance_profile({name: dict(enumerate(costs)) for name, costs in drawn.items()})
    for name, costs in drawn.items():
        ratios, shares = zip(*profiles[name], strict=True)
        assert list(ratios) == sorted(set(ratios)) and ratios[0] == 1
        assert list(shares) == sorted(shares)
        assert shares[-1] == sum(cost is not None for cost in costs) / len(costs)
    best = [min((c for c in column if c is not None), default=None) for column in zip(*drawn.values(), strict=True)]
    solved = sum(cost is not None for cost in best)
    assert sum(round(steps[0][1] * len(best)) for steps in profiles.values()) >= solved  # each has a fastest solver


@given(COSTS, st.floats(1.0, 100.0))
def test_a_profile_is_the_share_within_each_multiple(drawn: dict[str, list[float | None]], multiple: float) -> None:
    profiles = performance_profile({name: dict(enumerate(costs)) for name, costs in drawn.items()})
    for name, costs in drawn.items():
        share = [value for ratio, value in profiles[name] if ratio <= multiple][-1]
        best = [min(c for c in column if c is not None) if any(column) else 0 for column in zip(*drawn.values(), strict=True)]
        assert share == sum(c is not None and c / least <= multiple for c, least in zip(costs, best, strict=True)) / len(costs)


def test_seconds_count_only_to_a_proof_and_failures_never() -> None:
    own = [
        made(batch=8, method="a", seconds=2.0),
        made(batch=8, method="b", seconds=3.0, status="feasible"),
        made(batch=16, method="a", seconds=4.0, status="timed out", value_ns=None),
        made(batch=16, method="b", seconds=1.0, status="infeasible", value_ns=None),
        made(batch=32, method="a"),
    ]
    costs, left = costs_of(own)
    assert [list(column.values()) for column in costs.values()] == [[2.0, None], [None, 1.0]] and "1 that" in left
    values, left = costs_of(own, "value")
    assert [list(column.values()) for column in values.values()] == [[10**9], [10**9]] and "1 that" in left


def test_a_cell_that_died_is_of_the_instance_of_its_request() -> None:
    own = [made(batch=8, method="a"), made(batch=8, method="b", status="crashed", instance_hash=None, value_ns=None)]
    costs, left = costs_of(own)
    assert [list(column.values()) for column in costs.values()] == [[1.0], [None]] and left == ""


def test_a_method_that_tried_little_does_not_take_the_instances_of_others() -> None:
    own = [made(batch=batch, method=method) for batch in (8, 16, 32, 64) for method in ("a", "b")]
    costs, left = costs_of([*own, made(batch=8, method="c")])
    assert [len(column) for column in costs.values()] == [4, 4] and list(costs) == ["a", "b"] and "c" in left


def test_axes_are_those_that_vary_and_say_something_new() -> None:
    own = [
        made(model="gpt2", cluster=f"h100:{n}x8", devices=8 * n, nodes=n, batch=8 * n, memory_bytes=m * GIB, tp=t)
        for n in (1, 2, 4)
        for m in (40, 80)
        for t in (1, 2)
    ]
    assert varying(rows_of(own)) == ["devices", "memory_bytes", "tp"]
    part, text = common_part(rows_of(own), ["devices", "memory_bytes", "tp"], ["devices"])
    assert len(part) == 3 and "40 GiB" in text and "tp 1" in text


def test_sizes_of_a_row_without_them_are_those_of_its_request() -> None:
    own = [made(cluster="h100:8", devices=8, nodes=1), made(cluster="h100:8", method="b", status="crashed")]
    assert [row["devices"] for row in rows_of(own)] == [8, 8]


def test_the_step_is_drawn_with_its_bound_and_what_is_absent() -> None:
    own = [
        made(memory_bytes=8 * GIB, status="out of memory", value_ns=None, bound_ns=None),
        made(memory_bytes=16 * GIB, status="feasible", value_ns=5 * 10**9, bound_ns=3 * 10**9),
        made(memory_bytes=32 * GIB, status="feasible", value_ns=4 * 10**9, bound_ns=2 * 10**9),
        made(memory_bytes=32 * GIB, method="other", status="feasible", value_ns=6 * 10**9, bound_ns=3 * 10**9),
    ]
    (axes,) = draw_steps(own).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["exact"] == [[16 * GIB, 5e9], [32 * GIB, 4e9]] and lines["other"] == [[32 * GIB, 6e9]]
    assert [[16 * GIB, 3e9], [32 * GIB, 3e9]] in lines.values()  # the best bounds
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in crosses] == [[8 * GIB]]


def test_lines_that_are_left_out_are_counted() -> None:
    own = [made(batch=b, method=f"m{m}", value_ns=b * (m + 1)) for b in (8, 16) for m in range(11)]
    (axes,) = draw_steps(own).axes
    assert "8 of 11" in axes.get_title() and sum(str(line.get_label()).startswith("m") for line in axes.lines) == 8


def test_problems_have_panels_of_their_own() -> None:
    own = [made(problem=f"p{p}", batch=b, method=m) for p in range(7) for b in (8, 16) for m in ("a", "b")]
    for draw in (draw_performance, draw_steps, draw_heat):
        titles = [axes.get_title().split(",")[0].split(":")[0] for axes in draw(own).axes]
        assert [title for title in titles if title] == [f"p{p}" for p in range(7)]


def test_problems_that_do_not_differ_on_a_named_axis_are_left_out() -> None:
    own = [made(batch=b) for b in (8, 16)] + [made(problem="other", batch=8, sequence=s) for s in (512, 1024)]
    assert [axes.get_title() for axes in draw_steps(own, x="batch").axes] == ["joint"]
    assert [axes.get_title() for axes in draw_steps(own, x="sequence").axes] == ["other"]


def test_the_bound_of_a_prediction_is_no_bound_of_the_objective() -> None:
    own = [
        made(task="plan", batch=b, problem="joint", runtime="megatron", predicted_step_ns=7 * 10**9, bound_ns=10**9, devices=8)
        for b in (8, 16)
    ]
    (axes,) = draw_steps(own).axes
    assert axes.get_title().startswith("plans")
    assert axes.lines[0].get_label() == "joint for megatron, exact" and list(axes.lines[0].get_ydata()) == [7e9, 7e9]
    assert not [c for c in axes.collections if len(c.get_paths()[0].vertices) > 4]  # no band


def test_a_heat_map_has_the_best_step_of_each_field() -> None:
    own = [made(batch=b, sequence=s, value_ns=b * s * 10**6, bound_ns=None) for b in (8, 16) for s in (512, 1024)]
    own += [made(batch=8, sequence=512, method="better", value_ns=10**6, bound_ns=None)]
    own[-2] |= {"status": "infeasible", "value_ns": None}
    (axes,) = draw_heat(own).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["1 ms", "8.192 s", "8.192 s", "none fits"]


def test_pictures_can_be_given_axes_and_refuse_those_that_are_not_there(tmp_path: Path) -> None:
    study = tp.read_study(write_study(tmp_path, small_study()))
    (axes,) = study.picture("step", problem="layer-strategies", x="memory_bytes", series_by=METHOD).axes
    labels = {line.get_label() for line in axes.lines}
    assert labels >= set(axis_values([row for row in rows() if row["problem"] == "layer-strategies"], METHOD))
    for kind, options, field in [
        ("step", {"x": "colour"}, "x"),
        ("step", {"problem": "chess"}, "problem"),
        ("heat", {"quantity": "weight"}, "quantity"),
        ("profile", {"measure": "luck"}, "measure"),
        ("pie", {}, "kind"),
    ]:
        with refused(field):
            study.picture(kind, **options)


def test_all_kinds_are_drawn_of_a_study_as_it_is(tmp_path: Path) -> None:
    study = tp.read_study(write_study(tmp_path, small_study()))
    for kind in ("profile", "gap", "step", "heat"):
        figure = study.picture(kind)
        figure.canvas.draw()
        assert any(axes.has_data() for axes in figure.axes), kind
    profile = draw_performance(study.frame(), problem="layer-strategies").axes[0]
    ends = {line.get_label(): line.get_ydata()[-1] for line in profile.lines}
    proven = [
        row["method"] for row in rows() if row["status"] in ("optimal", "infeasible") and row["problem"] == "layer-strategies"
    ]
    assert ends == {f"{m} ({proven.count(m) / 4:.0%})": proven.count(m) / 4 for m in ("label-setting", "milp", "galvatron-dp")}


def test_titles_end_within_their_pictures() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for size in ((4.4, 3.5), (5.6, 4.2)):
        figure = draw_performance([{**row, "problem": "a rather long name " * 6} for row in rows()], size=size)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        title = figure.axes[0].title.get_window_extent(renderer)
        assert "a rather long name" in figure.axes[0].get_title()
        assert 0 <= title.x0 < title.x1 <= figure.bbox.x1


def test_a_study_without_what_a_picture_is_of_is_refused() -> None:
    alone = [made(batch=8)]
    for draw, options in ((draw_performance, {}), (draw_gaps, {"histories": {}}), (draw_steps, {}), (draw_heat, {})):
        with refused(""):
            draw(alone, **options)
        with refused(""):
            draw([], **options)


def test_the_gap_over_time_follows_the_history() -> None:
    row = made(batch=8, status="feasible", gap=0.1)
    points = [(1.0, None, 50), (2.0, 100, 50), (4.0, 100, 90)]
    history = [{"seconds": s, "value_ns": v, "bound_ns": b, "source": None} for s, v, b in points]
    (axes,) = draw_gaps([row], histories={row["key"]: history}).axes
    moments, gaps = axes.lines[0].get_data()
    for moment, gap in zip(moments, gaps, strict=True):
        assert gap == pytest.approx(1.0 if moment < 2 else 0.5 if moment < 4 else 0.1)
