"""Every option that programs run: all methods find the optimum of tiny instances that are made from profiles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from trainplan.formulations.joint.cost_tables import JointCosts
from trainplan.formulations.joint.enumeration import solution_count, solutions
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.search_space import Space
from trainplan.formulations.joint.tables import OptionTable, Tables, Tied
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.solvers.core.solve import solve

from tests.helpers.plans import BERT, GPT2, LLAMA, UNTIED
from tests.helpers.sizes import one_in

CPU = load_cluster("cpu-4")
MOST = 30_000  # solutions of an instance
METHODS: dict[str, dict[str, Any]] = {"exact": {}, "brute-force": {}, "milp": {}, "cpsat": {"workers": 1}}
SPACE = Space(
    schedules=("1f1b", "gpipe"), hybrid=True, recompute=("none", "modules", "full"), host=("optimizer", "parameters", "hidden")
)


def tiny(seed: int, options: int, configurations: int) -> Instance:
    """A small model on 2 or 4 devices, of whole layers, with a few options of each kind of unit, any memory that some solution
    fits into, and a host for a part of it."""
    rng = random.Random(seed)
    model, world = rng.choice([GPT2, UNTIED, BERT, LLAMA]), rng.choice([2, 4])
    batch = world * rng.choice([1, 2])
    degrees = [t for t in divisors(world) if all(part.runs_on(t) for part in model.sublayers.values())]
    sizes = [batch // m for m in divisors(batch)]
    profile = obtain_profile(model, CPU, sizes, divisors(world), devices=world, degrees=degrees)
    whole = JointCosts(profile, replace(SPACE, by_unit=rng.random() < 0.3), degrees).instance(batch, 2**40)
    while True:
        indices = rng.sample(range(len(whole.configurations)), min(configurations, len(whole.configurations)))
        drawn = replace(whole, configurations=tuple(few(rng, whole.configurations[index], options) for index in indices))
        if solution_count(drawn) <= MOST:
            break
        options = max(1, options - 1)
    evaluations = [evaluate(drawn, choice) for choice in rng.choices(list(filter(None, solutions(drawn))), k=3)]
    host = max(stage.host_bytes for evaluation in evaluations for stage in evaluation.stages)
    limits = replace(drawn.classes[0], memory_bytes=evaluations[0].peak_bytes, host_bytes=host)
    return replace(drawn, classes=(limits,))


def few(rng: random.Random, configuration: Configuration, options: int) -> Configuration:
    """The configuration with a few options of each kind of unit."""
    (tables,), tied = configuration.tables, configuration.tied
    kept = [sorted(rng.sample(range(len(unit.options)), min(options, len(unit.options)))) for unit in tables.units]
    units = tuple(unit.keep(indices) for unit, indices in zip(tables.units, kept, strict=True))
    made = (Tables(units=units, boundaries=tables.boundaries, states=tables.states),)
    if tied is not None and tied.equal is not None and tied.once is not None:
        first, last = _ends(tables.units, tied, kept)
        tied = replace(tied, equal=tied.equal[first][:, last], once=tied.once.keep(last))
    return replace(configuration, make_tables=lambda: made, make_tied=lambda: tied)


def _ends(units: Sequence[OptionTable], tied: Tied, kept: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The options kept of the first unit, and of the last one. (Kinds are numbered in the order of units.)"""
    assert tied.equal is not None and tied.equal.shape == (len(units[0].options), len(units[-1].options))
    return list(kept[0]), list(kept[-1])


def check_methods(instance: Instance) -> None:
    """All methods against the best of all solutions that break no constraint."""
    found = (solution for solution in solutions(instance) if solution is not None and not violations(instance, solution))
    best = min((evaluate(instance, entry).time_ns for entry in found), default=None)
    assert best is not None
    for method, arguments in METHODS.items():
        result = solve(instance, method, time_limit=240.0, cold=True, **arguments)
        assert (result.status, result.objective) == ("optimal", best), method


@pytest.mark.parametrize("seed", range(12))
def test_all_methods_find_the_optimum(seed: int) -> None:
    check_methods(tiny(seed, 3, 2))


@pytest.mark.long
@pytest.mark.parametrize("seed", one_in(7, range(1000, 1030)))
def test_all_methods_find_the_optimum_of_many(seed: int) -> None:
    """Of 30 instances, one in seven; `make test-all` has all."""
    check_methods(tiny(seed, 5, 3))
