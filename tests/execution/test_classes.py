"""Classes of equal ranks: their programs are those that are compiled directly, and their checks see what checks of all see."""

import random
from dataclasses import replace
from zlib import crc32

import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.compile.reduced_plan import faithful, fold, folded_strategy
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import Digits, common_digits
from trainplan.formulations.plan.strategy import decision_tree, parse_strategy
from trainplan.profiling.models.model import Model

from tests.helpers.plans import (
    GPT2,
    pipeline,
    plan_of,
    random_digits_plan,
    random_plan,
    random_regular_interleaved_plan,
    random_sliced_plan,
    random_uneven_plan,
    with_zero,
)
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.switch_plans import random_switch_plan

WIDE = GPT2.with_fields(n_head=16)


def _resident(rng: random.Random, world: int, model: Model | None = None) -> Plan:
    """With states and inputs of some units on the host."""
    make = rng.choice([random_plan, random_sliced_plan, random_uneven_plan])
    return random_residence_plan(rng, world, lambda rng, world: make(rng, world, model))


def _random(rng: random.Random, world: int) -> Plan:
    if world & (world - 1):
        return with_zero(rng, random_digits_plan(rng, world))
    make = rng.choice([random_plan, random_sliced_plan, random_uneven_plan, random_switch_plan, _interleaved, _resident])
    plan = make(rng, world, WIDE if world > 8 and make is not random_switch_plan else None)
    return plan if plan.uses_host else with_zero(rng, plan)


def _interleaved(rng: random.Random, world: int, model: Model | None = None) -> Plan:
    return random_regular_interleaved_plan(rng, world, model) if world > 1 else random_plan(rng, world, model)


def _longer(rng: random.Random, plan: Plan) -> Plan:
    """With more micro-batches of as many samples, so that the schedule has rounds."""
    batch, more = plan.batch, rng.randint(8, 24)
    if plan.chunks > 1:
        more = rng.choice([7, 8, 12]) * plan.depth
    if batch.shares is None:
        samples = batch.global_samples // batch.micro_batches * more
        return plan.changed(batch=batch.changed(micro_batches=more, global_samples=samples))
    shares = [share + rng.choice([0, more, more]) for share in batch.shares]
    samples = batch.global_samples // sum(batch.shares) * sum(shares)
    return plan.changed(batch=batch.changed(shares=shares, micro_batches=max(shares), global_samples=samples))


def _in_sixes(rng: random.Random, world: int) -> Plan:
    return random_digits_plan(rng, 3 * world if world < 8 else 6)


ROUNDED = (random_plan, random_sliced_plan, random_uneven_plan, _interleaved, _resident, _in_sixes)


def test_ranks_of_a_class_have_the_programs_that_they_would_be_compiled_to() -> None:
    rng = random.Random(0)
    for _ in range(30):
        plan = _random(rng, rng.choice([4, 6, 8, 12, 16]))
        assert compile_plan(plan) == [compile_plan(plan, ranks=[rank])[0] for rank in range(plan.world)]


def test_a_program_of_many_micro_batches_is_that_of_a_few_with_rounds_put_in() -> None:
    rng, prolonged = random.Random(1), 0
    for _ in range(40):
        plan = rng.choice(ROUNDED)(rng, rng.choice([2, 4, 8]))
        plan = _longer(rng, plan if plan.uses_host else with_zero(rng, plan))
        whole = compile_plan(plan)
        for device_class in compile_classes(plan):
            assert device_class.program == whole[device_class.ranks[0]]
            prolonged += device_class.walked is not device_class.program
    assert prolonged > 40


def test_the_memory_analysis_of_a_class_is_that_of_all_its_ranks() -> None:
    rng = random.Random(2)
    for _ in range(15):
        plan = rng.choice([random_plan, random_uneven_plan, _interleaved, _resident, _in_sixes])(rng, rng.choice([2, 4, 8]))
        plan = _longer(rng, plan if plan.uses_host else with_zero(rng, plan))
        classes, whole = compile_classes(plan), compile_plan(plan)
        for backend in ("serial", "fused", "threads"):
            by_class = {
                rank: memory_walk(device_class.walked, backend) for device_class in classes for rank in device_class.ranks
            }
            for program in whole:
                walk, other = memory_walk(program, backend), by_class[program.rank]
                assert (walk.peak_bytes, walk.host_bytes) == (other.peak_bytes, other.host_bytes)


def _cost(program: Program, instruction: Instruction) -> int:
    """Some time that depends on what is done, and not on which micro-batch it is done for."""
    what = f"{program.rank} {instruction.op} {instruction.unit} {instruction.message_bytes} {instruction.half}"
    return crc32(what.encode()) % 1000


@pytest.mark.parametrize("backend", ["serial", "fused", "threads"])
def test_the_simulation_in_rounds_is_that_of_whole_programs(backend: Backend) -> None:
    rng, shorter = random.Random(4), 0
    for _ in range(25):
        plan = _longer(rng, rng.choice(ROUNDED)(rng, rng.choice([2, 4, 8])))
        classes = compile_classes(plan)
        stands_for = {rank: device_class.ranks[0] for device_class in classes for rank in device_class.ranks[1:]}
        walks = [
            time_walk(programs, _cost, backend, stands_for)
            for programs in (
                [device_class.rounds for device_class in classes],
                [device_class.program for device_class in classes],
            )
        ]
        assert walks[0].start_ns == walks[1].start_ns and walks[0].end_ns == walks[1].end_ns
        assert list(walks[0].operations()) == list(walks[1].operations())
        shorter += any(device_class.rounds.count > 0 for device_class in classes)
    assert shorter > 15


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
def test_classes_of_random_plans_are_sound(world: int) -> None:
    rng = random.Random(world)
    for _ in range(6):
        plan = _random(rng, world) if world > 2 else random_plan(rng, world)
        assert check_classes(compile_classes(plan)) == []


@pytest.mark.parametrize(
    ("texts", "degrees", "narrow", "folded"),
    [
        (("dp4-tp8", "dp8-tp4-ckpt", "sdp32"), (4, 2, 4), (2, 2, 2), ["dp2-tp4", "dp4-tp2-ckpt", "sdp8"]),
        (("dp3-tp8", "sdp6-tp4", "tp2-dp12"), (4, 2, 3), None, None),
        (("dp6-tp8", "sdp48", "dp12-tp4"), (4, 2, 6), (2, 2, 2), ["dp2-tp4", "sdp8", "dp4-tp2"]),
    ],
)
def test_common_digits_are_what_no_strategy_tells_apart(
    texts: tuple[str, ...], degrees: tuple[int, ...], narrow: tuple[int, ...] | None, folded: list[str] | None
) -> None:
    strategies = [parse_strategy(text) for text in texts]
    digits = common_digits(strategies)
    if narrow is None or folded is None:
        assert digits is None  # tp2-dp12 cuts at 12, dp3-tp8 at 8
    else:
        assert digits == Digits(degrees)
        assert [str(folded_strategy(strategy, digits, Digits(narrow))) for strategy in strategies] == folded


def test_a_folding_that_gathers_over_other_digits_is_not_faithful() -> None:
    """Samples 2 bits further down on one side: with degrees of 2 they would seem to lie where they are wanted."""
    before, after = parse_strategy("dp4-tp2-sdp2"), parse_strategy("tp4-dp4")
    digits = common_digits([before, after])
    assert digits == Digits((2, 2, 4)) and not faithful(before, after, digits, Digits((2, 2, 2)))
    for a in decision_tree(16, takeaway3=False, ckpt=False):
        for b in decision_tree(16, takeaway3=False, ckpt=False):
            digits = common_digits([a, b])
            assert digits is not None and faithful(a, b, digits, digits)


def _large(strategies: list[str], stages: int = 4) -> Plan:
    size = parse_strategy(strategies[0]).group
    model = GPT2.with_fields(n_head=16, n_layer=4)
    units = len(model.units)
    cuts = [stage * units // stages for stage in range(1, stages)]
    mixed = [strategies[i * len(strategies) // units] for i in range(units)]
    return plan_of(model, mixed, stages * size, 16 * size, 16, cuts)


MIXES = [
    ["dp16-tp4"],
    ["dp16-tp4", "dp8-tp8-ckpt", "sdp16-tp4"],
    ["tp4-sdp16", "dp4-tp16"],
    ["sdp16-tp4-zero1", "dp4-sdp4-tp4-zero2", "sdp64-zero1"],
    ["dp12-tp8", "sdp96-ckpt", "dp6-sdp2-tp8", "dp24-tp4"],
]


@pytest.mark.parametrize("strategies", MIXES)
def test_large_plans_are_checked_as_small_ones(strategies: list[str]) -> None:
    plan = _large(strategies)
    assert fold(plan, plan.planned_model()).folded.world <= 64
    assert check_classes(compile_classes(plan)) == []


def _faults(program: Program, rng: random.Random) -> list[Program]:
    """Programs with one fault each: without a wait, a free, an operation; two operations swapped; another group or name."""
    instructions = program.instructions

    def changed(index: int, *new: Instruction) -> Program:
        return replace(program, instructions=(*instructions[:index], *new, *instructions[index + 1 :]))

    made = []
    for index, i in enumerate(instructions):
        if i.waits:
            made.append(changed(index, replace(i, waits=())))
        if i.frees:
            made.append(changed(index, replace(i, frees=i.frees[1:])))
        if i.op.spec.kind == "collective" and len(i.group) > 1:
            made += [changed(index, replace(i, group=i.group[: len(i.group) // 2])), changed(index)]
            others = tuple(sorted({*i.group[:-1], (i.group[-1] + 1) % program.world}))
            if others != i.group and i.op is not Op.REDUCE_LOSS:
                made.append(changed(index, replace(i, group=others)))
        if i.op is Op.FORWARD:
            made.append(changed(index, replace(i, reads=i.reads[::-1])))
    return rng.sample(made, min(12, len(made)))


@pytest.mark.parametrize("strategies", MIXES)
def test_faults_in_the_program_of_any_class_are_seen(strategies: list[str]) -> None:
    rng, classes = random.Random(3), compile_classes(_large(strategies))
    for number, device_class in enumerate(classes):
        for faulty in _faults(device_class.few, rng)[:6]:
            changed = [*classes]
            changed[number] = replace(device_class, few=faulty)
            assert check_classes(changed)


@pytest.mark.parametrize("world", [4, 16, 64])
def test_faults_in_the_program_of_any_rank_are_seen_by_the_checks_of_all(world: int) -> None:
    rng = random.Random(world)
    for _ in range(2):
        programs = compile_plan(random_plan(rng, world, WIDE, stages=2))
        for rank in rng.sample(range(world), 3):
            for faulty in _faults(programs[rank], rng)[:3]:
                assert check([*programs[:rank], faulty, *programs[rank + 1 :]]), rank


def test_equal_ranks_are_one_class() -> None:
    plan = pipeline(GPT2, 4, 8)
    assert [device_class.ranks for device_class in compile_classes(plan)] == [(0,), (1,), (2,), (3,)]
    even = plan_of(GPT2.with_fields(vocab_size=64), ["dp2-tp2"] * len(GPT2.units), 4)
    assert [device_class.ranks for device_class in compile_classes(even)] == [(0, 1, 2, 3)]
    uneven = plan_of(GPT2, ["dp2-tp2"] * len(GPT2.units), 4)
    assert [device_class.ranks for device_class in compile_classes(uneven)] == [(0, 2), (1, 3)]
