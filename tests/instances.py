"""Random and realistic instances that several tests share."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.layer_strategies.problem import Instance, load

import trainplan as tp


def random_dict(rng: random.Random, layers: int = 6, options: int = 5) -> dict[str, Any]:
    """Small numbers that make ties, zero costs, tight and hopeless memory limits all likely."""
    length = rng.randint(1, layers)
    counts = [rng.randint(1, options) for _ in range(length)]
    scale = rng.choice([1, 1, 977, 2**20, 2**25, 2**30])
    largest_time = rng.choice([3, 1000, 10**9])

    def size(limit: int) -> int:
        return rng.randint(0, limit) * scale

    return {
        "problem": "layer-strategies",
        "version": 1,
        "memory_bytes": max(1, rng.randint(60, 90 * length + 100) * scale),
        "layers": [
            {
                "options": [
                    {
                        "strategy": f"s{s}",
                        "time_ns": rng.randint(0, largest_time),
                        "forward_bytes": size(100),
                        "backward_bytes": size(150),
                        "state_bytes": size(60),
                    }
                    for s in range(count)
                ]
            }
            for count in counts
        ],
        "transitions_ns": [
            [[rng.choice([0, rng.randint(0, largest_time // 3)]) for _ in range(counts[l + 1])] for _ in range(counts[l])]
            for l in range(length - 1)
        ],
    }


def random_instance(seed: int, layers: int = 6, options: int = 5) -> Instance:
    return load(random_dict(random.Random(seed), layers, options))


def paper_instance(model: str = "bert-huge-32", memory: str = "8GiB", **options: Any) -> Instance:
    """A model of the paper's Table I on 8 devices, under the paper's cost model."""
    return tp.build(model=model, cluster="rtx-titan-8", memory=memory, **{"batch": 8, **options})
