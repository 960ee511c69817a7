"""bfloat16 with fp32 master copies, and with fp32 gradients or narrow ones: programs, checks, analyses and runs."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.execution.program import Program
from trainplan.execution.training.single_process import Reference, batch_tokens
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.costs.sequential.stage_work import samples_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.profiling.base.processes import run_workers
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Profile

from tests.execution.test_time_walk import layered_plan, simulated
from tests.helpers.mutations import KINDS, OF_ORDER, mutants
from tests.helpers.plans import (
    BERT,
    GPT2,
    LLAMA,
    PRECISIONS,
    UNTIED,
    plan_of,
    random_plan,
    random_sliced_plan,
    random_zero_plan,
    with_precision,
    with_zero,
)
from tests.helpers.refusals import refused
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.sizes import first_and_others, some_and_all
from tests.helpers.switch_plans import random_switch_plan

PLAIN, NARROW, WIDE = PRECISIONS  # no master copies; with them, and gradients in the model's dtype; and in theirs
UNITS = len(GPT2.units)
H100 = load_cluster("h100-8")


def precise_plan(strategy: str, precision: Precision, world: int = 4, micro_batches: int = 2) -> Plan:
    plan = plan_of(GPT2, [strategy] * UNITS, world, 2 * world * micro_batches, micro_batches)
    return with_precision(random.Random(0), plan, precision)


def random_programs(rng: random.Random) -> tuple[Plan, list[Program]]:
    make = rng.choice([random_plan, random_sliced_plan, random_zero_plan])
    plan = with_precision(rng, with_zero(rng, make(rng, rng.choice([2, 4]))))
    return plan, compile_plan(plan)


def profile_of(plan: Plan) -> Profile:
    """Estimated for all shapes of the plan, on 64 devices with one link."""
    profile = obtain_profile(plan.planned_model(), H100, [samples_of(plan)], [plan.stage_sizes[0]], devices=8)
    return profile.changed(network=Network(islands=[Island(devices=64, bandwidth_bytes_per_s=3.3e9, latency_ns=977)]))


@pytest.mark.parametrize("count", some_and_all(40, 400, 150))
def test_programs_of_random_plans_are_sound(count: int) -> None:
    for seed in range(count):
        assert check(random_programs(random.Random(seed))[1]) == [], seed


@pytest.mark.parametrize(
    ("strategy", "precision", "bytes_by_tensor"),
    [  # of a number that is whole on each of 4 ranks: parameter, gradient; of one that they share: parameter to master copy
        ("dp4", PLAIN, 2 + 2 + 4),
        ("dp4", NARROW, 2 + 2 + 8 + 4),
        ("dp4", WIDE, 2 + 4 + 8 + 4),
        ("sdp4-zero1", NARROW, 2 + 2 + (8 + 4) / 4),
        ("sdp4-zero1", WIDE, 2 + 4 + (8 + 4) / 4),
        ("sdp4-zero2", NARROW, 2 + (2 + 8 + 4) / 4),
        ("sdp4-zero2", WIDE, 2 + (4 + 8 + 4) / 4),
        ("sdp4", NARROW, (2 + 2 + 8 + 4) / 4),
        ("sdp4", WIDE, (2 + 4 + 8 + 4) / 4),
    ],
)
def test_states_are_as_wide_as_the_plan_says(strategy: str, precision: Precision, bytes_by_tensor: float) -> None:
    program = compile_plan(precise_plan(strategy, precision))[0]
    shard = compile_plan(precise_plan("sdp4", PLAIN))[0]
    elements = 4 * sum(shard.buffers[f"parameter.{unit}"] // 2 for unit in shard.units)
    if strategy == "dp4":  # nothing is padded
        elements = sum(program.buffers[f"parameter.{unit}"] // 2 for unit in program.units)
    assert program.persistent_bytes == elements * bytes_by_tensor + 8


def test_what_moves_is_as_wide_as_the_plan_says() -> None:
    for strategy in ("sdp4", "sdp4-zero1", "sdp4-zero2", "dp2-sdp2-zero1", "sdp2-tp2-zero2"):
        narrow, wide = (compile_plan(precise_plan(strategy, precision))[0] for precision in (NARROW, WIDE))
        for i, j in zip(narrow.instructions, wide.instructions, strict=True):
            of_gradients = (Op.REDUCE_SCATTER_GRADIENTS, Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_REPLICATED, Op.REDUCE_TIED)
            assert j.message_bytes == i.message_bytes * (2 if i.op in of_gradients else 1), i
            if i.op is Op.OPTIMIZER_STEP:
                assert (i.workspace_bytes, j.workspace_bytes) == (narrow.buffers[f"master.{i.unit}"], 0)
                assert i.writes == (f"parameter.{i.unit}", f"moments.{i.unit}", f"master.{i.unit}")


def test_where_a_plan_runs_in_a_wide_dtype_there_are_no_copies() -> None:
    plan = precise_plan("sdp4-zero1", WIDE)
    model = plan.planned_model()
    assert compile_plan(plan)[0].precision == WIDE
    for dtype in ("float32", "float64"):
        wide = model.in_dtype(dtype)
        plain = with_precision(random.Random(0), plan, PLAIN)
        assert compile_plan(plan, wide) == compile_plan(plain, wide)


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"gradients": "float32"}, ("precision.gradients", "float32", "precision.master 'float32'")),
        ({"master": "float64"}, ("precision.master", "float64", "float32")),
        ({"gradients": "bfloat16"}, ("precision.gradients", "bfloat16", ("model", "float32"))),
    ],
)
def test_precisions_that_cannot_be_get_one_line(fields: dict[str, str], refusal: tuple[Any, ...]) -> None:
    content = precise_plan("dp4", PLAIN).model_dump()
    with refused(*refusal):
        load_plan({**content, "precision": fields})


def test_wide_models_and_states_on_the_host_have_no_master_copies() -> None:
    content = plan_of(GPT2, ["dp4"] * UNITS, 4).model_dump()
    with refused("precision.master", problem="float32", fix=("precision", "float64")):
        load_plan({**content, "precision": {"master": "float32"}})
    switched = random_switch_plan(random.Random(0), 2)
    with refused("precision.master", problem=("float32", "host"), fix=("precision", "device")):
        with_precision(random.Random(0), switched, NARROW)
    assert check(compile_plan(with_precision(random.Random(0), switched, PLAIN))) == []
    partly = (random_residence_plan(random.Random(seed), 4) for seed in range(99))
    some = next(plan for plan in partly if {unit.states.on_host for unit in plan.units} == {True, False})
    with refused("precision.master", problem=("float32", "host"), fix=("precision", "device")):
        with_precision(random.Random(0), some, WIDE)


def test_mutations_that_must_be_seen() -> None:
    kinds = [kind for kind in KINDS if kind.split(",")[0] not in OF_ORDER]
    for mutant in mutants(random.Random(7), 120, kinds, random_programs):
        faults = check(mutant.programs)
        assert faults and faults[0].startswith("rank "), mutant[:3]


def test_a_step_without_its_master_copy_is_seen() -> None:
    programs = compile_plan(precise_plan("sdp4-zero1", NARROW))
    changed = []
    for program in programs:
        rest = [
            i.changed(writes=i.writes[:-1]) if i.op is Op.OPTIMIZER_STEP and i.unit == 1 else i for i in program.instructions
        ]
        changed.append(Program(**{**program.__dict__, "instructions": tuple(rest)}))
    assert "optimizer-step unit 1 writes parameter.1, moments.1, with master copies in float32" in check(changed)[0]


def test_steps_are_those_of_the_simulated_pipeline() -> None:
    """To the nanosecond, as those of plans without master copies: gradients alone move otherwise."""
    rng = random.Random(6)
    for _ in range(25):
        plan = with_precision(rng, layered_plan(rng, 4))
        profile = profile_of(plan)
        judged = judge(plan, profile)
        assert judged.step_ns == simulated(plan, profile)[1], plan.precision


def test_one_stage_takes_the_sum_of_its_work_tied_or_not() -> None:
    from trainplan.formulations.costs.sequential.stage_work import planned_work

    rng = random.Random(8)
    for _ in range(20):
        plan = with_precision(rng, with_zero(rng, random_plan(rng, 4, stages=1)))
        profile, m = profile_of(plan), plan.batch.micro_batches
        planned = planned_work(plan, [profile])
        whole = m * (planned.work.forward_ns[0] + planned.work.backward_ns[0]) + planned.syncs_ns[0]
        assert judge(plan, profile).step_ns == whole


@pytest.mark.parametrize("world", [1, 4, 8])
def test_the_cost_model_never_needs_less_than_the_simulation(world: int) -> None:
    """O_f, O_b and O_ms of the units of each stage, by Eq. 2, against the peak of each of its ranks."""
    rng = random.Random(world)
    for _ in range(30):
        model = rng.choice([entry.with_fields(vocab_size=64) for entry in (GPT2, UNTIED, BERT, LLAMA)])
        plan = with_precision(rng, with_zero(rng, random_plan(rng, world, model)))
        profile, strategies, stages = profile_of(plan), plan.strategies(), len(plan.stages)
        once = stages == 1 and shares_table(strategies, range(len(plan.units)))
        programs, micro_batches = compile_plan(plan), plan.batch.micro_batches
        for number, stage in enumerate(plan.stages):
            columns = [
                unit_bytes(
                    profile, True, profile.units[u].sublayer, strategies[u], samples_of(plan), once, precision=plan.precision
                )
                for u in range(stage.first_unit, stage.last_unit + 1)
            ]
            kept, work, states = (np.array(column) for column in zip(*columns, strict=True))
            in_flight = micro_batches if plan.schedule == "gpipe" else min(micro_batches, stages - number)
            predicted, _ = stage_peak(states, kept, work, in_flight)
            assert max(memory_walk(programs[rank]).peak_bytes for rank in stage.ranks) <= predicted, plan.precision


@pytest.mark.long
@pytest.mark.parametrize(("world", "backend"), first_and_others([(2, "serial"), (4, "threads"), (4, "fused")]))
@pytest.mark.parametrize("count", some_and_all(2, 6, 3))
def test_random_plans_train_as_one_process_does(world: int, backend: Backend, count: int) -> None:
    """In bfloat16, whose numbers have 8 bits: gradients within 5 % of a unit's largest, where a sum that is left out or doubled
    would be 50 % off; three AdamW steps of at most 0.001 each on both sides, and a rounding."""
    rng = random.Random(world)
    plans = [with_precision(rng, random_zero_plan(rng, world), precision) for precision in PRECISIONS for _ in range(count)]
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        assert report.gradient_difference is not None and report.gradient_difference < 0.05, plan
        assert report.parameter_difference is not None and report.parameter_difference < 0.012
        assert report.loss_difference is not None and report.loss_difference < 0.01
        assert report.losses == sorted(report.losses, reverse=True)


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["threads", "serial"]))
def test_master_copies_are_those_of_torch_s_adamw(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step, bit for bit, from the gradients that each rank has; and states take the bytes that programs say."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # where the processes find `tests`
    strategies = ["dp2", "sdp2", "sdp2-zero1", "sdp2-zero2", "tp2"]
    plans = [precise_plan(strategy, precision, 2) for strategy in strategies for precision in (NARROW, WIDE)]
    plans += [with_precision(random.Random(0), random_zero_plan(random.Random(n), 2), WIDE) for n in range(3)]
    jobs = [{"programs": compile_plan(plan)} for plan in plans]
    job = {"jobs": jobs, "backend": backend, "gpus": None, "seed": 0}
    for results in run_workers("tests.helpers.masters:steps_equal_torch", 2, job):
        for plan, result in zip(plans, results, strict=True):
            assert result["equal"], plan
            assert result["held"] == result["analysed"], plan


def test_wide_gradients_add_up_many_micro_batches_better() -> None:
    """Against fp64 on the same parameters: with 32 micro-batches narrow sums lose bits that wide ones keep."""
    from trainplan.execution.run.executor import Executor

    model = GPT2.in_dtype("bfloat16")
    plan = plan_of(model, ["single"] * UNITS, 1, 32, 32)
    reference = Reference(model.in_dtype("float64"), 0)
    narrow = Reference(model, 0)
    with torch.no_grad():
        for exact, values in zip(reference.parameters, narrow.parameters, strict=True):
            for name, value in values.items():
                exact[name].copy_(value)
    tokens = batch_tokens(model, 32, 0)
    reference.gradients(tokens)
    errors = []
    for precision in (NARROW, WIDE):
        (program,) = compile_plan(plan.changed(precision=precision))
        executor = Executor(program, {}, 0)
        executor.tokens = tokens
        executor.step()
        error = 0.0
        for unit, state in executor.units.items():
            exact = torch.cat([reference.parameters[unit][name].grad.flatten() for name, *_ in state.layout])  # type: ignore[union-attr]
            error += float((state.gradient.double() - exact).norm() / exact.norm()) / UNITS
        errors.append(error)
    print(f"relative error of the sum of 32 micro-batches: {errors[0]:.2%} narrow, {errors[1]:.2%} wide")
    assert errors[1] < 0.7 * errors[0]
