"""The library's checker, on the problems that choose an option for every layer of a chain, against the package."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.layer_strategies.definition import PROBLEM as STRATEGIES
from trainplan.formulations.memory_switches.definition import PROBLEM as SWITCHES
from trainplan.formulations.memory_switches.problem import Solution as Switched
from trainplan.formulations.pipeline.definition import PROBLEM as PIPELINE
from trainplan.formulations.pipeline.problem import Solution
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers.instances import random_instance, random_pipeline, random_pipeline_dict
from tests.helpers.switch_instances import bert_instance
from tests.helpers.switch_instances import random_instance as random_switches
from trainplan.libraries.checking import checker
from trainplan.libraries.evidence_chain import evidence
from trainplan.papers.galvatron_engine import problem as engine_problem
from trainplan.papers.galvatron_engine.definition import PROBLEM as ENGINE

PROBLEMS: dict[str, Any] = {problem.name: problem for problem in (STRATEGIES, SWITCHES, PIPELINE, ENGINE)}
CHECKS: dict[str, Any] = checker().PROBLEMS
SEEDS = st.integers(0, 2**32)
# Of the papers and of today: models, clusters, device memory, samples of a step.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("layer-strategies", {"model": "gpt2", "cluster": "h100:8", "memory": "4GiB", "batch": 64}),
    ("layer-strategies", {"model": "llama3.1-8b", "cluster": "h100:8", "memory": "40GiB", "batch": 32, "sequence": 2048}),
    ("layer-strategies", {"model": "bert-huge-32", "cluster": "rtx-titan-8", "memory": "8GiB", "batch": 32, "by_unit": True}),
    ("layer-strategies", {"model": "gpt2", "cluster": "cpu-4", "memory": "1GiB", "batch": 8, "sequence": 256}),
    ("memory-switches", {"model": "bert-1.8b", "cluster": "h3t-a100-8", "memory": "8GiB", "batch": 128, "dtype": "float16"}),
    ("memory-switches", {"model": "gpt2", "cluster": "h3t-2080ti-8", "memory": "1GiB", "batch": 16, "dtype": "float16"}),
    ("pipeline", {"model": "gpt2", "cluster": "h100:8", "memory": "4GiB", "batch": 64}),
    (
        "pipeline",
        {"model": "llama3.1-8b", "cluster": "h100:8", "memory": "24GiB", "batch": 64, "sequence": 2048},
    ),
    ("pipeline", {"model": "t5-large-48", "cluster": "rtx-titan-8", "memory": "8GiB", "batch": 16, "cost_model": "executed"}),
]


@cache
def solved(index: int) -> Any:
    """The optimal result of a request's instance."""
    result = tp.solve(real(index))
    assert result.objective is not None
    return result


@cache
def real(index: int) -> Any:
    """The instance of a request."""
    problem, request = REQUESTS[index]
    return tp.build(problem, **request)


def drawn(instance: Any, rng: random.Random) -> Any:
    """A random solution: alike in all layers in half the cases, so that some fit."""
    alike = rng.random() < 0.5

    def choice(counts: list[int]) -> list[int]:
        first = rng.randrange(min(counts))
        return [first if alike else rng.randrange(count) for count in counts]

    if instance.problem == "layer-strategies":
        return tuple(choice(list(instance.options)))
    if instance.problem == "memory-switches":
        return Switched(tuple(instance.options[s] for s in choice([len(instance.options)] * instance.layers)))
    index = rng.randrange(len(instance.configurations))
    configuration = instance.configurations[index]
    if instance.problem == "galvatron-engine" and rng.random() < 0.8:
        sizes: tuple[int, ...] = engine_problem.even_partition(instance.layers, configuration.stages)
    else:
        cuts = [0, *sorted(rng.sample(range(1, instance.layers), configuration.stages - 1)), instance.layers]
        sizes = tuple(b - a for a, b in itertools.pairwise(cuts))
    options = len(configuration.tables.strategies)
    return Solution(index, sizes, tuple(choice([options] * instance.layers)))


def random_engine(seed: int) -> Any:
    """A random small instance of galvatron-engine."""
    rng = random.Random(seed)
    content = random_pipeline_dict(rng, layers=4, options=3) | {"problem": "galvatron-engine"}
    for configuration in content["configurations"]:
        own = min(option["time_ns"] - option["sync_ns"] for options in configuration["options"] for option in options)
        configuration |= {"schedule": "1f1b", "ends_ns": [rng.randint(0, own), rng.randint(0, own)]}
    return engine_problem.load(content)


def small_switches(seed: int, layers: int = 5) -> Any:
    """A random small instance of memory-switches."""
    rng = np.random.default_rng(seed)
    return random_switches(rng, int(rng.integers(1, layers + 1)), offload_needs_ckpt=bool(rng.integers(2)))


SMALL = {
    "layer-strategies": random_instance,
    "memory-switches": small_switches,
    "pipeline": random_pipeline,
    "galvatron-engine": random_engine,
}


def agrees(instance: Any, solution: Any) -> bool:
    """Assert that the checker evaluates a solution as the package does; returns whether it is feasible."""
    problem = PROBLEMS[instance.problem]
    content, stated = json.loads(json.dumps([instance.to_dict(), problem.solution_dict(solution)]))
    found, broken = CHECKS[instance.problem].evaluate(content, stated), problem.violations(instance, solution)
    assert bool(found.violations) == bool(broken)
    uneven = instance.problem == "galvatron-engine" and tuple(solution.stages) != engine_problem.even_partition(
        instance.layers, len(solution.stages)
    )
    if not uneven:
        evaluation = problem.evaluate(instance, solution)
        assert (found.value, found.peak_bytes) == (evaluation.objective, evaluation.peak_bytes)
        assert len(found.violations) == len(broken)
    return not broken


@pytest.mark.parametrize("problem", SMALL)
@given(seed=SEEDS)
def test_checker_evaluates_small_instances_as_the_package(problem: str, seed: int) -> None:
    instance = SMALL[problem](seed)
    agrees(instance, drawn(instance, random.Random(seed)))


@pytest.mark.parametrize("index", range(len(REQUESTS)))
def test_checker_evaluates_real_instances_as_the_package(index: int) -> None:
    rng, instance = random.Random(index), real(index)
    assert not all(agrees(instance, drawn(instance, rng)) for _ in range(20))
    assert agrees(instance, PROBLEMS[instance.problem].load_solution(solved(index).solution))


def optimum(instance: Any) -> int | None:
    """The optimum in ns of a small instance, by brute force; None if nothing fits."""
    if instance.problem == "galvatron-engine":
        best = None
        for index, configuration in enumerate(instance.configurations):
            even = engine_problem.even_partition(instance.layers, configuration.stages)
            for choice in itertools.product(range(len(configuration.tables.strategies)), repeat=instance.layers):
                evaluation = engine_problem.evaluate(instance, Solution(index, even, choice))
                if evaluation.peak_bytes <= instance.memory_bytes:
                    best = min(evaluation.objective, best if best is not None else evaluation.objective)
        return best
    if instance.problem == "memory-switches":
        return solve(instance).objective
    enumerated = [found for found in PROBLEMS[instance.problem].enumeration.solutions(instance) if found is not None]
    return PROBLEMS[instance.problem].evaluate(instance, enumerated[-1]).objective if enumerated else None


@pytest.mark.parametrize("problem", SMALL)
def test_bounds_never_exceed_the_optimum_and_mostly_reach_it(problem: str) -> None:
    reached = count = 0
    for seed in range(12 if problem == "memory-switches" else 70):
        instance = small_switches(seed, 2) if problem == "memory-switches" else SMALL[problem](seed)
        best, content = optimum(instance), instance.to_dict()
        if best is None:  # then no bound is too large
            assert any(bound(content, {}, 2**62) >= 2**62 for bound in CHECKS[problem].bounds.values())
            continue
        count += 1
        for bound in CHECKS[problem].bounds.values():
            assert all(bound(content, {}, claim) <= best for claim in (best, best + 1, 2 * best + 5))
        found = evidence(instance, best)
        assert found is None if best == 0 else found is None or found["value"] <= best
        reached += best == 0 or (found is not None and found["value"] == best)
    assert count > 8
    assert reached == count if problem != "galvatron-engine" else reached > 0.5 * count


@given(seed=SEEDS, tenths=st.integers(1, 15))
def test_exhaustion_gives_the_claim_or_the_optimum_if_that_is_less(seed: int, tenths: int) -> None:
    instance = random_instance(seed, layers=4, options=4)
    best = optimum(instance)
    claim = 1000 if best is None else best * tenths // 10
    bound = CHECKS["layer-strategies"].bounds["exhaustion"](instance.to_dict(), {}, claim)
    assert bound == (claim if best is None else min(claim, best))


@pytest.mark.parametrize("index", range(len(REQUESTS)))
def test_real_instances_are_proven_optimal(index: int) -> None:
    instance = real(index)
    result = solved(index)
    found = evidence(instance, result.objective)
    assert found is not None
    entry = as_entry(instance, result.objective, result.solution, found)
    lines, holds = checker().check(entry)
    assert holds
    assert ("gap", "none: optimal") in lines


def as_entry(instance: Any, value: int, solution: Any, proven: dict[str, Any]) -> dict[str, Any]:
    """An entry of the library, as its file is read."""
    entry = {
        "name": instance.name,
        "problem": instance.problem,
        "instance": instance.to_dict(),
        "upper_bound": {"value": value, "solution": solution},
        "checked_lower_bound": proven,
    }
    return json.loads(json.dumps(entry))  # type: ignore[no-any-return]


@pytest.mark.parametrize("index", [0, 4, 6])
def test_what_is_tampered_with_is_refused(index: int) -> None:
    instance, result = real(index), solved(index)
    proven = evidence(instance, result.objective)
    assert proven is not None
    entry = as_entry(instance, result.objective, result.solution, proven)
    assert not checker().check(entry | {"checked_lower_bound": proven | {"value": result.objective + 1}})[1]
    assert not checker().check(entry | {"upper_bound": entry["upper_bound"] | {"value": result.objective - 1}})[1]
    assert not checker().check(entry | {"instance": entry["instance"] | {"memory_bytes": instance.memory_bytes // 4}})[1]
    name, listed = next((name, listed) for name, listed in entry["upper_bound"]["solution"].items() if isinstance(listed, list))
    shorter = {**entry["upper_bound"]["solution"], name: listed[1:]}
    with pytest.raises(checker().Wrong):
        checker().check(entry, shorter)
    with pytest.raises(checker().Wrong):
        checker().check(entry | {"checked_lower_bound": proven | {"kind": "faith"}})


def test_long_chains_with_unequal_layers_are_proven_optimal() -> None:
    instance = bert_instance("1.8b", 2 * 2**30, batch=64, layers=16, noise=0.2)
    result = solve(instance)
    assert result.objective is not None
    assert evidence(instance, result.objective) == {"value": result.objective, "kind": "exhaustion", "evidence": {}}


def test_checker_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    path = str(checker().__file__)
    alone = tmp_path / "check.py"
    alone.write_text(Path(path).read_text())
    entry = tmp_path / "entry.json"
    instance, result = real(0), solved(0)
    proven = evidence(instance, result.objective)
    assert proven is not None
    entry.write_text(json.dumps(as_entry(instance, result.objective, result.solution, proven)))
    empty = tmp_path / "empty"
    empty.mkdir()
    command = [sys.executable, "-I", "-S", str(alone), str(entry)]
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{result.objective} ns" in done.stdout
