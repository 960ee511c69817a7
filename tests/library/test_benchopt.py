"""The benchopt benchmark runs with benchopt as it is installed, and its values are those of the library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).parents[2]
NAME = "chain/bert-base-rtx3090-8-b8-s256"


@pytest.mark.long
def test_benchopt_runs_methods_on_the_library(tmp_path: Path) -> None:
    pytest.importorskip("benchopt")
    benchmark = shutil.copytree(ROOT / "benchmark_trainplan", tmp_path / "benchmark_trainplan")
    words = [
        "run",
        str(benchmark),
        "-d",
        f"library[instance=[{NAME}]]",
        "-s",
        "trainplan[method=[label-setting,galvatron-dp,amp]]",
    ]
    command = [sys.executable, "-m", "benchopt", *words, "--no-plot", "-r", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    query = "select p_solver_method, last(objective_value order by time), max(objective_violations)"
    rows = duckdb.sql(f"{query} from '{benchmark}/outputs/*.parquet' group by all").fetchall()
    values = {method: value for method, value, _ in rows}
    assert values.keys() == {"label-setting", "galvatron-dp"} and "no method of layer-strategies" in done.stdout
    assert values["label-setting"] == 1 <= values["galvatron-dp"] and all(broken == 0 for _, _, broken in rows)
