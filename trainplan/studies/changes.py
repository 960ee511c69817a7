"""Keywords of a study's requests that `plan` and `build` do not have: changes of the cluster, and prices.

devices, nodes              another size of the cluster, in whole nodes of its kind, or part of one node
network, nvlink, flops      factors on numbers of the cluster, as `plan --what-if` takes them
price, tokens, pue, watts   what a training costs; they change no plan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trainplan.inputs import cluster_of
from trainplan.planning.fewest_devices import a_node, clusters
from trainplan.planning.what_if import changed_cluster, factors_of
from trainplan.prediction.training_costs import CostRates
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.clusters.cluster import Cluster

FACTORS = ("network", "nvlink", "flops")
SIZES = ("devices", "nodes")
COSTS = tuple(field.name for field in fields(CostRates))
CHANGES = (*SIZES, *FACTORS, *COSTS)


def keywords_of(request: Mapping[str, Any]) -> tuple[dict[str, Any], CostRates]:
    """The keywords of `plan` or `build` for a study's request, and its prices.

    A request with a size or factors gets a `Cluster` in place of the cluster's name. request: by keyword; entries that are None
    are left out. Raises InputError for sizes that the cluster cannot have, for bad factors and prices, and for a change of a
    cluster where there is none.
    """
    given = {name: value for name, value in request.items() if value is not None}
    kept = {name: value for name, value in given.items() if name not in CHANGES}
    factors = factors_of({name: given[name] for name in FACTORS if name in given})
    sizes = [name for name in SIZES if name in given]
    if (sizes or factors) and "cluster" not in given:
        raise InputError(
            COMMAND_LINE, "--cluster", "is missing, and its size or links are to change", "give one, such as h100:8"
        )
    if sizes:
        kept["cluster"] = resized(given["cluster"], sizes[0], given[sizes[0]])
    if factors:
        kept["cluster"] = changed_cluster(cluster_of(kept["cluster"], kept.pop("reserve", None)), factors)
    return kept, CostRates(**{name: given[name] for name in COSTS if name in given})


def resized(cluster: Any, size: str, count: int) -> Cluster:
    """A cluster of the same nodes with another number of devices or nodes.

    cluster: a name, a kind of device such as h100, a file, or a Cluster. size: "devices" or "nodes". count: how many. Raises
    InputError if the cluster's nodes do not come in that number.
    """
    node = a_node(cluster)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(COMMAND_LINE, f"--{size}", f"is {count!r}", "give a whole number of at least 1")
    if size == "nodes":
        return node if count == 1 else node.with_nodes(count)
    found = next(clusters(node, count, count), None)
    if found is None:
        of_node = node.nodes[0].devices
        raise InputError(COMMAND_LINE, "--devices", f"is {count}, and a node has {of_node}", f"give a multiple of {of_node}")
    return found
