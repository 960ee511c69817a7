"""The search for a short whole step: never longer than where it begins, near the best of all cuts, above the bound."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, load, violations
from trainplan.formulations.pipeline_partition.step_bound import least_step_ns
from trainplan.formulations.schedule.orders import most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import simulate
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.slicer import least_sliced, sliced_timeline
from trainplan.solvers.partition.times import SublayerChain
from trainplan.solvers.partition.whole_step import shortest_step

from tests.helpers.partition_instances import random_partition


def step_ns(instance: Instance, cuts: tuple[int, ...]) -> int:
    timeline = simulate(instance.work(cuts), one_f_one_b(instance.stages, instance.micro_batches))
    return timeline.step_ns(np.add.reduceat(instance.sync_ns, [0, *cuts]).tolist())


def test_steps_are_nearly_the_shortest_of_all_cuts() -> None:
    gaps, better = [], 0
    for seed in range(300):
        rng = random.Random(seed)
        instance = random_partition(seed, sublayers=9, stages=5, memory=seed % 2 == 0)
        most = int(instance.forward_ns.max()) * rng.choice([1, 3, instance.micro_batches])
        added, shared = np.array([rng.randint(0, most) for _ in range(instance.sublayers)]), rng.choice([0, most])
        if instance.stages > 1:
            added[[0, -1]] += shared
        instance = replace(instance, sync_ns=added)
        start = solve(instance, explained=False).solution
        if start is None:
            continue
        begin = tuple(start["cuts"])
        found = shortest_step(instance, begin)
        assert violations(instance, Solution(found)) == []
        own = step_ns(instance, found)
        before = step_ns(instance, begin)
        cuts = combinations(range(1, instance.sublayers), instance.stages - 1)
        least = min(step_ns(instance, c) for c in cuts if not violations(instance, Solution(c)))
        assert least <= own <= before
        assert least_step_ns(instance, sliced=False) <= least
        better += own < before
        gaps.append(own / max(1, least) - 1)
    assert better > 25 and np.mean(gaps) < 0.01 and np.mean(np.array(gaps) == 0) > 0.9, (better, np.mean(gaps), max(gaps))


@pytest.mark.parametrize("seed", range(200))
def test_no_sliced_partition_goes_below_its_bound(seed: int) -> None:
    instance = random_partition(seed, sublayers=7, stages=4, micro_batches=8)
    p, m, counts = instance.stages, instance.micro_batches, range(most_sliced(instance.stages, instance.micro_batches) + 1)
    rng = random.Random(seed)
    added = [rng.randint(0, int(instance.forward_ns.max()) * rng.choice([0, m])) for _ in range(instance.sublayers)]
    instance = replace(instance, sync_ns=np.array(added))
    best = {True: 2**62, False: 2**62}
    for cuts in combinations(range(1, instance.sublayers), p - 1):
        more = sum(added[: cuts[0] if cuts else None])
        steps = [simulate(instance.work(cuts), one_f_one_b(p, m, count)).time_ns + more for count in counts]
        best = {True: min(best[True], *steps), False: min(best[False], steps[0])}
    assert all(least_step_ns(instance, sliced) <= least for sliced, least in best.items())


def test_the_bound_is_met_by_equal_stages() -> None:
    even = {"forward_ns": [100] * 8, "backward_ns": [200] * 8, "transfer_ns": 0, "stages": 4, "micro_batches": 8}
    instance = load({"problem": "pipeline-partition", "version": 1, **even})
    timeline = simulate(instance.work((2, 4, 6)), one_f_one_b(4, 8, 1))
    assert least_step_ns(instance, sliced=True) == timeline.time_ns == 6300
    assert least_step_ns(instance, sliced=False) == solve(instance).objective


def test_stages_end_as_simulated() -> None:
    for seed in range(200):
        instance = random_partition(seed, sublayers=12, stages=6)
        rng = random.Random(seed)
        cuts = tuple(sorted(rng.sample(range(1, instance.sublayers), instance.stages - 1)))
        timeline = simulate(instance.work(cuts), one_f_one_b(instance.stages, instance.micro_batches))
        ends = SublayerChain(instance).ends_ns(np.array([[0, *cuts]]))
        assert ends[0].tolist() == [events[-1].end_ns for events in timeline.devices]


def test_slicing_counts_for_the_whole_step() -> None:
    """Where stages add something after their ends, fewer or more micro-batches may do than for the iteration."""
    for seed in range(200):
        instance = random_partition(seed, sublayers=8, stages=5)
        rng, p, m = random.Random(seed), instance.stages, instance.micro_batches
        work = instance.work(tuple(sorted(rng.sample(range(1, instance.sublayers), p - 1))))
        syncs = [rng.randint(0, 2 * max(work.backward_ns)) for _ in range(p)]
        steps = [sliced_timeline(work, m, count).step_ns(syncs) for count in range(min(p - 1, m) + 1)]
        assert least_sliced(work, m, syncs) == steps.index(min(steps))
