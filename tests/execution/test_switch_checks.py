"""Static checks of programs with memory switches: every mutation that could do harm is seen by some check."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from trainplan.execution.analysis.verify.checks import check, lifetimes, meanings, races
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.formulations.plan.switches import ALL_ON, Switches

from tests.helpers.plans import GPT2, UNTIED
from tests.helpers.switch_plans import random_switch_plan, switch_plan

FREED = replace(ALL_ON, segment_sync=False)


def _changed(program: Program, instructions: Sequence[Instruction]) -> Program:
    """A program of these instructions, whose waits follow from them; nothing waits for a mark that is not set before it."""
    marks, kept = set[str](), []
    for instruction in instructions:
        kept.append(replace(instruction, after=tuple(name for name in instruction.after if name in marks)))
        marks.update(instruction.marks)
    return replace(program, instructions=with_waits(kept))


def _wrong(programs: Sequence[Program]) -> str:
    """Faults of what the programs compute, whatever the order that they promise."""
    found = [fault for program in programs for fault in lifetimes(program)] or meanings(programs)
    return next(iter(found), "")


def _everywhere(programs: Sequence[Program], change: Callable[[list[Instruction]], list[Instruction]]) -> list[Program]:
    return [_changed(p, change(list(p.instructions))) for p in programs]


def _of(op: Op, unit: int | None) -> Callable[[Instruction], bool]:
    return lambda i: (i.op, i.unit) == (op, unit)


def _all_on(world: int = 2, switches: Switches = FREED) -> list[Program]:
    return compile_plan(switch_plan(GPT2, world, [switches] * len(GPT2.units)))


def test_every_deleted_wait_is_a_race() -> None:
    """Waits that a mark or a synchronisation needs are deleted, too."""
    rng = random.Random(0)
    deleted = 0
    for _ in range(12):
        program = compile_plan(random_switch_plan(rng, 2))[1]
        for position, instruction in enumerate(program.instructions):
            for index in instruction.waits:
                deleted += 1
                rest = list(program.instructions)
                rest[position] = replace(instruction, waits=tuple(other for other in instruction.waits if other != index))
                assert races(replace(program, instructions=tuple(rest))), instruction
    assert deleted > 200


def test_every_deleted_free_is_a_leak() -> None:
    rng = random.Random(1)
    ops = set()
    for _ in range(8):
        program = compile_plan(random_switch_plan(rng, 2))[0]
        for index, instruction in enumerate(program.instructions):
            for name in instruction.frees:
                rest = list(program.instructions)
                rest[index] = replace(instruction, frees=tuple(other for other in instruction.frees if other != name))
                assert lifetimes(replace(program, instructions=tuple(rest))), f"{instruction} keeps {name}"
                ops.add(instruction.op)
    assert ops >= {Op.RESHARD, Op.DROP_HIDDEN, Op.PREFETCH_HIDDEN, Op.OFFLOAD_GRADIENT, Op.GATHER_PARAMETERS}


@pytest.mark.parametrize(
    "op",
    [
        Op.PREFETCH_SHARD,
        Op.GATHER_PARAMETERS,
        Op.RESHARD,
        Op.OFFLOAD_HIDDEN,
        Op.DROP_HIDDEN,
        Op.PREFETCH_HIDDEN,
        Op.RECOMPUTE,
        Op.REDUCE_SCATTER_GRADIENTS,
        Op.OFFLOAD_GRADIENT,
        Op.REDUCE_TIED,
        Op.REDUCE_LOSS,
        Op.HOST_OPTIMIZER_STEP,
    ],
)
def test_a_missing_operation_is_seen(op: Op) -> None:
    """Each one in turn, left out on all ranks alike; nothing waits for its mark."""
    rng = random.Random(2)
    removed = 0
    for _ in range(12):
        programs = compile_plan(random_switch_plan(rng, 2))
        for number in range(sum(i.op is op for i in programs[0].instructions)):

            def without(rest: list[Instruction], number: int = number) -> list[Instruction]:
                index = [n for n, i in enumerate(rest) if i.op is op][number]
                return rest[:index] + rest[index + 1 :]

            assert _wrong(_everywhere(programs, without)), f"{op} can be left out"
            removed += 1
    assert removed >= 3


@pytest.mark.parametrize("op", [Op.SYNCHRONISE, Op.MARK])
def test_missing_order_is_seen(op: Op) -> None:
    """By those that come after its mark. (Without these it is another order of the same step, and just as sound.)"""
    program = _all_on(switches=ALL_ON)[0]
    for index, instruction in enumerate(program.instructions):
        if instruction.op is op:
            rest = program.instructions[:index] + program.instructions[index + 1 :]
            assert "which is not there" in lifetimes(replace(program, instructions=with_waits(list(rest))))[0]
    assert meanings(_everywhere(_all_on(switches=ALL_ON), lambda rest: [i for i in rest if i.op is not op])) == []


def test_a_lane_that_does_not_synchronise_is_seen() -> None:
    """One that is not waited for, or does not wait: the races' check knows what the operation promises."""
    programs = compile_plan(switch_plan(UNTIED, 2, [Switches(segment_sync=True)] * len(UNTIED.units)))
    program, seen = programs[0], 0
    for index, instruction in enumerate(program.instructions):
        synchronising = instruction.op is Op.SYNCHRONISE
        requested = {m for i in program.instructions if i.op is Op.SYNCHRONISE for m in i.marks} & {*instruction.after}
        if synchronising or requested:
            rest = list(program.instructions)
            rest[index] = replace(instruction, after=())
            faults = races(_changed(program, rest))
            # What it reads may have come after the same instruction, on its own lane or through another.
            assert all("does not wait for" in fault for fault in faults)
            seen += bool(faults)
    assert seen > len(UNTIED.units)


def _swapped(rest: list[Instruction], one: Op, other: Op, unit: int) -> list[Instruction]:
    """The last of the one and the last of the other operation in each other's place."""
    a, b = (max(n for n, i in enumerate(rest) if _of(op, unit)(i)) for op in (one, other))
    rest[a], rest[b] = rest[b], rest[a]
    return rest


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (Op.OFFLOAD_HIDDEN, Op.PREFETCH_HIDDEN, "reads host-hidden.3.0, which is not there"),
        (Op.OFFLOAD_HIDDEN, Op.DROP_HIDDEN, "reads host-hidden.3.0, which is not there"),
        (Op.DROP_HIDDEN, Op.PREFETCH_HIDDEN, "reads host-hidden.3.0, which is not there"),
        (Op.PREFETCH_SHARD, Op.GATHER_PARAMETERS, "reads parameter.3, which is not there"),
        (Op.RESHARD, Op.BACKWARD, "reads gathered.3, which is not there"),
        (Op.REDUCE_SCATTER_GRADIENTS, Op.OFFLOAD_GRADIENT, "reads gradient.3, which is not there"),
    ],
)
def test_swapped_operations_are_seen(one: Op, other: Op, message: str) -> None:
    assert message in _wrong(_everywhere(_all_on(), lambda rest: _swapped(rest, one, other, 3)))


def test_an_optimizer_step_before_its_gradient_is_seen() -> None:
    programs = _everywhere(_all_on(), lambda rest: _swapped(rest, Op.OFFLOAD_GRADIENT, Op.HOST_OPTIMIZER_STEP, 3))
    assert "uses host-gradient.3, which is of the step before" in _wrong(programs)


def test_a_stale_shard_is_seen() -> None:
    """Copied back before the optimizer's step, the device would begin the next step with what it began this one with. And
    with that step first, the gradient would be the last one's."""
    resident = _all_on(switches=Switches())
    early = _everywhere(resident, lambda rest: _swapped(rest, Op.PREFETCH_SHARD, Op.HOST_OPTIMIZER_STEP, 3))
    assert _wrong(early) == "rank 0: parameter.3 ends without the optimizer's step"

    def first(rest: list[Instruction]) -> list[Instruction]:
        step = next(i for i in rest if _of(Op.HOST_OPTIMIZER_STEP, 3)(i))
        return [step, *(i for i in rest if i is not step)]

    assert "of the step before" in _wrong(_everywhere(_all_on(), first))

    def again(rest: list[Instruction]) -> list[Instruction]:
        ops = (Op.PREFETCH_SHARD, Op.GATHER_PARAMETERS, Op.RESHARD)
        return rest + [next(i for i in rest if _of(op, 3)(i)) for op in ops]

    assert "gathers parameter.3, which is not this step's shard" in _wrong(_everywhere(_all_on(), again))


def test_a_step_without_a_copy_back_is_seen() -> None:
    for unit in (0, 3):
        index = -1 if unit else 0

        def without(rest: list[Instruction], unit: int = unit, index: int = index) -> list[Instruction]:
            copies = [n for n, i in enumerate(rest) if _of(Op.PREFETCH_SHARD, unit)(i)]
            return [i for n, i in enumerate(rest) if n != copies[index]]

        reported = _wrong(_everywhere(_all_on(switches=Switches()), without))
        assert reported == f"rank 0: parameter.{unit} ends without the optimizer's step"


def test_copies_of_another_unit_are_seen() -> None:
    """Units 1 and 3 are alike, and so are their buffers' sizes."""
    renamed = {
        Op.PREFETCH_SHARD: "host-parameter.1",
        Op.PREFETCH_HIDDEN: "host-hidden.1.0",
        Op.OFFLOAD_GRADIENT: "gradient.1",
        Op.OFFLOAD_HIDDEN: "hidden.1.0",
    }
    for op, name in renamed.items():

        def other(rest: list[Instruction], op: Op = op, name: str = name) -> list[Instruction]:
            return [replace(i, reads=(name,)) if _of(op, 3)(i) else i for i in rest]

        bare = [replace(p, instructions=tuple(other(list(p.instructions)))) for p in _all_on()]
        assert "not what its operation does" in check(bare)[0], op


def test_a_gradient_of_one_rank_alone_is_seen() -> None:
    """A reduce-scatter over another group: the shard does not hold each sample once."""
    programs = compile_plan(switch_plan(UNTIED, 4, [FREED] * len(UNTIED.units)))
    pairs = [
        _changed(
            p,
            [
                replace(i, group=(0, 1) if p.rank < 2 else (2, 3)) if _of(Op.REDUCE_SCATTER_GRADIENTS, 2)(i) else i
                for i in p.instructions
            ],
        )
        for p in programs
    ]
    assert "is over ranks 0, 1, not over ranks 0, 1, 2, 3" in check(pairs)[0]


def test_lanes_are_no_part_of_what_is_computed() -> None:
    """With copies moved to the lane of communication and back, the checks hold all the same; the waits differ."""
    nvlink, shared = (compile_plan(switch_plan(UNTIED, 2, [FREED] * len(UNTIED.units), own)) for own in (True, False))
    assert check(nvlink) == check(shared) == []
    assert [i.waits for i in nvlink[0].instructions] != [i.waits for i in shared[0].instructions]
