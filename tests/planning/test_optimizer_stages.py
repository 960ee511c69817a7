"""The ZeRO stages of an optimizer are those of its entry in the table of optimizers, whatever it updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerSpec

import trainplan as tp
from tests.helpers.refusals import refused

REQUEST = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "2GiB", "comparisons": False}


def test_requests_and_plans_keep_to_the_stages_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = tp.plan(**REQUEST, zero="3", tp=1, pipeline=1).plan  # type: ignore[arg-type]
    assert sharded is not None and {unit.strategy.zero_stage for unit in sharded.units} == {3}
    monkeypatch.setitem(OPTIMIZERS, "adamw", replace(OPTIMIZERS["adamw"], zero=(0, 1)))
    with refused("--zero", 3, ("0", "1")):
        tp.plan(**REQUEST, zero="3")  # type: ignore[arg-type]
    within = tp.plan(**REQUEST).plan  # type: ignore[arg-type]
    assert within is not None and {unit.strategy.zero_stage for unit in within.units} <= {0, 1}
    with refused("optimizer", ("adamw", 3), "1"):
        tp.check(sharded.content)


def test_an_export_refuses_an_optimizer_that_it_has_no_word_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the runtime's capabilities name it: the files would say AdamW."""
    plan = tp.plan(**REQUEST, optimizer="muon", zero="0", tp=1, pipeline=1).plan  # type: ignore[arg-type]
    assert plan is not None
    able = replace(RUNTIMES["accelerate"], optimizers={"muon": (0, 1)})
    monkeypatch.setattr("trainplan.execution.runtimes.accelerate.export.CAPABILITIES", able)
    with refused("optimizer", "muon", ("adamw", "Accelerate")):
        tp.export(plan, "accelerate")
    able = replace(RUNTIMES["megatron"], optimizers={"muon": (1,)})
    monkeypatch.setattr("trainplan.execution.runtimes.megatron.export.arguments_of.__defaults__", ("Megatron-LM", able))
    with refused("units[0].states.zero", (0, "muon"), ("1", "adamw")):
        tp.export(plan, "megatron")


@pytest.mark.parametrize("fields", [{"moments": 0}, {"moments": 3}, {"zero": (1, 2)}])
def test_an_optimizer_with_other_states_than_plans_have_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        OptimizerSpec("SGD", "sgd", "module:function", **fields)
