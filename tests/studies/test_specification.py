"""Study files become cells: counted by hand, and for any axes by what a product is."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.studies.cells import NO_LIMITS
from trainplan.studies.specification import specification

BASE: dict[str, Any] = {
    "name": "one",
    "models": ["gpt2", "llama-3.1-8b"],
    "clusters": ["h100:8"],
    "batches": [64, 128],
    "problems": ["joint", "pipeline"],
    "methods": ["exact", "milp"],
}


def names(**changes: Any) -> list[str]:
    return [cell.name for cell in specification({**BASE, **changes}).cells]


def test_the_product_of_axes() -> None:
    study = specification(BASE)
    assert len(study.cells) == 2 * 1 * 2 * 2 * 2
    assert study.cells[0].name == "gpt2 · h100:8 · 64 · joint · exact"
    assert study.cells[0].request == {"model": "gpt2", "cluster": "h100:8", "batch": 64}
    assert (study.cells[0].limits, study.cells[0].task) == (NO_LIMITS, "solve")
    assert (
        len(
            names(
                limits=[{"time_limit": 1}, {"time_limit": None, "memory": "8GiB"}], seeds=[0, 1], repeats=3, cold=[True, False]
            )
        )
        == 16 * 24
    )


@pytest.mark.parametrize(
    ("axis", "numbers"),
    [
        ({"from": 8, "to": 64, "times": 2}, [8, 16, 32, 64]),
        ({"from": 8, "to": 70, "times": 2}, [8, 16, 32, 64]),
        ({"from": 8, "to": 32, "plus": 8}, [8, 16, 24, 32]),
        ({"from": 2, "to": 4}, [2, 3, 4]),
        ([4, {"from": 8, "to": 16, "times": 2}], [4, 8, 16]),
        (7, [7]),
    ],
)
def test_ranges(axis: Any, numbers: list[int]) -> None:
    study = specification({**BASE, "models": "gpt2", "batches": axis, "problems": "joint", "methods": "exact"})
    assert [cell.request["batch"] for cell in study.cells] == numbers


def test_sizes_of_clusters() -> None:
    """A kind with a number of devices is whole nodes of it; by an axis of its own, or as a keyword with nodes."""
    one = {**BASE, "models": "gpt2", "batches": 64, "problems": "joint", "methods": "exact"}
    kinds = {"kind": "h100", "devices": {"from": 4, "to": 64, "times": 4}}
    clusters = ["h100:4", "h100:8x2", "h100:8x8"]
    assert [cell.request["cluster"] for cell in specification({**one, "clusters": [kinds]}).cells] == clusters
    sized = specification({**one, "clusters": "h100", "with": {"devices": [4, 16, 64]}}).cells
    assert [cell.request for cell in sized] == [{"model": "gpt2", "cluster": name, "batch": 64} for name in clusters]
    nodes = specification({**one, "clusters": "h100", "with": {"devices": 16, "nodes": [2, 4]}}).cells
    assert [cell.request["cluster"] for cell in nodes] == ["h100:8x2", "h100:4x4"]


def test_keywords_and_plans() -> None:
    study = specification(
        {
            **BASE,
            "problems": None,
            "runtimes": ["megatron", None],
            "methods": ["exact"],
            "with": {"tp": [1, 2], "memory": "40GiB"},
            "sequences": "8k",
        }
    )
    assert len(study.cells) == 2 * 2 * 2 * 2
    cell = study.cells[0]
    assert (cell.task, cell.problem, cell.runtime) == ("plan", None, "megatron")
    assert cell.request == {"model": "gpt2", "cluster": "h100:8", "batch": 64, "sequence": 8192, "tp": 1, "memory": "40GiB"}


def test_exclusions_groups_and_blocks() -> None:
    study = specification(
        {
            **BASE,
            "exclude": [{"models": "gpt2", "problems": "joint"}, {"batches": {"from": 100, "to": 200}, "methods": ["milp"]}],
            "groups": {"small": {"models": "gpt*"}, "wide": {"batches": 128}},
            "include": [
                {"name": "more", "models": "gpt2", "clusters": "h100:8", "batches": [64, 256], "problems": "joint"},
                {
                    "models": "gpt2",
                    "clusters": "cpu-4",
                    "batches": 8,
                    "problems": "layer-strategies",
                    "methods": "galvatron-dp",
                },
            ],
        }
    )
    # Of 16, gpt2 with joint are 4; of the other 12, batch 128 with milp are 3. A block's cells can be excluded, too.
    assert study.excluded == (4 + 2, 3)
    assert len(study.cells) == 16 - 4 - 3 + 0 + 1
    groups = {cell.name: cell.groups for cell in study.cells}
    assert groups["gpt2 · h100:8 · 64 · pipeline · exact"] == ("small",)
    assert groups["llama-3.1-8b · h100:8 · 128 · joint · exact"] == ("wide",)
    assert groups["gpt2 · cpu-4 · 8 · layer-strategies · galvatron-dp"] == ("small",)
    included = specification(
        {**BASE, "include": [{"name": "more", "models": "gpt2", "clusters": "h100:8", "batches": 64, "problems": "joint"}]}
    )
    assert [cell.groups for cell in included.cells].count(("more",)) == 1  # the same cell is in both, once
    assert len(included.cells) == 16


def test_methods_that_a_problem_has() -> None:
    study = specification({**BASE, "methods": ["exact", {"method": "galvatron-bmw", "stage_time": "iteration"}]})
    assert study.without == (("joint", "galvatron-bmw"),)
    assert len(study.cells) == 8 + 4
    assert {json.dumps(cell.options) for cell in study.cells} == {"{}", '{"stage_time": "iteration"}'}
    with refused("methods", problem="galvatron-dp", fix="galvatron-bmw"):
        specification({**BASE, "methods": ["exact", "galvatron-dp"]})


def test_instances_from_files(tmp_path: Path) -> None:
    for batch in (8, 16):
        instance = tp.build("layer-strategies", model="gpt2", cluster="cpu-4", batch=batch, memory="2GiB")
        (tmp_path / f"{batch}.json").write_text(json.dumps(instance.to_dict()))
    cells = specification({"name": "files", "instances": f"{tmp_path}/*.json", "methods": ["exact", "galvatron-dp"]}).cells
    assert [cell.request["instance"] for cell in cells] == [f"{tmp_path}/16.json"] * 2 + [f"{tmp_path}/8.json"] * 2
    assert {cell.problem for cell in cells} == {"layer-strategies"}
    before = cells[0].request_text
    (tmp_path / "16.json").write_text((tmp_path / "8.json").read_text())
    assert specification({"name": "files", "instances": f"{tmp_path}/16.json"}).cells[0].request_text != before


BAD = [
    ({"modles": "gpt2"}, "modles", (), "models"),
    ({"include": [{"method": "exact"}]}, "include[0].method", (), "methods"),
    ({"problem": "joint"}, "problem", (), "problems"),
    ({"runtimes": "megatron"}, "problems", "pipeline", "joint"),
    ({"price": 2.5}, "price", (), "task: plan"),
    ({"methods": "magic"}, "methods", "magic", "exact"),
    ({"problems": "joined"}, "problems", "joined", "joint"),
    ({"problems": None}, "problems", (), "joint"),
    ({"batches": "many"}, "batches", "many", ()),
    ({"batches": [8, 8]}, "batches", (), ()),
    ({"batches": []}, "batches", (), ()),
    ({"batches": {"from": 8, "to": 64, "times": 1}}, "batches", (), ()),
    ({"batches": {"from": 8, "to": 4}}, "batches", (), ()),
    ({"batches": {"from": 8}}, "batches", (), ()),
    ({"batches": True}, "batches", (), ()),
    ({"with": {"memmory": "8GiB"}}, "with.memmory", (), "memory"),
    ({"limits": {"time": 3}}, "limits", (), "time_limit"),
    ({"limits": {"time_limit": -1}}, "limits.time_limit", "-1", ()),
    ({"limits": {"memory": "1KiB"}}, "limits.memory", "1KiB", "64MiB"),
    ({"limits": {"gap": None}}, "limits.gap", (), ()),
    ({"exclude": [{"modles": "gpt2"}]}, "exclude[0].modles", (), "models"),
    ({"exclude": [{"clusters": "h*"}]}, "", (), ()),
    ({"cold": "yes"}, "cold", "yes", "true"),
    ({"repeats": 0}, "repeats", "0", ()),
    ({"seeds": 2**63}, "seeds", (), ()),
    ({"batches": 10**400}, "batches", (), ()),
    ({"with": {"tp": 2**63}}, "with.tp", (), ()),
    ({"with": {"network": [1.0, float("inf")]}}, "with.network", (), ()),
    ({"with": {"network": {"from": 0.5, "to": 2}}}, "with.network", "0.5", "from: 8"),
    ({"limits": {"time_limit": float("inf")}}, "limits.time_limit", (), ()),
    ({"limits": {"memory": "8XB"}}, "limits.memory", "8XB", "8GiB"),
    ({"sequences": "8q"}, "sequences", "8q", "8k"),
    ({"exclude": [{"sequences": "8q"}]}, "exclude[0].sequences", "8q", "8k"),
    ({"exclude": [{}]}, "exclude[0]", (), "models"),
    ({"groups": {"a": {"modles": "gpt2"}}}, "groups.a.modles", (), "models"),
    ({"instances": "library:no such instance"}, "instances", "no such instance", ()),
    ({"clusters": {"kind": "h100", "devices": 12}}, "clusters", (), "h100:6x2"),
    ({"clusters": "h100:8", "with": {"devices": 8}}, "with.devices", (), "h100"),
    ({"task": "solve", "runtimes": "megatron"}, "runtimes", (), ()),
    ({"instances": "nowhere.json"}, "", (), ()),
]


@pytest.mark.parametrize(("changes", "field", "problem", "fix"), BAD)
def test_what_is_refused(changes: dict[str, Any], field: str, problem: Any, fix: Any) -> None:
    with refused(field, problem, fix):
        specification({**BASE, **changes})


def test_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("name: x\nmodels: gpt2\nclusters: cpu-4\nbatches: 8\nproblems: joint\ninclude: [{batches: no}]\n")
    with refused("include[0].problems", where=file):
        specification(file)


AXES = st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True)


@settings(max_examples=60, deadline=None)
@given(AXES, AXES, st.lists(st.sampled_from(["exact", "milp", "cpsat"]), min_size=1, unique=True), st.sets(st.integers(1, 50)))
def test_cells_are_the_product_without_the_excluded(
    batches: list[int], seeds: list[int], methods: list[str], left_out: set[int]
) -> None:
    data: dict[str, Any] = {"name": "any", "models": "gpt2", "clusters": "cpu-4", "problems": "joint"}
    data |= {
        "batches": batches,
        "seeds": seeds,
        "methods": methods,
        "exclude": [{"batches": sorted(left_out)}] if left_out else [],
    }
    wanted = [values for values in product(batches, methods, seeds) if values[0] not in left_out]
    if not wanted:
        with refused(""):
            specification(data)
        return
    study = specification(data)
    assert [(cell.request["batch"], cell.method, cell.seed) for cell in study.cells] == wanted
    assert sum(study.excluded) == len(batches) * len(methods) * len(seeds) - len(wanted)
    assert len({cell.name for cell in study.cells}) == len(study.cells)
    assert specification(json.loads(json.dumps(study.content))).cells == study.cells
