"""The problem itself: Eq. 8 and Eq. 2 against a direct transcription, its files and errors, and what its formulations keep."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyomo.contrib.solver.common.factory import SolverFactory
from trainplan.formulations.layer_strategies import problem as stage_problem
from trainplan.formulations.pipeline import milp
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.instance_file import load
from trainplan.formulations.pipeline.layouts import boundaries, least_ns, most_ns, parts
from trainplan.formulations.pipeline.problem import Solution, evaluate, load_solution, solution_dict, violations
from trainplan.profiling.base.errors import InputError

from tests.helpers.instances import random_pipeline, random_pipeline_dict


@st.composite
def solved(draw: st.DrawFn) -> tuple[dict[str, Any], Solution]:
    """An instance's file, and any solution of it."""
    given = random_pipeline_dict(random.Random(draw(st.integers(0, 10**6))), 7)
    layers, index = len(given["layer_names"]), draw(st.integers(0, len(given["configurations"]) - 1))
    stages, options = given["configurations"][index]["stages"], len(given["configurations"][index]["options"][0])
    cuts = sorted(draw(st.permutations(range(1, layers)))[: stages - 1])
    counts = tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
    choice = draw(st.lists(st.integers(0, options - 1), min_size=layers, max_size=layers))
    return given, Solution(index, counts, tuple(choice))


def by_hand(given: dict[str, Any], solution: Solution) -> tuple[int, list[int]]:
    """Eq. 8 and Eq. 2, written out from the file: the time, and the peak of every stage."""
    tables = given["configurations"][solution.configuration]
    stages, m = tables["stages"], tables["micro_batches"]
    stage_of = [i for i, count in enumerate(solution.stages) for _ in range(count)]
    option = [tables["options"][kind][s] for kind, s in zip(given["layer_kinds"], solution.choice, strict=True)]
    time, sync, peaks = [0] * stages, [0] * stages, []
    for l, i in enumerate(stage_of):
        time[i] += option[l]["time_ns"]
        sync[i] += option[l]["sync_ns"]
        if l and stage_of[l - 1] == i:
            time[i] += tables["transitions_ns"][given["boundary_kinds"][l - 1]][solution.choice[l - 1]][solution.choice[l]]
        elif l:
            time[i] += tables["entries_ns"][given["boundary_kinds"][l - 1]][solution.choice[l]]
    for i in range(stages):
        mine = [l for l in range(len(stage_of)) if stage_of[l] == i]
        f, b, ms = ([option[l][key] for l in mine] for key in ("forward_bytes", "backward_bytes", "state_bytes"))
        in_flight = m if tables["schedule"] == "gpipe" else min(m, stages - i)
        peaks.append(max(sum(f[: k + 1]) + b[k] for k in range(len(mine))) + (in_flight - 1) * sum(f) + sum(ms))
    return (m - 1) * max(t - g for t, g in zip(time, sync, strict=True)) + sum(time), peaks


@given(solved())
def test_evaluate_is_the_papers_formula(case: tuple[dict[str, Any], Solution]) -> None:
    given, solution = case
    found = evaluate(load(given), solution)
    assert (found.objective, [stage.peak_bytes for stage in found.stages]) == by_hand(given, solution)
    assert found.peak_bytes == max(by_hand(given, solution)[1])
    assert 0 <= found.time_balance <= 1 - 1 / len(found.stages)


@given(solved())
def test_violations_name_the_stages_that_need_too_much(case: tuple[dict[str, Any], Solution]) -> None:
    given, solution = case
    instance, (_, peaks) = load(given), by_hand(*case)
    reported = violations(instance, solution)
    assert [int(line.split()[1].rstrip(":")) for line in reported] == [
        i for i, peak in enumerate(peaks) if peak > instance.memory_bytes
    ]
    over = [stage for stage in evaluate(instance, solution).stages if stage.peak_bytes > instance.memory_bytes]
    for line, stage in zip(reported, over, strict=True):
        assert instance.layer_names[stage.peak_layer] in line
        assert stage.first <= stage.peak_layer <= stage.last


@given(solved(), st.integers(0, 2**32))
def test_more_memory_breaks_nothing_and_changes_no_time(case: tuple[dict[str, Any], Solution], more: int) -> None:
    instance, solution = load(case[0]), case[1]
    larger = instance.with_memory(instance.memory_bytes + more)
    assert len(violations(larger, solution)) <= len(violations(instance, solution))
    assert evaluate(larger, solution) == evaluate(instance, solution)
    enough = instance.with_memory(max(1, evaluate(instance, solution).peak_bytes))
    assert not violations(enough, solution)


@given(solved())
def test_a_stage_is_a_layer_strategies_instance(case: tuple[dict[str, Any], Solution]) -> None:
    instance, solution = load(case[0]), case[1]
    tables = instance.configurations[solution.configuration].tables
    for stage in evaluate(instance, solution).stages:
        for weight in (1, 3):
            alone = instance.span(tables, stage.first, stage.last, stage.in_flight, (weight, 1))
            found = stage_problem.evaluate(alone, solution.choice[stage.first : stage.last + 1])
            assert found.peak_bytes == stage.peak_bytes
            assert found.time_ns == weight * (stage.time_ns - stage.sync_ns) + stage.sync_ns


@given(solved())
def test_files_give_back_the_same(case: tuple[dict[str, Any], Solution]) -> None:
    instance = load(case[0])
    again = load(instance.to_dict())
    assert again.digest == instance.digest
    assert again.to_dict() == instance.to_dict()
    assert instance.with_memory(instance.memory_bytes + 1).digest != instance.digest
    assert load_solution(solution_dict(case[1])) == case[1]


def first(given: dict[str, Any]) -> dict[str, Any]:
    return given["configurations"][0]


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no layers": (lambda d: d.update(layer_names=[]), "layer_names"),
    "kinds missing": (lambda d: d["layer_kinds"].pop(), "layer_kinds"),
    "boundaries missing": (lambda d: d["boundary_kinds"].pop(), "boundary_kinds"),
    "unknown kind": (lambda d: d["layer_kinds"].__setitem__(0, 9), "configurations[0].options"),
    "unknown boundary": (lambda d: d["boundary_kinds"].__setitem__(0, 9), "configurations[0].transitions_ns"),
    "no configurations": (lambda d: d.update(configurations=[]), "configurations"),
    "stages": (lambda d: first(d).update(stages=3), "configurations[0].stages"),
    "micro-batches": (lambda d: first(d).update(micro_batches=3), "configurations[0].micro_batches"),
    "schedule": (lambda d: first(d).update(schedule="zero-bubble"), "schedule"),
    "sync": (lambda d: first(d)["options"][0][0].update(sync_ns=10**12), "sync_ns"),
    "negative": (lambda d: first(d)["options"][0][0].update(time_ns=-1), "time_ns"),
    "float": (lambda d: first(d)["options"][0][0].update(time_ns=1.5), "time_ns"),
    "strategy": (lambda d: first(d)["options"][0][0].update(strategy="dp3"), "configurations[0].options"),
    "transitions": (lambda d: first(d)["transitions_ns"][0].pop(), "configurations[0].transitions_ns[0]"),
    "entries": (lambda d: first(d)["entries_ns"][0].append(1), "configurations[0].entries_ns[0]"),
    "unknown field": (lambda d: first(d).update(stage=1), "stage"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_malformed_files_are_reported_in_one_line(name: str) -> None:
    given, (break_it, field) = random_pipeline_dict(random.Random(5)), BROKEN[name]
    load(given)
    break_it(given)
    with pytest.raises(InputError) as caught:
        load(given)
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


def test_malformed_solutions_are_violations() -> None:
    instance = random_pipeline(5)
    layers, stages = instance.layers, instance.configurations[0].stages
    counts = (layers - stages + 1, *[1] * (stages - 1))
    wrong = {
        "configuration is 9": Solution(9, counts, (0,) * layers),
        "into": Solution(0, (*counts, 1), (0,) * layers),
        "at least one": Solution(0, (counts[0] + 1, *counts[1:]), (0,) * layers),
        "entries": Solution(0, counts, (0,) * (layers + 1)),
        "options 0 to": Solution(0, counts, (99,) * layers),
    }
    for reported, solution in wrong.items():
        assert reported in violations(instance, solution)[0]
        with pytest.raises(ValueError, match=reported):
            evaluate(instance, solution)


@given(solved())
def test_bounds_of_a_configuration_hold(case: tuple[dict[str, Any], Solution]) -> None:
    part, solution = parts(load(case[0]))[case[1].configuration], replace(case[1], configuration=0)
    found = evaluate(part, solution)
    assert least_ns(part) <= found.time_ns
    assert sum(stage.time_ns for stage in found.stages) <= most_ns(part)


@given(st.integers(0, 10**6))
def test_layout_classes_keep_every_cost(seed: int) -> None:
    for part in parts(random_pipeline(seed)):
        tables = part.configurations[0].tables
        for kind, border in zip(part.boundary_kinds, boundaries(part), strict=True):
            for b, after in enumerate(border.after):
                assert all(int(tables.entries_ns[kind, j]) == border.entries_ns[b] for j in after)
                for a, before in enumerate(border.before):
                    assert all(int(tables.transitions_ns[kind, i, j]) == border.costs_ns[a][b] for i in before for j in after)


def relaxed_ns(model: pyo.ConcreteModel, instance: Instance) -> float:
    for variable in model.x.values():
        variable.domain = pyo.NonNegativeReals
    found = SolverFactory("highs").solve(model, load_solutions=False, raise_exception_on_nonoptimal_result=False)
    if found.incumbent_objective is None:
        return float("inf")
    return found.incumbent_objective * milp.units(instance)[0]


def pair_flow_model(instance: Instance) -> pyo.ConcreteModel:
    """The relaxation, written independently of the product: one flow for every pair of (stage, option) at every boundary, no
    classes."""
    ns_per_unit, bytes_per_unit = milp.units(instance)
    given = instance.configurations[0]
    tables, kinds, borders = given.tables, instance.layer_kinds, instance.boundary_kinds
    layers, stages, options = range(instance.layers), range(given.stages), range(len(tables.strategies))
    indices = [(i, s) for i in stages for s in options]

    def cost(l: int, p: tuple[int, int], q: tuple[int, int]) -> int:
        kind = borders[l]
        return int(tables.transitions_ns[kind, p[1], q[1]] if p[0] == q[0] else tables.entries_ns[kind, q[1]])

    m = pyo.ConcreteModel()
    m.x = pyo.Var([(l, *p) for l in layers for p in indices], domain=pyo.NonNegativeReals)
    steps = [(l, *p, *q) for l in layers[:-1] for p in indices for q in indices if q[0] - p[0] in (0, 1)]
    m.y = pyo.Var(steps, domain=pyo.NonNegativeReals)
    m.V = pyo.Var(domain=pyo.NonNegativeReals)
    m.rows = pyo.ConstraintList()
    m.rows.add(sum(m.x[0, 0, s] for s in options) == 1)
    m.rows.add(sum(m.x[instance.layers - 1, given.stages - 1, s] for s in options) == 1)
    for l in layers:
        m.rows.add(sum(m.x[l, *p] for p in indices) == 1)
    for l in layers[:-1]:
        for p in indices:
            m.rows.add(sum(m.y[l, *p, *q] for q in indices if (l, *p, *q) in m.y) == m.x[l, *p])
            m.rows.add(sum(m.y[l, *q, *p] for q in indices if (l, *q, *p) in m.y) == m.x[l + 1, *p])
    total = 0
    for i in stages:
        time = sum(int(tables.time_ns[kinds[l], s]) * m.x[l, i, s] for l in layers for s in options)
        time += sum(cost(l, (i0, s0), (i1, s1)) * m.y[l, i0, s0, i1, s1] for l, i0, s0, i1, s1 in steps if i1 == i)
        sync = sum(int(tables.sync_ns[kinds[l], s]) * m.x[l, i, s] for l in layers for s in options)
        m.rows.add((time - sync) / ns_per_unit <= m.V)
        total += time / ns_per_unit
        f, b, ms = (tables.forward_bytes, tables.backward_bytes, tables.state_bytes)
        for l in layers:
            if i <= l <= instance.layers - given.stages + i:
                peak = sum(int(f[kinds[k], s]) * m.x[k, i, s] for k in range(l + 1) for s in options)
                peak += sum(int(b[kinds[l], s]) * m.x[l, i, s] for s in options)
                kept = ms + (given.in_flight(i) - 1) * f
                peak += sum(int(kept[kinds[k], s]) * m.x[k, i, s] for k in layers for s in options)
                m.rows.add(peak / bytes_per_unit <= instance.memory_bytes / bytes_per_unit)
    m.o = pyo.Objective(expr=(given.micro_batches - 1) * m.V + total)
    return m


@pytest.mark.parametrize("seed", range(25))
def test_classes_and_windows_lose_nothing_of_the_linear_relaxation(seed: int) -> None:
    for part in parts(random_pipeline(seed)):
        ours, textbook = relaxed_ns(milp.build(part), part), relaxed_ns(pair_flow_model(part), part)
        assert ours == pytest.approx(textbook, rel=1e-6, abs=1e-3)


def test_the_relaxation_of_one_instance_is_pinned() -> None:
    """A loosened formulation shows here, where the optimum alone would not."""
    instance = random_pipeline(129, 7)
    found = [relaxed_ns(milp.build(part), part) for part in parts(instance)]
    assert found == pytest.approx([6461134884.533782, 5022750187.008603, 2729515824.9152546], rel=1e-6)
