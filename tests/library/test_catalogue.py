"""The library that comes with the package, its entries' format, and what is refused."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.problem import BUILT_IN

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.sizes import one_in
from trainplan.libraries.adding import add, entry_of, improved, solved, with_evidence
from trainplan.libraries.catalogue import INDEX, Library, library, shipped_folder, write_entry
from trainplan.libraries.checking import check_entry
from trainplan.libraries.records import SHORT, Entry, file_name, read_entry

MOST_BYTES = 12 * 2**20
SHIPPED = library()
PARTS = 8  # of the entries, which are checked in parallel
SAMPLE = SHIPPED.names[::12]


@pytest.fixture(scope="module")
def entry() -> Entry:
    """A small entry with a solution and a bound."""
    request = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "1GiB", "sequence": 128}
    new = entry_of(tp.build(**request), "chain/mine", "A test.", {"model": "gpt2"}, request)
    found, instance = solved(new, time_limit=60)
    return with_evidence(found, instance)


def test_every_problem_status_and_source_is_there() -> None:
    rows = SHIPPED.rows()
    assert len(rows) >= 150
    assert {row["problem"] for row in rows} == set(BUILT_IN)
    assert all(row["name"].startswith(f"{SHORT.get(row['problem'], row['problem'])}/") for row in rows)
    assert {"easy", "hard"} <= {row["status"] for row in rows}
    for paper in ("Galvatron-BMW", "H3T", "AMP", "AutoPipe", "Galvatron"):
        assert any(f"paper {paper}" in row["source"] for row in rows), paper
    assert any(row["infeasible"] for row in rows)
    assert len({row["instance_hash"] for row in rows}) == len(rows)


def test_the_library_is_small() -> None:
    assert sum(path.stat().st_size for path in shipped_folder().iterdir()) <= MOST_BYTES


def test_the_index_says_what_the_entries_do() -> None:
    index = json.loads((shipped_folder() / INDEX).read_text())["files"]
    files = {path.name: path.stat().st_size for path in shipped_folder().glob("*.json.gz")}
    assert {name: held["bytes"] for name, held in index.items()} == files
    rows = {row["name"]: row for row in SHIPPED.rows()}
    for name in SAMPLE:
        shipped = SHIPPED[name]
        row = rows[name]
        assert (row["best_ns"], row["bound_ns"], row["status"]) == (shipped.best, shipped.bound, shipped.status)


@pytest.mark.parametrize("name", SAMPLE)
def test_an_entry_is_what_its_request_makes(name: str) -> None:
    _is_rebuilt(SHIPPED[name])


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_entry_is_what_its_request_makes_and_holds(part: int) -> None:
    """Of the entries one in five; `make test-all` has all."""
    for shipped in one_in(5, SHIPPED)[part::PARTS]:
        _is_rebuilt(shipped)
        assert check_entry(shipped).faults == (), shipped.name


@pytest.mark.parametrize("name", SAMPLE)
def test_an_entry_holds(name: str) -> None:
    checked = check_entry(SHIPPED[name])
    assert checked.faults == ()
    assert dict(checked.lines)["verdict"] == "holds"


def _is_rebuilt(shipped: Entry) -> None:
    """An entry's hash is that of its content; and of the instance that its request makes, if its times are of a paper's
    profile: estimates change with the runs that efficiencies are fitted to."""
    assert shipped.content is not None and shipped.instance().digest == shipped.instance_hash
    if shipped.request is not None and "paper" in shipped.source:
        assert tp.build(shipped.problem, **shipped.request).digest == shipped.instance_hash


def test_bounds_are_consistent() -> None:
    for row in SHIPPED.rows():
        numbers = [row[name] for name in ("checked_bound_ns", "bound_ns", "best_ns") if row[name] is not None]
        assert numbers == sorted(numbers), row["name"]
        closed = row["infeasible"] or row["bound_ns"] == row["best_ns"] is not None
        assert closed == (row["status"] != "open"), row["name"]
        assert row["infeasible"] or row["best_ns"], row["name"]


def test_parts_of_the_library() -> None:
    joint = tp.library().matching("joint/*")
    assert 0 < len(joint) < len(SHIPPED)
    assert (
        {row["problem"] for row in joint.rows()} == {"joint"} == {row["problem"] for row in SHIPPED.matching("joint/").rows()}
    )
    assert len(SHIPPED.matching(problem="joint", status="easy")) == len(joint.matching(status="easy"))
    assert list(joint.frame()["name"]) == joint.names
    assert next(iter(joint)).name == joint.names[0]
    assert joint.names[0] in joint
    with refused("PATTERN", ("'nothing*'",)):
        SHIPPED.matching("nothing*")
    with refused("--status".removeprefix("--"), ("'shut'",), ("easy", "hard", "open")):
        SHIPPED.matching(status="shut")
    with refused("name", ("'joint/no-such'",)):
        SHIPPED["joint/no-such"]
    with refused(where="no/such/folder"):
        tp.library("no/such/folder")


def test_a_folder_is_a_library(entry: Entry, tmp_path: Path) -> None:
    path = add(entry, tmp_path)
    assert path.name == file_name(entry.name)
    found = tp.library(tmp_path)
    assert found.names == [entry.name]
    assert found[entry.name] == entry == read_entry(path)
    (tmp_path / INDEX).unlink()  # an index is only faster
    assert tp.library(tmp_path).rows() == found.rows()
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert read_entry(plain) == entry
    with refused("--name".removeprefix("--"), (entry.name,)):
        add(entry, tmp_path)
    with refused("instance_hash", (entry.name,)):
        add(entry.changed(name="chain/again"), tmp_path)


def test_the_index_follows_its_files(entry: Entry, tmp_path: Path) -> None:
    write_entry(tmp_path, entry)
    path = tmp_path / file_name(entry.name)
    changed = entry.model_dump(mode="json") | {"about": "Another sentence, of another length."}
    path.write_bytes(gzip.compress(json.dumps(changed).encode()))
    assert library(tmp_path).rows()[0]["about"] == changed["about"]
    (tmp_path / INDEX).write_text("no JSON")
    assert library(tmp_path).rows()[0]["about"] == changed["about"]


def _without(content: dict[str, Any], *path: str) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return changed


@pytest.mark.parametrize(
    "path",
    [("name",), ("upper_bound", "solution"), ("lower_bound", "who"), ("instance_hash",), ("upper_bound", "machine")],
)
def test_fields_that_are_missing(entry: Entry, path: tuple[str, ...]) -> None:
    with refused(".".join(path), where="here"):
        from trainplan.profiling.base.files import parse

        parse(_without(entry.model_dump(mode="json"), *path), Entry, "here")


WRONG = {
    "a better value": {"upper_bound": {"value": -1}},
    "a worse solution": {"upper_bound": {"solution": {"choice": [0] * 14}}},
    "a solution of another length": {"upper_bound": {"solution": {"choice": [0, 1]}}},
    "a bound above the solution": {"lower_bound": {"value": 10**15}},
    "another hash": {"instance_hash": "0" * 64},
    "another status": {"status": "open"},
    "a bound without a method's": {"checked_lower_bound": {"value": 10**15, "kind": "none-such", "evidence": {}}},
    "evidence of an unknown kind": {"checked_lower_bound": {"value": 1, "kind": "none-such", "evidence": {}}},
    "nothing fits, with a solution": {"infeasible": True, "reason": "so it is said"},
    "nothing fits, though something does": {
        "infeasible": True,
        "reason": "so it is said",
        "upper_bound": None,
        "lower_bound": None,
        "checked_lower_bound": None,
    },
    "another size": {"size": {"layers": 1}},
    "another problem's name": {"name": "joint/test"},
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_check_refuses_is_not_written(case: str, entry: Entry, tmp_path: Path) -> None:
    content: dict[str, Any] = entry.model_dump(mode="json")
    for name, value in WRONG[case].items():
        content[name] = content[name] | value if isinstance(value, dict) and content[name] else value
    if case == "a better value":
        content["upper_bound"]["value"] = content["lower_bound"]["value"] = entry.best - 1
    changed = Entry.model_validate(content)
    assert check_entry(changed).faults
    with refused():
        add(changed, tmp_path)
    assert not list(tmp_path.glob("*.gz"))


def test_results_improve_an_entry(entry: Entry) -> None:
    instance = entry.instance()
    blank = entry_of(instance, "chain/blank", "A test.", {"model": "gpt2"})
    assert (blank.status, blank.best, blank.bound, blank.gap) == ("open", None, None, None)
    paper = improved(blank, tp.solve(instance, "galvatron-dp"))
    assert paper.best is not None
    exact = improved(paper, tp.solve(instance), who="someone")
    assert exact.status == "easy"
    assert exact.best == exact.bound == entry.best
    assert exact.upper_bound is not None
    assert (exact.upper_bound.who == "someone") == (exact.best < paper.best)
    assert improved(exact, tp.solve(instance, "galvatron-dp")) == exact
    other = tp.build(model="gpt2", cluster="cpu-4", batch=16, memory="2GiB", sequence=128)
    with refused("instance_hash"):
        improved(exact, tp.solve(other))


def test_nothing_fits() -> None:
    request = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "100MiB", "sequence": 128}
    found, _ = solved(entry_of(tp.build(**request), "chain/tight", "A test.", {"model": "gpt2"}, request), time_limit=60)
    assert (found.infeasible, found.status, found.best, found.bound) == (True, "easy", None, None)
    assert found.reason
    assert check_entry(found).faults == ()


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=30))
def test_names_that_are_none(name: str) -> None:
    instance = tp.build(model="gpt2", cluster="cpu-4", batch=8, memory="1GiB", sequence=128)
    with refused():
        entry_of(instance, name, "A test.", {"model": "gpt2"})


def test_a_large_instance_may_be_a_request(entry: Entry) -> None:
    large = entry.changed(content=None)
    assert large.instance().digest == entry.instance_hash and large.whole() == entry.whole()
    assert isinstance(SHIPPED, Library)


def test_a_file_with_the_name_of_another_entry_is_refused(entry: Entry, tmp_path: Path) -> None:
    write_entry(tmp_path, entry)
    path = tmp_path / file_name(entry.name)
    path.rename(path.with_name(file_name("chain/other")))
    with refused(where=str(path)):
        list(library(tmp_path))
    write_entry(tmp_path, entry.changed(name="chain/next"))
    (tmp_path / file_name("chain/next")).write_bytes((tmp_path / file_name("chain/other")).read_bytes())
    with refused("name"):
        library(tmp_path)["chain/next"]
