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
    """All spans of a chain, as any stage, with lower bounds in ns on the stages before and after them (symbols: see the
    module's head).

    f, b, t: (n+1, n+1), passes of spans, each with the message that it receives, and their sum. rounds: how often the route
    through the stages after any x is in its path of `even_ns`: twice where m >= p, else at least one time.

    (p+1, n+1), FAR where nothing fits: least_before[x, boundary]: the least H of stages 0 .. x-1 that end at the boundary.
    least_after[x, boundary]: the least S of stages x .. p-1 that begin at the boundary. best_before[x, boundary]: the least,
    over such stages 0 .. x-1, of the largest `need` of any. even_before[x, boundary]: likewise of `even_ns`, to which each ns
    that S is above the least adds `rounds` ns.
    """

    def __init__(self, instance: Instance, out_of_time: Callable[[], bool]) -> None:
        """Build all tables. Raises TimeoutError where out_of_time returns true."""
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
        """A lower bound in ns on the iteration of any partition; FAR where none fits.

        Proof: each stage is a span, and no iteration is below the `need` of any; this is the least largest one.
        """
        return int(self.best_before[-1, -1])

    def through_ns(self, x: int, f: Integers, b: Integers, after: Integers) -> Integers:
        """The longest of the paths through stage x, in ns, without H.

        f, b: passes of the stage. after: S. No iteration with such a stage is below the sum of H and this: the paths are chains
        of passes that wait for one another.
        """
        m, warm_up = self.micro_batches, self.stages - 1 - x
        if warm_up < m:
            return (m - warm_up) * (f + b) + np.maximum(after, warm_up * f) + np.maximum(after, warm_up * b)
        return np.maximum(m * (f + b), f + b + after + (m - 1) * np.maximum(f, b))

    def even_ns(self, x: int, f: Integers, b: Integers, after: Integers) -> Integers:
        """The path through stage x that waits for the first and the last micro-batch's route, in ns, without H.

        f, b: passes of the stage. after: S. No iteration is below the sum of H and this: it is one of the paths of
        `through_ns`, which takes S in each maximum.
        """
        m, warm_up = self.micro_batches, self.stages - 1 - x
        if warm_up < m:
            return (m - warm_up) * (f + b) + 2 * after
        return f + b + after + (m - 1) * np.maximum(f, b)

    def need(self, x: int) -> Integers:
        """(n+1, n+1): a lower bound in ns on the iteration of partitions with each span as stage x; FAR where there are none.

        Proof: its H and S are not below the least of any stages before and after the span, nor T below the paths with them.
        """
        if x in self._needs:
            return self._needs[x]
        before, after = self.least_before[x][:, None], self.least_after[x + 1]
        possible = self._may(x) & (before < FAR) & (after < FAR)
        need = np.where(possible, before + self.through_ns(x, self.f, self.b, after), FAR)
        if self.stages * self.boundaries**2 <= LARGEST_TABLES:
            self._needs[x] = need
        return need

    def slowest(self, limit: int) -> list[int]:
        """For each stage, the longest forward or backward pass in ns that a stage before it has in any partition up to the
        limit.

        Proof: a partition that is not above the limit has only spans whose `need` is not above it.
        """
        slowest = [0]
        for x in range(self.stages - 1):
            spans = self.need(x) <= limit
            longest = [int(passes.max(where=spans, initial=0)) for passes in (self.f, self.b)]
            slowest.append(max(slowest[-1], *longest))
        return slowest

    def _may(self, x: int) -> Booleans:
        """(n+1, n+1): whether each span is not empty and fits the memory of stage x."""
        return self.fits(x, self._boundary[:, None], self._boundary)

    def _before(self, x: int) -> None:
        """Fill the row of least_before for the stages up to x."""
        times = np.where(self._may(x), self.t, FAR)
        self.least_before[x + 1] = np.minimum((self.least_before[x][:, None] + times).min(axis=0), FAR)

    def _after(self, step: int) -> None:
        """Fill one row of least_after, for the last `step` + 1 stages."""
        x = self.stages - 1 - step
        times = np.where(self._may(x), self.t, FAR)
        self.least_after[x] = np.minimum((self.least_after[x + 1] + times).min(axis=1), FAR)

    def _best(self, x: int) -> None:
        """Fill the rows of best_before and even_before for the stages up to x."""
        need = self.need(x)
        even = self.least_before[x][:, None] + self.even_ns(x, self.f, self.b, self.least_after[x + 1])
        even = np.where(need < FAR, even, FAR)
        self.best_before[x + 1] = np.maximum(self.best_before[x][:, None], need).min(axis=0)
        self.even_before[x + 1] = np.maximum(self.even_before[x][:, None], even).min(axis=0)
