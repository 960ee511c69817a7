"""Free cuts at prices: shortest paths, weighted longest paths and guides, held against all solutions of tiny instances."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.tables import Tied
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.joint.fixed_cuts.priced_chain import NAMES
from trainplan.solvers.joint.free_cuts.configuration_search import Candidate
from trainplan.solvers.joint.free_cuts.lp_bound import FreeCuts
from trainplan.solvers.joint.free_cuts.pareto_fronts import Front, front
from trainplan.solvers.joint.free_cuts.priced_chain import FreeChain, FreePrices

import trainplan as tp
from tests.helpers.sizes import some_and_all
from tests.solvers.test_joint import least_step_ns, tiny_instance


def suited(seed: int) -> list[tuple[Instance, int]]:
    """The configurations of a random tiny instance that have free cuts, whole micro-batches, and several stages."""
    instance = tiny_instance(seed)
    return [
        (instance, index)
        for index, configuration in enumerate(instance.configurations)
        if configuration.stages > 1 and not configuration.schedule.sliced
    ]


def exact(seed: int, instance: Instance, index: int) -> Instance:
    """An instance with this configuration alone; every third with a table that both ends share."""
    configuration = instance.configurations[index]
    if seed % 3 == 0 and configuration.tied is None:
        configuration = replace(configuration, make_tied=lambda: Tied(reduce_ns=seed % 50))
    return replace(instance, configurations=(configuration,))


@pytest.mark.parametrize("seed", range(30))
def test_the_least_sum_at_prices_is_that_of_all_pipelines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for instance, index in suited(seed):
        only = exact(seed, instance, index)
        chain = FreeChain(only, 0)
        shape = (2, chain.stages)
        times = {name: rng.integers(0, 4, shape).astype(float) for name in NAMES}
        prices = FreePrices(times, rng.integers(0, 3, shape).astype(float), rng.integers(0, 3, shape).astype(float))
        sums = [[inf], [inf]]
        for solution in filter(None, solutions(only)):
            evaluation = evaluate(only, solution)
            for which in range(2):
                total = 0.0
                for x, stage in enumerate(evaluation.stages):
                    total += sum(times[name][which, x] * getattr(stage.times, name) for name in NAMES)
                    total += prices.memory[which, x] * last_pass_bytes(only, solution, x)
                    total += prices.host[which, x] * stage.host_bytes
                sums[which].append(total)
        before, values = chain.before(prices)
        after = chain.after(prices)
        for which in range(2):
            value, pipeline = chain.least(prices, which=which)
            assert value == values[which] == pytest.approx(min(sums[which]))
            if pipeline is None:
                continue
            solution = Solution(0, pipeline.cuts, chain.choice(pipeline))
            times_of = chain.times(pipeline)
            for x, stage in enumerate(evaluate(only, solution).stages):
                assert all(times_of[name][x] == getattr(stage.times, name) for name in NAMES)
                assert chain.memory(pipeline)[x] == last_pass_bytes(only, solution, x)
                assert chain.host(pipeline)[x] == stage.host_bytes
            own = sum(times[name][which] @ times_of[name] for name in NAMES)
            own += prices.memory[which] @ chain.memory(pipeline) + prices.host[which] @ chain.host(pipeline)
            assert own == pytest.approx(value)
            # What is before, of, and after any unit of it adds up to no more; of some way through each unit, to as much.
            costs, first_costs, last_costs = ([cost[kind][which] for kind in chain.kinds] for cost in chain.unit_costs(prices))
            for l in range(chain.units):
                kind = chain.tables.kinds[chain.kinds[l]]
                entered = before.first[l][which][:, kind.enter] + first_costs[l]
                entered = np.minimum(entered, before.inner[l][which][:, kind.enter])
                left = after.last[l][which][:, kind.leave] + last_costs[l]
                left = np.minimum(left, after.inner[l][which][:, kind.leave])
                assert (entered + costs[l] + left).min() == pytest.approx(value)


def last_pass_bytes(instance: Instance, solution: Solution, stage: int) -> int:
    """Bytes of a stage while its last unit's pass runs."""
    configuration = instance.configurations[0]
    (first, last), n, total = solution.spans()[stage], configuration.in_flight(stage), 0
    for l in range(first, last + 1):
        table, s = instance.table(configuration, stage, l), solution.choice[l]
        total += int(table.state_bytes[s]) + n * int(table.kept_bytes[s] + table.held_bytes[s])
    return total + int(table.work_bytes[s])


@pytest.mark.parametrize("count", some_and_all(50, 150))
def test_no_bound_by_weighted_paths_is_above_brute_force(count: int) -> None:
    """And pipelines up to the optimum are left by the guides, so that it is settled to the nanosecond."""
    near, tried = 0, 0
    for seed in range(7000, 7000 + count):
        for instance, index in suited(seed):
            only = exact(seed, instance, index)
            least = least_step_ns(only)
            cuts = FreeCuts(only, 0, 0.0)
            cuts.run(lambda: True, lambda: None)
            assert cuts.bound <= (inf if least is None else least)
            if least is None:
                continue
            tried, near = tried + 1, near + (cuts.bound >= 0.8 * least)
            for limit in (least, least - 1, 1.3 * least):
                search = Search(judge(only))
                candidate = Candidate(only, 0, search)
                candidate.prepare(limit, coarse=False)
                proven = candidate.priced(0.0)
                assert proven <= least
                search = Search(judge(only))
                candidate.search = candidate.exact.search = search
                assert candidate.guides is not None
                assert candidate.enumerated(limit, search.target, 10**6) == inf
                assert search.objective == (None if limit < least else least)
    assert near > 0.5 * tried > 0


@pytest.mark.parametrize("seed", range(20))
def test_columns_of_first_stages_need_no_more_than_counts(seed: int) -> None:
    """For first stages costs that come once are compared as one; for others not at all where it is hidden: fewer columns, not
    worse."""
    for instance, index in suited(800 + seed):
        candidate = Candidate(instance, index, Search(judge(instance)))
        span = np.array([0], np.intp), np.array([min(2, instance.length - 1)], np.intp), np.array([inf]), 1, np.array([inf])
        apart = front(candidate.exact, Front(*span, 1, False, ends_apart=True), 10**6)
        summed = front(candidate.exact, Front(*span, 1, True, ends_apart=False), 10**6)
        hidden = front(candidate.exact, Front(*span, 1, False, ends_apart=False, hidden_ns=10**12), 10**6)
        assert len(summed.columns) <= len(apart.columns) and len(hidden.columns) <= len(apart.columns)
        for column in apart.columns:
            alike = [c for c in summed.columns if (c.enter, c.leave) == (column.enter, column.leave)]
            assert any(
                c.forward_ns <= column.forward_ns and c.backward_ns <= column.backward_ns and c.extra_ns <= column.extra_ns
                for c in alike
            )


def test_few_micro_batches_of_a_whole_model_are_proven() -> None:
    """A pipeline with as many micro-batches as stages, where bounds of single paths leave 6 %."""
    instance = tp.build("joint", model="gpt2-345m", dtype="float32", cluster="autopipe-3090-16", batch=16)
    result = tp.solve(instance, gap=1e-3)
    assert result.objective is not None and result.gap is not None and result.gap <= 1e-3
    assert result.solution is not None
    solution = Solution(result.solution["configuration"], *(tuple(result.solution[name]) for name in ("cuts", "choice")))
    assert not violations(instance, solution) and evaluate(instance, solution).time_ns == result.objective
