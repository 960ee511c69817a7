"""Stages on any disjoint ranks, of unlike sizes and any degrees: checked, analysed, and run against one process."""

import random

import pytest
from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.compile.ranks import row_transfers
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport
from trainplan.execution.prediction.evaluate_plan import judge, predict_from_saved_costs
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Profile

from tests.helpers.plans import GPT2, plan_of, random_unlike_plan
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

CPU = load_cluster("cpu-4")


def profile_of(plan: Plan) -> Profile:
    samples = plan.batch.global_samples // plan.batch.micro_batches
    degrees = sorted({strategy.degree("tp") for strategy in plan.strategies()})
    sizes = sorted(set(plan.stage_sizes))
    return obtain_profile(plan.planned_model(), CPU, [samples], sizes, devices=4, degrees=degrees)


@pytest.mark.parametrize("count", some_and_all(40, 400, 150))
def test_random_plans_are_sound(count: int) -> None:
    """No faults, no rank stuck, and the messages of a boundary bring each rank its own rows, each once."""
    several = 0
    for seed in range(count):
        rng = random.Random(seed)
        plan = random_unlike_plan(rng, rng.choice([2, 3, 4, 5, 6, 8]), sliced=seed % 3 == 0)
        programs = compile_plan(plan)
        assert check(programs) == [], seed
        several += any(i.op is Op.SEND and len(i.grouped) > 1 for program in programs for i in program.instructions)
    assert several > count // 4


def _hold(reports: list[RunReport]) -> None:
    for report in reports:
        assert report.gradient_difference is not None and report.parameter_difference is not None
        assert report.gradient_difference < 1e-12 and report.parameter_difference < 1e-12


@pytest.mark.long
@pytest.mark.parametrize(("world", "backend"), first_and_others([(4, "fused"), (3, "serial"), (3, "threads")]))
@pytest.mark.parametrize("count", some_and_all(6, 30, 12))
def test_random_plans_agree_with_one_process(world: int, backend: str, count: int) -> None:
    rng = random.Random(world)
    plans = [random_unlike_plan(rng, world, sliced=number % 3 == 0) for number in range(count)]
    assert any(len(set(plan.stage_sizes)) > 1 for plan in plans)
    _hold(run_plans(plans, backend=backend))  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("world", [6, 8])
def test_random_plans_on_more_processes(world: int) -> None:
    rng = random.Random(world)
    _hold(run_plans([random_unlike_plan(rng, world, sliced=number % 3 == 0) for number in range(12)], backend="threads"))


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_analysed_with_and_without_their_profile(seed: int) -> None:
    plan = random_unlike_plan(random.Random(seed), 4, sliced=seed % 3 == 0)
    profile = profile_of(plan)
    for backend in BACKENDS:
        judged = judge(plan, profile, backend=backend)
        assert judged.step_ns > 0 and len(judged.peak_bytes) == 4
        assert predict_from_saved_costs(plan, judged.carried(), backend).step_ns == judged.step_ns


def test_each_sender_serves_its_part_of_the_receivers() -> None:
    alike = [(0, 1), (2, 3)]
    assert row_transfers(alike, alike) == {(0, 0): (0, 1), (1, 1): (2, 3)}
    assert row_transfers([(0, 1, 2, 3)] * 2, [(0,), (1,), (2,), (3,)]) == {
        (0, 0): (0,),
        (0, 1): (1,),
        (1, 2): (2,),
        (1, 3): (3,),
    }
    assert row_transfers([(0,), (1,), (2,)], [(0, 1, 2)]) == {(0, 0): (0,), (1, 0): (1,), (2, 0): (2,)}


def test_stages_that_are_none_are_refused_in_words() -> None:
    plan = plan_of(GPT2, ["single"] * 8, 2, 12, 1, [4]).model_dump()
    plan["units"] = [{"name": u["name"], "strategy": "dp3" if n < 4 else "single"} for n, u in enumerate(plan["units"])]
    plan["stages"][0]["ranks"], plan["stages"][1]["ranks"], plan["world"] = [0, 1, 3], [2], 4
    assert load_plan(plan).stage_sizes == [3, 1]
    for stages, refusal in (
        (([0, 1, 3], [3]), ("stages[1].ranks[0]", (3, "stages[0]"), (0, 3))),
        (([0, 1, 3], [4]), ("stages[1].ranks[0]", 4, (0, 3))),
        (([0, 3, 1], [2]), ("stages[0].ranks", "[0, 3, 1]", "[0, 1, 3]")),
        (([0, 1, 2], []), ("stages[1].ranks", "[]", 1)),
    ):
        for stage, ranks in zip(plan["stages"], stages, strict=True):
            stage["ranks"] = ranks
        with refused(*refusal):
            load_plan(plan)
    plan["world"], plan["stages"][1]["ranks"] = 5, [4]
    with refused("stages", problem="rank 3", fix=(0, 4)):
        load_plan(plan)
