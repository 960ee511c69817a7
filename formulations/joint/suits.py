"""Whether the joint problem of a request holds every pipeline of equal stages that its devices have, or leaves some out."""

from __future__ import annotations

from trainplan.formulations.joint.sites import groups_alike, stages_alike
from trainplan.formulations.request import Request
from trainplan.formulations.strategies import decision_tree
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.network import Network

MOST_ALIKE = 1024  # devices of a stage whose groups are looked at one by one, where links are no powers of two


def unsuited(request: Request) -> str | None:
    """What the joint problem does not state of a request; None where it states all of it.

    Its stages lie alike in the cluster, and devices are of one kind. In clusters of mixed kinds, or where some numbers of
    stages or groups of devices have unlike links, it has fewer plans than there are.
    """
    kinds = [kind.name for kind in request.cluster.used_kinds] if request.cluster else list(request.profile.kinds)  # type: ignore[union-attr]
    if len(kinds) > 1:
        return f"devices are of {len(kinds)} kinds ({', '.join(kinds)}), and it takes them for equal"
    network = (request.cluster or request.profile).network  # type: ignore[union-attr]
    if network.uniform:
        return None
    return _unlike(network, request.origin.devices, request.options.get("pipeline"))


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
