"""Joint instances in files: what comes back, and one line for every fault."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.instance_file import load, load_solution, solution_dict
from trainplan.formulations.stage_assignment.problem import load as load_chain

from tests.helpers.joint_instances import random_instance
from tests.helpers.papers_as_joint.restrict import restrict
from tests.helpers.refusals import refused

CHAIN = {"problem": "stage-assignment", "version": 1, "stages": 3, "micro_batches": 4}
TIMES = {"layer_ns": [3, 1, 4, 1], "transfer_ns": [1, 5, 9]}
BASE: dict[str, Any] = restrict(load_chain(CHAIN | TIMES)).instance.to_dict()
TABLE = {"options": [{"name": "a"}], "columns": {}}


def content(**changes: Any) -> dict[str, Any]:
    """An instance of three stages of four layers in its file format, with other values at dotted paths."""
    value: dict[str, Any] = json.loads(json.dumps(BASE))
    for path, new in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        node: Any = value
        for part in way:
            node = node[part]
        node[last] = new
    return value


@pytest.mark.parametrize("seed", range(60))
def test_instances_come_back(seed: int) -> None:
    """With every number: all solutions cost the same."""
    instance = random_instance(random.Random(seed), 4, 2)
    again = load(json.loads(json.dumps(instance.to_dict())))
    assert again.digest == instance.digest and again.to_dict() == instance.to_dict()
    for solution in solutions(instance):
        if solution is not None:
            assert load_solution(solution_dict(solution)) == solution
            assert evaluate(again, solution) == evaluate(instance, solution)


def test_digests_tell_instances_apart() -> None:
    digests = {load(content(**change)).digest for change in UNLIKE}
    assert len(digests) == len(UNLIKE)
    assert load(content(name="other", provenance={"a": 1})).digest == load(content()).digest


UNLIKE: list[dict[str, Any]] = [
    {},
    {"step": "simulated"},
    {"reserve_bytes": 1},
    {"cuttable__0": False},
    {"classes__0__host_bytes": 5},
    {"configurations__0__schedule__name": "gpipe"},
    {"configurations__0__cuts": [1, 2]},
    {"tables__0__units__0__columns": {"forward_ns": [12345]}},
    {"tables__0__boundaries__0__relayout_forward_ns": [[7]]},
    {"tables__0__boundaries__0__relayout_at_cut": False},
]

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"step": "eq9"}, ("step", "eq9", ("simulated", "eq8", "eq5", "eq4"))),
    ({"units": []}, ("units", "[]", 1)),
    ({"boundary_kinds": [0]}, ("boundary_kinds", 1, 3)),
    ({"cuttable": [True]}, ("cuttable", 1, 3)),
    ({"units__0__kind": 9}, ("tables[0].units", 4, 10)),
    ({"boundary_kinds__0": 5}, ("tables[0].boundaries", 3, 6)),
    ({"tables__0__units__0": {"options": [], "columns": {}}}, ("tables[0].units[0].options", "[]", 1)),
    (
        {"tables__0__units__0": {**TABLE, "columns": {"time_ns": [1]}}},
        ("tables[0].units[0].columns", "time_ns", ("enter", "leave", "forward_ns")),
    ),
    ({"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [1, 2]}}}, ("tables[0].units[0].columns.forward_ns", 2, 1)),
    ({"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [-1]}}}, ("tables[0].units[0].columns.forward_ns[0]", -1, 0)),
    (
        {"tables__0__units__0": {"options": [{"name": "a"}, {"name": "a"}], "columns": {}}},
        ("tables[0].units[0].options", "name"),
    ),
    ({"tables__0__units__0__options__0__strategy": "dp1"}, ("tables[0].units[0].options[0].strategy", "dp1", "dp2-tp4-ckpt")),
    ({"tables__0__units__0": {**TABLE, "columns": {"leave": [3]}}}, ("tables[0].boundaries[0].relayout_forward_ns", 1, 4)),
    ({"tables__0__units__1": {**TABLE, "columns": {"enter": [2]}}}, ("tables[0].boundaries[0].relayout_forward_ns", 1, 3)),
    ({"tables__0__boundaries__0__relayout_backward_ns": [[0], [0]]}, ("tables[0].boundaries[0].relayout_backward_ns", 2, 1)),
    ({"tables__0__boundaries__0__message_forward_ns": []}, ("tables[0].boundaries[0].message_forward_ns", 0, 2)),
    (
        {"tables__0__boundaries__0__message_forward_ns": [[[1, 2]], [[1]]]},
        ("tables[0].boundaries[0].message_forward_ns[0][0]", 2, 1),
    ),
    ({"configurations": []}, ("configurations", "[]", 1)),
    ({"configurations__0__micro_batches": 7, "batch": 8}, ("configurations[0].micro_batches", 7, 8)),
    ({"configurations__0__links": [0]}, ("configurations[0].links", 1, 2)),
    ({"configurations__0__tables": [9, 1, 2]}, ("configurations[0].tables", 9, (0, 2))),
    ({"configurations__0__tied": 0}, ("configurations[0].tied", 0, 0)),
    ({"configurations__0__cuts": [2, 1]}, ("configurations[0].cuts", "[2, 1]", (1, 3))),
    ({"configurations__0__cuts": [1]}, ("configurations[0].cuts", 1, 2)),
    ({"configurations__0__schedule": {"name": "1f1b", "chunks": 2}}, ("configurations[0].schedule.chunks", 2, (1, "1f1b"))),
    ({"configurations__0__schedule": {"name": "gpipe", "sliced": 1}}, ("configurations[0].schedule.sliced", 1, (0, "gpipe"))),
    ({"configurations__0__schedule": {"name": "1f1b", "sliced": 9}}, ("configurations[0].schedule.sliced", 9, (2, "1f1b"))),
    ({"configurations__0__schedule": {"name": "1f1b", "sliced": 1}}, ("tables[0]", "halved")),
    ({"configurations__0__sites__0__devices": [1, 1, 1, 1, 1]}, ("configurations[0].sites[0].devices", 5, 1)),
    ({"configurations__0__sites__0__kind": 8}, ("configurations[0].sites[0]", "kind 8", (0, 2))),
    ({"ties": [{"reduce_ns": 1, "equal": [[True]]}]}, ("ties[0].once", "equal")),
    (
        {"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [2**52]}}},
        ("configurations[0].micro_batches", (4, "7.21e+16 ns"), "9.01e+15"),
    ),
]


@pytest.mark.parametrize(("change", "text"), FAULTS, ids=[text[0] for _, text in FAULTS])
def test_faults_are_reported_in_one_line(change: dict[str, Any], text: tuple[Any, ...]) -> None:
    with refused(*text) as caught:
        load(content(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: {**s, "configuration": -1}, "configuration"),
        (lambda s: {**s, "choice": "abc"}, "choice"),
        (lambda s: {"cuts": [1]}, "configuration"),
    ],
)
def test_solutions_that_are_none_are_reported(change: Callable[[dict[str, Any]], dict[str, Any]], text: str) -> None:
    with refused(text):
        load_solution(change({"configuration": 0, "cuts": [1], "choice": [0, 0]}))


def shared(**changes: Any) -> dict[str, Any]:
    """An instance of one stage whose ends share a table, of three and two options, with other values of the tie."""
    rng = random.Random(0)
    table = {"options": [{"name": "a"}, {"name": "b"}], "columns": {"enter": [0, 1], "forward_ns": [3, 4]}}
    value: dict[str, Any] = random_instance(rng, 4, 2, plain=True).to_dict()
    while len(value["configurations"][0]["sites"]) > 1 or len(value["units"]) < 2:
        value = random_instance(rng, 4, 2, plain=True).to_dict()
    value = json.loads(json.dumps(value))
    for index, unit in enumerate(value["units"]):
        unit["kind"] = int(index > 0)
    first = {"options": [{"name": name} for name in "abc"], "columns": {}}
    zeros = [[0, 0]]
    boundary = {"relayout_forward_ns": zeros, "relayout_backward_ns": zeros, "message_forward_ns": [zeros] * 2}
    boundary["message_backward_ns"] = [zeros] * 2
    for tables in value["tables"]:
        tables["units"], tables["boundaries"] = [first, table], [boundary] * (max(value["boundary_kinds"]) + 1)
    once = {**table, "columns": {"enter": [0, 1], "forward_ns": [1, 2]}}
    value["ties"] = [{"reduce_ns": 5, "equal": [[True, False]] * 3, "once": once, **changes}]
    value["configurations"] = [{**value["configurations"][0], "tied": 0}]
    return value


ONCE: dict[str, Any] = shared()["ties"][0]["once"]
TIES: list[tuple[dict[str, Any], str]] = [
    ({"reduce_ns": -1}, ("ties[0].reduce_ns", -1, 0)),
    ({"equal": [[True, False]] * 2}, ("ties[0].equal", 2, 3)),
    ({"equal": []}, ("ties[0].equal", 0, 3)),
    ({"equal": [[True, False], [True], [True, True]]}, ("ties[0].equal[1]", 1, 2)),
    ({"equal": [[True, False, True]] * 3}, ("ties[0].equal[0]", 3, 2)),
    (
        {"once": {"options": [{"name": "a"}], "columns": {}}},
        ("ties[0].once.options", 1, 2),
    ),
    ({"once": {**ONCE, "options": [{"name": "b"}, {"name": "a"}]}}, ("ties[0].once.options",)),
    ({"once": {**ONCE, "columns": {"enter": [0, 7]}}}, ("ties[0].once.columns.enter",)),
    ({"once": {**ONCE, "columns": {"enter": [0, 1], "leave": [2, 0]}}}, ("ties[0].once.columns.leave",)),
    ({"once": {**ONCE, "columns": {"enter": [0, 1], "forward_ns": [1]}}}, ("ties[0].once.columns.forward_ns", 1, 2)),
    ({"once": None}, ("ties[0].once", "equal")),
]


@pytest.mark.parametrize(("change", "text"), TIES, ids=[text[0] for _, text in TIES])
def test_shared_tables_of_another_shape_are_reported_in_one_line(change: dict[str, Any], text: tuple[Any, ...]) -> None:
    assert all(evaluate(load(shared()), solution).time_ns > 0 for solution in solutions(load(shared())) if solution is not None)
    with refused(*text) as caught:
        load(shared(**change))
    assert "\n" not in str(caught.value)


def test_only_one_stage_has_a_shared_table_as_one_parameter(tmp_path: Path) -> None:
    value = shared()
    value["configurations"][0] |= {"sites": value["configurations"][0]["sites"] * 2, "links": [0], "cuts": None}
    path = tmp_path / "shared.json"
    path.write_text(json.dumps(value))
    with refused("configurations[0].tied", problem=(0, "`once`", 2), fix="`once`") as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
