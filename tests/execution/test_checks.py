"""Static checks: sound programs pass, and every mutation that could do harm is seen by some check."""

import random
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from dataclasses import replace

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check, lifetimes, meanings, races
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.strategy import decision_tree
from trainplan.formulations.schedule.orders import PassOrder

from tests.helpers.mutations import KINDS, OF_ORDER, mutants
from tests.helpers.plans import GPT2, SCHEDULES, pipeline, plan_of, random_plan, with_zero

Mutation = Callable[[Program, int], Program | None]


def _with(program: Program, index: int, instruction: Instruction | None) -> Program:
    rest = list(program.instructions)
    rest[index : index + 1] = [] if instruction is None else [instruction]
    return replace(program, instructions=tuple(rest))


@pytest.mark.parametrize(("world", "plans"), [(1, 40), (2, 60), (4, 80), (8, 70), (16, 35), (32, 10), (64, 5)])
def test_300_random_plans_are_sound(world: int, plans: int) -> None:
    rng = random.Random(world)
    model = GPT2.with_fields(n_head=16)
    for _ in range(plans):
        assert check(compile_plan(random_plan(rng, world, model))) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_number_of_stages_and_micro_batches_gets_stuck(schedule: PassOrder) -> None:
    model = GPT2.with_fields(n_layer=6)
    for stages in range(1, 9):
        for micro_batches in range(1, 10):
            plan = pipeline(model, stages, micro_batches, schedule)
            assert check(compile_plan(plan)) == [], (stages, micro_batches)


def test_64_ranks_of_the_real_model_are_sound() -> None:
    from trainplan.profiling.models.model import load_model

    model = load_model("bert-huge-32")
    rng = random.Random(1)
    tree = [s for s in decision_tree(64) if s.degree("tp") in model.tp_degrees(64)]
    plan = plan_of(model, [str(rng.choice(tree)) for _ in model.units], 64, 64)
    assert check(compile_plan(plan)) == []


def test_every_deleted_wait_is_a_race() -> None:
    rng = random.Random(0)
    deleted = 0
    for _ in range(10):
        program = rng.choice(compile_plan(with_zero(rng, random_plan(rng))))
        for index, instruction in enumerate(program.instructions):
            if instruction.waits:
                deleted += 1
                assert races(_with(program, index, replace(instruction, waits=()))), instruction
    assert deleted > 50


def test_every_deleted_free_is_a_leak() -> None:
    rng = random.Random(1)
    for _ in range(5):
        program = rng.choice(compile_plan(with_zero(rng, random_plan(rng))))
        for index, instruction in enumerate(program.instructions):
            for name in instruction.frees:
                kept = tuple(other for other in instruction.frees if other != name)
                assert lifetimes(_with(program, index, replace(instruction, frees=kept))), f"{instruction} keeps {name}"


REMOVABLE = [
    Op.ALL_REDUCE,
    Op.REDUCE_REPLICATED,
    Op.ALL_REDUCE_GRADIENTS,
    Op.REDUCE_SCATTER_GRADIENTS,
    Op.REDUCE_TIED,
    Op.GATHER_PARAMETERS,
    Op.GATHER_UPDATED,
    Op.GATHER_STATISTICS,
    Op.GATHER_SLICE,
    Op.RECOMPUTE,
    Op.OPTIMIZER_STEP,
    Op.REDUCE_LOSS,
    Op.SEND,
    Op.RECEIVE,
    Op.SEND_RECEIVE,
]


@pytest.mark.parametrize(
    "op", [Op.OPTIMIZER_STEP, Op.REDUCE_LOSS, Op.REDUCE_TIED, Op.BACKWARD, Op.ALL_REDUCE, Op.ALL_REDUCE_GRADIENTS, Op.SEND]
)
def test_an_operation_done_twice_is_seen(op: Op) -> None:
    rng = random.Random(7)
    doubled = 0
    for _ in range(20):
        programs = compile_plan(with_zero(rng, random_plan(rng)))
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
        programs = compile_plan(with_zero(rng, random_plan(rng)))
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
    index = next(n for n, i in enumerate(programs[0].instructions) if i.op is Op.TARGETS)
    target = programs[0].instructions[index]
    rows = target.args["rows"]
    programs[0] = _with(programs[0], index, replace(target, args={"rows": (rows[1], rows[0], *rows[2:])}))
    assert "targets" in check(programs)[0]


def test_a_changed_scale_is_seen() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp4"] * len(GPT2.units), 4))
    index = next(n for n, i in enumerate(programs[1].instructions) if i.op is Op.LOSS)
    loss = programs[1].instructions[index]
    programs[1] = _with(programs[1], index, replace(loss, args={"scale": loss.args["scale"] * 4}))
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
    indices = [n for n, i in enumerate(programs[2].instructions) if i.op is Op.ALL_REDUCE_GRADIENTS]
    rest = list(programs[2].instructions)
    a, b = indices[1], indices[2]
    rest[a], rest[b] = rest[b], rest[a]
    programs[2] = replace(programs[2], instructions=tuple(rest))
    assert check(programs)


def test_a_send_that_is_left_out_is_seen() -> None:
    """On one side: the receive waits for ever. On both: what is received is not there."""
    programs = compile_plan(pipeline(GPT2, 4, 3))
    for rank, program in enumerate(programs):
        indices = [n for n, i in enumerate(program.instructions) if i.op is Op.SEND]
        assert indices
        for index in indices:
            faults = meanings([*programs[:rank], _with(program, index, None), *programs[rank + 1 :]])
            assert "waits for ever" in faults[0] or "meets" in faults[0], faults
    without = [replace(p, instructions=tuple(i for i in p.instructions if i.op.spec.kind != "message")) for p in programs]
    assert "not there" in meanings(without)[0]


def test_swapped_sends_are_seen() -> None:
    programs = compile_plan(pipeline(GPT2, 4, 3))
    first = programs[0]
    one, other = [n for n, i in enumerate(first.instructions) if i.op is Op.SEND][:2]
    rest = list(first.instructions)
    rest[one], rest[other] = rest[other], rest[one]
    assert check([replace(first, instructions=tuple(rest)), *programs[1:]])
    # Also where the hidden states of both are already there: only the lane tells.
    gpipe = compile_plan(pipeline(GPT2, 2, 2, "gpipe"))
    rest = list(gpipe[0].instructions)
    send = rest.pop(next(n for n, i in enumerate(rest) if i.op is Op.SEND))
    last = next(n for n, i in enumerate(rest) if i.op is Op.SEND_RECEIVE)
    rest[last : last + 1] = [rest[last].grouped[0], send, rest[last].grouped[1]]
    faults = meanings([replace(gpipe[0], instructions=tuple(rest)), gpipe[1]])
    assert "meets the receive of hidden" in faults[0]


def test_a_send_and_a_receive_that_are_not_grouped_get_stuck() -> None:
    """On both sides; where one side is grouped, its two halves may be done in any order."""
    for stages, micro_batches in ((2, 2), (4, 6)):
        programs = compile_plan(pipeline(GPT2, stages, micro_batches))
        apart = [replace(p, instructions=tuple(m for i in p.instructions for m in i.messages)) for p in programs]
        assert "waits for ever" in meanings(apart)[0]
    assert meanings([apart[0], *programs[1:]]) == []


def test_permuted_micro_batches_are_seen() -> None:
    """Other samples under the same name, sent or received: sizes and lanes fit, the samples do not."""
    programs = compile_plan(pipeline(GPT2, 2, 2))
    inputs = [n for n, i in enumerate(programs[0].instructions) if i.op is Op.INPUT]
    one, other = (programs[0].instructions[n] for n in inputs)
    swapped = _with(programs[0], inputs[0], replace(one, args=other.args))
    swapped = _with(swapped, inputs[1], replace(other, args=one.args))
    assert "of samples" in meanings([swapped, programs[1]])[0]
    index = next(n for n, i in enumerate(programs[1].instructions) if i.op is Op.RECEIVE)
    receive = programs[1].instructions[index]
    permuted = replace(receive, args={"rows": receive.args["rows"][::-1]})
    assert "of samples" in meanings([programs[0], _with(programs[1], index, permuted)])[0]


def test_a_message_of_another_size_is_seen() -> None:
    programs = compile_plan(pipeline(GPT2, 2, 1))
    index = next(n for n, i in enumerate(programs[1].instructions) if i.op is Op.RECEIVE)
    shorter = replace(programs[1].instructions[index], message_bytes=8)
    assert "8" in meanings([programs[0], _with(programs[1], index, shorter)])[0]


def test_partial_sums_are_not_passed_on() -> None:
    """A last unit whose all-reduce is left out."""
    plan = plan_of(GPT2, ["tp2"] * len(GPT2.units), 4, cuts=[3])
    programs = [
        replace(p, instructions=tuple(i for i in p.instructions if not (i.op is Op.ALL_REDUCE and i.unit == 2)))
        for p in compile_plan(plan)
    ]
    assert "passes on a partial sum" in meanings(programs)[0]


def test_the_memory_analysis_sees_what_is_kept_for_longer() -> None:
    """Recomputation and sharding lower the analysed peak; the fused back-end never has less than the serial one."""
    units = len(GPT2.units)
    model = GPT2.with_fields(sequence=16)
    peaks = {
        s: memory_walk(compile_plan(plan_of(model, [s] * units, 4, 32))[0]).peak_bytes for s in ("dp4", "dp4-ckpt", "sdp4")
    }
    assert peaks["dp4-ckpt"] < peaks["dp4"]
    assert peaks["sdp4"] < peaks["dp4"]
    rng = random.Random(9)
    for _ in range(20):
        program = compile_plan(with_zero(rng, random_plan(rng)))[0]
        assert memory_walk(program, "fused").peak_bytes >= memory_walk(program).peak_bytes


def _changed(programs: list[Program], op: Op, /, **fields: object) -> list[Program]:
    """The first instruction of that operation with other fields, on every rank that has one."""
    result = []
    for program in programs:
        index = next((n for n, i in enumerate(program.instructions) if i.op is op), None)
        changed = None if index is None else program.instructions[index].changed(**fields)
        result.append(program if index is None else _with(program, index, changed))
    return result


def _faulty(programs: list[Program], op: Op, /, **fields: object) -> str:
    faults = check(_changed(programs, op, **fields))
    assert faults, (op, fields)
    return faults[0]


def test_a_tied_matrix_is_reduced_over_all_that_hold_it() -> None:
    """On one stage with unlike ends, on two that share no rank, and with all members of a smaller group of one mind."""
    for strategies, cuts in ((["dp2-tp2", "dp4"], []), (["tp2"] * 2, [4]), (["sdp2"] * 2, [3]), (["single"] * 2, [2, 4, 6])):
        programs = compile_plan(plan_of(GPT2, strategies * (len(GPT2.units) // 2), 4, cuts=cuts))
        assert check(programs) == []
        for groups in ({0: (0,), 1: (1,), 2: (2,), 3: (3,)}, {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}):
            changed = [_changed([program], Op.REDUCE_TIED, group=groups[program.rank])[0] for program in programs]
            assert "reduce-tied is over rank" in check(changed)[0]


def test_an_operation_in_another_s_place_is_seen() -> None:
    plain, recomputed = (compile_plan(plan_of(GPT2, [s] * len(GPT2.units), 4)) for s in ("dp4", "dp4-ckpt"))
    for programs, one, other in (
        (plain, Op.FORWARD, Op.FORWARD_WITHOUT_GRAPH),
        (plain, Op.FORWARD, Op.RECOMPUTE),
        (recomputed, Op.FORWARD_WITHOUT_GRAPH, Op.FORWARD),
        (recomputed, Op.RECOMPUTE, Op.FORWARD_WITHOUT_GRAPH),
        (plain, Op.OPTIMIZER_STEP, Op.HOST_OPTIMIZER_STEP),
        (plain, Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_REPLICATED),
    ):
        fault = _faulty(programs, one, op=other)
        assert fault.startswith("rank 0: ") and str(other) in fault, (one, other)


def test_exchanged_reads_of_a_backward_pass_are_seen() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp4"] * len(GPT2.units), 4))
    reads = next(i for i in programs[0].instructions if i.op is Op.BACKWARD).reads
    for one in range(len(reads)):
        for other in range(one):
            changed = list(reads)
            changed[one], changed[other] = changed[other], changed[one]
            assert "not what its operation does" in _faulty(programs, Op.BACKWARD, reads=tuple(changed))


def test_operations_stay_on_their_lanes() -> None:
    programs = compile_plan(plan_of(GPT2, ["dp2-tp2"] * len(GPT2.units), 4))
    for op in (Op.ALL_REDUCE, Op.FORWARD, Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_LOSS):
        for lane in ("compute", "copy", "host"):
            if op.spec.lane != lane:
                assert f"is on the stream {lane}, not on {op.spec.lane}" in _faulty(programs, op, lane=lane)
    message = compile_plan(pipeline(GPT2, 2, 2))[0].instructions[-3]
    assert "has messages of its own" in _faulty(programs, Op.ALL_REDUCE, grouped=(message,))


def test_bytes_that_do_not_agree_with_buffers_are_seen() -> None:
    """On all ranks alike: nobody contradicts."""
    mixed = ["dp2-tp2", "tp4-ckpt", "sdp2-tp2", "sdp4", "dp2-sdp2-zero1", "sdp2-tp2-zero2", "sdp4-zero1", "sdp4"]
    programs = compile_plan(plan_of(GPT2, mixed, 4, 16, 2))
    ops = {i.op for i in programs[0].instructions}
    assert ops >= {Op.GATHER_SLICE, Op.GATHER_PARAMETERS, Op.REDUCE_REPLICATED, Op.REDUCE_TIED, Op.RECOMPUTE}
    assert ops >= {Op.GATHER_UPDATED, Op.ALL_REDUCE_GRADIENTS}
    for op in sorted(ops):
        assert "moves 12345 bytes" in _faulty(programs, op, message_bytes=12345)
        assert "takes 12345 of workspace" in _faulty(programs, op, workspace_bytes=12345)
    for name, size in programs[0].buffers.items():
        changed = [replace(program, buffers={**program.buffers, name: size + 8}) for program in programs]
        assert any(f"{name} has {size + 8} bytes, not {size}" in fault for fault in check(changed)), name


def test_ranks_of_one_world_are_seen_to_agree() -> None:
    programs = compile_plan(pipeline(GPT2, 4, 3))
    other = GPT2.in_dtype("float32")
    for fields in (
        {"rank": 2},
        {"world": 8},
        {"index_in_stage": 1},
        {"model": other},
        {"samples": 8},
        {"micro_batches": 4},
        {"units": range(99)},
        {"strategies": programs[1].strategies[:-1]},
        {"persistent": programs[1].persistent - {"loss"}},
        {"buffers": {**programs[1].buffers, "host-hidden.1.0": 8}},
    ):
        assert check([programs[0], replace(programs[1], **fields), *programs[2:]])[0].startswith("rank 1: "), fields


def test_what_is_no_program_gets_a_sentence() -> None:
    """Fields of other types or out of range, reads that are missing, units that there are not: rank and instruction, and no
    exception."""
    programs, wrong = compile_plan(plan_of(GPT2, ["dp2-sdp2", "dp2-tp2"] * 4, 4)), ("x", -1, 10**6, 1.5, (None,), {"x": 1})
    rng = random.Random(3)
    for name in (field.name for field in dataclass_fields(Instruction)):
        for value in wrong:
            index = rng.randrange(len(programs[1].instructions))
            changed = programs[1].instructions[index].changed(**{name: value})
            faults = check([programs[0], _with(programs[1], index, changed), *programs[2:]])
            large = value == 10**6 and name in ("message_bytes", "workspace_bytes")
            assert faults[0].startswith("rank 1: " if large else f"rank 1: instruction {index}: "), (name, value, faults)
    for op in {i.op for i in programs[1].instructions}:
        index = next(n for n, i in enumerate(programs[1].instructions) if i.op is op)
        for fields in ({"reads": ()}, {"writes": ()}, {"unit": 99}, {"micro_batch": 99}):
            changed = programs[1].instructions[index].changed(**fields)
            if changed != programs[1].instructions[index]:
                assert check([programs[0], _with(programs[1], index, changed), *programs[2:]])[0].startswith("rank 1: ")


def test_150_mutations_that_must_be_seen() -> None:
    """Over all kinds of fields but those of order alone, of which many changes are another order of the same step."""
    kinds = [kind for kind in KINDS if kind.split(",")[0] not in OF_ORDER]
    for mutant in mutants(random.Random(150), 150, kinds):
        faults = check(mutant.programs)
        if not faults and "drop synchronise" in mutant.what:
            continue  # it only orders others
        assert faults and faults[0].startswith("rank "), mutant[:3]
