"""The fewest devices of a kind on which a model fits, with the plan there and quick plans on larger numbers of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainplan.planning.planner import planned
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.presets import Preset
from trainplan.planning.result import PlanningResult
from trainplan.planning.shortage import something_fits
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.nodes import cluster_of_nodes, names_nodes, node_of
from trainplan.profiling.clusters.sheets import kind_named

FLAG = "--devices"
ANY = "any"
MOST = 2**17  # devices that are tried at most
SECONDS = 60.0  # for the search for the fewest devices
TIMES = (2, 4)  # multiples of the fewest devices for which plans are made, too
GAP, LEAST_SECONDS, MOST_SECONDS = 0.02, 2.0, 10.0  # of the searches for these plans, which last as long as the first


@dataclass(frozen=True)
class Sizes:
    """Plans of one request on several numbers of devices of one kind.

    Attributes:
        first: the result with the plan on the fewest devices on which one was found; None if none was.
        tried: numbers of devices that are proven too small.
        unknown: why there is no first plan; None if there is one.
        larger: results of quick searches on more devices.
        proven: whether all requested numbers of devices are proven too small, if there is no first plan.
        missed: numbers of devices below those of `first` on which no plan was found, though it is not proven that there is
            none.
    """

    first: PlanningResult | None
    tried: tuple[int, ...]
    unknown: str | None
    larger: tuple[PlanningResult, ...] = ()
    proven: bool = True
    missed: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The numbers of devices as a JSON-ready dict, without the plans. Keys: `fewest_devices` (the fewest with a plan, None
        if none was found), `too_few` (list of numbers that are proven too small), `no_plan_found` (list of smaller numbers
        without a plan or a proof), `unknown` (why no number was found, else None), and `larger`, for each larger number a dict
        with `devices`, `step_ns`, `tokens_per_s_per_device` and `unfinished` (whether its search ended early)."""
        rows = [
            {
                "devices": result.request.origin.devices,
                "step_ns": result.step_ns,
                "tokens_per_s_per_device": None if result.performance is None else result.performance.tokens_per_s_per_device,
                "unfinished": result.result.stopped is not None,
            }
            for result in self.larger
        ]
        found = None if self.first is None else self.first.request.origin.devices
        return {
            "fewest_devices": found,
            "too_few": list(self.tried),
            "no_plan_found": list(self.missed),
            "unknown": self.unknown,
            "larger": rows,
        }


def numbers_of(text: str) -> tuple[int, int]:
    """The least and the most devices that an option's text requests: "any" -> (1, MOST), "64" -> (64, 64), "16-512" -> (16,
    512). Raises InputError for other texts.
    """
    if text.strip().lower() == ANY:
        return 1, MOST
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:(?:-|\.\.)\s*([0-9]{1,6})\s*)?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MOST:
        raise InputError(COMMAND_LINE, FLAG, f"is {shown(text)}", f"give any, a number, or a range such as 16-512, to {MOST}")
    return low, high


def a_node(cluster: FilePath | Cluster) -> Cluster:
    """The node from which clusters of other sizes are built: one node of the given cluster, or the usual node of a kind of
    device if only a kind is given, such as "h100".

    A cluster of unlike nodes is returned as it is. Raises InputError for an unknown kind or file.
    """
    if isinstance(cluster, str) and re.fullmatch(r"[\w .+-]+", cluster) and not re.search(r"\.(ya?ml|json)$", cluster):
        try:
            return node_of(kind_named(cluster, "--cluster"))
        except InputError:
            pass  # a shipped cluster or a file
    loaded = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    counted, *settings = loaded.name.split(",")
    if names_nodes(loaded.name):
        return cluster_of_nodes(",".join([re.sub(r"[xX][0-9]+$", "", counted), *settings]))
    return loaded.with_nodes(1) if len(loaded.nodes) == 1 and loaded.nodes[0].count == 1 else loaded


def sized(
    request_on: Callable[[Cluster], tuple[Any, Preset]],
    plan_on: Callable[[Cluster], PlanningResult],
    cluster: FilePath | Cluster,
    devices: str,
    *,
    progress: Callable[[Any], None] | None = None,
) -> Sizes:
    """The plan on the fewest devices of a kind on which the request fits, and quick plans on more devices.

    Args:
        request_on: makes the request on a cluster, and names the preset that plans it.
        plan_on: plans that request on a cluster.
        cluster: a kind of device, or a cluster of which only the node matters.
        devices: the numbers of devices to try, see `numbers_of`.
        progress: called with a text that names the step that begins.

    Raises:
        InputError: if the numbers hold no whole nodes, and whatever `request_on` raises.
    """
    (least, most), node = numbers_of(devices), a_node(cluster)
    if (smallest := next(clusters(node, least, most), None)) is None:
        size = node.nodes[0].devices
        raise InputError(COMMAND_LINE, FLAG, f"is {devices}, without whole nodes of {size}", f"give a multiple of {size}")
    request, preset = request_on(smallest)
    run = PlanningRun(request, preset, arguments={"gap": 0.0, "seed": 0, "progress": progress})
    too_few, missed, found, began = list[int](), list[int](), None, 0.0
    run.begin("looking for the fewest devices")
    for candidate in clusters(node, least, most):
        if run.elapsed() > SECONDS:
            unknown = f"more than {_last(too_few, missed)} GPUs; the time was up"
            return Sizes(None, tuple(too_few), unknown, proven=False, missed=tuple(missed))
        try:
            if something_fits(run, replace(request, cluster=candidate, obtained=[])) is False:
                too_few.append(candidate.devices)
                continue
            began = run.elapsed()
            found = plan_on(candidate)
        except InputError as error:
            if error.where == "cluster":
                unknown = f"more than {_last(too_few, missed)} GPUs are not known: the cluster {error.problem}"
                return Sizes(None, tuple(too_few), unknown, proven=False, missed=tuple(missed))
            continue  # the batch, the depth or the islands cannot use this number of devices
        if found.plan is not None or found.interrupted:
            break
        (too_few if found.result.status == "infeasible" else missed).append(candidate.devices)
    if found is None or (found.plan is None and not found.interrupted):
        numbers = f"{least} to {most} GPUs" if most > least else plural(least, "GPU")
        unknown = f"no plan was found on {numbers}" if missed else f"none fits on {numbers} (proven)"
        return Sizes(None, tuple(too_few), unknown, proven=not missed, missed=tuple(missed))
    took = min(MOST_SECONDS, max(LEAST_SECONDS, run.elapsed() - began))
    larger = [] if found.interrupted else _larger(found, node, most, took, progress)
    return Sizes(found, tuple(too_few), None, tuple(larger), missed=tuple(missed))


def _last(*numbers: list[int]) -> int:
    """The largest of all numbers in the given lists; 0 if all lists are empty."""
    return max((max(number) for number in numbers if number), default=0)


def clusters(node: Cluster, least: int, most: int) -> Iterator[Cluster]:
    """Clusters of a given node with `least` to `most` devices, smallest first: parts of one node in powers of two, if the node
    is named by its kind of device, then whole nodes."""
    size = node.nodes[0].devices
    counted, *settings = node.name.split(",")
    if names_nodes(node.name):
        kind = counted.partition(":")[0]
        part = 1
        while part < size:
            if least <= part <= most:
                yield cluster_of_nodes(",".join([f"{kind}:{part}", *settings]))
            part *= 2
    for count in range(max(1, -(-least // size)), most // size + 1):
        yield node if count == node.nodes[0].count else node.with_nodes(count)


def _larger(
    first: PlanningResult, node: Cluster, most: int, seconds: float, progress: Callable[[Any], None] | None
) -> Iterator[PlanningResult]:
    """Quick plans on two and four times the devices of a result; numbers of devices that the batch cannot use are left out.

    first: the result. node: the node that the larger clusters consist of. most: the most devices to try. seconds: the time
    limit of each search. progress: called with a text that names the step that begins.
    """
    for times in TIMES:
        wanted = first.request.origin.devices * times
        cluster = next(clusters(node, wanted, most), None)
        if cluster is None:
            return
        try:
            request = replace(first.request, cluster=cluster, obtained=[])
            yield planned(request, first.preset, gap=GAP, time_limit=seconds, progress=progress, compare_single_strategy=False)
        except InputError:
            continue  # the batch cannot use this number of devices
