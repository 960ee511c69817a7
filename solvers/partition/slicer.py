"""How many micro-batches to slice in halves (AutoPipe, Section III-C): Algorithm 2, and the least count with all of the gain.

There are p stages and m micro-batches; f, b and c are forward passes, backward passes and messages. Slicing k micro-batches
(`schedules`) brings the first half of micro-batch 0 to the last stage in half the time. Since a device that sends does not
wait, and two halves take as long as the whole, no pass of a step ends later with k + 1 sliced than with k: by induction over
the passes, as

    max(max(free, first half's arrival) + half, whole's arrival) + other half  <=  max(free, whole's arrival) + whole.

So slicing never lengthens the simulated iteration T(k), which does not rise with k. No half waits for a device that is busy
with a whole pass, either: halves come first on every device, and those that would meet the 1F1B phase are received whole.
Micro-batch k, the first that is not sliced, can be late: it enters the first device after the last half, and from there the
1F1B phase. The halves block it where it is too late for the step to end as early as it could, T(k) > T(k+1) or any later one.
The least count for which none blocks is the least k with T(k) = T(min(p - 1, m)), found by bisection, each count judged by the
event simulation; 0 where slicing gains nothing. For p >= 2 equal stages without transfers and b >= f, which is the rule, it is
max(1, ceil((p-1) f / 2b)), and the gain is (p-1) f / 2, half the start-up (observed for p <= 12, m = 2p).

Algorithm 2 answers the same question by estimated times: when must micro-batch k enter the first device to reach the stage
where it opens the 1F1B phase in time, and have the halves of micro-batch k - 1 left it by then? Read here as follows, where the
print is in doubt; all times are doubled, to stay whole (mb is the paper's counter of micro-batches, i that of stages).

- Line 9 adds f_{p-1} / 2 before the first backward pass; but the last stage runs both halves, and f_{p-1} is added here.
- Line 17, up to p - mb inclusive, as printed: these stages run micro-batch mb - 1 before their first backward pass.
- Line 21 adds f_{i-1} / 2 to the arrival from stage i - 1; it is the pass of stage i, f_i / 2.
- Line 34 returns where the whole micro-batch must start before the halves end; the text says, and this does, where it starts at
  their end or later.
- Comm is that of the cut between the two stages. The print charges it to the sender of a half (lines 23 to 25) and counts one
  less on the way of the whole micro-batch (lines 30 to 32), as printed here; the simulation charges it to receivers. So with
  transfers the estimate can be off by one or more, either way.
- The search ends at min(p - 1, m), all that there is to slice; a single stage has nothing to slice, count 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

from trainplan.formulations.schedule.orders import most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import Timeline, Work, simulate


def sliced_timeline(work: Work, micro_batches: int, count: int) -> Timeline:
    """The simulated 1F1B timeline of a pipeline whose first `count` micro-batches run as two halves (sliced). work: the passes
    and messages of each stage in ns. micro_batches: the number of micro-batches in a step."""
    return simulate(work, one_f_one_b(work.stages, micro_batches, count))


def least_sliced(work: Work, micro_batches: int, syncs_ns: Sequence[int] = ()) -> int:
    """The least number of micro-batches to slice in halves such that slicing more does not shorten the step.

    micro_batches: the number of micro-batches in a step. work: the passes and messages of each stage. syncs_ns: ns that each
    stage adds after its last pass; empty for none."""
    most = most_sliced(work.stages, micro_batches)
    syncs = syncs_ns or [0] * work.stages

    @cache
    def time_ns(count: int) -> int:
        """The step in ns with `count` micro-batches sliced."""
        return sliced_timeline(work, micro_batches, count).step_ns(syncs)

    return bisect_left(range(most), True, key=lambda count: time_ns(count) <= time_ns(most))


def algorithm_2(work: Work, micro_batches: int) -> int:
    """AutoPipe's number of first micro-batches to run as two halves (sliced), by its Algorithm 2, which estimates times; at
    least 1 for two stages or more, 0 for one. work: the passes and messages of each stage in ns. micro_batches: the number of
    micro-batches in a step."""
    p, f, b, c = work.stages, work.forward_ns, work.backward_ns, work.transfer_ns
    most = most_sliced(p, micro_batches)
    start, starts = sum(f[:-1]) + sum(c) + 2 * f[-1], []  # of the first forward pass of the 1F1B phase, last stage first
    for i in reversed(range(1, p)):
        start += 2 * (b[i] + c[i - 1])
        starts.append(start)
    ends = [[0, 0] for _ in range(p + 1)]  # of the halves on every stage
    for count in range(1, most):
        for i in range(p - count + 1):
            for half in (0, 1):
                end = ends[i][1 - half] + f[i]
                if i:
                    end = max(end, ends[i - 1][half] + f[i])
                if i < p - 1:
                    end += c[i]
                ends[i][half] = max(end, ends[i + 1][1 - half])
        latest = starts[count - 1] - 2 * (sum(f[: p - count]) + sum(c[: p - count - 1]))
        if latest >= ends[0][1]:
            return count
    return most
