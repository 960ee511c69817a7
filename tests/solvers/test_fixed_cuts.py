"""Configurations with fixed cuts: rows of paths and memory, their bounds and plans, held against evaluation and brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from trainplan.formulations.joint.enumeration import solutions as enumerated
from trainplan.formulations.joint.evaluation import evaluate, malformed, violations
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    DeviceGroup,
    Instance,
    Schedule,
    ScheduleName,
    Solution,
)
from trainplan.formulations.joint.simulation import StageTimes, step_ns
from trainplan.formulations.joint.tables import Boundary, Tied
from trainplan.profiling.base.quantities import format_bytes
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.joint.branch_and_bound import MEMORY
from trainplan.solvers.joint.closed_form_bound import least_u_ns, quick_bound_ns
from trainplan.solvers.joint.fixed_cuts.critical_path import longest_path
from trainplan.solvers.joint.fixed_cuts.lp_bound import Relaxation
from trainplan.solvers.joint.fixed_cuts.priced_chain import NAMES, OF_UNITS, Multipliers
from trainplan.solvers.joint.fixed_cuts.search import fixed_cuts
from trainplan.solvers.joint.interleaved import interleaved
from trainplan.solvers.joint.memory_feasibility import minimum_memory
from trainplan.solvers.joint.memory_feasibility.greedy_fill import excess_bytes
from trainplan.solvers.joint.memory_feasibility.interleaved_memory import leanest
from trainplan.solvers.joint.memory_feasibility.minimum_memory import LeastMemory, explain, fits

import trainplan as tp
from tests.helpers.joint_instances import random_instance
from tests.helpers.sizes import some_and_all


def chunked(seed: int) -> Instance:
    """A random instance with one configuration of fixed cuts into four stages, interleaved on two groups or each on its own;
    some have a shared table."""
    rng = random.Random(seed)
    while (instance := random_instance(rng, units=7, options=3)).length < 4:
        pass
    other = instance.configurations[0]
    cuts = tuple(sorted(rng.sample(range(1, instance.length), 3)))
    tied = rng.choice([None, Tied(reduce_ns=rng.randrange(40))])
    interleaved = Schedule("interleaved", chunks=2, overlaps_messages=seed % 2 == 1)
    schedule = rng.choice([interleaved, Schedule("1f1b"), Schedule("gpipe")])
    chunks = replace(
        other,
        schedule=schedule,
        micro_batches=rng.choice([2, 4]),
        device_groups=(DeviceGroup((1,)),) * (4 // schedule.chunks),
        links=tuple(rng.randrange(2) for _ in range(3)),
        make_tied=lambda: tied,
        cuts=cuts,
    )
    memory = rng.choice([1, 2, 4]) * max(device_class.memory_bytes for device_class in instance.classes)
    classes = tuple(replace(device_class, memory_bytes=memory) for device_class in instance.classes)
    return replace(instance, configurations=(chunks,), cuttable=(True,) * (instance.length - 1), classes=classes)


def with_messages(instance: Instance, seed: int) -> Instance:
    """An instance like the one above, with bytes of messages."""
    rng = np.random.default_rng(seed)
    [chunks] = instance.configurations

    def sized(boundary: Boundary) -> Boundary:
        shape = boundary.message_forward_ns.shape[1:]
        sizes = [rng.integers(0, 60, shape) if rng.random() < 0.8 else None for _ in range(2)]
        return replace(boundary, message_forward_bytes=sizes[0], message_backward_bytes=sizes[1])

    tables = tuple(replace(table, boundaries=tuple(map(sized, table.boundaries))) for table in chunks.tables)
    return replace(instance, configurations=(replace(chunks, make_tables=lambda: tables),))


def solutions(instance: Instance) -> Iterator[Solution]:
    """All solutions of its one configuration, whether they fit or not."""
    [configuration] = instance.configurations
    assert configuration.cuts is not None
    counts = [len(instance.table(configuration, 0, l).options) for l in range(instance.length)]
    for choice in product(*map(range, counts)):
        solution = Solution(0, configuration.cuts, choice)
        if not malformed(instance, solution):
            yield solution


def choices(relaxation: Relaxation, rng: random.Random, count: int) -> Iterator[np.ndarray]:
    """Random choices whose states agree."""
    instance, chain = relaxation.chain.instance, relaxation.chain
    for _ in range(count):
        choice = np.array([rng.randrange(len(table.options)) for table in chain.tables], np.intp)
        if not malformed(instance, relaxation.solution(choice)):
            yield choice


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_what_evaluation_says(seed: int) -> None:
    """For any choice the longest path is its step, every other path is no longer, and each site's largest row is its peak."""
    instance, rng = chunked(seed), random.Random(seed)
    relaxation = Relaxation(instance, 0, 0.0)
    paths = []
    for choice in choices(relaxation, rng, 12):
        evaluation = evaluate(instance, relaxation.solution(choice))
        times = relaxation.chain.times(choice)
        for name in NAMES:
            assert times[name].tolist() == [getattr(stage.times, name) for stage in evaluation.stages]
        paths.append(longest_path(relaxation.configuration, times, relaxation.tied_ns))
        assert paths[-1].length_ns(times) == evaluation.time_ns
        assert all(path.length_ns(times) <= evaluation.time_ns for path in paths)
        for group, excess in enumerate(relaxation.excess(relaxation.sizes(choice))):
            peak = max(stage.peak_bytes for stage in evaluation.stages[group :: len(relaxation.group_memories)])
            assert excess.max() + instance.limit_bytes(relaxation.configuration.device_groups[0]) == peak


def test_no_choice_needs_less_than_the_bound_on_memory_and_one_needs_what_is_reported() -> None:
    """By brute force; mostly the two are the same."""
    exact = interleaving = 0
    for seed in range(160):
        instance = with_messages(chunked(seed), seed) if seed % 2 else chunked(seed)
        limit = instance.limit_bytes(instance.configurations[0].device_groups[0])
        excesses = [evaluate(instance, solution).peak_bytes - limit for solution in solutions(instance)]
        lean = leanest(instance, 0)
        if not excesses:
            assert lean.solution is None
            continue
        assert lean.bound_bytes <= min(excesses) <= lean.excess_bytes, seed
        if lean.solution is not None:
            assert evaluate(instance, lean.solution).peak_bytes - limit == lean.excess_bytes, seed
        if instance.configurations[0].schedule.chunks > 1:
            interleaving += 1
            exact += lean.bound_bytes == lean.excess_bytes
    assert interleaving >= 40 and exact > interleaving / 2


def test_what_no_enumeration_settles_is_reported_with_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits by the bound; the reason names it together with what some choice needs."""
    monkeypatch.setattr(minimum_memory, "MOST_ENUMERATED", 0)
    bounded = 0
    for seed in range(160):
        instance = with_messages(chunked(seed), seed)
        lean = leanest(instance, 0)
        limit = instance.limit_bytes(instance.configurations[0].device_groups[0])
        if instance.configurations[0].schedule.chunks == 1 or lean.solution is None or lean.bound_bytes == lean.excess_bytes:
            continue
        few, some = (instance.with_memory(limit + lean.bound_bytes + more) for more in (-1, 0))
        reason, result = explain(few), tp.solve(few, "cpsat", cold=True, workers=1)
        assert reason is not None and (reason.bound_bytes, result.status) == (limit + lean.bound_bytes, "infeasible"), seed
        assert f"each needs at least {format_bytes(reason.bound_bytes)}" in str(reason)
        assert reason.least_memory_bytes == limit + lean.excess_bytes
        assert explain(some) is None and fits(some) is None
        assert fits(instance.with_memory(reason.least_memory_bytes)) is True
        bounded += 1
    assert bounded >= 3


@pytest.mark.parametrize("seed", range(60))
def test_stages_of_unlike_limits_are_filled_to_the_least(seed: int) -> None:
    """A small group may need a unit that the next one would take, too."""
    rng = random.Random(seed)
    instance = random_instance(rng, units=5, options=2)
    while len(instance.configurations[0].device_groups) < 2 or instance.configurations[0].schedule.chunks > 1:
        instance = random_instance(rng, units=5, options=2)
    groups = len(instance.configurations[0].device_groups)
    largest = max(each.memory_bytes for each in instance.classes)
    classes = tuple(DeviceClass(f"c{x}", 1, rng.randint(1, 2 * largest), None) for x in range(groups))
    apart = tuple(DeviceGroup(tuple(int(x == y) for y in range(groups))) for x in range(groups))
    unlike = replace(
        instance, classes=classes, configurations=(replace(instance.configurations[0], device_groups=apart, cuts=None),)
    )
    possible = [solution for solution in enumerated(unlike) if solution is not None]
    excesses = [excess_bytes(unlike, solution) for solution in possible]
    if possible:
        assert fits(unlike) == (min(excesses) <= 0)
        least = LeastMemory(unlike).least()
        assert least is not None and least[1] == excess_bytes(unlike, least[0])
        assert least[1] == min(excesses) or least[1] <= 0 >= min(excesses)


def test_interleaved_configurations_that_do_not_fit_are_explained() -> None:
    """The search proves it on its own; with the memory that the reason names something fits, and not with a byte less."""
    for schedule in ("all", "interleaved"):
        instance = tp.build(
            "joint", model="llama3-8b", cluster="h100:8", batch=16, sequence=8192, schedule=schedule, memory="9GiB"
        )
        result = tp.solve(instance)
        assert result.status == "infeasible" and result.bound_source == MEMORY and result.reason is not None
        least = result.reason.least_memory_bytes
        assert fits(instance.with_memory(least)) is True
        assert fits(instance.with_memory(least - 1)) is False
        assert result.reason.state_bytes < least


@pytest.mark.parametrize("seed", range(20))
def test_the_least_sum_at_prices_is_that_of_all_choices(seed: int) -> None:
    instance, rng = chunked(seed), np.random.default_rng(seed)
    relaxation = Relaxation(instance, 0, 0.0)
    chain = relaxation.chain
    times = {name: rng.integers(0, 4, chain.stages).astype(float) for name in NAMES}
    units = {name: rng.integers(0, 4, chain.units).astype(float) for name in ("state_bytes", "kept_bytes", "work_bytes")}
    entering, returning = (rng.integers(0, 3, chain.units).astype(float) for _ in range(2))
    value, choice = chain.least(Multipliers(times, units, entering, returning))

    def total(choice: np.ndarray) -> float:
        sizes, all_times = relaxation.sizes(choice), chain.times(choice)
        of_times = sum(times[name] @ all_times[name] for name in NAMES)
        cuts = np.isin(np.arange(chain.units), chain.starts[1:])  # messages are those of cuts
        of_messages = ((entering * sizes.entering + returning * sizes.returning) * cuts).sum()
        return float(of_times + sum(units[name] @ sizes.columns[name] for name in units) + of_messages)

    every = [np.array(entry, np.intp) for entry in product(*(range(len(table.options)) for table in chain.tables))]
    agreed = [entry for entry in every if not malformed(instance, relaxation.solution(entry))]
    if not agreed:
        assert value == inf or value >= 2**53
        return
    assert value == pytest.approx(total(choice)) == pytest.approx(min(map(total, agreed)))
    assert set(OF_UNITS) < set(NAMES)


@pytest.mark.parametrize("count", some_and_all(20, 75))
def test_no_solution_is_below_the_bound_and_plans_fit(count: int) -> None:
    """The bound is mostly tight, and the plans are mostly the best ones, on instances small enough for brute force."""
    met = {"infeasible": 0, "solved": 0, "tight": 0, "optimal": 0}
    for seed in range(count):
        instance = chunked(seed)
        steps = [evaluate(instance, solution).time_ns for solution in solutions(instance) if not violations(instance, solution)]
        search = Search(judge(instance))
        left = fixed_cuts(instance, 0, 0.0, search)
        if not steps:
            assert search.best is None
            met["infeasible"] += 1
            continue
        bound = min(left, inf if search.objective is None else search.objective)
        assert bound <= min(steps)
        if search.best is not None:
            assert not violations(instance, search.best) and search.objective is not None
            met["optimal"] += search.objective == min(steps)
            met["tight"] += bound >= 0.9 * min(steps)
        met["solved"] += 1
    assert met["infeasible"] and met["solved"] > count / 3
    assert met["tight"] > 0.6 * met["solved"] and met["optimal"] > 0.6 * met["solved"], met


@pytest.mark.parametrize("seed", range(60))
def test_no_step_is_below_the_closed_form_of_fixed_cuts(seed: int) -> None:
    """Whatever the memory."""
    instance = chunked(seed)
    [configuration] = instance.configurations
    bound = closed_form_ns(instance, configuration)
    assert bound <= quick_bound_ns(instance, configuration)
    assert all(
        quick_bound_ns(instance, configuration) <= evaluate(instance, solution).time_ns for solution in solutions(instance)
    )


@pytest.mark.parametrize(("schedule", "chunks", "bubble"), [("interleaved", 2, 3 / 16), ("1f1b", 1, 3 / 8)])
def test_the_closed_form_of_fixed_cuts_fills_the_pipeline(schedule: str, chunks: int, bubble: float) -> None:
    """For equal stages the bound has all of the bubble: (p - 1) / (v m) of the passes."""
    model = load_model("gpt2", dtype="float32").with_fields(n_layer=32, n_embd=64, n_head=4, vocab_size=64, n_positions=64)
    cuts = None if chunks > 1 else [f"block{l}.attention" for l in (8, 16, 24)]
    request = {"model": model, "cluster": "rtx-titan-8", "batch": 64, "schedule": schedule, "micro_batches": 8, "pipeline": 4}
    instance = tp.build("joint", **request, cuts=cuts)
    [configuration] = instance.configurations
    passes = 8 * least_u_ns(instance, configuration).sum() / 4
    assert configuration.schedule.chunks == chunks
    assert closed_form_ns(instance, configuration) == pytest.approx((1 + bubble) * passes, rel=0.1)


def test_interleaved_stages_of_a_whole_model_are_solved_to_a_small_gap() -> None:
    request = {"model": "bert-huge-48", "cluster": "rtx-titan-8", "batch": 64, "memory": "8GiB"}
    instance = tp.build("joint", schedule="interleaved", pipeline=4, micro_batches=8, **request)
    [configuration] = instance.configurations
    assert configuration.cuts == (13, 25, 37, 49, 61, 73, 85)
    search = Search(judge(instance), gap=1e-4)
    bound = interleaved(instance, 0, 0.0, search)
    assert search.objective is not None and not violations(instance, search.best)
    assert search.objective * 0.98 < bound <= search.objective


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_longest_paths_are_as_long_as_the_simulated_step(name: ScheduleName) -> None:
    """As long as the step that the formulation simulates, and no other path that is met is longer."""
    rng = np.random.default_rng(11)
    for _ in range(300):
        stages, m = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        configuration = Configuration(
            schedule=Schedule(name),
            micro_batches=m,
            device_groups=(DeviceGroup((1,)),) * stages,
            links=(0,) * (stages - 1),
            make_tables=tuple,
        )
        tied = int(rng.integers(0, 2) * rng.integers(0, 40))
        paths = []
        for _ in range(3):
            times = {one_name: rng.integers(0, rng.choice([2, 50]), stages) for one_name in NAMES}
            step = step_ns(configuration, [StageTimes(**{k: int(v[x]) for k, v in times.items()}) for x in range(stages)], tied)
            paths.append(longest_path(configuration, times, tied))
            assert paths[-1].length_ns(times) == step
            assert all(path.length_ns(times) <= step for path in paths)
