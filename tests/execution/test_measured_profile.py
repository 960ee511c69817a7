"""Times of a run by kind of instruction, and a profile that has them."""

from __future__ import annotations

import random

import pytest
from trainplan.execution.analysis.timing.measured_costs import MeasuredCosts, times_by_kind
from trainplan.execution.analysis.timing.measured_profile import with_measured_times
from trainplan.execution.analysis.timing.profiled_costs import ProfiledCosts
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.profiles import Profile

from tests.helpers.plans import GPT2, UNTIED, plan_of, random_plan
from tests.helpers.refusals import refused

FACTORS = {Op.FORWARD: 2.0, Op.RECOMPUTE: 2.0, Op.FORWARD_WITHOUT_GRAPH: 3.0, Op.BACKWARD: 4.0, Op.OPTIMIZER_STEP: 5.0}
COLLECTIVE, MESSAGE = 6.0, 7.0


def profile_of(plan: Plan) -> Profile:
    shapes = {(unit.strategy.degree("tp"), rows) for unit in plan.units for rows in range(1, 9)}
    return estimate_shapes(plan.planned_model(), load_cluster("cpu-4"), sorted(shapes))


def times_as_long(program: Program, instruction: Instruction, predicted: ProfiledCosts) -> int:
    op = instruction.op
    messages = (Op.RECEIVE, Op.SEND_RECEIVE)
    return round(FACTORS.get(op, MESSAGE if op in messages else COLLECTIVE) * predicted(program, instruction))


@pytest.mark.parametrize("seed", range(6))
def test_the_simulation_by_the_profile_with_measured_times_is_the_measured_one(seed: int) -> None:
    """Whatever each kind of instruction took, the profile then says it, through its own format."""
    plan = random_plan(random.Random(seed), 4)
    profile, programs = profile_of(plan), compile_plan(plan)
    predicted = ProfiledCosts(plan, profile)
    measured = with_measured_times(profile, plan, programs, lambda p, i: times_as_long(p, i, predicted))
    again = ProfiledCosts(plan, Profile.model_validate_json(measured.model_dump_json()))
    for program in programs:
        for instruction in program.instructions:
            if not instruction.op.spec.is_free:
                expected = times_as_long(program, instruction, predicted)
                assert again(program, instruction) == pytest.approx(expected, rel=1e-3, abs=60), str(instruction)
    assert judge(plan, measured).step_ns > judge(plan, profile).step_ns
    assert {entry.forward_ns.origin for entry in measured.costs} <= {"measured"}, "what was estimated of them is made anew"


def test_what_did_not_run_follows_what_did() -> None:
    """Other rows of a sub-layer that was measured are completed from it; a link for one operation changes no other."""
    from trainplan.profiling.interpolate import complete

    plan = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2, 4)
    profile, programs = profile_of(plan), compile_plan(plan)
    predicted = ProfiledCosts(plan, profile)
    measured = with_measured_times(profile, plan, programs, lambda p, i: times_as_long(p, i, predicted))
    name = profile.units[1].sublayer
    before, after = (complete(entry, [(1, 8)]).cost(name, 1, 8) for entry in (profile, measured))
    assert after.forward_ns.value == pytest.approx(2 * before.forward_ns.value, rel=1e-3)
    assert after.forward_without_graph_ns.value == pytest.approx(2 * before.forward_without_graph_ns.value, rel=1e-3)
    assert after.backward_ns.value == pytest.approx(4 * before.backward_ns.value, rel=1e-3)
    assert after.kept_bytes.value == before.kept_bytes.value
    for operation, factor in (("all-reduce", COLLECTIVE), ("all-gather", 1.0), ("p2p", 1.0)):
        old, new = (entry.network.link((0, 1), operation) for entry in (profile, measured))  # type: ignore[arg-type]
        assert old.bandwidth_bytes_per_s / new.bandwidth_bytes_per_s == pytest.approx(factor)


def test_several_kinds_of_device_are_refused() -> None:
    plan = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2, 4)
    profile = profile_of(plan)
    mixed = profile.changed(costs=[*profile.costs, *(entry.changed(device="other") for entry in profile.costs)])
    with refused("costs", "CPU process, other"):
        with_measured_times(mixed, plan, compile_plan(plan), lambda program, instruction: 1)


def test_a_collective_takes_all_its_members_what_the_last_to_come_takes() -> None:
    plan = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2, 4)
    programs = compile_plan(plan)
    late = [[(0, 10 if program.rank else 90) for _ in program.instructions] for program in programs]
    costs = MeasuredCosts(programs, [late])
    rows = {row.kind: row for row in times_by_kind(programs, costs, None)}
    reduced, computed = rows[Op.ALL_REDUCE_GRADIENTS], rows[Op.FORWARD]
    assert reduced.measured_ns == 10 * reduced.count
    assert computed.measured_ns == (90 + 10) * computed.count // 2
    assert reduced.predicted_ns is None


def test_a_run_is_measured_by_kind_and_into_a_profile() -> None:
    plan = plan_of(GPT2, ["dp2"] * len(GPT2.units), 2, 4)
    profile = profile_of(plan)
    plain, measured = (run_plans([plan], measure=True, profile=entry, compare=False)[0] for entry in (None, profile))
    programs = compile_plan(plan)
    for report in (plain, measured):
        assert report.instructions is not None and report.walked_seconds is not None
        counts = {row.kind: row.count for row in report.instructions}
        assert sum(counts.values()) == sum(len(program.instructions) for program in programs)
        assert counts["forward"] == 2 * len(GPT2.units)
        assert 0 < report.walked_seconds <= 2 * max(report.step_seconds)
    assert plain.predicted_seconds is plain.profile is None
    assert measured.profile is not None and measured.instructions is not None
    by_kind = {row.kind: row for row in measured.instructions}
    assert by_kind["forward"].predicted_ns
    again = ProfiledCosts(plan, measured.profile)
    backward = sum(again(p, i) for p in programs for i in p.instructions if i.op is Op.BACKWARD)
    assert backward >= 0.5 * by_kind["backward"].measured_ns
