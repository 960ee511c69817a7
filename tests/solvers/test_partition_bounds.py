"""The bounds of the exact search of pipeline-partition, each by its name, against all partitions of small instances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, violations
from trainplan.solvers.partition import prefixes as partition_prefixes
from trainplan.solvers.partition.heuristic import bottleneck_bound_ns, even_bound_ns
from trainplan.solvers.partition.prefixes import Prefixes, crossing_ns, front_of, stay_ns
from trainplan.solvers.partition.spans import FAR, Spans
from trainplan.solvers.partition.suffixes import (
    Suffixes,
    longer,
    longest_bound_ns,
    no_suffix,
    raised,
    route_bound_ns,
    undominated,
)

from tests.helpers.partition_instances import random_partition


class Partition(NamedTuple):
    """One partition of an instance: its stages as (first, end), their f and b with messages, and its iteration."""

    spans: Spans
    stages: list[tuple[int, int]]
    f: list[int]
    b: list[int]
    time_ns: int

    def before(self, x: int) -> int:
        """H, the sum of t over the stages before x."""
        return sum(self.f[:x]) + sum(self.b[:x])

    def after(self, x: int) -> int:
        """S, the sum of t over the stages after x."""
        return sum(self.f[x + 1 :]) + sum(self.b[x + 1 :])


def partitions(instance: Instance) -> Iterator[Partition]:
    spans = Spans(instance, lambda: False)
    for cuts in combinations(range(1, instance.sublayers), instance.stages - 1):
        if not violations(instance, Solution(cuts)):
            stages = list(pairwise((0, *cuts, instance.sublayers)))
            f, b = ([int(table[stage]) for stage in stages] for table in (spans.f, spans.b))
            yield Partition(spans, stages, f, b, evaluate(instance, Solution(cuts)).time_ns)


def all_partitions() -> Iterator[Partition]:
    for seed in range(60):
        yield from partitions(random_partition(seed, 8, 5, memory=seed % 2 == 0))


def test_through_ns() -> None:
    met = 0
    for one in all_partitions():
        paths = [one.before(x) + int(one.spans.through_ns(x, one.f[x], one.b[x], one.after(x))) for x in range(len(one.stages))]
        assert max(paths) <= one.time_ns
        met += max(paths) == one.time_ns
    assert met > 100


def test_even_ns() -> None:
    for one in all_partitions():
        for x in range(len(one.stages)):
            arguments = (x, np.int64(one.f[x]), np.int64(one.b[x]), one.after(x))
            assert one.spans.even_ns(*arguments) <= one.spans.through_ns(*arguments)


def test_need() -> None:
    for one in all_partitions():
        needs = [int(one.spans.need(x)[stage]) for x, stage in enumerate(one.stages)]
        assert one.spans.bound <= max(needs) <= one.time_ns


def test_slowest() -> None:
    for one in all_partitions():
        for x, slowest in enumerate(one.spans.slowest(one.time_ns)):
            assert max(one.f[:x] + one.b[:x], default=0) <= slowest


def test_route_bound_ns() -> None:
    for one in all_partitions():
        for x, (first, _) in enumerate(one.stages):
            way = one.after(x) + one.f[x] + one.b[x]
            assert route_bound_ns(one.spans, x, np.array([first]), np.array([way]))[0] <= one.time_ns


def suffix_of(one: Partition, stage: int, turning: bool = True) -> Suffixes:
    """The label of a partition's stages from `stage` on."""
    suffix = no_suffix(one.spans)
    while suffix.stage > stage:
        suffix = longer(one.spans, suffix, FAR - 1, turning)
        suffix = suffix.at(suffix.firsts[:, 0] == one.stages[suffix.stage][0])
    assert suffix.count == 1
    return suffix


def test_longest_bound_ns() -> None:
    for one in all_partitions():
        for x in range(len(one.stages)):
            suffix = suffix_of(one, x)
            assert longest_bound_ns(one.spans, x, suffix.firsts[:, 0], suffix.longest[:, 0])[0] <= one.time_ns
            assert suffix.routes[0, 0] == one.after(x) + one.f[x] + one.b[x]


def test_raised() -> None:
    """The example at the head of `suffixes`, and that no path of a stage before changes."""
    ways = np.array([[20, 10], [18, 12]])
    assert raised(ways, 5).tolist() == [[20, 15], [18, 13]]
    rng = np.random.default_rng(1)
    for _ in range(100):
        slowest, ways = int(rng.integers(0, 20)), rng.integers(0, 60, (5, 4))
        for c in range(slowest + 1):
            passes = c * np.arange(4)
            assert ((raised(ways, slowest) + passes).max(axis=1) == (ways + passes).max(axis=1)).all()


def test_undominated() -> None:
    """One of the two suffixes of the example stands for the other; with other firsts both are."""
    ways = np.array([[20, 10], [18, 12]])
    suffixes = Suffixes(1, np.array([[3], [3]]), ways, ways, np.array([1, 2]))
    assert undominated(suffixes, 5, lambda: False).routes.tolist() == [[18, 12]]
    apart = Suffixes(1, np.array([[3], [4]]), ways, ways, np.array([1, 2]))
    assert undominated(apart, 5, lambda: False).count == 2


def test_front_of() -> None:
    """The example at the head of `prefixes`, in two cells."""
    h, m = np.array([20, 13, 12, 10, 13]), np.array([30, 45, 40, 50, 45])
    front = front_of(h, m, np.array([1, 1, 1, 1, 2]), np.array([FAR, 7, 7]))
    assert (front.h.tolist(), front.m.tolist()) == ([10, 12, 20, 13], [50, 40, 30, 45])
    assert (front.starts.tolist(), front.cells.tolist()) == ([0, 0, 3, 4], [1, 1, 1, 2])


def test_crossing_ns() -> None:
    h, m = np.array([10, 12, 20]), np.array([50, 40, 30])
    front = front_of(h, m, np.zeros(3, np.int64), np.zeros(1, np.int64))
    assert crossing_ns(front, np.array([0]), np.array([5]), np.array([20])).tolist() == [40]
    rng = np.random.default_rng(2)
    for _ in range(200):
        way, longest = rng.integers(0, 60, 2)
        least = np.maximum(m + way, h + longest).min()
        assert crossing_ns(front, np.array([0]), np.array([way]), np.array([longest])).tolist() == [least]


def test_stay_ns() -> None:
    """With the whole way there and back after it, no path through any stage is longer than the iteration."""
    for one in all_partitions():
        m, p = one.spans.micro_batches, len(one.stages)
        for y, (_, end) in enumerate(one.stages):
            slowest = np.array([max(one.b[: y + 1])])
            stay = stay_ns(one.spans, y, 0, np.array([end]), np.array([one.f[y]]), np.array([one.b[y]]), slowest)
            way = 2 * one.after(y) if m >= p else one.after(y)
            assert one.before(y) + stay[0] + way <= one.time_ns


@pytest.mark.parametrize("every", [1, 2])
def test_bound_ns(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_prefixes, "LEFT", 32)
    higher = 0
    for seed in range(2000, 2030):
        known = list(partitions(random_partition(seed, 8, 6)))
        limit = sorted(one.time_ns for one in known)[len(known) // 2]
        prefixes = Prefixes(known[0].spans, limit, 1 + seed % 4, every, lambda: False)
        for one in [one for one in known if one.time_ns <= limit][:20]:
            for x in range(len(one.stages)):
                suffix = suffix_of(one, x)
                bound = prefixes.bound_ns(suffix)[0]
                assert bound <= one.time_ns
                higher += bound > suffix.bound[0]
    assert higher > 5


def test_even_bound_ns() -> None:
    for seed in range(60):
        instance = random_partition(seed, 8, 5)
        assert even_bound_ns(instance) <= min(one.time_ns for one in partitions(instance))


def test_bottleneck_bound_ns() -> None:
    higher = 0
    for seed in range(120):
        instance = random_partition(seed, 8, 5, memory=seed % 2 > 0)
        if fitting := list(partitions(instance)):
            bound = bottleneck_bound_ns(instance)
            assert bound <= min(one.time_ns for one in fitting)
            higher += bound > even_bound_ns(instance)
    assert higher > 10
