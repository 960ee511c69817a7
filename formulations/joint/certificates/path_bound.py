"""Checks, in whole numbers, what weighted paths through the passes of a schedule prove about every pipeline of a configuration
(point 4 of `certificates.check`).

A path is followed backwards: from the optimizer step of a device group, past the sum of gradients that it waits for, to the
group's last backward pass, and from each pass on to one that it waits for, of its own group or of another stage. The passes on
a path wait for each other, so the step of a solution is no shorter than the sum of its own times along any path. With whole
numbers w >= 0 for paths r, and y, h >= 0 for the memory E and F of each stage's device and host,

    W step  >=  sum_r w_r path_r  +  sum_x y_x (memory_x - E) + h_x (host_x - F),        W = sum_r w_r

for every solution that fits, as the factors of y and h are then at most 0; memory_x is the memory of stage x while its last
unit's pass runs, which is at most its peak. The right side is a sum over units, boundaries and cuts. Its least value, over all
cuts and all options, is a shortest path along the units by stage and interface state. All numbers are whole, and nothing is
rounded until that value is divided by W. The proof does not depend on where paths and numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from trainplan.formulations.joint.certificates.file import ConfigurationEvidence, WeightedPath
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.simulation import graph_of
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary
from trainplan.formulations.numbers import Integers

Counts = Mapping[str, list[int]]  # by name of a time of `StageTimes`, of each stage
UNREACHED = np.int64(2**61)  # more than any sum that is compared; two of them can be added
LARGEST = 2.0**60  # of all sums
TIMES = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns", "message_forward_ns", "message_backward_ns")
CROSSING = (TIMES[0], TIMES[1], TIMES[5], TIMES[6])


def least_by_paths_ns(instance: Instance, configuration: Configuration, claim: ConfigurationEvidence) -> int:
    """A lower bound in ns on the step of every plan of a configuration, from weighted paths through its schedule's passes and
    prices of memory. For configurations with one stage on each of several equal device groups. claim: the evidence with
    paths and prices. instance: the configurations to choose from, with costs and memory limits. configuration: one
    schedule, number of micro-batches and division into device groups, with the costs of all options. Raises ValueError
    if its paths do not follow the schedule, or its numbers are too large.
    """
    stages, memory, host = configuration.stages, claim.memory, claim.host or (0,) * configuration.stages
    if len(memory) != stages or len(host) != stages or min((*memory, *host, *(path.weight for path in claim.paths))) < 0:
        raise ValueError("weights and prices of paths are not one for each stage, or below 0")
    whole = sum(path.weight for path in claim.paths)
    if whole <= 0:
        raise ValueError("paths weigh nothing")
    counts, constant = path_counts(instance, configuration, claim.paths)
    device, host_limit = (
        instance.limit_bytes(configuration.device_groups[0]),
        instance.host_limit_bytes(configuration.device_groups[0]),
    )
    if host_limit is None and any(host):
        raise ValueError("hosts have prices, and their memory is not limited")
    least = _Chain(instance, configuration, counts, memory, host).least()
    return -((sum(memory) * device + sum(host) * (host_limit or 0) - constant - least) // whole)


def path_counts(instance: Instance, configuration: Configuration, paths: Sequence[WeightedPath]) -> tuple[Counts, int]:
    """The coefficients of a weighted sum of paths through a schedule. Returns, by the name of a time, for each stage the sum
    of the weights of the paths that contain the time (once per occurrence); and the weighted sum in ns of the times on the
    paths that belong to no stage. paths: the weighted paths. instance: the configurations to choose from, with costs and
    memory limits. configuration: one schedule, number of micro-batches and division into device groups, with the costs of
    all options. Raises ValueError if a path does not follow the schedule's passes.
    """
    graph, last = graph_of(configuration), configuration.stages - 1
    tied_ns = 0 if configuration.tied is None else configuration.tied.reduce_ns
    counts, constant = {name: [0] * configuration.stages for name in TIMES}, 0
    for path in paths:
        both_ends = tied_ns > 0 and {path.last_pass_group, path.end} <= {0, last}
        if not (0 <= path.last_pass_group <= last and (path.end == path.last_pass_group or both_ends)) or path.turns < 1:
            raise ValueError("a path ends nowhere")
        counts["optimizer_ns"][path.end] += path.weight
        counts["reduce_ns"][path.last_pass_group] += path.weight
        constant += tied_ns * path.weight * both_ends
        turns, node = bin(path.turns)[:2:-1], graph.last[path.last_pass_group]  # without the leading 1, the last digit first
        turn = 0
        while True:
            earlier, duration, _ = graph.nodes[node]
            for name, x in duration:
                counts[name][x] += path.weight
            if not earlier:
                break
            if len(earlier) > 1:
                if turn == len(turns):
                    raise ValueError("a path breaks off")
                node, turn = earlier[int(turns[turn])], turn + 1
            else:
                node = earlier[0]
    return counts, constant


class _Chain:
    """The units (sub-layers or layers that have one option each) of a configuration (schedule, number of micro-batches and
    device groups) as one chain from embedding to head. Each option, and each boundary between units, has a cost: its times,
    weighted by the paths of a proof, and its bytes, multiplied by prices of memory. The cheapest choice of cuts and options
    bounds the step from below.
    """

    def __init__(
        self, instance: Instance, configuration: Configuration, counts: Counts, memory: Sequence[int], host: Sequence[int]
    ) -> None:
        """counts: by name, for each stage, the sum of the weights of the paths on which that time of the stage lies. memory,
        host: for each stage, the price of a byte on its device and on its host. Raises ValueError if sums may not fit into
        64 bits."""
        self.instance, self.configuration, self.stages = instance, configuration, configuration.stages
        self.tables = configuration.tables[configuration.device_groups[0].kind]
        in_flight = [configuration.in_flight(x) for x in range(self.stages)]
        flying = [price * depth for price, depth in zip(memory, in_flight, strict=True)]
        self._refuse_large(counts, memory, flying, host)
        by_name = {name: np.array(counts[name], np.int64)[:, None] for name in TIMES}
        prices, flown, hosts = (np.array(numbers, np.int64)[:, None] for numbers in (memory, flying, host))
        forward, backward = by_name["forward_ns"], by_name["backward_ns"]
        self.inner, self.first, self.last = [], [], []  # by kind of unit, (p, S): each, and what first and last ones add
        for table in self.tables.units:
            cost = sum(by_name[name] * getattr(table, name) for name in TIMES[:5])
            held = prices * table.state_bytes + flown * (table.kept_bytes + table.held_bytes) + hosts * table.host_bytes
            self.inner.append(cost + held)
            self.first.append(forward * table.head_ns + backward * table.tail_ns)
            self.last.append(backward * table.turn_ns + prices * table.work_bytes)
        self.inside, self.across = [], []  # by kind of boundary: (p, C, D) in a stage, (p - 1, C, D) between two
        forward, backward, into, back = (by_name[name][:, None] for name in CROSSING)
        for boundary in self.tables.boundaries:
            apart, there, again, sent, returned = self._crossing(boundary)
            across = forward[1:] * there + backward[:-1] * again + into[1:] * sent + back[:-1] * returned
            self.inside.append(np.where(apart, UNREACHED, forward * there + backward * again))
            self.across.append(np.where(apart, UNREACHED, across))

    def _crossing(self, boundary: Boundary) -> tuple[Integers, ...]:
        """The costs of one kind of boundary by interface states (layouts of activations), C before and D after the boundary, as
        five arrays: whether two states may not be neighbours, (C, D); re-layouts forward and backward, (C, D); and messages
        forward and backward, (p - 1, C, D) for p stages. Costs are 0 if states may not be neighbours.
        """
        links = list(self.configuration.links)
        crossings = [boundary.relayout_forward_ns, boundary.relayout_backward_ns]
        apart = np.maximum(*crossings) >= FORBIDDEN
        crossings += [boundary.message_forward_ns[links], boundary.message_backward_ns[links]]
        return apart, *(np.where(apart, 0, times) for times in crossings)

    def _refuse_large(self, counts: Counts, memory: Sequence[int], flying: Sequence[int], host: Sequence[int]) -> None:
        """Raise ValueError if sums of the chain may not fit into 64 bits; the largest possible sum is computed in floats.

        counts: by the name of a time, for each stage its weight. memory, host: for each stage, the price of a byte on the
        device and on the host. flying: for each stage, the price of a byte that every micro-batch in flight (forward pass
        done, backward pass not yet) holds.
        """
        factor = {name: float(max(values)) for name, values in counts.items()}
        dearest, flown, hosts = (float(max(values)) for values in (memory, flying, host))
        of_unit = []
        for table in self.tables.units:
            passes = factor["forward_ns"] * (table.forward_ns + table.head_ns).max()
            passes += factor["backward_ns"] * (table.backward_ns + table.tail_ns + table.turn_ns).max()
            passes += sum(factor[name] * getattr(table, name).max() for name in TIMES[2:5])
            sizes = dearest * (table.state_bytes + table.work_bytes).max() + flown * (table.kept_bytes + table.held_bytes).max()
            of_unit.append(passes + sizes + hosts * table.host_bytes.max())
        of_boundary = [
            sum(factor[name] * times.max(initial=0) for name, times in zip(CROSSING, self._crossing(boundary)[1:], strict=True))
            for boundary in self.tables.boundaries
        ]
        total = sum(of_unit[unit.kind] for unit in self.instance.units)
        total += sum(of_boundary[kind] for kind in self.instance.boundary_kinds)
        if total >= LARGEST or max((*factor.values(), dearest, flown, hosts)) >= LARGEST:
            raise ValueError("weights and prices of paths are too large to be checked in 64 bits")

    def least(self) -> int:
        """The least sum of weighted times and priced memory over all cuts and options of the chain; a number of at least
        `UNREACHED` if there is no solution."""
        instance, cuts, stages = self.instance, self.configuration.cuts, self.stages
        states_in = 1 + max(int(table.enter.max()) for table in self.tables.units)
        states_out = 1 + max(int(table.leave.max()) for table in self.tables.units)
        inner, first = np.full((2, stages, states_in), UNREACHED)
        first[0] = 0
        left, ended = np.full((2, stages, states_out), UNREACHED)
        for l, unit in enumerate(instance.units):
            table = self.tables.units[unit.kind]
            if l:
                boundary = instance.boundary_kinds[l - 1]
                inner, first = np.full((2, stages, states_in), UNREACHED)
                within = (left[:, :, None] + self.inside[boundary][:, :states_out, :states_in]).min(axis=1)
                inner[:, : within.shape[1]] = np.minimum(within, UNREACHED)
                if instance.cuttable[l - 1]:
                    between = (ended[:-1, :, None] + self.across[boundary][:, :states_out, :states_in]).min(axis=1)
                    for x in range(1, stages):
                        if cuts is None or cuts[x - 1] == l:
                            first[x, : between.shape[1]] = np.minimum(between[x - 1], UNREACHED)
            begun = first[:, table.enter] + self.first[unit.kind]
            through = np.minimum(np.minimum(inner[:, table.enter], begun) + self.inner[unit.kind], UNREACHED)
            after = np.minimum(through + self.last[unit.kind], UNREACHED)
            left, ended = np.full((2, stages, states_out), UNREACHED)
            for state in np.unique(table.leave):
                here = table.leave == state
                left[:, state], ended[:, state] = through[:, here].min(axis=1), after[:, here].min(axis=1)
        return int(ended[-1].min())
