"""Every family that runs, under random plans on real processes against one process."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trainplan.execution.executable_models import EXECUTED_FAMILIES
from trainplan.execution.launch.processes import run_plans
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import Model, model_from_config

from tests.helpers.plans import plan_of, random_plan
from tests.helpers.sizes import some_and_all

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers.refusals import refused
from tests.profiling.test_huggingface import DECODERS

DROPPING: dict[str, dict[str, Any]] = {
    "qwen3 with dropout": DECODERS["qwen3"] | {"attention_dropout": 0.3},
    "phi3 with dropout": DECODERS["phi3"] | {"attention_dropout": 0.2, "resid_pdrop": 0.1, "embd_pdrop": 0.2},
    "gpt_neox with dropout": DECODERS["gpt_neox"] | {"attention_dropout": 0.3},
    "mpt with dropout": DECODERS["mpt"] | {"attn_config": {"attn_pdrop": 0.2}},
}
MODELS = {name: model_from_config(config, name, 12, "float64") for name, config in (DECODERS | DROPPING).items()}


def _runnable_plan(rng: random.Random, model: Model) -> Plan:
    """A random plan without tensor parallelism where a sum over its ranks would be normed."""
    normed = any(unit.sublayer.sandwich for unit in model.units)
    while True:
        plan = random_plan(rng, 4, model)
        if not normed or all(
            strategy.degree("tp") == 1 or not unit.sublayer.sandwich
            for unit, strategy in zip(model.units, plan.strategies(), strict=True)
        ):
            return plan


@pytest.mark.parametrize("rounds", some_and_all(1, 3, 2))
def test_gradients_of_every_family_on_4_processes(rounds: int) -> None:
    rng = random.Random(31)
    plans = [_runnable_plan(rng, model) for _ in range(rounds) for model in MODELS.values()]
    assert {model.family for model in MODELS.values()} == set(EXECUTED_FAMILIES) - {"gpt2", "bert", "llama"}
    levels = {
        level for plan in plans for strategy in plan.strategies() for level in ("dp", "sdp", "tp") if strategy.degree(level) > 1
    }
    assert levels == {"dp", "sdp", "tp"} and {len(plan.stages) for plan in plans} == {1, 2, 4}
    for plan, report in zip(plans, run_plans(plans, steps=2), strict=True):
        for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert difference is not None and difference < 1e-12, (plan.planned_model().name, difference)


def test_tensor_parallelism_of_norms_after_matrices_is_refused() -> None:
    model = MODELS["gemma2"]
    with refused("units.block0.attention.strategy", where="plan", problem=("tp2", "block0.attention", "norm")):
        run_plans([plan_of(model, ["tp2"] * len(model.units), 2)])
