"""A problem of another package: installed next to trainplan, it is listed, checked, solved and planned with like any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "plugin"
BEGIN = """
from trainplan.formulations.parameters import chosen
from trainplan.formulations.problem import problem, problem_names
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.testing import check_problem, check_request, enumerated, optimum

assert problem_names()[-1] == "micro-batching", problem_names()
toy = problem("micro-batching")
model = load_model("gpt2", 16, "float32").with_fields(n_layer=1, n_embd=32, n_head=4, n_positions=16, vocab_size=96).fused()
request = Request(model, load_cluster("cpu-4"), 16, options=chosen(toy.parameters, {}, toy.name))
instance = toy.instance(request)
"""
CHECKED = """
tight = [instance.with_memory(limit) for limit in (1, *(c.peak_bytes for c in instance.candidates))]
check_problem(toy, [instance, *tight])
assert check_request(toy, request).batch.micro_batches == 1
"""
SOLVED = """
assert toy.enumeration.count(instance) == 3 and optimum(toy, instance) == instance.candidates[0].time_ns
assert optimum(toy, instance.with_memory(min(c.peak_bytes for c in instance.candidates))) == instance.candidates[2].time_ns
"""
WITHOUT_MODELS = """
from trainplan.profiling.base.errors import Unsupported
from trainplan.solvers.adapters.formulation import formulation
try:
    formulation(instance, "milp")
except Unsupported as error:
    assert "micro-batching has none" in str(error)
else:
    raise AssertionError("it has no MILP")
"""
PLANNED = """
import trainplan as tp
from trainplan.profiling.base.quantities import enough_bytes

found = tp.solve(instance, "brute-force")
assert (found.status, found.objective) == ("optimal", instance.candidates[0].time_ns)
planned = tp.plan(like="micro-batching", model=model, cluster="cpu-4", batch=16)
assert planned.plan.batch.micro_batches == 1 and planned.plan.predicted.most_bytes <= planned.plan.memory_bytes
claim = planned.plan.claim
assert (claim.problem, claim.status) == (toy.name, "optimal")
assert claim.objective_ns == claim.bound_ns == found.objective
short = tp.plan(like=toy.name, model=model, cluster="cpu-4", batch=16, memory=1000)
assert short.plan is None and short.result.reason.advice[0] == f"give --memory of at least {enough_bytes(short.needed_bytes)}"
assert tp.plan(like=toy.name, model=model, cluster="cpu-4", batch=16, memory=short.needed_bytes).plan is not None
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", folder / "site", folder / "source"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.parametrize("code", [CHECKED, SOLVED, WITHOUT_MODELS, PLANNED])
def test_it_is_a_problem_like_any_other(site: Path, code: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
