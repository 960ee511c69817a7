"""The problem itself: Eq. 2 against a direct transcription, and what its formulations keep."""

import random

import pyomo.environ as pyo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyomo.contrib.solver.common.factory import SolverFactory
from trainplan.formulations.layer_strategies import milp
from trainplan.formulations.layer_strategies.layout_classes import boundaries
from trainplan.formulations.layer_strategies.problem import Instance, evaluate, load, violations

from tests.helpers.instances import paper_instance, random_dict, random_instance


def peak_by_hand(instance: Instance, choice: list[int]) -> int:
    """Eq. 2, written out."""
    f = [int(instance.forward_bytes[l][s]) for l, s in enumerate(choice)]
    b = [int(instance.backward_bytes[l][s]) for l, s in enumerate(choice)]
    ms = [int(instance.state_bytes[l][s]) for l, s in enumerate(choice)]
    return max(sum(f[: l + 1]) + b[l] for l in range(len(choice))) + sum(ms)


@given(st.integers(0, 10**6), st.data())
def test_evaluate_is_the_papers_formula(seed: int, data: st.DataObject) -> None:
    instance = random_instance(seed)
    choice = [data.draw(st.integers(0, count - 1)) for count in instance.options]
    found = evaluate(instance, choice)
    assert found.peak_bytes == peak_by_hand(instance, choice)
    time = sum(int(instance.time_ns[l][s]) for l, s in enumerate(choice))
    time += sum(int(instance.transitions_ns[l][choice[l]][choice[l + 1]]) for l in range(instance.layers - 1))
    assert found.time_ns == time
    assert bool(violations(instance, choice)) == (found.peak_bytes > instance.memory_bytes)
    assert found.memory_by_layer_bytes[found.peak_layer] == found.peak_bytes


def test_malformed_choices_are_violations() -> None:
    instance = random_instance(3)
    assert "entries" in violations(instance, [0] * (instance.layers + 1))[0]
    assert "options 0 to" in violations(instance, [99] * instance.layers)[0]
    with pytest.raises(ValueError, match="options 0 to"):
        evaluate(instance, [99] * instance.layers)


@given(st.integers(0, 10**6))
def test_files_give_back_the_same_instance(seed: int) -> None:
    instance = load(random_dict(random.Random(seed)))
    assert load(instance.to_dict()).digest == instance.digest
    assert instance.with_memory(instance.memory_bytes + 1).digest != instance.digest


@given(st.integers(0, 10**6))
def test_layout_classes_keep_every_transition(seed: int) -> None:
    instance = random_instance(seed)
    for table, border in zip(instance.transitions_ns, boundaries(instance), strict=True):
        for a, before in enumerate(border.before):
            for b, after in enumerate(border.after):
                assert all(int(table[i][j]) == border.costs_ns[a][b] for i in before for j in after)


def relaxation_ns(model: pyo.ConcreteModel, instance: Instance) -> float:
    for variable in model.x.values():
        variable.domain = pyo.NonNegativeReals
    found = SolverFactory("highs").solve(model, load_solutions=False, raise_exception_on_nonoptimal_result=False)
    if found.incumbent_objective is None:
        return float("inf")
    return found.incumbent_objective * milp.units(instance)[0]


def pair_flow_model(instance: Instance) -> pyo.ConcreteModel:
    """The textbook formulation, written independently: one flow for every pair of options at every boundary."""
    ns_per_unit, bytes_per_unit = milp.units(instance)
    m = pyo.ConcreteModel()
    layers, options = range(instance.layers), [range(count) for count in instance.options]
    m.x = pyo.Var([(l, s) for l in layers for s in options[l]], domain=pyo.NonNegativeReals)
    m.y = pyo.Var([(l, i, j) for l in layers[:-1] for i in options[l] for j in options[l + 1]], domain=pyo.NonNegativeReals)
    m.rows = pyo.ConstraintList()
    for l in layers:
        m.rows.add(sum(m.x[l, s] for s in options[l]) == 1)
        held = sum(int(instance.forward_bytes[k][s]) * m.x[k, s] for k in range(l + 1) for s in options[k])
        states = sum(int(instance.state_bytes[k][s]) * m.x[k, s] for k in layers for s in options[k])
        peak = sum(int(instance.backward_bytes[l][s]) * m.x[l, s] for s in options[l])
        m.rows.add((held + peak + states) / bytes_per_unit <= instance.memory_bytes / bytes_per_unit)
    for l in layers[:-1]:
        for i in options[l]:
            m.rows.add(sum(m.y[l, i, j] for j in options[l + 1]) == m.x[l, i])
        for j in options[l + 1]:
            m.rows.add(sum(m.y[l, i, j] for i in options[l]) == m.x[l + 1, j])
    time = sum(int(instance.time_ns[l][s]) * m.x[l, s] for l in layers for s in options[l])
    time += sum(int(instance.transitions_ns[l][i][j]) * m.y[l, i, j] for l, i, j in m.y)
    m.o = pyo.Objective(expr=time / ns_per_unit)
    return m


@pytest.mark.parametrize("seed", range(40))
def test_classes_of_layouts_lose_nothing_of_the_linear_relaxation(seed: int) -> None:
    """A loosened formulation would show here, where the optimum alone would not: both must have the same relaxation."""
    instance = random_instance(seed)
    classes, pairs = relaxation_ns(milp.build(instance), instance), relaxation_ns(pair_flow_model(instance), instance)
    assert classes == pytest.approx(pairs, rel=1e-6, abs=1e-3)


def test_relaxation_of_a_paper_model_is_kept_with_far_fewer_columns() -> None:
    instance = paper_instance("bert-huge-32")
    ours, textbook = milp.build(instance), pair_flow_model(instance)
    assert len(ours.z) * 5 < len(textbook.y)
    assert relaxation_ns(ours, instance) == pytest.approx(relaxation_ns(textbook, instance), rel=1e-6)
