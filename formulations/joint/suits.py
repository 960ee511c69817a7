"""Whether the joint problem of a request holds every pipeline of equal stages that its devices have, or leaves some out."""

from __future__ import annotations

from trainplan.formulations.joint.cluster_symmetry import groups_alike, stages_alike
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import decision_tree
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.network import Network

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
