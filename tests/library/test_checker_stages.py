"""The library's checker on stage-assignment, pipeline-partition and cluster-strategy: it agrees with the package on solutions,
bounds nothing above the optimum, and refuses what is wrong."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.cluster_strategy.problem import Solution as Strategy
from trainplan.formulations.pipeline_partition.problem import Solution as Partition
from trainplan.formulations.problem import problem
from trainplan.formulations.stage_assignment.problem import Solution as Assignment
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers.assignments import random_assignment
from tests.helpers.cluster_instances import random_cluster
from tests.helpers.partition_instances import random_partition
from trainplan.libraries.checking import checker
from trainplan.libraries.evidence_stages import evidence

MIXED, ALIKE, TITANS = "amp-heterogeneous-16", "amp-homogeneous-16", "rtx-titan-8"
AUTOPIPE = "autopipe-3090-16"
REAL: list[tuple[str, str, str, dict[str, Any]]] = [
    ("stage-assignment", "amp-gpt2", MIXED, {"batch": 32, "pipeline": 4, "micro_batches": 8}),
    ("stage-assignment", "amp-gpt2", ALIKE, {"batch": 32, "pipeline": 8, "micro_batches": 16, "recompute": True}),
    ("stage-assignment", "amp-transgan", MIXED, {"batch": 64, "pipeline": 8, "micro_batches": 8, "by_unit": True}),
    ("stage-assignment", "gpt2-xl", "a100-16", {"batch": 64, "pipeline": 16, "micro_batches": 32, "by_unit": True}),
    ("stage-assignment", "bert-huge-32", TITANS, {"batch": 64, "pipeline": 8, "micro_batches": 16}),
    ("pipeline-partition", "gpt2-345m", AUTOPIPE, {"batch": 128, "pipeline": 4, "micro_batches": 8}),
    ("pipeline-partition", "gpt2-345m", AUTOPIPE, {"batch": 128, "pipeline": 8, "micro_batches": 8, "recompute": True}),
    ("pipeline-partition", "gpt2-762m", AUTOPIPE, {"batch": 128, "pipeline": 8, "micro_batches": 16, "recompute": True}),
    ("pipeline-partition", "gpt2-1.3b", AUTOPIPE, {"batch": 128, "pipeline": 16, "micro_batches": 32}),
    ("pipeline-partition", "bert-large", AUTOPIPE, {"batch": 128, "pipeline": 16, "micro_batches": 16}),
    ("pipeline-partition", "bert-huge-32", TITANS, {"batch": 64, "pipeline": 8, "micro_batches": 32}),
    ("pipeline-partition", "gpt2", "h100-8", {"batch": 64, "pipeline": 4, "micro_batches": 16}),
    ("cluster-strategy", "amp-gpt2", MIXED, {"batch": 32}),
    ("cluster-strategy", "amp-gpt2", "amp-p3-16", {"batch": 128, "by_unit": True, "uneven_shares": True}),
    ("cluster-strategy", "amp-transgan", MIXED, {"batch": 64, "ignore_memory": True}),
    ("cluster-strategy", "llama3-8b", "h100-8", {"batch": 64, "tied": False}),
    ("cluster-strategy", "gpt2-xl", "h100-64", {"batch": 64}),
]
SLOW = [  # whose optimum takes seconds to find
    ("bert-huge-32", TITANS, {"batch": 32, "recompute": True}, "pipelines"),
    ("gpt2-1.3b", "a100-64", {"batch": 128}, "pipelines"),
    ("amp-gpt2", ALIKE, {"batch": 32}, "placements"),
]
RANDOM = {"stage-assignment": random_assignment, "pipeline-partition": random_partition, "cluster-strategy": random_cluster}


@cache
def real(index: int) -> Any:
    """The instance at an index of REAL."""
    name, model, cluster, options = REAL[index]
    return tp.build(name, model=model, cluster=cluster, **options)


@cache
def optimum(index: int) -> Result:
    """The optimal solution of the instance at an index of REAL."""
    result = solve(real(index), "exact", time_limit=60)
    assert result.status == "optimal" and result.objective is not None
    return result


def any_cuts(layers: int, stages: int, rng: random.Random) -> tuple[int, ...]:
    """Some cuts of a number of layers into stages."""
    return tuple(sorted(rng.sample(range(1, layers), stages - 1)))


def any_solution(instance: Any, rng: random.Random) -> Any:
    """Some solution of an instance of any of the three problems, which may need too much memory."""
    if instance.problem == "stage-assignment":
        return Assignment(any_cuts(instance.layers, instance.stages, rng))
    if instance.problem == "pipeline-partition":
        sliced = rng.choice([0, rng.randint(0, min(instance.stages - 1, instance.micro_batches))])
        return Partition(any_cuts(instance.sublayers, instance.stages, rng), sliced)
    degrees, placement = rng.choice(list(instance.degrees())), list(range(instance.devices))
    if rng.random() < 0.7:
        rng.shuffle(placement)
    total, shares = instance.batch // degrees.mbs, ()
    if instance.uneven_shares and rng.random() < 0.7:
        borders = [0, *any_cuts(total, degrees.dp, rng), total]
        shares = tuple(after - before for before, after in pairwise(borders))
    return Strategy(degrees, tuple(placement), any_cuts(instance.layers, degrees.pp, rng), shares)


def assert_agrees(instance: Any, solution: Any) -> None:
    """Assert that the checker and the package find the same value, memory and number of violations."""
    stated, text = problem(instance.problem), json.loads(json.dumps([instance.to_dict()]))[0]
    found = checker().PROBLEMS[instance.problem].evaluate(text, stated.solution_dict(solution))
    assert found.value == stated.evaluate(instance, solution).objective
    assert found.peak_bytes == stated.describe(instance, solution).get("peak_bytes")
    assert len(found.violations) == len(stated.violations(instance, solution))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(RANDOM)), st.integers(0, 10**6), st.booleans())
def test_any_solution_of_any_instance_has_the_packages_value(name: str, seed: int, memory: bool) -> None:
    instance = RANDOM[name](seed) if name == "cluster-strategy" else RANDOM[name](seed, memory=memory)
    if name != "cluster-strategy" or any(instance.degrees()):
        assert_agrees(instance, any_solution(instance, random.Random(seed)))


@pytest.mark.parametrize("index", range(len(REAL)))
def test_any_solution_of_a_real_instance_has_the_packages_value(index: int) -> None:
    rng = random.Random(index)
    for _ in range(3 if real(index).problem == "cluster-strategy" else 12):
        assert_agrees(real(index), any_solution(real(index), rng))


def refuses(kind: str, instance: Any, given: dict[str, int], claim: int) -> bool:
    """Whether the checker refuses a claimed bound of an instance, or proves less."""
    try:
        return bool(checker().PROBLEMS[instance.problem].bounds[kind](instance.to_dict(), given, claim) < claim)
    except checker().Wrong:
        return True


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_no_bound_is_above_the_optimum(name: str) -> None:
    kinds, proven, count = checker().PROBLEMS[name].bounds, 0, 0
    for seed in range(30 if name == "cluster-strategy" else 120):
        instance = random_cluster(seed, devices=4) if name == "cluster-strategy" else RANDOM[name](seed, memory=seed % 2 == 0)
        if (best := solve(instance, "brute-force").objective) is None:
            continue
        assert all(refuses(kind, instance, {"most": 10**5}, best + 1) for kind in kinds)
        found = evidence(instance, best)
        assert found["value"] <= best and not refuses(found["kind"], instance, found["evidence"], found["value"])
        proven, count = proven + (found["value"] == best), count + 1
    print(f"{name}: {proven} of {count} tiny instances proven optimal")
    assert count > 25 and proven == count


def test_real_instances_are_proven_optimal() -> None:
    shares: dict[str, list[bool]] = {}
    for index, (name, *_) in enumerate(REAL):
        best = optimum(index).objective or 0
        found = evidence(real(index), best)
        assert not refuses(found["kind"], real(index), found["evidence"], found["value"])
        shares.setdefault(name, []).append(found["value"] == best)
        assert refuses(found["kind"], real(index), found["evidence"], best + 1)
    print({name: f"{sum(proven)} of {len(proven)}" for name, proven in shares.items()})
    assert all(all(proven) for proven in shares.values())


def test_nothing_below_any_claim_fits_where_nothing_fits() -> None:
    for name in ("stage-assignment", "pipeline-partition"):
        instance = RANDOM[name](2, memory=True).with_memory(1)
        assert solve(instance, "exact").objective is None
        for kind in ("sweep",) if name == "stage-assignment" else ("stages", "search"):
            assert not refuses(kind, instance, {"most": 10}, 10**12)


def test_too_little_work_proves_nothing() -> None:
    assert refuses(
        "search", instance := random_partition(0), {"most": 3}, best := solve(instance, "brute-force").objective or 0
    )
    assert not refuses("search", instance, {"most": 10**5}, best)
    for kind in ("pipelines", "placements"):
        assert refuses(kind, real(12), {"most": 1}, optimum(12).objective or 0)
        assert refuses(kind, real(12), {}, optimum(12).objective or 0)


@pytest.mark.long
@pytest.mark.parametrize(("model", "cluster", "options", "kind"), SLOW)
def test_slow_instances_are_proven_optimal(model: str, cluster: str, options: dict[str, Any], kind: str) -> None:
    instance = tp.build("cluster-strategy", model=model, cluster=cluster, **options)
    best = solve(instance, "exact", time_limit=60).objective
    assert best is not None
    found = evidence(instance, best)
    assert (found["value"], found["kind"]) == (best, kind)
    assert refuses(kind, instance, found["evidence"], best + 1)


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, {"cuts": [3, 2, 5]}),
        (0, {"cuts": [1, 2]}),
        (0, {"cuts": None}),
        (0, {"cuts": [1, 2, 3.0]}),
        (5, {"cuts": [1, 2, 50]}),
        (5, {"sliced": 4}),
        (5, {"sliced": -1}),
        (12, {"pp": 3}),
        (12, {"mbs": 64}),
        (12, {"tmp": "2"}),
        (12, {"placement": [0] * 16}),
        (12, {"shares": [1, 2]}),
        (12, {"cuts": [0]}),
    ],
)
def test_a_solution_that_does_not_belong_is_refused(index: int, change: dict[str, Any]) -> None:
    instance = real(index)
    solution = optimum(index).solution or {}
    with pytest.raises(checker().Wrong):
        checker().PROBLEMS[instance.problem].evaluate(instance.to_dict(), {**solution, **change})


def entry(index: int) -> dict[str, Any]:
    """An entry of the library for the instance at an index of REAL, with what the checker reads of it."""
    instance, result = real(index), optimum(index)
    return {
        "name": "some/instance",
        "problem": instance.problem,
        "instance": instance.to_dict(),
        "upper_bound": {"value": result.objective, "solution": result.solution},
        "checked_lower_bound": evidence(instance, result.objective or 0),
    }


def test_the_file_alone_checks_an_entry(tmp_path: Path) -> None:
    """It runs without trainplan and without site-packages, from an empty folder, and finds what was changed."""
    source = Path(checker().__file__)
    command = [sys.executable, "-I", "-S", str(tmp_path / source.name)]
    (tmp_path / source.name).write_text(source.read_text())
    for index, name in ((0, "stage"), (5, "partition"), (12, "cluster")):
        whole = entry(index)
        for change, code in (({}, 0), ({"upper": 1}, 1), ({"upper": -1}, 1), ({"lower": 1}, 1)):
            changed = json.loads(json.dumps(whole))
            changed["upper_bound"]["value"] += change.get("upper", 0)
            changed["checked_lower_bound"]["value"] += change.get("lower", 0)
            (tmp_path / f"{name}.json").write_text(json.dumps(changed))
            done = subprocess.run([*command, f"{name}.json"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert (done.returncode, change) in ((code, change), (2 * code, change)), done.stdout + done.stderr
