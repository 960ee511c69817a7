"""Piper's graphs (https://github.com/msr-fiddle/piper, README and algo.cpp; Tarnawski, Narayanan and Phanishayee, 2021).

Each node has, by tensor-parallel degree, TMPCs: ways to run it. Readings taken:

- a sample is a micro-batch; `timePerSample` is forward and backward together in seconds, tensor-parallel communication
  within the node included, so reductions = 0; it splits 1 : 2, and `activation recomp` takes one forward pass more;
- memory is memoryUsageA for each sample in flight and memoryUsageB beside: A of `vanilla` is input and kept_bytes, A of
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
    """One way to run a node: tensor parallelism, memory saved or not."""

    id: str
    seconds: Seconds = Field(alias="timePerSample")
    parameter_bytes: Bytes = Field(alias="parameterSize")
    sample_bytes: Bytes = Field(alias="memoryUsageA")
    fixed_bytes: Bytes = Field(alias="memoryUsageB")
    gathered_before: dict[str, Bytes] = Field(alias="syncTimeFw")
    gathered_after: dict[str, Bytes] = Field(alias="syncTimeBw")


class Node(Foreign):
    """A layer or a tensor of the graph: `ways` has its TMPCs by tensor-parallel degree."""

    id: int
    name: str = "node"
    ways: Annotated[dict[Degree, Annotated[list[Tmpc], Field(min_length=1)]], Field(min_length=1)] = Field(alias="TMPCs")

    @property
    def computes(self) -> bool:
        """Whether it has time or parameters."""
        return any(tmpc.seconds or tmpc.parameter_bytes for tmpcs in self.ways.values() for tmpc in tmpcs)

    def way(self, tp: int, id: str) -> Tmpc | None:
        """The TMPC of a degree by its id; None where there is none."""
        return next((tmpc for tmpc in self.ways.get(tp, []) if tmpc.id == id), None)


class Edge(Foreign):
    """Bytes of one sample that go from one node to another."""

    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    bytes: Bytes = Field(alias="communicationCost")


class Graph(Foreign):
    """Piper's whole input: devices with their memory and bandwidth, and the layers as a graph."""

    devices: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = Field(alias="maxDevices")
    memory_bytes: Positive = Field(alias="maxMemoryPerDevice")
    bandwidth_bytes_per_s: Positive = Field(alias="bandwidth")
    nodes: Annotated[list[Node], Field(min_length=1, max_length=10_000)]
    edges: Annotated[list[Edge], Field(max_length=1_000_000)]


def recognises(data: dict[str, Any]) -> bool:
    """Whether an object, read from a file, is a graph of Piper's."""
    return "nodes" in data or "maxMemoryPerDevice" in data


def read(sources: Sequence[Source], options: Options) -> Profile:
    """The profile of one Piper graph. Raises InputError."""
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
    """Nodes that follow each other, between two cuts of the chain. Bytes of one sample: read_first, of tensors that no node
    makes and that are read here first; before and after, what passes the two cuts."""

    nodes: tuple[Node, ...]
    read_first: float
    before: float
    after: float

    @property
    def name(self) -> str:
        """The first node's name and id."""
        return f"{self.nodes[0].name}-{self.nodes[0].id}"

    def ways(self, tp: int, id: str) -> list[Tmpc] | None:
        """The nodes' TMPCs of a degree by their id; None where one has none."""
        ways = [way for node in self.nodes if (way := node.way(tp, id)) is not None]
        return ways if len(ways) == len(self.nodes) else None


def _chain(source: Source, graph: Graph) -> list[Part]:
    """The chain of a graph: the nodes in a topological order, cut wherever each tensor that passes one cut and the next is read
    between the two, so that those who read a tensor pay for it, and nobody else. Raises InputError.

    Nodes without time and parameters that read nothing are tensors. A node's edges carry one tensor, as large as the largest of
    them, and a cut passes it once; edges without bytes only order.
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
    place = {id: i for i, id in enumerate(_order(source, computing, graph.edges))}
    tensor_bytes: dict[int, float] = defaultdict(float)  # by the node that makes it
    reads: dict[int, set[int]] = defaultdict(set)  # tensors by the node that reads them
    last: dict[int, int] = {}  # place of a tensor's last reader
    read_first: dict[int, float] = defaultdict(float)
    for edge in graph.edges:
        if edge.source in place and edge.bytes:
            tensor_bytes[edge.source] = max(tensor_bytes[edge.source], edge.bytes)
            reads[edge.target].add(edge.source)
            last[edge.source] = max(last.get(edge.source, 0), place[edge.target])
    for id in nodes.keys() - place.keys():
        if readers := [place[edge.target] for edge in graph.edges if edge.source == id]:
            read_first[min(readers)] += next(iter(nodes[id].ways.values()))[0].sample_bytes
    parts: list[Part] = []
    unread: set[int] = set()
    passing: set[int] = set()
    first, before = 0, 0.0
    order = list(place)
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
    """Raises InputError where the graph is in several parts."""
    beside: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        beside[edge.source].append(edge.target)
        beside[edge.target].append(edge.source)
    met = {graph.nodes[0].id}
    reached = list(met)
    while reached:
        new = set(beside[reached.pop()]) - met
        met |= new
        reached += new
    if len(met) < len(graph.nodes):
        problem = f"join only {len(met)} of the {len(graph.nodes)} nodes"
        raise source.fail("edges", problem, "give the edges of one graph")


def _order(source: Source, ids: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """The nodes in a topological order, else in the file's. Raises InputError where edges form a circle."""
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
    """Tensor-parallel degrees that every node has a plain TMPC for. Raises InputError."""
    common = set.intersection(*({tp for tp in node.ways if node.way(tp, PLAIN)} for node in nodes))
    if 1 not in common:
        raise source.fail("TMPCs", f"lack {PLAIN!r} for degree 1 in some node", "give each node one")
    return sorted(common)


def _unit(source: Source, part: Part, degrees: Sequence[int], kind: str, device: str) -> tuple[dict[str, Any], list[Any]]:
    """A part's shape, without its name, and its costs. Raises InputError where its two TMPCs contradict each other."""
    plain = {tp: ways for tp in degrees if (ways := part.ways(tp, PLAIN)) is not None}
    recomputed = {tp: part.ways(tp, RECOMPUTED) for tp in degrees}
    kept_always = max((_total(ways, "sample_bytes") for ways in recomputed.values() if ways is not None), default=part.before)
    costs = []
    for tp, ways in plain.items():
        seconds, sample_bytes = _total(ways, "seconds"), _total(ways, "sample_bytes")
        forward = again = seconds * FORWARD_SHARE * 1e9
        if (others := recomputed[tp]) is not None:
            again = (_total(others, "seconds") - seconds) * 1e9
            for node, way, other in zip(part.nodes, ways, others, strict=True):
                slower, smaller = other.seconds >= way.seconds, other.sample_bytes <= way.sample_bytes
                for field, right in (("timePerSample", slower), ("memoryUsageA", smaller)):
                    if not right:
                        problem = f"contradicts {PLAIN!r} of degree {tp}: slower and smaller is what it must be"
                        raise source.fail(f"{field} of {RECOMPUTED!r} in node {node.id}", problem, "give each its own")
        backward = round(seconds * 1e9) - round(forward)
        kept_bytes = max(0.0, sample_bytes - kept_always)
        costs.append(cost("", device, tp, 1, forward, backward, kept_bytes, forward_without_graph_ns=again))
    parameters = {tp: round(_total(ways, "parameter_bytes")) for tp, ways in plain.items()}
    return shape(kind, round(kept_always + part.read_first), round(part.after), parameters, reductions=0), costs


def _total(ways: Sequence[Tmpc], field: str) -> float:
    return fsum(getattr(way, field) for way in ways)


def _states(nodes: Sequence[Node]) -> int:
    """Bytes of memoryUsageB for each byte of parameterSize, rounded up; the largest of the plain TMPCs."""
    plain = [tmpc for node in nodes for tmpcs in node.ways.values() for tmpc in tmpcs if tmpc.id == PLAIN]
    ratios = [tmpc.fixed_bytes / tmpc.parameter_bytes for tmpc in plain if tmpc.parameter_bytes >= 1]
    return max(1, ceil(max(ratios, default=1.0)))


def _check(nodes: Sequence[Node]) -> str:
    """What recomputation adds, relative to a third of the time without it: 1 where the split 1 : 2 is right."""
    ratios = []
    for node in nodes:
        plain, recomputed = node.way(1, PLAIN), node.way(1, RECOMPUTED)
        if plain and recomputed and plain.seconds:
            ratios.append((recomputed.seconds / plain.seconds - 1) / FORWARD_SHARE)
    return f"{min(ratios):.3f} to {max(ratios):.3f} of a third" if ratios else "not in the file"
