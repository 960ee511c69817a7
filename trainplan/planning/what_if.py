"""Answers to requests near one that has been planned: on a cluster that is changed by factors, or with another batch."""

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
GAP = 0.005  # of a search for a number beside the answer
LEAST_SECONDS = 2.0
NEAR = 0.125  # of a batch, by which a better one may be larger
LEAST_GAIN = 0.01  # of a step's time for each sample, that is worth a word

Factors = Mapping[str, float]


def factors_of(texts: str | Mapping[str, float]) -> dict[str, float]:
    """What is changed by how much, such as "network=1.2" or "network=2,flops=1.5", or as a mapping. Raises InputError."""
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
    """A cluster whose numbers are multiplied. Raises InputError where it has no such numbers."""
    for name, factor in factors.items():
        cluster = CHANGES[name](cluster, factor)
    told = ",".join(f"{name} x {factor:g}" for name, factor in factors.items())
    return cluster.changed(name=f"{cluster.name} with {told}")


def _network(cluster: Cluster, factor: float) -> Cluster:
    """More between nodes; a ring over nodes gets no more than the links within a node feed."""
    if cluster.matrix is None and not cluster.islands:
        problem = "is of the network between nodes, and there is one node"
        raise InputError(COMMAND_LINE, f"{FLAG} network", problem, "give a cluster of several nodes, or nvlink= for its links")
    if cluster.matrix is not None:
        return _matrix(cluster, factor, across=True)
    within = _within(cluster)
    return cluster.changed(islands=[_across(island, within, within, factor) for island in cluster.islands])


def _within(cluster: Cluster) -> float | None:
    """The least bandwidth of the links that join whole nodes within; None where nodes have one device each."""
    return min((node.islands[-1].bandwidth_bytes_per_s for node in cluster.nodes if node.islands), default=None)


def _across(island: Island, before: float | None, within: float | None, factor: float) -> Island:
    """An island of several nodes, with so many times the network, fed by links within nodes that were so fast before."""
    line = (island.node_bytes_per_s or island.bandwidth_bytes_per_s) * factor
    fed = before is not None and within is not None and island.bandwidth_bytes_per_s <= before
    ring = min(line, within) if fed and within is not None else line
    return island.changed(bandwidth_bytes_per_s=ring, node_bytes_per_s=line if line > ring else None)


def _nvlink(cluster: Cluster, factor: float) -> Cluster:
    """More within nodes, whatever joins their devices; and over nodes where that was what limited a ring."""
    if cluster.matrix is not None:
        return _matrix(cluster, factor, across=False)
    if not any(node.islands for node in cluster.nodes):
        problem = "is of the links within a node, and nodes have one device each"
        raise InputError(COMMAND_LINE, f"{FLAG} nvlink", problem, "leave it out")
    before = _within(cluster)
    nodes = [node.changed(islands=[_faster(island, factor) for island in node.islands]) for node in cluster.nodes]
    within = None if before is None else before * factor
    return cluster.changed(nodes=nodes, islands=[_across(each, before, within, 1.0) for each in cluster.islands])


def _faster(island: Island, factor: float) -> Island:
    return island.changed(bandwidth_bytes_per_s=island.bandwidth_bytes_per_s * factor)


def _matrix(cluster: Cluster, factor: float, across: bool) -> Cluster:
    """The links between devices of different nodes, or of one, of a cluster whose links are a matrix."""
    assert cluster.matrix is not None
    nodes = [node for node in cluster.nodes for _ in range(node.count)]
    of = [index for index, node in enumerate(nodes) for _ in range(node.devices)]
    rows = [
        [rate * factor if (of[i] != of[j]) == across and i != j else rate for j, rate in enumerate(row)]
        for i, row in enumerate(cluster.matrix.bandwidth_bytes_per_s)
    ]
    return cluster.changed(matrix=cluster.matrix.changed(bandwidth_bytes_per_s=rows))


def _flops(cluster: Cluster, factor: float) -> Cluster:
    """Faster matrix products, in every dtype; what kernels reach of them stays as it is."""
    rates = ({name: rate * factor for name, rate in kind.flops_per_s.items()} for kind in cluster.kinds)
    return cluster.changed(kinds=[kind.changed(flops_per_s=rate) for kind, rate in zip(cluster.kinds, rates, strict=True)])


def _memory(cluster: Cluster, factor: float) -> Cluster:
    """More memory on every device, its reserve as it is."""
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
    """What would be planned if the cluster's numbers were multiplied. before: as they are; after: by the factors."""

    factors: Factors
    before: PlanningResult
    after: PlanningResult

    @property
    def share(self) -> float | None:
        """How much longer the predicted step is, as a share of the one before; None where there is no plan."""
        if not self.before.step_ns or self.after.step_ns is None:
            return None
        return self.after.step_ns / self.before.step_ns - 1

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values; `after` as of `plan`."""
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
    """What a request that has been planned would be planned as, if numbers of its cluster were multiplied.

    Args:
        before: of `plan`.
        factors: of `network` (bandwidth between nodes), `nvlink` (within a node), `flops` (of matrix multiplications) and
            `memory` (of each device), such as "network=1.2" or {"network": 1.2}.
        time_limit: seconds of the search.
        progress: as of `plan`.

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
    """Raises InputError where there are no numbers of a cluster that a plan is made of."""
    if cluster is None or measured:
        problem = "multiplies numbers of a cluster, and those of a profile are planned with"
        raise InputError(COMMAND_LINE, FLAG, problem, "leave out --profile and --measure")


@dataclass(frozen=True)
class BetterBatch:
    """A batch near the one that is planned for, with more divisors, with which a sample takes less time. stopped: whether its
    search was not done."""

    batch: int
    step_ns: int
    gain: float
    stopped: bool

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def better_batch(made: PlanningResult, seconds: float, progress: Callable[[Any], None] | None = None) -> BetterBatch | None:
    """The next larger batch that is a multiple of the devices, where the batch is none and so limits data parallelism, if its
    plan takes less time for each sample; None where the batch limits nothing, where none is near, or where it gains nothing.

    seconds: of its search.
    """
    request = made.request
    if made.step_ns is None or made.interrupted or request.batch is None or request.measured or request.profile is not None:
        return None
    batch, devices = request.samples, request.origin.devices
    larger = -(-batch // devices) * devices
    if gcd(batch, devices) == devices or not batch < larger <= min((1 + NEAR) * batch, MOST_SAMPLES):
        return None
    try:
        other = _replanned(made, max(LEAST_SECONDS, seconds), max(GAP, made.result.tolerance), progress, batch=larger)
    except InputError:
        return None
    if other.step_ns is None:
        return None
    gain = 1 - (other.step_ns / larger) / (made.step_ns / batch)
    found = BetterBatch(larger, other.step_ns, gain, other.result.stopped is not None)
    return found if gain >= LEAST_GAIN else None


def _replanned(
    made: PlanningResult, seconds: float | None, gap: float, progress: Callable[[Any], None] | None, **changes: Any
) -> PlanningResult:
    """The answer to the same request with some of it changed; without what stands beside it."""
    request = replace(made.request, obtained=[], **changes)
    return planned(request, made.preset, gap=gap, time_limit=seconds, progress=progress, beside=False)
