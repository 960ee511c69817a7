"""Replicas with different numbers of micro-batches: their samples, their checks, their gradients, and how plans say it."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check, lifetimes, meanings
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import load_plan

from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import GPT2, SCHEDULES, UNTIED, plan_of, random_uneven_plan, uneven_plan
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

UNITS = len(GPT2.units)


def _faults(programs: Sequence[Program]) -> list[str]:
    """Without waits, which name places: only lifetimes and meanings are left to see what was changed."""
    bare = [replace(p, instructions=tuple(replace(i, waits=()) for i in p.instructions)) for p in programs]
    return [fault for program in bare for fault in lifetimes(program)] or meanings(bare)


def _without(program: Program, op: Op, unit: int | None) -> Program:
    return replace(program, instructions=tuple(i for i in program.instructions if (i.op, i.unit) != (op, unit)))


def _scaled(program: Program, factor: float) -> Program:
    """The loss divided by something else."""
    instructions = [
        replace(i, args={"scale": i.args["scale"] * factor}) if i.op is Op.LOSS else i for i in program.instructions
    ]
    return replace(program, instructions=tuple(instructions))


@pytest.mark.parametrize(
    ("world", "plans"), first_and_others([(4, 60), (16, 20), (64, 3), (2, 40), (8, 60), (16, 30), (32, 10), (64, 5)], 3)
)
def test_200_random_plans_are_sound(world: int, plans: int) -> None:
    rng = random.Random(world)
    model = GPT2.with_fields(n_head=16)
    uneven = 0
    for _ in range(plans):
        plan = random_uneven_plan(rng, world, model)
        assert plan.batch.shares is not None
        uneven += len(set(plan.batch.shares)) > 1
        assert check(compile_plan(plan)) == []
    assert uneven > plans / 2


def test_each_replica_works_on_its_own_block_of_samples() -> None:
    shares, rows, tp, stages = [3, 1, 4, 2], 2, 2, 2
    programs = compile_plan(uneven_plan(GPT2, shares, stages, tp, rows))
    assert [p.micro_batches for p in programs] == [3, 3, 1, 1, 4, 4, 2, 2] * stages
    for program in programs:
        replica = program.index_in_stage // tp
        begin = rows * sum(shares[:replica])
        blocks = [tuple(range(begin + k * rows, begin + (k + 1) * rows)) for k in range(shares[replica])]
        op = Op.INPUT if program.rank < 8 else Op.TARGETS
        assert [i.args["rows"] for i in program.instructions if i.op is op] == blocks
        passes = [i.op for i in program.instructions if i.unit == program.units[0] and i.op in (Op.FORWARD, Op.BACKWARD)]
        assert passes.count(Op.FORWARD) == passes.count(Op.BACKWARD) == shares[replica]
        order = [i for i in program.instructions if i.op in (Op.BACKWARD, Op.ALL_REDUCE_GRADIENTS)]
        reduced = [i.unit for i in order if i.op is Op.ALL_REDUCE_GRADIENTS]
        assert reduced == list(reversed(program.units)), "once each, in the order of the backward pass"
        first = next(n for n, i in enumerate(order) if i.op is Op.ALL_REDUCE_GRADIENTS)
        count = len(program.units)
        before = (shares[replica] - 1) * count + (1 if program.units[0] == 0 else count)  # after a stage's last message
        assert sum(i.op is Op.BACKWARD for i in order[:first]) == before


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_samples_of_another_replica_are_seen(shift: int) -> None:
    """A replica that begins a micro-batch too early or too late: inputs and targets of it fit each other, not the others."""
    for stages in (1, 2):
        programs = compile_plan(uneven_plan(UNTIED, [2, 3, 1, 2], stages))

        def moved(i: Instruction) -> Instruction:
            args = {n: tuple(row + shift for row in value) if n == "rows" else value for n, value in i.args.items()}
            return replace(i, args=args, grouped=tuple(map(moved, i.grouped)))

        changed = [replace(p, instructions=tuple(map(moved, p.instructions))) if p.index_in_stage == 2 else p for p in programs]
        assert "does not hold each sample once" in meanings(changed)[0]


def test_another_number_of_micro_batches_is_seen() -> None:
    """One replica as it would be with one micro-batch more or less, its loss divided by the step's own samples."""
    for other in ([2, 2], [2, 4]):
        for stages in (1, 2):
            programs = compile_plan(uneven_plan(UNTIED, [2, 3], stages))
            for number, program in enumerate(compile_plan(uneven_plan(UNTIED, other, stages))):
                if program.index_in_stage == 1:
                    programs[number] = _scaled(replace(program, samples=5), sum(other) / 5)
            assert "does not hold each sample once" in check(programs)[0]


def test_the_loss_is_divided_by_all_samples() -> None:
    """Not by those that all replicas would have with as many micro-batches as the busiest."""
    changed = [_scaled(program, 4 / 6) for program in compile_plan(uneven_plan(GPT2, [1, 3]))]
    assert "divided" in meanings(changed)[0]


def test_gradients_that_are_not_summed_or_summed_too_early_are_seen() -> None:
    rng = random.Random(3)
    for _ in range(20):
        programs = compile_plan(random_uneven_plan(rng, 4))
        unit = rng.choice([i.unit for i in programs[0].instructions if i.op is Op.ALL_REDUCE_GRADIENTS])
        assert _faults([_without(p, Op.ALL_REDUCE_GRADIENTS, unit) for p in programs])
    early = []
    for program in compile_plan(uneven_plan(UNTIED, [2, 3])):
        rest = list(program.instructions)
        index = next(n for n, i in enumerate(rest) if i.op is Op.ALL_REDUCE_GRADIENTS)
        reduction = rest.pop(index)
        first = next(n for n, i in enumerate(rest) if i.op is Op.BACKWARD and i.unit == reduction.unit)
        rest.insert(first + 1, reduction)
        early.append(replace(program, instructions=tuple(rest)))
    assert "does not hold each sample once" in _faults(early)[0]


def test_reductions_in_another_order_are_seen() -> None:
    """On the replica that is done first."""
    programs = compile_plan(uneven_plan(GPT2, [3, 1], stages=2))
    rest = list(programs[1].instructions)
    a, b = [n for n, i in enumerate(rest) if i.op is Op.ALL_REDUCE_GRADIENTS][:2]
    rest[a], rest[b] = rest[b], rest[a]
    programs[1] = replace(programs[1], instructions=tuple(rest))
    assert "meets" in _faults(programs)[0]


@pytest.mark.long
@pytest.mark.parametrize("count", some_and_all(5, 24, 12))
@pytest.mark.parametrize("backend", first_and_others(["fused", "serial"]))
def test_gradients_of_random_plans_on_4_processes(backend: str, count: int) -> None:
    rng = random.Random(11)
    plans = [random_uneven_plan(rng) for _ in range(24)]
    assert {(len(plan.stages), str(plan.units[0].strategy).removesuffix("-ckpt")) for plan in plans} == {
        (1, "dp4"),
        (1, "dp2-tp2"),
        (2, "dp2"),
    }
    assert {plan.schedule for plan in plans} == set(SCHEDULES)
    assert {plan.planned_model().tied for plan in plans} == {True, False}
    _hold([*plans[:count], uneven_plan(GPT2, [2, 2], 2), uneven_plan(UNTIED, [1, 4, 2, 1])], backend)


def test_two_processes_and_as_many_replicas() -> None:
    rng = random.Random(12)
    _hold([random_uneven_plan(rng, 2) for _ in range(6)], "serial")


def _hold(plans: list[Any], backend: Any) -> None:
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        for found in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert found is not None
            assert found < 1e-12, plan
        assert report.losses == sorted(report.losses, reverse=True), "the same batch thrice: the loss must fall"


@pytest.mark.long
@pytest.mark.parametrize("count", some_and_all(1, 4, 2))
def test_memory_of_uneven_replicas_follows_the_memory_analysis(count: int) -> None:
    rng = random.Random(13)
    sizes = {"n_embd": 128, "n_inner": 512, "vocab_size": 2000, "n_positions": 128}
    model = GPT2.with_fields(sequence=128, **sizes).in_dtype("float32")
    plans = [random_uneven_plan(rng, 4, model, stages) for stages in (1, 2) for _ in range(count)]
    memory_follows_the_walk(run_plans(plans, steps=1, compare=False, measure_memory=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_smaller_share_never_holds_more(schedule: Any) -> None:
    """Strictly less under GPipe, which holds all micro-batches at once."""
    walks = [memory_walk(p).peak_bytes for p in compile_plan(uneven_plan(GPT2, [4, 2], 2, rows=2, schedule=schedule))]
    for large, small in (walks[:2], walks[2:]):
        assert small < large if schedule == "gpipe" else small <= large


def _content(**changed: Any) -> dict[str, Any]:
    content = uneven_plan(GPT2, [3, 1], stages=2).model_dump()
    return {**content, **{name: {**content[name], **value} for name, value in changed.items()}}


def test_a_plan_with_shares_comes_back_from_its_file() -> None:
    plan = load_plan(_content())
    assert plan.batch.shares == [3, 1]
    assert plan.model_dump() == _content()


@pytest.mark.parametrize(
    ("batch", "refusal"),
    [
        ({"shares": [3, 1, 1]}, ("batch.shares", 3, 2)),
        ({"shares": [3]}, ("batch.shares", "[3]", 2)),
        ({"shares": [4, 0]}, ("batch.shares[1]", 0, 1)),
        ({"shares": [2, 2]}, ("batch.micro_batches", 3, (2, "batch.shares"))),
        ({"global_samples": 10}, ("batch.global_samples", 10, (4, 8))),
    ],
)
def test_bad_shares_get_one_line(batch: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        load_plan(_content(batch=batch))


def test_shares_go_with_replicas_of_the_whole_model_alone() -> None:
    for strategies in (["sdp2"] * UNITS, ["dp2"] * (UNITS - 1) + ["tp2"]):
        with refused(re.compile(r"units\[[07]\]\.strategy"), re.compile("sdp2|tp2"), ("dp2", "dp2-ckpt")):
            plan_of(GPT2, strategies, 2, 4, 3, shares=[3, 1])
    with refused("units[0].strategy", problem="tp2-dp2", fix=("dp2-tp2", "dp2-tp2-ckpt")):
        plan_of(GPT2, ["tp2-dp2"] * UNITS, 4, 4, 3, shares=[3, 1])
    with refused("batch.shares", problem=2, fix=1):
        plan_of(GPT2, ["single"] * UNITS, 2, 4, 3, [3], shares=[3, 1])
