"""AutoPipe's planner against its paper: Algorithm 1 as printed, the simulation, and the heuristic against all partitions."""

import random
from itertools import combinations, pairwise

import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load, violations
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.autopipe import READINGS, BalanceTable, Planner, partitioned

from tests.helpers.partition_instances import random_partition


def all_cuts(sublayers: int, stages: int) -> list[tuple[int, ...]]:
    return list(combinations(range(1, sublayers), stages - 1))


def as_printed(weights: list[int], stages: int) -> tuple[int, ...]:
    """Algorithm 1 of the paper, line by line; reconstructed with the smallest k."""
    n, far = len(weights), float("inf")
    prefix_sum = [sum(weights[:i]) for i in range(n + 1)]
    time = [[far] * (stages + 1) for _ in range(n + 1)]
    time[0][0] = 0
    chosen = {}
    for i in range(1, n + 1):
        for j in range(1, min(stages, i) + 1):
            for k in range(i):
                value = max(time[k][j - 1], prefix_sum[i] - prefix_sum[k])
                if value < time[i][j]:
                    time[i][j], chosen[i, j] = value, k
    cuts, i = [], n
    for j in range(stages, 1, -1):
        i = chosen[i, j]
        cuts.append(i)
    return tuple(reversed(cuts))


def test_algorithm_1_is_the_printed_one_and_least() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        n, most = rng.randint(1, 9), rng.choice([1, 5, 1000])
        weights, stages = [rng.randint(0, most) for _ in range(n)], rng.randint(1, n)
        cuts = partitioned(weights, stages)
        assert cuts == as_printed(weights, stages), seed

        def largest(cuts: tuple[int, ...], weights: list[int] = weights) -> int:
            return max(sum(weights[first:end]) for first, end in pairwise((0, *cuts, len(weights))))

        assert largest(cuts) == min(map(largest, all_cuts(n, stages))), seed
        table = BalanceTable(weights, stages)
        for blocks in range(1, n - stages + 2):
            assert table.bounds(blocks, 1) == (0, blocks)
        for j in range(2, stages + 1):
            for blocks in range(j, n - stages + j + 1):
                assert table.bounds(blocks, j)[1:-1] == as_printed(weights[:blocks], j), (seed, j, blocks)


def test_time_and_master_stage_are_those_of_the_event_simulation() -> None:
    for seed in range(400):
        instance = random_partition(seed, sublayers=7)
        planner = Planner(instance)
        cuts = random.Random(seed).choice(all_cuts(instance.sublayers, instance.stages))
        result = evaluate(instance, Solution(cuts))
        assert planner.simulated((0, *cuts, instance.sublayers)) == (result.timeline.time_ns, result.critical.master), seed


@pytest.mark.parametrize("reading", READINGS)
def test_the_heuristic_is_between_algorithm_1_and_the_optimum(reading: str) -> None:
    met, gaps = 0, 0
    for seed in range(150):
        instance = random_partition(seed, sublayers=8)
        costs = [evaluate(instance, Solution(cuts)).time_ns for cuts in all_cuts(instance.sublayers, instance.stages)]
        first, found = solve(instance, "algorithm-1"), solve(instance, "autopipe", reading=reading)
        assert {first.status, found.status} <= {"feasible", "optimal"}
        assert first.objective is not None and found.objective is not None
        assert min(costs) <= found.objective <= first.objective
        assert found.statistics["simulated"] <= len(costs)
        met += found.objective == min(costs)
        gaps += found.objective < first.objective
    assert met >= 130 and gaps >= 20  # 138 and 24, by either reading


def balanced(loads: list[int], stages: int, micro_batches: int) -> Instance:
    return load(
        {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": loads,
            "backward_ns": [2 * time for time in loads],
            "transfer_ns": 0,
            "stages": stages,
            "micro_batches": micro_batches,
        }
    )


def test_step_2_moves_blocks_until_equation_1_holds_or_the_master_moves() -> None:
    """Eq. 1 holds for every stage between the master and the last, unless the next move would change the master."""
    moved = 0
    for seed in range(200):
        rng = random.Random(seed)
        tail, stages = [rng.randint(5, 10) for _ in range(rng.randint(8, 20))], rng.randint(3, 5)
        cuts = (0, *partitioned(tail, stages - 1), len(tail))
        first = max(sum(tail[begin:end]) for begin, end in pairwise(cuts)) + rng.randint(1, 12)
        instance = balanced([first, *tail], stages, 8)
        planner = Planner(instance)
        bounds = (0, *(cut + 1 for cut in cuts))
        master = planner.simulated(bounds)[1]
        adjusted = planner._adjusted(bounds, master)
        assert planner.simulated(adjusted)[1] == master
        assert adjusted[: master + 2] == bounds[: master + 2]
        moved += adjusted != bounds
        found = evaluate(instance, Solution(adjusted[1:-1])).stages
        for s in range(master + 1, instance.stages - 1):
            after = found[master + 1 : s + 1]
            if sum(x.forward_ns + x.backward_ns for x in after) <= (s - master) * found[master].backward_ns:
                continue
            further = (*adjusted[: s + 1], adjusted[s + 1] - 1, *adjusted[s + 2 :])
            assert found[s].first == found[s].last or planner.simulated(further)[1] != master, seed
            if found[s].first < found[s].last:
                break
    assert moved >= 20


def test_step_2_as_published_fills_the_stages_after_the_master() -> None:
    """Stage 0 is the master, f + b = 36, b = 24. Eq. 1 holds for stages 1 and 2, 9 <= 24 and 42 <= 48, not for 3, 75 > 72.
    So stage 1 takes blocks of stage 2 as long as it stays below 36, then stage 2 of stage 3; loads are then 12, 11, 11, 3."""
    instance = balanced([12, 3, 4, 4, 3, 4, 4, 3], 4, 32)
    planner = Planner(instance, "published")
    bounds = (0, 1, 2, 5, 8)
    assert planner.simulated(bounds)[1] == 0
    planner._adjusted_as_published(bounds, 0)
    assert list(planner.simulations) == [bounds, (0, 1, 3, 5, 8), (0, 1, 4, 5, 8), (0, 1, 4, 6, 8), (0, 1, 4, 7, 8)]


def test_both_readings_improve_on_algorithm_1() -> None:
    """A head as heavy as several layers, GPT-like: the master stage moves forward."""
    instance = balanced([1, *[23, 30] * 12, 70], 8, 16)
    first = solve(instance, "algorithm-1").objective
    for reading in READINGS:
        found = solve(instance, "autopipe", reading=reading)
        assert found.objective is not None and first is not None and found.objective < first


def test_it_gives_the_best_of_its_partitions_that_fits() -> None:
    reported = fell_back = 0
    for seed in range(250):
        instance = random_partition(seed, memory=True)
        planner = Planner(instance)
        planner.run()
        fitting = [cuts for cuts in planner.by_time() if not violations(instance, Solution(cuts))]
        found = solve(instance, "autopipe")
        if fitting:
            assert found.objective == min(evaluate(instance, Solution(cuts)).time_ns for cuts in fitting)
            fell_back += fitting[0] != planner.by_time()[0]
        else:
            assert found.objective is None
            if found.status != "infeasible":  # which says more
                assert found.message is not None and "knows no memory" in found.message
                reported += 1
    assert reported >= 10 and fell_back >= 3


def test_it_answers_when_time_is_up_at_once() -> None:
    instance = balanced([1, *[23, 30] * 12, 70], 8, 16)
    found = solve(instance, "autopipe", time_limit=1e-9)
    assert (found.objective, found.statistics) == (solve(instance, "algorithm-1").objective, {"simulated": 1})


def test_few_partitions_are_simulated_on_large_models() -> None:
    instance = balanced([1, *[2300, 3000] * 96, 10300], 64, 128)
    found = solve(instance, "autopipe")
    assert found.statistics["simulated"] < 200
    assert found.objective is not None and found.objective < solve(instance, "algorithm-1").objective
