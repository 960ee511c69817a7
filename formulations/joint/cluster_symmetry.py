"""How equal stages lie in a cluster: whether they lie alike, and by which links they send to each other.

It also says whether the joint problem of a request holds every pipeline of equal stages that its devices have, or not all.
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


MOST_ALIKE = 1024  # devices of a stage whose groups are looked at one by one, where links are no powers of two


def unsupported_reason(request: Request) -> str | None:
    """Why another problem is better for a request; None where this one is for it.

    Its devices are of one kind, and its stages and groups those that lie alike in the cluster. Where islands of equal devices
    tile the cluster, that leaves good plans of every depth (see `unlike_links`); where links are as they come, perhaps none.
    """
    kinds = [kind.name for kind in request.cluster.used_kinds] if request.cluster else list(request.profile.kinds)  # type: ignore[union-attr]
    if len(kinds) > 1:
        return f"devices are of {len(kinds)} kinds ({', '.join(kinds)}), and it takes them for equal"
    return unlike_links(request) if _network(request).tiles is None else None


def unlike_links(request: Request) -> str | None:
    """Which stages or groups of a request's devices have unlike links, so that no plan of the problem has them; None where all
    of a power of two of devices lie alike."""
    network = _network(request)
    if network.uniform:
        return None
    return _unlike(network, request.origin.devices, request.options.get("pipeline"))


def _network(request: Request) -> Network:
    return (request.cluster or request.profile).network  # type: ignore[union-attr]


def _unlike(network: Network, devices: int, depth: int | None) -> str | None:
    """What of the stages of a power of two of devices does not lie alike."""
    sizes = [size for size in divisors(devices) if size & (size - 1) == 0 and depth in (None, devices // size)]
    for size in sizes:
        if not stages_alike(network, size, devices // size):
            return f"links between stages of {size} of the {devices} devices are unlike"
        strategies = decision_tree(size, ckpt=False)
        if size > MOST_ALIKE or not all(groups_alike(network, devices, strategy) for strategy in strategies):
            return f"links within stages of {size} devices are unlike"
    return None
