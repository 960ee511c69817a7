"""Every proving method of pipeline-partition against every other, and the models on sizes past brute force."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load, violations
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import compare, solve

from tests.helpers.partition_instances import random_partition
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, one_in

PROVING: dict[str, dict[str, Any]] = {"brute-force": {}, "exact": {}, "cpsat": {"workers": 1}, "milp": {}}


def proven(instance: Instance, seed: int = 0) -> Result:
    """The answer on which all methods that prove agree: CP-SAT solves those of even seeds, the MILP where 3 divides them."""
    requested = ["brute-force", "exact"] + ["cpsat"] * (seed % 2 == 0) + ["milp"] * (seed % 3 == 0)
    results = {name: solve(instance, name, **PROVING[name]) for name in requested}
    answers = {(result.status, result.objective, result.bound) for result in results.values()}
    assert len(answers) == 1, (seed, {name: (r.status, r.objective, r.bound, r.message) for name, r in results.items()})
    return results["exact"]


@pytest.mark.parametrize("part", first_and_others([0, 1, 2, 3]))
def test_1000_random_instances_agree_to_the_nanosecond(part: int) -> None:
    """Brute force = branch and bound, and = CP-SAT or MILP or both on two in three; half of them with memory. One in five;
    `make test-all` has all."""
    seen: Counter[str] = Counter()
    seeds = one_in(5, range(250 * part, 250 * (part + 1)))
    for seed in seeds:
        instance = random_partition(seed, memory=seed % 4 < 2)
        best = proven(instance, seed)
        seen[best.status] += 1
        if best.status == "infeasible":
            assert best.reason is not None
            continue
        assert best.status == "optimal"
        assert best.solution is not None
        found = Solution(tuple(best.solution["cuts"]))
        assert not violations(instance, found)
        assert evaluate(instance, found).timeline.time_ns == best.objective
    assert seen["optimal"] > 0.6 * len(seeds)
    assert seen["infeasible"] > 0.03 * len(seeds)


def transformer(blocks: int, stages: int, noise: float, transfer_ns: int) -> Instance:
    """Embedding, attention and feed-forward sub-layers in turn, head; recomputation in the backward passes."""
    rng = np.random.default_rng(blocks + stages)
    forward = np.array([300_000] + [1_000_000, 2_000_000] * blocks + [4_000_000])
    forward = (forward * (1 + noise * rng.standard_normal(len(forward)))).astype(np.int64)
    return load(
        {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": forward.tolist(),
            "backward_ns": (3 * forward).tolist(),
            "transfer_ns": transfer_ns,
            "stages": stages,
            "micro_batches": 2 * stages,
        }
    )


@pytest.mark.parametrize("noise, transfer_ns", first_and_others([(0.03, 200_000), (0.0, 0), (0.03, 0)]))
def test_models_prove_what_the_search_proves_on_a_transformer(noise: float, transfer_ns: int) -> None:
    """1.9 million partitions into 6 stages, of sub-layers alike but for the ends, or for noise."""
    instance = transformer(24, 6, noise, transfer_ns)
    results, contradictions = compare(instance, ["exact", "cpsat", "milp"])
    assert not contradictions
    assert {(result.status, result.objective) for result in results} == {("optimal", results[0].objective)}


def test_a_gap_and_a_time_limit_are_outcomes_of_the_models() -> None:
    instance = transformer(24, 8, 0.03, 200_000)
    best = solve(instance).objective
    assert best is not None
    for method, options in (("cpsat", {"workers": 1}), ("milp", {})):
        near, short = solve(instance, method, gap=0.05, **options), solve(instance, method, time_limit=0.3, **options)
        assert near.status == "optimal"
        assert near.objective is not None
        assert near.objective <= best / 0.95
        for found in (near, short):
            assert found.bound is None or found.bound <= best
            assert found.objective is None or found.objective >= best


def test_brute_force_takes_two_million_partitions() -> None:
    with refused("method", problem="brute-force", fix=("exact", "2e6"), kind=Unsupported):
        solve(transformer(24, 8, 0.0, 0), "brute-force")


def test_one_stage_takes_everything() -> None:
    instance = load({**transformer(3, 1, 0.0, 5).to_dict(), "micro_batches": 7})
    whole = 7 * int(instance.forward_ns.sum() + instance.backward_ns.sum())
    best = proven(instance)
    assert (best.objective, best.solution) == (whole, {"cuts": []})


def test_a_heavy_head_gets_a_stage_of_its_own() -> None:
    """By hand: 9 + 1 is the only cut that keeps both stages at 9; the step is the last stage's work and one round trip."""
    given = {"problem": "pipeline-partition", "version": 1, "transfer_ns": 0, "stages": 2, "micro_batches": 4}
    best = proven(load({**given, "forward_ns": [1] * 9 + [9], "backward_ns": [2] * 9 + [18]}))
    assert (best.objective, best.solution) == (5 * 27, {"cuts": [9]})
