"""Joint instances in files: what comes back, and one line for every fault."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.files import load, load_solution, solution_dict
from trainplan.formulations.joint.restrictions import restrict
from trainplan.formulations.stage_assignment.problem import load as load_chain
from trainplan.profiling.base.errors import InputError

from tests.solvers.joint_instances import random_instance

CHAIN = {"problem": "stage-assignment", "version": 1, "stages": 3, "micro_batches": 4}
TIMES = {"layer_ns": [3, 1, 4, 1], "transfer_ns": [1, 5, 9]}
BASE: dict[str, Any] = restrict(load_chain(CHAIN | TIMES)).instance.to_dict()
TABLE = {"options": [{"name": "a"}], "columns": {}}


def content(**changes: Any) -> dict[str, Any]:
    """An instance of three stages of four layers in its file format, with other values at dotted paths."""
    value: dict[str, Any] = json.loads(json.dumps(BASE))
    for path, new in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        place: Any = value
        for part in way:
            place = place[part]
        place[last] = new
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
    ({"step": "eq9"}, "step is 'eq9'"),
    ({"units": []}, "units"),
    ({"boundary_kinds": [0]}, "boundary_kinds has 1 entries; give 3"),
    ({"cuttable": [True]}, "cuttable has 1 entries; give 3"),
    ({"units__0__kind": 9}, "tables\\[0\\].units has 4 entries; give 10"),
    ({"boundary_kinds__0": 5}, "boundaries has 3 entries; give 6"),
    ({"tables__0__units__0": {"options": [], "columns": {}}}, "options"),
    ({"tables__0__units__0": {**TABLE, "columns": {"time_ns": [1]}}}, "columns has 'time_ns'"),
    ({"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [1, 2]}}}, "forward_ns has 2 entries; give 1"),
    ({"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [-1]}}}, "forward_ns"),
    ({"tables__0__units__0": {"options": [{"name": "a"}, {"name": "a"}], "columns": {}}}, "have one name twice"),
    ({"tables__0__units__0__options__0__strategy": "dp1"}, "strategy is 'dp1'"),
    ({"tables__0__units__0": {**TABLE, "columns": {"leave": [3]}}}, "relayout_forward_ns has 1 rows; give 4"),
    ({"tables__0__units__1": {**TABLE, "columns": {"enter": [2]}}}, "relayout_forward_ns has 1 columns; give 3"),
    ({"tables__0__boundaries__0__relayout_backward_ns": [[0], [0]]}, "relayout_backward_ns has 2 rows; give 1"),
    ({"tables__0__boundaries__0__message_forward_ns": []}, "message_forward_ns has 0 matrices; give 2"),
    ({"tables__0__boundaries__0__message_forward_ns": [[[1, 2]], [[1]]]}, "message_forward_ns\\[0\\]\\[0\\] has 2 entries"),
    ({"configurations": []}, "configurations"),
    ({"configurations__0__micro_batches": 7, "batch": 8}, "micro_batches is 7; give a divisor of 8"),
    ({"configurations__0__links": [0]}, "links has 1 entries; give 2"),
    ({"configurations__0__tables": [9, 1, 2]}, "tables has 9"),
    ({"configurations__0__tied": 0}, "tied is 0"),
    ({"configurations__0__cuts": [2, 1]}, "cuts is \\[2, 1\\]"),
    ({"configurations__0__cuts": [1]}, "cuts has 1 entries; give 2"),
    ({"configurations__0__schedule": {"name": "1f1b", "chunks": 2}}, "chunks"),
    ({"configurations__0__schedule": {"name": "gpipe", "sliced": 1}}, "sliced is 1; give at most 0"),
    ({"configurations__0__schedule": {"name": "1f1b", "sliced": 9}}, "sliced is 9; give at most"),
    ({"configurations__0__schedule": {"name": "1f1b", "sliced": 1}}, "lacks `halved`"),
    ({"configurations__0__sites__0__devices": [1, 1, 1, 1, 1]}, "devices has 5 entries"),
    ({"configurations__0__sites__0__kind": 8}, "is of kind 8"),
    ({"ties": [{"reduce_ns": 1, "equal": [[True]]}]}, "once"),
    ({"tables__0__units__0": {**TABLE, "columns": {"forward_ns": [2**52]}}}, "may take"),
]


@pytest.mark.parametrize(("change", "text"), FAULTS, ids=[text for _, text in FAULTS])
def test_faults_are_told_in_one_line(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
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
def test_solutions_that_are_none_are_told(change: Callable[[dict[str, Any]], dict[str, Any]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        load_solution(change({"configuration": 0, "cuts": [1], "choice": [0, 0]}))
