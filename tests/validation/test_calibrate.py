"""The fit: what it is given back from runs made with other efficiencies, and what it writes."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.base.files import parse
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind

from trainplan.validation.calibrate import Fit, fitted_table, keys_of, main, table_text
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.predict import step_of
from trainplan.validation.rows import Run

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


def test_efficiencies_that_made_the_runs_are_found() -> None:
    """Up to what the priors pull them back, and with steps that then agree."""
    blank = Fit(laid_runs(), shipped_efficiencies())
    made = blank.with_values(blank.priors + np.log([0.85 if key.kernel == "matrix-product" else 1.0 for key in blank.keys]))
    fit = Fit(measured_by(laid_runs(), made), shipped_efficiencies())
    logs, residuals, apart = fit.run()
    table = fitted_table(fit, logs, residuals, apart)
    before = Fit(fit.rows, shipped_efficiencies()).residuals(fit.priors, range(len(fit.rows)))
    assert np.abs(residuals).max() < 0.5 * np.abs(before).max()
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


def test_outliers_count_less() -> None:
    """One run that took three times as long moves the products' efficiency by little."""
    rows = measured_by(laid_runs(), shipped_efficiencies())
    odd = [laid_run(rows[0].run.changed(step_s=3 * (rows[0].run.step_s or 0))), *rows[1:]]
    plain, moved = (Fit(entry, shipped_efficiencies()).run()[0] for entry in (rows, odd))
    assert np.abs(plain - moved).max() < 0.12


def test_a_written_table_reads_back_with_rows_and_residuals(tmp_path: Path) -> None:
    rows = measured_by(laid_runs(), shipped_efficiencies())
    fit = Fit(rows, shipped_efficiencies())
    table = fitted_table(fit, *fit.run())
    path = tmp_path / "efficiencies.yaml"
    path.write_text(table_text(table))
    assert parse(path, EfficiencyTable) == table
    fits = [entry for entry in [*table.kernels, *table.links] if entry.origin == "fitted"]
    assert len(fits) == len(fit.keys)
    assert all(len(one_fit.rows) == len(one_fit.residuals) > 0 and one_fit.date for one_fit in fits)
    again = Fit(rows, table)
    assert again.keys == fit.keys and np.allclose(again.priors, fit.priors), "a fit begins from what is assumed"


def test_the_command_prints_errors_next_to_those_of_sources_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = measured_by(laid_runs()[:4], shipped_efficiencies())
    path = tmp_path / "runs.json"
    path.write_text(f"[{','.join(row.run.model_dump_json() for row in rows)}]")
    assert main([str(path), "-o", str(tmp_path / "table.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "left out: mean" in printed and "a100 bfloat16 matrix-product" in printed and "holds 80%" in printed
    assert parse(tmp_path / "table.yaml", EfficiencyTable).kernels


def test_nothing_is_written_where_no_file_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = measured_by(laid_runs()[:2], shipped_efficiencies())
    path = tmp_path / "runs.json"
    path.write_text(f"[{','.join(row.run.model_dump_json() for row in rows)}]")
    before = (resources.files("trainplan.data") / "efficiencies.yaml").read_bytes()
    assert main([str(path)]) == 0
    assert "written" not in capsys.readouterr().out and list(tmp_path.iterdir()) == [path]
    assert (resources.files("trainplan.data") / "efficiencies.yaml").read_bytes() == before
