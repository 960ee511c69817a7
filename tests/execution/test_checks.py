"""Static checks: sound programs pass, and every mutation that could do harm is seen by some check."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from trainplan.execution.checks import check, lifetimes, meanings, races
from trainplan.execution.compile import compile_plan
from trainplan.execution.memory import memory_walk
from trainplan.execution.program import Instruction, Op, Program, handles_all
from trainplan.formulations.strategies import decision_tree

from tests.execution.plans import GPT2, plan_of, random_plan

Mutation = Callable[[Program, int], Program | None]


def _with(program: Program, place: int, instruction: Instruction | None) -> Program:
    rest = list(program.instructions)
    rest[place : place + 1] = [] if instruction is None else [instruction]
    return replace(program, instructions=tuple(rest))


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
def test_random_programs_are_sound(world: int) -> None:
    rng = random.Random(world)
    model = GPT2.with_fields(n_head=16)
    for _ in range(30):
        assert check(compile_plan(random_plan(rng, world, model))) == []


def test_64_ranks_of_the_real_model_are_sound() -> None:
    from trainplan.profiling.models import load_model

    model = load_model("bert-huge-32")
    rng = random.Random(1)
    tree = [s for s in decision_tree(64) if s.degree("tp") in model.tp_degrees(64)]
    plan = plan_of(model, [str(rng.choice(tree)) for _ in model.units], 64, 64)
    assert check(compile_plan(plan)) == []


def test_every_deleted_wait_is_a_race() -> None:
    rng = random.Random(0)
    deleted = 0
    for _ in range(10):
        program = compile_plan(random_plan(rng))[0]
        for place, instruction in enumerate(program.instructions):
            if instruction.waits:
                deleted += 1
                assert races(_with(program, place, replace(instruction, waits=()))), instruction
    assert deleted > 50


def test_every_deleted_free_is_a_leak() -> None:
    rng = random.Random(1)
    for _ in range(5):
        program = compile_plan(random_plan(rng))[0]
        for place, instruction in enumerate(program.instructions):
            for name in instruction.frees:
                kept = tuple(other for other in instruction.frees if other != name)
                assert lifetimes(_with(program, place, replace(instruction, frees=kept))), f"{instruction} keeps {name}"


REMOVABLE = [
    Op.ALL_REDUCE,
    Op.REDUCE_REPLICATED,
    Op.ALL_REDUCE_GRADIENTS,
    Op.REDUCE_SCATTER_GRADIENTS,
    Op.REDUCE_TIED,
    Op.GATHER_PARAMETERS,
    Op.GATHER_STATISTICS,
    Op.GATHER_SLICE,
    Op.ZERO_GRADIENTS,
    Op.RECOMPUTE,
    Op.OPTIMIZER_STEP,
    Op.REDUCE_LOSS,
]


@pytest.mark.parametrize(
    "op", [Op.OPTIMIZER_STEP, Op.REDUCE_LOSS, Op.REDUCE_TIED, Op.BACKWARD, Op.ALL_REDUCE, Op.ALL_REDUCE_GRADIENTS]
)
def test_an_operation_done_twice_is_seen(op: Op) -> None:
    rng = random.Random(7)
    doubled = 0
    for _ in range(20):
        programs = compile_plan(random_plan(rng))
        if not any(i.op is op for i in programs[0].instructions):
            continue
        wanted = next((i.unit, i.micro_batch) for i in programs[0].instructions if i.op is op)
        changed = []
        for program in programs:
            rest: list[Instruction] = []
            for i in program.instructions:
                rest += [replace(i, waits=())] * (2 if (i.op, i.unit, i.micro_batch) == (op, *wanted) else 1)
            changed.append(replace(program, instructions=tuple(rest)))
        assert [f for p in changed for f in lifetimes(p)] or meanings(changed), op
        doubled += 1
    assert doubled >= 3


@pytest.mark.parametrize("op", REMOVABLE)
def test_a_missing_operation_is_seen(op: Op) -> None:
    """Left out on all ranks alike, so that nothing gets stuck: what is computed is wrong, and that is seen."""
    rng = random.Random(2)
    removed = 0
    for _ in range(40):
        programs = compile_plan(random_plan(rng))
        wanted = next(((i.unit, i.micro_batch) for i in programs[0].instructions if i.op is op), None)
        if wanted is None:
            continue
        changed = [
            replace(p, instructions=tuple(i for i in p.instructions if (i.op, i.unit, i.micro_batch) != (op, *wanted)))
            for p in programs
        ]
        # Waits name places: without them only meanings and lifetimes are left to see it.
        changed = [replace(p, instructions=tuple(replace(i, waits=()) for i in p.instructions)) for p in changed]
        serial = [fault for p in changed for fault in lifetimes(p)]
        assert serial or meanings(changed), f"{op} can be left out"
        removed += 1
    assert removed >= 3


def test_permuted_targets_are_seen() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp2-tp2"] * len(GPT2.units), 4))
    place = next(n for n, i in enumerate(programs[0].instructions) if i.op is Op.TARGETS)
    target = programs[0].instructions[place]
    rows = target.args["rows"]
    programs[0] = _with(programs[0], place, replace(target, args={"rows": (rows[1], rows[0], *rows[2:])}))
    assert "targets" in check(programs)[0]


def test_a_changed_scale_is_seen() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp4"] * len(GPT2.units), 4))
    place = next(n for n, i in enumerate(programs[1].instructions) if i.op is Op.LOSS)
    loss = programs[1].instructions[place]
    programs[1] = _with(programs[1], place, replace(loss, args={"scale": loss.args["scale"] * 4}))
    assert "divided" in check(programs)[0]


def test_a_reduction_over_too_few_ranks_is_seen() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp4"] * len(GPT2.units), 4))
    changed = []
    for program in programs:
        pair = (0, 1) if program.rank < 2 else (2, 3)
        rest = [replace(i, group=pair) if i.op is Op.ALL_REDUCE_GRADIENTS and i.unit == 3 else i for i in program.instructions]
        changed.append(replace(program, instructions=tuple(rest)))
    assert check(changed)


def test_swapped_collectives_are_seen() -> None:
    """Two neighbouring gradient reductions in another order on one rank: the queues' heads no longer meet."""
    programs = compile_plan(plan_of(GPT2, ["dp4"] * len(GPT2.units), 4))
    places = [n for n, i in enumerate(programs[2].instructions) if i.op is Op.ALL_REDUCE_GRADIENTS]
    rest = list(programs[2].instructions)
    a, b = places[1], places[2]
    rest[a], rest[b] = rest[b], rest[a]
    programs[2] = replace(programs[2], instructions=tuple(rest))
    assert check(programs)


def test_a_reader_that_lacks_an_operation_does_not_import() -> None:
    handles_all(Op)
    with pytest.raises(ImportError, match="backward"):
        handles_all(set(Op) - {Op.BACKWARD})


def test_the_walk_sees_what_is_kept_for_longer() -> None:
    """Recomputation and sharding lower the walked peak; the fused back-end never has less than the serial one."""
    units = len(GPT2.units)
    model = GPT2.with_fields(sequence=16)
    peaks = {
        s: memory_walk(compile_plan(plan_of(model, [s] * units, 4, 32))[0]).peak_bytes for s in ("dp4", "dp4-ckpt", "sdp4")
    }
    assert peaks["dp4-ckpt"] < peaks["dp4"]
    assert peaks["sdp4"] < peaks["dp4"]
    rng = random.Random(9)
    for _ in range(20):
        program = compile_plan(random_plan(rng))[0]
        assert memory_walk(program, "fused").peak_bytes >= memory_walk(program).peak_bytes
