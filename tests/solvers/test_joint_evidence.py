"""Evidence of bounds on the joint problem, checked in whole numbers by what shares no code with the solver."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations, product

import pytest
from trainplan.formulations.joint.any_schedule import any_schedule_ns
from trainplan.formulations.joint.certificate import checked_bound_ns, possible
from trainplan.formulations.joint.closed_form import closed_form_ns
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.evidence import Evidence
from trainplan.formulations.step.schedules import Pass
from trainplan.solvers.joint.evidence import evidence

import trainplan as tp
from tests.solvers.test_joint import least_step_ns, some_solutions, tiny_instance


@pytest.mark.parametrize("seed", range(40))
def test_checked_bounds_are_never_above_brute_force(seed: int) -> None:
    instance = tiny_instance(3000 + seed)
    least = least_step_ns(instance)
    rests_on = evidence(instance, 10**12 if least is None else least)
    read = Evidence.from_dict(rests_on.to_dict())
    assert read == rests_on
    if least is not None:
        assert checked_bound_ns(instance, read) <= least
        for place, configuration in enumerate(instance.configurations):
            alone = least_step_ns(instance.only([place]))
            claim = read.configurations[place]
            assert alone is None or closed_form_ns(instance, configuration) <= alone
            # A step that some plan has is never shown to be impossible, whatever the prices.
            if alone is not None and claim.prices:
                assert possible(instance, configuration, replace(claim, impossible_ns=alone))
                assert possible(instance, configuration, replace(claim, impossible_ns=alone, prices=(0, 1, 10**6)))


def test_evidence_of_a_model_proves_most_of_the_bound() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    result = tp.solve(instance, gap=1e-4)
    assert result.objective is not None and result.bound is not None
    checked = checked_bound_ns(instance, evidence(instance, result.objective))
    assert 0.95 * result.objective <= checked <= result.objective


def test_evidence_that_claims_too_much_is_refused() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    objective = tp.solve(instance, gap=1e-2).objective
    assert objective is not None
    rests_on = evidence(instance, objective)
    place = max(range(len(rests_on.configurations)), key=lambda at: len(rests_on.configurations[at].prices))
    rows = list(rests_on.configurations)
    rows[place] = replace(rows[place], impossible_ns=10 * objective)
    with pytest.raises(ValueError, match=f"configurations.{place}. may have a step"):
        checked_bound_ns(instance, replace(rests_on, configurations=tuple(rows)))
    with pytest.raises(ValueError, match="another instance"):
        checked_bound_ns(instance, replace(rests_on, instance="0"))
    with pytest.raises(ValueError, match="one entry"):
        checked_bound_ns(instance, replace(rests_on, configurations=rests_on.configurations[1:]))


# Any schedule


@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_below_the_bound_of_any_schedule(seed: int) -> None:
    instance = tiny_instance(4000 + seed)
    for solution, evaluation in some_solutions(random.Random(seed), instance, 20):
        assert any_schedule_ns(instance.configurations[solution.configuration], evaluation) <= evaluation.time_ns


def test_no_order_of_passes_is_below_the_bound_of_any_schedule() -> None:
    """All orders of two micro-batches on each of two stages, those that get stuck aside."""
    tried = 0
    for seed in range(60):
        instance = tiny_instance(5000 + seed, plain=True)
        for solution, evaluation in some_solutions(random.Random(seed), instance, 5):
            configuration = instance.configurations[solution.configuration]
            if configuration.stages != 2:
                continue
            two = replace(configuration, micro_batches=2)
            bound = any_schedule_ns(two, evaluate(replace(instance, configurations=(two,)), replace(solution, configuration=0)))
            times = [stage.times for stage in evaluation.stages]
            for orders in product(*(permutations(_passes(x)) for x in range(2))):
                step = _step_ns(orders, times)
                if step is not None:
                    tried += 1
                    assert bound <= step
        if tried > 20_000:
            break
    assert tried > 1000


def _passes(stage: int) -> list[Pass]:
    return [Pass(kind, number, stage) for kind in ("forward", "backward") for number in range(2)]  # type: ignore[arg-type]


def _step_ns(orders, times) -> int | None:  # type: ignore[no-untyped-def]
    """When both stages have ended, each pass after what it needs; None where they wait for each other."""
    ended: dict[Pass, int] = {}
    at, free = [0, 0], [0, 0]
    going = True
    while going:
        going = False
        for x in range(2):
            while at[x] < 4:
                task = orders[x][at[x]]
                if task.kind == "forward":
                    needed = [Pass("forward", task.micro_batch, 0)] if x else []
                    length = times[x].forward_ns + times[x].message_forward_ns
                else:
                    needed = [Pass("forward", task.micro_batch, x)] + ([Pass("backward", task.micro_batch, 1)] if not x else [])
                    length = times[x].backward_ns + times[x].message_backward_ns
                if any(each not in ended for each in needed):
                    break
                free[x] = max([free[x], *(ended[each] for each in needed)]) + length
                ended[task] = free[x]
                at[x] += 1
                going = True
    if at != [4, 4]:
        return None
    return max(end + each.reduce_ns + each.optimizer_ns for end, each in zip(free, times, strict=True))
