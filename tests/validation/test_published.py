"""Predictions of published runs, where the files of them lie next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean, median

import pytest

from trainplan.validation.predict import predict_runs
from trainplan.validation.report import by_group
from trainplan.validation.rows import load_runs

DATA = Path(os.environ.get("TRAINPLAN_DATA") or Path(__file__).parents[3] / "shared/data") / "measured"
pytestmark = pytest.mark.skipif(not (DATA / "runs.json").exists(), reason="the published runs are not here")


def test_dense_runs_are_predicted() -> None:
    predictions = predict_runs(load_runs(DATA / "runs.json"))
    for prediction in predictions:
        assert bool(prediction.cannot) == bool(prediction.run.experts), prediction.cannot
        if not prediction.cannot:
            assert prediction.fits != prediction.run.oom, f"{prediction.run.id}: {prediction.peak_gib} GiB"
    errors = [abs(prediction.error) for prediction in predictions if prediction.error is not None]
    assert fmean(errors) < 0.12 and median(errors) < 0.08
    assert by_group(predictions, "all")["all"].inside >= 0.8  # type: ignore[operator]


def test_peaks_are_predicted() -> None:
    """The rows are of Megatron-Core, whose figures are what is allocated: others print what is reserved, or keep more."""
    predictions = [*predict_runs(load_runs(DATA / "memory.json")), *predict_runs(load_runs(DATA / "runs.json"))]
    megatron = [prediction for prediction in predictions if prediction.run.framework == "Megatron-Core"]
    errors = [abs(entry.memory_error) for entry in megatron if entry.memory_error is not None]
    assert len(errors) >= 24 and fmean(errors) < 0.05


def test_steps_that_hosts_issue_are_predicted() -> None:
    """Rows that say so are of layers so small that a step is what the host takes; by kernels alone they were 68 % too fast."""
    predictions = predict_runs(load_runs(DATA / "memory.json"))
    errors = [abs(prediction.error) for prediction in predictions if prediction.error is not None]
    assert len(errors) >= 20 and fmean(errors) < 0.18 and median(errors) < 0.12
    assert by_group(predictions, "all")["all"].inside >= 0.8  # type: ignore[operator]
