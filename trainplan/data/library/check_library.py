#!/usr/bin/env python3
"""Check an entry of trainplan's library of instances: its best solution, a solution of your own, and its lower bound.

    python check_library.py ENTRY.json[.gz] [SOLUTION.json]
    python check_library.py ENTRY.json[.gz] INSTANCE.json [SOLUTION.json]     for an entry whose `instance` is null
    python check_library.py INSTANCE.json SOLUTION.json                       the value and the violations alone

This file needs Python's standard library alone and shares no code with trainplan. docs/library.md describes the files. Times
are whole nanoseconds, memory is whole bytes, and all arithmetic is on integers.

It prints the value of the solution, the constraints that it violates, the lower bound that follows from the entry's evidence,
and a verdict. Of an entry that says that nothing fits, it proves that. Exit codes: 0 everything holds, 1 something does not, 2
a file cannot be read, or a proof cannot be followed.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple


class Value(NamedTuple):
    """The value of a solution of an instance.

    value: its objective in ns, which is minimised. peak_bytes: the memory of the fullest device; None where the problem counts
    none. violations: a text for each constraint that the solution breaks; empty if it is feasible.
    """

    value: int
    peak_bytes: int | None
    violations: list[str]


class Wrong(Exception):
    """A file, a solution or evidence that is not of the documented form, or that proves less than it claims."""


class Checks(NamedTuple):
    """The functions that check the entries of one problem.

    evaluate: takes an instance and a solution (both as the JSON of their files); returns the solution's `Value`. bounds: by the
    kind of evidence, a function of the instance, the evidence and the bound that it claims, in ns; it returns the bound that
    the evidence proves, and raises `Wrong` where it proves nothing. infeasible: whether it is proven of an instance that no
    solution fits; False if one fits or may fit. uncompared: why the bounds are not of a solution; empty if they are.
    """

    evaluate: Callable[[dict[str, Any], dict[str, Any]], Value]
    bounds: dict[str, Callable[[dict[str, Any], dict[str, Any], int], int]]
    infeasible: Callable[[dict[str, Any]], bool]
    uncompared: Callable[[dict[str, Any]], str] = lambda solution: ""


# ---- layer-strategies --------------------------------------------------------------------------------------------------------
#
# A chain: what layer-strategies, memory-switches and the stages of pipeline and galvatron-engine have in common. Every layer
# takes one `Arc`; a choice is a path of arcs, of which each enters the node that the one before left. With T the sum of times
# and
#
#     peak = max_l ( sum_{k<=l} kept_k + own_l ) + sum_k state_k
#
# the problem is to find the path of least T whose peak is at most the memory of a device. Two facts give lower bounds.
#
# Price: for w >= 0, T >= T + w (peak - memory) on every path that fits, and peak is at least the sum of kept and state plus own
# of the last layer. So the cheapest path of T + w (kept + state), with w own at the last layer, less w memory, is a lower
# bound.
#
# Exhaustion: paths are built from the last layer to the first. A label (t, c, h, m) stands for the layers from l on: their time
# and second time, the peak over their own passes, and their states. An arc before them makes it
#
#     t + time,     c + second,     max(h, own + m) + kept + state,     m + state.
#
# A label is dropped if the layers before l cannot be added within the memory, or within a limit of the second time; if, by the
# price of the rest, it completes to no less than the claim; or if another label at the same node has no larger t, c, h and m.
# If no label of all layers is left, every path that fits takes at least as long as the claim.

MOST_LABELS = 4_000_000  # extensions of labels in the proof of one entry, some ten seconds
NEVER = 1 << 80  # larger than every time and every number of bytes


class Arc(NamedTuple):
    """One choice of a layer of a chain.

    enter, leave: nodes before and after the layer. time: ns. kept: bytes from the forward to the backward pass. own: further
    bytes during the layer's own pass. state: bytes for the whole step. second: another time in ns, whose sum may have a limit.
    """

    enter: int
    leave: int
    time: int
    kept: int
    own: int
    state: int
    second: int = 0


ChainLabel = tuple[int, int, int, int]  # (t, c, h, m), as in the head of this section


class TimeCap(NamedTuple):
    """A limit of the sum of second times, in ns. mixes: pairs (p, q), by which completions are priced at p time + q second."""

    limit: int
    mixes: tuple[tuple[int, int], ...]


class Spent(Exception):
    """The proof needs more labels than are allowed."""


class Effort:
    """Counts the labels of a proof. left: how many are still allowed."""

    def __init__(self, left: int = MOST_LABELS) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        """Use up `count` labels. Raises `Spent` if there are not as many."""
        self.left -= count
        if self.left < 0:
            raise Spent


def useful_arcs(arcs: list[Arc]) -> list[Arc]:
    """The arcs without those that another arc between the same nodes replaces at no more time and bytes."""
    kept: dict[tuple[int, int], list[Arc]] = {}
    for arc in sorted(arcs):
        others = kept.setdefault(arc[:2], [])
        if not any(all(a <= b for a, b in zip(other[3:], arc[3:], strict=True)) for other in others):
            others.append(arc)
    return [arc for others in kept.values() for arc in others]


def priced_paths(chain: list[list[Arc]], memory: int, price: tuple[int, int]) -> tuple[int, int, list[dict[int, int]]]:
    """The bound at a price of w = price[0] / price[1] ns a byte.

    Returns the least of price[1] times the bound, over all paths; the bytes by which the path of that bound exceeds the memory,
    counted as in the bound; and, for every layer, by node, the least priced cost of the layers before it. NEVER where there is
    no path.
    """
    bytes_price, time_price = price
    before, sums = {arc.enter: (0, 0) for arc in chain[0]}, []
    for number, arcs in enumerate(chain):
        last = number == len(chain) - 1
        sums.append({node: cost for node, (cost, _) in before.items()})
        after: dict[int, tuple[int, int]] = {}
        for enter, leave, time, kept, own, state, _ in arcs:
            if enter in before:
                cost, size = before[enter]
                size += kept + state + (own if last else 0)
                cost += time_price * time + bytes_price * (size - before[enter][1])
                if leave not in after or (cost, size) < after[leave]:
                    after[leave] = cost, size
        before = after
    cost, size = min(before.values(), default=(NEVER, 0))
    return cost - bytes_price * memory, size - memory, sums


def best_price(chain: list[list[Arc]], memory: int) -> tuple[int, int] | None:
    """The price (numerator, denominator) of the largest bound; None if no path fits.

    The bound is a concave function of the price, the lower envelope of a line for every path: the next price is where the lines
    of the paths of the last two prices meet, one of which is over the memory and one within it.
    """
    low, high = priced_paths(chain, memory, (0, 1)), priced_paths(chain, memory, (1, 0))
    if low[1] <= 0:
        return 0, 1
    if high[0] > 0:
        return None
    lines = [(low[0], low[1]), (sum(max(arc.time for arc in arcs) for arcs in chain), high[1])]
    price = (0, 1)
    for _ in range(40):
        (least, over), (most, under) = lines
        if over == under:
            break
        price = (most - least, over - under)
        bound, excess, _ = priced_paths(chain, memory, price)
        time = (bound - price[0] * excess) // price[1]
        if bound == price[1] * least + price[0] * over or (time, excess) in lines:
            break
        lines[excess <= 0] = (time, excess)
    return price


def ratio_up(numerator: int, denominator: int) -> int:
    """A quotient, rounded up."""
    return -(-numerator // denominator)


def price_bound(chain: list[list[Arc]], memory: int) -> int:
    """The largest bound by one price, in ns; NEVER if no path fits."""
    price = best_price(chain, memory)
    return NEVER if price is None else ratio_up(priced_paths(chain, memory, price)[0], price[1])


def exhausted(chain: list[list[Arc]], memory: int, claim: int, effort: Effort, cap: TimeCap | None = None) -> tuple[int, int]:
    """The least time of a path that fits, or `claim` if that is not larger: by exhaustion. Also the least second time of the
    paths of that time (0 where there is no `cap`, which sets a limit to it). Raises `Spent`."""
    if cap is None:
        cap, chain = TimeCap(NEVER, ((1, 0),)), [[arc._replace(second=0) for arc in arcs] for arcs in chain]
    rests, one = [], [[arc._replace(time=arc.second) for arc in arcs] for arcs in chain]
    for first, second in cap.mixes:
        mixed = [[arc._replace(time=first * arc.time + second * arc.second) for arc in arcs] for arcs in chain]
        best = best_price(mixed, memory)
        if best is None:
            return claim, 0
        for part in (8, 7, 9, 5, 12) if best[0] else (8,):
            price = best[0] * part, best[1] * 8
            most = price[1] * (first * (claim - 1) + second * (cap.limit if second else 0)) + price[0] * memory
            rests.append((price[1] * first, price[1] * second, price[0], most, priced_paths(mixed, memory, price)[2]))
    least_bytes, least_second, reach = (
        priced_paths(chain, memory, (1, 0))[2],
        priced_paths(one, memory, (0, 1))[2],
        most_reach(chain),
    )
    labels = {arc.leave: [(0, 0, -NEVER, 0)] for arc in chain[-1]}
    for l in range(len(chain) - 1, -1, -1):
        longer: dict[int, list[ChainLabel]] = {}
        effort.spend(sum(len(labels.get(arc.leave, ())) for arc in chain[l]))
        for enter, leave, time, kept, own, state, second in chain[l]:
            if leave not in labels or enter not in least_bytes[l]:
                continue
            fullest, latest = memory - least_bytes[l][enter], cap.limit - least_second[l][enter] - second
            found = [
                (t + time, c + second, (h if h > own + m else own + m) + kept + state, m + state)
                for t, c, h, m in labels[leave]
                if c <= latest
            ]
            found = [label for label in found if label[2] <= fullest]
            for of_time, of_second, of_bytes, most, sums in rests:
                left = most - sums[l][enter]
                found = [label for label in found if of_time * label[0] + of_second * label[1] + of_bytes * label[2] <= left]
            longer.setdefault(enter, []).extend((t, c, h, max(m, h - reach[l])) for t, c, h, m in found)
        labels = {node: undominated_labels(found, effort) for node, found in longer.items() if found}
    # Labels that are not below the claim may be left, but paths between it and them are not.
    return min([(claim, 0), *(found[0][:2] for found in labels.values())])


def chain_fits(chain: list[list[Arc]], memory: int, effort: Effort) -> bool:
    """Whether any path fits: by exhaustion, with all times 0. Raises `Spent`."""
    return (
        exhausted([useful_arcs([arc._replace(time=0, second=0) for arc in arcs]) for arcs in chain], memory, 1, effort)[0] == 0
    )


def most_reach(chain: list[list[Arc]]) -> list[int]:
    """For every layer l, the most by which the peak of an earlier layer can exceed the bytes that all layers before l keep.

    States m of the layers from l on matter only by the own passes of the layers before, which reach m + reach. Below h - reach
    they do not matter, as h is larger then; so labels may raise m to that.
    """
    reach, found = -NEVER, []
    for arcs in chain:
        found.append(reach)
        reach = max(max(arc.own, reach - arc.kept) for arc in arcs)
    return found


def undominated_labels(labels: list[ChainLabel], effort: Effort) -> list[ChainLabel]:
    """The labels (t, c, h, m) that no other one equals or beats in all numbers, by t."""
    kept, hs, ms = (
        list[ChainLabel](),
        list[int](),
        list[int](),
    )  # of the labels so far, the least m for each h: hs ascend, ms descend
    alone = all(label[1] == 0 for label in labels)
    for label in sorted(labels):
        _, c, h, m = label
        if not alone:
            effort.spend(len(kept) // 16)
            if not any(b <= c and g <= h and n <= m for _, b, g, n in kept):
                kept.append(label)
            continue
        index = bisect_right(hs, h)
        if index and ms[index - 1] <= m:
            continue
        kept.append(label)
        end = index = bisect_left(hs, h)
        while end < len(hs) and ms[end] >= m:
            end += 1
        hs[index:end], ms[index:end] = [h], [m]
    return kept


def exhaustion(chain: list[list[Arc]], memory: int, claim: int) -> int:
    """The bound that exhaustion of a chain proves: the claim, or the least time of a path that fits if that is less. Raises
    `Wrong` if it takes too many labels."""
    try:
        return exhausted(chain, memory, claim, Effort())[0]
    except Spent:
        raise Wrong(f"the exhaustion takes more than {MOST_LABELS} labels") from None


def cuts_fit(stages: int, layers: int, fits: Callable[[int, int, int], bool]) -> bool:
    """Whether stages may fit: no if there are more of them than layers, or if layers are left after every stage in turn has
    taken as many as fit into it. fits: whether a stage of the layers first to end - 1 fits; it then fits with fewer, too."""
    first = 0
    for stage in range(stages):
        end, over = first, layers + 1
        while over - end > 1:
            middle = (end + over) // 2
            end, over = (middle, over) if fits(stage, first, middle) else (end, middle)
        first = end
    return first == layers >= stages


def chosen_numbers(solution: dict[str, Any], name: str, most: list[int]) -> list[int]:
    """The list of whole numbers in a field of a solution, of which each is at least 0 and below its entry of `most`. Raises
    `Wrong` if the field is another."""
    found = solution.get(name)
    if not isinstance(found, list) or len(found) != len(most) or not all(type(number) is int for number in found):
        raise Wrong(f"{name} is no list of {len(most)} whole numbers")
    for index, (number, limit) in enumerate(zip(found, most, strict=True)):
        if not 0 <= number < limit:
            raise Wrong(f"{name}[{index}] is {number}; it is one of 0 to {limit - 1}")
    return found


def unfolded_tables(tables: list[Any]) -> list[list[list[int]]]:
    """The rows of every table of costs of a file, by option before and after a boundary. A file gives a table in full, by
    classes of options, or as the index of an earlier table."""
    full: list[list[list[int]]] = []
    for table in tables:
        if isinstance(table, int):
            full.append(full[table])
        elif isinstance(table, list):
            full.append(table)
        else:
            full.append([[table["costs_ns"][a][b] for b in table["after"]] for a in table["before"]])
    return full


def path_peak(layers: list[tuple[int, int, int]]) -> int:
    """The peak of a chain's memory in bytes. layers: kept, own and state of each layer."""
    peak = total = 0
    for kept, own, _ in layers:
        total += kept
        peak = max(peak, total + own)
    return peak + sum(state for _, _, state in layers)


def memory_violation(name: str, peak: int, memory: int) -> list[str]:
    """The violation of a memory limit, if there is one. name: what holds `peak` bytes."""
    return [f"{name} needs {peak} bytes, {peak - memory} more than memory_bytes = {memory}"] if peak > memory else []


def row_classes(rows: list[list[int]]) -> list[int]:
    """For each row the number of its class: equal rows are of one class."""
    found: dict[tuple[int, ...], int] = {}
    return [found.setdefault(tuple(row), len(found)) for row in rows]


class ChainOption(NamedTuple):
    """An option of a layer: its time in ns; its bytes kept, own and state, as of an `Arc`."""

    time: int
    kept: int
    own: int
    state: int
    second: int = 0


def chain_of(layers: list[list[ChainOption]], tables: list[list[list[int]]], times: int = 1) -> list[list[Arc]]:
    """The chain whose layers have some options, with a table of times [option before][option after] between neighbours, which
    count `times` times, and once in the second time.

    A table is a layer of its own: its nodes before are the classes of its rows, its nodes after those of its columns.
    """
    chain: list[list[Arc]] = []
    enters = [0] * len(layers[0])
    for options, table in zip(layers, [*tables, None], strict=True):
        leaves = [0] * len(options) if table is None else row_classes(table)
        chain.append(
            useful_arcs([Arc(enter, leave, *option) for enter, leave, option in zip(enters, leaves, options, strict=True)])
        )
        if table is not None:
            enters = row_classes([list(column) for column in zip(*table, strict=True)])
            moves = {(a, b): cost for a, row in zip(leaves, table, strict=True) for b, cost in zip(enters, row, strict=True)}
            chain.append([Arc(a, b, times * cost, 0, 0, 0, cost) for (a, b), cost in moves.items()])
    return chain


def strategies_of(instance: dict[str, Any]) -> list[list[ChainOption]]:
    """The options of every layer of a layer-strategies instance."""
    layers: list[list[ChainOption]] = []
    for layer in instance["layers"]:
        if layer.get("options") is None:
            layers.append(layers[layer["like"]])
        else:
            columns = "time_ns", "forward_bytes", "backward_bytes", "state_bytes"
            layers.append([ChainOption(*(option[name] for name in columns)) for option in layer["options"]])
    return layers


def evaluate_strategies(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """layer-strategies. A solution is {"choice": [option of every layer]}. The value is the sum of the layers' times and of the
    times between neighbours; each layer's backward pass needs its own bytes, those that it and earlier layers keep, and the
    states of all layers."""
    layers, tables = strategies_of(instance), unfolded_tables(instance["transitions_ns"])
    choice = chosen_numbers(solution, "choice", [len(options) for options in layers])
    chosen = [options[s] for options, s in zip(layers, choice, strict=True)]
    moves = sum(table[a][b] for table, a, b in zip(tables, choice, choice[1:], strict=False))
    peak = path_peak([(option.kept, option.own, option.state) for option in chosen])
    memory = instance["memory_bytes"]
    return Value(sum(option.time for option in chosen) + moves, peak, memory_violation("a device", peak, memory))


def strategies_chain(instance: dict[str, Any]) -> list[list[Arc]]:
    """A layer-strategies instance as a chain."""
    return chain_of(strategies_of(instance), unfolded_tables(instance["transitions_ns"]))


def strategies_price(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """layer-strategies, kind `price`, evidence {}: the largest bound by one price of a byte."""
    return price_bound(strategies_chain(instance), instance["memory_bytes"])


def strategies_exhaustion(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """layer-strategies, kind `exhaustion`, evidence {}: no choice that fits is faster than the claim, as no label is left."""
    return exhaustion(strategies_chain(instance), instance["memory_bytes"], claim)


def strategies_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no choice of a layer-strategies instance fits: by exhaustion, whatever the times."""
    return not chain_fits(strategies_chain(instance), instance["memory_bytes"], Effort())


# ---- memory-switches ---------------------------------------------------------------------------------------------------------
#
# A step is a row of segments, and a segment begins when the one before has ended on all lanes: so the step's time is the sum of
# the segments' times, and each depends on a layer, the one before and the one after. The segments, in order:
#
#     head, forward of layers 0 .. N-1, turn, backward of layers N-1 .. 0, tail, optimizer of layers 0 .. N-1
#
# On a lane, operations run one after the other, in the order in which they are issued; communication and copies to the host
# share one unless `nvlink`. After a computation has begun, no operation issued later begins before it.

SHARED_SWITCHES = "offload_hidden", "partition", "lazy_prefetch"  # the switches of a layer on which the layer after depends
SWITCH_NAMES = ("ckpt", *SHARED_SWITCHES, "eco_forward", "eco_backward", "segment_sync")
LayerNumbers = dict[str, int]  # a layer of the file
On = frozenset  # of the names of the switches that are on
Neighbour = tuple[LayerNumbers, frozenset[str]] | None  # the layer before or after, and its switches


class Segment:
    """A segment that is being issued. free: by lane, when it is free. end: when all that was issued has ended. changes: pairs
    (moment in ns, bytes more or fewer from then on)."""

    def __init__(self, nvlink: bool) -> None:
        self.nvlink, self.end = nvlink, 0
        self.free, self.changes = {"compute": 0, "communication": 0, "copy": 0}, list[tuple[int, int]]()

    def run(self, lane: str, time: int, ready: int = 0) -> tuple[int, int]:
        """Issue an operation of `time` ns that begins no earlier than `ready`. Returns when it begins and ends."""
        if lane == "copy" and not self.nvlink:
            lane = "communication"
        start = max(self.free[lane], ready)
        self.free[lane] = start + time
        if lane == "compute":
            self.free = {name: max(free, start) for name, free in self.free.items()}
        self.end = max(self.end, *self.free.values())
        return start, start + time

    def hold(self, moment: int, size: int) -> None:
        """Hold `size` more bytes from a moment on."""
        self.changes.append((moment, size))

    def peak(self) -> int:
        """The most bytes held. At one moment, what is freed comes first."""
        held = most = 0
        for _, _, size in sorted((moment, size > 0, size) for moment, size in self.changes):
            held += size
            most = max(most, held)
        return most

    def compute(self, layer: LayerNumbers, kind: str, left: int) -> int:
        """Issue a computation of a layer, after which `left` more bytes are held than before. Returns when it begins."""
        start, end = self.run("compute", layer[f"{kind}_ns"])
        self.hold(start, layer[f"{kind}_peak_bytes"])
        self.hold(end, left - layer[f"{kind}_peak_bytes"])
        return start

    def shard(self, layer: LayerNumbers, on: On[str]) -> int:
        """Copy a layer's shard to the device if it is prefetched lazily. Returns when it is there."""
        if "lazy_prefetch" not in on:
            return 0
        start, end = self.run("copy", layer["prefetch_parameter_ns"])
        self.hold(start, layer["partitioned_parameter_bytes"])
        return end

    def gather(self, layer: LayerNumbers, on: On[str], ready: int) -> None:
        """Gather a layer's parameters from shards that are there at `ready`; a lazily prefetched shard goes then."""
        start, end = self.run("communication", layer["all_gather_ns"], ready)
        self.hold(start, layer["gathered_parameter_bytes"])
        if "lazy_prefetch" in on:
            self.hold(end, -layer["partitioned_parameter_bytes"])

    def fetch(self, layer: LayerNumbers, on: On[str]) -> None:
        """Copy the shard, and gather."""
        self.gather(layer, on, self.shard(layer, on))

    def hidden(self, layer: LayerNumbers, on: On[str]) -> None:
        """Copy a layer's input back to the device if it was offloaded."""
        if "offload_hidden" in on:
            start, _ = self.run("copy", layer["prefetch_hidden_ns"])
            self.hold(start, layer["input_bytes"])

    def scatter(self, layer: LayerNumbers) -> int:
        """Free a layer's gathered parameters, and reduce and scatter its gradients. Returns when that ends."""
        self.hold(0, -layer["gathered_parameter_bytes"])
        start, end = self.run("communication", layer["reduce_scatter_ns"])
        self.hold(start, layer["partitioned_gradient_bytes"])
        self.hold(end, -layer["gathered_gradient_bytes"])
        return end

    def offload_gradient(self, layer: LayerNumbers, ready: int) -> None:
        """Copy the shard of a layer's gradients to the host."""
        _, end = self.run("copy", layer["offload_gradient_ns"], ready)
        self.hold(end, -layer["partitioned_gradient_bytes"])


def forward_segment(nvlink: bool, layer: LayerNumbers, on: On[str], following: Neighbour) -> Segment:
    """The forward segment of a layer. following: the layer after it and its switches (of which only lazy_prefetch matters)."""
    segment = Segment(nvlink)
    segment.hold(0, layer["input_bytes"] + layer["gathered_parameter_bytes"])
    if following and "eco_forward" not in on:
        segment.fetch(*following)
    if "offload_hidden" in on:
        segment.run("copy", layer["offload_hidden_ns"])
    if following and "eco_forward" in on:
        segment.fetch(*following)
    if "ckpt" in on:
        segment.compute(layer, "forward_without_graph", layer["output_bytes"])
    else:
        segment.compute(layer, "forward", layer["output_bytes"] + layer["graph_bytes"])
    return segment


def head_segment(nvlink: bool, layer: LayerNumbers, on: On[str]) -> Segment:
    """The segment before the forward pass of the first layer."""
    segment = Segment(nvlink)
    segment.hold(0, layer["input_bytes"])
    segment.fetch(layer, on)
    return segment


def after_forward_segment(nvlink: bool, layer: LayerNumbers, on: On[str]) -> Segment:
    """A segment at whose beginning the device holds what a layer's backward pass needs."""
    segment = Segment(nvlink)
    segment.hold(0, layer["input_bytes"] + layer["output_bytes"] + layer["gathered_parameter_bytes"])
    segment.hold(0, 0 if "ckpt" in on else layer["graph_bytes"])
    return segment


def turn_segment(nvlink: bool, layer: LayerNumbers, on: On[str]) -> Segment:
    """The segment between the forward and the backward pass of the last layer."""
    segment = after_forward_segment(nvlink, layer, on)
    if "offload_hidden" in on:
        segment.hold(0, -layer["input_bytes"])
    if "partition" in on:
        segment.hold(0, -layer["gathered_parameter_bytes"])
        segment.fetch(layer, on)
    segment.hidden(layer, on)
    return segment


def backward_segment(
    nvlink: bool, before: Neighbour, layer: LayerNumbers, on: On[str], following: LayerNumbers | None
) -> Segment:
    """The backward segment of a layer. before: the layer before it and its switches. following: the layer after it, whose
    gradients are scattered and offloaded."""
    segment, scattered = after_forward_segment(nvlink, layer, on), 0
    gathers = before is not None and "partition" in before[1]
    if following:
        segment.hold(0, following["gathered_parameter_bytes"] + following["gathered_gradient_bytes"])
        scattered = segment.scatter(following)
    ready = segment.shard(*before) if nvlink and before and gathers else 0

    def hidden() -> None:
        """Fetch the input of the layer before."""
        if before:
            segment.hidden(*before)

    def gather() -> None:
        """Gather the parameters of the layer before, whose shard NVLink's order has fetched already."""
        if before and gathers:
            segment.gather(*before, ready if nvlink else segment.shard(*before))

    def offload() -> None:
        """Copy the gradients of the layer after to the host."""
        if following:
            segment.offload_gradient(following, scattered)

    economical = "eco_backward" in on
    if nvlink:
        order = [gather, offload, hidden] if economical else [hidden, gather, offload]
    else:
        offload()
        order = [hidden, gather]
    for issue in [] if economical else order:
        issue()
    if "ckpt" in on:
        segment.compute(layer, "forward", layer["graph_bytes"])
    gradient = layer["input_bytes"] if before else 0
    left = gradient - layer["graph_bytes"] - layer["input_bytes"] - layer["output_bytes"]
    segment.hold(segment.compute(layer, "backward", left), layer["gathered_gradient_bytes"])
    for issue in order if economical else []:
        issue()
    return segment


def tail_segment(nvlink: bool, layer: LayerNumbers) -> Segment:
    """The segment after the backward pass of the first layer."""
    segment = Segment(nvlink)
    segment.hold(0, layer["gathered_parameter_bytes"] + layer["gathered_gradient_bytes"])
    segment.offload_gradient(layer, segment.scatter(layer))
    return segment


def optimizer_ns(before: Neighbour, layer: LayerNumbers, on: On[str], last: bool) -> int:
    """The time of the optimizer's segment of a layer: its step on the host, while the new shard of the layer before is copied
    back unless that is prefetched lazily; the last layer's shard is copied at the end."""
    copied = before[0]["prefetch_parameter_ns"] if before and "lazy_prefetch" not in before[1] else 0
    time = max(layer["optimizer_ns"], copied)
    return time + (layer["prefetch_parameter_ns"] if last and "lazy_prefetch" not in on else 0)


def ahead_of(nvlink: bool, layer: LayerNumbers, on: On[str], after: Neighbour, first: bool) -> tuple[int, int]:
    """Time, and most bytes above what earlier layers keep, of a layer's segments in the forward pass."""
    segments = [forward_segment(nvlink, layer, on, after), *([head_segment(nvlink, layer, on)] if first else [])]
    return sum(segment.end for segment in segments), max(segment.peak() for segment in segments)


def back_of(
    nvlink: bool, before: Neighbour, layer: LayerNumbers, on: On[str], following: LayerNumbers | None
) -> tuple[int, int]:
    """Time, and most bytes above what earlier layers keep, of a layer's segments from the turn on."""
    segments = [backward_segment(nvlink, before, layer, on, following), *([] if before else [tail_segment(nvlink, layer)])]
    segments += [] if following else [turn_segment(nvlink, layer, on)]
    time = optimizer_ns(before, layer, on, following is None)
    return time + sum(segment.end for segment in segments), max(segment.peak() for segment in segments)


def option_of(layer: LayerNumbers, on: On[str], ahead: tuple[int, int], back: tuple[int, int]) -> ChainOption:
    """A layer with its switches as an option of a chain: it keeps input, graph and parameters unless they are offloaded,
    recomputed or partitioned, and its shard is state unless it is prefetched lazily. ahead, back: of its segments."""
    kept = 0 if "offload_hidden" in on else layer["input_bytes"]
    kept += 0 if "ckpt" in on else layer["graph_bytes"]
    kept += 0 if "partition" in on else layer["gathered_parameter_bytes"]
    state = 0 if "lazy_prefetch" in on else layer["partitioned_parameter_bytes"]
    return ChainOption(ahead[0] + back[0], kept, max(ahead[1], back[1]) - kept, state)


def evaluate_switches(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """memory-switches. A solution is {"switches": [names of the switches that are on, of every layer]}."""
    layers, found = instance["layers"], solution.get("switches")
    if not isinstance(found, list) or len(found) != len(layers) or not all(isinstance(names, list) for names in found):
        raise Wrong(f"switches is no list of {len(layers)} lists")
    broken = []
    for index, names in enumerate(found):
        if not set(names) <= set(SWITCH_NAMES) or len(set(names)) < len(names):
            raise Wrong(f"switches[{index}] is {names}; its names are among {', '.join(SWITCH_NAMES)}")
        if "segment_sync" not in names:
            raise Wrong(f"switches[{index}] lacks segment_sync, which is on in every layer")
        if "offload_hidden" in names and "ckpt" not in names and instance.get("offload_needs_ckpt", True):
            broken.append(f"switches[{index}] has offload_hidden without ckpt")
    pairs = [(layer, frozenset(names)) for layer, names in zip(layers, found, strict=True)]
    nvlink, chosen = instance["nvlink"], []
    for index, (layer, on) in enumerate(pairs):
        before = pairs[index - 1] if index else None
        after = pairs[index + 1] if index + 1 < len(pairs) else None
        ahead = ahead_of(nvlink, layer, on, after, before is None)
        chosen.append(option_of(layer, on, ahead, back_of(nvlink, before, layer, on, after and after[0])))
    peak = path_peak([option[1:4] for option in chosen])
    return Value(
        sum(option.time for option in chosen), peak, broken + memory_violation("a device", peak, instance["memory_bytes"])
    )


def switches_chain(instance: dict[str, Any]) -> list[list[Arc]]:
    """A memory-switches instance as a chain. The node between two layers is the pair of the three switches of the layer before
    on which the one after depends, and whether that is prefetched lazily."""
    layers, nvlink = instance["layers"], instance["nvlink"]
    subsets = [frozenset(name for bit, name in enumerate(SWITCH_NAMES[:-1]) if number >> bit & 1) for number in range(64)]
    options = [
        on for on in subsets if not ("offload_hidden" in on and "ckpt" not in on and instance.get("offload_needs_ckpt", True))
    ]
    shared = [frozenset(name for bit, name in enumerate(SHARED_SWITCHES) if number >> bit & 1) for number in range(8)]
    chain, known = [], dict[Any, list[Arc]]()
    bare = [{name: value for name, value in layer.items() if name != "name"} for layer in layers]
    for before, layer, after in zip([None, *bare[:-1]], bare, [*bare[1:], None], strict=True):
        key = tuple(tuple(sorted(numbers.items())) if numbers else None for numbers in (before, layer, after))
        if key not in known:
            known[key] = useful_arcs(list(layer_arcs(nvlink, before, layer, after, options, shared)))
        chain.append(known[key])
    return chain


def layer_arcs(
    nvlink: bool,
    before: LayerNumbers | None,
    layer: LayerNumbers,
    after: LayerNumbers | None,
    options: list[On[str]],
    shared: list[On[str]],
) -> Iterator[Arc]:
    """All arcs of a layer. options: its sets of switches. shared: the sets of SHARED_SWITCHES."""
    for on in options:
        own, lazy = shared.index(on & set(SHARED_SWITCHES)), "lazy_prefetch" in on
        backs = [
            back_of(nvlink, (before, bits) if before else None, layer, on, after) for bits in (shared if before else shared[:1])
        ]
        for index, following in enumerate((shared[0], shared[4]) if after else shared[:1]):
            ahead = ahead_of(nvlink, layer, on, (after, following) if after else None, before is None)
            for number, back in enumerate(backs):
                enter, leave = 2 * number + lazy if before else 0, 2 * own + index if after else 0
                yield Arc(enter, leave, *option_of(layer, on, ahead, back))


def switches_price(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """memory-switches, kind `price`, evidence {}: the largest bound by one price of a byte."""
    return price_bound(switches_chain(instance), instance["memory_bytes"])


def switches_exhaustion(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """memory-switches, kind `exhaustion`, evidence {}: no switches that fit are faster than the claim, as no label is left."""
    return exhaustion(switches_chain(instance), instance["memory_bytes"], claim)


def switches_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no switches of a memory-switches instance fit: by exhaustion, whatever the times."""
    return not chain_fits(switches_chain(instance), instance["memory_bytes"], Effort())


# ---- pipeline ----------------------------------------------------------------------------------------------------------------
#
# With C_i = T_i - G_i, the time of stage i without what the last micro-batch alone pays, the step of P stages and m micro-
# batches is
#
#     (m - 1) max_i C_i + sum_i T_i.
#
# For given cuts, and bottlenecks max_i C_i of at least `low` and below `high`, it is at least each of
#
#     (m - 1) low + sum_i t_i                          t_i: a lower bound of T_i where C_i < high
#     sum_{i != j} t_i + w_j   for every stage j       w_j: a lower bound of (m - 1) C_j + T_j
#
# and for u >= 0, t_i is at least the least of T_i + u C_i over the choices that fit, less u (high - 1). A least p C_i + q G_i
# is a chain's least time. So the proof keeps, for every span of layers and stage, bounds for some weights (p, q): first from
# each layer's fastest option, then by price, then by exhaustion. It goes down from a `high` that no plan below the claim
# reaches: of the cuts whose second bounds are below the claim it takes those of the least sum of t_i, and makes the bounds of
# their spans better as long as it can. The first bound then excludes all bottlenecks from some `low` on, which is the next
# `high`.

MOST_CUTS = 20_000_000  # extensions of cuts in the proof of one entry
Weights = tuple[int, int]


class StagedConfiguration:
    """A configuration of a pipeline instance: P stages and m micro-batches, and the costs of spans of layers in it."""

    def __init__(self, instance: dict[str, Any], index: int, moves_count: bool = True) -> None:
        """Take a configuration out of an instance. moves_count: whether re-layouts and entries of stages cost time."""
        record = instance["configurations"][index]
        self.stages: int = record["stages"]
        self.micro_batches: int = record["micro_batches"]
        self.schedule: str = record.get("schedule", "1f1b")
        self.ends: list[int] = record.get("ends_ns", [0, 0])
        self.memory: int = instance["memory_bytes"]
        self.kinds: list[int] = instance["layer_kinds"]
        self.boundaries: list[int] = instance["boundary_kinds"]
        self.options: list[list[dict[str, Any]]] = record["options"]
        self.tables, self.entries = unfolded_tables(record["transitions_ns"]), record["entries_ns"]
        self.moves_count = moves_count

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose activations a stage holds at the same time."""
        return self.micro_batches if self.schedule == "gpipe" else min(self.micro_batches, self.stages - stage)

    def option(self, layer: int, option: dict[str, Any], stage: int, weights: Weights) -> ChainOption:
        """An option of a layer in a stage, as of a chain, whose time is p C + q G for weights (p, q)."""
        sync, kept = option.get("sync_ns", 0), option["forward_bytes"]
        time = weights[0] * (option["time_ns"] - sync) + weights[1] * sync
        state = option["state_bytes"] + (self.in_flight(stage) - 1) * kept
        return ChainOption(time, kept, option["backward_bytes"], state, option["time_ns"] - sync)

    def chain(self, stage: int, first: int, last: int, weights: Weights) -> list[list[Arc]]:
        """The layers `first` to `last` as a stage, as a chain whose times are p C + q G."""
        layers = [
            [self.option(l, option, stage, weights) for option in self.options[self.kinds[l]]] for l in range(first, last + 1)
        ]
        if not self.moves_count:
            return [useful_arcs([Arc(0, 0, *option) for option in options]) for options in layers]
        if first:
            entry = self.entries[self.boundaries[first - 1]]
            layers[0] = [
                o._replace(time=o.time + weights[0] * ns, second=o.second + ns) for o, ns in zip(layers[0], entry, strict=True)
            ]
        tables = [self.tables[kind] for kind in self.boundaries[first:last]]
        return chain_of(layers, tables, weights[0])

    def costs(self, stage: int, first: int, choice: list[int]) -> tuple[int, int, int]:
        """Time T and synchronisation G of a stage in ns, and its peak in bytes. choice: the options of its layers."""
        records = [self.options[self.kinds[first + k]][s] for k, s in enumerate(choice)]
        options = [self.option(first + k, record, stage, (1, 1)) for k, record in enumerate(records)]
        time = sum(option.time for option in options)
        if self.moves_count:
            inside = self.boundaries[first : first + len(choice) - 1]
            time += sum(self.tables[kind][a][b] for kind, a, b in zip(inside, choice, choice[1:], strict=False))
            time += self.entries[self.boundaries[first - 1]][choice[0]] if first else 0
        return time, sum(record.get("sync_ns", 0) for record in records), path_peak([option[1:4] for option in options])


def staged(
    instance: dict[str, Any], solution: dict[str, Any], moves_count: bool
) -> tuple[StagedConfiguration, list[tuple[int, int, int]], list[str]]:
    """The configuration of a solution, time, synchronisation and peak of each of its stages, and the violations of memory. A
    solution is {"configuration": index, "stages": [number of layers of each], "choice": [option of every layer]}."""
    (index,) = chosen_numbers(
        {"configuration": [solution.get("configuration")]}, "configuration", [len(instance["configurations"])]
    )
    configuration, layers = StagedConfiguration(instance, index, moves_count), len(instance["layer_kinds"])
    sizes = chosen_numbers(solution, "stages", [layers + 1] * configuration.stages)
    if min(sizes) < 1 or sum(sizes) != layers:
        raise Wrong(f"stages is {sizes}; the instance has {layers} layers, and every stage at least one")
    choice = chosen_numbers(solution, "choice", [len(configuration.options[0])] * layers)
    stages, first = [], 0
    for stage, size in enumerate(sizes):
        stages.append(configuration.costs(stage, first, choice[first : first + size]))
        first += size
    limit = instance["memory_bytes"]
    return (
        configuration,
        stages,
        [text for i, stage in enumerate(stages) for text in memory_violation(f"stage {i}", stage[2], limit)],
    )


def evaluate_pipeline(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """pipeline. The value is (m - 1) max (T - G) + sum T over stages."""
    configuration, stages, broken = staged(instance, solution, moves_count=True)
    slowest = max(time - sync for time, sync, _ in stages)
    value = (configuration.micro_batches - 1) * slowest + sum(time for time, _, _ in stages)
    return Value(value, max(peak for _, _, peak in stages), broken)


class SpanBound:
    """A lower bound of a chain's least time. low: the bound in ns. level: 0 by each layer's fastest option, 1 by price, 2 if it
    is the least time itself. capped: quadruples (c, limit, low, exact): within a limit of the second time, the least time is at
    least low; where `exact`, it is that, and c the second time that it takes."""

    def __init__(self, low: int) -> None:
        self.low, self.level = low, 0
        self.capped: list[tuple[int, int, int, bool]] = []

    def better(self, chain: list[list[Arc]], memory: int, wanted: int, effort: Effort) -> None:
        """Make the bound better: by price first, then by exhaustion up to a claim of `wanted`."""
        if self.level == 0:
            self.low, self.level = max(self.low, price_bound(chain, memory)), 1
        elif self.level == 1:
            self.low = max(self.low, exhausted(chain, memory, wanted, effort)[0])
            self.level = 2 if self.low < wanted else 1

    def within(self, limit: int) -> int:
        """The bound within a limit of the second time."""
        return max([self.low, *(low for _, most, low, _ in self.capped if limit <= most)])


class SpanBounds:
    """The bounds of all spans of layers of a configuration, for several weights."""

    def __init__(self, configuration: StagedConfiguration, effort: Effort) -> None:
        self.configuration, self.effort = configuration, effort
        self.known: dict[Any, SpanBound] = {}  # by the layers, weights and micro-batches in flight
        self.index: dict[Any, SpanBound] = {}  # the same bounds by the span, too
        self.fitting: dict[Any, bool] = {}
        self.sums: dict[Weights, list[int]] = {}

    def alike(self, stage: int, first: int, last: int) -> Any:
        """A key that equal spans of layers share."""
        c = self.configuration
        before = c.boundaries[first - 1] if first else None
        return c.in_flight(stage), before, tuple(c.kinds[first : last + 1]), tuple(c.boundaries[first:last])

    def of(self, stage: int, first: int, last: int, weights: Weights) -> SpanBound:
        """The bound of p C + q G of a stage with some layers. Spans of the same layers share one."""
        span = stage, first, last, weights
        if span not in self.index:
            sums = self.fastest(weights)
            bound = self.known.setdefault((weights, self.alike(stage, first, last)), SpanBound(sums[last + 1] - sums[first]))
            self.index[span] = bound
        return self.index[span]

    def fastest(self, weights: Weights) -> list[int]:
        """The sums of p C + q G of the first 0, 1, .. layers, each under its fastest option."""
        if weights not in self.sums:
            c, sums = self.configuration, [0]
            least = [min(c.option(0, option, 0, weights).time for option in options) for options in c.options]
            for kind in c.kinds:
                sums.append(sums[-1] + least[kind])
            self.sums[weights] = sums
        return self.sums[weights]

    def better(self, stage: int, first: int, last: int, weights: Weights, wanted: int) -> bool:
        """Make a bound better, up to `wanted`. Returns whether there was anything to do."""
        bound = self.of(stage, first, last, weights)
        if bound.level == 2 or bound.low >= wanted:
            return False
        chain, memory, alike = (
            self.configuration.chain(stage, first, last, weights),
            self.configuration.memory,
            self.alike(stage, first, last),
        )
        if alike not in self.fitting:
            self.fitting[alike] = chain_fits(chain, memory, self.effort)
        if self.fitting[alike]:
            bound.better(chain, memory, wanted, self.effort)
        else:
            bound.low, bound.level = NEVER, 2
        return True

    def better_within(self, stage: int, first: int, last: int, limit: int, wanted: int, prices: list[tuple[int, int]]) -> bool:
        """Make the bound of T where C is within a limit better, up to `wanted`. Returns whether there was anything to do."""
        bound = self.of(stage, first, last, (1, 1))
        if bound.within(limit) >= wanted or any(c <= limit <= most and exact for c, most, _, exact in bound.capped):
            return False
        chain = self.configuration.chain(stage, first, last, (1, 1))
        mixes = tuple((d, u) for u, d in prices)
        time, second = exhausted(chain, self.configuration.memory, wanted, self.effort, TimeCap(limit, mixes))
        bound.capped.append((second, limit, time, time < wanted))
        return True


def configuration_fastest(configuration: StagedConfiguration) -> int:
    """A lower bound in ns of a configuration, from each layer's fastest option: the slowest stage takes its share at least."""
    bounds = SpanBounds(configuration, Effort())
    share = ratio_up(bounds.fastest((1, 0))[-1], configuration.stages)
    return bounds.fastest((1, 1))[-1] + (configuration.micro_batches - 1) * share


def pipeline_fastest(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """pipeline, kind `fastest`, evidence {}: the bound from each layer's fastest option, whatever memory it needs."""
    return min(configuration_fastest(StagedConfiguration(instance, k)) for k in range(len(instance["configurations"])))


class CutsProof:
    """The proof that no plan of one configuration is faster than a claim."""

    def __init__(self, configuration: StagedConfiguration, claim: int, labels: Effort, cuts: Effort) -> None:
        """claim: in ns. labels, cuts: what may still be spent."""
        self.configuration, self.claim, self.effort = configuration, claim, cuts
        self.bounds = SpanBounds(configuration, labels)
        stages, m = configuration.stages, configuration.micro_batches
        # Of a single stage, all micro-batches are its own time, and there is no bottleneck.
        self.layers, self.more, self.own = len(configuration.kinds), m - 1 if stages > 1 else 0, (1 if stages > 1 else m, 1)
        prices = {(0, 1), (self.more, stages), (self.more, 2), (self.more, 1)} if self.more else {(0, 1)}
        self.prices = sorted(prices, key=lambda price: Fraction(*price))  # u of the section's head, as (numerator, denominator)
        self.rest, self.slowest = self.bounds.fastest(self.own), self.bounds.fastest((self.own[0] + self.more, 1))

    def weights(self, u: int, d: int) -> Weights:
        """The weights (p, q) of d T + u C."""
        return self.own[0] * d + u, self.own[1] * d

    def stage(self, stage: int, first: int, last: int, high: int) -> tuple[int, int]:
        """Lower bounds (t, w - t) of a stage for bottlenecks below `high`; NEVER if it is slower alone."""

        def low(weights: Weights) -> int:
            """A bound of the stage."""
            return self.bounds.of(stage, first, last, weights).low

        time = low(self.own)
        if self.more:
            if low((1, 0)) >= high:
                return NEVER, 0
            time = max(ratio_up(low(self.weights(u, d)) - u * (high - 1), d) for u, d in self.prices)
            time = max(time, self.bounds.of(stage, first, last, self.own).within(high - 1))
        return time, max(0, low(self.weights(self.more, 1)) - time)

    def least(self, high: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Find the cuts of the least sum of t among those whose bounds by w are below the claim, for bottlenecks below `high`.

        Returns that sum, the bound by w, and the cuts' spans (first, last); no spans if there are no such cuts.
        """
        c, rest = self.configuration, self.rest
        ends: dict[int, list[tuple[int, int, Any]]] = {0: [(0, 0, ())]}
        for stage in range(c.stages):
            longer: dict[int, list[tuple[int, int, Any]]] = {}
            for first, labels in ends.items():
                fewest = first + 1 if stage < c.stages - 1 else self.layers
                for end in range(fewest, self.layers - c.stages + stage + 2):
                    limit = self.claim - (rest[-1] - rest[end])
                    if labels[0][0] + self.slowest[end] - self.slowest[first] >= limit:
                        break
                    time, excess = self.stage(stage, first, end - 1, high)
                    self.effort.spend(1 + len(labels))
                    for total, most, path in labels:
                        if total + time + max(most, excess) < limit:
                            longer.setdefault(end, []).append((total + time, max(most, excess), (path, first, end - 1)))
            ends = {end: self.front(labels) for end, labels in longer.items()}
        total, most, path = min(ends.get(self.layers, [(self.claim, 0, ())]), key=lambda label: label[0])
        spans = []
        while path:
            path, first, last = path
            spans.append((first, last))
        return total, total + most, spans[::-1]

    @staticmethod
    def front(labels: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        """The labels that no other beats in both numbers."""
        kept: list[tuple[int, int, Any]] = []
        for label in sorted(labels, key=lambda label: label[:2]):
            if not kept or label[1] < kept[-1][1]:
                kept.append(label)
        return kept

    def proven(self) -> int:
        """The bound that the proof gives: the claim, or a lower one that it could not get above."""
        high = (self.claim - self.rest[-1]) // max(1, self.more) + 2
        step = max(1, self.claim >> 16)
        while True:
            total, bound, spans = self.least(high)
            while spans and self.raise_bounds(spans, bound, high):
                total, bound, spans = self.least(high)
            if not spans:
                return self.claim
            if self.more and (low := ratio_up(self.claim - total, self.more)) < high:
                high = low
            else:
                self.claim, step = max(0, self.claim - step), 2 * step

    def raise_bounds(self, spans: list[tuple[int, int]], bound: int, high: int) -> bool:
        """Make the bounds of a plan's spans better. bound: the plan's, in ns. Returns whether there was any to make."""
        lack = max(self.claim - bound, self.claim >> 8)
        for prices in [(self.more, 1)], self.prices:  # w first, which counts for all bottlenecks
            changed = False
            for (u, d), (stage, (first, last)) in product(prices, enumerate(spans)):
                wanted = self.bounds.of(stage, first, last, self.weights(u, d)).low + d * lack
                changed |= self.bounds.better(stage, first, last, self.weights(u, d), wanted)
            if changed:
                return True
        changed = False
        for stage, (first, last) in enumerate(spans if self.more else []):
            changed |= self.bounds.better(stage, first, last, (1, 0), high)
            wanted = self.stage(stage, first, last, high)[0] + lack
            changed |= self.bounds.better_within(stage, first, last, high - 1, wanted, self.prices)
        return changed


def pipeline_stages(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """pipeline, kind `stages`, evidence {}: no plan is faster than the claim, by bounds of all spans of layers."""
    labels, cuts, proven = Effort(), Effort(MOST_CUTS), claim
    try:
        for index in range(len(instance["configurations"])):
            configuration = StagedConfiguration(instance, index)
            if configuration_fastest(configuration) < proven:
                proven = min(proven, CutsProof(configuration, proven, labels, cuts).proven())
    except Spent:
        raise Wrong("the proof takes too many labels or cuts") from None
    return proven


def stage_fits(configuration: StagedConfiguration, effort: Effort, stage: int, first: int, end: int) -> bool:
    """Whether some options of the layers first to end - 1 fit as a stage. The configuration's moves do not count."""
    return chain_fits(configuration.chain(stage, first, end - 1, (0, 0)), configuration.memory, effort)


def pipeline_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no plan of a pipeline instance fits: see `cuts_fit`."""
    effort, layers = Effort(), len(instance["layer_kinds"])
    configurations = [StagedConfiguration(instance, k, moves_count=False) for k in range(len(instance["configurations"]))]
    return not any(cuts_fit(c.stages, layers, partial(stage_fits, c, effort)) for c in configurations)


# ---- galvatron-engine --------------------------------------------------------------------------------------------------------


def engine_ns(configuration: StagedConfiguration, silent: list[int]) -> int:
    """The iteration time in ns without synchronisation that is not hidden, from the stages' times C_i without synchronisation.
    It does not fall when one of these rises."""
    stages, m = configuration.stages, configuration.micro_batches
    led = max((min(stages, m) - 1) * silent[0], sum(silent[1:])) + max(0, m + 1 - stages) * silent[0]
    return max(sum(silent) + (m - 1) * silent[-1], led)


def even_sizes(layers: int, stages: int) -> list[int]:
    """The number of layers of each stage: equal, and the last stage has the rest, too."""
    return [layers // stages] * (stages - 1) + [layers - layers // stages * (stages - 1)]


def evaluate_engine(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """galvatron-engine. With C_i = T_i - G_i, P stages and m micro-batches, the value is

        max ( sum C + (m - 1) C_{P-1},  max ((min(P, m) - 1) C_0, sum_{i>0} C_i) + max(0, m + 1 - P) C_0 )
            + max (0, max_i ( T_i - e_i - sum_{k<=i} C_k ))

    where e_0 and e_{P-1} are `ends_ns`, the times of embedding and head, and all others are 0. Re-layouts and entries take no
    time, and the layers are split evenly.
    """
    configuration, stages, broken = staged(instance, solution, moves_count=False)
    sizes = even_sizes(len(instance["layer_kinds"]), configuration.stages)
    broken += [f"stages is {solution['stages']}; the layers are split evenly: {sizes}"] if solution["stages"] != sizes else []
    times, silent = [time for time, _, _ in stages], [time - sync for time, sync, _ in stages]
    times[0] -= configuration.ends[0]
    times[-1] -= configuration.ends[1]
    unhidden = max(time - sum(silent[: i + 1]) for i, time in enumerate(times))
    return Value(engine_ns(configuration, silent) + max(0, unhidden), max(peak for _, _, peak in stages), broken)


def engine_first(configuration: StagedConfiguration, silent: list[int], claim: int, effort: Effort) -> bool:
    """Whether no plan of a configuration is faster than the claim, by its first stage, whose synchronisation G_0 is hidden by
    nothing: with each of the sums a C_0 + b in the iteration time, both a C_0 + b and a C_0 + b + G_0 - e_0 must be below the
    claim. silent: lower bounds of the stages' C."""
    stages, m, rest = configuration.stages, configuration.micro_batches, sum(silent[1:])
    more, ends = max(0, m + 1 - stages), configuration.ends[0] + (configuration.ends[1] if stages == 1 else 0)
    size = even_sizes(len(configuration.kinds), stages)[0]
    for a, b in [(1, rest + (m - 1) * silent[-1]), (min(stages, m) - 1 + more, 0), (more, rest)] if stages > 1 else [(m, 0)]:
        chain = configuration.chain(0, 0, size - 1, (a, 1))
        swapped = [[arc._replace(time=a * arc.second, second=arc.time) for arc in arcs] for arcs in chain]
        cap = TimeCap(claim - b - 1 + ends, ((1, 0), (0, 1), (1, 1), (3, 1), (1, 3)))
        if b >= claim or exhausted(swapped, configuration.memory, claim - b, effort, cap)[0] >= claim - b:
            return True
    return False


def engine_bound(configuration: StagedConfiguration, claim: int, most_level: int, effort: Effort) -> int:
    """A lower bound of a configuration, or the claim if that is not larger: from the least C of every stage of the even split.
    Without a pipeline the step takes m C + G less embedding and head, too.

    most_level: 0 to bound stages by each layer's fastest option, 2 to make the bounds as good as the claim needs.
    """
    m, ends = configuration.micro_batches, sum(configuration.ends)
    sizes, bounds = even_sizes(len(configuration.kinds), configuration.stages), SpanBounds(configuration, effort)
    spans = [(stage, sum(sizes[:stage]), sum(sizes[: stage + 1]) - 1) for stage in range(configuration.stages)]
    silent, found = list[int](), 0
    for level in range(most_level + 1):
        silent = [bounds.of(stage, first, last, (1, 0)).low for stage, first, last in spans]
        found = engine_ns(configuration, silent)
        if configuration.stages == 1:
            found = max(found, bounds.of(0, 0, sizes[0] - 1, (m, 1)).low - ends)
        if found >= claim:
            return claim
        for stage, first, last in spans if level < most_level else []:
            bounds.better(stage, first, last, (1, 0), claim)
            if configuration.stages == 1:
                bounds.better(stage, first, last, (m, 1), claim + ends)
    return claim if most_level and engine_first(configuration, silent, claim, effort) else found


def engine_bounds(instance: dict[str, Any], claim: int, most_level: int) -> int:
    """The least bound of any configuration, or the claim if that is not larger; most_level as of `engine_bound`."""
    effort = Effort()
    for index in range(len(instance["configurations"])):
        claim = min(claim, engine_bound(StagedConfiguration(instance, index, moves_count=False), claim, most_level, effort))
    return claim


def engine_fastest(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """galvatron-engine, kind `fastest`, evidence {}: the bound from each layer's fastest option, whatever memory it needs."""
    return engine_bounds(instance, NEVER, 0)


def engine_stages(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """galvatron-engine, kind `stages`, evidence {}: no plan is faster than the claim, by the least time of every stage."""
    try:
        return engine_bounds(instance, claim, 2)
    except Spent:
        raise Wrong(f"the proof takes more than {MOST_LABELS} labels") from None


def engine_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no plan of a galvatron-engine instance fits: a stage of the even split does not, in every configuration."""
    effort = Effort()
    for index in range(len(instance["configurations"])):
        configuration = StagedConfiguration(instance, index, moves_count=False)
        ends = running_sums(even_sizes(len(instance["layer_kinds"]), configuration.stages))
        if all(stage_fits(configuration, effort, stage, *span) for stage, span in enumerate(pairwise(ends))):
            return False
    return True


# ---- stage-assignment --------------------------------------------------------------------------------------------------------
#
# L layers in a chain are cut into k stages of consecutive layers, at least one each; m micro-batches run through all stages.
#
#     value = (m - 1) max_i t_i + sum_i t_i + sum_i e_i
#
# t_i is the sum of `layer_ns` of the layers of stage i (in that stage, where there is a list for each stage), e_i the entry of
# `transfer_ns` of its last layer, for all stages but the last (in the list of that boundary, where there is one for each).
# Where `memory` is given, stage i needs the sum of `state_bytes`, min(m, k - i) times the sum of `kept_bytes`, and the largest
# `workspace_bytes` of its layers; that must not be above its `limit_bytes`. A solution is {"cuts": the first layer of every
# stage but the first}.
#
# Evidence:
#
#     sweep    {}. Let S(c) be the least sum_i t_i + sum_i e_i of all solutions without a stage above c that fit into memory: a
#              shortest path through the boundaries between layers, stage by stage. A solution whose largest stage is above a
#              and at most c has a value of at least (m - 1) (a + 1) + S(c). From c = infinite on, the least a is taken with
#              which that is at least the claim, and it is the next c, until nothing is left. Whatever the claim, either this
#              ends, or the shortest path for some c is itself a solution below the claim.
#     even     {}. The largest stage is no less than any layer on its fastest stage, nor than an even part of all these; a
#              micro-batch takes no less than all of them and the cheapest transfer at every boundary.


def chain_spans(cuts: Any, layers: int, stages: int) -> list[tuple[int, int]]:
    """The stages of a chain of layers as pairs (first layer, layer after the last). cuts: the first layer of every stage but
    the first. Raises `Wrong` unless they are whole numbers that cut the chain into `stages` stages of a layer or more."""
    if not isinstance(cuts, list) or not all(type(cut) is int for cut in cuts):
        raise Wrong(f"cuts is {cuts!r}: it is no list of whole numbers")
    borders = [0, *cuts, layers]
    spans = [(borders[i], borders[i + 1]) for i in range(len(borders) - 1)]
    if len(spans) != stages or any(first >= end for first, end in spans):
        raise Wrong(f"cuts is {cuts}: give {stages - 1} layers of 1 to {layers - 1}, ascending")
    return spans


def chain_in_flight(instance: dict[str, Any], stage: int) -> int:
    """The most micro-batches of which a stage keeps activations at one time: under 1F1B it runs one forward pass more than
    there are stages after it before its first backward pass."""
    return int(min(instance["micro_batches"], instance["stages"] - stage))


def chain_limit(instance: dict[str, Any], stage: int) -> int:
    """The memory limit of a stage's device, in bytes, of an instance that has `memory`."""
    limits = instance["memory"]["limit_bytes"]
    return int(limits[stage] if isinstance(limits, list) else limits)


def chain_peak(instance: dict[str, Any], stage: int, first: int, end: int) -> int:
    """The bytes that a stage of the layers first to end - 1 needs, of an instance that has `memory`."""
    memory = instance["memory"]
    states, kept = (sum(memory[name][first:end]) for name in ("state_bytes", "kept_bytes"))
    return int(states + chain_in_flight(instance, stage) * kept + max(memory["workspace_bytes"][first:end]))


def chain_memory(instance: dict[str, Any], spans: list[tuple[int, int]]) -> tuple[int | None, list[str]]:
    """The bytes of the stage that is nearest to its limit (or furthest above it), None without `memory`; and a text for every
    stage above its limit."""
    if not instance.get("memory"):
        return None, []
    peaks = [chain_peak(instance, stage, first, end) for stage, (first, end) in enumerate(spans)]
    over = [peak - chain_limit(instance, stage) for stage, peak in enumerate(peaks)]
    texts = [f"stage {stage} needs {peaks[stage]} bytes, {more} above its limit" for stage, more in enumerate(over) if more > 0]
    return peaks[over.index(max(over))], texts


def chain_firsts(instance: dict[str, Any], layers: int) -> list[list[int]]:
    """For every stage, and every boundary `end` from 0 to the number of layers, the least first layer with which a stage that
    ends there fits into its memory: all later ones fit, too, since a shorter stage needs less. It is `end` where no layer fits;
    it never falls."""
    if not instance.get("memory"):
        return [[0] * (layers + 1) for _ in range(instance["stages"])]
    memory, known, rows = instance["memory"], dict[tuple[int, int], list[int]](), []
    for stage in range(instance["stages"]):
        key = chain_in_flight(instance, stage), chain_limit(instance, stage)
        if key not in known:
            needs = [state + key[0] * kept for state, kept in zip(memory["state_bytes"], memory["kept_bytes"], strict=True)]
            known[key], first, need = [0], 0, 0
            for end in range(1, layers + 1):
                need += needs[end - 1]
                while first < end and need + max(memory["workspace_bytes"][first:end]) > key[1]:
                    need -= needs[first]
                    first += 1
                known[key].append(first)
        rows.append(known[key])
    return rows


def most_steps(evidence: dict[str, Any]) -> int:
    """The number `most` of evidence: the steps that it may take. Raises `Wrong` if it is none."""
    if type(most := evidence.get("most")) is not int:
        raise Wrong(f"most is {most!r}: it is no whole number")
    return most


def running_sums(row: list[int]) -> list[int]:
    """The sums of the first 0, 1, 2, .. numbers of a list: [3, 4] -> [0, 3, 7]."""
    sums = [0]
    for number in row:
        sums.append(sums[-1] + number)
    return sums


def assignment_rows(instance: dict[str, Any]) -> tuple[list[list[int]], list[list[int]]]:
    """The times of a stage-assignment instance as two tables: layer_ns[stage][layer], and transfer_ns[boundary of two
    stages][layer before the cut]."""
    stages, times, moves = instance["stages"], instance["layer_ns"], instance["transfer_ns"]
    times = times if isinstance(times[0], list) else [times] * stages
    return times, moves if moves and isinstance(moves[0], list) else [moves] * (stages - 1)


def evaluate_assignment(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """The value, the memory and the violations of a solution of stage-assignment."""
    times, moves = assignment_rows(instance)
    spans = chain_spans(solution.get("cuts"), len(times[0]), instance["stages"])
    stage_ns = [sum(row[first:end]) for row, (first, end) in zip(times, spans, strict=True)]
    sent_ns = [row[end - 1] for row, (_, end) in zip(moves, spans[:-1], strict=True)]
    value = (instance["micro_batches"] - 1) * max(stage_ns) + sum(stage_ns) + sum(sent_ns)
    return Value(value, *chain_memory(instance, spans))


def least_sum(times: list[list[int]], moves: list[list[int]], firsts: list[list[int]], cap: int | None) -> int | None:
    """S(cap) of stage-assignment: the least time of one micro-batch through all stages and transfers, where no stage may take
    more than `cap` ns (None: any time); None if there is no such solution.

    times, moves: the tables of `assignment_rows`, times as running sums over the layers. firsts: by `chain_firsts`. For every
    stage, the layers with which it may begin are a window that moves to the right with its end; `waiting` has those that may
    still be the best ones, with rising sums."""
    layers = len(times[0]) - 1
    best: list[int | None] = [0] + [None] * layers  # by the boundary where the stages so far end
    for stage, sums in enumerate(times):
        entered: list[int | None] = [None] * (layers + 1)  # up to the boundary, the transfer included, less the sum before it
        for at, so_far in enumerate(best):
            if so_far is not None:
                entered[at] = so_far - sums[at] + (moves[stage - 1][at - 1] if stage and at < layers else 0)
        best, first = [None] * (layers + 1), 0
        waiting: list[tuple[int, int]] = []
        head = 0
        for end in range(1, layers + 1):
            if (last := entered[end - 1]) is not None:
                while len(waiting) > head and waiting[-1][0] >= last:
                    waiting.pop()
                waiting.append((last, end - 1))
            while first < end and (first < firsts[stage][end] or (cap is not None and sums[end] - sums[first] > cap)):
                first += 1
            while head < len(waiting) and waiting[head][1] < first:
                head += 1
            if head < len(waiting):
                best[end] = waiting[head][0] + sums[end]
    return best[layers]


def bound_sweep(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The evidence `sweep` of stage-assignment: the claim itself, if no solution is below it. Raises `Wrong` if one is."""
    rows, moves = assignment_rows(instance)
    times, firsts, rounds = (
        [running_sums(row) for row in rows],
        chain_firsts(instance, len(rows[0])),
        instance["micro_batches"] - 1,
    )
    cap: int | None = None
    while (least := least_sum(times, moves, firsts, cap)) is not None and least < claim:
        lower = -1 if not rounds else -(-(claim - least) // rounds) - 1
        if not rounds or (cap is not None and lower >= cap):
            raise Wrong(f"a solution takes less than {claim} ns")
        cap = lower
    return claim


def bound_even(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The bound by the evidence `even` of stage-assignment."""
    times, moves = assignment_rows(instance)
    fastest = [min(column) for column in zip(*times, strict=True)]
    largest = max(*fastest, -(-sum(fastest) // instance["stages"]), 0)
    return (instance["micro_batches"] - 1) * largest + sum(fastest) + sum(map(min, moves))


def assignment_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no cuts of a stage-assignment instance fit: there is no path through the boundaries between layers."""
    times, moves = assignment_rows(instance)
    return least_sum([running_sums(row) for row in times], moves, chain_firsts(instance, len(times[0])), None) is None


# ---- pipeline-partition ------------------------------------------------------------------------------------------------------
#
# A chain of n sub-layers is cut into p stages of consecutive sub-layers, at least one each; m micro-batches run through them
# under 1F1B. A forward (backward) pass of a stage takes the sum of `forward_ns` (`backward_ns`) of its sub-layers; a message
# between two stages takes the entry of `transfer_ns` of the sub-layer before their cut, or the one number that it is, both
# ways.
#
#     order     stage x runs min(m, p - 1 - x) forward passes, then one forward and one backward pass in turn while there are
#               forward passes left, then the backward passes left; both by rising micro-batch
#     passes    a pass begins when the pass before it on its stage has ended, and the pass that sends its input: the forward
#               pass of the micro-batch in the stage before, or its backward pass in the stage after. Then the stage receives
#               the message (it takes the transfer's time), and then it runs the pass. The first stage's forward and the last
#               stage's backward passes receive nothing.
#     value     the end of the last pass
#     sliced    the forward passes of the first `sliced` micro-batches run in two halves of half the time and half the message:
#               that of micro-batch q on the stages 0 to p - 2 - q, and that of micro-batch 0 on the last stage, too. An odd
#               nanosecond belongs to the second half. A half needs the same half on the stage before; a whole pass after a pass
#               in halves needs its second half.
#     memory    as for stage-assignment
#
# `sync_ns`, `layers` and `names` do not matter for the value. A solution is {"cuts": the first sub-layer of every stage but the
# first, "sliced": the number of micro-batches in halves, 0 if it is not there}. If provenance.mbs, the samples of a
# micro-batch, is odd, there are no halves. Best known solutions and lower bounds are of solutions without halves; no others
# are compared with them.
#
# For the bounds, let F and B be the two passes of a stage with the messages that they receive, and t = F + B. Every pass waits
# for the one before it on its stage, and for the one that sends its input; so any chain of such passes is a lower bound. One
# goes from the first pass of stage 0 to stage x with the first micro-batch, and from stage x back to stage 0 with the last one:
# H, the sum of t of the stages before x. Between both, with S the sum of t of the stages after x, and u = p - 1 - x,
#
#     u < m     t + max(S, u F) + (m - 1 - u) t + max(S, u B) u >= m    max(m t, t + S + (m - 1) max(F, B))
#
# lie on x: its first micro-batch goes on to the last stage and comes back, or x runs its u forward passes; then x runs pairs of
# passes; then the last micro-batch goes on and comes back, or x runs its u backward passes. A stage's `need` is H plus that,
# with the least H and S of any stages that fit into memory.
#
# Evidence:
#
#     stages    {}. No solution is below the largest need of its stages; so none is below the least, over all partitions, of the
#               largest need: a shortest path through the boundaries between sub-layers, whose length is the largest of its
#               parts.
#     search    {"most": a number of partial partitions}. Partial partitions are the stages from some x on to the last. One is
#               not continued if a bound on all its continuations is at least the claim: the largest needs of the stages before
#               x are at least that, whatever they are; or H plus the time of the partial partition run by itself is (the stages
#               from x on are themselves a pipeline under 1F1B), with the least H of the stages before x. Of whole partitions,
#               none is below the claim. No more than `most` partial partitions are looked at.


def transfers(instance: dict[str, Any]) -> list[int]:
    """The time of a message by the sub-layer before the cut, in ns, of an instance of pipeline-partition."""
    moves, count = instance["transfer_ns"], len(instance["forward_ns"])
    return list(moves) if isinstance(moves, list) else [moves] * (count - 1)


def simulated(forward: list[int], backward: list[int], moves: list[int], micro_batches: int, sliced: int) -> int:
    """The end of the last pass under 1F1B in ns, as pipeline-partition defines it. forward, backward: a pass of every stage.
    moves: the message between every stage and the next. sliced: the number of first micro-batches in halves."""
    stages = len(forward)

    def halves(stage: int, q: int) -> tuple[int, ...]:
        """The parts in which a stage runs the forward pass of micro-batch q: (0, 1) in halves, (2,) as a whole."""
        return (0, 1) if q < sliced and (q == 0 or stage <= stages - 2 - q) else (2,)

    def part(time_ns: int, half: int) -> int:
        """The time of a half (0 or 1), or of a whole (2)."""
        return (time_ns // 2, time_ns - time_ns // 2, time_ns)[half]

    orders: list[list[tuple[str, int, int]]] = []
    for x in range(stages):
        warm_up, order = min(micro_batches, stages - 1 - x), list[tuple[str, int, int]]()
        for q in range(micro_batches + warm_up):
            if q < micro_batches:
                order += [("forward", q, half) for half in halves(x, q)]
            if q >= warm_up:
                order.append(("backward", q - warm_up, 2))
        orders.append(order)
    ends: dict[tuple[str, int, int, int], int] = {}
    at, free, left = [0] * stages, [0] * stages, sum(map(len, orders))
    while left:
        for x, order in enumerate(orders):
            while at[x] < len(order):
                kind, q, half = order[at[x]]
                sender = None
                if kind == "backward" and x + 1 < stages:
                    sender = (kind, q, 2, x + 1)
                elif kind == "forward" and x > 0:
                    sender = (kind, q, half if half in halves(x - 1, q) else 1, x - 1)
                if sender is not None and sender not in ends:
                    break
                begin = max(free[x], 0 if sender is None else ends[sender])
                message = 0 if sender is None else part(moves[min(x, sender[3])], half)
                free[x] = begin + message + part(forward[x] if kind == "forward" else backward[x], half)
                ends[kind, q, half, x] = free[x]
                at[x], left = at[x] + 1, left - 1
    return max(free)


def evaluate_partition(instance: dict[str, Any], solution: dict[str, Any]) -> Value:
    """The value, the memory and the violations of a solution of pipeline-partition."""
    stages, micro_batches, sliced = instance["stages"], instance["micro_batches"], solution.get("sliced", 0)
    spans = chain_spans(solution.get("cuts"), len(instance["forward_ns"]), stages)
    if type(sliced) is not int or not 0 <= sliced <= min(stages - 1, micro_batches):
        raise Wrong(f"sliced is {sliced!r}: give 0 to {min(stages - 1, micro_batches)}")
    forward, backward = ([sum(instance[name][a:b]) for a, b in spans] for name in ("forward_ns", "backward_ns"))
    moves = [transfers(instance)[first - 1] for first, _ in spans[1:]]
    peak, violations = chain_memory(instance, spans)
    if sliced and instance.get("provenance", {}).get("mbs", 0) % 2:
        violations.append(f"sliced is {sliced}: a micro-batch of an odd number of samples has no halves")
    return Value(simulated(forward, backward, moves, micro_batches, sliced), peak, violations)


def one_f_one_b(forward: list[int], backward: list[int], micro_batches: int) -> int:
    """The end of the last pass under 1F1B without halves, like `simulated`, but fast. forward, backward: a pass of every stage
    with the message that it receives.

    In round i, stage x runs the forward pass of micro-batch i + p - 1 - x (the previous stage has run it in the round before),
    and then the backward pass of micro-batch i."""
    stages, free, sent = len(forward), [0] * len(forward), [0] * len(forward)
    arrived = [0] * micro_batches
    for x, time_ns in enumerate(forward[:-1]):
        end = 0
        for q in range(min(micro_batches, stages - 1 - x)):
            arrived[q] = end = max(end, arrived[q]) + time_ns
        free[x] = sent[x] = end
    for i in range(micro_batches):
        back = 0
        for x in range(stages - 1, -1, -1):
            end = free[x]
            if i + stages - 1 - x < micro_batches:
                if x and sent[x - 1] > end:
                    end = sent[x - 1]
                end += forward[x]
                sent[x] = end
            back = (back if back > end else end) + backward[x]
            free[x] = back
    return free[0]


class Partitions:
    """Bounds on the partitions of an instance of pipeline-partition. Boundaries 0 .. n are the gaps before, between and after
    the n sub-layers. `before[x][e]`: the least sum of t of the stages 0 .. x-1 that end at boundary e; `largest[x][e]`: the
    least, over these stages, of their largest need; both are None where there are no such stages."""

    def __init__(self, instance: dict[str, Any]) -> None:
        """Fill the tables."""
        self.stages, self.micro_batches, n = instance["stages"], instance["micro_batches"], len(instance["forward_ns"])
        self.n, self.moves = n, [0, *transfers(instance), 0]  # by boundary; before the first and after the last sub-layer: none
        self.forward, self.backward = running_sums(instance["forward_ns"]), running_sums(instance["backward_ns"])
        self.firsts = chain_firsts(instance, n)
        empty: list[int | None] = [None] * (n + 1)
        self.before, after = [[0, *empty[1:]]], [[*empty[1:], 0]]
        for x in range(self.stages):
            row, known = list(empty), self.before[-1]
            for end in range(1, n + 1):
                sums = [so_far + sum(self.passes(a, end)) for a in self.starts(x, end) if (so_far := known[a]) is not None]
                row[end] = min(sums, default=None)
            self.before.append(row)
        for x in reversed(range(self.stages)):
            row, known = list(empty), after[-1]
            for end in range(1, n + 1):
                if (rest := known[end]) is not None:
                    for a in self.starts(x, end):
                        whole = rest + sum(self.passes(a, end))
                        row[a] = whole if (least := row[a]) is None else min(whole, least)
            after.append(row)
        self.after = after[::-1]  # by the first of the stages, as `before` by their number
        self.largest: list[list[int | None]] = [[0, *empty[1:]]]
        for x in range(self.stages):
            row, known = list(empty), self.largest[-1]
            for end in range(1, n + 1):
                needs = [
                    max(far, need)
                    for a in self.starts(x, end)
                    if (far := known[a]) is not None and (need := self.need(x, a, end)) is not None
                ]
                row[end] = min(needs, default=None)
            self.largest.append(row)

    def starts(self, x: int, end: int) -> range:
        """The boundaries where stage x may begin if it ends at a given one, within its memory."""
        return range(max(x, self.firsts[x][end]), end)

    def passes(self, first: int, end: int) -> tuple[int, int]:
        """The forward and the backward pass of a stage between two boundaries, each with the message that it receives."""
        forward = self.forward[end] - self.forward[first] + self.moves[first]
        return forward, self.backward[end] - self.backward[first] + self.moves[end]

    def need(self, x: int, first: int, end: int) -> int | None:
        """A lower bound on every partition with a stage x between two boundaries; None if there is none."""
        before, after, m, u = self.before[x][first], self.after[x + 1][end], self.micro_batches, self.stages - 1 - x
        if before is None or after is None:
            return None
        f, b = self.passes(first, end)
        if u < m:
            return before + (m - u) * (f + b) + max(after, u * f) + max(after, u * b)
        return before + max(m * (f + b), f + b + after + (m - 1) * max(f, b))


def bound_stages(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The bound by the evidence `stages` of pipeline-partition; the claim itself if nothing fits into memory."""
    least = Partitions(instance).largest[-1][-1]
    return claim if least is None else least


def bound_search(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The evidence `search` of pipeline-partition: the claim itself, if no solution is below it. Raises `Wrong` if one is, or
    if more partial partitions have to be looked at than the evidence says."""
    tables, m, seen, most = Partitions(instance), instance["micro_batches"], 0, most_steps(evidence)
    waiting: list[tuple[int, int, list[int], list[int]]] = [(tables.stages, tables.n, [], [])]
    while waiting:
        after, end, forward, backward = waiting.pop()
        x = after - 1
        for first in tables.starts(x, end):
            before, largest = tables.before[x][first], tables.largest[x][first]
            if before is None or largest is None or largest >= claim:
                continue
            f, b = tables.passes(first, end)
            forwards, backwards = [f, *forward], [b, *backward]
            if (need := tables.need(x, first, end)) is None or need >= claim:
                continue
            seen += 1
            if seen > most:
                raise Wrong(f"more than {most} partial partitions have to be looked at")
            if before + one_f_one_b(forwards, backwards, m) >= claim:
                continue
            if not x:
                raise Wrong(f"a solution takes less than {claim} ns")
            waiting.append((x, first, forwards, backwards))
    return claim


def partition_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no cuts of a pipeline-partition instance fit: there is no path through the boundaries between sub-layers."""
    return Partitions(instance).largest[-1][-1] is None


def sliced_solution(solution: dict[str, Any]) -> str:
    """Why the bounds of pipeline-partition are not of a solution: it has micro-batches in halves."""
    sliced = solution.get("sliced", 0)
    return f"sliced is {sliced}; best known solutions and bounds are of whole micro-batches" if sliced else ""


# ---- cluster-strategy --------------------------------------------------------------------------------------------------------
#
# A strategy puts every device of a cluster on a rank (j, i, r) of a grid: stage j of pp, pipeline i of dp, rank r of tmp; the
# device of rank (j dp + i) tmp + r is the entry of `placement` with that index. `cuts` divide the layers into stages, alike in
# all pipelines, and pipeline i takes `shares[i]` micro-batches of mbs samples (without `shares`: as equal as they can be,
# larger ones first). A solution is {"pp", "dp", "tmp", "mbs", "placement", "cuts", "shares"}.
#
#     value      max_i ( (shares_i - 1) max_j t_ji + sum_j t_ji + sum_j e_ji ) + max_j D_j
#     t_ji       over the layers of stage j: the largest `layer_ns` of any kind of device in group (j, i), of the table of (tmp,
#                mbs); and, if tmp > 1 and the layer is not in the shard's `whole`, `reductions` all-reduces in that group,
#                which have `reduced_bytes` mbs bytes together
#     e_ji       twice the time to send `boundary_bytes` mbs bytes, that of the layer before the cut, from the device of rank r
#                in stage j to that in stage j + 1; the slowest r
#     D_j        an all-reduce of the shard's `gradient_bytes` of the stage's layers over the devices (j, ., r), the slowest r;
#                with `tied_bytes` also, in the first and in the last stage, an all-reduce of these over all devices of both
#                stages
#     memory     on every device of group (j, i): the sum of `state_bytes`, min(shares_i, pp - j) times the sum of `kept_bytes`,
#                and the largest `workspace_bytes` of the stage's layers; at most the memory of the kind, if `within_memory`
#     shares     equal, unless `uneven_shares`; dp and tmp are powers of two, if `powers_of_two`
#
# Times of communication are the only ones that are computed in floating point (IEEE doubles, in the order of
# `Network.reduced_ns`), and every one is rounded to whole ns, halves to even: that of all all-reduces of a layer together, of
# both messages of a cut together, and of every other all-reduce.
#
# Evidence. All kinds are bounds on every strategy with given degrees (pp, dp, tmp, mbs), for all degrees that are allowed. A
# home is a run of devices of one kind which no island or node divides, so that any of them have equal links to all others.
#
#     even         {}. Some pipeline takes at least an even part of the micro-batches (rounded up). Each takes no less than all
#                  layers on their fastest kind of device, without any communication, and the slowest stage no less than any
#                  layer, or an even part of all.
#     pipelines    {"most": steps, see `Work`}. A step takes no less than any one of its pipelines with the slowest D of its own
#                  devices. Where shares are equal, one is followed whose devices have at least an even part of the weight of
#                  all devices: a device weighs more the slower its kind is. Else it is one with most micro-batches, of any
#                  weight. Its stages are options:
#                    inner, local        the group lies in one home, and so do the tmp groups (j, ., r) of its devices, which
#                                        take tmp dp devices of this home
#                    inner, not local    the group lies in one home and takes tmp devices of it; one of the groups (j, ., r) has
#                                        devices elsewhere, and reduces at best over the fastest link that such a group can have
#                    outer               the group lies in several homes. The times, the memory and the D are at best those of
#                                        its slowest kind
#                  Stages that follow each other in one home take no more than its devices. Transfers between homes, or to and
#                  from an outer group, are at best the fastest between any such devices. A reduction of tied bytes lies in one
#                  home, and then the first and the last stage are local and together not larger than it, or it is as fast as a
#                  group of that size in several homes can be. That no pipeline is below the claim is proven as for
#                  stage-assignment, by shortest paths under caps on the slowest stage and the slowest D.
#     placements   {"most": steps}. As `pipelines`; and for degrees of which a pipeline may be below the claim, all placements
#                  that do not cost the same. Of each, either one of its pipelines is not below the claim, by shortest paths as
#                  before (where shares are not equal: none is that takes most micro-batches), or all cuts are tried: within the
#                  claim, its pipelines take fewer micro-batches than there are.


class Network:
    """The links between devices, from `network` of an instance of cluster-strategy."""

    def __init__(self, instance: dict[str, Any]) -> None:
        """Keep the network, and the number of devices."""
        self.network, self.count = instance["network"], sum(run["count"] for run in instance["devices"])
        self.known: dict[tuple[tuple[int, ...], str], tuple[float, int]] = {}

    def link(self, devices: tuple[int, ...], operation: str) -> tuple[float, int]:
        """Bytes per second and latency in ns of the link that two or more devices communicate over.

        A matrix has the least bandwidth and the largest latency of any two of them. Of islands, the first one counts that holds
        all of them, is for this operation, or, where there is none, for any operation. operation: all-reduce or p2p."""
        key = devices, operation
        if key not in self.known:
            matrix = self.network.get("matrix")
            if matrix:
                pairs = [(a, b) for a in devices for b in devices if a != b]
                table, latencies = matrix["bandwidth_bytes_per_s"], matrix.get("latencies_ns")
                latency = max(latencies[a][b] for a, b in pairs) if latencies else matrix.get("latency_ns", 0)
                self.known[key] = float(min(table[a][b] for a, b in pairs)), latency
            else:
                low, high = min(devices), max(devices)
                holding = [island for island in self.network["islands"] if self.holds(island, low, high)]
                fitted = [island for island in holding if island.get("operation") == operation]
                general = [island for island in holding if island.get("operation") is None]
                if not fitted and not general:
                    raise Wrong(f"no island holds the devices {low} to {high}")
                island = (fitted or general)[0]
                nodes = [device // island.get("shared_by", 1) for device in devices]
                self.known[key] = self.shared(island, len(devices), max(map(nodes.count, nodes)))
        return self.known[key]

    @staticmethod
    def holds(island: dict[str, Any], low: int, high: int) -> bool:
        """Whether the devices low to high are in one island: the one that begins at `first`, or any of those that tile all."""
        size, first = island["devices"], island.get("first")
        return low // size == high // size if first is None else bool(first <= low and high < first + size)

    @staticmethod
    def shared(island: dict[str, Any], size: int, members: int) -> tuple[float, int]:
        """Bytes per second and latency of a group of `size` devices in an island, at most `members` of them in one node: the
        devices of a node share its `node_bytes_per_s`, and in a mesh every device has a link to every other one."""
        whole = island["bandwidth_bytes_per_s"]
        part = (island.get("node_bytes_per_s") or whole) * members / island.get("shared_by", 1)
        if island.get("meshed"):
            part = min(part, whole * (size - 1) / (island["devices"] - 1))
        return min(part, whole), island.get("latency_ns", 0)

    def reduced_ns(self, size_bytes: float, count: int, link: tuple[float, int]) -> float:
        """The time of an all-reduce of `count` devices: by a ring, by a tree, or the faster one, as the network says."""
        bandwidth, latency = link
        ring = 2 * (count - 1) * (size_bytes / count / bandwidth * 1e9 + latency)
        tree = 2 * (size_bytes / bandwidth * 1e9 + (count - 1).bit_length() * latency)
        algorithm = self.network.get("algorithm", "ring")
        return ring if algorithm == "ring" else tree if algorithm == "tree" else min(ring, tree)

    @staticmethod
    def sent_ns(size_bytes: int, link: tuple[float, int]) -> float:
        """The time of one message."""
        return size_bytes / link[0] * 1e9 + link[1]


class Cluster:
    """An instance of cluster-strategy for given degrees of parallelism tmp and samples mbs of a micro-batch, with the times of
    its layers and messages. `kinds`: for every device, the index of its kind."""

    def __init__(self, instance: dict[str, Any], network: Network, tmp: int, mbs: int) -> None:
        """Find the table and the shard of these degrees. Raises `Wrong` if the instance has none."""
        self.instance, self.network, self.tmp, self.mbs = instance, network, tmp, mbs
        self.layers = len(instance["layer_names"])
        self.kinds = [run["kind"] for run in instance["devices"] for _ in range(run["count"])]
        tables = [table for table in instance["tables"] if (table["tmp"], table["mbs"]) == (tmp, mbs)]
        if not tables:
            raise Wrong(f"tmp is {tmp!r}, mbs {mbs!r}: the instance has no table of these")
        self.table, self.shard = tables[0], next(shard for shard in instance["shards"] if shard["tmp"] == tmp)
        self.gradients = running_sums(self.shard["gradient_bytes"])
        self.reduced: dict[tuple[float, int], list[int]] = {}
        self.fits: dict[tuple[int, int], list[int]] = {}

    def memory_bytes(self, kind: int) -> int:
        """The memory of a kind of device."""
        return int(self.instance["kinds"][kind]["memory_bytes"])

    def layer_ns(self, kinds: set[int], link: tuple[float, int] | None) -> list[int]:
        """The time of every layer on tmp devices of these kinds, which are joined by a link (None for one device)."""
        rows = [self.table["layer_ns"][kind] for kind in kinds]
        times = [max(column) for column in zip(*rows, strict=True)]
        return times if link is None else [time + more for time, more in zip(times, self.reduction_ns(link), strict=True)]

    def reduction_ns(self, link: tuple[float, int]) -> list[int]:
        """The time of all all-reduces of every layer over tmp devices that are joined by a link."""
        if link not in self.reduced:
            counts, sizes = self.instance["reductions"], self.instance["reduced_bytes"]
            times = [
                round(count * self.network.reduced_ns(size * self.mbs / max(1, count), self.tmp, link))
                for count, size in zip(counts, sizes, strict=True)
            ]
            whole = set(self.shard.get("whole", []))
            self.reduced[link] = [0 if layer in whole else time for layer, time in enumerate(times)]
        return self.reduced[link]

    def transfer_ns(self, link: tuple[float, int]) -> list[int]:
        """The time of both messages of a cut between two devices that are joined by a link, by the layer before the cut."""
        return [round(2 * self.network.sent_ns(size * self.mbs, link)) for size in self.instance["boundary_bytes"]]

    def sync_ns(self, size_bytes: int, devices: tuple[int, ...]) -> int:
        """The time of an all-reduce over devices; 0 for one."""
        if len(devices) < 2:
            return 0
        return round(self.network.reduced_ns(size_bytes, len(devices), self.network.link(devices, "all-reduce")))

    def peak_bytes(self, first: int, end: int, in_flight: int) -> int:
        """The bytes that a device of a stage of the layers first to end - 1 needs."""
        states, kept = sum(self.shard["state_bytes"][first:end]), sum(self.table["kept_bytes"][first:end])
        return int(states + in_flight * kept + max(self.table["workspace_bytes"][first:end]))

    def limit_bytes(self, kinds: Iterable[int]) -> int:
        """The memory that a plan may need on devices of these kinds; more than any memory, if limits do not count."""
        return min(map(self.memory_bytes, kinds)) if self.instance.get("within_memory", True) else FAR

    def fitting(self, in_flight: int, kinds: Iterable[int]) -> list[int]:
        """For every boundary between layers, the least layer with which a stage that ends there fits on devices of these kinds.
        It never falls."""
        key = in_flight, self.limit_bytes(kinds)
        if key not in self.fits:
            first, self.fits[key] = 0, [0]
            for end in range(1, self.layers + 1):
                while first < end and key[1] < FAR and self.peak_bytes(first, end, in_flight) > key[1]:
                    first += 1
                self.fits[key].append(first)
        return self.fits[key]


def cluster_shares(instance: dict[str, Any], dp: int, mbs: int) -> list[int] | None:
    """The numbers of micro-batches of dp pipelines that are as equal as they can be, larger ones first; None if there are
    none."""
    total, rest = divmod(instance["batch"], mbs)
    if rest or total < dp or (total % dp and not instance.get("uneven_shares")):
        return None
    least, more = divmod(total, dp)
    return [least + 1] * more + [least] * (dp - more)


def allowed_degrees(instance: dict[str, Any], dp: int, tmp: int) -> bool:
    """Whether an instance of cluster-strategy allows these numbers of pipelines and of tensor-parallel devices."""
    return not instance.get("powers_of_two") or (dp & (dp - 1) == 0 and tmp & (tmp - 1) == 0)


def cluster_degrees(instance: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """All degrees (pp, dp, tmp, mbs) that an instance of cluster-strategy allows."""
    devices, layers = sum(run["count"] for run in instance["devices"]), len(instance["layer_names"])
    return [
        (devices // tmp // dp, dp, tmp, mbs)
        for tmp, mbs in sorted((table["tmp"], table["mbs"]) for table in instance["tables"])
        for dp in range(1, devices // tmp + 1)
        if devices % (tmp * dp) == 0 and devices // tmp // dp <= layers
        if allowed_degrees(instance, dp, tmp) and cluster_shares(instance, dp, mbs) is not None
    ]


def strategy_shape(instance: dict[str, Any], solution: dict[str, Any]) -> tuple[int, int, int, int, list[int]]:
    """The degrees (pp, dp, tmp, mbs) and the shares of a solution of cluster-strategy. Raises `Wrong` if they, or its
    placement, do not belong to the instance."""
    degrees = [solution.get(name) for name in ("pp", "dp", "tmp", "mbs")]
    if not all(type(degree) is int and degree > 0 for degree in degrees):
        raise Wrong(f"pp, dp, tmp and mbs are {degrees}: give whole numbers above 0")
    pp, dp, tmp, mbs = (int(degree) for degree in degrees if degree is not None)
    devices = sum(run["count"] for run in instance["devices"])
    if pp * dp * tmp != devices or not allowed_degrees(instance, dp, tmp):
        raise Wrong(f"pp, dp and tmp are {pp}, {dp} and {tmp}: the instance does not allow these for {devices} devices")
    placement = solution.get("placement")
    if (
        not isinstance(placement, list)
        or not all(type(d) is int for d in placement)
        or sorted(placement) != list(range(devices))
    ):
        raise Wrong(f"placement: give each of the devices 0 to {devices - 1} once")
    shares = solution.get("shares") or cluster_shares(instance, dp, mbs)
    if not isinstance(shares, list) or len(shares) != dp or not all(type(share) is int and share > 0 for share in shares):
        raise Wrong(f"shares is {shares}: give {dp} whole numbers above 0")
    if sum(shares) * mbs != instance["batch"] or (len(set(shares)) > 1 and not instance.get("uneven_shares")):
        raise Wrong(f"shares is {shares}: they do not divide a batch of {instance['batch']} samples as the instance wants it")
    return pp, dp, tmp, mbs, shares


def evaluate_cluster(instance: dict[str, Any], solution: dict[str, Any], network: Network | None = None) -> Value:
    """The value, the memory and the violations of a solution of cluster-strategy. network: of the instance, to keep its
    links."""
    pp, dp, tmp, mbs, shares = strategy_shape(instance, solution)
    network = network or Network(instance)
    cluster, placement = Cluster(instance, network, tmp, mbs), solution["placement"]
    spans = chain_spans(solution.get("cuts"), cluster.layers, pp)
    grid = [[tuple(placement[(j * dp + i) * tmp : (j * dp + i + 1) * tmp]) for i in range(dp)] for j in range(pp)]

    def stage_ns(j: int, i: int) -> int:
        """t of stage j in pipeline i."""
        group, (first, end) = grid[j][i], spans[j]
        link = network.link(group, "all-reduce") if tmp > 1 else None
        return sum(cluster.layer_ns({cluster.kinds[device] for device in group}, link)[first:end])

    def sent_ns(j: int, i: int) -> int:
        """e of the transfer from stage j to the next one in pipeline i."""
        pairs = zip(grid[j][i], grid[j + 1][i], strict=True)
        return max(cluster.transfer_ns(network.link(pair, "p2p"))[spans[j][1] - 1] for pair in pairs)

    def sync_ns(j: int) -> int:
        """D of stage j."""
        size = cluster.gradients[spans[j][1]] - cluster.gradients[spans[j][0]]
        slowest = max(cluster.sync_ns(size, tuple(grid[j][i][r] for i in range(dp))) for r in range(tmp))
        return slowest + (tied_ns if j in (0, pp - 1) else 0)

    ends = tuple(device for j in sorted({0, pp - 1}) for group in grid[j] for device in group)
    tied_ns = cluster.sync_ns(instance["tied_bytes"], ends) if instance.get("tied_bytes") else 0
    pipelines = []
    for i, share in enumerate(shares):
        times = [stage_ns(j, i) for j in range(pp)]
        pipelines.append((share - 1) * max(times) + sum(times) + sum(sent_ns(j, i) for j in range(pp - 1)))
    peaks, violations = [], []
    for j, (first, end) in enumerate(spans):
        needs = [cluster.peak_bytes(first, end, min(share, pp - j)) for share in shares]
        limits = [min(cluster.memory_bytes(cluster.kinds[device]) for device in group) for group in grid[j]]
        over, need = max((need - limit, need) for need, limit in zip(needs, limits, strict=True))
        peaks.append((over, -j, need))
        if over > 0 and instance.get("within_memory", True):
            violations.append(f"stage {j} needs {need} bytes, {over} above the memory of its device")
    return Value(max(pipelines) + max(sync_ns(j) for j in range(pp)), max(peaks)[2], violations)


def cluster_even(instance: dict[str, Any], cluster: Cluster, degrees: tuple[int, int, int, int]) -> int:
    """The evidence `even` of cluster-strategy for given degrees."""
    pp, dp, _, mbs = degrees
    fastest = [min(column) for column in zip(*(cluster.table["layer_ns"][kind] for kind in set(cluster.kinds)), strict=True)]
    share = -(-(instance["batch"] // mbs) // dp)
    return (share - 1) * max(*fastest, -(-sum(fastest) // pp), 0) + sum(fastest)


def bound_even_strategy(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The bound by the evidence `even` of cluster-strategy; the claim itself if no degrees are allowed."""
    network = Network(instance)
    bounds = [cluster_even(instance, Cluster(instance, network, *case[2:]), case) for case in cluster_degrees(instance)]
    return min(bounds, default=claim)


FAR = 1 << 62  # more than any time, and any number of bytes
PATH = 50  # steps that a shortest path counts as


class Work:
    """The work that evidence may take, counted in small steps, so that a check ends soon."""

    def __init__(self, most: int) -> None:
        """Begin to count."""
        self.most = self.left = most

    def spend(self, steps: int) -> None:
        """Count some steps. Raises `Wrong` if no more are left."""
        self.left -= steps
        if self.left < 0:
            raise Wrong(f"the evidence takes more than {self.most} steps")


class Homes:
    """The homes of a cluster, by type: homes of one type have devices of one kind, equal sizes, and equal islands around them
    (in a matrix, every device is a home, and a type). `homes`: for each type, its homes; `kinds`: the kind of its devices;
    `around`: the islands that hold it."""

    def __init__(self, instance: dict[str, Any], network: Network) -> None:
        """Find the homes: runs of devices that are not divided by a change of kind, the border of an island or that of a
        node."""
        self.network, count = network, network.count
        kinds = [run["kind"] for run in instance["devices"] for _ in range(run["count"])]
        borders = {0, count} | {d for d in range(1, count) if kinds[d] != kinds[d - 1]}
        islands = network.network.get("islands") or []
        for island in islands:
            size, first = island["devices"], island.get("first")
            borders |= set(range(0, count, size)) if first is None else {first, first + size}
            borders |= set(range(0, count, node)) if (node := island.get("shared_by", 1)) > 1 else set()
        ends = sorted(border for border in borders if border <= count) if islands else list(range(count + 1))
        types: dict[str, list[tuple[range, list[dict[str, Any]]]]] = {}
        for home in (range(ends[i], ends[i + 1]) for i in range(len(ends) - 1)):
            around = [{**island, "first": None} for island in islands if network.holds(island, home[0], home[-1])]
            key = json.dumps([kinds[home[0]], len(home), around if islands else home[0]], sort_keys=True)
            types.setdefault(key, []).append((home, around))
        self.homes = [[home for home, _ in found] for found in types.values()]
        self.around = [found[0][1] for found in types.values()]
        self.kinds = [kinds[found[0][0][0]] for found in types.values()]

    def size(self, home: int) -> int:
        """The number of devices of a home. home: its type."""
        return len(self.homes[home][0])

    def inside(self, home: int, count: int, operation: str) -> list[tuple[float, int]]:
        """The link of `count` devices of one home, in a list; empty if it has fewer. home: its type."""
        return [self.network.link(tuple(self.homes[home][0][:count]), operation)] if count <= self.size(home) else []

    def outside(self, home: int, count: int, operation: str, other: int | None = None) -> list[tuple[float, int]]:
        """Links of which one is at least as good as that of any `count` devices, at least one in a home and one elsewhere;
        empty if there are none. home: the home's type. other: the type of a home in which one of the others is; None for
        any."""
        if not self.around[home]:
            device, links = self.homes[home][0][0], []
            for b in [d for d in range(self.network.count) if d != device] if other is None else self.homes[other][0]:
                links += [self.network.link((device, b), operation)] if b != device else []
            widest, soonest = sorted((-width for width, _ in links)), sorted(late for _, late in links)
            return [(-widest[count - 2], soonest[count - 2])] if len(links) > count - 2 else []
        links, size = [], self.size(home)
        for island in self.around[home]:
            holding = min(island["devices"], self.network.count)
            if island.get("operation") not in (None, operation) or holding <= size or holding < count:
                continue
            if other is None or island in self.around[other]:
                node = island.get("shared_by", 1)
                links.append(self.network.shared(island, count, min(node, count if node > size else count - 1)))
        return links


class RingOption(NamedTuple):
    """A choice for a stage of the pipeline that the evidence `pipelines` follows.

    home: the type of the home of its group, or of the slowest device of an outer group. need: devices that it takes of the
    home, 0 for an outer group. weight: of its devices. sums: running sums of the layers' times. rings: links of which one is at
    least as good as the slowest one of its all-reduces of gradients; empty if there are none. local: whether these are in the
    home."""

    home: int
    need: int
    weight: int
    sums: list[int]
    rings: list[tuple[float, int]]
    local: bool


def least_row(rows: list[list[int]]) -> list[int] | None:
    """The least number of several lists at every index; None of no lists."""
    return [min(column) for column in zip(*rows, strict=True)] if rows else None


class Pipelines:
    """Bounds on a pipeline of any strategy of given degrees: shortest paths through the options of its stages.

    share: the number of its micro-batches, at least. weight: the weight of its devices, at least."""

    def __init__(self, cluster: Cluster, homes: Homes, degrees: tuple[int, int, int, int], even: bool) -> None:
        """List the options of a stage, and the transfers between them. even: whether all pipelines have equal shares."""
        self.cluster, self.homes, self.pp, self.dp, self.tmp = cluster, homes, *degrees[:3]
        self.share = -(-(cluster.instance["batch"] // degrees[3]) // self.dp)
        speeds = [sum(row) for row in cluster.table["layer_ns"]]
        ranks = sorted({speeds[kind] for kind in homes.kinds})
        weights = [ranks.index(speeds[kind]) for kind in homes.kinds]
        whole = sum(weight * sum(map(len, same)) for weight, same in zip(weights, homes.homes, strict=True))
        self.weight = -(-whole // self.dp) if even else 0
        self.options: list[RingOption] = []
        for home, kind in enumerate(homes.kinds):
            self._add_options(home, kind, weights[home])
        self.values = sorted(
            {option.sums[b] - option.sums[a] for option in self.options for b in range(1, cluster.layers + 1) for a in range(b)}
        )
        self.moves = {
            (a, a_outer, b, b_outer): self._move(a, a_outer, b, b_outer)
            for a, a_outer in {(option.home, not option.need) for option in self.options}
            for b, b_outer in {(option.home, not option.need) for option in self.options}
        }
        self.within = {
            a: least_row([cluster.transfer_ns(link) for link in homes.inside(a, 2, "p2p")]) for a, *_ in self.options
        }

    def _add_options(self, home: int, kind: int, weight: int) -> None:
        """Add the options of a stage whose group is in a home of a type, or is outer, with its slowest device in one."""
        cluster, tmp, dp = self.cluster, self.tmp, self.dp
        local, elsewhere = (
            (self.homes.inside(home, dp, "all-reduce"), self.homes.outside(home, dp, "all-reduce")) if dp > 1 else ([], [])
        )
        for link in self.homes.inside(home, tmp, "all-reduce") if tmp > 1 else [None]:
            sums = running_sums(cluster.layer_ns({kind}, link))
            if self.homes.size(home) >= tmp * dp:
                self.options.append(RingOption(home, tmp * dp, tmp * weight, sums, local, True))
            if elsewhere:
                self.options.append(RingOption(home, tmp, tmp * weight, sums, elsewhere, False))
        reductions = least_row(
            [cluster.reduction_ns(link) for link in (self.homes.outside(home, tmp, "all-reduce") if tmp > 1 else [])]
        )
        if reductions is not None and (dp == 1 or local or elsewhere):
            times = [a + b for a, b in zip(cluster.table["layer_ns"][kind], reductions, strict=True)]
            self.options.append(RingOption(home, 0, tmp * weight, running_sums(times), local + elsewhere, False))

    def _move(self, a: int, a_outer: bool, b: int, b_outer: bool) -> list[int] | None:
        """The least transfer from a stage in a home of type a to one in another home, of type b, by the layer before the cut.
        Where one of both is an outer group, at least one of its devices is in another home than those of the other stage."""
        homes, every = self.homes, range(len(self.homes.kinds))
        if a_outer and b_outer:
            links = [link for home in every for link in homes.inside(home, 2, "p2p") + homes.outside(home, 2, "p2p")]
        elif a_outer or b_outer:
            links = homes.outside(b if a_outer else a, 2, "p2p")
        else:
            links = homes.outside(a, 2, "p2p", b)
        return least_row([self.cluster.transfer_ns(link) for link in set(links)])

    def ends(self) -> list[tuple[int, bool]]:
        """How the tied bytes can be reduced: pairs of the least time, and whether that is within one home."""
        size, count = self.cluster.instance.get("tied_bytes", 0), self.dp * self.tmp * min(2, self.pp)
        if not size or count < 2:
            return [(0, False)]
        found = []
        for local in (True, False):
            of = self.homes.inside if local else self.homes.outside
            links = [link for home in range(len(self.homes.kinds)) for link in of(home, count, "all-reduce")]
            times = [round(self.cluster.network.reduced_ns(size, count, link)) for link in links]
            found += [(min(times), local)] if times else []
        return found

    def _most_bytes(self, option: RingOption, cap: int) -> int:
        """The most bytes of gradients that the rings of an option can reduce within a time; -1 for none."""
        if not option.rings:
            return FAR if cap >= 0 else -1
        low, high = -1, self.cluster.gradients[-1]
        while low < high:
            middle = (low + high + 1) // 2
            fits = min(round(self.cluster.network.reduced_ns(middle, self.dp, link)) for link in option.rings) <= cap
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _starts(self, stage: int, option: RingOption, cap: int, sync_cap: int) -> list[int]:
        """For every boundary between layers, the least layer with which a stage that ends there can begin: within caps on its
        time and its all-reduce, and within memory."""
        cluster, (in_flight, sums) = self.cluster, (min(self.share, self.pp - stage), option.sums)
        fitting = cluster.fitting(in_flight, self.homes.kinds[option.home : option.home + 1])
        most, first, starts = self._most_bytes(option, sync_cap), 0, [0]
        for end in range(1, cluster.layers + 1):
            first = max(first, fitting[end])
            while first < end and (sums[end] - sums[first] > cap or cluster.gradients[end] - cluster.gradients[first] > most):
                first += 1
            starts.append(first)
        return starts

    def least(self, tied_ns: int, tied_home: bool, cap: int, sync_cap: int) -> int:
        """The least time of a micro-batch through the stages and transfers of a pipeline, if no stage takes more than `cap`,
        and no D more than `sync_cap`; FAR if there is no such pipeline. tied_ns: of the reduction of tied bytes. tied_home:
        whether it is in one home.

        A state is (type of home, devices used of it, whether the first home has been left, weight so far), with a list of the
        least times by the boundary where the stages so far end; the home's devices used are 0 for an outer group."""
        layers, states = self.cluster.layers, dict[tuple[int, int, bool, int], list[int]]()
        for stage in range(self.pp):
            is_end = stage in (0, self.pp - 1)
            entered = self._entered(states, stage, tied_home)
            states = {}
            for number, option in enumerate(self.options):
                rows = {key[1:]: row for key, row in entered.items() if key[0] == number}
                if not rows or (is_end and tied_home and not (option.local and option.need)):
                    continue
                starts = self._starts(stage, option, cap, sync_cap - (tied_ns if is_end else 0))
                for (used, left, weight), row in rows.items():
                    after, key = _ended(row, starts, option.sums), (option.home, used, left, weight)
                    states[key] = [min(pair) for pair in zip(states[key], after, strict=True)] if key in states else after
        best = FAR
        for (home, used, left, weight), row in states.items():
            if weight >= self.weight and not (tied_home and left and used + self.tmp * self.dp > self.homes.size(home)):
                best = min(best, row[layers])
        return best

    def _entered(
        self, states: dict[tuple[int, int, bool, int], list[int]], stage: int, tied_home: bool
    ) -> dict[tuple[int, int, bool, int], list[int]]:
        """The least times until a stage begins, by the boundary where it does, for (its option, devices used of its home with
        its own, whether the first home has been left, weight with its own). states: of the stages before."""
        layers, entered = self.cluster.layers, dict[tuple[int, int, bool, int], list[int]]()

        def reach(key: tuple[int, int, bool, int], row: list[int], move: list[int] | None) -> None:
            """Enter with the times of a row and a transfer, if there is one."""
            if move is not None:
                moved = [FAR, *(min(FAR, a + b) for a, b in zip(row[1:], move, strict=False)), FAR]
                entered[key] = [min(pair) for pair in zip(entered[key], moved, strict=True)] if key in entered else moved

        for number, option in enumerate(self.options):
            size, outer = self.homes.size(option.home), not option.need
            if not stage:
                entered[number, option.need, False, min(self.weight, option.weight)] = [0] + [FAR] * layers
            for (home, used, left, weight), row in states.items():
                heavier = min(self.weight, weight + option.weight)
                if used and home == option.home and not outer and used + option.need <= size:
                    reach((number, used + option.need, left, heavier), row, self.within[home])
                reach((number, option.need, tied_home, heavier), row, self.moves[home, not used, option.home, outer])
        return entered

    def none_below(self, claim: int, work: Work) -> bool:
        """Whether no pipeline takes less than the claim."""
        return all(
            none_below(claim, self.share - 1, self.values, self.least, end, work)
            for end in (self.ends() if self.options else [])
        )


def none_below(claim: int, rounds: int, values: list[int], least: Callable[..., int], of: tuple[Any, ...], work: Work) -> bool:
    """Whether no sum of `rounds` times the slowest stage, the slowest D, and all stages and transfers is below the claim.

    values: the possible times of a slowest stage, ascending. least: returns the least sum of all stages and transfers for `of`,
    a cap on the slowest stage, and one on D. Ranges of the slowest stage, by index of `values`, with a cap on D, wait to be
    proven: the least sum leaves less for both than the range allows, or leaves a smaller range, or the range is halved."""
    waiting = [(0, len(values) - 1, claim - 1)]
    while waiting:
        low, high, sync_cap = waiting.pop()
        work.spend(PATH)
        rest = claim - least(*of, values[high], sync_cap)
        if rest <= rounds * values[low]:
            continue
        lower = high
        while rounds * values[lower] >= rest:
            lower -= 1
        smaller = min(sync_cap, rest - rounds * values[low] - 1)
        if (lower, smaller) != (high, sync_cap):
            waiting.append((low, lower, smaller))
        elif low == high:
            return False
        else:
            middle = (low + high) // 2
            waiting += [(low, middle, sync_cap), (middle + 1, high, sync_cap)]
    return True


def _ended(entered: list[int], starts: list[int], sums: list[int]) -> list[int]:
    """The least times until a stage ends, by the boundary where it does. entered: until it begins. starts: by
    `Pipelines._starts`. sums: running sums of its layers' times."""
    ended, waiting, head = [FAR], list[tuple[int, int]](), 0
    for end in range(1, len(sums)):
        if entered[end - 1] < FAR:
            last = entered[end - 1] - sums[end - 1]
            while len(waiting) > head and waiting[-1][0] >= last:
                waiting.pop()
            waiting.append((last, end - 1))
        while head < len(waiting) and waiting[head][1] < starts[end]:
            head += 1
        ended.append(waiting[head][0] + sums[end] if head < len(waiting) else FAR)
    return ended


class Layout(NamedTuple):
    """All that the value of strategies with given degrees depends on in their placement.

    columns: the pipelines, equal ones once where shares are equal. Of each, for every stage: the kinds of its devices, the link
    among them (None for one device), and the links of its devices to those of the stage before. rings: for every stage, the
    links of its all-reduces of gradients. tied: the link among all devices of the first and the last stage; None where no tied
    bytes are reduced."""

    columns: tuple[tuple[Any, ...], ...]
    rings: tuple[frozenset[tuple[float, int]], ...]
    tied: tuple[float, int] | None


class LayoutState(NamedTuple):
    """The first stages of a layout. free: the devices left of every home. columns: for every pipeline, in ascending order, the
    index of its costs so far, and the homes of its devices in the last of these stages. rings: as in `Layout`. ends: the homes
    of the devices of the first stage, and of the last one, if tied bytes are reduced."""

    free: tuple[int, ...]
    columns: tuple[tuple[int, tuple[int, ...]], ...]
    rings: tuple[frozenset[tuple[float, int]], ...]
    ends: tuple[int, ...]


class Layouts:
    """All layouts of a cluster for given degrees, stage by stage: of placements that differ by an exchange of pipelines, of all
    ranks, or of homes that are alike, one is enough."""

    def __init__(self, instance: dict[str, Any], homes: Homes, degrees: tuple[int, int, int, int], work: Work) -> None:
        """List the homes."""
        self.network, (self.pp, self.dp, self.tmp, _), self.work = homes.network, degrees, work
        self.tied, self.uneven = bool(instance.get("tied_bytes")), bool(instance.get("uneven_shares"))
        found = sorted((home[0], home, kind) for same, kind in zip(homes.homes, homes.kinds, strict=True) for home in same)
        self.homes, self.kinds = [home for _, home, _ in found], [kind for *_, kind in found]
        self.alike = [self._surroundings(home, kind) for _, home, kind in found]
        self.links: dict[tuple[tuple[int, ...], str], tuple[float, int]] = {}
        self.costs: list[tuple[Any, ...]] = [()]
        self.numbers: dict[Any, int] = {}

    def _surroundings(self, home: range, kind: int) -> str:
        """A text that is equal for homes that may be exchanged: the kind and number of their devices, and the islands and nodes
        around them, which have to be the same unless they hold a home alone."""
        islands, count = self.network.network.get("islands"), self.network.count
        around: list[Any] = [kind, len(home)] if islands else [home[0]]
        for index, island in enumerate(islands or []):
            if self.network.holds(island, home[0], home[-1]):
                size, first, node = island["devices"], island.get("first"), island.get("shared_by", 1)
                start, nodes = home[0] // size * size if first is None else first, home[0] // node * node
                alone = range(start, min(start + size, count)) == home
                around.append({**island, "first": None} if alone else [index, start])
                around.append(None if node == 1 or range(nodes, min(nodes + node, count)) == home else nodes)
        return json.dumps(around, sort_keys=True)

    def link(self, group: tuple[int, ...], operation: str) -> tuple[float, int]:
        """The link of devices in these homes, one for every time that a home is named, ascending."""
        if (group, operation) not in self.links:
            devices = tuple(self.homes[home][group[:index].count(home)] for index, home in enumerate(group))
            self.links[group, operation] = self.network.link(devices, operation)
        return self.links[group, operation]

    def all(self) -> set[Layout]:
        """All layouts."""
        states = {LayoutState(tuple(map(len, self.homes)), ((0, ()),) * self.dp, (), ())}
        for stage in range(self.pp):
            is_end = self.tied and stage in (0, self.pp - 1)
            states = {self._grown(state, row, is_end) for state in states for row in self._rows(state)}
        found = set()
        for state in states:
            tied = self.link(state.ends, "all-reduce") if len(state.ends) > 1 else None
            numbers = [number for number, _ in state.columns]
            columns = tuple(self.costs[number] for number in (numbers if self.uneven else sorted(set(numbers))))
            found.add(Layout(columns, state.rings, tied))
        return found

    def _grown(self, state: LayoutState, row: list[tuple[int, ...]], is_end: bool) -> LayoutState:
        """A state with one stage more, whose devices are in the homes of a row, by pipeline. is_end: whether the stage's
        devices reduce tied bytes. Homes that are alike are exchanged so that equal states are equal tuples."""
        devices = [home for cell in row for home in cell]
        free = [count - devices.count(home) for home, count in enumerate(state.free)]
        columns = [(self._cost(*column, cell), cell) for column, cell in zip(state.columns, row, strict=True)]
        groups = {tuple(sorted(cell[r] for cell in row)) for r in range(self.tmp)} if self.dp > 1 else set()
        rings = (*state.rings, frozenset(self.link(group, "all-reduce") for group in groups))
        ends, marks = (*state.ends, *(devices if is_end else ())), list[tuple[Any, ...]]()
        for home, left in enumerate(free):
            here = sorted((number, r) for number, cell in columns for r, other in enumerate(cell) if other == home)
            marks.append((self.alike[home], left, ends.count(home), here, home))
        order = [mark[-1] for mark in sorted(marks)]
        targets = sorted(range(len(free)), key=lambda home: (self.alike[home], home))
        new = dict(zip(order, targets, strict=True))
        return LayoutState(
            tuple(left for _, left in sorted((new[home], left) for home, left in enumerate(free))),
            tuple(sorted((number, tuple(new[home] for home in cell)) for number, cell in columns)),
            rings,
            tuple(sorted(new[home] for home in ends)),
        )

    def _rows(self, state: LayoutState) -> list[list[tuple[int, ...]]]:
        """The homes of the devices of the next stage of a state: in every row, a tuple for each pipeline. Of pipelines that are
        alike, later ones have later homes; so have the ranks of the first pipeline in the first stage."""
        used = {home for _, cell in state.columns for home in cell}
        marks = [
            home if home in used else (self.alike[home], left, state.ends.count(home)) for home, left in enumerate(state.free)
        ]
        rows: list[tuple[list[tuple[int, ...]], tuple[int, ...]]] = [([], state.free)]
        for index, column in enumerate(state.columns):
            least = index > 0 and column == state.columns[index - 1]
            longer = []
            for row, free in rows:
                for cell, left in self._cells(free, state.free, marks):
                    ranked = index or column[1] or list(cell) == sorted(cell)
                    if ranked and not (least and cell < row[-1]):
                        longer.append(([*row, cell], left))
            rows = longer
        return [row for row, _ in rows]

    def _cells(
        self, free: tuple[int, ...], whole: tuple[int, ...], marks: list[Any]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The homes of the devices of one pipeline in a stage, with the devices left of each home then. free, whole: the
        devices left before, and before the stage. marks: equal for homes that may be exchanged as long as the stage has no
        device in them."""
        cells: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), free)]
        for _ in range(self.tmp):
            longer = []
            for cell, left in cells:
                tried = set()
                for home, count in enumerate(left):
                    fresh = count == whole[home]
                    if count and not (fresh and marks[home] in tried):
                        longer.append(((*cell, home), (*left[:home], count - 1, *left[home + 1 :])))
                    tried |= {marks[home]} if fresh else set()
            cells = longer
        self.work.spend(len(cells))
        return cells

    def _cost(self, number: int, before: tuple[int, ...], cell: tuple[int, ...]) -> int:
        """The index in `costs` of a pipeline's costs, with one stage more: see `Layout.columns`. number: that of the costs
        before. before, cell: the homes of the stage before, none for the first one, and of the stage."""
        if (key := (number, before, cell)) not in self.numbers:
            kinds = tuple(sorted({self.kinds[home] for home in cell}))
            moves = {self.link((min(pair), max(pair)), "p2p") for pair in zip(before, cell, strict=False)}
            among = self.link(tuple(sorted(cell)), "all-reduce") if self.tmp > 1 else ()
            costs = (*self.costs[number], (kinds, among, tuple(sorted(moves))))
            if costs not in self.numbers:
                self.numbers[costs] = len(self.costs)
                self.costs.append(costs)
            self.numbers[key] = self.numbers[costs]
        return self.numbers[key]


class Placed:
    """The strategies of one layout, of given degrees."""

    def __init__(self, cluster: Cluster, layout: Layout, degrees: tuple[int, int, int, int]) -> None:
        """Compute the times of layers, transfers and tied bytes."""
        instance = cluster.instance
        self.cluster, self.layout, (self.pp, self.dp, _, _) = cluster, layout, degrees
        self.total, self.uneven = instance["batch"] // degrees[3], bool(instance.get("uneven_shares"))
        self.sums = [
            [running_sums(cluster.layer_ns(set(kinds), link or None)) for kinds, link, _ in column] for column in layout.columns
        ]
        slowest = [[[cluster.transfer_ns(link) for link in moves] for *_, moves in column[1:]] for column in layout.columns]
        self.moves = [[[max(times) for times in zip(*rows, strict=True)] for rows in column] for column in slowest]
        count = self.dp * degrees[2] * min(2, self.pp)
        self.tied_ns = round(cluster.network.reduced_ns(instance["tied_bytes"], count, layout.tied)) if layout.tied else 0
        self.known: dict[tuple[int, int, int], int] = {}

    def sync_ns(self, stage: int, first: int, end: int) -> int:
        """D of a stage of the layers first to end - 1."""
        if (stage, first, end) not in self.known:
            size, network = self.cluster.gradients[end] - self.cluster.gradients[first], self.cluster.network
            times = [round(network.reduced_ns(size, self.dp, link)) for link in self.layout.rings[stage]]
            self.known[stage, first, end] = max(times, default=0) + (self.tied_ns if stage in (0, self.pp - 1) else 0)
        return self.known[stage, first, end]

    def least(self, column: int, share: int, cap: int, sync_cap: int) -> int:
        """The least time of a micro-batch through the stages and transfers of a pipeline, if no stage takes more than `cap`,
        and no D of the strategy more than `sync_cap`; FAR if there is none. column: its index. share: its number of
        micro-batches."""
        layers, best = self.cluster.layers, [0] + [FAR] * self.cluster.layers
        for stage, sums in enumerate(self.sums[column]):
            moves = self.moves[column][stage - 1] if stage else []
            entered = [at if not stage or at >= FAR or not 0 < b < layers else at + moves[b - 1] for b, at in enumerate(best)]
            fitting = self.cluster.fitting(min(share, self.pp - stage), self.layout.columns[column][stage][0])
            first, starts = 0, [0]
            for end in range(1, layers + 1):
                first = max(first, fitting[end])
                while first < end and (sums[end] - sums[first] > cap or self.sync_ns(stage, first, end) > sync_cap):
                    first += 1
                starts.append(first)
            best = _ended(entered, starts, sums)
        return best[layers]

    def none_below(self, claim: int, work: Work) -> bool:
        """Whether no strategy takes less than the claim: because one of its pipelines does not (where shares are uneven:
        because none does that takes most micro-batches), or else by trying all cuts and shares."""
        share, closed = -(-self.total // self.dp), []
        for column, rows in enumerate(self.sums):
            values = sorted({sums[b] - sums[a] for sums in rows for b in range(1, len(sums)) for a in range(b)})
            closed.append(none_below(claim, share - 1, values, self.least, (column, share), work))
            if closed[-1] != self.uneven:
                break
        return (all(closed) if self.uneven else any(closed)) or self._tried(claim, work)

    def _tried(self, claim: int, work: Work) -> bool:
        """Whether no cuts and shares take less than the claim: for all cuts, the most micro-batches of each pipeline below the
        claim are too few."""
        for cuts in combinations(range(1, self.cluster.layers), self.pp - 1):
            work.spend(1)
            spans = [*zip((0, *cuts), (*cuts, self.cluster.layers), strict=True)]
            left = claim - 1 - max(self.sync_ns(j, *span) for j, span in enumerate(spans))
            most = [self._most(column, spans, left) for column in range(len(self.sums))]
            if min(most) > 0 and (sum(most) >= self.total if self.uneven else min(most) * self.dp >= self.total):
                return False
        return True

    def _most(self, column: int, spans: list[tuple[int, int]], left: int) -> int:
        """The most micro-batches of a pipeline with these stages within a time, and within memory; 0 if there are none."""
        times = [sums[end] - sums[first] for sums, (first, end) in zip(self.sums[column], spans, strict=True)]
        whole = sum(times) + sum(row[first - 1] for row, (first, _) in zip(self.moves[column], spans[1:], strict=True))
        most = 0 if whole > left else self.total if not max(times) else min(self.total, 1 + (left - whole) // max(times))
        kinds = [stage[0] for stage in self.layout.columns[column]]
        while most and any(
            first < self.cluster.fitting(min(most, self.pp - j), kinds[j])[end] for j, (first, end) in enumerate(spans)
        ):
            most = min(most, self.pp) - 1
        return most


def bound_pipelines(instance: dict[str, Any], evidence: dict[str, Any], claim: int, placed: bool = False) -> int:
    """The evidence `pipelines` of cluster-strategy, or `placements` if `placed` is true: the claim itself, if no pipeline, or
    no strategy, of any degrees is below it. Raises `Wrong` if one may be."""
    network, work = Network(instance), Work(most_steps(evidence))
    homes, even = Homes(instance, network), not instance.get("uneven_shares")
    for case in cluster_degrees(instance):
        cluster = Cluster(instance, network, *case[2:])
        if cluster_even(instance, cluster, case) >= claim or Pipelines(cluster, homes, case, even).none_below(claim, work):
            continue
        layouts = Layouts(instance, homes, case, work).all() if placed else []
        if not placed or not all(Placed(cluster, layout, case).none_below(claim, work) for layout in layouts):
            raise Wrong(f"a strategy of pp, dp, tmp, mbs {case} may take less than {claim} ns")
    return claim


def bound_placements(instance: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The evidence `placements` of cluster-strategy: see `bound_pipelines`."""
    return bound_pipelines(instance, evidence, claim, placed=True)


def cluster_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no strategy of a cluster-strategy instance fits: by `placements`, none is below a claim that none reaches."""
    try:
        return bound_placements(instance, {"most": MOST_LABELS}, FAR) == FAR
    except Wrong:
        return False


# ---- joint -------------------------------------------------------------------------------------------------------------------

JOINT = """joint: schedule, number of micro-batches, stages, and an option for every unit, chosen together for the shortest
step.

An instance has L `units` in model order (sub-layers, or groups of them that are cut and chosen together) and `configurations`.
A configuration fixes a schedule, m `micro_batches` and device groups (`sites`): D of them, each with v chunks (v = 1 unless the
schedule is interleaved), so p = D v stages; stage x is on group x mod D. A solution names a `configuration`, `cuts` (the first
unit of every stage but the first) and a `choice` (for every unit the index of its option). `tables` hold the costs: of unit l
on stage x the option table `units[kind of l]`, of the boundary between units l - 1 and l `boundaries[boundary_kinds[l - 1]]`,
both of the tables that the group of the stage has (`sites[..].kind` is an index into the configuration's `tables`). A column
that a table leaves out is 0. Matrices of boundaries are read at [leave of the option before][enter of the option after].

Constraints. Stages begin where `cuttable` allows it, or where the configuration says (`cuts`); options whose re-layout is
FORBIDDEN (2^53) do not follow each other; every group's devices, and every stage's part of a host, hold what they need.

Times of stage x with first unit i and last unit j. R is the re-layout at each boundary inside the stage, and at its cuts too
unless `relayout_at_cut` is false: forward by the stage after a cut, backward by the stage before it.

    f = head_ns(i) + sum forward_ns + sum R forward            a forward pass of one micro-batch
    b = turn_ns(j) + tail_ns(i) + sum backward_ns + sum R backward
    c, d: the messages forward into the stage, and backward into it, by the kind of the link there (`links`)
    l, g, o = sum last_ns, sum reduce_ns, sum optimizer_ns     the last backward pass takes l longer; then gradients, optimizer

Orders. 1f1b: a group first runs min(m, D - x - 1) forward passes, gpipe m, then one forward and one backward pass in turn, then
the rest; micro-batches in order. interleaved: forward passes take D micro-batches through the group's first chunk, the same D
through its second, and so on, then the next D micro-batches; backward passes likewise from the last chunk; min(m v,
2 (D - x - 1) + (v - 1) D) forward passes come first. sliced(k): under 1f1b, stage x runs the forward pass of micro-batch q < k
in two halves where q = 0 or x <= D - 2 - q, with the times named `halved`; a stage that runs halves after a stage with halves
receives them one by one (`halved_message_forward_ns`), else whole after the second; its backward pass is then `halved`, too,
with gradients received whole.

Step. A pass begins when the pass before it on its group, and the one whose result it needs (of the stage before, forward; of
the stage after, backward) have ended; it takes its message's time, then its own. Interleaved messages that do not travel during
passes (`beside` false) have places in the order: let forward passes take 1, backward passes 2 and messages 0; a message stands
at the end of its pass, on sender and receiver, a pass at its beginning, messages before passes, backward before forward, then
by micro-batch and stage. Neighbouring messages of a group are one action: those sent leave as it begins, and it ends when those
received have left, plus their times. Where `beside` is true, passes receive their own messages as under other schedules. The
step is the largest, over groups, of: end of the last action, plus all g of the group, plus all o. If the first and the last
unit share a weight table (`tied`) that is no single parameter, the first and the last group wait for each other before o, and
take tied.reduce_ns. It is one parameter where tied.equal holds for both units' options: then the last unit's costs are
`tied.once`, and nothing is summed. `reduction`: g also has an all-reduce of the stage's gradient_bytes.
Papers' steps, with T = f + b: eq5 = (m - 1) max T + sum (T + c + d); eq4 = eq5 + max (g + o + tied at both ends);
eq8 = (m - 1) max (T + c + d) + sum (T + c + d + l + g + o) + tied.

Memory. A pass of stage x with n micro-batches in flight on it (forward pass begun, backward pass not ended) needs
sum state + n sum held + (n - 1) sum kept + max over its units k of (sum of kept up to k + work of k), work being the larger of
both passes'. A group's other stages need sum state + n sum (kept + held). Of interleaved schedules, messages count from when
they are received until their pass begins, and from when their pass has ended until they are sent, in the order above, also
between passes. The limit is memory_bytes less reserve_bytes, the least of the group's device classes.

Evidence of a lower bound V (no feasible solution has a step below V):

closed-form   No data. Some group runs all micro-batches through its stages: m times the larger of an even share (of D groups)
              of all units' least forward plus backward passes, and the largest unit's. The first unit's least l + g + o
              follow. Where cuts are fixed: m times a group's least sum, and one micro-batch through the stages before it.
exhaustion    No data. All solutions are enumerated, a partial one only while a bound of its completions is below V.
certificate   `configurations`: a claim for each configuration, in order. A claim is that no solution of it has a step of at
              most `impossible_ns` (-1: no claim, and its closed form counts). V is the least, over configurations, of the
              larger of the closed form and impossible_ns + 1. Each claim has one of these proofs.
  paths       `paths` through the schedule, with whole weights; prices of a byte: `memory` and `host` for each stage, or
              `moments` of groups. The step is at least any path's length, and memory at a moment at most its limit, so
                  sum(weights) step >= sum weight * length + sum price * (memory - limit),
              where memory counts the work of the stage's last unit alone (with `unit`, of that one; cuts are fixed). The right
              side is a sum over units, boundaries and cuts; its least over all cuts and options is a shortest path. A path ends
              with the optimizer of group `end`, after the gradients of group `site` (another only where ends are tied), and
              goes backwards from that group's last action, from each to one that it waits for: binary digits of the hexadecimal
              `turns`, the last first, under a leading 1, say whether it goes to its own group's (0) or to another's (1); or
              decimal digits of `choices`, in that order, count those that it waits for, its own group's first. Actions that
              wait for one have no digit.
  enumerate   (true, with or without paths) Solutions for which the right side is at most sum(weights) * impossible_ns are
              enumerated: none is feasible with so short a step. Without paths: those of each group's own actions.
  prices      `prices` of a byte in 2^-16 ns, and `depths`: numbers of micro-batches in flight. Of one stage the step is
              m u + G, u = f + b and G = l + g + o, at least the least over choices of that plus price * (memory - limit).
              Of more stages, 1f1b or gpipe: a span of units as stage x, with n in flight (the largest listed number that x
              certainly has), has at least the largest, over prices, of the least u + c + d plus price * (memory - limit). With
              H and S the least sums of the stages before and after, and w = p - 1 - x, paths through x need
                  1f1b, w < m     H + (m - w) u + max( 2 S, S + w u / 2, w u ) <= step
                  1f1b, w >= m    H + max( m u, S + (m + 1) u / 2 ) <= step          (halves: means of two paths)
                  gpipe           H + m u + S <= step
              and the first stage has its G in addition. Spans, options and links that need more are left out, and H and S
              computed again; impossible_ns is shown where no partition into spans is left.
  exact       (a number, with prices) The same, with the exact least time of every span that fits the memory in place of that
              by prices: by labels (time, bytes) of choices for the first units of a span, up to `exact` at a time; where
              there are more, bytes are rounded down, and neighbours count as one with the least of both. Of one stage prices
              only drop labels early.
"""
JOINT_FORBIDDEN, JOINT_SCALE, JOINT_MOST, JOINT_ROUNDS = 2**53, 2**16, 1_000_000, 3
Task = tuple[str, int, int, int]  # "forward" or "backward", micro-batch, stage, half (-1: whole)
Amounts = dict[str, list[int]]  # by name, a number for each stage
JOINT_TIMES = ("forward", "backward", "last", "reduce", "optimizer", "into", "back")
JOINT_HALVES = ("first_half", "second_half", "into_half", "halved_backward")
JOINT_BYTES = ("state", "kept", "held", "work", "host", "entering", "returning", "gradient")
JOINT_OWN = tuple(
    (name, f"{name}_ns" if name in JOINT_TIMES else f"{name}_bytes")
    for name in ("forward", "backward", "last", "reduce", "optimizer", "state", "kept", "held", "host", "gradient")
)


def entry(table: dict[str, Any], column: str, option: int) -> int:
    """The number of a column of an option table for an option; 0 in a column that the table leaves out."""
    numbers = table["columns"].get(column)
    return 0 if numbers is None else int(numbers[option])


def work_bytes(table: dict[str, Any], option: int) -> int:
    """The bytes that an option adds while a pass of its unit runs, the larger of both passes'."""
    return max(entry(table, "work_forward_bytes", option), entry(table, "work_backward_bytes", option))


def of_unit(table: dict[str, Any], option: int, first: bool, last: bool) -> list[tuple[str, int]]:
    """The times and bytes that a unit adds to its stage, as pairs (name, number). first, last: whether it is the first or
    the last unit of the stage. The work in bytes is that of the last unit alone."""
    amounts = [(name, entry(table, column, option)) for name, column in JOINT_OWN]
    halved = table.get("halved")
    if halved:
        amounts += [("first_half", halved["forward_ns"][0][option]), ("second_half", halved["forward_ns"][1][option])]
        amounts += [("halved_backward", halved["backward_ns"][option])]
    if first:
        head, tail = entry(table, "head_ns", option), entry(table, "tail_ns", option)
        amounts += [(name, head) for name in ("forward", "first_half", "second_half")]
        amounts += [("backward", tail), ("halved_backward", tail)]
    if last:
        turn = entry(table, "turn_ns", option)
        amounts += [("backward", turn), ("halved_backward", turn), ("work", work_bytes(table, option))]
    return [(name, value) for name, value in amounts if value]


def of_boundary(
    boundary: dict[str, Any], leave: int, enter: int, link: int | None
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]] | None:
    """The times and bytes that a boundary adds to the stage of the unit after it, and to that of the unit before it: two lists
    of pairs (name, number). leave, enter: the interface states before and after it. link: the kind of link to the stage that
    begins here; None if the units are in one stage. Returns None if the states may not be neighbours."""

    def at(name: str) -> int:
        """The number of a matrix, or of a list of matrices by kind of link; 0 if the boundary has none."""
        matrix = boundary.get(name)
        if matrix is None:
            return 0
        return int((matrix[link] if "message" in name and name.endswith("ns") else matrix)[leave][enter])

    if max(at("relayout_forward_ns"), at("relayout_backward_ns")) >= JOINT_FORBIDDEN:
        return None
    after, before = [], []
    if link is None or boundary.get("relayout_at_cut", True):
        half = at("halved_relayout_forward_ns")
        after += [("forward", at("relayout_forward_ns")), ("first_half", half), ("second_half", half)]
        whole = at("relayout_backward_ns")  # gradients cross a cut whole
        halves = whole if link is not None else at("halved_relayout_backward_ns")
        before += [("backward", whole), ("halved_backward", halves)]
    if link is not None:
        after += [("into", at("message_forward_ns")), ("into_half", at("halved_message_forward_ns"))]
        after += [("entering", at("message_forward_bytes")), ("returning", at("message_backward_bytes"))]
        before += [("back", at("message_backward_ns"))]
    return after, before


class Action(NamedTuple):
    """A step of the order of a device group: a pass, or messages. task: the pass, None for messages. sent: the passes whose
    results leave as it begins. received: the passes whose results it waits for and receives."""

    task: Task | None
    sent: list[Task]
    received: list[Task]


class Moment(NamedTuple):
    """A moment of a device group. counts: (stage, micro-batches in flight) for each of its stages. messages: ((direction, stage
    at whose beginning it crosses), how many are held). stage: whose pass runs; -1 between passes."""

    counts: tuple[tuple[int, int], ...]
    messages: tuple[tuple[tuple[str, int], int], ...]
    stage: int


Duration = tuple[tuple[str, int], ...]


class Graph(NamedTuple):
    """The graph of a step. For each node, which is a pass or messages: waits, the earlier nodes that it waits for,
    its own group's first; times, the (name, stage) of the times that it takes; tasks, its pass, None for messages. last: the
    last node of each group."""

    waits: list[tuple[int, ...]]
    times: list[Duration]
    tasks: list[Task | None]
    last: list[int]


class Pipeline:
    """A configuration of a joint instance, with the order of its passes and what each of them waits for."""

    def __init__(self, instance: dict[str, Any], index: int) -> None:
        """index: the number of the configuration."""
        self.instance, record = instance, instance["configurations"][index]
        schedule = record.get("schedule") or {}
        self.name, self.chunks = schedule.get("name", "1f1b"), schedule.get("chunks", 1)
        self.sliced, self.overlaps = schedule.get("sliced", 0), schedule.get("beside", False)
        self.m, self.sites, self.links = record["micro_batches"], record["sites"], record["links"]
        self.groups, self.units = len(self.sites), len(instance["units"])
        self.stages, self.cuts, self.reduction = self.groups * self.chunks, record.get("cuts"), record.get("reduction")
        self.tables = [instance["tables"][number] for number in record["tables"]]
        self.tied = None if record.get("tied") is None else instance["ties"][record["tied"]]
        self.kinds = [unit["kind"] for unit in instance["units"]]
        self.remembered: dict[str, Any] = {}

    def remember(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was first called under a name."""
        if name not in self.remembered:
            self.remembered[name] = make()
        return self.remembered[name]

    def table(self, stage: int, unit: int) -> dict[str, Any]:
        """The options of a unit on a stage."""
        table: dict[str, Any] = self.tables[self.sites[stage % self.groups].get("kind", 0)]["units"][self.kinds[unit]]
        return table

    def boundary(self, stage: int, unit: int) -> dict[str, Any]:
        """The boundary before a unit, which lies on a stage."""
        kind = self.instance["boundary_kinds"][unit - 1]
        boundary: dict[str, Any] = self.tables[self.sites[stage % self.groups].get("kind", 0)]["boundaries"][kind]
        return boundary

    def limit(self, group: int) -> int:
        """The bytes that a solution may use on every device of a group."""
        classes = zip(self.instance["classes"], self.sites[group]["devices"], strict=True)
        return min(int(devices["memory_bytes"]) for devices, count in classes if count) - self.instance.get("reserve_bytes", 0)

    def host_limit(self, group: int) -> int | None:
        """The bytes of a host that every device of a group may use; None if there is no limit."""
        classes = zip(self.instance["classes"], self.sites[group]["devices"], strict=True)
        limits = [devices.get("host_bytes") for devices, count in classes if count]
        return min((limit for limit in limits if limit is not None), default=None)

    def halved(self, stage: int, micro_batch: int) -> bool:
        """Whether a stage runs the forward pass of a micro-batch in halves."""
        return micro_batch < self.sliced and (micro_batch == 0 or stage <= self.groups - 2 - micro_batch)

    def order(self, group: int) -> list[Task]:
        """The passes of a device group, in its order."""
        forward: list[list[Task]] = []
        backward: list[Task] = []
        rounds = [range(self.m)] if self.chunks == 1 else [range(q, q + self.groups) for q in range(0, self.m, self.groups)]
        for micro_batches in rounds:
            for chunk in range(self.chunks):
                x, y = chunk * self.groups + group, (self.chunks - 1 - chunk) * self.groups + group
                for q in micro_batches:
                    forward.append([("forward", q, x, half) for half in ((0, 1) if self.halved(x, q) else (-1,))])
                    backward.append(("backward", q, y, -1))
        warm_up = self.groups - group - 1
        if self.name == "interleaved":
            warm_up = 2 * warm_up + (self.chunks - 1) * self.groups
        elif self.name == "gpipe":
            warm_up = self.m
        warm_up = min(warm_up, len(forward))
        order = [task for tasks in forward[:warm_up] for task in tasks]
        for number, task in enumerate(backward, warm_up):
            order += [*(forward[number] if number < len(forward) else ()), task]
        return order

    def source(self, task: Task) -> Task | None:
        """The pass of another stage whose result a pass needs; None if it needs none."""
        kind, q, x, half = task
        if kind == "backward":
            return ("backward", q, x + 1, -1) if x + 1 < self.stages else None
        if x == 0:
            return None
        return ("forward", q, x - 1, (half if half >= 0 else 1) if self.halved(x - 1, q) else -1)

    def passes(self) -> list[list[Action]]:
        """For each group, its passes; each receives its own message."""
        orders = [self.order(group) for group in range(self.groups)]
        return [[Action(task, [], [s] if (s := self.source(task)) else []) for task in order] for order in orders]

    def actions(self) -> list[list[Action]]:
        """For each group, its passes, and between them its messages, in the order that interleaved schedules give them."""
        plain, ends = self.passes(), dict[Task | None, int]()
        waits, _, tasks, _ = self.follow(plain)
        for node, task in enumerate(tasks):
            ends[task] = max((ends[tasks[other]] for other in waits[node]), default=0) + pass_units(task)
        events: list[list[tuple[int, int, Task, str]]] = [[] for _ in plain]
        for group, passes in enumerate(plain):
            for task, _, _ in passes:
                assert task is not None
                events[group].append((ends[task] - pass_units(task), 1, task, "pass"))
                receiver = task[2] + (1 if task[0] == "forward" else -1)
                if 0 <= receiver < self.stages:
                    events[group].append((ends[task], 0, task, "send"))
                    events[receiver % self.groups].append((ends[task], 0, task, "receive"))
        result: list[list[Action]] = []
        for listed in events:
            actions: list[Action] = []
            for _, _, task, kind in sorted(listed):
                if kind == "pass" or not actions or actions[-1].task is not None:
                    actions.append(Action(task if kind == "pass" else None, [], []))
                if kind != "pass":
                    (actions[-1].sent if kind == "send" else actions[-1].received).append(task)
            result.append(actions)
        return result

    def times(self, action: Action) -> Duration:
        """The times that an action takes: those of the messages that it receives, and its own."""
        times: list[tuple[str, int]] = []
        for kind, _, x, _ in action.received:
            half = action.task is not None and action.task[3] >= 0
            times.append(("into_half" if half else "into", x + 1) if kind == "forward" else ("back", x - 1))
        if action.task is not None:
            kind, q, x, half_number = action.task
            if kind == "forward":
                times.append((("forward", "first_half", "second_half")[half_number + 1], x))
            else:
                times.append(("halved_backward" if self.halved(x, q) else "backward", x))
                times += [("last", x)] if q == self.m - 1 else []
        return tuple(times)

    def follow(self, listed: list[list[Action]]) -> Graph:
        """The graph of a step in which groups run the listed actions in their order."""
        waits: list[tuple[int, ...]] = []
        times: list[Duration] = []
        tasks: list[Task | None] = []
        left: dict[Task | None, tuple[int, ...]] = {}  # the node at whose end a result leaves; none: at the beginning
        position, own, going = [0] * len(listed), [tuple[int, ...]()] * len(listed), True
        while going:
            going = False
            for group, actions in enumerate(listed):
                while position[group] < len(actions):
                    action = actions[position[group]]
                    for task in action.sent:
                        if task not in left:
                            left[task], going = own[group], True
                    if any(task not in left for task in action.received):
                        break
                    others = [node for task in action.received for node in left[task]]
                    waits.append((*own[group], *others))
                    times.append(self.times(action))
                    tasks.append(action.task)
                    own[group] = (len(waits) - 1,)
                    left.setdefault(action.task, own[group])
                    position[group], going = position[group] + 1, True
        if any(at < len(actions) for at, actions in zip(position, listed, strict=True)):
            raise Wrong("the groups of a configuration wait for each other")
        return Graph(waits, times, tasks, [node for nodes in own for node in nodes])

    def graph(self) -> Graph:
        """The graph of the configuration's step."""

        def make() -> Graph:
            """The graph, computed."""
            return self.follow(self.actions() if self.chunks > 1 and not self.overlaps else self.passes())

        graph: Graph = self.remember("graph", make)
        return graph

    def moments(self) -> list[list[Moment]]:
        """The different moments of each group at which its memory counts."""

        def make() -> list[list[Moment]]:
            """The moments, computed."""
            return [self.moments_of(actions) for actions in (self.actions() if self.chunks > 1 else self.passes())]

        moments: list[list[Moment]] = self.remember("moments", make)
        return moments

    def moments_of(self, actions: list[Action]) -> list[Moment]:
        """The different moments of a group with these actions. With one stage on a group, messages count for nothing."""
        counts = dict.fromkeys(sorted({action.task[2] for action in actions if action.task}), 0)
        held: dict[tuple[str, int], int] = {}
        moments: dict[Moment, None] = {}

        def hold(task: Task, number: int) -> None:
            """Hold more messages of a pass, if it has any. They are known by the stage at whose beginning they cross."""
            message = (task[0], task[2] + (task[0] == "forward"))
            if self.chunks > 1 and 0 < message[1] < self.stages:
                held[message] = held.get(message, 0) + number

        def note(stage: int) -> None:
            """Add the present moment."""
            waiting = tuple(sorted((message, number) for message, number in held.items() if number))
            moments.setdefault(Moment(tuple(counts.items()), waiting, stage))

        for task, sent, received in actions:
            if task is None:
                for message in received:
                    hold(message, 1)
                note(-1)
                for message in sent:
                    hold(message, -1)
                continue
            kind, _, x, half = task
            counts[x] += kind == "forward" and half != 1
            used = self.source(task)
            if used:
                hold(used, -1)
            note(x)
            hold(task, 1)
            counts[x] -= kind == "backward"
        return list(moments)


def pass_units(task: Task | None) -> int:
    """How long a pass takes where only the order of messages is decided."""
    return 1 if task is not None and task[0] == "forward" else 2


# Evaluation


def joint_spans(p: Pipeline, cuts: list[int]) -> list[tuple[int, int]]:
    """For each stage, its first unit and the unit after its last."""
    edges = [0, *cuts, p.units]
    return list(pairwise(edges))


def joint_malformed(instance: dict[str, Any], solution: dict[str, Any]) -> list[str]:
    """Why a solution does not belong to an instance, whatever memory it needs."""
    try:
        index, cuts, choice = solution["configuration"], solution["cuts"], solution["choice"]
    except (KeyError, TypeError):
        raise Wrong("a solution of joint has configuration, cuts and choice") from None
    if not isinstance(cuts, list) or not isinstance(choice, list) or any(type(n) is not int for n in [index, *cuts, *choice]):
        raise Wrong("configuration is a whole number; cuts and choice are lists of whole numbers")
    if not 0 <= index < len(instance["configurations"]):
        return [f"configuration {index} does not exist"]
    p, length = Pipeline(instance, index), len(instance["units"])
    edges = [0, *cuts, length]
    if len(edges) != p.stages + 1 or any(a >= b for a, b in pairwise(edges)):
        return [f"cuts {cuts} do not make {p.stages} stages of {length} units"]
    if p.cuts is not None and cuts != list(p.cuts):
        return [f"cuts {cuts} are not those of the configuration: {p.cuts}"]
    wrong = [f"no stage may begin with unit {cut}" for cut in cuts if not instance["cuttable"][cut - 1]]
    if len(choice) != length:
        return [*wrong, f"choice has {len(choice)} entries for {length} units"]
    before = None
    for x, (first, end) in enumerate(joint_spans(p, cuts)):
        for l in range(first, end):
            table, s = p.table(x, l), choice[l]
            if not 0 <= s < len(table["options"]):
                return [*wrong, f"unit {l} has no option {s}"]
            link = p.links[x - 1] if l == first and x else None
            if before is not None and of_boundary(p.boundary(x, l), before, entry(table, "enter", s), link) is None:
                wrong.append(f"option {s} of unit {l} may not follow that of the unit before")
            before = entry(table, "leave", s)
    return wrong


def joint_amounts(p: Pipeline, cuts: list[int], choice: list[int]) -> tuple[Amounts, list[int], int]:
    """The times and bytes of the stages of a solution; for each stage, the bytes that its fullest pass needs in addition to
    sum state + n sum (kept + held); and the time to sum the gradients of a shared table."""
    once = p.tied is not None and p.tied.get("equal") is not None and p.tied["equal"][choice[0]][choice[-1]]
    amounts = {name: [0] * p.stages for name in (*JOINT_TIMES, *JOINT_HALVES, *JOINT_BYTES)}
    peaks, leave = [], 0
    for x, (first, end) in enumerate(joint_spans(p, cuts)):
        kept, most = 0, 0
        for l in range(first, end):
            table, s = p.table(x, l), choice[l]
            if once and p.tied is not None and l == p.units - 1:
                table = p.tied["once"]
            if l:
                link = p.links[x - 1] if l == first else None
                crossing = of_boundary(p.boundary(x, l), leave, entry(table, "enter", s), link)
                assert crossing is not None
                for stage, pairs in zip((x, x - (l == first)), crossing, strict=True):
                    for name, value in pairs:
                        amounts[name][stage] += value
            for name, value in of_unit(table, s, l == first, l == end - 1):
                amounts[name][x] += value
            kept += entry(table, "kept_bytes", s)
            most, leave = max(most, kept + work_bytes(table, s)), entry(table, "leave", s)
        peaks.append(most - kept)
    if p.reduction is not None:
        for x in range(p.stages):
            amounts["reduce"][x] += all_reduce_ns(p.reduction["network"], p.reduction["devices"], amounts["gradient"][x])
    return amounts, peaks, 0 if p.tied is None or once else p.tied["reduce_ns"]


def joint_step(p: Pipeline, amounts: Amounts, tied_ns: int) -> int:
    """The step of a configuration whose stages have these times."""
    step = p.instance.get("step", "simulated")
    t = amounts
    if step != "simulated":
        passes = [f + b for f, b in zip(t["forward"], t["backward"], strict=True)]
        messages = [c + d for c, d in zip(t["into"], t["back"], strict=True)]
        ends = [g + o for g, o in zip(t["reduce"], t["optimizer"], strict=True)]
        if step == "eq8":
            whole = [a + b for a, b in zip(passes, messages, strict=True)]
            return (p.m - 1) * max(whole) + sum(whole) + sum(t["last"]) + sum(ends) + tied_ns
        total = (p.m - 1) * max(passes) + sum(passes) + sum(messages)
        if step == "eq5":
            return total
        return total + max(end + (tied_ns if x in (0, p.stages - 1) else 0) for x, end in enumerate(ends))
    graph, ends = p.graph(), []
    known: dict[Duration, int] = {}
    for waits, times in zip(graph.waits, graph.times, strict=True):
        time = known.get(times)
        if time is None:
            time = known[times] = sum(t[name][x] for name, x in times)
        latest = 0
        for node in waits:
            if ends[node] > latest:
                latest = ends[node]
        ends.append(latest + time)
    reduced = [ends[node] + sum(t["reduce"][group :: p.groups]) for group, node in enumerate(graph.last)]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    return max(end + sum(t["optimizer"][group :: p.groups]) for group, end in enumerate(reduced))


def joint_peaks(p: Pipeline, amounts: Amounts, peaks: list[int]) -> list[int]:
    """For each group, the bytes of a device when it is fullest. peaks: see `joint_amounts`."""
    flying = [kept + held for kept, held in zip(amounts["kept"], amounts["held"], strict=True)]
    result = []
    for moments in p.moments():
        most = 0
        for counts, messages, stage in moments:
            total = sum(amounts["state"][x] + n * flying[x] for x, n in counts) + (peaks[stage] if stage >= 0 else 0)
            for (kind, x), n in messages:
                total += n * amounts["entering" if kind == "forward" else "returning"][x]
            most = max(most, total)
        result.append(most)
    return result


def evaluate_joint(instance: dict[str, Any], solution: dict[str, Any], pipeline: Pipeline | None = None) -> Value:
    """The step of a solution, the memory of the fullest device, and the constraints that it breaks. A solution that does not
    belong to the instance has the value 0. pipeline: its configuration, to save time."""
    if wrong := joint_malformed(instance, solution):
        return Value(0, None, wrong)
    p = pipeline or Pipeline(instance, solution["configuration"])
    amounts, extra, tied_ns = joint_amounts(p, solution["cuts"], solution["choice"])
    peaks = joint_peaks(p, amounts, extra)
    broken = [f"group {g} needs {peak} bytes of {p.limit(g)}" for g, peak in enumerate(peaks) if peak > p.limit(g)]
    for x, needed in enumerate(amounts["host"]):
        most = p.host_limit(x % p.groups)
        if most is not None and needed > most:
            broken.append(f"stage {x} needs {needed} bytes of a host that has {most}")
    return Value(joint_step(p, amounts, tied_ns), max(peaks), broken)


def all_reduce_ns(network: dict[str, Any], devices: list[int], size: int) -> int:
    """The time of an all-reduce of `size` bytes among devices at their slowest link, as floats of 64 bits give it, rounded: a
    ring's 2 (n - 1) steps of size / n bytes, a tree's 2 (size / bandwidth + ceil(log2 n) latency), or the faster one."""
    n = len(devices)
    if n < 2:
        return 0
    bandwidth, latency = slowest_link(network, devices)
    ring: float = 2 * (n - 1) * (size / n / bandwidth * 1e9 + latency)
    tree: float = 2 * (size / bandwidth * 1e9 + (n - 1).bit_length() * latency)
    return round({"ring": ring, "tree": tree}.get(network.get("algorithm", "ring"), min(ring, tree)))


def slowest_link(network: dict[str, Any], devices: list[int]) -> tuple[float, int]:
    """Bandwidth in bytes per second and latency in ns of the slowest link among devices: of a matrix the least and the largest;
    else of the first island that holds them, one for all-reduces before one for everything. Of a node's cards they have their
    share, and of a mesh their links."""
    matrix = network.get("matrix")
    if matrix:
        pairs, table = [(a, b) for a in devices for b in devices if a != b], matrix.get("latencies_ns")
        rate = min(float(matrix["bandwidth_bytes_per_s"][a][b]) for a, b in pairs)
        return rate, matrix.get("latency_ns", 0) if table is None else max(table[a][b] for a, b in pairs)
    low, high, found = min(devices), max(devices), None
    for wanted in ("all-reduce", None):
        for island in network["islands"]:
            size, first = island["devices"], island.get("first")
            holds = low // size == high // size if first is None else first <= low and high < first + size
            if found is None and holds and island.get("operation") == wanted:
                found = island
    if found is None:
        raise Wrong(f"no island holds the devices {low} to {high}")
    nodes, whole = [device // found.get("shared_by", 1) for device in devices], found["bandwidth_bytes_per_s"]
    part = (found.get("node_bytes_per_s") or whole) * max(map(nodes.count, nodes)) / found.get("shared_by", 1)
    if found.get("meshed"):
        part = min(part, whole * (len(devices) - 1) / (found["devices"] - 1))
    return min(part, whole), found.get("latency_ns", 0)


# Lower bounds


def least_passes(table: dict[str, Any], sliced: bool) -> int:
    """The least time of both passes of a micro-batch under an option of a table, whole or, if some are sliced, in halves."""
    least = []
    for s in range(len(table["options"])):
        forward, backward, halved = entry(table, "forward_ns", s), entry(table, "backward_ns", s), table.get("halved")
        if sliced and halved:
            forward = min(forward, halved["forward_ns"][0][s] + halved["forward_ns"][1][s])
            backward = min(backward, halved["backward_ns"][s])
        least.append(forward + backward)
    return min(least)


def closed_form_joint(p: Pipeline) -> int:
    """The bound `closed-form` on the step of every solution of a configuration."""
    kinds, sliced = sorted({site.get("kind", 0) for site in p.sites}), p.sliced > 0
    used = sorted(set(p.kinds))
    by_kind = {kind: min(least_passes(p.tables[k]["units"][kind], sliced) for k in kinds) for kind in used}
    least = [by_kind[kind] for kind in p.kinds]
    first = [p.tables[k]["units"][p.kinds[0]] for k in kinds]
    follows = min(
        sum(entry(table, name, s) for name in ("last_ns", "reduce_ns", "optimizer_ns"))
        for table in first
        for s in range(len(table["options"]))
    )
    simulated = p.instance.get("step", "simulated") == "simulated"
    if p.tied is not None and p.tied.get("once") is not None:
        least[-1] = min(least[-1], least_passes(p.tied["once"], sliced))
        follows *= p.units > 1
    step = p.m * max(-(-sum(least) // p.groups), max(least))
    if p.cuts is not None and simulated and not sliced:
        stages = [sum(least[first:end]) for first, end in joint_spans(p, list(p.cuts))]
        step = max(step, *(sum(stages[:g]) + p.m * sum(stages[g :: p.groups]) for g in range(p.groups)))
    return step + follows * simulated


def of_prices(p: Pipeline, claim: dict[str, Any]) -> tuple[dict[str, list[int]], dict[int, tuple[int, int]], int]:
    """The prices of a claim: as weights of stages' bytes, by their names; as further weights of the kept bytes and of the work
    of single units; and the sum of price * limit."""
    weights, limits = {name: [0] * p.stages for name in JOINT_BYTES}, 0
    single: dict[int, tuple[int, int]] = {}

    def price(group: int, counts: Iterable[tuple[int, int]], stage: int, number: int) -> None:
        """Add the price of a byte that a group holds at a moment."""
        nonlocal limits
        limits += number * p.limit(group)
        for x, n in counts:
            weights["state"][x] += number
            weights["kept"][x] += number * n
            weights["held"][x] += number * n
        if stage >= 0:
            weights["work"][stage] += number

    memory, host = whole_numbers(claim.get("memory", []), p.stages), whole_numbers(claim.get("host", []), p.stages)
    if any(memory) and p.chunks > 1:
        raise Wrong("memory has prices of stages that share devices: give moments")
    for x, number in enumerate(memory):
        if number:
            price(x, [(x, max(dict(counts)[x] for counts, _, _ in p.moments()[x]))], x, number)
    for x, number in enumerate(host):
        most = p.host_limit(x % p.groups)
        if number and most is None:
            raise Wrong("host has prices, and hosts have no limit")
        weights["host"][x] += number
        limits += number * (most or 0)
    for record in claim.get("moments", ()):
        counts = tuple((x, n) for x, n in record["counts"])
        messages = tuple(((str(kind), x), n) for kind, x, n in record.get("messages", ()))
        moment, number = Moment(counts, messages, record["stage"]), whole_numbers([record["price"]], 1)[0]
        groups = [group for group, moments in enumerate(p.moments()) if moment in moments]
        if not groups:
            raise Wrong(f"no group has the moment {record}")
        price(groups[0], counts, moment.stage if record.get("unit") is None else -1, number)
        if record.get("unit") is not None:
            spans = joint_spans(p, list(p.cuts or ()))
            if (
                moment.stage < 0
                or len(spans) != p.stages
                or not spans[moment.stage][0] <= record["unit"] < spans[moment.stage][1]
            ):
                raise Wrong(f"the unit of {record} is not in a stage whose cuts are fixed and whose pass runs")
            for l in range(record["unit"], spans[moment.stage][1]):  # later units keep one micro-batch less
                kept, work = single.get(l, (0, 0))
                single[l] = (kept, work + number) if l == record["unit"] else (kept - number, work)
        for (kind, x), n in messages:
            weights["entering" if kind == "forward" else "returning"][x] += number * n
    return weights, single, limits


def of_paths(p: Pipeline, paths: list[dict[str, Any]]) -> tuple[dict[str, list[int]], int, int]:
    """How often each time of each stage is on the paths of a claim, by weight; the weight of paths with the sum of a tied
    table; and the sum of all weights."""
    graph, tied, total = p.graph(), 0, 0
    weights = {name: [0] * p.stages for name in (*JOINT_TIMES, *JOINT_HALVES)}
    for path in paths:
        end, site, weight = path["end"], path["site"], whole_numbers([path["weight"]], 1)[0]
        both_ends = p.tied is not None and p.tied["reduce_ns"] > 0 and {end, site} <= {0, p.groups - 1}
        if not (0 <= site < p.groups and (site == end or both_ends)):
            raise Wrong(f"a path ends with group {end}, after gradients of group {site}")
        for x in range(end, p.stages, p.groups):
            weights["optimizer"][x] += weight
        for x in range(site, p.stages, p.groups):
            weights["reduce"][x] += weight
        tied, total = tied + weight * both_ends, total + weight
        digits = path["choices"] if "choices" in path else bin(int(path["turns"], 16))[:2:-1]
        node, at = graph.last[site], 0
        while True:
            for name, x in graph.times[node]:
                weights[name][x] += weight
            waits = graph.waits[node]
            if not waits:
                break
            if len(waits) > 1:
                if at >= len(digits) or not 0 <= int(digits[at]) < len(waits):
                    raise Wrong("a path breaks off")
                at += 1
            node = waits[int(digits[at - 1]) if len(waits) > 1 else 0]
    if total <= 0:
        raise Wrong("paths weigh nothing")
    return weights, tied, total


def whole_numbers(values: Any, count: int | None = None) -> list[int]:
    """A list of evidence, whose entries are whole numbers of at least 0, as many as `count` says if there are any."""
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise Wrong(f"{values!r} is no list of whole numbers of at least 0")
    if values and count is not None and len(values) != count:
        raise Wrong(f"{len(values)} numbers stand where {count} belong")
    return values


class Chain:
    """The units of a configuration with a cost for each option and boundary: of a weighted sum of the times and bytes of
    stages. By stage, unit and interface state it knows the least cost of all that follows."""

    def __init__(self, p: Pipeline, weights: dict[str, list[int]], single: dict[int, tuple[int, int]], tied: int) -> None:
        """weights: by the name of a time or of bytes, for each stage its weight. single: further weights of the kept bytes and
        of the work of single units. tied: the weight of the sum of a tied table."""
        self.p, self.weights, self.tied = p, {name: row for name, row in weights.items() if any(row)}, tied
        self.single = single
        self.remembered: dict[Any, Any] = {}
        nothing = [dict[int, int]()] * p.stages
        self.stay, self.cut = [nothing] * p.units, [nothing] * p.units  # after each unit, by stage and the state that it leaves
        within: list[dict[int, int]] = nothing  # the least from the present unit on, by stage and state that it is entered in:
        begun: list[dict[int, int]] = nothing  # inside its stage, and as its first unit
        for l in reversed(range(p.units)):
            inside, first = self.entering(l, within, begun)
            within, begun = [{} for _ in range(p.stages)], [{} for _ in range(p.stages)]
            stay, cut = [dict[int, int]() for _ in range(p.stages)], [dict[int, int]() for _ in range(p.stages)]
            for x in range(max(0, p.stages - p.units + l), min(p.stages, l + 1)):
                stay[x] = inside[x] if inside else {}
                cut[x] = first[x + 1] if first and x + 1 < p.stages else {}
                for is_first, least in ((False, within[x]), (True, begun[x])):
                    for enter, leave, through, ending in self.cells(x, l, is_first):
                        found = []
                        if leave in stay[x]:
                            found.append(through + stay[x][leave])
                        if leave in cut[x]:
                            found.append(ending + cut[x][leave])
                        elif l == p.units - 1 and x == p.stages - 1:
                            found.append(ending)
                        if found and min(found) < least.get(enter, min(found) + 1):
                            least[enter] = min(found)
            self.stay[l], self.cut[l] = stay, cut
        self.least = min(begun[0].values(), default=None)

    def entering(
        self, l: int, within: list[dict[int, int]], begun: list[dict[int, int]]
    ) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        """The least cost after unit l, by stage and state that it leaves: with unit l + 1 in the same stage; and, by the stage
        that begins there, with unit l + 1 in the next one. within, begun: the least cost from unit l + 1 on, by the state in
        which it is entered."""
        p, after = self.p, l + 1
        if after == p.units:
            return [], []
        inside, first = [dict[int, int]() for _ in range(p.stages)], [dict[int, int]() for _ in range(p.stages)]
        for x in range(p.stages):
            begins = x > 0 and p.instance["cuttable"][l] and (p.cuts is None or p.cuts[x - 1] == after)
            for least, costs, crossings in (
                (inside[x], within[x], self.crossings(x, after, False) if within[x] else ()),
                (first[x], begun[x], self.crossings(x, after, True) if begins and begun[x] else ()),
            ):
                for leave, enter, crossing in crossings:
                    if enter in costs:
                        cost = crossing + costs[enter]
                        if cost < least.get(leave, cost + 1):
                            least[leave] = cost
        return inside, first

    def crossings(self, x: int, unit: int, cut: bool) -> list[tuple[int, int, int]]:
        """The costs of the boundary before a unit of stage x, as (leave, enter, cost). cut: whether the stage begins there."""
        p = self.p
        kind = p.instance["boundary_kinds"][unit - 1]
        key = "crossing", x, kind, cut
        if key not in self.remembered:
            boundary, result = p.boundary(x, unit), []
            for leave, row in enumerate(boundary["relayout_forward_ns"]):
                for enter in range(len(row)):
                    pairs = of_boundary(boundary, leave, enter, p.links[x - 1] if cut else None)
                    if pairs is not None:
                        result.append((leave, enter, self.cost(x, pairs[0]) + self.cost(x - cut, pairs[1])))
            self.remembered[key] = result
        listed: list[tuple[int, int, int]] = self.remembered[key]
        return listed

    def cost(self, x: int, pairs: list[tuple[str, int]]) -> int:
        """The weighted sum of times and bytes of stage x."""
        return sum(self.weights[name][x] * value for name, value in pairs if name in self.weights)

    def options(self, x: int, l: int, first: bool) -> list[tuple[int, int, int, int, int]]:
        """The options of a unit on a stage, as (option, enter, leave, cost, cost as the last unit of the stage). A last unit
        whose weight table may be one parameter is there with both costs: the lesser counts, and so the tied sum, which follows
        then."""
        p = self.p
        final = l == p.units - 1
        key = "options", x, p.kinds[l], first, final, l if l in self.single else -1
        kept, work = self.single.get(l, (0, 0))
        if key not in self.remembered:
            shared = self.tied * (p.tied["reduce_ns"] if p.tied else 0) if final else 0
            tables, result = [(p.table(x, l), shared)], []
            if final and p.tied is not None and p.tied.get("once") is not None:
                tables.append((p.tied["once"], 0))
            for table, more in tables:
                for s in range(len(table["options"])):
                    own = more + kept * entry(table, "kept_bytes", s) + work * work_bytes(table, s)
                    through, ending = (self.cost(x, of_unit(table, s, first, last)) + own for last in (False, True))
                    result.append((s, entry(table, "enter", s), entry(table, "leave", s), through, ending))
            self.remembered[key] = result
        listed: list[tuple[int, int, int, int, int]] = self.remembered[key]
        return listed

    def cells(self, x: int, l: int, first: bool) -> list[tuple[int, int, int, int]]:
        """The least costs of a unit's options by interface states, as (enter, leave, cost, cost as the last unit)."""
        key = "cells", x, self.p.kinds[l], first, l == self.p.units - 1, l if l in self.single else -1
        if key not in self.remembered:
            least: dict[tuple[int, int], tuple[int, int]] = {}
            for _, enter, leave, through, ending in self.options(x, l, first):
                a, b = least.get((enter, leave), (through, ending))
                least[enter, leave] = min(a, through), min(b, ending)
            self.remembered[key] = [(*states, *costs) for states, costs in least.items()]
        listed: list[tuple[int, int, int, int]] = self.remembered[key]
        return listed


def bound_by_paths(p: Pipeline, claim: dict[str, Any]) -> tuple[Chain, int, int]:
    """The chain of a claim's paths and prices, the sum of its prices times limits, and the sum of its paths' weights."""
    times, tied, total = of_paths(p, claim["paths"])
    prices, single, limits = of_prices(p, claim)
    return Chain(p, times | prices, single, tied), limits, total


def enumerated(p: Pipeline, index: int, claim: dict[str, Any], impossible: int, left: list[int]) -> bool:
    """Whether no solution of a configuration is feasible with a step of at most `impossible`: every one for which the bound by
    paths and prices is no larger is evaluated. left: how many more partial solutions may be looked at, which is counted
    down."""
    own = [{"weight": 1, "end": group, "site": group, "choices": "0" * 4 * p.m * p.stages} for group in range(p.groups)]
    chain, limits, total = bound_by_paths(p, claim if claim.get("paths") else claim | {"paths": own})
    most = total * impossible + limits  # of the costs of chosen options and boundaries
    cuts: list[int] = []
    choice: list[int] = []
    fullest = [max(dict(counts)[x] for counts, _, _ in p.moments()[x]) if p.chunks == 1 else 0 for x in range(p.stages)]

    def none(l: int, x: int, begins: bool, states: list[tuple[int, int]], spent: int, held: int) -> bool:
        """Whether none is found from unit l on. x, begins: its stage, and whether that begins with it. states: those in which
        it may be entered, with the cost of the boundary. spent: the cost of what is chosen. held: the bytes of the stage so
        far, for as many micro-batches as it has in flight."""
        for s, enter, leave, through, ending in chain.options(x, l, begins):
            for state, crossing in states:
                if state != enter and l:
                    continue
                left[0] -= 1
                if left[0] < 0:
                    raise Wrong(f"more than {JOINT_MOST} partial solutions would have to be enumerated")
                table = p.table(x, l)
                flying = fullest[x] * (entry(table, "kept_bytes", s) + entry(table, "held_bytes", s))
                stays = held + entry(table, "state_bytes", s) + flying if p.chunks == 1 and p.tied is None else 0
                if stays > p.limit(x % p.groups):
                    continue
                choice.append(s)
                so_far = spent + crossing + through
                if leave in chain.stay[l][x] and so_far + chain.stay[l][x][leave] <= most:
                    onward = [(b, cost) for a, b, cost in chain.crossings(x, l + 1, False) if a == leave]
                    if not none(l + 1, x, False, onward, so_far, stays):
                        return False
                so_far = spent + crossing + ending
                if leave in chain.cut[l][x] and so_far + chain.cut[l][x][leave] <= most:
                    onward = [(b, cost) for a, b, cost in chain.crossings(x + 1, l + 1, True) if a == leave]
                    cuts.append(l + 1)
                    if not none(l + 1, x + 1, True, onward, so_far, 0):
                        return False
                    cuts.pop()
                if l == p.units - 1 and x == p.stages - 1 and so_far <= most:
                    value = evaluate_joint(p.instance, {"configuration": index, "cuts": cuts, "choice": choice}, p)
                    if not value.violations and value.value <= impossible:
                        return False
                choice.pop()
        return True

    return none(0, 0, True, [(0, 0)], 0, 0)


class Spans:
    """The proof `prices` for one configuration, with one stage on each of several equal groups."""

    def __init__(self, p: Pipeline, claim: dict[str, Any], impossible: int) -> None:
        """impossible: the step that no solution has, as is to be shown."""
        self.p, self.impossible, self.depths = p, impossible, whole_numbers(claim["depths"])
        self.kinds, self.memory = p.tables[p.sites[0].get("kind", 0)], p.limit(0)
        self.flying = [max(dict(counts)[x] for counts, _, _ in p.moments()[x]) for x in range(p.stages)]
        if sorted(self.depths) != self.depths or not self.depths or not 1 <= self.depths[0] <= min(self.flying):
            raise Wrong("depths do not rise from a number of micro-batches that every stage has in flight")
        self.once = impossible // p.m  # what every micro-batch passes takes at most this
        self.least = {kind: least_passes(self.kinds["units"][kind], False) for kind in set(p.kinds)}
        total = sum(self.least[kind] for kind in p.kinds)
        self.slowest = {
            k: min(self.once, impossible - (total - least) if p.m == 1 else self.once) for k, least in self.least.items()
        }
        ends, self.longest = [], 1
        for a in range(p.units):
            end, time = a, 0
            while end < p.units and time + self.least[p.kinds[end]] <= self.once:
                time, end = time + self.least[p.kinds[end]], end + 1
            ends.append(end - a)
        self.longest = max(1, min(p.units - p.stages + 1, max(ends)))
        used = [(table, s) for table in self.kinds["units"] for s in range(len(table["options"]))]
        self.leaves, self.enters = ({entry(table, name, s) for table, s in used} for name in ("leave", "enter"))
        self.boundaries = [self.crossing(boundary) for boundary in self.kinds["boundaries"]]
        prices = whole_numbers(claim["prices"]) or [0]
        self.exact = claim.get("exact", 0)
        self.u = [self.spans(depth, prices) for depth in self.depths]
        rise = p.m if p.name == "gpipe" else p.m - p.stages + 1 if p.stages <= p.m else 1
        out = [boundary[2] for boundary in self.boundaries]
        self.first = {k: least_from_first(p, prices, k, self.flying[0], self.longest, out) for k in sorted({1, rise})}

    def crossing(self, boundary: dict[str, Any]) -> tuple[dict[int, list[tuple[int, int]]], dict[int, int], dict[int, int]]:
        """The costs of a kind of boundary: inside a stage, the re-layouts of both passes, by the state before it as (state
        after, time); and over all kinds of link, the least re-layout and message into the stage after it, by the state after
        it, and back into the stage before it, by the state before it. What no step of `impossible` has is left out."""
        inside: dict[int, list[tuple[int, int]]] = {}
        into: dict[int, int] = {}
        out: dict[int, int] = {}
        for a, row in enumerate(boundary["relayout_forward_ns"]):
            for b in range(len(row)):
                pairs = of_boundary(boundary, a, b, None) if a in self.leaves and b in self.enters else None
                if pairs is None:
                    continue
                time = sum(value for side in pairs for name, value in side if name in ("forward", "backward"))
                if time <= self.once:
                    inside.setdefault(a, []).append((b, time))
                for link in set(self.p.links):
                    crossing = of_boundary(boundary, a, b, link)
                    assert crossing is not None
                    ahead, back = (
                        sum(n for name, n in side if name in ("forward", "backward", "into", "back")) for side in crossing
                    )
                    if ahead <= self.once:
                        into[b] = min(ahead, into.get(b, ahead))
                    if back <= self.once:
                        out[a] = min(back, out.get(a, back))
        return inside, into, out

    def cells(self, kind: int, price: int, depth: int, first: bool) -> dict[int, list[tuple[int, int, int]]]:
        """The least priced costs of a kind of unit, by the state in which it is entered, as (leave, cost, cost as last
        unit)."""
        table, least = self.kinds["units"][kind], dict[tuple[int, int], tuple[int, int]]()
        for s in range(len(table["options"])):
            number = dict(of_unit(table, s, False, False))
            time = number.get("forward", 0) + number.get("backward", 0)
            if time > self.slowest[kind]:
                continue
            time += (entry(table, "head_ns", s) + entry(table, "tail_ns", s)) * first
            memory = number.get("state", 0) + depth * (number.get("kept", 0) + number.get("held", 0))
            through = JOINT_SCALE * time + price * memory
            ending = through + JOINT_SCALE * entry(table, "turn_ns", s) + price * work_bytes(table, s)
            states = entry(table, "enter", s), entry(table, "leave", s)
            a, b = least.get(states, (through, ending))
            least[states] = min(a, through), min(b, ending)
        result: dict[int, list[tuple[int, int, int]]] = {}
        for (enter, leave), (through, ending) in least.items():
            result.setdefault(enter, []).append((leave, through, ending))
        return result

    def spans(self, depth: int, prices: list[int]) -> dict[tuple[int, int], int]:
        """For each span that may be a stage with `depth` micro-batches in flight, by its first unit and the unit after its
        last, the least time of both passes and messages. Spans of equal kinds of units and boundaries are looked at once."""
        p, best = self.p, dict[tuple[int, int], int]()
        between = p.instance["boundary_kinds"]
        for price in sorted(set(prices)):
            cells = {(kind, first): self.cells(kind, price, depth, first) for kind in self.least for first in (False, True)}
            known: dict[Any, Any] = {}
            for a in range(p.units):
                key: Any = None
                reached: dict[int, int] = {}
                for end in range(a + 1, min(a + self.longest, p.units) + 1):
                    l = end - 1
                    before = between[l - 1] if l else -1
                    key = known.setdefault((key, before, p.kinds[l]), len(known))
                    if ("reached", key) not in known:
                        if l > a:
                            entered: dict[int, int] = {}
                            for leave, cost in reached.items():
                                for enter, time in self.boundaries[before][0].get(leave, ()):
                                    value = cost + JOINT_SCALE * time
                                    entered[enter] = min(value, entered.get(enter, value))
                        elif a:
                            entered = {enter: JOINT_SCALE * time for enter, time in self.boundaries[before][1].items()}
                        else:
                            entered = dict.fromkeys(cells[p.kinds[l], True], 0)
                        through: dict[int, int] = {}
                        ending: dict[int, int] = {}
                        for enter, cost in entered.items():
                            for leave, one, last in cells[p.kinds[l], l == a].get(enter, ()):
                                through[leave] = min(cost + one, through.get(leave, cost + one))
                                ending[leave] = min(cost + last, ending.get(leave, cost + last))
                        known["reached", key] = through, ending
                    reached, ends = known["reached", key]
                    after = between[l] if end < p.units else -1
                    if ("least", key, after) not in known:
                        out = {} if after < 0 else self.boundaries[after][2]
                        found = [
                            cost + JOINT_SCALE * (0 if after < 0 else out[leave])
                            for leave, cost in ends.items()
                            if after < 0 or leave in out
                        ]
                        bound = None if not found else max(0, -((price * self.memory - min(found)) // JOINT_SCALE))
                        known["least", key, after] = bound
                    bound = known["least", key, after]
                    if bound is None:
                        best.pop((a, end), None)
                    elif price == min(prices) or (a, end) in best:
                        best[a, end] = max(bound, best.get((a, end), 0))
        return best

    def possible(self) -> bool:
        """Whether, as far as this shows, some partition has a step of at most `impossible`."""
        p = self.p
        begins = [True, *p.instance["cuttable"], True]
        edges = None if p.cuts is None else [0, *p.cuts, p.units]
        arcs: list[list[tuple[int, int, int]]] = []
        for x in range(p.stages):
            u = self.u[max(row for row, depth in enumerate(self.depths) if depth <= self.flying[x])]
            arcs.append(
                [
                    (a, end, time)
                    for (a, end), time in u.items()
                    if begins[a] and begins[end] and (a == 0) == (x == 0) and (end == p.units) == (x == p.stages - 1)
                    if edges is None or (a, end) == (edges[x], edges[x + 1])
                ]
            )
        return self.left(arcs) and not (self.exact and (self.refined(arcs) or not self.left(arcs)))

    def refined(self, arcs: list[list[tuple[int, int, int]]]) -> bool:
        """Replace the times of the spans of each stage by exact ones, in place; whether some stage has no span left."""
        p, between = self.p, self.p.instance["boundary_kinds"]

        def out(l: int) -> dict[int, int] | None:
            """The least times of messages and re-layouts back to a stage that ends with unit l, by state."""
            return None if l == p.units - 1 else self.boundaries[between[l]][2]

        before, after = self.sums(arcs)
        for k in self.first:
            fronts, ends = Fronts(p, k, True, self.flying[0], self.exact), [end for _, end, _ in arcs[0]]
            into = dict.fromkeys(fronts.options(0, True), 0)
            exact = fronts.least(0, max(ends), into, out, self.impossible, [])
            self.first[k] = [self.impossible + 1 if least is None else least for least in exact]
        for x, of_stage in enumerate(arcs):
            fronts, known = Fronts(p, 1, False, self.flying[x], self.exact), dict[Any, list[int | None]]()
            most = max(self.largest(x, *arc, before[x], after[x + 1]) for arc in of_stage)
            longest = max(end - a for a, end, _ in of_stage)
            sharper = []
            for a, end, time in of_stage:
                # all that the spans from a on depend on
                span = [(between[l - 1] if l else -1, p.kinds[l]) for l in range(a, min(a + longest, p.units))]
                key = tuple(span), between[a + longest - 1] if a + longest < p.units else -1, a == 0
                if key not in known:
                    into = self.boundaries[between[a - 1]][1] if a else dict.fromkeys(fronts.options(0, True), 0)
                    known[key] = fronts.least(a, longest, into, out, most, [])
                least = known[key][end - a - 1]
                if least is not None:
                    sharper.append((a, end, max(time, least)))
            arcs[x] = sharper
        return not all(arcs)

    def largest(self, x: int, a: int, end: int, u: int, before: dict[int, int], after: dict[int, int]) -> int:
        """The largest time of both passes with which the row of stage x allows a span that may take u."""
        low, high = u, self.impossible + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(x, a, end, middle, before, after, False) else (low, middle)
        return low

    def sums(self, arcs: list[list[tuple[int, int, int]]]) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        """The least sums of the stages before each stage, by its first unit; and of it and those after it."""
        before, after = [{0: 0}], [{self.p.units: 0}]
        for of_stage in arcs:
            reached: dict[int, int] = {}
            for a, end, time in of_stage:
                if a in before[-1]:
                    reached[end] = min(before[-1][a] + time, reached.get(end, before[-1][a] + time))
            before.append(reached)
        for of_stage in reversed(arcs):
            onward: dict[int, int] = {}
            for a, end, time in of_stage:
                if end in after[-1]:
                    onward[a] = min(after[-1][end] + time, onward.get(a, after[-1][end] + time))
            after.append(onward)
        return before, after[::-1]

    def left(self, arcs: list[list[tuple[int, int, int]]]) -> bool:
        """Remove the spans that a row forbids, in place; whether some partition is left. arcs: for each stage, its spans as
        (first unit, unit after the last, least time)."""
        p = self.p
        for _ in range(JOINT_ROUNDS):
            before: list[dict[int, int]] = [{0: 0}]
            for x in range(p.stages):
                reached: dict[int, int] = {}
                for a, end, time in arcs[x]:
                    if a in before[x]:
                        value = before[x][a] + (max(time, self.first[1][end - 1]) if x == 0 else time)
                        reached[end] = min(value, reached.get(end, value))
                before.append(reached)
            after = {p.units: 0}
            for x in reversed(range(p.stages)):
                kept = [arc for arc in arcs[x] if self.fits(x, *arc, before[x], after)]
                after_x: dict[int, int] = {}
                for a, end, time in kept:
                    value = time + after[end]
                    after_x[a] = min(value, after_x.get(a, value))
                arcs[x], after = kept, after_x
                if not after:
                    return False
        return True

    def fits(
        self, x: int, a: int, end: int, u: int, before: dict[int, int], after: dict[int, int], follows: bool = True
    ) -> bool:
        """Whether the row of stage x allows the span from unit a to before unit `end`, which takes u. before, after: the least
        sums of the stages before a unit, and from a unit on. follows: whether the first stage's G counts."""
        if a not in before or end not in after:
            return False
        m, w, s = self.p.m, self.p.stages - 1 - x, after[end]
        if self.p.name == "gpipe":
            twice = 2 * (m * u + s)
        elif w < m:
            twice = 2 * (m - w) * u + max(4 * s, 2 * s + w * u, 2 * w * u)
        else:
            twice = max(2 * m * u, 2 * s + (m + 1) * u)
        twice += 2 * before[a]
        if x == 0 and follows:  # the row rises by at least k for each ns of u, so k u + G counts in place of k u
            twice += 2 * max(0, *(least[end - 1] - k * u for k, least in self.first.items()))
        return twice <= 2 * self.impossible


class Fronts:
    """Exact least times of spans of units as a stage that fits its memory, by labels: of all choices for a span's first units,
    those of which none is better in time and bytes."""

    def __init__(
        self, p: Pipeline, k: int, follows: bool, depth: int, most: int, equal: tuple[bool, ...] | None = None
    ) -> None:
        """The time of a choice is k u, and G too with `follows`. depth: micro-batches in flight. most: labels at a time. equal:
        of the options of the last unit, with which of them a tied table is one parameter, for those options of the first unit
        for which it is just these; None for all options, with the lesser of both costs."""
        self.equal = equal
        self.p, self.k, self.follows, self.depth, self.limit, self.most = p, k, follows, depth, p.limit(0), most
        self.kinds = p.tables[p.sites[0].get("kind", 0)]
        self.remembered: dict[Any, Any] = {}

    def options(self, l: int, first: bool) -> dict[int, list[tuple[int, ...]]]:
        """The options of a unit by the state in which it is entered, as (leave, time, bytes, kept, work, time as last unit),
        without those to which another one is preferable in everything. bytes: of the states and all micro-batches in flight."""
        p, k, final = self.p, self.k, l == self.p.units - 1
        key = p.kinds[l], first, final
        equal = self.equal
        if key in self.remembered:
            known: dict[int, list[tuple[int, ...]]] = self.remembered[key]
            return known
        tables = [(self.kinds["units"][p.kinds[l]], p.tied["reduce_ns"] if p.tied and self.follows else 0)]
        if final and p.tied is not None and p.tied.get("once") is not None:
            tables.append((p.tied["once"], 0))
        found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        for number, (table, more) in enumerate(tables):
            for s in range(len(table["options"])):
                if equal is not None and first and p.tied is not None and tuple(p.tied["equal"][s]) != equal:
                    continue
                if equal is not None and final and equal[s] != (number == 1):
                    continue
                n = dict.fromkeys(("forward", "backward", "last", "reduce", "optimizer", "state", "kept", "held"), 0)
                n |= dict(of_unit(table, s, False, False))
                time = k * (n["forward"] + n["backward"])
                time += n["last"] + n["reduce"] + n["optimizer"] if self.follows else 0
                time += k * (entry(table, "head_ns", s) + entry(table, "tail_ns", s)) if first else 0
                size, work = n["state"] + self.depth * (n["kept"] + n["held"]), work_bytes(table, s)
                numbers = time, size, n["kept"], work, time + k * entry(table, "turn_ns", s) + more
                found.setdefault((entry(table, "enter", s), entry(table, "leave", s)), set()).add(numbers)
        result: dict[int, list[tuple[int, ...]]] = {}
        for (enter, leave), rows in found.items():
            kept = [row for row in rows if not any(other != row and preferable(other, row) for other in rows)]
            result.setdefault(enter, []).extend((leave, *row) for row in sorted(kept))
        self.remembered[key] = result
        return result

    def moves(self, l: int) -> list[tuple[int, int, int]]:
        """The re-layouts of both passes before unit l inside a stage, k times, as (leave, enter, time)."""
        key = "moves", self.p.instance["boundary_kinds"][l - 1]
        if key not in self.remembered:
            boundary, result = self.kinds["boundaries"][key[1]], []
            for a, row in enumerate(boundary["relayout_forward_ns"]):
                for b in range(len(row)):
                    pairs = of_boundary(boundary, a, b, None)
                    if pairs is not None:
                        time = sum(n for side in pairs for name, n in side if name in ("forward", "backward"))
                        result.append((a, b, self.k * time))
            self.remembered[key] = result
        known: list[tuple[int, int, int]] = self.remembered[key]
        return known

    def least(
        self,
        a: int,
        longest: int,
        into: dict[int, int],
        out: Callable[[int], dict[int, int] | None],
        most: int,
        completions: list[tuple[int, list[dict[int, int]]]],
    ) -> list[int | None]:
        """The least time of spans that begin with unit a, by their number of units less one; None where it is above `most`, or
        none fits. into: the time of what comes before, by the state of entry. out: for a span's last unit, the times of what
        comes after, by the state that it leaves; None for nothing. completions: prices, and by unit and state the least
        priced cost of all units after it, for spans that end with the last unit."""
        labels: dict[int, list[tuple[int, int, int]]] = {enter: [(time, 0, 0)] for enter, time in into.items()}
        result: list[int | None] = []
        for l in range(a, min(a + longest, self.p.units)):
            after, best = out(l), None
            found: dict[int, list[tuple[int, int, int]]] = {}
            for enter, listed in labels.items():
                for leave, time, size, kept, work, ending in self.options(l, l == a).get(enter, ()):
                    tests = [(price, rest[l].get(leave)) for price, rest in completions]
                    if any(rest is None for _, rest in tests):
                        tests = [(0, None)]
                    passed = found.setdefault(leave, [])
                    last = ending if after is None else ending + self.k * after[leave] if leave in after else None
                    for spent, held, peak in listed:
                        if spent + time > most:
                            break
                        holds, top = held + size, max(peak - kept, work)
                        if holds + top > self.limit:
                            continue
                        if last is not None and spent + last <= most and (best is None or spent + last < best):
                            best = spent + last
                        for price, rest in tests:
                            if (
                                rest is None
                                or JOINT_SCALE * (spent + time) + price * holds + rest > JOINT_SCALE * most + price * self.limit
                            ):
                                break
                        else:
                            passed.append((spent + time, holds, top))
            result.append(best)
            labels = {}
            if l + 1 < self.p.units:
                merged: dict[int, list[tuple[int, int, int]]] = {}
                fronts = {leave: front(listed, self.most) for leave, listed in found.items()}
                for leave, enter, time in self.moves(l + 1):
                    merged.setdefault(enter, []).extend((spent + time, size, top) for spent, size, top in fronts.get(leave, ()))
                labels = {enter: front(listed, self.most) for enter, listed in merged.items() if listed}
        return result


def preferable(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether no number of `one` is larger than that of `other`."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def front(labels: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Reduce labels (time, bytes, bytes on top) to those of which none is better in everything, by rising time. Where there are
    more than `most`, the last number is rounded down, by more and more bits, until they are fewer; at last only the first two
    numbers count, and neighbours are merged into the least of both. All of that only lowers bounds."""
    bits = max((top for _, _, top in labels), default=0).bit_length()
    for rounded in (0, *(max(0, bits - kept) for kept in (8, 6, 4, 2))):
        kept = undominated([(time, size, top >> rounded << rounded) for time, size, top in labels], most)
        if len(kept) <= most:
            return kept
    kept = undominated([(time, size, 0) for time, size, _ in labels], len(labels))
    while len(kept) > max(1, most):
        kept = [(pair[0][0], pair[-1][1], 0) for pair in (kept[index : index + 2] for index in range(0, len(kept), 2))]
    return kept


def undominated(labels: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Reduce labels to those of which none is better in everything, by rising time; to the first ones if more than `most`."""
    kept: list[tuple[int, int, int]] = []
    sizes: list[int] = []  # of those kept until now, with rising bytes and falling bytes on top
    tops: list[int] = []
    for label in sorted(labels):
        _, size, top = label
        at = bisect_right(sizes, size)
        if at and tops[at - 1] <= top:
            continue
        kept.append(label)
        end = at
        while end < len(sizes) and tops[end] >= top:
            end += 1
        sizes[at:end], tops[at:end] = [size], [top]
        if len(kept) > most:
            break
    return kept


def exact_single(p: Pipeline, prices: list[int], impossible: int, labels: int) -> bool:
    """Whether no solution of a configuration of one stage that fits has a step of at most `impossible`. prices: prices of a
    byte, by which choices that cannot be completed in time are dropped early. labels: see `Fronts`."""
    depth = p.m if p.name == "gpipe" else 1
    if p.tied is not None and p.tied.get("equal") is not None and p.units > 1:
        rows = [tuple(row) for row in p.tied["equal"]]
        return all(exact_single_of(Fronts(p, p.m, True, depth, labels, row), prices, impossible) for row in set(rows))
    return exact_single_of(Fronts(p, p.m, True, depth, labels), prices, impossible)


def exact_single_of(fronts: Fronts, prices: list[int], impossible: int) -> bool:
    """Whether no choice that `fronts` has, of all units as one stage, fits in a step of at most `impossible`."""
    p, completions = fronts.p, []
    for price in prices:
        rest: list[dict[int, int]] = [{} for _ in range(p.units)]
        for l in reversed(range(p.units - 1)):
            entered: dict[int, int] = {}
            for enter, rows in fronts.options(l + 1, False).items():
                for leave, time, size, _, work, ending in rows:
                    if l + 2 == p.units:
                        value = JOINT_SCALE * ending + price * (size + work)
                    elif leave in rest[l + 1]:
                        value = JOINT_SCALE * time + price * size + rest[l + 1][leave]
                    else:
                        continue
                    entered[enter] = min(value, entered.get(enter, value))
            for leave, enter, time in fronts.moves(l + 1):
                if enter in entered:
                    value = JOINT_SCALE * time + entered[enter]
                    rest[l][leave] = min(value, rest[l].get(leave, value))
        completions.append((price, rest))
    into = dict.fromkeys(fronts.options(0, True), 0)
    least = fronts.least(0, p.units, into, lambda l: None if l == p.units - 1 else {}, impossible, completions)
    return least[-1] is None


def least_from_first(
    p: Pipeline, prices: list[int], k: int, depth: int, longest: int, out: list[dict[int, int]] | None = None
) -> list[int]:
    """For each span that begins the model, of up to `longest` units, the least k u + G by the best of some prices: u, both
    passes of a micro-batch, and G, the work after the last one. depth: micro-batches in flight. out: by kind of boundary, the
    least time of what comes back over it, by the state before it."""
    kinds, best = p.tables[p.sites[0].get("kind", 0)], [0] * longest
    shared, never = p.tied["reduce_ns"] if p.tied else 0, 2**62
    for price in prices:
        left: dict[int, int] = {}
        for l in range(longest):
            final, ends = l == p.units - 1, list[int]()
            tables = [(kinds["units"][p.kinds[l]], shared)]
            if final and p.tied is not None and p.tied.get("once") is not None:
                tables.append((p.tied["once"], 0))
            entered: dict[int, int] = {}
            for leave, cost in left.items():
                boundary = kinds["boundaries"][p.instance["boundary_kinds"][l - 1]]
                for enter in range(len(boundary["relayout_forward_ns"][leave])):
                    pairs = of_boundary(boundary, leave, enter, None)
                    if pairs is not None:
                        moved = sum(n for side in pairs for name, n in side if name in ("forward", "backward"))
                        value = cost + JOINT_SCALE * k * moved
                        entered[enter] = min(value, entered.get(enter, value))
            left = {}
            for table, more in tables:
                for s in range(len(table["options"])):
                    enter, leave = entry(table, "enter", s), entry(table, "leave", s)
                    if l and enter not in entered:
                        continue
                    n = dict.fromkeys(("forward", "backward", "last", "reduce", "optimizer", "state", "kept", "held"), 0)
                    n |= dict(of_unit(table, s, False, False))
                    time = k * (n["forward"] + n["backward"]) + n["last"] + n["reduce"] + n["optimizer"]
                    time += 0 if l else k * (entry(table, "head_ns", s) + entry(table, "tail_ns", s))
                    memory = n["state"] + depth * (n["kept"] + n["held"])
                    cost = entered.get(enter, 0) + JOINT_SCALE * time + k * price * memory
                    left[leave] = min(cost, left.get(leave, cost))
                    back = 0 if final or out is None else out[p.instance["boundary_kinds"][l]].get(leave)
                    if back is not None:
                        time = k * (entry(table, "turn_ns", s) + back) + more
                        ends.append(cost + JOINT_SCALE * time + k * price * work_bytes(table, s))
            bound = never if not ends else -((k * price * p.limit(0) - min(ends)) // JOINT_SCALE)
            best[l] = max(best[l], bound)
    return best


def joint_pipelines(instance: dict[str, Any]) -> list[Pipeline]:
    """The configurations of an instance. Raises `Wrong` where its steps are not simulated, or count what bounds do not."""
    if instance.get("step", "simulated") != "simulated":
        raise Wrong("this evidence is of simulated steps")
    pipelines = [Pipeline(instance, index) for index in range(len(instance["configurations"]))]
    if any(p.reduction is not None for p in pipelines):
        raise Wrong("this evidence does not count a reduction of all gradients of a stage together")
    return pipelines


def holds_joint(p: Pipeline, index: int, claim: dict[str, Any], impossible: int) -> bool:
    """Whether the proof of a claim shows that no solution of a configuration has a step of at most `impossible`."""
    if claim.get("enumerate"):
        return enumerated(p, index, claim, impossible, [JOINT_MOST])
    if claim.get("paths"):
        chain, limits, total = bound_by_paths(p, claim)
        return chain.least is None or chain.least - limits > total * impossible
    if len({json.dumps(site) for site in p.sites}) > 1 or p.sliced or p.chunks > 1 or p.name not in ("1f1b", "gpipe"):
        raise Wrong("prices are for equal groups with one stage each, and whole passes")
    if any(not boundary.get("relayout_at_cut", True) for tables in p.tables for boundary in tables["boundaries"]):
        raise Wrong("prices are for boundaries that are re-laid at cuts")
    if not claim.get("prices") or not claim.get("depths"):
        raise Wrong("a claim has no proof")
    if p.stages == 1 and claim.get("exact"):
        return exact_single(p, whole_numbers(claim["prices"]), impossible, claim["exact"])
    if p.stages == 1:
        return (
            least_from_first(p, whole_numbers(claim["prices"]), p.m, p.m if p.name == "gpipe" else 1, p.units)[-1] > impossible
        )
    return not Spans(p, claim, impossible).possible()


def bound_joint_closed_form(instance: dict[str, Any], evidence: dict[str, Any], claimed: int) -> int:
    """The bound `closed-form`."""
    return min(closed_form_joint(Pipeline(instance, index)) for index in range(len(instance["configurations"])))


def bound_joint_certificate(instance: dict[str, Any], evidence: dict[str, Any], claimed: int) -> int:
    """The bound `certificate`."""
    pipelines, claims, bounds = joint_pipelines(instance), evidence.get("configurations"), []
    if not isinstance(claims, list) or len(claims) != len(pipelines):
        raise Wrong("configurations does not have a claim for each configuration")
    for index, (p, claim) in enumerate(zip(pipelines, claims, strict=True)):
        bound, impossible = closed_form_joint(p), claim.get("impossible_ns") if isinstance(claim, dict) else None
        if type(impossible) is not int:
            raise Wrong(f"configurations[{index}].impossible_ns is no whole number")
        if impossible >= bound:
            try:
                holds = holds_joint(p, index, claim, impossible)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise Wrong(f"configurations[{index}] has no proof of the documented form: {error!r}") from None
            if not holds:
                raise Wrong(f"configurations[{index}] may have a step of {impossible} ns")
            bound = impossible + 1
        bounds.append(bound)
    return min(bounds)


def bound_joint_exhaustion(instance: dict[str, Any], evidence: dict[str, Any], claimed: int) -> int:
    """The bound `exhaustion`."""
    left = [JOINT_MOST]
    for index, p in enumerate(joint_pipelines(instance)):
        if closed_form_joint(p) < claimed and not enumerated(p, index, {}, claimed - 1, left):
            raise Wrong(f"configurations[{index}] has a solution with a step below {claimed} ns")
    return claimed


def joint_stage_fits(p: Pipeline, effort: Effort, stage: int, first: int, end: int) -> bool:
    """Whether some options of the units first to end - 1 may fit as a stage, whatever its neighbours and the host."""
    flying = max(dict(counts)[stage] for counts, _, now in p.moments()[stage % p.groups] if now == stage)
    layers = []
    for l in range(first, end):
        tables, options = [p.table(stage, l)], []
        if l == p.units - 1 and p.tied is not None and p.tied.get("once") is not None:
            tables.append(p.tied["once"])
        for table in tables:
            for s in range(len(table["options"])):
                kept, held, state = (entry(table, f"{name}_bytes", s) for name in ("kept", "held", "state"))
                options.append(Arc(0, 0, 0, kept, work_bytes(table, s), state + flying * held + (flying - 1) * kept))
        layers.append(useful_arcs(options))
    return chain_fits(layers, p.limit(stage % p.groups), effort)


def joint_infeasible(instance: dict[str, Any]) -> bool:
    """Whether no solution of a joint instance fits: see `cuts_fit`, of every configuration."""
    effort = Effort()
    for index in range(len(instance["configurations"])):
        p = Pipeline(instance, index)
        fits = partial(joint_stage_fits, p, effort)
        if p.cuts is None and cuts_fit(p.stages, p.units, fits):
            return False
        if p.cuts is not None and all(fits(stage, *span) for stage, span in enumerate(joint_spans(p, p.cuts))):
            return False
    return True


JOINT_BOUNDS: dict[str, Callable[[dict[str, Any], dict[str, Any], int], int]] = {
    "closed-form": bound_joint_closed_form,
    "exhaustion": bound_joint_exhaustion,
    "certificate": bound_joint_certificate,
}


# ---- The command -------------------------------------------------------------------------------------------------------------

PROBLEMS: dict[str, Checks] = {
    "layer-strategies": Checks(
        evaluate_strategies, {"price": strategies_price, "exhaustion": strategies_exhaustion}, strategies_infeasible
    ),
    "memory-switches": Checks(
        evaluate_switches, {"price": switches_price, "exhaustion": switches_exhaustion}, switches_infeasible
    ),
    "pipeline": Checks(evaluate_pipeline, {"fastest": pipeline_fastest, "stages": pipeline_stages}, pipeline_infeasible),
    "galvatron-engine": Checks(evaluate_engine, {"fastest": engine_fastest, "stages": engine_stages}, engine_infeasible),
    "stage-assignment": Checks(evaluate_assignment, {"sweep": bound_sweep, "even": bound_even}, assignment_infeasible),
    "pipeline-partition": Checks(
        evaluate_partition, {"stages": bound_stages, "search": bound_search}, partition_infeasible, sliced_solution
    ),
    "cluster-strategy": Checks(
        evaluate_cluster,
        {"pipelines": bound_pipelines, "placements": bound_placements, "even": bound_even_strategy},
        cluster_infeasible,
    ),
    "joint": Checks(evaluate_joint, JOINT_BOUNDS, joint_infeasible),
}
FORMAT, VERSION = "trainplan-library/1", 1
MALFORMED = ArithmeticError, AttributeError, LookupError, TypeError, ValueError  # by content that is not of the documented form


def no_number(text: str) -> None:
    """Refuse NaN and infinities, which Python reads as numbers. Raises ValueError."""
    raise ValueError(f"{text} is no number")


def read(path: Path) -> dict[str, Any]:
    """The JSON object in a file, which may be compressed by gzip. Raises `Wrong` if there is none."""
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_constant=no_number)
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as failed:
        raise Wrong(f"{path}: cannot be read: {failed}") from None
    if not isinstance(content, dict):
        raise Wrong(f"{path}: is no JSON object")
    return content


def gathered(contents: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The entry and the solution (None if there is none) in files: those of an entry, or of an instance, which is an entry
    without bounds; then that of an instance, if the entry has none; then that of a solution."""
    entry, *others = contents
    if "instance" not in entry:
        if not others:
            raise Wrong("this is no entry; after an instance, give a solution")
        entry = {"name": entry.get("name"), "problem": entry.get("problem"), "instance": entry}
    if entry["instance"] is None:
        if not others or "problem" not in others[0]:
            raise Wrong("instance is null: give the file that `trainplan library get` writes after the entry")
        entry = {**entry, "instance": others.pop(0)}
    if len(others) > 1:
        raise Wrong("give one solution")
    return entry, others[0] if others else None


def stated_ns(entry: dict[str, Any], name: str) -> int | None:
    """The value of a bound of an entry, in ns; None if the entry has no such bound. Raises `Wrong` for one that is none."""
    if not entry.get(name):
        return None
    if type(value := entry[name].get("value")) is not int or value < 0:
        raise Wrong(f"{name}.value is {value!r}: it is no whole number of ns")
    return value


def share(part: int, whole: int) -> str:
    """A part of a whole number as a percentage."""
    return f"{part / whole:.4%}" if whole else "0%"


def evaluated(
    checks: Checks, entry: dict[str, Any], solution: dict[str, Any] | None
) -> tuple[list[tuple[str, str]], int | None]:
    """Evaluate the best solution of an entry, and another one, if it is given. Returns lines (label, text), of which those with
    the labels `violation` and `wrong` are faults; and the value of the other solution, or else of the best one, in ns: None
    where there is none that fits, or where the bounds are not of it."""
    best, lines, value = stated_ns(entry, "upper_bound"), list[tuple[str, str]](), None
    if best is not None:
        chosen = entry["upper_bound"]["solution"]
        found = checks.evaluate(entry["instance"], chosen)
        if solution is None:
            lines = described(found)
        else:
            lines += [("wrong", f"upper_bound.solution: {text}") for text in found.violations]
        lines += [("wrong", f"upper_bound.value is {best}; its solution takes {found.value} ns")] if best != found.value else []
        lines += [("wrong", f"upper_bound.solution: {text}")] if (text := checks.uncompared(chosen)) else []
        value = None if found.violations else found.value
    if solution is not None:
        found = checks.evaluate(entry["instance"], solution)
        lines += described(found)
        value = None if found.violations else found.value
        if value is not None and (text := checks.uncompared(solution)):
            lines.append(("not compared", text))
            value = None
        elif value is not None and best is not None:
            less = f"{share(value - best, value)} less" if best < value else f"{share(best - value, best)} more"
            lines.append(("best known", f"{best} ns, {'the same' if best == value else less}"))
    return lines, value


def described(found: Value) -> list[tuple[str, str]]:
    """The lines (label, text) of a solution's value, memory and violations."""
    peak = [("peak", f"{found.peak_bytes} bytes")] if found.peak_bytes is not None else []
    return [("value", f"{found.value} ns"), *peak, *(("violation", text) for text in found.violations)]


def check(entry: dict[str, Any], solution: dict[str, Any] | None = None) -> tuple[list[tuple[str, str]], bool]:
    """Check an entry. solution: another solution, which is evaluated and compared as well. Returns lines (label, text), and
    whether all holds."""
    problem, instance = entry.get("problem"), entry.get("instance")
    if entry.get("format", FORMAT) != FORMAT:
        raise Wrong(f"format is {entry['format']!r}; this checks {FORMAT}")
    if problem not in PROBLEMS:
        raise Wrong(f"problem is {problem!r}; it is one of: {', '.join(PROBLEMS)}")
    if not isinstance(instance, dict):
        raise Wrong("instance is no JSON object")
    if instance.get("problem", problem) != problem or instance.get("version", VERSION) != VERSION:
        raise Wrong(f"instance is of {instance.get('problem')}, version {instance.get('version')}; this checks {VERSION}")
    checks, lines = PROBLEMS[problem], [("instance", f"{entry.get('name')} ({problem})")]
    found, value = evaluated(checks, entry, solution)
    lines += found
    lower = stated_ns(entry, "lower_bound")
    if lower is not None and value is not None and value < lower:
        lines.append(("wrong", f"the solution is faster than lower_bound.value, {lower}"))
    if entry.get("infeasible"):
        try:
            proven = checks.infeasible(instance)
        except Spent:
            raise Wrong("the proof that nothing fits takes too many labels") from None
        lines.append(("infeasible", "nothing fits") if proven else ("wrong", "infeasible is true, but something may fit"))
        if proven and value is not None:
            lines.append(("wrong", "infeasible is true, but the solution fits"))
    claim = stated_ns(entry, "checked_lower_bound")
    if claim is not None:
        kind, evidence = (entry["checked_lower_bound"].get(name) for name in ("kind", "evidence"))
        if kind not in checks.bounds or not isinstance(evidence, dict):
            raise Wrong(f"checked_lower_bound has evidence of kind {kind!r}; it is one of: {', '.join(checks.bounds)}")
        bound = checks.bounds[kind](instance, evidence, claim)
        lines.append(("lower bound", f"{bound} ns, by {kind}"))
        if bound < claim:
            lines.append(("wrong", f"checked_lower_bound.value is {claim}"))
        if value is not None and value < bound:
            lines.append(("wrong", "the solution is faster than the lower bound"))
        elif value is not None:
            lines.append(("gap", "none: optimal" if value == bound else share(value - bound, value)))
    holds = not any(label in ("violation", "wrong") for label, _ in lines)
    return [*lines, ("verdict", "holds" if holds else "does NOT hold")], holds


def main(arguments: list[str]) -> int:
    """The command: check what is in the files whose paths are the arguments. Returns the exit code."""
    if len(arguments) not in (1, 2, 3):
        print(__doc__)
        return 2
    try:
        lines, holds = check(*gathered([read(Path(path)) for path in arguments]))
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 2
    except MALFORMED as error:
        print(f"{', '.join(arguments)}: not of the documented form: {error!r}", file=sys.stderr)
        return 2
    for label, text in lines:
        print(f"{label:<12} {text}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
