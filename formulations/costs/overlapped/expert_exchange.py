"""The exchange of tokens between ranks that hold different experts: bytes by levels of links, and times.

Three ways, as runtimes have them:

- `all-to-all`: every copy of a token is sent (Megatron-Core's `alltoall` dispatcher, DeepSpeed's, torchtitan's).
- `all-gather`: every rank gets all tokens of the group, and results are summed and scattered (Megatron-Core's `allgather`).
- `deduplicated`: a token goes once to each node in which it has experts, to the rank with the sender's place there, which
  passes it on once to each rank with experts of the token; results are summed on the same way back (DeepEP's `dispatch` and
  `combine`, `csrc/kernels/internode.cu`, 1.1; HybridEP, for domains of any size).

A token chooses k of E experts. If all choices are equally likely, as where routing is forced to be balanced, of G groups of
equally many experts it has some in G (1 - C(E - E/G, k) / C(E, k)).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from trainplan.formulations.costs.overlapped.folding import ExpertsLayout
from trainplan.formulations.costs.overlapped.links import LAUNCH_NS, Links
from trainplan.profiling.models.sublayers import Experts


@dataclass(frozen=True)
class Routed:
    """The tokens of one rank that go to experts.

    Attributes:
        tokens: the number of the rank's tokens.
        width: numbers of a token that are sent.
        experts: the number of experts.
        chosen: the number of experts that process a token.
        groups, chosen_groups: the router's groups of experts, and the number of them that a token may choose from.
    """

    tokens: float
    width: int
    experts: int
    chosen: int
    groups: int = 1
    chosen_groups: int = 1

    @classmethod
    def of(cls, part: Experts, tokens: float) -> Routed:
        """The tokens of a rank that enter a unit of experts. tokens: their number."""
        return cls(tokens, part.width, part.experts, part.chosen, part.groups, part.chosen_groups)

    @property
    def numbers(self) -> float:
        """Numbers of all copies of the rank's tokens together."""
        return self.tokens * self.chosen * self.width

    def visited(self, ranks: int) -> float:
        """The expected number of ranks (or nodes) to which a token goes, of `ranks` that share the experts equally, if all
        choices that the router's groups allow are equally likely."""
        if self.chosen_groups >= self.groups:
            return visited(ranks, self.experts, self.chosen)
        share = self.chosen_groups / self.groups
        if ranks % self.groups == 0:
            return visited(round(ranks * share), round(self.experts * share), self.chosen)
        return min(visited(ranks, self.experts, self.chosen), float(self.chosen_groups))


def visited(groups: int, experts: int, chosen: int) -> float:
    """The expected number of groups of experts in which a token has some, if all choices are equally likely.

    groups: the number of groups, which have equally many experts. experts: the number of all experts. chosen: the number that a
    token chooses.
    """
    own = experts // groups
    if experts - own < chosen:
        return float(groups)
    return groups * (1 - comb(experts - own, chosen) / comb(experts, chosen))


def dispatched_ns(routed: Routed, layout: ExpertsLayout, links: Links, element_bytes: float) -> float:
    """The time in ns in which a rank's tokens come to their experts, or their results come back: on the fullest rank, while all
    groups of ranks exchange at the same time.

    routed: the rank's tokens. layout: how the units of experts are laid out. links: bandwidths and latencies of a device's
    links. element_bytes: bytes of a number on the way.
    """
    ep, stride = layout.ep, layout.etp
    if ep == 1:
        return 0.0
    if layout.dispatcher == "all-gather":
        message = routed.tokens * routed.width * element_bytes * ep
        return links.collective_ns(1, message, ep, stride)
    if layout.dispatcher == "all-to-all":
        message = routed.numbers * element_bytes * layout.fill / layout.rates.exchange
        return links.all_to_all_ns(message, ep, stride)
    return _deduplicated_ns(routed, layout, links, element_bytes)


def _deduplicated_ns(routed: Routed, layout: ExpertsLayout, links: Links, element_bytes: float) -> float:
    """The time in ns of an exchange in which a token is sent once to a node, and there once to a rank. Both levels work in
    parallel, block by block: the slower one counts. Arguments as of `dispatched_ns`."""
    ep, stride = layout.ep, layout.etp
    members = max(1, min(ep, links.node // stride))
    nodes = -(-ep // members)
    token = routed.tokens * routed.width * element_bytes * layout.fill / layout.rates.exchange
    within = 0.0
    if members > 1:
        within = routed.visited(ep) * (members - 1) / members * token / links.bytes_per_s(members, stride) * 1e9
    across = 0.0
    if nodes > 1:
        others = routed.visited(nodes) * (nodes - 1) / nodes
        across = others * token / links.across_bytes_per_s * 1e9 + links.across_ns
    return max(within + links.within_ns, across) + LAUNCH_NS


def gathered_ns(routed: Routed, layout: ExpertsLayout, links: Links, element_bytes: float) -> float:
    """The time in ns in which the ranks that share each expert's inner width gather the tokens that came to each of them, or
    sum and scatter their results; 0 without such ranks. Arguments as of `dispatched_ns`."""
    if layout.etp == 1:
        return 0.0
    rows = routed.numbers * layout.fill if layout.dispatcher != "all-gather" else routed.tokens * routed.width * layout.ep
    return links.collective_ns(1, rows * element_bytes * layout.etp, layout.etp, 1)
