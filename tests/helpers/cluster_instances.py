"""Small random clusters: mixed kinds, islands and matrices, tight memory, uneven shares."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.instance_file import load


def random_cluster_dict(rng: random.Random, devices: int | None = None, layers: int = 6) -> dict[str, Any]:
    """A random cluster-strategy instance as a dict of its file format, of at most `layers` layers.

    Ties, zero costs, one much slower link, and memory limits from hopeless to loose are all likely.
    """
    devices = devices or rng.choice([2, 3, 4, 4, 4, 6])
    length = rng.randint(min(3, layers), layers)
    kinds = rng.randint(1, min(3, devices))
    scale = rng.choice([1, 1, 1000, 10**6])
    base = [rng.randint(0, 9) * scale for _ in range(length)]
    speeds = sorted(rng.choice([1, 1, 2, 3]) for _ in range(kinds))
    degrees = [tmp for tmp in (1, 2, 4) if devices % tmp == 0]
    batch = rng.choice([2, 4, 4, 6, 8, 12])
    sizes = [mbs for mbs in (1, 2, 4) if batch % mbs == 0][: rng.randint(1, 3)]

    def time(tmp: int, mbs: int, kind: int) -> list[int]:
        noise = rng.choice([0, 0, scale])
        return [value * mbs * speeds[kind] // tmp + rng.randint(0, noise) for value in base]

    def column(limit: int) -> list[int]:
        return [rng.randint(0, limit) for _ in range(length)]

    least = rng.choice([0, 5, 10, 20])
    return {
        "problem": "cluster-strategy",
        "version": 1,
        "batch": batch,
        "layer_names": [f"layer {l}" for l in range(length)],
        "kinds": [{"name": f"kind {k}", "memory_bytes": least * length + rng.randint(1, 40 * length)} for k in range(kinds)],
        "devices": _runs(rng, devices, kinds),
        "network": _network(rng, devices, scale),
        "reductions": [rng.randint(0, 4) for _ in range(length)],
        "reduced_bytes": column(4),
        "boundary_bytes": column(6)[1:],
        "shards": [{"tmp": tmp, "gradient_bytes": column(30 // tmp), "state_bytes": column(30 // tmp)} for tmp in degrees],
        "tables": [
            {
                "tmp": tmp,
                "mbs": mbs,
                "layer_ns": [time(tmp, mbs, kind) for kind in range(kinds)],
                "kept_bytes": column(12 * mbs // tmp),
                "workspace_bytes": column(8 * mbs // tmp),
            }
            for tmp in degrees
            for mbs in sizes
        ],
        "uneven_shares": rng.random() < 0.5,
        "within_memory": rng.random() < 0.6,
        "tied_bytes": rng.choice([0, rng.randint(0, 30)]),
    }


def _runs(rng: random.Random, devices: int, kinds: int) -> list[dict[str, int]]:
    """The `devices` field of an instance: runs of devices of one kind, with at least one device of each kind."""
    owned = sorted([*range(kinds), *(rng.randrange(kinds) for _ in range(devices - kinds))])
    if rng.random() < 0.3:
        rng.shuffle(owned)
    return [{"kind": kind, "count": 1} for kind in owned]


def _network(rng: random.Random, devices: int, scale: int) -> dict[str, Any]:
    """A random network, as a full matrix or as islands, whose message times are of the order of the layers' times."""
    slow, fast = sorted(rng.choice([1e9, 2e9, 5e9, 2e10]) / scale for _ in range(2))
    latencies = [rng.choice([0, 0, rng.randint(0, 3 * scale)]) for _ in range(2)]
    algorithm = rng.choice(["ring", "ring", "tree", "fastest"])
    if rng.random() < 0.4:
        table = [[rng.choice([slow, fast]) for _ in range(devices)] for _ in range(devices)]
        if rng.random() < 0.7:
            table = [[table[min(a, b)][max(a, b)] for b in range(devices)] for a in range(devices)]
        return {"matrix": {"bandwidth_bytes_per_s": table, "latency_ns": latencies[0]}, "algorithm": algorithm}
    node = rng.choice([size for size in range(1, devices + 1) if devices % size == 0])
    whole: dict[str, Any] = {"devices": devices, "bandwidth_bytes_per_s": slow, "latency_ns": latencies[1]}
    if rng.random() < 0.3 and node > 1:
        whole |= {"shared_by": node, "node_bytes_per_s": slow * rng.choice([1, 2])}
    inner = {"devices": node, "bandwidth_bytes_per_s": fast, "latency_ns": latencies[0]}
    return {"islands": [inner, whole] if 1 < node < devices else [whole], "algorithm": algorithm}


def random_cluster(seed: int, devices: int | None = None, layers: int = 6) -> Instance:
    """The instance of `random_cluster_dict` for a seed."""
    return load(random_cluster_dict(random.Random(seed), devices, layers))
