"""Tensors that travel staged through the host's memory: the same results as directly, on every back-end."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.run.settings import gpus

from tests.helpers.plans import GPT2, plan_of, random_interleaved_plan, random_plan, random_unlike_plan
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["threads", "serial", "fused"]))
def test_staged_plans_give_the_gradients_of_one_process(backend: Backend) -> None:
    rng = random.Random(f"staged {backend}")
    plans = [random_plan(rng), random_unlike_plan(rng), random_interleaved_plan(rng)]
    plans.append(plan_of(GPT2, ["sdp2-tp2"] * len(GPT2.units), 4))
    for report in run_plans(plans, backend=backend, transport="staged"):
        assert report.gradient_difference is not None and report.gradient_difference <= 1e-12
        assert report.loss_difference is not None and report.loss_difference <= 1e-12


def test_staged_ranks_share_the_gpus_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    plan = plan_of(GPT2, ["dp4"] * len(GPT2.units), 4)
    assert gpus(plan, "cuda", "staged") == (0, 1, 0, 1)
    assert gpus(plan, "cuda") == (0, 1, 2, 3)
    with refused("device", problem=("cuda", 2, 4), fix=("cpu", "--transport staged")):
        run_plans([plan], device="cuda")


def test_an_unknown_transport_is_named() -> None:
    plan = plan_of(GPT2, ["single"] * len(GPT2.units), 1)
    with refused("transport", problem="stage", fix="staged"):
        run_plans([plan], transport="stage")  # type: ignore[arg-type]
