"""The fit: what it is given back from runs made with other efficiencies, what it says of runs left out, and what it writes."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.base.files import parse
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind

from tests.helpers.refusals import refused
from trainplan.validation.calibrate import calibrated, main, table_text
from trainplan.validation.calibration_rows import read_groups, rows_of, runs_of
from trainplan.validation.efficiency_fit import Fit, keys_of
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.predict import step_of
from trainplan.validation.rows import Run
from trainplan.validation.splits import SPLITS, described

SIZES = [("llama3.2-1b", 4, 2), ("llama3-8b", 1, 2), ("llama2-7b", 2, 4), ("llama3-8b", 2, 1)]


def laid_runs(gpu: str = "a100", **fields: Any) -> list[LaidRun]:
    """Runs of several models, tensor-parallel degrees and numbers of nodes, from two sources, with no step yet."""
    about: dict[str, Any] = {"gpu": gpu, "seq": 4096, "zero": 1, "framework": "Megatron-Core", **fields}
    return [
        laid_run(Run(id=f"{name} {index} {gpus}", source=f"{index % 2}", model=name, mbs=mbs, tp=tp, gpus=gpus, **about))
        for index, (name, mbs, tp) in enumerate(SIZES)
        for gpus in (8, 64)
    ]


def measured_by(rows: list[LaidRun], table: EfficiencyTable) -> list[LaidRun]:
    """Runs whose measured steps are those that a table predicts."""
    return [laid_run(row.run.changed(step_s=step_of(row, table).step_ns / 1e9)) for row in rows]


def value(table: EfficiencyTable, kernel: str, precision: Any = "bfloat16") -> float:
    reached = device_kind("a100", table).reached(kernel, precision)  # type: ignore[arg-type]
    assert reached is not None
    return reached.value


def file_of(tmp_path: Path, rows: list[LaidRun], name: str = "runs.json") -> str:
    path = tmp_path / name
    path.write_text(f"[{','.join(row.run.model_dump_json() for row in rows)}]")
    return str(path)


def test_efficiencies_that_made_the_runs_are_found() -> None:
    """Up to what the priors pull them back, and with steps that then agree."""
    blank = Fit(laid_runs(), shipped_efficiencies())
    made = blank.with_values(blank.priors + np.log([0.85 if key.kernel == "matrix-product" else 1.0 for key in blank.keys]))
    fit = Fit(measured_by(laid_runs(), made), shipped_efficiencies())
    table = calibrated(fit)
    before = fit.residuals(fit.priors, range(len(fit.rows)))
    assert max(abs(run.error) for run in table.runs) < 0.5 * np.abs(before).max()
    assert value(made, "matrix-product") == pytest.approx(value(table, "matrix-product"), rel=0.06)
    assert value(table, "matrix-product") < math.exp(blank.priors[1]), "less than was assumed"


def test_at_most_one_number_for_each_kind_precision_and_class_and_for_each_level() -> None:
    fit = Fit(laid_runs() + laid_runs("h100", precision="fp8"), shipped_efficiencies())
    assert len(set(fit.keys)) == len(fit.keys)
    assert {key.level for key in fit.keys if key.level} == {"nvlink-3", "nvlink-4", "network"}
    kernels = {(key.device, key.precision, key.kernel) for key in fit.keys if key.kernel}
    assert ("h100", "float8", "matrix-product") in kernels and ("a100", "bfloat16", "attention") in kernels
    one = laid_run(Run(id="x", model="llama3-8b", gpu="a100", gpus=1))
    assert {key.level for key in keys_of(one)} == {None}


def test_no_other_efficiency_of_the_table_changes_a_predicted_step() -> None:
    """The fit knows all numbers that a run depends on: halving any other leaves its step alone."""
    for row in (laid_runs("h100", precision="fp8")[0], laid_runs()[1]):
        fit = Fit([row, *laid_runs(), *laid_runs("h100", precision="fp8")], shipped_efficiencies())
        step = step_of(row, fit.with_values(fit.priors)).step_ns
        for index in set(range(len(fit.keys))) - set(fit.uses[0]):
            moved = fit.priors.copy()
            moved[index] += np.log(0.5)
            assert step_of(row, fit.with_values(moved)).step_ns == pytest.approx(step, rel=1e-6), fit.keys[index]


def test_outliers_count_less() -> None:
    """One run that took three times as long moves the products' efficiency by little."""
    rows = measured_by(laid_runs(), shipped_efficiencies())
    odd = [laid_run(rows[0].run.changed(step_s=3 * (rows[0].run.step_s or 0))), *rows[1:]]
    plain, moved = (Fit(entry, shipped_efficiencies()).run()[0] for entry in (rows, odd))
    assert np.abs(plain - moved).max() < 0.12


def test_runs_left_out_are_predicted_by_a_fit_to_the_others_alone() -> None:
    """By hand: a fit to the kept runs only, whose priors stand where no kept run says anything."""
    table = shipped_efficiencies()
    rows = measured_by(laid_runs() + laid_runs("h100"), table)
    rows = [laid_run(row.run.changed(step_s=1.2 * (row.run.step_s or 0))) if row.name == "h100" else row for row in rows]
    found = {run.id + run.device: run for run in calibrated(Fit(rows, table)).runs}
    kept = [row for row in rows if row.name != "h100"]
    fit = Fit(kept, table)
    alone = fit.with_values(fit.run()[0])
    for row in rows:
        run = found[row.run.id + row.name]
        if row.name == "h100":
            by_hand = step_of(row, alone).step_ns / 1e9 / (row.run.step_s or 0) - 1
            assert run.left_out["kind"] == pytest.approx(by_hand, abs=0.02)
        assert ("scale" in run.left_out) is (row.run.gpus > 64)
        assert {"source", "kind", "precision", "framework"} <= set(run.left_out)


def test_every_split_tests_what_it_does_not_keep() -> None:
    runs = [described(row) for row in laid_runs() + laid_runs("h100", precision="fp8")]
    for split in SPLITS.values():
        for kept, tested in split.folds(runs).values():
            assert sorted(kept + tested) == list(range(len(runs))) and tested
            assert not {split.fold_of(runs[i]) for i in kept} & {split.fold_of(runs[i]) for i in tested}


def test_a_written_table_reads_back_with_rows_and_errors(tmp_path: Path) -> None:
    rows = measured_by(laid_runs(), shipped_efficiencies())
    fit = Fit(rows, shipped_efficiencies())
    table = calibrated(fit)
    path = tmp_path / "efficiencies.yaml"
    path.write_text(table_text(table))
    assert parse(path, EfficiencyTable) == table
    fits = [entry for entry in [*table.kernels, *table.links] if entry.origin == "fitted"]
    assert len(fits) == len(fit.keys)
    assert all(one_fit.rows and one_fit.date for one_fit in fits)
    assert {row for one_fit in fits for row in one_fit.rows} == {run.id for run in table.runs} == {row.run.id for row in rows}
    again = Fit(rows, table)
    assert again.keys == fit.keys and np.allclose(again.priors, fit.priors), "a fit begins from what is assumed"


def test_the_command_prints_errors_of_every_split_and_writes_table_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = measured_by(laid_runs()[:4], shipped_efficiencies())
    page = tmp_path / "page.md"
    page.write_text((Path(__file__).parents[2] / "docs" / "measured.md").read_text())
    words = [file_of(tmp_path, rows), "-o", str(tmp_path / "table.yaml"), "--page", str(page)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(split.words in printed for split in SPLITS.values() if split.name != "scale")
    assert "a100 bfloat16 matrix-product" in printed and "no two runs" in printed and "hold 80%" in printed
    assert parse(tmp_path / "table.yaml", EfficiencyTable).kernels
    shown = page.read_text()
    assert "each source left out" in shown and rows[0].run.id in shown


def test_nothing_is_written_where_no_file_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = measured_by(laid_runs()[:2], shipped_efficiencies())
    path = file_of(tmp_path, rows)
    before = (resources.files("trainplan.data") / "efficiencies.yaml").read_bytes()
    assert main([path]) == 0
    assert "written" not in capsys.readouterr().out and [str(name) for name in tmp_path.iterdir()] == [path]
    assert (resources.files("trainplan.data") / "efficiencies.yaml").read_bytes() == before


def test_runs_of_several_files_count_once_and_others_are_left_out_with_a_reason(tmp_path: Path) -> None:
    rows = measured_by(laid_runs()[:3], shipped_efficiencies())
    mixture = {"id": "moe", "model": "mixtral-8x7b", "gpu": "h100", "gpus": 8, "experts": 8, "step_s": 1.0}
    odd = {"id": "odd", "model": "llama3-8b", "gpu": "h100", "gpus": 8, "facts": "", "note": "launch-bound 3 s", "step_s": 1.0}
    bound = odd | {"id": "bound", "facts": "launch-bound"}
    more = tmp_path / "more.json"
    more.write_text(json.dumps([rows[0].run.model_dump(exclude_none=True), mixture, odd, bound]))
    runs = runs_of([file_of(tmp_path, rows), str(more)])
    assert len(runs) == 6
    chosen = rows_of(runs, [rows[1].run.id])
    assert [row.run.id for row in chosen.rows] == [rows[0].run.id, rows[2].run.id, "odd"]
    assert set(chosen.left_out) == {rows[1].run.id, "moe", "bound"}
    assert "experts" in chosen.left_out["moe"] and "launches" in chosen.left_out["bound"]
    with refused("--without", problem="nothing"):
        rows_of(runs, ["nothing"])


def test_rows_of_groups_have_the_framework_of_their_source_or_of_their_job(tmp_path: Path) -> None:
    row = {"model": "llama3-8b", "gpu": "h100", "gpus": 8, "seq": 4096, "gbs": 16, "step_s": 1.0}
    rows = [row | {"id": f"{source}{tp}", "source": source, "tp": tp} for source in "ab" for tp in (1, 2)]
    path = tmp_path / "groups.json"
    path.write_text(
        json.dumps([{"group": ["nemo", "x"], "rows": rows[:2]}, {"group": ["nemo"], "rows": rows[2:]}, {"rows": rows[:1]}])
    )
    known = [Run(id="k", source="b", model="llama3-8b", gpu="h100", gpus=8, framework="torchtitan", date="2025-01")]
    first, second = read_groups(str(path), known)
    assert [found.layout.framework.name for found in first] == ["NeMo"] * 2
    assert {found.layout.framework.name.partition(",")[0] for found in second} == {"PyTorch FSDP"}
    path.write_text('[{"rows": 3}]')
    with refused("[0].rows", fix="rows"):
        read_groups(str(path))


def test_a_file_that_is_no_list_of_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    path.write_text('{"a": 1}')
    assert main([str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
