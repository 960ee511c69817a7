"""The whole machine as a cluster: its GPUs with their links and host, or else the processes of its CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.yaml_files import yaml_text
from trainplan.profiling.clusters.cluster import Cluster, Host
from trainplan.profiling.clusters.detect.cpu import Rates, available_bytes, cpu_cluster, cpu_cores, measure_rates
from trainplan.profiling.clusters.detect.devices import Gpu
from trainplan.profiling.clusters.detect.driver import QUERY, nvml_gpus, parse_query
from trainplan.profiling.clusters.detect.gpu import gpu_cluster, pair_table
from trainplan.profiling.clusters.detect.links import PCIE_3_X16_BYTES_PER_S, PCIE_LATENCY_NS, PCIE_SHARES
from trainplan.profiling.clusters.detect.nccl import parse_nccl
from trainplan.profiling.clusters.detect.system import Read, Run, read_text, run_command
from trainplan.profiling.clusters.detect.topology import TOPOLOGY, Topology, parse_topology
from trainplan.profiling.clusters.network import Link

MOST = 2**20  # nodes, or processes
MOST_BYTES_PER_S = 1e18
LEAST_BYTES = 2**26  # memory of a process that acts as a device


def detect(
    *,
    nodes: int = 1,
    processes: int | None = None,
    network_bytes_per_s: float | None = None,
    topology_file: str | os.PathLike[str] | None = None,
    name: str | None = None,
    run: Run = run_command,
    read: Read = read_text,
    gpus: Callable[[], list[Gpu] | None] = nvml_gpus,
    rates: Callable[[], Rates] = measure_rates,
) -> Cluster:
    """Describe this machine as a cluster, or several machines like it. All GPUs count, whatever CUDA_VISIBLE_DEVICES is.

    Args:
        nodes: number of machines.
        processes: on a machine without GPUs, the number of processes that share it (default: one per core).
        network_bytes_per_s: the bandwidth of one ring between nodes (default: from the fastest network card in NCCL's file).
        topology_file: NCCL's XML (default: the one that NCCL_TOPO_FILE names).
        name: the cluster's name (default: one made of the kind and number of devices).
        run: runs a command and returns its output; for tests.
        read: reads a file; for tests.
        gpus: lists the GPUs; for tests.
        rates: measures the processor; for tests.

    Returns:
        The cluster.

    Raises:
        InputError: if needed information is missing.
    """
    for field, value in (("nodes", nodes), ("processes", processes)):
        if value is not None and not 1 <= value <= MOST:
            raise InputError("command line", f"--{field}", f"is {value}", f"give 1 to {MOST}")
    if network_bytes_per_s is not None and not 1 <= network_bytes_per_s <= MOST_BYTES_PER_S:
        problem = f"is {network_bytes_per_s} bytes a second"
        raise InputError("command line", "--network", problem, "give what a ring gets, such as 12.5GB")
    described = None
    if file := topology_file or os.environ.get("NCCL_TOPO_FILE"):
        if (text := read(path := os.fspath(file))) is None:
            raise InputError("detect", "topology_file", f"is {shown(path)}, which cannot be read", "name a readable file")
        described = parse_nccl(text, path)
    devices, lister = gpus(), "NVML"
    if devices is None and (text := run(QUERY)):
        devices, lister = parse_query(text), "nvidia-smi"
    network_bytes_per_s = network_bytes_per_s or (described.network_bytes_per_s if described else None)
    if nodes > 1 and not network_bytes_per_s:
        raise InputError("command line", "--network", "is missing", "give what one ring between nodes gets, such as 12.5GB")
    if not devices:
        memory_bytes, count = available_bytes(read), processes or cpu_cores()
        if memory_bytes // count < LEAST_BYTES:
            problem = f"is {count}, with {memory_bytes // count} bytes each"
            raise InputError("command line", "--processes", problem, f"give at most {max(1, memory_bytes // LEAST_BYTES)}")
        return cpu_cluster(nodes, count, network_bytes_per_s, name, memory_bytes, rates())
    topology = _topology(devices, described, run)
    rates_of_pcie = [gpu.pcie_bytes_per_s for gpu in devices if gpu.pcie_bytes_per_s]
    pcie_bytes_per_s = topology.pcie_bytes_per_s or min(rates_of_pcie, default=PCIE_3_X16_BYTES_PER_S)
    measured = rates()
    host = Host(
        memory_bytes=available_bytes(read),
        memory_bytes_per_s=round(measured.memory_bytes_per_s),
        link=Link(bandwidth_bytes_per_s=round(pcie_bytes_per_s * PCIE_SHARES["PIX"]), latency_ns=PCIE_LATENCY_NS),
        shares_bus=not all(path.startswith(("NV", "X")) for row in topology.pairs for path in row),
    )
    sheets = "data sheets" if all(gpu.sheet() for gpu in devices) else "data sheets, or clocks and cores where none is known"
    source = (
        f"Devices by {lister}, links by {topology.origin}, rates by {sheets}, RAM's {measured.origin}; "
        "what is reached of peak rates, of NVLink and of PCIe, and the reserve of a sixteenth of the memory, are assumptions."
    )
    table = pair_table(devices, topology.pairs, pcie_bytes_per_s)
    return gpu_cluster(devices, table, nodes, network_bytes_per_s or 0.0, host, name, source)


def to_yaml(cluster: Cluster) -> str:
    """The text of a cluster file in YAML for this cluster, without fields that have their default."""
    return yaml_text(cluster.model_dump(mode="json", exclude_defaults=True, exclude_none=True))


def _topology(gpus: Sequence[Gpu], described: Topology | None, run: Run) -> Topology:
    """The links between the GPUs of this machine: from NCCL's topology file, else from `nvidia-smi topo -m`, else the slowest
    kind of link for every pair.

    described: the links in NCCL's file; None without a file. If the file has no pairs of GPUs, its PCIe rate is combined with
    the pairs from `nvidia-smi`. run: runs a command and returns its output. Raises InputError if a source describes another
    number of GPUs.
    """
    topology = described if described and described.pairs else None
    if topology is None and len(gpus) > 1 and (text := run(TOPOLOGY)):
        topology = parse_topology(text)
        if described:
            topology = replace(topology, pcie_bytes_per_s=described.pcie_bytes_per_s)
    if topology is None:
        indices = range(len(gpus))
        topology = Topology([["X" if i == j else "SYS" for j in indices] for i in indices], "assumption: PCIe across sockets")
    if len(topology.pairs) != len(gpus):
        problem = f"shows {len(topology.pairs)} GPUs where the driver has {len(gpus)}"
        raise InputError("detect", topology.origin, problem, "give NCCL's topology file of this machine")
    return topology
