"""Our model's results for AMP's Tables 3 to 11: seconds of the listed candidates, cuts, methods, and mixed devices.

The chains are the paper's: our units in order on its layers, lambdas of no time between them. Readings, and their sources:
- no recomputation: the published launch scripts ask for none;
- attention writes its scores to memory, as the shipped models say: Megatron 1.1.5 has no other;
- gradients are synchronised in 4 bytes: the published configuration has fp32_allreduce, and AMP's own model counts so;
- TransGAN is that of the model file, its windows as in the published script; its upsampling is not split over tmp ranks, and so
  has no all-reduces;
- activations cross a cut in 2 bytes, forward and back, as large as they are there (AMP's own model has one size for all);
- 10 Gb/s between nodes as soon as one of them is a p3.8xlarge; latencies are the cluster files';
- ranks go to devices as DeepSpeed numbers them: tmp innermost, then dp, then stages, node by node;
- where head and embedding lie in one stage, their tied matrix is synchronised twice, as everywhere in this project.

Layer times are `estimated` from data sheets; `calibrated`: times one factor for each kind of device, fitted to CALIBRATION, one
cell each, which are in no score; or `imported`: TransGAN's as the authors measured them, for tmp 1.

`python -m benchmarks.studies.amp_study` computes amp_study.json anew: what takes longer than a test should.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy import costs
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance, LayerTable, Shard
from trainplan.formulations.cluster_strategy.problem import Evaluation, Solution, evaluate
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import Model, load_model
from trainplan.solvers.assignment.sweep import assign
from trainplan.solvers.cluster.amp import LAYER_TIMES, assigned
from trainplan.solvers.cluster.placements import node_order
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

from benchmarks.studies.galvatron_study import dump, spearman
from tests.helpers.papers.amp import CANDIDATES, DEVICES, PUBLISHED_TRANSGAN_US, SETTINGS, Candidate, Setting, candidates

STORED = Path(__file__).with_name("amp_study.json")

# Layers with units of ours other than blocks; all that are in neither are lambdas.
NAMED_LAYERS = {
    "amp-gpt2": {"embedding": 0, "head": 28},
    "amp-transgan": {"embedding": 0, "head": 55} | {f"upsample{i}": layer for i, layer in enumerate((16, 19, 21, 29, 36), 1)},
}

T4, V100 = "Tesla T4", "Tesla V100-SXM2 16 GB"
CALIBRATION = {T4: CANDIDATES[6][0], V100: CANDIDATES[11][0]}
SLOWER = {T4: 3.009, V100: 3.766}


@dataclass(frozen=True)
class Reading:
    """Layer times and what else may be read in two ways. slower: factors on estimated times, by kind of device. lambdas: they
    have their measured times, where those are imported; AMP's own search leaves them out."""

    name: str
    slower: tuple[tuple[str, float], ...] = ()
    imported: bool = False
    lambdas: bool = True
    eager: bool = True
    recompute: bool = False
    fp32_gradients: bool = True
    latencies: bool = True


READINGS = {
    reading.name: reading
    for reading in (
        Reading("estimated"),
        Reading("calibrated", tuple(SLOWER.items())),
        Reading("imported", imported=True),
    )
}
OTHER_READINGS = (
    Reading("recomputation", recompute=True),
    Reading("fused attention", eager=False),
    Reading("gradients in 2 bytes", fp32_gradients=False),
    Reading("no latencies", latencies=False),
    Reading("imported without lambdas", imported=True, lambdas=False),
)


def readings(setting: Setting, among: Iterable[Reading] = tuple(READINGS.values())) -> list[Reading]:
    """The readings that the setting has layer times for."""
    return [reading for reading in among if setting.model == "amp-transgan" or not reading.imported]


# Instances


def block_layers(setting: Setting) -> list[int]:
    return [first + index for first, count in setting.blocks for index in range(count)]


def layer_of(setting: Setting, unit: str) -> int:
    """The paper's layer that holds a unit of our chain."""
    block, _, part = unit.partition(".")
    name = part if part.startswith("upsample") else block
    if name in NAMED_LAYERS[setting.model]:
        return NAMED_LAYERS[setting.model][name]
    return block_layers(setting)[int(block.removeprefix("block"))]


def model_of(setting: Setting, eager: bool) -> Model:
    model = load_model(setting.model, dtype="float16")
    return model if eager else model.with_fields(attn_implementation="sdpa")


@cache
def by_unit(name: str, eager: bool, recompute: bool) -> Instance:
    setting = SETTINGS[name]
    model, cluster = model_of(setting, eager), load_cluster(setting.cluster)
    shapes = costs.shapes_of_strategies(model.tp_degrees(DEVICES), DEVICES, setting.batch)
    profile = estimate_shapes(model, cluster, shapes, DEVICES)
    return costs.build(profile, cluster, setting.batch, by_unit=True, recompute=recompute, tied=False)


def instance(setting: Setting, reading: Reading, within_memory: bool = False) -> Instance:
    """The setting's problem over the paper's layers."""
    given = by_unit(setting.name, reading.eager, reading.recompute)
    homes = np.array([layer_of(setting, name) for name in given.layer_names])
    assert (np.diff(homes) >= 0).all()

    def total(column: np.ndarray) -> np.ndarray:
        found = np.zeros((*column.shape[:-1], setting.layers), np.int64)
        np.add.at(found, (..., homes), column)
        return found

    def largest(column: np.ndarray) -> np.ndarray:
        found = np.zeros(setting.layers, np.int64)
        np.maximum.at(found, homes, column)
        return found

    # Where the head is not the last layer, its logits cross the cut after it.
    crossing = np.append(given.boundary_bytes, model_of(setting, reading.eager).units[-1].sublayer.output_bytes(1, 1))
    factors = np.array([dict(reading.slower).get(kind.name, 1.0) for kind in given.kinds])[:, None]

    def times(mbs: int, estimated: np.ndarray) -> np.ndarray:
        if reading.imported:
            counted = np.isin(np.arange(setting.layers), [0, *block_layers(setting)]) | reading.lambdas
            return np.array([PUBLISHED_TRANSGAN_US]) * 1000 * mbs * counted
        return np.rint(total(estimated) * factors).astype(np.int64)

    split = np.array(["upsample" not in unit for unit in given.layer_names])
    shards = {
        tmp: Shard(total(shard.gradient_bytes) * (2 if reading.fp32_gradients else 1), total(shard.state_bytes))
        for tmp, shard in given.shards.items()
        if tmp == 1 or not reading.imported
    }
    network = given.network
    if not reading.latencies:
        network = network.changed(islands=[island.changed(latency_ns=0) for island in network.islands])
    return replace(
        given,
        layer_names=tuple(f"layer{index}" for index in range(setting.layers)),
        network=network,
        reductions=total(given.reductions * split),
        reduced_bytes=total(given.reduced_bytes * split),
        boundary_bytes=crossing[np.searchsorted(homes, np.arange(setting.layers - 1), side="right") - 1],
        shards=shards,
        tables={
            (tmp, mbs): LayerTable(times(mbs, table.layer_ns), total(table.kept_bytes), largest(table.workspace_bytes))
            for (tmp, mbs), table in given.tables.items()
            if tmp in shards
        },
        within_memory=within_memory,
        name=f"{setting.name}, {reading.name}",
    )


# Seconds of the listed candidates


def solution(given: Instance, candidate: Candidate, cuts: Sequence[int] | None = None) -> Solution:
    """A listed candidate, with its own cuts or others."""
    degrees = Degrees(candidate.pp, candidate.dp, candidate.tmp, candidate.mbs)
    shares = given.even_shares(candidate.dp, candidate.mbs)
    assert shares is not None
    return Solution(degrees, node_order(given), tuple(candidate.cuts if cuts is None else cuts), shares)


def predict(given: Instance, candidate: Candidate) -> Evaluation:
    """Eq. 3 to 5 of a listed candidate."""
    return evaluate(given, solution(given, candidate))


def fitted(kind: str) -> float:
    """The factor on a kind's layer times with which its calibration cell takes the listed seconds."""
    cell = CALIBRATION[kind]
    setting = next(setting for setting in SETTINGS.values() if cell.table in setting.tables)
    low, high = 1.0, 100.0
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        slow = predict(instance(setting, Reading("fit", ((kind, middle),))), cell).time_ns < cell.seconds * 1e9
        low, high = (middle, high) if slow else (low, middle)
    return low


@dataclass(frozen=True)
class Score:
    """Ours against the listed seconds. apart: the typical factor between them. best_rank: of the fastest listed candidate among
    all of its setting, in our order; 1 is the first."""

    correlation: float
    apart: float
    best_rank: int
    rows: tuple[tuple[Candidate, float], ...]


def scored(setting: Setting) -> list[Candidate]:
    return [candidate for candidate in candidates(setting) if candidate not in CALIBRATION.values()]


def pooled(reading: Reading) -> float:
    """The rank correlation over all settings together."""
    rows = [row for setting in SETTINGS.values() for row in score(setting, reading).rows if row[0] in scored(setting)]
    return spearman([seconds for _, seconds in rows], [candidate.seconds for candidate, _ in rows])


def score(setting: Setting, reading: Reading) -> Score:
    """Over all listed candidates of a setting but CALIBRATION, whatever the reading; best_rank over all of them."""
    given = instance(setting, reading)
    rows = [(candidate, predict(given, candidate).time_ns / 1e9) for candidate in candidates(setting)]
    fastest = min(rows, key=lambda row: row[0].seconds)
    kept = [row for row in rows if row[0] in scored(setting)]
    listed, ours = [candidate.seconds for candidate, _ in kept], [seconds for _, seconds in kept]
    return Score(
        spearman(ours, listed),
        float(np.exp(np.abs(np.log(np.array(ours) / listed)).mean())),
        1 + sum(seconds < fastest[1] for _, seconds in rows),
        tuple(rows),
    )


# Cuts


@dataclass(frozen=True)
class Cuts:
    """Cuts for one listed candidate's degrees, and Eq. 4 of each in nanoseconds: the paper's; by AMP's method, the least Eq. 5
    with layer times averaged over the devices; the same with the times of each stage's devices; the least Eq. 4, proven."""

    candidate: Candidate
    paper: tuple[tuple[int, ...], int]
    amp: tuple[tuple[int, ...], int]
    device: tuple[tuple[int, ...], int]
    optimum: tuple[tuple[int, ...], int]

    def near(self, within: int = 1) -> int:
        """Cuts of AMP's method that are so near the paper's, of pp - 1."""
        return sum(abs(a - b) <= within for a, b in zip(self.paper[0], self.amp[0], strict=True))


def least_time(given: Instance, candidate: Candidate) -> tuple[int, ...]:
    """The cuts of the least Eq. 4 for a candidate's degrees, where its pipelines are alike.

    Under a cap on the gradient synchronisation D the least Eq. 5 is an assignment with windows, for D grows with the span of a
    stage. The caps fall from one solution's D to just below it, and end where Eq. 5 alone is above the best sum.
    """
    degrees = solution(given, candidate).degrees
    placed = given.placed(degrees, node_order(given))
    assert (placed.layer_ns == placed.layer_ns[:, :1]).all() and (placed.transfer_ns == placed.transfer_ns[:, :1]).all()
    layer_ns, transfer_ns = placed.layer_ns[:, 0], placed.transfer_ns[:, 0]
    gas, layers = given.batch // (degrees.dp * degrees.mbs), given.layers
    sync = [[[placed.sync_ns(j, f, l) for f in range(l + 1)] for l in range(layers)] for j in range(degrees.pp)]
    cuts: tuple[int, ...] = ()
    best = cap = 2**62
    while True:
        fits = [[next((f for f, ns in enumerate(row) if ns < cap), l + 1) for l, row in enumerate(rows)] for rows in sync]
        found = assign(layer_ns, transfer_ns, gas, np.array(fits), cutoff_ns=best)
        if found is None:
            return cuts
        borders = [0, *found[1], layers]
        cap = max(sync[j][last - 1][first] for j, (first, last) in enumerate(pairwise(borders)))
        if found[0] + cap < best:
            best, cuts = found[0] + cap, found[1]


def cuts_of(setting: Setting, reading: Reading) -> list[Cuts]:
    """AMP's listed candidates of a setting."""
    given, found = instance(setting, reading), []
    for candidate in CANDIDATES[setting.tables[1]]:
        own = solution(given, candidate)
        device, average = (assigned(given, own.degrees, own.placement, layer_times=times).cuts for times in LAYER_TIMES)
        chosen = own.cuts, average, device, least_time(given, candidate)
        timed = [(cuts, evaluate(given, solution(given, candidate, cuts)).time_ns) for cuts in chosen]
        found.append(Cuts(candidate, *timed))
    return found


# Methods


def methods(setting: Setting, reading: Reading) -> dict[str, tuple[float, float]]:
    """Best and mean seconds of each planner's ten candidates (random: 50) under our model, with 16 GiB a device as they had.

    megatron: those of the smallest tmp x pp for their micro-batch size alone, as Tables 6 and 8 have them. amp averages layer
    times over the devices, as theirs does; amp per device takes each stage's own.
    """
    given, found = instance(setting, reading, within_memory=True), {}
    for name in ("megatron", "random", "amp", "amp per device", "simulated-annealing"):
        method, _, per_device = name.partition(" ")
        options: dict[str, Any] = {"layer_times": "average"} if method == "amp" and not per_device else {}
        listed = [row for row in solve(given, method, **options).statistics["candidates"] if row["fits"]]
        if method == "megatron":
            listed = [row for row in listed if row["tmp"] * row["pp"] == _smallest(listed, row["mbs"])]
        seconds = [row["time_ns"] / 1e9 for row in listed]
        found[name] = min(seconds), float(np.mean(seconds))
    return found


def _smallest(listed: Sequence[dict[str, Any]], mbs: int) -> int:
    return min(row["tmp"] * row["pp"] for row in listed if row["mbs"] == mbs)


def assignments(setting: Setting, reading: Reading) -> dict[str, float]:
    """Seconds of AMP's best listed strategy with its layers assigned by AMP and by the uniform rules (Table 5)."""
    given = instance(setting, reading)
    best = min(CANDIDATES[setting.tables[1]], key=lambda candidate: candidate.seconds)
    own = solution(given, best)
    return {
        rule: evaluate(given, assigned(given, own.degrees, own.placement, rule)).time_ns / 1e9
        for rule in ("exact", "uniform-layers", "uniform-parameters")
    }


# Mixed devices

MIXED = "amp-heterogeneous-16"
CASES = (
    ("amp-gpt2", 32, None),
    ("amp-gpt2", 32, 1),
    ("amp-gpt2", 32, 2),
    ("amp-gpt2", 16, None),
    ("amp-gpt2", 64, None),
    ("amp-gpt2", 50, None),
    ("gpt2", 32, None),
    ("gpt2", 31, None),
    ("bert-large", 32, None),
    ("amp-transgan", 64, None),
)
STEP_NAMES = ("blind", "heuristic", "placed", "shared")
SECONDS = 120.0


@cache
def mixed(model: str, batch: int, mbs: int | None = None, uneven_shares: bool = False) -> Instance:
    """A shipped model on the shipped mixed cluster, over our own layers, within the memory. mbs: the only one."""
    chain, machine = load_model(model, dtype="float16"), load_cluster(MIXED)
    shapes = costs.shapes_of_strategies(chain.tp_degrees(machine.devices), machine.devices, batch)
    profile = estimate_shapes(chain, machine, shapes, machine.devices)
    given = costs.build(profile, machine, batch, uneven_shares=uneven_shares, tied=False)
    return replace(given, tables={key: table for key, table in given.tables.items() if mbs in (None, key[1])})


def step(model: str, batch: int, mbs: int | None, name: str) -> Result:
    """One of the steps past the paper:

    blind: Algorithm 1 with layer times averaged over all devices, judged on the real ones; heuristic: with those of the devices
    of each stage; placed: the placement is optimised, too; shared: and shares are uneven.
    """
    given = mixed(model, batch, mbs, name == "shared")
    if name in ("placed", "shared"):
        return solve(given, "exact", time_limit=SECONDS)
    return solve(given, "amp", layer_times="average" if name == "blind" else "device")


def steps(case: tuple[str, int, int | None]) -> dict[str, dict[str, Any]]:
    found = {name: step(*case, name) for name in STEP_NAMES}
    return {
        name: {
            "time_ns": result.objective,
            "bound_ns": result.bound,
            "status": result.status,
            "solution": result.solution,
            "seconds": round(result.build_seconds + result.solve_seconds, 2),
        }
        for name, result in found.items()
    }


# All of it


def label(case: tuple[str, int, int | None]) -> str:
    model, batch, mbs = case
    return f"{model}, batch {batch}" + (f", mbs {mbs}" if mbs else "")


def load_study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def compute() -> dict[str, Any]:
    planned = {
        f"{setting.name}, {reading.name}": methods(setting, reading)
        for setting in SETTINGS.values()
        for reading in readings(setting)
    }
    return {"methods": planned, "steps": {label(case): steps(case) for case in CASES}}


if __name__ == "__main__":
    STORED.write_text(dump(compute()))
