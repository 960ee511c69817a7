"""Clusters named by their nodes: `h100:8x16` is 16 nodes of 8 H100, `h100:8` is one of these nodes.

The devices of a node are joined by NVLink or xGMI, or else by PCIe. Every device has its share of the node's network ports; a
ring over whole nodes uses all ports, as far as the links within the node can feed them.
"""

from __future__ import annotations

import re
from math import floor, log10

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.quantities import divisors, parse_bytes, parse_rate, plural
from trainplan.profiling.clusters.cluster import CORRECTED, Cluster, Host, Nodes
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, Level, shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.network import Island, Link
from trainplan.profiling.clusters.sheets import DeviceSheet, kind_named, sheet, sheets

OPTION, FORM = "--cluster", "KIND:DEVICES or KIND:DEVICESxNODES, such as h100:8x16"
MOST = 2**20  # devices of a cluster
WHOLE_NODE, MOST_ON_PCIE = 8, 16  # devices of a usual node, and the most of one without links that join them all
MOST_HOST_BYTES = 2**50
SETTINGS = ("network", "rails", "host")
COMPLETED_NODES = (1, 2, 4, 8, 16, 32, 64, 128)
# Time from message to message of a ring, assumed; NVLink and xGMI have theirs in the data sheets.
PCIE_NS, NETWORK_NS, NETWORK_OVER_PCIE_NS, HOST_NS = 20_000, 10_000, 30_000, 10_000


def names_nodes(text: str) -> bool:
    """Whether a text is meant as the name of a cluster by its nodes, such as `h100:8x16`, and not as a file: it begins with a
    word and a colon.
    """
    return re.match(r"[^/\\:]*:", text) is not None and not re.search(r"\.(ya?ml|json)$", text, re.IGNORECASE)


def counted_devices(text: str) -> str | None:
    """Convert a number of devices and a kind to the form `KIND:DEVICESxNODES`; None if the text has another form.

    `64xH100`, `64 h100`, `h100x64` and `h100-64` are 64 devices in whole nodes of the kind (`h100:8x8`); `8x8 h100` and
    `8x8xh100` are 8 nodes of 8 devices, in the order of `KIND:DEVICESxNODES`. Raises InputError if the devices do not fill
    whole nodes, or if there is no such kind.
    """
    folded = text.strip().lower()
    first = re.fullmatch(r"([0-9]{1,7})(?:\s*[x*]\s*([0-9]{1,7}))?(?:\s*[x*]\s*|\s+)([a-z][a-z0-9 -]*)", folded, re.ASCII)
    last = re.fullmatch(r"([a-z][a-z0-9 -]*?)(?:\s*[x*]\s*|\s+|-)([0-9]{1,7})", folded, re.ASCII)
    if first is None and last is None:
        return None
    counts, kind = ("", ""), ""
    if first is not None:
        counts, kind = (first[1], first[2] or ""), first[3]
    elif last is not None:
        counts, kind = (last[2], ""), last[1]
    try:
        name = kind_named(kind, OPTION)
    except InputError:
        if first is None:  # such as a shipped name with another number
            return None
        raise
    if counts[1]:
        return f"{name}:{counts[0]}x{counts[1]}"
    devices, whole = int(counts[0]), node_of(name).devices
    if devices <= whole:
        return f"{name}:{devices}"
    if devices % whole and first is None:
        return None
    if devices % whole:
        size = max(size for size in divisors(devices) if size <= whole)
        fix = f"give nodes of fewer, such as {name}:{size}x{devices // size}, or {devices // whole * whole}x{name}"
        raise InputError(COMMAND_LINE, OPTION, f"is {shown(text)}, and a node has {whole}", fix)
    return f"{name}:{whole}x{devices // whole}"


def cluster_of_nodes(text: str, table: EfficiencyTable | None = None) -> Cluster:
    """Build the cluster that the text `KIND:DEVICESxNODES[,network=RATE][,rails=PORTS][,host=MEMORY]` names. Raises InputError
    if the text has another form.

    In the text, RATE is the line rate of a port, such as 200Gb/s or 25GB/s; PORTS the number of ports of a node; MEMORY the
    memory of a node's CPU. Settings that are omitted come from the kind's data sheet. table: the efficiencies (shares of
    peaks) of kernels and links; by default the shipped ones.
    """
    table = table or shipped_efficiencies()
    counted, *settings = text.split(",")
    kind, _, counts = counted.partition(":")
    match = re.fullmatch(r"([0-9]{1,7})(?:[xX]([0-9]{1,7}))?", counts.strip(), re.ASCII)
    if match is None:
        raise InputError(COMMAND_LINE, OPTION, f"is {shown(text)}", f"give {FORM}")
    name, devices, count = kind_named(kind, OPTION), int(match[1]), int(match[2] or 1)
    described = sheet(name)
    _check_counts(name, described, devices, count)
    values = _settings(settings)
    ports, port_bytes_per_s = -(-devices // described.network.devices_per_port), described.network.bytes_per_s
    if "rails" in values:
        ports = _ports(values["rails"], devices)
    if "network" in values:
        port_bytes_per_s = parse_rate(values["network"], f"{OPTION} network")
    memory_bytes = _host_bytes(values["host"]) if "host" in values else None
    within = _within(described, devices, table)
    across = _across(described, within, devices, count, port_bytes_per_s * ports, table)
    host = host_of(described, devices, table, memory_bytes)
    node = Nodes(kind=described.name, devices=devices, count=count, islands=within, host=host)
    named = ",".join([f"{name}:{devices}" + (f"x{count}" if count > 1 else ""), *(f"{k}={v}" for k, v in values.items())])
    return Cluster(
        name=named,
        kinds=[device_kind(name, table)],
        nodes=[node],
        islands=across,
        source=_source(described, table),
    )


def node_of(name: str) -> Cluster:
    """Build one whole node of a kind of device: as many devices as its links join, but at least 8. name: the name of the
    kind's data sheet.
    """
    joined = sheet(name).joined
    return cluster_of_nodes(f"{name}:{max(WHOLE_NODE, joined.domain if joined else 0)}")


def completions() -> list[str]:
    """Names of clusters that a shell offers for completion: whole nodes of every kind of device, in usual numbers, such as
    `h100:8x16`.
    """
    return [node_of(name).name + (f"x{count}" if count > 1 else "") for name in sheets() for count in COMPLETED_NODES]


def _check_counts(name: str, described: DeviceSheet, devices: int, count: int) -> None:
    """Raise InputError if nodes of a kind cannot have this number of devices, or if the cluster is too large.

    name, described: the kind's data sheet. devices: number of devices of a node. count: number of nodes.
    """
    joined = described.joined
    most = joined.domain if joined and joined.domain >= WHOLE_NODE else MOST_ON_PCIE
    if not 1 <= devices <= most:
        total = max(devices, 1) * max(count, 1)
        example = f"{name}:{min(most, total)}" + (f"x{-(-total // most)}" if most < total <= MOST else "")
        problem = f"has nodes of {devices} devices"
        raise InputError(COMMAND_LINE, OPTION, problem, f"give 1 to {most} devices a node of {name}, such as {example}")
    if joined and devices > joined.domain and devices % joined.domain:
        fix = f"give a multiple of the {joined.domain} that are joined, such as {name}:{WHOLE_NODE}"
        raise InputError(COMMAND_LINE, OPTION, f"has nodes of {devices} devices", fix)
    if not 1 <= count * devices <= MOST:
        raise InputError(COMMAND_LINE, OPTION, f"has {plural(count, 'node')}", f"give 1 to {MOST // devices} nodes")


def _settings(settings: list[str]) -> dict[str, str]:
    """Parse the settings in a cluster's name: ["network=200Gb/s"] -> {"network": "200Gb/s"}. Raises InputError for unknown
    settings.
    """
    values: dict[str, str] = {}
    for setting in settings:
        name, _, value = (part.strip() for part in setting.partition("="))
        if name not in SETTINGS or not value:
            fix = one_of(name, [f"{setting_name}=" for setting_name in SETTINGS])
            raise InputError(COMMAND_LINE, OPTION, f"has {shown(setting.strip())}", fix)
        if name in values:
            raise InputError(COMMAND_LINE, OPTION, f"has {name} twice", "give it once")
        values[name] = value
    return values


def _ports(text: str, devices: int) -> int:
    """The number of network ports of a node, from the text of the setting `rails` in a cluster's name. Raises InputError
    unless it is a whole number. devices: number of devices of a node, used as the example in the error.
    """
    if not re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) or int(text) < 1:
        raise InputError(COMMAND_LINE, f"{OPTION} rails", f"is {shown(text)}", f"give the ports of a node, such as {devices}")
    return int(text)


def _host_bytes(text: str) -> int:
    """The memory of a node's CPU in bytes, from the text of the setting `host` in a cluster's name, such as 1TiB. Raises
    InputError if the text is no amount of memory.
    """
    memory_bytes = parse_bytes(text, f"{OPTION} host")
    if not 0 < memory_bytes <= MOST_HOST_BYTES:
        raise InputError(COMMAND_LINE, f"{OPTION} host", f"is {shown(text)}", "give up to 1024TiB, such as 1TiB")
    return memory_bytes


def _within(described: DeviceSheet, devices: int, table: EfficiencyTable) -> list[Island]:
    """The islands (groups of joined devices with their link) within a node, smallest first; empty for a node with one device.

    described: the data sheet of the device. devices: number of devices of the node. table: the shares of peaks that links
    reach.
    """
    islands: list[Island] = []
    joined = described.joined
    if devices > 1 and joined is not None:
        size, links = min(devices, joined.domain), joined.links
        if joined.meshed:
            links = joined.links * (size - 1) // (joined.domain - 1)
        rate = _reached(joined.link_bytes_per_s * links, joined.level, table)
        islands = [Island(devices=size, bandwidth_bytes_per_s=rate, latency_ns=joined.latency_ns, meshed=joined.meshed)]
    if devices > 1 and (not islands or islands[0].devices < devices):
        rate = _reached(described.pcie.bytes_per_s, _pcie(described), table)
        islands.append(Island(devices=devices, bandwidth_bytes_per_s=rate, latency_ns=PCIE_NS))
    return islands


def _across(
    described: DeviceSheet, within: list[Island], devices: int, count: int, line_bytes_per_s: float, table: EfficiencyTable
) -> list[Island]:
    """The island (group of joined devices with its link) over all nodes, as a list with one item; empty for a single node.

    described: the data sheet of the device. within: the islands within a node. devices: number of devices of a node. count:
    number of nodes. line_bytes_per_s: the line rate of all ports of a node together. table: the shares of peaks that links
    reach.
    """
    if count == 1:
        return []
    node = _reached(line_bytes_per_s, "network", table)
    ring = min(within[-1].bandwidth_bytes_per_s, node) if within else node
    island = Island(
        devices=devices * count,
        bandwidth_bytes_per_s=ring,
        latency_ns=NETWORK_NS if described.joined else NETWORK_OVER_PCIE_NS,
        shared_by=devices,
        node_bytes_per_s=node if node > ring else None,
    )
    return [island]


def host_of(described: DeviceSheet, devices: int, table: EfficiencyTable, memory_bytes: int | None = None) -> Host:
    """The CPU of a node with this number of devices: its memory, and the bandwidth of its link to a device.

    described: the device's data sheet. table: the shares of peaks that links reach. memory_bytes: memory of the CPU; None for
    the data sheet's memory in proportion to the number of devices.
    """
    host = described.host
    peak, level = (described.pcie.bytes_per_s, _host_pcie(described))
    if host.link is not None:
        peak, level = host.link.bytes_per_s, host.link.level
    return Host(
        memory_bytes=memory_bytes or host.memory_bytes * min(devices, host.devices) // host.devices,
        memory_bytes_per_s=host.memory_bytes_per_s * min(devices, host.devices) / host.devices,
        link=Link(bandwidth_bytes_per_s=_reached(peak, level, table), latency_ns=HOST_NS if described.joined else PCIE_NS),
        shares_bus=described.joined is None or described.joined.domain < devices,
    )


def _pcie(described: DeviceSheet) -> Level:
    """The level of links for transfers between devices over PCIe, by the generation in a data sheet, such as "pcie-5"."""
    levels: dict[int, Level] = {3: "pcie-3", 4: "pcie-4", 5: "pcie-5"}
    return levels[described.pcie.generation]


def _host_pcie(described: DeviceSheet) -> Level:
    """The level of links for copies between host and device over PCIe, by the generation in a data sheet, such as
    "host-pcie-5".
    """
    levels: dict[int, Level] = {3: "host-pcie-3", 4: "host-pcie-4", 5: "host-pcie-5"}
    return levels[described.pcie.generation]


def _reached(peak_bytes_per_s: float, level: Level, table: EfficiencyTable) -> float:
    """The bandwidth in bytes per second that transfers reach on a link: its peak times the efficiency of the link's level
    (such as "nvlink-4") in the table, rounded to three digits.
    """
    return _rounded(peak_bytes_per_s * table.link(level).value)


def _rounded(number: float) -> float:
    """Round a positive number to three significant digits, because assumptions on links are no more exact."""
    return float(round(number, 2 - floor(log10(number))))


def _source(described: DeviceSheet, table: EfficiencyTable) -> str:
    """The sources of all numbers of a cluster, as one line of text for the cluster's field `source`.

    described: the data sheet of its devices. table: the efficiencies that it was built with.
    """
    texts = [f"{', '.join(source.of)}: {source.source}" for source in described.sources]
    if table.corrected_for:
        texts.insert(0, f"{CORRECTED} {plural(len(table.own_runs), 'own run')} ({table.corrected_for})")
    fitted = sum(fit.origin == "fitted" for fit in [*table.kernels, *table.links])
    reached = f"what kernels and links reach of peaks: {fitted} efficiencies fitted, the others assumed"
    return "; ".join([*texts, f"{reached}; latencies and the reserve: assumed"])
