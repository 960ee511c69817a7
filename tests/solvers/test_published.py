"""The engine's search against the engine itself, and the optimum against both."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from trainplan.formulations.pipeline.problem import Solution
from trainplan.solvers.core.search import Search
from trainplan.solvers.core.solve import solve

from tests.helpers.instances import random_pipeline
from tests.helpers.published import GIB, MIB, NUMBERS, Json, as_engine, bert, engine_options, invented, llama
from trainplan.papers.galvatron_engine.costs import EngineOptions
from trainplan.papers.galvatron_engine.instances import build, usable_bytes
from trainplan.papers.galvatron_engine.optimum import published_optimum
from trainplan.papers.galvatron_engine.problem import Configuration, Instance, evaluate, even_partition, violations
from trainplan.papers.galvatron_engine.search import published_search


def searching(instance: Instance) -> Search:
    return Search(lambda solution: None if violations(instance, solution) else evaluate(instance, solution).objective)


def names(instance: Instance, solution: Solution) -> list[str]:
    strategies = instance.configurations[solution.configuration].tables.strategies
    return [strategies[s] for s in solution.choice]


def searched_ns(given: Configuration, choice: Sequence[int]) -> int:
    """The objective that the engine's dynamic programming minimises in a stage, up to a constant."""
    moves = sum(int(given.tables.transitions_ns[0, a, b]) for a, b in pairwise(choice))
    return moves + int(given.tables.time_ns[1, list(choice)].sum())


def searched(case: Json) -> Instance:
    return build(invented(case["slow"]), case["memory_mib"] * MIB, case["batch"], engine_options(case))


@pytest.mark.parametrize("case", NUMBERS["searches"])
def test_search_finds_the_engines_plan(case: Json) -> None:
    instance = searched(case)
    found: Solution | None = published_search(instance, searching(instance)).choice  # type: ignore[assignment]
    if "layers" not in case:
        assert found is None
        return
    assert found is not None
    given = instance.configurations[found.configuration]
    engines = tuple(given.tables.strategies.index(name) for name in case["layers"])
    if engines != found.choice:  # a tie, where the engine's floats decide
        assert given.stages == 1
        assert searched_ns(given, engines) == pytest.approx(searched_ns(given, found.choice), abs=6)
    choice = instance.provenance["choices"][found.configuration]
    for name in ("stages", "micro_batches", "vocabulary_tp", "vocabulary_sp", "sharded"):
        assert choice[name] == case[name]
    costs = evaluate(instance, found)
    assert costs.time_ns == pytest.approx(case["iteration_ns"], abs=8 * case["micro_batches"])
    if engines != found.choice:
        return
    for stage, remaining in zip(costs.stages, case["remaining_mib"], strict=True):
        used = usable_bytes(case["memory_mib"] * MIB) // MIB - remaining
        assert used - (stage.last - stage.first + 1) * (case["stages"] > 1) <= stage.peak_bytes / MIB <= used


@pytest.mark.parametrize("case", NUMBERS["searches"][2::4])
def test_optimum_is_at_least_as_good_and_its_bound_holds(case: Json) -> None:
    instance = searched(case)
    search = searching(instance)
    outcome = published_optimum(instance, search)
    if "layers" not in case:
        assert outcome.infeasible
        return
    assert search.objective is not None
    assert outcome.bound is not None
    assert outcome.bound <= search.objective <= case["iteration_ns"] + 8 * case["micro_batches"]


def test_optimum_against_every_choice() -> None:
    profile = invented(slow=8)
    instance = build(profile, 3000 * MIB, 8, EngineOptions())
    few = [index for index, c in enumerate(instance.provenance["choices"]) if c["vocabulary_tp"] == c["most_tp"] == 2]
    small = Instance(
        **{
            name: getattr(instance, name)
            for name in ("devices", "memory_bytes", "batch", "layer_names", "layer_kinds", "boundary_kinds")
        },
        configurations=tuple(instance.configurations[index] for index in few[:6]),
    )
    best = None
    for index, given in enumerate(small.configurations):
        for choice in product(range(len(given.tables.strategies)), repeat=3):
            halves = tuple(s for s in choice for _ in range(2))
            solution = Solution(index, even_partition(6, given.stages), halves)
            if not violations(small, solution):
                time = evaluate(small, solution).time_ns
                best = time if best is None else min(best, time)
    search = searching(small)
    outcome = published_optimum(small, search)
    assert best is not None
    assert search.objective is not None
    assert outcome.bound is not None
    assert outcome.bound <= search.objective <= best


@pytest.mark.long
def test_llama_at_36_gib() -> None:
    instance = build(llama(), 36 * GIB, 16, EngineOptions(measured_messages=True))
    search = searching(instance)
    found: Solution = published_search(instance, search).choice  # type: ignore[assignment]
    assert evaluate(instance, found).time_ns == pytest.approx(1_084_781_257.6, abs=40)
    assert names(instance, found) == ["sdp4-tp2-ckpt"] * 21 + ["sdp4-tp2"] * 8 + ["dp4-tp2"] * 3
    outcome = published_optimum(instance, search)
    assert search.objective == outcome.bound == 1_083_027_349


def test_bert_at_23_gib() -> None:
    instance = build(bert(), 23 * GIB, 128, EngineOptions())
    search = searching(instance)
    found: Solution = published_search(instance, search).choice  # type: ignore[assignment]
    assert evaluate(instance, found).time_ns == pytest.approx(2_282_712_829.1, abs=60)
    assert Counter(names(instance, found)) == {"dp8": 24}
    assert instance.configurations[found.configuration].micro_batches == 2
    outcome = published_optimum(instance, search)
    assert search.objective == outcome.bound


def test_random_published_instances_against_brute_force() -> None:
    """Never a bound above the truth, never a plan below it, `optimal` and `infeasible` only where they are."""
    proven = 0
    for seed in range(150):
        rng = random.Random(seed)

        def ends_ns(given: Any, rng: random.Random = rng) -> tuple[int, int]:
            end = rng.randrange(int(given.tables.time_ns.min()) + 1)
            return (end, 0) if given.stages == 1 or rng.random() < 0.5 else (0, end)

        instance = as_engine(random_pipeline(seed), ends_ns)
        truth, found, engine = (solve(instance, method) for method in ("brute-force", "exact", "published"))
        assert found.status != "failed" and engine.status != "failed", (found.message, engine.message)
        assert (truth.status == "infeasible") == (found.status == "infeasible")
        if truth.objective is None:
            continue
        assert found.objective is not None and found.bound is not None
        assert found.bound <= truth.objective <= found.objective
        assert engine.objective is None or engine.objective >= truth.objective
        proven += found.status == "optimal"
    assert proven > 20


def test_stages_of_the_published_engine_are_even() -> None:
    instance = as_engine(random_pipeline(1))
    given = next(given for given in instance.configurations if given.stages == 2)
    instance = replace(instance, configurations=(given,))
    uneven = Solution(0, (instance.layers - 1, 1), (0,) * instance.layers)
    assert even_partition(instance.layers, 2) != uneven.stages
    assert "splits the layers evenly" in violations(instance, uneven)[0]
