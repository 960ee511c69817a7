"""Lower bounds on the iteration of any pipeline partition with a given stage, whatever the other stages are: bounds by paths.

A partition has p stages x = 0 .. p-1 and m micro-batches. The iteration T is the longest path through the passes of 1F1B, where
f_x and b_x include the messages that they receive, and t_x = f_x + b_x. One micro-batch is followed to stage x, then the passes
of x as long as it has some, then one micro-batch back to the first stage. With H and S, the sums of t over the stages before
and after x, and u = p - 1 - x, the warm-up of x:

    T >= H + t_x + max(S, u f_x) + (m - 1 - u) t_x + max(S, u b_x)                             where u < m
    T >= H + max(m t_x, t_x + S + (m - 1) max(f_x, b_x))                                       where u >= m

Before its first backward pass, x waits for the first micro-batch's route to the last stage and back, S, or runs its warm-up, u
forward passes. Then one forward and one backward pass follow each other m - 1 - u times. After its last forward pass, x waits
for the last micro-batch's route, or runs the backward passes left. (With u = m - 1 the two routes meet on stage x + 1.) Where f
and b have one ratio throughout, and stages are nearly equal, other paths are hardly ever longer.

H and S depend on where the stage begins and ends, and on the transfers of the other cuts. So the least maximum over partitions
is a bottleneck path through spans, which no partition is below; where transfers differ by cut, with the cheapest H and S.

A boundary is one of the n + 1 positions before, between and after the n sub-layers; a span is the sub-layers between two
boundaries. Tables of spans are (n+1, n+1), by first boundary and end; tables of stages (p+1, n+1), by a stage and the boundary
where it begins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.solvers.partition.times import Booleans, SublayerChain

FAR = 2**60  # more than any path; three of them can be added
LARGEST_TABLES = 2**24  # numbers of `need` that are stored


class Spans(SublayerChain):
    """All spans (consecutive sub-layers) of a chain of n sub-layers, as any of p stages x = 0 .. p-1, with lower bounds in ns
    on the stages before and after them. Spans are given by the boundaries 0 .. n where they begin and end.

    f, b, t: (n+1, n+1), forward and backward passes of spans in ns, each with the message that it receives, and their sum.
    rounds: how often the path of `even_ns` through a stage contains the route through the stages after it: twice with at least
    p micro-batches, else at least once.

    Four tables (p+1, n+1), FAR (infinite) where nothing fits. least_before[x, boundary]: the least time of stages 0 .. x-1 that
    end at the boundary. least_after[x, boundary]: the least time of stages x .. p-1 that begin there. best_before[x, boundary]:
    the least, over stages 0 .. x-1 that end at the boundary, of the largest `need` of any of them. even_before[x, boundary]:
    the least, over the same stages, of the largest path by `even_ns` of any of them, computed with the least time of the stages
    after; each further ns of that time adds `rounds` ns."""

    def __init__(self, instance: Instance, out_of_time: Callable[[], bool]) -> None:
        """Build all tables of spans. Raises TimeoutError where out_of_time returns true.

        instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
        super().__init__(instance)
        self._boundary = np.arange(self.boundaries)
        self.f, self.b = self.passes_ns(self._boundary[:, None], self._boundary)
        self.t = self.f + self.b
        self.rounds = 2 if self.micro_batches >= self.stages else 1
        self._needs: dict[int, Integers] = {}
        tables = (np.full((self.stages + 1, self.boundaries), FAR) for _ in range(4))
        self.least_before, self.least_after, self.best_before, self.even_before = tables
        for table in (self.least_before, self.best_before, self.even_before):
            table[0, 0] = 0
        self.least_after[self.stages, -1] = 0
        for step in (self._before, self._after, self._best):
            for number in range(self.stages):
                if out_of_time():
                    raise TimeoutError
                step(number)

    @property
    def bound(self) -> int:
        """A lower bound in ns on the iteration of any partition; FAR (infinite) if none fits.

        Proof: each stage is a span, and no iteration is below the `need` of any of its stages; this is the least, over
        partitions, of the largest need.
        """
        return int(self.best_before[-1, -1])

    def through_ns(self, x: int, f: Integers, b: Integers, after: Integers) -> Integers:
        """The longest of the known paths through stage x, in ns, without the time of the stages before it. A path is a chain of
        passes that wait for one another, so no iteration with such a stage is shorter than the time of the stages before it
        plus the result.

        x: the stage's index. f, b: forward and backward pass of the stage in ns, and after: the time of the stages after it;
        arrays that broadcast."""
        m, warm_up = self.micro_batches, self.stages - 1 - x
        if warm_up < m:
            return (m - warm_up) * (f + b) + np.maximum(after, warm_up * f) + np.maximum(after, warm_up * b)
        return np.maximum(m * (f + b), f + b + after + (m - 1) * np.maximum(f, b))

    def even_ns(self, x: int, f: Integers, b: Integers, after: Integers) -> Integers:
        """The path through stage x that waits for the first and the last micro-batch on their way through the later stages, in
        ns, without the time of the stages before it. No iteration with such a stage is shorter than the time of the stages
        before it plus the result.

        x: the stage's index. f, b: forward and backward pass of the stage in ns, and after: the time of the stages after it;
        arrays that broadcast. It is one of the paths of `through_ns`."""
        m, warm_up = self.micro_batches, self.stages - 1 - x
        if warm_up < m:
            return (m - warm_up) * (f + b) + 2 * after
        return f + b + after + (m - 1) * np.maximum(f, b)

    def need(self, x: int) -> Integers:
        """For each span (consecutive sub-layers) as stage x, (n+1, n+1) by the boundaries where it begins and ends, a lower
        bound in ns on the iteration of all partitions with this stage; FAR (infinite) if there is no such partition.

        Proof: the stages before and after the span take no less than the least of any such stages, and the iteration no less
        than the paths with these times."""
        if x in self._needs:
            return self._needs[x]
        before, after = self.least_before[x][:, None], self.least_after[x + 1]
        possible = self._may(x) & (before < FAR) & (after < FAR)
        need = np.where(possible, before + self.through_ns(x, self.f, self.b, after), FAR)
        if self.stages * self.boundaries**2 <= LARGEST_TABLES:
            self._needs[x] = need
        return need

    def slowest(self, limit: int) -> list[int]:
        """For each stage, the longest forward or backward pass in ns that any stage before it has in any partition whose
        iteration is at most `limit` ns; 0 for the first stage.

        Proof: a partition that is not above the limit has only spans whose `need` is not above it.
        """
        slowest = [0]
        for x in range(self.stages - 1):
            spans = self.need(x) <= limit
            longest = [int(passes.max(where=spans, initial=0)) for passes in (self.f, self.b)]
            slowest.append(max(slowest[-1], *longest))
        return slowest

    def _may(self, x: int) -> Booleans:
        """Whether each span is not empty and fits the memory of stage x: (n+1, n+1), by the boundaries where it begins and
        ends."""
        return self.fits(x, self._boundary[:, None], self._boundary)

    def _before(self, x: int) -> None:
        """Fill row x + 1 of the table least_before: the least time in ns of stages 0 .. x by the boundary where stage x
        ends."""
        times = np.where(self._may(x), self.t, FAR)
        self.least_before[x + 1] = np.minimum((self.least_before[x][:, None] + times).min(axis=0), FAR)

    def _after(self, step: int) -> None:
        """Fill one row of the table least_after: the least time in ns of the last `step` + 1 stages, by the boundary where they
        begin."""
        x = self.stages - 1 - step
        times = np.where(self._may(x), self.t, FAR)
        self.least_after[x] = np.minimum((self.least_after[x + 1] + times).min(axis=1), FAR)

    def _best(self, x: int) -> None:
        """Fill row x + 1 of the tables best_before and even_before: the least largest `need` and path of any of the stages 0 ..
        x, by the boundary where stage x ends."""
        need = self.need(x)
        even = self.least_before[x][:, None] + self.even_ns(x, self.f, self.b, self.least_after[x + 1])
        even = np.where(need < FAR, even, FAR)
        self.best_before[x + 1] = np.maximum(self.best_before[x][:, None], need).min(axis=0)
        self.even_before[x + 1] = np.maximum(self.even_before[x][:, None], even).min(axis=0)
