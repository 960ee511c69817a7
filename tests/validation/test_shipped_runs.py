"""The published steps that come with the package: they are the rows of the fit, and the documented table is theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies

from trainplan.validation.calibrate import main
from trainplan.validation.predict import predict_runs
from trainplan.validation.rows import SHIPPED_RUNS, load_runs

ROOT = Path(__file__).parents[2]


def test_they_are_the_rows_of_the_fit_and_no_others() -> None:
    table, runs = shipped_efficiencies(), load_runs(SHIPPED_RUNS)
    fitted = {row for fit in (*table.kernels, *table.links) for row in fit.rows}
    assert {run.id for run in runs} == fitted and len(runs) == len(fitted) == 48


def test_every_row_says_where_and_when_it_was_published() -> None:
    for run in load_runs(SHIPPED_RUNS):
        assert run.source and run.file and run.date and run.step_s, run.id


def test_the_shipped_efficiencies_leave_what_their_table_says() -> None:
    errors = {run.run.id: run.error for run in predict_runs(load_runs(SHIPPED_RUNS))}
    for fit in shipped_efficiencies().kernels:
        for row, residual in zip(fit.rows, fit.residuals, strict=True):
            assert errors[row] == pytest.approx(residual, abs=0.002), row


def test_the_documented_table_of_errors_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = re.search(r"```text\n(.*?)```", (ROOT / "docs" / "measured.md").read_text(), re.DOTALL)
    assert shown is not None and shown[1] in capsys.readouterr().out


def test_no_document_says_another_mean_error() -> None:
    documents = [ROOT / "README.md", ROOT / "docs" / "judging.md"]
    table = (ROOT / "docs" / "measured.md").read_text()
    every = re.search(r"^all +48 +(.*)$", table, re.MULTILINE)
    assert every is not None
    _, fitted, *_, left_out, _, _ = every[1].split()
    for path in documents:
        text = " ".join(path.read_text().split())
        for stated in re.findall(r"the mean error is ([\d.]+) % as fitted,? and ([\d.]+) %", text):
            assert stated == (fitted, left_out), path
