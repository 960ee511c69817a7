"""Whether equal stages of a pipeline have equal links in a cluster, and by which links they send to each other.

The joint problem takes stages of one size for equal. So this module also says whether the problem covers every pipeline of
equal stages that the devices of a request allow, or only some.
"""

from __future__ import annotations

from typing import Any

from trainplan.formulations.plan.rank_grid import alike_over
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy, decision_tree
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.profiles import Profile

Pairs = list[tuple[int, int]]  # devices that send to each other between two stages


def stages_alike(network: Network, size: int, count: int) -> bool:
    """Whether `count` stages of `size` consecutive devices have equal links: each island of the network holds whole stages, or
    each stage holds whole islands."""
    return count == 1 or alike_over(network, size * count, Strategy.of(("dp", size)))


def groups_alike(network: Network, devices: int, strategy: Strategy) -> bool:
    """Whether, on the first `devices` devices of a network, all groups of ranks of each of a strategy's levels have equal
    links."""
    if alike_over(network, devices, strategy):
        return True
    for paradigm, _ in strategy.levels:
        groups = {strategy.peers(rank, paradigm) for rank in range(strategy.group)}
        for operation in ("all-reduce", "all-gather", "reduce-scatter"):
            links = {network.link(group, operation) for group in groups}
            if len({(link.bandwidth_bytes_per_s, link.latency_ns) for link in links}) > 1:
                return False
    return True


def stage_pairs(profile: Profile, group: int) -> list[Pairs]:
    """The pairs of devices that send to each other between two consecutive stages of `group` devices: one list for each kind of
    link. The way from the last stage to the first is included, which interleaved stages use."""
    pairs: dict[Any, Pairs] = {}
    for ranks in _all_pairs(profile, group):
        pairs.setdefault(_links_of(profile.network, ranks), ranks)
    return list(pairs.values())


def stage_links(profile: Profile, group: int, chunks: int) -> tuple[int, ...]:
    """For each stage but the last, the index in `stage_pairs` of the kind of link to the next stage. chunks: stages of each
    group of devices."""
    kinds = [_links_of(profile.network, ranks) for ranks in stage_pairs(profile, group)]
    ring = [kinds.index(_links_of(profile.network, ranks)) for ranks in _all_pairs(profile, group)]
    depth = profile.devices // group
    return tuple(ring[x % depth] for x in range(depth * chunks - 1))


def _all_pairs(profile: Profile, group: int) -> list[Pairs]:
    """For each stage, the pairs of devices between it and the next one, the last stage being followed by the first. One pair
    stands for all where links are equal. Empty where there is one stage only."""
    devices, alike = profile.devices, stages_alike(profile.network, group, profile.devices // group)
    starts = range(0, devices, group) if group < devices else ()
    return [[(first + x, (first + group) % devices + x) for x in range(1 if alike else group)] for first in starts]


def _links_of(network: Network, ranks: Pairs) -> tuple[tuple[float, int], ...]:
    """The different links, as (bytes per second, latency in ns), over which some pairs of devices send."""
    links = {network.link(tuple(sorted(pair)), "p2p") for pair in ranks}
    return tuple(sorted((link.bandwidth_bytes_per_s, link.latency_ns) for link in links))


MOST_ALIKE = 1024  # devices of a stage, up to which its groups are compared one by one


def unsupported_reason(request: Request) -> str | None:
    """Why a request is better planned by another problem than the joint one, in words; None where the joint problem applies.

    It applies where all devices are of one kind and their links are regular. Where equal islands tile the cluster, the regular
    stages that remain include good plans of every depth (see `unlike_links`); where links are given one by one, perhaps none.
    """
    kinds = [kind.name for kind in request.cluster.used_kinds] if request.cluster else list(request.profile.kinds)  # type: ignore[union-attr]
    if len(kinds) > 1:
        return f"devices are of {len(kinds)} kinds ({', '.join(kinds)}), and it takes them for equal"
    return unlike_links(request) if _network(request).tiles is None else None


def unlike_links(request: Request) -> str | None:
    """Which stages or groups of the request's devices have unequal links, in words, so that no plan of the joint problem uses
    them; None where all stages and groups of a power of two of devices have equal links."""
    network = _network(request)
    if network.uniform:
        return None
    return _unlike(network, request.origin.devices, request.options.get("pipeline"))


def _network(request: Request) -> Network:
    """The network of a request's cluster or, without one, of its profile."""
    return (request.cluster or request.profile).network  # type: ignore[union-attr]


def _unlike(network: Network, devices: int, depth: int | None) -> str | None:
    """The first stages or groups of a power of two of devices whose links are unequal, in words; None where there are none.
    depth: the only number of stages to look at, None for all."""
    sizes = [size for size in divisors(devices) if size & (size - 1) == 0 and depth in (None, devices // size)]
    for size in sizes:
        if not stages_alike(network, size, devices // size):
            return f"links between stages of {size} of the {devices} devices are unlike"
        strategies = decision_tree(size, ckpt=False)
        if size > MOST_ALIKE or not all(groups_alike(network, devices, strategy) for strategy in strategies):
            return f"links within stages of {size} devices are unlike"
    return None
