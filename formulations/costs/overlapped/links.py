"""Links between the ranks of a run, and the times of collectives over them: rings, with latency for each of their steps, and
all-to-alls."""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.efficiencies import EfficiencyTable
from trainplan.profiling.clusters.nodes import NETWORK_NS, PCIE_NS
from trainplan.profiling.clusters.sheets import DeviceSheet

PCIE_LEVELS = {3: "pcie-3", 4: "pcie-4", 5: "pcie-5"}
# Latency of a ring's step within a node, in addition to the time of its bytes, assumed; sheets and cluster files have that of
# whole kernels.
STEP_NS, LAUNCH_NS = 1_500, 15_000
LONE_BYTES_PER_S = 1e12  # of a node of one device, which has nobody to send to


@dataclass(frozen=True)
class Links:
    """Links of a device within its node and through the network. A bandwidth is the bytes per second that one device sends
    while it receives as much.

    Attributes:
        node: the number of devices of a node.
        within_bytes_per_s, across_bytes_per_s: bandwidth within the node, and through the network.
        within_ns, across_ns: latency of one step of a ring collective within the node, and through the network.
        meshed: the number of devices of a node that are linked pairwise, each pair by a link of its own, so that a group
            uses only the links among its members; 0 if there are no such links.
        bridged: the number of neighbouring devices that have faster links among themselves.
        bridge_bytes_per_s: the bandwidth of these faster links.
        host_bytes_per_s, host_ns: bandwidth and latency of copies between a device and its host, in either direction; 0 if
            nothing is known of the host.
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
        """The links of a kind of device in nodes, from its data sheet. table: the shares of peak bandwidths that links reach.
        devices: the number of devices of the run; a node is taken to have no more. network_bytes_per_s: one device's part
        of the network bandwidth; None for the data sheet's.
        """
        joined = sheet.joined
        domain = max(8, joined.domain if joined else 8)
        node = devices if devices <= domain else 1 << (domain.bit_length() - 1)
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
        """The links of a described cluster of equal nodes: within a node, between nodes (a device's share), and to the host."""
        node, network = cluster.nodes[0].devices, cluster.network
        islands = cluster.nodes[0].islands
        step = PCIE_NS if islands and islands[-1].latency_ns >= PCIE_NS else STEP_NS
        within = network.link(range(node)).bandwidth_bytes_per_s if node > 1 else LONE_BYTES_PER_S
        across = network.link((0, node)).bandwidth_bytes_per_s if cluster.devices > node else within
        meshed, host = islands[-1].devices if islands and islands[-1].meshed else 0, cluster.nodes[0].host
        copied, copy_ns = (host.link.bandwidth_bytes_per_s, host.link.latency_ns) if host else (0.0, 0.0)
        return cls(node, within, across, step, meshed=meshed, host_bytes_per_s=copied, host_ns=copy_ns)

    def bytes_per_s(self, ranks: int, stride: int) -> float:
        """The bandwidth in bytes per second of a device in a ring of `ranks` ranks whose numbers are `stride` apart, while all
        such groups communicate at the same time."""
        if (ranks - 1) * stride < self.bridged:
            return self.bridge_bytes_per_s
        if (ranks - 1) * stride < self.node:
            return self._among(ranks)
        members = max(1, min(ranks, self.node // stride))  # of one group in a node, each with its port
        return min(self._among(members) if members > 1 else self.within_bytes_per_s, self.across_bytes_per_s * members)

    def _among(self, ranks: int) -> float:
        """The bandwidth in bytes per second of a device to the other members of a group of `ranks` devices within one node."""
        return self.within_bytes_per_s * (ranks - 1) / (self.meshed - 1) if self.meshed else self.within_bytes_per_s

    def collective_ns(self, phases: int, message_bytes: float, ranks: int, stride: int, times: float = 1.0) -> float:
        """The time in ns of a ring collective: 1 phase for an all-gather or a reduce-scatter, 2 phases for an all-reduce.

        message_bytes: the bytes of the whole message, gathered or to be reduced. ranks, stride: the number of ranks, and the
        distance of their numbers. Steps within nodes run in all nodes in parallel, steps between nodes one after the other.
        times: the number of collectives into which the bytes are divided, each with latency of its own; a fraction where the
        bytes are a part of one collective.
        """
        if ranks < 2 or not message_bytes:
            return 0.0
        nodes = max(1, -(-(ranks * stride) // self.node)) if (ranks - 1) * stride >= self.node else 1
        nodes = min(nodes, ranks)
        steps = (ranks - nodes) * self.within_ns + (nodes - 1) * self.across_ns if nodes > 1 else (ranks - 1) * self.within_ns
        moved = message_bytes * (ranks - 1) / ranks / self.bytes_per_s(ranks, stride) * 1e9
        return phases * (moved + steps * times) + LAUNCH_NS * times

    def copy_ns(self, message_bytes: float) -> float:
        """The time in ns of a copy of `message_bytes` bytes between a device and its host; only for links whose host bandwidth
        is known (not 0)."""
        return message_bytes / self.host_bytes_per_s * 1e9 + self.host_ns

    def all_to_all_ns(self, message_bytes: float, ranks: int, stride: int) -> float:
        """The time in ns of an all-to-all in which each rank has `message_bytes` bytes, an equal part of them for each rank of
        its group, itself included. ranks, stride: the number of ranks, and the distance of their numbers.

        What a rank sends within its node and through the network goes over separate links in parallel: the slower of both
        counts, for the rank with the fewest others in its node. Messages do not wait for each other, so latency counts only
        once.
        """
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
        """The time in ns of one message of `message_bytes` bytes between two ranks whose numbers differ by `distance`."""
        if distance < self.node:
            among = self.bridge_bytes_per_s if distance < self.bridged else self._among(2)
            return message_bytes / among * 1e9 + LAUNCH_NS
        return message_bytes / self.across_bytes_per_s * 1e9 + LAUNCH_NS + self.across_ns
