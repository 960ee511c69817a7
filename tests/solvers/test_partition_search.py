"""The exact search of pipeline-partition against all partitions, its bounds one by one, and on sizes that only it takes."""

import random
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load, violations
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import contradictions, solve
from trainplan.solvers.partition import prefixes as partition_prefixes
from trainplan.solvers.partition.prefixes import Prefixes
from trainplan.solvers.partition.spans import FAR, Spans
from trainplan.solvers.partition.suffixes import longer, no_suffix, undominated

from tests.helpers.clock import count_the_clock
from tests.helpers.partition_instances import random_partition, random_partition_dict


def all_partitions(instance: Instance) -> dict[tuple[int, ...], int]:
    """The iteration of every partition within the memory."""
    found = {}
    for cuts in combinations(range(1, instance.sublayers), instance.stages - 1):
        if not violations(instance, Solution(cuts)):
            found[cuts] = evaluate(instance, Solution(cuts)).objective
    return found


def holds(result: Result, best: int) -> None:
    """Every bound and every partition on the way."""
    for point in result.history:
        assert point.bound is None or point.bound <= best
        assert point.objective is None or point.objective >= best


@pytest.mark.parametrize("memory", [False, True])
def test_the_search_finds_and_proves_the_best_of_all_partitions(memory: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(250):
        instance = random_partition(seed, memory=memory)
        times, result = all_partitions(instance), solve(instance)
        if not times:
            assert result.status == "infeasible", seed
            seen["infeasible"] += 1
            continue
        best = min(times.values())
        assert (result.status, result.objective, result.bound) == ("optimal", best, best), seed
        holds(result, best)
        seen[[*result.statistics][-1]] += 1
    assert seen["beam"] > 100, seen
    assert seen["turns"] > 2, seen
    assert seen["search"] > 0, seen
    assert memory == (seen["infeasible"] > 10), seen


@pytest.mark.parametrize("memory", [False, True])
def test_every_bound_of_every_stage_holds_for_every_partition(memory: bool) -> None:
    tight = 0
    for seed in range(1000, 1120):
        instance = random_partition(seed, 8, 5, memory=memory)
        spans, times = Spans(instance, lambda: False), all_partitions(instance)
        assert (spans.bound >= FAR) == (not times), seed
        needs = [spans.need(x) for x in range(instance.stages)]
        for cuts, time in times.items():
            ends = list(pairwise((0, *cuts, instance.sublayers)))
            firsts = np.array([[first for first, _ in ends]])
            assert spans.times_ns(firsts).tolist() == [time], seed
            stages = [needs[x][first, end] for x, (first, end) in enumerate(ends)]
            assert spans.bound <= max(stages) <= time, seed
            assert max(spans.even_before[x][first] for x, (first, _) in enumerate(ends)) <= time, seed
            tight += max(stages) == time
            h = s = 0
            passes = [spans.passes_ns(np.array(first), np.array(end)) for first, end in ends]
            for x, (first, _) in enumerate(ends):
                assert spans.least_before[x][first] <= h, seed
                h += int(sum(passes[x]))
            for x, (_, end) in reversed(list(enumerate(ends))):
                assert spans.least_after[x + 1][end] <= s, seed
                s += int(sum(passes[x]))
    assert tight > 200


@pytest.mark.parametrize("turning", [False, True])
def test_what_others_are_as_good_as_is_not_missed(turning: bool) -> None:
    """The least bound of all partitions is the same with and without it, and below the least iteration."""
    fewer = 0
    for seed in range(300):
        rng = random.Random(seed)
        count, stages = rng.randint(8, 11), rng.randint(4, 7)
        forward = [rng.randint(1, 30) for _ in range(count)]
        given = {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": forward,
            "backward_ns": [2 * time + rng.randint(0, 3) for time in forward],
            "transfer_ns": [rng.randint(0, 20) for _ in forward[1:]],
            "stages": stages,
            "micro_batches": rng.randint(stages, 2 * stages),
        }
        spans = Spans(load(given), lambda: False)
        slowest = spans.slowest(FAR - 1) if turning else [0] * spans.stages
        every = some = no_suffix(spans)
        while every.stage:
            every = longer(spans, every, FAR - 1, turning)
            some = undominated(longer(spans, some, FAR - 1, turning), slowest[some.stage - 1], lambda: False)
            fewer += some.count < every.count
        assert some.bound.min() == every.bound.min(), seed
        assert (every.bound <= spans.times_ns(every.firsts)).all(), seed
    assert fewer > 500


@pytest.mark.parametrize("memory", [False, True])
def test_no_partition_is_below_what_its_suffixes_need_with_any_prefix(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_prefixes, "LEFT", 32)
    seen: Counter[str] = Counter()
    for seed in range(2000, 2150):
        instance = random_partition(seed, 8, 6, memory=memory)
        spans, times = Spans(instance, lambda: False), all_partitions(instance)
        if not times:
            continue
        limit = sorted(times.values())[len(times) // 2]
        prefixes = Prefixes(spans, limit, 1 + seed % 4, 1, lambda: False)
        for cuts in (cuts for cuts, time in times.items() if time <= limit):
            known, firsts = no_suffix(spans), (0, *cuts)
            while known.stage:
                known = longer(spans, known, FAR - 1, turning=True)
                known = known.at(known.firsts[:, 0] == firsts[known.stage])
                bound = prefixes.bounded(known).bound
                assert known.bound <= bound <= times[cuts], (seed, cuts)
                size = "m < p" if instance.micro_batches < instance.stages else "m >= p"
                seen[size] += 1
                seen[size + ", more"] += int(bound[0] > known.bound[0])
    assert min(seen[size] for size in ("m < p", "m >= p")) > 200, seen
    assert min(seen[size + ", more"] for size in ("m < p", "m >= p")) > 5, seen


def test_suffixes_left_out_for_others_lead_to_no_better_partition() -> None:
    """With all bounds and as good ones left out, the least bound of what is left is not above the least iteration."""
    fewer = 0
    for seed in range(3000, 3300):
        instance = random_partition(seed, 10, 7)
        spans, best = Spans(instance, lambda: False), min(all_partitions(instance).values())
        slowest, prefixes, known = spans.slowest(best), Prefixes(spans, best, 3, 2, lambda: False), no_suffix(spans)
        while known.stage:
            every = prefixes.bounded(longer(spans, known, best, turning=True))
            known = undominated(every, slowest[every.stage], lambda: False)
            fewer += known.count < every.count
        assert known.count, seed
        assert known.bound.min() <= best, seed
    assert fewer > 100


def test_a_bound_found_without_any_search_holds() -> None:
    """Where time is out at once, the answer is still a partition and a bound."""
    seen = 0
    for seed in range(150):
        instance = random_partition(seed)
        result, best = solve(instance, time_limit=1e-9), min(all_partitions(instance).values())
        assert result.status in ("feasible", "optimal"), seed
        assert result.bound is not None
        assert result.objective is not None
        assert result.bound <= best <= result.objective, seed
        seen += result.bound < best
    assert seen > 20


def large(sublayers: int, stages: int, micro_batches: int, seed: int = 0, unequal: bool = True, **more: Any) -> Instance:
    """Blocks of two sub-layers between a short embedding and a long head, 3 % noise each, backward three times forward."""
    rng, middle = np.random.default_rng(seed), sublayers - 2
    base = np.array([70, *(2300, 3050) * (middle // 2), *(2300,) * (middle % 2), 12000]) * 10**3
    forward, backward = ((base * ratio * (1 + 0.03 * rng.standard_normal(sublayers))).astype(int) for ratio in (1, 3))
    return load(
        {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": forward.tolist(),
            "backward_ns": backward.tolist(),
            "transfer_ns": rng.integers(2 * 10**5, 2 * 10**6, sublayers - 1).tolist() if unequal else 10**6,
            "stages": stages,
            "micro_batches": micro_batches,
            **more,
        }
    )


def limited(sublayers: int) -> dict[str, Any]:
    """Memory for a third more than an even share of eight stages, of which the first holds eight micro-batches."""
    rng = np.random.default_rng(sublayers)
    columns = {name: rng.integers(50, 100, sublayers).tolist() for name in ("state_bytes", "kept_bytes", "workspace_bytes")}
    return {"memory": columns | {"limit_bytes": sublayers * 75 * 8 // 8}}


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(large(50, 8, 16, unequal=False), id="equal transfers"),
        pytest.param(large(50, 16, 32), id="unequal transfers"),
        pytest.param(large(50, 16, 16), id="m = p"),
        pytest.param(large(50, 8, 16, **limited(50)), id="memory"),
        pytest.param(large(194, 32, 64), id="194 sub-layers"),
        pytest.param(large(194, 64, 64, unequal=False), id="194 sub-layers, m = p"),
        pytest.param(large(194, 48, 64), id="194 sub-layers, unequal transfers"),
        pytest.param(large(400, 32, 128, unequal=False), id="400 sub-layers"),
    ],
)
def test_long_chains_are_proven(instance: Instance) -> None:
    """No cut moved by one sub-layer is better, and no bound on the way was above the optimum."""
    result = solve(instance)
    assert result.status == "optimal"
    assert result.solution is not None
    assert result.objective is not None
    holds(result, result.objective)
    cuts = result.solution["cuts"]
    for index in range(len(cuts)):
        for by in (-1, 1):
            near = Solution((*cuts[:index], cuts[index] + by, *cuts[index + 1 :]))
            assert violations(instance, near) or evaluate(instance, near).objective >= result.objective


def test_chains_past_all_partitions_agree_with_cpsat() -> None:
    for seed in range(12):
        instance = random_partition(seed, 24, 6, 8, memory=seed % 2 == 1)
        proven, other = solve(instance), solve(instance, "cpsat", time_limit=5)
        assert contradictions([proven, other]) == [], seed
        assert proven.status in ("optimal", "infeasible"), seed
        if other.status == "optimal":
            assert proven.objective == other.objective, seed


def test_a_gap_and_a_time_limit_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = large(100, 24, 12, seed=1)
    near = solve(hard, gap=0.1)
    count_the_clock(monkeypatch)
    short = solve(hard, time_limit=1)
    for result in (short, near):
        assert result.objective is not None
        assert result.bound is not None
        assert result.bound <= min(short.objective or 0, near.objective or 0)
    assert near.status == "optimal"
    assert near.gap is not None
    assert 0 < near.gap <= 0.1
    assert "search" not in near.statistics


def test_a_chain_too_long_for_all_spans_gets_a_partition_and_a_bound() -> None:
    instance = large(3000, 4, 40, unequal=False)
    result = solve(instance)
    assert result.status == "feasible"
    assert result.gap is not None
    assert 0 < result.gap < 0.01


def test_the_reason_is_the_least_memory_that_would_do() -> None:
    seen = 0
    for seed in range(120):
        given = random_partition_dict(random.Random(seed), 8, 4, memory=True)
        limits = given["memory"]["limit_bytes"]

        def raised(by: int, given: dict[str, Any] = given, limits: Any = limits) -> dict[str, Any]:
            larger = limits + by if isinstance(limits, int) else [limit + by for limit in limits]
            return {**given, "memory": given["memory"] | {"limit_bytes": larger}}

        found = solve(load(given))
        if found.status != "infeasible":
            continue
        seen += 1
        assert found.reason is not None
        more = found.reason.least_memory_bytes - found.reason.memory_bytes
        assert more > 0
        assert "in stage" in found.reason.peak_layer_name
        assert all_partitions(load(raised(more)))
        assert not all_partitions(load(raised(more - 1)))
    assert seen > 10
