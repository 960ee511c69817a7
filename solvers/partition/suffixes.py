"""Suffixes, the last stages of partitions: the labels of the exact search, their lower bounds, and dominance between them.

The symbols are those of `spans`. A suffix is the stages x .. p-1, given by the first boundary of each. To the paths of `spans`,
which follow a micro-batch to the last stage and back, it adds two numbers, whatever the stages before it are: S, the sum of t
over its stages, and K, its longest path, from the first forward to the last backward pass of stage x. No partition with it has
an iteration below H + K, with the least H of stages before it, nor below what these need with its S, nor below H and the suffix
simulated on its own.

Paths with a turn follow the first or the last micro-batch from stage x to any stage z only, in place of the last stage, and
have as many passes more to stay for as there are stages after z: forward ones on x at first, backward ones at last, on x or on
a stage y < x on the way back to the first stage.

    T >= H + t_x + max_z (S_z + (p-1-z) f_x) + (m-1-u) t_x + max_z (S_z + (p-1-z) b_y),   z = x .. p-1, y <= x, u < m

with S_z the sum of t over the stages x+1 .. z. So the label of a suffix has, by the number k of passes that are left for a
stage before it,

    routes[k]    S_z, the sum of t over its stages x .. z = p-1-k; 0 for z = x-1, where the micro-batch does not enter it
    longest[k]   L_k, its longest path from its first forward pass to the backward pass of x after which k more follow

of which k = 0 are S and K. Without turns, there is k = 0 alone.

Dominance. A stage before that stays for the k passes left gains at most k c, c its longest pass, and a partition's paths are as
long as max_k (routes[k] + k c) and max_k (longest[k] + k c) make them. Let no stage before have a pass above `slowest`. Then
`raised`[k] = max_{j <= k} (routes[j] - (k - j) slowest) changes neither maximum, as routes[j] - (k - j) slowest + k c is at
most routes[j] + j c. So of two suffixes that begin at one boundary, one dominates the other if none of its raised values is
larger. Example: slowest = 5, A has the routes (20, 10), B (18, 12). B's 12 is above A's 10, but raised they are (20, 15) and
(18, 13): with c <= 5, A's largest is 20 and B's 18. B dominates A, if that holds for `longest`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.partition.spans import Spans
from trainplan.solvers.partition.times import Booleans

COMPARED = 64  # the most suffixes that the others of their first boundary are compared to


@dataclass(frozen=True)
class Suffixes:
    """N suffixes, the last stages of partitions from `stage` to the last stage p - 1, in parallel arrays. Boundaries 0 .. n are
    the gaps before, between and after the n sub-layers.

    firsts: (N, p - stage), the boundary where each stage begins. routes[:, k]: the sum in ns of the forward plus backward
    passes of the stages from `stage` up to the one that k stages follow; longest[:, k]: the longest path in ns from the first
    forward pass of `stage` to the backward pass of `stage` that k further backward passes follow; k = 0 is the whole suffix.
    bound: (N,), a lower bound in ns on the iteration of any partition with the suffix."""

    stage: int
    firsts: Integers
    routes: Integers
    longest: Integers
    bound: Integers

    @property
    def count(self) -> int:
        """The number of suffixes, N."""
        return len(self.bound)

    def at(self, chosen: Integers | Booleans | slice) -> Suffixes:
        """Select some of the suffixes. chosen: their indices, a slice, or one flag per suffix, True to take it."""
        columns = (self.firsts, self.routes, self.longest, self.bound)
        return Suffixes(self.stage, *(column[chosen] for column in columns))


def no_suffix(spans: Spans) -> Suffixes:
    """The one suffix (last stages of a partition) that has no stage yet, from which all others are built. spans: times and
    bounds of every possible stage."""
    zero = np.zeros(1, np.int64)
    return Suffixes(spans.stages, np.zeros((1, 0), np.int64), zero[:, None], zero[:, None], zero)


def route_bound_ns(spans: Spans, x: int, first: Integers, route: Integers) -> Integers:
    """For each of N suffixes (last stages of partitions, from stage x on), (N,), a lower bound in ns on the iteration of all
    partitions that end with it, by the time of its stages. spans: times and bounds of every possible stage. x: the suffix's
    first stage.

    first: (N,), the boundary between sub-layers where it begins. route: (N,), the sum of forward plus backward passes over its
    stages, in ns.

    Proof: some stage before x has a path of `Spans.even_ns` as long as `even_before` with the least time of the stages after
    it, and the route is in it `rounds` times at least; nor is any partition below what the stages before need with that least
    time."""
    more = spans.rounds * (route - spans.least_after[x][first])
    return np.maximum(spans.even_before[x][first] + more, spans.best_before[x][first])


def longest_bound_ns(spans: Spans, x: int, first: Integers, longest: Integers) -> Integers:
    """For each of N suffixes (last stages of partitions, from stage x on), (N,), a lower bound in ns on the iteration of all
    partitions that end with it, by its longest path. spans: times and bounds of every possible stage. x: the suffix's first
    stage.

    first: (N,), the boundary between sub-layers where it begins. longest: (N,), the length in ns of a path through its passes.

    Proof: the path begins after the first micro-batch's forward passes through the stages before x, and ends before the last
    one's backward passes through them, which take their least time in all."""
    return spans.least_before[x][first] + longest


def longer(spans: Spans, suffixes: Suffixes, limit: int, turning: bool) -> Suffixes:
    """Put one stage in front of each suffix (last stages of a partition), in all possible ways, and keep the results whose
    lower bound on the iteration is at most `limit` ns. suffixes: the suffixes to extend, which begin at one stage.

    spans: times and bounds of every possible stage. turning: whether to use also the bounds by paths that follow a micro-batch
    only as far as some later stage and back."""
    x = suffixes.stage - 1
    ends = suffixes.firsts[:, 0] if suffixes.firsts.shape[1] else np.full(suffixes.count, spans.boundaries - 1)
    columns, column = np.unique(ends, return_inverse=True)
    possible = (spans.need(x)[:, columns] <= limit) & (spans.best_before[x] <= limit)[:, None]
    row, first = np.nonzero(possible.T[column])  # the suffix that is made longer, and where the new stage begins
    f, b = spans.f[first, ends[row]], spans.b[first, ends[row]]
    after = suffixes.routes[row, 0]
    longest = np.maximum(suffixes.longest[row, 0] + f + b, spans.through_ns(x, f, b, after))
    bound = np.maximum(route_bound_ns(spans, x, first, after + f + b), suffixes.bound[row])
    kept = np.flatnonzero(np.maximum(bound, longest_bound_ns(spans, x, first, longest)) <= limit)
    row, first, f, b, longest, bound = (array[kept] for array in (row, first, f, b, longest, bound))

    routes, all_longest = suffixes.routes[row] + (f + b)[:, None], longest[:, None]
    if turning:
        all_longest = _with_turns(spans, x, suffixes.routes[row], suffixes.longest[row], f, b)
        all_longest[:, 0] = np.maximum(all_longest[:, 0], longest)
        staying = np.arange(all_longest.shape[1]) * b[:, None]  # x itself may run the passes left
        all_longest = np.maximum.accumulate((all_longest + staying)[:, ::-1], axis=1)[:, ::-1] - staying
        if spans.stages - 1 - x < spans.micro_batches:
            routes = np.concatenate([routes, np.zeros((len(row), 1), np.int64)], axis=1)
    bound = np.maximum(bound, longest_bound_ns(spans, x, first, all_longest[:, 0]))
    firsts = np.concatenate([first[:, None], suffixes.firsts[row]], axis=1)
    return Suffixes(x, firsts, routes, all_longest, bound).at(bound <= limit)


def _with_turns(spans: Spans, x: int, routes: Integers, longest: Integers, f: Integers, b: Integers) -> Integers:
    """The longest known paths through the stages from x on, in ns, for N suffixes (last stages of partitions): (N, k+1), entry
    [:, j] for paths that leave j backward passes to an earlier stage. A path goes along the longest path of the later stages,
    or along stage x and back from any later stage.

    spans: times and bounds of every possible stage. routes, longest: (N, k), for the stages after x, the times and longest
    paths as the class `Suffixes` defines them. f, b: (N,), forward and backward passes of stage x in ns."""
    warm_up = spans.stages - 1 - x
    through_later = longest + (f + b)[:, None]
    if warm_up >= spans.micro_batches:
        return through_later
    nothing = np.zeros((len(f), 1), np.int64)
    through_later = np.concatenate([through_later, nothing], axis=1)[:, : warm_up + 1]
    there = (routes + np.arange(warm_up + 1) * f[:, None]).max(axis=1)
    along_x = (spans.micro_batches - warm_up) * (f + b) + there
    return np.maximum(through_later, along_x[:, None] + routes)


def undominated(suffixes: Suffixes, slowest: int, out_of_time: Callable[[], bool]) -> Suffixes:
    """The suffixes (last stages of partitions) that no other suffix with the same first boundary dominates, that is, for which
    no other suffix has bounds that are at most as large whatever stages come before. If time runs out, some dominated ones
    stay.

    out_of_time: returns True once the comparison should end. slowest: the longest pass in ns of any stage before them. A suffix
    is compared with at most COMPARED others, for speed."""
    first, chosen = suffixes.firsts[:, 0], []
    values = np.concatenate([raised(suffixes.longest, slowest), raised(suffixes.routes, slowest)], axis=1)
    order = np.lexsort((values.sum(axis=1, dtype=float), first))
    for group in np.split(order, np.flatnonzero(np.diff(first[order])) + 1):
        rest = group
        for _ in range(COMPARED):
            if not len(rest) or out_of_time():
                break
            best, rest = rest[:1], rest[1:]
            chosen.append(best)
            rest = rest[(values[rest] < values[best]).any(axis=1)]
        chosen.append(rest)
    return suffixes.at(np.concatenate(chosen))


def raised(routes: Integers, slowest: int) -> Integers:
    """Raise the times by which suffixes (last stages of partitions) are compared, where other times of the same suffix imply
    more: entry j is at least entry j - 1 minus `slowest`. routes: (N, k + 1) for N suffixes; entry [:, j]: the time in ns of
    paths that leave j backward passes to an earlier stage. slowest: the longest pass in ns of any earlier stage. With slowest
    5: (20, 10) -> (20, 15).
    """
    staying = np.arange(routes.shape[1]) * slowest
    return np.maximum.accumulate(routes + staying, axis=1) - staying


def in_order(spans: Spans, suffixes: Suffixes) -> Integers:
    """The indices that sort suffixes (last stages of partitions) by their lower bounds, and equal bounds by the longest path
    through the suffix. spans: times and bounds of every possible stage. suffixes: those to sort."""
    longest = longest_bound_ns(spans, suffixes.stage, suffixes.firsts[:, 0], suffixes.longest[:, 0])
    return np.lexsort((longest, suffixes.bound))
