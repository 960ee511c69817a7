"""Times of communication on a link, and of two things that overlap, in ns.

With n ranks, a message of M bytes (the whole of it: reduced, gathered or exchanged), bandwidth B and latency a of one step:

    ring (Patarasuk and Yuan, 2009)   phases (n-1) (M / n / B + a); all-reduce 2 phases, all-gather and reduce-scatter 1
    tree (Sanders, Speck and Traeff, 2009; pipelined)   all-reduce 2 M / B + 2 ceil(log2 n) a
    all-to-all                        (n-1) (M / n / B + a), where M is all that one rank sends
    p2p (AMP, Section 3.4)            M / B + a
    host copy                         M / B + a

so a ring moves 2 (n-1)/n M for an all-reduce and half of it for its parts (Galvatron-BMW, Section III-A).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.clusters.network import Link, Network, Operation

PHASES: dict[Operation, int] = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}


def ring_ns(operation: Operation, message_bytes: float, ranks: int, link: Link) -> float:
    """Time in ns of a ring collective among `ranks` ranks: sequential steps in which every rank sends a part of the message to
    the next rank. An all-to-all has the same number of steps.

    message_bytes: the whole message, which is reduced, gathered or exchanged. link: the slowest link of the ring. For the
    operation `p2p` the result is the time of one message, whatever the number of ranks.
    """
    if operation == "p2p":
        return copy_ns(message_bytes, link)
    steps = PHASES[operation] * (ranks - 1)
    return steps * copy_ns(message_bytes / ranks, link)


def tree_ns(message_bytes: float, ranks: int, link: Link) -> float:
    """Time in ns of an all-reduce of `message_bytes` among `ranks` ranks, up and down a pipelined pair of binary trees; 0 for
    a single rank. link: the slowest link between the ranks.
    """
    if ranks < 2:
        return 0.0
    depth = (ranks - 1).bit_length()
    return 2 * (message_bytes / link.bandwidth_bytes_per_s * 1e9 + depth * link.latency_ns)


def copy_ns(message_bytes: float, link: Link) -> float:
    """Time in ns of one message through one link: a point-to-point transfer, or a copy between host and device."""
    return message_bytes / link.bandwidth_bytes_per_s * 1e9 + link.latency_ns


def collective_ns(network: Network, operation: Operation, message_bytes: float, ranks: Sequence[int]) -> float:
    """Time in ns of a collective (or of one message, `p2p`) among devices, at the slowest link between them; 0 for fewer than
    two devices. An all-reduce takes the network's algorithm: ring, tree, or the faster of the two.

    network: all links. message_bytes: the whole message. ranks: the devices' numbers.
    """
    if len(ranks) < 2:
        return 0.0
    link = network.link(ranks, operation)
    ring = ring_ns(operation, message_bytes, len(ranks), link)
    if operation != "all-reduce" or network.algorithm == "ring":
        return ring
    tree = tree_ns(message_bytes, len(ranks), link)
    return tree if network.algorithm == "tree" else min(ring, tree)


def overlapped_ns(x_ns: float, y_ns: float, x_slowdown: float, y_slowdown: float | None = None) -> float:
    """Time in ns until two pieces of work x and y (such as computation and communication), which start at the same time, are
    both done, if each slows down by its factor while the other runs.

    x_ns, y_ns: their times alone. x_slowdown, y_slowdown: factors of at least 1; y_slowdown is x_slowdown by default. With
    one factor k for both the result is max(x, y) + (k - 1) min(x, y) (Galvatron-BMW, Section V).
    """
    y_slowdown = x_slowdown if y_slowdown is None else y_slowdown
    first, other = x_ns * x_slowdown, y_ns * y_slowdown
    if first <= other:
        return first + y_ns - first / y_slowdown
    return other + x_ns - other / x_slowdown
