"""Guards against solvers that are known to be wrong, and adapters that must survive them."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trainplan.solvers.core import method_registry, solve
from trainplan.solvers.core.search import Outcome, Search

import trainplan as tp
from tests.helpers.instances import paper_instance

MODEL = """
import pyomo.environ as pyo
from pyomo.contrib.solver.common.factory import SolverFactory
m = pyo.ConcreteModel()
m.x = pyo.Var(domain=pyo.NonNegativeReals)
m.z = pyo.Var(domain=pyo.NonNegativeIntegers)
m.c = pyo.Constraint(expr=m.x + m.z >= 4.5)
m.o = pyo.Objective(expr=2 * m.x + 3 * m.z)
assert abs(SolverFactory("highs").solve(m).incumbent_objective - 9) < 1e-6
"""


@pytest.mark.parametrize(
    "order",
    ["import highspy\nimport ortools.sat.python.cp_model", "import ortools.sat.python.cp_model\nimport highspy"],
)
def test_highs_and_ortools_share_a_process_and_highs_is_right(order: str) -> None:
    """highspy 1.14.0 gave 15 for this model, and 1.15 could not be imported next to ortools."""
    done = subprocess.run([sys.executable, "-c", order + MODEL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HARD = json.loads((Path(__file__).parent / "hard_instances.json").read_text())


@pytest.mark.parametrize("name", HARD)
def test_instances_that_solvers_got_wrong(name: str) -> None:
    """Found by fuzzing: HiGHS's presolve, OR-Tools 9.15's presolve, a loose integrality tolerance, float bounds of our own."""
    results = tp.compare(HARD[name], ["label-setting", "milp", "cpsat"])[0]
    assert {(found.status, found.objective, found.bound) for found in results} == {
        ("optimal", results[0].objective, results[0].objective)
    }
    if math.prod(len(layer["options"]) for layer in HARD[name]["layers"]) < 10**6:
        assert tp.solve(tp.load(HARD[name]), "brute-force").objective == results[0].objective


LOCKED = """
import multiprocessing
from pyomo.common import dependencies, tee
from trainplan.solvers.adapters import highs_worker
from tests.helpers.instances import paper_instance
tee._threading_deadlock = 0.1
dependencies.capture_output_lock = multiprocessing.Lock()
dependencies.capture_output_lock.acquire()
limits = {"seed": 0, "gap": 0.0, "time_limit": None, "below_ns": None, "start": None}
answer = highs_worker.solve({"instance": paper_instance(), **limits}, lambda message: None)
assert answer["termination"] == "convergenceCriteriaSatisfied", answer
"""


def test_a_lock_of_a_process_that_was_killed_does_not_stop_highs() -> None:
    """Pyomo's lock for captured output is one for all processes that a server forks, and a killed one may hold it."""
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _cheat(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> tp.solve:  # type: ignore[valid-type]
    def method(instance: Any, search: Search) -> Outcome:
        return outcome(instance, search)

    monkeypatch.setattr(method_registry.Entry, "method", lambda self: method)
    return solve.solve(paper_instance(), "milp", cold=True)


def test_a_choice_that_breaks_the_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _cheat(monkeypatch, lambda instance, search: Outcome(choice=[0] * instance.layers, bound=1))
    assert (result.status, result.objective) == ("failed", None)
    assert result.violations


def test_a_false_infeasible_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cheat(monkeypatch, lambda instance, search: Outcome(infeasible=True)).status == "failed"


def test_a_bound_above_the_objective_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = tp.solve(paper_instance())
    assert exact.solution is not None
    assert exact.objective is not None
    lie = Outcome(choice=exact.solution["choice"], bound=exact.objective + 1)
    assert _cheat(monkeypatch, lambda instance, search: lie).status == "failed"


def test_a_crash_is_a_failure_with_its_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(instance: Any, search: Search) -> Outcome:
        raise RuntimeError("boom")

    result = _cheat(monkeypatch, crash)
    assert (result.status, result.message) == ("failed", "RuntimeError: boom")
