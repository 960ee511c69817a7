"""cluster-strategy: the exact search, both models and their bounds against every strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, count, permutations, product
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.cluster_strategy.definition import PROBLEM
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase, orbits
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.instance_file import load
from trainplan.formulations.cluster_strategy.problem import Solution, evaluate, violations
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Matrix, Network
from trainplan.profiling.models.model import load_model
from trainplan.solvers.cluster.bounds import even_stages_ns, one_pipeline_ns, uneven_shares_leave_none
from trainplan.solvers.cluster.climb import Climber, climb
from trainplan.solvers.cluster.memory import explain
from trainplan.solvers.cluster.one_pipeline import Box, PipelineSearch, box_bound_ns
from trainplan.solvers.core.heuristic import cheap_bound, first_plan
from trainplan.solvers.core.incumbents import FIRST_PLAN
from trainplan.solvers.core.method_registry import method, methods
from trainplan.solvers.core.search import Search, Unsupported, judge
from trainplan.solvers.core.solve import solve

from tests.helpers.clock import count_the_clock
from tests.helpers.cluster_instances import random_cluster, random_cluster_dict
from tests.helpers.refusals import refused, stated
from tests.helpers.sizes import first_and_others


def never() -> bool:
    return False


def every_strategy(instance: Instance) -> list[Solution]:
    """All of them, with every device distinguished."""
    found = []
    for given in instance.degrees():
        total = instance.batch // given.mbs
        shares = [(total // given.dp,) * given.dp]
        if instance.uneven_shares:
            shares = [own for own in product(range(1, total + 1), repeat=given.dp) if sum(own) == total]
        cuts = combinations(range(1, instance.layers), given.pp - 1)
        found += [Solution(given, *choice) for choice in product(permutations(range(instance.devices)), list(cuts), shares)]
    return found


def tiny(seed: int) -> Instance:
    """At most three devices, or four of few layers, so that all strategies can be looked at."""
    rng = random.Random(seed)
    given = random_cluster_dict(rng, rng.choice([2, 3, 3]), layers=4)
    return load({**given, "batch": min(given["batch"], 4), "tables": [t for t in given["tables"] if t["mbs"] in (1, 2)]})


def assert_agrees(result: Any, known: Any, seed: int) -> None:
    assert (result.status, result.objective) == (known.status, known.objective), (seed, result.message)


@pytest.mark.parametrize("seed", range(25))
def test_brute_force_is_the_least_of_all_strategies(seed: int) -> None:
    instance = tiny(seed)
    fitting = [evaluate(instance, own).objective for own in every_strategy(instance) if not violations(instance, own)]
    assert solve(instance, "brute-force").objective == min(fitting, default=None)


@pytest.mark.parametrize("seed", range(25))
def test_an_explanation_has_the_least_excess_of_all_strategies(seed: int) -> None:
    instance = replace(tiny(seed), within_memory=True)
    least = min(max(s.peak_bytes - s.limit_bytes for s in evaluate(instance, own).stages) for own in every_strategy(instance))
    small = tuple(replace(kind, memory_bytes=max(1, kind.memory_bytes + least - 3)) for kind in instance.kinds)
    assert (explain(instance) is None) == (least <= 0)
    for tried in (instance, replace(instance, kinds=small)):
        excess = min(max(s.peak_bytes - s.limit_bytes for s in evaluate(tried, own).stages) for own in every_strategy(tried))
        reason = explain(tried)
        if reason is None:
            assert excess <= 0
        else:
            assert reason.least_memory_bytes - reason.memory_bytes == excess > 0


@pytest.mark.parametrize("first", first_and_others([*range(0, 360, 30)], 2))
def test_exact_finds_the_optimum(first: int) -> None:
    for seed in range(first, first + 30):
        instance = random_cluster(seed)
        if instance.devices <= 4:
            assert_agrees(solve(instance), solve(instance, "brute-force"), seed)


@pytest.mark.parametrize("seed", range(8))
def test_exact_finds_the_optimum_on_more_devices(seed: int) -> None:
    instance = random_cluster(seed + 1000, devices=6, layers=5)
    assert_agrees(solve(instance), solve(instance, "brute-force"), seed)


@pytest.mark.parametrize("seed", range(4))
def test_exact_finds_the_optimum_on_two_nodes_of_four(seed: int) -> None:
    given = random_cluster_dict(random.Random(seed), devices=8, layers=5)
    slow, fast = {"devices": 8, "bandwidth_bytes_per_s": 1e6}, {"devices": 4, "bandwidth_bytes_per_s": 1e7}
    kinds = [*range(len(given["kinds"]))][:2]
    given |= {"network": {"islands": [fast, slow]}, "devices": [{"kind": kind, "count": 8 // len(kinds)} for kind in kinds]}
    instance = load({**given, "batch": 4, "tables": [t for t in given["tables"] if t["mbs"] in (1, 2)]})
    assert_agrees(solve(instance), solve(instance, "brute-force"), seed)


MODELS = [("cpsat", 0), ("milp", 0), ("cpsat", 25), ("cpsat", 50), ("milp", 20)]


@pytest.mark.parametrize(("method", "first"), first_and_others(MODELS, 2))
def test_models_have_the_same_optimum(method: str, first: int) -> None:
    """HiGHS's bound is a float, so that it may stay a nanosecond below."""
    gap = 1e-7 if method == "milp" else 0.0
    for seed in range(first, first + (20 if method == "milp" else 25)):
        instance = random_cluster(seed)
        if instance.devices <= 4:
            assert_agrees(solve(instance, method, gap=gap), solve(instance), seed)


def one(instance: Instance, given: Degrees) -> Instance:
    """The instance with no other degrees."""

    class One(Instance):
        def degrees(self) -> Any:
            return iter([given])

    return One(**{name: value for name, value in vars(instance).items() if name in Instance.__match_args__})


def solved_cases(first: int) -> Iterator[tuple[DegreeCase, int]]:
    """Reduced cases of 25 instances of at most four devices, with the least time of all their strategies."""
    for seed in range(first, first + 25):
        instance = random_cluster(seed)
        for degrees in instance.degrees() if instance.devices <= 4 else ():
            best = solve(one(instance, degrees), "brute-force", explained=False).objective
            if best is not None:
                yield DegreeCase(instance, degrees, reduced=True), best


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_even_stages_ns_is_below_every_strategy(first: int) -> None:
    assert all(even_stages_ns(case) <= best for case, best in solved_cases(first))


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_one_pipeline_ns_is_below_every_strategy_and_often_met(first: int) -> None:
    met = 0
    for case, best in solved_cases(first):
        bound, path = one_pipeline_ns(PipelineSearch(case), None, never)
        assert bound <= best and path is not None and path.time_ns(case.even_share) == bound
        met += bound == best
    assert met


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_uneven_shares_leave_none_only_where_there_is_none(first: int) -> None:
    for case, best in solved_cases(first):
        if case.instance.uneven_shares:
            assert not uneven_shares_leave_none(PipelineSearch(case), best + 1, never)


def test_box_bound_ns_is_below_every_path_of_the_box() -> None:
    """All corners that a path may lie at are tried."""
    slow, syncs = np.array([3, 5, 9]), np.array([0, 4])
    for m, d, once in product(range(3), range(2), range(10, 13)):
        for low, lower in product(range(m + 1), range(d + 1)):
            bound = box_bound_ns(Box(low, 2, lower, 1, 10), slow, syncs, micro_batches=4)
            assert bound <= 3 * slow[m] + once + syncs[d]


@pytest.mark.parametrize("seed", range(20))
def test_exchanged_orbits_cost_the_same(seed: int) -> None:
    """Whole classes of an orbit change places in a random strategy."""
    instance = random_cluster(seed * 7, devices=6)
    alike, members = orbits(instance), instance.members
    rng = np.random.default_rng(seed)
    for given in instance.degrees():
        shares = instance.even_shares(given.dp, given.mbs)
        assert shares is not None
        placement = rng.permutation(instance.devices)
        cuts = tuple(sorted(int(c) for c in rng.choice(np.arange(1, instance.layers), given.pp - 1, replace=False)))
        time = evaluate(instance, Solution(given, tuple(map(int, placement)), cuts, shares)).objective
        for b, a in enumerate(alike):
            moved = np.arange(instance.devices)
            moved[members[a]], moved[members[b]] = members[b], members[a]
            exchanged = tuple(int(moved[device]) for device in placement)
            assert evaluate(instance, Solution(given, exchanged, cuts, shares)).objective == time


def test_nodes_that_share_their_links_alike_are_one_orbit() -> None:
    given = random_cluster_dict(random.Random(1), devices=8)
    inner = [{"devices": 4, "first": first, "bandwidth_bytes_per_s": 1e9} for first in (0, 4)]
    whole = {"devices": 8, "bandwidth_bytes_per_s": 1e8, "shared_by": 4}
    given |= {"devices": [{"kind": 0, "count": 8}], "network": {"islands": [*inner, whole]}}
    assert orbits(load(given)) == (0, 0)
    inner[1]["bandwidth_bytes_per_s"] = 2e9
    assert orbits(load(given)) == (0, 1)


@pytest.mark.parametrize("cluster", ["amp-homogeneous-16", "amp-heterogeneous-16", "amp-p3-16"])
@pytest.mark.parametrize(("uneven", "tied"), [(False, False), (False, True), (True, False)])
def test_shipped_clusters_are_solved_without_a_model(cluster: str, uneven: bool, tied: bool) -> None:
    options = {"uneven_shares": uneven, "tied": tied}
    instance = PROBLEM.instance(Request(load_model("amp-gpt2", dtype="float32"), load_cluster(cluster), 32, options=options))
    result, planned = solve(instance), solve(instance, "amp")
    assert (result.status, result.statistics["models"]) == ("optimal", [])
    assert result.objective is not None and planned.objective is not None
    assert result.objective <= planned.objective


def test_a_gap_is_kept_and_a_limit_is_an_outcome() -> None:
    for seed in range(1000, 1020):
        instance = random_cluster(seed, devices=4)
        known = solve(instance, "brute-force")
        rough, hasty = solve(instance, gap=0.3), solve(instance, time_limit=1e-6)
        assert rough.status in ("optimal", "infeasible") and hasty.status in ("unknown", "feasible", "infeasible")
        if known.objective is not None:
            assert rough.bound is not None and rough.bound <= known.objective <= (rough.objective or 0)
            assert hasty.bound is None or hasty.bound <= known.objective


def test_climbing_is_never_worse_than_algorithm_1_and_mostly_better() -> None:
    """Many kinds of links, and memory that binds: where bounds do not meet soon."""
    better = compared = 0
    for seed in range(2000, 2004):
        instance = random_cluster(seed, devices=12, layers=16)
        planned = solve(instance, "amp")
        search = Search(lambda s, own=instance: None if violations(own, s) else evaluate(own, s).time_ns)
        climb(instance, search, never)
        if planned.objective is not None:
            assert search.objective is not None and search.objective <= planned.objective, seed
            compared += 1
            better += search.objective < planned.objective
    assert compared >= 2 and better >= compared // 2, (compared, better)


def test_what_a_move_costs_is_what_the_full_evaluation_says() -> None:
    """Costs of groups and placements that are remembered from move to move, against an instance that knows nothing yet."""
    for seed in range(2000, 2012):
        instance = random_cluster(seed, devices=8, layers=10)
        rng = np.random.default_rng(seed)
        climbers = [Climber(DegreeCase(instance, given, reduced=True), tuple(range(8))) for given in instance.degrees()]
        for climber in climbers if len(instance.class_kinds) > 1 else ():
            for _ in range(8):
                climber.move(rng)
                judged = evaluate(replace(instance), climber.solution)
                missing = sum(max(0, stage.peak_bytes - stage.limit_bytes) for stage in judged.stages)
                assert climber.cost == (missing if instance.within_memory else 0, judged.time_ns), (seed, climber.solution)


def twelve_kinds() -> Instance:
    """Twelve devices, each of its own class: too many groups to follow one pipeline through."""
    instance = random_cluster(2000, devices=12, layers=16)
    rng = random.Random(0)
    table = [[float(rng.randint(10**6, 10**7)) for _ in range(12)] for _ in range(12)]
    return replace(instance, network=Network(matrix=Matrix(bandwidth_bytes_per_s=table)), within_memory=False)


def test_many_kinds_of_groups_leave_the_limit_kept_and_an_answer() -> None:
    instance = twelve_kinds()
    result, planned = solve(instance, time_limit=3), solve(instance, "amp")
    assert result.objective is not None and planned.objective is not None and result.bound is not None
    assert result.bound <= result.objective <= planned.objective


def test_even_shares_do_not_climb_from_a_strategy_with_uneven_ones() -> None:
    """The best strategy so far may have degrees whose pipelines cannot have equal shares."""
    instance = twelve_kinds()
    search, looks = Search(judge(instance)), count()
    search.report(first_plan(instance))
    assert search.best is not None and len(set(search.best.shares)) > 1
    climb(replace(instance, uneven_shares=False), search, lambda: next(looks) > 200)
    assert search.objective is not None and not violations(instance, search.best)


def test_degrees_may_be_held_to_powers_of_two() -> None:
    instance = random_cluster(5, devices=6)
    assert {3, 6} & {given.dp for given in instance.degrees()}
    held = replace(instance, powers_of_two=True)
    assert {given.dp for given in held.degrees()} <= {1, 2, 4}
    free = next(given for given in instance.degrees() if given.dp == 3)
    strategy = Solution(free, tuple(range(6)), tuple(range(1, free.pp)), ())
    assert violations(held, strategy) == ["dp is 3; the instance wants a power of two"]
    doubled = Solution(free, (0, 1, 2, 3, 4, 4), tuple(range(1, free.pp)), ())
    assert violations(instance, doubled) == ["placement names device 4 2 times; give each once"]


def test_links_too_slow_to_count_in_nanoseconds_are_refused() -> None:
    given = random_cluster_dict(random.Random(3), devices=4)
    given["network"] = {"islands": [{"devices": 4, "bandwidth_bytes_per_s": 1}]}
    given["boundary_bytes"] = [10**6 for _ in given["boundary_bytes"]]
    with refused("network", where="instance", problem="4.8e+16 ns", fix="9.01e+15 ns"):
        load(given)


def scattered(devices: int) -> Instance:
    """Every device is of its own class."""
    rng = random.Random(0)
    given = random_cluster_dict(rng, devices=4)
    tables = [t | {"tmp": 8} for t in given["tables"] if t["tmp"] == 4]
    instance = load({**given, "batch": 64, "shards": [{**given["shards"][0], "tmp": 8}], "tables": tables})
    table = [[float(rng.randint(10**6, 10**7)) for _ in range(devices)] for _ in range(devices)]
    network = Network(matrix=Matrix(bandwidth_bytes_per_s=table))
    return replace(instance, device_kinds=(0,) * devices, network=network, within_memory=False)


def test_too_many_makes_leave_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = scattered(64)
    count_the_clock(monkeypatch)
    result = solve(instance, time_limit=20)
    assert result.status == "feasible" and result.bound is not None
    assert str(result.bound_source).count("one pipeline") == 1
    for model in ("milp", "cpsat"):
        result = solve(instance, model)
        assert (result.status, result.solution_source, result.stopped) == ("feasible", FIRST_PLAN, "model size")
        assert (result.bound, result.bound_source) == cheap_bound(instance)
        assert stated("--method exact", str(result.message))
        assert solve(instance, model, cold=True).status == "unknown"
    with refused("method", problem="brute-force", fix=("exact", "2e6"), kind=Unsupported):
        solve(instance, "brute-force")


def test_a_batch_that_no_strategy_shares_is_named() -> None:
    """By every method in the same words, with a batch that works."""
    given = random_cluster_dict(random.Random(3), devices=4)
    tables = [t | {"mbs": 4} for t in given["tables"] if t["mbs"] == 1]
    instance = load({**given, "batch": 6, "tables": tables})
    for entry in methods("cluster-strategy"):
        with refused("batch", problem=(6, 4), fix=(4, "1 pipeline", "1 stage")):
            solve(instance, entry.name)
    assert list(replace(instance, batch=4).degrees())


def test_degrees_that_make_no_pipelines_are_named() -> None:
    given = random_cluster_dict(random.Random(3), devices=3, layers=1)
    tables, shards = ([row | {"tmp": 2} for row in given[name][:1]] for name in ("tables", "shards"))
    with refused("shards", problem=("tmp 2", 3), fix=3):
        solve(load({**given, "tables": tables, "shards": shards}))
    with refused("shards", problem=("tmp 1", 3), fix="3 layers"):
        solve(replace(load(given), powers_of_two=True))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_one_layer_is_solved_by_every_method(devices: int) -> None:
    for seed in range(6):
        instance = replace(random_cluster(seed, devices=devices, layers=1), within_memory=False)
        results = {entry.name: solve(instance, entry.name) for entry in methods("cluster-strategy")}
        assert {result.objective for name, result in results.items() if method(instance.problem, name).proves} == {
            results["brute-force"].objective
        }
        assert not any(result.status == "failed" for result in results.values())


def test_a_batch_of_a_billion_samples_is_shared_out() -> None:
    """Its shares can be read again, and are not listed one by one."""
    instance = replace(random_cluster(5, devices=4, layers=4), batch=10**9, uneven_shares=True, within_memory=False)
    result = solve(instance, time_limit=60)
    assert result.solution is not None and PROBLEM.violations(instance, PROBLEM.load_solution(result.solution)) == []
    assert result.bound is not None and result.objective is not None and result.bound <= result.objective


def test_a_tied_table_brings_first_and_last_stage_together() -> None:
    """Two nodes and a slow link between them: what the table takes over the link is more than another transfer."""
    given = random_cluster_dict(random.Random(1), devices=4, layers=6) | {"within_memory": False, "uneven_shares": False}
    layers = len(given["layer_names"])
    fast, slow = {"devices": 2, "bandwidth_bytes_per_s": 1e9}, {"devices": 4, "bandwidth_bytes_per_s": 1e6}
    tables = [t | {"layer_ns": [[10**6] * layers], "mbs": 1} for t in given["tables"] if (t["tmp"], t["mbs"]) == (1, 1)]
    given |= {
        "kinds": given["kinds"][:1], "devices": [{"kind": 0, "count": 4}], "network": {"islands": [fast, slow]},
        "shards": [given["shards"][0] | {"gradient_bytes": [10**5] * layers}], "tables": tables, "batch": 8,
        "boundary_bytes": [1] * (layers - 1), "tied_bytes": 0,
    }  # fmt: skip
    apart, together = (solve(load(given | {"tied_bytes": size})) for size in (0, 10**5))
    assert apart.solution is not None and together.solution is not None
    placement = together.solution["placement"]
    assert together.solution["pp"] == 4 and placement[0] // 2 == placement[3] // 2
    assert together.objective == solve(load(given | {"tied_bytes": 10**5}), "brute-force").objective
    assert apart.objective is not None and together.objective is not None and apart.objective < together.objective
