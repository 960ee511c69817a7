"""Instances of the problem memory-switches: random small ones, and realistic ones with the shapes of the paper's models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from trainplan.formulations.memory_switches.problem import COLUMNS, Instance, Solution, evaluate, load, matrix
from trainplan.formulations.memory_switches.simulation import Evaluation, simulate_one
from trainplan.formulations.plan.switches import ALL_ON, Switches, combinations


def any_combinations(offload_needs_ckpt: bool = True) -> tuple[Switches, ...]:
    """All combinations of switches that a layer of a plan may have: the problem's, each with `segment_sync` on and off."""
    synchronised = combinations(offload_needs_ckpt)
    return tuple(replace(switches, segment_sync=on) for on in (False, True) for switches in synchronised)


def simulated_step(instance: Instance, solution: Solution) -> Evaluation:
    """The simulated step of a solution, also without `segment_sync`, which plans allow and the problem does not."""
    return simulate_one(instance.columns, instance.nvlink, matrix([solution]))


def random_instance(rng: np.random.Generator, layers: int, scale: int = 100, **fields: Any) -> Instance:
    """A random instance of small numbers without structure, whose memory limit is between hopeless and ample.

    scale: the largest time. fields: fields of the file format to replace.
    """

    def below(limit: int) -> int:
        return int(rng.integers(limit))

    hidden = [1 + below(scale) for _ in range(layers + 1)]
    rows = []
    for i in range(layers):
        row = {name: below(scale) for name in COLUMNS}
        graph = below(10 * scale)
        row |= {"input_bytes": hidden[i], "output_bytes": hidden[i + 1], "graph_bytes": graph}
        row |= {"gathered_parameter_bytes": below(5 * scale), "gathered_gradient_bytes": below(5 * scale)}
        row |= {"forward_without_graph_peak_bytes": hidden[i + 1] + below(scale)}
        row |= {"forward_peak_bytes": hidden[i + 1] + graph + below(scale)}
        row |= {"backward_peak_bytes": hidden[i] + below(3 * scale)}
        rows.append(row)
    given = {"problem": "memory-switches", "version": 1, "nvlink": bool(rng.integers(2)), "memory_bytes": 1, "layers": rows}
    ample = load(given | fields | {"memory_bytes": 2**40})
    low, high = (evaluate(ample, Solution((s,) * layers)).peak_bytes for s in (ALL_ON, ample.options[0]))
    return load(given | {"memory_bytes": max(1, int(low + rng.uniform(-0.1, 1) * (high - low)))} | fields)


# The paper's Table 2 (N, d_hidden, d_FFN, heads), sequence length 512 (Section C.3).
TABLE_2 = {
    "1.8b": (48, 1024, 16384, 32),
    "6b": (48, 1024, 65536, 128),
    "13b": (48, 2048, 65536, 128),
    "100b": (56, 12288, 49152, 96),
}


def bert_instance(
    size: str, memory_bytes: int, *, batch: int, devices: int = 8, nvlink: bool = True, layers: int | None = None,
    noise: float = 0.0, seed: int = 0, **fields: Any,
) -> Instance:  # fmt: skip
    """An instance for a model of the paper's Table 2, from its shapes, in half precision on A100 (NVLink) or 2080 Ti.

    size: its key in TABLE_2. batch: samples of one step. layers: their number, where it is not the model's. noise: relative,
    drawn for each layer. fields: fields of the file format to replace.
    """
    count, hidden, feed_forward, heads = TABLE_2[size]
    rng = np.random.default_rng(seed)
    rows, tokens = batch // devices, 512 * (batch // devices)
    parameters = 4 * hidden * hidden + 2 * hidden * feed_forward
    state = 2 * tokens * hidden
    graph = 2 * tokens * (8 * hidden + 2 * feed_forward) + 2 * 2 * rows * heads * 512 * 512
    compute, link, bus, rate = (140e12, 180e9, 20e9, 2.0e9) if nvlink else (45e12, 8e9, 8e9, 1.0e9)
    forward = (2 * parameters * tokens + 4 * rows * 512 * 512 * hidden) / compute * 1e9
    gather, copy = 2 * parameters / link * 1e9, 2 * parameters / devices / bus * 1e9
    layer_rows = []
    for _ in range(layers or count):
        f = [1 + noise * rng.uniform(-1, 1) for _ in range(20)]
        row = {
            "forward_without_graph_ns": forward * f[0], "forward_ns": 1.03 * forward * f[1], "backward_ns": 2 * forward * f[2],
            "all_gather_ns": gather * f[3], "reduce_scatter_ns": gather * f[4],
            "prefetch_parameter_ns": copy * f[5], "offload_gradient_ns": copy * f[6],
            "prefetch_hidden_ns": state / bus * 1e9 * f[7], "offload_hidden_ns": state / bus * 1e9 * f[8],
            "optimizer_ns": parameters / devices / rate * 1e9 * f[9],
            "input_bytes": state, "output_bytes": state, "graph_bytes": graph * f[10],
            "gathered_parameter_bytes": 2 * parameters, "partitioned_parameter_bytes": 2 * parameters // devices,
            "gathered_gradient_bytes": 2 * parameters, "partitioned_gradient_bytes": 2 * parameters // devices,
            "forward_without_graph_peak_bytes": state + graph / 4 * f[11],
            "forward_peak_bytes": state + graph * f[10] + state * f[12],
            "backward_peak_bytes": 2 * state + graph / 8 * f[13],
        }  # fmt: skip
        row = {name: int(value) for name, value in row.items()}
        layer_rows.append(row | {"forward_peak_bytes": max(row["forward_peak_bytes"], state + row["graph_bytes"])})
    given = {"problem": "memory-switches", "version": 1, "nvlink": nvlink, "memory_bytes": memory_bytes, "layers": layer_rows}
    return load(given | {"name": f"bert-{size}"} | fields)
