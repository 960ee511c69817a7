"""The published steps that come with the package: they are among the runs of the shipped fit, which leaves what it says, and
the page of errors is the table's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from trainplan.profiling.base.files import read_data
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies

from trainplan.validation.calibrate import calibrated
from trainplan.validation.calibration_report import report, with_blocks
from trainplan.validation.calibration_rows import read_groups, rows_of, runs_of
from trainplan.validation.efficiency_fit import Fit
from trainplan.validation.predict import predict_runs
from trainplan.validation.report import summarised
from trainplan.validation.rows import SHIPPED_RUNS, load_runs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "measured.md"
MEASURED = Path(os.environ.get("TRAINPLAN_DATA", ROOT.parent / "shared" / "data")) / "measured"
FILES = ("runs", "mlperf", "dense_more", "memory")


def blocks(table: EfficiencyTable) -> dict[str, str]:
    return report(table, (run.id for run in load_runs(SHIPPED_RUNS)))


def test_they_are_among_the_runs_of_the_fit() -> None:
    table, runs = shipped_efficiencies(), load_runs(SHIPPED_RUNS)
    fitted = {row for fit in (*table.kernels, *table.links) for row in fit.rows}
    assert {run.id for run in runs} <= fitted == {run.id for run in table.runs} and len(runs) == 48
    assert table.step_errors is not None and table.choices is not None


def test_every_row_says_where_and_when_it_was_published() -> None:
    for run in load_runs(SHIPPED_RUNS):
        assert run.source and run.file and run.date and run.step_s, run.id


def test_the_shipped_efficiencies_leave_what_their_table_says() -> None:
    stated = {run.id: run.error for run in shipped_efficiencies().runs}
    for prediction in predict_runs(runs_of([SHIPPED_RUNS])):
        assert prediction.error == pytest.approx(stated[prediction.run.id], abs=0.002), prediction.run.id


def test_the_page_of_errors_is_that_of_the_shipped_table() -> None:
    page = PAGE.read_text()
    assert with_blocks(page, blocks(shipped_efficiencies()), PAGE.name) == page


@pytest.mark.long
def test_the_shipped_table_is_the_fit_to_the_measured_runs() -> None:
    """To all of them, if they are there; the errors of the same fit made again are the table's."""
    if not MEASURED.exists():
        pytest.skip("the measured runs of other sources are not here")
    table = shipped_efficiencies()
    runs = runs_of([SHIPPED_RUNS, *(str(MEASURED / f"{name}.json") for name in FILES)])
    known = {run.id for run in table.runs}
    chosen = rows_of(runs, [run.id for run in runs if run.id not in known])
    again = calibrated(Fit(chosen.rows, table), read_groups(str(MEASURED / "ranking_groups.json"), runs))
    assert {run.id for run in again.runs} == known
    for mine, theirs in zip(again.kernels, table.kernels, strict=True):
        assert mine.value == pytest.approx(theirs.value, abs=0.003), mine.device
    errors = {run.id: run.error for run in table.runs}
    for run in again.runs:
        assert run.error == pytest.approx(errors[run.id], abs=0.005), run.id
    assert again.choices is not None and table.choices is not None and again.step_errors is not None
    assert again.choices.regret == pytest.approx(table.choices.regret, abs=0.003)


def test_no_document_says_another_mean_error() -> None:
    table = shipped_efficiencies()
    fitted = summarised([run.error for run in table.runs])
    left_out = summarised([run.left_out["source"] for run in table.runs])
    expected = (f"{len(table.runs)}", f"{100 * fitted.absolute:.1f}", f"{100 * left_out.absolute:.1f}")
    for path in (ROOT / "README.md", ROOT / "docs" / "judging.md"):
        text = " ".join(path.read_text().split())
        found = re.findall(r"[Oo]f (\d+) published steps.*?the mean error is ([\d.]+) % as fitted,? and ([\d.]+) %", text)
        assert found and all(stated == expected for stated in found), path


def test_the_data_is_a_list_of_runs() -> None:
    assert len(read_data(SHIPPED_RUNS)) == 48
