"""`tp.sweep` and `trainplan sweep`: their rows against plans, prices, pictures, resumption and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.studies.changes import keywords_of
from trainplan.studies.pace import Progress
from trainplan.studies.sweep_results import Sweep

REQUEST: dict[str, Any] = {"model": "gpt2", "cluster": "h100:1x2", "batch": 4, "sequence": 256, "for_": "megatron"}
OVER: dict[str, Any] = {"memory": ["4GiB", "1MiB"], "network": [1, 2], "price": [2, 3]}
WORDS = ("sweep", "gpt2", "h100:1x2", "--batch", "4", "--seq", "256", "--for", "megatron", "--tokens", "1B")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep") / "kept"


@pytest.fixture(scope="module")
def found(folder: Path) -> Sweep:
    return tp.sweep(over=OVER, folder=folder, tokens="1B", jobs=2, **REQUEST)


def test_the_rows_are_what_planning_says(found: Sweep) -> None:
    assert [row["change"] for row in found.table()] == [
        *("price 2", "price 3", "memory 4 GiB", "memory 1 MiB", "network x 1", "network x 2"),
    ]
    for row, changes in zip(found.table()[1:], ({}, {"memory": 2**32}, None, {}, {"network": 2.0}), strict=True):
        if changes is None:
            assert row["status"] == "infeasible" and row["step_ns"] is None and row["share"] is None and row["reason"]
            continue
        answer = tp.plan(**keywords_of({**REQUEST, **changes})[0], comparisons=False)
        assert (row["step_ns"], row["value_ns"], row["bound_ns"]) == (
            answer.step_ns,
            answer.answer.objective_ns,
            answer.answer.bound_ns,
        )
        costs = answer.training_costs(price=3 if row["price_per_device_hour"] else None, tokens="1B")
        assert costs is not None and row["training_money"] == pytest.approx(costs.training_money)
        assert row["training_energy_kwh"] == pytest.approx(costs.training_energy_kwh)


def test_a_price_changes_money_and_no_plan(found: Sweep) -> None:
    two, three = found.table()[:2]
    assert three["training_money"] / two["training_money"] == pytest.approx(1.5) and two["step_ns"] == three["step_ns"]


def test_marginal_values_come_from_the_studys_rows(found: Sweep) -> None:
    assert [value.axis for value in found.margins] == ["batch", "memory", "network", "flops", "devices"]
    by_axis = {value.axis: value for value in found.margins}
    assert by_axis["flops"].saved_ns is not None and by_axis["flops"].saved_ns > 0
    assert by_axis["devices"].units == 2 and by_axis["memory"].least_ns is not None and by_axis["memory"].least_ns >= 0
    content = json.loads(json.dumps(found.to_dict()))
    assert content["margins"][0]["proven"] and len(content["points"]) == 6


def test_the_same_sweep_runs_nothing_again_and_its_folder_is_a_study(found: Sweep, folder: Path) -> None:
    states: list[Progress] = []
    again = tp.sweep(over=OVER, folder=folder, tokens="1B", progress=states.append, **REQUEST)
    assert again.table() == found.table() and states[0].done == states[0].total == 9  # network x 1 is the request itself
    assert len(tp.read_study(folder).rows()) == 9
    from_file = tp.study(folder / "study.yaml", folder, progress=states.append)
    assert states[-1].done == 9 and len(from_file.rows()) == 9


def test_the_command_prints_what_the_function_says(found: Sweep, folder: Path, tmp_path: Path) -> None:
    over = [word for name, values in OVER.items() for word in ("--over", f"{name}={','.join(map(str, values))}")]
    picture = tmp_path / "sweep.svg"
    done = call(*WORDS, *over, "-o", folder, "--json", "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_dict()))
    assert picture.read_text().startswith("<?xml")
    text = call(*WORDS, *over, "-o", folder).stdout
    assert "network x 2" in text and "GiB of each device's memory" in text and "infeasible" in text


def test_frames_and_pictures(found: Sweep) -> None:
    frame = found.frame()
    assert list(frame["change"]) == [row["change"] for row in found.table()]
    assert found.picture("network").axes and found.picture().axes
    with refused("over", problem="tp"):
        found.picture("tp")


def test_a_grid_has_all_combinations_and_a_heat_map() -> None:
    small: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64}
    grid = tp.sweep(over=["memory=2GiB,4GiB", "batch=8,16"], grid=True, margins=False, jobs=2, **small)
    assert [row["change"] for row in grid.table()] == [
        *("as it is", "memory 2 GiB, batch 8", "memory 2 GiB, batch 16", "memory 4 GiB, batch 8", "memory 4 GiB, batch 16"),
    ]
    assert grid.picture().axes and not grid.margins


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"over": {"speed": 2}}, "over"),
        ({"over": "memory=60"}, "over"),
        ({"model": load_model("gpt2", 64)}, "model"),
        ({"measure": True}, "measure"),
        ({"price": -1}, "price"),
        ({"jobs": 0}, "jobs"),
    ],
)
def test_what_cannot_be_swept_is_refused(values: dict[str, Any], field: str) -> None:
    with refused(field):
        tp.sweep(**{**REQUEST, **values})
