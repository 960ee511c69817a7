"""AMP's layer assignment (Section 3.5): the table dp[i][j][m] of Eq. 6-8, as printed.

With gas micro-batches, t the times of stages and e those of transfers, dp[i][j][m] is the least of (gas - 1) max(0, max t - m)
+ sum e + sum t (Eq. 6) for the first i layers in j stages, and m takes 0 and the time of every stage that there could be: all
sums of consecutive layers, where devices differ those of every stage. With i' the last cut, t2 the time of layers i' .. i-1 in
stage j, and t1 that of all i layers in the first stage,

    dp[i][1][m] = (gas - 1) max(0, t1 - m) + t1                                                                    Eq. 7
    dp[i][j][m] = min over i' of dp[i'][j-1][max(t2, m)] + (gas - 1) max(0, t2 - m) + t2 + e(i', j-1)              Eq. 8

and dp[L][k][0] is the answer for L layers in k stages, in O(k L^4). All m and i' of one entry are computed together; costs are
kept for two numbers of stages, cuts for all. Entries that leave a later stage without a layer are left out. Memory is not
considered.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.core.search import Outcome, Search, Unsupported, first_fitting

MOST_SPANS, MOST_CELLS = 2 * 10**7, 2 * 10**8
IMPOSSIBLE = np.iinfo(np.int64).max // 4


def amp_dp(instance: Instance, search: Search) -> Outcome:
    """The method `amp-dp`: cut a chain of layers into pipeline stages by AMP's dynamic program (Eq. 6-8), which ignores memory.
    The outcome has these cuts if they fit the memory, and no lower bound. Raises Unsupported if its table would be too large.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    answer = amp_cuts(instance.layer_ns, instance.transfer_ns, instance.micro_batches, search.out_of_time)
    if answer is None:
        return Outcome(message="time ran out before the table was filled")
    return first_fitting(instance, search, [Solution(answer[1])], "the paper's search")


def amp_cuts(
    layer_ns: Integers,
    transfer_ns: Integers,
    micro_batches: int,
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[int, tuple[int, ...]] | None:
    """AMP's dynamic program (Eq. 6-8): the least step time in ns that it finds, and the cuts (first layer of every stage but
    the first); None if time ran out. Memory is not considered.

    layer_ns: (k, L), the time in ns of each of L layers in each of k stages. transfer_ns: (k-1, L-1), entry [i, l]: the
    transfer time in ns from stage i to the next if stage i ends with layer l. micro_batches: the number of micro-batches in a
    step. out_of_time: returns True once the search should end. Raises Unsupported if the table would be too large."""
    (stages, layers), rounds = layer_ns.shape, micro_batches - 1
    kinds, kind_of = np.unique(layer_ns, axis=0, return_inverse=True)
    if len(kinds) * layers * layers > 2 * MOST_SPANS:
        raise _too_large(stages, layers, len(kinds) * layers * layers / 2)
    before = np.concatenate([np.zeros((len(kinds), 1), np.int64), np.cumsum(kinds, axis=1)], axis=1)
    spans = np.maximum(before[:, None, :] - before[:, :, None], 0)  # [kind, i', i]: time of layers i' .. i - 1
    m, ranks = np.unique(spans, return_inverse=True)  # 0 among them, that of no layer
    ranks = ranks.reshape(spans.shape)
    if stages * layers * len(m) > MOST_CELLS:
        raise _too_large(stages, layers, len(m))

    t1 = spans[kind_of[0], 0][:, None]
    cost = rounds * np.maximum(0, t1 - m) + t1
    cuts = np.zeros((stages + 1, layers + 1, len(m)), np.int16)
    for j in range(2, stages + 1):
        previous, cost = cost, np.full(cost.shape, IMPOSSIBLE)
        times, rank = spans[kind_of[j - 1]], ranks[kind_of[j - 1]]
        for i in range(j, layers - stages + j + 1):
            if out_of_time():
                return None
            last = slice(j - 1, i)  # i'
            t2 = times[last, i][:, None]
            later = np.maximum(rank[last, i][:, None], np.arange(len(m)))  # the index of max(t2, m)
            g = np.take_along_axis(previous[last], later, axis=1) + rounds * np.maximum(0, t2 - m) + t2
            g += transfer_ns[j - 2, j - 2 : i - 1][:, None]
            best = g.argmin(axis=0)
            cuts[j, i] = best + j - 1
            cost[i] = np.take_along_axis(g, best[None], axis=0)[0]

    path, i, rank_of_m = [], layers, 0
    for j in range(stages, 1, -1):
        cut = int(cuts[j, i, rank_of_m])
        rank_of_m = max(rank_of_m, int(ranks[kind_of[j - 1], cut, i]))
        path.append(cut)
        i = cut
    return int(cost[layers, 0]), tuple(reversed(path))


def _too_large(stages: int, layers: int, times: float) -> Unsupported:
    """The error for users that the table of the method amp-dp would be too large. stages, layers: their numbers in the
    instance. times: the number of different times that a stage may take. The caller raises it."""
    problem = f"is 'amp-dp' for {layers} layers, {stages} stages and {times:.3g} times of a stage"
    return Unsupported("command line", "--method", problem, f"give 'exact'; the paper's table takes {MOST_CELLS:.0e} entries")
