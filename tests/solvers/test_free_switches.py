"""Switches without forced synchronisation: certainties hold, bounds are below every optimum, the search finds what there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, matrix, violations
from trainplan.formulations.memory_switches.simulation import Booleans, SimulatedStep, simulate
from trainplan.formulations.plan.switches import ALL_ON, SWITCHES, Switches
from trainplan.solvers.core.search import Search
from trainplan.solvers.core.solve import solve
from trainplan.solvers.switches import free_switches
from trainplan.solvers.switches.free_bounds import (
    SHARES,
    SOURCE,
    NothingFits,
    Relaxation,
    Weights,
    free_bound,
    optimizer_costs,
    segment_costs,
    transported,
)
from trainplan.solvers.switches.free_segments import different
from trainplan.solvers.switches.free_switches import Walks

from tests.helpers.clock import count_the_clock
from tests.helpers.switch_instances import bert_instance, random_instance

LANES = ("all_gather_ns", "reduce_scatter_ns", "prefetch_parameter_ns", "offload_gradient_ns", "offload_hidden_ns")


def free_instances(seed: int, count: int, most_layers: int) -> Iterator[Instance]:
    """Random ones; in every other one some of the communication is fast, so that lanes lag less."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        scale = int(rng.choice([3, 30, 1000]))
        layers, needs = 1 + int(rng.integers(most_layers)), bool(rng.integers(2))
        instance = random_instance(rng, layers, scale, synchronisation="free", offload_needs_ckpt=needs)
        if number % 2:
            columns = {name: instance[name] // int(rng.choice([1, 5, 25])) for name in LANES}
            instance = replace(instance, columns=dict(instance.columns) | columns)
        yield instance


def search_of(instance: Instance, **fields: int) -> Search:
    return Search(lambda s: None if violations(instance, s) else evaluate(instance, s).time_ns, **fields)


def bare(switches: Switches) -> Switches:
    """Without what does not count for the certainties."""
    return replace(switches, segment_sync=False, eco_forward=switches.eco_forward and switches.offload_hidden)


def random_choices(instance: Instance, rng: np.random.Generator, count: int) -> tuple[Booleans, Integers]:
    """Switches (count, N, 7), a part of them without any synchronisation, and the options that stand for them."""
    options = Relaxation(instance).segments.options
    drawn = rng.integers(len(instance.options), size=(count, instance.layers))
    without = np.array([instance.options.index(replace(s, segment_sync=False)) for s in instance.options])
    drawn[: count // 2] = without[drawn[: count // 2]]
    indices = np.array([options.index(bare(s)) for s in instance.options])
    return matrix([Solution(instance.options)])[0][drawn], indices[drawn]


def test_segment_costs_optimizer_costs_and_certain_bytes_are_below_every_step() -> None:
    """For any weights between the segments and any share of the optimizer's steps, and for the lags as they come."""
    rng, near = np.random.default_rng(0), []
    for instance in free_instances(1, 40, 6):
        relaxation = Relaxation(instance)
        certain, count = relaxation.segments, instance.layers
        switches, options = random_choices(instance, rng, 150)
        times, peaks = simulate(instance.columns, instance.nvlink, switches)
        held, most, resident = (np.zeros(len(options), np.int64) for _ in range(3))
        cost = np.zeros(len(options), np.int64)
        w = np.array([rng.multinomial(SHARES, rng.dirichlet([0.5] * relaxation.moments)) for _ in range(2 * count + 1)])
        weights = Weights(w, int(rng.integers(SHARES + 1)))
        of_segments, of_optimizer = (
            segment_costs(certain, weights, np.arange(instance.layers)),
            optimizer_costs(instance, certain.lazy, weights.steps),
        )
        for i in range(count):
            option = options[:, i]
            before = certain.r[options[:, i - 1]] if i else 0
            after = certain.lazy[options[:, i + 1]] if i + 1 < count else 0
            most = np.maximum(most, held + certain.peak_bytes[i, before, option, after])
            held, resident = held + certain.delta_bytes[i, option], resident + certain.resident_bytes[i, option]
            cost += of_segments[i, before, option, after] + of_optimizer[i, option]
        assert (most + resident <= peaks).all()
        assert (cost <= SHARES * times).all()
        near.append(float((most + resident).sum() / max(1, peaks.sum())))
    assert np.mean(near) > 0.95, np.mean(near)  # certain bytes are nearly all


def test_optimizer_costs_are_below_the_steps_of_the_host_and_reach_them() -> None:
    """Where everything else takes no time; with all shares on steps or on copies one of the two bounds is met at times."""
    rng, met = np.random.default_rng(4), 0
    for instance in free_instances(5, 20, 5):
        idle = {name: instance[name] * (name in ("optimizer_ns", "prefetch_parameter_ns")) for name in instance.columns}
        idle |= {name: instance[name] for name in instance.columns if name.endswith("_bytes")}
        instance = replace(instance, columns=idle)
        switches, options = random_choices(instance, rng, 50)
        lazy, layers = Relaxation(instance).segments.lazy, np.arange(instance.layers)
        kept = ~switches[:, :, SWITCHES.index("lazy_prefetch")].any(axis=1)  # of these nothing is copied before the optimizer
        times = simulate(instance.columns, instance.nvlink, switches)[0]
        for steps in (0, SHARES // 2, SHARES):
            bound = optimizer_costs(instance, lazy, steps)[layers, options].sum(axis=1)
            assert (bound <= SHARES * times).all()
            met += int((bound == SHARES * times)[kept].sum())
    assert met


def test_lanes_lag_no_more_than_they_may() -> None:
    """In the simulator's own segments; a third of the choices synchronise in the first and last layer alone."""
    rng, reached = np.random.default_rng(3), 0
    for instance in free_instances(2, 60, 4):
        lags, count = Relaxation(instance).segments.lag_ns, instance.layers
        switches = random_choices(instance, rng, 150)[0]
        switches[::3, :, SWITCHES.index("segment_sync")] = False
        switches[::3, [0, -1], SWITCHES.index("segment_sync")] = True
        step = SimulatedStep(instance.columns, instance.nvlink, switches)

        def check(i: int, number: int, step: SimulatedStep = step, lags: Integers = lags) -> int:
            ready, lanes = np.maximum(step.gathered[i], step.hidden[i]), (step.clocks["communication"], step.clocks["copy"])
            moments = np.maximum(step.clocks["compute"], np.stack((ready, *lanes)))[: lags.shape[1]]
            found = (moments[:, None] - moments[None]).max(axis=2)
            assert (found <= lags[number]).all()
            return int(((found == lags[number]) & (found > 0)).sum())

        step.head()
        for i in range(count):
            reached += check(i, i) if i else 0
            step.forward(i)
        step.turn()
        for i in reversed(range(count)):
            reached += check(i, 2 * count - 1 - i)
            step.backward(i)
    assert reached > 50, reached


def test_the_longest_path_of_a_choice_is_its_bound() -> None:
    """All weight on it gives the time of the unsynchronised step until all lanes are done, which no weights exceed."""
    rng = np.random.default_rng(5)
    for instance in free_instances(6, 30, 6):
        relaxation = Relaxation(instance)
        certain, count = relaxation.segments, instance.layers
        choice = rng.integers(len(certain.options), size=count)
        path = relaxation.longest_path(choice.tolist())
        costs = segment_costs(
            certain, Weights(np.eye(relaxation.moments, dtype=np.int64)[path] * SHARES), np.arange(instance.layers)
        )
        total = 0
        for i in range(count):
            before, after = (certain.r[choice[i - 1]] if i else 0), (certain.lazy[choice[i + 1]] if i + 1 < count else 0)
            total += costs[i, before, choice[i], after]
        phases = evaluate(instance, Solution(tuple(certain.options[s] for s in choice))).phases_ns
        assert total == SHARES * phases[1]


def test_transported_is_the_best_plan_of_all() -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        moments = int(rng.integers(2, 4))
        before, after = (rng.multinomial(4, [1 / moments] * moments) for _ in range(2))
        paths = rng.integers(-20, 20, (1, moments, moments))
        best = max(
            int((np.array(plan).reshape(moments, moments) * paths[0]).sum())
            for plan in product(range(5), repeat=moments * moments)
            if sum(plan) == 4
            and (np.array(plan).reshape(moments, moments).sum(axis=1) == before).all()
            and (np.array(plan).reshape(moments, moments).sum(axis=0) == after).all()
        ) if moments == 2 else _best_of_three(before, after, paths[0])  # fmt: skip
        assert transported(paths, before[None], after[None])[0] == best


def _best_of_three(before: Integers, after: Integers, paths: Integers) -> int:
    """Of all whole 3 x 3 plans: four entries are free."""
    best = []
    for free in product(range(5), repeat=4):
        plan = np.zeros((3, 3), np.int64)
        plan[:2, :2] = np.reshape(free, (2, 2))
        plan[:2, 2] = before[:2] - plan[:2].sum(axis=1)
        plan[2] = after - plan[:2].sum(axis=0)
        if (plan >= 0).all() and plan[2].sum() == before[2]:
            best.append(int((plan * paths).sum()))
    return max(best)


def fastest_of_all(instance: Instance) -> Solution | None:
    """The fastest choice that fits, by simulation of all that differ."""
    options = different(instance.options)
    on, shape = matrix([Solution(options)])[0], (len(options),) * instance.layers
    best: tuple[int, tuple[int, ...]] | None = None
    for first in range(0, len(on) ** instance.layers, 8192):
        numbers = np.arange(first, min(first + 8192, len(on) ** instance.layers))
        indices = np.stack(np.unravel_index(numbers, shape), axis=1)
        times, peaks = simulate(instance.columns, instance.nvlink, on[indices])
        if (fits := np.flatnonzero(peaks <= instance.memory_bytes)).size:
            place = fits[times[fits].argmin()]
            found = int(times[place]), tuple(map(int, indices[place]))
            best = found if best is None else min(best, found)
    return None if best is None else Solution(tuple(options[place] for place in best[1]))


def test_bounds_meet_most_optima_of_few_layers_and_exceed_none() -> None:
    gaps, infeasible = [], 0
    for instance in (*free_instances(3, 150, 2), *free_instances(12, 1, 3)):
        fastest, search = fastest_of_all(instance), search_of(instance)
        search.report(fastest)
        try:
            free_bound(Relaxation(instance), search, 10, lambda options: None)
        except NothingFits:
            assert fastest is None
            infeasible += 1
            continue
        if search.objective is not None:
            assert search.bound is not None and search.bound <= search.objective
            gaps.append(search.objective / max(1, search.bound) - 1)
    met = np.mean(np.array(gaps) == 0)
    print(f"\nbounds of {len(gaps)}: {met:.0%} met, mean gap {np.mean(gaps):.2%}; {infeasible} proven infeasible")
    assert len(gaps) > 120 and infeasible and met > 0.85 and np.mean(gaps) < 0.02


def test_walks_alone_find_optima(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_switches, "BATCHES", 30)
    found = []
    for instance in free_instances(8, 10, 2):
        fastest, search = fastest_of_all(instance), search_of(instance)
        walks = Walks(instance, search)
        walks.begin(Solution((ALL_ON,) * instance.layers))
        walks.run()
        found.append(search.objective == (fastest and evaluate(instance, fastest).time_ns))
    assert np.mean(found) > 0.9


def test_few_layers_are_proven() -> None:
    for instance in free_instances(4, 6, 2):
        result, fastest = solve(instance), fastest_of_all(instance)
        assert result.status == ("infeasible" if fastest is None else "optimal")
        assert result.objective == (fastest and evaluate(instance, fastest).time_ns)
        forced = solve(replace(instance, synchronisation="forced"))
        assert forced.objective is None or (result.objective is not None and result.objective <= forced.objective)


def test_running_into_each_other_pays_and_is_nearly_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT-13B in small batches: shards prefetched while the lane before is busy. The same seed gives the same choice."""
    monkeypatch.setattr(free_switches, "BATCHES", 40)
    base = bert_instance("13b", 2**40, batch=16, layers=10, noise=0.03, synchronisation="free")
    peak = evaluate(base, Solution((ALL_ON,) * 10)).peak_bytes
    instance = base.with_memory(int(1.6 * peak))
    forced = solve(replace(instance, synchronisation="forced"), gap=1e-4)
    result, again = (solve(instance, gap=1e-3) for _ in range(2))
    assert forced.objective is not None and result.objective is not None and result.bound is not None
    assert result.objective < 0.995 * forced.objective and result.bound_source == SOURCE
    assert result.gap is not None and result.gap < 0.004, result.gap
    assert result.solution == again.solution


def test_nothing_fits_is_proven() -> None:
    instance = bert_instance("1.8b", 10**8, batch=32, layers=12, synchronisation="free")
    result = solve(instance)
    assert result.status == "infeasible" and result.reason is not None


def test_a_time_limit_leaves_a_choice_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    count_the_clock(monkeypatch)
    base = bert_instance("1.8b", 2**40, batch=32, layers=24, nvlink=False, noise=0.03, synchronisation="free")
    peak = evaluate(base, Solution((ALL_ON,) * 24)).peak_bytes
    result = solve(base.with_memory(2 * peak), time_limit=1.0)
    assert result.status in ("feasible", "optimal") and result.objective is not None and result.bound is not None
    assert result.bound <= result.objective


def test_the_papers_answer_is_known_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no time limit leaves a choice that is worse than that of the DP."""

    def none(*_: object) -> None:
        raise NothingFits

    monkeypatch.setattr(free_switches, "synchronised", lambda *_: None)
    monkeypatch.setattr(free_switches, "free_bound", none)
    instance = bert_instance("1.8b", 3 * 10**9, batch=128, layers=24, nvlink=False, noise=0.03, synchronisation="free")
    search = search_of(instance)
    free_switches.unsynchronised(instance, search)
    planned = solve(instance, "h3t-dp")
    assert planned.objective is not None and search.objective == planned.objective


def test_without_a_limit_on_memory_the_fastest_step_is_proven() -> None:
    for nvlink in (True, False):
        result = solve(bert_instance("1.8b", 2**40, batch=128, layers=12, nvlink=nvlink, synchronisation="free"), gap=1e-6)
        assert result.status == "optimal"


def test_options_of_equal_effect_are_told_once() -> None:
    for needs, count in ((True, 64), (False, 96)):
        instance = next(free_instances(9, 1, 3))
        instance = replace(instance, offload_needs_ckpt=needs)
        options = different(instance.options)
        assert len(options) == count
        rng = np.random.default_rng(0)
        choices = rng.integers(len(instance.options), size=(100, instance.layers))
        alike = [
            [replace(s, eco_forward=s.eco_forward and s.offload_hidden) for s in instance.options][k] for k in choices.flat
        ]
        assert set(alike) <= set(options)
        own, other = matrix([Solution(instance.options)])[0][choices], matrix([Solution(tuple(alike))])[0]
        found = simulate(instance.columns, instance.nvlink, own)
        same = simulate(instance.columns, instance.nvlink, other.reshape(100, instance.layers, len(SWITCHES)))
        assert (found[0] == same[0]).all() and (found[1] == same[1]).all()
