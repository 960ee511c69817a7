"""Exact label-setting for layer-strategies: dynamic programming with dominance, on whole bytes and nanoseconds.

Labels run from the last layer to the first. A label of the layers l.. is (t, H, M): their time, the peak of Eq. 2 over them
with everything in them resident, and their model states. Adding a layer with (c, f, b, ms) and re-layout R gives

    t' = t + R + c        M' = M + ms        H' = ms + f + max(b + M, H).

Why it is exact and small:

1. Feasibility: every earlier layer adds at least min(f + ms) to H, so H plus those minima must stay within E; and M comes on
   top of the least peak that the earlier layers have of themselves. Options that fit with no others go beforehand.
2. Dominance: among labels that later meet the same re-layout costs, one with smaller or equal t, H and M is as good. M may be
   raised to H - max b of the earlier layers, where it can no longer matter: then M follows from H and labels are plane.
3. Completion bound: for any price w >= 0 of a byte, an earlier layer costs at least c + R + w (f + ms), so the whole costs at
   least t + V_w(l, option) + w (H - E), with V_w the cheapest chain of earlier layers. A label whose bound does not beat the
   incumbent goes. Prices lie around the one that maximises the bound of the whole.
4. Cap (on request): a second time u of options and re-layouts, whose sum stays within a limit. It is one more entry of a label,
   of dominance, and, at multipliers of its own, of the completion bound.
5. Beam: each sweep keeps the labels of best bound, up to a width; what it drops has a bound too, so every sweep gives both
   an incumbent and a proven bound. A sweep that drops nothing proves optimality; else the next one is wider.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Instance, Integers, evaluate
from trainplan.solvers.least_memory import least_memory
from trainplan.solvers.search import Outcome, Search

Floats = NDArray[np.float64]
WIDTHS = (400, 5_000, 60_000, 600_000, 5_000_000)
PRICE_FACTORS = (1.0, 0.85, 1.15, 0.65, 1.4, 0.4, 2.0, 0.15, 5.0, 0.0)
CAPPED_FACTORS = (1.0, 0.5, 2.0, 0.0)
BLOCK = 2_000_000
MOST_CUTS = 128


@dataclass(frozen=True)
class Cap:
    """sum_l u(l, s_l) + sum_l r(l, s_l, s_{l+1}) <= limit_ns, with u and r in the shapes of the instance's own times.

    multipliers: nanoseconds of time that one of u is worth in the completion bounds, the most promising first."""

    limit_ns: int
    time_ns: tuple[Integers, ...]
    transitions_ns: tuple[Integers, ...]
    multipliers: tuple[float, ...] = (0.0,)


@dataclass
class Labels:
    """Labels of one layer in parallel arrays: time, capped time, peak, states, the layer's option, the label that follows."""

    t: Integers
    u: Integers
    h: Integers
    m: Integers
    option: Integers
    parent: Integers

    def __len__(self) -> int:
        return len(self.t)

    def take(self, keep: NDArray[np.intp] | NDArray[np.bool_]) -> Labels:
        return Labels(self.t[keep], self.u[keep], self.h[keep], self.m[keep], self.option[keep], self.parent[keep])


def label_setting(instance: Instance, search: Search, cap: Cap | None = None) -> Outcome:
    """Optimal choice with proof, or the best one and its bound where time runs out. Option: none.

    With a cap, `search` must know a solution that keeps it: without one nothing is cut.
    """
    if cap is None:
        time, choice = _fastest(instance)
        search.report(bound=time)
        if evaluate(instance, choice).peak_bytes <= instance.memory_bytes:
            search.report(choice)
            return Outcome(bound=time, bound_source="fastest choice without a memory limit")
    least, choice = least_memory(instance)
    if least > instance.memory_bytes:
        return Outcome(infeasible=True, bound_source="least memory over all choices")
    search.report(choice)
    kept = _possible(instance)
    problem = _Prepared(_restricted(instance, kept), _restricted_cap(cap, kept))
    search.report(bound=problem.bound)
    if (path := problem.best_mixed_path()) is not None:
        search.report([int(options[s]) for options, s in zip(kept, path, strict=True)])
    statistics = {"labels": 0, "sweeps": 0}
    for width in WIDTHS:
        assert search.objective is not None
        if search.bound is not None and search.bound > _target(search):
            break
        finished = _sweep(problem, kept, search, width, statistics)
        statistics["sweeps"] += 1
        if not finished or search.out_of_time():
            break
    return Outcome(bound=search.bound, bound_source="completion bounds of label-setting", statistics=statistics)


def _fastest(instance: Instance) -> tuple[int, tuple[int, ...]]:
    """The fastest choice of all, whatever memory it needs: a shortest path."""
    reach, origins = instance.time_ns[0], []
    for time, table in zip(instance.time_ns[1:], instance.transitions_ns, strict=True):
        through = reach[:, None] + table
        origins.append(through.argmin(axis=0))
        reach = through.min(axis=0) + time
    choice = [int(reach.argmin())]
    for origin in reversed(origins):
        choice.append(int(origin[choice[-1]]))
    return int(reach.min()), tuple(reversed(choice))


def _target(search: Search) -> int:
    """The largest objective that is still worth finding: below the incumbent by one, or by the gap asked for; and at most the
    option `worth_ns`, where a caller gives it."""
    assert search.objective is not None
    target = search.objective - max(1, int(search.objective * search.gap))
    return min(target, search.options.get("worth_ns", target))


def _possible(instance: Instance) -> list[NDArray[np.intp]]:
    """Options of each layer that fit at least when every other layer takes as little memory as it can.

    During its own backward pass a layer meets what earlier layers keep at least and all others' least model states.
    """
    added = [int((f + ms).min()) for f, ms in zip(instance.forward_bytes, instance.state_bytes, strict=True)]
    states = [int(ms.min()) for ms in instance.state_bytes]
    kept, before, after = [], 0, sum(states)
    for l in range(instance.layers):
        after -= states[l]
        peak = instance.forward_bytes[l] + instance.state_bytes[l] + instance.backward_bytes[l] + before + after
        kept.append(np.flatnonzero(peak <= instance.memory_bytes))
        before += added[l]
    return kept


def _restricted(instance: Instance, kept: list[NDArray[np.intp]]) -> Instance:
    """The instance with only the options kept."""
    if all(len(options) == count for options, count in zip(kept, instance.options, strict=True)):
        return instance
    columns: dict[str, Any] = {
        name: tuple(column[options] for column, options in zip(getattr(instance, name), kept, strict=True))
        for name in ("time_ns", "forward_bytes", "backward_bytes", "state_bytes")
    }
    tables = tuple(table[np.ix_(kept[l], kept[l + 1])] for l, table in enumerate(instance.transitions_ns))
    names = tuple(tuple(layer[s] for s in options) for layer, options in zip(instance.strategies, kept, strict=True))
    return replace(instance, **columns, transitions_ns=tables, strategies=names)


def _restricted_cap(cap: Cap | None, kept: list[NDArray[np.intp]]) -> Cap | None:
    if cap is None:
        return None
    times = tuple(column[options] for column, options in zip(cap.time_ns, kept, strict=True))
    tables = tuple(table[np.ix_(kept[l], kept[l + 1])] for l, table in enumerate(cap.transitions_ns))
    return replace(cap, time_ns=times, transitions_ns=tables)


class _Prepared:
    """Everything that sweeps share: minima, prices (with multipliers of the cap) and the chain costs V of each."""

    def __init__(self, instance: Instance, cap: Cap | None) -> None:
        self.instance, self.cap = instance, cap
        self.added = [f + ms for f, ms in zip(instance.forward_bytes, instance.state_bytes, strict=True)]
        self.least_before = np.concatenate(([0], np.cumsum([int(a.min()) for a in self.added])))
        self.backward_before = np.concatenate(([0], np.maximum.accumulate([int(b.max()) for b in instance.backward_bytes])))
        self.peak_before = _least_peaks(instance)
        self.classes = _classes(instance, cap)
        prices, multipliers = [], []
        for multiplier in cap.multipliers if cap else (0.0,):
            best = self._best_price(multiplier)
            factors = PRICE_FACTORS if cap is None else CAPPED_FACTORS
            prices += [best * factor for factor in factors]
            multipliers += [multiplier] * len(factors)
        self.prices, self.multipliers = np.array(prices), np.array(multipliers)
        self.chains = self._chains(self.prices, self.multipliers)
        bounds = self._whole(self.chains, self.prices, self.multipliers)
        self.least_capped = self._least_capped()
        # Every float sum in a bound, and every integer turned into one, stays below this: the bounds are lowered by a
        # generous multiple of its rounding error.
        time = sum(int(c.max()) for c in instance.time_ns) + sum(int(table.max()) for table in instance.transitions_ns)
        memory = instance.memory_bytes + sum(int(a.max()) for a in self.added)
        magnitude = time + self.prices * memory + self.multipliers * (sum(map(int, self._largest_capped())) if cap else 0)
        self.slack = 8 * (instance.layers + 4) * np.finfo(np.float64).eps * magnitude
        self.bound = int(np.ceil((bounds - self.slack).max()))

    def _largest_capped(self) -> list[int]:
        assert self.cap is not None
        return [self.cap.limit_ns, *(int(a.max()) for a in (*self.cap.time_ns, *self.cap.transitions_ns))]

    def _best_price(self, multiplier: float) -> float:
        """The price of a byte that maximises the Lagrangian bound (a concave function), by narrowing a geometric grid."""
        spread = max(int(c.max()) for c in self.instance.time_ns) + 1.0
        moves = [int(table.max()) for table in self.instance.transitions_ns]
        spread += max(moves, default=0)
        if self.cap:
            spread *= 1 + multiplier
        low, high = 1e-9 * spread / max(1, self.instance.memory_bytes), spread
        for _ in range(5):
            grid = np.geomspace(low, high, 12)
            same = np.full(12, multiplier)
            values = self._whole(self._chains(grid, same), grid, same)
            place = int(values.argmax())
            low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
        return float(grid[place])

    def _cost(self, l: int, prices: Floats, multipliers: Floats) -> Floats:
        """Of layer l's options at each price: (prices, options)."""
        cost: Floats = np.asarray(self.instance.time_ns[l] + prices[:, None] * self.added[l], np.float64)
        return cost if self.cap is None else cost + multipliers[:, None] * self.cap.time_ns[l]

    def _chains(self, prices: Floats, multipliers: Floats) -> list[Floats]:
        """V[l][w, s]: least cost c + R + w (f + ms) of the layers before l, up to option s of l (its re-layout included)."""
        instance = self.instance
        chain: Floats = np.zeros((len(prices), instance.options[0]))
        chains = [chain]
        for l, table in enumerate(instance.transitions_ns):
            moves: Floats | Integers = table
            if self.cap is not None:
                moves = table + multipliers[:, None, None] * self.cap.transitions_ns[l]
            chain = ((chain + self._cost(l, prices, multipliers))[:, :, None] + moves).min(axis=1)
            chains.append(chain)
        return chains

    def _whole(self, chains: list[Floats], prices: Floats, multipliers: Floats) -> Floats:
        last = self.instance.layers - 1
        through = (chains[last] + self._cost(last, prices, multipliers)).min(axis=1) - prices * self.instance.memory_bytes
        return through if self.cap is None else through - multipliers * self.cap.limit_ns

    def _least_capped(self) -> list[Integers]:
        """For each l, the least capped time of the layers before l up to each option of l."""
        chains = [np.zeros(self.instance.options[0], np.int64)]
        for l in range(self.instance.layers - 1 if self.cap else 0):
            assert self.cap is not None
            chains.append(((chains[-1] + self.cap.time_ns[l])[:, None] + self.cap.transitions_ns[l]).min(axis=0))
        return chains

    def best_mixed_path(self) -> Integers | None:
        """The best choice that fits of those that follow one price's cheapest path up to some layer, and another's from there.

        At one price equal layers all choose alike; a mix of two neighbouring prices uses the memory that is left.
        """
        paths = np.unique(self._cheapest_paths()[np.argsort(self.prices)], axis=0)
        layers = self.instance.layers
        cuts = np.unique(np.linspace(0, layers, min(layers, MOST_CUTS) + 1).astype(np.int64))
        head = np.arange(layers) < cuts[:, None]
        mixes = [paths]
        for a, b in pairwise(paths):
            mixes += [np.where(head, a, b), np.where(head, b, a)]
        choices = np.concatenate(mixes)
        times, peaks = _evaluate_all(self.instance, choices)
        possible = peaks <= self.instance.memory_bytes
        if self.cap is not None:
            possible &= _total(self.cap.time_ns, self.cap.transitions_ns, choices) <= self.cap.limit_ns
        fits = np.flatnonzero(possible)
        return choices[fits[times[fits].argmin()]] if fits.size else None

    def _cheapest_paths(self) -> Integers:
        """The choice that is cheapest at each price: (prices, layers)."""
        instance, last = self.instance, self.instance.layers - 1
        prices, multipliers = self.prices, self.multipliers
        option = (self.chains[last] + self._cost(last, prices, multipliers)).argmin(axis=1)
        steps = [option]
        for l in range(last - 1, -1, -1):
            moves = instance.transitions_ns[l].T[option]
            if self.cap is not None:
                moves = moves + multipliers[:, None] * self.cap.transitions_ns[l].T[option]
            option = (self.chains[l] + self._cost(l, prices, multipliers) + moves).argmin(axis=1)
            steps.append(option)
        return np.stack(steps[::-1], axis=1)

    def labels_bound(self, l: int, labels: Labels, limit: float) -> tuple[NDArray[np.intp], Floats]:
        """Places of the labels whose bound is at most `limit`, and their bounds. Prices are tried in turn, the best first."""
        keep = np.arange(len(labels))
        bound = np.full(len(labels), -np.inf)
        for price, multiplier, slack, chain in zip(self.prices, self.multipliers, self.slack, self.chains[l], strict=True):
            value = labels.t[keep] + chain[labels.option[keep]] + price * (labels.h[keep] - self.instance.memory_bytes)
            if self.cap is not None:
                value += multiplier * (labels.u[keep] - self.cap.limit_ns)
            bound = np.maximum(bound, value - slack)
            inside = bound <= limit
            keep, bound = keep[inside], bound[inside]
        return keep, bound


def _evaluate_all(instance: Instance, choices: Integers) -> tuple[Integers, Integers]:
    """Times and peaks of many choices at once, (choices, layers)."""
    times = _total(instance.time_ns, instance.transitions_ns, choices)
    columns = {}
    for name in ("forward_bytes", "backward_bytes", "state_bytes"):
        columns[name] = np.stack([column[choices[:, l]] for l, column in enumerate(getattr(instance, name))], axis=1)
    peaks = (np.cumsum(columns["forward_bytes"], axis=1) + columns["backward_bytes"]).max(axis=1)
    return times, peaks + columns["state_bytes"].sum(axis=1)


def _total(columns: tuple[Integers, ...], tables: tuple[Integers, ...], choices: Integers) -> Integers:
    """Sum over layers and over the boundaries between them, of many choices at once."""
    total = np.zeros(len(choices), np.int64)
    for l, column in enumerate(columns):
        total += column[choices[:, l]]
    for l, table in enumerate(tables):
        total += table[choices[:, l], choices[:, l + 1]]
    return total


def _least_peaks(instance: Instance) -> Integers:
    """For each l, a lower bound on the peak of the layers before l; it comes on top of the model states that follow."""
    bounds, kept, peak = [0], 0, 0
    for f, b, ms in zip(instance.forward_bytes, instance.backward_bytes, instance.state_bytes, strict=True):
        peak = max(peak + int(ms.min()), kept + int((f + ms + b).min()))
        kept += int((f + ms).min())
        bounds.append(peak)
    return np.array(bounds, np.int64)


def _classes(instance: Instance, cap: Cap | None) -> list[Integers]:
    """Class of each option of each layer: options that meet equal re-layout costs from every earlier option share one."""
    found, known = [np.zeros(instance.options[0], np.int64)], dict[tuple[int, int], Integers]()
    for l, table in enumerate(instance.transitions_ns):
        capped = table if cap is None else cap.transitions_ns[l]
        key = (id(table), id(capped))  # equal layers share their tables
        if key not in known:
            both = np.concatenate((table, capped))
            known[key] = np.unique(both, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        found.append(known[key])
    return found


def _sweep(problem: _Prepared, kept: list[NDArray[np.intp]], search: Search, width: int, statistics: dict[str, int]) -> bool:
    """One pass over the layers. Reports a better choice and the bound it proves. False where time ran out."""
    instance = problem.instance
    target = _target(search)
    dropped = np.inf
    empty = np.zeros(1, np.int64)
    labels = Labels(empty, empty, empty, empty, empty, empty)
    trail: list[Labels] = []
    for l in range(instance.layers - 1, -1, -1):
        parts = []
        options = instance.options[l]
        for start in range(0, len(labels), max(1, BLOCK // options)):
            if search.out_of_time():
                return False
            parts.append(_extended(problem, l, labels, slice(start, start + max(1, BLOCK // options)), target))
        bounds = np.concatenate([bound for _, bound in parts])
        merged = _joined([part for part, _ in parts])
        statistics["labels"] += len(merged)
        keep = _undominated(problem, l, merged)
        merged, bounds = merged.take(keep), bounds[keep]
        if len(merged) > width:
            order = np.lexsort((merged.h, bounds))
            dropped = min(dropped, float(bounds[order[width]]))
            merged = merged.take(order[:width])
        labels = merged
        trail.append(labels)
        if not len(labels):
            break
    if len(labels):
        place, choice = int(labels.t.argmin()), []
        for step in reversed(trail):
            choice.append(int(step.option[place]))
            place = int(step.parent[place])
        assert evaluate(instance, choice).time_ns == int(labels.t.min())
        search.report([int(options[s]) for options, s in zip(kept, choice, strict=True)])
    # Whatever was cut is above the target or has the bound of the best label dropped.
    assert search.objective is not None
    proven = min(search.objective, target + 1)
    search.report(bound=proven if dropped == np.inf else min(proven, int(np.ceil(dropped))))
    return True


def _extended(problem: _Prepared, l: int, labels: Labels, block: slice, target: int) -> tuple[Labels, Floats]:
    """Labels of layer l from a block of those of layer l + 1, without those that cannot fit or cannot be better."""
    instance = problem.instance
    f, b, ms = instance.forward_bytes[l][:, None], instance.backward_bytes[l][:, None], instance.state_bytes[l][:, None]
    after = labels.take(np.arange(len(labels))[block])
    peak = ms + f + np.maximum(b + after.m, after.h)
    total = ms + after.m
    fits = (peak <= instance.memory_bytes - problem.least_before[l]) & (total <= instance.memory_bytes - problem.peak_before[l])
    option, parent = np.nonzero(fits)
    time = after.t[parent] + instance.time_ns[l][option]
    if l + 1 < instance.layers:
        time += instance.transitions_ns[l][option, after.option[parent]]
    u = np.zeros(len(time), np.int64) if problem.cap is None else _capped(problem, problem.cap, l, after, option, parent)
    h = peak[option, parent]
    m = np.maximum(instance.state_bytes[l][option] + after.m[parent], h - problem.backward_before[l])
    found = Labels(time, u, h, m, option, parent + (block.start or 0))
    if problem.cap is not None:
        found = found.take(u + problem.least_capped[l][option] <= problem.cap.limit_ns)
    # The next float up, so that a target that no float equals cuts nothing that reaches it.
    keep, bound = problem.labels_bound(l, found, float(np.nextafter(target, np.inf)))
    return found.take(keep), bound


def _capped(
    problem: _Prepared, cap: Cap, l: int, after: Labels, option: NDArray[np.intp], parent: NDArray[np.intp]
) -> Integers:
    """Capped time of labels of layer l."""
    u: Integers = after.u[parent] + cap.time_ns[l][option]
    if l + 1 < problem.instance.layers:
        u += cap.transitions_ns[l][option, after.option[parent]]
    return u


def _joined(parts: list[Labels]) -> Labels:
    if len(parts) == 1:
        return parts[0]
    return Labels(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("t", "u", "h", "m", "option", "parent"))
    )


def _undominated(problem: _Prepared, l: int, labels: Labels) -> NDArray[np.intp]:
    """Places of labels that no other label of their class beats or equals in time, capped time, peak and states."""
    if not len(labels):
        return np.zeros(0, np.intp)
    kind = problem.classes[l][labels.option]
    order = np.lexsort((labels.m, labels.h, labels.u, labels.t, kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
    kept = []
    plane = bool((labels.m == labels.h - problem.backward_before[l]).all())
    # Entries that may differ beside time; where peaks and states go together, the peak stands for both.
    entries = [labels.h] if plane else [labels.h, labels.m]
    entries += [labels.u] if problem.cap is not None else []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        group = order[start:end]
        if len(entries) == 1:
            h = labels.h[group]
            first = np.ones(len(h), bool)
            first[1:] = h[1:] < np.minimum.accumulate(h)[:-1]
            kept.append(group[first])
        else:
            kept.append(group[_staircase(np.stack([entry[group] for entry in entries]))])
    return np.concatenate(kept)


def _staircase(entries: Integers, block: int = 256) -> NDArray[np.intp]:
    """Of points sorted by time, (entries, points), those with no earlier point at most as high in every entry."""
    kept, places_kept = np.zeros((len(entries), 0), np.int64), []
    for start in range(0, entries.shape[1], block):
        points = entries[:, start : start + block]
        places = np.flatnonzero(~_below(kept, points).any(axis=1))
        points = points[:, places]
        within = np.tril(_below(points, points), -1).any(axis=1)
        places_kept.append(places[~within] + start)
        kept = np.concatenate((kept, points[:, ~within]), axis=1)
    return np.concatenate(places_kept) if places_kept else np.zeros(0, np.intp)


def _below(a: Integers, b: Integers) -> NDArray[np.bool_]:
    """[j, i]: whether point i of `a` is at most as high as point j of `b` in every entry."""
    found = a[0] <= b[0][:, None]
    for x, y in zip(a[1:], b[1:], strict=True):
        found &= x <= y[:, None]
    return found
