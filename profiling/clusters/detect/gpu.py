"""GPUs and the links between them as a cluster: nested islands if the links form a tree, else a matrix of all pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from trainplan.profiling.clusters.cluster import Cluster, Host, Nodes
from trainplan.profiling.clusters.detect.devices import Gpu
from trainplan.profiling.clusters.detect.links import (
    NETWORK_LATENCY_NS,
    NVLINK_BYTES_PER_S,
    NVLINK_LATENCY_NS,
    NVLINK_SHARE,
    PCIE_LATENCY_NS,
    PCIE_SHARES,
)
from trainplan.profiling.clusters.network import Island, Matrix
from trainplan.profiling.clusters.sheets import sheet

PairTable = list[list[float]]  # bytes a second from each device to each other


def pair_table(gpus: Sequence[Gpu], pairs: Sequence[Sequence[str]], pcie_bytes_per_s: float) -> PairTable:
    """The bandwidths between the N GPUs of a machine as an (N, N) table in bytes per second; 0 on the diagonal.

    pairs: (N, N) names of the connections, as `nvidia-smi topo -m` prints them, such as NV4 (four NVLinks) or PIX (PCIe).
    pcie_bytes_per_s: the peak of a PCIe link in one direction.
    """

    def bytes_per_s(i: int, j: int) -> float:
        """The bandwidth in bytes per second from GPU i to GPU j."""
        if i == j:
            return 0.0
        if (path := pairs[i][j]) in PCIE_SHARES:
            return round(PCIE_SHARES[path] * pcie_bytes_per_s)
        links = [sheet(name).scale_up for gpu in (gpus[i], gpus[j]) if (name := gpu.sheet())]
        rate = min((link.link_bytes_per_s for link in links if link), default=NVLINK_BYTES_PER_S)
        return round(NVLINK_SHARE * int(path.removeprefix("NV")) * rate)

    return [[bytes_per_s(i, j) for j in range(len(gpus))] for i in range(len(gpus))]


def nested_islands(table: PairTable) -> list[tuple[int, float]] | None:
    """Describe links as nested groups of equal size and consecutive devices (islands): pairs of the number of devices of a
    group and the bandwidth in bytes per second within it, smallest first.

    table: (N, N), bandwidths in bytes per second from each of N devices to each other device. Returns None if the links do not
    form such groups.
    """
    count = len(table)
    both = [[min(table[i][j], table[j][i]) for j in range(count)] for i in range(count)]
    levels = []
    for bandwidth in sorted({both[i][j] for i in range(count) for j in range(i)}, reverse=True):
        sets = [frozenset(j for j in range(count) if i == j or both[i][j] >= bandwidth) for i in range(count)]
        size = len(sets[0])
        if any(part != frozenset(range(i - i % size, i - i % size + size)) for i, part in enumerate(sets)):
            return None
        levels.append((size, bandwidth))
    return levels


def gpu_cluster(
    gpus: Sequence[Gpu], table: PairTable, nodes: int, network_bytes_per_s: float, host: Host, name: str | None, source: str
) -> Cluster:
    """Build a cluster of `nodes` machines, each with these GPUs and this host (CPU).

    table: (N, N), bandwidths in bytes per second from each of the N GPUs of a machine to each other GPU. network_bytes_per_s:
    the bandwidth of a ring between machines. name: the cluster's name; None for a generated one such as h100-80gb-hbm3-8.
    source: the source of the numbers, as text. Raises InputError for a GPU whose rates are unknown.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", gpus[0].name.lower().removeprefix("nvidia ")).strip("-")
    name = name or f"{slug}-{nodes * len(gpus)}"
    kinds = list({gpu.name: gpu.kind() for gpu in gpus}.values())
    levels = nested_islands(table) if len(kinds) == 1 else None
    if levels is None:
        matrix = Matrix(bandwidth_bytes_per_s=_repeated(table, nodes, network_bytes_per_s), latency_ns=PCIE_LATENCY_NS)
        return Cluster(name=name, kinds=kinds, nodes=_parts(gpus, host) * nodes, matrix=matrix, source=source)
    latency_ns = PCIE_LATENCY_NS if host.shares_bus else NVLINK_LATENCY_NS
    within = [Island(devices=size, bandwidth_bytes_per_s=rate, latency_ns=latency_ns) for size, rate in levels]
    across = []
    if nodes > 1:
        total = nodes * len(gpus)
        across = [Island(devices=total, bandwidth_bytes_per_s=network_bytes_per_s, latency_ns=NETWORK_LATENCY_NS)]
    node = Nodes(kind=kinds[0].name, devices=len(gpus), count=nodes, islands=within, host=host)
    return Cluster(name=name, kinds=kinds, nodes=[node], islands=across, source=source)


def _parts(gpus: Sequence[Gpu], host: Host) -> list[Nodes]:
    """Describe a machine as consecutive groups of GPUs of one kind, in order; each group has its share of the RAM. host: the
    machine's CPU.
    """
    parts = []
    for kind, group in groupby(gpu.name for gpu in gpus):
        devices = len(list(group))
        share = host.changed(memory_bytes=host.memory_bytes * devices // len(gpus))
        parts.append(Nodes(kind=kind, devices=devices, host=share))
    return parts


def _repeated(table: PairTable, nodes: int, network_bytes_per_s: float) -> PairTable:
    """The (nodes N, nodes N) table of bandwidths in bytes per second over `nodes` equal machines with N GPUs each: within a
    machine as in `table`, (N, N); between machines the network's bandwidth.
    """
    indices = [(node, i) for node in range(nodes) for i in range(len(table))]
    return [[table[i][j] if node == other else network_bytes_per_s for other, j in indices] for node, i in indices]
