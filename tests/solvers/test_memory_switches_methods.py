"""Every method of memory-switches against every other: those that prove agree, and none of the others is ever better."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.memory_switches import enumeration
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution, violations
from trainplan.formulations.plan.switches import ALL_ON
from trainplan.solvers.core.heuristic import cheap_bound
from trainplan.solvers.core.incumbents import FIRST_PLAN
from trainplan.solvers.core.method_registry import methods
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import contradictions, solve

from tests.helpers.clock import count_the_clock
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all
from tests.helpers.switch_instances import bert_instance, random_instance

METHODS = methods("memory-switches")
PROVING = [entry.name for entry in METHODS if entry.proves]
OTHERS = [entry.name for entry in METHODS if not entry.proves]
OPTIONS: dict[str, dict[str, Any]] = {"cpsat": {"workers": 1}}
# Number of layers, and the seeds of instances of that size: 300 in all.
SEEDS = {1: range(60), 2: range(60, 160), 3: range(160, 240), 4: range(240, 300)}


def instance_of(seed: int, layers: int) -> Instance:
    """Every fourth of the paper's 64 combinations for a layer, the others of 48; one of eight too tight for anything."""
    rng = np.random.default_rng(seed)
    scale = int(rng.choice((2, 100, 10**9)))
    instance = random_instance(rng, layers, scale, offload_needs_ckpt=seed % 4 > 0)
    if seed % 8 == 5:
        least = min(evaluate(instance, Solution((s,) * layers)).peak_bytes for s in (ALL_ON, *instance.options))
        instance = instance.with_memory(max(1, least // 2))
    return instance


def outcome(result: Result) -> tuple[str, int | None, int | None]:
    return result.status, result.objective, result.bound


@pytest.mark.parametrize("step", some_and_all(5, 1, 3))
@pytest.mark.parametrize("layers", SEEDS)
def test_random_instances_agree_to_the_nanosecond(
    layers: int, step: int, record_property: Callable[[str, object], None]
) -> None:
    """Brute force = label-setting = MILP = CP-SAT. The gaps of the others are reported: `pytest -s`."""
    gaps: dict[str, list[float]] = {name: [] for name in OTHERS}
    statuses: Counter[str] = Counter()
    for seed in SEEDS[layers][::step]:
        instance = instance_of(seed, layers)
        results = {name: solve(instance, name, **OPTIONS.get(name, {})) for name in PROVING}
        assert len({outcome(result) for result in results.values()}) == 1, (seed, {n: outcome(r) for n, r in results.items()})
        best = results["brute-force"]
        statuses[best.status] += 1
        for result in results.values():
            if result.solution is not None:
                solution = load_solution(result.solution)
                assert violations(instance, solution) == []
                assert evaluate(instance, solution).time_ns == result.objective == result.bound
        for name in OTHERS:
            other = solve(instance, name)
            assert other.status == "infeasible" if best.status == "infeasible" else other.status != "infeasible"
            assert other.bound is None or best.objective is None or other.bound <= best.objective
            if other.objective is not None:
                assert best.objective is not None
                assert other.objective >= best.objective, (seed, name)
                gaps[name].append((other.objective - best.objective) / best.objective if best.objective else 0.0)
    assert set(statuses) == {"optimal", "infeasible"}
    assert min(statuses.values()) >= len(SEEDS[layers][::step]) // 10
    for name, known in gaps.items():
        assert known
        told_of = f"found {len(known)} of {statuses['optimal']}, mean gap {np.mean(known):.2%}, worst {max(known):.2%}"
        print(f"{layers} layers, {name}: {told_of}")
        record_property(name, told_of)


def test_brute_force_of_one_layer_is_the_least_of_all_evaluated() -> None:
    """Each legal combination judged by itself, 48 or 64 of them."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, 1, 50, offload_needs_ckpt=seed % 2 > 0)
        every = [Solution((switches,)) for switches in instance.options]
        times = [evaluate(instance, solution).time_ns for solution in every if not violations(instance, solution)]
        found = solve(instance, "brute-force")
        assert found.objective == (min(times) if times else None)
        assert found.status == ("optimal" if times else "infeasible")
        seen[found.status] += 1
    assert seen["optimal"] > 20


def test_brute_force_notices_segments_that_are_not_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = random_instance(np.random.default_rng(1), 2, memory_bytes=2**40)
    chain = enumeration.segments(instance)
    monkeypatch.setattr(enumeration, "segments", lambda instance: replace(chain, time_ns=chain.time_ns + 1))
    assert solve(instance, "brute-force").status == "failed"


def test_what_a_method_does_not_take_is_reported_in_one_line() -> None:
    rng = np.random.default_rng(1)
    for instance, method, wanted in (
        (random_instance(rng, 5), "brute-force", ("method", ("brute-force", "2.55e+08"), ("exact", "20e6"))),
        (random_instance(rng, 200), "brute-force", ("method", ("brute-force", "1e300"), ("exact", "20e6"))),
    ):
        with refused(*wanted, kind=Unsupported) as caught:
            solve(instance, method)
        assert "\n" not in str(caught.value)


def twelve(memory: float, nvlink: bool = True) -> Instance:
    """Twelve layers of the paper's smallest model, 3 % apart; memory: from 0, all switches on, to 1, none."""
    given = bert_instance("1.8b", 2**40, batch=128, layers=12, noise=0.03, seed=1, nvlink=nvlink)
    low, high = (evaluate(given, Solution((s,) * 12)).peak_bytes for s in (ALL_ON, given.options[0]))
    return given.with_memory(int(low + memory * (high - low)))


@pytest.mark.parametrize("method", ["milp", "cpsat"])
def test_a_time_limit_leaves_a_bound_that_holds(method: str) -> None:
    instance = twelve(0.3)
    best, short = solve(instance), solve(instance, method, time_limit=3.0, **OPTIONS.get(method, {}))
    assert best.status == "optimal"
    assert short.status in ("optimal", "feasible", "unknown")
    assert short.bound is not None
    assert best.objective is not None
    assert 0 <= short.bound <= best.objective
    assert short.objective is None or (short.objective >= best.objective and not short.violations)
    assert contradictions([best, short]) == []


def test_brute_force_out_of_time_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    count_the_clock(monkeypatch)
    instance = random_instance(np.random.default_rng(2), 4)
    found = solve(instance, "brute-force", time_limit=1e-6)
    assert (found.status, found.bound in (None, cheap_bound(instance)[0])) == ("feasible", True)
    assert found.solution_source == FIRST_PLAN


@pytest.mark.parametrize("nvlink", [True, False])
def test_cpsat_proves_twelve_layers_where_memory_is_tight(nvlink: bool) -> None:
    instance = twelve(0.05, nvlink)
    best, found = solve(instance), solve(instance, "cpsat", workers=1)
    assert outcome(found) == outcome(best) == ("optimal", best.objective, best.objective)
