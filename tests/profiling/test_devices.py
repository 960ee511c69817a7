"""Data sheets of devices, clusters named by nodes of them, and what kernels and links reach of their peaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import parse
from trainplan.profiling.base.quantities import parse_rate
from trainplan.profiling.base.yaml_files import yaml_text
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind, load_cluster
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, Level, shipped_efficiencies
from trainplan.profiling.clusters.kinds import OTHER_ERROR, SAME_ARCHITECTURE_ERROR, device_kind
from trainplan.profiling.clusters.nodes import cluster_of_nodes, completions, counted_devices
from trainplan.profiling.clusters.sheets import DeviceSheet, kind_named, likely_kind, sheet, sheets
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.sublayers import Operator
from trainplan.profiling.shipped import shipped

from tests.helpers.refusals import refused, stated

GIB, TERA, GIGA = 2**30, 1e12, 1e9
NAMES = (
    *("a10", "a100", "a100-40gb", "a100-pcie", "a100-pcie-40gb", "a10g", "a40", "a6000", "a800", "a800-40gb", "a800-pcie"),
    *("b100", "b200", "b300", "gb200", "gb300", "gh200", "h100", "h100-96gb", "h100-nvl", "h100-pcie", "h20", "h200"),
    *("h800", "h800-pcie", "l4", "l40s", "mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi355x", "p100", "p100-pcie"),
    *("rtx2080ti", "rtx3090", "rtx4090", "rtx5090", "t4", "titan-rtx", "v100", "v100-32gb", "v100-pcie"),
)
# NVLink and xGMI of one device, both ways, in GB/s as vendors print them.
BOTH_WAYS = {
    "nvlink-1": 160,
    "nvlink-2": 300,
    "nvlink-3": 600,
    "nvlink-4": 900,
    "nvlink-5": 1800,
    "xgmi-3": 896,
    "xgmi-4": 1075.2,
}
FEWER_LINKS = {"a800": 400, "h800": 400}  # as they are exported
OF_A_DIE = {"mi250", "mi250x"}  # of whose links most join the two dies of a package


def assumed() -> EfficiencyTable:
    """The shipped table without what is fitted to runs."""
    table = shipped_efficiencies()
    kernels, links = ([fit for fit in fits if fit.origin == "assumed"] for fits in (table.kernels, table.links))
    return table.changed(kernels=kernels, links=links)


def fitted(table: EfficiencyTable, device: str, value: float, precision: str | None, kernel: str = "matrix-product") -> Any:
    """The table with one more efficiency, fitted to a run."""
    fit = {"device": device, "kernel": kernel, "value": value, "half_size": 100, "error": 0.07, "origin": "fitted"}
    fit |= {"precision": precision, "date": "2026-01-31", "rows": ["run-1"], "residuals": [0.01]}
    kernels = [one_kernel.model_dump(mode="json") for one_kernel in table.kernels]
    return parse({"kernels": [*kernels, fit], "links": [link.model_dump(mode="json") for link in table.links]}, EfficiencyTable)


def refused_in_one_line(work: Callable[[Any], object], value: Any, *refusal: Any) -> InputError:
    """The error of work on a value, about a field and with facts, as `refused` takes them."""
    with refused(*refusal) as caught:
        work(value)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_all_sheets_are_listed() -> None:
    assert tuple(sheets()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_units_are_right(name: str) -> None:
    """Numbers in other units than those that their names say would be a thousand times off."""
    device = sheet(name)
    peaks = device.flops_per_s
    half = peaks.get("bfloat16", peaks["float16"])
    assert (15 if device.architecture == "pascal" else 50) * TERA < half < 3000 * TERA
    assert 8 * GIB < device.memory_bytes < 300 * GIB and device.memory_bytes % GIB == 0
    assert 250 * GIGA < device.memory_bytes_per_s < 9000 * GIGA
    assert device.power_watts is not None and 60 < device.power_watts < 1500
    assert 2015 < device.released < 2027
    assert device.pcie.bytes_per_s == pytest.approx({3: 15.75e9, 4: 31.5e9, 5: 63e9}[device.pcie.generation], rel=1e-3)
    assert 100 * GIB < device.host.memory_bytes < 2**45 and 100 * GIGA < device.host.memory_bytes_per_s < 2e13
    assert device.network.bytes_per_s * 8 / 1e9 in (50, 100, 200, 400, 800)
    if device.joined is not None and device.joined.domain >= 8 and name not in OF_A_DIE:
        assert 2 * device.joined.links * device.joined.link_bytes_per_s / 1e9 == pytest.approx(
            FEWER_LINKS.get(name, BOTH_WAYS[device.joined.level])
        )
        assert device.joined.domain == (72 if name.startswith("gb") else 8)


@pytest.mark.parametrize("name", NAMES)
def test_narrower_numbers_are_faster_as_vendors_say(name: str) -> None:
    peaks = sheet(name).flops_per_s
    if "bfloat16" in peaks:
        assert peaks["bfloat16"] == peaks["float16"] > peaks["float32"]
    if "tfloat32" in peaks:
        assert peaks["tfloat32"] == pytest.approx(peaks["float16"] / 2, rel=0.02)
    if "float8" in peaks:
        assert peaks["float8"] == pytest.approx(2 * peaks["bfloat16"], rel=0.02)
    if "float4" in peaks:
        assert peaks["float4"] >= 1.99 * peaks["float8"]
    assert ("float8" in peaks) == (sheet(name).architecture in ("hopper", "ada", "blackwell", "cdna3", "cdna4"))
    assert ("bfloat16" in peaks) == (sheet(name).architecture not in ("pascal", "volta", "turing"))


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_makes_a_node_and_clusters(name: str) -> None:
    for text in (f"{name}:1", f"{name}:4", f"{name}:8", f"{name}:8x3", f"{name}:1x2"):
        cluster = load_cluster(text)
        assert (cluster.name, cluster.network.reaches(cluster.devices)) == (text, True)
        kind = cluster.kinds[0]
        assert 0.7 * kind.memory_bytes < kind.usable_bytes < kind.memory_bytes and kind.reserve_bytes % GIB == 0
        assert {efficiency.precision for efficiency in kind.efficiencies if efficiency.kernel == "matrix-product"} == set(
            kind.flops_per_s
        )
        assert all(0.2 < efficiency.value <= 0.95 for efficiency in kind.efficiencies)
        assert sheet(name).sources[0].source in cluster.source
        node = cluster.nodes[0]
        pairs_alone = name == "h100-nvl" and node.devices > 2
        assert node.host is not None and node.host.shares_bus == (sheet(name).joined is None or pairs_alone)
        assert parse(cluster.model_dump(mode="json"), Cluster) == cluster


def test_numbers_without_a_source_are_refused() -> None:
    good = sheet("h100").model_dump(mode="json", exclude_none=True)
    sources = good["sources"]
    for value, reported in (
        (good | {"sources": sources[1:]}, ("flops_per_s", "source")),
        (
            good | {"sources": [*sources, {"of": ["attainable_flops_per_s"], "source": "a data sheet"}]},
            ("attainable_flops_per_s", "value"),
        ),
        (good | {"sources": [*sources, sources[0]]}, ("sources", "twice")),
        (good | {"visible_bytes": good["memory_bytes"] + 1}, ("visible_bytes", 80 * GIB + 1, 80 * GIB)),
        (good | {"flops_per_s": {"fp8": 1e15}}, ("flops_per_s.fp8", "fp8", ("float64", "bfloat16", "float8", "float4"))),
        (good | {"memory_bytes": "80GB"}, ("memory_bytes", "80GB", 80 * 10**9)),
        (good | {"pcie": {"generation": 9}}, ("pcie.generation", 9, (3, 4, 5))),
        (good | {"memory_bytes_per_s": float("nan")}, ("memory_bytes_per_s", "NaN")),
    ):
        refused_in_one_line(lambda value: parse(value, DeviceSheet), value, *reported)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *[("h100:8", "h100-8"), ("h100:8x8", "h100-64"), ("h100:8x128", "h100-1024"), ("h100:8x2048", "h100-16384")],
        *[("h200:8", "h200-8"), ("h200:8x8", "h200-64"), ("h200:8x128", "h200-1024"), ("h100:8", "H100-8")],
    ],
)
def test_a_shipped_name_of_nodes_is_the_same_machine(text: str, name: str) -> None:
    assert load_cluster(name) == load_cluster(text)


def test_every_shipped_cluster_is_nodes_of_a_kind_or_says_whose_numbers_it_has() -> None:
    for name in shipped("clusters"):
        cluster = load_cluster(name)
        papers = name.startswith(("a100-", "amp-", "autopipe-", "h3t-", "rtx-titan-"))
        assert bool(cluster.paper) == papers and (cluster.paper in cluster.whose_numbers)
        assert papers or name == "cpu-4" or cluster == load_cluster(cluster.name)
    assert load_cluster("h100:8x8").whose_numbers == ""


def test_a_file_may_be_another_name_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("same_as: a100:8x4\n")
    assert load_cluster(str(path)) == load_cluster("a100:8x4")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *[
            ("a800", "a800"),
            ("A800-SXM4-80GB", "a800"),
            ("A800 80G SXM", "a800"),
            ("A800 40GB", "a800-40gb"),
            ("A800 PCIe 80GB", "a800-pcie"),
        ],
        *[("h800", "h800"), ("H800 SXM", "h800"), ("H800 PCIe", "h800-pcie"), ("5090", "rtx5090"), ("RTX 5090", "rtx5090")],
        *[("b100", "b100"), ("Tesla P100", "p100"), ("P100 PCIe", "p100-pcie"), ("mi210", "mi210"), ("MI210", "mi210")],
    ],
)
def test_names_that_people_type_for_newer_sheets(text: str, name: str) -> None:
    """Names are those of clusters and of rows of measured runs."""
    assert kind_named(text) == name
    assert likely_kind(text) == (name, False)


def plain_roofline_ns(operator: Operator, kind: DeviceKind, dtype: Any, element_bytes: int, backward: bool) -> float:
    """A roofline with one efficiency and one half size for all products, and the whole bandwidth of the memory."""
    work, sizes = operator.backward if backward else 1.0, (operator.m, operator.n, operator.k)
    if not operator.m:
        return max(kind.kernel_ns, operator.touched_bytes * work / kind.memory_bytes_per_s * 1e9)
    share = kind.efficiency * prod(size / (size + kind.half_size) for size in sizes)
    m, n, k = sizes
    moved = (m * k + k * n + m * n) * operator.count * element_bytes * work / kind.memory_bytes_per_s * 1e9
    return max((1 + backward) * kind.kernel_ns, operator.flops * work / (kind.flops_per_s[dtype] * share) * 1e9, moved)


@pytest.mark.parametrize("name", [name for name in shipped("clusters") if not load_cluster(name).kinds[0].efficiencies])
def test_clusters_in_files_are_estimated_as_ever(name: str) -> None:
    for kind in load_cluster(name).used_kinds:
        for model in (load_model(entry, None, "float16") for entry in ("gpt2", "llama3-8b", "t5-512-4-32", "swin-huge-32")):
            operators = {operator for part in model.sublayers.values() for operator in part.operators(2, 1)}
            for operator in operators:
                for backward in (False, True):
                    expected = plain_roofline_ns(operator, kind, "float16", 2, backward)
                    assert operator_ns(operator, kind, "float16", 2, backward) == pytest.approx(expected, rel=1e-12)


def test_ports_may_be_others() -> None:
    """The link is of an A100 with one port of 100 Gb/s a node, the network of Galvatron-BMW's cluster."""
    made = cluster_of_nodes("a100-40gb:8x2,network=100Gb/s,rails=1", assumed())
    assert made.network == load_cluster("a100-16").network
    assert made.name == "a100-40gb:8x2,network=100Gb/s,rails=1" and load_cluster(made.name).name == made.name
    four = cluster_of_nodes("a100:8x2,network=12.5GB/s,rails=4,host=1TiB", assumed())
    assert four.network.link((0, 8)).bandwidth_bytes_per_s == 4 * 12.5e9 / 8
    assert four.nodes[0].host is not None and four.nodes[0].host.memory_bytes == 2**40


def test_domains_of_72() -> None:
    rack = cluster_of_nodes("gb200:72x8", assumed())
    assert rack.devices == 576
    assert rack.network.link((0, 71)).bandwidth_bytes_per_s == rack.network.link(range(72)).bandwidth_bytes_per_s == 720e9
    assert rack.network.link((71, 72)).bandwidth_bytes_per_s == 50e9
    assert rack.network.link(range(576)).bandwidth_bytes_per_s == 720e9, "72 ports carry more than NVLink feeds them"
    part = cluster_of_nodes("gb200:64", assumed())
    assert part.network.link(range(64)).bandwidth_bytes_per_s == 720e9
    host, whole = part.nodes[0].host, rack.nodes[0].host
    assert host is not None and whole is not None and host.memory_bytes == whole.memory_bytes * 64 // 72


def test_pairs_are_joined_by_bridges_and_others_by_pcie() -> None:
    cluster = cluster_of_nodes("h100-nvl:8x2", assumed())
    rates = [cluster.network.link(group).bandwidth_bytes_per_s for group in ((0, 1), (1, 2), range(8))]
    assert rates[0] == 240e9 and rates[1] == rates[2] == pytest.approx(0.635 * 63e9, rel=0.01)
    assert load_cluster("h100-pcie:8").network.link((0, 1)).bandwidth_bytes_per_s == rates[1], "bridges are sold apart"


def test_a_group_in_a_mesh_has_a_link_for_each_other_member() -> None:
    network = cluster_of_nodes("mi300x:8x2", assumed()).network
    for group in ((0, 1), (0, 7), (1, 3, 6), (0, 2, 4, 6), tuple(range(7)), tuple(range(8))):
        assert network.link(group).bandwidth_bytes_per_s == pytest.approx(0.75 * 64e9 * (len(group) - 1), rel=1e-9)
    assert network.link((0, 8)).bandwidth_bytes_per_s == 50e9
    four = cluster_of_nodes("mi300x:4", assumed()).network
    assert four.link(range(4)).bandwidth_bytes_per_s == pytest.approx(0.75 * 64e9 * 3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-80GB-SXM", "a100"),
        ("A100-40GB-SXM", "a100-40gb"),
        ("A100-PCIe-80GB", "a100-pcie"),
        ("H100-80GB-SXM", "h100"),
        ("H100-96GB-500W", "h100-96gb"),
        ("H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("B200-SXM-180GB", "b200"),
        ("B200-192GB", "b200"),
        ("GB200-192GB-NVL72", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GeForce RTX 4090", "rtx4090"),
        ("V100-SXM2-32GB", "v100-32gb"),
        ("Tesla T4", "t4"),
    ],
)
def test_kinds_are_known_by_the_words_of_their_names(text: str, name: str) -> None:
    assert kind_named(text) == name


HOSTILE: list[tuple[str, tuple[Any, ...], str | None]] = [
    ("h100:", ("cluster", "'h100:'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:8x", ("cluster", "'h100:8x'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:x8", ("cluster", "'h100:x8'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:-8", ("cluster", "'h100:-8'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:8x8x8", ("cluster", "'h100:8x8x8'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:8.0", ("cluster", "'h100:8.0'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:٨", ("cluster", "'h100:٨'", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:" + "9" * 5000, ("cluster", re.compile("h100:9+"), ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:8\nx2", ("cluster", r"h100:8\nx2", ("KIND:DEVICES", "KIND:DEVICESxNODES")), "h100:8x16"),
    ("h100:0", ("cluster", "0 devices", (1, 8)), "h100:1"),
    ("h100:16", ("cluster", "16 devices", (1, 8)), "h100:8x2"),
    ("gb200:73", ("cluster", "73 devices", (1, 72)), "gb200:72x2"),
    ("l40s:17", ("cluster", "17 devices", (1, 16)), "l40s:16x2"),
    ("h100-nvl:3", ("cluster", "3 devices", 2), "h100-nvl:8"),
    ("h100:8x0", ("cluster", "0 nodes", (1, 131072)), None),
    ("h100:8x999999", ("cluster", "999999 nodes", (1, 131072)), None),
    ("h10:8", ("cluster", "'h10'", ("'h100'", "`trainplan cluster kinds`")), None),
    ("sxm:8", ("cluster", ("'sxm'", 14), ("a100", "v100-32gb")), None),
    (":8", ("cluster", "''", "`trainplan cluster kinds`"), None),
    ("h100:8,netwrk=200Gb/s", ("cluster", "netwrk=200Gb/s", "'network='"), None),
    ("h100:8,network", ("cluster", "'network'", "'network='"), None),
    ("h100:8,", ("cluster", "''", ("network=", "rails=", "host=")), None),
    ("h100:8,network=200", ("cluster network", "'200'", ("200Gb/s", "25GB/s")), None),
    ("h100:8,network=0Gb/s", ("cluster network", "'0Gb/s'", ("200Gb/s", "25GB/s")), None),
    ("h100:8,network=-1Gb/s", ("cluster network", "'-1Gb/s'", ("200Gb/s", "25GB/s")), None),
    ("h100:8,network=1e999Gb/s", ("cluster network", "'1e999Gb/s'", ("200Gb/s", "25GB/s")), None),
    ("h100:8,rails=0", ("cluster rails", "'0'", 8), None),
    ("h100:8,rails=" + "9" * 30, ("cluster rails", "9" * 30, 8), None),
    ("h100:8,host=12", ("cluster host", "'12'", ("8GiB", "500MB")), None),
    ("h100:8,host=0GiB", ("cluster host", "0GiB", ("1024TiB", "1TiB")), None),
    ("h100:8,host=2000TiB", ("cluster host", "2000TiB", ("1024TiB", "1TiB")), None),
    ("h100:8x2,network=999999999Tb/s", ("cluster network", "'999999999Tb/s'", ("200Gb/s", "25GB/s")), None),
    ("h100:8,host=1TiB,host=1TiB", ("cluster", "host"), None),
    ("h100", ("cluster", "'h100'", ("h100:8", "`plan --devices any`")), "h100:8x16"),
    ("MI300X", ("cluster", "'MI300X'", ("mi300x:8", "`plan --devices any`")), "mi300x:8x16"),
]


@pytest.mark.parametrize(("text", "refusal", "works"), HOSTILE, ids=[text[:20] for text, _, _ in HOSTILE])
def test_hostile_names_get_one_line_with_one_that_works(text: str, refusal: tuple[Any, ...], works: str | None) -> None:
    error = refused_in_one_line(load_cluster, text, *refusal)
    assert error.argument is not None and len(str(error)) < 700
    if works is not None:
        assert stated(works, error.fix)
        load_cluster(works)


@given(st.text(max_size=30), st.sampled_from(["h100:", "h100:8,", "h100:8x2,network=", "h100:8,host=", ":", ""]))
def test_any_text_is_a_cluster_or_an_input_error(text: str, start: str) -> None:
    try:
        assert cluster_of_nodes(start + text).devices >= 1
    except InputError as error:
        assert len(str(error).splitlines()) == 1


def test_rates_are_in_bits_and_bytes() -> None:
    assert parse_rate("200Gb/s", "x") == parse_rate("200 Gbps", "x") == parse_rate("25GB/s", "x") == 25e9
    assert parse_rate("1.6Tb/s", "x") == 200e9 and parse_rate("800 Mbit/s", "x") == 100e6


def test_the_reserve_is_by_the_rule_of_the_shipped_clusters() -> None:
    """Memory that torch does not see is 0.5 GiB, four times 0.67 GiB and 2 %: of an H100 6 GiB, of an H200 8."""
    reserves = {name: device_kind(name, assumed()).reserve_bytes / GIB for name in ("h100", "h200", "a100", "t4")}
    assert reserves == {"h100": 6, "h200": 8, "a100": 6, "t4": 2}


def test_fitted_efficiencies_go_to_the_nearest_kinds() -> None:
    table = fitted(assumed(), "a100", 0.6, "bfloat16")

    def product(name: str, precision: Any = "bfloat16") -> Any:
        return device_kind(name, table).reached("matrix-product", precision)

    a100 = product("a100")
    assert (a100.value, a100.half_size, a100.error, a100.origin_for(sheet("a100").name)) == (0.6, 100, 0.07, "fitted")
    sibling, other = product("a100-40gb"), product("h100")
    assert (sibling.value, sibling.error) == (0.6, round(0.07 + SAME_ARCHITECTURE_ERROR, 4))
    assert other.origin == "assumed", "its own assumed one goes before those of other architectures"
    alone = EfficiencyTable(kernels=[kernel for kernel in table.kernels if kernel.device != "h100"], links=table.links)
    other = device_kind("h100", alone).reached("matrix-product", "bfloat16")
    assert other is not None and (other.value, other.error) == (0.6, round(0.07 + OTHER_ERROR, 4))
    assert other.origin_for(sheet("h100").name) == "fitted, of A100-SXM4 80 GB"
    half = product("a100", "float16")
    assert (half.value, half.origin) == (0.6, "fitted"), "float16 runs at the rate of bfloat16"
    table = fitted(table, "h100", 0.5, "bfloat16")
    assert product("h100", "float8").origin == "assumed", "a fit is of one rate"
    assert [product(name).value for name in ("h100", "h200", "a100", "a100-40gb")] == [0.5, 0.5, 0.6, 0.6]


def test_less_power_is_slower_by_the_cube_root() -> None:
    table = fitted(assumed(), "h100", 0.7, "bfloat16")
    held = device_kind("h100-96gb", table).reached("matrix-product", "bfloat16")
    assert held is not None and held.value == pytest.approx(0.7 * (500 / 700) ** (1 / 3), abs=1e-4)
    assert held.origin_for("H100-SXM5 96 GB 500 W") == "fitted, of H100-SXM5 80 GB, less for its power"
    more = device_kind("gb200", fitted(assumed(), "b200", 0.7, "bfloat16")).reached("matrix-product", "bfloat16")
    assert more is not None and more.value == 0.7, "more power for each FLOP/s is no faster"


def test_no_kind_reaches_more_than_its_vendor_does() -> None:
    table = assumed()
    table = table.changed(
        kernels=[kernel for kernel in table.kernels if kernel.device != "mi300x"]
    )  # as if nothing was stated about it
    for name in ("mi300x", "mi325x"):
        capped = device_kind(name, fitted(table, "h100", 0.8, "bfloat16")).reached("matrix-product", "bfloat16")
        assert capped is not None and capped.value == pytest.approx(708 / 1307.4, abs=1e-4) and capped.limited_by == "vendor"
    freely = device_kind("mi300x", fitted(assumed(), "mi300x", 0.6, "bfloat16")).reached("matrix-product", "bfloat16")
    assert freely is not None and freely.value == 0.6, "what is measured of it counts"


def test_a_table_written_by_a_fit_reads_back(tmp_path: Path) -> None:
    """Fits are written as data, row by row, with their runs and residuals."""
    table = fitted(fitted(assumed(), "a100", 0.6, "bfloat16"), "h100", 0.8, None, "memory")
    path = tmp_path / "efficiencies.yaml"
    path.write_text(yaml_text(table.model_dump(mode="json", exclude_defaults=True, exclude_none=True)))
    assert parse(path, EfficiencyTable) == table
    streams = device_kind("gb300", table).reached("memory", "bfloat16")
    assert streams is not None and (streams.value, streams.precision) == (0.8, None)


def test_a_table_says_where_each_number_is_from() -> None:
    good = fitted(assumed(), "a100", 0.6, "bfloat16").model_dump(mode="json")
    *others, last = good["kernels"]
    for kernels, reported in (
        ([*others, last, last], ("kernels[21]", "a100")),
        ([*others, last | {"rows": []}], ("kernels[20].residuals", (1, 0))),
        ([*others, last | {"rows": [], "residuals": []}], ("kernels[20].rows", "date")),
        ([*others, last | {"date": "yesterday"}], ("kernels[20].date", "yesterday", r"\d{4}-\d{2}-\d{2}")),
        ([*others, last | {"origin": "assumed"}], ("kernels[20].source",)),
        ([*others, last | {"value": 1.2}], ("kernels[20].value", 1.2, 1.0)),
        ([*others, last | {"residuals": [float("inf")]}], ("kernels[20].residuals[0]", "inf")),
        ([*others, last | {"kernel": "softmax"}], ("kernels[20].kernel", "softmax", ("matrix-product", "attention", "memory"))),
    ):
        refused_in_one_line(lambda value: parse(value, EfficiencyTable), good | {"kernels": kernels}, *reported)
    links = [*good["links"], good["links"][0]]
    refused_in_one_line(lambda value: parse(value, EfficiencyTable), good | {"links": links}, "links[15].level", "nvlink-1")
    assert {link.level for link in shipped_efficiencies().links} == set(get_args(Level))
    assert all(fit.device in NAMES for fit in shipped_efficiencies().kernels)


def with_efficiencies(*efficiencies: dict[str, Any]) -> DeviceKind:
    """A device of round numbers: 1e12 FLOP/s and 1e10 bytes a second; without efficiencies all of them."""
    defaults = {"error": 0.1, "origin": "assumed", "device": "here"}
    kind = {
        "name": "here",
        "memory_bytes": 2**30,
        "flops_per_s": {"bfloat16": 1e12, "float8": 2e12},
        "memory_bytes_per_s": 1e10,
    }
    kind |= {
        "efficiency": 1.0,
        "half_size": 0,
        "kernel_ns": 10,
        "efficiencies": [defaults | efficiency for efficiency in efficiencies],
    }
    return parse(kind, DeviceKind)


def test_each_class_of_kernels_has_its_efficiency() -> None:
    product, stream = Operator(m=1000, n=2000, k=500), Operator(touched_bytes=10**6)
    scores = Operator(m=512, n=1024, k=64, count=8, backward=2.5, core="scores")
    values = Operator(m=512, n=64, k=1024, count=8, backward=2.5, core="values")
    plain = with_efficiencies()
    assert operator_ns(product, plain, "bfloat16", 2) == 2 * 10**9 / 1e12 * 1e9
    assert operator_ns(product, plain, "float8", 1) == 10**9 / 1e12 * 1e9
    assert operator_ns(stream, plain, "bfloat16", 2) == 1e5
    assert operator_ns(Operator(touched_bytes=1), plain, "bfloat16", 2) == 10, "a launch"
    kind = with_efficiencies(
        {"kernel": "matrix-product", "precision": "bfloat16", "value": 0.5, "half_size": 500},
        {"kernel": "matrix-product", "value": 0.25},
        {"kernel": "attention", "precision": "bfloat16", "value": 0.4, "half_size": 512},
        {"kernel": "memory", "value": 0.8},
    )
    share = 0.5 * (1000 / 1500) * (2000 / 2500) * (500 / 1000)
    assert operator_ns(product, kind, "bfloat16", 2) == pytest.approx(2e6 / share)
    assert operator_ns(product, kind, "float8", 1) == pytest.approx(1e6 / 0.25)
    assert operator_ns(stream, kind, "bfloat16", 2) == pytest.approx(1e5 / 0.8)
    flops, share = 2 * 8 * 512 * 1024 * 64, 0.4 * (512 / 1024) * (1024 / 1536)
    for core in (scores, values):
        assert operator_ns(core, kind, "bfloat16", 2) == pytest.approx(flops / share / 1e12 * 1e9)
        assert operator_ns(core, kind, "bfloat16", 2, backward=True) == pytest.approx(2.5 * flops / share / 1e12 * 1e9)
        assert operator_ns(core, kind, "float8", 1) == pytest.approx(max(flops / 0.5e12, 8 * 622592 / 8e9) * 1e9)
    short = Operator(m=1, n=65536, k=128, core="scores")
    moved = (1 + 65536) * 128 * 2 / 0.8e10 * 1e9
    assert operator_ns(short, kind, "bfloat16", 2) == pytest.approx(
        max(moved, 2 * 65536 * 128 / (0.4 / 513 * 65536 / 66048 * 1e12) * 1e9)
    )


@given(st.sampled_from(NAMES), st.integers(1, 2**14), st.integers(1, 2**14), st.integers(1, 2**14))
def test_larger_matrices_are_no_less_efficient(name: str, m: int, n: int, k: int) -> None:
    kind = load_cluster(f"{name}:1").kinds[0]
    precision = "bfloat16" if "bfloat16" in kind.flops_per_s else "float16"
    for larger in (Operator(m=2 * m, n=n, k=k), Operator(m=m, n=2 * n, k=k), Operator(m=m, n=n, k=2 * k)):
        small, large = operator_ns(Operator(m=m, n=n, k=k), kind, precision, 2), operator_ns(larger, kind, precision, 2)
        assert small <= large * (1 + 1e-9) and large <= 2 * small * (1 + 1e-9)
        assert larger.flops / large * 1e9 < kind.flops_per_s[precision]


def test_names_that_the_shell_completes_load() -> None:
    names = completions()
    assert {"h100:8", "h100:8x16", "gb200:72x8"} <= set(names)
    assert all(load_cluster(name).name == name for name in names)
    assert not any(re.search(r"\s", name) for name in names)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        *(("64xH100", "h100:8x8"), ("64 h100", "h100:8x8"), ("64 x H100", "h100:8x8"), ("h100x64", "h100:8x8")),
        *(("8x8 h100", "h100:8x8"), ("4x16xA100-80GB", "a100:4x16"), ("b200-64", "b200:8x8"), ("4x a100-40gb", "a100-40gb:4")),
        *(("72xGB200", "gb200:72"), ("144 gb200", "gb200:72x2"), ("8 H100", "h100:8"), ("1xh200", "h200:1")),
        *(("h100-8", "h100:8"), ("amp-heterogeneous-17", None), ("h100-65", None), ("runs/64xh100.yaml", None), ("h100", None)),
    ],
)
def test_clusters_by_their_number_of_devices(text: str, nodes: str | None) -> None:
    assert counted_devices(text) == nodes
    if nodes is not None:
        assert load_cluster(text).nodes == load_cluster(nodes).nodes


def test_a_number_of_devices_that_fills_no_whole_nodes_is_refused() -> None:
    with refused("cluster", problem=("12xh100", 8), fix=("h100:6x2", "8xh100")):
        load_cluster("12xh100")
    with refused("cluster", problem="h1000", fix="h100"):
        load_cluster("64xH1000")
