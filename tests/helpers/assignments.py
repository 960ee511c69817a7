"""Random stage-assignment instances that several tests share."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.stage_assignment.problem import Instance, load


def random_assignment_dict(rng: random.Random, layers: int = 8, stages: int = 4, memory: bool = False) -> dict[str, Any]:
    """A random stage-assignment instance as a dict of its file format, of at most `layers` layers and `stages` stages.

    Its small numbers make ties, transfers of zero and overwhelming ones, and one micro-batch likely; with `memory` also tight,
    hopeless and uneven limits.
    """
    length = rng.randint(1, layers)
    count = rng.randint(1, min(length, stages))
    largest = rng.choice([3, 1000, 10**9])

    def row(size: int, most: int) -> list[int]:
        return [rng.randint(0, most) for _ in range(size)]

    transfer = rng.choice([0, largest, 20 * largest])
    given: dict[str, Any] = {
        "problem": "stage-assignment",
        "version": 1,
        "stages": count,
        "micro_batches": rng.choice([1, 2, 3, 8, 64]),
        "layer_ns": row(length, largest) if rng.random() < 0.5 else [row(length, largest) for _ in range(count)],
        "transfer_ns": row(length - 1, transfer)
        if rng.random() < 0.5
        else [row(length - 1, transfer) for _ in range(count - 1)],
        "parameters": row(length, 50),
    }
    if memory:
        scale = rng.choice([1, 977, 2**20, 2**30])
        limits = [max(1, rng.randint(20, 40 + 300 * length // count)) * scale for _ in range(count)]
        columns = ("state_bytes", "kept_bytes", "workspace_bytes")
        given["memory"] = {name: [scale * size for size in row(length, 60)] for name in columns}
        given["memory"]["limit_bytes"] = limits[0] if rng.random() < 0.5 else limits
    return given


def random_assignment(seed: int, layers: int = 8, stages: int = 4, memory: bool = False) -> Instance:
    """The instance of `random_assignment_dict` for a seed."""
    return load(random_assignment_dict(random.Random(seed), layers, stages, memory))
