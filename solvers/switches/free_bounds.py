"""A bound for steps whose segments need not be synchronised: a chain of segments that are easier on them.

Between segments stand the moments x of `free_segments`, with x'_b >= x_a + path_ab. For weights w of the moments before a
segment and w' of those after it, each adding up to 1, and any pi >= 0 whose rows add up to w and whose columns to w',

    w' x'  =  sum_ab pi_ab x'_b  >=  w x + sum_ab pi_ab path_ab

so that a segment costs at least the most that such a pi gives. Summed over the segments, that bounds the moment at which all
lanes are done, for any weights between them. The optimizer comes after it, and takes for every k at least

    sum_{i<=k} optimizer_i + sum_{i>=k, not lazy} copy_i          (steps up to that of k, from there on the copies of shards)

and any mean of these. Segment by segment these are costs of layer i's option, of r of the layer before and of lazy_prefetch
of the one after, as where segments are synchronised; with the bytes that are certain, the least cost that fits is found by the
same label-setting. Weights count in whole shares, so all numbers are whole.

The bound is concave in the weights. They are moved where it rises: all between forward segments and all between backward ones
alike first, by falling steps; then each by itself, towards the longest path of the choice that attains the bound (fictitious
play: a mean of longest paths). While they move, a Lagrangian bound stands for label-setting; each choice met is a candidate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.columns import undominated
from trainplan.formulations.memory_switches.problem import Instance
from trainplan.formulations.memory_switches.segments import Segments
from trainplan.solvers.chain.bounds import Completion, possible
from trainplan.solvers.chain.chain import Chain
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.core.search import Search
from trainplan.solvers.switches.exact import chain_of_columns
from trainplan.solvers.switches.free_segments import FreeSegments, free_segments

SHARES = 64
STEPS = (32, 16, 8, 4)
ROUNDS = 20  # of fictitious play
PULL, SETTLED = 0.3, 3  # a round's longest path counts PULL / (SETTLED + round) in the mean
LOOKS, LAYERS = 100, 48  # Lagrangian bounds where there is no time limit; fewer in proportion for more layers
FINEST = 1e-5  # gap of label-setting, relative, where none is asked for
LONGEST_SECONDS = 30.0  # of one label-setting; what it proves until then counts
SOURCE = "chain of unsynchronised segments, solved by label-setting"

Floats = NDArray[np.float64]
Candidate = Callable[[Sequence[int]], None]


class NothingFits(Exception):
    """Not even what is certain of every choice fits into the memory."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Shares of the moments before, between and after all segments, (2 N + 1, L); steps: of the optimizer's steps after the
    first one and before the last copy, as opposed to copies."""

    moments: Integers
    steps: int = SHARES


Bound = Callable[[Weights], tuple[int, list[int] | None]]


class Relaxation:
    """The chain of an instance, for any weights."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.segments: FreeSegments = free_segments(instance)
        self.moments = self.segments.lag_ns.shape[1]

    def chain(self, weights: Weights) -> tuple[Chain, list[Integers], int]:
        """The chain in SHARES-ths of a nanosecond, the options that its places stand for, and the time it leaves out.

        Raises NothingFits."""
        own, instance, count, w = self.segments, self.instance, self.instance.layers, weights.moments
        time = carried(own.forward_ns, w[:count], w[1 : count + 1])[:, None]
        time = time + carried(own.backward_ns[::-1], w[count:-1], w[count + 1 :])[::-1][..., None]
        steps = np.full(count + 1, weights.steps)
        steps[0], steps[count] = SHARES, 0
        copies = instance["prefetch_parameter_ns"][:, None] * (own.lazy == 0) * (SHARES - steps[1:, None])
        time += ((instance["optimizer_ns"] * steps[:count])[:, None] + copies)[:, None, :, None]
        least = time.reshape(count, -1).min(axis=1)
        time -= least[:, None, None, None]  # a cost may be negative, which label-setting does not expect
        numbers = (own.peak_bytes, own.delta_bytes, own.resident_bytes, own.r, own.lazy)
        columns = undominated(Segments(own.options, time, *numbers))
        chain = chain_of_columns(columns, instance.memory_bytes)
        kept = possible(chain)
        if not all(map(len, kept)):
            raise NothingFits
        options = [column.option[places] for column, places in zip(columns, kept, strict=True)]
        return chain.restricted(kept), options, sum(least.tolist())

    def lagrangian(self, weights: Weights) -> tuple[int, list[int] | None]:
        """A bound in SHARES-ths of a nanosecond, and the options of a choice near it that fits into what is certain."""
        chain, options, least = self.chain(weights)
        completion = Completion(chain, None)
        path = completion.best_mixed_path()
        return completion.bound + least, None if path is None else _named(options, path)

    def exact(self, weights: Weights, gap: float, seconds: float) -> tuple[int, list[int]]:
        """The same by label-setting. Raises NothingFits."""
        chain, options, least = self.chain(weights)

        def objective(choice: Sequence[int]) -> int | None:
            taken = np.array([choice])
            return int(chain.times(taken)[0]) if int(chain.peaks(taken)[0]) <= chain.memory_bytes else None

        inner = Search(objective, seconds, gap=gap)
        outcome = label_setting(chain, inner)
        if outcome.infeasible:
            raise NothingFits
        assert outcome.bound is not None
        return outcome.bound + least, _named(options, inner.best)

    def longest(self, options: Sequence[int]) -> Integers:
        """(2 N + 1,): the moments on the longest path of a choice."""
        own, count = self.segments, self.instance.layers
        r, lazy = own.r[list(options)], own.lazy[list(options)]
        tables = [own.forward_ns[i, :, :, options[i], lazy[i + 1] if i + 1 < count else 0] for i in range(count)]
        tables += [own.backward_ns[i, :, :, r[i - 1] if i else 0, options[i]] for i in reversed(range(count))]
        reach, origins = np.zeros(self.moments, np.int64), []
        for table in tables:
            through = reach[:, None] + table
            origins.append(through.argmax(axis=0))
            reach = through.max(axis=0)
        path = [int(reach.argmax())]
        for origin in reversed(origins):
            path.append(int(origin[path[-1]]))
        return np.array(path[::-1])

    def alike(self, shares: Sequence[Integers], steps: int = SHARES) -> Weights:
        """Weights that are equal throughout the forward pass, and throughout the backward pass."""
        (forward, backward), count = shares, self.instance.layers
        return Weights(np.concatenate((np.tile(forward, (count, 1)), np.tile(backward, (count + 1, 1)))), steps)

    def lanes(self) -> tuple[list[int], list[int]]:
        """Moments that may differ from each other, between forward and between backward segments."""
        count, lag = self.instance.layers, self.segments.lag_ns
        return _different(lag[1:count]), _different(lag[count:])


def carried(paths: Integers, before: Integers, after: Integers) -> Integers:
    """The most that any plan gives for each segment. paths: (K, L, L, ...); before, after: (K, L), in shares.

    A best plan is a vertex of the transport polytope, and all vertices come from filling it up from a corner, for some order
    of rows and columns (its support is a tree, of at most 6 nodes, and so a caterpillar)."""
    found = None
    for plan in _plans(before, after):
        value = np.einsum("kab,kab...->k...", plan, paths)
        found = value if found is None else np.maximum(found, value)
    assert found is not None
    return found


def _plans(before: Integers, after: Integers) -> Iterator[Integers]:
    count, moments = before.shape
    start = np.zeros((count, 1), np.int64)
    for rows in permutations(range(moments)):
        if rows[0] > rows[-1]:
            continue  # turned around, both orders give the same plan
        ends = np.concatenate((start, np.cumsum(before[:, rows], axis=1)), axis=1)
        for columns in permutations(range(moments)):
            others = np.concatenate((start, np.cumsum(after[:, columns], axis=1)), axis=1)
            high = np.minimum(ends[:, 1:, None], others[:, None, 1:])
            low = np.maximum(ends[:, :-1, None], others[:, None, :-1])
            plan = np.empty((count, moments, moments), np.int64)
            plan[:, np.array(rows)[:, None], np.array(columns)] = np.maximum(0, high - low)
            yield plan


def free_bound(relaxation: Relaxation, search: Search, seconds: float | None, candidate: Candidate) -> None:
    """Report bounds, in about so many seconds, and pass on the choices met. Raises NothingFits."""
    until = float("inf") if seconds is None else search.elapsed() + seconds
    looks = max(8, LOOKS * LAYERS // max(LAYERS, relaxation.instance.layers)) if seconds is None else sys.maxsize

    def over() -> bool:
        return search.elapsed() >= until or looks <= 0 or enough(search)

    def bound(weights: Weights) -> tuple[int, list[int] | None]:
        nonlocal looks
        looks -= 1
        found, options = relaxation.lagrangian(weights)
        search.report(bound=_whole(found))
        if options is not None:
            candidate(options)
        return found, options

    best, weights = _moved(relaxation, bound, over)
    for improve in (_played, None):
        left = min(LONGEST_SECONDS, until - search.elapsed())
        if left <= 0 or enough(search):
            return
        exact, options = relaxation.exact(weights, max(search.gap / 4, FINEST), left)
        candidate(options)
        search.report(bound=_whole(exact))
        if improve is not None:
            weights = improve(relaxation, best, weights, bound, over)


def enough(search: Search) -> bool:
    """Whether the bound is as good as asked for."""
    best, bound = search.objective, search.bound
    return best is not None and bound is not None and best - bound <= search.gap * best


def _whole(bound: int) -> int:
    return -(-bound // SHARES)


def _moved(relaxation: Relaxation, bound: Bound, over: Callable[[], bool]) -> tuple[int, Weights]:
    """The best weights found that are alike throughout a pass, and their bound."""
    passes = relaxation.lanes()
    shares = [np.zeros(relaxation.moments, np.int64) for _ in passes]
    for own, lanes in zip(shares, passes, strict=True):
        own[lanes] = SHARES // len(lanes)
        own[lanes[0]] += SHARES - own.sum()
    steps = SHARES
    best = bound(relaxation.alike(shares, steps))[0]
    copying = relaxation.instance["prefetch_parameter_ns"].max() > relaxation.instance["optimizer_ns"].min()

    def moves(size: int) -> Iterator[tuple[list[Integers], int]]:
        for number, lanes in enumerate(passes):
            for a, b in permutations(lanes, 2):
                if amount := min(size, int(shares[number][a])):
                    moved = [own.copy() for own in shares]
                    moved[number][[a, b]] += (-amount, amount)
                    yield moved, steps
        for other in (steps - size, steps + size) if copying else ():
            if 0 <= other <= SHARES:
                yield shares, other

    for size in STEPS:
        moved = True
        while moved and not over():
            moved = False
            for tried in moves(size):
                if over():
                    break
                if (value := bound(relaxation.alike(*tried))[0]) > best:
                    best, (shares, steps), moved = value, tried, True
    return best, relaxation.alike(shares, steps)


def _played(relaxation: Relaxation, best: int, weights: Weights, bound: Bound, over: Callable[[], bool]) -> Weights:
    """Better weights, each by itself."""
    mean: Floats = weights.moments / SHARES
    found, tried = weights, weights
    for number in range(ROUNDS):
        value, options = bound(tried)
        if value > best:
            best, found = value, tried
        if options is None or over():
            break
        pull = PULL / (SETTLED + number)
        mean = (1 - pull) * mean + pull * np.eye(relaxation.moments)[relaxation.longest(options)]
        tried = replace(weights, moments=_shares(mean))
    return found


def _shares(mean: Floats) -> Integers:
    """Whole shares nearest to weights that add up to 1, (K, L)."""
    shares = np.floor(mean * SHARES).astype(np.int64)
    rank = np.argsort(np.argsort(shares - mean * SHARES, axis=1, kind="stable"), axis=1, kind="stable")
    return shares + (rank < SHARES - shares.sum(axis=1, keepdims=True))


def _different(lags: Integers) -> list[int]:
    """Of moments that never differ, the first."""
    found: list[int] = []
    for b in range(lags.shape[1]):
        if all((lags[:, a, b] > 0).any() or (lags[:, b, a] > 0).any() for a in found):
            found.append(b)
    return found


def _named(options: Sequence[Integers], choice: Sequence[int] | Integers) -> list[int]:
    return [int(own[place]) for own, place in zip(options, choice, strict=True)]
