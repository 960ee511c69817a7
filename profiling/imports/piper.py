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
- nodes without time and parameters are tensors: their memoryUsageA goes to their first reader.

algo.cpp costs a synchronisation as 4 (d-1)/d w bytes (a parameter server), trainplan as a ring of 2 (d-1)/d w.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
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
    nodes, tensors, after = _chain(source, graph)
    degrees = _degrees(source, nodes)
    parts = []
    for i, node in enumerate(nodes):
        kind = "embedding" if i == 0 else "head" if i == len(nodes) - 1 else "layer"
        content = _unit(source, node, degrees, kind, after[i - 1] if i else 0.0, after[i], tensors[i], options.device)
        parts.append((f"{node.name}-{node.id}", *content))
    island = {"devices": graph.devices, "bandwidth_bytes_per_s": graph.bandwidth_bytes_per_s, "origin": "imported"}
    return finished(
        sources,
        "Piper",
        options,
        {
            **chain(parts),
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


def _chain(source: Source, graph: Graph) -> tuple[list[Node], list[float], list[float]]:
    """The nodes that compute, in order; the tensors' bytes that each of them reads first; the bytes that go on from each.

    Raises InputError where they do not form one chain.
    """
    nodes = {node.id: node for node in graph.nodes}
    if len(nodes) < len(graph.nodes):
        raise source.fail("nodes", "have an id twice", "give each node its own id")
    following: dict[int, Edge] = {}
    readers: dict[int, list[int]] = {}  # of tensors: of nodes that compute nothing and have no parameters
    for node in graph.nodes:
        if not any(tmpc.seconds or tmpc.parameter_bytes for tmpcs in node.ways.values() for tmpc in tmpcs):
            readers[node.id] = []
    for i, edge in enumerate(graph.edges):
        for name, end in (("sourceId", edge.source), ("destId", edge.target)):
            if end not in nodes:
                raise source.fail(f"edges[{i}].{name}", f"is {end}", "give the id of a node")
        if edge.source in readers:
            readers[edge.source].append(edge.target)
        elif edge.target in readers or following.setdefault(edge.source, edge) is not edge:
            raise source.fail(f"edges[{i}]", "leaves a chain", "give a graph whose computing nodes form one chain")
    computing = [node.id for node in graph.nodes if node.id not in readers]
    targets = {edge.target for edge in following.values()}
    order = [id for id in computing if id not in targets][:1]
    while order and order[-1] in following and len(order) < len(nodes):
        order.append(following[order[-1]].target)
    if len(order) != len(computing) or set(order) != set(computing) or len(following) != len(computing) - 1:
        problem = f"join only {len(set(order))} of the {len(computing)} computing nodes in one chain"
        raise source.fail("edges", problem, "give a graph whose computing nodes form one chain")
    place, read_first = {id: i for i, id in enumerate(order)}, [0.0] * len(order)
    for tensor, targets_of in readers.items():
        if first := [place[reader] for reader in targets_of if reader in place]:
            tmpc = next(iter(nodes[tensor].ways.values()))[0]
            read_first[min(first)] += tmpc.sample_bytes
    return [nodes[id] for id in order], read_first, [following[id].bytes if id in following else 0.0 for id in order]


def _degrees(source: Source, nodes: Sequence[Node]) -> list[int]:
    """Tensor-parallel degrees that every node has a plain TMPC for. Raises InputError."""
    common = set.intersection(*({tp for tp in node.ways if node.way(tp, PLAIN)} for node in nodes))
    if 1 not in common:
        raise source.fail("TMPCs", f"lack {PLAIN!r} for degree 1 in some node", "give each node one")
    return sorted(common)


def _unit(
    source: Source,
    node: Node,
    degrees: Sequence[int],
    kind: str,
    before: float,
    after: float,
    tensor_bytes: float,
    device: str,
) -> tuple[dict[str, Any], list[Any]]:
    """A node's shape, without its name, and its costs. Raises InputError where its two TMPCs contradict each other."""
    plain = {tp: way for tp in degrees if (way := node.way(tp, PLAIN)) is not None}
    recomputed = {tp: node.way(tp, RECOMPUTED) for tp in degrees}
    kept_always = max((way.sample_bytes for way in recomputed.values() if way is not None), default=before)
    costs = []
    for tp, way in plain.items():
        forward = again = way.seconds * FORWARD_SHARE * 1e9
        other = recomputed[tp]
        if other is not None:
            again = (other.seconds - way.seconds) * 1e9
            for field, wrong in (("timePerSample", again < 0), ("memoryUsageA", other.sample_bytes > way.sample_bytes)):
                if wrong:
                    problem = f"contradicts {PLAIN!r} of degree {tp}: slower and smaller is what it must be"
                    raise source.fail(f"{field} of {RECOMPUTED!r} in node {node.id}", problem, "give each its own")
        backward = round(way.seconds * 1e9) - round(forward)
        kept_bytes = max(0.0, way.sample_bytes - kept_always)
        costs.append(cost("", device, tp, 1, forward, backward, kept_bytes, forward_without_graph_ns=again))
    parameters = {tp: round(way.parameter_bytes) for tp, way in plain.items()}
    return shape(kind, round(kept_always + tensor_bytes), round(after), parameters, reductions=0), costs


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
