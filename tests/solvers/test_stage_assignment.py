"""Every method of stage-assignment against every other, and the sweep on sizes that only it takes."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.stage_assignment.problem import Instance, Solution, evaluate, load
from trainplan.solvers.assignment.even_stages import balanced_cuts
from trainplan.solvers.assignment.sweep import assign, steps_of
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import contradictions, solve

from tests.helpers.assignments import random_assignment, random_assignment_dict
from tests.helpers.clock import without_alarms
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, one_in

PROVING: dict[str, dict[str, Any]] = {"brute-force": {}, "sweep": {}, "milp": {}, "cpsat": {"workers": 1}}


def proven(instance: Instance, seed: int) -> Result:
    """The answer on which all methods that prove agree."""
    results = {name: solve(instance, name, **options) for name, options in PROVING.items()}
    answers = {(result.status, result.objective, result.bound) for result in results.values()}
    assert len(answers) == 1, (seed, {name: (r.status, r.objective, r.bound, r.message) for name, r in results.items()})
    return results["sweep"]


@pytest.mark.parametrize("part", first_and_others([0, 1, 2, 3]))
def test_1000_random_instances_agree_to_the_nanosecond(part: int) -> None:
    """Brute force = sweep = MILP = CP-SAT = the paper's table, devices alike or not. One in five; `make test-all` has all."""
    for seed in one_in(5, range(250 * part, 250 * (part + 1))):
        instance = random_assignment(seed)
        best = proven(instance, seed)
        assert best.status == "optimal"
        paper = solve(instance, "amp-dp")
        assert paper.objective == best.objective, seed
        assert solve(instance, "uniform-layers").objective >= best.objective
        assert solve(instance, "uniform-parameters").objective >= best.objective


def test_an_instance_that_highs_got_wrong() -> None:
    """With unbounded times HiGHS 1.13.1 restarted with all variables fixed, and called 17.3 s the optimum."""
    given = {
        "problem": "stage-assignment",
        "version": 1,
        "stages": 4,
        "micro_batches": 8,
        "layer_ns": [188486903, 943267705, 556547292, 806915210, 250333252, 749418911, 835172259, 530364796],
        "transfer_ns": [
            [0, 0, 0, 0, 0, 0, 0],
            [280276490, 301007500, 263612790, 566067791, 844603197, 279504524, 69128448],
            [951746143, 774313611, 198166210, 473369065, 717762599, 69323317, 445008713],
        ],
    }
    best = proven(load(given), 0)
    assert (best.objective, best.solution) == (15054656821, {"cuts": [2, 4, 6]})


@pytest.mark.long
def test_300_random_instances_with_memory_agree_to_the_nanosecond() -> None:
    """The paper's table is right where its answer fits, says which stage does not where not, and is never better."""
    seen = {"optimal": 0, "infeasible": 0, "blind": 0}
    for seed in range(300):
        instance = random_assignment(seed, memory=True)
        best, paper = proven(instance, seed), solve(instance, "amp-dp")
        seen[best.status] += 1
        if best.status == "infeasible":
            assert paper.status == "infeasible"
            assert best.reason is not None
            continue
        if paper.status == "unknown":
            seen["blind"] += 1
            assert "knows no memory" in (paper.message or "")
            assert "more than its limit" in (paper.message or "")
            assert solve(load({**instance.to_dict(), "memory": None}), "amp-dp").objective <= best.objective
        else:
            assert paper.objective == best.objective
    assert min(seen.values()) > 20, seen


def shortest(layer_ns: Any, transfer_ns: Any, micro_batches: int, windows: Any) -> int | None:
    """The optimum by a plain dynamic program for every cap that a stage can have."""
    (stages, layers), best = layer_ns.shape, None
    spans = {int(row[f:g].sum()) for row in layer_ns for f in range(layers) for g in range(f + 1, layers + 1)}
    for cap in spans:
        least: dict[int, int] = {0: 0}
        for i in range(stages):
            after: dict[int, int] = {}
            for f, known in least.items():
                for g in range(f + 1, layers + 1):
                    time = int(layer_ns[i, f:g].sum())
                    if time <= cap and (windows is None or windows[i, g - 1] <= f):
                        cost = known + time + (int(transfer_ns[i, g - 1]) if i + 1 < stages and g < layers else 0)
                        after[g] = min(cost, after.get(g, cost))
            least = after
        if layers in least and (best is None or (micro_batches - 1) * cap + least[layers] < best):
            best = (micro_batches - 1) * cap + least[layers]
    return best


@settings(max_examples=150)
@given(st.integers(0, 10**9), st.booleans())
def test_the_sweep_is_a_plain_dynamic_program_over_all_caps(seed: int, memory: bool) -> None:
    """Sizes past brute force; bounds hold on the way; a cutoff hides exactly what is not below it."""
    instance = random_assignment(seed, 16, 7, memory)
    windows = instance.windows
    problem = (instance.layer_ns, instance.transfer_ns, instance.micro_batches, windows)
    best, found = shortest(*problem), assign(*problem)
    assert best == (found and found[0])
    if best is not None and found is not None:
        assert evaluate(instance, Solution(found[1])).objective == best
        steps = list(steps_of(*problem))
        assert all(a.bound <= b.bound and a.objective >= b.objective for a, b in pairwise(steps))
        assert all(step.bound <= best <= step.objective for step in steps)
        assert assign(*problem, cutoff_ns=best) is None
        assert assign(*problem, cutoff_ns=best + 1) == found


@settings(max_examples=100)
@given(st.integers(0, 10**9))
def test_the_reason_is_the_least_memory_that_would_do(seed: int) -> None:
    given = random_assignment_dict(random.Random(seed), 8, 4, memory=True)
    given["memory"]["limit_bytes"] = 1 + given["memory"]["limit_bytes"] // 4 if isinstance(
        given["memory"]["limit_bytes"], int
    ) else [1 + limit // 4 for limit in given["memory"]["limit_bytes"]]  # fmt: skip
    found = solve(load(given))
    if found.status == "optimal":
        return
    assert found.status == "infeasible"
    assert found.reason is not None
    more = found.reason.least_memory_bytes - found.reason.memory_bytes
    assert more > 0

    def raised(by: int) -> str:
        limits = given["memory"]["limit_bytes"]
        larger = limits + by if isinstance(limits, int) else [limit + by for limit in limits]
        return solve(load({**given, "memory": given["memory"] | {"limit_bytes": larger}}), "brute-force").status

    assert raised(more) == "optimal"
    assert raised(more - 1) == "infeasible"


def large(layers: int, stages: int, kind: str) -> Instance:
    rng = np.random.default_rng(layers + stages)
    row = {
        "equal": np.full(layers, 10**7),
        "noisy": (10**7 * (1 + 0.03 * rng.standard_normal(layers))).astype(np.int64),
        "random": rng.integers(1, 2 * 10**7, layers),
        "stages": rng.integers(1, 2 * 10**7, (stages, layers)),
    }[kind]
    return load(
        {
            "problem": "stage-assignment",
            "version": 1,
            "stages": stages,
            "micro_batches": 8,
            "layer_ns": row.tolist(),
            "transfer_ns": rng.integers(0, 10**7, layers - 1).tolist(),
        }
    )


@pytest.mark.parametrize("kind", ["equal", "noisy", "random", "stages"])
def test_large_instances_are_proven_and_cpsat_does_not_contradict(kind: str) -> None:
    instance = large(56, 8, kind)
    results = [solve(instance, "sweep"), solve(instance, "amp-dp"), solve(instance, "cpsat", time_limit=20)]
    assert contradictions(results) == []
    assert results[0].status == "optimal"
    assert results[0].objective == results[1].objective
    assert results[2].objective is None or results[2].objective >= results[0].objective
    whole = large(512, 64, kind)
    found = solve(whole)
    assert found.status == "optimal"
    assert found.objective <= solve(whole, "uniform-layers").objective


def test_a_gap_and_a_time_limit_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_alarms(monkeypatch)
    instance = large(512, 64, "random")
    best, near, short = solve(instance), solve(instance, gap=0.02), solve(instance, time_limit=1e-6)
    assert best.objective is not None
    assert near.status == "optimal"
    assert near.statistics["steps"] < best.statistics["steps"]
    for found in (near, short):
        assert found.objective is not None
        assert found.bound is not None
        assert found.bound <= best.objective <= found.objective
    assert short.status == "feasible"
    assert solve(large(56, 8, "random"), "amp-dp", time_limit=1e-6).status == "feasible"


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(1, 5))
def test_balanced_cuts_have_the_least_largest_weight(weights: list[int], stages: int) -> None:
    stages = min(stages, len(weights))
    cuts = balanced_cuts(np.array(weights), stages)
    bounds = (0, *cuts, len(weights))
    assert len(cuts) == stages - 1
    assert all(a < b for a, b in pairwise(bounds))
    row = np.array([weights] * stages)
    best = shortest(row, np.zeros((stages - 1, len(weights) - 1), int), 2, None)
    assert best is not None
    assert max(sum(weights[a:b]) for a, b in pairwise(bounds)) == best - sum(weights)


@pytest.mark.parametrize("layers, stages", [(24, 4), (30, 4), (56, 8), (7, 7), (5, 1)])
def test_uniform_layers_are_even(layers: int, stages: int) -> None:
    found = solve(large(layers, stages, "random"), "uniform-layers")
    assert found.evaluation is not None
    sizes = [stage["last"] - stage["first"] + 1 for stage in found.evaluation["stages"]]
    assert max(sizes) - min(sizes) <= 1


def test_what_a_method_does_not_take_is_reported_in_one_line() -> None:
    for instance, method, refusal in (
        (large(56, 8, "equal"), "uniform-parameters", ("parameters",)),
        (large(512, 64, "random"), "amp-dp", ("method", ("amp-dp", "512 layers", "64 stages"), ("exact", "2e+08"))),
        (large(2000, 64, "stages"), "amp-dp", ("method", ("amp-dp", "2000 layers", "64 stages"), ("exact", "2e+08"))),
        (large(56, 8, "equal"), "brute-force", ("method", "brute-force", ("exact", "2e6"))),
    ):
        with refused(*refusal, kind=Unsupported) as caught:
            solve(instance, method)
        assert "\n" not in str(caught.value)


def test_a_slow_device_gets_fewer_layers() -> None:
    """The devices differ, which an average of them hides."""
    fast, slow = [10] * 12, [30] * 12
    given = {"problem": "stage-assignment", "version": 1, "stages": 2, "micro_batches": 8, "transfer_ns": [0] * 11}
    found = solve(load({**given, "layer_ns": [fast, slow]}))
    assert found.solution == {"cuts": [9]}
    assert found.objective == 7 * 90 + 180


def test_results_are_shown_with_and_without_memory() -> None:
    lines = dict(solve(random_assignment(1)).summary())
    assert "peak memory" not in lines
    with_memory = next(r for r in (solve(random_assignment(s, memory=True)) for s in range(50)) if r.status == "optimal")
    assert "in stage" in dict(with_memory.summary())["peak memory"]
