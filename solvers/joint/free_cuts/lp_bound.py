"""A lower bound for a configuration with free cuts: a linear program over mixtures of whole pipelines, with paths and memory.

It does for all cuts at once what `fixed_cuts.lp_bound` does for fixed ones. For weights w >= 0 of longest paths, which add up
to 1, and prices y >= 0 of a byte of each stage's memory, with limit E, every pipeline within the memory has

    step >= sum_r w_r path_r + sum_x y_x (memory_x - E)   >=   its least over all cuts and options,

a shortest path (`priced_chain`); memory_x is the memory of stage x while its last unit's pass runs, or its bytes on the host.
Where pipelines have few micro-batches, a mixture of paths bounds more sharply than any single one. Weights and prices come from
a linear program over mixtures of known pipelines, stage by stage, which agree at each cut about its position and the interface
states on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from trainplan.formulations.joint.problem import Instance
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.critical_path import Path, Times, longest_path
from trainplan.solvers.joint.fixed_cuts.lp_bound import EXACT, OVER, PathKey, solve_program
from trainplan.solvers.joint.fixed_cuts.priced_chain import BACK, BACKWARD, FORWARD, INTO, NAMES
from trainplan.solvers.joint.free_cuts.priced_chain import Booleans, FreeChain, FreePrices, Pipeline
from trainplan.solvers.joint.stages.option_tables import Floats

ROUNDS, SETTLED = 80, 1e-5  # of the linear program; the share by which the bound may stay below its value
FIRST = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)  # prices of memory, as multiples of its mean cost


@dataclass(frozen=True, eq=False)
class KnownPipeline:
    """A pipeline that the linear program has. times: a dict from the name of each stage time (such as forward_ns) to (p,), in
    ns. memory, host: (p,), the bytes of each stage on a device while its last unit's pass runs, and on its host."""

    pipeline: Pipeline
    times: Mapping[str, Integers]
    memory: Floats
    host: Integers


@dataclass(frozen=True, eq=False)
class DualPoint:
    """A point of the linear program's dual: a dict from the key of each path (a chain of passes through the schedule) to its
    weight, which add up to 1; memory, host: (p,), the prices in ns of a byte of each stage's memory on a device, and on its
    host."""

    weights: Mapping[PathKey, float]
    memory: Floats
    host: Floats

    def towards(self, other: DualPoint, share: float) -> DualPoint:
        """The dual point on the line from this point to another one, at a share of the way. other: the point at share 1; share
        0 is this point."""
        keys = {**self.weights, **other.weights}
        weights = {key: (1 - share) * self.weights.get(key, 0.0) + share * other.weights.get(key, 0.0) for key in keys}
        memory, host = ((1 - share) * a + share * b for a, b in ((self.memory, other.memory), (self.host, other.host)))
        return DualPoint(weights, memory, host)


class FreeCuts:
    """A lower bound for one configuration (number of stages and micro-batches, with a schedule) with free cuts, by a linear
    program over mixtures of whole pipelines, which is extended step by step. A path is a chain of passes through the schedule,
    no longer than the step; a dual point is a weight for each path and a price of each stage's memory.

    pipelines, paths: the pipelines and the paths that the linear program has so far. bound: a lower bound in ns on the step,
    infinite if no pipeline exists. point: the dual point that gives this bound. likely: cuts (first unit of every stage but the
    first) near which good plans are likely, the likeliest last."""

    def __init__(self, instance: Instance, configuration_index: int, bound: float, begins: Booleans | None = None) -> None:
        """instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
        configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's
        index in the instance. bound: a lower bound in ns that is known already. begins: (L, p), whether each stage may begin
        with each unit; by default as the instance allows."""
        self.chain, self.bound = FreeChain(instance, configuration_index), bound
        if begins is not None:
            self.chain.begins &= begins
        self.configuration = configuration = self.chain.configuration
        self.stages = configuration.stages
        self.tied_ns = 0 if configuration.tied is None else configuration.tied.reduce_ns
        self.memory_bytes = instance.limit_bytes(configuration.device_groups[0])
        self.host_bytes = instance.host_limit_bytes(configuration.device_groups[0])
        self.pipelines: list[KnownPipeline] = []
        self._keys: set[bytes] = set()
        self.paths: dict[PathKey, Path] = {}
        self.point: DualPoint | None = None
        self.likely: list[tuple[int, ...]] = []  # cuts of pipelines near the bound, the likeliest last

    def run(self, worth: Callable[[], bool], check_time: Callable[[], None]) -> None:
        """Raise the lower bound by rounds of the linear program, as far as it goes or as long as `worth` returns True. worth:
        returns whether a larger bound is still of use. check_time: called every round; it raises TimeoutError, which is passed
        on."""
        self._begin()
        if not self.pipelines:  # nowhere do states agree
            self.bound = inf
        best = -inf  # the largest value of any point
        for _ in range(ROUNDS if self.pipelines else 0):
            check_time()
            value, point, shares = self._solve()
            new = self._take_path({name: (shares * self._times_of(name)).sum(axis=0) for name in NAMES})
            self.point = self.point or point
            for tried in (point.towards(self.point, 0.5), point):
                least, pipeline = self.least(tried)
                if pipeline is None:
                    self.bound = inf
                    return
                new |= self._take(pipeline)
                if least > best:
                    best, self.point, new = least, tried, True
                    break
            self.bound = max(self.bound, best)
            if not new or not worth() or best >= value * (1 - SETTLED):
                return

    def least(self, point: DualPoint) -> tuple[float, Pipeline | None]:
        """The lower bound in ns that a dual point gives, a whole number, and the pipeline with the least sum of weighted times
        and priced memory. Infinite and None if no pipeline exists, because no options of neighbouring units agree on the layout
        of activations between them."""
        value, pipeline = self.chain.least(self.prices(point))
        constant, taken = self.constants_ns(point)
        return float(np.floor(value + constant - taken - EXACT * (value + constant + taken) - 1)), pipeline

    def prices(self, point: DualPoint) -> FreePrices:
        """The prices of stage times and memory that a dual point stands for: the weight of a stage time is the number of times
        that it occurs on the paths, weighted by the paths' weights. point: the dual point."""
        times = {
            name: np.asarray(sum(weight * self.paths[key].counts[name] for key, weight in point.weights.items()))[None]
            for name in NAMES
        }
        return FreePrices(times, point.memory[None], point.host[None])

    def constants_ns(self, point: DualPoint) -> tuple[float, float]:
        """The two parts of a dual point's lower bound that do not depend on the pipeline, in ns: the weighted times on paths
        that belong to no stage, which are added to the bound, and the price of the memory limits of all stages, which is
        subtracted from it."""
        paths = sum(weight * self.paths[key].constant_ns for key, weight in point.weights.items())
        return paths, float(point.memory.sum() * self.memory_bytes + point.host.sum() * (self.host_bytes or 0))

    def _begin(self) -> None:
        """Add the first pipelines to the linear program: the pipelines of least total work at a few prices of memory."""
        chain, m = self.chain, self.configuration.micro_batches
        often = dict.fromkeys((FORWARD, BACKWARD, INTO, BACK), m)
        even = {name: np.full((1, self.stages), often.get(name, 1) / self.stages) for name in NAMES}
        kinds = chain.tables.kinds
        spread = sum(float(np.ptp(kind.state + kind.kept)) for kind in kinds)
        mean = sum(float(np.ptp(kind.u_ns)) * m / self.stages for kind in kinds) / max(spread, 1.0)
        nothing = np.zeros((1, self.stages))
        for factor in FIRST:
            _, pipeline = chain.least(FreePrices(even, nothing + factor * mean, nothing))
            if pipeline is not None:
                self._take(pipeline)

    def _take(self, pipeline: Pipeline) -> bool:
        """Add a pipeline (a stage and an option for each unit) and its longest path to the linear program; returns whether the
        pipeline is new."""
        if pipeline.key in self._keys:
            return False
        chain = self.chain
        self._keys.add(pipeline.key)
        self.pipelines.append(KnownPipeline(pipeline, chain.times(pipeline), chain.memory(pipeline), chain.host(pipeline)))
        self._take_path(self.pipelines[-1].times)
        return True

    def _take_path(self, times: Times) -> bool:
        """Add the longest path at given stage times to the linear program; returns whether it is new. times: a dict from the
        name of each stage time (such as forward_ns) to (p,), in ns."""
        path = longest_path(self.configuration, times, self.tied_ns)
        new = path.key not in self.paths
        self.paths.setdefault(path.key, path)
        return new

    def _times_of(self, name: str) -> Integers:
        """One kind of time of each of the p stages of the K known pipelines, (K, p), in ns. name: the stage time's name, such
        as "forward_ns".
        """
        return np.stack([known.times[name] for known in self.pipelines])

    def _solve(self) -> tuple[float, DualPoint, Floats]:
        """Solve the linear program over mixtures of the K known pipelines: its value in ns, infinite if every mixture exceeds
        the memory; its dual point; and the share of each pipeline in each stage, (K, p)."""
        count, stages, paths = len(self.pipelines), self.stages, list(self.paths.values())
        counts = {name: np.stack([path.counts[name] for path in paths]) for name in NAMES}
        by_path = np.sum([counts[name][:, None] * self._times_of(name)[None] for name in NAMES], axis=0)  # (paths, K, p)
        scale = float(by_path.sum(axis=2).max(axis=0).min()) or 1.0
        limits = [(np.stack([known.memory for known in self.pipelines]), self.memory_bytes)]
        if self.host_bytes is not None:
            limits.append((np.stack([known.host for known in self.pipelines]), self.host_bytes))
        agreed = self._agreement()
        rows = len(limits) * stages
        matrix = np.zeros((len(paths) + rows + 1 + len(agreed), 2 + count * stages))
        matrix[: len(paths), 0], matrix[: len(paths), 2:] = 1, -by_path.reshape(len(paths), -1) / scale
        shares = matrix[:, 2:].reshape(len(matrix), count, stages)
        for number, (sizes, limit) in enumerate(limits):
            for x in range(stages):
                row = len(paths) + number * stages + x
                matrix[row, 1], shares[row, :, x] = -1, sizes[:, x] / max(limit, 1)
        matrix[:, 2:] = shares.reshape(len(matrix), -1)
        matrix[len(paths) + rows, 2::stages] = 1
        matrix[len(paths) + rows + 1 :, 2:] = agreed
        equal = np.concatenate([[1.0], np.zeros(len(agreed))])
        lower = np.concatenate([[path.constant_ns / scale for path in paths], np.full(rows, -inf), equal])
        upper = np.concatenate([np.full(len(paths), inf), np.ones(rows), equal])
        values, duals = solve_program(matrix, lower, upper, np.concatenate([[1, OVER], np.zeros(count * stages)]))
        weights = np.maximum(duals[: len(paths)], 0.0)
        weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(paths), 1 / len(paths))
        prices = np.maximum(-duals[len(paths) : len(paths) + rows], 0.0).reshape(len(limits), stages) * scale
        prices = prices / np.array([[max(limit, 1)] for _, limit in limits])
        host = prices[1] if len(limits) > 1 else np.zeros(stages)
        point = DualPoint({key: float(w) for key, w in zip(self.paths, weights, strict=True) if w > 0}, prices[0], host)
        value = float(values[0]) * scale if values[1] < 1e-9 else inf
        self._note_likely(values[2:].reshape(count, stages))
        return value, point, values[2:].reshape(count, stages)

    def _note_likely(self, shares: Floats) -> None:
        """Append to `likely` the cuts near which good plans are likely: the mean cuts of a mixture of pipelines. shares: (K,
        p), the share of each of the K known pipelines in each of the p stages.
        """
        cuts = np.array([known.pipeline.cuts for known in self.pipelines]).reshape(len(self.pipelines), -1)
        mean = np.rint((shares[:, 1:] * cuts).sum(axis=0) / shares[:, 1:].sum(axis=0)).astype(int)
        mean = tuple(mean.tolist())
        if mean in self.likely:
            self.likely.remove(mean)
        self.likely.append(mean)

    def _agreement(self) -> Floats:
        """The equations that tie stages together in the linear program: at each cut, for each position of the cut and each pair
        of interface states (layouts of activations before and after it), the pipelines with this position and pair have equal
        shares in the stage before the cut and in the stage after it.

        Returns the left sides, which must be 0: (equations, K * p), over the shares of the K known pipelines in the p stages.
        """
        chain, rows = self.chain, list[Floats]()
        leaves = [chain.column("leave", known.pipeline) for known in self.pipelines]
        enters = [chain.column("enter", known.pipeline) for known in self.pipelines]
        for x in range(self.stages - 1):
            alike: dict[tuple[int, int, int], list[int]] = {}
            for number, known in enumerate(self.pipelines):
                cut = known.pipeline.cuts[x]
                alike.setdefault((cut, int(leaves[number][cut - 1]), int(enters[number][cut])), []).append(number)
            for numbers in alike.values():
                row = np.zeros((len(self.pipelines), self.stages))
                row[numbers, x], row[numbers, x + 1] = 1, -1
                rows.append(row.ravel())
        return np.array(rows).reshape(len(rows), len(self.pipelines) * self.stages)
