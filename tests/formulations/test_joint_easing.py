"""Solutions without recomputation that saves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.reduce_recomputation import without_needless_recomputation

import trainplan as tp
from tests.helpers.sizes import first_and_others

REQUEST: dict[str, Any] = {"model": "llama3-8b", "batch": 64, "sequence": 8192, "dtype": "bfloat16", "gap": 0.02}


def recomputed(instance: Instance, solution: Solution) -> int:
    configuration = instance.configurations[solution.configuration]
    count = 0
    for stage, (first, last) in enumerate(solution.spans()):
        for unit in range(first, last + 1):
            strategy = instance.table(configuration, stage, unit).options[solution.choice[unit]].strategy
            count += strategy is not None and (strategy.ckpt or bool(strategy.modules))
    return count


def all_recomputed(instance: Instance, solution: Solution) -> Solution:
    """The solution with every unit recomputed that has such an option."""
    configuration, choice = instance.configurations[solution.configuration], list(solution.choice)
    for stage, (first, last) in enumerate(solution.spans()):
        for unit in range(first, last + 1):
            options = instance.table(configuration, stage, unit).options
            own = options[choice[unit]].strategy
            same = [
                s
                for s, option in enumerate(options)
                if option.strategy
                and option.strategy.ckpt
                and own is not None
                and (option.strategy.levels, option.strategy.zero, option.strategy.sequence_parallel)
                == (own.levels, own.zero, own.sequence_parallel)
            ]
            choice[unit] = same[0] if same else choice[unit]
    return Solution(solution.configuration, solution.cuts, tuple(choice))


@pytest.mark.parametrize(("cluster", "memory"), first_and_others([("h100:8x8", None), ("h100:8x8", "30GiB"), ("h100:8", None)]))
def test_what_there_is_memory_for_is_kept(cluster: str, memory: str | None) -> None:
    answer = tp.plan(cluster=cluster, **REQUEST, **({"memory": memory} if memory else {}))
    instance, solution = answer.answer.instance, answer.answer.solution
    worse = all_recomputed(instance, solution)
    better = without_needless_recomputation(instance, worse)
    assert violations(instance, better) == []
    assert evaluate(instance, better).objective <= evaluate(instance, worse).objective
    assert recomputed(instance, better) < recomputed(instance, worse)
    assert without_needless_recomputation(instance, better) == better
    assert recomputed(instance, without_needless_recomputation(instance, solution)) <= recomputed(instance, solution)
