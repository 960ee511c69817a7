"""The machine's own processor: its RAM, the rates of all its cores together, and a cluster whose devices are processes on
it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainplan.profiling.clusters.cluster import Cluster, DeviceKind, Host, Nodes
from trainplan.profiling.clusters.detect.links import GLOO_BYTES_PER_S, PCIE_LATENCY_NS, SOCKET_LATENCY_NS
from trainplan.profiling.clusters.detect.system import Read
from trainplan.profiling.clusters.network import Island, Link

MOST_COPYING_THREADS = 16
COPIED_BYTES = 2**28  # more than caches hold


@dataclass(frozen=True)
class Rates:
    """Measured rates of all cores of this machine together: flops_per_s, of matrix multiplications by dtype, and of memory.
    origin: how they were measured, as text.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    origin: str


def available_bytes(read: Read) -> int:
    """RAM of this machine in bytes, or the limit of its control group (cgroup) if that is less.

    read: function that reads a system file and returns its text, or None if it cannot be read.
    """
    if match := re.search(r"^MemTotal:\s*(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE):
        ram_bytes = int(match[1]) * 1024
    else:
        ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = (read("/sys/fs/cgroup/memory.max") or "").strip()
    return min(ram_bytes, int(limit)) if limit.isdigit() else ram_bytes


def cpu_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_rates(seconds: float = 0.5) -> Rates:
    """Measure the rates of matrix multiplications, by dtype, and of copies of large arrays (memory) with numpy on all cores of
    this machine. Each rate is the best of repeated runs; all measurements together take about `seconds`.
    """
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    def best_s(work: Callable[[], Any]) -> float:
        """The shortest time in seconds of several runs of `work`, after one run to warm up."""
        work()
        best, end = float("inf"), time.perf_counter() + seconds / 3
        while (start := time.perf_counter()) < end:
            work()
            best = min(best, time.perf_counter() - start)
        return best

    size, flops = 768, {}
    for dtype in ("float32", "float64"):
        a = np.ones((size, size), dtype)
        out = np.empty_like(a)
        flops[dtype] = 2 * size**3 / best_s(lambda a=a, out=out: np.matmul(a, a, out=out))  # type: ignore[misc]
    threads = min(cpu_cores(), MOST_COPYING_THREADS)
    part_bytes = COPIED_BYTES // threads
    source = [np.ones(part_bytes, np.uint8) for _ in range(threads)]
    target = [np.empty_like(part) for part in source]
    with ThreadPoolExecutor(threads) as pool:
        copy_s = best_s(lambda: list(pool.map(np.copyto, target, source)))
    return Rates(flops, 2 * threads * part_bytes / copy_s, "measured by numpy for half a second")


def cpu_cluster(
    nodes: int, processes: int, network_bytes_per_s: float | None, name: str | None, ram_bytes: int, rates: Rates
) -> Cluster:
    """Build a cluster whose devices are processes that share a machine's cores, RAM and memory bandwidth evenly.

    nodes: number of machines. processes: number of processes per machine. network_bytes_per_s: the bandwidth of a ring
    between machines; None if unknown. name: the cluster's name; None for a generated one such as cpu-8. ram_bytes: RAM of one
    machine. rates: rates of all cores of one machine together.
    """
    memory_bytes_per_s = round(rates.memory_bytes_per_s / processes)
    kind = DeviceKind.model_validate(
        {
            "name": "CPU process",
            "memory_bytes": max(1, ram_bytes // processes),
            "flops_per_s": {dtype: round(rate / processes) for dtype, rate in rates.flops_per_s.items()},
            "memory_bytes_per_s": memory_bytes_per_s,
            "efficiency": 1.0,
            "half_size": 16,
        }
    )
    link = Link(bandwidth_bytes_per_s=memory_bytes_per_s, latency_ns=PCIE_LATENCY_NS)
    host = Host(memory_bytes=ram_bytes, memory_bytes_per_s=round(rates.memory_bytes_per_s), link=link)
    within = Island(devices=processes, bandwidth_bytes_per_s=GLOO_BYTES_PER_S, latency_ns=SOCKET_LATENCY_NS)
    across = []
    if nodes > 1 and network_bytes_per_s:
        total = nodes * processes
        across = [Island(devices=total, bandwidth_bytes_per_s=network_bytes_per_s, latency_ns=SOCKET_LATENCY_NS)]
    return Cluster(
        name=name or f"cpu-{nodes * processes}",
        kinds=[kind],
        nodes=[Nodes(kind=kind.name, devices=processes, count=nodes, islands=[within], host=host)],
        islands=across,
        source=f"Rates {rates.origin}, RAM as the system tells; links are assumptions.",
    )
