"""Our cells of Galvatron-BMW's Tables II to V and Figure 4, from models and clusters by name.

`make study` (python -m benchmarks.studies.galvatron_study) computes all of them; tests recompute some and compare.

Calibrated, and on what:
- 1.4 GiB of every device are not for model states and activations: set on Table II's DP row (test_galvatron_memory).
- That DeepSpeed 3D runs GPipe: read off the batch sizes of Table II at 12 GiB, which were looked at for all readings.
- A100 in TF32: Table III's BMW on BERT-Huge-32 at 16 GiB on A100 does more than their fp32 peak, see `machine`.
These cells are in no score. Nothing else comes from these tables: links and layer times are in the cluster files, and the
largest number of micro-batches is the 8 of Figure 4.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.formulations.pipeline.batches import LARGEST_BATCH, BatchInstances
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.instance import SCHEDULES, Instance
from trainplan.formulations.pipeline.problem import Evaluation, Solution, evaluate
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.formulations.strategy_spaces import SPACES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.solvers.chain.galvatron_dp import DEFAULT_LEVELS
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve
from trainplan.solvers.pipeline.galvatron_bmw import StageSearch, adjusted, adjustments
from trainplan.solvers.pipeline.partitions import Partition, blocks, initial_partition

from tests.helpers.papers.tables import COLUMNS, PLANNERS, TABLE_IV, Column
from tests.papers.test_galvatron_memory import GIB, OVERHEAD_BYTES
from trainplan.planning.presets import OPTIMUM, Planner, planner
from trainplan.planning.throughput import Point, search_throughput

STORED = Path(__file__).with_name("galvatron_study.json")
TF32 = 156e12
TF32_CELL = ("III a100-16 16 bert-huge-32", "galvatron-bmw")
OPTIMUM_GAP = 1e-3
OPTIMUM_SECONDS = 10.0

# Who uses which schedule: the paper names 1F1B-Flush for the bi-objective variants only.
READINGS = {name: planner(name) for name in PLANNERS}

# What the paper's text has faster, or no slower, than what.
ORDER = (
    ("galvatron-bmw", "galvatron-base"),
    ("galvatron-bmw", "galvatron-1f1b-bi-obj"),
    ("galvatron-base", "galvatron"),
    ("galvatron-1f1b-bi-obj", "galvatron"),
    ("galvatron", "galvatron-dp-tp"),
    ("galvatron", "galvatron-dp-pp"),
    ("galvatron", "deepspeed-3d"),
    ("galvatron", "fsdp"),
    ("galvatron-dp-tp", "ddp"),
    ("galvatron-dp-tp", "megatron"),
    ("galvatron-dp-pp", "ddp"),
    ("galvatron-dp-pp", "gpipe"),
)
SMALLER_SPACES = ("dp", "tp", "pp", "sdp", "3d", "dp+tp", "dp+pp")


class Sizes(BatchInstances):
    """Batch sizes that rise by 8, and from 256 on by a sixteenth of the power of two below.

    by_stages: no more micro-batches than stages.
    """

    by_stages = False

    def instance(self, batch: int, memory_bytes: int, space_name: str, schedule: PassOrder, *, ruled: bool = False) -> Instance:
        found = super().instance(batch, memory_bytes, space_name, schedule, ruled=ruled and not self.by_stages)
        if not self.by_stages:
            return found
        kept = tuple(given for given in found.configurations if given.micro_batches <= given.stages)
        if not kept:
            raise InputError("study", "micro-batches", "are more than stages", "give another batch size")
        return replace(found, configurations=kept)

    def sizes(self, largest: int = LARGEST_BATCH) -> Iterator[int]:
        batch = self.step
        while batch <= largest:
            yield batch
            batch += max(self.step, (1 << batch.bit_length() - 1) // 16)


def budget(memory_gib: int) -> int:
    """Bytes of a device for model states and activations."""
    return memory_gib * GIB - OVERHEAD_BYTES


@cache
def machine(name: str) -> Cluster:
    """A cluster by name, an A100's fp32 products in TF32 at the data sheet's 156e12 operations a second.

    As PyTorch had it by default before 1.12. The paper does not say; but 243.55 samples/s of BERT-Huge-32 on 16 devices
    (Table III, 16 GiB) are more than their CUDA cores' 19.5e12 a second allow, see `least_flops_per_s`.
    """
    given = load_cluster(name)
    kinds = [
        kind.changed(flops_per_s={**kind.flops_per_s, "float32": TF32}) if "A100" in kind.name else kind for kind in given.kinds
    ]
    return given.changed(kinds=kinds)


def least_flops_per_s(column: Column, planner: str) -> float:
    """Operations a second on one device that a printed throughput needs, without recomputation."""
    model, printed = load_model(column.model), column.printed[planner]
    assert printed
    operations = 3 * sum(unit.sublayer.forward_flops(1, 1) for unit in model.units)
    return printed.throughput * operations / load_cluster(column.cluster).devices


@cache
def batches(cluster: str, model: str) -> Sizes:
    return Sizes(load_model(model), machine(cluster))


def instance(column: Column, batch: int, space: str, schedule: PassOrder) -> Instance:
    return batches(column.cluster, column.model).instance(batch, budget(column.memory_gib), space, schedule)


def calibrated(column: Column, planner: str) -> bool:
    """Whether a cell was used to set a constant or a reading."""
    if column.table == "II":
        return planner == "ddp" or column.memory_gib == 12
    return (column.key, planner) == TF32_CELL


# Our cells


def cell(column: Column, planner: Planner, given: Sizes | None = None) -> dict[str, Any]:
    """The largest throughput of a planner, and the plan that reaches it; throughput 0 where it finds none at any batch size."""
    given = given or batches(column.cluster, column.model)
    try:
        found = search_throughput(given, planner, budget(column.memory_gib)).best
    except InputError:  # no batch size fits the space
        found = None
    return point(column, planner, found)


def partition_of_blocks(given: Instance, stages: Sequence[int]) -> Partition:
    """A solution's stages as the paper prints them: [14, 18] for the 32 blocks of a model of 34 layers."""
    of_model = blocks(given, len(stages))
    bounds = np.cumsum([0, *stages]).clip(of_model.lead, of_model.layers - of_model.tail)
    return tuple(np.diff(bounds).tolist())


def point(column: Column, planner: Planner, found: Point | None) -> dict[str, Any]:
    if found is None or found.result.solution is None:
        return {"throughput": 0.0, "batch": 0}
    evaluation, given = found.result.evaluation, instance(column, found.batch, planner.space, planner.schedule)
    assert evaluation
    return {
        "throughput": round(found.throughput, 4),
        "batch": found.batch,
        "time_ns": found.result.objective,
        "stages": evaluation["pipeline"],
        "micro_batches": evaluation["micro_batches"],
        "partition": list(partition_of_blocks(given, found.result.solution["stages"])),
        "ckpt": round(float(np.mean(["ckpt" in name for name in evaluation["strategies"]])), 3),
    }


def column_cells(column: Column) -> dict[str, Any]:
    """All planners of a column; the gaps of Base and BMW; the optimum over batch sizes; the order's exceptions."""
    cells = {name: cell(column, READINGS[name]) for name in PLANNERS}
    gaps = {name: gap(column, READINGS[name], cells[name]["batch"]) for name in ("galvatron-base", "galvatron-bmw")}
    best = best_optimum(column, cells)
    return {"cells": cells, "gaps": gaps, "optimum": best, "exceptions": exceptions(column, cells)}


# Optima


def optimum(column: Column, batch: int, space: str = "full", schedule: PassOrder = "1f1b") -> Result:
    return solve(instance(column, batch, space, schedule), "exact", gap=OPTIMUM_GAP, time_limit=OPTIMUM_SECONDS)


def gap(column: Column, planner: Planner, batch: int) -> dict[str, Any] | None:
    """Time of the planner's plan over the optimum of its own instance, at its best batch size; also with every number of
    micro-batches tried, which the optimum may choose from, too. The optimum's proven bound makes the gap a little larger."""
    if not batch:
        return None
    given = instance(column, batch, planner.space, planner.schedule)
    exact = solve(given, "exact", gap=OPTIMUM_GAP, time_limit=OPTIMUM_SECONDS)
    own = solve(given, planner.method, **dict(planner.options))
    every = solve(given, planner.method, **{**dict(planner.options), "micro_batches": "all"})
    assert exact.objective and exact.bound and own.objective and every.objective
    return {
        "batch": batch,
        "gap": round(own.objective / exact.objective - 1, 5),
        "gap_to_bound": round(own.objective / exact.bound - 1, 5),
        "gap_all_micro_batches": round(every.objective / exact.objective - 1, 5),
        "optimum_micro_batches": exact.evaluation["micro_batches"] if exact.evaluation else None,
        "optimum_stages": exact.evaluation["pipeline"] if exact.evaluation else None,
    }


def best_optimum(column: Column, cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The largest throughput of the full space under 1F1B over twelve batch sizes: half to twice BMW's, and Base's own.

    A lower bound: larger batch sizes may do better.
    """
    center = cells["galvatron-bmw"]["batch"] or 8
    tried = {8 * max(1, round(center * 2 ** (step / 5) / 8)) for step in range(-5, 6)}
    tried |= {cells["galvatron-base"]["batch"] or center}
    best = Point(center, optimum(column, center))
    for batch in sorted(tried - {center}):
        cutoff = {"cutoff_ns": max(1, int(batch / best.throughput * 1e9))} if best.throughput else {}
        result = solve(instance(column, batch, "full", "1f1b"), "exact", gap=OPTIMUM_GAP, time_limit=OPTIMUM_SECONDS, **cutoff)
        best = max(best, Point(batch, result), key=lambda point: point.throughput)
    return point(column, planner(OPTIMUM), best)


def order_at(column: Column, batch: int) -> Iterable[str]:
    """Contradictions to the order of optima at one batch size: every method against the optimum of its own instance, every
    space against those inside it, GPipe against 1F1B. Solved to the last nanosecond."""
    spaces = ("full", "no-ckpt", *SMALLER_SPACES)
    optima: dict[tuple[str, str], int | float] = {}
    instances: dict[tuple[str, str], Instance] = {}
    for space in spaces:
        for schedule in ("1f1b", "gpipe"):
            try:
                instances[space, schedule] = instance(column, batch, space, schedule)
            except InputError:
                continue
            result = solve(instances[space, schedule], "exact")
            if result.status not in ("optimal", "infeasible"):
                yield f"{column}, {space}, {schedule}: {result.status}"
            optima[space, schedule] = result.objective or math.inf
    for (space, schedule), own in optima.items():
        outer = {"full": None, "no-ckpt": "full"}.get(space, "no-ckpt")
        if outer and optima[outer, schedule] > own:
            yield f"{column}, batch {batch}, {schedule}: the optimum of {outer} is above that of {space}"
        if schedule == "gpipe" and (space, "1f1b") in optima and optima[space, "1f1b"] > own:
            yield f"{column}, batch {batch}, {space}: the optimum under 1F1B is above that under GPipe"
        for method in ("galvatron-base", "galvatron-bmw"):
            found = solve(instances[space, schedule], method).objective
            if found is not None and found < own:
                yield f"{column}, batch {batch}, {space}, {schedule}: {method} is below the optimum"


# What the paper leaves open, on the columns at 12 GiB

READ_COLUMNS = tuple(key for key, column in COLUMNS.items() if column.table == "II" and column.memory_gib == 12)
READ_PLANNERS = ("deepspeed-3d", "galvatron-dp-pp", "galvatron", "galvatron-base", "galvatron-1f1b-bi-obj")


def readings(column: Column) -> dict[str, Any]:
    """Batch size and throughput of planners under each schedule, with at most 8 micro-batches or one for each stage, and with
    Algorithm 3 minimising the time of one micro-batch or of the iteration."""
    found = {}
    for name in READ_PLANNERS:
        for schedule in SCHEDULES:
            for by_stages, stage_time in ((False, "micro-batch"), (True, "micro-batch"), (False, "iteration")):
                given = Sizes(load_model(column.model), machine(column.cluster))
                given.by_stages = by_stages
                planner = replace(READINGS[name], schedule=schedule, options=(("stage_time", stage_time),))
                reported = f"{name}, {schedule}, {'m <= P' if by_stages else 'm <= 8'}, {stage_time}"
                best = cell(column, planner, given)
                found[reported] = {"throughput": best["throughput"], "batch": best["batch"]}
    return found


def reading_distances(study: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """For each reading: the factor by which batch size and throughput are apart from the printed ones, typically."""
    logs: dict[str, list[tuple[float, float]]] = {}
    for key, found in study["readings"].items():
        for reported, ours in found.items():
            printed = COLUMNS[key].printed[reported.split(",")[0]]
            if printed and printed.batch and ours["batch"]:
                pair = math.log(ours["batch"] / printed.batch), math.log(ours["throughput"] / printed.throughput)
                logs.setdefault(reported, []).append(pair)
    return {reported: tuple(np.exp(np.abs(pairs).mean(axis=0)).tolist()) for reported, pairs in logs.items()}  # type: ignore[misc]


# Exceptions to the paper's order

UNEXPLAINED = "the space or the schedule: the optimum of the same instance breaks the order, too"
REPAIRS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("number of micro-batches", {"micro_batches": "all"}),
    ("partition", {"partition": "memory"}),
    ("partition", {"partition": "time"}),
    ("time of one micro-batch minimised", {"stage_time": "iteration"}),
    ("memory steps", {"granularity_bytes": 2**20}),
    ("micro-batches and stage time", {"micro_batches": "all", "stage_time": "iteration"}),
    ("micro-batches and memory steps", {"micro_batches": "all", "granularity_bytes": 2**20}),
    ("stage time and memory steps", {"stage_time": "iteration", "granularity_bytes": 2**20}),
    ("micro-batches and partition", {"micro_batches": "all", "partition": "memory"}),
    ("micro-batches and partition", {"micro_batches": "all", "partition": "time"}),
    (
        "micro-batches, stage time and memory steps",
        {"micro_batches": "all", "stage_time": "iteration", "granularity_bytes": 2**20},
    ),
)


def exceptions(column: Column, cells: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every pair of ORDER that comes out the other way round, and what puts it right at the other's batch size."""
    found = []
    for larger, smaller in ORDER:
        above, below = cells[larger]["throughput"], cells[smaller]["throughput"]
        if above < below * (1 - 1e-9):
            cause = _cause(column, READINGS[larger], READINGS[smaller], cells[smaller])
            found.append({"larger": larger, "smaller": smaller, "ratio": round(above / below, 4), "cause": cause})
    return found


def _starts(given: Instance, other: dict[str, Any]) -> tuple[int, ...]:
    """Where Algorithm 2 starts in the configuration of a plan."""
    wanted = other["stages"], other["micro_batches"]
    numbers = [(found.stages, found.micro_batches) for found in given.configurations]
    return initial_partition(given, numbers.index(wanted), "memory")


def _cause(column: Column, planner: Planner, smaller: Planner, other: dict[str, Any]) -> str:
    given = instance(column, other["batch"], planner.space, planner.schedule)

    def reaches(method: str, **options: Any) -> bool:
        found = solve(given, method, **options).objective
        return found is not None and found <= other["time_ns"]

    moves = planner.method == "galvatron-bmw"
    if moves and reaches("galvatron-base"):
        return "Algorithm 2 stops before the even partition"
    if moves and smaller.method == planner.method:
        inner = instance(column, other["batch"], smaller.space, smaller.schedule)
        if _starts(given, other) != _starts(inner, other):
            return "CKPT in Strategy_Init: Algorithm 2 starts from another partition"
    for reported, options in REPAIRS:
        if not (moves and "partition" in options) and reaches(planner.method, **{**dict(planner.options), **options}):
            return reported
    if reaches("exact"):
        return "Algorithm 3 and the partition: the optimum of the same instance keeps the order"
    return UNEXPLAINED


# Tables IV and Figure 4


def ablation(memory_gib: int, model: str) -> dict[str, Any]:
    """Table IV: PP_Partition_Init by memory, by time, and Algorithm 2, without CKPT under 1F1B."""
    column = Column("IV", "a100-16", memory_gib, model, {})
    bi_objective = READINGS["galvatron-1f1b-bi-obj"]
    planners = {
        "memory": replace(bi_objective, method="galvatron-base", options=(("partition", "memory"),)),
        "time": replace(bi_objective, method="galvatron-base", options=(("partition", "time"),)),
        "bi-objective": bi_objective,
    }
    return {name: cell(column, planner) for name, planner in planners.items()}


def refusals(memory_gib: int, model: str, plan: dict[str, Any]) -> tuple[Partition, list[tuple[Partition, list[str]]]]:
    """Where Algorithm 2 stops in a cell of Table IV, at the batch size and numbers of stages and micro-batches of a plan: its
    last partition, and the moves from there with the limits that refuse them."""
    column, planner = Column("IV", "a100-16", memory_gib, model, {}), READINGS["galvatron-1f1b-bi-obj"]
    given = instance(column, plan["batch"], planner.space, planner.schedule)
    numbers = [(found.stages, found.micro_batches) for found in given.configurations]
    index = numbers.index((plan["stages"], plan["micro_batches"]))
    stages = StageSearch(given, index, -(-given.memory_bytes // DEFAULT_LEVELS))
    *_, last = (step for step in adjustments(stages) if step.solution and step.evaluation)
    assert last.solution and last.evaluation

    def under(partition: Sequence[int]) -> Evaluation:
        assert last.solution
        return evaluate(given, Solution(index, stages.blocks.layers_of(partition), last.solution.choice))

    largest = under(initial_partition(given, index, "time")).peak_bytes
    slowest = max(stage.time_ns for stage in last.evaluation.stages)
    found = []
    for partition in adjusted(last.partition, last.evaluation):
        moved = under(partition)
        limits = {
            "slower": max(stage.time_ns for stage in moved.stages) > slowest,
            "beyond the memory": moved.peak_bytes > given.memory_bytes,
            "larger than p_t": moved.peak_bytes > largest,
        }
        found.append((partition, [name for name, broken in limits.items() if broken]))
    return last.partition, found


def figure_4(model: str, batch: int, memory_gib: int = 16, cluster: str = "a100-16") -> dict[str, dict[str, Any]]:
    """Four stages of one device each, 8 micro-batches, 1F1B: the two balanced partitions, the optimum within the memory, and
    the balance degrees. `fits`: whether the plan is within the memory."""
    devices, m = 4, 8
    chain = load_model(model)
    shapes = shapes_needed(chain.tp_degrees(devices), [1], [batch // m])
    costs = PipelineCosts(estimate_shapes(chain, machine(cluster), shapes, devices), space=SPACES["pp"])
    given = costs.instance(batch, budget(memory_gib), micro_batches=[m])
    found, choice = {}, (0,) * given.layers
    partitions = {name: initial_partition(given, 0, name, choice) for name in ("memory", "time")}  # type: ignore[arg-type]
    exact = solve(given, "exact")
    if exact.solution:
        partitions["optimal"] = partition_of_blocks(given, exact.solution["stages"])
    for name, partition in partitions.items():
        result = evaluate(given, Solution(0, blocks(given, devices).layers_of(partition), choice))
        found[name] = {
            "partition": list(partition),
            "time": result.time_balance,
            "memory": result.memory_balance,
            "throughput": batch / result.time_ns * 1e9,
            "peaks_gib": [stage.peak_bytes / GIB for stage in result.stages],
            "times_ms": [stage.time_ns / 1e6 for stage in result.stages],
            "fits": result.peak_bytes <= given.memory_bytes,
        }
    return found


# Scores


def ranks(values: Sequence[float]) -> Any:
    """From the smallest; equal values share the mean of their ranks."""
    array = np.asarray(values, float)
    order = np.argsort(array, kind="stable")
    found = np.empty(len(array))
    found[order] = np.arange(len(array), dtype=float)
    for value in np.unique(array):
        found[array == value] = found[array == value].mean()
    return found


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Rank correlation; nan where one of them ranks nothing."""
    a, b = ranks(ours), ranks(theirs)
    if len(a) < 2 or not a.std() or not b.std():
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def scored(column: Column, cells: dict[str, dict[str, Any]]) -> list[str]:
    """Planners of a column that are not calibrated, and legible."""
    return [p for p in PLANNERS if p in cells and not calibrated(column, p) and column.printed[p] is not None]


def correlation(column: Column, cells: dict[str, dict[str, Any]], names: Sequence[str] | None = None) -> float:
    """Spearman's, over the scored planners; out of memory is throughput 0."""
    chosen = scored(column, cells) if names is None else names
    return spearman([cells[p]["throughput"] for p in chosen], [column.printed[p].throughput for p in chosen])  # type: ignore[union-attr]


@dataclass(frozen=True)
class Score:
    """A table without its calibrated and illegible cells.

    correlations: by column. row_order: the same of an order that knows nothing but that later rows of the tables tend to be
    faster. fits: cells in which the planner fits (ours, the paper's). both: (planner, column, our throughput over the paper's,
    our batch size over the paper's), where both fit. winners: (column, ours, ties included, the paper's).
    """

    correlations: dict[str, float]
    row_order: dict[str, float]
    fits: dict[tuple[bool, bool], int]
    both: list[tuple[str, str, float, float]]
    winners: list[tuple[str, list[str], str]]

    @property
    def cells(self) -> int:
        return sum(self.fits.values())

    def ratio(self, which: int, planner: str | None = None) -> tuple[float, float]:
        """Geometric mean of a ratio (2: throughput, 3: batch size), and the typical factor between the two (from the mean of
        absolute logarithms)."""
        logs = np.log([row[which] for row in self.both if planner in (None, row[0])])
        return (float(np.exp(logs.mean())), float(np.exp(np.abs(logs).mean()))) if len(logs) else (math.nan, math.nan)


def score(study: dict[str, Any], table: str) -> Score:
    found = Score({}, {}, dict.fromkeys(product((True, False), repeat=2), 0), [], [])
    for key, column in COLUMNS.items():
        if column.table != table or key not in study["columns"]:
            continue
        cells = study["columns"][key]["cells"]
        names = scored(column, cells)
        if len(names) > 3:
            found.correlations[key] = correlation(column, cells, names)
            printed_rates = [column.printed[name].throughput for name in names]  # type: ignore[union-attr]
            found.row_order[key] = spearman(range(len(names)), printed_rates)
            best = max(cells[name]["throughput"] for name in names)
            printed_best = max(names, key=lambda name: column.printed[name].throughput)  # type: ignore[union-attr]
            found.winners.append((key, [name for name in names if cells[name]["throughput"] == best], printed_best))
        for name in names:
            ours, printed = cells[name], column.printed[name]
            assert printed
            found.fits[bool(ours["batch"]), bool(printed.batch)] += 1
            if ours["batch"] and printed.batch:
                ratios = ours["throughput"] / printed.throughput, ours["batch"] / printed.batch
                found.both.append((name, key, *ratios))
    return found


def comparable(study: dict[str, Any]) -> int:
    """Pairs of ORDER in which at least one planner fits, over all columns."""
    columns = [column["cells"] for column in study["columns"].values()]
    return sum(bool(cells[a]["batch"] or cells[b]["batch"]) for cells in columns for a, b in ORDER)


def load_study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def _column_job(key: str) -> tuple[str, str, Any]:
    return "columns", key, column_cells(COLUMNS[key])


def _ablation_job(cell_of: tuple[int, str]) -> tuple[str, str, Any]:
    return "table_iv", f"{cell_of[0]} {cell_of[1]}", ablation(*cell_of)


def _readings_job(key: str) -> tuple[str, str, Any]:
    return "readings", key, readings(COLUMNS[key])


def _job(given: tuple[Callable[[Any], Any], Any]) -> Any:
    return given[0](given[1])


def compute(processes: int = 2, progress: Callable[[str], None] = print) -> dict[str, Any]:
    """Everything, in parallel."""
    jobs: list[Any] = [(_column_job, key) for key in COLUMNS] + [(_ablation_job, key) for key in TABLE_IV]
    jobs += [(_readings_job, key) for key in READ_COLUMNS]
    found: dict[str, dict[str, Any]] = {"columns": {}, "table_iv": {}, "readings": {}}
    with Pool(processes, maxtasksperchild=4) as pool:
        for part, key, result in pool.imap_unordered(_job, jobs):
            found[part][key] = result
            progress(f"{part} {key}")
    return {
        "columns": {key: found["columns"][key] for key in COLUMNS},
        "table_iv": {f"{m} {model}": found["table_iv"][f"{m} {model}"] for m, model in TABLE_IV},
        "readings": {key: found["readings"][key] for key in READ_COLUMNS},
    }


def dump(study: dict[str, Any]) -> str:
    """JSON with a line for each column's part, so that differences can be read."""
    lines = []
    for part, columns in study.items():
        rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in columns.items()]
        lines.append(f"{json.dumps(part)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    STORED.write_text(dump(compute(int(sys.argv[1]) if len(sys.argv) > 1 else 2)))
