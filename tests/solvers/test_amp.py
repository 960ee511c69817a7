"""AMP's planners: Algorithm 1 against brute force and the paper's choices, annealing and its tilings, and the baselines."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.problem import Solution, evaluate, load_solution, violations
from trainplan.solvers.cluster.amp import TOP, Candidate, amp, assigned, by_time, estimated
from trainplan.solvers.cluster.annealing import RandomStrategies
from trainplan.solvers.cluster.heuristic import SOURCE
from trainplan.solvers.cluster.placements import Domino, Tilings, mesh_shape, node_order, smallest_node
from trainplan.solvers.core.search import Search

import trainplan as tp
from tests.helpers.cluster_instances import random_cluster
from tests.helpers.refusals import refused

SEEDS = range(60)
METHODS = ("amp", "megatron", "simulated-annealing", "random")


@cache
def real(cluster: str = "amp-homogeneous-16", memory: str | None = None, **options: Any) -> Instance:
    instance = tp.build(
        "cluster-strategy", model="amp-gpt2", dtype="float32", cluster=cluster, batch=32, memory=memory, **options
    )
    assert isinstance(instance, Instance)
    return instance


def solved(instance: Instance, method: str, **options: Any) -> tp.api.Result:
    return tp.solve(instance, method, explained=False, **options)


def candidates(
    instance: Instance, *, top: int | None = TOP, assignment: str = "exact", layer_times: str = "device"
) -> list[Candidate]:
    """The strategies of least cost by Algorithm 1, best first, those that do not fit among them. top: None for all."""
    rules = node_order(instance), assignment, layer_times
    return by_time(estimated(instance, assigned(instance, degrees, *rules)) for degrees in instance.degrees())[:top]


def listed(result: tp.api.Result) -> list[dict[str, Any]]:
    return list(result.statistics["candidates"])


def degrees_of(given: dict[str, Any]) -> tuple[int, int, int, int]:
    return given["pp"], given["dp"], given["tmp"], given["mbs"]


def solution_of(given: dict[str, Any]) -> Solution:
    return load_solution({name: value for name, value in given.items() if name not in ("time_ns", "fits", "peak_bytes")})


def all_cuts(instance: Instance, stages: int) -> list[tuple[int, ...]]:
    return list(combinations(range(1, instance.layers), stages - 1))


def best_cuts_ns(instance: Instance, degrees: Degrees, placement: tuple[int, ...]) -> int:
    """Eq. 5 of the slowest pipeline, stage by stage, by trying all cuts."""
    placed, shares = instance.placed(degrees, placement), instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    times, moves, found = placed.layer_ns.max(axis=1), placed.transfer_ns.max(axis=1), []
    for cuts in all_cuts(instance, degrees.pp):
        stages = [int(times[i, a:b].sum()) for i, (a, b) in enumerate(pairwise((0, *cuts, instance.layers)))]
        moved = sum(int(moves[i, cut - 1]) for i, cut in enumerate(cuts))
        found.append((max(shares) - 1) * max(stages) + sum(stages) + moved)
    return min(found)


def test_algorithm_1_enumerates_every_factorisation() -> None:
    for seed in SEEDS:
        instance = random_cluster(seed)
        count, batch, uneven = instance.devices, instance.batch, instance.uneven_shares
        expected = {
            (pp, dp, tmp, mbs)
            for pp, dp in product(range(1, count + 1), repeat=2)
            for tmp, mbs in instance.tables
            if pp * dp * tmp == count and pp <= instance.layers and batch % mbs == 0
            if batch // mbs >= dp and (uneven or batch // mbs % dp == 0)
        }
        found = [
            (given.pp, given.dp, given.tmp, given.mbs)
            for given in (candidate.solution.degrees for candidate in candidates(instance, top=None))
        ]
        assert len(found) == len(set(found))
        assert set(found) == expected, seed


def test_estimates_are_those_of_evaluate_and_sorted() -> None:
    for seed in SEEDS:
        instance = random_cluster(seed)
        found = candidates(instance, top=None)
        assert [c.time_ns for c in found] == sorted(c.time_ns for c in found)
        for candidate in found:
            judged = evaluate(instance, candidate.solution)
            assert (judged.time_ns, judged.fits, judged.peak_bytes) == (candidate.time_ns, candidate.fits, candidate.peak_bytes)
            assert candidate.solution.placement == tuple(range(instance.devices))
            assert (violations(instance, candidate.solution) == []) == (candidate.fits or not instance.within_memory)
            shares = candidate.solution.shares
            assert max(shares) - min(shares) <= (1 if instance.uneven_shares else 0)
        assert candidates(instance, top=2) == found[:2]


@pytest.mark.parametrize("assignment", ["exact", "amp-dp"])
def test_the_assignment_is_the_best_for_its_placement(assignment: str) -> None:
    several = 0
    for seed in SEEDS:
        instance = random_cluster(seed)
        for candidate in candidates(instance, top=None, assignment=assignment):
            given, own = candidate.solution.degrees, candidate.solution
            if given.dp == 1:
                other = [Solution(given, own.placement, cuts, own.shares) for cuts in all_cuts(instance, given.pp)]
                assert candidate.time_ns == min(evaluate(instance, entry).time_ns for entry in other), (seed, given)
            elif given.pp > 1:
                judged = evaluate(instance, own)
                assert max(judged.pipelines_ns) <= best_cuts_ns(instance, given, own.placement), (seed, given)
                several += 1
    assert several > 20


def test_uniform_assignments_are_the_least_largest() -> None:
    instance = real()
    gradients = instance.shards[1].gradient_bytes
    for stages in (2, 4, 8):
        degrees = Degrees(stages, 16 // stages, 1, 1)
        by_layers = assigned(instance, degrees, node_order(instance), "uniform-layers").cuts
        assert np.diff((0, *by_layers, 26)).tolist() == [24 // stages + 1, *[24 // stages] * (stages - 2), 24 // stages + 1]
        spans = pairwise((0, *assigned(instance, degrees, node_order(instance), "uniform-parameters").cuts, 26))
        largest = max(int(gradients[a:b].sum()) for a, b in spans)
        if stages <= 4:
            every = (pairwise((0, *cuts, 26)) for cuts in all_cuts(instance, stages))
            assert largest == min(max(int(gradients[a:b].sum()) for a, b in entry) for entry in every)


def test_average_layer_times_are_never_better_and_worse_on_mixed_devices() -> None:
    """The published code gives a slow device as many layers as a fast one."""
    for seed in SEEDS:
        instance = random_cluster(seed)
        for degrees in instance.degrees():
            if degrees.dp == 1:
                own, mean = (
                    evaluate(instance, assigned(instance, degrees, node_order(instance), "exact", times)).time_ns
                    for times in ("device", "average")
                )
                assert own <= mean, (seed, degrees)
    mixed = real("amp-heterogeneous-16")
    own, mean = candidates(mixed)[0], candidates(mixed, layer_times="average")[0]
    assert own.time_ns < 0.95 * mean.time_ns
    sizes = np.diff((0, *own.solution.cuts, 26))
    assert own.solution.degrees.pp == 4
    assert sizes[-1] < min(sizes[:-1])  # the last stage is on the T4


def test_what_does_not_fit_is_listed_and_marked_but_never_the_answer() -> None:
    statuses = Counter()
    for seed in range(150):
        instance = random_cluster(seed)
        result = solved(instance, "amp", top=1000)
        found = listed(result)
        usable = [c["time_ns"] for c in found if c["fits"] or not instance.within_memory]
        assert len(found) == result.statistics["estimated"]
        if not found or not usable:
            assert (result.status, result.objective) == ("unknown", None)
            assert ("blind to memory" if found else "no degrees") in str(result.message)
        else:
            assert result.objective == min(usable)
            assert result.status == "optimal" if result.bound == result.objective else "feasible"
        statuses[result.objective is not None, any(not c["fits"] for c in found[:1])] += 1
    assert min(statuses[False, True], statuses[True, True], statuses[True, False]) > 5


def test_a_small_memory_rules_out_the_fastest_strategy() -> None:
    loose, tight = real(), real(memory="7GiB")
    assert [c["fits"] for c in listed(solved(loose, "amp"))] == [True] * 10
    result = solved(tight, "amp")
    assert listed(result)[0]["fits"] is False
    assert degrees_of(listed(result)[0]) == degrees_of(listed(solved(loose, "amp"))[0])
    assert result.objective == next(c["time_ns"] for c in listed(result) if c["fits"])
    blind = solved(real(memory="7GiB", ignore_memory=True), "amp")
    assert blind.objective == listed(result)[0]["time_ns"]


def test_megatron_chooses_pure_data_parallelism_where_the_model_fits_one_device() -> None:
    """'Since the model can be fit into a single GPU, Megatron selects an extreme configuration - dp = 16' (Section 4.5)."""
    result = solved(real(), "megatron")
    found = listed(result)
    assert [degrees_of(c) for c in found[:4]] == [(1, 16, 1, 1), (1, 16, 1, 2), (2, 8, 1, 4), (1, 8, 2, 4)]
    assert found[2]["cuts"] == [13]  # [0, 14, 30] of Table 6, whose first layers and last ones are here one layer each
    assert [c["cuts"] for c in found if c["pp"] == 4 and c["tmp"] == 1] == [[7, 13, 19]]  # [0, 8, 14, 20, 30] of Table 8
    assert result.objective == min(c["time_ns"] for c in found)
    # On the mixed cluster the same degrees are slow, and Algorithm 1 is better.
    mixed = real("amp-heterogeneous-16")
    other = solved(mixed, "megatron")
    assert degrees_of(listed(other)[0]) == (1, 16, 1, 1)
    assert 1.2 * solved(mixed, "amp").objective < other.objective  # type: ignore[operator]


def test_megatron_takes_the_smallest_degrees_that_fit() -> None:
    for instance in [*(random_cluster(seed) for seed in range(150)), real(memory="7GiB"), real("amp-p3-16", "5GiB")]:
        found = [solution_of(c) for c in listed(solved(instance, "megatron", top=1000))]
        every = candidates(instance, top=None, assignment="uniform-layers")
        usable = [c for c in every if c.solution.degrees.tmp <= smallest_node(instance) if c.fits or not instance.within_memory]
        assert set(found) == {c.solution for c in usable}
        least = {c.solution.degrees.mbs: 10**9 for c in usable}
        for c in usable:
            given = c.solution.degrees
            least[given.mbs] = min(least[given.mbs], given.tmp * given.pp)
        choice = [c for c in usable if c.solution.degrees.tmp * c.solution.degrees.pp == least[c.solution.degrees.mbs]]
        first = found[: len(choice)]
        assert first == sorted((c.solution for c in choice), key=lambda s: (s.degrees.mbs, s.degrees.tmp))
        assert solved(instance, "megatron").objective == min((c.time_ns for c in choice), default=None)


def test_the_smallest_node_follows_from_the_links() -> None:
    assert [smallest_node(real(name)) for name in ("amp-homogeneous-16", "amp-heterogeneous-16")] == [4, 4]


@pytest.mark.parametrize("method", METHODS)
def test_planners_give_feasible_answers_and_end_with_the_time(method: str) -> None:
    for seed in SEEDS:
        instance = random_cluster(seed)
        fewer = {} if method in ("amp", "megatron") else {"iterations": 25}
        result = solved(instance, method, seed=seed, **fewer)
        assert result.status in ("feasible", "optimal", "unknown"), (seed, result.message)
        assert result.bound is None or result.bound_source == SOURCE
        for c in listed(result):
            assert evaluate(instance, solution_of(c)).time_ns == c["time_ns"]
    stopped = solved(real(), method, time_limit=1e-9)
    assert stopped.status in ("unknown", "feasible")
    assert "time ran out" in str(stopped.message)
    assert stopped.statistics["estimated"] <= 1


@pytest.mark.parametrize("method", ["simulated-annealing", "random"])
def test_a_seed_decides_every_draw(method: str) -> None:
    instance = real("amp-heterogeneous-16")
    first, again, other = (solved(instance, method, seed=seed, iterations=40) for seed in (3, 3, 4))
    assert (first.objective, first.statistics) == (again.objective, again.statistics)
    assert first.statistics != other.statistics
    assert first.statistics["estimated"] == 40 + (method == "simulated-annealing")


def test_random_strategies_are_of_all_kinds() -> None:
    instance = real("amp-heterogeneous-16")
    result = solved(instance, "random", iterations=400)
    found = listed(result)
    drawn = Counter(degrees_of(c) for c in found)
    possible = {(g.pp, g.dp, g.tmp, g.mbs) for g in instance.degrees()}
    assert len(found) == 400
    assert set(drawn) <= possible
    assert len(drawn) > 0.9 * len(possible)
    assert len({tuple(c["placement"]) for c in found}) == 400
    assert result.objective == min(c["time_ns"] for c in found if c["fits"])
    starts = Counter(first for c in found if c["pp"] == 2 for first in c["cuts"])
    assert min(starts) <= 4
    assert max(starts) >= 22


def test_annealing_improves_on_its_start() -> None:
    for cluster in ("amp-heterogeneous-16", "amp-p3-16", "amp-homogeneous-16"):
        for seed in range(4):
            result = solved(real(cluster), "simulated-annealing", seed=seed, iterations=200)
            found = listed(result)
            assert result.objective is not None
            assert result.objective <= result.statistics["start_ns"]
            assert [c["time_ns"] for c in found] == sorted(c["time_ns"] for c in found)
            assert result.objective < 1.3 * candidates(real(cluster))[0].time_ns
            assert 0 < result.statistics["accepted"] < 200


def test_neighbours_keep_one_degree_and_take_any_other() -> None:
    walk = RandomStrategies(real(), np.random.default_rng(0))
    start = Degrees(4, 2, 2, 1)
    reached = {walk.neighbour(start) for _ in range(2000)}
    sizes = {(2, 1), (2, 2), (2, 4), (1, 2), (4, 2)}  # tmp and dp; 2 x 8 does not fit into 4 x 4
    assert reached == {g for g in real().degrees() if (g.tmp, g.dp) in sizes}


def test_annealing_places_whole_dominoes() -> None:
    instance = real("amp-p3-16")
    assert mesh_shape(instance) == (4, 4)
    shapes = set()
    for c in listed(solved(instance, "simulated-annealing", iterations=300, top=300)):
        grid = np.array(c["placement"]).reshape(c["pp"], c["dp"], c["tmp"])
        for stage in grid:
            # (dp, tmp) devices of a rectangle, its rows the tensor-parallel groups, or its columns
            rows, columns = np.divmod(stage, 4)
            lying = (np.ptp(rows, axis=1) == 0).all() and (np.ptp(columns, axis=0) == 0).all()
            upright = (np.ptp(columns, axis=1) == 0).all() and (np.ptp(rows, axis=0) == 0).all()
            assert lying or upright
            assert max(np.ptp(rows), np.ptp(columns)) + 1 <= max(c["dp"], c["tmp"])
            shapes.add((c["dp"], c["tmp"], bool(lying)))
        firsts = [int(stage.min()) for stage in grid]
        assert firsts == sorted(firsts)
    assert {(1, 2, True), (1, 2, False)} <= shapes


def test_a_mesh_that_no_domino_tiles_is_reported_so() -> None:
    """One layer is one stage; four pipelines of one device make no domino in a mesh of 2 x 2."""
    instance = tp.load(
        {
            "problem": "cluster-strategy",
            "version": 1,
            "batch": 4,
            "layer_names": ["layer"],
            "kinds": [{"name": "kind", "memory_bytes": 100}],
            "devices": [{"kind": 0, "count": 4}],
            "network": {"islands": [{"devices": 4, "bandwidth_bytes_per_s": 1e9}]},
            "reductions": [0],
            "reduced_bytes": [0],
            "boundary_bytes": [],
            "shards": [{"tmp": 1, "gradient_bytes": [8], "state_bytes": [1]}],
            "tables": [{"tmp": 1, "mbs": 1, "layer_ns": [[5]], "kept_bytes": [1], "workspace_bytes": [1]}],
        }
    )
    assert isinstance(instance, Instance)
    assert solved(instance, "amp").objective == 5 + 12  # 2 x 3 / 4 x 8 bytes at one a nanosecond
    assert solved(instance, "megatron").objective == solved(instance, "random").objective == 17
    result = solved(instance, "simulated-annealing")
    assert (result.status, result.message) == ("unknown", "no domino of tmp x dp devices tiles the mesh of 2 x 2")
    mesh = Tilings(1, 7, np.random.default_rng(0))
    assert [mesh.exists(*size) for size in ((7, 1), (1, 7), (1, 1), (2, 1), (7, 7))] == [True, True, True, False, False]


def covered(dominoes: list[Domino], tmp: int, dp: int) -> list[tuple[int, int]]:
    found = []
    for domino in dominoes:
        height, width = (tmp, dp) if domino.upright else (dp, tmp)
        found += [(domino.row + i, domino.column + j) for i in range(height) for j in range(width)]
    return sorted(found)


def tilings_of(rows: int, columns: int, tmp: int, dp: int) -> list[frozenset[Domino]]:
    """All of them, by filling the first free place."""
    found: list[frozenset[Domino]] = []

    def fill(free: frozenset[tuple[int, int]], used: frozenset[Domino]) -> None:
        if not free:
            found.append(used)
            return
        row, column = min(free)
        for upright in (True, False):
            part = frozenset(covered([Domino(row, column, upright)], tmp, dp))
            if part <= free:
                fill(free - part, used | {Domino(row, column, upright)})

    fill(frozenset(product(range(rows), range(columns))), frozenset())
    return found


@settings(max_examples=300)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_every_draw_is_a_tiling(rows: int, columns: int, data: st.DataObject) -> None:
    count = rows * columns
    tmp = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    dp = data.draw(st.sampled_from([n for n in range(1, count // tmp + 1) if count // tmp % n == 0]))
    tilings = Tilings(rows, columns, np.random.default_rng(data.draw(st.integers(0, 9))))
    if not tilings.exists(tmp, dp):
        assert count > 16 or not tilings_of(rows, columns, tmp, dp)
        return
    for _ in range(3):
        dominoes = tilings.draw(tmp, dp)
        assert covered(dominoes, tmp, dp) == list(product(range(rows), range(columns)))
        assert dominoes == sorted(dominoes)
        placement = tilings.placement(dominoes, tmp, dp)
        assert sorted(placement) == list(range(count))
        stages = np.array(placement).reshape(-1, dp, tmp)
        for domino, stage in zip(dominoes, stages, strict=True):
            step = columns if domino.upright else 1  # from one tensor-parallel rank to the next
            assert (np.diff(stage, axis=1) == step).all()
            assert stage[0, 0] == domino.row * columns + domino.column


@pytest.mark.parametrize(("mesh", "size", "count"), [((4, 4), (2, 1), 36), ((4, 4), (1, 4), 2), ((6, 6), (1, 3), 64)])
def test_all_tilings_are_equally_likely(mesh: tuple[int, int], size: tuple[int, int], count: int) -> None:
    every = tilings_of(*mesh, *size)
    assert len(every) == count
    tilings, draws = Tilings(*mesh, np.random.default_rng(1)), 100 * count
    seen = Counter(frozenset(tilings.draw(*size)) for _ in range(draws))
    assert set(seen) == set(every)
    # 100 each are expected; draws follow one chain, so that they vary somewhat more than independent ones.
    assert 40 < min(seen.values()) <= max(seen.values()) < 180


def test_options_that_do_not_exist_are_refused() -> None:
    for method, options, refusal in (
        ("amp", {"layer_times": "mean"}, ("layer_times", "mean", ("device", "average"))),
        ("megatron", {"assignment": "exact"}, ("assignment", "exact", ("uniform-layers", "uniform-parameters"))),
        ("random", {"top": 3}, ("top", "random", "iterations")),
    ):
        with refused(*refusal):
            tp.solve(real(), method, **options)


def test_candidates_have_a_solution_file_and_costs() -> None:
    best = candidates(real())[0]
    reported = best.to_dict()
    assert isinstance(best, Candidate)
    assert solution_of(reported) == best.solution
    assert (reported["time_ns"], reported["fits"], reported["peak_bytes"]) == (best.time_ns, best.fits, best.peak_bytes)


def test_a_search_hears_only_of_what_fits() -> None:
    marked = 0
    for seed in SEEDS:
        instance, heard = random_cluster(seed), list[Solution]()

        def objective(solution: Solution, instance: Instance = instance, heard: list[Solution] = heard) -> int:
            heard.append(solution)
            return evaluate(instance, solution).time_ns

        amp(instance, Search(objective))
        assert all(not violations(instance, solution) for solution in heard)
        marked += instance.within_memory and any(not candidate.fits for candidate in candidates(instance, top=None))
    assert marked > 10
