"""Algorithms 1 to 3 of Galvatron-BMW: against straightforward versions, brute force, and the limits that the paper states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.layer_strategies import problem as layers
from trainplan.formulations.pipeline.batches import micro_batch_rule
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.instance_file import load
from trainplan.formulations.pipeline.problem import Solution, evaluate, violations
from trainplan.formulations.plan.strategy import decision_tree
from trainplan.formulations.strategy_spaces import SPACES
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.solvers.chain.galvatron_dp import galvatron_dp
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.core.solve import solve
from trainplan.solvers.pipeline.galvatron_bmw import (
    SearchedPartition,
    StageSearch,
    adjusted,
    adjustments,
    galvatron_base,
    galvatron_bmw,
)
from trainplan.solvers.pipeline.partitions import BALANCES, blocks, initial_partition, uniform_choice

from tests.helpers.instances import random_dict, random_instance
from tests.helpers.refusals import refused

SEEDS = st.integers(0, 10**9)


def random_pipeline(seed: int, most_layers: int = 6, devices: int = 4, kinds: int = 3) -> Instance:
    """Small numbers, so that ties, zero costs and tight memory are likely. Transitions depend on layouts."""
    rng = random.Random(seed)
    length = rng.randint(1, most_layers)
    slow, large = rng.choice([3, 1000]), rng.choice([20, 1000])

    def configuration(stages: int, micro_batches: int) -> dict[str, Any]:
        tree = decision_tree(devices // stages)
        strategies = rng.sample(tree, rng.randint(1, min(3, len(tree))))
        layouts = list(dict.fromkeys(strategy.layout for strategy in strategies))
        options = [
            [
                {
                    "strategy": str(strategy),
                    "time_ns": (time := rng.randint(0, slow)),
                    "sync_ns": rng.randint(0, time),
                    "forward_bytes": rng.randint(0, large),
                    "backward_bytes": rng.randint(0, large),
                    "state_bytes": rng.randint(0, large),
                }
                for strategy in strategies
            ]
            for _ in range(kinds)
        ]
        moves = [{pair: rng.randint(0, slow // 2) for pair in product(layouts, layouts)} for _ in range(2)]
        return {
            "stages": stages,
            "micro_batches": micro_batches,
            "schedule": rng.choice(["1f1b", "gpipe"]),
            "options": options,
            "transitions_ns": [[[table[a.layout, b.layout] for b in strategies] for a in strategies] for table in moves],
            "entries_ns": [[rng.randint(0, slow // 2) for _ in strategies] for _ in range(2)],
        }

    numbers = [(p, m) for p in (1, 2, 4) if p <= length and devices % p == 0 for m in (1, 2, 4)]
    return load(
        {
            "problem": "pipeline",
            "version": 1,
            "devices": devices,
            "memory_bytes": rng.randint(2 * large, 4 * large * length),
            "batch": 8,
            "layer_names": [f"layer {l}" for l in range(length)],
            "layer_kinds": [rng.randrange(kinds) for _ in range(length)],
            "boundary_kinds": [rng.randrange(2) for _ in range(length - 1)],
            "configurations": [configuration(*number) for number in numbers],
        }
    )


def paper_pipeline(model: str, gigabytes: int, batch: int = 64, space: str = "full") -> Instance:
    """A model of the paper's Table I on 8 devices, at the paper's number of micro-batches."""
    described = load_model(model)
    shapes = shapes_needed(described.tp_degrees(8), [1, 2, 4, 8], [batch, batch // 8])
    costs = PipelineCosts(estimate_shapes(described, load_cluster("rtx-titan-8"), shapes, 8), space=SPACES[space])
    return costs.instance(batch, gigabytes << 30, micro_batches=[1, 8])


def run(
    method: Callable[[Instance, Search], Outcome], instance: Instance, time_limit: float | None = None, **options: Any
) -> tuple[Search, Outcome]:
    def objective(solution: Solution) -> int:
        assert violations(instance, solution) == []
        return evaluate(instance, solution).time_ns

    search = Search(objective, time_limit, options=options)
    return search, method(instance, search)


def plain_algorithm_3(instance: layers.Instance, step: int) -> tuple[int, ...] | None:
    """The table of Eq. 4 entry by entry, then E_fwd from 0 up."""
    budget, infinite = instance.memory_bytes // step, float("inf")
    needs = [
        [-(-(int(f) + int(m)) // step) for f, m in zip(forward, kept, strict=True)]
        for forward, kept in zip(instance.forward_bytes, instance.state_bytes, strict=True)
    ]
    cost: dict[tuple[int, int, int], float] = {}
    parent: dict[tuple[int, int, int], int] = {}
    states = ((l, s) for l in range(instance.layers) for s in range(instance.options[l]))
    for (l, s), e in product(states, range(budget + 1)):
        left, own = e - needs[l][s], int(instance.time_ns[l][s])
        if left < 0:
            cost[l, e, s] = infinite
        elif l == 0:
            cost[l, e, s] = own
        else:
            moves = instance.transitions_ns[l - 1][:, s].tolist()
            through = [cost[l - 1, left, i] + move for i, move in enumerate(moves)]
            parent[l, e, s] = through.index(min(through))
            cost[l, e, s] = min(through) + own
    best = None
    last = instance.layers - 1
    largest_backward = max(int(b.max()) for b in instance.backward_bytes)
    for e in range(budget + 1):
        ends = [cost[last, e, s] for s in range(instance.options[last])]
        if min(ends) == infinite:
            continue
        choice, left = [ends.index(min(ends))], e
        for l in range(last, 0, -1):
            before = parent[l, left, choice[-1]]
            left -= needs[l][choice[-1]]
            choice.append(before)
        found = tuple(reversed(choice))
        past_safe = e * step > instance.memory_bytes - largest_backward
        if past_safe and layers.evaluate(instance, found).peak_bytes > instance.memory_bytes:
            break
        best = found
    return best


@settings(max_examples=200)
@given(SEEDS, st.sampled_from([5, 30, 100]), st.booleans())
def test_algorithm_3_equals_its_plain_version(seed: int, levels: int, layouts: bool) -> None:
    """With options that share layouts and with options that do not, choice for choice."""
    instance = random_instance(seed, 5, 4)
    if layouts:
        record = random_dict(random.Random(seed), 5, 4)
        for table in record["transitions_ns"]:
            for a, row in enumerate(table):
                row[:] = [table[a % 2][b % 2] for b in range(len(row))]
        instance = layers.load(record)
    step = max(1, instance.memory_bytes // levels)
    outcome = galvatron_dp(instance, Search(lambda _: 0, options={"granularity_bytes": step}))
    assert outcome.choice == plain_algorithm_3(instance, step)


@settings(max_examples=100)
@given(SEEDS, st.sampled_from([1, 5]), st.booleans())
def test_stages_are_searched_by_algorithm_3(seed: int, step: int, whole: bool) -> None:
    """Stages that share what they begin with are found as each would be alone."""
    instance = random_pipeline(seed)
    for index, configuration in enumerate(instance.configurations):
        weight = configuration.micro_batches if whole else 1
        stages = StageSearch(instance, index, step, weight)
        for number in range(configuration.stages):
            for first, last in combinations(range(-1, instance.layers), 2):
                in_flight = configuration.in_flight(number)
                alone = instance.span(configuration.tables, first + 1, last, in_flight, (weight, 1))
                expected = galvatron_dp(alone, Search(lambda _: 0, options={"granularity_bytes": step})).choice
                assert stages.stage(number, first + 1, last) == expected


def partitions(count: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, count), stages - 1):
        yield tuple(np.diff([0, *cuts, count]).tolist())


@settings(max_examples=150)
@given(SEEDS, st.sampled_from(BALANCES))
def test_initial_partitions_are_the_best_of_all(seed: int, balance: Any) -> None:
    instance = random_pipeline(seed, 8)
    rng = random.Random(seed)
    for index, configuration in enumerate(instance.configurations):
        choice = tuple(rng.randrange(len(configuration.tables.strategies)) for _ in range(instance.layers))
        given_blocks = blocks(instance, configuration.stages)

        def rank(partition: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            solution = Solution(index, given_blocks.layers_of(partition), choice)  # noqa: B023
            stages = evaluate(instance, solution).stages
            loads = {
                "layers": partition,
                "parameters": [stage.state_bytes for stage in stages],
                "memory": [stage.peak_bytes for stage in stages],
                "time": [stage.time_ns for stage in stages],
            }[balance]
            return max(loads), sum(count**2 for count in partition), partition

        best = min(partitions(given_blocks.count, configuration.stages), key=rank)
        assert initial_partition(instance, index, balance, choice) == best


def test_the_strategy_to_weigh_with_is_the_fastest_that_fits() -> None:
    instance = paper_pipeline("bert-huge-48", 12)
    for index, configuration in enumerate(instance.configurations):
        count = len(configuration.tables.strategies)
        even = blocks(instance).layers_of(initial_partition(instance, index, "layers"))
        costs = [evaluate(instance, Solution(index, even, (s,) * instance.layers)) for s in range(count)]
        fitting = [s for s in range(count) if costs[s].peak_bytes <= instance.memory_bytes]
        best = min(fitting, key=lambda s: costs[s].time_ns) if fitting else min(range(count), key=lambda s: costs[s].peak_bytes)
        assert uniform_choice(instance, index) == (best,) * instance.layers


def test_partitions_count_blocks() -> None:
    """34 layers are 32 blocks: the embedding goes with the first and the head with the last."""
    instance = paper_pipeline("bert-huge-32", 16)
    assert instance.layers == 34
    found = blocks(instance)
    assert (found.count, found.layers_of((14, 18)), found.layers_of((32,))) == (32, (15, 19), (34,))
    assert blocks(instance, 34).count == 34
    assert blocks(paper_pipeline("swin-huge-32", 16)).count == 32


@given(SEEDS)
def test_stages_have_the_layers_of_their_blocks(seed: int) -> None:
    instance = random_pipeline(seed, 8)
    found = blocks(instance)
    for partition in partitions(found.count, min(3, found.count)):
        stages = found.layers_of(partition)
        assert sum(stages) == instance.layers
        assert list(np.cumsum([0, *stages])) == [found.edges()[at] for at in np.cumsum([0, *partition])]


def test_micro_batches_of_figure_4() -> None:
    """8 micro-batches for a batch of 32 (BERT-Huge-48) and of 64 (T5-512/4-48), in four stages."""
    assert (micro_batch_rule(32, 4), micro_batch_rule(64, 4)) == (8, 8)
    assert [micro_batch_rule(batch, 2) for batch in (1, 4, 5, 8, 512)] == [1, 1, 2, 2, 8]
    assert micro_batch_rule(512, 1) == 1


def optimum(instance: Instance) -> int | None:
    """Brute force over configurations, partitions into layers, and strategies."""
    times = [
        evaluate(instance, solution).time_ns
        for index, configuration in enumerate(instance.configurations)
        for stages in partitions(instance.layers, configuration.stages)
        for choice in product(range(len(configuration.tables.strategies)), repeat=instance.layers)
        if not violations(instance, solution := Solution(index, stages, choice))
    ]
    return min(times, default=None)


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(["rule", "all"]), st.sampled_from(["micro-batch", "iteration"]))
def test_plans_are_valid_and_never_beat_brute_force(seed: int, micro_batches: str, stage_time: str) -> None:
    instance = random_pipeline(seed, 4)
    best = optimum(instance)
    common = {"micro_batches": micro_batches, "stage_time": stage_time, "granularity_bytes": 1}
    runs = [run(galvatron_base, instance, partition=balance, **common) for balance in BALANCES]
    for search, outcome in [*runs, run(galvatron_bmw, instance, **common)]:
        if search.objective is None:
            assert outcome.message is not None
        else:
            assert best is not None
            assert search.objective >= best
            times = [time for entry in outcome.statistics["searched"] for time in entry["times_ns"] if time is not None]
            assert search.objective == min(times)


def check_trace(stages: StageSearch) -> int:
    """Checks what Section IV-B and Appendix B state of every accepted p'; returns the number of partitions searched."""
    instance, index = stages.instance, stages.configuration
    start = uniform_choice(instance, index)
    time_balanced = stages.blocks.layers_of(initial_partition(instance, index, "time", start))
    found: list[SearchedPartition] = list(adjustments(stages))
    assert found[0].partition == initial_partition(instance, index, "memory", start)
    assert len({step.partition for step in found}) == len(found)
    for step in found[1:]:
        assert step.origin is not None
        assert step.validated is not None
        before, choice = step.origin.evaluation, step.origin.solution
        assert before is not None
        assert choice is not None
        assert step.partition in set(adjusted(step.origin.partition, before))
        layers_of = stages.blocks.layers_of(step.partition)
        assert step.validated == evaluate(instance, Solution(index, layers_of, choice.choice))
        bound = evaluate(instance, Solution(index, time_balanced, choice.choice))
        times, times_before = ([stage.time_ns for stage in x.stages] for x in (step.validated, before))
        assert max(times) <= max(times_before)
        assert step.validated.peak_bytes <= instance.memory_bytes
        assert step.validated.peak_bytes <= bound.peak_bytes
        if sum(times) >= sum(times_before):
            assert step.validated.time_balance >= before.time_balance - 1e-12
        if sum(s.peak_bytes for s in step.validated.stages) >= sum(s.peak_bytes for s in bound.stages):
            assert step.validated.memory_balance >= bound.memory_balance - 1e-12
        for entry in (before, step.validated):
            for degree in (entry.time_balance, entry.memory_balance):
                assert 0 <= degree <= 1 - 1 / stages.chosen.stages + 1e-12
    return len(found)


@settings(max_examples=150)
@given(SEEDS)
def test_every_accepted_step_keeps_the_three_limits(seed: int) -> None:
    instance = random_pipeline(seed, 10, devices=8)
    for index in range(len(instance.configurations)):
        check_trace(StageSearch(instance, index, 1))


@pytest.mark.parametrize(("model", "space"), [("bert-huge-48", "no-ckpt"), ("t5-512-4-48", "full"), ("swin-huge-32", "full")])
def test_paper_models_move_towards_time_balance(model: str, space: str) -> None:
    """The three limits at real size, where the largest stage time never rises and several partitions are searched."""
    instance = paper_pipeline(model, 16, space=space)
    searched = 0
    for index in range(len(instance.configurations)):
        stages = StageSearch(instance, index, instance.memory_bytes // 1000)
        searched += check_trace(stages)
    assert searched > 12


@pytest.mark.parametrize("method", [galvatron_base, galvatron_bmw])
def test_bert_huge_48(method: Callable[[Instance, Search], Outcome]) -> None:
    """Two runs give the same plan; one stage is searched alike by both methods."""
    instance = paper_pipeline("bert-huge-48", 12)
    search, outcome = run(method, instance)
    again, _ = run(method, instance)
    assert search.best == again.best
    assert search.objective is not None
    entries = outcome.statistics["searched"]
    counts = [instance.configurations[p].stages for p in range(len(instance.configurations))]
    assert [entry["configuration"].split()[0] for entry in entries] == [str(count) for count in sorted(set(counts))]
    base, _ = run(galvatron_base, instance)
    assert entries[0]["partitions"] == [[48]]
    assert base.objective is not None
    assert search.objective <= entries[0]["times_ns"][0]


def test_base_and_bmw_with_memory_to_spare() -> None:
    """On equal layers without a limit that binds, Base is even, and BMW's adjustment only lowers the slowest stage."""
    instance = paper_pipeline("bert-huge-48", 1000, space="dp+pp")
    for index, configuration in enumerate(instance.configurations):
        steps = list(adjustments(StageSearch(instance, index, instance.memory_bytes // 1000)))
        slowest = [max(stage.time_ns for stage in step.evaluation.stages) for step in steps if step.evaluation]
        assert min(slowest) == slowest[-1] <= slowest[0]
        assert initial_partition(instance, index, "layers") == (48 // configuration.stages,) * configuration.stages


def test_options_and_limits() -> None:
    instance = random_pipeline(1, 4)
    with refused("partition", problem="even", fix=("layers", "parameters", "memory", "time")):
        solve(instance, "galvatron-base", partition="even")
    with refused("micro_batches", problem="some", fix=("rule", "all")):
        solve(instance, "galvatron-bmw", micro_batches="some")
    for method in (galvatron_base, galvatron_bmw):
        _, outcome = run(method, instance, time_limit=1e-9)
        assert outcome.message is not None
        assert outcome.message.startswith("time ran out")
