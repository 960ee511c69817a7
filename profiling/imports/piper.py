"""Piper's graphs (https://github.com/msr-fiddle/piper, README and algo.cpp; Tarnawski, Narayanan and Phanishayee, 2021).

Each node has, by tensor-parallel degree, several TMPCs ("tensor model parallelism configurations"): alternatives to run it. How
their numbers are read:
- a sample is a micro-batch; `timePerSample` is forward and backward together in seconds, tensor-parallel communication
  within the node included, so reductions = 0; it splits 1 : 2, and `activation recomp` takes one forward pass more;
- memory is memoryUsageA for each sample in flight, and memoryUsageB in addition: A of `vanilla` is input and kept_bytes, A of
  `activation recomp` what stays of them under checkpointing, taken as input_bytes; B holds states;
- `parameterSize` is what algo.cpp sends between replicas, taken at face value as bytes: parameter_bytes = 1. (In
  bert32a100.json it is the number of parameters, 12 h^2 + 13 h with h = 3840, and B twice that.)
- `communicationCost` is the bytes of an edge; syncTimeFw and syncTimeBw add what a stage of several devices gathers at its
  ends, which the project's re-layouts cost instead. `bandwidth` is that of one device, in bytes a second;
- nodes without time and parameters, and without inputs, are tensors: their memoryUsageA goes to their first reader;
- a graph with branches is the chain of its cuts (`_chain`).
algo.cpp costs a synchronisation as 4 (d-1)/d w bytes (a parameter server), trainplan as a ring of 2 (d-1)/d w.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, fsum
from typing import Annotated, Any

from pydantic import Field
from trainplan.profiling.base.files import parse
from trainplan.profiling.imports.source import (
    LARGEST_COUNT,
    LONGEST_S,
    MOST_BYTES,
    Foreign,
    Options,
    Source,
    chain,
    cost,
    finished,
    shape,
)
from trainplan.profiling.profiles import Profile

OPTIONS = ("memory_bytes",)
PLAIN, RECOMPUTED = "vanilla", "activation recomp"
FORWARD_SHARE = 1 / 3  # a backward pass takes twice the forward pass: Piper's recomputation costs show it within 5 %

Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Bytes = Annotated[float, Field(ge=0, le=MOST_BYTES, allow_inf_nan=False)]
Degree = Annotated[int, Field(ge=1, le=LARGEST_COUNT, strict=False)]  # a key of an object, and so a text
Positive = Annotated[float, Field(ge=1, le=MOST_BYTES, allow_inf_nan=False)]


class Tmpc(Foreign):
    """One alternative to run a node of Piper's graph (Piper: "tensor model parallelism configuration"): with or without
    recomputation of activations, with its time and memory, at one tensor-parallel degree.
    """

    id: str
    seconds: Seconds = Field(alias="timePerSample")
    parameter_bytes: Bytes = Field(alias="parameterSize")
    sample_bytes: Bytes = Field(alias="memoryUsageA")
    fixed_bytes: Bytes = Field(alias="memoryUsageB")
    gathered_before: dict[str, Bytes] = Field(alias="syncTimeFw")
    gathered_after: dict[str, Bytes] = Field(alias="syncTimeBw")


class Node(Foreign):
    """A node of Piper's graph, which is a layer or a tensor, with its alternatives to run it (TMPCs) by tensor-parallel
    degree.
    """

    id: int
    name: str = "node"
    tmpcs: Annotated[dict[Degree, Annotated[list[Tmpc], Field(min_length=1)]], Field(min_length=1)] = Field(alias="TMPCs")

    @property
    def computes(self) -> bool:
        """Whether the node takes time or has parameters in any of its alternatives; otherwise it is a tensor."""
        return any(tmpc.seconds or tmpc.parameter_bytes for tmpcs in self.tmpcs.values() for tmpc in tmpcs)

    def tmpc(self, tp: int, id: str) -> Tmpc | None:
        """The alternative (TMPC) for a tensor-parallel degree with this id, such as `vanilla`; None if there is none."""
        return next((tmpc for tmpc in self.tmpcs.get(tp, []) if tmpc.id == id), None)


class Edge(Foreign):
    """A connection of two nodes, given by their ids. bytes: size per sample of the tensor that goes from the first to the
    second.
    """

    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    bytes: Bytes = Field(alias="communicationCost")


class Graph(Foreign):
    """The content of a Piper file: devices with their memory and bandwidth, and the layers as a graph."""

    devices: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = Field(alias="maxDevices")
    memory_bytes: Positive = Field(alias="maxMemoryPerDevice")
    bandwidth_bytes_per_s: Positive = Field(alias="bandwidth")
    nodes: Annotated[list[Node], Field(min_length=1, max_length=10_000)]
    edges: Annotated[list[Edge], Field(max_length=1_000_000)]


def recognises(data: dict[str, Any]) -> bool:
    """Whether an object, read from a JSON file, is one of Piper's graphs."""
    return "nodes" in data or "maxMemoryPerDevice" in data


def read(sources: Sequence[Source], options: Options) -> Profile:
    """Build the profile from one Piper graph. Raises InputError for several files, or one that is invalid.

    options: the user's values for memory, cluster and name.
    """
    source = sources[0]
    if len(sources) > 1:
        raise sources[1].fail("", "is a second Piper graph", "give one: it holds the whole profile")
    graph = parse(source.data, Graph, where=source.path)
    parts = _chain(source, graph)
    nodes = [node for part in parts for node in part.nodes]
    degrees = _degrees(source, nodes)
    kinds = ["embedding", *["layer"] * (len(parts) - 2), "head"] if len(parts) > 1 else ["layer"]
    units = [(part.name, *_unit(source, part, degrees, kind, options.device)) for part, kind in zip(parts, kinds, strict=True)]
    island = {"devices": graph.devices, "bandwidth_bytes_per_s": graph.bandwidth_bytes_per_s, "origin": "imported"}
    return finished(
        sources,
        "Piper",
        options,
        {
            **chain(units),
            "name": source.stem,
            "parameter_bytes": 1,
            "state_bytes_per_parameter": _states(nodes),
            "devices": graph.devices,
            "memory_bytes": options.memory_bytes or int(graph.memory_bytes),
            "network": {"islands": [island]},
        },
        forward_of_recomputation=_check(nodes),
        optimizer="not in the file, so 0",
    )


@dataclass(frozen=True)
class Part:
    """Consecutive nodes of a Piper graph between two cuts of its topological order; each part becomes a unit of the profile.

    All numbers are bytes per sample. read_first: the input tensors (no node produces them) that are first read by these
    nodes. before: the tensors that pass the cut before these nodes; after: the tensors that pass the cut after them.
    """

    nodes: tuple[Node, ...]
    read_first: float
    before: float
    after: float

    @property
    def name(self) -> str:
        """The name of the part: the first node's name and id, such as "layer-3"."""
        return f"{self.nodes[0].name}-{self.nodes[0].id}"

    def tmpcs(self, tp: int, id: str) -> list[Tmpc] | None:
        """The alternatives (TMPCs) with one id, such as `vanilla`, of all nodes of the part, in order, for a tensor-parallel
        degree; None if some node has no such alternative.
        """
        tmpcs = [chosen for node in self.nodes if (chosen := node.tmpc(tp, id)) is not None]
        return tmpcs if len(tmpcs) == len(self.nodes) else None


def _chain(source: Source, graph: Graph) -> list[Part]:
    """Cut a Piper graph into a chain of parts: its nodes in a topological order, divided such that every tensor that enters a
    part is read by a node in it.

    Nodes without time and parameters that read nothing are tensors. A node's edges carry the same tensor, as large as the
    largest of them, and it passes a cut only once; edges without bytes only order nodes. source: the file, for errors. Raises
    InputError for an invalid graph.
    """
    nodes = {node.id: node for node in graph.nodes}
    if len(nodes) < len(graph.nodes):
        raise source.fail("nodes", "have an id twice", "give each node its own id")
    for i, edge in enumerate(graph.edges):
        for name, end in (("sourceId", edge.source), ("destId", edge.target)):
            if end not in nodes:
                raise source.fail(f"edges[{i}].{name}", f"is {end}", "give the id of a node")
    targets = {edge.target for edge in graph.edges}
    computing = [node.id for node in graph.nodes if node.computes or node.id in targets]
    if not computing:
        raise source.fail("nodes", "have neither time nor parameters", "give what the nodes take")
    _check_joined(source, graph)
    position = {id: i for i, id in enumerate(_order(source, computing, graph.edges))}
    tensor_bytes: dict[int, float] = defaultdict(float)  # by the node that makes it
    reads: dict[int, set[int]] = defaultdict(set)  # tensors by the node that reads them
    last: dict[int, int] = {}  # position of a tensor's last reader
    read_first: dict[int, float] = defaultdict(float)
    for edge in graph.edges:
        if edge.source in position and edge.bytes:
            tensor_bytes[edge.source] = max(tensor_bytes[edge.source], edge.bytes)
            reads[edge.target].add(edge.source)
            last[edge.source] = max(last.get(edge.source, 0), position[edge.target])
    for id in nodes.keys() - position.keys():
        if readers := [position[edge.target] for edge in graph.edges if edge.source == id]:
            read_first[min(readers)] += next(iter(nodes[id].tmpcs.values()))[0].sample_bytes
    parts: list[Part] = []
    unread: set[int] = set()
    passing: set[int] = set()
    first, before = 0, 0.0
    order = list(position)
    for i, id in enumerate(order):
        unread -= reads[id]
        passing = {tensor for tensor in passing | {id} if last.get(tensor, i) > i}
        if unread and i + 1 < len(order):
            continue
        after = sum(tensor_bytes[tensor] for tensor in sorted(passing))
        run = [nodes[id] for id in order[first : i + 1]]
        parts.append(Part(tuple(run), sum(read_first[j] for j in range(first, i + 1)), before, after))
        unread, first, before = set(passing), i + 1, after
    return parts


def _check_joined(source: Source, graph: Graph) -> None:
    """Raise InputError if the graph's edges do not connect all nodes. source: the file, for the error."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    connected = {graph.nodes[0].id}
    reached = list(connected)
    while reached:
        new = set(neighbours[reached.pop()]) - connected
        connected |= new
        reached += new
    if len(connected) < len(graph.nodes):
        problem = f"join only {len(connected)} of the {len(graph.nodes)} nodes"
        raise source.fail("edges", problem, "give the edges of one graph")


def _order(source: Source, ids: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Sort the ids of nodes topologically; the given order is kept where the edges allow it.

    source: the file, for errors. edges: all edges of the graph; those from nodes that are not in `ids` are ignored. Raises
    InputError if edges form a cycle.
    """
    following: dict[int, list[int]] = defaultdict(list)
    missing = dict.fromkeys(ids, 0)
    for edge in edges:
        if edge.source in missing:
            following[edge.source].append(edge.target)
            missing[edge.target] += 1
    rank = {id: i for i, id in enumerate(ids)}
    ready = [rank[id] for id in ids if not missing[id]]
    order = []
    while ready:
        id = ids[heappop(ready)]
        order.append(id)
        for target in following[id]:
            missing[target] -= 1
            if not missing[target]:
                heappush(ready, rank[target])
    if len(order) < len(ids):
        circle = next(i for i, edge in enumerate(edges) if missing.get(edge.source) and missing.get(edge.target))
        raise source.fail(f"edges[{circle}]", "is of a circle", "give a graph without circles")
    return order


def _degrees(source: Source, nodes: Sequence[Node]) -> list[int]:
    """The tensor-parallel degrees for which every node has an alternative without recomputation, ascending.

    source: the file, for errors. Raises InputError if 1 is not among them.
    """
    common = set.intersection(*({tp for tp in node.tmpcs if node.tmpc(tp, PLAIN)} for node in nodes))
    if 1 not in common:
        raise source.fail("TMPCs", f"lack {PLAIN!r} for degree 1 in some node", "give each node one")
    return sorted(common)


def _unit(source: Source, part: Part, degrees: Sequence[int], kind: str, device: str) -> tuple[dict[str, Any], list[Any]]:
    """Describe a part of the chain (consecutive nodes) in the form of a profile: returns its sub-layer, without a name, and
    its costs, one entry per tensor-parallel degree.

    source: the file, for errors. degrees: the tensor-parallel degrees. kind: the sub-layer's kind, such as "layer". device:
    the name of the profiled kind of device. Raises InputError if recomputation is stated to be faster or to keep more bytes.
    """
    plain = {tp: tmpcs for tp in degrees if (tmpcs := part.tmpcs(tp, PLAIN)) is not None}
    recomputed = {tp: part.tmpcs(tp, RECOMPUTED) for tp in degrees}
    saved = (_total(tmpcs, "sample_bytes") for tmpcs in recomputed.values() if tmpcs is not None)
    kept_always = max(saved, default=part.before)
    costs = []
    for tp, tmpcs in plain.items():
        seconds, sample_bytes = _total(tmpcs, "seconds"), _total(tmpcs, "sample_bytes")
        forward = recompute_ns = seconds * FORWARD_SHARE * 1e9
        if (others := recomputed[tp]) is not None:
            recompute_ns = (_total(others, "seconds") - seconds) * 1e9
            for node, tmpc, other in zip(part.nodes, tmpcs, others, strict=True):
                slower, smaller = other.seconds >= tmpc.seconds, other.sample_bytes <= tmpc.sample_bytes
                for field, right in (("timePerSample", slower), ("memoryUsageA", smaller)):
                    if not right:
                        problem = f"contradicts {PLAIN!r} of degree {tp}: slower and smaller is what it must be"
                        raise source.fail(f"{field} of {RECOMPUTED!r} in node {node.id}", problem, "give each its own")
        backward = round(seconds * 1e9) - round(forward)
        kept_bytes = max(0.0, sample_bytes - kept_always)
        costs.append(cost("", device, tp, 1, forward, backward, kept_bytes, forward_without_graph_ns=recompute_ns))
    parameters = {tp: round(_total(tmpcs, "parameter_bytes")) for tp, tmpcs in plain.items()}
    return shape(kind, round(kept_always + part.read_first), round(part.after), parameters, reductions=0), costs


def _total(tmpcs: Sequence[Tmpc], field: str) -> float:
    """The sum of one attribute, called `field`, over alternatives (TMPCs) of several nodes. tmpcs: one alternative per node."""
    return fsum(getattr(tmpc, field) for tmpc in tmpcs)


def _states(nodes: Sequence[Node]) -> int:
    """Bytes of model states per byte of parameters: the largest memoryUsageB / parameterSize of all alternatives without
    recomputation, rounded up, at least 1.
    """
    plain = [tmpc for node in nodes for tmpcs in node.tmpcs.values() for tmpc in tmpcs if tmpc.id == PLAIN]
    ratios = [tmpc.fixed_bytes / tmpc.parameter_bytes for tmpc in plain if tmpc.parameter_bytes >= 1]
    return max(1, ceil(max(ratios, default=1.0)))


def _check(nodes: Sequence[Node]) -> str:
    """Summarise how much time recomputation adds, over all nodes: the range of the added time in thirds of the node's time
    without recomputation, as a text such as "0.98 to 1.02 of a third". One third is expected if forward and backward pass take
    1 : 2.
    """
    ratios = []
    for node in nodes:
        plain, recomputed = node.tmpc(1, PLAIN), node.tmpc(1, RECOMPUTED)
        if plain and recomputed and plain.seconds:
            ratios.append((recomputed.seconds / plain.seconds - 1) / FORWARD_SHARE)
    return f"{min(ratios):.3f} to {max(ratios):.3f} of a third" if ratios else "not in the file"
