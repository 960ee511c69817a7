"""Output of the machine's tools, in their formats, and the clusters that follow from it. No GPU is needed."""

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.detect import system
from trainplan.profiling.clusters.detect.cpu import Rates, available_bytes, measure_rates
from trainplan.profiling.clusters.detect.devices import Gpu
from trainplan.profiling.clusters.detect.driver import QUERY, nvml_gpus, parse_query
from trainplan.profiling.clusters.detect.machine import detect, to_yaml
from trainplan.profiling.clusters.detect.nccl import parse_nccl
from trainplan.profiling.clusters.detect.system import run_command
from trainplan.profiling.clusters.detect.topology import parse_topology

from tests.helpers.refusals import refused

FIXTURES = Path(__file__).parent / "fixtures"
H100 = Gpu("NVIDIA H100 80GB HBM3", 85_520_809_984, pcie_bytes_per_s=63e9)
TITAN = Gpu("NVIDIA TITAN RTX", 25_386_352_640, pcie_bytes_per_s=15.75e9)
A100 = Gpu("NVIDIA A100-SXM4-40GB", 42_505_273_344)
V100 = Gpu("Tesla V100-SXM2-16GB", 16_945_512_448)
SLOW = Rates({"float32": 4e10, "float64": 2e10}, 2e10, "given by the test")


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def read(path: str) -> str | None:
    return {"/proc/meminfo": text("meminfo.txt")}.get(path) or (Path(path).read_text() if Path(path).exists() else None)


def detected(gpus: list[Gpu] | None, topology: str | None = None, query: str | None = None, **options: Any) -> Cluster:
    def run(command: Sequence[str]) -> str | None:
        name = query if command == QUERY else topology
        return text(name) if name else None

    return detect(
        run=run, read=lambda path: None if "cgroup" in path else read(path), gpus=lambda: gpus, rates=lambda: SLOW, **options
    )


def refused_in_one_line(work: Callable[[], Any], *refusal: Any) -> None:
    """Check that the work is refused in one line, for a field and with facts, as `refused` takes them."""
    with refused(*refusal) as caught:
        work()
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(autouse=True)
def _no_file_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TOPO_FILE", raising=False)


def test_nvlink_switches_make_one_island() -> None:
    cluster = detected([H100] * 8, "topo-h100-8.txt")
    assert (cluster.name, cluster.devices, cluster.memory_bytes) == ("h100-80gb-hbm3-8", 8, H100.memory_bytes)
    assert [(island.devices, island.bandwidth_bytes_per_s) for island in cluster.network.islands] == [(8, 0.8 * 450e9)]
    assert cluster.usable_bytes == H100.memory_bytes - H100.memory_bytes // 16, "some of it is not for plans"
    host = cluster.nodes[0].host
    assert host is not None and not host.shares_bus
    assert host.memory_bytes == 528279824 * 1024
    assert cluster.kinds[0].flops_per_s["bfloat16"] == 989e12


def test_pcie_over_two_sockets_makes_nested_islands() -> None:
    cluster = detected([TITAN] * 8, "topo-titan-8.txt")
    assert [island.devices for island in cluster.network.islands] == [2, 4, 8]
    assert [cluster.network.link(group).bandwidth_bytes_per_s for group in ((6, 7), (5, 7), (3, 4))] == [
        12.6e9,
        11.025e9,
        6.3e9,
    ]
    assert cluster.nodes[0].host is not None and cluster.nodes[0].host.shares_bus
    assert "bfloat16" not in cluster.kinds[0].flops_per_s


def test_bridged_pairs_without_the_package() -> None:
    cluster = detected(None, "topo-3090-4.txt", "query-3090-4.csv")
    assert [island.devices for island in cluster.network.islands] == [2, 4]
    assert cluster.network.link((2, 3)).bandwidth_bytes_per_s == pytest.approx(0.8 * 4 * 14.0625e9)
    assert cluster.network.link((1, 2)).bandwidth_bytes_per_s == pytest.approx(0.4 * 31.5e9, rel=1e-3)
    assert cluster.memory_bytes == 24576 * 2**20
    assert "nvidia-smi" in cluster.source


def test_a_mesh_of_links_makes_a_matrix() -> None:
    cluster = detected([V100] * 8, "topo-v100-8.txt")
    assert cluster.matrix is not None
    assert cluster.network.link((0, 3)).bandwidth_bytes_per_s == 40e9
    assert cluster.network.link((0, 1, 2, 3)).bandwidth_bytes_per_s == 20e9
    assert cluster.network.link((0, 5)).bandwidth_bytes_per_s == pytest.approx(6.3e9)


def test_two_kinds_in_one_machine() -> None:
    cluster = detected([TITAN] * 4 + [replace(TITAN, name="NVIDIA GeForce RTX 2080 Ti")] * 4, "topo-titan-8.txt")
    assert [kind.name for kind in cluster.used_kinds] == ["NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti"]
    assert cluster.device_kinds[4].endswith("2080 Ti")
    assert cluster.network.link((3, 4)).bandwidth_bytes_per_s == 6.3e9


def test_nccl_file_of_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FIXTURES / "nccl-a100-8.xml"
    topology = parse_nccl(file.read_text(), "x")
    assert topology.pairs[0][1:] == ["NV12"] * 7
    assert topology.pcie_bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert topology.network_bytes_per_s == 25e9
    cluster = detected([A100] * 8, topology_file=file, nodes=4)
    assert cluster.devices == 32
    assert cluster.network.link((8, 15)).bandwidth_bytes_per_s == 240e9
    assert cluster.network.link((7, 8)).bandwidth_bytes_per_s == 25e9
    monkeypatch.setenv("NCCL_TOPO_FILE", str(file))
    assert detected([A100] * 8, nodes=4) == cluster


def test_nccl_file_without_nvlink_tells_the_way_through_pcie() -> None:
    lines = [line for line in text("nccl-a100-8.xml").splitlines() if "nvlink" not in line]
    pairs = parse_nccl("\n".join(lines), "x").pairs
    assert pairs[0] == ["X", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]


def test_nccl_file_without_gpus_leaves_them_to_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "vendor.xml"
    file.write_text('<system version="1"><cpu numaid="0"><pci link_speed="32.0 GT/s PCIe" link_width="16"/></cpu></system>')
    assert [island.devices for island in detected([TITAN] * 8, "topo-titan-8.txt", topology_file=file).network.islands] == [
        2,
        4,
        8,
    ]


@pytest.mark.parametrize(
    ("parse", "fixture", "refusal"),
    [
        (parse_topology, "topo-cut.txt", ("GPU2", (6, 8), "NCCL_TOPO_DUMP_FILE")),
        (parse_topology, "topo-odd.txt", ("GPU0", "QPI", "NCCL_TOPO_DUMP_FILE")),
        (parse_topology, "meminfo.txt", ("", "GPU", "NCCL_TOPO_DUMP_FILE")),
        (lambda text: parse_topology(text.replace("PIX", "X", 1)), "topo-titan-8.txt", ("GPU0", "X", "NCCL_TOPO_DUMP_FILE")),
        (parse_query, "topo-odd.txt", ("line 1", (), "nvidia-ml-py")),
        (lambda text: parse_nccl(text, "t.xml"), "nccl-cut.xml", ("line 67 column 3", "XML", "NCCL_TOPO_DUMP_FILE")),
        (lambda text: parse_nccl(text, "t.xml"), "nccl-laughs.xml", ("", "entities")),
        (lambda text: parse_nccl(text, "t.xml"), "nccl-odd.xml", ("nvlink.count", "two")),
        (lambda text: parse_nccl(text, "t.xml"), "meminfo.txt", ("line 1 column 1", "XML", "NCCL_TOPO_DUMP_FILE")),
        (lambda text: parse_nccl("<graphs/>", "t.xml"), "meminfo.txt", ("graphs", "`system`", "NCCL_TOPO_DUMP_FILE")),
        (
            lambda text: parse_nccl("<system>" + "<pci>" * 200 + "</pci>" * 200 + "</system>", "t.xml"),
            "meminfo.txt",
            ("", "deeply", "NCCL_TOPO_DUMP_FILE"),
        ),
    ],
)
def test_broken_outputs(parse: Callable[[str], Any], fixture: str, refusal: tuple[Any, ...]) -> None:
    refused_in_one_line(lambda: parse(text(fixture)), *refusal)


def test_what_does_not_fit_is_reported(tmp_path: Path) -> None:
    unknown = Gpu("NVIDIA RTX 9999", 2**34)
    for work, *reported in (
        (lambda: detected([unknown]), "device", "NVIDIA RTX 9999", ("nvidia-ml-py", "flops_per_s")),
        (lambda: detected([TITAN] * 4, "topo-titan-8.txt"), "`nvidia-smi topo -m`", (8, 4)),
        (lambda: detected([TITAN] * 8, "topo-titan-8.txt", nodes=2), "network", (), "12.5GB"),
        (lambda: detected(None, network_bytes_per_s=float("nan")), "network", "nan", "12.5GB"),
        (lambda: detected(None, nodes=0), "nodes", 0, (1, 2**20)),
        (lambda: detected(None, processes=-1), "processes", -1, (1, 2**20)),
        (lambda: detected(None, topology_file=tmp_path / "absent.xml"), "topology_file", str(tmp_path)[:20]),
    ):
        refused_in_one_line(work, *reported)


def test_names_like_a_known_device_are_not_taken_for_it() -> None:
    for name in ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA A16", "NVIDIA L40", "NVIDIA H100L 94GB"):
        assert Gpu(name, 1).sheet() is None
    for name in (
        "Tesla T4",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA L40S",
        "NVIDIA H200",
        "TITAN RTX",
        "NVIDIA B200",
    ):
        assert Gpu(name, 1).sheet() is not None


def test_unknown_devices_are_estimated_from_clocks() -> None:
    """By the figures that NVML has of an RTX 3090."""
    gpu = Gpu("NVIDIA RTX 9999", 2**34, cores=10496, clock_hz=1.695e9, memory_bytes_per_s=936e9)
    kind = detected([gpu]).kinds[0]
    assert kind.flops_per_s == {"float32": pytest.approx(35.6e12, rel=1e-2)}


def test_one_gpu_needs_no_link() -> None:
    assert detected([H100]).devices == 1
    assert detected([H100], nodes=2, network_bytes_per_s=1e9).network.link((0, 1)).bandwidth_bytes_per_s == 1e9


def test_several_machines_with_a_mesh() -> None:
    cluster = detected([V100] * 8, "topo-v100-8.txt", nodes=2, network_bytes_per_s=1e9)
    assert cluster.devices == 16
    assert cluster.network.link((8, 11)).bandwidth_bytes_per_s == 40e9
    assert cluster.network.link((0, 8)).bandwidth_bytes_per_s == 1e9


def test_cpu_processes_share_the_machine() -> None:
    cluster = detected(None, processes=4)
    assert (cluster.name, cluster.devices) == ("cpu-4", 4)
    assert cluster.memory_bytes == 528279824 * 1024 // 4
    assert cluster.kinds[0].flops_per_s == {"float32": 1e10, "float64": 5e9}
    assert "given by the test" in cluster.source
    assert detected(None, processes=2, nodes=3, network_bytes_per_s=1e8).network.link((1, 2)).bandwidth_bytes_per_s == 1e8


@pytest.mark.parametrize(("limit", "expected"), [("max\n", 528279824 * 1024), ("1048576\n", 2**20)])
def test_control_group_limits_memory(limit: str, expected: int) -> None:
    files = {"/proc/meminfo": text("meminfo.txt"), "/sys/fs/cgroup/memory.max": limit}
    assert available_bytes(files.get) == expected
    assert available_bytes({}.get) > 0


def test_rates_are_measured() -> None:
    rates = measure_rates(0.03)
    assert set(rates.flops_per_s) == {"float32", "float64"}
    assert min(*rates.flops_per_s.values(), rates.memory_bytes_per_s) > 1e7


@pytest.mark.parametrize(
    "cluster",
    [
        detected([H100] * 8, "topo-h100-8.txt"),
        detected([TITAN] * 8, "topo-titan-8.txt", nodes=2, network_bytes_per_s=12.5e9),
        detected([V100] * 8, "topo-v100-8.txt"),
        detected(None, processes=4, name="1e9"),
        load_cluster("amp-heterogeneous-16"),
    ],
    ids=lambda cluster: cluster.name,
)
def test_yaml_reads_back_equal(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(to_yaml(cluster))
    assert load_cluster(path) == cluster
    assert "null" not in path.read_text()


def test_commands_that_fail_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "TIMEOUT_S", 0.3)
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\necho GPU0\nsleep 5\n")
    hanging.chmod(0o755)
    assert run_command([str(hanging)]) is None
    assert run_command([str(tmp_path / "absent")]) is None
    assert run_command(["false"]) is None
    assert run_command(["echo", "GPU0"]) == "GPU0\n"


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise NVMLError

    nvml: Any = types.ModuleType("pynvml")
    nvml.NVMLError, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM = NVMLError, 1, 2
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 1
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda _: b"NVIDIA H100 80GB HBM3"
    nvml.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(total=85_520_809_984)
    nvml.nvmlDeviceGetMaxClockInfo = lambda _, clock: {1: 1980, 2: 2619}[clock]
    nvml.nvmlDeviceGetMemoryBusWidth = lambda _: 5120
    nvml.nvmlDeviceGetMaxPcieLinkGeneration = lambda _: 5
    nvml.nvmlDeviceGetMaxPcieLinkWidth = refuse
    nvml.nvmlDeviceGetNumGpuCores = lambda _: 16896
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = nvml_gpus()
    assert found is not None
    assert found[0].memory_bytes_per_s == pytest.approx(3352e9, rel=1e-3)
    assert (found[0].name, found[0].cores, found[0].pcie_bytes_per_s) == ("NVIDIA H100 80GB HBM3", 16896, None)
    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert nvml_gpus() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_gpus() is None
