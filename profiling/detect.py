"""The machine at hand as a cluster: its devices from NVML or `nvidia-smi`, its links from `nvidia-smi topo -m` or NCCL's XML.

Without a GPU each process on the CPU is a device. Whatever is asked of the system comes in as text, through `run` and `read`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.profiling.clusters import Cluster, DeviceKind, Host, Nodes
from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.files import yaml_text
from trainplan.profiling.network import Island, Link, Matrix

Run = Callable[[Sequence[str]], str | None]
Read = Callable[[str], str | None]
Table = list[list[float]]

TIMEOUT_S = 10
LARGEST_XML_BYTES = 10 * 2**20
TOPOLOGY = ("nvidia-smi", "topo", "-m")
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits")

# What a ring achieves of a link's peak, and what of a PCIe link is left on longer ways: assumptions.
NVLINK_SHARE = 0.8
PCIE_SHARES = {"PIX": 0.8, "PXB": 0.8, "PHB": 0.7, "NODE": 0.6, "SYS": 0.4}
PCIE_3_X16_BYTES_PER_S = 15.75e9
GLOO_BYTES_PER_S = 1e9  # between processes of one machine
NVLINK_LATENCY_NS, PCIE_LATENCY_NS, NETWORK_LATENCY_NS, SOCKET_LATENCY_NS = 5_000, 20_000, 10_000, 200_000


class Known(NamedTuple):
    """Data sheet of a device: dense peaks without sparsity, float32 on CUDA cores (no TF32), NVLink of one link one way."""

    pattern: str  # of the driver's name, without NVIDIA, GeForce and Tesla
    float32_teraflops: float
    half_teraflops: float
    float64_teraflops: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float = 0
    bfloat16: bool = True
    half_size: int = 64


DEVICES = (
    Known(r"TITAN RTX", 16.3, 130.5, 0.51, 672, 25, bfloat16=False),
    Known(r"RTX 2080 Ti", 13.4, 53.8, 0.42, 616, 25, bfloat16=False),
    Known(r"RTX 3090", 35.6, 71, 0.556, 936, 14.06),
    Known(r"RTX 4090", 82.6, 165.2, 1.29, 1008),
    Known(r"T4", 8.1, 65, 0.253, 320, bfloat16=False),
    Known(r"V100-SXM2.*", 15.7, 125, 7.8, 900, 25, bfloat16=False),
    Known(r"V100-PCIE.*", 14, 112, 7, 900, bfloat16=False),
    Known(r"A10", 31.2, 125, 0.976, 600),
    Known(r"A100-SXM\S*40GB", 19.5, 312, 19.5, 1555, 25, half_size=128),
    Known(r"A100-PCIE-40GB", 19.5, 312, 19.5, 1555, 25, half_size=128),
    Known(r"A100-SXM\S*80GB", 19.5, 312, 19.5, 2039, 25, half_size=128),
    Known(r"A100 80GB PCIe", 19.5, 312, 19.5, 1935, 25, half_size=128),
    Known(r"L4", 30.3, 121, 0.47, 300),
    Known(r"L40S", 91.6, 362, 1.43, 864),
    Known(r"H100 PCIe", 51, 756, 51, 2000, 25, half_size=256),
    Known(r"H100 80GB HBM3", 67, 989, 67, 3350, 25, half_size=256),
    Known(r"H200", 67, 989, 67, 4800, 25, half_size=256),
    Known(r"B200", 75, 2250, 37, 7700, 50, half_size=256),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver tells it; None where it does not."""

    name: str
    memory_bytes: int
    pcie_bytes_per_s: float | None = None
    cores: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_s: float | None = None

    def known(self) -> Known | None:
        name = re.sub(r"\b(NVIDIA|GeForce|Tesla)\b", "", self.name).strip()
        return next((known for known in DEVICES if re.fullmatch(known.pattern, name)), None)

    def kind(self) -> DeviceKind:
        """Rates from the data sheet, else float32's from cores and clock. Raises InputError."""
        if known := self.known():
            rates = {"float32": known.float32_teraflops, "float64": known.float64_teraflops}
            rates |= {name: known.half_teraflops for name in ("bfloat16", "float16") if name != "bfloat16" or known.bfloat16}
            memory, half_size = known.memory_gb_per_s * 1e9, known.half_size
        elif self.cores and self.clock_hz and self.memory_bytes_per_s:
            rates, memory, half_size = {"float32": 2 * self.cores * self.clock_hz / 1e12}, self.memory_bytes_per_s, 64
        else:
            fix = "install nvidia-ml-py to have its rates estimated, or write a cluster file with its flops_per_s"
            raise InputError("detect", "device", f"is {shown(self.name)}, which is not in the table of known devices", fix)
        flops = {name: round(rate * 1e12) for name, rate in rates.items()}
        fields = {"memory_bytes": self.memory_bytes, "memory_bytes_per_s": memory, "half_size": half_size}
        return DeviceKind.model_validate({"name": self.name, "flops_per_s": flops, **fields})


@dataclass(frozen=True)
class Topology:
    """How each pair of GPUs is joined (NV4, PIX, ...), and rates in bytes a second where the source tells them."""

    pairs: list[list[str]]
    origin: str
    pcie_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Rates:
    """What all cores of this machine do together."""

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    origin: str


def run_command(command: Sequence[str]) -> str | None:
    """What a command prints; None where it is missing, fails or hangs."""
    with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as a child of the command lives
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        return output.read(2**20).decode(errors="replace")


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def nvml_gpus() -> list[Gpu] | None:
    """All GPUs by NVML; None without the package nvidia-ml-py or without a driver."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # the package's own error class is not there when it is not
        return None

    def ask(question: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, question)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    found = []
    try:
        for i in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(i)
            name = nvml.nvmlDeviceGetName(gpu)
            clock_mhz = ask("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM)
            memory_clock_mhz = ask("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_MEM)
            bus_bits = ask("nvmlDeviceGetMemoryBusWidth", gpu)
            generation, lanes = ask("nvmlDeviceGetMaxPcieLinkGeneration", gpu), ask("nvmlDeviceGetMaxPcieLinkWidth", gpu)
            found.append(
                Gpu(
                    name=name.decode() if isinstance(name, bytes) else name,
                    memory_bytes=nvml.nvmlDeviceGetMemoryInfo(gpu).total,
                    pcie_bytes_per_s=_generation_bytes_per_s(generation, lanes),
                    cores=ask("nvmlDeviceGetNumGpuCores", gpu),
                    clock_hz=clock_mhz and clock_mhz * 1e6,
                    memory_bytes_per_s=bus_bits and memory_clock_mhz and bus_bits / 8 * memory_clock_mhz * 2e6,
                )
            )
    except nvml.NVMLError:
        return None
    finally:
        ask("nvmlShutdown")
    return found


def pcie_bytes_per_s(gt_per_s: float, lanes: int) -> float:
    """Peak of a PCIe link one way. Of the bits sent 8 of 10 are data up to 5 GT/s, 128 of 130 above."""
    return gt_per_s * 1e9 / 8 * lanes * (0.8 if gt_per_s <= 5 else 128 / 130)


def _generation_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    return pcie_bytes_per_s([2.5, 5, 8, 16, 32, 64][min(generation, 6) - 1], lanes) if generation and lanes else None


def parse_query(text: str) -> list[Gpu]:
    """GPUs in the answer to `QUERY`: name, MiB, PCIe generation and lanes, one GPU a line."""
    found = []
    for i, line in enumerate(filter(str.strip, text.splitlines())):
        cells = [cell.strip() for cell in line.rsplit(",", 3)]
        if len(cells) != 4 or not cells[1].isdigit():
            raise InputError(
                QUERY[0], f"line {i + 1}", f"is {shown(line.strip())}", "install nvidia-ml-py, which asks the driver"
            )
        generation, lanes = (int(cell) if cell.isdigit() else None for cell in cells[2:])
        found.append(Gpu(cells[0], int(cells[1]) * 2**20, _generation_bytes_per_s(generation, lanes)))
    return found


def parse_topology(text: str) -> Topology:
    """The matrix that `nvidia-smi topo -m` prints. Raises InputError where it is cut short or has a link of no known kind."""
    where, fix = " ".join(TOPOLOGY), "give NCCL's topology as an XML file (NCCL_TOPO_DUMP_FILE writes it)"
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    columns: list[str] = next(
        ([cell for cell in line if re.fullmatch(r"GPU\d+", cell)] for line in lines if "GPU0" in line), []
    )
    rows = {line[0]: line[1 : len(columns) + 1] for line in lines if len(line) > 1 and line[0] in columns and "X" in line}
    if not columns:
        raise InputError(where, "", "shows no GPU", fix)
    for name in columns:
        if len(rows.get(name, [])) != len(columns):
            raise InputError(where, name, f"has {len(rows.get(name, []))} of {len(columns)} links", fix)
        if odd := [cell for cell in rows[name] if cell != "X" and cell not in PCIE_SHARES and not re.fullmatch(r"NV\d+", cell)]:
            raise InputError(where, name, f"has the link {shown(odd[0])}", fix)
    return Topology([rows[name] for name in columns], f"`{where}`")


def parse_nccl(text: str, where: str) -> Topology:
    """NCCL's topology file: `gpu`, `nvlink`, `pci` and `net` elements. One without `gpu` elements has no pairs."""
    fix = "give a file that NCCL_TOPO_DUMP_FILE made"
    if len(text) > LARGEST_XML_BYTES:
        raise InputError(where, "", f"has {len(text):,} characters", fix)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(where, "", "has a document type or entities", "remove them: NCCL writes none")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise InputError(where, f"line {line} column {column + 1}", f"is not XML ({error.msg.split(':')[0]})", fix) from None
    if root.tag != "system":
        raise InputError(where, root.tag[:40], "is not NCCL's element `system`", fix)
    found: dict[int, tuple[ElementTree.Element, ...]] = {}
    speeds_mb_per_s = [0]
    waiting: list[tuple[ElementTree.Element, ...]] = [(root,)]
    while waiting:
        *_, element = path = waiting.pop()
        if len(path) > 100:
            raise InputError(where, "", "is nested too deeply", fix)
        if element.tag == "gpu":
            dev = _count(element, "dev", where)
            if dev in found:
                raise InputError(where, "gpu", f"has dev {dev} twice", "give the file of one node")
            found[dev] = path
        elif element.tag == "net":
            speeds_mb_per_s.append(_count(element, "speed", where))
        waiting += [(*path, child) for child in element]
    paths = [found[dev] for dev in sorted(found)]
    rates = [rate for path in paths if (rate := _slowest_pcie(path)) is not None]
    pairs = [["X" if a is b else _joined(a, b, where) for b in paths] for a in paths]
    return Topology(pairs, "NCCL's topology file", min(rates, default=None), max(speeds_mb_per_s) * 1e6 / 8 or None)


def _count(element: ElementTree.Element, attribute: str, where: str) -> int:
    text = element.get(attribute, "")
    if not re.fullmatch(r"\d{1,9}", text):
        raise InputError(where, f"{element.tag}.{attribute}", f"is {shown(text)}", "give a whole number")
    return int(text)


def _slowest_pcie(path: Sequence[ElementTree.Element]) -> float | None:
    rates = []
    for element in path:
        speed = re.match(r"(\d{1,3}(?:\.\d)?) ?GT/s", element.get("link_speed", ""))
        lanes = element.get("link_width", "")
        if element.tag == "pci" and speed and re.fullmatch(r"[1-9]\d?", lanes):
            rates.append(pcie_bytes_per_s(float(speed[1]), int(lanes)))
    return min(rates, default=None)


def _joined(a: tuple[ElementTree.Element, ...], b: tuple[ElementTree.Element, ...], where: str) -> str:
    """How two GPUs are joined, given as their ways from the root: by NVLink direct or through switches, else through PCIe."""
    links = []
    for this, other in ((a, b), (b, a)):
        bus = other[-2].get("busid")
        direct = sum(_count(link, "count", where) for link in this[-1].findall("nvlink") if bus and link.get("target") == bus)
        switched = sum(_count(link, "count", where) for link in this[-1].findall("nvlink") if link.get("tclass") == "0x068000")
        links.append(max(direct, switched))
    if min(links):
        return f"NV{min(links)}"
    shared = [element for element, twin in zip(a, b, strict=False) if element is twin]
    if shared[-1].tag == "pci":
        return "PIX" if max(len(a), len(b)) - len(shared) <= 2 else "PXB"
    return "PHB" if shared[-1].tag == "cpu" else "SYS"


def available_bytes(read: Read) -> int:
    """RAM of this machine, or what its control group may use of it."""
    limits = []
    if match := re.search(r"^MemTotal:\s*(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE):
        limits.append(int(match[1]) * 1024)
    else:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if (limit := (read("/sys/fs/cgroup/memory.max") or "").strip()).isdigit():
        limits.append(int(limit))
    return min(limits)


def cpu_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_rates(seconds: float = 0.5) -> Rates:
    """Matrix products and copies of large arrays by numpy on all cores, best of some repeats within the time given."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    def best_s(work: Callable[[], Any]) -> float:
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
    threads = min(cpu_cores(), 16)
    part_bytes = 2**28 // threads  # more than caches hold
    source = [np.ones(part_bytes, np.uint8) for _ in range(threads)]
    target = [np.empty_like(part) for part in source]
    with ThreadPoolExecutor(threads) as pool:
        copy_s = best_s(lambda: list(pool.map(np.copyto, target, source)))
    return Rates(flops, 2 * threads * part_bytes / copy_s, "measured by numpy for half a second")


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
    """This machine as a cluster, or `nodes` machines like it. Raises InputError.

    processes: on a machine without GPUs, how many share it; as many as cores by default. network_bytes_per_s: of one
    ring between nodes; from the fastest network card in NCCL's file by default. topology_file: NCCL's XML; by default
    the one that NCCL_TOPO_FILE names. All GPUs count, whatever CUDA_VISIBLE_DEVICES says.
    """
    for field, value in (("nodes", nodes), ("processes", processes)):
        if value is not None and not 1 <= value <= 2**20:
            raise InputError("detect", field, f"is {value}", f"give 1 to {2**20}")
    if network_bytes_per_s is not None and not 0 < network_bytes_per_s <= 1e18:
        raise InputError("detect", "network_bytes_per_s", f"is {network_bytes_per_s}", "give bytes a second, such as 12.5e9")
    file = topology_file or os.environ.get("NCCL_TOPO_FILE")
    described = None
    if file:
        if (text := read(os.fspath(file))) is None:
            raise InputError(
                "detect", "topology_file", f"is {shown(os.fspath(file))}, which cannot be read", "name a readable file"
            )
        described = parse_nccl(text, os.fspath(file))
    found = gpus()
    asked = "NVML"
    if found is None and (text := run(QUERY)):
        found, asked = parse_query(text), "nvidia-smi"
    speed = network_bytes_per_s or (described.network_bytes_per_s if described else None)
    if nodes > 1 and not speed:
        raise InputError("detect", "network_bytes_per_s", "is missing", f"give what one ring between {nodes} nodes gets")
    if not found:
        return _cpu_cluster(nodes, processes or cpu_cores(), speed, name, available_bytes(read), rates())
    topology = _topology(found, described, run)
    pcie = topology.pcie_bytes_per_s or min(
        (g.pcie_bytes_per_s for g in found if g.pcie_bytes_per_s), default=PCIE_3_X16_BYTES_PER_S
    )
    host_rates = rates()
    host = Host(
        memory_bytes=available_bytes(read),
        memory_bytes_per_s=round(host_rates.memory_bytes_per_s),
        link=Link(bandwidth_bytes_per_s=round(pcie * PCIE_SHARES["PIX"]), latency_ns=PCIE_LATENCY_NS),
        shares_bus=not all(path.startswith(("NV", "X")) for row in topology.pairs for path in row),
    )
    sheets = "data sheets" if all(gpu.known() for gpu in found) else "data sheets, or clocks and cores where none is known"
    source = (
        f"Devices by {asked}, links by {topology.origin}, rates by {sheets}, RAM's {host_rates.origin}; "
        "what is reached of peak rates, of NVLink and of PCIe are assumptions."
    )
    table = [[_pair_bytes_per_s(found, i, j, path, pcie) for j, path in enumerate(row)] for i, row in enumerate(topology.pairs)]
    return _gpu_cluster(found, table, nodes, speed or 0.0, host, name, source)


def to_yaml(cluster: Cluster) -> str:
    """A cluster file without what is left at its default."""
    return yaml_text(cluster.model_dump(mode="json", exclude_defaults=True, exclude_none=True))


def _topology(found: list[Gpu], described: Topology | None, run: Run) -> Topology:
    topology = described if described and described.pairs else None
    if topology is None and len(found) > 1 and (text := run(TOPOLOGY)):
        topology = parse_topology(text)
        if described:
            topology = replace(topology, pcie_bytes_per_s=described.pcie_bytes_per_s)
    if topology is None:
        topology = Topology([["X" if a is b else "SYS" for b in found] for a in found], "assumption: PCIe across sockets")
    if len(topology.pairs) != len(found):
        told = f"shows {len(topology.pairs)} GPUs where the driver has {len(found)}"
        raise InputError("detect", topology.origin, told, "give NCCL's topology file of this machine")
    return topology


def _pair_bytes_per_s(gpus: list[Gpu], i: int, j: int, path: str, pcie_bytes_per_s: float) -> float:
    if i == j:
        return 0.0
    if path in PCIE_SHARES:
        return round(PCIE_SHARES[path] * pcie_bytes_per_s)
    rates = [known.nvlink_gb_per_s for gpu in (gpus[i], gpus[j]) if (known := gpu.known())]
    return round(NVLINK_SHARE * int(path[2:]) * (min(rates, default=0) or 25) * 1e9)


def nested_islands(table: Table) -> list[tuple[int, float]] | None:
    """Sizes and bandwidths of equal islands of consecutive devices, smallest first; None where the links are no such tree."""
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


def _gpu_cluster(gpus: list[Gpu], table: Table, nodes: int, speed: float, host: Host, name: str | None, source: str) -> Cluster:
    count = len(gpus)
    slug = re.sub(r"[^a-z0-9]+", "-", gpus[0].name.lower().removeprefix("nvidia ")).strip("-")
    named = {"name": name or f"{slug}-{nodes * count}", "source": source}
    kinds = list({gpu.name: gpu.kind() for gpu in gpus}.values())
    levels = nested_islands(table) if len(kinds) == 1 else None
    if levels is not None:
        fastest = PCIE_LATENCY_NS if host.shares_bus else NVLINK_LATENCY_NS
        within = [Island(devices=n, bandwidth_bytes_per_s=b, latency_ns=fastest) for n, b in levels]
        across = (
            [Island(devices=nodes * count, bandwidth_bytes_per_s=speed, latency_ns=NETWORK_LATENCY_NS)] if nodes > 1 else []
        )
        node = Nodes(kind=kinds[0].name, devices=count, count=nodes, islands=within, host=host)
        return Cluster(kinds=kinds, nodes=[node], islands=across, **named)  # type: ignore[arg-type]
    parts = []
    for kind, group in groupby(gpu.name for gpu in gpus):
        devices = len(list(group))
        share = host.changed(memory_bytes=host.memory_bytes * devices // count)
        parts.append(Nodes(kind=kind, devices=devices, host=share))
    total = range(nodes * count)
    rows = [[table[i % count][j % count] if i // count == j // count else speed for j in total] for i in total]
    matrix = Matrix(bandwidth_bytes_per_s=rows, latency_ns=PCIE_LATENCY_NS)
    return Cluster(kinds=kinds, nodes=parts * nodes, matrix=matrix, **named)  # type: ignore[arg-type]


def _cpu_cluster(nodes: int, processes: int, speed: float | None, name: str | None, ram_bytes: int, rates: Rates) -> Cluster:
    """Processes share cores, RAM and its bandwidth evenly."""
    memory_bytes_per_s = rates.memory_bytes_per_s / processes
    kind = DeviceKind.model_validate(
        {
            "name": "CPU process",
            "memory_bytes": max(1, ram_bytes // processes),
            "flops_per_s": {dtype: round(rate / processes) for dtype, rate in rates.flops_per_s.items()},
            "memory_bytes_per_s": round(memory_bytes_per_s),
            "efficiency": 1.0,
            "half_size": 16,
        }
    )
    link = Link(bandwidth_bytes_per_s=round(memory_bytes_per_s), latency_ns=PCIE_LATENCY_NS)
    host = Host(memory_bytes=ram_bytes, memory_bytes_per_s=round(rates.memory_bytes_per_s), link=link)
    inner = Island(devices=processes, bandwidth_bytes_per_s=GLOO_BYTES_PER_S, latency_ns=SOCKET_LATENCY_NS)
    outer = Island(devices=nodes * processes, bandwidth_bytes_per_s=speed or 1.0, latency_ns=SOCKET_LATENCY_NS)
    return Cluster(
        name=name or f"cpu-{nodes * processes}",
        kinds=[kind],
        nodes=[Nodes(kind=kind.name, devices=processes, count=nodes, islands=[inner], host=host)],
        islands=[outer] if nodes > 1 else [],
        source=f"Rates {rates.origin}, RAM as the system tells; links are assumptions.",
    )
