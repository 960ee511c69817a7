"""The one model of a stage's memory: by going through its passes, and against the two models of papers that it holds."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import cases
from trainplan.formulations.layer_strategies import problem as layer_strategies
from trainplan.formulations.schedule.orders import one_f_one_b
from trainplan.formulations.schedule.stage_memory import Memory, stage_peak

from tests.formulations.test_conformance import TINY


def peak_of_passes(columns: np.ndarray, in_flight: int) -> int:
    """The largest sum of bytes while the first of a given number of stages runs its 1F1B passes, layer by layer."""
    state, held, kept, work = columns.tolist()
    now, most = sum(state), sum(state)
    for task in one_f_one_b(in_flight, 2 * in_flight)[0]:
        for layer in range(len(state)) if task.kind == "forward" else reversed(range(len(state))):
            if task.kind == "forward":
                now += held[layer] + kept[layer]
                continue
            most = max(most, now + work[layer])
            now -= kept[layer]
        if task.kind == "backward":
            now -= sum(held)
    assert now == sum(state)
    return max(most, now)


def test_stage_peak_is_the_largest_sum_over_its_passes() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        columns, in_flight = rng.integers(0, rng.choice([2, 100]), (4, rng.integers(1, 8))), int(rng.integers(1, 6))
        states, carried, kept, work = columns
        peak, layer = stage_peak(states, kept, work, in_flight, carried)
        assert peak == peak_of_passes(columns, in_flight), seed
        assert 0 <= layer < columns.shape[1]


def test_without_held_bytes_one_micro_batch_is_eq_2() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        count = rng.randint(1, 7)
        states, kept, work = ([rng.randint(0, 50) for _ in range(count)] for _ in range(3))
        found = stage_peak(np.array(states), np.array(kept), np.array(work))
        instance = layer_strategies.load(
            {
                "problem": "layer-strategies",
                "version": 1,
                "memory_bytes": 10**6,
                "layers": [
                    {
                        "options": [
                            {
                                "strategy": "single",
                                "time_ns": 1,
                                "forward_bytes": kept[l],
                                "backward_bytes": work[l],
                                "state_bytes": states[l],
                            }
                        ]
                    }
                    for l in range(count)
                ],
                "transitions_ns": [[[0]]] * (count - 1),
            }
        )
        evaluation = layer_strategies.evaluate(instance, (0,) * count)
        assert found == (evaluation.peak_bytes, evaluation.peak_layer), seed


def test_without_kept_bytes_it_is_the_sum_and_the_largest_workspace() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        states, held, work = rng.integers(0, 50, (3, 9))
        memory, (first, end) = Memory(np.array([400]), states, held, work), sorted(rng.choice(10, 2, replace=False))
        in_flight, stage = int(rng.integers(1, 6)), slice(first, end)
        peak = states[stage].sum() + in_flight * held[stage].sum() + work[stage].max()
        assert memory.stage_peak(first, end, in_flight) == (peak, first + work[stage].argmax())
        window = memory.first_layers([in_flight])[0, end - 1]
        assert (memory.peak_bytes(first, end, in_flight) <= 400) == (first >= window)


def test_all_stages_at_once_need_what_each_does_alone() -> None:
    """For cluster-strategy: the peaks of a placed strategy, and those of a case's spans."""
    for seed in range(20):
        instance = TINY["cluster-strategy"](seed)
        for case in cases(instance):
            table, shard = instance.tables[case.degrees.tmp, case.degrees.mbs], instance.shards[case.degrees.tmp]
            columns = shard.state_bytes, table.kept_bytes, table.workspace_bytes
            memory = Memory(np.full(case.degrees.pp, 1, np.int64), *columns)
            for ahead in (1, 3):
                peaks = case.peak_bytes(ahead)
                for first, end in combinations(range(instance.layers + 1), 2):
                    assert peaks[first, end] == memory.peak_bytes(first, end, ahead)
            cuts, shares = tuple(range(1, case.degrees.pp)), tuple(range(1, case.degrees.dp + 1))
            placed = instance.placed(case.degrees, tuple(range(instance.devices)))
            for stage, (first, end) in enumerate(pairwise((0, *cuts, instance.layers))):
                expected = [memory.peak_bytes(first, end, case.in_flight(share, stage)) for share in shares]
                assert placed.peak_bytes(cuts, shares)[stage].tolist() == expected
