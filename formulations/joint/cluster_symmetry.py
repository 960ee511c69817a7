"""How equal stages lie in a cluster: whether they lie alike, and by which links they send to each other."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.plan.rank_grid import alike_over
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.profiles import Profile

Pairs = list[tuple[int, int]]  # devices that send to each other between two stages


def stages_alike(network: Network, size: int, count: int) -> bool:
    """Whether stages of `size` consecutive devices lie alike: each island holds whole stages, or a stage whole islands."""
    return count == 1 or alike_over(network, size * count, Strategy.of(("dp", size)))


def groups_alike(network: Network, devices: int, strategy: Strategy) -> bool:
    """Whether all groups of each of a strategy's levels have equal links, on the first ones of so many devices."""
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
    """Pairs of devices of two stages of `group` devices that follow each other, one list for each kind of link; from the last
    stage to the first, too, where chunks of stages follow each other."""
    pairs: dict[Any, Pairs] = {}
    for ranks in _all_pairs(profile, group):
        pairs.setdefault(_links_of(profile.network, ranks), ranks)
    return list(pairs.values())


def stage_links(profile: Profile, group: int, chunks: int) -> tuple[int, ...]:
    """The kind of link between each stage and the next, by its place in `stage_pairs`, of so many chunks of all devices."""
    kinds = [_links_of(profile.network, ranks) for ranks in stage_pairs(profile, group)]
    ring = [kinds.index(_links_of(profile.network, ranks)) for ranks in _all_pairs(profile, group)]
    depth = profile.devices // group
    return tuple(ring[x % depth] for x in range(depth * chunks - 1))


def _all_pairs(profile: Profile, group: int) -> list[Pairs]:
    """The pairs of each stage and the next one, in a ring; one pair where all of a stage's are alike; none of one stage."""
    devices, alike = profile.devices, stages_alike(profile.network, group, profile.devices // group)
    starts = range(0, devices, group) if group < devices else ()
    return [[(first + x, (first + group) % devices + x) for x in range(1 if alike else group)] for first in starts]


def _links_of(network: Network, ranks: Pairs) -> tuple[tuple[float, int], ...]:
    """The different links of some pairs."""
    links = {network.link(tuple(sorted(pair)), "p2p") for pair in ranks}
    return tuple(sorted((link.bandwidth_bytes_per_s, link.latency_ns) for link in links))
