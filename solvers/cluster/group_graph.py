"""A graph of the device groups that one pipeline may go through, stage by stage, and of the transfers between them.

A node is a type of tensor-parallel groups (those that cost the same), the ring of its data-parallel groups (the kind of link
that they synchronise over), and the devices used so far of its class. Two facts of the rest of the cluster are kept in it:

  - A group that lies in one class, with data-parallel groups of ring q, takes at least tmp u(q) of that class's devices for its
    stage: each of its tmp devices has a data-parallel group of its own, with at least u(q) devices of that class, the fewest of
    any composition with that ring (where the tmp groups differ in q, the one with the least u(q) will do for all: it needs no
    more devices, and its D, the time of its gradient all-reduce, is no more). So a run of stages in one class ends when its
    devices are used up, and the next transfer leaves the class. Whether it comes back is left open.
  - Groups in several classes are taken at the best: each device has the fastest transfer to any of the group that it may meet,
    and the fastest all-reduce of any data-parallel group with a device of its class; the slowest of the group's devices counts.
    Between such a group and one in a single class, some device's transfer is to another class.

So every pipeline of every strategy is a walk through the graph that costs no more than the pipeline does. Classes of devices
that may be exchanged as a whole form an orbit.

A table that embedding and head share is reduced over all devices of the first and the last stage. Within one class that may be
far faster than elsewhere; so walks that begin and end in one class have a graph of their own, see `GroupGraph.homed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase, orbits
from trainplan.formulations.cluster_strategy.placement_costs import Integers

MOST_PAIRS = 40_000  # of groups that a pipeline may come from and go to; beyond, no pipeline is followed
MOST_HOMED = 3_000  # nodes of a graph whose walks end where they begin; beyond, all walks count as if they did


class TooLong(Exception):
    """Raised if there are too many groups of devices to follow a pipeline through them, or time has run out."""


@dataclass(frozen=True)
class GroupType:
    """A type of tensor-parallel groups (the devices that hold one stage of one pipeline): all groups of equal cost.

    profile: the index of the groups' layer times and memory. weight: the sum of their devices' weights. size: the number of
    devices of one class that a group takes, 0 for groups with devices of several classes. inner: the index of the link within
    that class. sync: for groups in several classes, the index of their least all-reduce time D among `syncs`; else -1."""

    profile: int
    weight: int
    size: int
    inner: int
    sync: int


class GroupGraph:
    """The graph of the device groups that one pipeline may go through, stage by stage, and of the transfers between them; every
    pipeline of every strategy with the given degrees of parallelism is a walk through it that costs no more than the pipeline.

    Vocabulary: a walk is a sequence of nodes joined by edges, one node for each pipeline stage; devices of one class are
    interchangeable; an orbit is a set of classes that may be exchanged as a whole, named by its first class. A node is a type
    of tensor-parallel groups (groups of equal cost), a ring (the kind of link over which the stage's data-parallel groups
    reduce gradients), and the number of devices used so far of the group's class. An edge is a transfer between neighbouring
    stages. L is the number of layers.

    For every node: types, rings, orbits (the least orbit of its devices), used (devices of its class so far), whether a run of
    stages in its class begins there (starts), and whether a walk may begin or end there (initial, final). For every edge,
    sorted by target: targets, sources, and moves_ns, (edges, L + 1), the transfer in ns if the cut comes before each of L
    layers. heads: nodes with edges into them; begins: the first edge of each. syncs: (rings, L + 1, L + 1), the all-reduce time
    in ns of each ring entry [.., a, b] for a stage of layers a to b - 1, without the reduction of a table shared by embedding
    and head."""

    def __init__(self, case: DegreeCase, weights: Sequence[int], stop: Callable[[], bool]) -> None:
        """Build the graph. weights: the weight of a device of each class. stop: returns whether to give up. Raises TooLong."""
        assert case.reduced
        self.case, alike = case, orbits(case.instance)
        self._links: dict[tuple[int, int, bool], Integers | None] = {}
        syncs, rings = list(case.sync_ns), {row.tobytes(): q for q, row in enumerate(case.sync_ns)}
        types: dict[GroupType, set[frozenset[int]]] = {}  # with the orbits of their devices
        for composition, profile in zip(case.groups, case.profile_of, strict=True):
            classes = [c for c, taken in enumerate(composition) if taken]
            weight = sum(composition[c] * weights[c] for c in classes)
            if len(classes) == 1:
                c = classes[0]
                kind = GroupType(profile, weight, case.counts[c], int(case.link_of[c, c]), -1)
            else:
                row = np.max([self._least_syncs[alike[c]] for c in classes], axis=0)
                if row.tobytes() not in rings:
                    rings[row.tobytes()] = len(syncs)
                    syncs.append(row)
                kind = GroupType(profile, weight, 0, -1, rings[row.tobytes()])
            types.setdefault(kind, set()).add(frozenset(alike[c] for c in classes))
        if sum(map(len, types.values())) ** 2 > MOST_PAIRS:
            raise TooLong
        self.syncs = np.stack(syncs)
        self._add_nodes(types)
        self._add_edges(types, stop)

    def _add_nodes(self, types: dict[GroupType, set[frozenset[int]]]) -> None:
        """Create the nodes for all types of tensor-parallel groups. types: each type, with the sets of orbits (classes of
        devices that may be exchanged as a whole) that its groups' devices come from."""
        nodes: list[tuple[GroupType, int, int, int]] = []  # type, ring, devices of a stage, devices used
        for kind, sets in types.items():
            for q, taken in self._rings(kind, frozenset().union(*sets)) if kind.size else [(kind.sync, 0)]:
                nodes += [(kind, q, taken, used) for used in (range(taken, kind.size + 1) if taken else [0])]
        self._nodes = nodes
        self.types = [kind for kind, *_ in nodes]
        self.rings = [q for _, q, *_ in nodes]
        self.used = [used for *_, used in nodes]
        self.starts = self.initial = [used == taken for _, _, taken, used in nodes]
        self.final = [True] * len(nodes)
        self.orbits = [min(frozenset().union(*types[kind])) for kind, *_ in nodes]

    def _add_edges(self, types: dict[GroupType, set[frozenset[int]]], stop: Callable[[], bool]) -> None:
        """Create the edges: between stages in one class as long as its devices last, and between classes by the fastest
        transfer. types: each type of groups, with the sets of orbits of its devices. stop: returns whether to give up. Raises
        TooLong then."""
        moves: dict[tuple[GroupType, GroupType], Integers | None] = {}
        for before, after in product(types, types):
            if stop():
                raise TooLong
            moves[before, after] = self._between(before, after, types)
        rows, edges = [], []
        for target, (kind, _, own, used) in enumerate(self._nodes):
            for source, (other, _, _, taken) in enumerate(self._nodes):
                if kind == other and kind.size and taken + own == used and kind.inner >= 0:
                    edges.append((target, source))
                    rows.append(self.case.transfer_ns[kind.inner])
                if used == own and (move := moves[other, kind]) is not None:
                    edges.append((target, source))
                    rows.append(move)
        layers = self.case.instance.layers
        moves_ns = np.zeros((len(edges), layers + 1), np.int64)
        if edges and layers > 1:
            moves_ns[:, 1:-1] = rows
        self._set_edges(edges, moves_ns)

    def _set_edges(self, edges: Sequence[tuple[int, int]], moves_ns: Integers) -> None:
        """Store the edges in arrays. edges: (target node, source node) of each, sorted. moves_ns: (edges, L + 1), the transfer
        in ns if the cut comes before each of L layers."""
        self.targets, self.sources = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
        self.moves_ns = moves_ns
        self.heads, self.begins = np.unique(self.targets, return_index=True)

    def tied(self, tied_ns: int) -> GroupGraph:
        """A copy of the graph in which the all-reduces of the first stage and of the last one also take tied_ns, the time in ns
        to reduce the gradients of a table shared by embedding and head."""
        graph = copy(self)
        graph.syncs = self.syncs.copy()
        graph.syncs[:, 0, :-1] += tied_ns
        graph.syncs[:, :, -1] += tied_ns
        return graph

    def homed(self) -> GroupGraph | None:
        """The graph of only those walks whose first and last stage lie in one class of devices, their home; None if it would be
        too large.

        Such a walk begins with a run of stages at home, which takes some of its devices, and unless it stays there comes back
        in a run that takes no more devices than the first run leaves. So for each type of groups, and each number of devices
        that the first run may take, the new graph has one copy of this graph, with the nodes of the first run before it.
        """
        nodes: list[int] = []
        initial: list[bool] = []
        final: list[bool] = []
        edges: list[tuple[int, int, int]] = []
        base = list(enumerate(zip(self.targets.tolist(), self.sources.tolist(), strict=True)))
        for kind in dict.fromkeys(kind for kind in self.types if kind.size):
            home = [node for node, other in enumerate(self.types) if other == kind]
            for begun in sorted({self.used[node] for node in home}):
                first = {node: len(nodes) + index for index, node in enumerate(n for n in home if self.used[n] <= begun)}
                after = len(nodes) + len(first)
                nodes += [*first, *range(len(self.types))]
                initial += [self.starts[node] for node in first] + [False] * len(self.types)
                back = [self.types[n] == kind and self.used[n] + begun <= kind.size for n in range(len(self.types))]
                final += [True] * len(first) + back
                for edge, (target, source) in base:
                    edges.append((after + target, after + source, edge))
                    if source in first and self.starts[target]:
                        edges.append((after + target, first[source], edge))
                    elif source in first and target in first:
                        edges.append((first[target], first[source], edge))
                if len(nodes) > MOST_HOMED:
                    return None
        graph = copy(self)
        graph.types, graph.starts = [self.types[node] for node in nodes], [self.starts[node] for node in nodes]
        graph.rings, graph.orbits, graph.used = (
            [column[node] for node in nodes] for column in (self.rings, self.orbits, self.used)
        )
        graph.initial, graph.final = initial, final
        edges.sort()
        graph._set_edges([(target, source) for target, source, _ in edges], self.moves_ns[[edge for *_, edge in edges]])
        return graph

    @cached_property
    def _least_syncs(self) -> dict[int, Integers]:
        """For each orbit, (L + 1, L + 1): the least time in ns of a gradient all-reduce of any data-parallel group that has a
        device of this orbit; entry [a, b] is for a stage of layers a to b - 1."""
        case, alike = self.case, orbits(self.case.instance)
        rings: dict[int, set[int]] = {}
        for composition, q in zip(case.replicas, case.ring_of, strict=True):
            for orbit, taken in zip(alike, composition, strict=True):
                if taken:
                    rings.setdefault(orbit, set()).add(q)
        return {orbit: case.sync_ns[sorted(ring_indices)].min(axis=0) for orbit, ring_indices in rings.items()}

    def _between(self, before: GroupType, after: GroupType, types: dict[GroupType, set[frozenset[int]]]) -> Integers | None:
        """The least transfer times in ns, (L - 1,), from a group of one type to a group of another type in another class of
        devices, for a cut after each layer; None if there is no link.

        types: all types of groups, with the sets of orbits of their devices. before, after: the types of the sending and of the
        receiving group. If one group lies in one class and the other group in several, some device of the latter is of another
        class than the former's, which is taken into account."""
        apart = bool(before.size and after.size)
        transfers = []
        for sending, receiving in product(types[before], types[after]):
            rows = [_least([self._link(a, b, apart) for b in receiving]) for a in sending]
            rows += [_least([self._link(a, b, apart) for a in sending]) for b in receiving]
            if bool(before.size) != bool(after.size):
                rows.append(_least([self._link(a, b, True) for a in sending for b in receiving]))
            slowest = [row for row in rows if row is not None]
            if len(slowest) == len(rows):
                transfers.append(np.max(slowest, axis=0))
        return _least(transfers)

    def _link(self, a: int, b: int, apart: bool) -> Integers | None:
        """The fastest transfer in ns, (L - 1,), between devices of orbits a and b, for a cut after each layer; None if there is
        no link. a, b: indices of the orbits. apart: count only links between devices of different classes."""
        if (a, b, apart) not in self._links:
            links = self.case.link_of[np.ix_(self._classes[a], self._classes[b])]
            possible = sorted(set(links[(links >= 0) & ~(apart & (self._classes[a][:, None] == self._classes[b]))].tolist()))
            self._links[a, b, apart] = self.case.transfer_ns[possible].min(axis=0) if possible else None
        return self._links[a, b, apart]

    @cached_property
    def _classes(self) -> dict[int, Integers]:
        """For each orbit, the indices of the device classes in it, which may be exchanged as a whole."""
        alike = np.array(orbits(self.case.instance))
        return {orbit: np.flatnonzero(alike == orbit) for orbit in sorted(set(alike.tolist()))}

    def _rings(self, kind: GroupType, alike: frozenset[int]) -> list[tuple[int, int]]:
        """The rings (kinds of links for gradient reduction) that data-parallel groups with devices of one class may use: pairs
        of the ring's index and the least number of the class's devices that a stage then takes.

        kind: the type of the stage's tensor-parallel groups, all in one class. alike: orbits of their devices. A ring that
        takes no fewer devices than another and reduces nowhere faster is left out."""
        case, least = self.case, dict[int, int]()
        for composition, q in zip(case.replicas, case.ring_of, strict=True):
            for c, orbit in enumerate(orbits(case.instance)):
                if composition[c] and orbit in alike:
                    least[q] = min(least.get(q, kind.size + 1), composition[c] * case.degrees.tmp)
        rings = {q: count for q, count in least.items() if count <= kind.size}

        def beaten(q: int) -> bool:
            """Whether another ring needs no more devices and synchronises as fast everywhere."""
            return any(
                rings[p] <= rings[q]
                and (case.sync_ns[p] <= case.sync_ns[q]).all()
                and ((rings[p] < rings[q]) or (case.sync_ns[p] < case.sync_ns[q]).any() or p < q)
                for p in rings
                if p != q
            )

        return [(q, ring) for q, ring in rings.items() if not beaten(q)]


def graphs(case: DegreeCase, weights: Sequence[int], stop: Callable[[], bool]) -> list[GroupGraph]:
    """Build the graphs of the device groups that a pipeline may go through, stage by stage: every pipeline is a walk (a
    sequence of nodes, one per stage) in at least one of them. They count the reduction of the gradients of a table shared by
    embedding and head.

    case: the instance with one choice of degrees of parallelism, reduced: groups of devices that differ only by an exchange of
    equal classes of devices are listed only once. weights: for each class, the weight of one device. stop: returns whether to
    give up. Raises TooLong if the graph would be too large, or on `stop`."""
    graph, (within, elsewhere) = GroupGraph(case, weights, stop), case.least_tied_by_class_ns
    if within is None or (elsewhere is not None and elsewhere <= within):
        return [graph.tied(case.least_tied_ns)]
    if (homed := graph.homed()) is None:
        return [graph.tied(within)]
    return [homed.tied(within)] + ([] if elsewhere is None else [graph.tied(elsewhere)])


def _least(rows: Sequence[Integers | None]) -> Integers | None:
    """The element-wise minimum of several arrays of equal shape. rows: the arrays; None stands for an array of infinite
    entries. Returns None if all are None."""
    finite = [row for row in rows if row is not None]
    return np.min(finite, axis=0) if finite else None
