"""H3T's planners against its paper: Algorithms 3 and 4 as printed, 1 and 2 step by step; and against all choices."""

from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution, matrix, violations
from trainplan.formulations.memory_switches.segments import Segments, segments
from trainplan.formulations.memory_switches.simulation import simulate
from trainplan.formulations.plan.switches import ALL_ON
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import solve
from trainplan.solvers.switches import h3t_dp
from trainplan.solvers.switches.heuristic import SOURCE

from tests.helpers.clock import without_alarms
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_instances import bert_instance, random_instance

METHODS = ("h3t-dp", "h3t-greedy", "random", "manual", "zero-2", "zero-3")
R = range(8)


def planned(instance: Instance, method: str, **given: Any) -> Result:
    """A result whose solution is there, is legal and fits, or is missing for a stated reason."""
    result = solve(instance, method, explained=False, **given)
    assert result.bound is None or result.bound_source == SOURCE
    if result.solution is None:
        assert result.status == "unknown" and result.message
    else:
        solution = load_solution(result.solution)
        assert result.status in ("feasible", "optimal") and not violations(instance, solution)
        assert result.objective == evaluate(instance, solution).time_ns
    return result


def floor(memory: int, levels: int, level: int) -> int:
    return memory * level // levels


def ceiling(memory: int, levels: int, size: int) -> int:
    """As published: counted down from the limit."""
    return levels - (memory - size) * levels // memory


def simulator(chain: Segments, i: int, r_before: int | None, option: int, r_after: int | None) -> tuple[int, int, int, int]:
    """ModelSimulator_i: delta, resident and peak bytes, time."""
    index = (i, r_before or 0, option, (r_after or 0) % 2)
    return (
        int(chain.delta_bytes[i, option]),
        int(chain.resident_bytes[i, option]),
        int(chain.peak_bytes[index]),
        int(chain.time_ns[index]),
    )


def algorithm_3(instance: Instance, m: int) -> tuple[float, tuple[int, ...] | None]:
    """Line by line, with delta in line 14, and levels up to m in line 17. Layers count from 0."""
    chain, n, limit = segments(instance), instance.layers, instance.memory_bytes
    r, options = [int(number) for number in chain.r], range(len(chain.options))
    sol: dict[Any, tuple[int, ...]] = {(0, 0, None, s): (s,) for s in options}
    runtime: dict[Any, int] = dict.fromkeys(sol, 0)
    for i in range(n):
        next_sol: dict[Any, tuple[int, ...]] = {}
        next_runtime: dict[Any, int] = {}
        for (curr_level, peak_level, before, s), chosen in sol.items():
            curr, peak = floor(limit, m, curr_level), floor(limit, m, peak_level)
            for after in options if i + 1 < n else (None,):
                r_before, r_after = None if before is None else r[before], None if after is None else r[after]
                delta, resident, high, time = simulator(chain, i, r_before, s, r_after)
                if (new_peak := max(peak, curr + high) + resident) > limit:
                    continue
                new_curr = curr + resident + delta
                state = (ceiling(limit, m, new_curr), ceiling(limit, m, new_peak), s, after)
                total = runtime[curr_level, peak_level, before, s] + time
                if total < next_runtime.get(state, inf):
                    next_sol[state] = chosen if after is None else (*chosen, after)
                    next_runtime[state] = total
        sol, runtime = next_sol, next_runtime
    best: tuple[float, tuple[int, ...] | None] = (inf, None)
    for state, chosen in sol.items():
        if runtime[state] < best[0]:
            best = runtime[state], chosen
    return best


def algorithm_4(instance: Instance, m: int) -> tuple[float, tuple[int, ...] | None]:
    """Line by line, with levels up to m in line 20. Layers count from 0."""
    chain, n, limit = segments(instance), instance.layers, instance.memory_bytes
    extended = [[s for s in range(len(chain.options)) if chain.r[s] == r] for r in R]
    sol: dict[Any, tuple[int, ...]] = {(0, 0, None, r): () for r in R}
    runtime: dict[Any, float] = dict.fromkeys(sol, 0)
    optimal_states = list(sol)
    for i in range(n):
        next_sol: dict[Any, tuple[int, ...]] = {}
        next_runtime: dict[Any, float] = {}
        for curr_level, peak_level, before, r in optimal_states:
            curr, peak = floor(limit, m, curr_level), floor(limit, m, peak_level)
            for s in extended[r]:
                for after in R if i + 1 < n else (None,):
                    delta, resident, high, time = simulator(chain, i, before, s, after)
                    if (new_peak := max(peak, curr + high) + resident) > limit:
                        continue
                    new_curr = curr + resident + delta
                    state = (ceiling(limit, m, new_curr), ceiling(limit, m, new_peak), r, after)
                    total = runtime[curr_level, peak_level, before, r] + time
                    if total < next_runtime.get(state, inf):
                        next_sol[state] = (*sol[curr_level, peak_level, before, r], s)
                        next_runtime[state] = total
        sol, runtime, optimal_states = next_sol, next_runtime, []
        for r, after in product(R, R if i + 1 < n else (None,)):
            for curr_level in range(m + 1):
                for peak_level in range(curr_level, m + 1):
                    state = (curr_level, peak_level, r, after)
                    a = runtime.get((curr_level - 1, peak_level, r, after), inf)
                    b = runtime.get((curr_level, peak_level - 1, r, after), inf)
                    if runtime.get(state, inf) < min(a, b):
                        optimal_states.append(state)
                    elif min(a, b) < inf:
                        runtime[state] = min(a, b)
    best: tuple[float, tuple[int, ...] | None] = (inf, None)
    for state in optimal_states:
        if runtime[state] < best[0]:
            best = runtime[state], sol[state]
    return best


@pytest.mark.parametrize(("version", "layers"), first_and_others([("pruned", (1, 2, 3, 4)), ("basic", (1, 2, 2, 2, 2, 3))]))
def test_the_dp_has_the_answer_of_the_printed_algorithm(version: str, layers: tuple[int, ...]) -> None:
    printed = {"pruned": algorithm_4, "basic": algorithm_3}[version]
    missing = 0
    for seed in range(110):
        rng = np.random.default_rng(seed)
        few = layers[seed % len(layers)]
        instance = random_instance(rng, few, offload_needs_ckpt=few != 2)  # without it the paper's 64 combinations
        levels = int(rng.integers(1, 12 if version == "pruned" else 7))
        if seed % 3 == 0:
            least = evaluate(instance, Solution((ALL_ON,) * few)).peak_bytes
            instance = replace(instance, memory_bytes=int(least * rng.uniform(0.8, 1.1)))
        time, choice = printed(instance, levels)
        result = planned(instance, "h3t-dp", version=version, levels=levels)
        assert result.objective == (None if choice is None else time), seed
        missing += choice is None
        if choice is not None:  # simulated as a whole, the printed choice takes the printed time
            assert evaluate(instance, Solution(tuple(instance.options[s] for s in choice))).time_ns == time
    assert 15 <= missing <= 35


def all_choices(instance: Instance) -> tuple[np.ndarray, np.ndarray]:
    """Time and peak of all choices of an instance."""
    on = matrix([Solution(instance.options)])[0]
    rows = np.array(list(product(range(len(on)), repeat=instance.layers)))
    return simulate(instance.columns, instance.nvlink, on[rows])


def test_with_a_level_for_every_byte_the_dp_is_exact() -> None:
    found = 0
    for seed in range(40):
        instance = random_instance(np.random.default_rng(seed), 2, scale=4)
        assert instance.memory_bytes < 200
        times, peaks = all_choices(instance)
        best = times[peaks <= instance.memory_bytes].min(initial=np.iinfo(np.int64).max)
        result = planned(instance, "h3t-dp", levels=instance.memory_bytes)
        assert (result.objective or np.iinfo(np.int64).max) == best, seed
        found += result.objective is not None
    assert found >= 30


def test_no_planner_is_better_than_all_choices_together() -> None:
    met = dict.fromkeys(METHODS, 0)
    for seed in range(24):
        instance = random_instance(np.random.default_rng(seed), 2)
        times, peaks = all_choices(instance)
        possible = times[peaks <= instance.memory_bytes]
        for method in METHODS:
            objective = planned(instance, method, seed=seed).objective
            assert objective is None or objective >= possible.min(), (seed, method)
            met[method] += objective is not None
            if method == "h3t-greedy":  # all on is one of its choices
                all_on = evaluate(instance, Solution((ALL_ON,) * 2)).peak_bytes
                assert objective is not None or all_on > instance.memory_bytes
    assert min(met.values()) >= 5 and min(met[method] for method in METHODS[:4]) >= 15, met


def test_both_versions_agree_on_a_real_model_and_more_levels_help() -> None:
    instance = bert_instance("13b", 100 * 10**9, batch=1024, devices=64, noise=0.03)
    basic, pruned = (planned(instance, "h3t-dp", levels=32, version=version) for version in ("basic", "pruned"))
    assert basic.objective == pruned.objective is not None
    assert pruned.statistics["states"] < basic.statistics["states"] / 5
    finer = planned(instance, "h3t-dp", levels=128)
    assert finer.objective is not None and pruned.objective is not None and finer.objective < pruned.objective
    assert finer.evaluation is not None and finer.evaluation["peak_bytes"] <= instance.memory_bytes
    greedy = planned(instance, "h3t-greedy").objective
    assert greedy is not None and greedy > finer.objective


def fitting(instance: Instance, tried: list[Solution]) -> list[tuple[int, Solution]]:
    """The choices that fit, with their times."""
    found = [(evaluate(instance, solution), solution) for solution in tried]
    return [(result.time_ns, solution) for result, solution in found if result.peak_bytes <= instance.memory_bytes]


def fastest(instance: Instance, tried: list[Solution]) -> int | None:
    return min((time for time, _ in fitting(instance, tried)), default=None)


def test_greedy_tries_what_algorithm_2_tries() -> None:
    alone = 0
    for seed in range(3):
        instance = random_instance(np.random.default_rng(seed), 5)
        tried = []
        for n_flexible in range(1, 6):
            for s_flexible in instance.options:
                s = [ALL_ON] * 5
                for i in range(1, n_flexible + 1):
                    s[(i - 1) * (5 // n_flexible)] = s_flexible
                tried.append(Solution(tuple(s)))
        greedy, manual = planned(instance, "h3t-greedy"), planned(instance, "manual")
        assert greedy.statistics["simulated"] == len(tried) == 5 * 48 and manual.statistics["simulated"] == 48
        assert greedy.objective == fastest(instance, tried)
        assert manual.objective == fastest(instance, [Solution((s,) * 5) for s in instance.options])
        alone += greedy.objective != manual.objective
    assert alone


def test_random_takes_the_best_or_as_published_the_last_that_fits() -> None:
    apart = 0
    for seed in range(10):
        instance = random_instance(np.random.default_rng(seed), 3)
        drawn = np.random.default_rng(seed).integers(len(instance.options), size=(40, 3))
        samples = [Solution(tuple(instance.options[option] for option in row)) for row in drawn]
        known = fitting(instance, samples)
        best = planned(instance, "random", samples=40, seed=seed)
        last = planned(instance, "random", samples=40, seed=seed, answer="last")
        assert best.objective == min((time for time, _ in known), default=None)
        assert best.statistics == last.statistics == {"simulated": 40, "fitting": len(known)}
        if known:
            assert last.solution is not None and load_solution(last.solution) == known[-1][1]
            apart += last.objective != best.objective
    assert apart >= 5


def test_the_answer_is_the_same_however_many_are_simulated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = random_instance(np.random.default_rng(2), 4)
    for method, answer in (("random", "best"), ("random", "last"), ("h3t-greedy", None)):
        given = {"answer": answer} if answer else {}
        whole = planned(instance, method, **given)
        with monkeypatch.context() as patch:
            patch.setattr("trainplan.solvers.switches.h3t.AT_ONCE", 4 * 7)
            parts = planned(instance, method, **given)
        assert parts.solution == whole.solution is not None
        assert len(whole.history) == 1 and (len(parts.history) > 1) == (answer != "last")


def test_zero_settings_keep_or_partition_whole_parameters() -> None:
    instance = bert_instance("13b", 2**47, batch=64)
    two, three = (planned(instance, method) for method in ("zero-2", "zero-3"))
    assert two.evaluation is not None and three.evaluation is not None
    for result in (two, three):
        on = result.evaluation["layers_on"] if result.evaluation else {}
        assert on["ckpt"] == on["eco_backward"] == on["segment_sync"] == 48
        assert on["offload_hidden"] == on["lazy_prefetch"] == on["eco_forward"] == 0
        shards = result.evaluation["resident_bytes"] if result.evaluation else 0
        assert shards == instance["partitioned_parameter_bytes"].sum()
    assert two.evaluation["layers_on"]["partition"] == 0 and three.evaluation["layers_on"]["partition"] == 48
    saved = two.evaluation["peak_bytes"] - three.evaluation["peak_bytes"]
    whole = int(instance["gathered_parameter_bytes"].sum())
    assert 0.9 * whole < saved < whole
    assert two.objective is not None and three.objective is not None and two.objective < three.objective
    tight = replace(instance, memory_bytes=two.evaluation["peak_bytes"] - 1)
    refused = planned(tight, "zero-2")
    assert refused.message and refused.message.startswith("ZeRO-2 does not fit: the step needs")
    assert planned(tight, "zero-3").objective == three.objective


def test_a_limit_on_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    without_alarms(monkeypatch)
    instance = bert_instance("13b", 100 * 10**9, batch=1024, devices=64)
    for method in ("h3t-dp", "random", "h3t-greedy", "manual"):
        result = planned(instance, method, time_limit=1e-9)
        assert result.status == "feasible" and result.message and "time ran out" in result.message
    result = planned(instance, "h3t-greedy", time_limit=0.05)
    assert result.statistics["simulated"] < 48 * 48 and result.message
    assert result.solve_seconds < 2


def test_tables_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = random_instance(np.random.default_rng(0), 2)
    with refused("method", problem=("h3t-dp", 4000), fix="levels", kind=Unsupported):
        solve(instance, "h3t-dp", levels=4000)
    monkeypatch.setattr(h3t_dp, "MOST_TRANSITIONS", 10**6)
    with refused("method", problem=("h3t-dp", 128), fix=("levels", "version=pruned"), kind=Unsupported):
        solve(instance, "h3t-dp", version="basic")


def test_every_layer_that_keeps_anything_takes_a_level() -> None:
    ample = bert_instance("1.8b", 2**46, batch=64, layers=6)
    fine, enough, coarse = (planned(ample, "h3t-dp", levels=levels) for levels in (128, 7, 4))
    assert fine.solution is not None and fine.objective is not None and coarse.objective is not None
    assert not any(switches.ckpt or switches.offload_hidden for switches in load_solution(fine.solution).switches)
    assert fine.objective == enough.objective
    assert fine.objective < coarse.objective
