"""Random pipeline-partition instances, and stages, that several tests share."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.pipeline_partition.problem import Instance, load
from trainplan.formulations.schedule.simulate import Work


def random_partition_dict(
    rng: random.Random, sublayers: int = 10, stages: int = 6, micro_batches: int = 12, memory: bool = False
) -> dict[str, Any]:
    """A random pipeline-partition instance as a dict of its file format, of at most these sizes.

    Ties, zeros, nearly equal sub-layers, overwhelming and unequal transfers, and fewer micro-batches than stages are all
    likely; with `memory` also tight, hopeless and uneven limits.
    """
    length = rng.randint(1, sublayers)
    count = rng.randint(1, min(length, stages))
    noisy, largest = rng.random() < 0.3, rng.choice([3, 1000, 10**6, 10**8])

    def row(size: int, most: int) -> list[int]:
        return [rng.randint(most * 97 // 100 if noisy else 0, most) for _ in range(size)]

    forward = row(length, largest)
    backward = [2 * time for time in forward] if rng.random() < 0.4 else row(length, 3 * largest)
    transfer = rng.choice([0, largest // 20, largest, 10 * largest])
    given: dict[str, Any] = {
        "problem": "pipeline-partition",
        "version": 1,
        "forward_ns": forward,
        "backward_ns": backward,
        "transfer_ns": transfer if rng.random() < 0.5 else [rng.randint(0, transfer) for _ in range(length - 1)],
        "stages": count,
        "micro_batches": rng.choice([1, 2, 3, count, 2 * count, rng.randint(1, micro_batches)]),
    }
    if rng.random() < 0.5:
        given["layers"] = sorted(rng.randint(0, length) for _ in range(length))
    if memory:
        scale = rng.choice([1, 977, 2**20, 2**30])
        limits = [max(1, rng.randint(20, 40 + 350 * length // count)) * scale for _ in range(count)]
        columns = ("state_bytes", "kept_bytes", "workspace_bytes")
        given["memory"] = {name: [scale * rng.randint(0, 60) for _ in range(length)] for name in columns}
        given["memory"]["limit_bytes"] = limits[0] if rng.random() < 0.5 else limits
    return given


def random_partition(
    seed: int, sublayers: int = 10, stages: int = 6, micro_batches: int = 12, memory: bool = False
) -> Instance:
    """The instance of `random_partition_dict` for a seed."""
    return load(random_partition_dict(random.Random(seed), sublayers, stages, micro_batches, memory))


def random_work(rng: random.Random, stages: int = 7) -> Work:
    """The pass times of at most `stages` random stages, with ties, zeros, or times of all sizes, and with transfers that are
    zero, small or overwhelming."""
    p, most = rng.randint(1, stages), rng.choice([1, 3, 50, 10**9])
    moved = rng.choice([0, most // 10, most, 5 * most])
    return Work(
        tuple(rng.randint(0, most) for _ in range(p)),
        tuple(rng.randint(0, 2 * most) for _ in range(p)),
        tuple(rng.randint(0, moved) for _ in range(p - 1)),
    )
