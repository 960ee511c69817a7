"""Completion bounds of label-setting: lower bounds on the cost of the layers that a label does not cover yet.

For any price w >= 0 of a byte and a label (t, H, M) of `label_setting` (time, peak and model states of layers l to the last), a
whole chain under the memory limit E costs at least

    t + V_w(l, option) + w (H - E)

V_w is the least sum of t + R + w (f + ms) over the layers before l, up to that option of l, where t is a layer's time, R the
cost of a link, f the memory that a layer keeps and ms its model states (see `chain`), since every layer adds at least f + ms to
the peak H. Prices lie around the one that maximises the bound of the whole chain; where a second time is capped (see `Cap`),
each price comes with several multipliers of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.chain.chain import Floats, Indices, Link, MemoryChain, cheapest_paths, connected, sums_before

PRICE_FACTORS = (1.0, 0.95, 1.05, 0.85, 1.15, 0.65, 1.4, 0.4, 2.0)
CAPPED_FACTORS = (1.0, 0.5, 2.0, 0.0)
MOST_CUTS = 128
FEWER = 0.9  # labels are put together anew when no more than that share is left


@dataclass(frozen=True)
class Cap:
    """A limit on a second time of each choice (the "capped" time): limit_ns is the largest allowed sum of the options' times in
    `chain`, another chain with the same layers and options.

    multipliers: Lagrange multipliers for the completion bounds: how many ns of the main time one ns of the second time is
    worth; the most promising first."""

    limit_ns: int
    chain: MemoryChain
    multipliers: tuple[float, ...] = (0.0,)


def possible(chain: MemoryChain) -> list[Indices]:
    """Find the options of each layer that a choice (one option per layer) within the memory limit may use, by a quick test that
    never excludes a usable option: for each layer, the indices of the options that remain. chain: the layers and their options.

    The test assumes that every other layer takes as little memory as it can: during its own backward pass a layer meets the
    least that earlier layers keep, and the least model states of all others."""
    after, masks = np.zeros(1, np.int64), []
    for l in range(chain.layers - 1, -1, -1):
        states = chain.state_bytes[l]
        peak = chain.forward_bytes[l] + states + chain.backward_bytes[l] + chain.least.added[l] + after
        masks.append(peak <= chain.memory_bytes)
        if l:
            after = chain.links[l - 1].turned.reach(states + after)
    return connected(chain, masks[::-1])


class Completion:
    """Lower bounds (Lagrangian bounds) on the time of whole choices, for the label-setting search, which builds a choice (one
    option per layer) from the last layer to the first. A label is a partial choice: options for some layer l and all later
    layers. A bound completes a label by the cheapest options of the layers before l, with each byte of memory priced instead of
    limited.

    prices: (prices,), ns per byte; multipliers: (prices,), for each price the worth in ns of one ns of the capped time (see
    `Cap`; 0 without a cap). sums: for every layer, (prices, options), the least priced cost of the layers before it, up to each
    of its options. bound: a lower bound in ns on all choices of the whole chain. slack: (prices,), the ns by which the bounds
    are lowered to allow for rounding errors."""

    def __init__(
        self,
        chain: MemoryChain,
        cap: Cap | None,
        prices: Floats | None = None,
        check_time: Callable[[], None] = lambda: None,
    ) -> None:
        """Compute the bounds. cap: a limit on a second time, or None. prices: the prices of a byte, in nanoseconds (default:
        around the best one, for each multiplier of the cap). check_time: called often; an exception that it raises is passed
        on."""
        self._check_time = check_time
        self.chain, self.cap = chain, cap
        self.added = [f + ms for f, ms in zip(chain.forward_bytes, chain.state_bytes, strict=True)]
        self.kinds = [np.zeros(chain.options[0], np.int64), *(link.kinds for link in chain.links)]
        if cap is not None:
            self.kinds[1:] = map(cache(Link.joined), chain.links, cap.chain.links)  # equal layers share their links
        if prices is None:
            factors = np.array(PRICE_FACTORS if cap is None else CAPPED_FACTORS)
            multipliers = cap.multipliers if cap else (0.0,)
            self.prices = np.concatenate([self._best_price(multiplier) * factors for multiplier in multipliers])
            self.multipliers = np.repeat(multipliers, len(factors))
        else:
            self.prices, self.multipliers = prices, np.zeros(len(prices))
        self.links, self.values = self._priced(self.prices, self.multipliers)
        self.sums = sums_before(self.links, self.values)
        bounds = self._whole(self.sums[-1] + self.values[-1], self.prices, self.multipliers)
        self.least_capped = self._least_capped()
        # Every float sum in a bound, and every integer turned into one, stays below this: the bounds are lowered by a
        # generous multiple of its rounding error.
        time = sum(int(c.max()) for c in chain.time_ns) + sum(link.most for link in chain.links)
        memory = abs(chain.memory_bytes) + sum(int(np.abs(a).max()) for a in (*self.added, chain.backward_bytes[-1]))
        magnitude = time + self.prices * memory + self.multipliers * (self._largest_capped() if cap else 0)
        self.slack = 8 * (chain.layers + 4) * np.finfo(np.float64).eps * magnitude
        self.bound = int(np.ceil((bounds - self.slack).max()))

    def _largest_capped(self) -> int:
        """An upper bound in ns on every capped time that may occur in a bound; it limits the rounding error of float sums.
        Needs a cap."""
        assert self.cap is not None
        chain = self.cap.chain
        return self.cap.limit_ns + sum(int(a.max()) for a in chain.time_ns) + sum(link.most for link in chain.links)

    def _best_price(self, multiplier: float) -> float:
        """The price of a byte, in ns, that maximises the Lagrangian bound of the whole chain (a concave function of the price),
        by narrowing a geometric grid. multiplier: the worth in ns of one ns of the capped time."""
        spread = max(int(c.max()) for c in self.chain.time_ns) + 1.0
        spread += max((link.most for link in self.chain.links), default=0)
        if self.cap:
            spread *= 1 + multiplier
        low, high = 1e-9 * spread / max(1, self.chain.memory_bytes), spread
        for _ in range(5):
            grid = np.geomspace(low, high, 12)
            same = np.full(12, multiplier)
            self._check_time()
            links, values = self._priced(grid, same)
            index = int(self._whole(sums_before(links, values)[-1] + values[-1], grid, same).argmax())
            low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
        return float(grid[index])

    def _priced(self, prices: Floats, multipliers: Floats) -> tuple[Sequence[Link], list[Floats]]:
        """The chain's links and layer costs, with memory and the capped time priced in.

        prices: (prices,), ns per byte. multipliers: (prices,), ns per ns of the capped time. Returns the links between layers,
        whose cost tables may gain a first axis of prices, and for each layer the costs (prices, options): time plus price times
        the memory that the option keeps and its model states. The last layer also pays for its backward pass, which meets all
        that the others keep.
        """
        chain, links = self.chain, self.chain.links
        rates = prices[:, None]
        values: list[Floats] = [
            np.asarray(time + rates * added, np.float64) for time, added in zip(chain.time_ns, self.added, strict=True)
        ]
        values[-1] = values[-1] + rates * chain.backward_bytes[-1]
        if self.cap is not None:
            capped = self.cap.chain
            links = tuple(link.weighed(other, multipliers) for link, other in zip(links, capped.links, strict=True))
            values = [value + multipliers[:, None] * time for value, time in zip(values, capped.time_ns, strict=True)]
        return links, values

    def _whole(self, through: Floats, prices: Floats, multipliers: Floats) -> Floats:
        """The lower bound in ns on all choices of the whole chain, for each price: (prices,). through: (prices, options of the
        last layer), the least priced cost of choices that end with each of these options. prices: (prices,), ns per byte.
        multipliers: (prices,), the worth in ns of one ns of the capped time."""
        bounds: Floats = through.min(axis=1) - prices * self.chain.memory_bytes
        return bounds if self.cap is None else bounds - multipliers * self.cap.limit_ns

    def _least_capped(self) -> list[Integers]:
        """The least capped time in ns that the layers before a layer can take: for each layer a vector (options,), by the
        option that the layer itself has; an empty list without a cap."""
        return sums_before(self.cap.chain.links, self.cap.chain.time_ns) if self.cap else []

    def best_mixed_path(self) -> Integers | None:
        """The fastest choice that fits the memory (and the cap) among choices that minimise time plus priced memory at one
        price of a byte up to some layer, and at a neighbouring price of the grid from that layer on: (layers,), indices of
        options; None if none fits.

        At one price equal layers all choose alike; a mix of two prices can use memory that a single price leaves free."""
        choices = cheapest_paths(self.links, self.values, self.sums)
        paths = np.unique(choices[np.argsort(self.prices)], axis=0)
        layers = self.chain.layers
        cuts = np.unique(np.linspace(0, layers, min(layers, MOST_CUTS) + 1).astype(np.int64))
        head = np.arange(layers) < cuts[:, None]
        mixes = [paths]
        for a, b in pairwise(paths):
            mixes += [np.where(head, a, b), np.where(head, b, a)]
        choices = np.concatenate(mixes)
        choices = choices[self.chain.allows(choices)]
        times, fitting = self.chain.times(choices), self.chain.peaks(choices) <= self.chain.memory_bytes
        if self.cap is not None:
            fitting &= self.cap.chain.times(choices) <= self.cap.limit_ns
        fits = np.flatnonzero(fitting)
        return choices[fits[times[fits].argmin()]] if fits.size else None

    def bounded(self, l: int, t: Integers, u: Integers, h: Integers, option: Indices, limit: float) -> tuple[Indices, Floats]:
        """Keep only the labels (choices for layer l and all later layers) whose lower bound as a whole choice is at most
        `limit` ns.

        l: the layer of the labels' first option. t, u, h, option: (labels,), each label's time and capped time in ns, its peak
        in bytes, and its option of layer l. Prices are tried in turn, the best first; each drops labels. Returns the indices of
        the labels that stay, and their bounds in ns."""
        keep, bound = np.arange(len(t)), np.full(len(t), -np.inf)
        time, over = t.astype(np.float64), (h - self.chain.memory_bytes).astype(np.float64)
        capped = None if self.cap is None else (u - self.cap.limit_ns).astype(np.float64)
        for price, multiplier, slack, sums in zip(self.prices, self.multipliers, self.slack, self.sums[l], strict=True):
            value = price * over
            value += time
            value += (sums - slack)[option]
            if capped is not None:
                value += multiplier * capped
            np.maximum(bound, value, out=bound)
            inside = bound <= limit
            if (count := np.count_nonzero(inside)) < FEWER * len(keep):
                keep, bound, option = keep[inside], bound[inside], option[inside]
                time, over = time[inside], over[inside]
                capped = None if capped is None else capped[inside]
            if not count:
                break
        inside = bound <= limit
        return keep[inside], bound[inside]
