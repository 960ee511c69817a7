"""Results for requests close to one that has been planned: on a cluster with some numbers multiplied, or with another batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import gcd, isfinite
from typing import Any

from trainplan.formulations.plan.request import MOST_SAMPLES
from trainplan.planning.planner import planned
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.network import Island
from trainplan.solvers.core.limits import TIME_LIMIT_S

FLAG = "--what-if"
LARGEST_FACTOR = 1000.0
GAP = 0.005  # relative gap of the search with a larger batch
LEAST_SECONDS = 2.0  # of this search
NEAR = 0.125  # how much larger than the batch a better one may be, as a share
LEAST_GAIN = 0.01  # share of the time for each sample that a larger batch must save to be reported

Factors = Mapping[str, float]


def factors_of(texts: str | Mapping[str, float]) -> dict[str, float]:
    """The factors by which numbers of a cluster are to be multiplied, by name: "network=2,flops=1.5" -> {"network": 2.0,
    "flops": 1.5}. texts: a text of that form, or a mapping. Raises InputError for unknown names and for values that are not
    numbers from 1 / LARGEST_FACTOR to LARGEST_FACTOR.
    """
    pairs = texts.items() if isinstance(texts, Mapping) else [part.partition("=")[::2] for part in texts.split(",")]
    factors: dict[str, float] = {}
    for name, value in ((str(name).strip(), value) for name, value in pairs):
        if name not in CHANGES:
            raise InputError(COMMAND_LINE, FLAG, f"changes {shown(name)}", one_of(name, CHANGES) + ", such as network=1.2")
        try:
            factors[name] = float(value)
        except ValueError:
            factors[name] = 0.0
        if not (isfinite(factors[name]) and 1 / LARGEST_FACTOR <= factors[name] <= LARGEST_FACTOR):
            fix = f"give a factor of at most {LARGEST_FACTOR:.0f}, such as {name}=1.2 for 20 % more"
            raise InputError(COMMAND_LINE, FLAG, f"has {name}={shown(value)}", fix)
    return factors


def changed_cluster(cluster: Cluster, factors: Factors) -> Cluster:
    """A copy of a cluster with some of its numbers multiplied by factors, and with a name that says so. factors: by name of
    the number, `network`, `nvlink`, `flops` or `memory`. Raises InputError if the cluster does not have such a number.
    """
    for name, factor in factors.items():
        cluster = CHANGES[name](cluster, factor)
    changes = ",".join(f"{name} x {factor:g}" for name, factor in factors.items())
    return cluster.changed(name=f"{cluster.name} with {changes}")


def _network(cluster: Cluster, factor: float) -> Cluster:
    """A copy of a cluster with the bandwidth between nodes multiplied by `factor`. The bandwidth of a ring over several nodes
    stays limited by the links within a node. Raises InputError for a cluster of one node.
    """
    if cluster.matrix is None and not cluster.islands:
        problem = "is of the network between nodes, and there is one node"
        raise InputError(COMMAND_LINE, f"{FLAG} network", problem, "give a cluster of several nodes, or nvlink= for its links")
    if cluster.matrix is not None:
        return _matrix(cluster, factor, across=True)
    within = _within(cluster)
    return cluster.changed(islands=[_across(island, within, within, factor) for island in cluster.islands])


def _within(cluster: Cluster) -> float | None:
    """The least bandwidth, in bytes per second, of the links that join all devices of a node; None if nodes have one device
    each."""
    return min((node.islands[-1].bandwidth_bytes_per_s for node in cluster.nodes if node.islands), default=None)


def _across(island: Island, before: float | None, within: float | None, factor: float) -> Island:
    """An island (joined devices) of several nodes with its network's bandwidth multiplied, and its ring limited by the links
    within nodes.

    Args:
        island: the devices joined by the network.
        before: bandwidth within nodes before the change, in bytes per second; None if nodes have one device each.
        within: bandwidth within nodes after the change, in bytes per second; None likewise.
        factor: by which the network's bandwidth is multiplied.
    """
    line = (island.node_bytes_per_s or island.bandwidth_bytes_per_s) * factor
    fed = before is not None and within is not None and island.bandwidth_bytes_per_s <= before
    ring = min(line, within) if fed and within is not None else line
    return island.changed(bandwidth_bytes_per_s=ring, node_bytes_per_s=line if line > ring else None)


def _nvlink(cluster: Cluster, factor: float) -> Cluster:
    """A copy of a cluster with the bandwidth of all links within nodes multiplied by `factor`. Rings over several nodes become
    faster, too, if the links within nodes limited them. Raises InputError if nodes have one device each."""
    if cluster.matrix is not None:
        return _matrix(cluster, factor, across=False)
    if not any(node.islands for node in cluster.nodes):
        problem = "is of the links within a node, and nodes have one device each"
        raise InputError(COMMAND_LINE, f"{FLAG} nvlink", problem, "leave it out")
    before = _within(cluster)
    nodes = [node.changed(islands=[_faster(island, factor) for island in node.islands]) for node in cluster.nodes]
    within = None if before is None else before * factor
    return cluster.changed(nodes=nodes, islands=[_across(island, before, within, 1.0) for island in cluster.islands])


def _faster(island: Island, factor: float) -> Island:
    """A copy of an island (joined devices) with its bandwidth multiplied by `factor`."""
    return island.changed(bandwidth_bytes_per_s=island.bandwidth_bytes_per_s * factor)


def _matrix(cluster: Cluster, factor: float, across: bool) -> Cluster:
    """A copy of a cluster whose links are a matrix of bandwidths, with some of them multiplied by `factor`: between devices of
    different nodes if `across`, otherwise within nodes."""
    assert cluster.matrix is not None
    nodes = [node for node in cluster.nodes for _ in range(node.count)]
    node_of = [index for index, node in enumerate(nodes) for _ in range(node.devices)]
    rows = [
        [rate * factor if (node_of[i] != node_of[j]) == across and i != j else rate for j, rate in enumerate(row)]
        for i, row in enumerate(cluster.matrix.bandwidth_bytes_per_s)
    ]
    return cluster.changed(matrix=cluster.matrix.changed(bandwidth_bytes_per_s=rows))


def _flops(cluster: Cluster, factor: float) -> Cluster:
    """A copy of a cluster with the devices' peak rate of matrix multiplications multiplied by `factor` in every dtype; the
    share of the peak that kernels reach stays.
    """
    rates = ({name: rate * factor for name, rate in kind.flops_per_s.items()} for kind in cluster.kinds)
    return cluster.changed(kinds=[kind.changed(flops_per_s=rate) for kind, rate in zip(cluster.kinds, rates, strict=True)])


def _memory(cluster: Cluster, factor: float) -> Cluster:
    """A copy of a cluster with the memory of every device multiplied by `factor`; the number of reserved bytes stays. Raises
    InputError if the result is no more than the reserved bytes.
    """
    for kind in cluster.kinds:
        if kind.memory_bytes * factor <= kind.reserve_bytes:
            problem = f"leaves {kind.name} no more than its reserve of {kind.reserve_bytes} bytes"
            raise InputError(COMMAND_LINE, f"{FLAG} memory", problem, "give a larger factor, or a smaller --reserve")
    return cluster.changed(kinds=[kind.changed(memory_bytes=int(kind.memory_bytes * factor)) for kind in cluster.kinds])


CHANGES: dict[str, Callable[[Cluster, float], Cluster]] = {
    "network": _network,
    "nvlink": _nvlink,
    "flops": _flops,
    "memory": _memory,
}


@dataclass(frozen=True)
class WhatIf:
    """The plan of a request, and the plan that it would have if numbers of the cluster, such as a bandwidth, were multiplied.

    Attributes:
        factors: by name of the cluster's number, the factor that it is multiplied by.
        before: the planning result on the cluster as it is.
        after: the planning result on the changed cluster.
    """

    factors: Factors
    before: PlanningResult
    after: PlanningResult

    @property
    def share(self) -> float | None:
        """The predicted step after the change over the one before, minus 1 (negative if it is shorter); None if either has no
        plan."""
        if not self.before.step_ns or self.after.step_ns is None:
            return None
        return self.after.step_ns / self.before.step_ns - 1

    def to_dict(self) -> dict[str, Any]:
        """The comparison as a JSON-ready dict. Keys: `factors` (a dict from the name of a cluster's number, such as network, to
        its factor), `step_ns` (the predicted step after the change), `share` (that step over the step before, minus 1: -0.1 is
        10% shorter), and `after`, the new result as `plan --json` prints it; `step_ns` and `share` are None without a plan."""
        return {
            "factors": dict(self.factors),
            "step_ns": self.after.step_ns,
            "share": self.share,
            "after": self.after.to_dict(),
        }


def what_if(
    before: PlanningResult,
    factors: str | Factors,
    *,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[Any], None] | None = None,
) -> WhatIf:
    """The plan of a request if numbers of its cluster were multiplied, next to the plan that it has.

    Args:
        before: a result of `plan`.
        factors: for `network` (bandwidth between nodes), `nvlink` (within a node), `flops` (of matrix multiplications) and
            `memory` (of each device), such as "network=1.2" or {"network": 1.2}.
        time_limit: seconds of the search.
        progress: called with a text that names the step that begins, and with a Point for each better plan or bound.

    Returns:
        The plan before and after, and by what share the step changes.

    Raises:
        InputError: for other names, and for requests that are planned from a profile.
    """
    chosen, request = factors_of(factors), before.request
    check_what_if(request.cluster, request.profile is not None or request.measured)
    assert request.cluster is not None
    if "memory" in chosen and request.memory_bytes is not None:
        raise InputError(COMMAND_LINE, f"{FLAG} memory", "is given with --memory", "give one of the two")
    cluster = changed_cluster(request.cluster, chosen)
    return WhatIf(chosen, before, _replanned(before, time_limit, before.result.tolerance, progress, cluster=cluster))


def check_what_if(cluster: Cluster | None, measured: bool) -> None:
    """Raise InputError if a request has no cluster or is planned from a profile (`measured`), so that there are no numbers to
    multiply."""
    if cluster is None or measured:
        problem = "multiplies numbers of a cluster, and those of a profile are planned with"
        raise InputError(COMMAND_LINE, FLAG, problem, "leave out --profile and --measure")


@dataclass(frozen=True)
class BetterBatch:
    """A larger batch with which a step takes less time per sample.

    Attributes:
        batch: samples per step.
        step_ns: the predicted step with it.
        gain: the share of the time per sample that it saves.
        stopped: whether its search ended early, so that the gain may be larger.
    """

    batch: int
    step_ns: int
    gain: float
    stopped: bool

    def to_dict(self) -> dict[str, Any]:
        """The larger batch as a JSON-ready dict. Keys: `batch` (samples per step), `step_ns` (the predicted step), `gain` (the
        fraction of the time per sample that it saves), and `stopped` (whether its search ended early)."""
        return asdict(self)


def better_batch(result: PlanningResult, seconds: float, progress: Callable[[Any], None] | None = None) -> BetterBatch | None:
    """The next larger batch that is a multiple of the number of devices, if its plan takes less time per sample.

    result: the planning result of the request. Returns None if the request's batch is such a multiple already, so that it
    does not limit data parallelism, if the next multiple is much larger, or if it gains nothing. seconds: the time limit of
    its search. progress: called with a text that names the step that begins.
    """
    request = result.request
    if result.step_ns is None or result.interrupted or request.batch is None or request.measured or request.profile is not None:
        return None
    batch, devices = request.samples, request.origin.devices
    larger = -(-batch // devices) * devices
    if gcd(batch, devices) == devices or not batch < larger <= min((1 + NEAR) * batch, MOST_SAMPLES):
        return None
    try:
        replanned = _replanned(result, max(LEAST_SECONDS, seconds), max(GAP, result.result.tolerance), progress, batch=larger)
    except InputError:
        return None
    if replanned.step_ns is None:
        return None
    gain = 1 - (replanned.step_ns / larger) / (result.step_ns / batch)
    better = BetterBatch(larger, replanned.step_ns, gain, replanned.result.stopped is not None)
    return better if gain >= LEAST_GAIN else None


def _replanned(
    result: PlanningResult, seconds: float | None, gap: float, progress: Callable[[Any], None] | None, **changes: Any
) -> PlanningResult:
    """Plan the request of a result again with some of its fields changed, without searching for the best plan with one
    strategy and for the prices of constraints.

    result: the earlier result. seconds: the time limit of the search; None without a limit. gap: the relative gap at which
    it may stop. progress: called with a text that names the step that begins. changes: new values of fields of the request.
    """
    request = replace(result.request, obtained=[], **changes)
    return planned(request, result.preset, gap=gap, time_limit=seconds, progress=progress, compare_single_strategy=False)
