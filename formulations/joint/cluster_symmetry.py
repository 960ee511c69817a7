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
    """Whether `count` stages of `size` consecutive devices each have equal links, so that the costs of one stage hold for all
    of them: each island of the network holds whole stages, or each stage holds whole islands. An island is a set of devices
    that are linked directly, such as a node.
    """
    return count == 1 or alike_over(network, size * count, Strategy.of(("dp", size)))


def groups_alike(network: Network, devices: int, strategy: Strategy) -> bool:
    """Whether, on the first `devices` devices of a network, all groups of ranks that a strategy forms have equal links, at each
    of its parallelism levels, so that one group's time stands for all."""
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
    """The pairs of devices that send to each other between two consecutive stages, grouped by kind of link: for each kind, one
    list of (device, device) pairs. group: the number of devices of a stage. The link from the last stage to the first is
    included, since interleaved stages use it. profile: measured or estimated costs of the model's sub-layers and of the
    devices' links.
    """
    pairs: dict[Any, Pairs] = {}
    for ranks in _all_pairs(profile, group):
        pairs.setdefault(_links_of(profile.network, ranks), ranks)
    return list(pairs.values())


def stage_links(profile: Profile, group: int, chunks: int) -> tuple[int, ...]:
    """For each stage but the last, the index in the result of `stage_pairs` of the kind of link to the next stage. group: the
    number of devices of a stage. chunks: the number of stages on each device group. profile: measured or estimated costs of
    the model's sub-layers and of the devices' links.
    """
    kinds = [_links_of(profile.network, ranks) for ranks in stage_pairs(profile, group)]
    ring = [kinds.index(_links_of(profile.network, ranks)) for ranks in _all_pairs(profile, group)]
    depth = profile.devices // group
    return tuple(ring[x % depth] for x in range(depth * chunks - 1))


def _all_pairs(profile: Profile, group: int) -> list[Pairs]:
    """For each group of devices in the pipeline, the pairs (device, device) that send messages between this group and the
    next; the first group follows the last. Where all pairs have equal links, one pair stands for all. Empty for a single
    group. group: the number of devices of a group. profile: measured or estimated costs of the model's sub-layers and of
    the devices' links.
    """
    devices, alike = profile.devices, stages_alike(profile.network, group, profile.devices // group)
    starts = range(0, devices, group) if group < devices else ()
    return [[(first + x, (first + group) % devices + x) for x in range(1 if alike else group)] for first in starts]


def _links_of(network: Network, ranks: Pairs) -> tuple[tuple[float, int], ...]:
    """The different links, as (bytes per second, latency in ns), over which some pairs of devices send. ranks: the pairs of
    devices, as indices in the network."""
    links = {network.link(tuple(sorted(pair)), "p2p") for pair in ranks}
    return tuple(sorted((link.bandwidth_bytes_per_s, link.latency_ns) for link in links))


MOST_ALIKE = 1024  # devices of a stage, up to which its groups are compared one by one


def unsupported_reason(request: Request) -> str | None:
    """The reason, in words, why the joint problem (schedule, micro-batches, stages and strategies chosen together) does not
    apply to a request, so that another problem should plan it; None if it applies.

    It applies if all devices are of one kind and their links are regular. If equal islands of devices (such as nodes) tile
    the cluster, there are stages with equal links for every number of stages; if links are given for single pairs of
    devices, there may be none. request: the user's model, cluster, batch and options.
    """
    kinds = [kind.name for kind in request.cluster.used_kinds] if request.cluster else list(request.profile.kinds)  # type: ignore[union-attr]
    if len(kinds) > 1:
        return f"devices are of {len(kinds)} kinds ({', '.join(kinds)}), and it takes them for equal"
    return unlike_links(request) if _network(request).tiles is None else None


def unlike_links(request: Request) -> str | None:
    """Which stages or groups of a request's devices have unequal links, in words, so that no plan of the joint problem uses
    them; None if all stages and groups of a power of two of devices have equal links. request: the user's model, cluster,
    batch and options.
    """
    network = _network(request)
    if network.uniform:
        return None
    return _unlike(network, request.origin.devices, request.options.get("pipeline"))


def _network(request: Request) -> Network:
    """The network of a request's cluster or, if the request has no cluster, of its profile. request: the user's model,
    cluster, batch and options.
    """
    return (request.cluster or request.profile).network  # type: ignore[union-attr]


def _unlike(network: Network, devices: int, depth: int | None) -> str | None:
    """The first stages, or groups of ranks, of a power of two of devices whose links are unequal, as a text; None if all have
    equal links. devices: the number of devices. depth: the only number of stages to check; None for all.
    """
    sizes = [size for size in divisors(devices) if size & (size - 1) == 0 and depth in (None, devices // size)]
    for size in sizes:
        if not stages_alike(network, size, devices // size):
            return f"links between stages of {size} of the {devices} devices are unlike"
        strategies = decision_tree(size, ckpt=False)
        if size > MOST_ALIKE or not all(groups_alike(network, devices, strategy) for strategy in strategies):
            return f"links within stages of {size} devices are unlike"
    return None
