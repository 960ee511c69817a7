"""A chain of layers under one memory limit: what label-setting and least memory work on, whichever problem it comes from.

    minimise    sum_l t(l, s_l) + sum_l R(l, s_l, s_{l+1})                                          nanoseconds
    subject to  max_l ( sum_{k<=l} f(k, s_k) + b(l, s_l) ) + sum_k ms(k, s_k)  <=  E                 bytes

t: time of an option; f: what it keeps from its forward to its backward pass; ms: what stays for the whole step; b: what its own
turn adds on top. f and b may be negative. Neighbours are linked in one of two ways:

- `CostTable`: every option may follow every other, at a cost R (layer-strategies, where this is Eq. 2 of Galvatron-BMW);
- `Agreement`: an option may follow another where it enters in the state in which that one leaves, at no cost (memory-switches,
  where f = delta, ms = resident and b = peak - delta of H3T's Algorithm 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Instance, Integers

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Booleans = NDArray[np.bool_]
Values = TypeVar("Values", Integers, Floats)
LOWEST = -(2**61)  # bytes, below every peak, with room for sums


@dataclass(frozen=True, eq=False)
class CostTable:
    """All pairs are allowed. costs: [option, option of the next layer]; maybe such a table for each row of values."""

    costs: NDArray[Any]  # whole numbers, or floats where they are weighed

    @cached_property
    def kinds(self) -> Integers:
        """Kind of each option of the next layer: those of one kind meet equal costs from every option before."""
        return _numbered(self.costs.T)

    @cached_property
    def turned(self) -> CostTable:
        """The same link, from the next layer to this one."""
        return CostTable(np.swapaxes(self.costs, -1, -2))

    @property
    def most(self) -> int:
        """The largest cost."""
        return int(self.costs.max())

    def onward(self, values: Values) -> Values:
        """Least value plus cost over the options that each option of the next layer may follow; values: (..., options)."""
        least: Values = (values[..., None] + self.costs).min(axis=-2)
        return least

    def reach(self, values: Values) -> Values:
        """Least value over the options that each option of the next layer may follow, without costs."""
        return values.min(axis=-1, keepdims=True).repeat(self.costs.shape[-1], axis=-1)

    def before(self, values: Values, following: Places) -> Places:
        """Of each row of values, the option with the least value plus cost of those that `following` may follow."""
        costs = self.costs.T[following] if self.costs.ndim == 2 else self.costs[np.arange(len(values)), :, following]
        return (values + costs).argmin(axis=1)

    def allowed(self, following: int) -> Places | slice:
        """Options that one option of the next layer may follow."""
        return slice(None)

    def cost(self, options: Places, following: Places) -> Integers:
        """Costs of pairs that are allowed, in nanoseconds."""
        costs: Integers = self.costs[options, following]
        return costs

    def allows(self, options: Places, following: Places) -> Booleans:
        """Whether each pair is allowed: all are."""
        return np.ones(len(options), bool)

    def pairs(self, following: Places) -> Iterator[tuple[Places, Places]]:
        """All pairs of an option and one of `following` that may follow it: as blocks of (options, places in `following`)."""
        yield np.arange(self.costs.shape[0]), np.arange(len(following))

    def follow(self, remaining: Booleans) -> Booleans:
        """Which options of the next layer may follow one of those remaining."""
        return np.full(self.costs.shape[1], remaining.any())

    def weighed(self, other: Link, weights: Floats) -> CostTable:
        """Costs plus those of another table at each weight, a table for each."""
        assert isinstance(other, CostTable)
        return CostTable(self.costs + weights[:, None, None] * other.costs)

    def joined(self, other: Link) -> Integers:
        """Kinds of options that meet equal costs in both."""
        assert isinstance(other, CostTable)
        return _numbered(np.stack((self.kinds, other.kinds), axis=1))

    def restricted(self, options: Places, following: Places) -> CostTable:
        """The link between only these options and those of the next layer."""
        return CostTable(self.costs[np.ix_(options, following)])


@dataclass(frozen=True, eq=False)
class Agreement:
    """Option o' may follow o where enters[o'] == leaves[o]: numbers of states, of this layer's options and of the next one's.

    Every option can follow and be followed by some option (see `connected`). Methods as in `CostTable`, all costs 0."""

    leaves: Integers
    enters: Integers

    most = 0

    @property
    def kinds(self) -> Integers:
        """State in which each option of the next layer enters: those of one kind may follow the same options."""
        return self.enters

    @cached_property
    def turned(self) -> Agreement:
        """The same link, from the next layer to this one."""
        return Agreement(self.enters, self.leaves)

    @cached_property
    def _sorted(self) -> tuple[Places, Places, Places]:
        """Options by the state they leave in; where each state begins; of each following option, the place of its state."""
        order = np.argsort(self.leaves, kind="stable")
        states, starts = np.unique(self.leaves[order], return_index=True)
        assert np.isin(self.enters, states).all()
        return order, starts, np.searchsorted(states, self.enters)

    def onward(self, values: Values) -> Values:
        """Least value over the options that each option of the next layer may follow; values: (..., options)."""
        order, starts, place = self._sorted
        least: Values = np.minimum.reduceat(values[..., order], starts, axis=-1)[..., place]
        return least

    def reach(self, values: Values) -> Values:
        """The same, since no pair costs anything."""
        return self.onward(values)

    def before(self, values: Values, following: Places) -> Places:
        """Of each row of values, the option with the least value of those that `following` may follow."""
        far = np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(np.int64).max
        return np.where(self.leaves == self.enters[following][:, None], values, far).argmin(axis=1)

    def allowed(self, following: int) -> Places | slice:
        """Options that one option of the next layer may follow."""
        return np.flatnonzero(self.leaves == self.enters[following])

    def cost(self, options: Places, following: Places) -> Integers:
        """Costs of pairs that are allowed: none."""
        return np.zeros(len(options), np.int64)

    def allows(self, options: Places, following: Places) -> Booleans:
        """Whether each pair agrees on the state between them."""
        agreed: Booleans = self.leaves[options] == self.enters[following]
        return agreed

    def pairs(self, following: Places) -> Iterator[tuple[Places, Places]]:
        """All pairs of an option and one of `following` that may follow it: as blocks of (options, places in `following`)."""
        order, starts, place = self._sorted
        ends = np.append(starts[1:], len(order))
        kinds = place[following]
        by_kind = np.argsort(kinds, kind="stable")
        present, firsts = np.unique(kinds[by_kind], return_index=True)
        for kind, first, end in zip(present, firsts, [*firsts[1:], len(by_kind)], strict=True):
            yield order[starts[kind] : ends[kind]], by_kind[first:end]

    def follow(self, remaining: Booleans) -> Booleans:
        """Which options of the next layer may follow one of those remaining."""
        return np.isin(self.enters, self.leaves[remaining])

    def weighed(self, other: Link, weights: Floats) -> Agreement:
        """The link itself, whatever the weights: it costs nothing."""
        return self

    def joined(self, other: Link) -> Integers:
        """Kinds of options in both links, which are alike."""
        return self.enters

    def restricted(self, options: Places, following: Places) -> Agreement:
        """The link between only these options and those of the next layer."""
        return Agreement(self.leaves[options], self.enters[following])


Link = CostTable | Agreement


@dataclass(frozen=True, eq=False)
class MemoryChain:
    """The problem above in arrays: per layer l four vectors over its options; links[l]: between layers l and l + 1."""

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
        """What the layers before each layer need at least."""
        return Least(self)

    def times(self, choices: Integers) -> Integers:
        """Times in ns of choices that the links allow, (choices, layers)."""
        times = np.zeros(len(choices), np.int64)
        for l, column in enumerate(self.time_ns):
            times += column[choices[:, l]]
        for l, link in enumerate(self.links):
            times += link.cost(choices[:, l], choices[:, l + 1])
        return times

    def peaks(self, choices: Integers) -> Integers:
        """Peaks in bytes of (choices, layers)."""
        forward, backward, states = (
            np.stack([column[choices[:, l]] for l, column in enumerate(columns)], axis=1)
            for columns in (self.forward_bytes, self.backward_bytes, self.state_bytes)
        )
        peaks: Integers = (np.cumsum(forward, axis=1) + backward).max(axis=1) + states.sum(axis=1)
        return peaks

    def allows(self, choices: Integers) -> Booleans:
        """Whether the links allow each of (choices, layers)."""
        allowed = np.ones(len(choices), bool)
        for l, link in enumerate(self.links):
            allowed &= link.allows(choices[:, l], choices[:, l + 1])
        return allowed

    def cheapest(self, values: Sequence[NDArray[Any]]) -> tuple[int, ...]:
        """A choice with the least sum of values (one for each option of each layer), costs of links aside."""
        sums = [values[0]]
        for link, added in zip(self.links, values[1:], strict=True):
            sums.append(link.reach(sums[-1]) + added)
        choice = [int(sums[-1].argmin())]
        for link, reach in zip(reversed(self.links), reversed(sums[:-1]), strict=True):
            allowed = link.allowed(choice[-1])
            place = int(reach[allowed].argmin())
            choice.append(place if isinstance(allowed, slice) else int(allowed[place]))
        return tuple(reversed(choice))

    def fastest(self) -> tuple[int, tuple[int, ...]]:
        """The least time of all in ns, and a choice that has it, whatever memory it needs."""
        sums = [self.time_ns[0]]
        for link, time in zip(self.links, self.time_ns[1:], strict=True):
            sums.append(link.onward(sums[-1]) + time)
        choice = [int(sums[-1].argmin())]
        for link, reach in zip(reversed(self.links), reversed(sums[:-1]), strict=True):
            choice.append(int(link.before(reach[None], np.array(choice[-1:]))[0]))
        return int(sums[-1].min()), tuple(reversed(choice))

    def restricted(self, remaining: Sequence[Places]) -> MemoryChain:
        """The chain with only the remaining options of each layer, in that order."""
        if all(len(options) == count for options, count in zip(remaining, self.options, strict=True)):
            return self

        def columns(whole: tuple[Integers, ...]) -> tuple[Integers, ...]:
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
    """Of the layers before each layer, up to each of its options, in bytes.

    added: least sum of f + ms. peak: a lower bound on their peak of themselves; model states that follow come on top of it.
    reach: the most by which b of one of them exceeds what those between keep: where the peak H of what follows is above its
    model states M by as much, M counts no longer, since no turn of the layers before can rise above H.
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
    """The chain of a layer-strategies instance; a chain as it is."""
    if isinstance(instance, MemoryChain):
        return instance
    links = {id(table): CostTable(table) for table in instance.transitions_ns}  # equal layers share their tables
    return MemoryChain(
        instance.memory_bytes,
        instance.time_ns,
        instance.forward_bytes,
        instance.backward_bytes,
        instance.state_bytes,
        tuple(links[id(table)] for table in instance.transitions_ns),
    )


def connected(chain: MemoryChain, remaining: Sequence[Booleans]) -> list[Places]:
    """Of the remaining options of each layer, those that lie on some chain of them from the first layer to the last."""
    masks = list(remaining)
    for l, link in enumerate(chain.links):
        masks[l + 1] = masks[l + 1] & link.follow(masks[l])
    for l in range(chain.layers - 2, -1, -1):
        masks[l] = masks[l] & chain.links[l].turned.follow(masks[l + 1])
    return [np.flatnonzero(mask) for mask in masks]


def _numbered(rows: NDArray[Any]) -> Integers:
    """A number for each row; equal rows have equal numbers."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)])
