"""Memory switches on GPUs: real streams, real memory. `pytest -s tests/gpu` prints the figures and stores them, dated.

- Gradients, parameters and losses of plans of every kind equal one process's.
- Overlap is real: copies that go on beside computing take less of the step than one after the other.
- From a profile of this machine, in which no plan has a part: the step within 15 %, the peak by the walk over the plan's
  program within 10 % of what torch allocates.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from trainplan.execution.run.processes import run_plans

from tests.execution.plans import random_plan
from tests.execution.switch_plans import random_switch_plan
from tests.gpu.switches_study import store, study

WORLDS = (1, 2, 4)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> int:
    if (found := torch.cuda.device_count()) < request.param:
        pytest.skip(f"torch finds {found} GPUs of {request.param}")
    devices: int = request.param
    return devices


@pytest.fixture(scope="module")
def figures(world: int) -> dict[str, Any]:
    found = study(world)
    print(f"\nwritten to {store(found)}")
    for name, plan in found["plans"].items():
        steps = {name: plan[name]["step_ns"] / 1e6 for name in ("serial", "streams")}
        print(
            f"{name:25} serial {steps['serial']:8.2f} ms, streams {steps['streams']:8.2f} ms, "
            f"predicted {plan['predicted_ns'] / 1e6:8.2f} ms; "
            f"{plan['streams']['peak_bytes'] / 2**20:8.1f} MiB, walk {plan['streams']['walk_bytes'] / 2**20:8.1f} MiB"
        )
    return found


@pytest.mark.parametrize("backend", ["serial", "streams"])
def test_plans_equal_one_process(world: int, backend: Any) -> None:
    rng = random.Random(world)
    plans = [random_switch_plan(rng, world) for _ in range(8)] + [random_plan(rng, world) for _ in range(4)]
    for report in run_plans(plans, device="cuda", backend=backend):
        assert report.gradient_difference is not None
        assert report.parameter_difference is not None
        assert report.loss_difference is not None
        assert max(report.gradient_difference, report.parameter_difference, report.loss_difference) < 1e-12


def test_overlap_is_real(figures: dict[str, Any]) -> None:
    """At least half of what could go on beside the rest does; and waiting for all lanes at each segment takes it away."""
    offloaded = figures["plans"]["offloaded"]
    hidden = min(offloaded["computing_ns"], offloaded["copying_ns"])
    step = offloaded["streams"]["step_ns"]
    assert hidden > 0.05 * step, "else there is little to see"
    assert step < offloaded["serial"]["step_ns"] - hidden / 2
    assert step < figures["plans"]["offloaded, synchronised"]["streams"]["step_ns"]


def test_steps_are_as_predicted(figures: dict[str, Any]) -> None:
    for name, plan in figures["plans"].items():
        assert plan["streams"]["step_ns"] == pytest.approx(plan["predicted_ns"], rel=0.15), name


def test_peaks_are_as_walked(figures: dict[str, Any]) -> None:
    for name, plan in figures["plans"].items():
        for backend in ("serial", "streams"):
            measured = plan[backend]
            assert measured["walk_bytes"] == pytest.approx(measured["peak_bytes"], rel=0.10), f"{name}, {backend}"
