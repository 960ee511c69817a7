"""Efficiencies corrected by own runs, against runs whose true factors are known, and as commands write and take them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log, log1p
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from trainplan.profiling.base.files import parse
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies
from trainplan.profiling.clusters.own_runs import OwnRun

import trainplan as tp
from tests.configurations.test_logged import STEPS, megatron
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.own_runs import (
    PRODUCTS,
    calibrated_cluster,
    calibrated_table,
    calibration,
    own_run,
    scaled,
)
from trainplan.validation.predict import Prediction, step_of
from trainplan.validation.rows import Run

ABOUT: dict[str, Any] = {
    "model": "llama3-8b", "gpu": "h100", "seq": 4096, "gbs": 64, "mbs": 1, "zero": 1, "recompute": "none", "fsdp": "no",
    "framework": "Megatron-Core", "precision": "bf16",
}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [{"gpus": 8, "tp": 2}, {"gpus": 8, "tp": 8}, {"gpus": 16, "tp": 2, "pp": 2}]


def rows(count: int = 3) -> list[LaidRun]:
    return [laid_run(Run(id=f"run{index}", **ABOUT, **layout)) for index, layout in enumerate(LAYOUTS[:count])]


def measured(table: EfficiencyTable, count: int = 3) -> list[dict[str, Any]]:
    """Rows whose measured steps are those that a table predicts."""
    return [row.run.changed(step_s=step_of(row, table).step_ns / 1e9).model_dump(exclude_none=True) for row in rows(count)]


def truth(**factors: float) -> EfficiencyTable:
    return scaled(shipped_efficiencies(), "h100", {PRODUCTS: 1.0} | {name.replace("_", "-"): f for name, f in factors.items()})


def test_a_slower_cluster_is_found_up_to_the_prior() -> None:
    made = truth(products=0.8)
    runs = [own_run(row, step_of(row, made).step_ns / 1e9, shipped_efficiencies()) for row in rows()]
    found = calibration(shipped_efficiencies(), runs, "mine.yaml")
    assert 0.8 < found.factors[PRODUCTS] < 0.9, "more than half of the way from the prior, 1"
    assert max(map(abs, found.after)) < 0.5 * max(map(abs, found.before)) and max(found.before) < 0
    for row, after in zip(rows(), found.after, strict=True):
        exact = step_of(row, found.table).step_ns / step_of(row, made).step_ns - 1
        assert after == pytest.approx(exact, abs=0.005), "errors after are those of the table that is written"
    widths = shipped_efficiencies().step_errors
    assert widths is not None and 0 < found.error < 2.718281828**widths.usual - 1


def test_links_are_corrected_where_the_runs_differ_in_them() -> None:
    made = truth(nvlink_4=0.5)
    runs = [own_run(row, step_of(row, made).step_ns / 1e9, shipped_efficiencies()) for row in rows(2)]
    both = calibration(shipped_efficiencies(), runs, "mine.yaml")
    assert both.factors["nvlink-4"] < 0.8 and both.factors[PRODUCTS] > 0.9
    one = calibration(shipped_efficiencies(), runs[:1], "mine.yaml")
    assert set(one.factors) == {PRODUCTS}


def test_no_efficiency_exceeds_its_peak() -> None:
    runs = [own_run(row, step_of(row, shipped_efficiencies()).step_ns / 3e9, shipped_efficiencies()) for row in rows()]
    table = calibration(shipped_efficiencies(), runs, "mine.yaml").table
    assert all(fit.value <= 1 for fit in [*table.kernels, *table.links])
    assert max(fit.value for fit in table.kernels if fit.kernel == "matrix-product") > 0.8


def test_the_more_runs_agree_the_closer_they_are_followed() -> None:
    made = truth(products=0.75)
    runs = [own_run(row, step_of(row, made).step_ns / 1e9, shipped_efficiencies()) for row in rows()]
    found = [calibration(shipped_efficiencies(), runs[:count], "mine.yaml") for count in (1, 3)]
    assert found[0].factors[PRODUCTS] > found[1].factors[PRODUCTS] > 0.74
    assert found[0].error >= found[1].error


def alike(*errors: float, number: int = 8) -> list[OwnRun]:
    """Runs whose whole steps are products, with these natural logarithms of predicted over measured steps."""
    about: dict[str, Any] = {"device": "h100", "devices": number, "measured_s": 1.0, "shares": {PRODUCTS: 1.0}}
    return [OwnRun(id=f"run{index}", predicted_s=exp(error), **about) for index, error in enumerate(errors)]


def test_the_interval_is_as_wide_as_what_is_left_and_as_runs_are_few() -> None:
    table = shipped_efficiencies()

    def width(*errors: float) -> float:
        return calibration(table, alike(*errors), "mine.yaml").error

    assert width(0.05) > width(0.05, 0.05) > width(*[0.05] * 6) > 0.02
    assert width(0.05, 0.05) < width(0.1, 0.0) < width(0.2, -0.1) < width(0.5, -0.4)
    contradicting = calibration(table, alike(0.35, -0.45), "mine.yaml")
    assert contradicting.error > max(map(abs, contradicting.after)) > 0.3, "the interval holds what is left"
    said = contradicting.notes()
    assert f"within {contradicting.error:.0%}" in said[2] and "contradict" in said[3] and "2 runs" in said[2]
    assert len(calibration(table, alike(0.05, 0.04), "mine.yaml").notes()) == 3


def test_intervals_of_corrected_steps_hold_four_of_five_steps_that_were_left_out() -> None:
    """Published runs, each source as if it were a user's own cluster: by fits without the source, and the prior without it."""
    table = shipped_efficiencies()
    clusters: dict[tuple[str, str], list[float]] = {}
    for run in table.runs:
        clusters.setdefault((run.source, run.device), []).append(log1p(run.left_out["source"]))
    held = []
    for (source, _), errors in clusters.items():
        without = table.changed(runs=[run for run in table.runs if run.source != source])
        for first in range(len(errors) if len(errors) > 2 else 0):
            own = {first, (first + 1) % len(errors)}
            found = calibration(without, alike(*(errors[index] for index in own)), "mine.yaml")
            factor = log(found.factors[PRODUCTS])
            others = [error - factor for index, error in enumerate(errors) if index not in own]
            held.append(fmean(abs(left) <= log1p(found.error) for left in others))
    assert len(held) > 100 and 0.75 < fmean(held) < 0.88


def test_runs_of_a_file_stay_and_a_run_measured_again_replaces_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    own = measured(truth(products=0.8))
    tp.calibrate(own[:2], calibrated=path)
    found = tp.calibrate([own[2], {**own[0], "step_s": 1.2 * own[0]["step_s"]}], calibrated=path)
    again = calibrated_table(path)
    assert {run.id: run.measured_s for run in again.own_runs} == pytest.approx(
        {"run0": 1.2 * own[0]["step_s"], "run1": own[1]["step_s"], "run2": own[2]["step_s"]}
    )
    assert again == found.table and found.frame()["after"].tolist() == list(found.after)
    assert parse(path, EfficiencyTable).corrected_for == "mine.yaml"


def test_the_commands_write_and_take_corrected_efficiencies(tmp_path: Path) -> None:
    path, runs = tmp_path / "mine.yaml", tmp_path / "runs.json"
    runs.write_text(json.dumps(measured(truth(products=0.8))))
    done = call("validate", str(runs), "--calibrated", str(path))
    assert done.returncode == 0 and "error before" in done.stdout and "products x 0.8" in done.stdout
    request = [
        "plan",
        "llama-3.1-8b",
        "h100:8",
        "--batch",
        "16",
        "--sequence",
        "2048",
        "--for",
        "megatron",
        "--tp",
        "4",
        "--json",
    ]
    limits = ["--time-limit", "10"]
    plain, corrected = (json.loads(call(*request, *limits, *more).stdout) for more in ([], ["--calibrated", str(path)]))
    steps = [answer["plan"]["predicted"]["step_ns"] for answer in (plain, corrected)]
    assert 1.05 < steps[1] / steps[0] < 1.25
    cluster = calibrated_cluster("h100:8", path)
    assert "3 own runs (mine.yaml)" in cluster.whose_numbers and calibrated_cluster(cluster, path) is cluster


def test_what_cannot_be_corrected_is_one_line(tmp_path: Path) -> None:
    path, (own,) = tmp_path / "mine.yaml", measured(shipped_efficiencies(), 1)
    with refused("step_s", fix="measured step"):
        tp.calibrate([{key: value for key, value in own.items() if key != "step_s"}], calibrated=path)
    with refused("gpu", problem=("a100", "h100")):
        tp.calibrate([own, {**own, "id": "other", "gpu": "a100", "step_s": 4 * own["step_s"]}], calibrated=path)
    assert not path.exists()
    path.write_text((Path(tp.__file__).parent / "data" / "efficiencies.yaml").read_text())
    with refused("own_runs", fix="--calibrated"):
        tp.calibrate([own], calibrated=path)
    path.write_text("[1, 2]")
    with refused("", problem="not written over", fix="mine.yaml"):
        tp.calibrate([own], calibrated=path)
    path.unlink()
    tp.calibrate([own], calibrated=path)
    with refused("step_s", fix="5.2"):
        tp.calibrate([{**own, "step_s": 0}], calibrated=path)
    with refused("--calibrated", problem="A100", fix="h100:8"):
        calibrated_cluster("a100:8", path)
    with refused("--calibrated", problem="a100-16", fix="h100:8x4"):
        calibrated_cluster("a100-16", path)
    with refused("--cluster", fix="h100:8x4"):
        tp.plan(model="gpt2", calibrated=path, batch=8)


def test_the_log_of_a_run_corrects_efficiencies_too(tmp_path: Path) -> None:
    log, path = megatron(tmp_path, STEPS), tmp_path / "mine.yaml"
    judged = tp.import_run(log, cluster="h100:8x2", search=False)
    assert judged.logged is not None
    found = tp.calibrate(judged, calibrated=path)
    [run] = found.table.own_runs
    assert run.id.startswith(f"{tmp_path.name}/train.log#") and found.before == pytest.approx(
        (judged.step_ns / 1e9 / judged.logged.step_s - 1,), abs=1e-6
    )
    assert abs(found.after[0]) < abs(found.before[0])
    done = call("import-run", log, "--cluster", "h100:8x2", "--no-search", "--calibrated", path)
    assert done.returncode in (0, 1) and "error before" in done.stdout, done.stderr
    assert "replaces run" in done.stdout and calibrated_table(path).own_runs == [run]
    with refused("", problem="no measured step"):
        tp.calibrate(tp.import_run(megatron(tmp_path), cluster="h100:8x2", search=False))


def test_runs_of_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    path, log = tmp_path / "mine.yaml", megatron(tmp_path, STEPS)
    judged = tp.import_run(log, cluster="h100:8x2", search=False)
    (tmp_path / "two").mkdir()
    moved = log.rename(tmp_path / "two" / log.name)
    other = replace(judged, configuration=replace(judged.configuration, where=str(moved)))
    log.write_text(moved.read_text())
    prediction = judged.framework
    assert isinstance(prediction, Prediction) and prediction.laid is not None
    laid = replace(prediction.laid, run=prediction.laid.run.changed(mbs=2))
    changed = replace(judged, framework=replace(prediction, laid=laid))
    calibrated = [tp.calibrate(run, calibrated=path) for run in (judged, other, changed)]
    assert [len(found.table.own_runs) for found in calibrated] == [1, 2, 3]
    assert not any("replaces" in text for found in calibrated for text in found.notes())
    again = tp.calibrate(changed, calibrated=path)
    assert len(again.table.own_runs) == 3 and again.notes()[-1].startswith(f"replaces run {again.table.own_runs[-1].id}")


def test_a_run_that_is_not_what_its_row_says_is_left_out_by_name() -> None:
    table = shipped_efficiencies()
    alone = calibration(table, alike(-0.03, -0.03), "mine.yaml")
    for wrong in (1.2, -1.2):
        found = calibration(table, alike(-0.03, -0.03, wrong), "mine.yaml")
        assert (found.factors, found.error, found.after) == (alone.factors, alone.error, alone.after)
        assert [run.id for run in found.table.own_runs] == ["run0", "run1"]
        assert found.notes()[-1].startswith("run2 is left out") and "run2" in found.to_dict()["remarks"][0]
    for errors in ((1.2,), (-1.2, -1.2, 0.0), (-0.5, 0.4), (-0.9, -0.8)):
        kept = calibration(table, alike(*errors), "mine.yaml")
        assert len(kept.table.own_runs) == len(errors) and not kept.remarks, "what most runs say is no mistake of a row"
