"""Programs of plans whose units have states and inputs on the host: what comes when, what is held, and what checks see."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from trainplan.execution.analysis.memory.host_slots import host_slots
from trainplan.execution.analysis.memory.peak import BACKENDS, memory_walk
from trainplan.execution.analysis.verify.checks import check, lifetimes, meanings, races
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.formulations.plan.plan import load_plan

from tests.execution.test_time_walk import profile_of
from tests.helpers.plans import GPT2, UNTIED, pipeline, plan_of, random_unlike_plan
from tests.helpers.residence_plans import ON_HOST, random_residence_plan, resident
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_plans import random_switch_plan
from trainplan.prediction.predict import stage_times

UNITS = len(UNTIED.units)
EVERYTHING = {"states": {**ON_HOST, "parameters": "host"}, "hidden": True}


def _count(program: Program, op: Op, unit: int | None = None) -> int:
    return sum(i.op is op and (unit is None or i.unit == unit) for i in program.instructions)


def _indices(program: Program, op: Op, unit: int) -> list[int]:
    return [index for index, i in enumerate(program.instructions) if (i.op, i.unit) == (op, unit)]


@pytest.mark.parametrize(
    ("world", "plans"), first_and_others([(4, 40), (6, 20), (1, 40), (2, 60), (3, 40), (4, 60), (8, 20)], 2)
)
def test_random_residences_are_sound(world: int, plans: int) -> None:
    rng = random.Random(world)
    for _ in range(plans):
        plan = random_residence_plan(rng, world, random_unlike_plan if world in (3, 6) else None)
        for ahead in (False, True):
            assert check(compile_plan(plan, ahead=ahead)) == []


def test_nothing_changes_where_nothing_is_on_the_host() -> None:
    """Units next to those that have something there do what they do without."""
    plain = plan_of(UNTIED, ["sdp2"] * UNITS, 2, 12, 3)
    mixed = resident(plain, {2: EVERYTHING})
    for before, after in zip(compile_plan(plain), compile_plan(mixed), strict=True):
        others = [[i.changed(waits=()) for i in p.instructions if i.unit != 2] for p in (before, after)]
        assert others[0] == others[1]
        assert not any(name.startswith("host-") and ".2" not in name for name in after.buffers)


@pytest.mark.parametrize("strategy", ["dp2", "sdp2", "tp2"])
def test_states_of_one_unit_are_on_the_host(strategy: str) -> None:
    """The gradient is summed over micro-batches on the device, and copied out once; the host steps once it is there, and what
    the device keeps of the parameters comes back last, before the loss is summed."""
    plain = plan_of(UNTIED, [strategy] * UNITS, 2, 12, 3)
    of_unit = compile_plan(plain)[0].buffers["parameter.2"]
    for parameters, kept in (("device", 1), ("host", 0)):
        plan = resident(plain, {2: {"states": {**ON_HOST, "parameters": parameters}}})
        program = compile_plan(plan)[0]
        copied, fetched = _count(program, Op.OFFLOAD_GRADIENT), _indices(program, Op.PREFETCH_SHARD, 2)
        assert copied == _count(program, Op.HOST_OPTIMIZER_STEP) == 1
        assert _count(program, Op.OPTIMIZER_STEP) == UNITS - 1
        assert len(fetched) == (1 if kept else 6), "behind the step; or before every pass"
        assert (fetched[-1] == len(program.instructions) - 2) is bool(kept)
        assert compile_plan(plain)[0].persistent_bytes - program.persistent_bytes == (4 - kept) * of_unit
        assert memory_walk(program).host_bytes == 4 * of_unit
        assert check(compile_plan(plan)) == []


@pytest.mark.parametrize(("strategy", "parameters"), [("sdp2", "device"), ("sdp2", "host"), ("dp2", "host")])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_parameters_that_are_kept_whole_come_once_a_step(strategy: str, parameters: str, schedule: str) -> None:
    states = {**ON_HOST, "parameters": parameters}
    plain = plan_of(UNTIED, [strategy] * UNITS, 4, 12, 3, cuts=[3], schedule=schedule)  # type: ignore[arg-type]
    often, once = (
        compile_plan(resident(plain, {1: {"states": states, "kept_whole": kept}}))[0].instructions for kept in (False, True)
    )
    come = (Op.PREFETCH_SHARD,) if strategy == "dp2" else (Op.GATHER_PARAMETERS,)
    name = "parameter.1" if strategy == "dp2" else "gathered.1"
    for issued, times in ((often, 6), (once, 1)):
        assert sum(i.op in come and i.unit == 1 for i in issued) == times
        freeing = [i for i in issued if name in i.frees]
        assert len(freeing) == times
        assert (freeing[-1].op, freeing[-1].micro_batch) == (Op.BACKWARD, 2)


def test_parameters_on_the_device_are_kept_whole_too() -> None:
    plain = plan_of(UNTIED, ["sdp2"] * UNITS, 2, 12, 3)
    program = compile_plan(resident(plain, {1: {"kept_whole": True}}))[0]
    assert _count(program, Op.GATHER_PARAMETERS, 1) == 1
    assert _count(program, Op.GATHER_PARAMETERS, 2) == 6
    assert not any(i.op.spec.is_copy for i in program.instructions)


def test_passes_of_such_plans_are_not_reported_to_be_alike() -> None:
    """Times of a stage's passes are reported where they are the same for each micro-batch; here the simulation shows them."""
    plain = plan_of(UNTIED, ["sdp2"] * UNITS, 2, 12, 3)
    profile = profile_of(plain)
    assert stage_times(plain, profile) is not None
    kept = resident(plain, {unit: {"kept_whole": True} for unit in range(UNITS)})
    for plan in (kept, resident(plain, {1: EVERYTHING})):
        assert stage_times(plan, profile) is None
    assert judge(kept, profile).step_ns < judge(plain, profile).step_ns
    assert judge(resident(plain, {1: EVERYTHING}), profile).step_ns > 0


def test_the_head_and_its_table_are_kept_apart() -> None:
    """A head that works with the embedding's own matrix gathers that for itself, unless the embedding's is kept."""
    plain = plan_of(GPT2, ["sdp2"] * len(GPT2.units), 2, micro_batches=2)
    last = len(GPT2.units) - 1
    for units, of_embedding, of_head in (({}, 8, 4), ({0: 1}, 1, 4), ({last: 1}, 8, 1), ({0: 1, last: 1}, 1, 1)):
        plan = resident(plain, {unit: {"kept_whole": True} for unit in units})
        program = compile_plan(plan)[0]
        assert program.shares_table
        gathers = Counter(i.unit for i in program.instructions if i.op is Op.GATHER_PARAMETERS)
        assert (gathers[0], gathers[last]) == (of_embedding, of_head)
        assert check(compile_plan(plan)) == []


@pytest.mark.parametrize("world", [1, 2])
def test_a_tied_matrix_is_summed_on_the_device_before_it_is_copied(world: int) -> None:
    """Wherever the states of its two copies are."""
    last = len(GPT2.units) - 1
    plain = plan_of(GPT2, ["single"] * (last + 1), world, micro_batches=2, cuts=[3] if world == 2 else ())
    for ends in ((0,), (last,), (0, last)):
        plan = resident(plain, dict.fromkeys(ends, EVERYTHING))
        programs = compile_plan(plan)
        assert check(programs) == []
        for program in programs:
            assert not program.shares_table
            (tied,) = [i for i in program.instructions if i.op is Op.REDUCE_TIED]
            assert not tied.by_processor
            index = program.instructions.index(tied)
            offloaded = [n for unit in {*ends} & {*program.units} for n in _indices(program, Op.OFFLOAD_GRADIENT, unit)]
            assert all(n > index for n in offloaded)


@pytest.mark.parametrize("own_lane", [True, False])
def test_inputs_on_the_host_are_as_many_as_micro_batches_in_flight(own_lane: bool) -> None:
    """To the byte; and not one of them is on the device between its passes."""
    units = {unit: {"hidden": True} for unit in range(UNITS)}
    plain = pipeline(UNTIED, 3, 8)
    off = resident(plain, {})
    plan = resident(off, units, own_lane)
    for index, (program, before) in enumerate(zip(compile_plan(plan), compile_plan(off), strict=True)):
        slots = host_slots(program)
        assert len(slots.sizes) == (3 - index) * len(program.units)
        assert memory_walk(program).host_bytes == sum(slots.sizes)
        assert memory_walk(before).host_bytes == 0
        held = set(program.persistent)
        between = dict.fromkeys(range(8), 0)
        for i in program.instructions:
            held = (held | {*i.writes}) - {*i.frees}
            if i.op is Op.DROP_HIDDEN:
                mine = {name for name in held if name.split(".")[0] in ("hidden", "input", "prefetched")}
                assert not any(name.split(".")[1] == str(i.unit) for name in mine)
                between[i.micro_batch or 0] += 1
        assert set(between.values()) == {len(program.units)}


def test_slots_are_not_shared_by_what_lanes_may_hold_at_a_time() -> None:
    """Who writes a slot comes, by lane order and waits, after who let go of it."""
    rng, shared = random.Random(3), 0
    for _ in range(40):
        plan = random_residence_plan(rng, 4)
        for program in compile_plan(plan, ahead=rng.choice([True, False])):
            slots = host_slots(program)
            as_slots = {name: f"host-slot.{slot}" for name, slot in slots.slot_of.items()}
            renamed = [
                i.changed(
                    reads=tuple(as_slots.get(name, name) for name in i.reads),
                    writes=tuple(as_slots.get(name, name) for name in i.writes),
                    frees=tuple(as_slots.get(name, name) for name in i.frees),
                )
                for i in program.instructions
            ]
            assert races(replace(program, instructions=tuple(renamed))) == []
            shared += len(slots.slot_of) - len(slots.sizes)
    assert shared > 50


def test_copies_have_a_lane_each_way_or_share_that_of_communication() -> None:
    rng = random.Random(4)
    for _ in range(20):
        plan = random_residence_plan(rng, 2)
        for program in compile_plan(plan):
            for kind, lane in (("copy-out", "copy-out"), ("copy-in", "copy")):
                lanes = {i.stream for i in program.instructions if i.op.spec.kind == kind}
                assert lanes <= {lane if plan.nvlink else "communication"}


def test_what_is_brought_in_ahead_is_there_before_its_unit_computes() -> None:
    """During the computation of the unit before it in the pass, and not before that one's input is there."""
    plan = resident(plan_of(UNTIED, ["sdp2"] * UNITS, 2, micro_batches=2), dict.fromkeys(range(UNITS), EVERYTHING))
    later, early = (compile_plan(plan, ahead=ahead)[0] for ahead in (False, True))
    forward, unit = Op.FORWARD_WITHOUT_GRAPH, 3
    assert _indices(later, Op.PREFETCH_SHARD, unit)[0] > _indices(later, forward, unit - 1)[0]
    assert _indices(early, Op.PREFETCH_SHARD, unit)[0] < _indices(early, forward, unit - 1)[0]
    for op in (Op.PREFETCH_HIDDEN, Op.PREFETCH_SHARD, Op.GATHER_PARAMETERS):
        assert _indices(later, op, unit)[-1] > _indices(later, Op.BACKWARD, unit + 1)[-1]
        assert _indices(early, op, unit)[-1] < _indices(early, Op.BACKWARD, unit + 1)[-1]
    assert sorted(map(str, later.instructions)) == sorted(map(str, early.instructions))


def test_nothing_but_what_is_copied_back_waits_for_the_host() -> None:
    """Directly or through others: so whoever issues to a device has issued all but the sum of the loss before it waits. And
    the host steps on the unit whose gradient is there first while others are still to come."""
    rng, early = random.Random(6), 0
    for _ in range(30):
        for program in compile_plan(random_residence_plan(rng, 2)):
            later = set[int]()
            issued = program.instructions
            for index, i in enumerate(issued):
                if i.op is Op.HOST_OPTIMIZER_STEP or later & {*i.waits}:
                    later.add(index)
            others = [index for index in later if issued[index].op is not Op.HOST_OPTIMIZER_STEP]
            assert all(issued[index].op is Op.PREFETCH_SHARD for index in others)
            assert others == [] or sorted(others)[0] == len(issued) - len(others) - 1
            assert issued[-1].op is Op.REDUCE_LOSS
            steps = [index for index, i in enumerate(issued) if i.op is Op.HOST_OPTIMIZER_STEP]
            early += any(i.op is Op.BACKWARD for i in issued[steps[0] :]) if steps else 0
    assert early > 10


def test_back_ends_with_overlap_never_hold_less() -> None:
    rng = random.Random(9)
    for _ in range(40):
        for program in compile_plan(random_residence_plan(rng, 2)):
            serial = memory_walk(program).peak_bytes
            assert all(memory_walk(program, backend).peak_bytes >= serial for backend in BACKENDS)


# What checks see


def _changed(program: Program, change: Callable[[list[Instruction]], list[Instruction]]) -> Program:
    return replace(program, instructions=with_waits(change(list(program.instructions))))


def _wrong(programs: Sequence[Program]) -> list[str]:
    return [fault for program in programs for fault in lifetimes(program)] or meanings(programs)


@pytest.mark.parametrize(
    "op",
    [
        Op.PREFETCH_SHARD,
        Op.GATHER_PARAMETERS,
        Op.OFFLOAD_HIDDEN,
        Op.DROP_HIDDEN,
        Op.PREFETCH_HIDDEN,
        Op.REDUCE_SCATTER_GRADIENTS,
        Op.ALL_REDUCE_GRADIENTS,
        Op.OFFLOAD_GRADIENT,
        Op.REDUCE_TIED,
        Op.HOST_OPTIMIZER_STEP,
    ],
)
def test_a_missing_operation_is_seen(op: Op) -> None:
    """Each one in turn, left out on all ranks that have it."""
    rng, removed = random.Random(2), 0
    while removed < 15:
        programs = compile_plan(random_residence_plan(rng, 2))
        kinds = {(i.unit, i.micro_batch, i.half) for p in programs for i in p.instructions if i.op is op}
        for kind in sorted(kinds, key=str)[:6]:

            def without(rest: list[Instruction], kind: tuple[int | None, ...] = kind) -> list[Instruction]:
                return [i for i in rest if i.op is not op or (i.unit, i.micro_batch, i.half) != kind]

            assert _wrong([_changed(p, without) for p in programs]), f"{op} {kind} can be left out"
            removed += 1


def test_every_deleted_wait_is_a_race() -> None:
    rng, deleted = random.Random(0), 0
    for _ in range(8):
        program = compile_plan(random_residence_plan(rng, 2), ahead=rng.choice([True, False]))[0]
        for position, instruction in enumerate(program.instructions):
            for index in instruction.waits:
                deleted += 1
                rest = list(program.instructions)
                rest[position] = replace(instruction, waits=tuple(other for other in instruction.waits if other != index))
                assert races(replace(program, instructions=tuple(rest))), instruction
    assert deleted > 200


def test_a_gradient_that_is_copied_before_the_last_micro_batch_is_seen() -> None:
    plan = resident(plan_of(UNTIED, ["single"] * UNITS, 1, micro_batches=2), {2: EVERYTHING})
    program = compile_plan(plan)[0]

    def early(rest: list[Instruction]) -> list[Instruction]:
        copy = next(i for i in rest if i.op is Op.OFFLOAD_GRADIENT)
        rest.remove(copy)
        first = next(n for n, i in enumerate(rest) if (i.op, i.unit) == (Op.BACKWARD, 2))
        return [*rest[: first + 1], copy, *rest[first + 1 :]]

    assert "reads gradient.2, which is not there" in _wrong([_changed(program, early)])[0]


def test_an_input_of_another_micro_batch_is_seen() -> None:
    plan = resident(plan_of(UNTIED, ["single"] * UNITS, 1, micro_batches=2, schedule="gpipe"), {2: EVERYTHING})
    program = compile_plan(plan)[0]

    def exchanged(rest: list[Instruction]) -> list[Instruction]:
        names = {"host-hidden.2.0": "host-hidden.2.1", "host-hidden.2.1": "host-hidden.2.0"}
        return [
            i.changed(reads=tuple(names.get(n, n) for n in i.reads), frees=tuple(names.get(n, n) for n in i.frees))
            if i.op is Op.PREFETCH_HIDDEN
            else i
            for i in rest
        ]

    changed = [_changed(program, exchanged)]
    assert "not what its operation does" in check(changed)[0]
    assert _wrong(changed), "nor by its meaning"


def test_only_h3ts_step_goes_by_segments() -> None:
    """One stage, one micro-batch, all states on the host: any other plan of the same residences is made of passes."""
    rng = random.Random(5)
    plan = random_switch_plan(rng, 2, UNTIED)
    assert plan.switches() is not None

    several = {**plan.model_dump(), "batch": {"global_samples": 8, "micro_batches": 2}}
    for unit in several["units"]:
        unit["order"] = {}
    segments, passes = compile_plan(plan)[0], compile_plan(load_plan(several))[0]
    assert any(i.marks for i in segments.instructions)
    assert not any(i.marks or i.after for i in passes.instructions)
    assert all(passes.steps_on_host(unit) for unit in passes.units)
