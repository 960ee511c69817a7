"""Cluster files: what is shipped, which link a group gets, and one line for every fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.profiling.base.files import parse, read_data
from trainplan.profiling.base.yaml_files import yaml_text
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.network import Island, Link, Network
from trainplan.profiling.shipped import shipped

from tests.helpers.refusals import refused

SHIPPED: dict[str, tuple[int, list[str]]] = {
    "a100-16": (16, ["A100-SXM4 40 GB"]),
    "a100-64": (64, ["A100-SXM4 40 GB"]),
    "amp-heterogeneous-16": (16, ["Tesla V100-SXM2 16 GB", "Tesla T4"]),
    "amp-homogeneous-16": (16, ["Tesla T4"]),
    "amp-p3-16": (16, ["Tesla V100-SXM2 16 GB"]),
    "autopipe-3090-16": (16, ["GeForce RTX 3090"]),
    "cpu-4": (4, ["CPU process"]),
    "h100-1024": (1024, ["H100-SXM5 80 GB"]),
    "h100-16384": (16384, ["H100-SXM5 80 GB"]),
    "h100-64": (64, ["H100-SXM5 80 GB"]),
    "h100-8": (8, ["H100-SXM5 80 GB"]),
    "h200-1024": (1024, ["H200-SXM5 141 GB"]),
    "h200-64": (64, ["H200-SXM5 141 GB"]),
    "h200-8": (8, ["H200-SXM5 141 GB"]),
    "h3t-2080ti-8": (8, ["GeForce RTX 2080 Ti"]),
    "h3t-a100-64": (64, ["A100-SXM4 40 GB"]),
    "h3t-a100-8": (8, ["A100-SXM4 40 GB"]),
    "rtx-titan-16": (16, ["TITAN RTX 24 GB"]),
    "rtx-titan-8": (8, ["TITAN RTX 24 GB"]),
}

MIXED: dict[str, Any] = load_cluster("amp-heterogeneous-16").model_dump(mode="json", exclude_none=True)


def changed(**changes: Any) -> dict[str, Any]:
    """The mixed cluster with other values at dotted paths; None takes a field away."""
    value = json.loads(json.dumps(MIXED))
    for path, new in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        node = value
        for part in way:
            node = node[part]
        if new is None:
            del node[last]
        else:
            node[last] = new
    return value


def with_matrix(size: int = 16, **matrix: Any) -> dict[str, Any]:
    value = changed(islands=None, nodes__0__islands=None, nodes__1__islands=None)
    rows = [[1e9 if i // 4 == j // 4 else 1e8 for j in range(size)] for i in range(size)]
    return value | {"matrix": {"bandwidth_bytes_per_s": rows} | matrix}


def refused_in_one_line(path: Path, *refusal: Any) -> None:
    """Load a file of a cluster, which is refused for a field and with facts, as `refused` takes them."""
    with refused(*refusal, where=path) as caught:
        load_cluster(path)
    assert len(str(caught.value).splitlines()) == 1


def test_all_clusters_are_listed() -> None:
    assert shipped("clusters") == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_clusters(name: str) -> None:
    cluster = load_cluster(name)
    assert (cluster.devices, [kind.name for kind in cluster.used_kinds]) == SHIPPED[name]
    assert cluster.source
    assert cluster.network.reaches(cluster.devices)
    for kind in cluster.used_kinds:
        assert "float32" in kind.flops_per_s
        assert kind.flops_per_s.get("float16", 1e18) >= kind.flops_per_s["float32"] or kind.name == "CPU process"
    for older in ("TITAN", "2080", "T4", "V100"):
        assert all("bfloat16" not in kind.flops_per_s for kind in cluster.used_kinds if older in kind.name)


@pytest.mark.parametrize(
    ("name", "group", "bandwidth_bytes_per_s"),
    [
        ("rtx-titan-8", (0, 1), 3.77e9),
        ("rtx-titan-8", (0, 1, 2, 3), 4.63e9),
        ("rtx-titan-8", range(8), 4.87e9),
        ("rtx-titan-16", (8, 9), 3.77e9),
        ("rtx-titan-16", (7, 8), 12.5e9 / 8),
        ("rtx-titan-16", range(16), 4.87e9),
        ("a100-16", (1, 7), 230e9),
        ("a100-16", (7, 8), 12.5e9 / 8),
        ("a100-16", range(16), 12.5e9),
        ("a100-64", range(0, 64, 8), 12.5e9 / 8),
        ("a100-64", (0, 1, 8, 9), 12.5e9 / 4),
        ("h3t-2080ti-8", range(8), 15.8e9),
        ("amp-homogeneous-16", (0, 4), 6.25e9),
        ("amp-heterogeneous-16", (4, 5, 6, 7), 21.25e9),
        ("amp-heterogeneous-16", (12, 15), 6.25e9),
        ("amp-heterogeneous-16", (11, 12), 1.25e9),
        ("amp-p3-16", (12, 15), 21.25e9),
    ],
)
def test_slowest_links(name: str, group: tuple[int, ...], bandwidth_bytes_per_s: float) -> None:
    assert load_cluster(name).network.link(group).bandwidth_bytes_per_s == bandwidth_bytes_per_s


def test_titan_links_are_the_published_times() -> None:
    """ms per MiB of ring traffic of groups of neighbours, from the code of Galvatron's authors."""
    network = load_cluster("rtx-titan-8").network
    for size, ms_per_mib in ((2, 0.277994792), (4, 0.226519097), (8, 0.21530878)):
        assert network.link(range(size)).bandwidth_bytes_per_s == pytest.approx(2**20 / (ms_per_mib / 1e3), rel=2e-3)


def test_a_mixed_cluster_knows_each_device() -> None:
    cluster = load_cluster("amp-heterogeneous-16")
    assert cluster.device_kinds == ["Tesla V100-SXM2 16 GB"] * 12 + ["Tesla T4"] * 4
    assert cluster.nodes[-1].host != cluster.nodes[0].host


def test_matrix_gives_the_slowest_pair_of_the_group() -> None:
    cluster = parse(with_matrix(latency_ns=7), Cluster)
    assert cluster.network.link((4, 7)) == Link(bandwidth_bytes_per_s=1e9, latency_ns=7)
    assert cluster.network.link((3, 4, 5)).bandwidth_bytes_per_s == 1e8


@pytest.mark.parametrize("name", SHIPPED)
def test_yaml_and_json_are_equal(name: str, tmp_path: Path) -> None:
    cluster = load_cluster(name)
    (tmp_path / "a.json").write_text(cluster.model_dump_json())
    (tmp_path / "a.yaml").write_text(yaml_text(cluster.model_dump(mode="json")))
    (tmp_path / "b.YML").write_text(cluster.model_dump_json())
    assert load_cluster(tmp_path / "a.json") == load_cluster(tmp_path / "a.yaml") == load_cluster(tmp_path / "b.YML") == cluster


def test_links_of_8192_devices_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    holds: Callable[[Island, int, int], bool] = Island.holds

    def counted(island: Island, lowest: int, highest: int) -> bool:
        nonlocal calls
        calls += 1
        return holds(island, lowest, highest)

    monkeypatch.setattr(Island, "holds", counted)
    islands = [{"devices": n, "bandwidth_bytes_per_s": 1e12 / n} for n in (8, 256, 8192)]
    network = parse({"islands": islands}, Network)
    for _ in range(10):
        for start in range(0, 8192, 8):
            assert network.link(range(start, start + 8)).bandwidth_bytes_per_s == 1.25e11
    assert network.link((0, 8191)).bandwidth_bytes_per_s == 1e12 / 8192
    assert calls <= 3 * (1024 + 1)


FAULTS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    (changed(name=None), ("name",)),
    (changed(devices=16), ("devices",)),
    (
        changed(kinds__0__memory_bytes=1.6e10),
        ("kinds[0].memory_bytes", 16000000000.0, 16000000000),
    ),
    (changed(kinds__0__memory_bytes="16GiB"), ("kinds[0].memory_bytes", "16GiB", 17179869184)),
    (changed(kinds__0__memory_bytes=-1), ("kinds[0].memory_bytes", -1, 0)),
    (changed(kinds__1__flops_per_s={"fp8": 1e12}), ("kinds[1].flops_per_s.fp8", "fp8", ("bfloat16", "float8"))),
    (changed(kinds__1__flops_per_s=1e12), ("kinds[1].flops_per_s", 1000000000000.0, "{...}")),
    (changed(kinds__0__efficiency=1.5), ("kinds[0].efficiency", 1.5, 1.0)),
    (changed(kinds__1__name="Tesla V100-SXM2 16 GB"), ("kinds", ("Tesla V100-SXM2 16 GB", "twice"))),
    (changed(nodes=[]), ("nodes", "[]", 1)),
    (changed(nodes__1__kind="T40"), ("nodes[1].kind", "T40", ("Tesla V100-SXM2 16 GB", "Tesla T4"))),
    (changed(nodes__0__devices=True), ("nodes[0].devices", "true", 1000)),
    (changed(nodes__0__host__shares_bus="no"), ("nodes[0].host.shares_bus", "no", ("true", "false"))),
    (changed(nodes__0__host__link=12), ("nodes[0].host.link", 12, "{...}")),
    (changed(nodes__0__islands=None), ("nodes[0].islands", (), 4)),
    (changed(islands=None), ("islands", (), 16)),
    (changed(islands__0__devices=8), ("islands[0].devices", 8, 16)),
    (changed(islands__0__bandwidth_bytes_per_s=0), ("islands[0].bandwidth_bytes_per_s", 0, 1.0)),
    (
        changed(islands__0__operation="gather"),
        ("islands[0].operation", "gather", ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "p2p")),
    ),
    (changed(algorithm="nccl"), ("algorithm", "nccl", ("ring", "tree", "fastest"))),
    (changed(overlap_slowdown=0.5), ("overlap_slowdown", 0.5, 1.0)),
    (with_matrix(12), ("matrix.bandwidth_bytes_per_s", 12, 16)),
    (with_matrix(latencies_ns=[[0] * 16] * 15), ("matrix.latencies_ns", 15, 16)),
    (with_matrix(bandwidth_bytes_per_s=[[0.0] * 16] * 16), ("matrix.bandwidth_bytes_per_s[0][1]", 0.0, 1)),
    (with_matrix() | {"islands": MIXED["islands"]}, ("matrix", "islands")),
]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize(("value", "refusal"), FAULTS, ids=[refusal[0] for _, refusal in FAULTS])
def test_faults_of_values(value: dict[str, Any], refusal: tuple[Any, ...], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"cluster.{suffix}"
    text = json.dumps(value)
    path.write_text(text if suffix == "json" else yaml.safe_dump(json.loads(text)))
    refused_in_one_line(path, *refusal)


BROKEN_YAML: list[tuple[str, tuple[Any, ...]]] = [
    ("", ("", "empty", "YAML")),
    ("# nothing\n", ("", "null", "YAML")),
    ("- 1\n", ("", "[1]", "YAML")),
    ("name: &a x\n", ("line 1 column 7", ("anchor", "&"))),
    ("a: [x]\nb: *a\n", ("line 2 column 4", ("alias", "*"))),
    ("name: !!python/name:os.system ''\n", ("line 1 column 7", "tag:yaml.org,2002:python/name:os.system")),
    ("name: x\n---\nname: y\n", ("line 2 column 1", "document")),
    ("name: x\n8: y\n", ("line 2 column 1", "key 8", "text")),
    ("name: x\nname: y\n", ("line 2 column 1", ("'name'", "twice"))),
    ("name: x\nkinds: [{name: y\n", ("line 3 column 1", "'}'")),
    ("name: x\n\tkinds: y\n", ("line 2 column 1", "tab", "spaces")),
    ("name: x: y\n", ("line 1 column 8", "YAML", "YAML")),
    ("name: \x07\n", ("", "#x0007", "control")),
    ("name: " + "[" * 1000, ("", "deeply")),
    ("name: " + "9" * 5000, ("line 1 column 7", "digits", 18)),
]


@pytest.mark.parametrize(("text", "refusal"), BROKEN_YAML, ids=[text[:20] for text, _ in BROKEN_YAML])
def test_faults_of_yaml(text: str, refusal: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    refused_in_one_line(path, *refusal)


def test_a_billion_laughs_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "laughs.yaml"
    path.write_text("a0: &a0 ha\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)))
    refused_in_one_line(path, "line 1 column 5", "anchor")


def test_long_texts_cost_their_length(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    text = "9" * 1_000_000 + "x"
    path.write_text(f"a: {text}\n")
    assert read_data(path) == {"a": text}


def test_yaml_reads_as_people_mean_it(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        "a: 1e10\nb: 1.5E-3\nc: 2026-01-31\nd: no\ne: 12:30\nf: '1e3'\ng: -7\nh:\ni: .5\nj: true\nk: 0x1F\nl: .inf\n"
    )
    expected = {"a": 1e10, "b": 0.0015, "c": "2026-01-31", "d": "no", "e": "12:30", "f": "1e3", "g": -7, "h": None, "i": 0.5}
    assert read_data(path) == expected | {"j": True, "k": "0x1F", "l": float("inf")}


def test_yaml_reads_back_what_it_wrote(tmp_path: Path) -> None:
    texts = [
        "1e9",
        "+1e5",
        "1.e5",
        ".5",
        "7",
        "yes",
        "null",
        "~",
        "",
        "2026-01-31",
        "12:30",
        "a: b",
        "# x",
        "=",
        "<<",
        "\x07 é ",
        "a\n\nb",
    ]
    value = {
        "texts": texts,
        "numbers": [0, -1, 1e10, 2e30, 0.1, 1e-9, 2.0**60],
        "None": None,
        "1": True,
        "rows": [[1.0, 2.0]] * 2,
    }
    (tmp_path / "a.yaml").write_text(yaml_text(value), encoding="utf-8")
    assert read_data(tmp_path / "a.yaml") == value
