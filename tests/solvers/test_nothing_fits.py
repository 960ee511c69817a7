"""Where nothing fits, every method says so; and none does where something fits: tiny random instances of all problems."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.solvers.core.answer import best_answer, rank
from trainplan.solvers.core.heuristic import fits
from trainplan.solvers.core.method_registry import Entry
from trainplan.solvers.core.search import Outcome
from trainplan.solvers.joint.memory_feasibility import minimum_memory

import trainplan as tp
from tests.helpers.assignments import random_assignment_dict
from tests.helpers.cluster_instances import random_cluster_dict
from tests.helpers.instances import random_dict, random_pipeline_dict
from tests.helpers.joint_instances import any_form
from tests.helpers.partition_instances import random_partition_dict
from tests.helpers.sizes import some_and_all
from tests.helpers.switch_instances import random_instance as random_switches


def some_switches(rng: random.Random) -> dict[str, Any]:
    """One or two layers."""
    needed, numbers = rng.random() < 0.5, np.random.default_rng(rng.randrange(2**32))
    return random_switches(numbers, rng.randint(1, 2), rng.choice((2, 100)), offload_needs_ckpt=needed).to_dict()


MADE: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "layer-strategies": random_dict,
    "pipeline": random_pipeline_dict,
    "stage-assignment": lambda rng: random_assignment_dict(rng, memory=True),
    "pipeline-partition": lambda rng: random_partition_dict(rng, memory=True),
    "memory-switches": some_switches,
    "cluster-strategy": lambda rng: random_cluster_dict(rng, 2, 3),
    "joint": lambda rng: any_form(rng.randrange(2**32)).to_dict(),
}


def tightened(instance: Any, share: float) -> Any:
    """The instance with a share of its memory."""
    if instance.problem == "cluster-strategy":
        kinds = [replace(kind, memory_bytes=max(1, round(kind.memory_bytes * share))) for kind in instance.kinds]
        return replace(instance, kinds=tuple(kinds))
    if (memory := getattr(instance, "memory", None)) is not None:
        limits = np.maximum(1, (memory.limit_bytes * share).astype(np.int64))
        return replace(instance, memory=memory.with_limits(limits))
    limit = instance.common_memory_bytes
    return instance if limit is None else instance.with_memory(max(1, round(limit * share)))


def something_fits(instance: Any) -> bool:
    """By looking at every solution."""
    problem = problem_of(instance)
    return any(
        solution is not None and not problem.violations(instance, solution)
        for solution in problem.enumeration.solutions(instance)
    )


def solved(instance: Any, method: Entry) -> Any:
    more = {"workers": 1} if any(option.name == "workers" for option in method.options) else {}
    return tp.solve(instance, method.name, **more)


@pytest.mark.parametrize("count", some_and_all(6, 100, 30))
@pytest.mark.parametrize("problem", MADE)
def test_nothing_fits_by_every_method_exactly_where_nothing_does(problem: str, count: int) -> None:
    fitting: Counter[bool] = Counter()
    for seed in range(count):
        rng = random.Random(seed)
        try:
            instance = tightened(tp.load(MADE[problem](rng)), rng.choice((0.3, 1.0, 2.0)))
            fits = something_fits(instance)
        except InputError:
            continue  # no strategy at all
        fitting[fits] += 1
        for method in tp.methods(problem):
            try:
                result = solved(instance, method)
            except Unsupported:
                continue
            reported = (problem, seed, method.name, result.message)
            assert (result.status == "infeasible") == (not fits), reported
            assert result.status != "failed" and (fits or (result.bound, result.stopped) == (None, None)), reported
            assert not method.proves or result.status == ("optimal" if fits else "infeasible"), reported
            assert fits or result.reason or "no memory is known with which" in str(result.message), reported
    assert fitting[False] and fitting[True], fitting


@pytest.mark.parametrize("method", ["decomposition", "brute-force"])
def test_a_methods_own_proof_counts_where_nothing_else_knows(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Interleaved chunks too many to look at all of them in addition to the method."""
    monkeypatch.setattr(minimum_memory, "MOST_ENUMERATED", 0)
    alone = 0
    for seed in range(60):
        instance = any_form(seed)
        result = tp.solve(instance, method)
        assert (result.status == "infeasible") == (not something_fits(instance)), seed
        alone += result.status == "infeasible" and fits(instance) is None
    assert alone > 1


def test_options_that_never_agree_are_distinguished_from_too_little_memory() -> None:
    """One without a reason fits into no memory and no hosts; one with a reason fits into what that says."""
    reasons = 0
    for seed in range(80):
        instance = any_form(seed)
        result = tp.solve(instance, "brute-force")
        assert (result.status == "infeasible") == (not something_fits(instance)), seed
        if result.status != "infeasible":
            continue
        [devices] = instance.classes
        if result.reason is None:
            roomy = replace(devices, memory_bytes=2**50, host_bytes=None)
        elif result.reason.parts == minimum_memory.HOST_PARTS:
            roomy = replace(devices, memory_bytes=2**50, host_bytes=result.reason.least_memory_bytes)
        else:
            roomy = replace(devices, memory_bytes=result.reason.least_memory_bytes)
        reasons += result.reason is not None
        assert something_fits(replace(instance, classes=(roomy,))) == (result.reason is not None), seed
    assert reasons > 20


def test_an_answer_says_infeasible_only_where_every_instance_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance without a reason together with one of which nothing is known: nothing is known of both."""
    nowhere = next(any_form(seed) for seed in range(80) if rank(tp.solve(any_form(seed), "brute-force"), None)[0] == 3)
    given_up = any_form(0)
    monkeypatch.setattr("trainplan.solvers.core.solve.known_to_fit", lambda instance: False if instance is nowhere else None)
    monkeypatch.setattr("trainplan.solvers.core.solve.explain", lambda instance: None)
    monkeypatch.setattr(Entry, "method", lambda self: lambda instance, search: Outcome(stopped="memory limit"))
    for instances in ([nowhere, given_up], [given_up, nowhere]):
        assert best_answer(instances, "brute-force").status == "unknown"
