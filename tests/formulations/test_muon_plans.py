"""Plans with Muon, as they are requested: what is chosen, predicted, bounded, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.frameworks import planned_framework
from trainplan.formulations.joint.plan_to_solution import solution_of_plan
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.refusals import refused

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 4096}
LLAMA = load_model("llama3-8b", 256, "bfloat16").with_fields(**SMALL, num_attention_heads=8, num_key_value_heads=4, head_dim=64)
ASKED: dict[str, Any] = {"model": LLAMA, "cluster": "h100:4", "batch": 8, "memory": "60GiB", "comparisons": False}
EIGHT: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": "h100:8",
    "batch": 64,
    "sequence": 8192,
    "comparisons": False,
    "gap": 0.01,
}


@pytest.mark.parametrize(
    "options",
    [{"dp": 4}, {"tp": 4}, {"dp": 2, "tp": 2}, {"zero": "1", "sdp": 2}, {"pipeline": 2, "zero": "1"}, {"pipeline": 4}],
    ids=str,
)
def test_tables_are_the_analyses_one_thing_after_the_other(options: dict[str, Any]) -> None:
    for optimizer in ("muon", "adamw"):
        planned = tp.plan(**ASKED, **{"cost_model": "executed", **options}, optimizer=optimizer)
        assert planned.plan is not None and planned.plan.predicted is not None and planned.plan.claim is not None
        assert planned.plan.optimizer == optimizer
        assert planned.plan.predicted.step_ns == planned.plan.claim.objective_ns
        solution = solution_of_plan(planned.answer.instance, planned.plan)  # type: ignore[arg-type]
        assert solution is not None
        other = planned.plan.changed(optimizer="adamw" if optimizer == "muon" else "muon", predicted=None, claim=None)
        assert solution_of_plan(planned.answer.instance, other) is None  # type: ignore[arg-type]


@pytest.mark.long
def test_llama_3_8b_has_more_to_compute_and_less_to_keep() -> None:
    """In one layout under `streams`: in addition to AdamW's work a step of Muon makes momentum orthogonal, sums whole
    gradients, and gathers new parameters after it; a rank has 28 GB less, spread over those that share states, but the tables
    whole."""
    layout: dict[str, Any] = {"zero": "1", "sdp": 4, "tp": 2, "micro_batches": 16, "forbid": ["ckpt"]}
    muon, adamw = (tp.plan(**EIGHT, **layout, optimizer=entry) for entry in ("muon", "adamw"))
    assert muon.step_ns is not None and adamw.step_ns is not None
    assert 1.01 * adamw.step_ns < muon.step_ns < 1.2 * adamw.step_ns
    matrices, tables = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336), 2 * 128256 * 4096
    more = 12 * tables // 2 * 3 // 4 - 4 * matrices // 2 // 4
    assert muon.judged is not None and adamw.judged is not None
    assert max(muon.judged.peak_bytes) - max(adamw.judged.peak_bytes) == pytest.approx(more, rel=1e-4)
    copies = {**layout, "zero": "0", "dp": 4, "sdp": None}
    muon, adamw = (tp.plan(**EIGHT, **copies, memory="200GiB", reserve=0, optimizer=entry) for entry in ("muon", "adamw"))
    assert muon.judged is not None and adamw.judged is not None
    less = max(adamw.judged.peak_bytes) - max(muon.judged.peak_bytes)
    assert less == pytest.approx(4 * matrices // 2, rel=1e-4)


def test_the_optimizer_is_reported() -> None:
    muon, adamw = (tp.plan(**ASKED, tp=4, zero="0", optimizer=entry) for entry in ("muon", "adamw"))
    assert dict(muon.summary())["optimizer"] == "Muon for matrices of layers, AdamW for all else"
    assert "optimizer" not in dict(adamw.summary())
    assert muon.plan is not None and adamw.plan is not None
    (apart,) = tp.differences(muon.plan, muon.plan.changed(optimizer="adamw", predicted=None, claim=None))
    assert apart.count == len(muon.plan.units) and apart.first == f"{apart.second}, muon"


def test_only_muon_waits_for_new_parameters() -> None:
    assert planned_framework("adamw", 2).overlaps_parameters and not planned_framework("muon", 2).overlaps_parameters


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"zero": "3"}, ("zero", (3, "--optimizer muon"), (0, 1))),
        ({"host": "optimizer"}, ("host", ("optimizer", "--optimizer muon"))),
        ({"hybrid": True}, ("hybrid", "--optimizer muon")),
        ({"for_": "torchtitan"}, ("optimizer", ("muon", "torchtitan"), ("megatron", "megatron-bridge", "trainplan"))),
        ({"for_": "trainplan", "zero": "1"}, ("zero", 1, (0, "trainplan"))),
        ({"optimizer": "lion"}, ("optimizer", "lion", ("adamw", "muon"))),
    ],
)
def test_what_no_plan_has_is_refused(options: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal) as caught:
        tp.plan(**ASKED, **{"optimizer": "muon", **options})
    assert len(str(caught.value).splitlines()) == 1


def test_default_stages_are_those_that_muon_has() -> None:
    planned = tp.plan(**ASKED, optimizer="muon")
    assert planned.plan is not None and {unit.strategy.zero_stage for unit in planned.plan.units} <= {0, 1}
    within = tp.plan(**ASKED, optimizer="muon", for_="trainplan")
    assert within.plan is not None and {unit.strategy.zero_stage for unit in within.plan.units} == {0}
