"""Parameters gathered one unit ahead: during the computation of the unit before, where lanes let that save time."""

import random

import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.timing.profiled_costs import ProfiledCosts
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.prediction.compiled_plan import classes_of, may_go_ahead, programs_of
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.execution.program import Program
from trainplan.formulations.plan.plan import Plan

from tests.execution.test_time_walk import profile_of
from tests.helpers.plans import BERT, GPT2, plan_of, random_plan, random_sliced_plan
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_plans import random_switch_plan

LANES: tuple[Backend, ...] = ("fused", "threads", "streams")


def sharded_plan(micro_batches: int = 2, strategy: str = "sdp4") -> Plan:
    return plan_of(GPT2, [strategy] * len(GPT2.units), 4, 8 * micro_batches, micro_batches)


def most_gathered(program: Program) -> int:
    """The most units whose parameters are whole at a time."""
    live, most = set[str](), 0
    for instruction in program.instructions:
        live |= {name for name in instruction.writes if name.startswith("gathered")}
        most = max(most, len(live))
        live -= set(instruction.frees)
    return most


@pytest.mark.parametrize("world", [2, 4, 8])
def test_programs_are_sound_and_never_slower_with_lanes(world: int) -> None:
    """Whatever the plan: a step with lanes is no longer than without gathering ahead, and shorter for some."""
    rng, shorter = random.Random(world), 0
    for n in range(20):
        plan = (random_sliced_plan if n % 4 == 0 else random_plan)(rng, world)
        ahead, needed = compile_plan(plan, ahead=True), compile_plan(plan)
        assert check(ahead) == []
        costs = ProfiledCosts(plan, profile_of(plan))
        for backend in LANES:
            early, late = (time_walk(programs, costs, backend).step_ns for programs in (ahead, needed))
            assert early <= late
            shorter += early < late
    assert shorter


def test_one_lane_takes_as_long_and_needs_more() -> None:
    plan = sharded_plan()
    ahead, needed = compile_plan(plan, ahead=True), compile_plan(plan)
    costs = ProfiledCosts(plan, profile_of(plan))
    assert time_walk(ahead, costs).step_ns == time_walk(needed, costs).step_ns
    for one, other in zip(ahead, needed, strict=True):
        assert memory_walk(one).peak_bytes > memory_walk(other).peak_bytes
        assert sorted(map(str, one.instructions)) == sorted(map(str, other.instructions)), "the same, in another order"


def test_one_unit_ahead_and_no_more() -> None:
    """A gather waits for the input of the unit before the one it is for. The head has the embedding's table next to its own."""
    program = compile_plan(sharded_plan(1), ahead=True)[0]
    assert most_gathered(program) == 3 == most_gathered(compile_plan(sharded_plan(1))[0]) + 1
    gathers = [i for i in program.instructions if i.op is Op.GATHER_PARAMETERS]
    forward = {i.unit: i.reads[1] for i in gathers[: len(GPT2.units)]}
    assert forward == {0: "hidden.0.0"} | {unit: f"hidden.{unit - 1}.0" for unit in range(1, len(GPT2.units))}


def test_no_backward_pass_waits_for_what_is_gathered_for_the_next_one() -> None:
    """It waits for its own unit's parameters, which were gathered during the backward pass before it."""
    program = compile_plan(sharded_plan(1), ahead=True)[0]
    gathered = {position: i.unit for position, i in enumerate(program.instructions) if i.op is Op.GATHER_PARAMETERS}
    backward = [i for i in program.instructions if i.op is Op.BACKWARD]
    waited = {i.unit: {gathered[index] for index in i.waits if index in gathered} for i in backward}
    last = len(GPT2.units) - 1
    assert waited == {unit: {unit} for unit in range(last)} | {last: {0}}, "the head's, and the table's behind it"


def test_back_ends_with_lanes_gather_ahead_where_the_plan_s_memory_holds_it() -> None:
    plan = sharded_plan()
    ahead, needed = compile_plan(plan, ahead=True), compile_plan(plan)
    assert programs_of(plan, "serial") == needed
    for backend in LANES:
        most = max(memory_walk(program, backend).peak_bytes for program in ahead)
        assert programs_of(plan.changed(memory_bytes=most), backend) == ahead
        tight = plan.changed(memory_bytes=most - 1)
        assert programs_of(tight, backend) == needed
        assert max(judge(tight, profile_of(plan), backend=backend).peak_bytes) < most
    assert judge(plan, profile_of(plan), backend="fused").step_ns < judge(plan, profile_of(plan)).step_ns
    assert not may_go_ahead(sharded_plan(strategy="dp4"), "fused")
    assert not may_go_ahead(random_switch_plan(random.Random(0), 4), "streams")


def test_classes_of_equal_ranks_gather_ahead_too() -> None:
    """Also in a pipeline that repeats in rounds, and whose checks are those of fewer ranks."""
    units = len(BERT.units)
    plan = plan_of(BERT, ["sdp4"] * units, 8, 4 * 20, 20, cuts=[units // 2])
    classes = classes_of(plan, "streams")
    assert all(device_class.ahead and device_class.rounds.count for device_class in classes)
    assert check_classes(classes) == []
    assert not any(entry.ahead for entry in (*compile_classes(plan), *classes_of(plan.changed(memory_bytes=1), "streams")))
    ranks = [device_class.ranks[0] for device_class in classes]
    assert [device_class.program for device_class in classes] == compile_plan(plan, ranks=ranks, ahead=True)


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["threads", "fused"]))
def test_gradients_are_those_of_one_process(backend: Backend) -> None:
    """With pauses at random on threads, so that what is gathered ahead is there early, late, or in between."""
    units = len(GPT2.units)
    mixed = [("sdp4", "dp4", "sdp2-tp2-ckpt", "tp2-sdp2")[n % 4] for n in range(units)]
    plans = [sharded_plan(2), sharded_plan(1, "sdp4-ckpt"), plan_of(GPT2, mixed, 4, 16, 2)]
    plans.append(plan_of(GPT2, ["sdp2"] * units, 4, 16, 4, cuts=[3], sliced=1))
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        differences = report.gradient_difference, report.parameter_difference, report.loss_difference
        assert all(difference is not None and difference < 1e-12 for difference in differences), plan
