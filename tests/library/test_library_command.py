"""`trainplan library` as its users call it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.problem import BUILT_IN

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call
from trainplan.libraries.catalogue import library, shipped_folder
from trainplan.libraries.checking import checker
from trainplan.libraries.records import SHORT, file_name

SHIPPED = library()
REQUEST = ("--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "128", "--memory", "1GiB")
SMALL = next(row["name"] for row in SHIPPED.rows() if row["problem"] == "layer-strategies" and row["best_ns"])


def _json(*words: str | Path) -> Any:
    done = call("library", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list() -> None:
    rows = _json("list")
    assert [row["name"] for row in rows] == SHIPPED.names
    hard = _json("list", "joint/*", "--status", "easy", "--problem", "joint")
    assert {(row["problem"], row["status"]) for row in hard} == {("joint", "easy")}
    shown = call("library", "list", "chain/*").stdout
    assert all(name in shown for name in SHIPPED.matching("chain/").names)
    refuses_in_one_line(call("library", "list", "none/*"), "PATTERN", "'none/*'")
    refuses_in_one_line(call("library", "list", "chain"), "PATTERN", "'chain'", "'chain*'")
    refuses_in_one_line(call("library", "list", "--status", "shut"), "--status", "'shut'", "easy")


def test_show() -> None:
    entry = SHIPPED[SMALL]
    assert _json("show", SMALL) == entry.model_dump(mode="json")
    shown = call("library", "show", SMALL).stdout
    assert entry.about in shown
    assert f"{entry.best} ns" in shown
    assert entry.instance_hash in shown
    refuses_in_one_line(call("library", "show", SMALL + "x"), "name", SMALL)


def test_get(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    assert _json("get", SMALL, "-o", path)["instance_hash"] == SHIPPED[SMALL].instance_hash
    assert tp.load(path).digest == SHIPPED[SMALL].instance_hash
    assert json.loads(call("library", "get", SMALL).stdout) == json.loads(path.read_text())


def test_check(tmp_path: Path) -> None:
    checked = _json("check", SMALL)
    assert [(one["name"], one["faults"]) for one in checked] == [(SMALL, [])]
    content = SHIPPED[SMALL].model_dump(mode="json")
    content["upper_bound"]["value"] += 1
    (tmp_path / file_name(SMALL)).write_bytes(gzip.compress(json.dumps(content).encode()))
    done = call("library", "check", "--library", tmp_path)
    assert done.returncode == 1
    assert str(content["upper_bound"]["value"]) in done.stdout
    infeasible = next(row["name"] for row in SHIPPED.rows() if row["infeasible"] and row["problem"] == "stage-assignment")
    assert "nothing fits" in call("library", "check", f"{infeasible}*").stdout


def test_the_checker_needs_no_trainplan(tmp_path: Path) -> None:
    """As a reader of the page calls it: another Python process without site packages, in another folder."""
    checker = tmp_path / "check_library.py"
    checker.write_bytes((shipped_folder() / checker.name).read_bytes())
    entry, solution = shipped_folder() / file_name(SMALL), tmp_path / "solution.json"
    words = [sys.executable, "-I", "-S", str(checker), str(entry)]
    assert subprocess.run(words, capture_output=True, cwd=tmp_path).returncode == 0
    solution.write_text(json.dumps(SHIPPED[SMALL].solution))
    assert subprocess.run([*words, str(solution)], capture_output=True, cwd=tmp_path).returncode == 0
    solution.write_text('{"choice": [0]}')
    assert subprocess.run([*words, str(solution)], capture_output=True, cwd=tmp_path).returncode in (1, 2)


def test_add(tmp_path: Path) -> None:
    about = ("--about", "A small one.", "--library", tmp_path, "--time-limit", "20")
    added = _json("add", "layer-strategies", *REQUEST, "--name", "chain/mine", *about)
    assert added["request"] == {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 128, "memory": "1GiB"}
    assert tp.library(tmp_path)["chain/mine"].model_dump(mode="json") == added
    assert added["upper_bound"]["value"] == added["lower_bound"]["value"]
    assert _json("check", "chain/mine", "--library", tmp_path)[0]["faults"] == []
    again = call("library", "add", "layer-strategies", *REQUEST, "--name", "chain/mine", *about)
    refuses_in_one_line(again, "--name", "chain/mine")
    again = call("library", "add", "layer-strategies", *REQUEST, "--name", "chain/other", *about)
    refuses_in_one_line(again, "chain/other", "chain/mine")


def test_add_a_file(tmp_path: Path) -> None:
    path, folder = tmp_path / "instance.json", tmp_path / "library"
    folder.mkdir()
    path.write_text(json.dumps(tp.build("stage-assignment", model="gpt2", cluster="cpu-4", batch=8, pipeline=2).to_dict()))
    words = ("--about", "A file.", "--library", folder)
    added = _json("add", path, "--name", "assignment/mine", *words)
    assert (added["request"], added["source"]) == (None, {"file": "instance.json"})
    assert added["instance"] == json.loads(path.read_text())
    refuses_in_one_line(call("library", "add", path, "--name", "mine", *words), "--name", "'mine'", "assignment/")
    refuses_in_one_line(call("library", "add", path, *REQUEST, "--name", "assignment/b", *words), "--model", "instance.json")
    refuses_in_one_line(call("library", "add", tmp_path / "no.json", "--name", "assignment/c", *words), "no.json")


def test_a_request_that_names_files_is_not_kept(tmp_path: Path) -> None:
    """Its entry has the instance alone, since others do not have the files."""
    path = tmp_path / "mine.yaml"
    path.write_text((files("trainplan.data") / "clusters/cpu-4.yaml").read_text())
    words = (
        "--model",
        "gpt2",
        "--cluster",
        path,
        "--batch",
        "8",
        "--sequence",
        "128",
        "--name",
        "chain/own",
        "--about",
        "A file.",
    )
    added = _json("add", "layer-strategies", *words, "--library", tmp_path)
    assert added["request"] is None
    assert added["source"] == {"model": "gpt2", "cluster": "mine.yaml"}
    assert tp.library(tmp_path)["chain/own"].instance().digest == added["instance_hash"]


def test_run(tmp_path: Path) -> None:
    pattern = f"{SMALL[:14]}*"
    words = ("run", pattern, "--methods", "exact,papers", "--time-limit", "5", "-o", tmp_path / "folder")
    scored = _json(*words)
    assert {row["method"] for row in scored["methods"]} == {"exact", "galvatron-dp"}
    assert {one["name"] for one in scored["instances"]} == set(SHIPPED.matching(pattern).names)
    for one in scored["instances"]:
        assert one["method"] != "exact" or one["best_ns"] is None or one["loss"] == 0
        assert one["loss"] is None or one["loss"] >= 0
    assert _json(*words) == scored  # nothing is solved again
    refuses_in_one_line(call("library", "run", "--methods", "guess", "-o", tmp_path / "other"), "--methods", "'guess'")


@pytest.mark.parametrize("problem", BUILT_IN)
def test_every_problem_is_documented(problem: str) -> None:
    page = (Path(__file__).parents[2] / "docs/library.md").read_text()
    assert f"`{SHORT.get(problem, problem)}/`" in page
    assert problem in page


def test_the_page_has_the_numbers_of_instances_and_the_kinds_of_evidence() -> None:
    page = (Path(__file__).parents[2] / "docs/library.md").read_text()
    counts = Counter(name.split("/")[0] for name in SHIPPED.names)
    for short, count in counts.items():
        assert f"| `{short}/` | {count} |" in page
    for checks in checker().PROBLEMS.values():
        assert all(f"`{kind}`" in page for kind in checks.bounds)


def test_the_solver_of_the_page_solves(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/library.md").read_text()
    program = re.search(r"```python\n(import gzip.*?)```", page, re.S)
    assert program is not None
    assert len(program[1].splitlines()) <= 50
    (tmp_path / "solver.py").write_text(program[1])
    words = re.search(r"```sh\npython solver.py (\S+) > solution.json", page)
    assert words is not None
    entry = shipped_folder() / words[1]
    solved = subprocess.run([sys.executable, "-I", tmp_path / "solver.py", entry], capture_output=True, text=True)
    value = tp.check(json.loads(gzip.decompress(entry.read_bytes()))["instance"], json.loads(solved.stdout))
    assert value.violations == ()
