"""Links between the ranks of a run, and what collectives over them take: rings, with latency for each of their steps, and
all-to-alls."""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.efficiencies import EfficiencyTable
from trainplan.profiling.clusters.nodes import NETWORK_NS, PCIE_NS
from trainplan.profiling.clusters.sheets import DeviceSheet

PCIE_LEVELS = {3: "pcie-3", 4: "pcie-4", 5: "pcie-5"}
# Of a ring's step within a node, beside what its bytes take, assumed; sheets and cluster files have those of whole kernels.
STEP_NS, LAUNCH_NS = 1_500, 15_000
LONE_BYTES_PER_S = 1e12  # of a node of one device, which has nobody to send to


@dataclass(frozen=True)
class Links:
    """Of a node of `node` devices: bytes per second that one sends while it receives as much, within the node and through the
    network; and the time of a step of a ring.

    meshed: so many devices have a link for each two of them, so that a group uses those among its members alone; 0 of none.
    bridged, bridge_bytes_per_s: so many neighbours send as much among themselves, where a node has faster links for some.
    host_bytes_per_s, host_ns: of copies between a device and its host, either way; 0 where nothing is known of the host.
    """

    node: int
    within_bytes_per_s: float
    across_bytes_per_s: float
    within_ns: float = STEP_NS
    across_ns: float = NETWORK_NS
    meshed: int = 0
    bridged: int = 1
    bridge_bytes_per_s: float = 0.0
    host_bytes_per_s: float = 0.0
    host_ns: float = 0.0

    @classmethod
    def of(cls, sheet: DeviceSheet, table: EfficiencyTable, devices: int, network_bytes_per_s: float | None = None) -> Links:
        """Those of a data sheet's nodes. network_bytes_per_s: a device's part of the network, where it is not the sheet's."""
        joined = sheet.joined
        node = min(devices, 1 << (max(8, joined.domain if joined else 8).bit_length() - 1))
        linked = 0.0 if joined is None else joined.links * joined.link_bytes_per_s * table.link(joined.level).value
        port = network_bytes_per_s or sheet.network.bytes_per_s / sheet.network.devices_per_port
        across = port * table.link("network").value
        if joined is not None and joined.domain >= min(node, 8):
            return cls(node, linked, across, STEP_NS, meshed=joined.domain * joined.meshed)
        level = PCIE_LEVELS[sheet.pcie.generation]
        within = sheet.pcie.bytes_per_s * table.link(level).value  # type: ignore[arg-type]
        bridged = 1 if joined is None else joined.domain
        return cls(node, within, across, PCIE_NS, bridged=bridged, bridge_bytes_per_s=linked)

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Links:
        """Links within a node of a cluster of equal nodes, and a device's share of those between nodes."""
        node, network = cluster.nodes[0].devices, cluster.network
        islands = cluster.nodes[0].islands
        step = PCIE_NS if islands and islands[-1].latency_ns >= PCIE_NS else STEP_NS
        within = network.link(range(node)).bandwidth_bytes_per_s if node > 1 else LONE_BYTES_PER_S
        across = network.link((0, node)).bandwidth_bytes_per_s if cluster.devices > node else within
        meshed, host = islands[-1].devices if islands and islands[-1].meshed else 0, cluster.nodes[0].host
        copied, copy_ns = (host.link.bandwidth_bytes_per_s, host.link.latency_ns) if host else (0.0, 0.0)
        return cls(node, within, across, step, meshed=meshed, host_bytes_per_s=copied, host_ns=copy_ns)

    def bytes_per_s(self, ranks: int, stride: int) -> float:
        """What a device of a ring sends, of ranks so far apart, all such groups at once."""
        if (ranks - 1) * stride < self.bridged:
            return self.bridge_bytes_per_s
        if (ranks - 1) * stride < self.node:
            return self._among(ranks)
        members = max(1, min(ranks, self.node // stride))  # of one group in a node, each with its port
        return min(self._among(members) if members > 1 else self.within_bytes_per_s, self.across_bytes_per_s * members)

    def _among(self, ranks: int) -> float:
        """What a device sends to others of a group within its node."""
        return self.within_bytes_per_s * (ranks - 1) / (self.meshed - 1) if self.meshed else self.within_bytes_per_s

    def collective_ns(self, phases: int, message_bytes: float, ranks: int, stride: int, times: float = 1.0) -> float:
        """A ring's all-gather or reduce-scatter (1 phase), or all-reduce (2), of so many bytes in all. Steps through the
        network go at once in every node but one by one through the nodes. times: in how many collectives they are moved, each
        with latency of its own; less than one where they are part of one."""
        if ranks < 2 or not message_bytes:
            return 0.0
        nodes = max(1, -(-(ranks * stride) // self.node)) if (ranks - 1) * stride >= self.node else 1
        nodes = min(nodes, ranks)
        steps = (ranks - nodes) * self.within_ns + (nodes - 1) * self.across_ns if nodes > 1 else (ranks - 1) * self.within_ns
        moved = message_bytes * (ranks - 1) / ranks / self.bytes_per_s(ranks, stride) * 1e9
        return phases * (moved + steps * times) + LAUNCH_NS * times

    def copy_ns(self, message_bytes: float) -> float:
        """A copy between a device and its host, which is known."""
        return message_bytes / self.host_bytes_per_s * 1e9 + self.host_ns

    def all_to_all_ns(self, message_bytes: float, ranks: int, stride: int) -> float:
        """An all-to-all in which each rank has so many bytes, an equal part of them for each rank of its group, itself among
        them. What a rank sends within its node and through the network goes over links of their own, at once: the slower of
        both counts, of the rank with fewest others in its node. Messages wait for no others, so that latency counts once."""
        if ranks < 2 or not message_bytes:
            return 0.0
        part, spans = message_bytes / ranks, (ranks - 1) * stride >= self.node
        most = max(1, min(ranks, self.node // stride)) if spans else ranks
        least = ranks % most or most
        across = (ranks - least) * part / self.across_bytes_per_s * 1e9 + self.across_ns if spans else 0.0
        rate = self._among(most) if spans else self.bytes_per_s(ranks, stride)
        within = (most - 1) * part / rate * 1e9 + self.within_ns if most > 1 else 0.0
        return max(within, across) + LAUNCH_NS

    def message_ns(self, message_bytes: float, distance: int) -> float:
        """One message between ranks so far apart."""
        if distance < self.node:
            among = self.bridge_bytes_per_s if distance < self.bridged else self._among(2)
            return message_bytes / among * 1e9 + LAUNCH_NS
        return message_bytes / self.across_bytes_per_s * 1e9 + LAUNCH_NS + self.across_ns
