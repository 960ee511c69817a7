"""Plans that recompute the first n layers of every stage and no others: `--recompute-first`."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.execution.runtimes.export_common import first_recomputed
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.refusals import refused

SMALL = load_model("gpt2-345m", 256, "float32").with_fields(n_layer=4)
TINY = SMALL.with_fields(n_layer=2)
OPTIONS: dict[str, Any] = {"cluster": "h100:2", "batch": 4, "modules": False, "host": "none", "schedule": "all"}
LARGE: dict[str, Any] = {
    "model": "gpt2-345m",
    "dtype": "float32",
    "cluster": "h100:8",
    "batch": 64,
    "sequence": 1024,
    "memory": "8GiB",
}


def chosen(instance: Instance, solution: Solution, unit: int) -> Strategy:
    configuration, stage = instance.configurations[solution.configuration], sum(cut <= unit for cut in solution.cuts)
    strategy = instance.table(configuration, stage, unit).options[solution.choice[unit]].strategy
    assert strategy is not None
    return strategy


def usual_solution(usual: Instance, first: Configuration, strategies: list[Strategy]) -> Solution:
    """These strategies, in the stages of a configuration with fixed cuts, where units are chosen one by one."""
    cuts = first.cuts or ()
    wanted = (first.schedule, first.micro_batches, len(first.device_groups))
    for index, configuration in enumerate(usual.configurations):
        tables = [usual.table(configuration, 0, unit).options for unit in range(usual.length)]
        names = [[option.strategy for option in options] for options in tables]
        same = (configuration.schedule, configuration.micro_batches, len(configuration.device_groups)) == wanted
        if same and all(strategy in own for strategy, own in zip(strategies, names, strict=True)):
            return Solution(index, cuts, tuple(own.index(strategy) for strategy, own in zip(strategies, names, strict=True)))
    raise AssertionError(f"no configuration has {wanted} with {strategies[0]}")


def test_numbers_are_those_of_the_usual_instance() -> None:
    """Every choice takes the time and the memory of the same strategies where units are chosen one by one; which choices there
    are is counted apart: of each stage's layers the first n."""
    first, usual = (tp.build("joint", model=SMALL, **OPTIONS, **more) for more in ({"recompute_first": "any"}, {}))
    seen = set()
    for index, configuration in enumerate(first.configurations):
        for s in range(len(configuration.tables[0].units[0].options)):
            solution = Solution(index, configuration.cuts or (), (s,) * first.length)
            strategies = [chosen(first, solution, unit) for unit in range(first.length)]
            other = usual_solution(usual, configuration, strategies)
            assert evaluate(first, solution) == evaluate(usual, other)
            assert violations(first, solution) == violations(usual, other)
            seen.add((len(solution.cuts) + 1, sum(strategy.ckpt for strategy in strategies) // 2))
    assert seen >= {(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 2), (2, 4)}


@pytest.mark.parametrize("share", [1.0, 0.98, 0.9])
def test_the_best_is_that_of_all_choices(share: float) -> None:
    """By enumeration, with units that do not agree as well, which boundaries forbid; with memory for all and with less."""
    roomy = tp.build("joint", model=TINY, **OPTIONS, recompute_first="any")
    evaluation = tp.solve(roomy).evaluation
    assert evaluation is not None
    memory = int(share * evaluation["peak_bytes"])
    instance = tp.build("joint", model=TINY, **OPTIONS, recompute_first="any", memory=memory, reserve=0)
    every, found = tp.solve(instance, "brute-force"), tp.solve(instance, "decomposition")
    assert (found.status, every.status) == ("optimal", "optimal")
    assert found.objective == every.objective == found.bound
    assert found.solution is not None and len(set(found.solution["choice"])) == 1


def test_the_bound_is_at_most_every_simulation() -> None:
    """The steps of the plan and of those with another n, each simulated."""
    layout: dict[str, Any] = {**LARGE, "for_": "megatron", "sdp": 8, "micro_batches": 2}
    planned = tp.plan(**layout, recompute_first="any")
    assert planned.plan is not None and planned.plan.predicted is not None
    n, bound = first_recomputed(planned.plan), planned.answer.bound_ns
    assert n is not None and 0 < n < 24 and bound is not None
    assert tp.export(planned.plan, "megatron").left_out == ()
    for number in (n, n + 4, 24):
        fixed = tp.plan(**layout, recompute_first=str(number)).plan
        assert fixed is not None and fixed.predicted is not None
        assert [unit.strategy.ckpt for unit in fixed.units[1:-1]] == [index < 2 * number for index in range(48)]
        assert bound <= fixed.predicted.step_ns
    assert bound <= planned.plan.predicted.step_ns


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"recompute_first": "99"}, ("recompute_first", 99, (0, 24, "0,4,8", "any"))),
        ({"recompute_first": "some"}, ("recompute_first", "some", (0, 24, "0,4,8", "any"))),
        ({"recompute_first": "4", "host": "hidden"}, ("host", ("hidden", "--recompute-first"), "--recompute-first")),
        (
            {"recompute_first": "4", "for_": "torch"},
            ("recompute_first", (4, "torch"), ("megatron", "megatron-bridge", "trainplan")),
        ),
        (
            {"recompute_first": "4", "cuts": ["block3.ffn"], "pipeline": 2},
            ("cuts", "layer", "sub-layers"),
        ),
    ],
)
def test_what_no_plan_has_is_refused(options: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.plan(**LARGE, **options)


@pytest.mark.long
def test_options_that_do_not_combine_are_not_advised() -> None:
    requested: dict[str, Any] = {**LARGE, "memory": "800MiB", "comparisons": False, "micro_batches": 8}
    reasons = [tp.plan(**requested, **more).result.reason for more in ({}, {"recompute_first": "any"})]
    assert all(reason is not None for reason in reasons)
    assert ["host hidden" in str(reason) for reason in reasons] == [True, False]
