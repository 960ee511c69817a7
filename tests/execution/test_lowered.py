"""Plans lowered onto torch's own pieces: equal to their programs and to one process, or refused by field."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch import processes
from trainplan.execution.launch.choose_executor import runtime_of
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.runtimes.torch.refusals import refusals
from trainplan.formulations.plan.plan import Plan, load_plan

from benchmarks.lowered import LARGEST_DIFFERENCE, NAMES, WORLDS, lowered_plan, ran
from tests.helpers.plans import BERT, LLAMA, UNTIED, plan_of, recomputing_modules, sharing_tokens, with_zero
from tests.helpers.sizes import some_and_all

pytest.importorskip("torch")

from tests.execution.test_family_runs import MODELS, _runnable_plan
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find tests and benchmarks."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("count", some_and_all(4, 20))
@pytest.mark.parametrize("world", [1, 2, 4])
def test_random_plans_agree_with_their_programs_and_one_process(world: int, count: int) -> None:
    rng = random.Random(world)
    plans = [lowered_plan(rng, world) for _ in range(count)]
    for plan, apart in zip(plans, ran(plans), strict=True):
        for name in NAMES:
            assert apart[name] <= LARGEST_DIFFERENCE, (plan, name)


@pytest.mark.long
def test_every_family_agrees_with_its_program() -> None:
    rng, plans = random.Random(5), list[Plan]()
    for model in MODELS.values():
        while True:
            plan = recomputing_modules(rng, sharing_tokens(rng, with_zero(rng, _runnable_plan(rng, model))))
            if not refusals(plan):
                break
        plans.append(plan)
    for plan, apart in zip(plans, ran(plans), strict=True):
        assert max(apart.values()) <= LARGEST_DIFFERENCE, plan


def test_parameters_stay_with_one_process() -> None:
    strategies = ["dp2", "sdp2", "tp2-sp", "sdp2-zero1", "tp2-ckpt", "sdp2-zero2-ckpt"]
    plan = plan_of(UNTIED, strategies, 2, micro_batches=2)
    (report,) = run_plans([plan], steps=3, runtime="torch")
    assert report.runtime == "torch" and report.losses == sorted(report.losses, reverse=True)
    for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
        assert difference is not None and difference < 1e-12


def test_memory_is_that_of_the_dry_run() -> None:
    sizes = {"n_embd": 128, "n_inner": 512, "n_positions": 64, "n_layer": 4, "vocab_size": 512}
    wide = UNTIED.with_fields(sequence=64, **sizes).in_dtype("float32")
    plans = [plan_of(wide, [name] * len(wide.units), 2, 8, 2) for name in ("dp2", "sdp2", "sdp2-ckpt")]
    peaks = []
    for report in run_plans(plans, steps=1, compare=False, measure_memory=True, runtime="torch"):
        assert report.peak_bytes is not None
        for peak, predicted in zip(report.peak_bytes, report.predicted_peak_bytes, strict=True):
            # On a busy machine gloo's thread lets go of a collective's buffers later than the step goes on without them.
            assert 0.995 * predicted <= peak <= 1.05 * predicted
        assert report.predicted_by == "dry run"
        peaks.append(max(report.peak_bytes))
    assert peaks[0] > 1.3 * peaks[1] > 1.3 * 1.2 * peaks[2]


def test_gradients_that_are_averaged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(processes.TARGETS, "torch", "tests.helpers.lowered:run_averaging_rank")
    units = len(UNTIED.units)
    averaged, alone = run_plans([plan_of(UNTIED, [name] * units, 2) for name in ("sdp2", "tp2")], steps=1, runtime="torch")
    assert averaged.gradient_difference is not None and averaged.gradient_difference > 0.4
    assert alone.gradient_difference is not None and alone.gradient_difference < 1e-12


def test_regular_plans_are_not_refused() -> None:
    rng = random.Random(0)
    for number in range(60):
        assert refusals(lowered_plan(rng, WORLDS[number % len(WORLDS)])) == []


def changed(plan: Plan, **fields: Any) -> Plan:
    return load_plan({**plan.model_dump(), **fields})


def on_ranks(plan: Plan, *ranks: list[int]) -> Plan:
    """The stages of a plan on other ranks, each unit `dp` over them."""
    stages = [stage.model_dump() | {"ranks": rank} for stage, rank in zip(plan.stages, ranks, strict=True)]
    units = [
        {"name": plan.units[index].name, "strategy": f"dp{len(rank)}" if len(rank) > 1 else "single"}
        for stage, rank in zip(plan.stages, ranks, strict=True)
        for index in range(stage.first_unit, stage.last_unit + 1)
    ]
    return changed(plan, stages=stages, units=units, world=sum(map(len, ranks)))


def test_what_torch_cannot_carry_is_refused_by_field() -> None:
    units = len(UNTIED.units)
    pipeline = plan_of(UNTIED, ["single"] * units, 2, 8, 2, [3])
    host: dict[str, Any] = {"parameters": "host", "gradients": "host", "optimizer": "host"}
    on_host = [unit.model_dump() | {"states": host, "order": {}} for unit in pipeline.units]
    shared = plan_of(UNTIED, ["dp2"] * units, 2, 6, 2, shares=[2, 1])
    for plan, reported in (
        (changed(pipeline, sliced=1), "sliced is 1; leave it out"),
        (shared, "batch.shares is [2, 1]; leave it out"),
        (changed(pipeline, units=on_host, nvlink=False), "units[0].states.parameters is 'host'; give 'device'"),
        (on_ranks(pipeline, [0], [1, 2]), "stages[1].ranks are 2, and those of stages[0] 1; give stages of one size"),
        (
            on_ranks(pipeline, [1], [0]),
            "stages[1].ranks are [0], after [1]; give the ranks of every index in the order of stages",
        ),
    ):
        first, *_ = refusals(plan)
        assert str(first).startswith(reported)
        with refused(first.field, "torch"):
            runtime_of("torch", plan, plan.planned_model())
        choice = runtime_of(None, plan, plan.planned_model())
        assert choice.runtime == "program" and choice.why is not None and choice.why.startswith(first.field)


def test_layouts_that_do_not_nest_are_refused() -> None:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 8, "intermediate_size": 66}
    plan = plan_of(LLAMA.with_fields(**sizes), ["dp3-tp2"] * 6, 6, 6)
    assert refusals(plan) == []
    mixed = plan.changed(units=[unit.laid_out(s) for unit, s in zip(plan.units, _alternating(plan), strict=True)])
    assert {refusal.kind for refusal in refusals(mixed)} == {"units.layout"}
    assert "is 'dp2-tp3', after 'dp3-tp2'" in str(refusals(mixed)[0])


def _alternating(plan: Plan) -> list[Any]:
    from trainplan.formulations.plan.strategy import parse_strategy

    return [parse_strategy("dp2-tp3") if index == 2 else unit.strategy for index, unit in enumerate(plan.units)]


def test_the_program_runs_what_is_measured() -> None:
    plan = plan_of(BERT, ["single"] * len(BERT.units), 1)
    model = plan.planned_model()
    assert runtime_of(None, plan, model) == ("torch", None)
    assert runtime_of("program", plan, model) == ("program", None)
    assert runtime_of(None, plan, model, measure=True).runtime == "program"
    choice = runtime_of(None, plan, model, backend="fused")
    assert choice == ("program", "--backend fused is of programs")
    with refused("backend", problem=("fused", "torch")):
        runtime_of("torch", plan, model, backend="fused")
    with refused("by", problem="torhc", fix="torch"):
        runtime_of("torhc", plan, model)
