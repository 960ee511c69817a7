"""How many devices of a kind a model needs: the fewest on which something fits, its plan, and plans on more of them."""

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
MOST = 2**17  # devices that are tried
SECONDS = 60.0  # of looking for the fewest
TIMES = (2, 4)  # as many devices, on which is planned, too
GAP, LEAST_SECONDS, MOST_SECONDS = 0.02, 2.0, 10.0  # of these plans, which get as long as the first one took


@dataclass(frozen=True)
class Sizes:
    """Plans on several numbers of devices of one kind.

    first: the plan on the fewest devices on which a plan was found, None where there is none; then `unknown` says why. tried:
    numbers of devices that are proven too few. larger: plans on more of them, quickly made. missed: numbers of devices below
    those of `first` on which no plan was found, and none is proven impossible.
    """

    first: PlanningResult | None
    tried: tuple[int, ...]
    unknown: str | None
    larger: tuple[PlanningResult, ...] = ()
    proven: bool = True  # of `unknown`: that none of them would do
    missed: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: the first plan as of `plan`."""
        rows = [
            {
                "devices": each.request.origin.devices,
                "step_ns": each.step_ns,
                "tokens_per_s_per_device": None if each.performance is None else each.performance.tokens_per_s_per_device,
                "unfinished": each.result.stopped is not None,
            }
            for each in self.larger
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
    """The least and the most devices that `any`, a number such as 64, or a range such as 16-512, says. Raises InputError."""
    if text.strip().lower() == ANY:
        return 1, MOST
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:(?:-|\.\.)\s*([0-9]{1,6})\s*)?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MOST:
        raise InputError(COMMAND_LINE, FLAG, f"is {shown(text)}", f"give any, a number, or a range such as 16-512, to {MOST}")
    return low, high


def a_node(cluster: FilePath | Cluster) -> Cluster:
    """One node of what a cluster is made of; of a kind alone, such as h100, a usual one. Raises InputError."""
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
    """Plans on the fewest devices of a kind on which something fits, and on more.

    request_on: the request on a cluster, and the preset that plans it; plan_on: its plan there. cluster: a kind, or nodes of
    it, of which only what a node is counts. devices: see `numbers_of`. progress: called with a text that names what is begun.
    Raises InputError.
    """
    (least, most), node = numbers_of(devices), a_node(cluster)
    if (smallest := next(clusters(node, least, most), None)) is None:
        size = node.nodes[0].devices
        raise InputError(COMMAND_LINE, FLAG, f"is {devices}, without whole nodes of {size}", f"give a multiple of {size}")
    request, preset = request_on(smallest)
    run = PlanningRun(request, preset, arguments={"gap": 0.0, "seed": 0, "progress": progress})
    too_few, missed, made, began = list[int](), list[int](), None, 0.0
    run.begin("looking for the fewest devices")
    for on in clusters(node, least, most):
        if run.elapsed() > SECONDS:
            unknown = f"more than {_last(too_few, missed)} GPUs; the time was up"
            return Sizes(None, tuple(too_few), unknown, proven=False, missed=tuple(missed))
        try:
            if something_fits(run, replace(request, cluster=on, obtained=[])) is False:
                too_few.append(on.devices)
                continue
            began = run.elapsed()
            made = plan_on(on)
        except InputError as error:
            if error.where == "cluster":
                unknown = f"more than {_last(too_few, missed)} GPUs are not known: the cluster {error.problem}"
                return Sizes(None, tuple(too_few), unknown, proven=False, missed=tuple(missed))
            continue  # a number of devices that the batch, the depth or the islands do not suit
        if made.plan is not None or made.interrupted:
            break
        (too_few if made.result.status == "infeasible" else missed).append(on.devices)
    if made is None or (made.plan is None and not made.interrupted):
        numbers = f"{least} to {most} GPUs" if most > least else plural(least, "GPU")
        unknown = f"no plan was found on {numbers}" if missed else f"none fits on {numbers} (proven)"
        return Sizes(None, tuple(too_few), unknown, proven=not missed, missed=tuple(missed))
    took = min(MOST_SECONDS, max(LEAST_SECONDS, run.elapsed() - began))
    larger = [] if made.interrupted else _larger(made, node, most, took, progress)
    return Sizes(made, tuple(too_few), None, tuple(larger), missed=tuple(missed))


def _last(*numbers: list[int]) -> int:
    return max((max(number) for number in numbers if number), default=0)


def clusters(node: Cluster, least: int, most: int) -> Iterator[Cluster]:
    """Parts of a node in powers of two, where it is named by its kind, and whole nodes, from the fewest devices on."""
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
    made: PlanningResult, node: Cluster, most: int, seconds: float, progress: Callable[[Any], None] | None
) -> Iterator[PlanningResult]:
    """Plans on more devices, each made in so many seconds."""
    for times in TIMES:
        wanted = made.request.origin.devices * times
        cluster = next(clusters(node, wanted, most), None)
        if cluster is None:
            return
        try:
            request = replace(made.request, cluster=cluster, obtained=[])
            yield planned(request, made.preset, gap=GAP, time_limit=seconds, progress=progress, beside=False)
        except InputError:
            continue  # a number of devices that the batch does not suit
