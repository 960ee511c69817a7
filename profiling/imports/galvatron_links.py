"""Hetu-Galvatron's hardware files (https://github.com/PKU-DAIR/Hetu-Galvatron, core/profiler/hardware_profiler.py) as islands.

`allreduce_size_<n>_consec_<c>` is the bus bandwidth of nccl-tests in GB/s, 2 (n-1)/n M / t, which trainplan calls a ring's
bandwidth. Groups are consecutive, or consist of every (world / n)-th device. `pp_size_<n>` is that of sendrecv_perf, around a
ring of every (world / n)-th device. `allreduce_` and `all2all_size_<n>_<s>MB_time` are milliseconds for s MiB of one rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from trainplan.profiling.base.lines import fitted_link
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.network import Operation
from trainplan.profiling.costs import PHASES
from trainplan.profiling.imports.source import LARGEST_COUNT, MIB, MOST_MS, SMALLEST, Source, counted, number

ALL_REDUCE = re.compile(r"allreduce_size_(?P<ranks>\d+)_consec_(?P<consecutive>[01])")
P2P = re.compile(r"pp_size_(?P<ranks>\d+)")
TIMES = re.compile(r"(?P<operation>allreduce|all2all)_size_(?P<ranks>\d+)_(?P<mib>\d+)MB_time")
EXAMPLES = {ALL_REDUCE: "allreduce_size_8_consec_1", P2P: "pp_size_2", TIMES: "allreduce_size_8_64MB_time"}
NODES = re.compile(r"_(\d+)nodes_(\d+)gpus_per_node")
OPERATIONS: dict[str, Operation] = {"allreduce": "all-reduce", "all2all": "all-to-all"}

GIGA = 1e9
MOST_GB_PER_S = 1e5

Islands = list[dict[str, Any]]


def islands(files: dict[str, Source], cluster: Cluster | None) -> tuple[Islands, int]:
    """Read Galvatron's hardware files. Returns the islands (groups of devices with the measured link) and the number of
    devices.

    files: files by kind, any of `allreduce`, `p2p` and `sp_time`. cluster: states the number of nodes if no file does; None
    if unknown. If there are measured times for a group size, a line fitted to them is used for all its collectives, instead
    of the bandwidth that nccl-tests reports, which is only a mean over message sizes. Raises InputError for invalid entries.
    """
    general: dict[int, dict[str, Any]] = {}
    world, nodes = 1, 1
    if "allreduce" in files:
        general, world, nodes = _all_reduces(files["allreduce"], cluster)
    fitted = _fits(files["sp_time"]) if "sp_time" in files else {}
    world = max([world, *(size for size, _ in fitted)])
    if "allreduce" in files and world not in general:
        problem = f"has groups of {world} devices, more than {files['allreduce'].path}"
        raise files["sp_time"].fail("", problem, "give files of one cluster")
    links: Islands = []
    for size in sorted(set(general) | {size for size, _ in fitted}):
        shared = {key: value for key, value in general.get(size, {}).items() if key in ("shared_by", "node_bytes_per_s")}
        for operation in PHASES:
            if (size, operation) in fitted:
                links.append({**shared, **fitted[size, operation], "devices": size, "operation": operation})
        if (size, "all-reduce") in fitted:
            links.append({**shared, **fitted[size, "all-reduce"], "devices": size})
        elif size in general:
            links.append({**general[size], "devices": size})
    if "p2p" in files and links:
        links += _point_to_point(files["p2p"], world, nodes, general)
    if not links:
        source = next(iter(files.values()))
        raise source.fail("", "comes without all-reduce bandwidths", "add allreduce_bandwidth_*.json")
    return sorted(links, key=lambda island: int(island["devices"])), world


def _all_reduces(source: Source, cluster: Cluster | None) -> tuple[dict[int, dict[str, Any]], int, int]:
    """Read Galvatron's file of all-reduce bandwidths. Returns the links by number of devices of a group, the number of all
    devices, and the number of nodes.

    Each link is a dict with the fields of an `Island` (a group of devices with its link) except for the number of devices.
    cluster: states the number of nodes if the file's name does not; None if unknown. Raises InputError for invalid entries.
    """
    consecutive: dict[int, float] = {}
    strided: dict[int, float] = {}
    for size, match, bandwidth in entries(source, ALL_REDUCE, MOST_GB_PER_S):
        (consecutive if match["consecutive"] == "1" else strided)[size] = GIGA * bandwidth
    if not consecutive:
        raise source.fail("", "has no consecutive groups", "add allreduce_size_<n>_consec_1")
    world = max(consecutive)
    if too_large := [size for size in strided if size >= world]:
        field = f"allreduce_size_{too_large[0]}_consec_0"
        raise source.fail(field, f"is of {too_large[0]} among {world} devices", "add the group of all devices")
    nodes = _nodes(source, world, cluster)
    node = world // nodes
    links: dict[int, dict[str, Any]] = {}
    for size, bandwidth in sorted(consecutive.items()):
        links[size] = {"bandwidth_bytes_per_s": bandwidth, "origin": "imported"}
        if size > node:
            links[size]["shared_by"] = node
    if nodes == 1:
        links[world] |= _middle([consecutive[world], *strided.values()], "bandwidth_bytes_per_s")
    elif strided:
        # The bandwidth of a node's network cards together, from groups that have different shares of the node's devices.
        parts = {size: max(1, size // nodes) / node for size in strided}
        shared = _middle([strided[size] / part for size, part in parts.items()], "node_bytes_per_s")
        predicted = [min(consecutive[world], shared["node_bytes_per_s"] * part) for part in parts.values()]
        error = max(abs(measured / expected - 1) for measured, expected in zip(strided.values(), predicted, strict=True))
        links[world] |= shared | {"error": round(error, 4)}
    return links, world, nodes


def _nodes(source: Source, world: int, cluster: Cluster | None) -> int:
    """The number of nodes over which `world` devices are spread: as the file's name states it, else as the cluster states it,
    else 1. Raises InputError if the name contradicts the number of devices.
    """
    if match := NODES.search(source.stem):
        nodes, per_node = int(match[1]), int(match[2])
        if nodes * per_node != world:
            problem = f"has groups of up to {world} devices, but is named for {nodes} x {per_node}"
            raise source.fail("", problem, "give the whole file, or name it for what it holds")
        return nodes
    if cluster is not None and cluster.devices == world:
        return sum(node.count for node in cluster.nodes)
    return 1


def _middle(bandwidths: Sequence[float], name: str) -> dict[str, Any]:
    """Represent several measured bandwidths by the one number for which the largest relative error of a time is least, and
    that error: ([2.0, 4.0], "x") -> {"x": 3.0, "error": 0.3333}.

    bandwidths: at least one. name: the key of the bandwidth in the result.
    """
    low, high = min(bandwidths), max(bandwidths)
    return {name: (low + high) / 2, "error": round((high - low) / (high + low), 4)}


def _point_to_point(source: Source, world: int, nodes: int, general: dict[int, dict[str, Any]]) -> Islands:
    """Build islands (groups of devices with their link) for messages between two devices, from Galvatron's file of sendrecv
    bandwidths.

    Within one node, each measured ring gives the link for devices at the ring's distance; over several nodes all rings
    measure the link between nodes. world: number of devices. nodes: number of nodes. general: the links of all-reduces, as
    dicts of fields of `Island`, by number of devices. Raises InputError for invalid entries.
    """
    rings = {}
    for size, match, bandwidth in entries(source, P2P, MOST_GB_PER_S):
        if world % size:
            raise source.fail(match[0], f"is of {size} among {world} devices", "give files of one cluster")
        rings[size] = GIGA * bandwidth
    common = {"operation": "p2p", "origin": "imported"}
    if nodes == 1:
        return [{**common, "devices": 2 * world // n, "bandwidth_bytes_per_s": rate} for n, rate in rings.items()]
    between = {**common, "devices": world, **_middle(list(rings.values()), "bandwidth_bytes_per_s")}
    # Not measured within a node; without it, messages there would count as if they left it.
    within = [size for size in general if size <= world // nodes]
    return [{**common, "devices": max(within), **general[max(within)]}, between] if within else [between]


def _fits(source: Source) -> dict[tuple[int, str], dict[str, Any]]:
    """Fit latency and bandwidth of one step of a ring to Galvatron's file of collectives' times, by a line of least relative
    squares. Returns them as dicts of fields of a link, by pairs of number of devices and name of the operation. Raises
    InputError for fewer than two message sizes."""
    points: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for size, match, ms in entries(source, TIMES, MOST_MS):
        operation, piece = OPERATIONS[match["operation"]], counted(source, match[0], match["mib"]) * MIB / size
        points.setdefault((size, operation), []).append((piece, ms / 1e3 / PHASES[operation] / (size - 1)))
    fitted: dict[tuple[int, str], dict[str, Any]] = {}
    for (size, name), pairs in points.items():
        if len(pairs) < 2:
            problem = f"has one message size for {name} of {size}"
            raise source.fail("", problem, "give two or more: latency and bandwidth are fitted to them")
        fitted[size, name] = fitted_link(pairs) | {"origin": "imported"}
    sizes = {size for size, _ in fitted}
    if missing := [size for size in sizes if (size, "all-reduce") not in fitted]:
        raise source.fail("", f"has no all-reduces of {missing[0]} devices", "add allreduce_size_<n>_<s>MB_time")
    return fitted


def entries(source: Source, pattern: re.Pattern[str], most: float) -> Iterator[tuple[int, re.Match[str], float]]:
    """Yield the entries of a hardware file of Galvatron: the number of devices of the group, the match of the key with the
    pattern, and the value.

    pattern: a regular expression for keys. most: the largest valid value. Raises InputError for other keys, group sizes and
    values.
    """
    for key, value in source.data.items():
        if (match := pattern.fullmatch(key)) is None:
            raise source.fail(key, "is not a key of this file", f"give keys such as {EXAMPLES[pattern]}")
        size = int(match["ranks"])
        if not 2 <= size <= LARGEST_COUNT or size & (size - 1):
            raise source.fail(key, f"is of {size} devices", f"give powers of two from 2 to {LARGEST_COUNT}")
        yield size, match, number(source, key, value, most, SMALLEST)
