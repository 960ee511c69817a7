"""AutoPipe's planner for pipeline-partition (Section III-B): Algorithm 1, and the heuristic that moves the master stage.

f and b are the forward and backward times of blocks (sub-layers) or stages, p the number of stages, n that of blocks. Algorithm
1 makes the largest stage as small as it can be; with P the sums of f + b of the first blocks,

    time[i][j] = min over k of max(time[k][j-1], P_i - P_k)                            the first i blocks in j stages

time[.][j-1] does not fall and P_i - P_k does not rise with k, so the least maximum is where they cross, and the crossing moves
on with i: O(n p) steps in place of the paper's O(n^2 p) for the same table. Of equal k the smallest is taken, which makes the
last stages long, as in the authors' program (autopipe.cpp of Merak). One table holds the answers for all first parts.

The heuristic simulates partitions and follows the master stage i, on which the critical path spends the 1F1B phase:

    1  Algorithm 1 for the whole model.
    2  The stages after i are adjusted towards Eq. 1, for every s > i:  sum_{j=i+1..s} (f_j + b_j) <= (s - i) b_i.
    3  If i > 0: the first block of stage i goes to stage i - 1, with Algorithm 1 for the stages before i; or its last block
       goes to stage i + 1, with Algorithm 1 for the stages up to i. Where the master stage is then at most i: on to step 2.
    4  The best partition simulated is the answer.

The option `reading` chooses between the paper and the authors' program, where they differ or the paper is open:

- Step 2 names no moves. `paper`: from s = i + 1 on, the last block of s goes to s + 1 while Eq. 1 does not hold for s. (For s =
  p - 1 no move changes the left side.) `published`: Eq. 1 may be missed by a gap, and where it is missed by more, the first
  stage after i that can take the first block of the next and stay below the master's load takes it; the gap then grows by what
  the stages lacked.
- "If the master stage changes, stop": the adjusted partition is the last one whose master stage is still i. All that are
  simulated on the way may be the answer.
- Step 3 starts from the adjusted partition (`paper`), or from the one before (`published`).
- Partitions are followed where the master stage is at most i (`paper`); after the first move whatever it is (`published`). This
  one matters: benchmarks/pipeline_partition.py and the paper's models show the program's nearer the optimum.
- No stage is left without a block, and no partition is simulated twice.

Times are simulated pass by pass, with the warm-up, for any number of micro-batches; the program estimates them by the length of
one path. The paper does not consider memory: of the partitions tried, the best that fits is the answer here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.schedule.autopipe_recurrences import pass_ends
from trainplan.formulations.schedule.simulate import Work
from trainplan.solvers.core.search import Outcome, Search, first_fitting

Cuts = tuple[int, ...]
READINGS = ("paper", "published")
NEVER = 2**62


def algorithm_1(instance: Instance, search: Search) -> Outcome:
    """The method `algorithm-1`: the pipeline partition whose slowest stage takes the least forward plus backward time
    (Algorithm 1 of AutoPipe), if it fits the memory. The outcome has no lower bound.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    weights = (instance.forward_ns + instance.backward_ns).tolist()
    return first_fitting(instance, search, [Solution(partitioned(weights, instance.stages))], "Algorithm 1")


def autopipe(instance: Instance, search: Search) -> Outcome:
    """The method `autopipe`: run AutoPipe's heuristic, which simulates a sequence of pipeline partitions; the outcome has the
    fastest of these partitions that fits the memory, and no lower bound.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported. The search's option `reading`:
    paper, or published, which follows the authors' program where it differs from the paper."""
    planner = Planner(instance, search.options.get("reading") or READINGS[0])
    planner.run(search.out_of_time)
    outcome = first_fitting(instance, search, map(Solution, planner.by_time()), "the paper's search")
    outcome.statistics["simulated"] = len(planner.simulations)
    return outcome


def partitioned(weights: Sequence[int], stages: int) -> Cuts:
    """AutoPipe's Algorithm 1: the cuts (index of the first block of every stage but the first) with which the heaviest stage is
    as light as possible. weights: the weight (such as time in ns) of each block (sub-layer), in order. stages: the number of
    stages.

    `solvers.assignment.even_stages.balanced_cuts` solves the same problem, but may choose other cuts among those with an
    equally heavy stage."""
    return BalanceTable(weights, stages).bounds(len(weights), stages)[1:-1]


class BalanceTable:
    """Algorithm 1's table: for the first i blocks of a chain, divided into j stages, the least possible weight of the heaviest
    stage; for all i and for all j up to a number of stages.

    before: the sum of weights before each block, then the sum of all. least[j][i]: the weight of the heaviest stage, if the
    first i blocks are divided into j stages in the best way."""

    def __init__(self, weights: Sequence[int], stages: int) -> None:
        before = self.before = [0, *accumulate(weights)]
        self.least = [[], before]  # [j][i], from i = j on
        for j in range(2, stages + 1):
            fewer, row, k = self.least[j - 1], [0] * j, j - 1
            for i in range(j, len(before) - stages + j):
                while k < i and fewer[k] < before[i] - before[k]:
                    k += 1
                at, earlier = (fewer[k] if k < i else NEVER), (before[i] - before[k - 1] if k >= j else NEVER)
                row.append(min(at, earlier))
            self.least.append(row)

    def bounds(self, blocks: int, stages: int) -> Cuts:
        """The best partition of the first `blocks` blocks into `stages` stages: the index of the first block of every stage,
        and of the block after the last."""
        ends = [blocks]
        for j in range(stages, 1, -1):
            end = ends[-1]
            ends.append(bisect_left(self.before, self.before[end] - self.least[j][end], j - 1, end - 1))
        return (0, *reversed(ends))


class Planner:
    """AutoPipe's heuristic on one instance: it simulates partitions of the sub-layers into stages and moves blocks (sub-layers)
    away from the master stage, the stage on which the critical path spends the 1F1B phase.

    A partition is given by its bounds: the first sub-layer of each stage, then the number of sub-layers. simulations: for every
    partition simulated, by its bounds, the time in ns and the master stage. reading: "paper" to follow the paper, or
    "published" to follow the authors' program where it differs from the paper."""

    def __init__(self, instance: Instance, reading: str = READINGS[0]) -> None:
        self.stages, self.micro_batches = instance.stages, instance.micro_batches
        self.forward, self.backward = (
            [0, *accumulate(times.tolist())] for times in (instance.forward_ns, instance.backward_ns)
        )
        self.transfer = [0, *instance.transfer_ns.tolist(), 0]  # by the first sub-layer after the cut
        self.table = BalanceTable((instance.forward_ns + instance.backward_ns).tolist(), self.stages)
        self.before = self.table.before
        self.published = reading == "published"
        self.simulations: dict[Cuts, tuple[int, int]] = {}

    def run(self, out_of_time: Callable[[], bool] = lambda: False) -> None:
        """Simulate partitions by the heuristic's steps 1 to 3, until no partition is left to follow or `out_of_time` returns
        True; results are kept in `simulations`. out_of_time: returns True once the search should end."""
        start = self.table.bounds(len(self.before) - 1, self.stages)
        self.simulated(start)
        waiting, known = deque([start]), {start}
        while waiting and not out_of_time():
            bounds = waiting.popleft()
            master = self.simulated(bounds)[1]
            if self.published:
                self._adjusted_as_published(bounds, master)
            else:
                bounds = self._adjusted(bounds, master)
            for to_front, moved in self._moved(bounds, master):
                if moved in known:
                    continue
                if self.simulated(moved)[1] <= master or (self.published and to_front):
                    known.add(moved)
                    waiting.append(moved)

    def by_time(self) -> list[Cuts]:
        """The cuts (first sub-layer of every stage but the first) of all partitions simulated, the fastest first; of equally
        fast ones, the one found first."""
        return [bounds[1:-1] for bounds in sorted(self.simulations, key=lambda bounds: self.simulations[bounds][0])]

    def simulated(self, bounds: Cuts) -> tuple[int, int]:
        """The simulated time of the iteration in ns, and the master stage, of a partition; kept in `simulations`. bounds: first
        sub-layer of each stage, then the number of sub-layers."""
        if bounds not in self.simulations:
            f, b = ([sums[end] - sums[first] for first, end in pairwise(bounds)] for sums in (self.forward, self.backward))
            moves = tuple(self.transfer[first] for first in bounds[1:-1])
            ends = pass_ends(Work(tuple(f), tuple(b), moves), self.micro_batches)
            self.simulations[bounds] = ends.time_ns, ends.master
        return self.simulations[bounds]

    def _adjusted(self, bounds: Cuts, master: int) -> Cuts:
        """Step 2 of the heuristic as in the paper: move the last blocks of stages after the master stage to the stages that
        follow them, until, for every s, the first s stages after the master together take no longer than s backward passes of
        the master stage (Eq. 1).

        bounds: first sub-layer of each stage, then the number of sub-layers. master: index of the master stage. The moves end
        when another stage would become the master stage; returns the bounds of the partition before that."""
        master_ns, start = self._backward(bounds, master), bounds[master + 1]
        for s in range(master + 1, self.stages - 1):
            while self.before[bounds[s + 1]] - self.before[start] > (s - master) * master_ns and bounds[s + 1] - bounds[s] > 1:
                moved = (*bounds[: s + 1], bounds[s + 1] - 1, *bounds[s + 2 :])
                if self.simulated(moved)[1] != master:
                    return bounds
                bounds = moved
        return bounds

    def _adjusted_as_published(self, bounds: Cuts, master: int) -> None:
        """Step 2 of the heuristic as the authors' program performs it: simulate the partitions that it goes through; results
        are kept in `simulations`. bounds: first sub-layer of each stage, then the number of sub-layers. master: index of the
        master stage."""
        master_ns, start, before = self._backward(bounds, master), bounds[master + 1], self.before
        heaviest = before[start] - before[bounds[master]] + self.transfer[bounds[master]]
        gap, s = 0, master + 1
        while s < self.stages:
            if before[bounds[s + 1]] - before[start] <= (s - master) * master_ns + gap:
                s += 1
                continue
            for t in range(master + 1, s):
                end = bounds[t + 1]
                grown = before[end + 1] - before[bounds[t]] + self.transfer[end]
                if heaviest > grown and bounds[t + 2] - end > 1:
                    break
            else:
                return
            moved = (*bounds[: t + 1], end + 1, *bounds[t + 2 :])
            if self.simulated(moved)[1] != master:
                return
            gap += max(0, before[end] - before[start] - ((t - master) * master_ns + gap))
            bounds, s = moved, t + 1

    def _backward(self, bounds: Cuts, stage: int) -> int:
        """The backward time in ns of one stage of a partition. bounds: first sub-layer of each stage, then the number of
        sub-layers. stage: the stage's index."""
        return self.backward[bounds[stage + 1]] - self.backward[bounds[stage]]

    def _moved(self, bounds: Cuts, master: int) -> Iterator[tuple[bool, Cuts]]:
        """Step 3 of the heuristic: yield up to two partitions (as bounds) with one block moved off the master stage, as pairs
        (flag, bounds). The flag is True if the master stage's first block moved to the stage before it; Algorithm 1 then
        balances the stages before the master stage anew. The flag is False if its last block moved to the stage after it; the
        stages up to and including the master stage are then balanced anew. Yields nothing if the master stage is the first
        stage."""
        if master == 0:
            return
        first, end = bounds[master], bounds[master + 1]
        if end - first > 1:
            yield True, (*self.table.bounds(first + 1, master), *bounds[master + 1 :])
        if master + 1 < self.stages and end - 1 > master:
            yield False, (*self.table.bounds(end - 1, master + 1), *bounds[master + 2 :])
