"""A chain of layers, one option each, under one memory limit: the form in which label-setting gets every problem of this kind.

    minimise    sum_l t(l, s_l) + sum_l R(l, s_l, s_{l+1})                                          nanoseconds
    subject to  max_l ( sum_{k<=l} f(k, s_k) + b(l, s_l) ) + sum_k ms(k, s_k)  <=  E                 bytes

s_l: the option of layer l; t: its time; R: the cost between the options of neighbours; f: memory that it keeps from its forward
to its backward pass; ms: memory that stays for the whole step; b: memory that its own pass adds on top; E: the limit. f and b
may be negative. Neighbours are linked in one of two forms:
- every option may follow every other, at a cost R (layer-strategies, where this is Eq. 2 of Galvatron-BMW);
- an option may follow another where it enters in the state in which that one leaves, at no cost (memory-switches, where f =
  delta, ms = resident and b = peak - delta of H3T's Algorithm 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Instance, Integers
from trainplan.formulations.schedule.stage_memory import stage_peak

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Booleans = NDArray[np.bool_]
Values = TypeVar("Values", Integers, Floats)
LOWEST = -(2**61)  # bytes, below every peak, with room for sums


@dataclass(frozen=True, eq=False)
class Link:
    """Which pairs of options two neighbouring layers of a chain may have, and the cost of each pair in ns (such as re-layout).
    "This layer" is the earlier one of the two, "the next layer" the later one. A choice is one option for every layer.

    Option o' of the next layer may follow option o of this layer if enters[o'] == leaves[o]. leaves: (options of this layer,)
    and enters: (options of the next layer,): each option's number of the state (such as the layout of activations) in which it
    is left or entered. Every option can follow and be followed by some option. costs: (options, options of the next layer),
    given only if all options share one state; or (rows, options, next options), a table for each of several independent
    problems (rows); None if no pair costs anything."""

    leaves: Integers
    enters: Integers
    costs: NDArray[Any] | None = None  # whole numbers, or floats where they are weighed

    @cached_property
    def kinds(self) -> Integers:
        """Group the options of the next layer that are interchangeable for this layer: a group number per option, (next
        options,). Options of one group may follow the same options, at equal costs."""
        return self.enters if self.costs is None else _numbered(self.costs.T)

    @cached_property
    def turned(self) -> Link:
        """The link in the opposite direction, from the next layer to this one, with the same pairs and costs."""
        return Link(self.enters, self.leaves, None if self.costs is None else np.swapaxes(self.costs, -1, -2))

    @property
    def most(self) -> int:
        """The largest cost of a pair of options, in ns; 0 if no pair costs anything."""
        return 0 if self.costs is None else int(self.costs.max())

    @cached_property
    def _sorted(self) -> tuple[Indices, Indices, Indices]:
        """An index of this layer's options by state: the options sorted by the state in which they are left; the position at
        which each state begins in that order; and for each option of the next layer, the rank of the state in which it is
        entered."""
        order = np.argsort(self.leaves, kind="stable")
        states, starts = np.unique(self.leaves[order], return_index=True)
        assert np.isin(self.enters, states).all()
        return order, starts, np.searchsorted(states, self.enters)

    def onward(self, values: Values) -> Values:
        """One step of a shortest path along the chain. values: (..., options of this layer), the cost so far by this layer's
        option. Returns (..., options of the next layer): for each option of the next layer, the least of (value + cost of the
        pair) over the options that it may follow."""
        return self.reach(values) if self.costs is None else (values[..., None] + self.costs).min(axis=-2)

    def reach(self, values: Values) -> Values:
        """One step along the chain without the costs of pairs. values: (..., options of this layer). Returns (..., options of
        the next layer): for each option of the next layer, the least value over the options of this layer that it may follow.
        """
        order, starts, index = self._sorted
        least: Values = np.minimum.reduceat(values[..., order], starts, axis=-1)[..., index]
        return least

    def before(self, values: Values, following: Indices) -> Indices:
        """Trace a cheapest choice back by one layer: for each row, the option of this layer with the least (value + cost of the
        pair) that may precede the row's option of the next layer.

        values: (rows, options), a cost of each option in each row (a row is an independent problem). following: (rows,), the
        option of the next layer in each row. Returns (rows,), options of this layer.
        """
        if self.costs is None:
            far = np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(np.int64).max
            return np.where(self.leaves == self.enters[following][:, None], values, far).argmin(axis=1)
        costs = self.costs.T[following] if self.costs.ndim == 2 else self.costs[np.arange(len(values)), :, following]
        return (values + costs).argmin(axis=1)

    def cost(self, options: Indices, following: Indices) -> Integers:
        """The costs in ns, (pairs,), of given pairs of options, all of which the link allows. options: (pairs,), options of
        this layer. following: (pairs,), options of the next layer."""
        return np.zeros(len(options), np.int64) if self.costs is None else self.costs[options, following]

    def allows(self, options: Indices, following: Indices) -> Booleans:
        """Whether the link allows each of the given pairs of options, (pairs,). options: (pairs,), options of this layer.
        following: (pairs,), options of the next layer."""
        agreed: Booleans = self.leaves[options] == self.enters[following]
        return agreed

    def pairs(self, following: Indices) -> Iterator[tuple[Indices, Indices]]:
        """Yield all allowed pairs of an option of this layer with one of some options of the next layer, as blocks (options of
        this layer, indices into `following`): every combination within a block is an allowed pair. following: (n,), options of
        the next layer."""
        if self.costs is not None:
            yield np.arange(len(self.leaves)), np.arange(len(following))
            return
        order, starts, index = self._sorted
        ends = np.append(starts[1:], len(order))
        kinds = index[following]
        by_kind = np.argsort(kinds, kind="stable")
        present, firsts = np.unique(kinds[by_kind], return_index=True)
        for kind, first, end in zip(present, firsts, [*firsts[1:], len(by_kind)], strict=True):
            yield order[starts[kind] : ends[kind]], by_kind[first:end]

    def follow(self, remaining: Booleans) -> Booleans:
        """For each option of the next layer, (next options,), whether it may follow at least one remaining option of this
        layer. remaining: (options,), True for options that remain."""
        possible: Booleans = self.reach(1 - remaining.astype(np.int64)) == 0
        return possible

    def weighed(self, other: Link, weights: Floats) -> Link:
        """A copy of this link whose costs are (own cost + weight x cost in another link), one table per weight, (weights,
        options, next options). other: a link between the same options. weights: (weights,). Returns this link itself if either
        has no costs."""
        if self.costs is None or other.costs is None:
            return self
        return replace(self, costs=self.costs + weights[:, None, None] * other.costs)

    def joined(self, other: Link) -> Integers:
        """Group the options of the next layer that are interchangeable in two links: a group number per option, (next
        options,). Options of one group have equal costs in this link and also in `other`, a link between the same options."""
        return self.enters if self.costs is None else _numbered(np.stack((self.kinds, other.kinds), axis=1))

    def restricted(self, options: Indices, following: Indices) -> Link:
        """A copy of this link between only some options of the two layers. options: indices of the options of this layer that
        stay. following: indices of the options of the next layer that stay. Both are renumbered in the given order."""
        costs = None if self.costs is None else self.costs[np.ix_(options, following)]
        return Link(self.leaves[options], self.enters[following], costs)

    @property
    def free(self) -> Link:
        """A copy of this link with the same allowed pairs, which cost nothing."""
        return replace(self, costs=None)


def cost_table(costs: NDArray[Any]) -> Link:
    """The link between two layers whose options may follow one another in every combination. costs: in ns, (options, options of
    the next layer)."""
    states = np.zeros(costs.shape[0], np.int64), np.zeros(costs.shape[1], np.int64)
    return Link(*states, costs)


@dataclass(frozen=True, eq=False)
class MemoryChain:
    """A chain of layers, each with several options of which one is chosen, under one memory limit; data in arrays. A choice is
    one option index for each layer.

    memory_bytes: the limit on the peak. For each layer, a vector over its options: time_ns: time; forward_bytes: memory kept
    from the forward to the backward pass; backward_bytes: memory that the layer's own pass adds on top; state_bytes: memory
    that stays for the whole step. The peak is the largest, over layers, of the forward_bytes up to and including the layer plus
    its backward_bytes, plus the state_bytes of all layers. links[l]: allowed pairs and costs between layers l and l + 1.
    """

    memory_bytes: int
    time_ns: tuple[Integers, ...]
    forward_bytes: tuple[Integers, ...]
    backward_bytes: tuple[Integers, ...]
    state_bytes: tuple[Integers, ...]
    links: tuple[Link, ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.time_ns)

    @property
    def options(self) -> tuple[int, ...]:
        """The number of options of each layer."""
        return tuple(len(times) for times in self.time_ns)

    @cached_property
    def least(self) -> Least:
        """Lower bounds in bytes on the memory of the layers before each layer, by the option that the layer itself has."""
        return Least(self)

    def times(self, choices: Integers) -> Integers:
        """The times in ns of several choices, (choices,), including the costs of links. choices: (choices, layers), indices of
        options, which the links must allow."""
        times = np.zeros(len(choices), np.int64)
        for l, column in enumerate(self.time_ns):
            times += column[choices[:, l]]
        for l, link in enumerate(self.links):
            times += link.cost(choices[:, l], choices[:, l + 1])
        return times

    def peaks(self, choices: Integers) -> Integers:
        """The peak memory in bytes of several choices, (choices,). choices: (choices, layers), indices of options."""
        forward, backward, states = (
            np.stack([column[choices[:, l]] for l, column in enumerate(columns)], axis=1)
            for columns in (self.forward_bytes, self.backward_bytes, self.state_bytes)
        )
        peaks: Integers = stage_peak(states, forward, backward)[0]
        return peaks

    def allows(self, choices: Integers) -> Booleans:
        """Whether the links allow each of several choices, (choices,). choices: (choices, layers), indices of options."""
        allowed = np.ones(len(choices), bool)
        for l, link in enumerate(self.links):
            allowed &= link.allows(choices[:, l], choices[:, l + 1])
        return allowed

    def fastest(self) -> tuple[int, tuple[int, ...]]:
        """The least time in ns of all choices, ignoring memory, and a choice that has it (one option index per layer)."""
        choices = cheapest_paths(self.links, times := [time[None] for time in self.time_ns], sums_before(self.links, times))
        return int(self.times(choices)[0]), tuple(choices[0].tolist())

    def objective(self, choice: Sequence[int]) -> int | None:
        """The time in ns of a choice that the links allow; None if its peak exceeds the memory limit. choice: one option index
        per layer."""
        taken = np.array([choice])
        return int(self.times(taken)[0]) if int(self.peaks(taken)[0]) <= self.memory_bytes else None

    def pairs(self, l: int, following: Indices) -> Iterable[tuple[Indices, Indices]]:
        """All allowed pairs of an option of layer l with one of some options of layer l + 1. following: (n,), these options of
        layer l + 1.

        Returns blocks (options of layer l, indices into `following`); all combinations within a block are allowed. For the last
        layer, which nothing follows, each option is paired with index 0."""
        return self.links[l].pairs(following) if l + 1 < self.layers else [(np.arange(self.options[l]), np.zeros(1, np.intp))]

    def restricted(self, remaining: Sequence[Indices]) -> MemoryChain:
        """A copy of the chain with only some options of each layer. remaining: for each layer, the indices of the options that
        stay, in their new order. Links that were one object stay one object; the chain itself is returned if nothing is
        removed."""
        if all(len(options) == count for options, count in zip(remaining, self.options, strict=True)):
            return self

        def columns(whole: tuple[Integers, ...]) -> tuple[Integers, ...]:
            """The vectors of all layers for the remaining options only."""
            return tuple(column[options] for column, options in zip(whole, remaining, strict=True))

        links: dict[tuple[int, bytes, bytes], Link] = {}  # equal ones stay one
        keys = [(id(link), remaining[l].tobytes(), remaining[l + 1].tobytes()) for l, link in enumerate(self.links)]
        for l, key in enumerate(keys):
            if key not in links:
                links[key] = self.links[l].restricted(remaining[l], remaining[l + 1])
        return replace(
            self,
            time_ns=columns(self.time_ns),
            forward_bytes=columns(self.forward_bytes),
            backward_bytes=columns(self.backward_bytes),
            state_bytes=columns(self.state_bytes),
            links=tuple(links[key] for key in keys),
        )


class Least:
    """Lower bounds in bytes on the memory of the layers before each layer of a chain; each attribute is a list of vectors, for
    each layer one entry per option of it.

    added: the least sum of what the earlier layers keep for their backward passes plus their model states. peak: a lower bound
    on the peak during the earlier layers' passes; model states of later layers have to be added to it. reach: the largest
    amount by which the memory that an earlier layer's pass adds exceeds what the layers between it and this one keep. If the
    peak of later layers is above their model states by `reach` or more, these states do not matter: no pass of the layers
    before can rise above that peak."""

    def __init__(self, chain: MemoryChain) -> None:
        bounds = np.tile(np.array([[0], [LOWEST], [LOWEST]]), chain.options[0])
        self.added, self.peak, self.reach = ([values] for values in bounds)
        for l, link in enumerate(chain.links):
            f, b, ms = chain.forward_bytes[l], chain.backward_bytes[l], chain.state_bytes[l]
            added, peak, reach = bounds
            added = added + f + ms
            bounds = link.reach(np.stack((added, np.maximum(peak + ms, added + b), -np.maximum(b, reach - f))))
            np.negative(bounds[2], out=bounds[2])
            for values, value in zip((self.added, self.peak, self.reach), bounds, strict=True):
                values.append(value)


def chain_of(instance: Instance | MemoryChain) -> MemoryChain:
    """The memory chain (arrays of options per layer under one memory limit) of an instance of the problem layer-strategies; a
    memory chain is returned unchanged. Equal layers share one link object.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit."""
    if isinstance(instance, MemoryChain):
        return instance
    links = {id(table): cost_table(table) for table in instance.transitions_ns}  # equal layers share their tables
    return MemoryChain(
        instance.memory_bytes,
        instance.time_ns,
        instance.forward_bytes,
        instance.backward_bytes,
        instance.state_bytes,
        tuple(links[id(table)] for table in instance.transitions_ns),
    )


def sums_before(links: Sequence[Link], values: Sequence[Values]) -> list[Values]:
    """Forward dynamic program along a chain of layers. Returns for each layer an array (rows, options): the least sum of values
    over the earlier layers and of link costs up to this layer, if this layer has that option; 0 for the first layer.

    links: allowed pairs and costs between neighbouring layers. values: for each layer, (rows, options), the cost of each
    option; every row is an independent problem."""
    sums = [np.zeros_like(values[0])]
    for link, value in zip(links, values, strict=False):
        sums.append(link.onward(sums[-1] + value))
    return sums


def cheapest_paths(links: Sequence[Link], values: Sequence[Values], sums: Sequence[Values]) -> Integers:
    """For each row of values, a choice (one option per layer) with the least sum of values and link costs: an array (rows,
    layers) of option indices.

    links: allowed pairs and costs between neighbouring layers. values: for each layer, (rows, options), the cost of each
    option; every row is an independent problem. sums: the least sums of the layers before each layer, as `sums_before` returns
    them."""
    steps = [(sums[-1] + values[-1]).argmin(axis=1)]
    for link, value, before in zip(reversed(links), reversed(values[:-1]), reversed(sums[:-1]), strict=True):
        steps.append(link.before(before + value, steps[-1]))
    return np.stack(steps[::-1], axis=1)


def traced(trail: Sequence[tuple[Indices, Indices]], index: int) -> tuple[int, ...]:
    """The choice (one option per layer, first layer first) that a label of the first layer stands for; a label is a partial
    choice that extends a label of the next layer.

    trail: for each layer, from the last to the first, two vectors over its labels: the option of the layer, and the index of
    the label of the next layer that it extends. index: the label's index among the labels of the first layer.
    """
    choice = []
    for options, following in reversed(trail):
        choice.append(int(options[index]))
        index = int(following[index])
    return tuple(choice)


def connected(chain: MemoryChain, remaining: Sequence[Booleans]) -> list[Indices]:
    """Find the options that some allowed choice (one remaining option per layer, every neighbouring pair allowed by its link)
    uses: for each layer, their indices. The other options can be removed. chain: the layers, options and links. remaining: for
    each layer, (options,), True for options that remain."""
    masks = list(remaining)
    for l, link in enumerate(chain.links):
        masks[l + 1] = masks[l + 1] & link.follow(masks[l])
    for l in range(chain.layers - 2, -1, -1):
        masks[l] = masks[l] & chain.links[l].turned.follow(masks[l + 1])
    return [np.flatnonzero(mask) for mask in masks]


def _numbered(rows: NDArray[Any]) -> Integers:
    """Number the distinct rows of a table by first appearance; returns the number of each row, (rows,). Rows a, b, a -> [0, 1,
    0]."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)])
