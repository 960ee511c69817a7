"""AMP's other planner: simulated annealing over degrees and domino tilings of the devices (Section 6.3, Algorithm 2).

    t = 1; s = a strategy at random
    each iteration    t = cool_down(t)                       geometric, down to COLDEST in the last iteration
                      next.tmp or next.dp at random          the other one of the two stays
                      next.mbs at random
                      next.placement = a random tiling       see `placements`
                      next.a = pipe_ast(next)                as in Algorithm 1
                      accept with probability e^(min(cost - next_cost, 0) / t)
    run the `top` accepted strategies of least cost

tmp, dp and mbs are the degrees of tensor and data parallelism and the micro-batch size, t the temperature. Readings: line 14
has pipe_ast(s); it can only mean `next`, whose stages those are. Lines 8 and 17 draw from randn(), the normal distribution; a
coin and a probability are meant, so that draws are uniform. Costs count in units of the first strategy's, for t begins at 1
whatever the seconds. Degrees whose dominoes tile no mesh cannot be drawn; dp or tmp beyond the mesh's longer side is among
them, so that this planner never tries pure data parallelism on many nodes.
"""

from __future__ import annotations

from math import exp

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.solvers.cluster.amp import TOP, Candidate, assigned, by_time, estimated, outcome, report
from trainplan.solvers.cluster.placements import Tilings, mesh_shape
from trainplan.solvers.core.search import Outcome, Search

ITERATIONS = 500
COLDEST = 0.005


def simulated_annealing(instance: Instance, search: Search) -> Outcome:
    """The method `simulated-annealing`: AMP's Algorithm 2, which draws strategies at random, accepts them by simulated
    annealing, and keeps the best that fits the memory. The search's seed decides all random choices; the outcome has no lower
    bound.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported.

    Options of the search: `iterations`, the number of draws (500); `top`, the number of accepted strategies that the outcome's
    statistics list."""
    iterations = search.options.get("iterations") or ITERATIONS
    strategies = RandomStrategies(instance, np.random.default_rng(search.seed))
    if not strategies.sizes:
        rows, columns = strategies.tilings.rows, strategies.tilings.columns
        return Outcome(message=f"no domino of tmp x dp devices tiles the mesh of {rows} x {columns}")
    generator = strategies.generator
    current = start = strategies.strategy(strategies.start())
    record = {current.solution: current}
    report(instance, search, current)
    accepted = count = 0
    for index in range(iterations):
        if search.out_of_time():
            break
        temperature = COLDEST ** ((index + 1) / iterations)
        following = strategies.strategy(strategies.neighbour(current.solution.degrees))
        count += 1
        loss = min(current.time_ns - following.time_ns, 0) / max(1, start.time_ns)
        if generator.random() < exp(loss / temperature):
            current = following
            record[current.solution] = current
            report(instance, search, current)
            accepted += 1
    listed = by_time(record.values())[: search.options.get("top") or TOP]
    return outcome(instance, search, listed, count + 1, accepted=accepted, start_ns=start.time_ns, mesh=mesh_shape(instance))


class RandomStrategies:
    """Draws random strategies of an instance (Algorithm 2 of AMP).

    generator: the source of all random choices. tilings: random tilings of the mesh of devices by dominoes (rectangles of
    devices, one for each pipeline stage). sizes: for every pair (tensor-parallel, data-parallel degree) whose dominoes tile the
    mesh, the degrees of parallelism with every possible micro-batch size."""

    def __init__(self, instance: Instance, generator: np.random.Generator) -> None:
        self.instance, self.generator = instance, generator
        self.tilings = Tilings(*mesh_shape(instance), generator)
        self.sizes: dict[tuple[int, int], list[Degrees]] = {}
        for degrees in instance.degrees():
            if self.tilings.exists(degrees.tmp, degrees.dp):
                self.sizes.setdefault((degrees.tmp, degrees.dp), []).append(degrees)

    def start(self) -> Degrees:
        """Degrees of parallelism and a micro-batch size drawn at random, with which annealing begins."""
        return self._drawn(list(self.sizes))

    def neighbour(self, degrees: Degrees) -> Degrees:
        """Degrees for the next strategy of annealing: a coin decides whether the tensor-parallel or the data-parallel degree is
        kept; the other degree and the micro-batch size are drawn at random. degrees: the degrees of the present strategy."""
        degree, position = (degrees.dp, 1) if self.generator.random() > 0.5 else (degrees.tmp, 0)
        return self._drawn([size for size in self.sizes if size[position] == degree])

    def _drawn(self, possible: list[tuple[int, int]]) -> Degrees:
        """Degrees and a micro-batch size drawn at random. possible: the pairs (tensor-parallel, data-parallel degree) to draw
        from."""
        sizes = self.sizes[possible[self.generator.integers(len(possible))]]
        return sizes[self.generator.integers(len(sizes))]

    def strategy(self, degrees: Degrees) -> Candidate:
        """Draw a strategy with given degrees of parallelism and estimate its costs: its placement is a random tiling of the
        mesh of devices, its layers are assigned optimally for that placement."""
        dominoes = self.tilings.draw(degrees.tmp, degrees.dp)
        placement = self.tilings.placement(dominoes, degrees.tmp, degrees.dp)
        return estimated(self.instance, assigned(self.instance, degrees, placement))
