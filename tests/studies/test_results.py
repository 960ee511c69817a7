"""Results of a study: what is read of a folder, queries, the summary, failures and contradictions, and the command."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from tests.helpers.studies import small_study, write_study
from trainplan.studies import queries
from trainplan.studies.results import Study
from trainplan.studies.rows import COLUMNS
from trainplan.studies.summary import contradictions, failures, summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), small_study(), batches=3, journal=4)


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return tp.read_study(folder)


def of_cells(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Copies of a real optimal row, each with changes and a name and key of its own."""
    row = next(row for row, _ in small_study() if row["status"] == "optimal")
    return [row | {"name": f"cell {index}", "key": f"{index:032}"} | change for index, change in enumerate(changes)]


def test_parquet_and_journal_are_read_as_one(study: Study, folder: Path) -> None:
    written = [row for row, _ in small_study()]
    read = study.rows()
    assert len(list(folder.glob("*.parquet"))) == 3 and len(list(folder.glob("*.jsonl"))) == 1
    assert [list(row) for row in read] == [list(COLUMNS)] * len(written)
    for before, after in zip(written, read, strict=True):
        assert after | {"history_path": None} == before
    assert study.sql("SELECT * FROM cells").rows() == read
    assert [row["key"] for row in study.rows() if row["history_path"]] == list(study.histories())


def test_a_torn_line_costs_the_cell_that_it_was_of_and_no_other(tmp_path: Path) -> None:
    rows = small_study()
    write_study(tmp_path, rows, journal=3)
    (journal,) = tmp_path.glob("journal-*.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40])
    assert [row["key"] for row in tp.read_study(tmp_path).rows()] == [row["key"] for row, _ in rows[:-1]]
    journal.write_bytes(whole[:5] + b"\n" + whole)
    with refused("line 1", where=journal):
        tp.read_study(tmp_path)


def test_the_latest_row_of_a_cell_counts(tmp_path: Path) -> None:
    rows = list(small_study())
    changed = {**rows[0][0], "key": "f" * 32, "value_ns": 1}
    write_study(tmp_path, [*rows, (changed, [])], journal=1)
    study = tp.read_study(tmp_path)
    assert len(study.rows()) == len(rows)
    assert {row["value_ns"] for row in study.rows() if row["name"] == changed["name"]} == {1}
    assert study.sql("SELECT count(*) AS n FROM all_rows").rows() == [{"n": len(rows) + 1}]
    assert study.sql("SELECT count(*) AS n FROM cells").rows() == [{"n": len(rows)}]


def test_a_row_that_is_in_both_files_is_read_once(tmp_path: Path) -> None:
    rows = small_study()
    write_study(tmp_path, rows, journal=0)
    (tmp_path / "journal-00007.jsonl").write_text(json.dumps(rows[0][0]) + "\n")
    study = tp.read_study(tmp_path)
    assert study.sql("SELECT count(*) AS n FROM all_rows").rows() == [{"n": len(rows)}]


def test_what_holds_no_study_is_refused(tmp_path: Path) -> None:
    with refused("", where=tmp_path):
        tp.read_study(tmp_path)
    with refused("", where=tmp_path / "absent"):
        tp.read_study(tmp_path / "absent")
    (tmp_path / "study.yaml").write_text("name: begun\n")
    begun = tp.read_study(tmp_path)
    assert (begun.name, begun.rows(), begun.summary().rows()) == ("begun", [], [])
    assert list(begun.frame().columns) == list(COLUMNS)
    with refused("", where=tmp_path):
        begun.report()
    (tmp_path / "cells-00001.parquet").write_bytes(b"PAR1")
    with refused("", where=tmp_path / "cells-00001.parquet"):
        tp.read_study(tmp_path)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE cells",
        "INSERT INTO cells SELECT * FROM cells RETURNING key",
        "CREATE TABLE mine AS SELECT 1",
        "COPY cells TO '{file}'",
        "ATTACH '{file}'",
        "EXPORT DATABASE '{file}'",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "SELECT 1) TO '{file}' (FORMAT csv); --",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('{secret}')",
        "SELECT content FROM read_blob('{folder}/study.yaml')",
        "SELECT nothing_of_the_kind FROM cells",
        "SELECT * FROM elsewhere",
        "SELEC",
        "",
    ],
)
def test_a_query_can_only_read_and_only_the_study(study: Study, folder: Path, tmp_path: Path, query: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    before = {path: path.stat().st_mtime_ns for path in (*folder.rglob("*"), *tmp_path.rglob("*"))}
    text = query.format(file=tmp_path / "written", secret=secret, folder=folder)
    for ask in (study.sql, lambda query: study.export(query, ".csv")):
        with refused("query"):
            ask(text)
    assert {path: path.stat().st_mtime_ns for path in (*folder.rglob("*"), *tmp_path.rglob("*"))} == before
    assert len(study.sql("SELECT key FROM cells").rows()) == len(small_study())


INTERRUPTED = """
import os, signal, threading
from trainplan.studies.queries import Database
database = Database([], [])
endless = "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE (a.range * b.range + c.range) % 7 = 3"
try:
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()  # to the process, as a terminal does
    database.answer(endless)
except KeyboardInterrupt:
    print("interrupted", database.answer("SELECT 1 AS one").rows())
"""


def test_ctrl_c_ends_a_query_and_the_next_one_works() -> None:
    """In a process of its own: a signal that comes late would end the process of the tests."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "interrupted [{'one': 1}]\n", ended.stderr


def test_an_answer_beyond_measure_is_refused(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_ROWS", 3)
    assert len(study.sql("SELECT key FROM cells LIMIT 3").rows()) == 3
    with refused("query", fix="LIMIT"):
        study.sql("SELECT key FROM cells")


def test_an_unknown_column_names_those_that_are_near(study: Study) -> None:
    with refused("query", problem="value_n", fix="value_ns"):
        study.sql("SELECT value_n FROM cells")


def test_answers_are_tables(study: Study) -> None:
    answer = study.sql("SELECT 1 AS a, 2 AS a, 'text' AS gap, 1500000 AS step_ns, NULL AS b, 0.1 + 0.2 AS c, [1, 2] AS list_ns")
    assert answer.columns == ("a", "a_1", "gap", "step_ns", "b", "c", "list_ns")
    assert answer.cells() == [["1", "2", "text", "1.5 ms", "-", "0.3", "[1, 2]"]]
    assert answer.frame()["step_ns"].tolist() == [1500000]
    assert "1.5 ms" in answer._repr_html_()
    whole = study.sql("SELECT * FROM cells")
    assert len(repr(whole)) < 300 and len(repr(study)) < 300


def test_files_of_an_answer_hold_what_the_query_gives(study: Study, tmp_path: Path) -> None:
    query = "SELECT name, value_ns, gap FROM cells ORDER BY name -- a remark"
    rows = study.sql(query).rows()
    read = list(csv.DictReader(io.StringIO(study.export(query, ".csv").decode())))
    assert [(row["name"], row["value_ns"]) for row in read] == [(r["name"], str(r["value_ns"] or "")) for r in rows]
    assert json.loads(study.export(query, ".json")) == rows
    target = tmp_path / "answer.parquet"
    target.write_bytes(study.export(query, ".parquet"))
    with duckdb.connect() as connection:
        assert connection.execute("FROM read_parquet(?)", [str(target)]).fetchall() == [tuple(row.values()) for row in rows]
    with refused("--output"):
        study.export(query, ".xlsx")


def test_the_frame_has_the_rows_with_whole_numbers(study: Study) -> None:
    frame = study.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert str(frame["value_ns"].dtype) == "Int64" and str(frame["seconds"].dtype) == "float64"
    assert frame["value_ns"].dropna().tolist() == [row["value_ns"] for row, _ in small_study() if row["value_ns"] is not None]
    assert frame["value_ns"].isna().sum() == sum(row["value_ns"] is None for row, _ in small_study())


def test_the_summary_counts_by_problem_and_method(study: Study) -> None:
    rows = {(row["problem"], row["method"]): row for row in study.summary().rows()}
    for (problem, method), row in rows.items():
        own = [r for r, _ in small_study() if (r["problem"], r["method"]) == (problem, method)]
        assert row["cells"] == len(own)
        assert row["solved"] == sum(r["value_ns"] is not None for r in own)
        assert row["proven"] == sum(r["status"] in ("optimal", "infeasible") for r in own)
    assert rows["pipeline", "milp"]["failures"] == "1 refused"
    assert rows["layer-strategies", "label-setting"]["above"] == 0  # exact
    assert rows["pipeline", "galvatron-bmw"]["above"] >= 0


def test_means_are_geometric() -> None:
    rows = of_cells(
        {
            "method": "a",
            "value_ns": 200,
            "bound_ns": 100,
            "gap": 0.5,
            "instance_hash": "x",
            "seconds": 1.0,
            "status": "feasible",
        },
        {"method": "a", "value_ns": 300, "bound_ns": 300, "gap": 0.0, "instance_hash": "y", "seconds": 9.0},
        {"method": "b", "value_ns": 100, "bound_ns": 100, "gap": 0.0, "instance_hash": "x", "seconds": 2.0},
        {"method": "b", "status": "out of memory", "value_ns": None, "bound_ns": None, "gap": None, "instance_hash": "y"},
    )
    first, second = summary(rows).rows()
    assert first["mean_gap"] == pytest.approx(1.5**0.5 - 1) and first["median_seconds"] == 5
    assert first["above"] == pytest.approx(2**0.5 - 1)
    assert (second["above"], second["mean_gap"], second["failures"]) == (0, 0, "1 out of memory")


def test_failures_are_counted_by_status_and_reason(study: Study) -> None:
    failed = [row for row, _ in small_study() if row["value_ns"] is None]
    assert failed and sum(entry["cells"] for entry in study.failures()) == len(failed)
    (refusal,) = [entry for entry in study.failures() if entry["status"] == "refused"]
    assert "sequence" in refusal["reason"] and refusal["methods"] == "milp"


def test_reasons_that_differ_in_numbers_and_advice_are_one() -> None:
    failed = {"status": "infeasible", "value_ns": None}
    reasons = ("8 GiB do not do; give 9 GiB", "4 GiB do not do; give 9 GiB; or fewer layers", "nothing does; give 9 GiB")
    rows = of_cells(*({**failed, "reason": reason} for reason in reasons))
    assert [(entry["cells"], entry["reason"]) for entry in failures(rows)] == [(2, reasons[0]), (1, reasons[2])]


def test_the_summary_is_a_table_at_80_columns(tmp_path: Path) -> None:
    failed = {"status": "infeasible", "value_ns": None, "reason": "no choice fits", "method": "galvatron-dp"}
    other = {**failed, "instance_hash": "x", "request": "{}"}
    rows = of_cells({"method": "galvatron-dp"}, other, {**failed, "status": "crashed"}, {})
    (folder := tmp_path / "some").mkdir()
    write_study(folder, [(row, []) for row in rows], journal=4)
    words = [sys.executable, "-m", "trainplan", "results", str(folder)]
    shown = subprocess.run(words, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "layer-strategies" in line and "galvatron-dp" in line and "infeasible" in line]


def test_methods_that_solved_the_same_instance_do_not_contradict(study: Study) -> None:
    assert study.contradictions() == []


def test_a_bound_above_another_value_is_a_contradiction() -> None:
    rows = of_cells({"method": "exact", "value_ns": 11, "bound_ns": 11}, {"method": "cheat", "value_ns": 10, "bound_ns": None})
    (text,) = contradictions(rows)
    assert "exact" in text and "cheat" in text
    assert contradictions([rows[0], rows[1] | {"value_ns": 11}]) == []


def test_a_proof_of_infeasibility_and_a_solution_are_a_contradiction() -> None:
    nothing = {"method": "cheat", "status": "infeasible", "value_ns": None, "bound_ns": None}
    (text,) = contradictions(of_cells({"method": "exact"}, nothing))
    assert "cheat" in text
    assert contradictions(of_cells(nothing, nothing)) == []


def test_one_request_with_two_instances_is_a_contradiction() -> None:
    rows = of_cells({"method": "exact"}, {"method": "other", "instance_hash": "0" * 64})
    (text,) = contradictions(rows)
    assert "000000000000" in text and rows[0]["instance_hash"][:12] in text
    assert contradictions([rows[0], rows[1] | {"request": "{}"}]) == []


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_bounds_contradict_exactly_if_one_is_above_the_least_value(numbers: list[tuple[int, int]]) -> None:
    rows = of_cells(*({"method": f"m{i}", "value_ns": v, "bound_ns": b} for i, (v, b) in enumerate(numbers)))
    expected = max(bound for _, bound in numbers) > min(value for value, _ in numbers)
    assert bool(contradictions(rows)) == expected


def test_the_command_sums_up_and_answers(folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "trainplan", "results", str(folder)]
    shown = subprocess.run(words, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True)
    assert max(map(len, shown.stdout.splitlines())) <= 80 and "label-setting" in shown.stdout
    told = json.loads(call("results", str(folder), "--json").stdout)
    study = tp.read_study(folder)
    assert told["summary"] == study.summary().rows() and told["contradictions"] == []
    target = tmp_path / "answer.csv"
    query = "SELECT method, count(*) AS cells, 'nan'::DOUBLE AS x FROM cells GROUP BY method ORDER BY method"
    done = call("results", str(folder), query, "--json", "-o", str(target))
    answer = json.loads(done.stdout)
    assert answer["columns"] == ["method", "cells", "x"] and {row["x"] for row in answer["rows"]} == {None}
    assert len(target.read_text().splitlines()) == len(answer["rows"]) + 1


def test_the_command_ends_with_1_on_a_contradiction_and_2_on_a_bad_query(tmp_path: Path) -> None:
    rows = of_cells({"method": "exact", "value_ns": 11, "bound_ns": 11}, {"method": "cheat", "value_ns": 10, "bound_ns": None})
    write_study(tmp_path, [(row, []) for row in rows], journal=1)
    wrong = call("results", str(tmp_path))
    assert wrong.returncode == 1 and "cheat" in wrong.stdout
    bad = call("results", str(tmp_path), "DELETE FROM cells")
    assert bad.returncode == 2 and len(bad.stderr.splitlines()) == 1
