"""Links between the ranks of a run, and the times of collectives over them: rings, with latency for each of their steps, and
all-to-alls."""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.efficiencies import EfficiencyTable
from trainplan.profiling.clusters.nodes import NETWORK_NS, PCIE_NS
from trainplan.profiling.clusters.sheets import DeviceSheet

PCIE_LEVELS = {3: "pcie-3", 4: "pcie-4", 5: "pcie-5"}
# Assumed latency of a ring's step within a node, in addition to the time of its bytes; sheets and cluster files have those of
# Latency of a ring's step within a node, in addition to the time of its bytes, assumed; sheets and cluster files have that of
# whole kernels.
STEP_NS, LAUNCH_NS = 1_500, 15_000
LONE_BYTES_PER_S = 1e12  # of a node of one device, which has nobody to send to


@dataclass(frozen=True)
class Links:
    """Links of a device in a node and through the network. Bandwidths are bytes per second that one device sends while it
    receives as much.

    Attributes:
        node: the number of devices of a node.
        within_bytes_per_s, across_bytes_per_s: bandwidth within the node, and through the network.
        within_ns, across_ns: time of a step of a ring within the node, and through the network.
        meshed: the number of devices of which each two have a link of their own, so that a group uses only the links among its
            members; 0 where there is none.
        bridged: the number of neighbours that have faster links among themselves; bridge_bytes_per_s: the bandwidth of these.
        host_bytes_per_s, host_ns: bandwidth and latency of copies between a device and its host, in either direction; 0 where
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
        """The links of nodes of a data sheet's device. network_bytes_per_s: a device's part of the network, where it is not the
        sheet's."""
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
        """The links of a cluster of equal nodes: within a node, and a device's share of those between nodes."""
        node, network = cluster.nodes[0].devices, cluster.network
        islands = cluster.nodes[0].islands
        step = PCIE_NS if islands and islands[-1].latency_ns >= PCIE_NS else STEP_NS
        within = network.link(range(node)).bandwidth_bytes_per_s if node > 1 else LONE_BYTES_PER_S
        across = network.link((0, node)).bandwidth_bytes_per_s if cluster.devices > node else within
        meshed, host = islands[-1].devices if islands and islands[-1].meshed else 0, cluster.nodes[0].host
        copied, copy_ns = (host.link.bandwidth_bytes_per_s, host.link.latency_ns) if host else (0.0, 0.0)
        return cls(node, within, across, step, meshed=meshed, host_bytes_per_s=copied, host_ns=copy_ns)

    def bytes_per_s(self, ranks: int, stride: int) -> float:
        """Bandwidth of a device in a ring of `ranks` ranks that are `stride` apart, while all such groups communicate."""
        if (ranks - 1) * stride < self.bridged:
            return self.bridge_bytes_per_s
        if (ranks - 1) * stride < self.node:
            return self._among(ranks)
        members = max(1, min(ranks, self.node // stride))  # of one group in a node, each with its port
        return min(self._among(members) if members > 1 else self.within_bytes_per_s, self.across_bytes_per_s * members)

    def _among(self, ranks: int) -> float:
        """Bandwidth of a device to the others of a group of `ranks` devices within its node."""
        return self.within_bytes_per_s * (ranks - 1) / (self.meshed - 1) if self.meshed else self.within_bytes_per_s

    def collective_ns(self, phases: int, message_bytes: float, ranks: int, stride: int, times: float = 1.0) -> float:
        """Time of a ring's all-gather or reduce-scatter (1 phase), or all-reduce (2), of `message_bytes` in all.

        Ranks are `stride` apart. Steps within nodes run in all nodes in parallel, steps between nodes one after the other.
        times: the number of collectives in which the bytes are moved, each with latency of its own; less than one where they
        are part of one.
        """
        if ranks < 2 or not message_bytes:
            return 0.0
        nodes = max(1, -(-(ranks * stride) // self.node)) if (ranks - 1) * stride >= self.node else 1
        nodes = min(nodes, ranks)
        steps = (ranks - nodes) * self.within_ns + (nodes - 1) * self.across_ns if nodes > 1 else (ranks - 1) * self.within_ns
        moved = message_bytes * (ranks - 1) / ranks / self.bytes_per_s(ranks, stride) * 1e9
        return phases * (moved + steps * times) + LAUNCH_NS * times

    def copy_ns(self, message_bytes: float) -> float:
        """Time of a copy between a device and its host, of which something has to be known."""
        return message_bytes / self.host_bytes_per_s * 1e9 + self.host_ns

    def all_to_all_ns(self, message_bytes: float, ranks: int, stride: int) -> float:
        """Time of an all-to-all in which each rank has `message_bytes`, an equal part of them for each rank of its group,
        itself included.

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
        """Time of one message between two ranks whose numbers differ by `distance`."""
        if distance < self.node:
            among = self.bridge_bytes_per_s if distance < self.bridged else self._among(2)
            return message_bytes / among * 1e9 + LAUNCH_NS
        return message_bytes / self.across_bytes_per_s * 1e9 + LAUNCH_NS + self.across_ns
