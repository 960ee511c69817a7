"""A study's folder: what is stored is there after any kill, and nothing else."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import refused
from trainplan.studies import storage
from trainplan.studies.rows import COLUMNS, row_of, table_of_columns
from trainplan.studies.storage import Storage, StudyStopped, current_rows, read_rows

CONTENT = {"name": "test"}


def row(number: int, **more: Any) -> dict[str, Any]:
    texts = dict.fromkeys(("task", "method", "status", "started", "machine_id"), "")
    return row_of(
        {**texts, "key": f"{number:032x}", "name": f"cell {number}", "value_ns": 2**60 + number, "groups": ["a"], **more}
    )


def keys(folder: Path) -> list[int]:
    return [int(found["key"], 16) for found in read_rows(folder)]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [row(1, gap=0.1, cold=True, reason="ein „Zitat“\n"), row(2, groups=[], options='{"a":[1]}', devices=None)]
    with Storage(tmp_path / "new", CONTENT) as folder:
        folder.append(rows)
        assert read_rows(tmp_path / "new") == rows  # of the journal
    assert read_rows(tmp_path / "new") == rows  # of Parquet
    assert [*read_rows(tmp_path / "new")[0]] == [*COLUMNS]
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [".lock", "cells-00001.parquet", "study.yaml"]


def test_files_are_written_before_their_row(tmp_path: Path) -> None:
    with Storage(tmp_path, CONTENT) as folder:
        folder.append([{**row(1), "files": {"plan_path": "{}", "history_path": "[1]"}}])
    found = read_rows(tmp_path)[0]
    assert found["solution_path"] is None
    assert json.loads((tmp_path / found["history_path"]).read_text()) == [1]
    assert (tmp_path / found["plan_path"]).read_text() == "{}"


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=4), st.integers(1, 4))
def test_any_sequence_of_runs(tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[list[int], bool]], batch: int) -> None:
    """Rows of several runs, each of which may end by a kill that leaves a torn line and a temporary file: of rows with a key
    the last one is there, in the order of writing."""
    base, wanted = tmp_path_factory.mktemp("runs"), dict[int, int]()
    folder = base / "0"

    def found() -> list[tuple[int, int]]:
        return [(int(row["key"], 16), row["repeat"]) for row in read_rows(folder)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "BATCH", batch)
        for number, (run, killed) in enumerate(runs, start=1):
            with Storage(folder, CONTENT) as writer:
                for key in run:
                    writer.append([row(key, repeat=number)])
                    wanted.pop(key, None)
                    wanted[key] = number
                assert found() == [*wanted.items()]
                if killed:  # what is in the folder now is what a kill leaves
                    shutil.copytree(folder, base / str(number))
            if killed:
                folder = base / str(number)
                for journal in folder.glob("journal-*"):
                    with journal.open("ab") as stream:
                        stream.write(b'{"key": "torn')
                (folder / ".0123.part").write_text("torn")
            assert found() == [*wanted.items()]
        with Storage(folder, CONTENT):
            assert found() == [*wanted.items()]
    assert found() == [*wanted.items()]
    assert not [*folder.rglob("*.part"), *folder.glob("journal-*")]


def test_a_crash_between_the_batch_and_its_journal(tmp_path: Path) -> None:
    with Storage(tmp_path, CONTENT) as folder:
        folder.append([row(1), row(2)])
        journal = (tmp_path / "journal-00001.jsonl").read_bytes()
    (tmp_path / "journal-00001.jsonl").write_bytes(journal)
    assert keys(tmp_path) == [1, 2]
    with Storage(tmp_path, CONTENT) as folder:
        folder.append([row(3)])
        assert keys(tmp_path) == [1, 2, 3]
    assert keys(tmp_path) == [1, 2, 3]


def test_the_last_row_of_a_name_counts() -> None:
    rows = [row(1), {**row(2), "name": "cell 1"}, row(3)]
    assert {name: found["key"] for name, found in current_rows(rows).items()} == {
        "cell 1": row(2)["key"],
        "cell 3": row(3)["key"],
    }


def test_one_writer(tmp_path: Path) -> None:
    """In this process, and from another one."""
    code = "import sys; from trainplan.studies.storage import Storage\nwith Storage(sys.argv[1], {}): print('written')"
    with Storage(tmp_path, CONTENT):
        with refused("", where=tmp_path), Storage(tmp_path, CONTENT):
            pass
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "InputError" in done.stderr
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "written\n", done.stderr


def test_a_full_disk(tmp_path: Path) -> None:
    """By a limit on the size of files: what was stored is whole, and it goes on where there is room again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    stored = 0
    with pytest.raises(StudyStopped, match="kept"), Storage(tmp_path, CONTENT) as folder:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
            while True:
                folder.append([row(stored)])
                stored += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert stored > 2
    assert keys(tmp_path) == [*range(stored)]
    with Storage(tmp_path, CONTENT) as folder:
        folder.append([row(stored)])
    assert keys(tmp_path) == [*range(stored + 1)]
    assert not [*tmp_path.rglob("*.part")]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "journal-00001.jsonl").write_text("{}\n{}\n")
    with refused("line 1", where=tmp_path / "journal-00001.jsonl"):
        read_rows(tmp_path)
    (tmp_path / "cells-00001.parquet").write_text("no")
    with refused("", where=tmp_path / "cells-00001.parquet"):
        read_rows(tmp_path)


def test_the_page_has_the_columns() -> None:
    page = Path(__file__).parents[2] / "docs" / "studies.md"
    assert table_of_columns() in page.read_text(encoding="utf-8")
