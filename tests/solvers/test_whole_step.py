"""The search for a short whole step: never longer than where it begins, near the best of all cuts, above the bound."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, violations
from trainplan.formulations.pipeline_partition.step_bound import least_step_ns
from trainplan.formulations.step.schedules import one_f_one_b
from trainplan.formulations.step.timeline import simulate
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.slicer import least_sliced, sliced_timeline
from trainplan.solvers.partition.times import Chain
from trainplan.solvers.partition.whole_step import shortest_step

from tests.partition_instances import random_partition


def step_ns(instance: Instance, added: Integers, shared: int, cuts: tuple[int, ...]) -> int:
    syncs = np.add.reduceat(added, [0, *cuts])
    if cuts:
        syncs[[0, -1]] += shared
    timeline = simulate(instance.work(cuts), one_f_one_b(instance.stages, instance.micro_batches))
    return timeline.step_ns(syncs.tolist())


def test_steps_are_nearly_the_shortest_of_all_cuts() -> None:
    gaps, better = [], 0
    for seed in range(300):
        rng = random.Random(seed)
        instance = random_partition(seed, sublayers=9, stages=5, memory=seed % 2 == 0)
        most = int(instance.forward_ns.max()) * rng.choice([1, 3, instance.micro_batches])
        added, shared = np.array([rng.randint(0, most) for _ in range(instance.sublayers)]), rng.choice([0, most])
        shared = shared if instance.stages > 1 else 0
        start = solve(instance, explained=False).solution
        if start is None:
            continue
        begin = tuple(start["cuts"])
        found = shortest_step(instance, added, shared, begin)
        assert violations(instance, Solution(found)) == []
        own = step_ns(instance, added, shared, found)
        before = step_ns(instance, added, shared, begin)
        cuts = combinations(range(1, instance.sublayers), instance.stages - 1)
        least = min(step_ns(instance, added, shared, c) for c in cuts if not violations(instance, Solution(c)))
        assert least <= own <= before
        assert least_step_ns(instance, np.cumsum([shared, *added]), sliced=False) <= least
        better += own < before
        gaps.append(own / max(1, least) - 1)
    assert better > 25 and np.mean(gaps) < 0.01 and np.mean(np.array(gaps) == 0) > 0.9, (better, np.mean(gaps), max(gaps))


def test_stages_end_as_simulated() -> None:
    for seed in range(200):
        instance = random_partition(seed, sublayers=12, stages=6)
        rng = random.Random(seed)
        cuts = tuple(sorted(rng.sample(range(1, instance.sublayers), instance.stages - 1)))
        timeline = simulate(instance.work(cuts), one_f_one_b(instance.stages, instance.micro_batches))
        ends = Chain(instance).ends_ns(np.array([[0, *cuts]]))
        assert ends[0].tolist() == [events[-1].end_ns for events in timeline.devices]


def test_slicing_counts_for_the_whole_step() -> None:
    """Where stages add something behind their ends, fewer or more micro-batches may do than for the iteration."""
    for seed in range(200):
        instance = random_partition(seed, sublayers=8, stages=5)
        rng, p, m = random.Random(seed), instance.stages, instance.micro_batches
        work = instance.work(tuple(sorted(rng.sample(range(1, instance.sublayers), p - 1))))
        syncs = [rng.randint(0, 2 * max(work.backward_ns)) for _ in range(p)]
        steps = [sliced_timeline(work, m, count).step_ns(syncs) for count in range(min(p - 1, m) + 1)]
        assert least_sliced(work, m, syncs) == steps.index(min(steps))
