"""Recomputation of modules: nothing of them is kept, gradients are exact, and time and memory are what the analyses say."""

import random

import numpy as np
import pytest
import torch
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.execution.program import Program
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, unit_costs
from trainplan.formulations.costs.sequential.stage_work import planned_work
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import MODULES, parse_strategy
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.profiling.measure.tasks import input_of
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import SelectiveRecomputation, Sublayer, modules_of

from tests.execution.test_sequence_parallelism import any_plan, large
from tests.execution.test_time_walk import profile_of
from tests.helpers.mutations import KINDS, OF_ORDER, mutants
from tests.helpers.plans import BERT, DROPPING, GPT2, LLAMA, UNTIED, plan_of, random_plan, recomputing_modules, sharing_tokens
from tests.helpers.sizes import first_and_others, some_and_all

INSIDE = tuple(module for module in MODULES if module != "loss")


def _gradients(part: Sublayer, modules: tuple[str, ...], shard: torch_units.Shard) -> list[torch.Tensor | None]:
    whole = torch_units.whole_parameters(part, 1)
    values = {p.name: torch_units.sharded(p, whole[p.name], shard).clone().requires_grad_() for p in part.parameters()}
    x = input_of(part, 3, torch.Generator().manual_seed(3))
    if part.kind != "embedding":
        x.requires_grad_()
    y = torch_units.forward(part, values, x, shard, draw=Draw(0, 0, 0, (4, 5, 6)), modules=modules)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=y.dtype))
    return [y.detach(), x.grad, *(value.grad for value in values.values())]


@pytest.mark.parametrize("model", [GPT2, BERT, LLAMA, *DROPPING], ids=lambda model: f"{model.family}, {model.tied}")
def test_gradients_of_a_sub_layer_are_those_without(model: Model) -> None:
    for part in model.sublayers.values():
        for shard in (torch_units.Shard(), torch_units.Shard(2, 1)):
            kept = _gradients(part, (), shard)
            for modules in (*((module,) for module in INSIDE), INSIDE):
                for a, b in zip(kept, _gradients(part, modules, shard), strict=True):
                    assert (a is None) == (b is None), (part.kind, modules)
                    if a is not None and b is not None:  # without a graph torch norms in one kernel
                        assert torch.allclose(a, b, rtol=1e-13, atol=1e-13), (part.kind, modules)


def test_a_module_is_not_kept_where_a_sub_layer_has_it() -> None:
    for part in [part for model in (GPT2, BERT, LLAMA) for part in model.sublayers.values()]:
        for modules in ((), *((module,) for module in INSIDE), INSIDE):
            selective = SelectiveRecomputation(part, modules)
            assert selective.effective == any(module in modules_of(part) for module in modules)
            assert (selective.kept_bytes(4, 1) < part.kept_bytes(4, 1)) == selective.effective
            assert bool(selective.operators(4, 1)) == selective.effective


@pytest.mark.parametrize("count", some_and_all(60, 150))
def test_random_plans_are_sound(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        plan = any_plan(rng, rng.choice([4, 8]) if seed % 5 < 3 else 4, seed)
        assert check(compile_plan(recomputing_modules(rng, plan))) == [], seed


def _hold(reports: list[RunReport]) -> None:
    for report in reports:
        assert report.gradient_difference is not None and report.parameter_difference is not None
        assert max(report.gradient_difference, report.parameter_difference, report.loss_difference or 0) < 1e-12


@pytest.mark.long
@pytest.mark.parametrize(("world", "backend"), first_and_others([(2, "serial"), (4, "threads"), (2, "fused")]))
@pytest.mark.parametrize("count", some_and_all(6, 12))
def test_random_plans_agree_with_one_process(world: int, backend: str, count: int) -> None:
    rng = random.Random(world)
    numbers = [number for number in range(count) if world > 2 or number % 5 < 4]
    plans = [recomputing_modules(rng, any_plan(rng, world, number)) for number in numbers]
    assert any(unit.strategy.modules for plan in plans for unit in plan.units)
    _hold(run_plans(plans, backend=backend))  # type: ignore[arg-type]


@pytest.mark.long
def test_measured_memory_follows_the_memory_analysis() -> None:
    plans = []
    for model in map(large, (GPT2, LLAMA, DROPPING[2])):
        for text in ("single", "single-ckpt:norms", "single-ckpt:activation+attention+loss+norms", "single-ckpt"):
            plans.append(plan_of(model, [text] * len(model.units), 1, 8, 2, schedule="gpipe"))
    reports = run_plans(plans, steps=1, compare=False, measure_memory=True)
    peaks = []
    for report in reports:
        assert report.peak_bytes is not None
        peaks += report.peak_bytes
        assert abs(report.predicted_peak_bytes[0] / report.peak_bytes[0] - 1) < 0.01
    for index in range(0, len(peaks), 4):
        assert peaks[index] > peaks[index + 1] > peaks[index + 2] > peaks[index + 3], "the more is recomputed"


@pytest.mark.long
@pytest.mark.parametrize("text", first_and_others(["tp2-sp-ckpt:loss", "single-ckpt:loss", "single-ckpt:loss+norms"]))
def test_logits_are_not_kept(text: str) -> None:
    """With a large vocabulary, of all micro-batches but the one in its backward pass."""
    model, world = large(GPT2).with_fields(vocab_size=6000, n_layer=1), 2 if "tp2" in text else 1
    plain, again = (
        plan_of(model, [s] * len(model.units), world, 8, 4, schedule="gpipe") for s in (text.split("-ckpt")[0], text)
    )
    reports = run_plans([plain, again], steps=1, compare=False, measure_memory=True)
    (kept, made) = (max(report.peak_bytes or [0]) for report in reports)
    for report in reports:
        assert abs(max(report.predicted_peak_bytes) / max(report.peak_bytes or [1]) - 1) < 0.01
    logits = model.units[-1].sublayer.output_bytes(2, world)
    assert made < kept - 2 * logits


def _mixed(rng: random.Random, world: int, stages: int | None = None, model: Model | None = None) -> Plan:
    return recomputing_modules(rng, sharing_tokens(rng, random_plan(rng, world, model, stages)))


@pytest.mark.parametrize("world", [1, 4])
def test_one_stage_takes_the_sum_of_its_work(world: int) -> None:
    rng = random.Random(3)
    for _ in range(15):
        plan = _mixed(rng, world, 1)
        profile, m = profile_of(plan), plan.batch.micro_batches
        planned = planned_work(plan, [profile])
        whole = m * (planned.work.forward_ns[0] + planned.work.backward_ns[0]) + planned.syncs_ns[0]
        assert judge(plan, profile).step_ns == whole


@pytest.mark.parametrize("count", some_and_all(30, 200, 100))
def test_stages_never_need_more_than_the_model_says(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        model = rng.choice([GPT2, UNTIED, BERT, LLAMA, *DROPPING]).with_fields(vocab_size=rng.choice([64, 400]))
        plan = _mixed(rng, rng.choice([1, 2, 4]), model=model)
        profile, strategies, m = profile_of(plan), plan.strategies(), plan.batch.micro_batches
        for number, stage in enumerate(plan.stages):
            units, samples = range(stage.first_unit, stage.last_unit + 1), plan.batch.global_samples // m
            once = shares_table(strategies, units)
            sizes = [unit_bytes(profile, True, profile.units[u].sublayer, strategies[u], samples, once) for u in units]
            kept, work, states = np.array(sizes).T
            in_flight = m if plan.schedule == "gpipe" else min(m, len(plan.stages) - number)
            peak, _ = stage_peak(states, kept, work, in_flight)
            for program in compile_plan(plan, ranks=stage.ranks):
                assert memory_walk(program).peak_bytes <= peak, (seed, program.rank)


def test_recomputed_modules_take_time_and_keep_less() -> None:
    profile = profile_of(plan_of(GPT2, ["tp2"] * len(GPT2.units), 2, 8))
    executed = COST_MODELS["executed"]
    for kind, module in (("attention", "attention"), ("attention", "norms"), ("ffn", "activation"), ("ffn", "norms")):
        for text in ("tp2", "tp2-sp"):
            whole, part, full = (
                unit_costs(profile, executed, kind, parse_strategy(f"{text}{more}"), 8)
                for more in ("", f"-ckpt:{module}", "-ckpt")
            )
            assert whole.time_ns < part.time_ns < full.time_ns and whole.forward_ns == part.forward_ns
            assert whole.forward_bytes > part.forward_bytes > full.forward_bytes
        other = next(entry for entry in INSIDE if entry not in modules_of(GPT2.sublayers[kind]))
        assert unit_costs(profile, executed, kind, parse_strategy(f"tp2-ckpt:{other}"), 8) == unit_costs(
            profile, executed, kind, parse_strategy("tp2"), 8
        )


def test_60_mutations_that_must_be_seen() -> None:
    kinds = [kind for kind in KINDS if kind.split(",")[0] not in OF_ORDER]
    for mutant in mutants(random.Random(60), 60, kinds, _programs):
        faults = check(mutant.programs)
        assert faults and faults[0].startswith("rank "), mutant[:3]


def _programs(rng: random.Random) -> tuple[Plan, list[Program]]:
    plan = _mixed(rng, rng.choice([2, 4]))
    return plan, compile_plan(plan)
