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
    """Which options of the next layer may follow which of this layer, and at what cost.

    Option o' of the next layer may follow o where enters[o'] == leaves[o]: numbers of states, one for each option of the next
    layer and of this one. Every option can follow and be followed by some option (see `connected`). costs: (options, options of
    the next layer), only where all options share one state, or such a table for each row of values, (rows, options, next
    options); None where no pair costs anything.
    """

    leaves: Integers
    enters: Integers
    costs: NDArray[Any] | None = None  # whole numbers, or floats where they are weighed

    @cached_property
    def kinds(self) -> Integers:
        """The kind of each option of the next layer: options of one kind may follow the same options, at equal costs."""
        return self.enters if self.costs is None else _numbered(self.costs.T)

    @cached_property
    def turned(self) -> Link:
        """The same link, seen from the next layer to this one."""
        return Link(self.enters, self.leaves, None if self.costs is None else np.swapaxes(self.costs, -1, -2))

    @property
    def most(self) -> int:
        """The largest cost of a pair, in ns."""
        return 0 if self.costs is None else int(self.costs.max())

    @cached_property
    def _sorted(self) -> tuple[Indices, Indices, Indices]:
        """Options sorted by the state in which they leave; the position at which each state begins; and for each option of the
        next layer, the index of its state."""
        order = np.argsort(self.leaves, kind="stable")
        states, starts = np.unique(self.leaves[order], return_index=True)
        assert np.isin(self.enters, states).all()
        return order, starts, np.searchsorted(states, self.enters)

    def onward(self, values: Values) -> Values:
        """For each option of the next layer, the least value plus cost of the options that it may follow. values: (...,
        options)."""
        return self.reach(values) if self.costs is None else (values[..., None] + self.costs).min(axis=-2)

    def reach(self, values: Values) -> Values:
        """For each option of the next layer, the least value, without costs, of the options that it may follow. values: (...,
        options)."""
        order, starts, place = self._sorted
        least: Values = np.minimum.reduceat(values[..., order], starts, axis=-1)[..., place]
        return least

    def before(self, values: Values, following: Indices) -> Indices:
        """For each row of values, the option with the least value plus cost that the row's option of the next layer may follow.

        values: (rows, options). following: (rows,), options of the next layer.
        """
        if self.costs is None:
            far = np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(np.int64).max
            return np.where(self.leaves == self.enters[following][:, None], values, far).argmin(axis=1)
        costs = self.costs.T[following] if self.costs.ndim == 2 else self.costs[np.arange(len(values)), :, following]
        return (values + costs).argmin(axis=1)

    def cost(self, options: Indices, following: Indices) -> Integers:
        """Costs in ns of pairs (option, option of the next layer) that are allowed."""
        return np.zeros(len(options), np.int64) if self.costs is None else self.costs[options, following]

    def allows(self, options: Indices, following: Indices) -> Booleans:
        """Whether each pair (option, option of the next layer) is allowed: both agree on the state between them."""
        agreed: Booleans = self.leaves[options] == self.enters[following]
        return agreed

    def pairs(self, following: Indices) -> Iterator[tuple[Indices, Indices]]:
        """All allowed pairs of an option and one of `following`, options of the next layer.

        Yields blocks of (options, indices into `following`); all combinations within a block are allowed.
        """
        if self.costs is not None:
            yield np.arange(len(self.leaves)), np.arange(len(following))
            return
        order, starts, place = self._sorted
        ends = np.append(starts[1:], len(order))
        kinds = place[following]
        by_kind = np.argsort(kinds, kind="stable")
        present, firsts = np.unique(kinds[by_kind], return_index=True)
        for kind, first, end in zip(present, firsts, [*firsts[1:], len(by_kind)], strict=True):
            yield order[starts[kind] : ends[kind]], by_kind[first:end]

    def follow(self, remaining: Booleans) -> Booleans:
        """Which options of the next layer may follow one of the remaining options. remaining: a flag for each option."""
        possible: Booleans = self.reach(1 - remaining.astype(np.int64)) == 0
        return possible

    def weighed(self, other: Link, weights: Floats) -> Link:
        """This link with the costs of another link of the same options added at each weight, one table for each; this link
        itself where there are no costs."""
        if self.costs is None or other.costs is None:
            return self
        return replace(self, costs=self.costs + weights[:, None, None] * other.costs)

    def joined(self, other: Link) -> Integers:
        """Kinds of the next layer's options that have equal costs both in this link and in another link of the same options."""
        return self.enters if self.costs is None else _numbered(np.stack((self.kinds, other.kinds), axis=1))

    def restricted(self, options: Indices, following: Indices) -> Link:
        """The link between only these options and these options of the next layer, given by their indices."""
        costs = None if self.costs is None else self.costs[np.ix_(options, following)]
        return Link(self.leaves[options], self.enters[following], costs)

    @property
    def free(self) -> Link:
        """The same allowed pairs, at no cost."""
        return replace(self, costs=None)


def cost_table(costs: NDArray[Any]) -> Link:
    """The link with which every option may follow every other at these costs in ns: (options, options of the next layer)."""
    states = np.zeros(costs.shape[0], np.int64), np.zeros(costs.shape[1], np.int64)
    return Link(*states, costs)


@dataclass(frozen=True, eq=False)
class MemoryChain:
    """The problem stated at the head of this module, in arrays.

    time_ns, forward_bytes, backward_bytes, state_bytes: t, f, b and ms; for each layer a vector over its options. links[l]:
    between layers l and l + 1.
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
        """Lower bounds on the memory of the layers before each layer."""
        return Least(self)

    def times(self, choices: Integers) -> Integers:
        """(choices,): times in ns of choices that the links allow. choices: (choices, layers), options."""
        times = np.zeros(len(choices), np.int64)
        for l, column in enumerate(self.time_ns):
            times += column[choices[:, l]]
        for l, link in enumerate(self.links):
            times += link.cost(choices[:, l], choices[:, l + 1])
        return times

    def peaks(self, choices: Integers) -> Integers:
        """(choices,): peaks in bytes. choices: (choices, layers), options."""
        forward, backward, states = (
            np.stack([column[choices[:, l]] for l, column in enumerate(columns)], axis=1)
            for columns in (self.forward_bytes, self.backward_bytes, self.state_bytes)
        )
        peaks: Integers = stage_peak(states, forward, backward)[0]
        return peaks

    def allows(self, choices: Integers) -> Booleans:
        """(choices,): whether the links allow each choice. choices: (choices, layers), options."""
        allowed = np.ones(len(choices), bool)
        for l, link in enumerate(self.links):
            allowed &= link.allows(choices[:, l], choices[:, l + 1])
        return allowed

    def fastest(self) -> tuple[int, tuple[int, ...]]:
        """The least time in ns of all choices, and a choice that has it, whatever memory it needs."""
        choices = cheapest_paths(self.links, times := [time[None] for time in self.time_ns], sums_before(self.links, times))
        return int(self.times(choices)[0]), tuple(choices[0].tolist())

    def objective(self, choice: Sequence[int]) -> int | None:
        """Time in ns of a choice that the links allow; None where it exceeds the memory."""
        taken = np.array([choice])
        return int(self.times(taken)[0]) if int(self.peaks(taken)[0]) <= self.memory_bytes else None

    def pairs(self, l: int, following: Indices) -> Iterable[tuple[Indices, Indices]]:
        """All allowed pairs of an option of layer l and one of `following`, options of layer l + 1, as the blocks of
        `Link.pairs`.

        For the last layer, which nothing follows, each option is paired with index 0.
        """
        return self.links[l].pairs(following) if l + 1 < self.layers else [(np.arange(self.options[l]), np.zeros(1, np.intp))]

    def restricted(self, remaining: Sequence[Indices]) -> MemoryChain:
        """The chain with only the remaining options of each layer, in that order; equal links stay one object."""
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
    """Lower bounds in bytes on the layers before each layer, for each of its options; each attribute is a list of vectors.

    added: least sum of f + ms. peak: a lower bound on their own peak, to which model states of later layers are added. reach:
    the most by which b of one of them exceeds the memory kept by those after it. Where the peak H of later layers is above
    their model states M by that much or more, M does not matter: no pass of the layers before can rise above H.
    """

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
    """The chain of a layer-strategies instance; a chain is returned as it is."""
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
    """For each layer, the least sum of values and costs over the layers before it, up to each of its options: (rows, options).

    values: of every layer, (rows, options); every row is a problem of its own.
    """
    sums = [np.zeros_like(values[0])]
    for link, value in zip(links, values, strict=False):
        sums.append(link.onward(sums[-1] + value))
    return sums


def cheapest_paths(links: Sequence[Link], values: Sequence[Values], sums: Sequence[Values]) -> Integers:
    """(rows, layers): for each row of values, a choice with the least sum of values and costs.

    values: of every layer, (rows, options). sums: as `sums_before` returns them.
    """
    steps = [(sums[-1] + values[-1]).argmin(axis=1)]
    for link, value, before in zip(reversed(links), reversed(values[:-1]), reversed(sums[:-1]), strict=True):
        steps.append(link.before(before + value, steps[-1]))
    return np.stack(steps[::-1], axis=1)


def traced(trail: Sequence[tuple[Indices, Indices]], place: int) -> tuple[int, ...]:
    """The choice that a label of the first layer stands for: one option for each layer.

    trail: for each layer, from the last to the first, the option of each label and the index of the label of the next layer
    that it extends. index: that of the label among those of the first layer.
    """
    choice = []
    for options, following in reversed(trail):
        choice.append(int(options[place]))
        place = int(following[place])
    return tuple(choice)


def connected(chain: MemoryChain, remaining: Sequence[Booleans]) -> list[Indices]:
    """Indices of those remaining options of each layer that lie on some allowed chain of remaining options from the first layer
    to the last. remaining: for each layer, a flag for each option."""
    masks = list(remaining)
    for l, link in enumerate(chain.links):
        masks[l + 1] = masks[l + 1] & link.follow(masks[l])
    for l in range(chain.layers - 2, -1, -1):
        masks[l] = masks[l] & chain.links[l].turned.follow(masks[l + 1])
    return [np.flatnonzero(mask) for mask in masks]


def _numbered(rows: NDArray[Any]) -> Integers:
    """(rows,): a number for each row; equal rows have equal numbers."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)])
