"""A bound for steps whose segments need not be synchronised: the dual of their longest path, with weights that all share.

The step of a choice s of switches, up to the moment T at which all lanes are done, is a longest path: of the moments x[k,a] at
the beginning of segment k = 0 .. 2N-1 and at the end, k = 2N (see `free_segments`, where path[k,a,b] comes from),

    minimise T    subject to    x[0,a] = 0,    x[k+1,b] >= x[k,a] + path[k,a,b](s),    T >= x[2N,a]               (primal)

    maximise    sum_k sum_ab flow[k,a,b] path[k,a,b](s)                                                           (dual)
    subject to  sum_b flow[k,a,b] = w[k,a]          for every k, a
                sum_a flow[k,a,b] = w[k+1,b]        for every k, b
                sum_a w[k,a] = 1,  flow >= 0        for every k

Where the weights w are fixed, for all choices alike, the dual falls apart into one transport problem for each segment, and
what it gives is a bound still. So segment k costs at least cost[k](s), its best transport plan (`transported`); the optimizer,
which begins when all lanes are done, adds costs of its own (`optimizer_costs`); and

    bound(w)  =  min over s of sum_k cost[k](s), of those whose certain bytes fit    <=    the shortest step that fits

These costs are of layer i's option, of r of the layer before and of lazy_prefetch of the one after, as where segments are
synchronised, so that the same label-setting finds the minimum. Weights are whole multiples of 1 / SHARES, and costs of
1 / SHARES ns, so that all arithmetic is on whole numbers.

bound(w) is concave in w. Weights are moved where it rises: those between all forward segments alike, and those between all
backward ones, first, by falling steps; then each by itself, towards the longest path of the choice that attains the bound
(fictitious play: a mean of longest paths). While they move, a Lagrangian bound stands for label-setting. The choices that
attain bounds are candidates for good steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance
from trainplan.formulations.memory_switches.segments import BLOCK, alike_layers
from trainplan.solvers.chain.bounds import Completion, possible
from trainplan.solvers.chain.chain import MemoryChain
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.core.search import Search
from trainplan.solvers.switches.exact import chain_of_columns
from trainplan.solvers.switches.free_segments import FreeSegments, free_segments

SHARES = 64
STEPS = (32, 16, 8, 4)  # shares that are moved at once
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
    """The weights w of the dual, and those of the optimizer's two bounds, all in shares.

    moments: (2 N + 1, L), a row for the beginning of each segment and one for the end; each adds up to SHARES. steps: of the
    bound by all steps of the optimizer, as opposed to that by all copies of shards back to the device.
    """

    moments: Integers
    steps: int = SHARES

    @property
    def layers(self) -> int:
        """N."""
        return len(self.moments) // 2

    @property
    def forward(self) -> tuple[Integers, Integers]:
        """Before and after the forward segment of every layer, (N, L) each."""
        return self.moments[: self.layers], self.moments[1 : self.layers + 1]

    @property
    def backward(self) -> tuple[Integers, Integers]:
        """Before and after the backward segment of every layer, (N, L) each; the last layer's comes first in time."""
        return self.moments[self.layers : -1][::-1], self.moments[self.layers + 1 :][::-1]


def segment_costs(segments: FreeSegments, weights: Weights, layers: Integers) -> Integers:
    """(layers, 8, S, 2): what forward and backward segment of these layers cost at least, in 1 / SHARES ns.

    For a feasible flow of the dual, with these weights, adds up over the segments to at most T.
    """
    before, after = (moments[layers] for moments in weights.forward)
    forward = transported(segments.forward_ns[layers], before, after)
    before, after = (moments[layers] for moments in weights.backward)
    return forward[:, None] + transported(segments.backward_ns[layers], before, after)[..., None]


def optimizer_costs(instance: Instance, lazy: Integers, steps: int) -> Integers:
    """(N, S): what the optimizer's part of each layer costs at least, in 1 / SHARES ns. lazy: (S,), of the options.

    For it is the mean, with `steps` shares of the first, of two bounds on the time after T: the host makes all steps, one after
    the other, and then the last shard is copied back; or it makes the first step, and then all shards that are not prefetched
    lazily are copied back, one after the other.
    """
    of_steps = np.full(instance.layers, steps)
    of_copies = SHARES - of_steps
    of_steps[0] = of_copies[-1] = SHARES
    copies = instance["prefetch_parameter_ns"][:, None] * (lazy == 0)
    return instance["optimizer_ns"][:, None] * of_steps[:, None] + copies * of_copies[:, None]


def transported(paths: Integers, before: Integers, after: Integers) -> Integers:
    """The value of the best transport plan from `before` to `after` on each segment. paths: (K, L, L, ...); weights: (K, L).

    For a best plan is a vertex, its support a forest of at most 6 nodes, hence of caterpillars; and filling up from a corner,
    with rows and columns in the order of such a caterpillar, gives it. All orders are tried.
    """
    best = None
    for plan in _corner_plans(before, after):
        value = np.einsum("kab,kab...->k...", plan, paths)
        best = value if best is None else np.maximum(best, value)
    assert best is not None
    return best


def _corner_plans(before: Integers, after: Integers) -> Iterator[Integers]:
    """(K, L, L): plans by the north-west corner rule, for every order of rows and columns.

    Row a takes the stretch of [0, SHARES] from the sum of the rows ahead of it, column b likewise: they share the overlap.
    """
    count, moments = before.shape
    zero = np.zeros((count, 1), np.int64)
    for rows in permutations(range(moments)):
        if rows[0] > rows[-1]:
            continue  # turned around, both orders give the same plan
        row_ends = np.concatenate((zero, np.cumsum(before[:, rows], axis=1)), axis=1)
        for columns in permutations(range(moments)):
            column_ends = np.concatenate((zero, np.cumsum(after[:, columns], axis=1)), axis=1)
            ends = np.minimum(row_ends[:, 1:, None], column_ends[:, None, 1:])
            begins = np.maximum(row_ends[:, :-1, None], column_ends[:, None, :-1])
            plan = np.empty((count, moments, moments), np.int64)
            plan[:, np.array(rows)[:, None], np.array(columns)] = np.maximum(0, ends - begins)
            yield plan


class Relaxation:
    """bound(w) of an instance, for any weights."""

    def __init__(self, instance: Instance, check_time: Callable[[], None] = lambda: None) -> None:
        """check_time: called often, by all that is computed here; what it raises is passed on."""
        self.instance, self.check_time = instance, check_time
        self.segments: FreeSegments = free_segments(instance, check_time)
        self.moments = self.segments.lag_ns.shape[1]
        self._alike = alike_layers(instance)

    def chain(self, weights: Weights) -> tuple[MemoryChain, list[Integers], int]:
        """The chain of the layers' costs, the options that its places stand for, and the cost that it leaves out.

        Raises NothingFits.
        """
        certain, instance = self.segments, self.instance
        cost = self._segment_costs(weights) + optimizer_costs(instance, certain.lazy, weights.steps)[:, None, :, None]
        least = cost.reshape(instance.layers, -1).min(axis=1)
        cost -= least[:, None, None, None]  # a cost may be negative, which label-setting does not expect
        self.check_time()
        columns = certain.columns(cost, self.check_time)
        chain = chain_of_columns(columns, instance.memory_bytes)
        indices = possible(chain)
        if not all(map(len, indices)):
            raise NothingFits
        options = [column.option[fitting] for column, fitting in zip(columns, indices, strict=True)]
        return chain.restricted(indices), options, sum(least.tolist())

    def _segment_costs(self, weights: Weights) -> Integers:
        """As of `segment_costs`; equal layers beside equal ones, under equal weights and lags, share theirs."""
        certain, count = self.segments, self.instance.layers
        around = (certain.lag_ns[:count], certain.lag_ns[count:][::-1], *weights.forward, *weights.backward)
        rows = np.column_stack([self._alike, *(values.reshape(count, -1) for values in around)])
        _, firsts, alike = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return np.concatenate(
            [self._checked_costs(weights, layers) for layers in np.array_split(firsts, 1 + len(firsts) // BLOCK)]
        )[alike.reshape(-1)]

    def _checked_costs(self, weights: Weights, layers: Integers) -> Integers:
        self.check_time()
        return segment_costs(self.segments, weights, layers)

    def lagrangian(self, weights: Weights) -> tuple[int, list[int] | None]:
        """A bound on bound(w), in 1 / SHARES ns, and the options of a choice near it whose certain bytes fit.

        For it is the Lagrangian dual of the chain, with a price on memory in place of its limit. Raises NothingFits.
        """
        chain, options, least = self.chain(weights)
        completion = Completion(chain, None, check_time=self.check_time)
        path = completion.best_mixed_path()
        return completion.bound + least, None if path is None else _options_of(options, path)

    def exact(self, weights: Weights, gap: float, search: Search, seconds: float) -> tuple[int, list[int] | None]:
        """bound(w), in 1 / SHARES ns, as far as label-setting proves it within the search in these seconds, and a choice near
        it, if there was time for one.

        Raises NothingFits.
        """
        chain, options, least = self.chain(weights)
        inner = search.inner(chain.objective, seconds, gap=gap)
        outcome = label_setting(chain, inner)
        if outcome.infeasible:
            raise NothingFits
        assert outcome.bound is not None
        return outcome.bound + least, None if inner.best is None else _options_of(options, inner.best)

    def longest_path(self, options: Sequence[int]) -> Integers:
        """(2 N + 1,): the moments on the longest path of a choice, that is, its best weights."""
        certain, count = self.segments, self.instance.layers
        r, lazy = certain.r[list(options)], certain.lazy[list(options)]
        tables = [certain.forward_ns[i, :, :, options[i], lazy[i + 1] if i + 1 < count else 0] for i in range(count)]
        tables += [certain.backward_ns[i, :, :, r[i - 1] if i else 0, options[i]] for i in reversed(range(count))]
        reached, origins = np.zeros(self.moments, np.int64), []
        for table in tables:
            through = reached[:, None] + table
            origins.append(through.argmax(axis=0))
            reached = through.max(axis=0)
        path = [int(reached.argmax())]
        for origin in reversed(origins):
            path.append(int(origin[path[-1]]))
        return np.array(path[::-1])

    def distinct_moments(self) -> tuple[list[int], list[int]]:
        """Moments that may differ from each other, between forward and between backward segments; of equal ones the first."""
        count, lag = self.instance.layers, self.segments.lag_ns
        return _distinct(lag[1:count]), _distinct(lag[count:])


def _distinct(lags: Integers) -> list[int]:
    moments: list[int] = []
    for b in range(lags.shape[1]):
        if all((lags[:, a, b] > 0).any() or (lags[:, b, a] > 0).any() for a in moments):
            moments.append(b)
    return moments


def _options_of(options: Sequence[Integers], choice: Sequence[int] | Integers) -> list[int]:
    return [int(of_layer[index]) for of_layer, index in zip(options, choice, strict=True)]


def free_bound(relaxation: Relaxation, search: Search, seconds: float | None, candidate: Candidate) -> None:
    """Report bounds, in about so many seconds, and pass on the choices that attain them. Raises NothingFits."""
    ascent = _Ascent(relaxation, search, seconds, candidate)
    ascent.move_alike()
    if ascent.prove():
        ascent.play()
        ascent.prove()


class _Ascent:
    """The best weights so far, on their way up. best: their Lagrangian bound."""

    def __init__(self, relaxation: Relaxation, search: Search, seconds: float | None, candidate: Candidate) -> None:
        self.relaxation, self.search, self.candidate = relaxation, search, candidate
        self.until = float("inf") if seconds is None else search.elapsed() + seconds
        layers = relaxation.instance.layers
        self.looks = max(8, LOOKS * LAYERS // max(LAYERS, layers)) if seconds is None else sys.maxsize
        self.shares = [np.zeros(relaxation.moments, np.int64) for _ in range(2)]  # of forward and of backward segments
        self.passes = relaxation.distinct_moments()
        for shares, moments in zip(self.shares, self.passes, strict=True):
            shares[moments] = SHARES // len(moments)
            shares[moments[0]] += SHARES - shares.sum()
        self.weights = self._alike(self.shares, SHARES)
        self.best = -sys.maxsize

    def over(self) -> bool:
        """Whether time, or the number of bounds, is used up, or the bound is as good as asked for."""
        return self.search.elapsed() >= self.until or self.looks <= 0 or self.search.closed()

    def rises(self, weights: Weights) -> tuple[bool, list[int] | None]:
        """Whether the Lagrangian bound of these weights is the best one so far, and a choice near it."""
        self.looks -= 1
        bound, options = self.relaxation.lagrangian(weights)
        self.search.report(bound=_whole(bound))
        if options is not None:
            self.candidate(options)
        better = bound > self.best
        if better:
            self.best, self.weights = bound, weights
        return better, options

    def prove(self) -> bool:
        """Report the bound of the best weights by label-setting; whether there is time for more."""
        left = min(LONGEST_SECONDS, self.until - self.search.elapsed())
        if left <= 0 or self.search.closed():
            return False
        bound, options = self.relaxation.exact(self.weights, max(self.search.gap / 4, FINEST), self.search, left)
        if options is not None:
            self.candidate(options)
        self.search.report(bound=_whole(bound))
        return True

    def move_alike(self) -> None:
        """Move weights that are equal throughout a pass, as long as some move of so many shares raises the bound."""
        self.rises(self.weights)
        for size in STEPS:
            moved = True
            while moved and not self.over():
                moved = False
                for shares, steps in self._moves(size):
                    if self.over():
                        break
                    if self.rises(self._alike(shares, steps))[0]:
                        self.shares, moved = shares, True

    def _moves(self, size: int) -> Iterator[tuple[list[Integers], int]]:
        """Shares `size` away from the best ones by then: at another moment, or between steps and copies of the optimizer."""
        for number, moments in enumerate(self.passes):
            for a, b in permutations(moments, 2):
                if amount := min(size, int(self.shares[number][a])):
                    moved = [of_pass.copy() for of_pass in self.shares]
                    moved[number][[a, b]] += (-amount, amount)
                    yield moved, self.weights.steps
        instance = self.relaxation.instance
        if instance["prefetch_parameter_ns"].max() > instance["optimizer_ns"].min():
            for steps in (self.weights.steps - size, self.weights.steps + size):
                if 0 <= steps <= SHARES:
                    yield self.shares, steps

    def _alike(self, shares: Sequence[Integers], steps: int) -> Weights:
        (forward, backward), count = shares, self.relaxation.instance.layers
        return Weights(np.concatenate((np.tile(forward, (count, 1)), np.tile(backward, (count + 1, 1)))), steps)

    def play(self) -> None:
        """Move the weights of each segment by itself."""
        mean, tried = self.weights.moments / SHARES, self.weights
        for number in range(ROUNDS):
            options = self.rises(tried)[1]
            if options is None or self.over():
                return
            pull = PULL / (SETTLED + number)
            mean = (1 - pull) * mean + pull * np.eye(self.relaxation.moments)[self.relaxation.longest_path(options)]
            tried = replace(self.weights, moments=_in_shares(mean))


def _whole(bound: int) -> int:
    """The least whole nanoseconds that are no less than a bound in 1 / SHARES ns."""
    return -(-bound // SHARES)


def _in_shares(weights: Floats) -> Integers:
    """Whole shares nearest to weights that add up to 1, (K, L): the largest remainders are rounded up."""
    shares = np.floor(weights * SHARES).astype(np.int64)
    rank = np.argsort(np.argsort(shares - weights * SHARES, axis=1, kind="stable"), axis=1, kind="stable")
    return shares + (rank < SHARES - shares.sum(axis=1, keepdims=True))
