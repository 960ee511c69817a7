"""Our simulation of AutoPipe's tables and figures: partitions and their gaps, plans of DAPPLE, Piper and AutoPipe on
4 to 16 GPUs, balance, speed-ups and start-up.

Readings, and their sources:
- half precision. The paper does not say. In single precision the stages of 345M with Mbs 32 that ran do not fit 24 GiB, and
  1.3B would have to reach 71 % of the 35.6 TFLOP/s that a 3090 has, eager attention included (`flops_share`);
- attention writes its scores to memory: PyTorch 1.10 has no fused one;
- recomputation covers the Transformer layers, as in Megatron-LM, the paper's back-end; embedding and head run once;
- a message is the hidden states of a micro-batch over the slowest link between neighbouring GPUs;
- gradients are all-reduced in the dtype of the parameters, at the speed of a ring over all GPUs of the setting;
- replicas of a stage share the rows of a micro-batch, where the stages of a pipeline have different numbers of them.

Layer times are `estimated` from data sheets, or `calibrated`: times one factor, fitted to CALIBRATION, one cell that is in no
score. A plan is `planned` where our planners choose all of it; or it is `told`: the number of stages, and where the text has
them replicas and layers, are the paper's, the rest our planners'.

`python -m benchmarks.studies.autopipe_study` computes autopipe_study.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.formulations.pipeline_partition.costs import build
from trainplan.formulations.pipeline_partition.degrees import PipelineDegrees
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate
from trainplan.formulations.schedule.orders import interleaved, one_f_one_b
from trainplan.formulations.schedule.simulate import simulate
from trainplan.formulations.schedule.stage_memory import COLUMNS
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.slicer import least_sliced, sliced_timeline

from benchmarks.studies.galvatron_study import dump
from tests.helpers.papers.autopipe import (
    DAPPLE_SECOND_STAGE,
    GPU_BYTES,
    MODELS,
    PARTITIONS,
    SETTINGS,
    SIZES_FIGURE_9,
    SIZES_FIGURE_10,
    STAGES,
    STAGES_FIGURE_10,
    Setting,
)
from trainplan.papers.replicated import (
    LatencyPart,
    Replicated,
    ReplicatedChain,
    autopipe_plan,
    dapple_plan,
    latency_ns,
    peaks_bytes,
    piper_plan,
    reduced_ns,
    run,
)

STORED = Path(__file__).with_name("autopipe_study.json")
CLUSTER = "autopipe-3090-16"
CALIBRATION = (SETTINGS[0], "A", 2)  # GPT-2 345M, data parallelism on 4 GPUs, Gbs 512
SLOWER = 1.9775
METHODS = ("autopipe", "algorithm-1", "megatron", "piper", "dapple")
DEPTHS = range(2, 13)


@dataclass(frozen=True)
class Reading:
    """Layer times and what else may be read in two ways. slower: a factor on the estimated times."""

    name: str
    slower: float = 1.0
    dtype: str = "float16"
    eager: bool = True
    whole: bool = False  # embedding and head are recomputed, too


ESTIMATED, CALIBRATED = Reading("estimated"), Reading("calibrated", SLOWER)
OTHER_READINGS = (
    Reading("float32", dtype="float32"),
    Reading("fused attention", eager=False),
    Reading("head recomputed", whole=True),
)


# Instances


@cache
def profile(model: str, mbs: int, reading: Reading) -> Profile:
    chain = load_model(model, dtype=reading.dtype)
    chain = chain.with_fields(attn_implementation="eager") if reading.eager else chain.fused()
    cluster = load_cluster(CLUSTER)
    return estimate_shapes(chain, cluster, [(1, mbs)], cluster.devices)


@cache
def instance(model: str, mbs: int, stages: int, micro_batches: int, reading: Reading = ESTIMATED) -> Instance:
    """A pipeline of one GPU a stage, within the memory."""
    used = profile(model, mbs, reading)

    def made(recompute: bool) -> Instance:
        degrees = PipelineDegrees(stages, micro_batches=micro_batches)
        return build(used, mbs * micro_batches, degrees, memory_bytes=GPU_BYTES, recompute=recompute)

    given, kept = made(True), made(False)
    assert given.memory is not None and kept.memory is not None
    once = np.zeros(given.sublayers, bool)
    once[[0, -1]] = not reading.whole
    backward = np.where(once, kept.backward_ns, given.backward_ns)
    columns = {name: np.where(once, getattr(kept.memory, name), getattr(given.memory, name)) for name in COLUMNS}
    forward, backward = (np.rint(times * reading.slower).astype(np.int64) for times in (given.forward_ns, backward))
    return replace(given, forward_ns=forward, backward_ns=backward, memory=replace(given.memory, **columns))


@cache
def chain(setting: Setting, column: int, reading: Reading, by_layer: bool) -> ReplicatedChain:
    """A setting's layers, or sub-layers, with their gradients."""
    used, gpus = profile(setting.model, setting.mbs, reading), setting.gpus
    given = instance(setting.model, setting.mbs, gpus, setting.micro_batches(column), reading)

    sizes = np.array([used.shapes[unit.sublayer].shard(1).parameters * used.parameter_bytes for unit in used.units])
    whole = collective_ns(used.network, "all-reduce", int(sizes.sum()), range(gpus)) * gpus / 2 / (gpus - 1)
    return ReplicatedChain.of(given, np.rint(whole * sizes / sizes.sum()).astype(np.int64), by_layer)


def cuts_by(given: Instance, method: str) -> tuple[int, ...]:
    """The cuts that a method chooses."""
    found = solve(given, method).solution
    assert found is not None
    return tuple(found["cuts"])


# 1. Gaps of the heuristics


def gaps(model: str, stages: int) -> dict[str, Any]:
    """The proven optimum of m = 2p micro-batches and the time of every method, ns. Memory is left out, as in the paper."""
    mbs = SIZES_FIGURE_10.get(model, 4)
    given = replace(instance(model, mbs, stages, 2 * stages), memory=None)
    best = solve(given)
    found = {name: solve(given, name).objective for name in METHODS}
    published = solve(given, "autopipe", reading="published").objective
    return {"status": best.status, "optimum": best.objective, **found, "autopipe, published": published}


# 2. Table II


def cuts_of(layers: Sequence[float]) -> tuple[int, ...]:
    """The first stage has the embedding, too, the last one the head; half a layer before a cut is its attention block."""
    return tuple(1 + round(2 * total) for total in np.cumsum(layers)[:-1])


def table_2(mbs: int = 4, reading: Reading = ESTIMATED) -> dict[str, dict[str, Any]]:
    """Time per micro-batch, ns, and the largest stage's, of the seven partitions and of what the planners choose."""
    given = replace(instance("gpt2-345m", mbs, 4, 8, reading), memory=None)
    chosen = {str(number): cuts_of(layers) for number, layers in PARTITIONS.items()}
    for method in ("autopipe", "exact"):
        chosen[method] = cuts_by(given, method)
    found = {}
    for name, cuts in chosen.items():
        result = evaluate(given, Solution(cuts))
        stages = np.add(result.work.forward_ns, result.work.backward_ns)
        found[name] = {
            "cuts": list(cuts),
            "per_micro_batch_ns": result.time_ns / 8,
            "largest_ns": int(stages.max()),
            "deviation_ns": round(float(stages.std())),
        }
    return found


# 3. Tables III and IV


def planned(setting: Setting, algorithm: str, column: int, reading: Reading = ESTIMATED) -> Replicated | None:
    """The plan of our planners; None where Piper or AutoPipe find none that fits."""
    layers = chain(setting, column, reading, algorithm != "A")
    planner = {"D": dapple_plan, "P": piper_plan, "A": autopipe_plan}[algorithm]
    return planner(layers, setting.gpus, setting.micro_batches(column))


def plan_of_text(setting: Setting, algorithm: str, column: int, reading: Reading = ESTIMATED) -> Replicated:
    """The plan as far as the text tells of it; the rest by the planner's own objective."""
    stages, gpus, rounds = STAGES[algorithm][SETTINGS.index(setting)], setting.gpus, setting.micro_batches(column)
    if stages == 1:
        return Replicated((), (gpus,))
    layers = chain(setting, column, reading, algorithm != "A")
    if algorithm == "D":
        if (setting.model, setting.mbs, gpus) == ("gpt2-345m", 32, 4):
            return Replicated((layers.layers - 1 - DAPPLE_SECOND_STAGE,), (1, 3))
        return two_stages(layers, (1, gpus - 1), rounds)
    if algorithm == "P":
        return piper_of(layers, gpus, rounds, stages)
    given = instance(setting.model, setting.mbs, gpus, rounds, reading)
    pipeline = replace(given, stages=stages, micro_batches=rounds * stages // gpus, memory=None)
    return Replicated(cuts_by(pipeline, "autopipe"), (gpus // stages,) * stages)


def two_stages(layers: ReplicatedChain, replicas: tuple[int, int], rounds: int) -> Replicated:
    """The cut of the least L with DAPPLE's 15 of 16 replicas, and likewise 3 of 4 and 7 of 8, on the second stage."""

    def latency(cut: int) -> int:
        def part(location: slice, d: int) -> LatencyPart:
            columns = (layers.forward_ns, layers.backward_ns, layers.gradient_ns)
            forward, backward, gradient = (int(column[location].sum()) for column in columns)
            return LatencyPart(-(-forward // d), -(-backward // d), reduced_ns(gradient, d))

        message = int(layers.transfer_ns[cut - 1])
        parts = (part(slice(cut), replicas[0]), LatencyPart(message, message), part(slice(cut, None), replicas[1]))
        return latency_ns(parts, rounds)

    return Replicated((min(range(1, layers.layers), key=latency),), replicas)


def piper_of(layers: ReplicatedChain, gpus: int, rounds: int, stages: int) -> Replicated:
    """Piper's least largest time per sample with a given number of stages, over all replicas that divide the micro-batches."""
    assert layers.memory is not None
    best: tuple[int, Replicated] | None = None
    degrees = [d for d in range(1, gpus) if rounds % d == 0]
    for replicas in product(degrees, repeat=stages):
        if sum(replicas) != gpus:
            continue
        ways: dict[int, tuple[int, tuple[int, ...]]] = {layers.layers: (0, ())}  # from each first layer on
        for x in reversed(range(stages)):
            d, in_flight = replicas[x], -(-sum(replicas[x:]) // replicas[x])
            longer: dict[int, tuple[int, tuple[int, ...]]] = {}
            for first in range(layers.layers) if x else [0]:
                peaks = peaks_bytes(layers.memory, first, np.array([in_flight]))
                for end, (later, cuts) in ways.items():
                    if end <= first or peaks[end - 1 - first] > GPU_BYTES:
                        continue
                    moves = 2 * (layers.moves[first] + layers.moves[end])
                    gradient = 4 * (d - 1) * int(layers.gradient_ns[first:end].sum()) / rounds
                    tps = max(later, round((int(layers.before[end] - layers.before[first] + moves) + gradient) / d))
                    if first not in longer or tps < longer[first][0]:
                        longer[first] = tps, (end, *cuts)
            ways = longer
        if 0 in ways and (best is None or ways[0][0] < best[0]):
            best = ways[0][0], Replicated(ways[0][1][:-1], replicas)
    assert best is not None
    return best[1]


def outcome(setting: Setting, algorithm: str, column: int, plan: Replicated | None, reading: Reading) -> dict[str, Any]:
    """A plan simulated. failure: error, where a stage has more replicas than a micro-batch has rows, or OOM; ms then is what it
    would take with more memory. stage_ms: one micro-batch through every stage, both passes."""
    if plan is None:
        return {"failure": "OOM"}
    layers = chain(setting, column, reading, algorithm != "A")
    text_cells = {"cuts": list(plan.cuts), "replicas": list(plan.replicas)}
    try:
        result = run(layers, plan, setting.micro_batches(column), setting.mbs)
    except ValueError:
        return {**text_cells, "failure": "error"}
    assert result.peak_bytes is not None
    stage_ns = zip(result.work.forward_ns, result.work.backward_ns, strict=True)
    return {
        **text_cells,
        "failure": None if result.fits else "OOM",
        "ms": round(result.time_ns / 1e6, 1),
        "peak_gib": round(max(result.peak_bytes) / 2**30, 1),
        "stage_ms": [round((f + b) / 1e6, 3) for f, b in stage_ns],
    }


def cells(kind: str, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    chosen = {"planned": planned, "told": plan_of_text}[kind]
    for setting in SETTINGS:
        for algorithm in setting.printed:
            for column in range(3):
                plan = chosen(setting, algorithm, column, reading)
                yield key(setting, algorithm, column), outcome(setting, algorithm, column, plan, reading)


def key(setting: Setting, algorithm: str, column: int) -> str:
    return f"{setting}, Gbs {setting.batches[column]}, {algorithm}"


def fitted() -> float:
    """The factor with which the calibration cell takes the printed time."""
    setting, algorithm, column = CALIBRATION
    printed = setting.milliseconds(algorithm, column)
    assert printed is not None
    plan, low, high = plan_of_text(setting, algorithm, column), 1.0, 10.0
    while high / low > 1 + 1e-6:
        middle = (low + high) / 2
        slow = outcome(setting, algorithm, column, plan, Reading("fit", middle))["ms"] < printed
        low, high = (middle, high) if slow else (low, middle)
    return low


@dataclass(frozen=True)
class Score:
    """Ours against what is printed. ratios: ours over printed times, of all cells that ran here and there but CALIBRATION.
    pairs: of algorithms in one cell of which both ran, by whether their order is ours: agree, differ, or equal with us.
    failures: cells that failed there, here, and both alike."""

    ratios: tuple[float, ...]
    pairs: dict[str, int]
    failures: tuple[int, int, int]


def score(found: dict[str, dict[str, Any]]) -> Score:
    """Agreement of orders over cells by `key`. Plans that do not run rank nothing."""
    ratios, pairs = [], {"agree": 0, "differ": 0, "equal": 0}
    there = here = alike = 0
    for setting in SETTINGS:
        for column in range(3):
            times: dict[str, tuple[float, float]] = {}
            for algorithm, row in setting.printed.items():
                cell, printed = found[key(setting, algorithm, column)], setting.milliseconds(algorithm, column)
                there += isinstance(row, str)
                here += cell["failure"] is not None
                alike += row == cell["failure"]
                if printed is not None and cell["failure"] is None:
                    times[algorithm] = printed, cell["ms"]
                    if (setting, algorithm, column) != CALIBRATION:
                        ratios.append(cell["ms"] / printed)
            for first, second in combinations(times.values(), 2):
                ours, theirs = first[1] - second[1], first[0] - second[0]
                pairs["equal" if ours == 0 else "agree" if (ours > 0) == (theirs > 0) else "differ"] += 1
    return Score(tuple(ratios), pairs, (there, here, alike))


def slope_ms(found: dict[str, dict[str, Any]], setting: Setting, algorithm: str) -> float:
    """Our time of one more micro-batch, from the first column to the last."""
    first, last = (found[key(setting, algorithm, column)]["ms"] for column in (0, 2))
    return (last - first) / (setting.micro_batches(2) - setting.micro_batches(0))


def balance(found: dict[str, dict[str, Any]], setting: Setting, algorithm: str, per_step: bool) -> float:
    """Standard deviation of the stages' times, of one micro-batch or of a step's (side by side, each pipeline has a part)."""
    cell = found[key(setting, algorithm, 0)]
    alike = len(set(cell["replicas"])) == 1
    return float(np.std(cell["stage_ms"])) / (cell["replicas"][0] if alike and per_step else 1)


def flops_share(model: str, mbs: int, step_ms: float, gpus: int, peak: float) -> float:
    """The share of a peak, FLOP/s, that a GPU reaches where `gpus` of them take so long for a micro-batch, products only."""
    part = load_model(model, dtype="float16").with_fields(attn_implementation="eager")
    products = {name: sum(one.flops for one in unit.operators(mbs, 1) if one.m) for name, unit in part.sublayers.items()}
    units = profile(model, mbs, ESTIMATED).units
    done = sum((3 if index in (0, len(units) - 1) else 4) * products[unit.sublayer] for index, unit in enumerate(units))
    return done / (step_ms / 1e3 * gpus * peak)


# 5. Figures 9, 10 and 14


def speedups(model: str, mbs: int, stages: int, micro_batches: int, reading: Reading = ESTIMATED) -> dict[str, Any]:
    """Over Megatron's even split, of the planner, of the slicer, of both; and the start-up as a share of the even split's."""
    given = replace(instance(model, mbs, stages, micro_batches, reading), memory=None)
    even, planner = (given.work(cuts_by(given, method)) for method in ("megatron", "autopipe"))
    counts = [least_sliced(work, micro_batches) for work in (even, planner)]
    alone, both = (sliced_timeline(work, micro_batches, count) for work, count in zip((even, planner), counts, strict=True))
    whole, planned = (sliced_timeline(work, micro_batches, 0) for work in (even, planner))
    return {
        "megatron_ms": round(whole.time_ns / 1e6, 3),
        "planner": whole.time_ns / planned.time_ns,
        "slicer": whole.time_ns / alone.time_ns,
        "both": whole.time_ns / both.time_ns,
        "sliced": counts,
        "startup": {"slicer": alone.startup_ns / whole.startup_ns, "both": both.startup_ns / whole.startup_ns},
    }


def figure_9() -> dict[str, Any]:
    return {f"{model}, mbs {mbs}": speedups(model, mbs, 4, 8) for model, sizes in SIZES_FIGURE_9.items() for mbs in sizes}


def figure_10() -> dict[str, Any]:
    """With the numbers of stages that Megatron allows."""
    return {
        f"{model}, p {p}": speedups(model, mbs, p, 2 * p)
        for model, mbs in SIZES_FIGURE_10.items()
        for p in STAGES_FIGURE_10[model]
        if MODELS[model][0] % p == 0
    }


def interleaved_startup(model: str, mbs: int, stages: int) -> float:
    """The start-up of the interleaved schedule with two chunks a GPU, as a share of that of the even split without."""
    given = replace(instance(model, mbs, stages, 2 * stages), memory=None)
    whole, chunks = (one.work(cuts_by(one, "megatron")) for one in (given, replace(given, stages=2 * stages)))
    orders = one_f_one_b(stages, 2 * stages), interleaved(stages, 2, 2 * stages)
    before, after = (simulate(work, order).startup_ns for work, order in zip((whole, chunks), orders, strict=True))
    return after / before


# All of it


def load_study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def compute() -> dict[str, Any]:
    return {
        "gaps": {f"{model}, p {p}": gaps(model, p) for model in MODELS for p in DEPTHS},
        "table 2": table_2(),
        "planned": dict(cells("planned", ESTIMATED)),
        "told": dict(cells("told", ESTIMATED)),
        "told, calibrated": dict(cells("told", CALIBRATED)),
        "figure 9": figure_9(),
        "figure 10": figure_10(),
    }


if __name__ == "__main__":
    STORED.write_text(dump(compute()))
