"""ZeRO stages 1 and 2: what their programs hold, move and compute, and what checks see of faults in them."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.costs.sequential.stage_work import samples_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.schedule.stage_memory import stage_peak

from tests.execution.test_time_walk import profile_of
from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import BERT, GPT2, LLAMA, UNTIED, plan_of, random_plan, random_zero_plan, with_zero
from tests.helpers.sizes import first_and_others, some_and_all

UNITS = len(GPT2.units)


def even_plan(strategy: str, world: int = 4, micro_batches: int = 3) -> Plan:
    return plan_of(GPT2, [strategy] * UNITS, world, 4 * world * micro_batches, micro_batches)


@pytest.mark.parametrize("count", some_and_all(60, 300, 150))
def test_programs_of_random_plans_are_sound(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        assert check(compile_plan(random_zero_plan(rng, rng.choice([2, 3, 4, 6, 8])))) == [], seed


@pytest.mark.parametrize(("world", "backend"), first_and_others([(2, "fused"), (3, "serial"), (4, "threads")]))
@pytest.mark.parametrize("count", some_and_all(6, 30, 12))
def test_random_plans_agree_with_one_process(world: int, backend: Backend, count: int) -> None:
    """Losses of three steps, gradients of the first one, and after the last one the parameters of every rank, whole where it
    has the whole: in fp64. ZeRO stages mix by unit; halves, interleaved and unlike stages, re-layouts and tied tables are
    among them."""
    rng = random.Random(world)
    plans = [random_zero_plan(rng, world) for _ in range(count)]
    assert {1, 2} <= {strategy.zero_stage for plan in plans for strategy in plan.strategies()}
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        differences = report.gradient_difference, report.parameter_difference, report.loss_difference
        assert all(difference is not None and difference < 1e-12 for difference in differences), plan


TIED = ["sdp4-zero1", "sdp4-zero2", "dp2-sdp2-zero1", "tp2-sdp2-zero2", "sdp2-tp2-zero1-ckpt", "sdp2-dp2-zero2"]


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["threads", "serial", "fused"]))
def test_a_tied_table_is_one_parameter_where_its_states_lie_alike(backend: Backend) -> None:
    between = ["dp4"] * (UNITS - 2)
    plans = [even_plan(strategy) for strategy in TIED]
    ends = [("sdp4-zero1", "sdp4-zero2"), ("sdp4-zero1", "sdp4"), ("sdp4-zero2", "sdp2-dp2-zero1"), ("dp4", "tp2-sdp2-zero1")]
    plans += [plan_of(GPT2, [first, *between, last], 4, 24, 3) for first, last in ends]
    assert [shares_table(plan.strategies(), range(UNITS)) for plan in plans] == [True] * len(TIED) + [False] * len(ends)
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        differences = report.gradient_difference, report.parameter_difference, report.loss_difference
        assert all(difference is not None and difference < 1e-12 for difference in differences), plan


def test_states_are_shared_as_the_stage_says() -> None:
    """Bytes for parameters P in fp64, padded: P + G + M / 4, P + (G + M) / 4 and (P + G + M) / 4, with moments M = 2 P; and the
    loss."""
    sharded = compile_plan(even_plan("sdp4"))[0]
    elements = sum(sharded.buffers[f"parameter.{unit}"] for unit in sharded.units) // 8
    for zero, shards in ((1, 4 + 4 + 2), (2, 4 + 1 + 2), (3, 1 + 1 + 2)):
        strategy = f"sdp4-zero{zero}" if zero < 3 else "sdp4"
        assert {program.persistent_bytes for program in compile_plan(even_plan(strategy))} == {8 * elements * shards + 8}
    assert elements >= GPT2.total_parameters // 4


@pytest.mark.parametrize("strategy", ["sdp4-zero1", "sdp4-zero2", "sdp4", "dp2-sdp2-zero1", "sdp2-tp2-zero1", "sdp2-tp2-zero2"])
def test_what_moves_in_a_step(strategy: str) -> None:
    """Gradients are scattered once a step (stage 1) or in every micro-batch, parameters gathered once a step, after the
    optimizer, or for every pass (stage 3); replicas sum their shards."""
    laid = parse_strategy(strategy)
    program = compile_plan(even_plan(strategy))[0]
    counts = Counter(i.op for i in program.instructions if i.unit == 1)
    zero, micro_batches = laid.zero_stage, 3
    assert counts[Op.REDUCE_SCATTER_GRADIENTS] == (1 if zero == 1 else micro_batches)
    assert counts[Op.GATHER_PARAMETERS] == (2 * micro_batches if zero == 3 else 0)
    assert counts[Op.GATHER_UPDATED] == (0 if zero == 3 else 1)
    assert counts[Op.REDUCE_REPLICATED] == (laid.degree("tp") > 1) * (1 if zero == 1 else micro_batches)
    shard = program.buffers["moments.1"] // 2
    for i in program.instructions:
        if i.unit == 1 and i.op in (Op.REDUCE_SCATTER_GRADIENTS, Op.GATHER_UPDATED):
            assert i.message_bytes == shard * laid.degree("sdp") and len(i.group) == laid.degree("sdp")
        if i.unit == 1 and i.op is Op.ALL_REDUCE_GRADIENTS:
            assert i.message_bytes == shard and len(i.group) == laid.degree("dp")
    steps = [n for n, i in enumerate(program.instructions) if i.op is Op.OPTIMIZER_STEP]
    gathers = [n for n, i in enumerate(program.instructions) if i.op is Op.GATHER_UPDATED]
    assert all(step < gather for step, gather in zip(steps, gathers, strict=False)), "behind the step of the unit"


def test_a_pipeline_needs_less_with_every_stage() -> None:
    peaks = [
        max(memory_walk(program).peak_bytes for program in compile_plan(even_plan(strategy)))
        for strategy in ("dp4", "sdp4-zero1", "sdp4-zero2", "sdp4")
    ]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4


@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_cost_model_never_needs_less_than_the_simulation(world: int) -> None:
    """O_f, O_b and O_ms of the units of each stage, by Eq. 2, against the peak of each of its ranks."""
    rng, ratios = random.Random(world), []
    for _ in range(40):
        model = rng.choice([entry.with_fields(vocab_size=64) for entry in (GPT2, UNTIED, BERT, LLAMA)])
        plan = with_zero(rng, random_plan(rng, world, model))
        profile, strategies, stages = profile_of(plan), plan.strategies(), len(plan.stages)
        once = stages == 1 and shares_table(strategies, range(len(plan.units)))
        programs, micro_batches = compile_plan(plan), plan.batch.micro_batches
        for number, stage in enumerate(plan.stages):
            columns = [
                unit_bytes(profile, True, profile.units[unit].sublayer, strategies[unit], samples_of(plan), once)
                for unit in range(stage.first_unit, stage.last_unit + 1)
            ]
            kept, work, states = (np.array(column) for column in zip(*columns, strict=True))
            in_flight = micro_batches if plan.schedule == "gpipe" else min(micro_batches, stages - number)
            predicted, _ = stage_peak(states, kept, work, in_flight)
            peaks = [memory_walk(programs[rank]).peak_bytes for rank in stage.ranks]
            assert max(peaks) <= predicted, plan.strategies()
            ratios.append(max(peaks) / predicted)
    assert sorted(ratios)[len(ratios) // 2] > 0.6


@pytest.mark.long
def test_measured_memory_follows_the_memory_analysis() -> None:
    """Against torch's own allocations, on plans of a size at which tensors outweigh bookkeeping."""
    sizes = {"n_embd": 128, "n_inner": 512, "vocab_size": 2000, "n_positions": 128}
    model = GPT2.with_fields(sequence=128, **sizes).in_dtype("float32")
    rng, plans = random.Random(4), []
    for strategy in ("sdp4-zero1", "sdp4-zero2", "dp2-sdp2-zero1", "sdp2-tp2-zero2"):
        plans.append(plan_of(model, [strategy] * UNITS, 4, 8, 2))
    plans.append(with_zero(rng, random_plan(rng, 4, model, 1)))
    wide = model.with_fields(sequence=16, vocab_size=8000)  # scattering the table's gradient takes most
    plans.append(plan_of(wide, ["sdp2-zero2"] * UNITS, 4, 8, 2, cuts=[3]))
    memory_follows_the_walk(run_plans(plans, steps=1, compare=False, measure_memory=True))


Rewrite = Callable[[Instruction], list[Instruction]]


def rewritten(programs: list[Program], op: Op, rewrite: Rewrite) -> list[Program]:
    """On all ranks alike, what the first unit's first such operation becomes; the waits follow from it."""
    changed = []
    for program in programs:
        instructions = list(program.instructions)
        index = next(n for n, i in enumerate(instructions) if i.op is op and i.unit == 1)
        instructions[index : index + 1] = rewrite(instructions[index])
        changed.append(replace(program, instructions=with_waits(instructions)))
    return changed


@pytest.mark.parametrize("strategy", ["sdp4-zero1", "dp2-sdp2-zero1", "sdp2-tp2-zero2", "tp2-sdp2-zero1"])
def test_faults_of_the_new_instructions_are_seen(strategy: str) -> None:
    programs = compile_plan(even_plan(strategy))
    sound = rewritten(programs, Op.GATHER_UPDATED, lambda i: [i])
    assert check(sound) == []
    faults: list[tuple[Op, Rewrite, str]] = [
        (Op.GATHER_UPDATED, lambda i: [], "gather-updated of unit 1 comes 0 times"),
        (Op.GATHER_UPDATED, lambda i: [i, i], "of which the rank has not stepped its shard"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(op=Op.ALL_REDUCE_GRADIENTS)], "not what its operation does"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(op=Op.GATHER_PARAMETERS, micro_batch=0)], "of a unit of ZeRO stage"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(group=i.group[:1])], "is over ranks"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(message_bytes=i.message_bytes // 2)], "bytes and takes 0 of workspace"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(micro_batch=0)], "is of micro-batch 0"),
        (Op.GATHER_UPDATED, lambda i: [i.changed(unit=2)], "not what its operation does"),
        (Op.REDUCE_SCATTER_GRADIENTS, lambda i: [i, i], ""),
        (Op.REDUCE_SCATTER_GRADIENTS, lambda i: [], ""),
        (Op.REDUCE_SCATTER_GRADIENTS, lambda i: [i.changed(group=(0, 1, 2, 3)[: len(i.group) // 2])], "is over ranks"),
        (Op.REDUCE_SCATTER_GRADIENTS, lambda i: [i.changed(message_bytes=8)], "moves 8 bytes"),
        (Op.REDUCE_SCATTER_GRADIENTS, lambda i: [i.changed(writes=("gradient.2",))], "not what its operation does"),
        (Op.OPTIMIZER_STEP, lambda i: [i.changed(reads=("whole-gradient.1",))], "not what its operation does"),
    ]
    for op, rewrite, reported in faults:
        found = check(rewritten(programs, op, rewrite))
        assert found and reported in found[0], (op, reported, found[:1])


def test_parameters_are_gathered_after_the_optimizer_and_gradients_scattered_before_it() -> None:
    for strategy in ("sdp4-zero1", "sdp4-zero2"):
        programs = compile_plan(even_plan(strategy))
        for one, other in ((Op.OPTIMIZER_STEP, Op.GATHER_UPDATED), (Op.REDUCE_SCATTER_GRADIENTS, Op.OPTIMIZER_STEP)):
            changed = []
            for program in programs:
                rest = list(program.instructions)
                indices = [max(n for n, i in enumerate(rest) if i.op is op and i.unit == 1) for op in (one, other)]
                rest[indices[0]], rest[indices[1]] = rest[indices[1]], rest[indices[0]]
                changed.append(replace(program, instructions=with_waits(rest)))
            assert check(changed), (strategy, one, other)


def test_the_stage_of_a_program_s_units_is_checked() -> None:
    """Strategies of another stage on all ranks alike: states of other sizes, or operations that these units do not have."""
    programs = compile_plan(even_plan("sdp4-zero1"))
    for zero in (2, 3):
        strategies = tuple(replace(strategy, zero=zero) for strategy in programs[0].strategies)
        assert check([replace(program, strategies=strategies) for program in programs])


def test_large_worlds_fold_and_are_compiled_by_class() -> None:
    model = GPT2.with_fields(n_head=16, n_layer=4, vocab_size=64)
    units = len(model.units)
    strategies = [("sdp128-zero1", "dp8-sdp16-zero2", "sdp32-tp4-zero1", "dp2-sdp64")[n % 4] for n in range(units)]
    plan = plan_of(model, strategies, 256, 128 * 16, 16, [units // 2])
    assert fold(plan, plan.planned_model()).folded.world <= 64
    classes = compile_classes(plan)
    assert len(classes) == 2 and check_classes(classes) == []
