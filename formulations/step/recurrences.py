"""AutoPipe's recurrences (Section III-B): when the passes of 1F1B begin, phase by phase, and how long the step takes.

Stages are x = 0 .. p-1, f_x and b_x their passes, c_x the transfer between x - 1 and x (the paper's Comm, here by cut).
w_x = min(m, p - 1 - x) forward passes of x are its warm-up; then block y = 0 .. is the forward pass of micro-batch w_x + y and
the backward pass of micro-batch y; the backward passes left over are the cooldown.

    warm-up     t(x, q)     = max(t(x-1, q) + f_{x-1},     t(x, q-1) + f_x)      + c_x      forward pass of micro-batch q < w_x
    1F1B        t(x, y, 0)  = max(t(x-1, y-1, 0) + f_{x-1}, t(x, y-1, 1) + b_x)  + c_x
                t(x, y, 1)  = max(t(x+1, y, 1) + b_{x+1},   t(x, y, 0) + f_x)    + c_{x+1}
    cooldown    t(x, y)     = max(t(x+1, y) + b_{x+1},      t(x, y-1) + b_x)     + c_{x+1}  (y as the micro-batch)

Terms that do not exist are left out, and the transfer with them where a pass receives nothing (c_0 = c_p = 0). The paper gives
the warm-up's first block as the sum of one micro-batch's forward passes; the formula above is exact where stages differ.
"""

from __future__ import annotations

from trainplan.formulations.step.timeline import Work

Starts = list[list[int]]


def starts_ns(work: Work, micro_batches: int) -> tuple[Starts, Starts]:
    """Starts of all forward and of all backward passes, by stage and micro-batch, from the step's beginning, in ns."""
    p, f, b = work.stages, work.forward_ns, work.backward_ns
    c = (0, *work.transfer_ns, 0)
    ahead = [min(micro_batches, p - 1 - x) for x in range(p)]
    forward: Starts = [[] for _ in range(p)]
    backward: Starts = [[] for _ in range(p)]
    free = [0] * p  # end of the last pass of each stage

    def begin_forward(x: int, q: int) -> None:
        ready = max(free[x], forward[x - 1][q] + f[x - 1]) if x else free[x]
        forward[x].append(ready + c[x])
        free[x] = forward[x][q] + f[x]

    for x in range(p):
        for q in range(ahead[x]):
            begin_forward(x, q)
    for y in range(micro_batches):
        for x in range(p):
            if ahead[x] + y < micro_batches:
                begin_forward(x, ahead[x] + y)
        for x in reversed(range(p)):
            ready = max(free[x], backward[x + 1][y] + b[x + 1]) if x + 1 < p else free[x]
            backward[x].append(ready + c[x + 1])
            free[x] = backward[x][y] + b[x]
    return forward, backward


def iteration_ns(work: Work, micro_batches: int) -> int:
    """The simulated 1F1B iteration: the end of the last backward pass of the first stage."""
    return starts_ns(work, micro_batches)[1][0][-1] + work.backward_ns[0]
