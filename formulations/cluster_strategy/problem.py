"""cluster-strategy: choose degrees, placement, micro-batch size, layer assignment and shares together (AMP, Section 3).

A strategy s = (pp, dp, tmp, p, mbs, a) (Eq. 2): dp pipelines of pp stages, each stage a group of tmp devices, on all devices of
the cluster. p puts a device on each of the ranks (j, i, r), stage j of pipeline i, tensor-parallel rank r, numbered (j dp + i)
tmp + r; a cuts the layers into stages, alike in all pipelines. Pipeline i takes gas_i micro-batches of mbs samples.

    minimise    T = max_i T_i + max_{j,r} D_{j,r}                                                     Eq. 4, nanoseconds
    with        T_i = (gas_i - 1) max_j t_{j,i} + sum_j e_{j,i} + sum_j t_{j,i}                       Eq. 5
                t_{j,i} = sum of the layers of stage j: the slowest device's time + the all-reduces of group (j, i)
                e_{j,i} = 2 (v mbs / b + latency), the slowest pair between groups (j, i) and (j+1, i)
                D_{j,r} = all-reduce of stage j's gradients over its devices (j, ., r)                Eq. 3
                          + R where j is the first or the last stage
                R       = all-reduce of a table that embedding and head share over all devices of these two stages
    subject to  sum_i gas_i mbs = gbs, all gas_i equal unless `uneven_shares`
                dp and tmp are powers of two, if `powers_of_two` (plans have no others)
                on every device   sum states + min(gas_i, pp - j) sum kept + max workspace <= its memory, if `within_memory`

v is the bytes across a cut for one sample, b the bandwidth of the link, gbs the samples of a step. Every group communicates at
its slowest link. Readings of the paper: v / b is paid forward and back; all-reduces have their latencies. R is what this
project's programs do; AMP has none (`tied_bytes` of 0). The memory is this project's, too: AMP plans with `within_memory` off.
All numbers are integers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field
from trainplan.formulations.cluster_strategy.instance import LARGEST_BATCH, Degree, Degrees, Instance
from trainplan.formulations.instance import Timed
from trainplan.profiling.base.errors import shown
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes, plural


class SolutionRecord(Record):
    """The file format of a solution, whose fields are named as in AMP. pp: number of stages. dp: number of pipelines. tmp:
    devices of a tensor-parallel group. mbs: samples per micro-batch. placement: the device of every rank. cuts: the first layer
    of stages 2 to pp. shares: the number of micro-batches of each pipeline; None for an even distribution."""

    pp: Degree
    dp: Degree
    tmp: Degree
    mbs: Degree
    placement: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    cuts: list[Annotated[int, Field(ge=0)]]
    shares: list[Annotated[int, Field(ge=1, le=LARGEST_BATCH)]] | None = None


@dataclass(frozen=True)
class Solution:
    """A strategy for a cluster. degrees: numbers of stages (pp), pipelines (dp) and tensor-parallel ranks (tmp), and samples
    per micro-batch (mbs). placement: the device of every rank, with tensor-parallel ranks next to each other, then pipelines,
    then stages. cuts: the first layer of stages 2 to pp. shares: the number of micro-batches of every pipeline; empty if
    they are as equal as the batch allows."""

    degrees: Degrees
    placement: tuple[int, ...]
    cuts: tuple[int, ...]
    shares: tuple[int, ...]

    def spans(self, layers: int) -> list[tuple[int, int]]:
        """For every stage, in order, the indices of its first and its last layer, both included. layers: the number of layers
        of the model."""
        borders = [0, *self.cuts, layers]
        return [(first, after - 1) for first, after in pairwise(borders)]


@dataclass(frozen=True)
class StrategyStage:
    """The costs of one stage of a strategy.

    Attributes:
        first, last: the indices of its first and its last layer.
        kinds: for each kind of device in the stage, a pair of its name and the number of devices.
        time_ns: the time of a micro-batch in the stage's slowest pipeline.
        transfer_ns: the time of a micro-batch's transfer to the next stage in the slowest pipeline.
        sync_ns: the time to synchronise the stage's gradients.
        peak_bytes, limit_bytes: memory need and memory of the device that is closest to its limit, or furthest above it.
    """

    first: int
    last: int
    kinds: tuple[tuple[str, int], ...]
    time_ns: int
    transfer_ns: int
    sync_ns: int
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """The time and the memory of a strategy, in total and for each stage.

    time_ns: the step. pipelines_ns: the time of every pipeline for its micro-batches (T_i of AMP). sync_ns: the longest
    synchronisation of a stage's gradients (D of AMP). stages: the costs of each stage.
    """

    time_ns: int
    pipelines_ns: tuple[int, ...]
    sync_ns: int
    stages: tuple[StrategyStage, ...]

    @property
    def peak_bytes(self) -> int:
        """The bytes needed by the stage device that is closest to its memory limit, the largest such number over all stages.
        Where devices have different memory, another device may need more bytes."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory that it needs."""
        return all(stage.peak_bytes <= stage.limit_bytes for stage in self.stages)


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict; without shares, an even distribution of micro-batches is
    meant. Raises InputError if it cannot be read or is no solution.
    """
    record = parse(source, SolutionRecord, name_of_source(source, "solution"))
    degrees = Degrees(record.pp, record.dp, record.tmp, record.mbs)
    return Solution(degrees, tuple(record.placement), tuple(record.cuts), tuple(record.shares or ()))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format. solution: degrees of parallelism, the device of every rank, the
    cuts between stages, and the micro-batches of each pipeline.
    """
    return {
        **asdict(solution.degrees),
        "placement": [int(device) for device in solution.placement],
        "cuts": [int(cut) for cut in solution.cuts],
        "shares": list(solution.shares),
    }


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The time and the memory of a strategy, by AMP's Eq. 3 to 5. instance: the cluster, the batch, and the layers' costs on
    each kind of device. solution: degrees of parallelism, the device of every rank, the cuts between stages, and the
    micro-batches of each pipeline. Raises ValueError if the solution does not belong to the instance; a strategy that
    needs too much memory is evaluated like any other.
    """
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    shares = shares_of(instance, solution)
    placed = instance.placed(solution.degrees, solution.placement)
    times, transfers, syncs = placed.stage_ns(solution.cuts), placed.sent_ns(solution.cuts), placed.syncs_ns(solution.cuts)
    pipelines = placed.pipelines_ns(solution.cuts, shares)
    peaks, limits, stages = placed.peak_bytes(solution.cuts, shares), placed.limits_bytes, []
    for number, (first, last) in enumerate(solution.spans(instance.layers)):
        fullest = int((peaks[number] - limits[number]).argmax())
        names = Counter(instance.kinds[kind].name for kind in placed.kinds[number].flat)
        stages.append(
            StrategyStage(
                first,
                last,
                tuple(sorted(names.items())),
                int(times[number].max()),
                int(transfers[number].max()) if number < len(transfers) else 0,
                syncs[number],
                int(peaks[number, fullest]),
                int(limits[number, fullest]),
            )
        )
    slowest_sync = max(syncs)
    return Evaluation(int(pipelines.max()) + slowest_sync, tuple(map(int, pipelines)), slowest_sync, tuple(stages))


def shares_of(instance: Instance, solution: Solution) -> tuple[int, ...]:
    """The number of micro-batches of every pipeline of a solution: its own shares, or even ones where it has none. instance:
    the cluster, the batch, and the layers' costs on each kind of device.
    """
    shares = solution.shares or instance.even_shares(solution.degrees.dp, solution.degrees.mbs)
    assert shares is not None, "a solution without shares has even ones"
    return shares


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a strategy as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the step),
    `throughput_samples_per_s` (None if the time is 0), `pp`, `dp`, `tmp` (degrees of pipeline, data and tensor parallelism),
    `mbs` (samples per micro-batch), `shares` (micro-batches of each pipeline), `pipelines_ns` (time of each pipeline for its
    micro-batches), `sync_ns` (longest synchronisation of a stage's gradients), `fits` (whether every device has enough memory),
    `peak_bytes`, `peak_layer` and `peak_layer_name` (bytes needed, and index and name of the last layer, of the stage closest
    to its memory limit), and `stages` (for each stage a dict with the attributes of `StrategyStage`). instance: the cluster,
    the batch, and the layers' costs on each kind of device. solution: degrees of parallelism, the device of every rank, the
    cuts between stages, and the micro-batches of each pipeline."""
    result = evaluate(instance, solution)
    worst = max(result.stages, key=lambda stage: stage.peak_bytes - stage.limit_bytes)
    return {
        "time_ns": result.time_ns,
        "throughput_samples_per_s": instance.batch / result.time_ns * 1e9 if result.time_ns else None,
        **asdict(solution.degrees),
        "shares": list(shares_of(instance, solution)),
        "pipelines_ns": list(result.pipelines_ns),
        "sync_ns": result.sync_ns,
        "fits": result.fits,
        "peak_bytes": worst.peak_bytes,
        "peak_layer": worst.last,
        "peak_layer_name": instance.layer_names[worst.last],
        "stages": [asdict(stage) for stage in result.stages],
    }


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a strategy breaks, one sentence each; empty if it is feasible. instance: the cluster, the batch,
    and the layers' costs on each kind of device. solution: degrees of parallelism, the device of every rank, the cuts
    between stages, and the micro-batches of each pipeline.
    """
    if wrong := _malformed(instance, solution):
        return wrong
    broken = []
    for number, stage in enumerate(evaluate(instance, solution).stages):
        over = stage.peak_bytes - stage.limit_bytes
        if over > 0 and instance.within_memory:
            broken.append(
                f"stage {number}: layers {stage.first} to {stage.last} need {stage.peak_bytes} bytes "
                f"({format_bytes(stage.peak_bytes)}), {over} more than its smallest device has"
            )
    return broken


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    """The reasons, in words, why a strategy does not belong to the instance: degrees, placement, cuts or shares that it does
    not allow. Empty if it belongs; memory is not looked at. solution: degrees of parallelism, the device of every rank, the
    cuts between stages, and the micro-batches of each pipeline.
    """
    degrees, devices, layers = solution.degrees, instance.devices, instance.layers
    if degrees.pp * degrees.dp * degrees.tmp != devices:
        return [f"pp x dp x tmp is {degrees.pp} x {degrees.dp} x {degrees.tmp}; the cluster has {devices} devices"]
    if (degrees.tmp, degrees.mbs) not in instance.tables:
        possible = sorted({tmp for tmp, _ in instance.tables}), sorted({mbs for _, mbs in instance.tables})
        return [f"tmp is {degrees.tmp}, mbs {degrees.mbs}; the instance has tmp {shown(possible[0])}, mbs {shown(possible[1])}"]
    for name, degree in (("dp", degrees.dp), ("tmp", degrees.tmp)):
        if not instance.allows_degree(degree):
            return [f"{name} is {degree}; the instance wants a power of two"]
    for device, times in Counter([*range(devices), *solution.placement]).items():
        if times != 2:
            fix = "once" if device < devices else f"of 0 to {devices - 1}"
            return [f"placement names device {device} {plural(times - 1, 'time')}; give each {fix}"]
    borders = [0, *solution.cuts, layers]
    if len(solution.cuts) != degrees.pp - 1 or any(before >= after for before, after in pairwise(borders)):
        return [f"cuts is {list(solution.cuts)}; give {degrees.pp - 1} layers of 1 to {layers - 1}, ascending"]
    if not solution.shares:
        return [] if instance.even_shares(degrees.dp, degrees.mbs) else [f"shares are missing; {degrees} has no even ones"]
    total = instance.batch // degrees.mbs
    if len(solution.shares) != degrees.dp or min(solution.shares) < 1 or sum(solution.shares) * degrees.mbs != instance.batch:
        return [f"shares is {list(solution.shares)}; give {degrees.dp} numbers of at least 1 that add up to {total}"]
    if len(set(solution.shares)) > 1 and not instance.uneven_shares:
        return [f"shares is {list(solution.shares)}; the instance wants them equal"]
    return []
