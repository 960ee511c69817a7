"""Plans with memory switches on real processes against one process, on every back-end, and their memory."""

import random
from dataclasses import replace

import pytest
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch import processes as run
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import with_waits
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.switches import ALL_ON, Switches

from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import UNTIED
from tests.helpers.sizes import first_and_others, some_and_all
from tests.helpers.switch_plans import FREE, LARGER, MODELS, random_switch_plan, switch_plan

# Plans of each world and back-end, each in one start of the processes: 200.
COUNTS: dict[tuple[int, Backend], int] = {
    (1, "serial"): 24,
    (2, "serial"): 70,
    (2, "threads"): 70,
    (4, "fused"): 20,
    (4, "threads"): 16,
}


def _plans(world: int, backend: Backend) -> list[Plan]:
    rng = random.Random(f"{world} {backend}")
    return [random_switch_plan(rng, world) for _ in range(COUNTS[world, backend])]


def test_the_plans_are_many_and_varied() -> None:
    plans = [plan for world, backend in COUNTS for plan in _plans(world, backend)]
    assert len(plans) >= 200
    assert {plan.nvlink for plan in plans} == {True, False}
    assert {switches for plan in plans for switches in plan.switches() or ()} == set(FREE)
    assert {plan.planned_model().tied for plan in plans} == {True, False}
    assert {plan.planned_model().family for plan in plans} == {model.family for model in MODELS}


@pytest.mark.long
@pytest.mark.parametrize("share", some_and_all(5, 1, 6))
@pytest.mark.parametrize(("world", "backend"), first_and_others([*COUNTS], 3))
def test_random_plans_agree_with_one_process(world: int, backend: Backend, share: int) -> None:
    """Gradients of the first step, losses and parameters of three steps of AdamW, in double precision."""
    plans = _plans(world, backend)[::share]
    reports = run_plans(plans, steps=3, backend=backend)
    assert len(reports) == len(plans)
    for plan, report in zip(plans, reports, strict=True):
        for found in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert found is not None
            assert found < 1e-12, plan
        assert report.losses == sorted(report.losses, reverse=True), "the same batch thrice: the loss must fall"


@pytest.mark.long
def test_the_comparison_can_fail() -> None:
    """A gradient that is scaled, and a unit that is never stepped, are seen: the check that all plans pass is no empty one."""
    plan = switch_plan(UNTIED, 2, [replace(ALL_ON, segment_sync=False)] * len(UNTIED.units))
    scaled, unstepped = [], []
    for program in compile_plan(plan):
        issued = program.instructions
        half = [replace(i, args={"scale": i.args["scale"] / 2}) if i.op is Op.LOSS else i for i in issued]
        scaled.append(replace(program, instructions=tuple(half)))
        rest = [replace(i, after=()) for i in issued if (i.op, i.unit) != (Op.HOST_OPTIMIZER_STEP, 2)]
        unstepped.append(replace(program, instructions=with_waits(rest)))
    job = {
        "jobs": [{"programs": scaled}, {"programs": unstepped}],
        "steps": 2,
        "backend": "serial",
        "gpus": None,
        "seed": 0,
        "compare": True,
        "memory": False,
        "record": False,
    }
    first, second = run.run_workers("trainplan.execution.run.ranks:run_rank", 2, job)[0]
    assert first["gradient_difference"] > 0.1
    assert second["gradient_difference"] < 1e-12
    assert second["parameter_difference"] > 1e-4


@pytest.mark.parametrize(("world", "count"), first_and_others([(2, 2), (1, 14), (2, 20), (4, 8)]))
def test_measured_memory_follows_the_memory_analysis(world: int, count: int) -> None:
    """Against torch's own allocations, on random plans and the two that switch nothing and everything on."""
    rng = random.Random(3)
    plans = [random_switch_plan(rng, world, rng.choice(LARGER), 8) for _ in range(count)]
    plans += [switch_plan(LARGER[0], world, [entry] * len(LARGER[0].units), True, 8) for entry in (Switches(), ALL_ON)]
    reports = run_plans(plans, steps=1, compare=False, measure_memory=True)
    memory_follows_the_walk(reports)
    most, least = (report.peak_bytes[0] for report in reports[-2:] if report.peak_bytes)
    assert least < 0.75 * most, "what is measured, not only what is predicted"
