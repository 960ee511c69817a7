"""Random and realistic instances that several tests share."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.layer_strategies.problem import Instance, load
from trainplan.formulations.pipeline.instance import Instance as PipelineInstance
from trainplan.formulations.pipeline.instance_file import load as load_pipeline

import trainplan as tp


def random_dict(rng: random.Random, layers: int = 6, options: int = 5) -> dict[str, Any]:
    """A random layer-strategies instance as a dict of its file format, of at most `layers` layers of at most `options` options.

    Its small numbers make ties, zero costs, and tight and hopeless memory limits all likely.
    """
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
    """The instance of `random_dict` for a seed."""
    return load(random_dict(random.Random(seed), layers, options))


def paper_instance(model: str = "bert-huge-32", memory: str = "8GiB", **options: Any) -> Instance:
    """A model of the paper's Table I on 8 devices, under the paper's cost model."""
    return tp.build(model=model, cluster="rtx-titan-8", memory=memory, **{"batch": 8, **options})


NAMES = {1: ["single", "single-ckpt"], 2: ["dp2", "tp2", "sdp2", "dp2-ckpt"], 4: ["dp4", "tp4", "sdp2-tp2", "sdp4-ckpt"]}


def random_pipeline_dict(rng: random.Random, layers: int = 5, options: int = 4) -> dict[str, Any]:
    """A random pipeline instance on 4 devices as a dict of its file format.

    Ties, zero costs, synchronisation up to an option's full time, and memory from hopeless to loose are all likely.
    """
    length = rng.randint(3, layers)
    kinds, boundaries = rng.randint(1, 3), rng.randint(1, 2)
    scale = rng.choice([1, 1, 977, 2**20, 2**30])
    largest_time = rng.choice([3, 1000, 10**9])

    def configuration(stages: int, micro_batches: int) -> dict[str, Any]:
        names = NAMES[4 // stages][: rng.randint(1, options)]

        def option(name: str) -> dict[str, Any]:
            time = rng.randint(0, largest_time)
            sizes = {"forward_bytes": 100 // micro_batches, "backward_bytes": 150 // micro_batches, "state_bytes": 60}
            return {
                "strategy": name,
                "time_ns": time,
                "sync_ns": rng.choice([0, rng.randint(0, time), time]),
                **{key: rng.randint(0, limit) * scale for key, limit in sizes.items()},
            }

        def move() -> int:
            return rng.choice([0, rng.randint(0, largest_time // 3)])

        return {
            "stages": stages,
            "micro_batches": micro_batches,
            "schedule": rng.choice(["1f1b", "gpipe"]),
            "options": [[option(name) for name in names] for _ in range(kinds)],
            "transitions_ns": [[[move() for _ in names] for _ in names] for _ in range(boundaries)],
            "entries_ns": [[move() for _ in names] for _ in range(boundaries)],
        }

    shapes = [(stages, m) for stages in (1, 2, 4) if stages <= length for m in (1, 2, 4, 8)]
    return {
        "problem": "pipeline",
        "version": 1,
        "devices": 4,
        "memory_bytes": max(1, rng.randint(20, 60 * length + 60) * scale),
        "batch": 8,
        "layer_names": [f"layer {l}" for l in range(length)],
        "layer_kinds": [rng.randrange(kinds) for _ in range(length)],
        "boundary_kinds": [rng.randrange(boundaries) for _ in range(length - 1)],
        "configurations": [configuration(*shape) for shape in rng.sample(shapes, rng.randint(1, 3))],
    }


def random_pipeline(seed: int, layers: int = 5, options: int = 4) -> PipelineInstance:
    """The instance of `random_pipeline_dict` for a seed."""
    return load_pipeline(random_pipeline_dict(random.Random(seed), layers, options))
