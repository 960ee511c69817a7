"""The library's checker on the joint problem, against the package, brute force, and evidence that was tampered with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.joint.certificates.check import checked_bound_ns
from trainplan.formulations.joint.evaluation import evaluate, malformed, violations
from trainplan.formulations.joint.instance_file import solution_dict
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.solvers.joint.certificate_search import evidence as solver_evidence

import trainplan as tp
from tests.formulations.test_joint_restrictions import equal_cluster
from tests.helpers.assignments import random_assignment
from tests.helpers.instances import random_pipeline
from tests.helpers.joint_instances import any_form, random_instance
from tests.helpers.papers_as_joint.restrict import restrict
from tests.helpers.partition_instances import random_partition
from tests.solvers.test_joint import least_step_ns, tiny_instance
from trainplan.libraries.checking import checker
from trainplan.libraries.evidence_joint import evidence
from trainplan.libraries.joint_paths import even_paths, fullest_moments, weighted_paths

CHECKER = Path(__file__).parents[2] / "trainplan" / "data" / "library" / "check_library.py"
check = checker()

LLAMA: dict[str, Any] = {"model": "llama-3.1-8b", "batch": 32, "sequence": 4096}
GPT2: dict[str, Any] = {"model": "gpt2", "batch": 8, "sequence": 64}
REQUESTS: dict[str, dict[str, Any]] = {
    "one node of CPUs": GPT2 | {"cluster": "cpu-4", "memory": "2GiB"},
    "an encoder": {"model": "bert-large", "batch": 32, "sequence": 512, "cluster": "h100:8", "memory": "8GiB"},
    "streams": LLAMA | {"cluster": "h100:8"},
    "two nodes, all schedules": LLAMA | {"cluster": "h100:8x2", "schedule": "all"},
    "chunks": LLAMA | {"cluster": "h100:8", "schedule": "interleaved", "chunks": 4},
    "chunks, executed": GPT2 | {"cluster": "cpu-4", "schedule": "interleaved", "cost_model": "executed"},
    "all schedules, executed": GPT2 | {"cluster": "cpu-4", "schedule": "all", "cost_model": "executed"},
    "hosts and modules": GPT2 | {"cluster": "cpu-4", "host": "all", "modules": True, "cost_model": "executed"},
    "hosts, streams": LLAMA | {"cluster": "h100:8", "host": "all"},
    "context parallelism": LLAMA | {"cluster": "h100:8", "cp": 2},
    "by layer": LLAMA | {"cluster": "h100:8", "by_unit": False},
}


def as_json(record: Any) -> Any:
    """A record as a file of JSON gives it back."""
    return json.loads(json.dumps(record))


def some_solution(rng: random.Random, instance: Instance) -> Solution:
    """A random choice of configuration, cuts and options, which may break any constraint but the numbers of both."""
    index = rng.randrange(len(instance.configurations))
    configuration = instance.configurations[index]
    cuts = configuration.cuts
    if cuts is None:
        cuts = tuple(sorted(rng.sample(range(1, instance.length), configuration.stages - 1)))
    edges = (0, *cuts, instance.length)
    choice = tuple(
        rng.randrange(len(instance.table(configuration, x, l).options))
        for x in range(configuration.stages)
        for l in range(edges[x], edges[x + 1])
    )
    return Solution(index, cuts, choice)


def assert_alike(instance: Instance, content: Any, solution: Solution, pipelines: dict[int, Any]) -> bool:
    """The package and the checker find the same of a solution; whether it belongs to the instance."""
    index = solution.configuration
    pipeline = pipelines.setdefault(index, check.Pipeline(content, index))
    value = check.evaluate_joint(content, as_json(solution_dict(solution)), pipeline)
    if malformed(instance, solution):
        assert value.violations
        return False
    evaluation = evaluate(instance, solution)
    assert (value.value, value.peak_bytes) == (evaluation.time_ns, evaluation.peak_bytes)
    assert bool(value.violations) == bool(violations(instance, solution))
    return True


# Values


@pytest.mark.parametrize("make", [any_form, lambda seed: random_instance(random.Random(seed))], ids=["any form", "sliced"])
def test_random_solutions_are_valued_as_by_the_package(make: Callable[[int], Instance]) -> None:
    belong = 0
    for seed in range(80):
        instance, rng, pipelines = make(seed), random.Random(seed), dict[int, Any]()
        content = as_json(instance.to_dict())
        belong += sum(assert_alike(instance, content, some_solution(rng, instance), pipelines) for _ in range(6))
    assert belong > 200


@pytest.mark.parametrize("request_name", REQUESTS)
def test_solutions_of_models_are_valued_as_by_the_package(request_name: str) -> None:
    instance = tp.build("joint", **REQUESTS[request_name])
    content, rng, pipelines = as_json(instance.to_dict()), random.Random(1), dict[int, Any]()
    assert sum(assert_alike(instance, content, some_solution(rng, instance), pipelines) for _ in range(8))


@pytest.mark.parametrize("step", ["eq8", "eq5", "eq4"])
def test_steps_of_papers_are_valued_as_by_the_package(step: Any) -> None:
    for seed in range(40):
        instance = replace(tiny_instance(seed), step=step)
        assert_alike(instance, as_json(instance.to_dict()), some_solution(random.Random(seed), instance), {})


def test_papers_problems_are_valued_as_by_the_package() -> None:
    """Unlike groups of devices, several classes, one reduction of a stage's gradients, and boundaries without re-layouts."""
    reduced = 0
    for seed in range(20):
        rng = random.Random(seed)
        problems = [random_assignment(seed, memory=True), random_partition(seed, memory=True), random_pipeline(seed)]
        cluster = equal_cluster(seed)
        for problem in [*problems, cluster] if list(cluster.degrees()) else problems:
            instance = restrict(problem).instance
            reduced += any(configuration.reduction is not None for configuration in instance.configurations)
            content, pipelines = as_json(instance.to_dict()), dict[int, Any]()
            for _ in range(5):
                assert_alike(instance, content, some_solution(rng, instance), pipelines)
    assert reduced > 3


# Bounds


def refuses(function: Callable[[], Any]) -> bool:
    """Whether the checker refuses something."""
    try:
        function()
    except check.Wrong:
        return True
    return False


def test_bounds_are_never_above_brute_force_and_those_of_the_package() -> None:
    bounds, evident = check.PROBLEMS["joint"].bounds, 0
    for seed in range(3000, 3030):
        instance = tiny_instance(seed) if seed % 2 else any_form(seed)
        content, least = as_json(instance.to_dict()), least_step_ns(instance)
        closed = [closed_form_ns(instance, configuration) for configuration in instance.configurations]
        assert bounds["closed-form"](content, {}, 0) == min(closed)
        found = solver_evidence(instance, 10**12 if least is None else least)
        record = as_json(found.to_dict())
        evident += any(claim["impossible_ns"] >= 0 for claim in record["configurations"])
        shown = bounds["certificate"](content, record, 0)
        assert shown == checked_bound_ns(instance, found)
        if least is not None:
            assert shown <= least == bounds["exhaustion"](content, {}, least)
            assert refuses(partial(bounds["exhaustion"], content, {}, least + 1))
    assert evident > 10


def test_no_proof_shows_that_a_step_is_impossible_which_brute_force_finds() -> None:
    tried = 0
    for seed in range(3000, 3060):
        instance = tiny_instance(seed) if seed % 2 else any_form(seed)
        content = as_json(instance.to_dict())
        for index, configuration in enumerate(instance.configurations):
            least = least_step_ns(instance.only([index]))
            if least is None:
                continue
            pipeline = check.Pipeline(content, index)
            proofs: list[Any] = [{"enumerate": True}]
            for price in (0, 2**16, 2**24):
                proofs.append({"paths": even_paths(pipeline), "moments": fullest_moments(pipeline, price)})
            if configuration.schedule.has_closed_forms:
                least_flying = min(configuration.in_flight(x) for x in range(configuration.stages))
                for labels in (1, 2, 2000):
                    proofs.append({"prices": [0, 1000, 10**8], "depths": [least_flying], "exact": labels})
            whole = configuration.cuts is not None and not configuration.schedule.sliced
            if whole and (paths := weighted_paths(instance, index, 10**15, lambda: False)):
                proofs += [paths, paths | {"enumerate": True}]
                chain, limits, total = check.bound_by_paths(pipeline, as_json(paths))
                assert chain.least is None or chain.least - limits <= total * least
            for proof in as_json(proofs):
                tried += 1
                assert not check.holds_joint(pipeline, index, proof, least)
            assert check.holds_joint(pipeline, index, proofs[0], least - 1)
    assert tried > 150


def test_exact_stages_close_a_configuration_of_one_stage() -> None:
    closed = tried = 0
    for seed in range(3000, 3150):
        instance = tiny_instance(seed, plain=True)
        content = as_json(instance.to_dict())
        for index, configuration in enumerate(instance.configurations):
            least = least_step_ns(instance.only([index]))
            if configuration.stages == 1 and least is not None and instance.classes[0].host_bytes is None:
                proof = {"prices": [0, 10**6], "depths": [configuration.in_flight(0)], "exact": 2000}
                tried += 1
                closed += check.holds_joint(check.Pipeline(content, index), index, proof, least - 1)
    assert closed == tried > 30


# Evidence


@pytest.mark.parametrize("seed", range(16))
def test_evidence_that_is_found_is_followed(seed: int) -> None:
    instance = any_form(seed) if seed % 2 else tiny_instance(seed)
    least = least_step_ns(instance)
    found = evidence(instance, 10**9 if least is None else least)
    assert found is not None
    found, content = as_json(found), as_json(instance.to_dict())
    assert found["value"] == check.PROBLEMS["joint"].bounds[found["kind"]](content, found["evidence"], found["value"])
    assert least is None or found["value"] == least  # what is left of tiny instances is enumerated


@pytest.fixture(scope="module")
def bert() -> tuple[Instance, Any, Any]:
    """An instance of a model with scarce memory, the answer of the exact method, and the evidence of its bound."""
    instance = tp.build("joint", model="distilgpt2", cluster="rtx4090:4", batch=32, sequence=256, memory="417MiB")
    result = tp.solve(instance, gap=1e-4)
    return instance, result, as_json(evidence(instance, result.objective))


def test_evidence_of_a_model_closes_its_gap(bert: tuple[Instance, Any, Any]) -> None:
    instance, result, found = bert
    assert found["value"] == result.objective and found["kind"] == "certificate"
    entry = {
        "name": "joint/test",
        "problem": "joint",
        "instance": as_json(instance.to_dict()),
        "upper_bound": {"value": result.objective, "solution": result.solution},
        "checked_lower_bound": found,
    }
    lines, holds = check.check(entry)
    assert holds and dict(lines)["gap"].startswith("none")


def test_tampered_evidence_solutions_and_values_are_refused(bert: tuple[Instance, Any, Any]) -> None:
    instance, result, found = bert
    content, claims = as_json(instance.to_dict()), found["evidence"]["configurations"]
    follow = partial(check.PROBLEMS["joint"].bounds["certificate"], content)
    best = result.solution["configuration"]
    several = next(
        index
        for index, claim in enumerate(claims)
        if claim.get("prices") and instance.configurations[index].stages > 1 and claim["impossible_ns"] == result.objective - 1
    )
    for change in (
        {"impossible_ns": 10 * result.objective},
        {"prices": [-1]},
        {"prices": [], "paths": []},
        {"depths": [99]},
        {"paths": [{"weight": 1, "end": 9, "site": 9, "turns": "1"}]},
        {"paths": [{"weight": 0, "end": 0, "site": 0, "turns": "1"}]},
    ):
        changed = deepcopy(found["evidence"])
        changed["configurations"][best if "impossible_ns" in change else several] |= change
        assert refuses(partial(follow, changed, 0)), change
    assert refuses(partial(follow, {"configurations": claims[1:]}, 0))
    solution = as_json(result.solution)
    for change in ({"configuration": 10**6}, {"choice": solution["choice"][1:]}, {"cuts": [0, *solution["cuts"]]}):
        assert check.evaluate_joint(content, solution | change).violations
    assert refuses(lambda: check.evaluate_joint(content, solution | {"choice": ["0"] * instance.length}))
    assert refuses(lambda: check.evaluate_joint(content, {"choice": []}))
    entry = {"name": "n", "problem": "joint", "instance": content, "checked_lower_bound": found}
    assert check.check(entry | {"upper_bound": {"value": result.objective, "solution": solution}})[1]
    assert not check.check(entry | {"upper_bound": {"value": result.objective - 1, "solution": solution}})[1]
    raised = found | {"value": found["value"] + 1}
    assert not check.check(entry | {"checked_lower_bound": raised})[1]


def test_other_steps_have_bounds_in_closed_form_alone() -> None:
    for seed in range(10):
        instance = replace(tiny_instance(seed), step="eq8")
        least = least_step_ns(instance)
        found = evidence(instance, 10**12 if least is None else least)
        assert found is not None and found["kind"] == "closed-form"
        assert least is None or found["value"] <= least
        content = as_json(instance.to_dict())
        assert refuses(partial(check.PROBLEMS["joint"].bounds["certificate"], content, {"configurations": []}, 0))


def test_the_checker_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = f"import importlib.util as u; s = u.spec_from_file_location('c', {str(CHECKER)!r}); m = u.module_from_spec(s); "
    code += "s.loader.exec_module(m); print('joint' in m.PROBLEMS)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
