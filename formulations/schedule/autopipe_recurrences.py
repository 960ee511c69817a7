"""AutoPipe's recurrences (Section III-B): when the passes of 1F1B end, phase by phase, and how long the step takes.

Stages are x = 0 .. p-1, f_x and b_x their passes, c_x the transfer between x - 1 and x (the paper's Comm, here by cut), and m
the micro-batches. w_x = min(m, p - 1 - x) forward passes of x are its warm-up; then block y = 0 .. is the forward pass of
micro-batch w_x + y and the backward pass of micro-batch y; the remaining backward passes are the cooldown. The starts t of
passes:

    warm-up     t(x, q)     = max(t(x-1, q) + f_{x-1},     t(x, q-1) + f_x)      + c_x      forward pass of micro-batch q < w_x
    1F1B        t(x, y, 0)  = max(t(x-1, y-1, 0) + f_{x-1}, t(x, y-1, 1) + b_x)  + c_x
                t(x, y, 1)  = max(t(x+1, y, 1) + b_{x+1},   t(x, y, 0) + f_x)    + c_{x+1}
    cooldown    t(x, y)     = max(t(x+1, y) + b_{x+1},      t(x, y-1) + b_x)     + c_{x+1}  (y as the micro-batch)

Terms that do not exist are left out, and the transfer with them where a pass receives nothing (c_0 = c_p = 0). The paper gives
the warm-up's first block as the sum of one micro-batch's forward passes; the formula above is exact where stages differ.

This is the paper's own computation, for one pipeline. It is the cross-check of the graph of passes (`graph`), to which tests
compare it pass by pass (tests/formulations/test_schedule_graph.py, tests/formulations/test_partition_timeline.py), and of
`vectorised.one_f_one_b_ends_ns`, many pipelines together in arrays (tests/solvers/test_partition_search.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.formulations.schedule.simulate import Work


@dataclass(frozen=True)
class PassEnds:
    """The times at which the forward and backward passes of a 1F1B step end, in ns from the step's beginning, computed by
    AutoPipe's recurrences.

    Attributes:
        work: the times of the stages.
        micro_batches: the number of micro-batches of the step.
        warm_up: for each stage, the number of forward passes before its first backward pass.
        forward, backward: the ends of forward and of backward passes, by stage and micro-batch.
    """

    work: Work
    micro_batches: int
    warm_up: Sequence[int]
    forward: Sequence[Sequence[int]]
    backward: Sequence[Sequence[int]]

    @property
    def time_ns(self) -> int:
        """Time in ns of the simulated step: the end of the last backward pass of the first stage."""
        return self.backward[0][-1]

    @property
    def master(self) -> int:
        """AutoPipe's master stage: the stage with the most passes of the 1F1B phase (neither warm-up nor cooldown) on the
        critical path; if several have the most, the last one.

        The path is followed back from the end of the step; of two passes that end at the same time, it takes the later
        stage's. The result equals `critical_path.critical_path(..).master`, which is slower and supports other schedules
        (asserted in tests/solvers/test_autopipe.py).
        """
        f, b, c = self.work.forward_ns, self.work.backward_ns, (0, *self.work.transfer_ns, 0)
        p, m, forward, backward = len(f), self.micro_batches, self.forward, self.backward
        counts = [0] * p
        x, y, back, furthest = 0, m - 1, True, 0
        while True:
            w = self.warm_up[x]
            furthest = max(furthest, x)
            if back:
                counts[x] += y <= max(0, m - 1 - w)
                ready = backward[x][y] - b[x] - c[x + 1]
                if x + 1 < p and backward[x + 1][y] == ready:
                    x += 1
                elif w + y < m:
                    y, back = w + y, False  # the passes of a block follow each other: this one ended as the message was ready
                elif y:
                    y -= 1
                else:
                    y, back = m - 1, False
            else:
                counts[x] += y >= min(w, m - 1)
                ready = forward[x][y] - f[x] - c[x]
                if y > w and backward[x][y - 1 - w] == ready:
                    y, back = y - 1 - w, True
                elif 0 < y <= w and forward[x][y - 1] == ready:
                    y -= 1
                elif x:
                    x -= 1
                else:
                    break
        most = max(counts)
        return max(stage for stage in range(p) if counts[stage] == most) if most else furthest


def pass_ends(work: Work, micro_batches: int) -> PassEnds:
    """Compute when all passes of a 1F1B step end. work: the times of the stages in ns. micro_batches: the number of
    micro-batches in the step.
    """
    p, m, f, b = work.stages, micro_batches, work.forward_ns, work.backward_ns
    c = (0, *work.transfer_ns, 0)
    warm_up = [min(m, p - 1 - x) for x in range(p)]
    forward: list[list[int]] = []
    before = [0] * m
    for x in range(p):
        row, end, length = [], 0, c[x] + f[x]
        for arrival in before[: warm_up[x]]:
            end = (arrival if arrival > end else end) + length
            row.append(end)
        forward.append(row)
        before = row
    free = [row[-1] if row else 0 for row in forward]  # end of the last pass of each stage
    backward: list[list[int]] = [[] for _ in range(p)]
    way_back = [(x, c[x + 1] + b[x], backward[x]) for x in reversed(range(p))]
    for y in range(m):
        for x in range(p):
            if (q := warm_up[x] + y) < m:
                end = free[x]
                if x and forward[x - 1][q] > end:
                    end = forward[x - 1][q]
                free[x] = end = end + c[x] + f[x]
                forward[x].append(end)
        end = 0
        for x, length, ends in way_back:
            if free[x] > end:
                end = free[x]
            free[x] = end = end + length
            ends.append(end)
    return PassEnds(work, m, warm_up, forward, backward)


def iteration_ns(work: Work, micro_batches: int) -> int:
    """The time in ns of a simulated 1F1B step of a pipeline. work: the times of the stages in ns. micro_batches: the number of
    micro-batches in the step.
    """
    return pass_ends(work, micro_batches).time_ns
